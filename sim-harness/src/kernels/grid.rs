//! Tables over whole numbers whose points lie closer where numbers are small,
//! read in a few nanoseconds.
//!
//! Points are every whole number up to 16, then 16 an octave: neighbours differ
//! by 6 % at most, so that a straight line between them misses a square law by
//! less than 0.1 %. Positions come from the exponent of the number, with no
//! logarithm.

use std::sync::OnceLock;

/// Points of one octave, and the largest number up to which every whole number
/// is a point.
const STEPS: u32 = 16;
const SHIFT: u32 = 4;

/// The position of a number: the point at or below it, and how far it is towards
/// the next, 0 to 1.
#[inline]
#[allow(clippy::inline_always, reason = "the engine's innermost look-up")]
pub(crate) fn locate(x: f64) -> (usize, f64) {
    let x = x.max(0.0);
    let whole = x as u64;
    if whole < u64::from(STEPS) {
        return (whole as usize, x - whole as f64);
    }
    let octave = whole.ilog2() - SHIFT;
    let width = 1_u64 << octave;
    let point = whole >> octave;
    let index = octave * STEPS + point as u32;
    (index as usize, (x - (point << octave) as f64) / width as f64)
}

/// The number at a position.
pub(crate) fn point(index: usize) -> u64 {
    let steps = STEPS as usize;
    if index < 2 * steps {
        return index as u64;
    }
    let octave = index / steps - 1;
    ((index - octave * steps) as u64) << octave
}

/// How many points cover the numbers up to `max`.
pub(crate) fn points(max: u64) -> usize {
    locate(max as f64).0 + 2
}

/// A function of one number.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    values: Vec<f64>,
}

impl Curve {
    /// Tabulates a function from 0 to `max`.
    pub(crate) fn new(max: u64, mut f: impl FnMut(u64) -> f64) -> Self {
        Self { values: (0..points(max)).map(|i| f(point(i))).collect() }
    }

    /// Its value: a straight line between points, and beyond the last.
    #[inline]
    pub(crate) fn at(&self, x: f64) -> f64 {
        let (index, share) = locate(x);
        let (index, share) = within(self.values.len(), index, share, x);
        let low = self.values.get(index).copied().unwrap_or(0.0);
        let high = self.values.get(index + 1).copied().unwrap_or(low);
        low + (high - low) * share
    }
}

/// A function of two numbers. A cell is filled when it is first read: what it
/// holds does not depend on when.
#[derive(Clone, Debug)]
pub(crate) struct Surface {
    rows: usize,
    columns: usize,
    cells: Vec<OnceLock<f64>>,
}

impl Surface {
    /// An empty table from (0, 0) to the two maxima.
    pub(crate) fn new(max: (u64, u64)) -> Self {
        let (rows, columns) = (points(max.0), points(max.1));
        Self { rows, columns, cells: vec![OnceLock::new(); rows * columns] }
    }

    /// The value of the function that the table is of, straight along each axis
    /// between points.
    #[inline]
    pub(crate) fn at(&self, x: f64, y: f64, function: impl Fn(u64, u64) -> f64) -> f64 {
        let row = locate(x);
        let (row, down) = within(self.rows, row.0, row.1, x);
        let column = locate(y);
        let (column, along) = within(self.columns, column.0, column.1, y);
        let cell = |row: usize, column: usize| {
            let cell = self.cells.get(row * self.columns + column);
            let fill = || function(point(row), point(column));
            cell.map_or(0.0, |cell| *cell.get_or_init(fill))
        };
        let read = |row| {
            let low = cell(row, column);
            if along == 0.0 { low } else { low + (cell(row, column + 1) - low) * along }
        };
        let low = read(row);
        if down == 0.0 { low } else { low + (read(row + 1) - low) * down }
    }
}

/// Beyond the last point the last interval is prolonged.
#[inline]
fn within(len: usize, index: usize, share: f64, x: f64) -> (usize, f64) {
    if index + 1 < len {
        return (index, share);
    }
    let last = len.saturating_sub(2);
    let (from, to) = (point(last) as f64, point(last + 1) as f64);
    (last, (x - from) / (to - from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_and_points_are_inverse() {
        let mut last = None;
        for i in 0..400 {
            let x = point(i);
            assert!(last < Some(x), "{i}");
            last = Some(x);
            assert_eq!(locate(x as f64), (i, 0.0), "{x}");
        }
        assert_eq!(locate(33.0), (32, 0.5));
        assert_eq!(locate(0.25), (0, 0.25));
    }

    proptest! {
        #[test]
        fn lines_are_kept_and_squares_nearly(x in 0.0..200_000.0, y in 0.0..5_000.0) {
            let line = Curve::new(100_000, |x| 3.0 + 2.0 * x as f64);
            prop_assert!((line.at(x) - (3.0 + 2.0 * x)).abs() < 1e-6 * (1.0 + x));
            let square = Curve::new(200_000, |x| (x * x) as f64);
            prop_assert!((square.at(x) - x * x).abs() <= 0.001 * x * x + 0.25);
            let plane = Surface::new((200_000, 5_000));
            let f = |x, y| 1.0 + x as f64 * y as f64;
            prop_assert!((plane.at(x, y, f) - (1.0 + x * y)).abs() < 1e-6 * (1.0 + x * y));
            // A cell once filled stays.
            let again = plane.at(x, y, |_, _| 0.0);
            prop_assert_eq!(plane.at(x, y, f), again);
        }
    }
}
