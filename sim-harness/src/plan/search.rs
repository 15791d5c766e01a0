//! The smallest replica counts that hold what was promised, by simulation.
//!
//! Which pool a request goes to does not depend on how many replicas there are.
//! So pools are simulated alone, each with the requests that the gate sends
//! there, and what one count missed is known for every layout that has such a
//! pool. Searches go on side by side: one run for each pool at a time, whatever
//! the number of threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::curve::{Curve, MissBudget, Missed};
use super::question::{PlanError, Question, Shape};
use super::requests::{Counts, Need, Requests, Slice, rows};
use super::trial::{Allowed, Layout, Outcome, Runner, Trial};
use crate::policy::Policy;
use crate::workload::TraceRequest;

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
    pub(super) fn requests(&self) -> Counts {
        Counts {
            warm: (self.rate * self.warm_up) as u64,
            measured: ((self.rate * self.window) as u64).max(200),
        }
    }
}

/// Times that prompts and answers are as long as asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drift {
    pub(super) prompt: f64,
    pub(super) output: f64,
}

impl Drift {
    pub(super) const NONE: Self = Self { prompt: 1.0, output: 1.0 };

    fn of(self, row: &TraceRequest) -> TraceRequest {
        let times = |tokens: u32, factor: f64| (f64::from(tokens) * factor).ceil().max(1.0) as u32;
        TraceRequest {
            input_tokens: times(row.input_tokens, self.prompt),
            output_tokens: times(row.output_tokens, self.output),
            ..row.clone()
        }
    }
}

/// A load that fleets are tried on: what comes, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoadId(usize);

struct Load {
    seed: u64,
    /// As the gate takes them, and as they are.
    gate: Requests,
    truth: Requests,
}

/// One pool's requests with one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    load: LoadId,
    oracle: bool,
    slice: Slice,
    seats: u32,
    batched: u32,
}

/// What is known of it.
#[derive(Default)]
struct Known {
    curve: Curve,
    outcomes: BTreeMap<u32, Outcome>,
}

/// The smallest counts of one layout.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Of each pool, at the scale.
    pub(super) replicas: Vec<u32>,
    /// What each does.
    pub(super) outcome: Outcome,
}

/// A layout cannot hold the promise.
#[derive(Clone, Debug)]
pub(super) struct Never(pub(super) String);

/// What each pool of a layout missed; nothing where a run was ended early.
pub(super) type Tried = Vec<Option<Missed>>;

/// A search for one layout under one load.
pub(super) struct Search {
    pub(super) layout: Layout,
    pub(super) load: LoadId,
    /// Where to start.
    pub(super) guess: Vec<u32>,
    /// How near to the smallest it has to come: a share.
    pub(super) tolerance: f64,
}

/// Rounds after which a search takes the best that it saw.
const ROUNDS: u32 = 14;
/// Doublings after which more replicas are taken not to help.
const DOUBLINGS: u32 = 3;
/// One in so many of each pool's own requests may miss.
const OWN: u64 = 20;

#[derive(Clone, Copy, Default)]
struct Progress {
    rounds: u32,
    doublings: u32,
}

enum Next {
    Run(Vec<u32>),
    Done(Result<Vec<u32>, Never>),
}

pub(super) struct Searcher<'a> {
    question: Arc<Question>,
    runner: &'a mut dyn Runner,
    loads: Vec<Load>,
    known: BTreeMap<Key, Known>,
    /// Simulations so far, and requests that they were to have.
    pub(super) runs: u64,
    pub(super) requests: u64,
}

/// Counts what it has run.
impl Runner for Searcher<'_> {
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        self.runs += trials.len() as u64;
        self.requests += trials.iter().map(|trial| trial.rows.len() as u64).sum::<u64>();
        let outcomes = self.runner.run(trials)?;
        if outcomes.len() == trials.len() { Ok(outcomes) } else { Err(PlanError::Stopped) }
    }
}

impl<'a> Searcher<'a> {
    pub(super) fn new(question: Arc<Question>, runner: &'a mut dyn Runner) -> Self {
        let (loads, known) = (Vec::new(), BTreeMap::new());
        Self { question, runner, loads, known, runs: 0, requests: 0 }
    }

    /// Makes loads. What the gate takes each request for comes from a run of the
    /// gate itself, in front of one pool with so many replicas.
    pub(super) fn loads(
        &mut self,
        of: &[(Scale, u64, Drift)],
        layout: &Layout,
        replicas: u32,
    ) -> Result<Vec<LoadId>, PlanError> {
        let trial = |(scale, seed, drift): &(Scale, u64, Drift)| {
            let counts = scale.requests();
            let rows = rows(&self.question, scale.rate, counts, *seed);
            let times = scale.rate / of.first().map_or(scale.rate, |(first, ..)| first.rate);
            Trial {
                question: Arc::clone(&self.question),
                layout: layout.clone(),
                policy: Policy::Tidegate,
                tells: true,
                replicas: vec![(f64::from(replicas) * times).ceil() as u32],
                rows: rows.iter().map(|row| drift.of(row)).collect(),
                counts,
                seed: *seed,
                allowed: Allowed::ALL,
            }
        };
        let trials: Vec<Trial> = of.iter().map(trial).collect();
        let outcomes = self.run(&trials)?;
        let first = self.loads.len();
        for (Trial { rows, counts, seed, .. }, outcome) in trials.into_iter().zip(outcomes) {
            let truth = rows.iter().map(|row| {
                let tokens = row.input_tokens.saturating_add(row.output_tokens);
                Need { need: tokens, fit: tokens }
            });
            let truth = Requests { needs: truth.collect(), rows: Arc::clone(&rows), counts };
            let gate = Requests { needs: outcome.needs, rows, counts };
            self.loads.push(Load { seed, gate, truth });
        }
        Ok((first..self.loads.len()).map(LoadId).collect())
    }

    fn requests_of(&self, load: LoadId, oracle: bool) -> Option<&Requests> {
        let load = self.loads.get(load.0)?;
        Some(if oracle { &load.truth } else { &load.gate })
    }

    /// Requests of all pools that may miss.
    pub(super) fn budget(&self, load: LoadId) -> MissBudget {
        let measured = self.requests_of(load, false).map_or(0, |all| all.counts.measured);
        MissBudget { all: measured / 100, own: OWN }
    }

    fn keys(layout: &Layout, load: LoadId) -> Vec<Key> {
        let key = |(nth, shape): (usize, &Shape)| Key {
            load,
            // All requests are all requests, whoever shares them out.
            oracle: layout.oracle && layout.shapes.len() > 1,
            slice: Slice::of(&layout.shapes, nth),
            seats: shape.seats,
            batched: shape.batched,
        };
        layout.shapes.iter().enumerate().map(key).collect()
    }

    /// Runs pools with counts that were not run yet.
    fn pools(&mut self, wanted: Vec<(Key, Shape, u32, u64)>) -> Result<(), PlanError> {
        let (mut keys, mut trials): (Vec<(Key, u32)>, Vec<Trial>) = (Vec::new(), Vec::new());
        for (key, shape, count, most) in wanted {
            let known = self.known.entry(key).or_default();
            if known.curve.knows(count) || keys.contains(&(key, count)) {
                continue;
            }
            let Some(load) = self.loads.get(key.load.0) else { continue };
            let (rows, counts) = if key.oracle { &load.truth } else { &load.gate }.slice(key.slice);
            if rows.is_empty() || counts.measured == 0 {
                // Nobody comes: one replica is as good as any number.
                let known = self.known.entry(key).or_default();
                known.curve.learn(count, 0, Missed { late: 0, slow: 0 });
                continue;
            }
            keys.push((key, count));
            let alone = Shape { threshold: shape.window, ..shape };
            trials.push(Trial {
                question: Arc::clone(&self.question),
                layout: Layout { shapes: vec![alone], reserve: 1, oracle: key.oracle },
                policy: Policy::Oracle,
                tells: false,
                replicas: vec![count],
                rows,
                counts,
                seed: load.seed,
                // A little more than is allowed tells how far off a count is.
                allowed: Allowed { late: most, slow: most },
            });
        }
        if trials.is_empty() {
            return Ok(());
        }
        let outcomes = self.run(&trials)?;
        for (((key, count), trial), outcome) in keys.into_iter().zip(trials).zip(outcomes) {
            let known = self.known.entry(key).or_default();
            let (late, slow) = missed(&outcome);
            known.curve.learn(count, trial.counts.measured, Missed { late, slow });
            if outcome.whole {
                known.outcomes.insert(count, outcome);
            }
        }
        Ok(())
    }

    /// What a run of a pool need not go beyond.
    fn most(&self, key: Key) -> u64 {
        let budget = self.budget(key.load).all;
        let own = self.requests_of(key.load, key.oracle).map_or(0, |all| {
            // Cheap enough to count again: a run has a thousand times the work.
            all.slice(key.slice).1.measured / OWN
        });
        budget.min(own) * 4 + 9
    }

    /// Runs these pools of a layout with these counts.
    pub(super) fn try_all(
        &mut self,
        all: &[(Layout, LoadId, Vec<u32>)],
    ) -> Result<Vec<Tried>, PlanError> {
        let mut wanted = Vec::new();
        for (layout, load, counts) in all {
            let keys = Self::keys(layout, *load).into_iter().zip(&layout.shapes).zip(counts);
            wanted.extend(keys.map(|((key, shape), count)| (key, *shape, *count, self.most(key))));
        }
        self.pools(wanted)?;
        let of = |(layout, load, counts): &(Layout, LoadId, Vec<u32>)| {
            let keys = Self::keys(layout, *load).into_iter().zip(counts);
            // One that was ended early missed more than was seen.
            let of = |(key, count): (Key, &u32)| {
                let outcome = self.known.get(&key)?.outcomes.get(count)?;
                let (late, slow) = missed(outcome);
                Some(Missed { late, slow })
            };
            keys.map(of).collect()
        };
        Ok(all.iter().map(of).collect())
    }

    /// Runs searches side by side, to the end of all.
    pub(super) fn all(
        &mut self,
        searches: &[Search],
    ) -> Result<Vec<Result<Found, Never>>, PlanError> {
        let mut progress = vec![Progress::default(); searches.len()];
        let mut done: Vec<Option<Result<Vec<u32>, Never>>> = vec![None; searches.len()];
        loop {
            let mut wanted = Vec::new();
            for ((search, progress), done) in searches.iter().zip(&mut progress).zip(&mut done) {
                if done.is_some() {
                    continue;
                }
                match self.next(search, progress) {
                    Next::Done(counts) => *done = Some(counts),
                    Next::Run(counts) => {
                        let keys = Self::keys(&search.layout, search.load).into_iter();
                        let all = keys.zip(&search.layout.shapes).zip(counts);
                        wanted.extend(
                            all.map(|((key, shape), count)| (key, *shape, count, self.most(key))),
                        );
                    }
                }
            }
            if done.iter().all(Option::is_some) {
                break;
            }
            self.pools(wanted)?;
        }
        let found = |(search, counts): (&Search, Option<Result<Vec<u32>, Never>>)| {
            counts.unwrap_or_else(|| Err(Never(String::new()))).map(|replicas| Found {
                outcome: self.outcome(&search.layout, search.load, &replicas),
                replicas,
            })
        };
        Ok(searches.iter().zip(done).map(found).collect())
    }

    fn next(&self, search: &Search, progress: &mut Progress) -> Next {
        let none = Curve::default();
        let keys = Self::keys(&search.layout, search.load);
        let curves: Vec<&Curve> = keys
            .iter()
            .map(|key| self.known.get(key).map_or(&none, |known| &known.curve))
            .collect();
        if curves.iter().any(|curve| curve.most().is_none()) {
            return Next::Run(search.guess.iter().map(|count| (*count).max(1)).collect());
        }
        let budget = self.budget(search.load);
        let seen = budget.seen(&curves);
        progress.rounds += 1;
        if let Some(counts) = budget.share(&curves) {
            let expected = f64::from(counts.iter().sum::<u32>());
            let near = |seen: &Vec<u32>| {
                f64::from(seen.iter().sum::<u32>()) <= expected * (1.0 + search.tolerance)
            };
            return match seen {
                Some(seen) if near(&seen) || progress.rounds > ROUNDS => Next::Done(Ok(seen)),
                None if progress.rounds > 2 * ROUNDS => self.give_up(search, &curves),
                _ => Next::Run(counts),
            };
        }
        if let Some(seen) = seen {
            return Next::Done(Ok(seen));
        }
        progress.doublings += 1;
        if progress.doublings > DOUBLINGS {
            return self.give_up(search, &curves);
        }
        let twice = |curve: &&Curve| curve.most().unwrap_or(1).saturating_mul(2).min(200_000);
        Next::Run(curves.iter().map(twice).collect())
    }

    /// More replicas do not help.
    fn give_up(&self, search: &Search, curves: &[&Curve]) -> Next {
        let counts: Vec<u32> = curves.iter().map(|curve| curve.most().unwrap_or(1)).collect();
        let measured = self.requests_of(search.load, false).map_or(1, |all| all.counts.measured);
        let share = |misses: u64| misses as f64 / measured.max(1) as f64 * 100.0;
        let outcome = self.outcome(&search.layout, search.load, &counts);
        let (late, slow) = missed(&outcome);
        let cut: u64 = outcome.pools.iter().map(|pool| pool.truncated).sum();
        let least = if outcome.whole { "" } else { "at least " };
        Next::Done(Err(Never(format!(
            "with {} replicas {least}{:.1} % of requests are late and {:.1} % slow ({:.2} % cut \
             short, {:.2} % refused), and more replicas do not help",
            counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" + "),
            share(late),
            share(slow),
            share(cut),
            share(outcome.lost)
        ))))
    }

    /// What the pools do together, as far as it was seen whole.
    fn outcome(&self, layout: &Layout, load: LoadId, counts: &[u32]) -> Outcome {
        let mut all = Outcome { whole: true, ..Outcome::default() };
        for (key, count) in Self::keys(layout, load).into_iter().zip(counts) {
            let known = self.known.get(&key);
            let of = known.and_then(|known| known.outcomes.get(count));
            let nobody = known.is_some_and(|known| known.curve.is_empty());
            all.whole &= of.is_some() || nobody;
            all.lost += of.map_or(0, |of| of.lost);
            all.preemptions += of.map_or(0, |of| of.preemptions);
            let first = |of: &Outcome| of.pools.first().cloned();
            all.pools.push(of.and_then(first).unwrap_or_default());
            all.kv.push(of.and_then(|of| of.kv.first().copied()).unwrap_or(0.0));
        }
        all
    }
}

/// Requests of all pools that came late, and that were slow; who was not answered
/// was both.
pub(super) fn missed(outcome: &Outcome) -> (u64, u64) {
    let late = outcome.pools.iter().map(|pool| pool.late).sum::<u64>() + outcome.lost;
    (late, outcome.pools.iter().map(|pool| pool.slow).sum::<u64>() + outcome.lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_keeps_the_rate_where_it_can() {
        let small = Scale::new(10.0, 1_000, 5.0, 9.0);
        assert_eq!((small.rate, small.warm_up), (10.0, 15.0));
        assert_eq!(small.requests(), Counts { warm: 150, measured: 850 });
        let large = Scale::new(1_000.0, 9_000, 10.0, 20.0);
        assert_eq!((large.rate, large.warm_up, large.window), (100.0, 30.0, 60.0));
        assert_eq!(large.times(0.5).requests(), Counts { warm: 1_500, measured: 3_000 });
    }
}
