//! The replay's figures, and their JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::Run;
use super::judge::{Verdict, Windows, judge};
use super::send::{Failure, Outcome};
use crate::stats::{mean, quantile};

/// What a replay found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Requests sent.
    pub requests: usize,
    /// Complete answers.
    pub answered: usize,
    /// Failures by name.
    pub errors: BTreeMap<String, usize>,
    /// Requests that a server refused because of their length.
    pub refused: usize,
    /// From the first request to the last answer.
    pub duration: Duration,
    /// How far a request was sent after its time, at most.
    pub latest: Duration,
    /// One row a pool, smallest window first where windows are known.
    pub pools: Vec<PoolRow>,
    /// Judgements by kind; nothing without windows.
    pub verdicts: Option<BTreeMap<Verdict, usize>>,
    /// Error of the gateway's estimate; nothing when it says none.
    pub estimate: Option<Estimate>,
    /// Answers whose usage names the prompt's length, and of these how many
    /// name another one than was written.
    pub prompt_lengths: (usize, usize),
    /// Time to the first token, streams only, seconds.
    pub ttft: Option<Percentiles>,
    /// Time per output token after the first, streams only, seconds.
    pub tpot: Option<Percentiles>,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolRow {
    /// Its name, or "-" where nobody said.
    pub name: String,
    /// Requests that the gateway chose it for, or else that it answered.
    pub requests: usize,
    /// Requests that it answered, by the backend's word.
    pub answered: usize,
    /// The gateway's reasons.
    pub reasons: BTreeMap<String, usize>,
    /// True prompt tokens, median of its requests.
    pub input_median: u32,
    /// Time to the first token, seconds.
    pub ttft: Option<Percentiles>,
    /// Time per output token, seconds.
    pub tpot: Option<Percentiles>,
}

/// Errors of the estimate over parts of the run, in order of arrival.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// All of it.
    pub all: Errors,
    /// The first half.
    pub first_half: Errors,
    /// The second half.
    pub second_half: Errors,
    /// The first 50 requests.
    pub first_50: Errors,
    /// All but the first 50; nothing in shorter runs.
    pub after_50: Option<Errors>,
}

/// Relative errors |estimate - truth| / truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// How many requests.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their 95th percentile.
    pub p95: f64,
}

/// Percentiles of a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Half are below.
    pub p50: f64,
    /// Nine in ten are below.
    pub p90: f64,
    /// 99 in 100 are below.
    pub p99: f64,
}

impl Report {
    /// Sums up a run. Misroutes are judged only where windows are given.
    pub fn new(run: &Run, windows: Option<&Windows>) -> Self {
        let outcomes = &run.outcomes;
        let mut errors = BTreeMap::new();
        let mut verdicts = BTreeMap::new();
        let mut groups: BTreeMap<(usize, &str), Vec<&Outcome>> = BTreeMap::new();
        let (mut checked, mut other) = (0, 0);
        for outcome in outcomes {
            if let Err(failure) = &outcome.result {
                *errors.entry(failure.name()).or_default() += 1;
            }
            if let Some(windows) = windows {
                *verdicts.entry(judge(windows, outcome)).or_default() += 1;
            }
            if let Ok(answer) = &outcome.result
                && let Some(tokens) = answer.prompt_tokens
            {
                checked += 1;
                other += usize::from(tokens != outcome.request.input_tokens);
            }
            let name = called(windows, pool_of(outcome));
            groups.entry((place(windows, name), name)).or_default().push(outcome);
            // A pool that is never chosen, but answers for others, has its row too.
            if let Some(name) = answered_by(windows, outcome) {
                groups.entry((place(windows, name), name)).or_default();
            }
        }
        let answered = |name: &str| {
            let by_name = |outcome: &&Outcome| answered_by(windows, outcome) == Some(name);
            outcomes.iter().filter(by_name).filter(|outcome| outcome.result.is_ok()).count()
        };
        let rows =
            groups.into_iter().map(|((_, name), group)| PoolRow::new(name, &group, answered(name)));
        Self {
            requests: outcomes.len(),
            answered: outcomes.iter().filter(|outcome| outcome.result.is_ok()).count(),
            errors,
            refused: outcomes
                .iter()
                .filter(|outcome| matches!(outcome.result, Err(Failure::ContextLength(_))))
                .count(),
            duration: run.duration,
            latest: run.latest,
            pools: rows.collect(),
            verdicts: windows.map(|_| verdicts),
            estimate: Estimate::new(outcomes),
            prompt_lengths: (checked, other),
            ttft: percentiles(outcomes.iter().filter_map(ttft)),
            tpot: percentiles(outcomes.iter().filter_map(tpot)),
        }
    }

    /// How many outcomes were judged so; nothing without windows.
    pub fn verdict(&self, verdict: Verdict) -> Option<usize> {
        self.verdicts.as_ref().map(|all| all.get(&verdict).copied().unwrap_or(0))
    }

    /// How many outcomes could be judged; nothing without windows.
    pub fn judged(&self) -> Option<usize> {
        Some(self.requests - self.verdict(Verdict::Unknown)?)
    }

    /// The same figures for programs. Times are seconds, shares fractions;
    /// what is not known is null.
    pub fn json(&self) -> Value {
        let pools = self.pools.iter().map(|pool| {
            json!({
                "name": pool.name, "requests": pool.requests, "answered": pool.answered,
                "reasons": pool.reasons, "input_tokens_p50": pool.input_median,
                "ttft_s": pool.ttft.map(Percentiles::json),
                "tpot_s": pool.tpot.map(Percentiles::json),
            })
        });
        json!({
            "requests": self.requests,
            "answered": self.answered,
            "errors": self.errors,
            "duration_s": self.duration.as_secs_f64(),
            "latest_send_s": self.latest.as_secs_f64(),
            "pools": pools.collect::<Vec<_>>(),
            "under_route": self.verdict(Verdict::UnderRoute),
            "over_route": self.verdict(Verdict::OverRoute),
            "spill": self.verdict(Verdict::Spill),
            "too_large": self.verdict(Verdict::TooLarge),
            "not_judged": self.verdict(Verdict::Unknown),
            "refused_context_length": self.refused,
            "estimate_error": self.estimate.as_ref().map(|e| json!({
                "all": e.all.json(), "first_half": e.first_half.json(),
                "second_half": e.second_half.json(), "first_50": e.first_50.json(),
                "after_50": e.after_50.map(Errors::json),
            })),
            "prompt_lengths": {"checked": self.prompt_lengths.0, "differ": self.prompt_lengths.1},
            "ttft_s": self.ttft.map(Percentiles::json),
            "tpot_s": self.tpot.map(Percentiles::json),
        })
    }
}

fn pool_of(outcome: &Outcome) -> &str {
    outcome.decision.pool.as_deref().or(outcome.answered_by.as_deref()).unwrap_or("-")
}

/// A pool's name in the configuration, where it is known by its cluster.
fn called<'a>(windows: Option<&'a Windows>, name: &'a str) -> &'a str {
    let window = windows.and_then(|windows| windows.pools().get(windows.rank(name)?));
    window.map_or(name, |window| &window.name)
}

fn answered_by<'a>(windows: Option<&'a Windows>, outcome: &'a Outcome) -> Option<&'a str> {
    outcome.answered_by.as_deref().map(|name| called(windows, name))
}

fn place(windows: Option<&Windows>, name: &str) -> usize {
    let pools = windows.map_or(&[][..], Windows::pools);
    pools.iter().position(|window| window.name == name).unwrap_or(pools.len())
}

impl PoolRow {
    fn new(name: &str, group: &[&Outcome], answered: usize) -> Self {
        let mut reasons = BTreeMap::new();
        for reason in group.iter().filter_map(|outcome| outcome.decision.reason.clone()) {
            *reasons.entry(reason).or_default() += 1;
        }
        let mut inputs: Vec<u32> = group.iter().map(|o| o.prompt_tokens()).collect();
        inputs.sort_unstable();
        Self {
            name: name.into(),
            requests: group.len(),
            answered,
            reasons,
            input_median: inputs.get(inputs.len() / 2).copied().unwrap_or(0),
            ttft: percentiles(group.iter().copied().filter_map(ttft)),
            tpot: percentiles(group.iter().copied().filter_map(tpot)),
        }
    }
}

pub(super) fn ttft(outcome: &Outcome) -> Option<f64> {
    outcome.result.as_ref().ok()?.first_token.map(|first| first.as_secs_f64())
}

/// (end-to-end - TTFT) / (output - 1); nothing for one token.
fn tpot(outcome: &Outcome) -> Option<f64> {
    let answer = outcome.result.as_ref().ok()?;
    let rest = answer.output_tokens.checked_sub(1).filter(|&rest| rest > 0)?;
    let after_first = answer.end.saturating_sub(answer.first_token?);
    Some(after_first.as_secs_f64() / f64::from(rest))
}

impl Estimate {
    fn new(outcomes: &[Outcome]) -> Option<Self> {
        let errors: Vec<f64> =
            outcomes.iter().filter_map(|outcome| outcome.estimate_error().map(f64::abs)).collect();
        let (first, second) = errors.split_at(errors.len() / 2);
        let (early, late) = errors.split_at(errors.len().min(50));
        Some(Self {
            all: Errors::new(&errors)?,
            // One request alone makes no first half.
            first_half: Errors::new(first).or_else(|| Errors::new(&errors))?,
            second_half: Errors::new(second)?,
            first_50: Errors::new(early)?,
            after_50: Errors::new(late),
        })
    }
}

impl Errors {
    fn new(errors: &[f64]) -> Option<Self> {
        let mut sorted = errors.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self { count: errors.len(), mean: mean(errors)?, p95: quantile(&sorted, 0.95)? })
    }

    fn json(self) -> Value {
        json!({"count": self.count, "mean": self.mean, "p95": self.p95})
    }
}

impl Percentiles {
    pub(super) fn json(self) -> Value {
        json!({"p50": self.p50, "p90": self.p90, "p99": self.p99})
    }
}

pub(super) fn percentiles(values: impl Iterator<Item = f64>) -> Option<Percentiles> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    Some(Percentiles {
        p50: quantile(&sorted, 0.50)?,
        p90: quantile(&sorted, 0.90)?,
        p99: quantile(&sorted, 0.99)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use tidegate_sim::workload::Request;

    use super::*;
    use crate::replay::judge::Window;
    use crate::replay::send::{Answered, Decision};
    use crate::text::Kind;

    /// An answer of the pool `long` in 300 ms, of which 100 to the first token.
    pub(crate) fn outcome(index: usize, input: u32, estimate: Option<u64>) -> Outcome {
        Outcome {
            index,
            tenant: 0,
            retries: 0,
            request: Request { arrival: 0, input_tokens: input, output_tokens: 11, cap: None },
            kind: Kind::English,
            stream: true,
            content_bytes: 4 * input as usize,
            decision: Decision {
                pool: Some(if input > 1_000 { "long" } else { "short" }.into()),
                reason: Some("threshold".into()),
                estimate,
                ..Decision::default()
            },
            answered_by: Some("long".into()),
            result: Ok(Answered {
                output_tokens: 11,
                prompt_tokens: Some(input),
                finish: "stop".into(),
                first_token: Some(Duration::from_millis(100)),
                end: Duration::from_millis(300),
            }),
        }
    }

    pub(crate) fn run(outcomes: Vec<Outcome>) -> Run {
        let (duration, latest) = (Duration::from_secs(2), Duration::from_millis(3));
        Run { outcomes, duration, latest, busy: None }
    }

    fn windows() -> Windows {
        let window = |name: &str, size| Window {
            name: name.into(),
            cluster: name.into(),
            max_model_len: size,
            threshold: size,
        };
        Windows::new(vec![window("short", 1_100), window("long", 5_000)])
    }

    #[test]
    fn figures_are_right() {
        let mut outcomes: Vec<Outcome> =
            (0..100).map(|i| outcome(i, 100, Some(if i < 50 { 150 } else { 110 }))).collect();
        outcomes[99].result = Err(Failure::Status(503, String::new()));
        // What the backend counted is the truth, and told from what was planned.
        outcomes[98].result.as_mut().unwrap().prompt_tokens = Some(2_000);
        outcomes[98].decision.pool = Some("long".into());
        let report = Report::new(&run(outcomes), Some(&windows()));
        assert_eq!((report.requests, report.answered), (100, 99));
        assert_eq!(report.errors, BTreeMap::from([("status 503".into(), 1)]));
        let names: Vec<&str> = report.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["short", "long"]);
        assert_eq!(report.pools[0].requests, 99);
        assert_eq!((report.pools[0].answered, report.pools[1].answered), (0, 99));
        assert_eq!(report.verdict(Verdict::Spill), Some(98));
        assert_eq!(report.verdict(Verdict::Unknown), Some(1));
        assert_eq!(report.prompt_lengths, (99, 1));
        let estimate = report.estimate.as_ref().unwrap();
        assert!((estimate.first_half.mean - 0.5).abs() < 1e-9);
        assert!((estimate.first_50.p95 - 0.5).abs() < 1e-9);
        // 49 errors of 0.1 and one of |110 - 2000| / 2000.
        assert!((estimate.second_half.mean - (49.0 * 0.1 + 0.945) / 50.0).abs() < 1e-9);
        assert!((report.tpot.unwrap().p50 - 0.020).abs() < 1e-9);
        assert!((report.ttft.unwrap().p99 - 0.100).abs() < 1e-9);
        assert_eq!((report.json()["spill"].as_u64(), report.judged()), (Some(98), Some(99)));
        assert_eq!(report.json()["not_judged"], 1);
        assert_eq!(report.json()["estimate_error"]["after_50"]["count"], 50);
    }

    #[test]
    fn a_pool_that_only_answers_has_a_row_under_its_own_name() {
        let mut outcomes = vec![outcome(0, 100, None), outcome(1, 100, None)];
        outcomes[1].answered_by = Some("long_cluster".into());
        let mut windows = windows().pools().to_vec();
        windows[1].cluster = "long_cluster".into();
        let report = Report::new(&run(outcomes), Some(&Windows::new(windows)));
        let rows: Vec<_> = report
            .pools
            .iter()
            .map(|row| (row.name.as_str(), row.requests, row.answered))
            .collect();
        assert_eq!(rows, [("short", 2, 0), ("long", 0, 2)]);
    }

    #[test]
    fn refusals_for_length_are_counted_without_windows() {
        let mut outcomes = vec![outcome(0, 100, None), outcome(1, 100, None)];
        outcomes[1].result = Err(Failure::ContextLength("too long".into()));
        let report = Report::new(&run(outcomes), None);
        assert_eq!((report.refused, report.judged()), (1, None));
        assert_eq!(report.json()["refused_context_length"], 1);
    }
}
