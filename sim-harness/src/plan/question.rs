//! What is asked, and what is wrong with it.

use std::fmt;
use std::sync::Arc;

use crate::engine;
use crate::fleet::FleetError;
use crate::kernels::{Deployment, Gpu, Memory};
use crate::rng::Pcg;
use crate::workload::{CapPolicy, Lengths, Request};

/// Where the lengths of requests come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A distribution.
    Drawn(Lengths),
    /// The requests of a trace, each as likely as the others. Not empty.
    Trace(Arc<[Request]>),
}

impl Source {
    /// So many requests: prompt and output tokens.
    pub(super) fn sample(&self, count: usize, rng: &mut Pcg) -> Vec<(u32, u32)> {
        let draw = |rng: &mut Pcg| match self {
            Self::Drawn(lengths) => lengths.draw(rng),
            Self::Trace(rows) => {
                rng.pick(rows).map_or((1, 1), |row| (row.input_tokens, row.output_tokens))
            }
        };
        (0..count).map(|_| draw(rng)).collect()
    }
}

/// What clients are promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// 99 of 100 requests have their first token within so many seconds.
    pub ttft_p99: f64,
    /// 99 of 100 requests have so many seconds between tokens, on average, or
    /// less.
    pub tpot_p99: f64,
}

/// How much is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Requests of one simulation, about. The rate is scaled down to that.
    pub requests: u64,
    /// Seeds that the answer has to hold for. At least 1.
    pub seeds: u64,
    /// Candidate thresholds. At least 1.
    pub thresholds: usize,
    /// Search `max_num_seqs` and `max_num_batched_tokens`.
    pub tune: bool,
    /// Repeat all at the full rate, and the answer at other rates and with other
    /// lengths.
    pub verify: bool,
    /// Seconds of requests that count at the full rate, at least; as many requests
    /// as one simulation has where that is more.
    pub seconds: f64,
    /// Those rates, as factors of the asked one, each above 0, at most 10.
    pub rates: Vec<f64>,
}

impl Default for Effort {
    /// What the command takes.
    fn default() -> Self {
        let rates = vec![0.7, 1.3];
        Self {
            requests: 18_000,
            seeds: 3,
            thresholds: 6,
            tune: true,
            verify: true,
            seconds: 0.0,
            rates,
        }
    }
}

/// What to plan for.
#[derive(Clone, Debug)]
pub struct Question {
    /// How long requests are.
    pub lengths: Source,
    /// Which caps clients name.
    pub caps: CapPolicy,
    /// Burstiness of arrivals: 1 is a Poisson process.
    pub cv: f64,
    /// Requests a second.
    pub rate: f64,
    /// The promise.
    pub slo: Slo,
    /// The GPU.
    pub gpu: Gpu,
    /// The model on the GPUs of one replica.
    pub deployment: Deployment,
    /// The engine's share of the memory, above 0, at most 1.
    pub utilization: f64,
    /// The longest request that the fleet must take: the single pool's window,
    /// and that of the largest of several. Tokens.
    pub window: u32,
    /// Pools at most: 1 to 4.
    pub pools: u32,
    /// Of all that is drawn.
    pub seed: u64,
    /// How much is simulated.
    pub effort: Effort,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A part of the question; carries its name, as in [`Ask`](super::Ask), and
    /// what is wrong.
    Question(&'static str, String),
    /// The simulation failed.
    Fleet(FleetError),
    /// No number of replicas is enough.
    Never(String),
    /// Whoever ran the simulations gave up.
    Stopped,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Question(field, why) => write!(f, "{field}: {why}"),
            Self::Fleet(error) => error.fmt(f),
            Self::Never(why) => f.write_str(why),
            Self::Stopped => f.write_str("the simulations were stopped"),
        }
    }
}

impl std::error::Error for PlanError {}

impl From<FleetError> for PlanError {
    fn from(error: FleetError) -> Self {
        Self::Fleet(error)
    }
}

/// Tokens of a KV block, as vLLM has them by default.
const BLOCK: u32 = 16;

/// What a replica of a pool is given beside its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Requests that are expected to take up to so many tokens are for this pool;
    /// the window for the largest.
    pub threshold: u32,
    /// `max_model_len`.
    pub window: u32,
    /// `max_num_seqs`.
    pub seats: u32,
    /// `max_num_batched_tokens`.
    pub batched: u32,
}

impl Shape {
    /// Of the largest pool.
    pub(super) fn largest(window: u32, seats: u32, batched: u32) -> Self {
        Self { threshold: window, window, seats, batched }
    }

    /// Of a smaller pool. Its window ends half-way between its threshold and the
    /// largest one. vLLM's KV cache is paged: a window costs nothing until it is
    /// used, and a narrow one only turns requests away whose cap is large.
    pub(super) fn smaller(self, threshold: u32) -> Self {
        Self { threshold, window: threshold.midpoint(self.window), ..self }
    }
}

impl Question {
    /// Says what is wrong, if anything.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let wrong = |field, why: String| Err(PlanError::Question(field, why));
        let above_zero = |number: f64| number > 0.0 && number.is_finite();
        if !(above_zero(self.rate) && (0.1..=1e6).contains(&self.rate)) {
            return wrong("rate", format!("found {}; allowed: 0.1 to 1000000", self.rate));
        }
        for (field, seconds) in
            [("slo_ttft_p99", self.slo.ttft_p99), ("slo_tpot_p99", self.slo.tpot_p99)]
        {
            if !above_zero(seconds) || seconds > 3_600.0 {
                return wrong(field, format!("found {seconds}; allowed: above 0, to 3600 seconds"));
            }
        }
        if !above_zero(self.cv) {
            return wrong("cv", format!("found {}; allowed: above 0", self.cv));
        }
        if !(1..=4).contains(&self.pools) {
            return wrong("pools", format!("found {}; allowed: 1 to 4", self.pools));
        }
        if let Some(wrong_one) = self.effort.rates.iter().find(|f| !above_zero(**f) || **f > 10.0) {
            return wrong("rates", format!("found {wrong_one}; allowed: above 0, to 10"));
        }
        if !above_zero(self.utilization) || self.utilization > 1.0 {
            let why = format!("found {}; allowed: above 0, to 1", self.utilization);
            return wrong("gpu_memory_utilization", why);
        }
        if self.window < 512 {
            return wrong("max_model_len", format!("found {}; allowed: 512 or more", self.window));
        }
        if matches!(&self.lengths, Source::Trace(rows) if rows.is_empty()) {
            return wrong("trace", "it has no requests".into());
        }
        if let Err(error) = self.deployment.check() {
            let why = error.to_string();
            // The name stands before it already.
            return wrong("tp", why.split_once(": ").map_or(why.clone(), |(_, why)| why.into()));
        }
        // The largest batch that is tried needs most memory for itself.
        let largest = Shape::largest(self.window, 256, 8_192);
        let (_, most) = self.kv_tokens(largest);
        if most < u64::from(self.window) {
            let tp = self.deployment.tp;
            let why = format!(
                "found {}; allowed: at most {most}, the tokens of KV cache that the model's weights \
                 leave on {tp} x {} (more with a higher --tp)",
                self.window, self.gpu.name
            );
            return wrong("max_model_len", why);
        }
        Ok(())
    }

    /// The engine's settings.
    pub(super) fn engine(&self, shape: Shape) -> engine::Config {
        engine::Config {
            max_num_seqs: shape.seats,
            max_num_batched_tokens: shape.batched,
            block_size: BLOCK,
            // vLLM keeps one block for itself.
            num_gpu_blocks: self.kv_tokens(shape).0 + 1,
            max_model_len: shape.window,
            // Prompts share no prefixes here.
            enable_prefix_caching: false,
            ..engine::Config::default()
        }
    }

    /// Blocks and tokens of KV cache of a replica.
    pub(super) fn kv_tokens(&self, shape: Shape) -> (u32, u64) {
        let blocks = self.deployment.kv_blocks(&Memory {
            bytes: self.gpu.memory,
            utilization: self.utilization,
            batched_tokens: shape.batched,
            seats: shape.seats,
            block: BLOCK,
        });
        (blocks, u64::from(blocks) * u64::from(BLOCK))
    }
}
