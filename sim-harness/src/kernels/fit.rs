//! Constants and corrections from a sweep.

use super::Precision;
use super::form::{Basis, Constants, FEATURES, axes, prior};
use super::gpu::Gpu;
use super::search::minimum;
use super::sweep::{Family, Sample};
use super::trees::{Forest, Growth};

/// How much work goes into a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As accurate as it gets: one and a half megabytes a GPU.
    Full,
    /// What the project ships: a fifth of a megabyte a GPU.
    Compact,
    /// Seconds less and percents more: for tests.
    Quick,
}

/// One family on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FamilyFit {
    /// Which.
    pub(super) family: Family,
    /// The form's constants by precision.
    pub(super) constants: Vec<(Precision, Constants)>,
    /// Of the logarithm of the form.
    pub(super) correction: Forest,
}

/// What was learned of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The GPU's data sheet, as it was when fitted.
    pub(super) gpu: Gpu,
    /// The families that were in the sweep.
    pub(super) families: Vec<FamilyFit>,
}

/// The precision that a shape's constants are kept for.
pub(super) fn precision_of(shape: &super::Shape) -> Precision {
    use super::Shape;
    match shape {
        Shape::Gemm { precision, .. } => *precision,
        Shape::Prefill(shape) => shape.kv,
        Shape::Decode(shape) => shape.kv,
        Shape::Moe(shape, _) => shape.precision,
        Shape::AllReduce { graph, .. } => {
            if *graph {
                Precision::Bf16
            } else {
                Precision::Fp8
            }
        }
    }
}

fn growth(family: Family, effort: Effort, rows: usize) -> Growth {
    let (trees, depth, rate) = match (effort, family.is_counted()) {
        (Effort::Full, true) => (2500, 7, 0.045),
        (Effort::Compact, true) => (400, 6, 0.15),
        (Effort::Quick, true) => (150, 6, 0.3),
        (_, false) => (150, 6, 0.2),
    };
    // A few hundred rows cannot fill deep trees.
    let depth = if rows < 400 { 3 } else { depth };
    Growth { trees, depth, rate, rows: 0.8, columns: 0.7, doubt: 1.0 }
}

impl Fit {
    /// Fits all families of a sweep of one GPU. The same input gives the same
    /// fit.
    pub fn new(gpu: &Gpu, samples: &[Sample], effort: Effort) -> Self {
        let families = Family::ALL
            .into_iter()
            .filter_map(|family| FamilyFit::new(gpu, family, samples, effort))
            .collect();
        Self { gpu: gpu.clone(), families }
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn family(&self, family: Family) -> Option<&FamilyFit> {
        self.families.iter().find(|fit| fit.family == family)
    }
}

impl FamilyFit {
    fn new(gpu: &Gpu, family: Family, samples: &[Sample], effort: Effort) -> Option<Self> {
        let rows: Vec<(Precision, Basis, f64)> = samples
            .iter()
            .filter(|sample| sample.shape.family() == family)
            .map(|sample| {
                let basis = Basis::new(gpu, &sample.shape);
                (precision_of(&sample.shape), basis, libm::log(sample.micros))
            })
            .collect();
        if rows.is_empty() {
            return None;
        }
        let mut constants = Vec::new();
        for precision in [Precision::Bf16, Precision::Fp8, Precision::Fp8Block] {
            let rows: Vec<(&Basis, f64)> = rows
                .iter()
                .filter(|row| row.0 == precision)
                .map(|(_, basis, log)| (basis, *log))
                .collect();
            if !rows.is_empty() {
                constants.push((precision, fit_constants(family, &rows)));
            }
        }
        let mut fit = Self { family, constants, correction: Forest::default() };
        let mut features = Vec::with_capacity(rows.len());
        let mut rests = Vec::with_capacity(rows.len());
        for (precision, basis, log) in &rows {
            let terms = basis.terms(&fit.constants(*precision)?);
            features.push(basis.features(&terms));
            rests.push(log - libm::log(terms.total()));
        }
        fit.correction = Forest::grow(&features, &rests, &growth(family, effort, rows.len()));
        Some(fit)
    }

    /// What the form leaves over, as a logarithm. Trees are cut half way between
    /// the sizes of a sweep; a size right on a cut takes from both sides.
    pub(super) fn correction(&self, features: &[f64; FEATURES]) -> f64 {
        let side = |by: f64| {
            let mut features = *features;
            for axis in axes(self.family) {
                if let Some(feature) = features.get_mut(*axis) {
                    *feature += by;
                }
            }
            self.correction.value(&features)
        };
        f64::midpoint(side(-NEAR), side(NEAR))
    }

    /// The constants for a precision, if it was in the sweep.
    pub(super) fn constants(&self, precision: Precision) -> Option<Constants> {
        self.constants.iter().find(|(of, _)| *of == precision).map(|(_, constants)| *constants)
    }
}

/// How near to a cut is on it. Octaves.
const NEAR: f64 = 0.1;

/// How many deviations of a constant weigh as much as one percent of error.
const TIGHT: f64 = 0.01;

fn fit_constants(family: Family, rows: &[(&Basis, f64)]) -> Constants {
    let (at, width) = prior(family);
    // A few thousand rows say as much as all of them.
    let step = rows.len().div_ceil(3000);
    let picked: Vec<&(&Basis, f64)> = rows.iter().step_by(step).collect();
    let value = |constants: &Constants| {
        let error: f64 = picked
            .iter()
            .map(|(basis, log)| (libm::log(basis.terms(constants).total()) - log).abs())
            .sum();
        let away: f64 = constants
            .iter()
            .zip(&at)
            .zip(&width)
            .map(|((constant, at), width)| {
                let deviations = (constant - at) / width;
                deviations * deviations
            })
            .sum();
        error / picked.len() as f64 + TIGHT * away
    };
    minimum(at, width, 500, value)
}
