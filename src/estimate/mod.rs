//! Bytes become tokens: what is counted in a text, what answers teach, and the
//! conservative value.
//!
//! Two estimators share the features and the facade [`Learner`]: `regress`,
//! the default, and `ema`, as the dual-pool paper publishes it.

mod belief;
mod ema;
mod features;
mod given;
mod key;
mod learned;
mod learner;
mod linear;
mod output;
mod prior;
mod prior_table;
mod regress;
mod sample;
mod table;
#[cfg(test)]
mod tests;

pub use features::{Class, FEATURES, Feature, Tally};
pub use given::{GIVEN_LAYOUT, Given, GivenModel};
pub use key::Key;
use key::KeyHasher;
pub(crate) use key::hash;
pub use learned::Learned;
pub use learner::Learner;
pub use output::OUTPUTS_MAX;
pub use sample::Sampler;

use std::sync::Arc;

/// Models that a worker learns; the one that was taught the longest time ago
/// makes place for a new one.
pub const MODELS_MAX: usize = 32;

/// Which estimator is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Tokens as a linear function of what is counted in the text.
    #[default]
    Regress,
    /// An average of bytes per token for each category of texts.
    Ema,
}

/// How the estimator learns; part of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Which estimator is used.
    pub kind: Kind,
    /// `ema`: bytes per token before anything is learned.
    pub start_ratio: f64,
    /// `ema`: weight of the old value in the exponential average, in (0, 1).
    pub decay: f64,
    /// `ema`: γ, the conservative ratio is the mean less γ deviations, at
    /// least half the mean.
    pub margin: f64,
    /// `ema`: answers a ratio must have seen before it is used; until then the
    /// model's ratio, then that of all models, then `start_ratio` stands in.
    pub min_samples: f64,
    /// Least bytes per token that a text can have.
    pub ratio_min: f64,
    /// Most bytes per token that a text can have.
    pub ratio_max: f64,
    /// `ema`: template tokens that each chat message costs.
    pub message_tokens: u64,
    /// `regress`: what is known of models before they answer.
    pub learned: Arc<Given>,
    /// Seconds between two log lines with what was learned; 0 for none.
    pub export_seconds: u64,
}

impl Default for Settings {
    /// The decay is the paper's as its convergence table implies it.
    fn default() -> Self {
        Self {
            kind: Kind::Regress,
            start_ratio: 4.0,
            decay: 0.95,
            margin: 1.0,
            min_samples: 1.0,
            ratio_min: 0.8,
            ratio_max: 16.0,
            message_tokens: 4,
            learned: Arc::default(),
            export_seconds: 0,
        }
    }
}

/// Tokens of the template around a chat: begin of text, assistant header.
const CHAT_TOKENS: u64 = 3;

impl Settings {
    /// Template tokens of a chat of so many messages, as `ema` has it; none
    /// without messages.
    pub fn template_tokens(&self, messages: u64) -> u64 {
        if messages == 0 {
            return 0;
        }
        messages.saturating_mul(self.message_tokens).saturating_add(CHAT_TOKENS)
    }
}

/// Tokens of one text, before its answer is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The expected tokens.
    pub mean: f64,
    /// The same, if what was learned is as far off as it may be: at least `mean`, at
    /// most `high`, and nearer to `mean` with each answer to such a text.
    pub mean_high: f64,
    /// Tokens that the text will hardly exceed; at least `mean`.
    pub high: f64,
}
