//! What was learned as a text: exported by one instance, given to another in
//! its configuration.
//!
//! For each model it holds the coefficients, how well each is known, and the
//! margin of the conservative value. Models are named by a hash, and nothing
//! in it tells a prompt.

use super::belief::Belief;
use super::features::FEATURES;
use super::linear::{Matrix, axpy};
use super::prior::{self, Prior};
use super::{Key, Learner};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// What a model's numbers mean depends on the features and their order.
pub const GIVEN_LAYOUT: u64 = 1;

/// What is given counts as so many answers at the most: the model may have
/// changed since.
const GIVEN_ANSWERS: f64 = 16.0;

/// What was learned of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenModel {
    /// Answers that taught it.
    pub answers: f64,
    /// Standard deviations that the conservative value adds.
    pub margin: f64,
    /// Tokens for each count, in the order of the features.
    pub coefficients: [f64; FEATURES],
    /// The information about each coefficient: one over its variance, were
    /// the others known.
    pub known: [f64; FEATURES],
}

/// What a configuration says of models before they answer.
#[derive(Clone, Debug, Default)]
pub struct Given(BTreeMap<Key, (GivenModel, Arc<Prior>)>);

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        let models = |given: &Self| {
            given.0.iter().map(|(key, (model, _))| (*key, model.clone())).collect::<Vec<_>>()
        };
        models(self) == models(other)
    }
}

impl FromIterator<(Key, GivenModel)> for Given {
    fn from_iter<T: IntoIterator<Item = (Key, GivenModel)>>(models: T) -> Self {
        let information = || prior::information(&prior::shipped().belief);
        let mut shipped = None;
        let with_prior = |(key, model): (Key, GivenModel)| {
            let prior = Arc::new(model.prior(shipped.get_or_insert_with(information)));
            (key, (model, prior))
        };
        Self(models.into_iter().map(with_prior).collect())
    }
}

impl Given {
    /// The belief about a model that has not answered.
    pub(super) fn prior(&self, model: Key) -> Arc<Prior> {
        self.0
            .get(&model)
            .map_or_else(|| Arc::clone(prior::shipped()), |(_, prior)| Arc::clone(prior))
    }

    fn known(&self, model: Key) -> Option<&GivenModel> {
        self.0.get(&model).map(|(model, _)| model)
    }
}

impl GivenModel {
    /// What follows from it and the information of the shipped prior.
    fn prior(&self, shipped: &Matrix) -> Prior {
        let trust = GIVEN_ANSWERS / self.answers.max(GIVEN_ANSWERS);
        let mut information = Matrix::diagonal(&self.known.map(|known| known * trust));
        information.add(shipped);
        let belief = information.inverse().map_or_else(
            || prior::shipped().belief.clone(),
            |covariance| Belief::new(self.coefficients.to_vec(), &covariance),
        );
        Prior { belief, margin: self.margin }
    }
}

impl Learner {
    /// What this worker knows, as the JSON document that `estimator.learned`
    /// takes. Numbers are rounded; a few kilobytes for each model.
    pub fn export(&self) -> String {
        let mut out = format!("{{\"layout\":{GIVEN_LAYOUT},\"models\":{{");
        let mut first = true;
        for (key, model) in self.known_models() {
            let comma = if core::mem::take(&mut first) { "" } else { "," };
            let _ = write!(
                out,
                "{comma}\"{:016x}\":{{\"answers\":{},\"margin\":{},\"coefficients\":",
                key.0,
                model.answers.trunc(),
                rounded(model.margin)
            );
            list(&mut out, &model.coefficients);
            out.push_str(",\"known\":");
            list(&mut out, &model.known);
            out.push('}');
        }
        out.push_str("}}");
        out
    }

    fn known_models(&self) -> Vec<(Key, GivenModel)> {
        self.keys()
            .into_iter()
            .filter_map(|key| {
                let (model, sources) = self.learned_of(key)?;
                let mut known = [0.0; FEATURES];
                let mut answers = 0.0;
                for evidence in sources.own.into_iter().chain(sources.peers) {
                    axpy(&mut known, 1.0, &evidence.diagonal());
                    answers += evidence.answers;
                }
                if let Some(given) = self.given().known(key) {
                    axpy(&mut known, 1.0, &given.known);
                    answers += given.answers;
                }
                let (margin, coefficients) = (model.margin(sources), model.coefficients(sources));
                Some((key, GivenModel { answers, margin, coefficients, known }))
            })
            .collect()
    }
}

fn list(out: &mut String, numbers: &[f64]) {
    for (at, number) in numbers.iter().enumerate() {
        out.push(if at == 0 { '[' } else { ',' });
        let _ = write!(out, "{}", rounded(*number));
    }
    out.push(']');
}

/// To four digits. A number that is printed and read again is the same.
fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return 0.0;
    }
    let mut unit = 1.0;
    while number.abs() / unit >= 10_000.0 {
        unit *= 10.0;
    }
    if unit > 1.0 {
        return (number / unit).trunc() * unit;
    }
    let mut scale = 1.0;
    while number.abs() * scale < 1000.0 && scale < 1e6 {
        scale *= 10.0;
    }
    (number * scale + if number < 0.0 { -0.5 } else { 0.5 }).trunc() / scale
}
