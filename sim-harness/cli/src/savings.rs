//! `docs/savings.md`: what a split saves on all kinds of loads, by plans that are
//! checked at a tenth, once and ten times the rate.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use tidegate_sim::kernels::{Architecture, Deployment, Precision, find_gpu};
use tidegate_sim::plan::{
    Alternative, Check, Effort, Held, Plan, Question, Runner, Slo, Source, held, plan,
};
use tidegate_sim::rng::Pcg;
use tidegate_sim::workload::{
    AGENT_HEAVY, AZURE_2023, CapPolicy, LMSYS_CHAT_1M, Lengths, Request, Trace, parse_trace,
};

use crate::commands::CommandError;
use crate::files;
use crate::plan::with_threads;

/// The rate that is planned for.
const RATE: f64 = 1_000.0;

/// Where the lengths of a case are from.
enum Kind {
    Named(&'static Lengths),
    /// A file among the traces.
    File(&'static str),
    /// Chats whose turns each carry all before them.
    Turns,
    /// Azure's, of which one in a thousand is of 32K to 64K tokens.
    Tail,
}

/// One load and what serves it.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    about: &'static str,
    kind: Kind,
    /// Burstiness of arrivals.
    cv: f64,
    model: &'static str,
    gpu: &'static str,
    tp: u32,
    weights: Precision,
    window: u32,
    slo: Slo,
}

const CHAT: Slo = Slo { ttft_p99: 2.0, tpot_p99: 0.08 };
/// Two A100 need more than two seconds for the longest hundredth of the prompts.
const PAIR: Slo = Slo { ttft_p99: 5.0, tpot_p99: 0.08 };
const LONG: Slo = Slo { ttft_p99: 15.0, tpot_p99: 0.1 };

/// All of them.
pub static CASES: [Case; 7] = [
    Case {
        name: "azure",
        about: "Azure's pooled lengths of 2023",
        kind: Kind::Named(&AZURE_2023),
        cv: 1.0,
        model: "Llama-3.1-70B",
        gpu: "a100_sxm",
        tp: 2,
        weights: Precision::Fp8,
        window: 65_536,
        slo: PAIR,
    },
    Case {
        name: "azure-code",
        about: "lengths of Azure's code trace of 2023, in bursts: gaps with a coefficient of \
                variation of 3.6, since the trace's counts vary 13 times as much as those of a \
                Poisson process",
        kind: Kind::File("azure_llm_2023_code.csv.gz"),
        cv: 3.6,
        model: "Llama-3.1-70B",
        gpu: "h100_sxm",
        tp: 4,
        weights: Precision::Bf16,
        window: 65_536,
        slo: CHAT,
    },
    Case {
        name: "lmsys",
        about: "LMSYS-Chat-1M: short chats with a tail to 65,536 tokens",
        kind: Kind::Named(&LMSYS_CHAT_1M),
        cv: 1.0,
        model: "Llama-3.1-70B",
        gpu: "a100_sxm",
        tp: 2,
        weights: Precision::Fp8,
        window: 65_536,
        slo: PAIR,
    },
    Case {
        name: "mooncake-conversation",
        about: "lengths of Mooncake's conversation trace, without its shared prefixes",
        kind: Kind::File("mooncake_conversation.jsonl.gz"),
        cv: 1.0,
        model: "Qwen3-235B-A22B",
        gpu: "h200_sxm",
        tp: 8,
        weights: Precision::Bf16,
        window: 131_072,
        slo: LONG,
    },
    Case {
        name: "agent-heavy",
        about: "the papers' agents, without shared prefixes",
        kind: Kind::Named(&AGENT_HEAVY),
        cv: 1.0,
        model: "Qwen3-235B-A22B",
        gpu: "h200_sxm",
        tp: 8,
        weights: Precision::Bf16,
        window: 131_072,
        slo: LONG,
    },
    Case {
        name: "sharegpt-like",
        about: "chats of 4 turns on average, each with all before it, questions of 90 and answers \
                of 300 tokens on average, behind 512 of instructions; made up, without shared \
                prefixes",
        kind: Kind::Turns,
        cv: 1.0,
        model: "Llama-3.1-70B",
        gpu: "h100_sxm",
        tp: 4,
        weights: Precision::Bf16,
        window: 65_536,
        slo: CHAT,
    },
    Case {
        name: "mix-with-64K-tail",
        about: "Azure's lengths, of which one request in a thousand has 32K to 64K tokens",
        kind: Kind::Tail,
        cv: 1.0,
        model: "Llama-3.1-70B",
        gpu: "h100_sxm",
        tp: 4,
        weights: Precision::Bf16,
        window: 65_536,
        slo: Slo { ttft_p99: 5.0, tpot_p99: 0.08 },
    },
];

/// How much is simulated.
pub struct Size {
    effort: Effort,
    checks: Vec<Check>,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            effort: Effort { rates: Vec::new(), ..Effort::default() },
            checks: vec![
                Check { rate: 100.0, seconds: 60.0, seeds: 3, all: true },
                Check { rate: RATE, seconds: 60.0, seeds: 3, all: true },
                Check { rate: 10_000.0, seconds: 60.0, seeds: 1, all: false },
            ],
        }
    }
}

impl Size {
    /// Enough to see that it works.
    pub fn small() -> Self {
        let effort = Effort {
            requests: 700,
            seeds: 1,
            thresholds: 2,
            tune: false,
            ..Size::default().effort
        };
        Self { effort, checks: vec![Check { rate: 20.0, seconds: 10.0, seeds: 1, all: true }] }
    }
}

/// Requests that are drawn for lengths which no file has.
const DRAWN: usize = 40_000;

impl Case {
    fn lengths(&self, traces: &Path) -> Result<Source, CommandError> {
        let rows = |draw: &mut dyn FnMut(&mut Pcg) -> (u32, u32)| {
            let mut rng = Pcg::new(0, 0);
            let row = |(input_tokens, output_tokens)| Request {
                arrival: 0,
                input_tokens,
                output_tokens,
                cap: None,
            };
            Source::Trace((0..DRAWN).map(|_| row(draw(&mut rng))).collect())
        };
        Ok(match self.kind {
            Kind::Named(lengths) => Source::Drawn(lengths.clone()),
            Kind::File(name) => {
                let bytes = files::read(&traces.join(name));
                let bytes = bytes.map_err(|error| CommandError::File("--traces", error))?;
                let trace = parse_trace(&bytes);
                match trace.map_err(|e| CommandError::Flag("--traces", e.to_string()))? {
                    Trace::Timed(requests) => Source::Trace(requests.into()),
                    Trace::Totals(cdf) => Source::Drawn(Lengths::from_total(cdf)),
                }
            }
            Kind::Turns => {
                let mut history = 512;
                rows(&mut |rng: &mut Pcg| {
                    let tokens = |rng: &mut Pcg, mean: f64| (rng.exponential(mean) as u32).max(8);
                    if rng.chance(0.25) {
                        history = 512;
                    }
                    let input = (history + tokens(rng, 90.0)).min(60_000);
                    let output = tokens(rng, 300.0).min(4_000);
                    history = input + output;
                    (input, output)
                })
            }
            Kind::Tail => rows(&mut |rng: &mut Pcg| {
                let (input, output) = AZURE_2023.draw(rng);
                if !rng.chance(0.001) {
                    return (input, output);
                }
                ((32_768 + rng.below(32_768)).saturating_sub(output).max(1), output)
            }),
        })
    }

    fn question(
        &self,
        traces: &Path,
        caps: CapPolicy,
        size: &Size,
    ) -> Result<Question, CommandError> {
        let known = |what: &'static str| CommandError::Flag("--only", format!("{what} is gone"));
        let model = Architecture::find(self.model).map_err(|_| known(self.model))?;
        Ok(Question {
            lengths: self.lengths(traces)?,
            caps,
            cv: self.cv,
            rate: if size.effort.tune { RATE } else { 20.0 },
            slo: self.slo,
            gpu: find_gpu(self.gpu, &[]).ok_or_else(|| known(self.gpu))?,
            deployment: Deployment { weights: self.weights, ..Deployment::new(model, self.tp) },
            utilization: 0.9,
            window: self.window,
            pools: 3,
            seed: 1,
            effort: size.effort.clone(),
        })
    }
}

/// The page. Says on the standard error how far it is.
pub fn page(
    cases: &[&Case],
    traces: &Path,
    size: &Size,
    threads: usize,
) -> Result<String, CommandError> {
    let start = Instant::now();
    let say = |what: &str| eprintln!("{:6.0} s: {what}", start.elapsed().as_secs_f64());
    with_threads(threads, |runner| {
        let mut rows = Vec::new();
        let mut sections = String::new();
        for case in cases {
            let made = one(case, traces, size, runner, &say)?;
            rows.push(made.0);
            sections.push_str(&made.1);
        }
        say("done");
        Ok(HEAD.to_owned() + &overview(&rows) + &sections)
    })
}

const HEAD: &str = "# What a split saves

Written by `make savings`: [plans](plan.md) for seven kinds of load at 1,000 requests a second, each fleet then
run whole, behind the filter's own gate, at 100, 1,000 and 10,000 a second: 60 s of requests that count, after
the warm-up, with three seeds (at 10,000 one, and the tuned pool and the best split alone), replicas in
proportion and rounded up.

- *homogeneous*: the papers' single pool, 16 sequences at the whole window. *tuned*: one pool with searched
  settings. *two*, *three pools*: Tidegate's, thresholds and settings searched. *oracle*: as many pools as the
  better of these, shared out by true lengths.
- Promises are for 99 of 100 of *all* requests; who was refused or cut short missed both. No pool may miss more
  than 5 % of its own while it is searched.
- Caps: `ladder` (30 % of clients name none, the others the smallest of 256 to 8,192 that is twice the answer)
  unless said otherwise. Prompts share no prefixes.
- GPUs are medians of three seeds with their range, plus what the plan's own check at 1,000 (12,000 requests with
  each seed) asked for. Differences within the range are chance.
- Checks with more than 1 % late or slow are fleets that are a little too small: at 100 requests a second there are
  few replicas to share a burst, and a longer window sees more of how the load goes up and down.

";

/// A case in the overview.
struct Row {
    name: &'static str,
    on: String,
    fleets: Vec<FleetSize>,
    verdict: String,
}

/// A fleet there; without GPUs where none is enough.
struct FleetSize {
    name: &'static str,
    gpus: Option<u32>,
    seeds: Option<(u32, u32)>,
}

fn number(count: Option<u32>) -> String {
    count.map_or_else(|| "never".into(), |count| count.to_string())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn less(gpus: Option<u32>, than: Option<u32>) -> String {
    match (gpus, than) {
        (Some(gpus), Some(than)) => percent(1.0 - f64::from(gpus) / f64::from(than)),
        _ => "-".into(),
    }
}

fn overview(rows: &[Row]) -> String {
    let mut out = String::from(
        "| load | GPUs of a replica | homogeneous | tuned | two pools | three pools | oracle | saves of \
         homogeneous / tuned | beyond the oracle |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let of = |name: &str| row.fleets.iter().find(|one| one.name == name);
        let gpus = |name: &str| of(name).and_then(|one| one.gpus);
        let cell = |name: &str| match of(name) {
            Some(FleetSize { gpus: Some(gpus), seeds: Some((low, high)), .. }) => {
                format!("{gpus} ({low}-{high})")
            }
            Some(one) => number(one.gpus),
            None => "-".into(),
        };
        let split = ["two pools", "three pools"].into_iter().filter_map(gpus).min();
        let best = split.into_iter().chain(gpus("tuned")).min();
        let beyond = match (split, gpus("oracle")) {
            (Some(split), Some(oracle)) => percent(f64::from(split) / f64::from(oracle) - 1.0),
            _ => "-".into(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| [{}](#{}) | {} | {} | {} | {} | {} | {} | {} / {} | {beyond} |",
            row.name,
            row.name.to_lowercase(),
            row.on,
            cell("homogeneous"),
            cell("tuned"),
            cell("two pools"),
            cell("three pools"),
            cell("oracle"),
            less(best, gpus("homogeneous")),
            less(best, gpus("tuned")),
        );
    }
    out.push('\n');
    for row in rows {
        let _ = writeln!(out, "- {}: {}", row.name, row.verdict);
    }
    out
}

fn settings(one: &Alternative) -> String {
    let shape = |shape: &tidegate_sim::plan::Shape| {
        format!("{}/{}/{}", shape.threshold, shape.seats, shape.batched)
    };
    one.layout.shapes.iter().map(shape).collect::<Vec<_>>().join(" + ")
}

fn one(
    case: &Case,
    traces: &Path,
    size: &Size,
    runner: &mut dyn Runner,
    say: &dyn Fn(&str),
) -> Result<(Row, String), CommandError> {
    let mut made = |caps| -> Result<Plan, CommandError> {
        let mut question = case.question(traces, caps, size)?;
        if caps != CapPolicy::Ladder {
            (question.pools, question.effort.verify) = (2, false);
        }
        say(&format!("{}, caps {caps:?}", case.name));
        plan(question, runner, &mut |what| say(what)).map_err(CommandError::Plan)
    };
    let ladder = made(CapPolicy::Ladder)?;
    let others = [made(CapPolicy::None)?, made(CapPolicy::Actual)?];
    let mut checks = Vec::new();
    for check in &size.checks {
        say(&format!("checked at {} requests a second", check.rate));
        let held = held(&ladder, check, runner).map_err(CommandError::Plan)?;
        checks.push((check.rate, held));
    }
    let spread = |one: &Alternative| one.size.as_ref().ok().map(|size| size.spread);
    let all = ladder.alternatives();
    let row = Row {
        name: case.name,
        on: format!("{} x {}, {}", case.tp, case.gpu, case.model),
        fleets: all
            .iter()
            .map(|(name, one)| FleetSize { name, gpus: one.gpus(), seeds: spread(one) })
            .collect(),
        verdict: verdict(&ladder),
    };
    Ok((row, section(case, &ladder, &others, &checks)))
}

fn verdict(plan: &Plan) -> String {
    let answer = plan.answer();
    let Some(gpus) = answer.gpus() else {
        return "no fleet of these kinds holds the promise".into();
    };
    let within = if plan.clear() { "" } else { " The seeds' ranges overlap: within chance." };
    if plan.splits {
        let at: Vec<String> = answer.thresholds().iter().map(u32::to_string).collect();
        return format!("split at {}: {gpus} GPUs.{within}", at.join(" and "));
    }
    let forced = plan.pools.first().and_then(Alternative::gpus);
    format!(
        "do not split: {gpus} GPUs in one pool; two pools would take {}.{within}",
        forced.map_or_else(|| "never enough".into(), |gpus| gpus.to_string())
    )
}

fn section(case: &Case, ladder: &Plan, others: &[Plan], checks: &[(f64, Vec<Held>)]) -> String {
    let mut out = format!(
        "\n## {}\n\n{}. {} on {} x {}{}, window {}, p99 TTFT {} s, p99 TPOT {} s. Prompt + output: p50 {}, \
         p90 {}, p99 {}, most {}. Searched with {:.0} s of {:.0} requests a second after {:.0} s; {} runs.\n\n",
        case.name,
        case.about,
        case.model,
        case.tp,
        case.gpu,
        if case.weights == Precision::Bf16 { "" } else { ", weights fp8" },
        case.window,
        case.slo.ttft_p99,
        case.slo.tpot_p99,
        ladder.totals[0],
        ladder.totals[1],
        ladder.totals[2],
        ladder.totals[3],
        ladder.scale.window,
        ladder.scale.rate,
        ladder.scale.warm_up,
        ladder.runs.0,
    );
    out.push_str(
        "| | threshold/seqs/batch | GPUs (seeds) | caps none / actual |\n|---|---|---|---|\n",
    );
    for (name, one) in ladder.alternatives() {
        let gpus = |plan: &Plan| {
            let one = plan.alternatives().into_iter().find(|one| one.0 == name);
            one.map_or_else(|| "-".into(), |(_, one)| number(one.gpus()))
        };
        let spread = one.size.as_ref().map_or_else(
            |_| "never".into(),
            |size| format!("{} ({}-{})", size.gpus, size.spread.0, size.spread.1),
        );
        let caps: Vec<String> = others.iter().map(gpus).collect();
        let _ = writeln!(out, "| {name} | {} | {spread} | {} |", settings(one), caps.join(" / "));
    }
    out.push_str(
        "\n| checked | requests/s | GPUs | simulated s | requests | TTFT p99 s | TPOT p99 s | late | slow | \
         refused | cut short | preemptions per request |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let seconds =
        |figure: Option<f64>| figure.map_or_else(|| "never".into(), |s| format!("{s:.3}"));
    for (rate, all) in checks {
        for one in all {
            let _ = writeln!(
                out,
                "| {} | {rate} | {} | {:.0} | {} | {} | {} | {:.2} % | {:.2} % | {:.3} % | {:.3} % | {:.4} |",
                one.name,
                one.gpus,
                one.requests as f64 / rate,
                one.requests,
                seconds(one.ttft_p99),
                seconds(one.tpot_p99),
                one.late * 100.0,
                one.slow * 100.0,
                one.lost * 100.0,
                one.truncated * 100.0,
                one.preemptions,
            );
        }
    }
    for (name, one) in ladder.alternatives() {
        if let Err(why) = &one.size {
            let _ = writeln!(out, "\n{name}: {why}.");
        }
    }
    out
}
