//! Bytes become tokens: the learned ratios, their uncertainty, and the
//! conservative value.
//!
//! The estimator of the dual-pool paper (arXiv 2604.08075, algorithm 1) keeps
//! for each category an exponential average of bytes per token and of its
//! deviation. Ours goes further in one way: the category is a mix. A request's
//! bytes are told apart by [`Class`], each class is converted at its own ratio,
//! and an answer corrects each class by its share of the request.

mod class;
mod learned;
mod output;
mod ratio;

pub use class::{CLASSES, Class, Sampler, Tally};
pub use learned::Learned;
pub use output::OUTPUTS_MAX;
pub(crate) use ratio::hash;
pub use ratio::{Key, Learner, RATIOS_MAX, Ratio, Ratios};

/// How the estimator learns; part of the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Bytes per token before anything is learned.
    pub start_ratio: f64,
    /// Weight of the old value in the exponential average, in (0, 1).
    pub decay: f64,
    /// γ: the conservative ratio is the mean less γ deviations, at least half
    /// the mean.
    pub margin: f64,
    /// Answers a ratio must have seen before it is used; until then the
    /// model's ratio, then that of all models, then `start_ratio` stands in.
    pub min_samples: f64,
    /// Least bytes per token that can be learned.
    pub ratio_min: f64,
    /// Most bytes per token that can be learned.
    pub ratio_max: f64,
    /// Template tokens that each chat message costs.
    pub message_tokens: u64,
}

impl Default for Settings {
    /// The decay is the paper's as its convergence table implies it; the
    /// margin is the least that keeps under-routes below 0.1 % in
    /// `tidegate-sim calibrate`.
    fn default() -> Self {
        Self {
            start_ratio: 4.0,
            decay: 0.95,
            margin: 1.0,
            min_samples: 1.0,
            ratio_min: 0.8,
            ratio_max: 16.0,
            message_tokens: 4,
        }
    }
}

/// Tokens of the template around a chat: begin of text, assistant header.
const CHAT_TOKENS: u64 = 3;

impl Settings {
    /// Template tokens of a chat of so many messages; none without messages.
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
    /// Tokens that the text will hardly exceed; at least `mean`.
    pub high: f64,
}
