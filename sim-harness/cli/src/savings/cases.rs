//! The loads, what serves them, and how much of each is simulated.

use std::path::Path;

use tidegate_sim::kernels::{Architecture, Deployment, Precision, find_gpu};
use tidegate_sim::plan::{Check, Effort, Question, Slo, Source, TRIES};
use tidegate_sim::rng::Pcg;
use tidegate_sim::workload::{
    AGENT_HEAVY, AZURE_2023, CapPolicy, LMSYS_CHAT_1M, Lengths, Request, Trace, parse_trace,
};

use crate::commands::CommandError;
use crate::files;

/// Seconds of requests that count, of each check.
const SECONDS: f64 = 60.0;

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
    pub(super) about: &'static str,
    kind: Kind,
    /// Burstiness of arrivals.
    cv: f64,
    pub(super) replica: Replica,
    pub(super) slo: Slo,
}

/// What a replica of all fleets is.
pub(super) struct Replica {
    pub(super) model: &'static str,
    pub(super) gpu: &'static str,
    pub(super) tp: u32,
    pub(super) weights: Precision,
    pub(super) window: u32,
}

/// In bf16 a window of 65,536 does not fit beside the weights.
const TWO_A100: Replica = Replica {
    model: "Llama-3.1-70B",
    gpu: "a100_sxm",
    tp: 2,
    weights: Precision::Fp8,
    window: 65_536,
};
const FOUR_H100: Replica = Replica {
    model: "Llama-3.1-70B",
    gpu: "h100_sxm",
    tp: 4,
    weights: Precision::Bf16,
    window: 65_536,
};
const EIGHT_H200: Replica = Replica {
    model: "Qwen3-235B-A22B",
    gpu: "h200_sxm",
    tp: 8,
    weights: Precision::Bf16,
    window: 131_072,
};

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
        replica: TWO_A100,
        slo: PAIR,
    },
    Case {
        name: "azure-code",
        about: "lengths of Azure's code trace of 2023, in bursts: gaps with a coefficient of \
                variation of 3.6, since the trace's counts vary 13 times as much as those of a \
                Poisson process",
        kind: Kind::File("azure_llm_2023_code.csv.gz"),
        cv: 3.6,
        replica: FOUR_H100,
        slo: CHAT,
    },
    Case {
        name: "lmsys",
        about: "LMSYS-Chat-1M: short chats with a tail to 65,536 tokens",
        kind: Kind::Named(&LMSYS_CHAT_1M),
        cv: 1.0,
        replica: TWO_A100,
        slo: PAIR,
    },
    Case {
        name: "mooncake-conversation",
        about: "lengths of Mooncake's conversation trace, without its shared prefixes",
        kind: Kind::File("mooncake_conversation.jsonl.gz"),
        cv: 1.0,
        replica: EIGHT_H200,
        slo: LONG,
    },
    Case {
        name: "agent-heavy",
        about: "the papers' agents, without shared prefixes",
        kind: Kind::Named(&AGENT_HEAVY),
        cv: 1.0,
        replica: EIGHT_H200,
        slo: LONG,
    },
    Case {
        name: "sharegpt-like",
        about: "chats of 4 turns on average, each with all before it, questions of 90 and answers \
                of 300 tokens on average, behind 512 of instructions; made up, without shared \
                prefixes",
        kind: Kind::Turns,
        cv: 1.0,
        replica: FOUR_H100,
        slo: CHAT,
    },
    Case {
        name: "mix-with-64K-tail",
        about: "Azure's lengths, of which one request in a thousand has 32K to 64K tokens",
        kind: Kind::Tail,
        cv: 1.0,
        replica: FOUR_H100,
        slo: Slo { ttft_p99: 5.0, tpot_p99: 0.08 },
    },
];

/// How much is simulated.
pub struct Size {
    /// Requests a second that are planned for.
    rate: f64,
    pub(super) effort: Effort,
    /// At these rates and sizes fleets are checked.
    pub(super) checks: Vec<Check>,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            rate: RATE,
            effort: Effort { rates: Vec::new(), seconds: SECONDS, ..Effort::default() },
            // At its own rate a plan is checked when it is made.
            checks: vec![
                Check { rate: 100.0, seconds: SECONDS, seeds: 3, all: true, tries: TRIES },
                Check { rate: 10_000.0, seconds: SECONDS, seeds: 1, all: false, tries: 0 },
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
            seconds: 10.0,
            ..Size::default().effort
        };
        let check = Check { rate: 5.0, seconds: 10.0, seeds: 1, all: true, tries: 3 };
        Self { rate: 20.0, effort, checks: vec![check] }
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
                match trace.map_err(|e| CommandError::Flag("--traces".into(), e.to_string()))? {
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

    pub(super) fn question(
        &self,
        traces: &Path,
        caps: CapPolicy,
        size: &Size,
    ) -> Result<Question, CommandError> {
        let known =
            |what: &'static str| CommandError::Flag("--only".into(), format!("{what} is gone"));
        let model =
            Architecture::find(self.replica.model).map_err(|_| known(self.replica.model))?;
        Ok(Question {
            lengths: self.lengths(traces)?,
            caps,
            cv: self.cv,
            rate: size.rate,
            slo: self.slo,
            gpu: find_gpu(self.replica.gpu, &[]).ok_or_else(|| known(self.replica.gpu))?,
            deployment: Deployment {
                weights: self.replica.weights,
                ..Deployment::new(model, self.replica.tp)
            },
            utilization: 0.9,
            window: self.replica.window,
            pools: 3,
            seed: 1,
            effort: size.effort.clone(),
        })
    }
}
