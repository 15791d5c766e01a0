//! How a plan is made: formulas, then searches, then checks.

use std::sync::Arc;

use super::analytic::{Guess, Sample, guess, table_slots};
use super::answer::{Alternative, AtRate, Candidate, Plan, Sized, Verified};
use super::question::{PlanError, Question, Shape};
use super::search::{Found, Never, Scale, Search, Searcher, missed};
use super::trial::{Allowed, Layout, Outcome, Runner, StepTimes, Trial};

/// Settings that are tried: `max_num_seqs` and `max_num_batched_tokens`.
const SEATS: [u32; 5] = [16, 32, 64, 128, 256];
const BATCHED: [u32; 2] = [2_048, 8_192];
/// What a search starts from, and all there is without one: vLLM's own.
const SEATS_DEFAULT: u32 = 256;
const BATCHED_DEFAULT: u32 = 8_192;

/// How near a count comes to the smallest: while candidates are compared, and
/// in the end.
const COARSE: f64 = 0.04;
const FINE: f64 = 0.01;

/// Makes a plan. `progress` hears what is done next, for people who wait.
pub fn plan(
    question: Question,
    runner: &mut dyn Runner,
    progress: &mut dyn FnMut(&str),
) -> Result<Plan, PlanError> {
    question.check()?;
    let question = Arc::new(question);
    let sample = Sample::new(&question);
    let mut bench = StepTimes::default();
    let start = Shape { window: question.window, seats: SEATS_DEFAULT, batched: BATCHED_DEFAULT };
    let first = guess(&question, &sample, &[start], question.rate, &mut bench)?;
    let (mean, long) = sample.outputs();
    // The pace of the papers' slots: it does not depend on the promise, so that a
    // looser one is simulated at the same scale.
    let pace = |pool: &super::PoolGuess| f64::from(pool.table_slots) / (pool.table_rate * mean);
    let pace = first.pools.first().map_or(0.0, pace);
    let scale = Scale::new(question.rate, question.effort.requests, mean * pace, long * pace);
    let searcher = Searcher { question: Arc::clone(&question), runner, runs: 0, requests: 0 };
    Maker { question, sample, bench, scale, searcher, progress, correction: 1.0 }.make()
}

struct Maker<'a> {
    question: Arc<Question>,
    sample: Sample,
    bench: StepTimes,
    scale: Scale,
    searcher: Searcher<'a>,
    progress: &'a mut dyn FnMut(&str),
    /// Replicas that simulations needed so far over those of the formulas: only to
    /// start the next searches nearer.
    correction: f64,
}

/// A layout, and counts near its smallest, at the scale; or why there are none.
type Rough = (Layout, Result<Vec<u32>, Never>);

impl Maker<'_> {
    fn make(mut self) -> Result<Plan, PlanError> {
        let window = self.question.window;
        let shape = |seats, batched| Shape { window, seats, batched };
        (self.progress)("one pool: the papers' settings, and tuned ones");
        let papers = self.layout(&[shape(table_slots(window), BATCHED_DEFAULT)]);
        let start = self.layout(&[shape(SEATS_DEFAULT, BATCHED_DEFAULT)]);
        let mut rough = self.rough(&[papers, start.clone()])?.into_iter();
        let (Some(homogeneous), Some(tuned)) = (rough.next(), rough.next()) else {
            return Err(PlanError::Stopped);
        };
        if let Ok(counts) = &tuned.1 {
            let guess = self.guess(&start, self.scale.rate)?.queueing();
            self.correction = f64::from(counts.iter().sum::<u32>()) / f64::from(guess.max(1));
        }
        let tuned = self.tuned(tuned)?;
        // The papers' settings are settings too.
        let count = |rough: &Rough| rough.1.as_ref().map_or(u32::MAX, |c| c.iter().sum());
        let tuned = if count(&homogeneous) < count(&tuned) { homogeneous.clone() } else { tuned };
        let mut candidates = Vec::new();
        let mut splits = Vec::new();
        for pools in 2..=self.question.pools as usize {
            splits.extend(self.split(pools, &tuned.0, &mut candidates)?);
        }
        let count = |rough: &Rough| rough.1.as_ref().map(|counts| counts.iter().sum::<u32>()).ok();
        let best = splits.iter().filter(|one| count(one).is_some()).min_by_key(|one| count(one));
        let best = best.cloned();
        let oracle = match &best {
            None => None,
            Some(best) => Some(self.oracle(best, &candidates)?),
        };
        (self.progress)("all of them with all seeds");
        let all: Vec<Rough> =
            [homogeneous, tuned].into_iter().chain(splits).chain(oracle).collect();
        let mut sized = self.sizes(all)?.into_iter();
        let (Some(homogeneous), Some(tuned)) = (sized.next(), sized.next()) else {
            return Err(PlanError::Stopped);
        };
        let rest: Vec<Alternative> = sized.collect();
        let of = |pools: usize, oracle: bool| {
            let kind = |one: &&Alternative| {
                one.layout.oracle == oracle && (oracle || one.layout.shapes.len() == pools)
            };
            rest.iter().find(kind).cloned()
        };
        let mut plan = Plan {
            kv_tokens: self.question.kv_tokens(shape(SEATS_DEFAULT, BATCHED_DEFAULT)).1,
            totals: self.totals(),
            question: (*self.question).clone(),
            scale: self.scale,
            homogeneous,
            tuned,
            two: of(2, false),
            three: of(3, false),
            oracle: of(0, true),
            candidates,
            splits: false,
            verified: None,
            sensitivity: Vec::new(),
            runs: (0, 0),
        };
        plan.splits = match (plan.split().and_then(Alternative::gpus), plan.tuned.gpus()) {
            (Some(split), Some(one)) => split < one,
            (split, _) => split.is_some(),
        };
        if self.question.effort.verify {
            self.verify(&mut plan)?;
            self.sensitivity(&mut plan)?;
        }
        plan.runs = (self.searcher.runs, self.searcher.requests);
        Ok(plan)
    }

    fn layout(&self, shapes: &[Shape]) -> Layout {
        Layout { shapes: shapes.to_vec(), reserve: self.sample.reserve, oracle: false }
    }

    fn totals(&self) -> [u32; 4] {
        let mut totals: Vec<u32> =
            self.sample.all.iter().map(|need| need.input.saturating_add(need.output)).collect();
        totals.sort_unstable();
        [0.5, 0.9, 0.99, 1.0].map(|share: f64| {
            let at = (share * totals.len() as f64).ceil() as usize;
            totals.get(at.max(1) - 1).copied().unwrap_or(0)
        })
    }

    fn guess(&mut self, layout: &Layout, rate: f64) -> Result<Guess, PlanError> {
        guess(&self.question, &self.sample, &layout.shapes, rate, &mut self.bench)
    }

    /// Counts to start from, at the scale.
    fn start(&mut self, layout: &Layout) -> Result<Vec<u32>, PlanError> {
        let correction = self.correction;
        let guess = self.guess(layout, self.scale.rate)?;
        let counts = guess.pools.iter().map(|pool| (f64::from(pool.queueing) * correction) as u32);
        Ok(counts.map(|count| count.max(1)).collect())
    }

    /// About the smallest counts of each layout, with the first seed.
    fn rough(&mut self, layouts: &[Layout]) -> Result<Vec<Rough>, PlanError> {
        let mut searches = Vec::new();
        for layout in layouts {
            let counts = self.start(layout)?;
            searches.push(Search::new(layout, self.scale, self.question.seed, &counts, COARSE));
        }
        let found = self.searcher.all(searches)?;
        let found = found.into_iter().map(|found| found.map(|found| found.replicas));
        Ok(layouts.iter().cloned().zip(found).collect())
    }

    /// The layout with the settings with which a little too few replicas miss
    /// least, each pool on its own; the layout itself if those need more.
    fn tuned(&mut self, (layout, counts): Rough) -> Result<Rough, PlanError> {
        if !self.question.effort.tune {
            return Ok((layout, counts));
        }
        let few: Vec<u32> = match &counts {
            Ok(counts) => counts.iter().map(|count| (count * 24 / 25).max(1)).collect(),
            Err(_) => self.start(&layout)?.iter().map(|count| count * 3 / 2 + 1).collect(),
        };
        let (_, measured) = self.scale.requests();
        let limit = Allowed { late: measured / 5, slow: measured / 5 };
        let settings: Vec<(u32, u32)> =
            SEATS.iter().flat_map(|seats| BATCHED.map(|batched| (*seats, batched))).collect();
        let trial = |&(seats, batched): &(u32, u32)| {
            let shapes = layout.shapes.iter().map(|shape| Shape { seats, batched, ..*shape });
            let layout = Layout { shapes: shapes.collect(), ..layout.clone() };
            let mut trial = self.searcher.trial(&layout, self.scale, self.question.seed, &few);
            trial.allowed.fill(Some(limit));
            trial
        };
        let trials: Vec<Trial> = settings.iter().map(trial).collect();
        let outcomes = self.searcher.run(&trials)?;
        let mut best = layout.clone();
        for (pool, shape) in best.shapes.iter_mut().enumerate() {
            let own = (shape.seats, shape.batched);
            // One that was ended early has more than was seen. Of equals the
            // setting that there was.
            let order = |(setting, outcome): &(&(u32, u32), &Outcome)| {
                let misses = outcome.pools.get(pool).map_or(u64::MAX, |t| t.late.max(t.slow));
                (!outcome.whole, misses, **setting != own)
            };
            if let Some((&(seats, batched), _)) = settings.iter().zip(&outcomes).min_by_key(order) {
                (shape.seats, shape.batched) = (seats, batched);
            }
        }
        if best == layout {
            return Ok((layout, counts));
        }
        let near = match &counts {
            Ok(counts) => counts.clone(),
            Err(_) => self.start(&best)?,
        };
        let search = Search::new(&best, self.scale, self.question.seed, &near, COARSE);
        let better = self.searcher.all(vec![search])?.pop().ok_or(PlanError::Stopped)?;
        let better = better.map(|found| found.replicas);
        let sum = |counts: &Result<Vec<u32>, Never>| {
            counts.as_ref().map_or(u32::MAX, |counts| counts.iter().sum())
        };
        // What misses least a little below is not always what needs least.
        Ok(if sum(&better) <= sum(&counts) { (best, better) } else { (layout, counts) })
    }

    /// The best split into so many pools; nothing if no threshold divides the
    /// requests. The pools' settings start from those of the tuned single pool.
    fn split(
        &mut self,
        pools: usize,
        tuned: &Layout,
        candidates: &mut Vec<Candidate>,
    ) -> Result<Option<Rough>, PlanError> {
        let Some(single) = tuned.shapes.first().copied() else { return Ok(None) };
        let windows: Vec<Vec<u32>> = if pools == 2 {
            let count = self.question.effort.thresholds;
            let all = self.sample.thresholds(self.question.window, count);
            all.into_iter().map(|threshold| vec![threshold]).collect()
        } else {
            // Pairs of those that were best alone.
            let one = |one: &Candidate| Some((one.gpus?, *one.thresholds.first()?));
            let mut known: Vec<(u32, u32)> = candidates.iter().filter_map(one).collect();
            known.sort_unstable();
            let best: Vec<u32> = known.iter().take(4).map(|(_, threshold)| *threshold).collect();
            let pairs = best.iter().flat_map(|low| best.iter().map(|high| vec![*low, *high]));
            pairs.filter(|pair| pair.is_sorted_by(|low, high| low < high)).collect()
        };
        (self.progress)(&format!("{pools} pools: {} candidates", windows.len()));
        let layout = |thresholds: &Vec<u32>| {
            let small = thresholds.iter().map(|window| Shape { window: *window, ..single });
            self.layout(&small.chain([single]).collect::<Vec<_>>())
        };
        let layouts: Vec<Layout> = windows.iter().map(layout).collect();
        let rough = self.rough(&layouts)?;
        for (thresholds, (_, counts)) in windows.into_iter().zip(&rough) {
            let gpus = counts.as_ref().ok().map(|counts| self.gpus(counts));
            candidates.push(Candidate { thresholds, gpus });
        }
        let order =
            |(_, counts): &Rough| counts.as_ref().map_or(u32::MAX, |counts| counts.iter().sum());
        match rough.into_iter().min_by_key(order) {
            Some(best) if best.1.is_ok() => self.tuned(best).map(Some),
            other => Ok(other),
        }
    }

    /// The best split with known lengths: at the same thresholds, or, for two
    /// pools, at another candidate. The pools' settings stay.
    fn oracle(
        &mut self,
        (layout, counts): &Rough,
        candidates: &[Candidate],
    ) -> Result<Rough, PlanError> {
        (self.progress)("pools with known lengths");
        let known = Layout { oracle: true, ..layout.clone() };
        let mut layouts = vec![known.clone()];
        if let [small, _] = layout.shapes[..] {
            let mut others: Vec<u32> = candidates
                .iter()
                .filter(|one| one.thresholds.len() == 1)
                .filter_map(|one| one.thresholds.first().copied())
                .filter(|threshold| *threshold != small.window)
                .collect();
            // True lengths are below what a cap allows for: so are the thresholds.
            others.sort_by_key(|threshold| {
                (*threshold > small.window, threshold.abs_diff(small.window))
            });
            for window in others.into_iter().take(3) {
                let mut other = known.clone();
                if let Some(first) = other.shapes.first_mut() {
                    first.window = window;
                }
                layouts.push(other);
            }
        }
        let all = counts.as_ref().map_or(1, |counts| counts.iter().sum::<u32>());
        let mut searches = Vec::new();
        for layout in &layouts {
            let start = self.start(layout)?;
            let factor = f64::from(all) / f64::from(start.iter().sum::<u32>().max(1));
            let near: Vec<u32> =
                start.iter().map(|count| ((f64::from(*count) * factor) as u32).max(1)).collect();
            searches.push(Search::new(layout, self.scale, self.question.seed, &near, COARSE));
        }
        let found = self.searcher.all(searches)?;
        let found = found.into_iter().map(|found| found.map(|found| found.replicas));
        let order =
            |(_, counts): &Rough| counts.as_ref().map_or(u32::MAX, |counts| counts.iter().sum());
        layouts.into_iter().zip(found).min_by_key(order).ok_or(PlanError::Stopped)
    }

    /// Replicas at the full rate.
    fn full(&self, counts: &[u32]) -> Vec<u32> {
        let factor = self.question.rate / self.scale.rate;
        counts.iter().map(|count| (f64::from(*count) * factor - 1e-9).ceil() as u32).collect()
    }

    /// GPUs of replicas at the scale.
    fn gpus(&self, counts: &[u32]) -> u32 {
        let each = self.question.deployment.tp * self.question.deployment.dp;
        self.full(counts).iter().sum::<u32>() * each
    }

    /// Finer, and with all seeds: a pool gets the median of what they asked for.
    /// The most would favour whatever varies less.
    fn sizes(&mut self, all: Vec<Rough>) -> Result<Vec<Alternative>, PlanError> {
        let seeds = self.question.effort.seeds;
        let mut searches = Vec::new();
        for (layout, counts) in &all {
            let Ok(counts) = counts else { continue };
            for nth in 0..seeds {
                let seed = self.question.seed.wrapping_add(nth);
                let search = Search::new(layout, self.scale, seed, counts, FINE).joint();
                searches.push(if nth == 0 { search.reported() } else { search });
            }
        }
        let mut found = self.searcher.all(searches)?.into_iter();
        let mut alternatives = Vec::new();
        for (layout, counts) in all {
            let guess = self.guess(&layout, self.question.rate)?;
            let size = if let Err(Never(why)) = counts {
                Err(why)
            } else {
                // All of them are taken, whichever fails.
                let of_seeds: Vec<_> = found.by_ref().take(seeds as usize).collect();
                let of_seeds: Result<Vec<Found>, Never> = of_seeds.into_iter().collect();
                of_seeds.map(|all| self.sized(&all)).map_err(|Never(why)| why)
            };
            alternatives.push(Alternative { layout, size, guess });
        }
        Ok(alternatives)
    }

    fn sized(&self, all: &[Found]) -> Sized {
        let (_, measured) = self.scale.requests();
        let share = |count: u64| count as f64 / measured as f64;
        let pools = all.first().map_or(0, |first| first.replicas.len());
        let middle = |pool| {
            let mut counts: Vec<u32> =
                all.iter().filter_map(|one| one.replicas.get(pool)).copied().collect();
            counts.sort_unstable();
            counts.get(counts.len() / 2).copied()
        };
        let replicas: Vec<u32> = (0..pools).filter_map(middle).collect();
        let totals = all.iter().map(|one| self.gpus(&one.replicas));
        let spread = (totals.clone().min().unwrap_or(0), totals.max().unwrap_or(0));
        let none =
            Outcome { pools: Vec::new(), lost: 0, whole: false, kv: Vec::new(), preemptions: 0 };
        let outcome = all.iter().find_map(|one| one.outcome.clone()).unwrap_or(none);
        Sized {
            replicas: self.full(&replicas),
            gpus: self.gpus(&replicas),
            spread,
            ttft_p99: outcome.p99(|tally| &tally.ttft, measured),
            tpot_p99: outcome.p99(|tally| &tally.tpot, measured),
            shares: outcome.pools.iter().map(|pool| share(pool.requests)).collect(),
            truncated: share(outcome.pools.iter().map(|pool| pool.truncated).sum()),
            lost: share(outcome.lost),
            retried: share(outcome.pools.iter().map(|pool| pool.retried).sum()),
            preemptions: share(outcome.preemptions),
            kv: outcome.kv,
        }
    }

    /// Runs the answer at the full rate with all seeds. Where it fails, a
    /// hundredth is added to each pool, a few times.
    fn verify(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        let answer = plan.answer();
        let Ok(size) = &answer.size else { return Ok(()) };
        (self.progress)("the answer at the full rate");
        let (layout, start) = (answer.layout.clone(), size.replicas.clone());
        let window =
            self.scale.window.min(self.scale.window * self.scale.rate / self.question.rate);
        let scale = Scale { rate: self.question.rate, window: window.max(5.0), ..self.scale };
        let (_, measured) = scale.requests();
        let mut replicas = start.clone();
        let seeds: Vec<u64> = (0..self.question.effort.seeds)
            .map(|nth| self.question.seed.wrapping_add(nth))
            .collect();
        for attempt in 0..4 {
            let trials: Vec<Trial> = seeds
                .iter()
                .map(|seed| self.searcher.trial(&layout, scale, *seed, &replicas))
                .collect();
            let outcomes = self.searcher.run(&trials)?;
            let fine = |outcome: &Outcome| {
                let (late, slow) = missed(outcome);
                late.max(slow) <= measured / 100
            };
            let holds = outcomes.iter().all(fine);
            if holds || attempt == 3 {
                let figures = |(seed, outcome): (&u64, &Outcome)| {
                    let ttft = outcome.p99(|tally| &tally.ttft, measured);
                    (*seed, ttft, outcome.p99(|tally| &tally.tpot, measured))
                };
                let added = replicas.iter().sum::<u32>() - start.iter().sum::<u32>();
                let seeds = seeds.iter().zip(&outcomes).map(figures).collect();
                plan.verified = Some(Verified { holds, added, seeds, requests: measured });
                break;
            }
            for count in &mut replicas {
                *count += count.div_ceil(100);
            }
        }
        let each = self.question.deployment.tp * self.question.deployment.dp;
        let gpus = replicas.iter().sum::<u32>() * each;
        let target = if plan.splits {
            let three = plan.three.as_mut().filter(|one| one.layout == layout);
            three.or(plan.two.as_mut())
        } else {
            Some(&mut plan.tuned)
        };
        if let Some(Alternative { size: Ok(size), .. }) = target {
            (size.replicas, size.gpus) = (replicas, gpus);
        }
        Ok(())
    }

    /// The answer and the single pools at 30 % less and more, one seed, coarsely.
    fn sensitivity(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("30 % less and more");
        let (factors, seed) = ([0.7, 1.3], self.question.seed);
        let all = [&plan.homogeneous, &plan.tuned, plan.answer()];
        let mut searches = Vec::new();
        for factor in factors {
            let scale = self.scale.times(factor);
            let small = self.scale.rate / self.question.rate * factor;
            for one in all {
                let replicas = one.size.as_ref().map_or(&[][..], |size| &size.replicas);
                let near = replicas.iter().map(|count| (f64::from(*count) * small).ceil() as u32);
                let near: Vec<u32> = near.map(|count| count.max(1)).collect();
                if !near.is_empty() {
                    searches.push(Search::new(&one.layout, scale, seed, &near, COARSE).joint());
                }
            }
        }
        let present = all.map(|one| one.size.is_ok());
        let mut found = self.searcher.all(searches)?.into_iter();
        for factor in factors {
            let mut gpus = present.map(|present| {
                let found = present.then(|| found.next())??;
                found.ok().map(|found| self.gpus(&found.replicas))
            });
            let [homogeneous, tuned, answer] = &mut gpus;
            let (homogeneous, tuned, answer) = (*homogeneous, *tuned, *answer);
            plan.sensitivity.push(AtRate { factor, plan: answer, homogeneous, tuned });
        }
        Ok(())
    }
}
