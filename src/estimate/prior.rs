//! What is believed about a model before it has answered.
//!
//! The shipped belief was fitted to texts in many languages under many
//! published vocabularies (`tidegate-sim prior`): the mean of their
//! coefficients, how they differ together, and how each differs on its own.

use super::belief::Belief;
use super::features::{FEATURES, Feature};
use super::linear::{Matrix, Vector};
use super::prior_table::TABLE;
use super::regress;
use std::sync::{Arc, OnceLock};

/// Mean and standard deviation of what no text tells, in tokens: a byte of
/// tool definitions, a byte of a body that was not read, a message, a request.
const OTHERS: [(Feature, f64, f64); 5] = [
    (Feature::Text, 0.0, 0.5),
    (Feature::Tools, 0.22, 0.06),
    (Feature::Unseen, 0.25, 0.08),
    (Feature::Message, 4.0, 1.5),
    (Feature::Constant, 3.0, 3.0),
];

/// Vocabularies in the table.
const VOCABULARIES: usize = match TABLE.first() {
    Some((_, _, _, together)) => together.len(),
    None => 0,
};

/// What is believed about all features.
#[derive(Debug)]
pub(super) struct Prior {
    pub(super) belief: Belief,
    /// Standard deviations that the conservative value starts with.
    pub(super) margin: f64,
}

/// The inverse of a belief's covariance.
pub(super) fn information(belief: &Belief) -> Matrix {
    let diagonal = || Matrix::diagonal(&vec![1e4; belief.features().len()]);
    belief.covariance().inverse().unwrap_or_else(diagonal)
}

/// The shipped prior.
pub(super) fn shipped() -> &'static Arc<Prior> {
    static SHIPPED: OnceLock<Arc<Prior>> = OnceLock::new();
    SHIPPED.get_or_init(|| {
        let (mut mean, mut variance) = ([0.0; FEATURES], [0.0; FEATURES]);
        let mut set = |feature: Feature, value: f64, deviation: f64| {
            let at = feature as usize;
            if let (Some(mean), Some(variance)) = (mean.get_mut(at), variance.get_mut(at)) {
                (*mean, *variance) = (value, deviation * deviation);
            }
        };
        for (feature, value, apart, _) in TABLE {
            set(*feature, f64::from(*value), f64::from(*apart));
        }
        for (feature, value, deviation) in OTHERS {
            set(feature, value, deviation);
        }
        let mut covariance = Matrix::diagonal(&variance);
        for vocabulary in 0..VOCABULARIES {
            let mut direction: Vector = [0.0; FEATURES];
            for (feature, _, _, together) in TABLE {
                let value = together.get(vocabulary).copied().unwrap_or(0.0);
                if let Some(slot) = direction.get_mut(*feature as usize) {
                    *slot = f64::from(value);
                }
            }
            covariance.add_outer(&direction, 1.0);
        }
        let belief = Belief::new(mean.to_vec(), &covariance);
        Arc::new(Prior { belief, margin: regress::FIRST_MARGIN })
    })
}
