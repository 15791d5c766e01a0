//! Who chooses a request's pool: the core's gate, or a rule that others have, to
//! compare it with.
//!
//! A rule only chooses. The gate is asked all the same, and told what was chosen:
//! so limits, accounts and learning, and what counts as under- and over-routed,
//! are the same whoever chose.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate::config::{Model, Pool};
use tidegate::pool::{self, Budget};

/// Bytes of a text that `bytes/4` takes for one token.
const BYTES_PER_TOKEN: u64 = 4;
/// Requests for each replica from which on `spillover` sends others away, where
/// none is said: the default that fleet-sim documents.
const SPILLOVER: u32 = 2;

/// How a pool is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// By the core's gate, with all that its document says.
    #[default]
    Tidegate,
    /// Everything goes to the largest pool.
    Homogeneous,
    /// As the gate does, by lengths that nobody can know: the true prompt, and the
    /// true output where no cap is named. A cap counts whole: engines refuse by it.
    Oracle,
    /// As the gate does, with a token for every four bytes of text, without a margin.
    BytesBy4,
    /// By the gate's estimate of the prompt alone.
    InputOnly,
    /// By the gate's estimate; what a smaller pool should get goes to the largest
    /// one while so many requests or more for each of its replicas are in it,
    /// waiting ones included. Nobody asks whether there is room in the largest, and
    /// no second mark ends it. As `SpilloverRouter` of vLLM semantic-router's
    /// fleet-sim, which is told true lengths, however.
    Spillover(u32),
}

impl Policy {
    /// All of them, the gate first.
    pub const ALL: [Self; 6] = [
        Self::Tidegate,
        Self::Oracle,
        Self::BytesBy4,
        Self::InputOnly,
        Self::Spillover(SPILLOVER),
        Self::Homogeneous,
    ];

    /// Words that are read as a policy.
    pub const ALLOWED: &'static str = "tidegate, oracle, bytes/4, input-only, spillover, spillover:N (1 and more requests for each \
         replica), homogeneous";
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tidegate => f.write_str("tidegate"),
            Self::Homogeneous => f.write_str("homogeneous"),
            Self::Oracle => f.write_str("oracle"),
            Self::BytesBy4 => f.write_str("bytes/4"),
            Self::InputOnly => f.write_str("input-only"),
            Self::Spillover(SPILLOVER) => f.write_str("spillover"),
            Self::Spillover(most) => write!(f, "spillover:{most}"),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let most = |text: &str| text.parse().ok().filter(|most| *most > 0);
        let spillover = text.strip_prefix("spillover:").and_then(most).map(Self::Spillover);
        let named = || Self::ALL.into_iter().find(|policy| policy.to_string() == text);
        spillover
            .or_else(named)
            .ok_or_else(|| format!("unknown policy {text:?}; allowed: {}", Self::ALLOWED))
    }
}

/// What can be known of a request: by a gateway, and by nobody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// Its model, with the pools.
    pub(crate) model: &'a Model,
    /// What the gate takes it to need.
    pub(crate) budget: Budget,
    /// Bytes of its text.
    pub(crate) bytes: u64,
    /// Its cap.
    pub(crate) cap: Option<u64>,
    /// Its true prompt and output tokens.
    pub(crate) truth: (u64, u64),
}

/// What a rule other than the gate's makes of a request.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) pool: Arc<Pool>,
    /// What the rule takes it to need.
    pub(crate) budget: Budget,
    /// It goes there since its own pool is crowded.
    pub(crate) moved: bool,
}

impl Policy {
    /// The rule's choice; nothing if it is the gate's to choose. `crowd` tells how
    /// many requests a pool has for each of its replicas.
    pub(crate) fn choose(self, known: &Known<'_>, crowd: &dyn Fn(&Pool) -> f64) -> Option<Choice> {
        let Known { model, budget, bytes, cap, truth } = *known;
        let largest = model.pools.last()?;
        let of_one = |input: u64, output: u64| Budget {
            input,
            fit: input.saturating_add(output),
            need: input.saturating_add(output),
            reserve: input.saturating_add(output),
            output_cap: output,
            output_learned: output,
        };
        let budget = match self {
            Self::Tidegate => return None,
            Self::Homogeneous | Self::Spillover(_) => budget,
            Self::Oracle => {
                let (input, output) = truth;
                let reserve = input.saturating_add(output);
                Budget { need: reserve, reserve, ..of_one(input, cap.unwrap_or(output)) }
            }
            Self::BytesBy4 => of_one(bytes.div_ceil(BYTES_PER_TOKEN), budget.output_cap),
            Self::InputOnly => {
                let prompt = budget.fit.saturating_sub(budget.output_cap);
                Budget { fit: prompt, need: budget.input.min(prompt), ..budget }
            }
        };
        let (mut pool, _) = pool::choose(model, budget)?;
        let mut moved = false;
        match self {
            Self::Homogeneous => pool = largest,
            Self::Spillover(most) if pool.name != largest.name => {
                moved = crowd(pool) >= f64::from(most);
                pool = if moved { largest } else { pool };
            }
            _ => {}
        }
        Some(Choice { pool: Arc::clone(pool), budget, moved })
    }
}
