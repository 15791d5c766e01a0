//! SGLang's own `/generate`.
//!
//! Source: SGLang's `srt/managers/io_struct.py` (`GenerateReqInput`) and
//! `srt/sampling/sampling_params.py`.

use super::Cap;
use super::grammar::{Holds, Place, Row, Shapes, row};
use super::kind::Kind;
use super::value::Field;

/// Output tokens without `max_new_tokens`.
pub(super) const DEFAULT_CAP: u64 = 128;

/// One for all prompts, or a list with one for each.
const PARAMETERS: Holds = Holds::Content(Shapes {
    text: false,
    object: Some(Place::Config),
    texts: false,
    objects: Some(Place::Config),
});

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "text", Field::Text, Holds::Prompts(None)),
    row(Place::Root, "input_ids", Field::Ids, Holds::Prompts(None)),
    row(Place::Root, "image_data", Field::ImageData, Holds::Media(Kind::Image)),
    row(Place::Root, "audio_data", Field::AudioData, Holds::Media(Kind::Audio)),
    row(Place::Root, "video_data", Field::VideoData, Holds::Media(Kind::Video)),
    row(Place::Root, "stream", Field::Stream, Holds::Flag),
    row(Place::Root, "sampling_params", Field::Config, PARAMETERS),
    row(Place::Config, "max_new_tokens", Field::Cap, Holds::Number),
    row(Place::Config, "n", Field::N, Holds::Number),
];

/// The larger of two prompts' limits.
pub(super) fn larger_cap(one: Cap, other: Cap) -> Cap {
    match (one, other) {
        (Cap::Absent, Cap::Tokens(_)) => larger(Cap::Tokens(DEFAULT_CAP), other),
        (Cap::Tokens(_), Cap::Absent) => larger(one, Cap::Tokens(DEFAULT_CAP)),
        _ => larger(one, other),
    }
}

/// The larger of two numbers; one that cannot be read makes both unreadable.
pub(super) fn larger(one: Cap, other: Cap) -> Cap {
    match (one, other) {
        (Cap::Tokens(one), Cap::Tokens(other)) => Cap::Tokens(one.max(other)),
        (Cap::Absent, cap) | (cap, Cap::Absent) => cap,
        _ => Cap::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_limit_too() {
        let [none, few, many] = [Cap::Absent, Cap::Tokens(7), Cap::Tokens(500)];
        for (one, other, both) in [
            (none, none, none),
            (none, few, Cap::Tokens(128)),
            (none, many, many),
            (few, many, many),
            (Cap::Unreadable, many, Cap::Unreadable),
            (none, Cap::Unreadable, Cap::Unreadable),
        ] {
            assert_eq!((larger_cap(one, other), larger_cap(other, one)), (both, both));
        }
        assert_eq!(larger(none, few), few, "of answers the default is one");
    }
}
