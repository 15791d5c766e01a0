//! `docs/savings.md`: what a split saves on all kinds of loads, by plans that are
//! checked at a tenth, once and ten times the rate.

mod cases;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use tidegate_sim::kernels::Precision;
use tidegate_sim::plan::{Alternative, Checked, Plan, Runner, check_fleets, plan};
use tidegate_sim::table::percent;
use tidegate_sim::workload::CapPolicy;

pub use cases::{CASES, Case, Size};

use crate::commands::CommandError;
use crate::plan::with_threads;

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
  settings. *two*, *three pools*: Tidegate's, thresholds and settings searched. *oracle*: shared out by true lengths;
  two or three pools, searched alike: the cheapest. Each search tries the best of the other.
- Promises are for 99 of 100 of *all* requests; who was refused or cut short missed both. No pool may miss more
  than 5 % of its own while it is searched.
- Caps: `ladder` (30 % of clients name none, the others the smallest of 256 to 8,192 that is twice the answer) in
  this table. `none` and `actual` (the answer's own length) are planned and checked by themselves, at 1,000
  requests a second. Prompts share no prefixes.
- GPUs are medians of three seeds with their range, plus what the check at 1,000 asked for. Differences within the
  range are chance.
- Checks with more than 1 % late or slow are fleets that are a little too small for that rate. At 100 requests a
  second there are few replicas to share a burst: *held with* is what kept the promise there, a hundredth at a time
  (at least one replica) in each pool that missed more than a hundredth of its own; after four times two
  hundredths, after eight four, and twelve times at the most.

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
        let question = case.question(traces, caps, size)?;
        say(&format!("{}, caps {caps:?}", case.name));
        plan(question, runner, &mut |stage| say(stage.what)).map_err(CommandError::Plan)
    };
    let ladder = made(CapPolicy::Ladder)?;
    let others = [made(CapPolicy::None)?, made(CapPolicy::Actual)?];
    // At its own rate a plan was checked when it was made.
    let own = |plan: &Plan| {
        let fleets = plan.verified.clone();
        Checks { caps: caps_of(plan), rate: plan.question.rate, fleets }
    };
    let mut checks = vec![own(&ladder)];
    for check in &size.checks {
        say(&format!("checked at {} requests a second", check.rate));
        let fleets = check_fleets(&ladder, check, runner).map_err(CommandError::Plan)?;
        checks.push(Checks { caps: caps_of(&ladder), rate: check.rate, fleets });
    }
    checks.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    checks.extend(others.iter().map(own));
    let with_caps = others.each_ref().map(|plan| {
        let saved = less(plan.answer().gpus(), plan.tuned.gpus());
        format!(" With caps {}: {} GPUs, {saved}.", caps_of(plan), number(plan.answer().gpus()))
    });
    let spread = |one: &Alternative| one.size.as_ref().ok().map(|size| size.spread);
    let all = ladder.alternatives();
    let row = Row {
        name: case.name,
        on: format!("{} x {}, {}", case.replica.tp, case.replica.gpu, case.replica.model),
        fleets: all
            .iter()
            .map(|(name, one)| FleetSize { name, gpus: one.gpus(), seeds: spread(one) })
            .collect(),
        verdict: verdict(&ladder) + &at_least_rate(&ladder, &checks) + &with_caps.concat(),
    };
    let plans: Vec<&Plan> = [&ladder].into_iter().chain(&others).collect();
    Ok((row, section(case, &ladder, &plans, &checks)))
}

/// What the fleets of one plan did at one rate.
struct Checks {
    caps: &'static str,
    rate: f64,
    fleets: Vec<Checked>,
}

fn caps_of(plan: &Plan) -> &'static str {
    match plan.question.caps {
        CapPolicy::Ladder => "ladder",
        CapPolicy::None => "none",
        CapPolicy::Actual => "actual",
    }
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

/// What a split saves where it is checked at the lowest rate, with as many as hold.
fn at_least_rate(plan: &Plan, checks: &[Checks]) -> String {
    let Some(Checks { rate, fleets, .. }) = checks.first() else { return String::new() };
    let held = |one: &Alternative| {
        let (name, _) = plan.alternatives().into_iter().find(|(_, other)| *other == one)?;
        fleets.iter().find(|checked| checked.name == name)?.held
    };
    let (Some(split), tuned) = (plan.split().map(held), held(&plan.tuned)) else {
        return String::new();
    };
    format!(
        " At {rate} requests a second, with as many as hold there: {} against {} of the tuned pool, {}.",
        number(split),
        number(tuned),
        less(split, tuned)
    )
}

fn section(case: &Case, ladder: &Plan, plans: &[&Plan], checks: &[Checks]) -> String {
    let mut out = format!(
        "\n## {}\n\n{}. {} on {} x {}{}, window {}, p99 TTFT {} s, p99 TPOT {} s. Prompt + output: p50 {}, \
         p90 {}, p99 {}, most {}. Searched with {:.0} s of {:.0} requests a second after {:.0} s; {} runs.\n\n",
        case.name,
        case.about,
        case.replica.model,
        case.replica.tp,
        case.replica.gpu,
        if case.replica.weights == Precision::Bf16 { "" } else { ", weights fp8" },
        case.replica.window,
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
    let all = plans.iter().flat_map(|plan| {
        plan.alternatives().into_iter().map(move |(name, one)| (caps_of(plan), name, one))
    });
    out.push_str("| | caps | threshold/seqs/batch | GPUs (seeds) |\n|---|---|---|---|\n");
    for (caps, name, one) in all.clone() {
        let spread = one.size.as_ref().map_or_else(
            |_| "never".into(),
            |size| format!("{} ({}-{})", size.gpus, size.spread.0, size.spread.1),
        );
        let _ = writeln!(out, "| {name} | {caps} | {} | {spread} |", settings(one));
    }
    out.push_str(
        "\n| checked | caps | requests/s | GPUs | held with | simulated s | requests | TTFT p99 s | TPOT p99 s | late | \
         slow | refused | cut short | preemptions per request |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let seconds =
        |figure: Option<f64>| figure.map_or_else(|| "never".into(), |s| format!("{s:.3}"));
    for Checks { caps, rate, fleets } in checks {
        for one in fleets {
            let _ = writeln!(
                out,
                "| {} | {caps} | {rate} | {} | {} | {:.0} | {} | {} | {} | {:.2} % | {:.2} % | {:.3} % | {:.3} % | {:.4} |",
                one.name,
                one.gpus,
                one.held.map_or_else(|| "-".into(), |held| held.to_string()),
                one.requests as f64 / rate,
                one.requests,
                seconds(one.seeds.first().and_then(|seed| seed.1)),
                seconds(one.seeds.first().and_then(|seed| seed.2)),
                one.late * 100.0,
                one.slow * 100.0,
                one.lost * 100.0,
                one.truncated * 100.0,
                one.preemptions,
            );
        }
    }
    for (caps, name, one) in all {
        if let Err(why) = &one.size {
            let _ = writeln!(out, "\n{name}, caps {caps}: {why}.");
        }
    }
    out
}
