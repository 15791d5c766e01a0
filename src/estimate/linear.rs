//! Symmetric positive definite matrices, and the Gaussian beliefs about
//! coefficients that are made of them.
//!
//! Every operation runs in one fixed order with `+ - * / sqrt` alone, so that
//! each build and platform gives the same bits.

use super::features::FEATURES;

/// One number for each feature.
pub(super) type Vector = [f64; FEATURES];

/// A square matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix(Vec<Vec<f64>>);

impl Matrix {
    pub(super) fn diagonal(values: &[f64]) -> Self {
        let row = |(at, value): (usize, &f64)| {
            let mut row = vec![0.0; values.len()];
            if let Some(slot) = row.get_mut(at) {
                *slot = *value;
            }
            row
        };
        Self(values.iter().enumerate().map(row).collect())
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        self.0.iter_mut()
    }

    /// Copies the lower triangle to the upper.
    pub(super) fn mirror(&mut self) {
        for at in 1..self.0.len() {
            let (above, below) = self.0.split_at_mut_checked(at).unwrap_or_default();
            let Some(row) = below.first() else { return };
            for (target, value) in above.iter_mut().zip(row) {
                if let Some(slot) = target.get_mut(at) {
                    *slot = *value;
                }
            }
        }
    }

    /// Adds another matrix.
    pub(super) fn add(&mut self, other: &Self) {
        for (row, more) in self.0.iter_mut().zip(&other.0) {
            axpy(row, 1.0, more);
        }
    }

    /// Adds `factor · x xᵀ`.
    pub(super) fn add_outer(&mut self, x: &[f64], factor: f64) {
        for (row, xi) in self.0.iter_mut().zip(x) {
            if *xi != 0.0 {
                axpy(row, factor * xi, x);
            }
        }
    }

    /// The product with a vector; columns are taken for rows.
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.0.len()];
        for (row, xi) in self.0.iter().zip(x) {
            axpy(&mut out, *xi, row);
        }
        out
    }

    /// The inverse, by Cholesky's factor; `None` if the matrix is not
    /// positive definite.
    pub(super) fn inverse(&self) -> Option<Self> {
        let size = self.0.len();
        // Rows of the factor, each as long as its place needs.
        let mut factor: Vec<Vec<f64>> = Vec::with_capacity(size);
        for (at, row) in self.0.iter().enumerate() {
            let mut lower = Vec::with_capacity(at + 1);
            for (j, above) in factor.iter().enumerate() {
                let rest = row.get(j)? - dot(&lower, above.get(..j)?);
                lower.push(rest / above.get(j)?);
            }
            let pivot = row.get(at)? - dot(&lower, &lower);
            let sound = pivot > 0.0 && pivot.is_finite();
            if !sound {
                return None;
            }
            lower.push(pivot.sqrt());
            factor.push(lower);
        }
        // The factor's inverse, row by row; then its square.
        let mut inverse = Self::diagonal(&vec![0.0; size]);
        let mut roots: Vec<Vec<f64>> = Vec::with_capacity(size);
        for (at, row) in factor.iter().enumerate() {
            let mut root = vec![0.0; at];
            root.push(1.0);
            for (weight, earlier) in row.iter().zip(&roots) {
                axpy(&mut root, -weight, earlier);
            }
            let pivot = row.get(at)?;
            for value in &mut root {
                *value /= pivot;
            }
            for (i, (row, value)) in inverse.0.iter_mut().zip(&root).enumerate() {
                axpy(row, *value, root.get(..=i)?);
            }
            roots.push(root);
        }
        inverse.mirror();
        Some(inverse)
    }
}

/// Adds a multiple of `x` to as many of the first.
pub(super) fn axpy(out: &mut [f64], factor: f64, x: &[f64]) {
    for (slot, value) in out.iter_mut().zip(x) {
        *slot += factor * value;
    }
}

/// The product of two vectors, as far as both go. Four sums, for one would wait for
/// itself at each step.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let common = a.len().min(b.len());
    let [a, b] = [a, b].map(|all| all.get(..common).unwrap_or_default());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).fold(0.0, |sum, (a, b)| sum + a * b);
    let [first, second, third, fourth] = sums;
    (first + second) + (third + fourth) + rest
}

/// Single precision numbers that are worked on together; rows of them are whole
/// chunks, with zeros at the end.
const CHUNK: usize = 8;
/// The longest row.
const ROW_MAX: usize = FEATURES.next_multiple_of(CHUNK);

// Functions of their own tell the compiler that nothing overlaps: it makes vectors of
// them, and does not where they stand in a loop.

/// Adds a multiple of `x` to as many of the first.
#[inline(never)]
pub(super) fn add(row: &mut [f32], factor: f32, x: &[f32]) {
    for (slot, x) in row.iter_mut().zip(x) {
        *slot += factor * x;
    }
}

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
        for row in &covariance.0 {
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
        Matrix(self.covariance.chunks_exact(self.width.max(1)).map(wide).collect())
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
                add(&mut reach, *xi as f32, row);
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
            add(row, less * r, &reach);
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
    use super::*;

    fn spread(seed: u64) -> Vector {
        let mut state = seed;
        core::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24)
        })
    }

    #[test]
    fn an_inverse_undoes_its_matrix() {
        let mut matrix = Matrix::diagonal(&[0.5; FEATURES]);
        for seed in 0..20 {
            matrix.add_outer(&spread(seed), 1.0 + seed as f64);
        }
        let inverse = matrix.inverse().unwrap();
        for (at, row) in matrix.0.iter().enumerate() {
            for (j, value) in inverse.times(row).into_iter().enumerate() {
                let expected = if at == j { 1.0 } else { 0.0 };
                assert!((value - expected).abs() < 1e-9, "{at} {j}: {value}");
            }
        }
        assert!(Matrix::diagonal(&[-1.0; FEATURES]).inverse().is_none());
    }

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
