//! What a plan is put to once it is made: the full rate, other rates, other
//! lengths.

use std::sync::Arc;

use super::answer::{Alternative, AtRate, Drifted, Plan};
use super::make::{COARSE, Maker};
use super::question::{PlanError, Question};
use super::requests::{Counts, rows};
use super::search::{Drift, LoadId, Scale, Search, missed};
use super::trial::{Layout, Outcome, PoolOutcome, Runner, Trial};
use crate::workload::TraceRequest;

const DRIFTS: [(&str, Drift); 3] = [
    ("prompts a quarter longer", Drift { prompt: 1.25, output: 1.0 }),
    ("answers a quarter longer", Drift { prompt: 1.0, output: 1.25 }),
    ("both a quarter shorter", Drift { prompt: 0.75, output: 0.75 }),
];

/// Times that a fleet which misses the promise gets more replicas: a third more, in all.
pub const TRIES: u32 = 12;
/// Times after which what it gets doubles.
const STEADY: u32 = 4;

/// A fleet under load, whole and behind the gate.
pub(super) struct LoadTest<'a> {
    layout: &'a Layout,
    pub(super) replicas: Vec<u32>,
    /// What it did at first, and with the replicas that it has now; of each seed.
    pub(super) first: Vec<Outcome>,
    pub(super) last: Vec<Outcome>,
    pub(super) holds: bool,
    pub(super) added: u32,
    /// Times that it got more.
    tries: u32,
}

impl<'a> LoadTest<'a> {
    pub(super) fn new(layout: &'a Layout, replicas: Vec<u32>) -> Self {
        let (first, last) = (Vec::new(), Vec::new());
        Self { layout, replicas, first, last, holds: false, added: 0, tries: 0 }
    }

    /// Takes what it did; whether it gets more replicas for the next time. Each pool
    /// that missed more than a hundredth of its own gets a hundredth more, later two
    /// and four.
    pub(super) fn judge(&mut self, outcomes: &[Outcome], measured: u64, more: bool) -> bool {
        // Of the requests of all seeds together: what one seed misses is chance.
        let (late, slow) = outcomes.iter().map(missed).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let most = outcomes.len() as u64 * measured / 100;
        self.holds = late.max(slow) <= most;
        if self.first.is_empty() {
            self.first = outcomes.to_vec();
        }
        self.last = outcomes.to_vec();
        if self.holds || !more {
            return false;
        }
        let bad = |nth: usize| {
            let of = |count: &dyn Fn(&PoolOutcome) -> u64| -> u64 {
                outcomes.iter().filter_map(|one| one.pools.get(nth)).map(count).sum()
            };
            of(&|pool| pool.late).max(of(&|pool| pool.slow)) > of(&|pool| pool.requests) / 100
        };
        let any = (0..self.replicas.len()).any(bad);
        // Bounded, for a check may ask for any number of tries.
        let hundredths = 1 << (self.tries / STEADY).min(5);
        self.tries += 1;
        for (nth, count) in self.replicas.iter_mut().enumerate() {
            // Where requests are lost no pool is to blame.
            let more = if bad(nth) || !any { (*count * hundredths).div_ceil(100) } else { 0 };
            (*count, self.added) = (*count + more, self.added + more);
        }
        true
    }
}

impl LoadTest<'_> {
    /// What it did with these replicas, of so many GPUs `each`.
    fn tells(
        &self,
        name: &'static str,
        replicas: &[u32],
        outcomes: &[Outcome],
        (rows, counts): (&[Rows], Counts),
        each: u32,
    ) -> Checked {
        let requests = counts.measured * rows.len() as u64;
        let gpus = |replicas: &[u32]| replicas.iter().sum::<u32>() * each;
        let share = |of: &dyn Fn(&Outcome) -> u64| {
            outcomes.iter().map(of).sum::<u64>() as f64 / requests.max(1) as f64
        };
        let p99 = |((seed, _), outcome): (&Rows, &Outcome)| {
            let ttft = outcome.p99(|pool| &pool.ttft, counts.measured);
            (*seed, ttft, outcome.p99(|pool| &pool.tpot, counts.measured))
        };
        Checked {
            name,
            replicas: replicas.to_vec(),
            gpus: gpus(replicas),
            held: self.holds.then(|| gpus(&self.replicas)),
            added: self.added,
            requests,
            late: share(&|one| missed(one).0),
            slow: share(&|one| missed(one).1),
            seeds: rows.iter().zip(outcomes).map(p99).collect(),
            lost: share(&|one| one.lost),
            truncated: share(&|one| one.pools.iter().map(|pool| pool.truncated).sum()),
            preemptions: share(&|one| one.preemptions),
        }
    }
}

/// The requests of one seed.
pub(super) type Rows = (u64, Arc<[TraceRequest]>);

/// Runs fleets with all seeds; those that miss the promise so many times again,
/// with more replicas.
pub(super) fn load_test(
    question: &Arc<Question>,
    fleets: &mut [LoadTest<'_>],
    (all, counts): (&[Rows], Counts),
    tries: u32,
    runner: &mut dyn Runner,
) -> Result<(), PlanError> {
    let mut open: Vec<&mut LoadTest<'_>> = fleets.iter_mut().collect();
    for left in (0..=tries).rev() {
        let trial = |one: &LoadTest<'_>, (seed, rows): &Rows| {
            Trial::fleet(question, one.layout, (rows, counts), *seed, &one.replicas)
        };
        let trials: Vec<Trial> =
            open.iter().flat_map(|one| all.iter().map(|rows| trial(one, rows))).collect();
        if trials.is_empty() {
            break;
        }
        let outcomes = runner.run(&trials)?;
        if outcomes.len() < trials.len() {
            return Err(PlanError::Stopped);
        }
        let mut outcomes = outcomes.chunks(all.len());
        open.retain_mut(|one| {
            one.judge(outcomes.next().unwrap_or_default(), counts.measured, left > 0)
        });
    }
    Ok(())
}

impl Maker<'_> {
    /// The load at the full rate, in a window that costs as much, or in one as long
    /// as was asked for.
    fn whole(&self) -> Scale {
        let window =
            self.scale.window.min(self.scale.window * self.scale.rate / self.question.rate);
        let window = window.max(5.0).max(self.question.effort.seconds);
        Scale { rate: self.question.rate, window, ..self.scale }
    }

    /// Runs all alternatives at the full rate with all seeds, whole fleets behind
    /// the gate. Those that fail get more replicas, a few times.
    pub(super) fn verify(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("all of them at the full rate");
        let scale = self.whole();
        let counts = scale.requests();
        let seeds = (0..self.question.effort.seeds).map(|nth| self.question.seed.wrapping_add(nth));
        let rows: Vec<Rows> =
            seeds.map(|seed| (seed, rows(&self.question, scale.rate, counts, seed))).collect();
        let (question, each) = (Arc::clone(&self.question), self.each());
        let mut all = plan.alternatives_mut();
        let mut sized: Vec<_> = all
            .iter_mut()
            .filter_map(|(name, one)| {
                let Alternative { layout, size, .. } = &mut **one;
                Some((*name, &*layout, size.as_mut().ok()?))
            })
            .collect();
        let mut fleets: Vec<LoadTest<'_>> = sized
            .iter()
            .map(|(_, layout, size)| LoadTest::new(layout, size.replicas.clone()))
            .collect();
        load_test(&question, &mut fleets, (&rows, counts), TRIES, &mut self.searcher)?;
        let mut verified = Vec::new();
        for ((name, _, size), one) in sized.iter_mut().zip(fleets) {
            if let Some(outcome) = one.last.first() {
                size.shows(outcome, counts.measured);
            }
            let told = one.tells(name, &one.replicas, &one.last, (&rows, counts), each);
            (size.gpus, size.replicas) = (told.gpus, told.replicas.clone());
            verified.push(told);
        }
        plan.verified = verified;
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checked {
    /// Which one, as in [`Plan::alternatives`].
    pub name: &'static str,
    /// Replicas of each pool. All but `held` and `added` is of these.
    pub replicas: Vec<u32>,
    /// GPUs of all of them.
    pub gpus: u32,
    /// GPUs with which it kept the promise, if it did: these, or some more.
    pub held: Option<u32>,
    /// Replicas that were added for that.
    pub added: u32,
    /// Requests that counted, of all seeds.
    pub requests: u64,
    /// Share of them whose first token came after the promise, refused and cut
    /// short ones among them.
    pub late: f64,
    /// Share of them that were slower than the promise, the same among them.
    pub slow: f64,
    /// Seeds, and 99th percentiles of TTFT and TPOT in seconds; nothing where so many
    /// were never answered.
    pub seeds: Vec<(u64, Option<f64>, Option<f64>)>,
    /// Share of the requests that were refused for their length.
    pub lost: f64,
    /// Share whose answer the window cut short.
    pub truncated: f64,
    /// Times that a request made room for others, for each request.
    pub preemptions: f64,
}

impl Checked {
    /// Requests that counted, of each seed.
    pub(super) fn requests_each(&self) -> u64 {
        self.requests / (self.seeds.len() as u64).max(1)
    }
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
    /// Times that a fleet which misses the promise gets more replicas.
    pub tries: u32,
}

/// Runs fleets of a plan, whole and behind the gate: replicas in proportion to the
/// rate, rounded up.
pub fn check_fleets(
    plan: &Plan,
    check: &Check,
    runner: &mut dyn Runner,
) -> Result<Vec<Checked>, PlanError> {
    let question = Arc::new(plan.question.clone());
    let Check { rate, seconds, seeds, tries, .. } = *check;
    let counts = Scale { rate, window: seconds, ..plan.scale }.requests();
    let seeds = (0..seeds).map(|nth| question.seed.wrapping_add(nth));
    let rows: Vec<Rows> = seeds.map(|seed| (seed, rows(&question, rate, counts, seed))).collect();
    let mut names = Vec::new();
    let mut fleets = Vec::new();
    for (name, one) in plan.alternatives() {
        let best = one.layout == plan.tuned.layout || Some(one) == plan.split();
        let Some(size) = one.size.as_ref().ok().filter(|_| check.all || best) else { continue };
        let share = |count: &u32| ((f64::from(*count) * rate / question.rate).ceil() as u32).max(1);
        let replicas: Vec<u32> = size.replicas.iter().map(share).collect();
        names.push((name, replicas.clone()));
        fleets.push(LoadTest::new(&one.layout, replicas));
    }
    load_test(&question, &mut fleets, (&rows, counts), tries, runner)?;
    let each = question.deployment.tp * question.deployment.dp;
    let of = |((name, replicas), one): ((&'static str, Vec<u32>), LoadTest<'_>)| {
        one.tells(name, &replicas, &one.first, (&rows, counts), each)
    };
    Ok(names.into_iter().zip(fleets).map(of).collect())
}
