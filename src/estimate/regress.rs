//! `regress`: the tokens of a request as a linear function of its features,
//! learned for each model by recursive least squares.
//!
//! What answers taught is kept in information form, so that the parts of
//! several workers add up; the belief that estimates are made from follows
//! each own answer at once and the sum of all parts now and then.

use super::belief::Belief;
use super::features::FEATURES;
use super::linear::{Vector, axpy, axpy_f32, dot};
use super::prior::{self, Prior};
use super::table::{Table, Taught};
use super::{Estimate, MODELS_MAX};
use crate::time::{Instant, Span};
use std::sync::Arc;

/// The part of an answer's tokens that features do not explain, as a share.
const NOISE: f64 = 0.025;
/// Variance of what does not grow with the text: template details, rounding.
const NOISE_FIXED: f64 = 8.0;
/// An answer further off than so many standard deviations weighs less, by as
/// much as it is further off.
const WINSOR: f64 = 2.5;
/// When a model has so much evidence, half of it is forgotten.
const MEMORY: f64 = 1024.0;
/// Squares of standardised residuals that are this large on average over some
/// twenty answers speak of another tokenizer under the same name: seven eighths
/// of the evidence are forgotten, and what the configuration gave.
const SURPRISED: f64 = 8.0;
const SURPRISE_STEP: f64 = 0.05;
/// What one answer can do to that average.
const SQUARE_MAX: f64 = 25.0;
/// Share of the answers that the conservative value is to cover.
const LEVEL: f64 = 0.83;
/// Standard deviations that are added before residuals are known; counts as
/// [`FIRST_WEIGHT`] answers.
pub(super) const FIRST_MARGIN: f64 = 1.9;
const FIRST_WEIGHT: f64 = 40.0;
/// Residuals are counted in steps of an eighth of a standard deviation.
const STEPS: f64 = 8.0;
/// The last step holds all that is larger.
pub(super) const RESIDUALS: usize = 48;

/// What answers taught about one model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evidence {
    /// `Σ w x xᵀ`, the lower triangle row by row.
    pub(super) information: Vec<f32>,
    /// `Σ w x (y − xᵀ m)`, `m` the mean of the shipped prior.
    pub(super) weighted: Vec<f32>,
    /// How many answers were so many steps above their estimate.
    pub(super) residuals: [f32; RESIDUALS],
    /// Answers, less those forgotten.
    pub(super) answers: f64,
    /// When it was last taught.
    pub(super) taught: Instant,
}

/// Share of the evidence about each coefficient that is added to it alone.
/// Sums in single precision err; of like prompts they err alike, and without
/// doubt would come to contradict themselves.
const DOUBT: f64 = 1e-4;
/// Two workers' evidence that is so far apart in time weighs 1 : 2.
const HALF_TRUST: Span = Span::from_secs(600);

/// Numbers in a lower triangle.
pub(super) const TRIANGLE: usize = FEATURES * (FEATURES + 1) / 2;

impl Evidence {
    pub(super) fn none(taught: Instant) -> Self {
        Self {
            information: vec![0.0; TRIANGLE],
            weighted: vec![0.0; FEATURES],
            residuals: [0.0; RESIDUALS],
            answers: 0.0,
            taught,
        }
    }

    /// All its numbers but `answers`, in a fixed order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = &f32> {
        self.information.iter().chain(&self.weighted).chain(&self.residuals)
    }

    /// The same, to be set.
    pub(super) fn numbers_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        self.information.iter_mut().chain(&mut self.weighted).chain(&mut self.residuals)
    }

    /// Itself, if it can have come about by learning.
    pub(super) fn sane(self) -> Option<Self> {
        let finite = self.numbers().all(|number| number.abs() < 1e30);
        let counts = self.residuals.iter().all(|count| *count >= 0.0);
        let answers = (0.0..=1e15).contains(&self.answers);
        (finite && counts && answers).then_some(self)
    }

    /// Adds what another worker was taught, at this weight.
    pub(super) fn add(&mut self, other: &Self, weight: f64) {
        for (mine, theirs) in self.numbers_mut().zip(other.numbers()) {
            *mine += theirs * weight as f32;
        }
        self.answers += other.answers * weight;
        self.taught = self.taught.max(other.taught);
    }

    fn learn(&mut self, x: &Vector, excess: f64, weight: f64) {
        let short = x.map(|xi| xi as f32);
        let mut rest = self.information.as_mut_slice();
        for (at, xi) in x.iter().enumerate() {
            let (row, next) = rest.split_at_mut_checked(at + 1).unwrap_or_default();
            if *xi != 0.0 {
                axpy_f32(row, (weight * xi) as f32, &short);
            }
            rest = next;
        }
        for (slot, xi) in self.weighted.iter_mut().zip(x) {
            *slot += (weight * excess * xi) as f32;
        }
    }

    fn count(&mut self, deviations: f64) {
        let step = (deviations.max(0.0) * STEPS) as usize;
        if let Some(slot) = self.residuals.get_mut(step.min(RESIDUALS - 1)) {
            *slot += 1.0;
        }
        self.answers += 1.0;
    }

    /// Keeps a share of everything.
    fn forget(&mut self, share: f32) {
        self.numbers_mut().for_each(|number| *number *= share);
        self.answers *= f64::from(share);
    }

    /// The diagonal of the information.
    pub(super) fn diagonal(&self) -> Vector {
        core::array::from_fn(|at| {
            f64::from(self.row(at).and_then(|row| row.last()).copied().unwrap_or(0.0))
        })
    }

    /// A row of the information, up to the diagonal.
    fn row(&self, at: usize) -> Option<&[f32]> {
        let start = at * (at + 1) / 2;
        self.information.get(start..=start + at)
    }

    /// The belief about these features that follows from a prior and all this evidence,
    /// which is about no others; `None` if the evidence contradicts itself, as only a
    /// broken part can.
    fn belief(all: &[&Self], prior: &Prior, features: &[u8]) -> Option<Belief> {
        let before = prior.belief.part(features);
        // The usual first answer: two inversions would give the same.
        if all.iter().all(|evidence| evidence.answers == 0.0) {
            return Some(before);
        }
        let shipped = shipped_mean(features);
        let mut information = prior::information(&before);
        // In deviations from the shipped mean, which are small.
        let mut mean = before.mean().to_vec();
        axpy(&mut mean, -1.0, &shipped);
        mean = information.times(&mean);
        for evidence in all {
            for (k, (row, at)) in information.rows_mut().zip(features).enumerate() {
                let known = evidence.row(usize::from(*at))?;
                for (slot, other) in row.iter_mut().zip(features).take(k + 1) {
                    *slot += f64::from(*known.get(usize::from(*other))?);
                }
                if let (Some(slot), Some(more)) = (row.get_mut(k), known.last()) {
                    *slot += DOUBT * f64::from(*more);
                }
            }
            for (slot, at) in mean.iter_mut().zip(features) {
                *slot += f64::from(*evidence.weighted.get(usize::from(*at))?);
            }
        }
        information.mirror();
        let covariance = information.inverse()?;
        mean = covariance.times(&mean);
        axpy(&mut mean, 1.0, &shipped);
        Some(before.with(mean, &covariance))
    }
}

/// The shipped mean of the coefficients of these features.
fn shipped_mean(features: &[u8]) -> Vec<f64> {
    let all = prior::shipped().belief.mean();
    features.iter().filter_map(|at| all.get(usize::from(*at)).copied()).collect()
}

impl Taught for Evidence {
    fn taught(&self) -> Instant {
        self.taught
    }
}

/// The evidence about every model that is taught.
pub(super) type EvidenceTable = Table<Evidence, MODELS_MAX>;

impl EvidenceTable {
    /// What all of them were taught, each less the longer it went untaught next
    /// to the freshest: a worker that is idle or dead forgets nothing by itself.
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut sum = Self::default();
        for (key, evidence) in all.clone().flat_map(Self::sorted) {
            let taught = all.clone().filter_map(|one| Some(one.get(key)?.taught)).max();
            let age = taught.map_or(Span::default(), |taught| taught.since(evidence.taught));
            let weight = 1.0 / (1.0 + age.as_secs_f64() / HALF_TRUST.as_secs_f64());
            if sum.get(key).is_none() {
                sum.set(key, Evidence::none(evidence.taught));
            }
            if let Some(mine) = sum.get_mut(key) {
                mine.add(evidence, weight);
            }
        }
        sum
    }
}

/// One model as a worker knows it: the belief, and the evidence behind it.
#[derive(Clone, Debug)]
pub(super) struct Model {
    prior: Arc<Prior>,
    /// About the features that its texts had so far. Most texts have none of most
    /// scripts, and arithmetic on the others would be for nothing.
    belief: Belief,
    /// Answers of other workers that the belief counts in.
    heard: f64,
    /// How large the squares of standardised residuals were of late.
    surprise: f64,
    /// When they last were too large: what others were taught before is not
    /// believed any more.
    surprised: Instant,
}

/// What taught about one model: this worker's own answers, and others'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) own: Option<&'a Evidence>,
    pub(super) peers: Option<&'a Evidence>,
}

impl Model {
    pub(super) fn new(prior: Arc<Prior>) -> Self {
        Self {
            belief: prior.belief.part(&[]),
            prior,
            heard: 0.0,
            surprise: 1.0,
            surprised: Instant::default(),
        }
    }

    /// Tokens of a request with these features.
    pub(super) fn estimate(&mut self, sources: Sources<'_>, x: &Vector) -> Estimate {
        self.cover(sources, x);
        estimate(&self.belief, self.margin(sources), x)
    }

    /// Standard deviations that the conservative value adds.
    pub(super) fn margin(&self, sources: Sources<'_>) -> f64 {
        margin([sources.own, sources.peers], &self.prior)
    }

    /// The coefficients of all features, whether texts had them or not.
    pub(super) fn coefficients(&self, sources: Sources<'_>) -> Vector {
        let belief = self.believed(sources, self.prior.belief.features());
        core::array::from_fn(|at| belief.mean().get(at).copied().unwrap_or(0.0))
    }

    /// Learns that a request with these features took so many tokens.
    pub(super) fn learn(
        &mut self,
        own: &mut Evidence,
        peers: Option<&Evidence>,
        x: &Vector,
        tokens: f64,
    ) {
        self.cover(Sources { own: Some(own), peers }, x);
        let (mut noise, mut deviations) = (0.0, 0.0);
        self.belief.update(x, tokens, |mean, variance| {
            let mean = mean.max(1.0);
            deviations = (tokens - mean) / (variance + self::noise(mean)).sqrt();
            noise = self::noise(mean.max(tokens / 2.0));
            let far = (tokens - mean).abs() / (variance + noise).sqrt();
            noise *= (far / WINSOR).max(1.0);
            noise
        });
        own.count(deviations);
        let excess = tokens - dot(prior::shipped().belief.mean(), x);
        own.learn(x, excess, 1.0 / noise);
        let square = (deviations * deviations).min(SQUARE_MAX);
        self.surprise += SURPRISE_STEP * (square - self.surprise);
        let surprised = self.surprise > SURPRISED;
        if surprised {
            self.prior = Arc::clone(prior::shipped());
            self.surprised = own.taught;
        }
        if surprised || own.answers >= MEMORY {
            self.surprise = 1.0;
            own.forget(if surprised { 0.125 } else { 0.5 });
            self.rebuild(Sources { own: Some(own), peers }, &NONE);
        }
    }

    /// Takes in what other workers learned, once it is news.
    pub(super) fn hear(&mut self, sources: Sources<'_>) {
        let heard = self.trusted(sources.peers).map_or(0.0, |peers| peers.answers);
        let known = self.heard + sources.own.map_or(0.0, |own| own.answers);
        if (heard - self.heard).abs() > known * NEWS {
            self.rebuild(sources, &NONE);
        }
    }

    /// Makes the belief one about the features of this text, too. Each belief is about
    /// all features that its evidence is about: nothing is known of one without the others.
    fn cover(&mut self, sources: Sources<'_>, x: &Vector) {
        if !self.belief.covers(x) {
            self.rebuild(sources, x);
        }
    }

    /// The belief that follows from all evidence, about the features so far and this text's.
    #[cold]
    fn rebuild(&mut self, sources: Sources<'_>, x: &Vector) {
        self.heard = self.trusted(sources.peers).map_or(0.0, |peers| peers.answers);
        let mut wanted = *x;
        for evidence in sources.own.into_iter().chain(sources.peers) {
            axpy(&mut wanted, 1.0, &evidence.diagonal());
        }
        for at in self.belief.features() {
            if let Some(slot) = wanted.get_mut(usize::from(*at)) {
                *slot = 1.0;
            }
        }
        let features: Vec<u8> =
            (0_u8..).zip(wanted).filter(|(_, w)| *w != 0.0).map(|(at, _)| at).collect();
        self.belief = self.believed(sources, &features);
    }

    /// What is believed about these features.
    fn believed(&self, sources: Sources<'_>, features: &[u8]) -> Belief {
        let own: Vec<&Evidence> = sources.own.into_iter().collect();
        let all: Vec<&Evidence> = own.iter().copied().chain(self.trusted(sources.peers)).collect();
        // Evidence that contradicts itself is a broken part's: one's own is
        // left, or nothing.
        Evidence::belief(&all, &self.prior, features)
            .or_else(|| Evidence::belief(&own, &self.prior, features))
            .unwrap_or_else(|| self.prior.belief.part(features))
    }

    fn trusted<'a>(&self, peers: Option<&'a Evidence>) -> Option<&'a Evidence> {
        peers.filter(|peers| peers.taught >= self.surprised)
    }
}

/// A text without features.
const NONE: Vector = [0.0; FEATURES];

/// Peers' answers are counted in when they are more than this share of the
/// answers known.
const NEWS: f64 = 0.1;

fn noise(tokens: f64) -> f64 {
    NOISE * NOISE * tokens * tokens + NOISE_FIXED
}

fn margin(evidence: [Option<&Evidence>; 2], prior: &Prior) -> f64 {
    let counts = |at: usize| -> f64 {
        evidence
            .iter()
            .flatten()
            .filter_map(|one| one.residuals.get(at))
            .map(|n| f64::from(*n))
            .sum()
    };
    let answers: f64 = (0..RESIDUALS).map(counts).sum();
    let mut left = answers * LEVEL;
    let mut quantile = 0.0;
    for at in 0..RESIDUALS {
        left -= counts(at);
        quantile = (at + 1) as f64 / STEPS;
        if left <= 0.0 {
            break;
        }
    }
    (answers * quantile + FIRST_WEIGHT * prior.margin) / (answers + FIRST_WEIGHT)
}

/// Tokens of a request with these features.
pub(super) fn estimate(belief: &Belief, margin: f64, x: &Vector) -> Estimate {
    let (mean, variance) = belief.predict(x);
    let mean = mean.max(1.0);
    let above = |variance: f64| mean + margin * variance.sqrt();
    Estimate { mean, mean_high: above(variance), high: above(variance + noise(mean)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of the kind number `kind`: four features of their own, and the last two.
    fn text(kind: usize, n: u64) -> Vector {
        core::array::from_fn(|at| {
            let common = at + 2 >= FEATURES;
            if !common && at / 4 != kind {
                return 0.0;
            }
            ((n * 7 + at as u64 * 11) % 23 + 1) as f64
        })
    }

    /// A belief about the features that texts had is the one about all features.
    #[test]
    fn features_that_no_text_had_change_nothing() {
        let (mut own, mut peers) =
            (Evidence::none(Instant::default()), Evidence::none(Instant::default()));
        let mut other = Model::new(Arc::clone(prior::shipped()));
        for n in 0..30 {
            other.learn(&mut peers, None, &text(3, n), 900.0 + n as f64);
        }
        let mut model = Model::new(Arc::clone(prior::shipped()));
        for (kind, peers) in [(1, None), (2, None), (1, Some(&peers)), (5, Some(&peers))] {
            for n in 0..9 {
                let sources = Sources { own: Some(&own), peers };
                let x = text(kind, n);
                model.hear(sources);
                let mut all = model.clone();
                all.rebuild(sources, &[1.0; FEATURES]);
                assert_eq!(all.belief.features().len(), FEATURES);
                let (few, all) = (model.estimate(sources, &x), all.estimate(sources, &x));
                assert!(model.belief.features().len() < FEATURES / 2);
                for (few, all) in
                    [(few.mean, all.mean), (few.mean_high, all.mean_high), (few.high, all.high)]
                {
                    assert!((few / all - 1.0).abs() < 1e-3, "kind {kind}, {n}: {few} {all}");
                }
                model.learn(&mut own, peers, &x, 700.0 + 40.0 * (n + kind as u64) as f64);
                if n == 4 {
                    // An answer to what was never estimated.
                    model.learn(&mut own, peers, &text(kind + 10, n), 1500.0);
                }
            }
        }
    }
}
