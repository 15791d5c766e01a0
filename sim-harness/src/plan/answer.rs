//! What a plan says.

use super::analytic::Guess;
use super::check::Checked;
use super::question::{Question, Slo};
use super::search::Scale;
use super::trial::{Layout, Outcome};

/// The smallest fleet of one kind that holds the promise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sized {
    /// Replicas of each pool, at the asked rate.
    pub replicas: Vec<u32>,
    /// GPUs of all of them.
    pub gpus: u32,
    /// The fewest and the most GPUs that one seed asked for.
    pub spread: (u32, u32),
    /// 99th percentiles over all requests, in seconds, with the first seed, at the
    /// asked rate if that was simulated; nothing where so many were never answered.
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

impl Sized {
    /// Takes over what a simulation of so many requests shows.
    pub(super) fn shows(&mut self, outcome: &Outcome, measured: u64) {
        let share = |count: u64| count as f64 / measured as f64;
        self.ttft_p99 = outcome.p99(|pool| &pool.ttft, measured);
        self.tpot_p99 = outcome.p99(|pool| &pool.tpot, measured);
        self.shares = outcome.pools.iter().map(|pool| share(pool.requests)).collect();
        self.truncated = share(outcome.pools.iter().map(|pool| pool.truncated).sum());
        self.retried = share(outcome.pools.iter().map(|pool| pool.retried).sum());
        self.lost = share(outcome.lost);
        self.preemptions = share(outcome.preemptions);
        self.kv.clone_from(&outcome.kv);
    }
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

    /// Thresholds of all pools but the largest.
    pub fn thresholds(&self) -> Vec<u32> {
        let shapes = self.layout.shapes.split_last().map_or(&[][..], |(_, smaller)| smaller);
        shapes.iter().map(|shape| shape.threshold).collect()
    }
}

/// A candidate that was tried, coarsely and with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Thresholds of all pools but the largest.
    pub thresholds: Vec<u32>,
    /// GPUs; nothing where no number is enough.
    pub gpus: Option<u32>,
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

/// GPUs when lengths have moved and thresholds have not.
#[derive(Clone, Debug, PartialEq)]
pub struct Drifted {
    /// How they moved.
    pub what: &'static str,
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
    /// The best split into each number of pools, two first; nothing where no
    /// threshold divides the requests.
    pub pools: Vec<Alternative>,
    /// The best split where lengths are known.
    pub oracle: Option<Alternative>,
    /// All thresholds that were tried.
    pub candidates: Vec<Candidate>,
    /// The answer splits.
    pub splits: bool,
    /// All of them at the full rate, with the replicas that they have in the end;
    /// nothing where it was not asked for.
    pub verified: Vec<Checked>,
    /// The answer at other rates.
    pub sensitivity: Vec<AtRate>,
    /// The answer with other lengths.
    pub drift: Vec<Drifted>,
    /// Simulations, and requests in them.
    pub runs: (u64, u64),
}

/// Names of splits into two, three and four pools.
const SPLITS: [&str; 3] = ["two pools", "three pools", "four pools"];

fn split_name(one: &Alternative) -> &'static str {
    let pools = one.layout.shapes.len();
    pools.checked_sub(2).and_then(|nth| SPLITS.get(nth)).copied().unwrap_or("pools")
}

impl Plan {
    /// The alternatives that there are, with their names; the oracle is the last.
    pub fn alternatives(&self) -> Vec<(&'static str, &Alternative)> {
        let mut all = vec![("homogeneous", &self.homogeneous), ("tuned", &self.tuned)];
        all.extend(self.pools.iter().map(|one| (split_name(one), one)));
        all.extend(self.oracle.as_ref().map(|one| ("oracle", one)));
        all
    }

    /// The same to change.
    pub(super) fn alternatives_mut(&mut self) -> Vec<(&'static str, &mut Alternative)> {
        let mut all = vec![("homogeneous", &mut self.homogeneous), ("tuned", &mut self.tuned)];
        all.extend(self.pools.iter_mut().map(|one| (split_name(one), one)));
        all.extend(self.oracle.as_mut().map(|one| ("oracle", one)));
        all
    }

    /// The papers' single pool is the tuned one where that is dearer.
    pub(super) fn tune(&mut self) {
        let gpus = |one: &Alternative| one.gpus().unwrap_or(u32::MAX);
        if gpus(&self.homogeneous) < gpus(&self.tuned) {
            self.tuned = self.homogeneous.clone();
            let papers = self.verified.iter().find(|one| one.name == "homogeneous").cloned();
            let tuned = self.verified.iter_mut().find(|one| one.name == "tuned");
            if let (Some(papers), Some(tuned)) = (papers, tuned) {
                *tuned = Checked { name: "tuned", ..papers };
            }
        }
    }

    /// The cheaper split of those that hold, if any.
    pub fn split(&self) -> Option<&Alternative> {
        self.pools.iter().filter(|one| one.size.is_ok()).min_by_key(|one| one.gpus())
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
