//! Answers become [`Usage`]: what the engine says it used.
//!
//! A scanner reads the answer's bytes as they pass, cut anywhere, and keeps
//! none of them. Absent, `null` and 0 are different things.

mod anthropic;
mod gemini;
mod hide;
mod openai;
mod overflow;
mod reader;
mod sglang;
mod sources;
mod sse;
#[cfg(test)]
mod tests;
mod total;

pub use hide::Filter;
pub use overflow::{Overflow, OverflowScanner};
pub use sources::{Merged, merge};

use crate::request::{Api, lax_integer};

/// Tokens used by one request, as its answer states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens that came from the prefix cache; part of `input`.
    pub cached: Option<u64>,
    /// Generated tokens over all sequences, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens; part of `output`.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Usage from the values of two response headers, each an integer in
    /// decimal digits; `None` if neither can be read.
    pub fn from_headers(input: Option<&[u8]>, output: Option<&[u8]>) -> Option<Self> {
        let read = |value: Option<&[u8]>| {
            let digits = value?.trim_ascii();
            let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            all.then(|| lax_integer(digits, false)).flatten()
        };
        let usage = Self { input: read(input), output: read(output), ..Self::default() };
        (usage != Self::default()).then_some(usage)
    }
}

/// What an answer's bytes told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The usage, or why there is none.
    pub usage: Result<Usage, NoUsage>,
    /// A sequence ended because it met its limit of tokens: the client's cap or
    /// the engine's window (`finish_reason: "length"` and its like).
    pub stopped_by_length: bool,
    /// Events with data, about one for each token; none in a document.
    pub events: u64,
}

/// Why an answer's bytes gave no usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoUsage {
    /// The bytes are complete and carry none (absent or `null`).
    Absent,
    /// The bytes are not valid JSON.
    Unreadable,
}

/// Reads an answer in pieces.
#[derive(Clone, Debug)]
pub struct Scanner(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Json(crate::json::Scanner, reader::Reader),
    Sse(sse::Events),
}

impl Scanner {
    /// For a body that is one JSON document.
    pub fn json(api: Api) -> Self {
        Self(Kind::Json(crate::json::Scanner::new(), reader::Reader::new(api, false)))
    }

    /// For a stream of server-sent events.
    pub fn sse(api: Api) -> Self {
        Self(Kind::Sse(sse::Events::new(api)))
    }

    /// The scanner for an answer of this format and `content-type`; `None` if
    /// the type is neither JSON nor server-sent events.
    pub fn for_answer(api: Api, value: &[u8]) -> Option<Self> {
        let end = memchr::memchr(b';', value).unwrap_or(value.len());
        let media = value.get(..end)?.trim_ascii();
        if media.eq_ignore_ascii_case(b"application/json") {
            Some(Self::json(api))
        } else if media.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Self::sse(api))
        } else {
            None
        }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Json(json, reader) => json.feed(bytes, reader),
            Kind::Sse(events) => events.feed(bytes),
        }
    }

    /// What the answer stated: of a stream, the last word on each thing. A
    /// stream that broke off may be finished too: what it said so far stands.
    pub fn finish(self) -> Told {
        let (total, ended, events) = match self.0 {
            Kind::Json(mut json, mut reader) => {
                if json.finish(&mut reader).is_err() {
                    let usage = Err(NoUsage::Unreadable);
                    return Told { usage, stopped_by_length: false, events: 0 };
                }
                reader.end_document(true);
                (reader.total, true, 0)
            }
            Kind::Sse(events) => events.finish(),
        };
        let usage = total.usage(ended).ok_or(NoUsage::Absent);
        Told { usage, stopped_by_length: total.stopped(), events }
    }
}
