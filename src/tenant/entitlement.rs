//! What one tenant was promised.

use super::account::{Limits, Need};
use super::pool::Contender;
use crate::config::TenantClass;
use crate::estimate::hash;
use crate::pool::Budget;
use crate::time::Span;
use crate::usage::Usage;

/// One tenant's part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entitlement {
    /// The tenant's name: in metrics, logs, and the name of its account.
    pub name: String,
    /// What it is promised, compared with others.
    pub class: TenantClass,
    /// Its share among tenants of its class, 1 to [`WEIGHT_MAX`].
    ///
    /// [`WEIGHT_MAX`]: super::WEIGHT_MAX
    pub weight: u64,
    /// How much it may use.
    pub limits: Limits,
    /// How much of that in single pools, by their names.
    pub pools: Vec<(String, Limits)>,
    /// What of its tokens counts.
    pub weights: Weights,
    /// What output a request reserves.
    pub reserve_output: ReserveOutput,
    /// What is not covered yet waits; else it is refused.
    pub hold: bool,
    /// The time to the first token that the tenant expects: nothing waits longer.
    pub ttft_target: Span,
    /// Admit, uncharged, when the account cannot be changed; else refuse.
    pub admit_on_busy: bool,
}

/// What output a request reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutput {
    /// Its cap.
    Cap,
    /// What its model's answers were seen to need, up to the cap.
    Learned,
}

/// How much a token of each kind counts, in thousandths of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Prompt tokens that were not cached.
    pub input: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached: u32,
    /// Output tokens that are no reasoning.
    pub output: u32,
    /// Reasoning tokens.
    pub reasoning: u32,
}

impl Default for Weights {
    /// Every token counts once.
    fn default() -> Self {
        Self { input: 1000, cached: 1000, output: 1000, reasoning: 1000 }
    }
}

impl Weights {
    /// The most that so many tokens can count; rounded up.
    pub fn most(&self, input: u64, output: u64) -> u64 {
        weighed([
            (input, self.input.max(self.cached)),
            (output, self.output.max(self.reasoning)),
            (0, 0),
            (0, 0),
        ])
    }

    /// What usage counts; rounded up. `None` if the answer does not state its
    /// prompt.
    pub fn of(&self, usage: &Usage) -> Option<u64> {
        let input = usage.input?;
        // Embeddings and rerankings have no output to state.
        let output = usage.output.unwrap_or(0);
        let cached = usage.cached.unwrap_or(0).min(input);
        let reasoning = usage.reasoning.unwrap_or(0).min(output);
        Some(weighed([
            (input - cached, self.input),
            (cached, self.cached),
            (output - reasoning, self.output),
            (reasoning, self.reasoning),
        ]))
    }
}

fn weighed(parts: [(u64, u32); 4]) -> u64 {
    let sum: u128 = parts.iter().map(|(n, weight)| u128::from(*n) * u128::from(*weight)).sum();
    u64::try_from(sum.div_ceil(1000)).unwrap_or(u64::MAX)
}

impl Entitlement {
    /// A hash of its name.
    pub fn key(&self) -> u64 {
        hash(self.name.as_bytes())
    }

    /// As pools know it.
    pub fn who(&self) -> Contender {
        Contender { key: self.key(), class: self.class, weight: self.weight }
    }

    /// Its limits in the pool whose name has this hash, if it has any there.
    pub(super) fn limits_in(&self, pool: u64) -> Option<(u64, &Limits)> {
        let found = self.pools.iter().find(|(name, _)| hash(name.as_bytes()) == pool);
        found.map(|(_, limits)| (pool, limits))
    }

    /// What a request of this budget needs.
    pub fn need(&self, budget: &Budget) -> Need {
        let output = match self.reserve_output {
            ReserveOutput::Cap => budget.output_cap,
            ReserveOutput::Learned => budget.output_learned,
        };
        Need {
            charge: self.weights.most(budget.input, output),
            tokens: budget.input.saturating_add(output),
        }
    }

    /// A tenant that may use nothing.
    pub fn suspended(&self) -> bool {
        self.limits.suspend()
    }

    /// One of a test, with nothing but a rate.
    #[cfg(test)]
    pub(crate) fn of(name: &str, class: TenantClass, law: Option<super::Law>) -> Self {
        Self {
            name: name.into(),
            class,
            weight: 1,
            limits: Limits { laws: [law, None, None, None], ..Limits::default() },
            pools: Vec::new(),
            weights: Weights::default(),
            reserve_output: ReserveOutput::Cap,
            hold: false,
            ttft_target: Span::from_secs(5),
            admit_on_busy: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A reserve covers all that its tokens can turn out to be.
        #[test]
        fn a_reserve_covers_every_mix(
            weights in any::<[u16; 4]>(), input in 0_u64..1 << 40, output in 0_u64..1 << 40,
            cached in any::<u64>(), reasoning in any::<u64>(),
        ) {
            let [a, b, c, d] = weights.map(u32::from);
            let weights = Weights { input: a, cached: b, output: c, reasoning: d };
            let usage = Usage {
                input: Some(input), output: Some(output),
                cached: Some(cached), reasoning: Some(reasoning),
            };
            prop_assert!(weights.of(&usage).unwrap() <= weights.most(input, output));
            let plain = Usage { cached: None, reasoning: None, ..usage };
            prop_assert_eq!(Weights::default().of(&plain), Some(input + output));
        }
    }

    #[test]
    fn what_was_cached_or_reasoned_counts_by_its_own_weight() {
        let weights = Weights { input: 1000, cached: 100, output: 4000, reasoning: 2000 };
        let usage =
            Usage { input: Some(1000), cached: Some(900), output: Some(100), reasoning: Some(50) };
        assert_eq!(weights.of(&usage), Some(100 + 90 + 200 + 100));
        assert_eq!(weights.of(&Usage { output: Some(5), ..Usage::default() }), None);
        let none = Usage { input: Some(10), ..Usage::default() };
        assert_eq!(weights.of(&none), Some(10));
    }
}
