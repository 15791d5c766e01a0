//! vLLM's Prometheus metrics, by its names.
//!
//! Source: vLLM's `v1/metrics/loggers.py`. Only those that gateways and
//! dashboards read. Seconds are the replica's own: at speed 10 a first token that
//! came after 0.1 s counts as one after 1 s.

use std::fmt::Write as _;

use tidegate_sim::SECOND;
use tidegate_sim::engine::{Counts, Load};

use super::pools::Pool;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The model was done.
    Stop,
    /// It was cut at the cap or at the window.
    Length,
    /// The client went away.
    Abort,
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

const SECONDS: [f64; 21] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
];
const TOKEN_SECONDS: [f64; 13] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
const REQUEST_SECONDS: [f64; 18] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0,
];
const TOKENS: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
];

#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    total: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, total: 0 }
    }

    fn observe(&mut self, value: f64) {
        for (bound, count) in self.bounds.iter().zip(&mut self.counts) {
            *count += u64::from(value <= *bound);
        }
        self.sum += value;
        self.total += 1;
    }
}

/// One replica's counters.
#[derive(Debug)]
pub(super) struct Metrics {
    prompt_tokens: u64,
    generation_tokens: u64,
    stopped: u64,
    cut: u64,
    aborted: u64,
    first_token: Histogram,
    inter_token: Histogram,
    request: Histogram,
    request_prompt: Histogram,
    request_generation: Histogram,
}

/// A sequence's life, in nanoseconds of its replica's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) prompt_tokens: u32,
    pub(super) produced: u32,
    pub(super) submitted: u64,
    /// The last token's time so far; `submitted` before the first.
    pub(super) last: u64,
    pub(super) finish: Finish,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            prompt_tokens: 0,
            generation_tokens: 0,
            stopped: 0,
            cut: 0,
            aborted: 0,
            first_token: Histogram::new(&SECONDS),
            inter_token: Histogram::new(&TOKEN_SECONDS),
            request: Histogram::new(&REQUEST_SECONDS),
            request_prompt: Histogram::new(&TOKENS),
            request_generation: Histogram::new(&TOKENS),
        }
    }

    /// A token came out at `at`; `life` is as it was before.
    pub(super) fn token(&mut self, life: &Life, at: u64) {
        self.generation_tokens += 1;
        let gap = seconds(at - life.last);
        if life.produced == 0 {
            self.prompt_tokens += u64::from(life.prompt_tokens);
            self.first_token.observe(gap);
        } else {
            self.inter_token.observe(gap);
        }
    }

    /// A sequence ended at `at`.
    pub(super) fn ended(&mut self, life: &Life, at: u64) {
        match life.finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length => self.cut += 1,
            Finish::Abort => self.aborted += 1,
        }
        if life.finish != Finish::Abort {
            self.request.observe(seconds(at - life.submitted));
            self.request_prompt.observe(life.prompt_tokens.into());
            self.request_generation.observe(life.produced.into());
        }
    }

    /// The text that Prometheus scrapes.
    pub(super) fn text(&self, pool: &Pool, load: Load, counts: Counts) -> String {
        let mut out = String::new();
        let labels = format!("engine=\"0\",model_name=\"{}\"", escape(&pool.model));
        let mut one = |name: &str, kind: &str, help: &str, rows: &[(&str, f64)]| {
            let _ = writeln!(out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
            for (extra, value) in rows {
                let _ = writeln!(out, "vllm:{name}{{{labels}{extra}}} {value}");
            }
        };
        let gauge = "gauge";
        let counter = "counter";
        let running = load.running as f64;
        one("num_requests_running", gauge, "Requests in the batch.", &[("", running)]);
        let waiting = load.waiting as f64;
        one("num_requests_waiting", gauge, "Requests that wait.", &[("", waiting)]);
        let usage = load.kv_usage();
        one("kv_cache_usage_perc", gauge, "KV cache in use, 1 is full.", &[("", usage)]);
        for (name, help, value) in [
            ("num_preemptions_total", "Preempted requests.", counts.preemptions),
            ("prefix_cache_queries_total", "Tokens looked up in the cache.", counts.prefix_queries),
            ("prefix_cache_hits_total", "Tokens found in the cache.", counts.prefix_hits),
        ] {
            one(name, counter, help, &[("", value as f64)]);
        }
        let prompt = self.prompt_tokens as f64;
        one("prompt_tokens_total", counter, "Prefilled tokens.", &[("", prompt)]);
        let generation = self.generation_tokens as f64;
        one("generation_tokens_total", counter, "Produced tokens.", &[("", generation)]);
        one(
            "request_success_total",
            counter,
            "Finished requests.",
            &[
                (",finished_reason=\"stop\"", self.stopped as f64),
                (",finished_reason=\"length\"", self.cut as f64),
                (",finished_reason=\"abort\"", self.aborted as f64),
            ],
        );
        for (name, histogram) in [
            ("time_to_first_token_seconds", &self.first_token),
            ("inter_token_latency_seconds", &self.inter_token),
            ("e2e_request_latency_seconds", &self.request),
            ("request_prompt_tokens", &self.request_prompt),
            ("request_generation_tokens", &self.request_generation),
        ] {
            let _ = writeln!(out, "# HELP vllm:{name} {name}.\n# TYPE vllm:{name} histogram");
            for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
                let _ = writeln!(out, "vllm:{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}");
            }
            let total = histogram.total;
            let _ = writeln!(out, "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
            let _ = writeln!(out, "vllm:{name}_count{{{labels}}} {total}");
            let _ = writeln!(out, "vllm:{name}_sum{{{labels}}} {}", histogram.sum);
        }
        out
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
