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
            for (j, (weight, earlier)) in row.iter().zip(&roots).enumerate() {
                axpy(&mut root, -weight, earlier.get(..=j)?);
            }
            let pivot = row.get(at)?;
            for value in &mut root {
                *value /= pivot;
            }
            for (i, (row, value)) in inverse.0.iter_mut().zip(&root).enumerate().take(at + 1) {
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

/// The product of two vectors of one length. Four sums, for one would wait for
/// itself at each step.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
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

/// One number for each feature in single precision, and zeros that make whole
/// chunks of them, where a processor's vectors start.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(16))]
pub(super) struct Row([f32; FEATURES.next_multiple_of(CHUNK)]);

/// Numbers that are worked on together.
const CHUNK: usize = 8;

// Functions of their own tell the compiler that nothing overlaps: it makes vectors of
// them, and does not where they stand in a loop.
impl Row {
    const ZERO: Self = Self([0.0; _]);

    /// Adds a multiple of another.
    #[inline(never)]
    fn add(&mut self, factor: f32, x: &Self) {
        for (slot, x) in self.0.iter_mut().zip(&x.0) {
            *slot += factor * x;
        }
    }

    /// The product with another.
    #[inline(never)]
    fn dot(&self, x: &Self) -> f32 {
        let mut sums = [0.0; CHUNK];
        for (row, x) in self.0.as_chunks::<CHUNK>().0.iter().zip(x.0.as_chunks::<CHUNK>().0) {
            for ((sum, value), x) in sums.iter_mut().zip(row).zip(x) {
                *sum += value * x;
            }
        }
        sums.iter().sum()
    }

    /// Adds a multiple of its first to as many numbers.
    #[inline(never)]
    pub(super) fn add_to(&self, out: &mut [f32], factor: f32) {
        let (chunks, rest) = out.as_chunks_mut::<CHUNK>();
        let full = chunks.len() * CHUNK;
        for (chunk, x) in chunks.iter_mut().zip(self.0.as_chunks::<CHUNK>().0) {
            for (slot, x) in chunk.iter_mut().zip(x) {
                *slot += factor * x;
            }
        }
        for (slot, x) in rest.iter_mut().zip(self.0.iter().skip(full)) {
            *slot += factor * x;
        }
    }
}

impl From<&Vector> for Row {
    fn from(x: &Vector) -> Self {
        let mut row = Self::ZERO;
        for (slot, value) in row.0.iter_mut().zip(x) {
            *slot = *value as f32;
        }
        row
    }
}

/// How uncertain coefficients are, together: in single precision, for it takes
/// most of the arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Covariance(Vec<Row>);

impl Covariance {
    /// The rows of features that a text has, with the feature. Most have none of
    /// most scripts.
    fn used<'a>(&'a self, x: &'a Vector) -> impl Iterator<Item = (f64, &'a Row)> {
        let rows = self.0.iter().zip(x);
        rows.filter(|(_, xi)| **xi != 0.0).map(|(row, xi)| (*xi, row))
    }

    /// The product with a vector; columns are taken for rows.
    fn times(&self, x: &Vector) -> Row {
        let mut out = Row::ZERO;
        for (xi, row) in self.used(x) {
            out.add(xi as f32, row);
        }
        out
    }

    /// `xᵀ M x`.
    fn form(&self, x: &Vector) -> f64 {
        let short = Row::from(x);
        self.used(x).fold(0.0, |sum, (xi, row)| sum + xi * f64::from(row.dot(&short)))
    }
}

impl From<&Row> for Vector {
    fn from(row: &Row) -> Self {
        let mut x = [0.0; FEATURES];
        for (slot, value) in x.iter_mut().zip(&row.0) {
            *slot = f64::from(*value);
        }
        x
    }
}

impl From<&Matrix> for Covariance {
    fn from(matrix: &Matrix) -> Self {
        Self(matrix.0.iter().map(Row::from).collect())
    }
}

impl From<&Covariance> for Matrix {
    fn from(covariance: &Covariance) -> Self {
        Self(covariance.0.iter().map(Vector::from).collect())
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
        let wide = Vector::from(&reach);
        let variance = dot(&wide, x).max(0.0);
        let expected = dot(&self.mean, x);
        let total = variance + noise(expected, variance);
        axpy(&mut self.mean, (y - expected) / total, &wide);
        let less = (-1.0 / total) as f32;
        for (row, r) in self.covariance.0.iter_mut().zip(reach.0) {
            row.add(less * r, &reach);
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
        let x = spread(99);
        let variance = dot(&Matrix::from(&belief.covariance).times(&x), &x);
        let (_, predicted) = belief.predict(&x);
        assert!((predicted / variance - 1.0).abs() < 1e-3, "{predicted} {variance}");
        let mean = information.inverse().unwrap().times(&weighted);
        for (a, b) in mean.into_iter().zip(belief.mean) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}
