//! Usage in Gemini's answers: each chunk states it, cumulative. Without
//! `alt=sse` a stream is a JSON list of chunks.
//!
//! Source: <https://ai.google.dev/api/generate-content#UsageMetadata>.

use super::Usage;
use super::reader::{Counter, Place, Reading, Row, Step, Stop, row};

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "usageMetadata", Step::Into(Place::Usage)),
    row(Place::Root, "candidates", Step::Into(Place::Choices)),
    row(Place::Choice, "finishReason", Step::Stop(Stop::Choice)),
    row(Place::Usage, "promptTokenCount", Step::Count(Counter::Input)),
    row(Place::Usage, "toolUsePromptTokenCount", Step::Count(Counter::ToolInput)),
    row(Place::Usage, "cachedContentTokenCount", Step::Count(Counter::Cached)),
    row(Place::Usage, "candidatesTokenCount", Step::Count(Counter::Output)),
    row(Place::Usage, "thoughtsTokenCount", Step::Count(Counter::Reasoning)),
];

/// Tool results stand outside the prompt, thoughts outside the candidates. The
/// format leaves out a number that is zero.
pub(super) fn usage(reading: &Reading) -> Usage {
    let sum = |one: Counter, other: Counter| match (reading.get(one), reading.get(other)) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    Usage {
        input: reading.get(Counter::Input).and(sum(Counter::Input, Counter::ToolInput)),
        cached: reading.get(Counter::Cached),
        output: sum(Counter::Output, Counter::Reasoning),
        reasoning: reading.get(Counter::Reasoning),
    }
}
