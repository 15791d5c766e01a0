//! Scores the estimators on request bodies whose true token counts are known.
//!
//! Each body is shown to an estimator as bytes only; the estimate is taken;
//! then the estimator learns the truth, as it would from an answer's `usage`.
//! The order of the file is the order of the traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use tidegate::estimate::{Key, Kind, Learner, Settings};
use tidegate::request::{Api, RequestFacts, Scanner};
use tidegate::time::{Instant, Span};

use crate::stats::{mean, quantile};

/// Estimates are judged apart from this one on, when a learner has seen some.
const WARM: usize = 50;

/// Why a file cannot be scored.
#[derive(Debug, PartialEq, Eq)]
pub enum CalibrateError {
    /// A line is not a body with its truth. Lines count from 1.
    Line {
        /// Which line.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The file has no body.
    Empty,
    /// No body has a truth for this tokenizer.
    Tokenizer {
        /// The name asked for.
        name: String,
        /// The names that the file knows.
        known: Vec<String>,
    },
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, problem } => write!(f, "line {line}: {problem}"),
            Self::Empty => write!(
                f,
                "the file has no bodies; allowed: one JSON object a line, {{\"body\": \"...\", \
                 \"prompt_tokens\": {{\"NAME\": 12}}}}"
            ),
            Self::Tokenizer { name, known } if known.is_empty() => {
                write!(f, "found {name:?}, but no body in the file has a token count")
            }
            Self::Tokenizer { name, known } => {
                write!(f, "found {name:?}; the file has whole counts of: {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for CalibrateError {}

/// How one estimator did. Errors and routes are fractions.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The estimator's name.
    pub name: &'static str,
    /// Mean of |estimate − truth| / truth over all bodies.
    pub mape: f64,
    /// The same from each model's 51st body on; nothing in shorter files.
    pub mape_after_50: Option<f64>,
    /// The 95th percentile of the same.
    pub p95_abs_error_after_50: Option<f64>,
    /// Share of bodies whose conservative estimate is at most the threshold,
    /// but whose truth is above it.
    pub under_route: f64,
    /// Share of bodies the other way round.
    pub over_route: f64,
}

/// The scores of all estimators on one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Whose token counts are the truth; `mixed` for everyone's.
    pub tokenizer: String,
    /// Where the pools part, in prompt tokens.
    pub threshold: u64,
    /// Bodies scored; those without a truth for this tokenizer are left out.
    pub n: usize,
    /// In the order: `static4` (body bytes / 4), `ema` (the dual-pool paper's),
    /// `tracker` (vLLM semantic-router's), `regress` (the filter's default).
    pub estimators: Vec<Score>,
}

impl Report {
    /// The report as one JSON document.
    pub fn to_json(&self) -> Value {
        let scores = self.estimators.iter().map(|score| {
            let fields = json!({
                "mape": score.mape,
                "mape_after_50": score.mape_after_50,
                "p95_abs_error_after_50": score.p95_abs_error_after_50,
                "under_route": score.under_route,
                "over_route": score.over_route,
            });
            (score.name.to_owned(), fields)
        });
        json!({
            "tokenizer": self.tokenizer,
            "threshold": self.threshold,
            "n": self.n,
            "estimators": scores.collect::<serde_json::Map<_, _>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokenizer, threshold, n, .. } = self;
        writeln!(f, "{n} bodies, {tokenizer} tokens, threshold {threshold}")?;
        writeln!(f, "estimator   error  after 50  p95 after 50  under-route  over-route")?;
        for score in &self.estimators {
            writeln!(
                f,
                "{:<9} {:>6.1}% {:>9} {:>13} {:>11.2}% {:>10.2}%",
                score.name,
                score.mape * 100.0,
                percent(score.mape_after_50),
                percent(score.p95_abs_error_after_50),
                score.under_route * 100.0,
                score.over_route * 100.0,
            )?;
        }
        Ok(())
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1}%", share * 100.0))
}

struct Sample {
    body: Vec<u8>,
    /// By tokenizer.
    truth: BTreeMap<String, u64>,
}

/// Scores the estimators on one tokenizer's counts.
///
/// `lines` holds one JSON object a line: `body` (a chat completion request as
/// a string), `prompt_tokens` and `tools_tokens` (token counts by tokenizer;
/// the truth is their sum; a body with tools that lack a count is left out).
pub fn calibrate(lines: &str, tokenizer: &str, threshold: u64) -> Result<Report, CalibrateError> {
    let (samples, known) = samples(lines)?;
    if !samples.iter().any(|sample| sample.truth.contains_key(tokenizer)) {
        return Err(CalibrateError::Tokenizer { name: tokenizer.to_owned(), known });
    }
    let mut scores = Scores::default();
    for sample in &samples {
        if let Some(truth) = sample.truth.get(tokenizer) {
            let facts = sample.facts();
            let model = facts.model.clone().unwrap_or_default();
            scores.push(&facts, &model, sample.body.len(), *truth, threshold);
        }
    }
    Ok(scores.report(tokenizer, threshold))
}

/// Scores them on every tokenizer of the file together: each body once for
/// each, in turn, under the tokenizer's name for a model's.
pub fn calibrate_mixed(lines: &str, threshold: u64) -> Result<Report, CalibrateError> {
    let (samples, _) = samples(lines)?;
    let mut scores = Scores::default();
    for sample in &samples {
        let facts = sample.facts();
        for (tokenizer, truth) in &sample.truth {
            scores.push(&facts, tokenizer.as_bytes(), sample.body.len(), *truth, threshold);
        }
    }
    Ok(scores.report("mixed", threshold))
}

impl Sample {
    /// What the filter would know. A body that does not parse counts as its
    /// bytes.
    fn facts(&self) -> RequestFacts {
        let mut scanner = Scanner::new(Api::Chat, b"");
        scanner.feed(&self.body);
        let unseen = |_| RequestFacts::unseen(Api::Chat, self.body.len() as u64);
        scanner.finish().unwrap_or_else(unseen)
    }
}

/// The estimators, each with what it made of the bodies so far.
#[derive(Default)]
struct Scores {
    /// Bodies seen of each model.
    seen: BTreeMap<Vec<u8>, usize>,
    ema: Learner,
    regress: Learner,
    tracker: BTreeMap<Vec<u8>, Tracker>,
    outcomes: [Outcomes; NAMES.len()],
}

/// In the order of a report.
const NAMES: [&str; 4] = ["static4", "ema", "tracker", "regress"];

impl Scores {
    fn push(
        &mut self,
        facts: &RequestFacts,
        model: &[u8],
        bytes: usize,
        truth: u64,
        threshold: u64,
    ) {
        let seen = self.seen.entry(model.to_vec()).or_default();
        let warm = *seen >= WARM;
        *seen += 1;
        let now = Instant::default() + Span::from_secs(*seen as u64);
        let key = Key::model(model);
        let run = |learner: &mut Learner, kind| {
            let settings = Settings { kind, ..Settings::default() };
            let estimate = learner.estimate(&settings, key, &facts.text, facts.messages);
            learner.learn(now, &settings, key, &facts.text, facts.messages, truth);
            (estimate.mean, estimate.high.ceil())
        };
        let ema = run(&mut self.ema, Kind::Ema);
        let regress = run(&mut self.regress, Kind::Regress);
        let quarter = bytes as f64 / 4.0;
        let tracker = self.tracker.entry(model.to_vec()).or_default();
        let tracked = tracker.estimate(facts.text.total());
        tracker.learn(facts.text.total(), truth);
        let estimates = [(quarter, quarter), ema, tracked, regress];
        for (outcomes, (mean, high)) in self.outcomes.iter_mut().zip(estimates) {
            outcomes.push(warm, mean, high, truth, threshold);
        }
    }

    fn report(&self, tokenizer: &str, threshold: u64) -> Report {
        let scores = NAMES.into_iter().zip(&self.outcomes);
        Report {
            tokenizer: tokenizer.to_owned(),
            threshold,
            n: self.seen.values().sum(),
            estimators: scores.map(|(name, outcomes)| outcomes.score(name)).collect(),
        }
    }
}

/// The estimator of vLLM's semantic router, as its source has it: an average
/// of bytes per token, and for the conservative value a second number that
/// follows low ratios fast and high ones slowly.
#[derive(Default)]
struct Tracker {
    answers: u64,
    mean: f64,
    low: f64,
}

impl Tracker {
    fn estimate(&self, bytes: u64) -> (f64, f64) {
        let ratios = if self.answers < 10 { (4.0, 4.0) } else { (self.mean, self.low) };
        let tokens = |ratio: f64| (bytes as f64 / ratio).ceil().max(1.0);
        (tokens(ratios.0), tokens(ratios.1))
    }

    fn learn(&mut self, bytes: u64, tokens: u64) {
        if bytes == 0 || tokens == 0 {
            return;
        }
        let observed = bytes as f64 / tokens as f64;
        if self.answers == 0 {
            (self.mean, self.low) = (observed, observed);
        }
        self.answers += 1;
        self.mean += 0.005 * (observed - self.mean);
        let step = if observed < self.low { 0.9 } else { 0.1 };
        self.low += step * (observed - self.low);
    }
}

/// The bodies, and the tokenizers that any of them has the whole truth of.
fn samples(lines: &str) -> Result<(Vec<Sample>, Vec<String>), CalibrateError> {
    let mut samples = Vec::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for (at, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem: &str| CalibrateError::Line { line: at + 1, problem: problem.into() };
        let row: Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let body = row.get("body").and_then(Value::as_str);
        let body = body.ok_or_else(|| wrong("body: must be a string"))?;
        let counts = row.get("prompt_tokens").and_then(Value::as_object);
        let counts = counts.ok_or_else(|| wrong("prompt_tokens: must be an object"))?;
        let tools = |name: &str| match row.get("tools_tokens") {
            None | Some(Value::Null) => Some(0),
            Some(tools) => tools.get(name).and_then(Value::as_u64),
        };
        let truth = |(name, count): (&String, &Value)| {
            Some((name.clone(), (count.as_u64()? + tools(name)?).max(1)))
        };
        let truth: BTreeMap<String, u64> = counts.iter().filter_map(truth).collect();
        known.extend(truth.keys().cloned());
        samples.push(Sample { body: body.as_bytes().to_vec(), truth });
    }
    if samples.is_empty() {
        return Err(CalibrateError::Empty);
    }
    Ok((samples, known.into_iter().collect()))
}

#[derive(Default)]
struct Outcomes {
    errors: Vec<f64>,
    warm: Vec<f64>,
    under: usize,
    over: usize,
}

impl Outcomes {
    fn push(&mut self, warm: bool, mean: f64, high: f64, truth: u64, threshold: u64) {
        let error = (mean - truth as f64).abs() / truth as f64;
        self.errors.push(error);
        if warm {
            self.warm.push(error);
        }
        let short = high <= threshold as f64;
        self.under += usize::from(short && truth > threshold);
        self.over += usize::from(!short && truth <= threshold);
    }

    fn score(&self, name: &'static str) -> Score {
        let n = self.errors.len() as f64;
        let mut warm = self.warm.clone();
        let mape_after_50 = mean(&warm);
        warm.sort_unstable_by(f64::total_cmp);
        Score {
            name,
            mape: mean(&self.errors).unwrap_or(0.0),
            mape_after_50,
            p95_abs_error_after_50: quantile(&warm, 0.95),
            under_route: self.under as f64 / n,
            over_route: self.over as f64 / n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(content: &str, tokens: u64) -> String {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
        json!({"body": body.to_string(), "prompt_tokens": {"t": tokens}}).to_string()
    }

    #[test]
    fn a_learner_beats_a_constant_where_the_ratio_is_not_four() {
        let text = "тысяча слов о погоде ".repeat(40);
        // 1,480 bytes at 8 bytes a token, and a template of 7.
        let truth = text.len() as u64 / 8 + 7;
        let lines: Vec<String> = (0..60).map(|_| line(&text, truth)).collect();
        let report = calibrate(&lines.join("\n"), "t", 1000).unwrap();
        let [static4, ema, _, regress] = report.estimators.as_slice() else { panic!() };
        let warm = |score: &Score| score.mape_after_50.unwrap();
        assert!(warm(static4) > 0.9, "{static4:?}");
        assert!(warm(ema) < 0.01 && warm(regress) < 0.01, "{ema:?} {regress:?}");
        assert_eq!(report.n, 60);
    }

    #[test]
    fn what_is_not_known_after_50_is_not_zero() {
        let lines = vec![line("some words", 9); WARM].join("\n");
        let report = calibrate(&lines, "t", 1000).unwrap();
        let json = report.to_json();
        assert_eq!(json["estimators"]["regress"]["mape_after_50"], Value::Null);
        assert_eq!(json["estimators"]["regress"]["p95_abs_error_after_50"], Value::Null);
        let text = report.to_string();
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row[2..4], ["-", "-"], "{text}");
    }

    #[test]
    fn routes_are_judged_by_the_conservative_estimate() {
        let mut outcomes = Outcomes::default();
        outcomes.push(true, 90.0, 100.0, 101, 100);
        outcomes.push(true, 90.0, 101.0, 100, 100);
        outcomes.push(true, 90.0, 100.0, 100, 100);
        outcomes.push(true, 90.0, 101.0, 101, 100);
        let score = outcomes.score("x");
        assert_eq!((score.under_route, score.over_route), (0.25, 0.25));
    }

    #[test]
    fn wrong_files_and_names_are_told() {
        let error = |lines: &str, name: &str| calibrate(lines, name, 1).unwrap_err().to_string();
        assert_eq!(error(&line("a", 1), "x"), "found \"x\"; the file has whole counts of: t");
        assert!(error("\n", "t").starts_with("the file has no bodies; allowed: one JSON object"));
        let none = r#"{"body": "{}", "prompt_tokens": {}}"#;
        assert_eq!(error(none, "t"), "found \"t\", but no body in the file has a token count");
        let tools =
            r#"{"body": "{}", "prompt_tokens": {"t": 1, "u": 2}, "tools_tokens": {"u": 1}}"#;
        assert_eq!(error(tools, "t"), "found \"t\"; the file has whole counts of: u");
        assert_eq!(error("\n{}", "t"), "line 2: body: must be a string");
        assert!(error("{", "t").starts_with("line 1: EOF"));
    }

    /// The published counts; the data stand beside the checkout, not in it.
    #[test]
    fn real_text_is_estimated_as_closely_as_is_claimed() {
        let Some(path) = crate::files::shared_data("tokens/chat_bodies.jsonl.gz") else { return };
        let lines = crate::files::read_text(&path).unwrap();
        let mut reports = vec![calibrate_mixed(&lines, 8192).unwrap()];
        for tokenizer in ["llama3", "qwen3", "cl100k_base", "o200k_base"] {
            reports.push(calibrate(&lines, tokenizer, 2048).unwrap());
        }
        for report in reports {
            let [static4, ema, tracker, regress] = report.estimators.as_slice() else { panic!() };
            let warm = |score: &Score| score.mape_after_50.unwrap();
            assert!(warm(regress) <= 0.07 && warm(regress) < warm(ema) / 2.0, "{report}");
            assert!(regress.p95_abs_error_after_50.unwrap() <= 0.2, "{report}");
            assert!(regress.under_route <= 0.003 && regress.over_route <= 0.035, "{report}");
            assert!(warm(static4) / warm(ema) >= 2.5 && warm(ema) < warm(tracker), "{report}");
        }
    }

    /// Traffic in Latin letters and code, then suddenly in scripts that the
    /// model was never seen to be asked in.
    #[test]
    fn fifty_answers_after_a_switch_the_error_is_small_again() {
        let Some(path) = crate::files::shared_data("tokens/chat_bodies.jsonl.gz") else { return };
        let lines = crate::files::read_text(&path).unwrap();
        let other = [
            "kat", "hye", "heb", "arb", "pes_1", "tha", "tam", "khm", "mya", "hin", "jpn", "rus",
            "ukr", "cmn_hans",
        ];
        let is_other = |line: &&str| {
            let row: Value = serde_json::from_str(line).unwrap();
            row["lang"].as_str().is_some_and(|lang| other.contains(&lang))
        };
        let (after, before): (Vec<&str>, Vec<&str>) = lines.lines().partition(is_other);
        for tokenizer in ["llama3", "qwen3", "cl100k_base", "o200k_base"] {
            // The sum of the errors of the first so many after the switch.
            let errors = |count: usize| {
                let rows: Vec<&str> = before.iter().chain(&after[..count]).copied().collect();
                let report = calibrate(&rows.join("\n"), tokenizer, 2048).unwrap();
                (report.estimators[3].mape * report.n as f64, report.n as f64)
            };
            let ((all, n), (first, m)) = (errors(after.len()), errors(50));
            let error = (all - first) / (n - m);
            println!("{tokenizer}: {:.1} % of {} bodies", 100.0 * error, n - m);
            assert!(n - m > 100.0 && error < 0.08, "{tokenizer}: {error}");
        }
    }

    #[test]
    fn mixed_traffic_is_many_models() {
        let row = |words: usize, text: &str| {
            let body = json!({"messages": [{"role": "user", "content": text}]}).to_string();
            json!({"body": body, "prompt_tokens": {"a": words + 7, "b": 4 * words + 7}}).to_string()
        };
        let rows: Vec<String> = (0..60).map(|n| row(30 + n, &"word ".repeat(30 + n))).collect();
        let report = calibrate_mixed(&rows.join("\n"), 100).unwrap();
        assert_eq!((report.n, report.tokenizer.as_str()), (120, "mixed"));
        let [_, ema, _, regress] = report.estimators.as_slice() else { panic!() };
        assert!(regress.mape_after_50.unwrap() < 0.02, "{regress:?}");
        assert!(ema.mape_after_50.unwrap() < 0.05, "{ema:?}");
    }

    #[test]
    fn the_tracker_is_as_published() {
        let mut tracker = Tracker::default();
        for _ in 0..9 {
            tracker.learn(200, 100);
        }
        assert_eq!(tracker.estimate(401), (101.0, 101.0), "too few answers");
        tracker.learn(200, 100);
        tracker.learn(100, 100);
        let (mean, high) = tracker.estimate(1000);
        assert_eq!((mean, high), ((1000_f64 / 1.995).ceil(), (1000_f64 / 1.1).ceil()));
        tracker.learn(210, 100);
        assert!((tracker.low - 1.2).abs() < 1e-9);
    }
}
