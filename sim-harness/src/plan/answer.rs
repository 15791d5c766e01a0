//! What a plan says.

use super::analytic::Guess;
use super::question::{Question, Slo};
use super::search::Scale;
use super::trial::Layout;

/// The smallest fleet of one kind that holds the promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Sized {
    /// Replicas of each pool, at the asked rate.
    pub replicas: Vec<u32>,
    /// GPUs of all of them.
    pub gpus: u32,
    /// The fewest and the most GPUs that one seed asked for.
    pub spread: (u32, u32),
    /// 99th percentiles over all requests, in seconds, as simulated with the
    /// first seed; nothing where so many were never answered.
    pub ttft_p99: Option<f64>,
    /// The same.
    pub tpot_p99: Option<f64>,
    /// Share of requests that went to each pool.
    pub shares: Vec<f64>,
    /// Mean use of each pool's KV cache.
    pub kv: Vec<f64>,
    /// Share of all requests whose answer the window cut short.
    pub truncated: f64,
    /// Share of all requests refused for their length.
    pub lost: f64,
    /// Share of all requests that a smaller pool refused for their length first.
    pub retried: f64,
    /// Times that a request made room for others, for each that counts.
    pub preemptions: f64,
}

/// One way to build the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// Its pools.
    pub layout: Layout,
    /// Its size, or why none is enough.
    pub size: Result<Sized, String>,
    /// The formulas' sizes.
    pub guess: Guess,
}

impl Alternative {
    /// GPUs, if any number is enough.
    pub fn gpus(&self) -> Option<u32> {
        self.size.as_ref().ok().map(|size| size.gpus)
    }

    /// Windows of all pools but the largest.
    pub fn thresholds(&self) -> Vec<u32> {
        let shapes = self.layout.shapes.split_last().map_or(&[][..], |(_, smaller)| smaller);
        shapes.iter().map(|shape| shape.window).collect()
    }
}

/// A candidate that was tried, coarsely and with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Windows of all pools but the largest.
    pub thresholds: Vec<u32>,
    /// GPUs; nothing where no number is enough.
    pub gpus: Option<u32>,
}

/// The answer's fleet at the asked rate itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// It held the promise with all seeds.
    pub holds: bool,
    /// Replicas that had to be added for that.
    pub added: u32,
    /// Seed, 99th percentiles of TTFT and TPOT.
    pub seeds: Vec<(u64, Option<f64>, Option<f64>)>,
    /// Requests that counted, with each seed.
    pub requests: u64,
}

/// GPUs at another rate.
#[derive(Clone, Debug, PartialEq)]
pub struct AtRate {
    /// Times the asked rate.
    pub factor: f64,
    /// Of the answer's layout.
    pub plan: Option<u32>,
    /// Of the papers' single pool, and of the tuned one.
    pub homogeneous: Option<u32>,
    /// The same.
    pub tuned: Option<u32>,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was asked.
    pub question: Question,
    /// Tokens of KV cache of a replica with `max_num_seqs` 256.
    pub kv_tokens: u64,
    /// Quantiles of prompt plus output tokens: 50, 90, 99 of 100, and the most.
    pub totals: [u32; 4],
    /// How much was simulated at once.
    pub scale: Scale,
    /// One pool with the papers' slots.
    pub homogeneous: Alternative,
    /// One pool with searched settings.
    pub tuned: Alternative,
    /// The best split into two pools; nothing where pools are 1 or no threshold
    /// divides the requests.
    pub two: Option<Alternative>,
    /// The best split into three.
    pub three: Option<Alternative>,
    /// The pools of the best split, where lengths are known.
    pub oracle: Option<Alternative>,
    /// All thresholds that were tried.
    pub candidates: Vec<Candidate>,
    /// The answer splits.
    pub splits: bool,
    /// The answer at the full rate; nothing where it was not asked for.
    pub verified: Option<Verified>,
    /// The answer at other rates.
    pub sensitivity: Vec<AtRate>,
    /// Simulations, and requests in them.
    pub runs: (u64, u64),
}

impl Plan {
    /// The cheaper split of those that hold, if any.
    pub fn split(&self) -> Option<&Alternative> {
        let all = [self.two.as_ref(), self.three.as_ref()];
        all.into_iter().flatten().filter(|one| one.size.is_ok()).min_by_key(|one| one.gpus())
    }

    /// The answer: the split where it is cheaper than the tuned single pool, else
    /// that one.
    pub fn answer(&self) -> &Alternative {
        self.split().filter(|_| self.splits).unwrap_or(&self.tuned)
    }

    /// The best split needs fewer GPUs than the tuned single pool whichever of the
    /// seeds each had, or more: the difference is no chance of the seeds.
    pub fn clear(&self) -> bool {
        let spread = |one: &Alternative| one.size.as_ref().ok().map(|size| size.spread);
        let (Some(split), Some(one)) = (self.split().and_then(spread), spread(&self.tuned)) else {
            return true;
        };
        split.1 < one.0 || one.1 < split.0
    }

    /// What was promised.
    pub fn slo(&self) -> Slo {
        self.question.slo
    }

    /// Savings of the answer against a number of GPUs; negative where it is
    /// dearer.
    pub fn saving(&self, baseline: Option<u32>) -> Option<f64> {
        let answer = f64::from(self.answer().gpus()?);
        Some(1.0 - answer / f64::from(baseline?))
    }
}
