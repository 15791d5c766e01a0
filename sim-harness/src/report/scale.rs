//! From values to places along an axis, with round numbers to label.

/// How an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    Log,
}

/// An axis: its ends, and the values that are labelled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<f64>,
}

/// The smallest and the largest; nothing where there are none.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |ends, value| {
        let (low, high): (f64, f64) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// 10 to a whole power.
fn power(exponent: i32) -> f64 {
    // Dividing is exact to the last digit, multiplying by 0.1 is not.
    let size = libm::exp10(f64::from(exponent.abs()));
    if exponent < 0 { 1.0 / size } else { size }
}

impl Scale {
    /// From a round number at or below the smallest value, or from 0, to one at or
    /// above the largest, in `most` steps at most.
    pub(super) fn linear(values: impl Iterator<Item = f64>, from_zero: bool, most: u32) -> Self {
        let (mut low, mut high) = ends(values).unwrap_or((0.0, 1.0));
        if from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high <= low {
            let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (if from_zero { low } else { low - room }, high + room);
        }
        let rough = (high - low) / f64::from(most.max(1));
        let decade = libm::floor(libm::log10(rough)) as i32;
        let step = |times: f64| times * power(decade);
        // Rounding may have pushed the last one over the edge.
        let fits = |step: &f64| (high - low) / step <= f64::from(most) + 1e-9;
        let step = [1.0, 2.0, 5.0].map(step).into_iter().find(fits).unwrap_or(step(10.0));
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let count = (last - first) as u32;
        let ticks: Vec<f64> = (0..=count).map(|nth| (first + f64::from(nth)) * step).collect();
        Self { kind: Kind::Linear, low: first * step, high: last * step, ticks }
    }

    /// The same without labels between whole numbers.
    pub(super) fn whole(self) -> Self {
        let ticks = self.ticks.into_iter().filter(|tick| tick.fract() == 0.0).collect();
        Self { ticks, ..self }
    }

    /// The same from the smallest value, or from 0, to the largest, and no further.
    pub(super) fn tight(values: impl Iterator<Item = f64>, from_zero: bool, most: u32) -> Self {
        let ends = ends(values)
            .map(|(low, high)| if from_zero { (low.min(0.0), high) } else { (low, high) });
        let (low, high) = ends.unwrap_or((0.0, 1.0));
        let round = Self::linear([low, high].into_iter(), from_zero, most);
        if high <= low {
            return round;
        }
        let slack = (high - low) * 1e-9;
        let within = |tick: &f64| (low - slack..=high + slack).contains(tick);
        let ticks = round.ticks.into_iter().filter(within).collect();
        Self { low, high, ticks, ..round }
    }

    /// Over the values above 0. Powers of ten are labelled, and twice and five
    /// times those where there are few.
    pub(super) fn log(values: impl Iterator<Item = f64>, most: u32) -> Self {
        let (low, high) = ends(values.filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
        let of = |value: f64| libm::floor(libm::log10(value) + 1e-9) as i32;
        let grid: Vec<f64> = (of(low)..=of(high) + 1)
            .flat_map(|exponent| [1.0, 2.0, 5.0].map(|times| times * power(exponent)))
            .collect();
        let slack = 1e-9;
        let low = grid.iter().rev().find(|tick| **tick <= low * (1.0 + slack));
        let low = low.copied().unwrap_or(low_of(&grid));
        let high = grid.iter().find(|tick| **tick >= high * (1.0 - slack) && **tick > low);
        let high = high.copied().unwrap_or(low * 10.0);
        let within: Vec<f64> =
            grid.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
        let ticks = if within.len() <= most as usize + 1 {
            within
        } else {
            let whole = |tick: &f64| (libm::log10(*tick) - libm::round(libm::log10(*tick))).abs();
            let decades: Vec<f64> = within.into_iter().filter(|tick| whole(tick) < 1e-9).collect();
            let every = decades.len().div_ceil(most.max(1) as usize + 1).max(1);
            decades.into_iter().step_by(every).collect()
        };
        Self { kind: Kind::Log, low, high, ticks }
    }

    /// Places 0, 1, … so many of them, each in the middle of its part.
    pub(super) fn places(count: usize) -> Self {
        let ticks = (0..count).map(|nth| nth as f64).collect();
        Self { kind: Kind::Linear, low: -0.5, high: count.max(1) as f64 - 0.5, ticks }
    }

    /// Where a value is, from 0 to 1. What lies outside is at the edge.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value <= 0.0 => 0.0,
            Kind::Log => libm::log(value / self.low) / libm::log(self.high / self.low),
        };
        share.clamp(0.0, 1.0)
    }
}

fn low_of(grid: &[f64]) -> f64 {
    grid.first().copied().unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticks(scale: &Scale) -> Vec<String> {
        scale.ticks.iter().map(|tick| super::super::number::short(*tick)).collect()
    }

    #[test]
    fn ticks_are_round() {
        let linear = |values: &[f64], zero| Scale::linear(values.iter().copied(), zero, 5);
        assert_eq!(ticks(&linear(&[3.0, 97.0], true)), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(ticks(&linear(&[4.1, 4.9], false)), ["4", "4.2", "4.4", "4.6", "4.8", "5"]);
        assert_eq!(ticks(&linear(&[-0.07, 0.21], true)), ["-0.1", "0", "0.1", "0.2", "0.3"]);
        assert_eq!(ticks(&linear(&[7.0, 7.0], false)), ["2", "4", "6", "8", "10", "12"]);
        let tight = Scale::tight([3.0, 152.0].into_iter(), true, 6);
        assert_eq!((ticks(&tight), tight.place(152.0)), (ticks(&linear(&[0.0, 150.0], true)), 1.0));
        let log = |values: &[f64]| Scale::log(values.iter().copied(), 5);
        assert_eq!(ticks(&log(&[0.0, 12.0, 64_000.0])), ["10", "100", "1k", "10k", "100k"]);
        assert_eq!(ticks(&log(&[0.03, 0.4])), ["0.02", "0.05", "0.1", "0.2", "0.5"]);
        assert_eq!(ticks(&log(&[])), ["1", "2", "5", "10"]);
    }

    #[test]
    fn places_go_from_edge_to_edge() {
        let scale = Scale::log([1.0, 100.0].into_iter(), 5);
        assert_eq!([0.0, 1.0, 10.0, 100.0, 1e9].map(|v| scale.place(v)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        let scale = Scale::places(4);
        assert_eq!([0.0, 3.0].map(|v| scale.place(v)), [0.125, 0.875]);
    }

    proptest! {
        /// Every value lies on the axis, and there are some labels, but few.
        #[test]
        fn axes_hold_all_values(
            values in prop::collection::vec((1u32..1_000_000, -9i32..9), 1..20),
            zero: bool,
        ) {
            let values: Vec<f64> =
                values.into_iter().map(|(mantissa, e)| f64::from(mantissa) * power(e)).collect();
            for scale in [
                Scale::linear(values.iter().copied(), zero, 5),
                Scale::tight(values.iter().copied(), zero, 5),
                Scale::log(values.iter().copied(), 5),
            ] {
                for &value in &values {
                    prop_assert!(scale.low <= value * (1.0 + 1e-6), "{:?} {}", scale, value);
                    prop_assert!(value <= scale.high * (1.0 + 1e-6), "{:?} {}", scale, value);
                }
                prop_assert!((1..=8).contains(&scale.ticks.len()), "{:?}", scale);
                prop_assert!(scale.ticks.is_sorted());
            }
        }
    }
}
