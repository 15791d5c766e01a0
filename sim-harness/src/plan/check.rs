//! What a plan is put to once it is made: the full rate, other rates, other
//! lengths.

use std::sync::Arc;

use super::answer::{Alternative, AtRate, Drifted, Plan, Verified};
use super::make::{COARSE, Maker};
use super::question::PlanError;
use super::requests::rows;
use super::search::{Drift, LoadId, Scale, Search, missed};
use super::trial::{Outcome, Runner, Trial};

const DRIFTS: [(&str, Drift); 3] = [
    ("prompts a quarter longer", Drift { prompt: 1.25, output: 1.0 }),
    ("answers a quarter longer", Drift { prompt: 1.0, output: 1.25 }),
    ("both a quarter shorter", Drift { prompt: 0.75, output: 0.75 }),
];

impl Maker<'_> {
    /// The load at the full rate, in a window that costs as much.
    fn whole(&self) -> Scale {
        let window =
            self.scale.window.min(self.scale.window * self.scale.rate / self.question.rate);
        Scale { rate: self.question.rate, window: window.max(5.0), ..self.scale }
    }

    /// Runs all alternatives at the full rate with all seeds, whole fleets behind
    /// the gate. Where one fails, a hundredth is added to each pool, a few times.
    pub(super) fn verify(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("all of them at the full rate");
        let scale = self.whole();
        let measured = scale.requests().measured;
        let seeds: Vec<u64> = (0..self.question.effort.seeds)
            .map(|nth| self.question.seed.wrapping_add(nth))
            .collect();
        let each = self.each();
        let of = scale.requests();
        let rows: Vec<_> =
            seeds.iter().map(|seed| rows(&self.question, scale.rate, of, *seed)).collect();
        // Of the requests of all seeds together: what one seed misses is chance.
        let fine = |outcomes: &[Outcome]| {
            let all = outcomes.iter().map(missed);
            let (late, slow) = all.fold((0, 0), |(late, slow), one| (late + one.0, slow + one.1));
            late.max(slow) <= outcomes.len() as u64 * measured / 100
        };
        let mut all = plan.alternatives_mut();
        let mut open: Vec<usize> = (0..all.len()).collect();
        let mut verified = vec![Verified { requests: measured, ..Verified::default() }; all.len()];
        for attempt in 0..5 {
            let mut trials: Vec<Trial> = Vec::new();
            open.retain(|nth| all.get(*nth).is_some_and(|(_, one)| one.size.is_ok()));
            for nth in &open {
                let Some((_, Alternative { layout, size: Ok(size), .. })) = all.get(*nth) else {
                    continue;
                };
                let trial = |(seed, rows)| {
                    Trial::fleet(&self.question, layout, (rows, of), seed, &size.replicas)
                };
                trials.extend(seeds.iter().copied().zip(&rows).map(trial));
            }
            if trials.is_empty() {
                break;
            }
            let outcomes = self.searcher.run(&trials)?;
            let mut left = Vec::new();
            for (nth, outcomes) in open.iter().zip(outcomes.chunks(seeds.len())) {
                let (Some((name, one)), Some(verified)) =
                    (all.get_mut(*nth), verified.get_mut(*nth))
                else {
                    continue;
                };
                let Ok(size) = &mut one.size else { continue };
                verified.name = name;
                verified.holds = fine(outcomes);
                let figures = |(seed, outcome): (&u64, &Outcome)| {
                    let ttft = outcome.p99(|tally| &tally.ttft, measured);
                    (*seed, ttft, outcome.p99(|tally| &tally.tpot, measured))
                };
                verified.seeds = seeds.iter().zip(outcomes).map(figures).collect();
                if let Some(outcome) = outcomes.first() {
                    size.shows(outcome, measured);
                }
                if !verified.holds && attempt < 4 {
                    for count in &mut size.replicas {
                        let more = count.div_ceil(100);
                        (*count, verified.added) = (*count + more, verified.added + more);
                    }
                    size.gpus = size.replicas.iter().sum::<u32>() * each;
                    left.push(*nth);
                }
            }
            open = left;
        }
        plan.verified = verified.into_iter().filter(|one| !one.seeds.is_empty()).collect();
        Ok(())
    }

    /// Searches of these in other loads, coarsely; GPUs of each load's, in order.
    fn elsewhere(
        &mut self,
        plan: &Plan,
        loads: &[(LoadId, f64)],
    ) -> Result<Vec<[Option<u32>; 3]>, PlanError> {
        let all = [&plan.homogeneous, &plan.tuned, plan.answer()];
        let small = self.scale.rate / self.question.rate;
        let mut searches = Vec::new();
        for (load, times) in loads {
            for one in all {
                let Ok(size) = &one.size else { continue };
                let near = size.replicas.iter().map(|n| (f64::from(*n) * small * times).ceil());
                let guess = near.map(|count| (count as u32).max(1)).collect();
                let layout = one.layout.clone();
                searches.push(Search { layout, load: *load, guess, tolerance: COARSE });
            }
        }
        let present = all.map(|one| one.size.is_ok());
        let mut found = self.searcher.all(&searches)?.into_iter();
        let gpus = |_| {
            present.map(|present| {
                let found = present.then(|| found.next())??;
                found.ok().map(|found| self.gpus(&found.replicas))
            })
        };
        Ok(loads.iter().map(gpus).collect())
    }

    /// The answer and the single pools at other rates, one seed, coarsely.
    pub(super) fn sensitivity(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("at other rates");
        let factors = self.question.effort.rates.clone();
        let seed = self.question.seed;
        let of = |factor: &f64| (self.scale.times(*factor), seed, Drift::NONE);
        let of: Vec<_> = factors.iter().map(of).collect();
        let ample = factors.first().map_or(1.0, |first| f64::from(self.ample) * first);
        let single = self.single.clone();
        let loads = self.searcher.loads(&of, &single, ample.ceil() as u32)?;
        let loads: Vec<(LoadId, f64)> = loads.into_iter().zip(factors).collect();
        let gpus = self.elsewhere(plan, &loads)?;
        plan.sensitivity = loads
            .into_iter()
            .zip(gpus)
            .map(|((_, factor), [homogeneous, tuned, plan])| AtRate {
                factor,
                plan,
                homogeneous,
                tuned,
            })
            .collect();
        Ok(())
    }

    /// The same thresholds when lengths have moved, one seed, coarsely.
    pub(super) fn drift(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("with other lengths");
        let of: Vec<_> =
            DRIFTS.iter().map(|(_, drift)| (self.scale, self.question.seed, *drift)).collect();
        let (single, ample) = (self.single.clone(), self.ample);
        let loads = self.searcher.loads(&of, &single, ample * 5 / 4)?;
        let loads: Vec<(LoadId, f64)> = loads.into_iter().map(|load| (load, 1.0)).collect();
        let gpus = self.elsewhere(plan, &loads)?;
        plan.drift = DRIFTS
            .iter()
            .zip(gpus)
            .map(|((what, _), [homogeneous, tuned, plan])| Drifted {
                what,
                plan,
                homogeneous,
                tuned,
            })
            .collect();
        Ok(())
    }
}

/// What one fleet of a plan does at some rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Which one, as in [`Plan::alternatives`].
    pub name: &'static str,
    /// Replicas of each pool: the plan's, in proportion to the rate, rounded up.
    pub replicas: Vec<u32>,
    /// GPUs of all of them.
    pub gpus: u32,
    /// Requests that counted, of all seeds.
    pub requests: u64,
    /// Share of them whose first token came after the promise, refused and cut
    /// short ones among them.
    pub late: f64,
    /// Share of them that were slower than the promise, the same among them.
    pub slow: f64,
    /// 99th percentiles in seconds, with the first seed; nothing where so many
    /// were never answered.
    pub ttft_p99: Option<f64>,
    /// The same.
    pub tpot_p99: Option<f64>,
    /// Share of the requests that were refused for their length.
    pub lost: f64,
    /// Share whose answer the window cut short.
    pub truncated: f64,
    /// Times that a request made room for others, for each request.
    pub preemptions: f64,
}

/// How a plan is checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Requests a second.
    pub rate: f64,
    /// Seconds of requests that count.
    pub seconds: f64,
    /// So many runs.
    pub seeds: u64,
    /// All fleets; else the tuned single pool and the best split alone.
    pub all: bool,
}

/// Runs fleets of a plan, whole and behind the gate.
pub fn check_fleets(
    plan: &Plan,
    check: &Check,
    runner: &mut dyn Runner,
) -> Result<Vec<Checked>, PlanError> {
    let question = Arc::new(plan.question.clone());
    let Check { rate, seconds, seeds, .. } = *check;
    let counts = Scale { rate, window: seconds, ..plan.scale }.requests();
    let seed = |nth| question.seed.wrapping_add(nth);
    let rows: Vec<_> = (0..seeds).map(|nth| rows(&question, rate, counts, seed(nth))).collect();
    let mut all = Vec::new();
    let mut trials = Vec::new();
    for (name, one) in plan.alternatives() {
        let best = one.layout == plan.tuned.layout || Some(one) == plan.split();
        let Some(size) = one.size.as_ref().ok().filter(|_| check.all || best) else { continue };
        let share = |count: &u32| ((f64::from(*count) * rate / question.rate).ceil() as u32).max(1);
        let replicas: Vec<u32> = size.replicas.iter().map(share).collect();
        trials.extend((0..seeds).zip(&rows).map(|(nth, rows)| {
            Trial::fleet(&question, &one.layout, (rows, counts), seed(nth), &replicas)
        }));
        all.push((name, replicas));
    }
    let outcomes = runner.run(&trials)?;
    let each = question.deployment.tp * question.deployment.dp;
    let requests = counts.measured * seeds;
    let of = |((name, replicas), outcomes): ((&'static str, Vec<u32>), &[Outcome])| {
        let share = |of: &dyn Fn(&Outcome) -> u64| {
            outcomes.iter().map(of).sum::<u64>() as f64 / requests.max(1) as f64
        };
        let first = outcomes.first();
        Checked {
            name,
            gpus: replicas.iter().sum::<u32>() * each,
            replicas,
            requests,
            late: share(&|one| missed(one).0),
            slow: share(&|one| missed(one).1),
            ttft_p99: first.and_then(|one| one.p99(|tally| &tally.ttft, counts.measured)),
            tpot_p99: first.and_then(|one| one.p99(|tally| &tally.tpot, counts.measured)),
            lost: share(&|one| one.lost),
            truncated: share(&|one| one.pools.iter().map(|pool| pool.truncated).sum()),
            preemptions: share(&|one| one.preemptions),
        }
    };
    Ok(all.into_iter().zip(outcomes.chunks(seeds.max(1) as usize)).map(of).collect())
}
