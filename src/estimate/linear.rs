//! Symmetric positive definite matrices of one fixed size, and the Gaussian
//! beliefs about coefficients that are made of them.
//!
//! Every operation runs in one fixed order with `+ - * / sqrt` alone, so that
//! each build and platform gives the same bits.

use super::features::FEATURES;

/// One number for each feature.
pub(super) type Vector = [f64; FEATURES];

/// A square matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix(Vec<Vector>);

impl Matrix {
    pub(super) fn zero() -> Self {
        Self(vec![[0.0; FEATURES]; FEATURES])
    }

    pub(super) fn diagonal(values: &Vector) -> Self {
        let mut matrix = Self::zero();
        for (at, (row, value)) in matrix.0.iter_mut().zip(values).enumerate() {
            if let Some(slot) = row.get_mut(at) {
                *slot = *value;
            }
        }
        matrix
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Vector> {
        self.0.iter_mut()
    }

    /// Copies the lower triangle to the upper.
    pub(super) fn mirror(&mut self) {
        for at in 1..FEATURES {
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
    pub(super) fn add_outer(&mut self, x: &Vector, factor: f64) {
        for (row, xi) in self.0.iter_mut().zip(x) {
            if *xi != 0.0 {
                axpy(row, factor * xi, x);
            }
        }
    }

    /// The product with a vector; columns are taken for rows.
    pub(super) fn times(&self, x: &Vector) -> Vector {
        let mut out = [0.0; FEATURES];
        for (row, xi) in self.0.iter().zip(x) {
            // Most features of a text are zero: most scripts.
            if *xi != 0.0 {
                axpy(&mut out, *xi, row);
            }
        }
        out
    }

    /// The inverse, by Cholesky's factor; `None` if the matrix is not
    /// positive definite.
    pub(super) fn inverse(&self) -> Option<Self> {
        // Rows of the factor, each as long as its place needs.
        let mut factor: Vec<Vector> = Vec::with_capacity(FEATURES);
        for (at, row) in self.0.iter().enumerate() {
            let mut lower = [0.0; FEATURES];
            for (j, above) in factor.iter().enumerate() {
                let rest = row.get(j)? - dot(lower.get(..j)?, above.get(..j)?);
                *lower.get_mut(j)? = rest / above.get(j)?;
            }
            let pivot = row.get(at)? - dot(lower.get(..at)?, lower.get(..at)?);
            let sound = pivot > 0.0 && pivot.is_finite();
            if !sound {
                return None;
            }
            *lower.get_mut(at)? = pivot.sqrt();
            factor.push(lower);
        }
        // The factor's inverse, row by row; then its square.
        let mut inverse = Self::zero();
        let mut roots: Vec<Vector> = Vec::with_capacity(FEATURES);
        for (at, row) in factor.iter().enumerate() {
            let mut root = [0.0; FEATURES];
            *root.get_mut(at)? = 1.0;
            for (weight, earlier) in row.iter().zip(&roots) {
                axpy(&mut root, -weight, earlier);
            }
            let pivot = row.get(at)?;
            for value in &mut root {
                *value /= pivot;
            }
            inverse.add_outer(&root, 1.0);
            roots.push(root);
        }
        Some(inverse)
    }
}

/// Adds a multiple of `x`.
pub(super) fn axpy(out: &mut Vector, factor: f64, x: &Vector) {
    for (slot, value) in out.iter_mut().zip(x) {
        *slot += factor * value;
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// How uncertain coefficients are, together: in single precision, for it takes
/// most of the arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Covariance(Vec<[f32; FEATURES]>);

impl Covariance {
    /// The product with a vector; columns are taken for rows.
    fn times(&self, x: &Vector) -> [f32; FEATURES] {
        let mut out = [0.0; FEATURES];
        for (row, xi) in self.0.iter().zip(x) {
            // Most features of a text are zero: most scripts.
            if *xi != 0.0 {
                add_multiple(&mut out, *xi as f32, row);
            }
        }
        out
    }

    /// `xᵀ M x`.
    fn form(&self, x: &Vector) -> f64 {
        let mut used = [(0, 0.0); FEATURES];
        let nonzero = x.iter().copied().enumerate().filter(|(_, xi)| *xi != 0.0);
        let mut count = 0;
        for (slot, entry) in used.iter_mut().zip(nonzero) {
            *slot = entry;
            count += 1;
        }
        let used = used.get(..count).unwrap_or_default();
        let mut sum = 0.0;
        for (at, (i, xi)) in used.iter().enumerate() {
            let Some(row) = self.0.get(*i) else { return sum };
            let value = |j: usize| f64::from(row.get(j).copied().unwrap_or(0.0));
            let before = used.get(..at).unwrap_or_default().iter();
            let cross = before.fold(0.0, |sum, (j, xj)| sum + value(*j) * xj);
            sum += xi * (2.0 * cross + value(*i) * xi);
        }
        sum
    }
}

impl From<&Matrix> for Covariance {
    fn from(matrix: &Matrix) -> Self {
        Self(matrix.0.iter().map(|row| row.map(|value| value as f32)).collect())
    }
}

impl From<&Covariance> for Matrix {
    fn from(covariance: &Covariance) -> Self {
        Self(covariance.0.iter().map(|row| row.map(f64::from)).collect())
    }
}

/// Adds a multiple of the first of `x`. A function of its own tells the
/// compiler that nothing overlaps.
pub(super) fn add_multiple(out: &mut [f32], factor: f32, x: &[f32; FEATURES]) {
    let (chunks, rest) = out.as_chunks_mut::<8>();
    let full = chunks.len() * 8;
    for (chunk, x) in chunks.iter_mut().zip(x.as_chunks::<8>().0) {
        for (slot, x) in chunk.iter_mut().zip(x) {
            *slot += factor * x;
        }
    }
    for (slot, x) in rest.iter_mut().zip(x.iter().skip(full)) {
        *slot += factor * x;
    }
}

/// A belief about the coefficients of one model: their mean, and how far they
/// may be from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Belief {
    pub(super) mean: Vector,
    pub(super) covariance: Covariance,
}

impl Belief {
    /// What `x` is expected to give, and the variance of that.
    pub(super) fn predict(&self, x: &Vector) -> (f64, f64) {
        (dot(&self.mean, x), self.covariance.form(x).max(0.0))
    }

    /// Learns that `x` gave `y`. `noise` is the variance of what features do not explain, by what
    /// was expected and the variance of that.
    pub(super) fn update(&mut self, x: &Vector, y: f64, noise: impl FnOnce(f64, f64) -> f64) {
        let reach = self.covariance.times(x);
        let variance =
            reach.iter().zip(x).fold(0.0, |sum, (r, x)| sum + f64::from(*r) * x).max(0.0);
        let expected = dot(&self.mean, x);
        let total = variance + noise(expected, variance);
        let gain = (y - expected) / total;
        for (slot, r) in self.mean.iter_mut().zip(reach) {
            *slot += gain * f64::from(r);
        }
        for (row, r) in self.covariance.0.iter_mut().zip(reach) {
            add_multiple(row, -r / total as f32, &reach);
        }
    }
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
        let prior = Belief {
            mean: [0.2; FEATURES],
            covariance: (&Matrix::diagonal(&[0.04; FEATURES])).into(),
        };
        let mut belief = prior.clone();
        let mut information = Matrix::diagonal(&[25.0; FEATURES]);
        let mut weighted = [0.2 * 25.0; FEATURES];
        for seed in 0..30 {
            let (x, y, noise) = (spread(seed), seed as f64, 2.0);
            belief.update(&x, y, |_, _| noise);
            information.add_outer(&x, 1.0 / noise);
            axpy(&mut weighted, y / noise, &x);
        }
        let mean = information.inverse().unwrap().times(&weighted);
        for (a, b) in mean.into_iter().zip(belief.mean) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}
