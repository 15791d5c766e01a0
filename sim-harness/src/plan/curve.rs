//! How many requests a pool misses with so many replicas, from what was
//! simulated so far; and the smallest counts that several pools need together.

use std::collections::BTreeMap;

/// How fast misses fall between counts that were not simulated: the slope of
/// their logarithms. With a tenth more replicas about a third of the misses goes.
const SLOPE: f64 = -4.5;
/// No two points make a line steeper than this.
const STEEPEST: f64 = -30.0;

/// What a pool missed with one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// First tokens after the promise, of what counts.
    pub(super) late: u64,
    /// Answers slower than the promise.
    pub(super) slow: u64,
}

impl Missed {
    fn both(self) -> [u64; 2] {
        [self.late, self.slow]
    }
}

/// One pool with one setting. Misses fall as replicas rise: where a larger count
/// missed more it was chance, and what the smaller one missed is taken for both.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Requests of the pool that count.
    requests: u64,
    points: BTreeMap<u32, Missed>,
}

impl Curve {
    pub(super) fn learn(&mut self, count: u32, requests: u64, missed: Missed) {
        self.requests = requests;
        self.points.insert(count, missed);
    }

    pub(super) fn knows(&self, count: u32) -> bool {
        self.points.contains_key(&count)
    }

    /// No request of the pool counts.
    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn most(&self) -> Option<u32> {
        self.points.last_key_value().map(|(count, _)| *count)
    }

    /// Larger counts that were simulated.
    fn beyond(&self, count: u32) -> impl Iterator<Item = u32> {
        self.points.range(count + 1..).map(|(count, _)| *count)
    }

    /// Late and slow ones with so many replicas, as far as is known.
    fn at(&self, count: u32) -> [f64; 2] {
        [0, 1].map(|which| self.estimate(count, which).min(self.requests as f64))
    }

    fn estimate(&self, count: u32, which: usize) -> f64 {
        let misses = |missed: &Missed| missed.both().get(which).copied().unwrap_or(0) as f64;
        let log = |misses: f64| libm::log(misses + 0.5);
        let x = |count: u32| libm::log(f64::from(count.max(1)));
        let mut least = f64::INFINITY;
        let (mut below, mut before, mut above) = (None, None, None);
        for (at, missed) in &self.points {
            least = least.min(misses(missed));
            if *at == count {
                return least;
            }
            if *at < count {
                (before, below) = (below, Some((*at, least)));
            } else {
                above = Some((*at, least));
                break;
            }
        }
        let line = |(at, value): (u32, f64), slope: f64| {
            (libm::exp(log(value) + slope * (x(count) - x(at))) - 0.5).max(0.0)
        };
        let between = |(a, ya): (u32, f64), (b, yb): (u32, f64)| {
            ((log(yb) - log(ya)) / (x(b) - x(a))).clamp(STEEPEST, 0.0)
        };
        match (before, below, above) {
            (_, Some(low), Some(high)) => line(low, between(low, high)),
            // Nothing missed says little of how few would do: it is tried.
            (_, None, Some((at, 0.0))) => line((at - (at / 4).max(1).min(at - 1), 0.0), SLOPE),
            (_, None, Some(high)) => line(high, SLOPE),
            // A floor shows as two points on one level.
            (Some(first), Some(last), None) => line(last, between(first, last).max(2.0 * SLOPE)),
            (None, Some(last), None) => line(last, SLOPE),
            (_, None, None) => 0.0,
        }
    }
}

/// What pools may miss.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissBudget {
    /// Of all requests together, late ones and slow ones each.
    pub(super) all: u64,
    /// Of the requests of each pool, one in so many: else a small pool could be
    /// given up for the others' sake.
    pub(super) own: u64,
}

impl MissBudget {
    fn own(self, curve: &Curve) -> f64 {
        (curve.requests / self.own.max(1)).max(1) as f64
    }

    fn over(self, misses: [f64; 2]) -> f64 {
        misses.iter().map(|misses| (misses - self.all as f64).max(0.0)).sum()
    }

    fn holds(self, curves: &[&Curve], misses: &[[f64; 2]]) -> bool {
        let own = curves.iter().zip(misses);
        self.over(sum(misses)) <= 0.0
            && own.into_iter().all(|(curve, m)| m.iter().all(|m| *m <= self.own(curve)))
    }

    /// The smallest counts that are expected to hold; nothing where more replicas
    /// do not help, as far as is known.
    pub(super) fn share(self, curves: &[&Curve]) -> Option<Vec<u32>> {
        let mut counts = Vec::new();
        for curve in curves {
            let most = curve.most()?.saturating_mul(64);
            let alone = |count| curve.at(count).iter().all(|misses| *misses <= self.own(curve));
            // Halves: misses fall.
            let (mut low, mut high) = (0, most.max(1));
            if !alone(high) {
                return None;
            }
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if alone(middle) { high = middle } else { low = middle }
            }
            counts.push(high);
        }
        let mut misses: Vec<[f64; 2]> = curves.iter().zip(&counts).map(|(c, n)| c.at(*n)).collect();
        let last: Vec<u32> = curves.iter().map(|c| c.most().unwrap_or(1).max(1) * 64).collect();
        // A replica at a time, where it helps most: misses are convex.
        while self.over(sum(&misses)) > 0.0 {
            let now = self.over(sum(&misses));
            let gain = |nth: usize, to: u32| -> Option<(f64, usize, u32, [f64; 2])> {
                let more = curves.get(nth)?.at(to);
                let mut with = misses.clone();
                *with.get_mut(nth)? = more;
                let step = to - *counts.get(nth)?;
                let gain = (now - self.over(sum(&with))) / f64::from(step);
                (to <= *last.get(nth)?).then_some((gain, nth, to, more))
            };
            let next = |nth: usize| {
                let (curve, count) = (curves.get(nth)?, *counts.get(nth)?);
                // Runs that were ended early look level, and chance does: what comes
                // behind counts.
                let beyond = curve.beyond(count).filter_map(|to| gain(nth, to));
                let near = gain(nth, count + (count / 200).max(1));
                near.into_iter().chain(beyond).max_by(|a, b| a.0.total_cmp(&b.0))
            };
            let best = (0..curves.len()).filter_map(next).max_by(|a, b| a.0.total_cmp(&b.0));
            let (gain, nth, count, more) = best?;
            if gain <= 1e-9 {
                return None;
            }
            if let (Some(slot), Some(missed)) = (counts.get_mut(nth), misses.get_mut(nth)) {
                (*slot, *missed) = (count, more);
            }
        }
        // The last step may have gone too far.
        for nth in 0..counts.len() {
            let Some(curve) = curves.get(nth) else { continue };
            while let Some(count) = counts.get(nth).copied().filter(|count| *count > 1) {
                let mut with = misses.clone();
                if let Some(slot) = with.get_mut(nth) {
                    *slot = curve.at(count - 1);
                }
                if !self.holds(curves, &with) {
                    break;
                }
                if let Some(slot) = counts.get_mut(nth) {
                    *slot = count - 1;
                }
                misses = with;
            }
        }
        Some(counts)
    }

    /// The smallest counts that were seen to hold.
    pub(super) fn seen(self, curves: &[&Curve]) -> Option<Vec<u32>> {
        let mut best: Option<Vec<u32>> = None;
        self.combine(curves, &mut Vec::new(), &mut Vec::new(), &mut best);
        best
    }

    fn combine(
        self,
        curves: &[&Curve],
        counts: &mut Vec<u32>,
        misses: &mut Vec<[f64; 2]>,
        best: &mut Option<Vec<u32>>,
    ) {
        let Some(curve) = curves.get(counts.len()) else {
            let fewer = |best: &Vec<u32>| counts.iter().sum::<u32>() < best.iter().sum();
            if self.holds(curves, misses) && best.as_ref().is_none_or(fewer) {
                *best = Some(counts.clone());
            }
            return;
        };
        for count in curve.points.keys() {
            let missed = curve.at(*count);
            if missed.iter().any(|misses| *misses > self.own(curve)) {
                continue;
            }
            counts.push(*count);
            misses.push(missed);
            self.combine(curves, counts, misses, best);
            counts.pop();
            misses.pop();
        }
    }
}

fn sum(misses: &[[f64; 2]]) -> [f64; 2] {
    misses.iter().fold([0.0; 2], |[a, b], [late, slow]| [a + late, b + slow])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misses by a law, so that the best counts are known by trying all.
    fn law(count: u32, need: f64, requests: u64) -> Missed {
        let late = requests as f64 * libm::pow(need / f64::from(count), 8.0);
        Missed { late: late.min(requests as f64) as u64, slow: late as u64 / 2 }
    }

    /// Whatever the first guesses are, asking for what is expected and learning
    /// what is leads to the smallest counts, or near.
    #[test]
    fn shares_become_the_smallest_counts() {
        let pools = [(40.0, 9_000_u64), (7.0, 2_500), (11.0, 500)];
        let budget = MissBudget { all: 120, own: 20 };
        for guess in [0.3, 1.0, 4.0] {
            let mut curves: Vec<Curve> = vec![Curve::default(); pools.len()];
            let ask = |curves: &mut Vec<Curve>, counts: &[u32]| {
                for ((curve, count), (need, all)) in curves.iter_mut().zip(counts).zip(pools) {
                    curve.learn(*count, all, law(*count, need, all));
                }
            };
            let first: Vec<u32> = pools.iter().map(|(need, _)| (need * guess) as u32 + 1).collect();
            ask(&mut curves, &first);
            let mut rounds = 0;
            let found = loop {
                let all: Vec<&Curve> = curves.iter().collect();
                let counts = budget.share(&all).unwrap();
                if all.iter().zip(&counts).all(|(curve, count)| curve.knows(*count)) {
                    break counts;
                }
                ask(&mut curves, &counts);
                rounds += 1;
                assert!(rounds < 15, "{guess}: {counts:?}");
            };
            let misses = |counts: &[u32]| -> u64 {
                let all = counts.iter().zip(pools);
                all.map(|(count, (need, all))| law(*count, need, all).late).sum()
            };
            assert!(misses(&found) <= 120);
            let mut best = u32::MAX;
            for a in 20..120 {
                for b in 4..40 {
                    for c in 4..40 {
                        let own = [(a, 0), (b, 1), (c, 2)].iter().all(|(count, nth)| {
                            let (need, all): (f64, u64) = pools[*nth];
                            law(*count, need, all).late <= all / 20
                        });
                        if own && misses(&[a, b, c]) <= 120 {
                            best = best.min(a + b + c);
                        }
                    }
                }
            }
            let sum: u32 = found.iter().sum();
            assert!(sum >= best && sum <= best + 1, "{guess}: {found:?}, {best}");
            let all: Vec<&Curve> = curves.iter().collect();
            assert_eq!(budget.seen(&all).map(|seen| seen.iter().sum()), Some(sum));
        }
    }

    /// Two runs that were ended early have missed as many when they were.
    #[test]
    fn a_level_that_ends_is_no_floor() {
        let mut curve = Curve::default();
        for (count, late) in [(400, 300), (440, 489), (480, 489), (880, 0)] {
            curve.learn(count, 12_000, Missed { late, slow: 0 });
        }
        let counts = MissBudget { all: 120, own: 20 }.share(&[&curve]).unwrap();
        assert!((481..700).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn chance_does_not_make_more_replicas_worse_nor_few_requests_dear() {
        let missed = |late| Missed { late, slow: 0 };
        let mut curve = Curve::default();
        curve.learn(10, 1_000, missed(5));
        curve.learn(12, 1_000, missed(30));
        assert_eq!(curve.at(12), [5.0, 0.0]);
        // Nobody missed anything with two: one is tried before two are taken.
        let mut curve = Curve::default();
        curve.learn(2, 19, missed(0));
        assert_eq!(MissBudget { all: 5, own: 20 }.share(&[&curve]), Some(vec![1]));
    }

    #[test]
    fn a_floor_above_the_budget_is_told() {
        let mut curve = Curve::default();
        curve.learn(10, 1_000, Missed { late: 40, slow: 0 });
        let budget = MissBudget { all: 10, own: 20 };
        assert!(budget.share(&[&curve]).is_some());
        curve.learn(20, 1_000, Missed { late: 40, slow: 0 });
        assert_eq!((budget.share(&[&curve]), budget.seen(&[&curve])), (None, None));
    }
}
