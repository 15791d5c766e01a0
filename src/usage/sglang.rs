//! Usage in the answers of SGLang's `/generate`: `meta_info` in each chunk,
//! cumulative. A list of prompts is answered with a list, or with chunks that
//! say by `index` which prompt they are about.
//!
//! Source: SGLang's `srt/managers/tokenizer_manager.py`.

use super::Usage;
use super::reader::{Counter, Place, Reading, Row, Step, Stop, row};

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "meta_info", Step::Into(Place::MetaInfo)),
    row(Place::Root, "index", Step::Count(Counter::Index)),
    row(Place::MetaInfo, "finish_reason", Step::Into(Place::Ending)),
    row(Place::Ending, "type", Step::Stop(Stop::Inner)),
    row(Place::MetaInfo, "prompt_tokens", Step::Count(Counter::Input)),
    row(Place::MetaInfo, "completion_tokens", Step::Count(Counter::Output)),
    row(Place::MetaInfo, "cached_tokens", Step::Count(Counter::Cached)),
    row(Place::MetaInfo, "reasoning_tokens", Step::Count(Counter::Reasoning)),
];

pub(super) fn usage(reading: &Reading) -> Usage {
    Usage {
        input: reading.get(Counter::Input),
        cached: reading.get(Counter::Cached),
        output: reading.get(Counter::Output),
        reasoning: reading.get(Counter::Reasoning),
    }
}
