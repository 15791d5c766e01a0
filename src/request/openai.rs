//! OpenAI chat, completions, responses and embeddings, with what vLLM and
//! SGLang add to them.
//!
//! Sources: <https://platform.openai.com/docs/api-reference>; vLLM's
//! `entrypoints/openai/*/protocol.py` and, for the parts of a message,
//! `MM_PARSER_MAP` of `entrypoints/chat_utils.py`.

use super::grammar::{Holds, Place, Row, Shapes, TEXT, list, object, row, text_or_list};
use super::kind::Kind;
use super::value::{Closed, Field, Members};

pub(super) const CHAT: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "messages", Field::Messages, list(Place::Message)),
    row(Place::Root, "tools", Field::Tools, Holds::Json),
    row(Place::Root, "functions", Field::Functions, Holds::Json),
    row(Place::Root, "max_completion_tokens", Field::NewCap, Holds::Number),
];

pub(super) const COMPLETIONS: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "prompt", Field::Prompt, Holds::Prompts(None)),
    row(Place::Root, "prompt_embeds", Field::PromptEmbeds, Holds::Media(Kind::File)),
];

/// What chat and text completions have in common.
pub(super) const SAMPLING: &[Row] = &[
    row(Place::Root, "max_tokens", Field::Cap, Holds::Number),
    row(Place::Root, "n", Field::N, Holds::Number),
    row(Place::Root, "best_of", Field::BestOf, Holds::Number),
    row(Place::Root, "stream", Field::Stream, Holds::Flag),
    row(Place::Root, "stream_options", Field::StreamOptions, object(Place::StreamOptions)),
    row(Place::StreamOptions, "include_usage", Field::IncludeUsage, Holds::Flag),
];

pub(super) const EMBEDDINGS: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "input", Field::Input, Holds::Prompts(Some(Place::Part))),
    row(Place::Root, "messages", Field::Messages, list(Place::Message)),
    row(Place::Root, "stream", Field::Stream, Holds::Flag),
];

/// A message of a chat. `reasoning_content` and `reasoning` are not read:
/// replayed reasoning costs no prompt tokens.
pub(super) const MESSAGE: &[Row] = &[
    row(Place::Message, "content", Field::Content, text_or_list(Place::Part)),
    row(Place::Message, "tool_calls", Field::Calls, Holds::Json),
    row(Place::Message, "function_call", Field::Call, Holds::Json),
];

/// A part of a message's content.
pub(super) const PART: &[Row] = &[
    row(Place::Part, "type", Field::Kind, Holds::Kind),
    row(Place::Part, "text", Field::Text, TEXT),
    row(Place::Part, "refusal", Field::Refusal, TEXT),
    row(Place::Part, "image_url", Field::Image, Holds::Anything),
    row(Place::Part, "input_audio", Field::Audio, Holds::Anything),
    row(Place::Part, "audio_url", Field::AudioUrl, Holds::Anything),
    row(Place::Part, "video_url", Field::Video, Holds::Anything),
];

/// The items of the input are messages, calls, and results of calls. The
/// `summary` and the `encrypted_content` of reasoning are not read.
pub(super) const RESPONSES: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "instructions", Field::Instructions, TEXT),
    row(Place::Root, "input", Field::Input, text_or_list(Place::Message)),
    row(Place::Root, "tools", Field::Tools, Holds::Json),
    row(Place::Root, "max_output_tokens", Field::Cap, Holds::Number),
    row(Place::Root, "stream", Field::Stream, Holds::Flag),
    row(Place::Message, "type", Field::Kind, Holds::Kind),
    row(Place::Message, "content", Field::Content, text_or_list(Place::Part)),
    row(Place::Message, "output", Field::Output, OUTPUT),
    row(Place::Message, "arguments", Field::Arguments, Holds::Json),
    row(Place::Message, "input", Field::Input, TEXT),
    row(Place::Message, "code", Field::Code, TEXT),
    row(Place::Message, "action", Field::Action, Holds::Json),
    row(Place::Message, "tools", Field::Tools, Holds::Json),
];

/// What a tool answered: text, parts, or one part (a screenshot).
const OUTPUT: Holds = Holds::Content(Shapes {
    text: true,
    object: Some(Place::Part),
    texts: true,
    objects: Some(Place::Part),
});

#[inline(never)]
pub(super) fn close(place: Place, members: &mut Members<'_>) -> Closed {
    let kind = match (members.kind(), place) {
        (Some(Kind::Other) | None, Place::Part) => by_members(members),
        (kind, _) => kind.unwrap_or(Kind::Other),
    };
    let mut sum = members.sum();
    match (place, kind) {
        (Place::Message, Kind::Reasoning) => return Closed::Sum(Box::default()),
        (Place::Message, _) => {
            sum.messages = 1;
            // The picture that a call of the image tool brought.
            sum.media.images += u64::from(kind == Kind::Image);
        }
        (Place::Part, Kind::Text | Kind::Reasoning) => {}
        (Place::Part, _) => sum.media.add(kind),
        _ => {}
    }
    Closed::Sum(sum)
}

/// The kind of a part that does not name a known one.
fn by_members(members: &Members<'_>) -> Kind {
    let kinds = [
        (Field::Text, Kind::Text),
        (Field::Refusal, Kind::Text),
        (Field::Image, Kind::Image),
        (Field::Audio, Kind::Audio),
        (Field::AudioUrl, Kind::Audio),
        (Field::Video, Kind::Video),
    ];
    let named = kinds.into_iter().find(|(field, _)| members.has(*field));
    named.map_or(Kind::File, |(_, kind)| kind)
}
