//! The words in which a format is written down, and which format says what.

use super::kind::Kind;
use super::value::{Closed, Field, Members, Value};
use super::{Api, anthropic, gemini, openai, rerank, sglang};

/// An object whose members matter. All others are skipped or weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    /// `stream_options`.
    StreamOptions,
    /// Gemini's `generationConfig`, SGLang's `sampling_params`.
    Config,
    /// A chat message or what stands for one.
    Message,
    /// A piece of a message's content.
    Part,
    /// A piece of the content of a tool result or of a document.
    Inner,
    /// Where the bytes of an image or a document are.
    Source,
    /// A piece of a document that stands in its source.
    Excerpt,
    /// What a tool answered.
    Answer,
}

/// What a member holds, and so how its value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// A string that is kept.
    Name,
    /// An integer.
    Number,
    /// `true` or `false`.
    Flag,
    /// A string that names a kind.
    Kind,
    /// Anything but `null`.
    Anything,
    /// What is no text: one, or a list of them, or of lists.
    Media(Kind),
    /// JSON that is rendered into the prompt, or a string that stands for it.
    Json,
    /// Text, or objects that contain it.
    Content(Shapes),
    /// Prompts: each a string, a list of token ids, or an object of this place.
    Prompts(Option<Place>),
}

/// The shapes that content may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shapes {
    /// A string.
    pub(super) text: bool,
    /// An object.
    pub(super) object: Option<Place>,
    /// A list with strings in it.
    pub(super) texts: bool,
    /// A list with objects in it.
    pub(super) objects: Option<Place>,
}

/// A member that matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) place: Place,
    pub(super) key: &'static [u8],
    pub(super) field: Field,
    pub(super) holds: Holds,
}

/// The member `key` of the objects at `place`.
pub(super) const fn row(place: Place, key: &'static str, field: Field, holds: Holds) -> Row {
    Row { place, key: key.as_bytes(), field, holds }
}

/// A string of text.
pub(super) const TEXT: Holds =
    Holds::Content(Shapes { text: true, object: None, texts: false, objects: None });

/// An object.
pub(super) const fn object(place: Place) -> Holds {
    Holds::Content(Shapes { text: false, object: Some(place), texts: false, objects: None })
}

/// A list of objects.
pub(super) const fn list(place: Place) -> Holds {
    Holds::Content(Shapes { text: false, object: None, texts: false, objects: Some(place) })
}

/// A string of text, or a list of objects and strings.
pub(super) const fn text_or_list(place: Place) -> Holds {
    Holds::Content(Shapes { text: true, object: None, texts: true, objects: Some(place) })
}

/// All that is read of an unknown format.
const MODEL: &[Row] = &[row(Place::Root, "model", Field::Model, Holds::Name)];

impl Api {
    /// The members that matter.
    pub(super) fn members(self) -> &'static [&'static [Row]] {
        match self {
            Self::Chat => &[openai::CHAT, openai::SAMPLING, openai::MESSAGE, openai::PART],
            Self::Completions => &[openai::COMPLETIONS, openai::SAMPLING],
            Self::Responses => &[openai::RESPONSES, openai::PART],
            Self::Embeddings => &[openai::EMBEDDINGS, openai::MESSAGE, openai::PART],
            Self::Rerank => &[rerank::MEMBERS, openai::PART],
            Self::Messages => &[anthropic::MEMBERS],
            Self::Gemini => &[gemini::MEMBERS],
            Self::Generate => &[sglang::MEMBERS],
            Self::Unknown => &[MODEL],
        }
    }

    /// What an object amounts to, once all its members are known.
    pub(super) fn close(self, place: Place, members: &mut Members<'_>) -> Closed {
        match (place, self) {
            (Place::StreamOptions, _) => {
                Closed::Value(members.flag(Field::IncludeUsage).map_or(Value::Absent, Value::Flag))
            }
            (Place::Config, _) => Closed::Value(members.limits()),
            (_, Self::Messages) => anthropic::close(place, members),
            (_, Self::Gemini) => gemini::close(place, members),
            _ => openai::close(place, members),
        }
    }

    /// Whether an object may come to nothing although there is text in it.
    pub(super) fn may_drop(self, place: Place) -> bool {
        match self {
            Self::Responses => place == Place::Message,
            Self::Messages => place == Place::Source,
            Self::Gemini => place == Place::Part,
            _ => false,
        }
    }
}
