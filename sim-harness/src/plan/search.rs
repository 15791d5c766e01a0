//! The smallest replica counts that hold what was promised, by simulation.
//!
//! Which pool a request goes to does not depend on how many replicas there are.
//! So the pools of one layout are searched side by side in the same runs, each by
//! its own line of counts. Searches go on side by side too: one run of each at a
//! time, whatever the number of threads.

use std::sync::Arc;

use super::question::{PlanError, Question};
use super::trial::{Allowed, Layout, Outcome, Runner, Tally, Trial};

/// How much of the load is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Requests a second.
    pub rate: f64,
    /// Seconds before requests count.
    pub warm_up: f64,
    /// Seconds in which those come that count.
    pub window: f64,
}

impl Scale {
    /// For about so many requests, where a request of mean length stays `mean`
    /// seconds and a long one `long`.
    pub(super) fn new(rate: f64, requests: u64, mean: f64, long: f64) -> Self {
        let warm_up = (3.0 * mean).max(long).max(5.0);
        // A longer window sees more of how the load goes up and down; more of the
        // rate has more replicas. Both count.
        let window = (2.0 * warm_up).max(30.0);
        let most = requests as f64 / (warm_up + window);
        if rate <= most {
            return Self { rate, warm_up, window: requests as f64 / rate - warm_up };
        }
        Self { rate: most, warm_up, window }
    }

    /// The same for another share of the load.
    pub(super) fn times(self, factor: f64) -> Self {
        Self { rate: self.rate * factor, ..self }
    }

    /// Requests before those that count, and those.
    pub(super) fn requests(&self) -> (u64, u64) {
        ((self.rate * self.warm_up) as u64, ((self.rate * self.window) as u64).max(200))
    }
}

/// The smallest counts of one layout.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Of each pool, at the scale.
    pub(super) replicas: Vec<u32>,
    /// What they do; nothing unless it was asked for.
    pub(super) outcome: Option<Outcome>,
}

/// A layout cannot hold the promise.
#[derive(Clone, Debug)]
pub(super) struct Never(pub(super) String);

/// How one pool's smallest count is found: a count at a time, by the logarithm of
/// what is missed, which falls about as a line does.
#[derive(Clone, Copy, Debug)]
struct CountSearch {
    guess: u32,
    /// The most replicas that fail, and that logarithm if the run was whole.
    low: Option<(u32, Option<f64>)>,
    /// The fewest that hold.
    high: Option<(u32, f64)>,
    rounds: u32,
}

impl CountSearch {
    fn new(guess: u32) -> Self {
        Self { guess: guess.max(1), low: None, high: None, rounds: 0 }
    }

    fn near(count: u32, tolerance: f64) -> u32 {
        ((f64::from(count) * tolerance) as u32).max(1)
    }

    fn known(&self, tolerance: f64) -> bool {
        let Some((high, _)) = self.high else { return false };
        high == 1 || self.low.is_some_and(|(low, _)| high - low <= Self::near(high, tolerance))
    }

    /// The count to try next; the answer once it is known.
    fn next(&self, tolerance: f64) -> u32 {
        match (self.low, self.high) {
            (None, None) => self.guess,
            // Misses fall by a third or so with a tenth more replicas.
            (Some((low, y)), None) => {
                let step = y.map_or(0.25, |y| (0.04 + 0.25 * y).min(0.6));
                low + ((f64::from(low) * step) as u32).max(1)
            }
            (None, Some((high, y))) => {
                let step = (0.04 - 0.25 * y).min(0.4);
                high.saturating_sub(((f64::from(high) * step) as u32).max(1)).max(1)
            }
            (Some(_), Some((high, _))) if self.known(tolerance) => high,
            (Some((low, below)), Some((high, above))) => {
                let near = Self::near(high, tolerance);
                let middle = low + (high - low) / 2;
                let line = |below: f64| {
                    let share = below / (below - above).max(1e-9);
                    low + (f64::from(high - low) * share).ceil() as u32
                };
                // A line that leads nowhere gives way to halves.
                let wanted = if self.rounds > 5 { None } else { below.map(line) };
                let wanted = wanted.unwrap_or(middle);
                wanted.min(high - near).max(low + near.min(high - low - 1)).clamp(low + 1, high - 1)
            }
        }
    }

    fn learn(&mut self, count: u32, holds: bool, logarithm: Option<f64>) {
        self.rounds += 1;
        if holds {
            if self.high.is_none_or(|(high, _)| count < high) {
                self.high = Some((count, logarithm.unwrap_or(0.0).min(-1e-3)));
            }
        } else if self.high.is_none_or(|(high, _)| count < high)
            && self.low.is_none_or(|(low, _)| count > low)
        {
            self.low = Some((count, logarithm.map(|y| y.max(1e-3))));
        }
        // A larger count failed where a smaller one holds: chance. The smaller
        // one is what was asked for.
        if let (Some((low, _)), Some((high, _))) = (self.low, self.high)
            && low >= high
        {
            self.low = Some((high - 1, None));
        }
    }
}

/// The search for one layout with one seed: it says what to run next, and learns
/// what came of it. Many go on side by side.
pub(super) struct Search {
    layout: Layout,
    scale: Scale,
    seed: u64,
    tolerance: f64,
    /// The outcome of the answer is wanted.
    report: bool,
    roots: Vec<CountSearch>,
    /// Replicas that are to be ample, while it is not known what each pool may
    /// miss; and what was missed with half as many.
    ample: Option<(Vec<u32>, u64)>,
    allowed: Vec<Allowed>,
    outcome: Option<(Vec<u32>, Outcome)>,
    never: Option<Never>,
    /// Pools are made smaller together once each is known.
    joint: bool,
    trim: Option<Trim>,
}

/// Steps by which a pool is made smaller: one part of so many.
const STEPS: [u32; 3] = [10, 25, 50];

/// What is left of the hundredth may be of more use to one pool than to another:
/// pools are made smaller in turn as long as all together hold.
#[derive(Clone, Debug)]
struct Trim {
    counts: Vec<u32>,
    step: usize,
    pool: usize,
}

impl Trim {
    /// What to try next; nothing at the end.
    fn next(&self) -> Option<Vec<u32>> {
        let step = STEPS.get(self.step)?;
        let mut counts = self.counts.clone();
        let count = counts.get_mut(self.pool)?;
        *count = count.saturating_sub((*count / step).max(1)).max(1);
        Some(counts)
    }

    fn learn(&mut self, counts: &[u32], holds: bool) {
        if holds && counts != self.counts {
            self.counts = counts.to_vec();
            return;
        }
        self.pool += 1;
        if self.pool == self.counts.len() {
            (self.pool, self.step) = (0, self.step + 1);
        }
    }
}

/// The logarithm of what is missed over what may be.
fn logarithm(pool: &Tally, lost: u64, allowed: Allowed) -> f64 {
    let of =
        |missed: u64, most: u64| libm::log(((missed + lost) as f64 + 0.5) / (most as f64 + 1.0));
    of(pool.late, allowed.late).max(of(pool.slow, allowed.slow))
}

/// Requests of all pools that came late, and that were slow; who was not answered
/// was both.
pub(super) fn missed(outcome: &Outcome) -> (u64, u64) {
    let late = outcome.pools.iter().map(|pool| pool.late).sum::<u64>() + outcome.lost;
    (late, outcome.pools.iter().map(|pool| pool.slow).sum::<u64>() + outcome.lost)
}

impl Search {
    pub(super) fn new(
        layout: &Layout,
        scale: Scale,
        seed: u64,
        guess: &[u32],
        tolerance: f64,
    ) -> Self {
        let (_, measured) = scale.requests();
        let budget = measured / 100;
        let several = guess.len() > 1;
        let counts = guess.iter().map(|count| count * 5 / 4 + 2).collect();
        Self {
            layout: layout.clone(),
            scale,
            seed,
            tolerance,
            report: false,
            roots: guess.iter().map(|guess| CountSearch::new(*guess)).collect(),
            // A single pool may miss all that may be missed.
            ample: several.then_some((counts, u64::MAX)),
            allowed: vec![Allowed { late: budget, slow: budget }; guess.len()],
            outcome: None,
            never: None,
            joint: false,
            trim: None,
        }
    }

    /// The same, with what the answer does.
    pub(super) fn reported(self) -> Self {
        Self { report: true, ..self }
    }

    /// The same, and pools share what may be missed in the end.
    pub(super) fn joint(self) -> Self {
        Self { joint: self.roots.len() > 1, ..self }
    }

    fn counts(&self) -> Vec<u32> {
        if let Some(trim) = &self.trim {
            return trim.counts.clone();
        }
        self.roots.iter().map(|root| root.next(self.tolerance)).collect()
    }

    /// What to run next; nothing when all is known.
    fn next(&self, searcher: &Searcher<'_>) -> Option<Trial> {
        if self.never.is_some() {
            return None;
        }
        if let Some((counts, _)) = &self.ample {
            return Some(searcher.trial(&self.layout, self.scale, self.seed, counts));
        }
        if let Some(counts) = self.trim.as_ref().and_then(Trim::next) {
            let mut trial = searcher.trial(&self.layout, self.scale, self.seed, &counts);
            let budget = trial.measured / 100;
            trial.allowed.fill(Some(Allowed { late: budget, slow: budget }));
            return Some(trial);
        }
        let counts = self.counts();
        let known = |root: &CountSearch| root.known(self.tolerance);
        let mut trial = searcher.trial(&self.layout, self.scale, self.seed, &counts);
        if self.roots.iter().all(known) {
            let told = self.outcome.as_ref().is_some_and(|(told, _)| *told == counts);
            return (self.report && !told).then_some(trial);
        }
        // A little more than is allowed tells how far off a count is.
        let limit = |(root, most): (&CountSearch, &Allowed)| {
            (!known(root)).then(|| Allowed { late: most.late * 4 + 9, slow: most.slow * 4 + 9 })
        };
        trial.allowed = self.roots.iter().zip(&self.allowed).map(limit).collect();
        Some(trial)
    }

    fn learn(&mut self, trial: &Trial, outcome: Outcome) {
        if self.ample.is_some() {
            self.learn_ample(&outcome);
            return;
        }
        if let Some(trim) = self.trim.as_mut().filter(|trim| trim.next().is_some()) {
            let (late, slow) = missed(&outcome);
            let holds = outcome.whole && late.max(slow) <= trial.measured / 100;
            trim.learn(&trial.replicas, holds);
            if holds {
                self.outcome = Some((trial.replicas.clone(), outcome));
            }
            return;
        }
        // A single pool answers for what nobody answered.
        let lost = if self.roots.len() == 1 { outcome.lost } else { 0 };
        let all = self.roots.iter_mut().zip(&trial.replicas).zip(&outcome.pools);
        for (((root, count), pool), allowed) in all.zip(&self.allowed) {
            if root.known(self.tolerance) {
                continue;
            }
            let within = pool.late + lost <= allowed.late && pool.slow + lost <= allowed.slow;
            let logarithm = outcome.whole.then(|| logarithm(pool, lost, *allowed));
            root.learn(*count, outcome.whole && within, logarithm);
        }
        if outcome.whole {
            self.outcome = Some((trial.replicas.clone(), outcome));
        }
        if self.joint && self.roots.iter().all(|root| root.known(self.tolerance)) {
            self.trim = Some(Trim { counts: self.counts(), step: 0, pool: 0 });
        }
        // Perhaps no count is enough.
        if self.roots.iter().any(|root| root.high.is_none() && root.rounds > 6) {
            let counts = self.counts().iter().map(|count| count * 2).collect();
            self.ample = Some((counts, u64::MAX));
        }
    }

    /// What each pool may miss: what it misses with ample replicas, and its part
    /// by traffic of what is left of the hundredth.
    fn learn_ample(&mut self, outcome: &Outcome) {
        let Some((counts, before)) = self.ample.take() else { return };
        let (_, measured) = self.scale.requests();
        let budget = measured / 100;
        let (late, slow) = missed(outcome);
        if late <= budget && slow <= budget {
            for (pool, allowed) in outcome.pools.iter().zip(&mut self.allowed) {
                let part = |rest: u64| {
                    let part = u128::from(rest) * u128::from(pool.requests);
                    (part / u128::from(measured.max(1))) as u64
                };
                if self.roots.len() > 1 {
                    let (late, slow) = (part(budget - late), part(budget - slow));
                    *allowed = Allowed { late: pool.late + late, slow: pool.slow + slow };
                }
            }
            let all = self.roots.iter_mut().zip(&counts).zip(&outcome.pools);
            for (((root, count), pool), allowed) in all.zip(&self.allowed) {
                root.learn(*count, true, Some(logarithm(pool, 0, *allowed)));
                root.rounds = 0;
            }
            return;
        }
        let worst = late.max(slow);
        // As good as it gets: more replicas do not help.
        if worst.saturating_mul(50) >= before.saturating_mul(49) {
            let share = |misses: u64| misses as f64 / measured as f64 * 100.0;
            let cut: u64 = outcome.pools.iter().map(|pool| pool.truncated).sum();
            self.never = Some(Never(format!(
                "with {} replicas {:.1} % of requests are late and {:.1} % slow ({:.2} % cut short, \
                 {:.2} % refused), and more replicas do not help",
                counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" + "),
                share(late),
                share(slow),
                share(cut),
                share(outcome.lost)
            )));
            return;
        }
        let counts = counts.iter().map(|count| count.saturating_mul(2).min(200_000)).collect();
        self.ample = Some((counts, worst));
    }

    fn found(self) -> Result<Found, Never> {
        if let Some(never) = self.never {
            return Err(never);
        }
        let replicas = self.counts();
        let outcome = self.outcome.filter(|(counts, _)| *counts == replicas);
        Ok(Found { replicas, outcome: outcome.map(|(_, outcome)| outcome) })
    }
}

pub(super) struct Searcher<'a> {
    pub(super) question: Arc<Question>,
    pub(super) runner: &'a mut dyn Runner,
    /// Simulations so far, and requests that they were to have.
    pub(super) runs: u64,
    pub(super) requests: u64,
}

impl Searcher<'_> {
    /// A trial of these counts that goes on to its end, whatever happens.
    pub(super) fn trial(&self, layout: &Layout, scale: Scale, seed: u64, counts: &[u32]) -> Trial {
        let (warm, measured) = scale.requests();
        Trial {
            question: Arc::clone(&self.question),
            layout: layout.clone(),
            replicas: counts.to_vec(),
            rate: scale.rate,
            warm,
            measured,
            seed,
            allowed: vec![Some(Allowed::ALL); counts.len()],
        }
    }

    pub(super) fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        self.runs += trials.len() as u64;
        self.requests += trials.iter().map(|trial| trial.warm + trial.measured).sum::<u64>();
        let outcomes = self.runner.run(trials)?;
        if outcomes.len() == trials.len() { Ok(outcomes) } else { Err(PlanError::Stopped) }
    }

    /// Runs searches side by side, to the end of all.
    pub(super) fn all(
        &mut self,
        mut searches: Vec<Search>,
    ) -> Result<Vec<Result<Found, Never>>, PlanError> {
        loop {
            let (mut whose, mut trials) = (Vec::new(), Vec::new());
            for (nth, search) in searches.iter().enumerate() {
                if let Some(trial) = search.next(self) {
                    whose.push(nth);
                    trials.push(trial);
                }
            }
            if trials.is_empty() {
                return Ok(searches.into_iter().map(Search::found).collect());
            }
            let outcomes = self.run(&trials)?;
            for ((nth, trial), outcome) in whose.into_iter().zip(&trials).zip(outcomes) {
                if let Some(search) = searches.get_mut(nth) {
                    search.learn(trial, outcome);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the guess, the tolerance and the law of the misses.
    #[test]
    fn a_root_is_the_smallest_count_that_holds() {
        for smallest in [1u32, 2, 9, 40, 149, 700] {
            for guess in [1, smallest / 3, smallest, smallest * 2] {
                for slope in [0.001, 0.05, 3.0] {
                    let mut root = CountSearch::new(guess);
                    while !root.known(0.0) {
                        let count = root.next(0.0);
                        let y = (f64::from(smallest) - f64::from(count) - 0.5) * slope;
                        // Far off, a run is ended early.
                        root.learn(count, y <= 0.0, Some(y).filter(|y| *y < 1.4));
                        assert!(root.rounds < 200, "{smallest} {guess} {slope}: {root:?}");
                    }
                    assert_eq!(root.next(0.0), smallest, "{guess} {slope}");
                }
            }
        }
    }

    #[test]
    fn a_scale_keeps_the_rate_where_it_can() {
        let small = Scale::new(10.0, 1_000, 5.0, 9.0);
        assert_eq!((small.rate, small.warm_up), (10.0, 15.0));
        assert_eq!(small.requests(), (150, 850));
        let large = Scale::new(1_000.0, 9_000, 10.0, 20.0);
        assert_eq!((large.rate, large.warm_up, large.window), (100.0, 30.0, 60.0));
        assert_eq!(large.times(0.5).requests(), (1_500, 3_000));
    }
}
