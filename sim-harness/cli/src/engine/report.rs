//! What a run came to.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tidegate_sim::SECOND;
use tidegate_sim::engine::{Counts, Summary};
use tidegate_sim::histogram::Histogram;

use super::Plan;

/// The sum over all replicas. The same bytes for the same run on any number of
/// threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Requests of the trace.
    pub requests: u64,
    /// Of these, requests that could never run: longer than `max_model_len`.
    pub refused: u64,
    /// Replicas.
    pub replicas: usize,
    /// Sequences that all replicas can run at once.
    pub seats: u64,
    /// Latencies.
    pub summary: Summary,
    /// Counts.
    pub counts: Counts,
}

impl Report {
    pub(super) fn new(plan: &Plan, requests: u64) -> Self {
        let replicas = plan.replicas.max(1);
        let engines = plan.split.map_or(plan.ranks as usize, |split| split.prefill + split.decode);
        let seats = u64::from(plan.config.max_num_seqs) * (engines * replicas) as u64;
        Self {
            requests,
            refused: 0,
            replicas,
            seats,
            summary: Summary::default(),
            counts: Counts::default(),
        }
    }

    pub(super) fn add(&mut self, summary: &Summary, counts: Counts, refused: u64) {
        self.summary.merge(summary);
        self.counts = self.counts.plus(counts);
        self.refused += refused;
    }

    /// From the first arrival to the last end. Seconds.
    pub fn seconds(&self) -> f64 {
        self.summary.end as f64 / SECOND as f64
    }

    fn rate(&self, count: u64) -> f64 {
        if self.summary.end == 0 { 0.0 } else { count as f64 / self.seconds() }
    }

    fn hit_rate(&self) -> f64 {
        self.counts.prefix_hits as f64 / self.counts.prefix_queries.max(1) as f64
    }

    fn latencies(&self) -> [(&'static str, &Histogram); 4] {
        [
            ("ttft", &self.summary.first_token),
            ("tpot", &self.summary.per_token),
            ("e2e", &self.summary.whole),
            ("queue", &self.summary.queue),
        ]
    }

    /// As one JSON document.
    pub fn json(&self) -> Value {
        let mut document = json!({
            "requests": self.requests,
            "finished": self.summary.whole.count(),
            "refused": self.refused,
            "replicas": self.replicas,
            "seconds": self.seconds(),
            "requests_per_s": self.rate(self.summary.whole.count()),
            "prompt_tokens_per_s": self.rate(self.summary.prompt_tokens),
            "output_tokens_per_s": self.rate(self.summary.output_tokens),
            "steps": self.counts.steps,
            "preemptions": self.counts.preemptions,
            "prefix_hit_rate": self.hit_rate(),
            "prefilled_tokens": self.counts.prefill_tokens,
        });
        for (name, histogram) in self.latencies() {
            let [mean, p50, p90, p95, p99, max] = figures(histogram);
            if let Some(fields) = document.as_object_mut() {
                let figures = json!({"mean": mean, "p50": p50, "p90": p90, "p95": p95,
                                     "p99": p99, "max": max});
                fields.insert(format!("{name}_ms"), figures);
            }
        }
        document
    }

    /// As a table.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let finished = self.summary.whole.count();
        let _ = writeln!(
            out,
            "{finished} of {} requests on {} replicas in {:.1} s of virtual time",
            self.requests,
            self.replicas,
            self.seconds()
        );
        if self.refused > 0 {
            let _ = writeln!(out, "{} refused: longer than --max-model-len", self.refused);
        }
        let _ = writeln!(
            out,
            "{:.2} requests/s, {:.0} prompt tokens/s, {:.0} output tokens/s",
            self.rate(finished),
            self.rate(self.summary.prompt_tokens),
            self.rate(self.summary.output_tokens)
        );
        let _ = writeln!(
            out,
            "{} steps, {} preemptions, {:.1} % of looked-up tokens found in the prefix cache\n",
            self.counts.steps,
            self.counts.preemptions,
            self.hit_rate() * 100.0
        );
        let _ = writeln!(
            out,
            "{:8} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
            "ms", "mean", "p50", "p90", "p95", "p99", "max"
        );
        for (name, histogram) in self.latencies() {
            let _ = write!(out, "{name:8}");
            for figure in figures(histogram) {
                let _ = write!(out, " {figure:>11.2}");
            }
            out.push('\n');
        }
        out
    }
}

/// Milliseconds.
fn figures(histogram: &Histogram) -> [f64; 6] {
    let quantile = |share| histogram.quantile(share) as f64;
    let max = histogram.max() as f64;
    [histogram.mean(), quantile(0.5), quantile(0.9), quantile(0.95), quantile(0.99), max]
        .map(|nanos| nanos / 1e6)
}
