//! When a pool sends elsewhere what another one can take, and how its threshold
//! follows the load.
//!
//! A pool's *pressure* is the fullest of what it has so much of: tokens in flight
//! or open requests, in thousandths of its capacity, or what its engines report
//! ([`super::report`]) if that is more. Over 1000, its engines queue.
//! It starts to spill at one mark and stops at a lower one, and stays for a while
//! in either state: without both, all traffic would swing from pool to pool.

use super::{Budget, Reading};
use crate::config::{Model, Pool};
use crate::time::{Instant, Span};
use std::sync::Arc;

/// When a pool spills. Marks are pressures, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillLaw {
    /// From here on it does …
    pub enter: u64,
    /// … until it is down here, below `enter`.
    pub leave: u64,
    /// It stays in either state at least so long.
    pub dwell: Span,
}

/// Between which tokens a threshold may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThresholdRange {
    /// The lowest, at least 1.
    pub min: u64,
    /// The highest, at most the pool's `max_model_len`.
    pub max: u64,
}

/// Whether a pool spills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spill {
    on: bool,
    since: Option<Instant>,
    changes: u64,
}

impl Spill {
    /// Takes a look at the pressure.
    pub fn observe(&mut self, law: &SpillLaw, now: Instant, pressure: u64) {
        let wants = if self.on { pressure > law.leave } else { pressure >= law.enter };
        let settled = self.since.is_none_or(|since| now.since(since) >= law.dwell);
        if wants != self.on && settled {
            (self.on, self.since) = (wants, Some(now));
            self.changes = self.changes.saturating_add(1);
        }
    }

    /// Whether it spills.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// How often it began or ended.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn encode(&self) -> [u64; 3] {
        [u64::from(self.on), self.since.map_or(u64::MAX, Instant::as_nanos), self.changes]
    }

    pub(crate) fn decode([on, since, changes]: [u64; 3]) -> Self {
        let since = Some(since).filter(|since| *since != u64::MAX).map(Instant::from_nanos);
        Self { on: on == 1, since, changes }
    }
}

/// How a pool stands, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// In thousandths of its capacity.
    pub pressure: u64,
    /// It sends elsewhere what it can.
    pub spills: bool,
    /// How often it began or ended to.
    pub changes: u64,
    /// So much pressure a request of the tokens in question would add.
    pub adds: u64,
    /// It takes others' requests up to this pressure.
    pub takes_until: u64,
    /// Its threshold, if that is not the configured one.
    pub threshold: Option<u64>,
    /// What each of its engines is said to do, if there is a young report.
    pub reported: Option<Reading>,
}

/// The pool for a request of that budget, and whether another one than by
/// the thresholds: its own spills, this one holds it for sure and has room.
/// `loads` has one for each of the model's pools; `None` where a pool states no
/// capacity. `None` only for a model without pools.
pub fn place<'a>(
    model: &'a Model,
    loads: &[Option<Load>],
    Budget { fit, need, .. }: Budget,
) -> Option<(&'a Arc<Pool>, bool)> {
    let (largest, smaller) = model.pools.split_last()?;
    let load = |at: usize| loads.get(at).copied().flatten();
    let threshold = |(at, pool): (usize, &Arc<Pool>)| {
        load(at).and_then(|load| load.threshold).unwrap_or(pool.threshold).min(pool.max_model_len)
    };
    let takes = |one: &(usize, &Arc<Pool>)| fit <= one.1.max_model_len && need <= threshold(*one);
    let own = smaller.iter().enumerate().find(takes);
    let (at, own) = own.unwrap_or((smaller.len(), largest));
    if !load(at).is_some_and(|load| load.spills) {
        return Some((own, false));
    }
    let others = model.pools.iter().enumerate().filter(|(other, _)| *other != at);
    let room = others.filter(|(_, pool)| fit <= pool.max_model_len).filter_map(|(at, pool)| {
        let load = load(at)?;
        let after = load.pressure.saturating_add(load.adds);
        (!load.spills && after <= load.takes_until).then_some((after, pool))
    });
    let least = room.min_by_key(|(after, _)| *after);
    Some(least.map_or((own, false), |(_, pool)| (pool, true)))
}

/// A threshold a tick later: it moves by a fiftieth towards the pool under less
/// pressure, if the two differ by more than a tenth of their capacity.
pub fn adapt_threshold(threshold: u64, range: ThresholdRange, own: u64, larger: u64) -> u64 {
    let step = (threshold / 50).max(1);
    let moved = if own.saturating_add(100) < larger {
        threshold.saturating_add(step)
    } else if own > larger.saturating_add(100) {
        threshold.saturating_sub(step)
    } else {
        threshold
    };
    moved.clamp(range.min, range.max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::budget;
    use proptest::prelude::*;

    const LAW: SpillLaw = SpillLaw { enter: 900, leave: 700, dwell: Span::from_secs(2) };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_pool_spills_between_its_marks_and_dwells() {
        let mut spill = Spill::default();
        let mut look = |millis, pressure| {
            spill.observe(&LAW, at(millis), pressure);
            spill.is_on()
        };
        assert!(!look(0, 899) && look(1, 900) && look(2, 701));
        // Down, but it has only just begun; then it stays off as long.
        assert!(look(2000, 0) && !look(2001, 700) && !look(4000, 2000) && look(4001, 2000));
        assert_eq!(spill.changes(), 3);
        for state in [Spill::default(), spill] {
            assert_eq!(Spill::decode(state.encode()), state);
        }
    }

    fn load(pressure: u64, spills: bool) -> Load {
        Load { pressure, spills, adds: 10, takes_until: 900, ..Load::default() }
    }

    fn model() -> Model {
        crate::pool::tests::model(&[(8192, 4000), (32_768, 20_000), (131_072, 131_072)])
    }

    fn name(fit: u64, loads: &[Option<Load>]) -> String {
        let model = model();
        let (pool, moved) = place(&model, loads, budget(fit, fit)).unwrap();
        format!("{}{}", pool.name, if moved { " moved" } else { "" })
    }

    #[test]
    fn a_spilling_pool_s_requests_go_to_the_emptiest_that_holds_them() {
        let load = |pressure, spills| Some(load(pressure, spills));
        let (calm, full) = (load(100, false), load(950, true));
        assert_eq!(name(3000, &[calm, calm, calm]), "8192");
        assert_eq!(name(3000, &[full, load(200, false), calm]), "131072 moved");
        assert_eq!(name(3000, &[full, load(50, false), calm]), "32768 moved");
        // One that has no room, spills itself, or is not known takes nothing.
        assert_eq!(name(3000, &[full, load(891, false), full]), "8192");
        assert_eq!(name(3000, &[full, load(50, true), calm]), "131072 moved");
        assert_eq!(name(3000, &[full, None, load(890, false)]), "131072 moved");
        assert_eq!(name(3000, &[None, calm, calm]), "8192");
        // From a larger to a smaller one only what surely fits its window.
        assert_eq!(name(8192, &[calm, full, load(900, false)]), "8192 moved");
        assert_eq!(name(8193, &[calm, full, load(900, false)]), "32768");
        assert_eq!(name(200_000, &[calm, calm, full]), "131072");
    }

    #[test]
    fn a_threshold_moves_to_where_there_is_room() {
        let range = ThresholdRange { min: 1000, max: 8000 };
        assert_eq!(adapt_threshold(5000, range, 300, 401), 5100);
        assert_eq!(adapt_threshold(5000, range, 401, 300), 4900);
        assert_eq!(adapt_threshold(5000, range, 300, 400), 5000);
        assert_eq!(adapt_threshold(1005, range, 900, 0), 1000);
        assert_eq!(adapt_threshold(7990, range, 0, 900), 8000);
        let moved = Some(Load { threshold: Some(2999), ..Load::default() });
        assert_eq!(name(3000, &[moved, None, None]), "32768");
        assert_eq!(name(2999, &[moved, None, None]), "8192");
    }

    proptest! {
        /// Whatever the loads, a request goes to a pool whose window holds it, or
        /// to the largest.
        #[test]
        fn what_is_placed_fits(
            fit in 1_u64..200_000,
            need in 1_u64..200_000,
            loads in prop::collection::vec(
                prop::option::of((0_u64..2000, any::<bool>(), 0_u64..200, prop::option::of(1_u64..200_000))),
                3,
            ),
        ) {
            let loads: Vec<Option<Load>> = loads.into_iter().map(|one| {
                one.map(|(pressure, spills, adds, threshold)| {
                    Load { pressure, spills, adds, takes_until: 900, threshold, ..Load::default() }
                })
            }).collect();
            let model = model();
            let (pool, moved) = place(&model, &loads, budget(fit, fit.min(need))).unwrap();
            prop_assert!(fit <= pool.max_model_len || pool.name == "131072" && !moved);
        }
    }
}
