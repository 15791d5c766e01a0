//! Which pool a request goes to.

use crate::config::{Model, Pool};
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
    /// Expected tokens of all sequences together, for admission and ledgers.
    pub reserve: u64,
}

impl Budget {
    /// Adds up a budget. `all` and `largest` are the estimates of all prompts
    /// and of the largest one, without token ids; `media` the tokens of what is
    /// no text; `output` what one sequence is taken to generate.
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
        let (cap, expected) = match (facts.output_cap(), output) {
            (Some(cap), Output::Expected(tokens)) => (cap, cap.min(tokens)),
            (Some(cap), _) => (cap, cap),
            (None, Output::Reserved(tokens) | Output::Expected(tokens)) => (tokens, tokens),
            (None, Output::UpTo(window)) => {
                let rest = window.saturating_sub(prompt);
                (rest, rest)
            }
        };
        Self {
            input,
            fit: prompt.saturating_add(cap),
            reserve: input.saturating_add(expected.saturating_mul(facts.sequences())),
        }
    }
}

/// Output tokens that one sequence is taken to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The client's cap, or so many without one.
    Reserved(u64),
    /// So many were learned. The cap still decides whether it fits: the engine
    /// refuses by the cap.
    Expected(u64),
    /// The client's cap, or all that a window of so many tokens leaves.
    UpTo(u64),
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

/// The smallest pool whose threshold is at least `fit`. `None` only for a
/// model without pools, which no configuration has.
pub fn choose(model: &Model, fit: u64) -> Option<(&Arc<Pool>, Fit)> {
    let (largest, smaller) = model.pools.split_last()?;
    Some(match smaller.iter().find(|pool| fit <= pool.threshold) {
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

    fn model(lens: &[(u64, u64)]) -> Model {
        let pool = |&(max_model_len, threshold): &(u64, u64)| {
            let name = max_model_len.to_string();
            Arc::new(Pool {
                name,
                cluster: String::new(),
                max_model_len,
                threshold,
                stream_usage: StreamUsage::Off,
            })
        };
        Model { matches: Match::Any, pools: lens.iter().map(pool).collect() }
    }

    fn estimate(mean: f64, high: f64) -> Estimate {
        Estimate { mean, high }
    }

    #[test]
    fn edges_of_the_thresholds() {
        let model = model(&[(8192, 6000), (16384, 16384), (65536, 65536)]);
        let name = |fit| choose(&model, fit).map(|(pool, how)| (pool.name.as_str(), how)).unwrap();
        assert_eq!(name(6000), ("8192", Fit::Threshold));
        assert_eq!(name(6001), ("16384", Fit::Threshold));
        assert_eq!(name(16385), ("65536", Fit::Largest));
        assert_eq!(name(65536), ("65536", Fit::Largest));
        assert_eq!(name(65537), ("65536", Fit::TooLarge));
    }

    #[test]
    fn fit_is_one_sequence_and_reserve_all_of_them() {
        let mut facts = RequestFacts::chat("m", Tally::of(Class::Tools, 400), 2, Cap::Tokens(50));
        facts.n = 3;
        let text = estimate(111.0, 131.5);
        let budget = |facts: &RequestFacts, output| Budget::new(facts, text, text, 0, output);
        let capped = Budget { input: 111, fit: 132 + 50, reserve: 111 + 150 };
        assert_eq!(budget(&facts, Output::Reserved(1024)), capped);
        // What was learned never overrules the cap where it must fit.
        let learned = Budget { reserve: 111 + 60, ..capped };
        assert_eq!(budget(&facts, Output::Expected(20)), learned);
        assert_eq!(budget(&facts, Output::Expected(1024)), capped);
        facts.cap = Cap::Absent;
        assert_eq!(budget(&facts, Output::Reserved(1024)).fit, 132 + 1024);
        assert_eq!(budget(&facts, Output::Expected(300)).fit, 132 + 300);
        assert_eq!(budget(&facts, Output::UpTo(9000)).fit, 9000);
        let image = Budget::new(&facts, text, text, 1000, Output::Reserved(10));
        assert_eq!((image.input, image.fit), (1111, 1142));
        facts.api = Api::Completions;
        assert_eq!(budget(&facts, Output::UpTo(9000)).fit, 132 + 16);
    }

    proptest! {
        #[test]
        fn a_request_never_goes_where_it_does_not_fit(
            lens in prop::collection::btree_set(1_u64..100_000, 2..12),
            fit in 0_u64..120_000,
        ) {
            // Pairs of a threshold and a larger window, the largest without.
            let lens: Vec<u64> = lens.into_iter().collect();
            let mut pools: Vec<_> = lens.chunks_exact(2).map(|pair| (pair[1], pair[0])).collect();
            let top = pools.last().unwrap().0;
            pools.last_mut().unwrap().1 = top;
            let model = model(&pools);
            let (pool, how) = choose(&model, fit).unwrap();
            prop_assert!(fit <= pool.max_model_len || (how == Fit::TooLarge && fit > top));
            // And never to a larger pool than it needs.
            let smallest = pools.iter().find(|(_, threshold)| fit <= *threshold);
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
            let text = estimate(mean, mean + extra);
            let budget = Budget::new(&facts, text, text, media, Output::UpTo(9));
            prop_assert!(budget.fit >= cap && budget.reserve >= budget.input);
        }
    }
}
