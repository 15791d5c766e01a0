//! Anthropic messages.
//!
//! Sources: <https://docs.anthropic.com/en/api/messages>; vLLM's
//! `entrypoints/anthropic/protocol.py`.

use super::grammar::{Holds, Place, Row, TEXT, list, object, row, text_or_list};
use super::kind::Kind;
use super::value::{Closed, Field, Members};

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "model", Field::Model, Holds::Name),
    row(Place::Root, "messages", Field::Messages, list(Place::Message)),
    row(Place::Root, "system", Field::Instructions, text_or_list(Place::Part)),
    row(Place::Root, "tools", Field::Tools, Holds::Json),
    row(Place::Root, "max_tokens", Field::Cap, Holds::Number),
    row(Place::Root, "stream", Field::Stream, Holds::Flag),
    row(Place::Message, "content", Field::Content, text_or_list(Place::Part)),
    // What a tool answered, or what a search found.
    row(Place::Part, "content", Field::Content, text_or_list(Place::Inner)),
    row(Place::Part, "input", Field::Input, Holds::Json),
    // `thinking`, `signature` and the `data` of redacted thinking are not
    // read: replayed reasoning costs no prompt tokens.
    row(Place::Part, "type", Field::Kind, Holds::Kind),
    row(Place::Inner, "type", Field::Kind, Holds::Kind),
    row(Place::Part, "text", Field::Text, TEXT),
    row(Place::Inner, "text", Field::Text, TEXT),
    row(Place::Part, "title", Field::Title, TEXT),
    row(Place::Inner, "title", Field::Title, TEXT),
    row(Place::Part, "context", Field::Context, TEXT),
    row(Place::Inner, "context", Field::Context, TEXT),
    row(Place::Part, "source", Field::Source, object(Place::Source)),
    row(Place::Inner, "source", Field::Source, object(Place::Source)),
    row(Place::Source, "type", Field::Kind, Holds::Kind),
    row(Place::Source, "data", Field::Data, TEXT),
    row(Place::Source, "content", Field::Content, text_or_list(Place::Excerpt)),
    row(Place::Excerpt, "type", Field::Kind, Holds::Kind),
    row(Place::Excerpt, "text", Field::Text, TEXT),
];

#[inline(never)]
pub(super) fn close(place: Place, members: &mut Members<'_>) -> Closed {
    let kind = members.kind();
    if place == Place::Source {
        let data = members.remove(Field::Data).filter(|_| kind == Some(Kind::Text));
        let read = data.is_some() || members.has(Field::Content);
        let mut sum = members.sum();
        sum.merge(&data.unwrap_or_default());
        // Bytes, a link or an uploaded file: the block says of what.
        sum.media.files += u64::from(!read);
        return Closed::Sum(sum);
    }
    let source = members.remove(Field::Source);
    let known = [Field::Text, Field::Content, Field::Input].iter().any(|one| members.has(*one));
    let mut sum = members.sum();
    let named = !matches!(kind, None | Some(Kind::Other | Kind::File));
    let bare = source.is_none() && (!known || kind == Some(Kind::File));
    if let Some(mut source) = source {
        // What the source holds, the block's own kind says better.
        source.media.files *= u64::from(!named);
        sum.merge(&source);
    }
    match (place, kind) {
        (Place::Message, _) => sum.messages = 1,
        (_, Some(Kind::Text | Kind::Reasoning)) => {}
        (_, Some(kind)) if named => sum.media.add(kind),
        _ => sum.media.files += u64::from(bare),
    }
    Closed::Sum(sum)
}
