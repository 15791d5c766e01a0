//! Symmetric positive definite matrices, and sums over vectors.
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

    /// Of these rows, each as long as there are rows.
    pub(super) fn from_rows(rows: impl Iterator<Item = Vec<f64>>) -> Self {
        Self(rows.collect())
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.0.iter().map(Vec::as_slice)
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

/// The same in single precision. A function of its own tells the compiler that nothing
/// overlaps: it makes vectors of it, and does not where it stands in a loop.
#[inline(never)]
pub(super) fn axpy_f32(row: &mut [f32], factor: f32, x: &[f32]) {
    for (slot, x) in row.iter_mut().zip(x) {
        *slot += factor * x;
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn spread(seed: u64) -> Vector {
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
}
