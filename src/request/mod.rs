//! Request bodies become [`RequestFacts`]: what the policy may know.
//!
//! The facts of a body are those that `serde_json::Value` of the same bytes
//! would give: keys compare unescaped, the last duplicate wins at each level,
//! and a value counts only at its own path.

mod number;
mod openai;
#[cfg(test)]
mod tests;

pub use number::lax_integer;

use crate::estimate::{Class, Tally};
use crate::json::Invalid;

/// Bytes of a model's name that are kept; a longer name is cut.
pub const MODEL_MAX: usize = 128;

/// The wire format of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI `POST /v1/chat/completions`.
    Chat,
    /// OpenAI `POST /v1/completions`.
    Completions,
}

impl Api {
    /// The format that a request path (with or without a query) stands for;
    /// `None` if the path is not a known one. A prefix before `/v1` is allowed.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
        let path = path.get(..end)?;
        if path.ends_with(b"/v1/chat/completions") {
            Some(Self::Chat)
        } else if path.ends_with(b"/v1/completions") {
            Some(Self::Completions)
        } else {
            None
        }
    }
}

/// The client's limit on output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// None given, or `null`.
    #[default]
    Absent,
    /// At most so many tokens; 0 also stands for a negative cap, which the
    /// engine will refuse.
    Tokens(u64),
    /// Given, but not an integer by vLLM's lax rules. Treated as absent.
    Unreadable,
    /// Perhaps given, in a part of the body that was not read.
    Unseen,
}

impl Cap {
    /// The number, if there is one.
    pub const fn tokens(self) -> Option<u64> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Absent | Self::Unreadable | Self::Unseen => None,
        }
    }
}

/// What the policy knows of a request before it goes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// The wire format.
    pub api: Api,
    /// The model's name, at most [`MODEL_MAX`] bytes; `None` if absent or not
    /// a string.
    pub model: Option<Vec<u8>>,
    /// Text bytes of all prompts by class, as the tokenizer will see them
    /// (unescaped). Tool definitions and calls are of [`Class::Tools`].
    pub text: Tally,
    /// Text bytes of the largest single prompt; `None` if there is one only.
    pub largest: Option<Tally>,
    /// Token ids given instead of text, over all prompts.
    pub token_ids: u64,
    /// Token ids of the largest single prompt.
    pub largest_token_ids: u64,
    /// Chat messages; each costs a few tokens of template.
    pub messages: u64,
    /// Prompts in the request; 1 for chat.
    pub prompts: u64,
    /// The client's limit on output tokens, for each sequence.
    pub cap: Cap,
    /// Answers asked for each prompt.
    pub n: u64,
    /// Candidates generated for each prompt.
    pub best_of: u64,
    /// The answer is to be streamed.
    pub stream: bool,
    /// A streamed answer is to end with its usage.
    pub include_usage: bool,
    /// Content parts that are no text (images, audio): their tokens cannot be
    /// told from bytes, so the answer teaches nothing.
    pub opaque: u64,
    /// Numbers that were there but could not be read.
    pub unreadable: u64,
}

impl RequestFacts {
    /// Facts without content, for one prompt.
    pub fn new(api: Api) -> Self {
        Self {
            api,
            model: None,
            text: Tally::default(),
            largest: None,
            token_ids: 0,
            largest_token_ids: 0,
            messages: 0,
            prompts: 1,
            cap: Cap::Absent,
            n: 1,
            best_of: 1,
            stream: false,
            include_usage: false,
            opaque: 0,
            unreadable: 0,
        }
    }

    /// Facts from plain numbers: what a simulator knows of a chat request.
    pub fn chat(model: &str, text: Tally, messages: u64, cap: Cap) -> Self {
        let model = model.as_bytes().get(..model.len().min(MODEL_MAX)).map(<[u8]>::to_vec);
        Self { model, text, messages, cap, ..Self::new(Api::Chat) }
    }

    /// Facts of a body of which only the length is known.
    pub fn unseen(api: Api, bytes: u64) -> Self {
        Self { text: Tally::of(Class::Unseen, bytes), cap: Cap::Unseen, ..Self::new(api) }
    }

    /// The limit on output tokens in force: the client's, or the 16 that a text
    /// completion gets without one (OpenAI, vLLM); `None` for an uncapped chat,
    /// and where the cap was not read.
    pub fn output_cap(&self) -> Option<u64> {
        match (self.cap, self.api) {
            (Cap::Tokens(cap), _) => Some(cap),
            (Cap::Unseen, _) | (_, Api::Chat) => None,
            (_, Api::Completions) => Some(16),
        }
    }

    /// Sequences that the engine will run: prompts × the larger of `n` and `best_of`.
    pub fn sequences(&self) -> u64 {
        self.prompts.saturating_mul(self.n.max(self.best_of))
    }
}

/// Reads a request body in pieces, cut anywhere; keeps no copy.
#[derive(Clone, Debug)]
pub struct Scanner {
    json: crate::json::Scanner,
    reader: openai::Reader,
    bytes: u64,
}

impl Scanner {
    /// A scanner at the start of a body of this format.
    pub fn new(api: Api) -> Self {
        Self { json: crate::json::Scanner::new(), reader: openai::Reader::new(api), bytes: 0 }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        self.json.feed(bytes, &mut self.reader);
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the body is complete, unless something invalid follows.
    pub fn complete(&self) -> bool {
        self.json.complete()
    }

    /// The facts of the whole body. Invalid also if it is no JSON object.
    pub fn finish(mut self) -> Result<RequestFacts, Invalid> {
        self.json.finish(&mut self.reader)?;
        self.reader.finish().ok_or(Invalid)
    }

    /// Whether the model's name was read.
    pub fn knows_model(&self) -> bool {
        self.reader.knows_model()
    }

    /// The facts of a body that was not read to its end, which is `unread`
    /// bytes further on. The rest counts as more of the same: as much text for
    /// each byte, of the same mix. Invalid if what was read cannot be the start
    /// of a JSON object.
    pub fn cut(self, unread: u64) -> Result<RequestFacts, Invalid> {
        if self.json.failed() {
            return Err(Invalid);
        }
        let mut facts = self.reader.finish().ok_or(Invalid)?;
        if facts.cap == Cap::Absent {
            facts.cap = Cap::Unseen;
        }
        let text = facts.text.total();
        if text == 0 && facts.token_ids > 0 {
            // An id and its comma are two bytes at the least.
            facts.token_ids = facts.token_ids.saturating_add(unread / 2);
            facts.largest_token_ids = facts.largest_token_ids.saturating_add(unread / 2);
            return Ok(facts);
        }
        let share = u128::from(unread) * u128::from(text) / u128::from(self.bytes.max(1));
        let more = u64::try_from(share).unwrap_or(u64::MAX);
        facts.text.extend(more);
        if let Some(largest) = &mut facts.largest {
            largest.extend(more);
        }
        Ok(facts)
    }
}
