//! Gemini `generateContent` and `streamGenerateContent`, in both spellings of
//! JSON (`inlineData` and `inline_data`).
//!
//! Source: <https://ai.google.dev/api/generate-content>,
//! <https://ai.google.dev/api/caching#Part>.

use super::grammar::{Holds, Place, Row, Shapes, TEXT, object, row};
use super::kind::Kind;
use super::value::{Closed, Field, Members};

/// The model's name in a path, and whether the answer is a stream.
pub(super) fn of_path(path: &[u8]) -> Option<(&[u8], bool)> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    let (before, name) = (path.get(..slash)?, path.get(slash + 1..)?);
    let colon = name.iter().position(|byte| *byte == b':')?;
    let stream = match name.get(colon + 1..)? {
        b"generateContent" => false,
        b"streamGenerateContent" => true,
        _ => return None,
    };
    let folder = before.ends_with(b"/models") || before.ends_with(b"/tunedModels");
    folder.then_some((name.get(..colon)?, stream))
}

/// An object, or a list of such.
const fn one_or_more(place: Place) -> Holds {
    Holds::Content(Shapes { text: false, object: Some(place), texts: false, objects: Some(place) })
}

pub(super) const MEMBERS: &[Row] = &[
    row(Place::Root, "contents", Field::Messages, one_or_more(Place::Message)),
    row(Place::Root, "systemInstruction", Field::Instructions, object(Place::Message)),
    row(Place::Root, "system_instruction", Field::InstructionsSnake, object(Place::Message)),
    row(Place::Root, "tools", Field::Tools, Holds::Json),
    row(Place::Root, "generationConfig", Field::Config, object(Place::Config)),
    row(Place::Root, "generation_config", Field::ConfigSnake, object(Place::Config)),
    row(Place::Config, "maxOutputTokens", Field::Cap, Holds::Number),
    row(Place::Config, "max_output_tokens", Field::CapSnake, Holds::Number),
    row(Place::Config, "candidateCount", Field::N, Holds::Number),
    row(Place::Config, "candidate_count", Field::NSnake, Holds::Number),
    row(Place::Message, "parts", Field::Parts, one_or_more(Place::Part)),
    row(Place::Part, "text", Field::Text, TEXT),
    row(Place::Part, "thought", Field::Thought, Holds::Flag),
    row(Place::Part, "functionCall", Field::Call, Holds::Json),
    row(Place::Part, "function_call", Field::CallSnake, Holds::Json),
    row(Place::Part, "functionResponse", Field::Answer, object(Place::Answer)),
    row(Place::Part, "function_response", Field::AnswerSnake, object(Place::Answer)),
    row(Place::Part, "executableCode", Field::Code, Holds::Json),
    row(Place::Part, "executable_code", Field::CodeSnake, Holds::Json),
    row(Place::Part, "codeExecutionResult", Field::CodeResult, Holds::Json),
    row(Place::Part, "code_execution_result", Field::CodeResultSnake, Holds::Json),
    row(Place::Answer, "name", Field::Title, Holds::Json),
    row(Place::Answer, "response", Field::Content, Holds::Json),
    row(Place::Answer, "parts", Field::Parts, one_or_more(Place::Inner)),
    row(Place::Part, "inlineData", Field::Data, object(Place::Source)),
    row(Place::Inner, "inlineData", Field::Data, object(Place::Source)),
    row(Place::Part, "inline_data", Field::DataSnake, object(Place::Source)),
    row(Place::Inner, "inline_data", Field::DataSnake, object(Place::Source)),
    row(Place::Part, "fileData", Field::FileData, object(Place::Source)),
    row(Place::Inner, "fileData", Field::FileData, object(Place::Source)),
    row(Place::Part, "file_data", Field::FileDataSnake, object(Place::Source)),
    row(Place::Inner, "file_data", Field::FileDataSnake, object(Place::Source)),
    row(Place::Source, "mimeType", Field::Kind, Holds::Kind),
    row(Place::Source, "mime_type", Field::KindSnake, Holds::Kind),
];

#[inline(never)]
pub(super) fn close(place: Place, members: &mut Members<'_>) -> Closed {
    if place == Place::Part && members.flag(Field::Thought) == Some(true) {
        return Closed::Sum(Box::default());
    }
    let kind = members.kind().unwrap_or(Kind::Other);
    let known = members.any();
    let mut sum = members.sum();
    match place {
        Place::Message => sum.messages = 1,
        Place::Source => sum.media.add(kind),
        Place::Part | Place::Inner if !known => sum.media.add(Kind::File),
        _ => {}
    }
    Closed::Sum(sum)
}
