//! The replay's figures as tables for people.

use std::io::{self, Write};

use tidegate_sim::table::table;

use super::judge::Verdict;
use super::report::{Errors, Percentiles, Report};

const JUDGE_HINT: &str =
    "give --config FILE (the Tidegate JSON, or an envoy.yaml that holds it) to judge misroutes";

impl Report {
    /// Prints tables that a newcomer understands.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_pools(out)?;
        self.print_reasons(out)?;
        self.print_misroutes(out)?;
        self.print_estimate(out)?;
        self.print_notes(out)
    }

    /// How many were answered, and by which pools.
    pub fn print_pools(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{} requests in {:.1} s, {} answered, {} failed\n",
            self.requests,
            self.duration.as_secs_f64(),
            self.answered,
            self.requests - self.answered
        )?;
        let streams = ["", "", "", "", "", "streams only", "streams only"];
        let mut rows = vec![
            streams.map(String::from).to_vec(),
            ["pool", "requests", "share", "answered", "prompt p50", "TTFT p50/p99", "TPOT p50/p99"]
                .map(String::from)
                .to_vec(),
        ];
        for pool in &self.pools {
            let share = 100.0 * pool.requests as f64 / self.requests.max(1) as f64;
            rows.push(vec![
                pool.name.clone(),
                pool.requests.to_string(),
                format!("{share:.1} %"),
                pool.answered.to_string(),
                format!("{} tokens", pool.input_median),
                pair(pool.ttft),
                pair(pool.tpot),
            ]);
        }
        rows.push(vec![
            "all".into(),
            self.requests.to_string(),
            String::new(),
            self.answered.to_string(),
            String::new(),
            pair(self.ttft),
            pair(self.tpot),
        ]);
        out.write_all(table(&rows).as_bytes())
    }

    fn print_reasons(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nWhy, by the gateway's word")?;
        let mut rows = Vec::new();
        for pool in &self.pools {
            for (reason, count) in &pool.reasons {
                rows.push(vec![format!("  {}", pool.name), count.to_string(), reason.clone()]);
            }
        }
        if rows.is_empty() {
            rows.push(vec!["  -".into()]);
        }
        out.write_all(table(&rows).as_bytes())
    }

    fn print_notes(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.errors.is_empty() {
            writeln!(out, "\nErrors")?;
            let rows = self.errors.iter().map(|(name, n)| vec![format!("  {name}"), n.to_string()]);
            out.write_all(table(&rows.collect::<Vec<_>>()).as_bytes())?;
        }
        let (checked, other) = self.prompt_lengths;
        writeln!(
            out,
            "\nPrompt lengths: {checked} answers named theirs, {other} differ from what was sent. \
             Requests were sent at most {} late.",
            time(self.latest.as_secs_f64())
        )
    }

    fn print_misroutes(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nWent to the wrong pool")?;
        if self.verdicts.is_none() {
            writeln!(out, "  {JUDGE_HINT}")?;
        }
        let judged = self.judged().unwrap_or(0).max(1) as f64;
        let rows = [
            (Verdict::UnderRoute, "under-route", "sent to a pool that it did not fit"),
            (Verdict::OverRoute, "over-route", "fitted the smaller pool, yet went larger"),
            (Verdict::Spill, "spill", "fitted its pool, but another one answered"),
            (Verdict::TooLarge, "too large", "fits no pool"),
        ];
        let rows = rows.map(|(verdict, name, meaning)| {
            let count = self.verdict(verdict).map_or("-".into(), |n| n.to_string());
            let share = self
                .verdict(verdict)
                .map_or(String::new(), |n| format!("{:.1} %", 100.0 * n as f64 / judged));
            vec![format!("  {name}"), count, share, meaning.into()]
        });
        let mut rows = rows.to_vec();
        let row = |name: &str, count: usize, meaning: &str| {
            vec![format!("  {name}"), count.to_string(), String::new(), meaning.into()]
        };
        match self.verdict(Verdict::Unknown) {
            Some(count) => rows.push(row("not judged", count, "failed, or no pool is known")),
            None => rows.push(row("refused", self.refused, "a 400 that names the context length")),
        }
        out.write_all(table(&rows).as_bytes())
    }

    fn print_estimate(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\nError of the gateway's estimate of prompt tokens")?;
        let Some(estimate) = &self.estimate else { return writeln!(out, "  -") };
        let mut rows = vec![vec![String::new(), "mean".into(), "p95".into(), "requests".into()]];
        let parts = [
            ("  first half", Some(estimate.first_half)),
            ("  second half", Some(estimate.second_half)),
            ("  first 50", Some(estimate.first_50)),
            ("  after 50", estimate.after_50),
        ];
        for (name, errors) in parts {
            let text = |pick: fn(Errors) -> String| errors.map_or("-".into(), pick);
            rows.push(vec![
                name.into(),
                text(|e| format!("{:.1} %", 100.0 * e.mean)),
                text(|e| format!("{:.1} %", 100.0 * e.p95)),
                text(|e| e.count.to_string()),
            ]);
        }
        out.write_all(table(&rows).as_bytes())
    }
}

pub(super) fn pair(percentiles: Option<Percentiles>) -> String {
    percentiles.map_or("-".into(), |p| format!("{} / {}", time(p.p50), time(p.p99)))
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.1} ms", s * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::replay::judge::{Window, Windows};
    use crate::replay::report::tests::{outcome, run};
    use crate::replay::send::{Decision, Failure};

    #[test]
    fn what_is_not_known_is_a_dash() {
        let mut outcomes = vec![outcome(0, 100, None)];
        outcomes[0].decision = Decision::default();
        let report = Report::new(&run(outcomes), None);
        assert_eq!(report.pools[0].name, "long");
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("by the gateway's word\n  -\n"), "{text}");
        assert!(text.contains("--config FILE") && text.contains("streams only"), "{text}");
        assert!(text.contains("prompt tokens\n  -\n"), "{text}");
        assert!(text.lines().any(|l| l.split_whitespace().nth(1) == Some("-")), "{text}");
        assert_eq!(report.json()["under_route"], Value::Null);
        assert_eq!(report.json()["estimate_error"], Value::Null);
    }

    #[test]
    fn shares_are_of_what_was_judged() {
        let window = |name: &str, size| Window {
            name: name.into(),
            cluster: name.into(),
            max_model_len: size,
            threshold: size,
        };
        let windows = Windows::new(vec![window("short", 1_100), window("long", 5_000)]);
        let mut outcomes: Vec<_> = (0..4).map(|i| outcome(i, 100, None)).collect();
        for failed in &mut outcomes[..2] {
            failed.result = Err(Failure::Timeout);
        }
        let mut text = Vec::new();
        Report::new(&run(outcomes), Some(&windows)).print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let words = |name: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..].split_whitespace().take(2).collect()
        };
        assert_eq!(words("  spill"), ["2", "100.0"], "{text}");
        assert_eq!(words("  not judged"), ["2", "failed,"], "{text}");
    }
}
