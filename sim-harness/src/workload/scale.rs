//! A trace at another rate, with its bursts as they are.
//!
//! A faster clock makes a trace denser by making its bursts shorter: what a
//! queue has to take in becomes a tenth as long at ten times the rate. Here time
//! stays as it is. Every request of the trace stands for `factor` of them, which
//! come one after the other until the trace's next request, a second later at
//! the most. So each second has `factor` times the requests that it had, and the
//! counts' coefficient of variation is the trace's own, at a second and above.
//!
//! What in the trace was chance is taken for the load's nature, too: independent
//! clients at a hundred times the rate would vary less from second to second.

use super::TraceRequest;
use crate::SECOND;

/// Goes through a trace's rows, some of them several times or not at all.
#[derive(Clone, Debug)]
pub struct ScaledRows {
    factor: f64,
    /// Below 1: where the rounding starts.
    phase: f64,
    row: usize,
    copy: u64,
    of: u64,
}

/// One request of a scaled trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledRow {
    /// The row of the trace that it comes for.
    pub row: usize,
    /// Which of the row's requests it is, from 0.
    pub copy: u64,
    /// How many there are. At least 1.
    pub of: u64,
}

impl ScaledRows {
    /// From this row on, each row `factor` times (above 0) on average; `phase`,
    /// below 1, says which rows get one more where it is no whole number.
    pub fn new(factor: f64, phase: f64, row: usize) -> Self {
        let mut copies = Self { factor, phase, row, copy: 0, of: 0 };
        copies.of = copies.count();
        copies
    }

    /// The requests that this row stands for. Summed over rows they are within
    /// one of `factor` for each.
    fn count(&self) -> u64 {
        let up_to = |row: usize| (self.factor * row as f64 + self.phase).floor();
        (up_to(self.row + 1) - up_to(self.row)) as u64
    }

    /// The next request; nothing after the last of so many rows.
    pub fn next_of(&mut self, rows: usize) -> Option<ScaledRow> {
        while self.copy >= self.of {
            self.row += 1;
            self.copy = 0;
            if self.row >= rows {
                self.row = rows;
                return None;
            }
            self.of = self.count();
        }
        let copy = ScaledRow { row: self.row, copy: self.copy, of: self.of };
        self.copy += 1;
        (copy.row < rows).then_some(copy)
    }
}

impl ScaledRow {
    /// When it comes, on the trace's clock.
    pub fn arrival(&self, rows: &[TraceRequest]) -> u64 {
        let at = rows.get(self.row).map_or(0, |row| row.arrival);
        let next = rows.get(self.row + 1).map_or(u64::MAX, |row| row.arrival);
        let width = next.saturating_sub(at).min(SECOND);
        at + (u128::from(width) * u128::from(self.copy) / u128::from(self.of.max(1))) as u64
    }

    /// The row whose lengths and prefix it has. Copies of one row would be alike;
    /// so each `copy` goes through the trace as a crowd of its own, some way
    /// ahead of or behind the others, at most a twentieth of the trace.
    pub fn content(&self, rows: usize) -> usize {
        let reach = rows / 20;
        let shift = match self.copy {
            0 => reach,
            copy => mix(copy) as usize % (2 * reach + 1),
        };
        (self.row + rows + shift - reach) % rows.max(1)
    }
}

/// Requests a second of a trace; nothing if it takes no time.
pub fn mean_rate(rows: &[TraceRequest]) -> Option<f64> {
    let time = rows.last()?.arrival as f64 / SECOND as f64;
    (time > 0.0).then(|| (rows.len() - 1) as f64 / time)
}

/// A number that looks random, always the same for the same one (the finalizer
/// of SplitMix64; Steele, Lea and Flood, 2014).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Pcg;

    /// An hour: one request every two seconds or so, and each minute fifty within
    /// two seconds.
    fn bursty() -> Vec<TraceRequest> {
        let (mut rng, mut times) = (Pcg::new(4, 4), Vec::new());
        let mut at = 0.0;
        while at < 3_600e9 {
            times.push(at as u64);
            at += rng.exponential(2e9);
        }
        for minute in 0..60 {
            times.extend((0..50).map(|_| minute * 60 * SECOND + (rng.unit() * 2e9) as u64));
        }
        times.sort_unstable();
        let row = |arrival| TraceRequest { arrival, input_tokens: 9, ..TraceRequest::default() };
        times.into_iter().map(row).collect()
    }

    /// The coefficient of variation of counts in bins of so many seconds.
    fn variation(times: &[u64], bin: u64) -> f64 {
        let bins = times.iter().max().unwrap() / (bin * SECOND);
        let mut counts = vec![0.0; bins as usize + 1];
        for at in times {
            counts[(at / (bin * SECOND)) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let square = counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>();
        (square / counts.len() as f64).sqrt() / mean
    }

    fn scaled(rows: &[TraceRequest], factor: f64) -> Vec<ScaledRow> {
        let mut copies = ScaledRows::new(factor, 0.3, 0);
        std::iter::from_fn(|| copies.next_of(rows.len())).collect()
    }

    #[test]
    fn more_requests_vary_as_much_from_second_to_second() {
        let rows = bursty();
        let own: Vec<u64> = rows.iter().map(|row| row.arrival).collect();
        for factor in [1.5, 4.0, 40.0] {
            let copies = scaled(&rows, factor);
            let times: Vec<u64> = copies.iter().map(|copy| copy.arrival(&rows)).collect();
            assert!(times.is_sorted());
            let count = times.len() as f64 / rows.len() as f64;
            assert!((count / factor - 1.0).abs() < 1e-3, "{count} {factor}");
            for bin in [1, 10] {
                let (before, after) = (variation(&own, bin), variation(&times, bin));
                assert!((after / before - 1.0).abs() < 0.1, "x{factor}, {bin} s: {before} {after}");
                // A faster clock loses much of it.
                let fast: Vec<u64> = own.iter().map(|at| (*at as f64 / factor) as u64).collect();
                let lost = variation(&fast, bin) / before;
                assert!(factor < 2.0 || lost < 0.75, "x{factor}, {bin} s: {lost}");
            }
        }
    }

    #[test]
    fn once_is_the_trace_itself_and_less_is_every_nth() {
        let rows = bursty();
        for (nth, copy) in scaled(&rows, 1.0).iter().enumerate() {
            assert_eq!((copy.row, copy.content(rows.len())), (nth, nth));
            assert_eq!(copy.arrival(&rows), rows[nth].arrival);
        }
        assert_eq!(scaled(&rows, 1.0).len(), rows.len());
        let fewer = scaled(&rows, 0.25);
        assert!(fewer.windows(2).all(|w| w[1].row - w[0].row == 4), "{fewer:?}");
    }

    #[test]
    fn copies_of_a_row_have_other_contents_from_nearby() {
        let rows = 1_000;
        let contents: Vec<usize> =
            (0..50).map(|copy| ScaledRow { row: 500, copy, of: 50 }.content(rows)).collect();
        let mut different = contents.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 25, "{contents:?}");
        assert!(contents.iter().all(|row| row.abs_diff(500) <= 50), "{contents:?}");
        // One crowd keeps its order.
        let next = ScaledRow { row: 501, copy: 7, of: 50 }.content(rows);
        assert_eq!(next, contents[7] + 1);
    }
}
