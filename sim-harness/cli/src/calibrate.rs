//! Scores the estimators on request bodies whose true token counts are known.
//!
//! Each body is shown to an estimator as bytes only; the estimate is taken;
//! then the estimator learns the truth, as it would from an answer's `usage`.
//! The order of the file is the order of the traffic.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value, json};
use tidegate::estimate::{Key, Learner, Settings, Tally};
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
    /// The same from the 51st body on; nothing in shorter files.
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
    /// Whose token counts are the truth.
    pub tokenizer: String,
    /// Where the pools part, in prompt tokens.
    pub threshold: u64,
    /// Bodies scored; those without a truth for this tokenizer are left out.
    pub n: usize,
    /// In the order: `static4`, `ema`, `mix`.
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
    truth: u64,
}

/// Scores `static4` (body bytes / 4), `ema` (the dual-pool paper's estimator,
/// keyed by model and the body's main class) and `mix` (the filter's own: each
/// class of the body at its own ratio).
///
/// `lines` holds one JSON object a line: `body` (a chat completion request as
/// a string), `prompt_tokens` and `tools_tokens` (token counts by tokenizer;
/// the truth is their sum; a body with tools that lack a count is left out).
pub fn calibrate(lines: &str, tokenizer: &str, threshold: u64) -> Result<Report, CalibrateError> {
    let samples = samples(lines, tokenizer)?;
    let mut blind = Outcomes::default();
    let mut dominant = Outcomes::default();
    let mut mixed = Outcomes::default();
    let (mut ema, mut mix) = (Estimator::default(), Estimator::default());
    for sample in &samples {
        let quarter = sample.body.len() as f64 / 4.0;
        blind.push(quarter, quarter, sample.truth, threshold);
        let mut scanner = Scanner::new(Api::Chat, b"");
        scanner.feed(&sample.body);
        // A body that does not parse teaches nothing and counts as its bytes.
        let facts = scanner
            .finish()
            .unwrap_or_else(|_| RequestFacts::unseen(Api::Chat, sample.body.len() as u64));
        let main = facts
            .text
            .dominant()
            .map_or_else(Tally::default, |class| Tally::of(class, facts.text.total()));
        for (estimator, outcomes, text) in
            [(&mut ema, &mut dominant, &main), (&mut mix, &mut mixed, &facts.text)]
        {
            let (mean, high) = estimator.estimate(&facts, text);
            outcomes.push(mean, high, sample.truth, threshold);
            estimator.learn(&facts, text, sample.truth);
        }
    }
    let estimators = vec![blind.score("static4"), dominant.score("ema"), mixed.score("mix")];
    Ok(Report { tokenizer: tokenizer.to_owned(), threshold, n: samples.len(), estimators })
}

fn samples(lines: &str, tokenizer: &str) -> Result<Vec<Sample>, CalibrateError> {
    let mut samples = Vec::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut lines_read = 0;
    for (at, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem: &str| CalibrateError::Line { line: at + 1, problem: problem.into() };
        let row: Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let body = row.get("body").and_then(Value::as_str);
        let body = body.ok_or_else(|| wrong("body: must be a string"))?;
        let counts = row.get("prompt_tokens").and_then(Value::as_object);
        let counts = counts.ok_or_else(|| wrong("prompt_tokens: must be an object"))?;
        lines_read += 1;
        let tools = match row.get("tools_tokens") {
            None | Some(Value::Null) => Some(0),
            Some(tools) => tools.get(tokenizer).and_then(Value::as_u64),
        };
        // Only names that could have been asked for: with a count of each part.
        let whole = |name: &String| match row.get("tools_tokens") {
            None | Some(Value::Null) => true,
            Some(tools) => tools.get(name).is_some_and(Value::is_u64),
        };
        known.extend(counts.keys().filter(|name| whole(name)).cloned());
        let prompt = counts.get(tokenizer).and_then(Value::as_u64);
        if let (Some(prompt), Some(tools)) = (prompt, tools) {
            samples.push(Sample { body: body.as_bytes().to_vec(), truth: (prompt + tools).max(1) });
        }
    }
    if samples.is_empty() {
        let known = known.into_iter().collect();
        return Err(match lines_read {
            0 => CalibrateError::Empty,
            _ => CalibrateError::Tokenizer { name: tokenizer.to_owned(), known },
        });
    }
    Ok(samples)
}

#[derive(Default)]
struct Estimator {
    learner: Learner,
    settings: Settings,
    answers: u64,
}

impl Estimator {
    fn estimate(&self, facts: &RequestFacts, text: &Tally) -> (f64, f64) {
        let estimate = self.learner.estimate(&self.settings, key(facts), text, facts.messages);
        (estimate.mean, estimate.high.ceil())
    }

    fn learn(&mut self, facts: &RequestFacts, text: &Tally, truth: u64) {
        self.answers += 1;
        let now = Instant::default() + Span::from_secs(self.answers);
        self.learner.learn(now, &self.settings, key(facts), text, facts.messages, truth);
    }
}

fn key(facts: &RequestFacts) -> Key {
    Key::model(facts.model.as_deref().unwrap_or_default())
}

#[derive(Default)]
struct Outcomes {
    errors: Vec<f64>,
    under: usize,
    over: usize,
}

impl Outcomes {
    fn push(&mut self, mean: f64, high: f64, truth: u64, threshold: u64) {
        self.errors.push((mean - truth as f64).abs() / truth as f64);
        let short = high <= threshold as f64;
        self.under += usize::from(short && truth > threshold);
        self.over += usize::from(!short && truth <= threshold);
    }

    fn score(&self, name: &'static str) -> Score {
        let n = self.errors.len() as f64;
        let mut warm = self.errors.get(WARM..).unwrap_or_default().to_vec();
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
        let [static4, ema, mix] = report.estimators.as_slice() else { panic!() };
        let warm = |score: &Score| score.mape_after_50.unwrap();
        assert!(warm(static4) > 0.9, "{static4:?}");
        assert!(warm(ema) < 0.01 && warm(mix) < 0.01, "{ema:?} {mix:?}");
        assert_eq!(report.n, 60);
    }

    #[test]
    fn what_is_not_known_after_50_is_not_zero() {
        let lines = vec![line("some words", 9); WARM].join("\n");
        let report = calibrate(&lines, "t", 1000).unwrap();
        let json = report.to_json();
        assert_eq!(json["estimators"]["mix"]["mape_after_50"], Value::Null);
        assert_eq!(json["estimators"]["mix"]["p95_abs_error_after_50"], Value::Null);
        let text = report.to_string();
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row[2..4], ["-", "-"], "{text}");
    }

    #[test]
    fn routes_are_judged_by_the_conservative_estimate() {
        let mut outcomes = Outcomes::default();
        outcomes.push(90.0, 100.0, 101, 100);
        outcomes.push(90.0, 101.0, 100, 100);
        outcomes.push(90.0, 100.0, 100, 100);
        outcomes.push(90.0, 101.0, 101, 100);
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
    fn the_learner_beats_bytes_by_four_on_real_text() {
        let Some(path) = crate::files::shared_data("tokens/chat_bodies.jsonl.gz") else { return };
        let lines = crate::files::read_text(&path).unwrap();
        for tokenizer in ["llama3", "qwen3", "cl100k_base", "o200k_base"] {
            let report = calibrate(&lines, tokenizer, 4096).unwrap();
            let [static4, ema, mix] = report.estimators.as_slice() else { panic!() };
            let warm = |score: &Score| score.mape_after_50.unwrap();
            let gain = warm(static4) / warm(ema);
            assert!(gain >= 2.5, "{tokenizer}: {gain}");
            assert!(warm(mix) < warm(ema), "{tokenizer}: {mix:?} {ema:?}");
            assert!(mix.under_route <= 0.002, "{tokenizer}: {mix:?}");
        }
    }
}
