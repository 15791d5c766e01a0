//! Usage in Anthropic's messages: `message_start` carries a message with the
//! input, `message_delta` states the output so far and, at some servers, the
//! input too.
//!
//! Source: <https://docs.anthropic.com/en/api/messages-streaming>.

use super::Usage;
use super::reader::{Counter, Place, Reading, Row, Step, Stop, row};

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "message", Step::Into(Place::Carried)),
    row(Place::Root, "delta", Step::Into(Place::Ending)),
    row(Place::Root, "usage", Step::Into(Place::Usage)),
    row(Place::Carried, "usage", Step::Into(Place::Usage)),
    row(Place::Root, "stop_reason", Step::Stop(Stop::Root)),
    row(Place::Carried, "stop_reason", Step::Stop(Stop::Root)),
    row(Place::Ending, "stop_reason", Step::Stop(Stop::Inner)),
    row(Place::Usage, "input_tokens", Step::Count(Counter::Input)),
    row(Place::Usage, "cache_creation_input_tokens", Step::Count(Counter::CacheWrites)),
    row(Place::Usage, "cache_read_input_tokens", Step::Count(Counter::Cached)),
    row(Place::Usage, "output_tokens", Step::Count(Counter::Output)),
];

/// The input of a prompt stands in three numbers.
const INPUTS: [Counter; 3] = [Counter::Input, Counter::CacheWrites, Counter::Cached];

/// Merges by field: what is stated later wins. Only a prompt of zero tokens,
/// which no prompt has, does not undo one that was counted.
pub(super) fn merge(last: &mut Reading, mut later: Reading) {
    if INPUTS.iter().all(|one| later.get(*one).unwrap_or(0) == 0) {
        for one in INPUTS.into_iter().filter(|one| last.get(*one).is_some()) {
            later.set(one, None);
        }
    }
    last.merge(&later);
}

/// What was written to the cache or read from it stands outside the input.
pub(super) fn usage(reading: &Reading) -> Usage {
    let cache = INPUTS.into_iter().skip(1).filter_map(|one| reading.get(one));
    let input = reading.get(Counter::Input);
    Usage {
        input: input.map(|input| cache.fold(input, u64::saturating_add)),
        cached: reading.get(Counter::Cached),
        output: reading.get(Counter::Output),
        reasoning: None,
    }
}
