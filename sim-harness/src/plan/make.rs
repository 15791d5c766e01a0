//! How a plan is made: formulas, then searches, then the checks of `check.rs`.

use std::sync::Arc;

use super::analytic::{Guess, STEP, Sample, guess, table_slots};
use super::answer::{Alternative, Candidate, Plan, Sized};
use super::question::{PlanError, Question, Shape};
use super::search::{Drift, Found, LoadId, Never, Scale, Search, Searcher, Tried};
use super::trial::{Layout, Runner, StepTimes};

/// Settings that are tried: `max_num_seqs` and `max_num_batched_tokens`.
const SEATS: [u32; 5] = [16, 32, 64, 128, 256];
const BATCHED: [u32; 2] = [2_048, 8_192];
/// What a search starts from, and all there is without one: vLLM's own.
const SEATS_DEFAULT: u32 = 256;
const BATCHED_DEFAULT: u32 = 8_192;

/// How near a count comes to the smallest: while candidates are compared, and
/// in the end.
pub(super) const COARSE: f64 = 0.03;
const FINE: f64 = 0.01;
/// Candidates whose pools' settings are searched.
const TUNED: usize = 3;
/// Times that the thresholds of the best split are moved half way to their neighbours.
const NEARER: usize = 2;
/// Splits into a number of pools that are sized with all seeds.
const FINALISTS: usize = 2;

/// What is done next.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// So many stages are behind …
    pub done: u32,
    /// … of so many, some of which may not be needed.
    pub of: u32,
    /// For people who wait.
    pub what: &'a str,
}

fn stages(question: &Question) -> u32 {
    // The needs, one pool, all seeds; each number of pools with estimates and with
    // known lengths; and the three checks.
    let splits = question.pools.saturating_sub(1);
    3 + splits * 2 + if question.effort.verify { 3 } else { 0 }
}

/// Makes a plan. `progress` hears of each stage.
pub fn plan(
    question: Question,
    runner: &mut dyn Runner,
    progress: &mut dyn FnMut(&Stage<'_>),
) -> Result<Plan, PlanError> {
    question.check()?;
    let (mut done, of) = (0, stages(&question));
    let mut progress = |what: &str| {
        progress(&Stage { done, of, what });
        done += 1;
    };
    let progress: &mut dyn FnMut(&str) = &mut progress;
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
    let loads = searcher.loads(&of, &single, ample)?;
    Maker { question, sample, steps, scale, searcher, loads, single, ample, progress }.make()
}

pub(super) struct Maker<'a> {
    pub(super) question: Arc<Question>,
    sample: Sample,
    steps: StepTimes,
    pub(super) scale: Scale,
    pub(super) searcher: Searcher<'a>,
    /// One for each seed.
    loads: Vec<LoadId>,
    /// One pool with vLLM's own settings, and more replicas of it than needed.
    pub(super) single: Layout,
    pub(super) ample: u32,
    pub(super) progress: &'a mut dyn FnMut(&str),
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
        let (mut candidates, mut splits, mut oracles) = (Vec::new(), Vec::new(), Vec::new());
        let (mut known, mut oracle_known) = (Vec::new(), Vec::new());
        for pools in 2..=self.question.pools as usize {
            self.split(pools, &tuned, correction, &mut known)?;
            if let Some(start) = self.oracle_start(&known) {
                self.split(pools, &start, correction, &mut oracle_known)?;
                self.exchange(&mut known, &mut oracle_known, correction)?;
                oracles.extend(oracle_known.iter().cloned());
            }
            candidates.extend(known.iter().map(|one: &Rough| Candidate {
                thresholds: thresholds(&one.layout),
                gpus: one.counts.as_ref().ok().map(|counts| self.gpus(counts)),
            }));
            let Some(split) = self.finals(vec![known.clone()])?.pop().flatten() else { break };
            // What the next threshold is added to.
            known.sort_by_key(|one| one.layout != split.layout);
            splits.push(split);
        }
        oracles.sort_by_key(Rough::sum);
        (self.progress)("all of them with all seeds");
        let finals = vec![vec![homogeneous.clone()], vec![tuned.clone()], oracles];
        let mut sized = self.finals(finals)?.into_iter();
        let (Some(Some(homogeneous)), Some(Some(tuned))) = (sized.next(), sized.next()) else {
            return Err(PlanError::Stopped);
        };
        let oracle = sized.next().flatten();
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
        // The papers' settings are settings too, and more seeds may favour them.
        plan.tune();
        if self.question.effort.verify {
            self.verify(&mut plan)?;
            plan.tune();
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
    fn first(&self) -> Result<LoadId, PlanError> {
        self.loads.first().copied().ok_or(PlanError::Stopped)
    }

    /// About the smallest counts of each layout, with the first seed. Searches
    /// start at what the formulas say, times `correction`.
    fn rough(&mut self, layouts: &[Layout], correction: f64) -> Result<Vec<Rough>, PlanError> {
        let load = self.first()?;
        let mut searches = Vec::new();
        for layout in layouts {
            let guess = self.guess(layout, self.scale.rate)?;
            let counts =
                guess.pools.iter().map(|one| (f64::from(one.queueing) * correction) as u32);
            let (layout, guess) = (layout.clone(), counts.collect());
            searches.push(Search { layout, load, guess, tolerance: COARSE });
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
        let load = self.first()?;
        let settings: Vec<(u32, u32)> =
            SEATS.iter().flat_map(|seats| BATCHED.map(|batched| (*seats, batched))).collect();
        let mut tries = Vec::new();
        for Rough { layout, counts } in &all {
            let Ok(counts) = counts else { continue };
            let few: Vec<u32> = counts.iter().map(|count| (count * 24 / 25).max(1)).collect();
            for (seats, batched) in &settings {
                let shape = |shape: &Shape| Shape { seats: *seats, batched: *batched, ..*shape };
                let shapes = layout.shapes.iter().map(shape).collect();
                tries.push((Layout { shapes, ..layout.clone() }, load, few.clone()));
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
                let order = |(setting, of): &(&(u32, u32), &Tried)| {
                    let missed = of.get(pool).copied().flatten();
                    let missed = missed.map_or(u64::MAX, |missed| missed.late.max(missed.slow));
                    (missed, **setting != own)
                };
                if let Some((&(seats, batched), _)) = settings.iter().zip(of).min_by_key(order) {
                    (shape.seats, shape.batched) = (seats, batched);
                }
            }
            let guess = counts.clone().unwrap_or_default();
            better.push(Search { layout: best, load, guess, tolerance: COARSE });
        }
        let found = self.searcher.all(&better)?;
        let mut found = better.into_iter().zip(found);
        // What misses least a little below is not always what needs least.
        let pick = |one: Rough| {
            if one.counts.is_err() {
                return one;
            }
            let better = found.next().map(|(search, found)| Rough {
                layout: search.layout,
                counts: found.map(|found| found.replicas),
            });
            better.filter(|better| better.sum() <= one.sum()).unwrap_or(one)
        };
        Ok(all.into_iter().map(pick).collect())
    }

    /// Splits into so many pools. Settings start from those of the tuned single pool.
    /// `known` are splits into one pool fewer, first the one to which a threshold is
    /// added, and becomes those that were tried, the best first; nothing if no
    /// threshold divides the requests.
    fn split(
        &mut self,
        pools: usize,
        tuned: &Rough,
        correction: f64,
        known: &mut Vec<Rough>,
    ) -> Result<(), PlanError> {
        let Some(single) = tuned.layout.shapes.first().copied() else { return Ok(()) };
        let base = known.first().map_or_else(|| vec![single], |base| base.layout.shapes.clone());
        let (window, count) = (self.question.window, self.question.effort.thresholds);
        let mut all: Vec<Vec<Shape>> = Vec::new();
        for threshold in self.sample.thresholds(window, count, tuned.layout.oracle) {
            if base.iter().all(|shape| shape.threshold.abs_diff(threshold) > STEP) {
                let mut shapes = base.clone();
                shapes.push(single.smaller(threshold));
                shapes.sort_by_key(|shape| shape.threshold);
                all.push(shapes);
            }
        }
        let by = if tuned.layout.oracle { " with known lengths" } else { "" };
        (self.progress)(&format!("{pools} pools{by}: {} candidates", all.len()));
        let layouts: Vec<Layout> =
            all.into_iter().map(|shapes| Layout { shapes, ..tuned.layout.clone() }).collect();
        *known = self.rough(&layouts, correction)?;
        self.improve(known)?;
        for _ in 0..NEARER {
            let mut more = self.rough(&between(known, window), correction)?;
            self.improve(&mut more)?;
            known.extend(more);
        }
        known.sort_by_key(Rough::sum);
        Ok(())
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

    /// What a search with known lengths starts from: settings of the smallest pool of
    /// the best of these splits, for most requests are there.
    fn oracle_start(&self, splits: &[Rough]) -> Option<Rough> {
        let mut start = splits.iter().min_by_key(|one| one.sum())?.clone();
        start.layout.oracle = true;
        start.layout.shapes.truncate(1);
        let shape = start.layout.shapes.first_mut()?;
        *shape = Shape::largest(self.question.window, shape.seats, shape.batched);
        Some(start)
    }

    /// Splits with estimates and with known lengths: each list gets the best of the other,
    /// for a search finds now this place, now that. Both are the best first.
    fn exchange(
        &mut self,
        known: &mut Vec<Rough>,
        oracle_known: &mut Vec<Rough>,
        correction: f64,
    ) -> Result<(), PlanError> {
        let of = |from: &[Rough], to: &[Rough], oracle| -> Vec<Layout> {
            let few = from.iter().take(FINALISTS).filter(|one| one.counts.is_ok());
            let layouts = few.map(|one| Layout { oracle, ..one.layout.clone() });
            layouts.filter(|layout| to.iter().all(|one| one.layout != *layout)).collect()
        };
        let (truths, estimates) = (of(known, oracle_known, true), of(oracle_known, known, false));
        for (list, layouts) in [(oracle_known, truths), (known, estimates)] {
            list.extend(self.rough(&layouts, correction)?);
            list.sort_by_key(Rough::sum);
        }
        Ok(())
    }

    /// Replicas at the full rate.
    fn full(&self, counts: &[u32]) -> Vec<u32> {
        let factor = self.question.rate / self.scale.rate;
        counts.iter().map(|count| (f64::from(*count) * factor - 1e-9).ceil() as u32).collect()
    }

    /// GPUs of replicas at the scale.
    pub(super) fn gpus(&self, counts: &[u32]) -> u32 {
        self.full(counts).iter().sum::<u32>() * self.each()
    }

    /// GPUs of a replica.
    pub(super) fn each(&self) -> u32 {
        self.question.deployment.tp * self.question.deployment.dp
    }

    /// Of each of these lists the one that needs least, finer and with all seeds,
    /// among its first few; among the next few if none of them holds. What one seed
    /// likes best may be hopeless with another.
    fn finals(
        &mut self,
        mut lists: Vec<Vec<Rough>>,
    ) -> Result<Vec<Option<Alternative>>, PlanError> {
        let mut best: Vec<Option<Alternative>> = vec![None; lists.len()];
        loop {
            let (mut places, mut all) = (Vec::new(), Vec::new());
            for (nth, (list, best)) in lists.iter_mut().zip(&best).enumerate() {
                if best.as_ref().is_none_or(|best| best.size.is_err()) {
                    let few: Vec<Rough> = list.drain(..FINALISTS.min(list.len())).collect();
                    places.extend(few.iter().map(|_| nth));
                    all.extend(few);
                }
            }
            if all.is_empty() {
                return Ok(best);
            }
            for (nth, one) in places.into_iter().zip(self.sizes(&all)?) {
                let Some(best) = best.get_mut(nth) else { continue };
                let gpus = |one: &Alternative| one.gpus().unwrap_or(u32::MAX);
                if best.as_ref().is_none_or(|best| gpus(&one) < gpus(best)) {
                    *best = Some(one);
                }
            }
        }
    }

    /// Finer, and with all seeds: a pool gets the median of what they asked for.
    /// The most would favour whatever varies less.
    fn sizes(&mut self, all: &[Rough]) -> Result<Vec<Alternative>, PlanError> {
        let mut searches = Vec::new();
        for Rough { layout, counts } in all {
            let Ok(counts) = counts else { continue };
            let search = |load: &LoadId| Search {
                layout: layout.clone(),
                load: *load,
                guess: counts.clone(),
                tolerance: FINE,
            };
            searches.extend(self.loads.iter().map(search));
        }
        let mut found = self.searcher.all(&searches)?.into_iter();
        let mut alternatives = Vec::new();
        for Rough { layout, counts } in all {
            let guess = self.guess(layout, self.question.rate)?;
            let size = if let Err(Never(why)) = counts {
                Err(why.clone())
            } else {
                // All of them are taken, whichever fails.
                let of_seeds: Vec<_> = found.by_ref().take(self.loads.len()).collect();
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
}

/// Thresholds of all pools but the largest.
fn thresholds(layout: &Layout) -> Vec<u32> {
    let smaller = layout.shapes.split_last().map_or(&[][..], |(_, smaller)| smaller);
    smaller.iter().map(|shape| shape.threshold).collect()
}

/// The best of these splits with each of its thresholds moved half way to what was
/// tried next to it; no two thresholds become one. `window` is the largest pool's.
fn between(known: &[Rough], window: u32) -> Vec<Layout> {
    let Some(best) = known.iter().min_by_key(|one| one.sum()) else { return Vec::new() };
    let own = thresholds(&best.layout);
    let tried: Vec<u32> = known.iter().flat_map(|one| thresholds(&one.layout)).collect();
    let mut all = Vec::new();
    for (nth, threshold) in own.iter().enumerate() {
        let below = tried.iter().filter(|other| *other < threshold).max();
        let above = tried.iter().filter(|other| *other > threshold).min();
        for other in below.into_iter().chain(above) {
            let middle = other.midpoint(*threshold).next_multiple_of(STEP);
            let mut layout = best.layout.clone();
            if !own.contains(&middle)
                && let Some(shape) = layout.shapes.get_mut(nth)
            {
                *shape = Shape { window, ..*shape }.smaller(middle);
                all.push(layout);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(own: &[u32], replicas: u32) -> Rough {
        let largest = Shape::largest(65_536, 64, 2_048);
        let mut shapes: Vec<Shape> = own.iter().map(|one| largest.smaller(*one)).collect();
        shapes.push(largest);
        Rough { layout: Layout { shapes, reserve: 1, oracle: false }, counts: Ok(vec![replicas]) }
    }

    #[test]
    fn thresholds_move_half_way_to_what_was_tried_next_to_them() {
        let moved = |known: &[Rough]| -> Vec<Vec<u32>> {
            let all = between(known, 65_536);
            assert!(all.iter().all(|one| one.shapes.iter().all(|shape| shape.seats == 64)));
            all.iter().map(thresholds).collect()
        };
        let mut known = vec![split(&[1_024], 9), split(&[2_048], 8), split(&[8_192], 12)];
        assert_eq!(moved(&known), [[1_536], [5_120]]);
        let window = between(&known, 65_536)[0].shapes[0].window;
        assert_eq!(window, split(&[1_536], 0).layout.shapes[0].window);
        // Nearer the next time, from the best by then.
        known.push(split(&[1_536], 7));
        assert_eq!(moved(&known), [[1_280], [1_792]]);
        // Between two that are one step apart there is nothing; nor is anything below
        // the first that was tried, or above the last.
        let two = [split(&[1_024, 1_152], 5), split(&[1_024, 4_096], 9)];
        assert_eq!(moved(&two), [[1_024, 2_688]]);
        assert!(moved(&[split(&[1_024], 5)]).is_empty() && moved(&[]).is_empty());
    }
}
