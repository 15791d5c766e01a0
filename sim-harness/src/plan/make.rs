//! How a plan is made: formulas, then searches, then checks.

use std::sync::Arc;

use super::analytic::{Guess, STEP, Sample, guess, table_slots};
use super::answer::{Alternative, AtRate, Candidate, Drifted, Plan, Sized, Verified};
use super::question::{PlanError, Question, Shape};
use super::search::{Drift, Found, Never, Scale, Search, Searcher, World, missed};
use super::trial::{Layout, Outcome, Runner, StepTimes, Trial};

/// Settings that are tried: `max_num_seqs` and `max_num_batched_tokens`.
const SEATS: [u32; 5] = [16, 32, 64, 128, 256];
const BATCHED: [u32; 2] = [2_048, 8_192];
/// What a search starts from, and all there is without one: vLLM's own.
const SEATS_DEFAULT: u32 = 256;
const BATCHED_DEFAULT: u32 = 8_192;

/// How near a count comes to the smallest: while candidates are compared, and
/// in the end.
const COARSE: f64 = 0.03;
const FINE: f64 = 0.01;
/// Candidates whose pools' settings are searched.
const TUNED: usize = 3;

/// Makes a plan. `progress` hears what is done next, for people who wait.
pub fn plan(
    question: Question,
    runner: &mut dyn Runner,
    progress: &mut dyn FnMut(&str),
) -> Result<Plan, PlanError> {
    question.check()?;
    let question = Arc::new(question);
    let sample = Sample::new(&question);
    let mut steps = StepTimes::default();
    let start = Shape::largest(question.window, SEATS_DEFAULT, BATCHED_DEFAULT);
    let single = Layout { shapes: vec![start], reserve: sample.reserve, oracle: false };
    let first = guess(&question, &sample, &single, question.rate, &mut steps)?;
    let (mean, long) = sample.outputs();
    // The pace of the papers' slots: it does not depend on the promise, so that a
    // looser one is simulated at the same scale.
    let pace = |pool: &super::PoolGuess| f64::from(pool.table_slots) / (pool.table_rate * mean);
    let pace = first.pools.first().map_or(0.0, pace);
    let scale = Scale::new(question.rate, question.effort.requests, mean * pace, long * pace);
    let mut searcher = Searcher::new(Arc::clone(&question), runner);
    (progress)("what the gate takes each request for");
    // Ample: who queues teaches late.
    let ample = guess(&question, &sample, &single, scale.rate, &mut steps)?.queueing() * 3;
    let seeds = (0..question.effort.seeds).map(|nth| question.seed.wrapping_add(nth));
    let of: Vec<_> = seeds.map(|seed| (scale, seed, Drift::NONE)).collect();
    let worlds = searcher.worlds(&of, &single, ample)?;
    Maker { question, sample, steps, scale, searcher, worlds, single, ample, progress }.make()
}

struct Maker<'a> {
    question: Arc<Question>,
    sample: Sample,
    steps: StepTimes,
    scale: Scale,
    searcher: Searcher<'a>,
    /// One for each seed.
    worlds: Vec<World>,
    /// One pool with vLLM's own settings, and more replicas of it than needed.
    single: Layout,
    ample: u32,
    progress: &'a mut dyn FnMut(&str),
}

/// A layout, and counts near its smallest, at the scale; or why there are none.
#[derive(Clone)]
struct Rough {
    layout: Layout,
    counts: Result<Vec<u32>, Never>,
}

impl Rough {
    fn sum(&self) -> u32 {
        self.counts.as_ref().map_or(u32::MAX, |counts| counts.iter().sum())
    }
}

impl Maker<'_> {
    fn make(mut self) -> Result<Plan, PlanError> {
        let window = self.question.window;
        (self.progress)("one pool: the papers' settings, and tuned ones");
        let papers = Shape::largest(window, table_slots(window), BATCHED_DEFAULT);
        let papers = Layout { shapes: vec![papers], ..self.single.clone() };
        let single = self.single.clone();
        let rough = self.rough(&[papers, single.clone()], 1.0)?;
        let [homogeneous, start] = &rough[..] else { return Err(PlanError::Stopped) };
        let correction =
            f64::from(start.sum().min(self.ample * 4)) / f64::from(self.queueing(&single)?.max(1));
        // The papers' settings are settings too.
        let best = if homogeneous.sum() < start.sum() { homogeneous } else { start };
        let tuned = self.tuned(vec![best.clone()])?.pop().ok_or(PlanError::Stopped)?;
        let mut candidates = Vec::new();
        let mut all = vec![homogeneous.clone(), tuned.clone()];
        let mut known = Vec::new();
        for pools in 2..=self.question.pools as usize {
            let split = self.split(pools, &tuned, correction, &mut known)?;
            candidates.extend(known.iter().map(|one: &Rough| Candidate {
                thresholds: thresholds(&one.layout),
                gpus: one.counts.as_ref().ok().map(|counts| self.gpus(counts)),
            }));
            all.extend(split);
        }
        let best = all.iter().skip(2).min_by_key(|one| one.sum()).cloned();
        if let Some(best) = best.filter(|best| best.counts.is_ok()) {
            (self.progress)("pools with known lengths");
            all.extend(self.oracle(&best, correction)?);
        }
        (self.progress)("all of them with all seeds");
        let mut sized = self.sizes(&all)?.into_iter();
        let (Some(homogeneous), Some(tuned)) = (sized.next(), sized.next()) else {
            return Err(PlanError::Stopped);
        };
        let rest: Vec<Alternative> = sized.collect();
        let oracle = rest.iter().find(|one| one.layout.oracle).cloned();
        let splits: Vec<Alternative> = rest.into_iter().filter(|one| !one.layout.oracle).collect();
        candidates.sort_by(|a, b| {
            (a.thresholds.len(), &a.thresholds).cmp(&(b.thresholds.len(), &b.thresholds))
        });
        candidates.dedup_by(|a, b| a.thresholds == b.thresholds);
        let mut plan = Plan {
            kv_tokens: self.question.kv_tokens(Shape::largest(window, 256, 8_192)).1,
            totals: self.totals(),
            question: (*self.question).clone(),
            scale: self.scale,
            homogeneous,
            tuned,
            pools: splits,
            oracle,
            candidates,
            splits: false,
            verified: Vec::new(),
            sensitivity: Vec::new(),
            drift: Vec::new(),
            runs: (0, 0),
        };
        if self.question.effort.verify {
            self.verify(&mut plan)?;
        }
        plan.splits = match (plan.split().and_then(Alternative::gpus), plan.tuned.gpus()) {
            (Some(split), Some(one)) => split < one,
            (split, _) => split.is_some(),
        };
        if self.question.effort.verify {
            self.sensitivity(&mut plan)?;
            self.drift(&mut plan)?;
        }
        plan.runs = (self.searcher.runs, self.searcher.requests);
        Ok(plan)
    }

    fn totals(&self) -> [u32; 4] {
        let mut totals: Vec<u32> =
            self.sample.all.iter().map(|one| one.input.saturating_add(one.output)).collect();
        totals.sort_unstable();
        [0.5, 0.9, 0.99, 1.0].map(|share: f64| {
            let at = (share * totals.len() as f64).ceil() as usize;
            totals.get(at.max(1) - 1).copied().unwrap_or(0)
        })
    }

    fn guess(&mut self, layout: &Layout, rate: f64) -> Result<Guess, PlanError> {
        guess(&self.question, &self.sample, layout, rate, &mut self.steps)
    }

    fn queueing(&mut self, layout: &Layout) -> Result<u32, PlanError> {
        Ok(self.guess(layout, self.scale.rate)?.queueing())
    }

    /// The load that candidates are compared on.
    fn first(&self) -> Result<World, PlanError> {
        self.worlds.first().copied().ok_or(PlanError::Stopped)
    }

    /// About the smallest counts of each layout, with the first seed. Searches
    /// start at what the formulas say, times `correction`.
    fn rough(&mut self, layouts: &[Layout], correction: f64) -> Result<Vec<Rough>, PlanError> {
        let world = self.first()?;
        let mut searches = Vec::new();
        for layout in layouts {
            let guess = self.guess(layout, self.scale.rate)?;
            let counts =
                guess.pools.iter().map(|one| (f64::from(one.queueing) * correction) as u32);
            let (layout, guess) = (layout.clone(), counts.collect());
            searches.push(Search { layout, world, guess, tolerance: COARSE });
        }
        let found = self.searcher.all(&searches)?;
        let rough = |(search, found): (Search, Result<Found, Never>)| Rough {
            layout: search.layout,
            counts: found.map(|found| found.replicas),
        };
        Ok(searches.into_iter().zip(found).map(rough).collect())
    }

    /// Each layout with the settings with which a little too few replicas miss
    /// least, each pool on its own; the layout itself if those need more.
    fn tuned(&mut self, all: Vec<Rough>) -> Result<Vec<Rough>, PlanError> {
        if !self.question.effort.tune {
            return Ok(all);
        }
        let world = self.first()?;
        let settings: Vec<(u32, u32)> =
            SEATS.iter().flat_map(|seats| BATCHED.map(|batched| (*seats, batched))).collect();
        let mut tries = Vec::new();
        for Rough { layout, counts } in &all {
            let Ok(counts) = counts else { continue };
            let few: Vec<u32> = counts.iter().map(|count| (count * 24 / 25).max(1)).collect();
            for (seats, batched) in &settings {
                let shape = |shape: &Shape| Shape { seats: *seats, batched: *batched, ..*shape };
                let shapes = layout.shapes.iter().map(shape).collect();
                tries.push((Layout { shapes, ..layout.clone() }, world, few.clone()));
            }
        }
        let misses = self.searcher.try_all(&tries)?;
        let mut misses = misses.chunks(settings.len());
        let mut better = Vec::new();
        for Rough { layout, counts } in &all {
            if counts.is_err() {
                continue;
            }
            let of = misses.next().unwrap_or_default();
            let mut best = layout.clone();
            for (pool, shape) in best.shapes.iter_mut().enumerate() {
                let own = (shape.seats, shape.batched);
                // Of equals the setting that there was.
                let order = |(setting, of): &(&(u32, u32), &Vec<Option<(u64, u64)>>)| {
                    let missed = of.get(pool).copied().flatten();
                    let missed = missed.map_or(u64::MAX, |(late, slow)| late.max(slow));
                    (missed, **setting != own)
                };
                if let Some((&(seats, batched), _)) = settings.iter().zip(of).min_by_key(order) {
                    (shape.seats, shape.batched) = (seats, batched);
                }
            }
            let guess = counts.clone().unwrap_or_default();
            better.push(Search { layout: best, world, guess, tolerance: COARSE });
        }
        let found = self.searcher.all(&better)?;
        let mut found = better.into_iter().zip(found);
        // What misses least a little below is not always what needs least.
        let pick = |one: Rough| match one.counts {
            Err(_) => one,
            Ok(_) => {
                let better = found.next().map(|(search, found)| Rough {
                    layout: search.layout,
                    counts: found.map(|found| found.replicas),
                });
                better.filter(|better| better.sum() <= one.sum()).unwrap_or(one)
            }
        };
        Ok(all.into_iter().map(pick).collect())
    }

    /// The best split into so many pools; nothing if no threshold divides the
    /// requests. Settings start from those of the tuned single pool. `known` are
    /// splits into one pool fewer, and becomes those that were tried.
    fn split(
        &mut self,
        pools: usize,
        tuned: &Rough,
        correction: f64,
        known: &mut Vec<Rough>,
    ) -> Result<Option<Rough>, PlanError> {
        let Some(single) = tuned.layout.shapes.first().copied() else { return Ok(None) };
        let all: Vec<Vec<Shape>> = if pools == 2 {
            let (window, count) = (self.question.window, self.question.effort.thresholds);
            let thresholds = self.sample.thresholds(window, count, tuned.layout.oracle);
            thresholds.iter().map(|one| vec![single.smaller(*one), single]).collect()
        } else {
            // One threshold more in the best of those with one fewer.
            known.sort_by_key(Rough::sum);
            let mut all: Vec<Vec<Shape>> = Vec::new();
            let extra: Vec<u32> =
                known.iter().flat_map(|one| thresholds(&one.layout)).take(12).collect();
            for one in known.iter().take(2) {
                for threshold in &extra {
                    let mut shapes = one.layout.shapes.clone();
                    if shapes.iter().all(|shape| shape.threshold.abs_diff(*threshold) > STEP) {
                        shapes.push(single.smaller(*threshold));
                        shapes.sort_by_key(|shape| shape.threshold);
                        all.push(shapes);
                    }
                }
            }
            all.sort();
            all.dedup();
            all
        };
        (self.progress)(&format!("{pools} pools: {} candidates", all.len()));
        let layouts: Vec<Layout> =
            all.into_iter().map(|shapes| Layout { shapes, ..tuned.layout.clone() }).collect();
        *known = self.rough(&layouts, correction)?;
        self.improve(known)?;
        if pools == 2 {
            let between = self.between(known);
            let mut more = self.rough(&between, correction)?;
            self.improve(&mut more)?;
            known.extend(more);
        }
        Ok(known.iter().min_by_key(|one| one.sum()).cloned())
    }

    /// Searches settings of the few best.
    fn improve(&mut self, all: &mut Vec<Rough>) -> Result<(), PlanError> {
        all.sort_by_key(Rough::sum);
        let rest = all.split_off(TUNED.min(all.len()));
        *all = self.tuned(std::mem::take(all))?;
        all.extend(rest);
        all.sort_by_key(Rough::sum);
        Ok(())
    }

    /// Thresholds between the best one and its neighbours, with its settings.
    fn between(&self, known: &[Rough]) -> Vec<Layout> {
        let Some(best) = known.iter().min_by_key(|one| one.sum()) else { return Vec::new() };
        let [small, _] = best.layout.shapes[..] else { return Vec::new() };
        let all = known.iter().flat_map(|one| thresholds(&one.layout));
        let others: Vec<u32> = all.filter(|one| *one != small.threshold).collect();
        let below = others.iter().filter(|one| **one < small.threshold).max();
        let above = others.iter().filter(|one| **one > small.threshold).min();
        let largest = Shape { window: self.question.window, ..small };
        let layout = |other: &u32| {
            let threshold = other.midpoint(small.threshold).next_multiple_of(STEP);
            let mut layout = best.layout.clone();
            let shape = layout.shapes.first_mut()?;
            *shape = largest.smaller(threshold);
            let new = threshold != *other && threshold != small.threshold;
            new.then_some(layout)
        };
        below.into_iter().chain(above).filter_map(layout).collect()
    }

    /// The best split with known lengths, into as many pools as the best without.
    /// It starts from the settings of that one.
    fn oracle(&mut self, best: &Rough, correction: f64) -> Result<Option<Rough>, PlanError> {
        let mut start = best.clone();
        start.layout.oracle = true;
        // Settings of the smallest pool: most requests are there.
        start.layout.shapes.truncate(1);
        if let Some(shape) = start.layout.shapes.first_mut() {
            let window = self.question.window;
            *shape = Shape::largest(window, shape.seats, shape.batched);
        }
        let (mut known, mut found) = (Vec::new(), None);
        for pools in 2..=best.layout.shapes.len() {
            found = self.split(pools, &start, correction, &mut known)?;
        }
        Ok(found)
    }

    /// Replicas at the full rate.
    fn full(&self, counts: &[u32]) -> Vec<u32> {
        let factor = self.question.rate / self.scale.rate;
        counts.iter().map(|count| (f64::from(*count) * factor - 1e-9).ceil() as u32).collect()
    }

    /// GPUs of replicas at the scale.
    fn gpus(&self, counts: &[u32]) -> u32 {
        self.full(counts).iter().sum::<u32>() * self.each()
    }

    /// GPUs of a replica.
    fn each(&self) -> u32 {
        self.question.deployment.tp * self.question.deployment.dp
    }

    /// Finer, and with all seeds: a pool gets the median of what they asked for.
    /// The most would favour whatever varies less.
    fn sizes(&mut self, all: &[Rough]) -> Result<Vec<Alternative>, PlanError> {
        let mut searches = Vec::new();
        for Rough { layout, counts } in all {
            let Ok(counts) = counts else { continue };
            let search = |world: &World| Search {
                layout: layout.clone(),
                world: *world,
                guess: counts.clone(),
                tolerance: FINE,
            };
            searches.extend(self.worlds.iter().map(search));
        }
        let mut found = self.searcher.all(&searches)?.into_iter();
        let mut alternatives = Vec::new();
        for Rough { layout, counts } in all {
            let guess = self.guess(layout, self.question.rate)?;
            let size = if let Err(Never(why)) = counts {
                Err(why.clone())
            } else {
                // All of them are taken, whichever fails.
                let of_seeds: Vec<_> = found.by_ref().take(self.worlds.len()).collect();
                let of_seeds: Result<Vec<Found>, Never> = of_seeds.into_iter().collect();
                of_seeds.map(|all| self.sized(&all)).map_err(|Never(why)| why)
            };
            alternatives.push(Alternative { layout: layout.clone(), size, guess });
        }
        Ok(alternatives)
    }

    fn sized(&self, all: &[Found]) -> Sized {
        let measured = self.scale.requests().measured;
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
        let outcome = all.first().map(|one| one.outcome.clone()).unwrap_or_default();
        let mut size = Sized {
            replicas: self.full(&replicas),
            gpus: self.gpus(&replicas),
            spread,
            ..Sized::default()
        };
        size.shows(&outcome, measured);
        size
    }

    /// The load at the full rate, in a window that costs as much.
    fn whole(&self) -> Scale {
        let window =
            self.scale.window.min(self.scale.window * self.scale.rate / self.question.rate);
        Scale { rate: self.question.rate, window: window.max(5.0), ..self.scale }
    }

    /// Runs all alternatives at the full rate with all seeds, whole fleets behind
    /// the gate. Where one fails, a hundredth is added to each pool, a few times.
    fn verify(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("all of them at the full rate");
        let scale = self.whole();
        let measured = scale.requests().measured;
        let seeds: Vec<u64> = (0..self.question.effort.seeds)
            .map(|nth| self.question.seed.wrapping_add(nth))
            .collect();
        let each = self.each();
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
                let of = (scale.rate, scale.requests());
                let trial =
                    |seed: &u64| Trial::fleet(&self.question, layout, of, *seed, &size.replicas);
                trials.extend(seeds.iter().map(trial));
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

    /// Searches of these in other worlds, coarsely; GPUs of each world's, in order.
    fn elsewhere(
        &mut self,
        plan: &Plan,
        worlds: &[(World, f64)],
    ) -> Result<Vec<[Option<u32>; 3]>, PlanError> {
        let all = [&plan.homogeneous, &plan.tuned, plan.answer()];
        let small = self.scale.rate / self.question.rate;
        let mut searches = Vec::new();
        for (world, times) in worlds {
            for one in all {
                let Ok(size) = &one.size else { continue };
                let near = size.replicas.iter().map(|n| (f64::from(*n) * small * times).ceil());
                let guess = near.map(|count| (count as u32).max(1)).collect();
                let layout = one.layout.clone();
                searches.push(Search { layout, world: *world, guess, tolerance: COARSE });
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
        Ok(worlds.iter().map(gpus).collect())
    }

    /// The answer and the single pools at other rates, one seed, coarsely.
    fn sensitivity(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("at other rates");
        let factors = self.question.effort.rates.clone();
        let seed = self.question.seed;
        let of = |factor: &f64| (self.scale.times(*factor), seed, Drift::NONE);
        let of: Vec<_> = factors.iter().map(of).collect();
        let ample = factors.first().map_or(1.0, |first| f64::from(self.ample) * first);
        let single = self.single.clone();
        let worlds = self.searcher.worlds(&of, &single, ample.ceil() as u32)?;
        let worlds: Vec<(World, f64)> = worlds.into_iter().zip(factors).collect();
        let gpus = self.elsewhere(plan, &worlds)?;
        plan.sensitivity = worlds
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
    fn drift(&mut self, plan: &mut Plan) -> Result<(), PlanError> {
        (self.progress)("with other lengths");
        const DRIFTS: [(&str, Drift); 3] = [
            ("prompts a quarter longer", Drift { prompt: 1.25, output: 1.0 }),
            ("answers a quarter longer", Drift { prompt: 1.0, output: 1.25 }),
            ("both a quarter shorter", Drift { prompt: 0.75, output: 0.75 }),
        ];
        let of: Vec<_> =
            DRIFTS.iter().map(|(_, drift)| (self.scale, self.question.seed, *drift)).collect();
        let (single, ample) = (self.single.clone(), self.ample);
        let worlds = self.searcher.worlds(&of, &single, ample * 5 / 4)?;
        let worlds: Vec<(World, f64)> = worlds.into_iter().map(|world| (world, 1.0)).collect();
        let gpus = self.elsewhere(plan, &worlds)?;
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

/// Thresholds of all pools but the largest.
fn thresholds(layout: &Layout) -> Vec<u32> {
    let smaller = layout.shapes.split_last().map_or(&[][..], |(_, smaller)| smaller);
    smaller.iter().map(|shape| shape.threshold).collect()
}
