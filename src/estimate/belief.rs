//! Gaussian beliefs about the coefficients of some features, and how they learn.

use super::features::FEATURES;
use super::linear::{Matrix, Vector, axpy, axpy_f32, dot};

/// Single precision numbers that are worked on together; rows of them are whole
/// chunks, with zeros at the end.
const CHUNK: usize = 8;
/// The longest row.
const ROW_MAX: usize = FEATURES.next_multiple_of(CHUNK);

/// A belief about the coefficients of some features: their mean, and how far they may
/// be from it, together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Belief {
    /// In ascending order.
    features: Vec<u8>,
    /// For each of them.
    mean: Vec<f64>,
    /// A row of `width` numbers for each of them, in single precision, for this takes
    /// most of the arithmetic.
    covariance: Vec<f32>,
    width: usize,
}

impl Belief {
    /// About so many of the first features as the mean is long.
    pub(super) fn new(mean: Vec<f64>, covariance: &Matrix) -> Self {
        let features = (0..).take(mean.len()).collect();
        let mut belief = Self { features, mean, covariance: Vec::new(), width: 0 };
        belief.set(covariance);
        belief
    }

    /// The same features, believed anew.
    pub(super) fn with(self, mean: Vec<f64>, covariance: &Matrix) -> Self {
        let mut belief = Self { mean, ..self };
        belief.set(covariance);
        belief
    }

    fn set(&mut self, covariance: &Matrix) {
        self.width = self.features.len().next_multiple_of(CHUNK);
        self.covariance.clear();
        for row in covariance.rows() {
            let zeros = core::iter::repeat_n(0.0, self.width - row.len());
            self.covariance.extend(row.iter().map(|value| *value as f32).chain(zeros));
        }
    }

    /// The belief about some of its features, if it is about all there are.
    pub(super) fn part(&self, features: &[u8]) -> Self {
        let width = features.len().next_multiple_of(CHUNK);
        let mut part =
            Self { features: features.to_vec(), mean: Vec::new(), covariance: Vec::new(), width };
        for at in features.iter().map(|at| usize::from(*at)) {
            part.mean.extend(self.mean.get(at));
            let row = self.covariance.chunks_exact(self.width.max(1)).nth(at).unwrap_or_default();
            part.covariance.extend(features.iter().filter_map(|at| row.get(usize::from(*at))));
            part.covariance.resize(part.mean.len() * width, 0.0);
        }
        part
    }

    pub(super) fn features(&self) -> &[u8] {
        &self.features
    }

    pub(super) fn mean(&self) -> &[f64] {
        &self.mean
    }

    pub(super) fn covariance(&self) -> Matrix {
        let count = self.features.len();
        let wide = |row: &[f32]| row.iter().take(count).map(|value| f64::from(*value)).collect();
        Matrix::from_rows(self.covariance.chunks_exact(self.width.max(1)).map(wide))
    }

    /// Whether it is about all features that a text has.
    pub(super) fn covers(&self, x: &Vector) -> bool {
        let has = |values: &[f64]| values.iter().filter(|value| **value != 0.0).count();
        has(&self.pick(x)) == has(x)
    }

    /// What its features are in a text, in their order.
    fn pick(&self, x: &Vector) -> Vector {
        let mut picked = [0.0; FEATURES];
        for (slot, feature) in picked.iter_mut().zip(&self.features) {
            *slot = x.get(usize::from(*feature)).copied().unwrap_or(0.0);
        }
        picked
    }

    /// The covariance of each coefficient with what these features give.
    fn reach(&self, picked: &Vector) -> [f32; ROW_MAX] {
        let mut reach = [0.0; ROW_MAX];
        for (row, xi) in self.covariance.chunks_exact(self.width.max(1)).zip(picked) {
            // Most texts have few of the features that others have.
            if *xi != 0.0 {
                axpy_f32(&mut reach, *xi as f32, row);
            }
        }
        reach
    }

    /// What `x` is expected to give, and the variance of that.
    pub(super) fn predict(&self, x: &Vector) -> (f64, f64) {
        let picked = self.pick(x);
        let variance = dot(&widened(&self.reach(&picked)), &picked);
        (dot(&self.mean, &picked), variance.max(0.0))
    }

    /// Learns that `x` gave `y`. `noise` is the variance of what features do not explain, by what
    /// was expected and the variance of that.
    pub(super) fn update(&mut self, x: &Vector, y: f64, noise: impl FnOnce(f64, f64) -> f64) {
        let picked = self.pick(x);
        let reach = self.reach(&picked);
        let wide = widened(&reach);
        let variance = dot(&wide, &picked).max(0.0);
        let expected = dot(&self.mean, &picked);
        let total = variance + noise(expected, variance);
        axpy(&mut self.mean, (y - expected) / total, &wide);
        let less = (-1.0 / total) as f32;
        for (row, r) in self.covariance.chunks_exact_mut(self.width.max(1)).zip(reach) {
            axpy_f32(row, less * r, &reach);
        }
    }
}

fn widened(row: &[f32; ROW_MAX]) -> Vector {
    let mut wide = [0.0; FEATURES];
    for (slot, value) in wide.iter_mut().zip(row) {
        *slot = f64::from(*value);
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::super::linear::tests::spread;
    use super::*;

    #[test]
    fn updates_are_the_sum_of_information() {
        let prior = Belief::new(vec![0.2; FEATURES], &Matrix::diagonal(&[0.04; FEATURES]));
        let mut belief = prior.clone();
        let mut information = Matrix::diagonal(&[25.0; FEATURES]);
        let mut weighted = [0.2 * 25.0; FEATURES];
        for seed in 0..30 {
            let (x, y, noise) = (spread(seed), seed as f64, 2.0);
            belief.update(&x, y, |_, _| noise);
            information.add_outer(&x, 1.0 / noise);
            axpy(&mut weighted, y / noise, &x);
        }
        let x = spread(99);
        let variance = dot(&belief.covariance().times(&x), &x);
        let (_, predicted) = belief.predict(&x);
        assert!((predicted / variance - 1.0).abs() < 1e-3, "{predicted} {variance}");
        let mean = information.inverse().unwrap().times(&weighted);
        for (a, b) in mean.into_iter().zip(belief.mean) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}
