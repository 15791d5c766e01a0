//! Which pool a request goes to.

mod orca;
mod prometheus;
mod report;
mod spill;

pub use orca::{ORCA_FORMAT, ORCA_HEADER, read_orca};
pub use prometheus::MetricsScanner;
pub(crate) use report::Reports;
pub use report::{LoadSources, Reading, Round, Scrape, Source};
pub use spill::{Load, Spill, SpillLaw, ThresholdRange, adapt_threshold, place};

use crate::config::{Model, OutputReserve, Pool};
use crate::estimate::Estimate;
use crate::request::RequestFacts;
use std::sync::Arc;

/// The tokens that a request is taken to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Expected prompt tokens, over all prompts.
    pub input: u64,
    /// Conservative tokens of the largest single sequence: its prompt and its
    /// output. The engine checks each sequence alone, so this is what must fit
    /// a window; it is never multiplied by `n`.
    pub fit: u64,
    /// Expected tokens of that sequence: its prompt and what its answer takes,
    /// 95 times of 100, at most `fit`. A threshold goes by this: where a request
    /// is served best does not hang on a cap that its answer never comes near.
    /// What the estimator may be off counts in, so below each threshold there is a
    /// band of requests that go to the larger pool; it shrinks as answers come.
    pub need: u64,
    /// Expected tokens of all sequences together, for admission and ledgers.
    pub reserve: u64,
    /// Output tokens of all sequences together, up to their caps.
    pub output_cap: u64,
    /// The same, up to what was learned of the model's answers.
    pub output_learned: u64,
}

impl Budget {
    /// Adds up a budget. `all` and `largest` are the estimates of all prompts
    /// and of the largest one, without token ids; `media` the tokens of what is
    /// no text.
    pub fn new(
        facts: &RequestFacts,
        all: Estimate,
        largest: Estimate,
        media: u64,
        output: Output,
    ) -> Self {
        let whole = |tokens: f64| (tokens.ceil() as u64).saturating_add(media);
        let input = whole(all.mean).saturating_add(facts.token_ids);
        let prompt = whole(largest.high).max(facts.largest_token_ids);
        let cap = facts.output_cap().unwrap_or(match output.reserve {
            OutputReserve::Tokens(tokens) => tokens,
            OutputReserve::Learned => output.learned,
            OutputReserve::Longest => output.window.saturating_sub(prompt),
        });
        let all_output = |tokens: u64| tokens.saturating_mul(facts.sequences());
        let (output_cap, output_learned) = (all_output(cap), all_output(cap.min(output.learned)));
        let reserved =
            if output.reserve == OutputReserve::Learned { output_learned } else { output_cap };
        let one = whole(largest.mean_high).max(facts.largest_token_ids);
        Self {
            input,
            fit: prompt.saturating_add(cap),
            need: one.min(prompt).saturating_add(cap.min(output.learned)),
            reserve: input.saturating_add(reserved),
            output_cap,
            output_learned,
        }
    }
}

/// What is known of the output that one sequence needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// What stands in for a cap that the client did not set.
    pub reserve: OutputReserve,
    /// What 95 of 100 answers of the model do not exceed. It never overrules a
    /// cap where the request must fit: the engine refuses by the cap.
    pub learned: u64,
    /// The largest window of the model, in tokens.
    pub window: u64,
}

/// How the pool was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// A smaller pool than the largest holds it.
    Threshold,
    /// Only the largest holds it.
    Largest,
    /// None holds it; the largest gets it.
    TooLarge,
}

/// The smallest pool whose window holds `fit` and whose threshold is at least
/// `need`. `None` only for a model without pools, which no configuration has.
pub fn choose(model: &Model, Budget { fit, need, .. }: Budget) -> Option<(&Arc<Pool>, Fit)> {
    let (largest, smaller) = model.pools.split_last()?;
    let takes = |pool: &&Arc<Pool>| fit <= pool.max_model_len && need <= pool.threshold;
    Some(match smaller.iter().find(takes) {
        Some(pool) => (pool, Fit::Threshold),
        None if fit <= largest.max_model_len => (largest, Fit::Largest),
        None => (largest, Fit::TooLarge),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Match, StreamUsage};
    use crate::estimate::{Class, Tally};
    use crate::request::{Api, Cap};
    use proptest::prelude::*;

    pub(super) fn model(lens: &[(u64, u64)]) -> Model {
        let pool = |&(max_model_len, threshold): &(u64, u64)| {
            let name = max_model_len.to_string();
            Arc::new(Pool {
                name,
                cluster: String::new(),
                max_model_len,
                threshold,
                stream_usage: StreamUsage::Off,
                capacity: None,
                spill: None,
                threshold_range: None,
                load: None,
            })
        };
        Model { matches: Match::Any, pools: lens.iter().map(pool).collect() }
    }

    /// Of a request that may take `fit` tokens and is expected to take `need`.
    pub(super) fn budget(fit: u64, need: u64) -> Budget {
        Budget { input: 0, fit, need, reserve: 0, output_cap: 0, output_learned: 0 }
    }

    #[test]
    fn edges_of_the_thresholds() {
        let model = model(&[(8192, 6000), (16384, 16384), (65536, 65536)]);
        let named = |fit, need| {
            choose(&model, budget(fit, need)).map(|(pool, how)| (pool.name.as_str(), how)).unwrap()
        };
        let name = |fit| named(fit, fit);
        assert_eq!(name(6000), ("8192", Fit::Threshold));
        assert_eq!(name(6001), ("16384", Fit::Threshold));
        assert_eq!(name(16385), ("65536", Fit::Largest));
        assert_eq!(name(65536), ("65536", Fit::Largest));
        assert_eq!(name(65537), ("65536", Fit::TooLarge));
        // A threshold is for what is expected, a window for what may be.
        assert_eq!(named(8192, 6000), ("8192", Fit::Threshold));
        assert_eq!(named(8192, 6001), ("16384", Fit::Threshold));
        assert_eq!(named(8193, 6000), ("16384", Fit::Threshold));
    }

    #[test]
    fn fit_is_one_sequence_and_reserve_all_of_them() {
        let mut facts = RequestFacts::chat("m", Tally::of(Class::Tools, 400), 2, Cap::Tokens(50));
        facts.n = 3;
        let text = Estimate { mean: 111.0, mean_high: 113.0, high: 131.5 };
        let budget = |facts: &RequestFacts, reserve, learned| {
            let output = Output { reserve, learned, window: 9000 };
            Budget::new(facts, text, text, 0, output)
        };
        let (tokens, learned) = (OutputReserve::Tokens(1024), OutputReserve::Learned);
        let capped = budget(&facts, tokens, 20);
        assert_eq!((capped.input, capped.fit, capped.reserve), (111, 132 + 50, 111 + 150));
        assert_eq!((capped.output_cap, capped.output_learned), (150, 60));
        // What was learned never overrules the cap where it must fit, but tells what
        // is likely.
        assert_eq!((capped.need, budget(&facts, tokens, 90).need), (113 + 20, 113 + 50));
        assert_eq!(budget(&facts, learned, 20), Budget { reserve: 111 + 60, ..capped });
        assert_eq!(budget(&facts, learned, 1024).reserve, 111 + 150);
        facts.cap = Cap::Absent;
        assert_eq!(budget(&facts, tokens, 20).fit, 132 + 1024);
        assert_eq!(budget(&facts, learned, 300).fit, 132 + 300);
        assert_eq!(budget(&facts, OutputReserve::Longest, 20).fit, 9000);
        let output = Output { reserve: OutputReserve::Tokens(10), learned: 10, window: 9000 };
        let image = Budget::new(&facts, text, text, 1000, output);
        assert_eq!((image.input, image.fit, image.need), (1111, 1142, 1123));
        facts.api = Api::Completions;
        assert_eq!(budget(&facts, OutputReserve::Longest, 20).fit, 132 + 16);
    }

    proptest! {
        #[test]
        fn a_request_never_goes_where_it_does_not_fit(
            lens in prop::collection::btree_set(1_u64..100_000, 2..12),
            fit in 0_u64..120_000,
            share in 0.0..=1.0_f64,
        ) {
            let need = (fit as f64 * share) as u64;
            // Pairs of a threshold and a larger window, the largest without.
            let lens: Vec<u64> = lens.into_iter().collect();
            let mut pools: Vec<_> = lens.chunks_exact(2).map(|pair| (pair[1], pair[0])).collect();
            let top = pools.last().unwrap().0;
            pools.last_mut().unwrap().1 = top;
            let model = model(&pools);
            let (pool, how) = choose(&model, budget(fit, need)).unwrap();
            prop_assert!(fit <= pool.max_model_len || (how == Fit::TooLarge && fit > top));
            // And never to a larger pool than it needs.
            let smallest = pools.iter().find(|(len, most)| fit <= *len && need <= *most);
            prop_assert_eq!(pool.max_model_len, smallest.map_or(top, |(len, _)| *len));
        }

        #[test]
        fn budgets_saturate(
            mean in 0.0..1e30_f64, extra in 0.0..1e30_f64, cap in any::<u64>(), n in any::<u64>(),
            ids in any::<u64>(), prompts in any::<u64>(), media in any::<u64>(),
        ) {
            let mut facts = RequestFacts::new(Api::Completions);
            (facts.cap, facts.n, facts.prompts) = (Cap::Tokens(cap), n, prompts);
            (facts.token_ids, facts.largest_token_ids) = (ids, ids);
            let text = Estimate { mean, mean_high: mean + extra / 2.0, high: mean + extra };
            let output = Output { reserve: OutputReserve::Longest, learned: cap, window: 9 };
            let budget = Budget::new(&facts, text, text, media, output);
            prop_assert!(budget.fit >= cap && budget.reserve >= budget.input);
            prop_assert!(budget.need <= budget.fit);
        }
    }
}
