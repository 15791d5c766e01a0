//! A rate that changes over time.

use std::f64::consts::TAU;

/// Points that stand for one turn of a sine.
const SINE_POINTS: u32 = 96;

/// Requests a second over time: straight lines between points, for ever again
/// where there is a period, else the last point's rate for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Seconds, rising, the first 0; requests a second. With a period the last
    /// is at its end.
    points: Vec<(f64, f64)>,
    period: Option<f64>,
    /// Requests of one period.
    whole: f64,
}

impl Rates {
    /// Points of `(seconds, requests a second)`: seconds rise from 0, rates are 0
    /// to 1e7 and not all 0. With a period, which ends after the last point, the
    /// line goes back to the first point's rate, and all starts again.
    ///
    /// # Errors
    ///
    /// Says which of these does not hold.
    pub fn new(mut points: Vec<(f64, f64)>, period: Option<f64>) -> Result<Self, String> {
        let Some(&(first, rate)) = points.first() else {
            return Err("at least one point".into());
        };
        if first != 0.0 {
            return Err(format!("the first point at 0 seconds, not at {first}"));
        }
        if let Some((_, wrong)) = points.iter().find(|(_, rate)| !(0.0..=1e7).contains(rate)) {
            return Err(format!("rates of 0 to 1e7 requests a second, not {wrong}"));
        }
        let last = points.last().map_or(0.0, |&(at, _)| at);
        match period {
            Some(period) if !(period > last && period.is_finite()) => {
                return Err(format!("a period that ends after the last point, {last} s"));
            }
            Some(period) => points.push((period, rate)),
            None => {}
        }
        // Not so where either is no number.
        let rises = |a: f64, b: f64| a < b;
        let pairs = || points.iter().zip(points.iter().skip(1));
        if let Some(((a, _), (b, _))) = pairs().find(|((a, _), (b, _))| !rises(*a, *b)) {
            return Err(format!("seconds that rise, not {a} before {b}"));
        }
        let whole = pairs().map(|((a, from), (b, to))| (b - a) * (from + to) / 2.0).sum();
        // Without a period what comes before the last point need not be anything.
        let ever = if period.is_some() { whole } else { points.last().map_or(0.0, |p| p.1) };
        if ever <= 0.0 && whole <= 0.0 {
            return Err("a rate above 0 at some time".into());
        }
        Ok(Self { points, period, whole })
    }

    /// A day of so many seconds: a sine of this mean that starts at its lowest
    /// and is `peak_to_mean` times the mean in the middle.
    ///
    /// # Errors
    ///
    /// When `mean` is not above 0, `peak_to_mean` not 1 to 2 (more would need a
    /// rate below 0), or `period` not above 0.
    pub fn day(mean: f64, peak_to_mean: f64, period: f64) -> Result<Self, String> {
        if !(1.0..=2.0).contains(&peak_to_mean) {
            return Err(format!("a peak of 1 to 2 times the mean, not {peak_to_mean}"));
        }
        let point = |nth: u32| {
            let turn = f64::from(nth) / f64::from(SINE_POINTS);
            let rate = mean * (1.0 - (peak_to_mean - 1.0) * libm::cos(TAU * turn));
            (period * turn, rate.max(0.0))
        };
        Self::new((0..SINE_POINTS).map(point).collect(), Some(period))
    }

    /// When so many requests more are due than at `from` seconds; nothing if that
    /// is never. Both at least 0.
    pub fn after(&self, from: f64, requests: f64) -> Option<f64> {
        let (mut turn, mut at, mut left) = (0.0, from, requests);
        if let Some(period) = self.period {
            turn = (from / period).floor();
            at = (from - turn * period).clamp(0.0, period);
            let turns = (left / self.whole).floor();
            turn += turns;
            left = (left - turns * self.whole).max(0.0);
        }
        let mut place = self.points.partition_point(|&(start, _)| start <= at).max(1) - 1;
        // A turn and a half at the most.
        for _ in 0..=2 * self.points.len() {
            let &(start, rate) = self.points.get(place)?;
            let offset = turn * self.period.unwrap_or(0.0);
            let Some(&(end, next)) = self.points.get(place + 1) else {
                if self.period.is_some() {
                    (turn, place, at) = (turn + 1.0, 0, 0.0);
                    continue;
                }
                return (rate > 0.0).then(|| at + left / rate);
            };
            let slope = (next - rate) / (end - start);
            let now = rate + slope * (at - start);
            let due = f64::midpoint(now, next) * (end - at);
            if left <= due {
                // The root of `now x + slope x² / 2 = left`, in the form that does
                // not divide by a slope of 0.
                let root = (now * now + 2.0 * slope * left).max(0.0).sqrt();
                let step = if left > 0.0 { 2.0 * left / (now + root) } else { 0.0 };
                return Some(offset + (at + step).min(end));
            }
            left -= due;
            (place, at) = (place + 1, end);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-6 * expected.max(1.0), "{found} {expected}");
    }

    #[test]
    fn requests_are_due_when_the_area_says() {
        // 0 to 10 within 10 s, then 10 for ever.
        let ramp = Rates::new(vec![(0.0, 0.0), (10.0, 10.0)], None).unwrap();
        near(ramp.after(0.0, 12.5), 5.0);
        near(ramp.after(5.0, 37.5), 10.0);
        near(ramp.after(5.0, 57.5), 12.0);
        near(ramp.after(0.0, 0.0), 0.0);
        // Up and down again and again: 10 requests in 2 s.
        let saw = Rates::new(vec![(0.0, 0.0), (1.0, 10.0)], Some(2.0)).unwrap();
        near(saw.after(0.0, 5.0), 1.0);
        near(saw.after(1.0, 5.0), 2.0);
        near(saw.after(1.0, 10.0), 3.0);
        near(saw.after(1.5, 1_000_006.25), 200_003.0);
        // It ends.
        let burst = Rates::new(vec![(0.0, 4.0), (1.0, 4.0), (2.0, 0.0)], None).unwrap();
        near(burst.after(0.0, 6.0), 2.0);
        assert_eq!(burst.after(0.0, 6.1), None);
    }

    #[test]
    fn a_day_has_its_mean_and_its_peak() {
        let day = Rates::day(10.0, 1.8, 86_400.0).unwrap();
        near(day.after(0.0, 864_000.0 * 3.0), 3.0 * 86_400.0);
        let hour = |from: f64| {
            let (mut low, mut high) = (0.0, 100_000.0);
            for _ in 0..60 {
                let middle = f64::midpoint(low, high);
                let end = day.after(from, middle).unwrap();
                if end < from + 3_600.0 { low = middle } else { high = middle }
            }
            low / 3_600.0
        };
        assert!((hour(41_400.0) - 18.0).abs() < 0.1, "{}", hour(41_400.0));
        assert!((hour(84_600.0) - 2.0).abs() < 0.1, "{}", hour(84_600.0));
    }

    #[test]
    fn wrong_points_are_named() {
        let error = |points: &[(f64, f64)], period| Rates::new(points.into(), period).unwrap_err();
        assert!(error(&[], None).contains("one point"));
        assert!(error(&[(1.0, 1.0)], None).contains("first point at 0"));
        assert!(error(&[(0.0, 1.0), (0.0, 2.0)], None).contains("rise"));
        assert!(error(&[(0.0, -1.0)], None).contains("-1"));
        assert!(error(&[(0.0, 1.0), (5.0, 2.0)], Some(5.0)).contains("after the last point"));
        assert!(error(&[(0.0, 0.0)], None).contains("above 0"));
        assert!(Rates::day(1.0, 2.5, 10.0).unwrap_err().contains("2.5"));
        assert!(Rates::day(1.0, 1.5, 0.0).is_err() && Rates::day(0.0, 1.5, 1.0).is_err());
    }
}
