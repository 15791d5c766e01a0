//! Usage in the answers of OpenAI, and of vLLM and SGLang, which answer alike;
//! and in rerankings of Cohere and Jina.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object>,
//! <https://platform.openai.com/docs/api-reference/responses-streaming>,
//! <https://docs.cohere.com/reference/rerank>.

use super::Usage;
use super::reader::{Counter, Place, Reading, Row, Step, Stop, row};
use crate::request::Api;

pub(super) const COMPLETION: &[Row] = &[
    row(Place::Root, "usage", Step::Into(Place::Usage)),
    row(Place::Root, "choices", Step::Into(Place::Choices)),
    row(Place::Choice, "finish_reason", Step::Stop(Stop::Choice)),
    row(Place::Usage, "prompt_tokens", Step::Count(Counter::Input)),
    row(Place::Usage, "completion_tokens", Step::Count(Counter::Output)),
    row(Place::Usage, "total_tokens", Step::Count(Counter::Total)),
    row(Place::Usage, "prompt_tokens_details", Step::Into(Place::InputDetails)),
    row(Place::Usage, "completion_tokens_details", Step::Into(Place::OutputDetails)),
    row(Place::InputDetails, "cached_tokens", Step::Count(Counter::Cached)),
    row(Place::OutputDetails, "reasoning_tokens", Step::Count(Counter::Reasoning)),
    // Cohere's.
    row(Place::Root, "meta", Step::Into(Place::Meta)),
    row(Place::Meta, "tokens", Step::Into(Place::MetaTokens)),
    row(Place::Meta, "billed_units", Step::Into(Place::MetaBilled)),
    row(Place::MetaTokens, "input_tokens", Step::Count(Counter::MetaInput)),
    row(Place::MetaTokens, "output_tokens", Step::Count(Counter::MetaOutput)),
    row(Place::MetaBilled, "input_tokens", Step::Count(Counter::BilledInput)),
    row(Place::MetaBilled, "output_tokens", Step::Count(Counter::BilledOutput)),
];

/// A response of the Responses API; an event carries one under `response`.
pub(super) const RESPONSE: &[Row] = &[
    row(Place::Root, "response", Step::Into(Place::Carried)),
    row(Place::Root, "usage", Step::Into(Place::Usage)),
    row(Place::Carried, "usage", Step::Into(Place::Usage)),
    row(Place::Root, "incomplete_details", Step::Into(Place::Ending)),
    row(Place::Carried, "incomplete_details", Step::Into(Place::Ending)),
    row(Place::Ending, "reason", Step::Stop(Stop::Inner)),
    row(Place::Usage, "input_tokens", Step::Count(Counter::Input)),
    row(Place::Usage, "output_tokens", Step::Count(Counter::Output)),
    row(Place::Usage, "input_tokens_details", Step::Into(Place::InputDetails)),
    row(Place::Usage, "output_tokens_details", Step::Into(Place::OutputDetails)),
    row(Place::InputDetails, "cached_tokens", Step::Count(Counter::Cached)),
    row(Place::OutputDetails, "reasoning_tokens", Step::Count(Counter::Reasoning)),
];

pub(super) fn usage(api: Api, reading: &Reading) -> Usage {
    let mut usage = Usage {
        input: reading.get(Counter::Input),
        cached: reading.get(Counter::Cached),
        output: reading.get(Counter::Output),
        reasoning: reading.get(Counter::Reasoning),
    };
    if matches!(api, Api::Embeddings | Api::Rerank) {
        // Nothing is generated: the total is the input.
        let others = [Counter::Total, Counter::MetaInput, Counter::BilledInput];
        usage.input = usage.input.or_else(|| others.iter().find_map(|one| reading.get(*one)));
        let others = [Counter::MetaOutput, Counter::BilledOutput];
        usage.output = usage.output.or_else(|| others.iter().find_map(|one| reading.get(*one)));
    }
    usage
}
