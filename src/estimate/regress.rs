//! `regress`: the tokens of a request as a linear function of its features,
//! learned for each model by recursive least squares.
//!
//! What answers taught is kept in information form, so that the parts of
//! several workers add up; the belief that estimates are made from follows
//! each own answer at once and the sum of all parts now and then.

use super::features::FEATURES;
use super::linear::{Belief, Row, Vector, axpy, dot};
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
const FIRST_MARGIN: f64 = 1.9;
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
        let short = Row::from(x);
        let mut rest = self.information.as_mut_slice();
        for (at, xi) in x.iter().enumerate() {
            let (row, next) = rest.split_at_mut_checked(at + 1).unwrap_or_default();
            if *xi != 0.0 {
                let factor = (weight * xi) as f32;
                short.add_to(row, factor);
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
        let mut place = 0;
        core::array::from_fn(|at| {
            let value = self.information.get(place + at).copied().unwrap_or(0.0);
            place += at + 1;
            f64::from(value)
        })
    }

    /// The belief that follows from a prior and all this evidence; `None` if
    /// the evidence contradicts itself, as only a broken part can.
    fn belief(all: &[&Self], prior: &Prior) -> Option<Belief> {
        let shipped = &prior::shipped().belief.mean;
        let mut information = prior.information().clone();
        // In deviations from the shipped mean, which are small.
        let mut mean: Vector =
            core::array::from_fn(|at| value(&prior.belief.mean, at) - value(shipped, at));
        mean = information.times(&mean);
        for evidence in all {
            let mut rest = evidence.information.as_slice();
            for (at, row) in information.rows_mut().enumerate() {
                let (head, next) = rest.split_at_checked(at + 1)?;
                for (slot, more) in row.iter_mut().zip(head) {
                    *slot += f64::from(*more);
                }
                if let (Some(slot), Some(more)) = (row.get_mut(at), head.last()) {
                    *slot += DOUBT * f64::from(*more);
                }
                rest = next;
            }
            for (slot, more) in mean.iter_mut().zip(&evidence.weighted) {
                *slot += f64::from(*more);
            }
        }
        information.mirror();
        let covariance = information.inverse()?;
        mean = covariance.times(&mean);
        axpy(&mut mean, 1.0, shipped);
        Some(Belief { mean, covariance: (&covariance).into() })
    }
}

fn value(vector: &Vector, at: usize) -> f64 {
    vector.get(at).copied().unwrap_or(0.0)
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
    belief: Belief,
    /// Answers of other workers that the belief counts in.
    heard: f64,
    /// How large the squares of standardised residuals were of late.
    surprise: f64,
    /// When they last were too large: what others were taught before is not
    /// believed any more.
    surprised: Instant,
}

impl Model {
    pub(super) fn new(prior: Arc<Prior>) -> Self {
        Self {
            belief: prior.belief.clone(),
            prior,
            heard: 0.0,
            surprise: 1.0,
            surprised: Instant::default(),
        }
    }

    pub(super) fn belief(&self) -> &Belief {
        &self.belief
    }

    pub(super) fn prior(&self) -> &Prior {
        &self.prior
    }

    /// Learns that a request with these features took so many tokens.
    pub(super) fn learn(
        &mut self,
        own: &mut Evidence,
        peers: Option<&Evidence>,
        x: &Vector,
        tokens: f64,
    ) {
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
        let excess = tokens - dot(&prior::shipped().belief.mean, x);
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
            self.rebuild(Some(own), peers);
        }
    }

    /// Takes in what other workers learned, once it is news.
    pub(super) fn hear(&mut self, own: Option<&Evidence>, peers: Option<&Evidence>) {
        let heard = self.believed(peers).map_or(0.0, |peers| peers.answers);
        let known = self.heard + own.map_or(0.0, |own| own.answers);
        if (heard - self.heard).abs() > known * NEWS {
            self.rebuild(own, peers);
        }
    }

    pub(super) fn rebuild(&mut self, own: Option<&Evidence>, peers: Option<&Evidence>) {
        let peers = self.believed(peers);
        let all: Vec<&Evidence> = own.into_iter().chain(peers).collect();
        self.heard = peers.map_or(0.0, |peers| peers.answers);
        // Evidence that contradicts itself is a broken part's: one's own is
        // left, or nothing.
        let own: Vec<&Evidence> = own.into_iter().collect();
        let belief = Evidence::belief(&all, &self.prior)
            .or_else(|| Evidence::belief(&own, &self.prior))
            .unwrap_or_else(|| self.prior.belief.clone());
        self.belief = belief;
    }

    fn believed<'a>(&self, peers: Option<&'a Evidence>) -> Option<&'a Evidence> {
        peers.filter(|peers| peers.taught >= self.surprised)
    }
}

/// Peers' answers are counted in when they are more than this share of the
/// answers known.
const NEWS: f64 = 0.1;

fn noise(tokens: f64) -> f64 {
    NOISE * NOISE * tokens * tokens + NOISE_FIXED
}

/// Standard deviations that the conservative value adds.
pub(super) fn margin(evidence: [Option<&Evidence>; 2], prior: &Prior) -> f64 {
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

/// The margin of a model of which no residual is known.
pub(super) const fn first_margin() -> f64 {
    FIRST_MARGIN
}
