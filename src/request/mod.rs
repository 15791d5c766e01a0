//! Request bodies become [`RequestFacts`]: what the policy may know.
//!
//! The facts of a body are those that `serde_json::Value` of the same bytes
//! would give: keys compare unescaped, the last duplicate wins at each level,
//! and a value counts only at its own path.

mod anthropic;
mod ask;
mod gemini;
mod grammar;
mod kind;
mod number;
mod openai;
mod prompts;
mod reader;
mod rerank;
mod sglang;
#[cfg(test)]
mod tests;
mod value;

pub use ask::Edit;
pub use number::lax_integer;

use crate::estimate::{Class, Tally};
use crate::json::Invalid;

/// Bytes of a model's name that are kept; a longer name is cut.
pub const MODEL_MAX: usize = 128;

/// The wire format of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI `POST /v1/chat/completions`.
    Chat,
    /// OpenAI `POST /v1/completions`.
    Completions,
    /// OpenAI `POST /v1/responses`.
    Responses,
    /// OpenAI `POST /v1/embeddings`, and vLLM's `/pooling`.
    Embeddings,
    /// `POST /rerank` (Cohere, Jina) and `/score` (vLLM).
    Rerank,
    /// Anthropic `POST /v1/messages`.
    Messages,
    /// Gemini `POST …/models/NAME:generateContent` and `:streamGenerateContent`.
    Gemini,
    /// SGLang `POST /generate`.
    Generate,
    /// Any other JSON: its bytes are counted, not read.
    Unknown,
}

impl Api {
    /// Every format and the word for it in the configuration.
    pub const WORDS: [(&str, Self); 9] = [
        ("chat", Self::Chat),
        ("completions", Self::Completions),
        ("responses", Self::Responses),
        ("embeddings", Self::Embeddings),
        ("rerank", Self::Rerank),
        ("messages", Self::Messages),
        ("gemini", Self::Gemini),
        ("generate", Self::Generate),
        ("unknown", Self::Unknown),
    ];

    /// The format that a request path (with or without a query) stands for.
    /// A prefix before `/v1` is allowed.
    pub fn of_path(path: &[u8]) -> Self {
        let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
        let path = path.get(..end).unwrap_or_default();
        let ends = |end: &[u8]| path.ends_with(end);
        if ends(b"/v1/chat/completions") {
            Self::Chat
        } else if ends(b"/v1/completions") {
            Self::Completions
        } else if ends(b"/v1/responses") {
            Self::Responses
        } else if ends(b"/v1/embeddings") || ends(b"/pooling") {
            Self::Embeddings
        } else if ends(b"/rerank") || ends(b"/score") {
            Self::Rerank
        } else if ends(b"/v1/messages") {
            Self::Messages
        } else if gemini::of_path(path).is_some() {
            Self::Gemini
        } else if ends(b"/generate") && !ends(b"/api/generate") {
            // Ollama's `/api/generate` is another format.
            Self::Generate
        } else {
            Self::Unknown
        }
    }
}

/// Parts of a prompt that are no text: their tokens cannot be told from bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Images.
    pub images: u64,
    /// Pieces of audio.
    pub audio: u64,
    /// Videos.
    pub videos: u64,
    /// Files, and parts of a kind that is not known.
    pub files: u64,
}

impl Media {
    /// All of them; saturates.
    pub fn total(&self) -> u64 {
        [self.audio, self.videos, self.files].iter().fold(self.images, |a, b| a.saturating_add(*b))
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
    /// What the client said about usage in a streamed answer, where the format
    /// has a word for it (`stream_options.include_usage`).
    pub include_usage: Option<bool>,
    /// Content that is no text. With any the answer teaches nothing.
    pub media: Media,
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
            include_usage: None,
            media: Media::default(),
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

    /// The limit on output tokens in force: the client's, or what the format
    /// sets without one: 16 for a text completion (OpenAI, vLLM), 128 for
    /// SGLang's `/generate`, none for embeddings and rerankings. `None` if there
    /// is no limit but the window, and where the cap was not read.
    pub fn output_cap(&self) -> Option<u64> {
        match (self.api, self.cap) {
            (Api::Embeddings | Api::Rerank, _) => Some(0),
            (_, Cap::Tokens(cap)) => Some(cap),
            (Api::Completions, Cap::Absent | Cap::Unreadable) => Some(16),
            (Api::Generate, Cap::Absent | Cap::Unreadable) => Some(sglang::DEFAULT_CAP),
            _ => None,
        }
    }

    /// Whether the answer is a stream that was not asked for its usage.
    pub fn silent(&self) -> bool {
        let may_ask = matches!(self.api, Api::Chat | Api::Completions);
        may_ask && self.stream && self.include_usage != Some(true)
    }

    /// Bytes of text and items of ids: about what the prompts weigh.
    pub fn weight(&self) -> u64 {
        self.text.total().saturating_add(self.token_ids)
    }

    /// Sequences that the engine will run: prompts × the larger of `n` and `best_of`.
    pub fn sequences(&self) -> u64 {
        self.prompts.saturating_mul(self.n.max(self.best_of))
    }
}

/// Reads a request body in pieces, cut anywhere; keeps no copy.
#[derive(Clone, Debug)]
pub struct Scanner {
    api: Api,
    json: crate::json::Scanner,
    reader: reader::Reader,
    /// What the path says, in formats in which it does: model, and streaming.
    path: Option<(Vec<u8>, bool)>,
    bytes: u64,
}

impl Scanner {
    /// A scanner at the start of a body of this format. In some formats the
    /// path names the model, and whether the answer is a stream.
    pub fn new(api: Api, path: &[u8]) -> Self {
        let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
        let path = path.get(..end).filter(|_| api == Api::Gemini).and_then(gemini::of_path);
        Self {
            api,
            json: crate::json::Scanner::new(),
            reader: reader::Reader::new(api),
            path: path
                .map(|(model, stream)| (model.get(..MODEL_MAX).unwrap_or(model).to_vec(), stream)),
            bytes: 0,
        }
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

    /// The facts of the whole body. Invalid also if it is no JSON object,
    /// unless the format is unknown.
    pub fn finish(mut self) -> Result<RequestFacts, Invalid> {
        self.json.finish(&mut self.reader)?;
        self.facts()
    }

    fn facts(self) -> Result<RequestFacts, Invalid> {
        let facts = self.reader.finish();
        if self.api == Api::Unknown {
            let model = facts.and_then(|facts| facts.model);
            let text = Tally::of(Class::Unseen, self.bytes);
            return Ok(RequestFacts { model, text, ..RequestFacts::new(self.api) });
        }
        let mut facts = facts.ok_or(Invalid)?;
        if let Some((model, stream)) = self.path {
            facts.model = Some(model);
            facts.stream = stream;
        }
        Ok(facts)
    }

    /// Whether the model's name was read.
    pub fn knows_model(&self) -> bool {
        self.model().is_some()
    }

    /// The model's name, if it was read.
    pub fn model(&self) -> Option<&[u8]> {
        let of_path = self.path.as_ref().map(|(model, _)| model.as_slice());
        of_path.or_else(|| self.reader.model())
    }

    /// Text bytes so far of the largest prompt that was begun. It only grows,
    /// unless a member is repeated.
    pub fn text_bytes(&self) -> u64 {
        if self.api == Api::Unknown { self.bytes } else { self.reader.text_bytes() }
    }

    /// The facts of a body that was not read to its end, which is `unread`
    /// bytes further on. The rest counts as more of the same: as much text for
    /// each byte, of the same mix. Invalid if what was read cannot be the start
    /// of a JSON object.
    pub fn cut(self, unread: u64) -> Result<RequestFacts, Invalid> {
        if self.json.failed() {
            return Err(Invalid);
        }
        let bytes = self.bytes.max(1);
        let mut facts = self.facts()?;
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
        let share = u128::from(unread) * u128::from(text) / u128::from(bytes);
        let more = u64::try_from(share).unwrap_or(u64::MAX);
        facts.text.extend(more);
        if let Some(largest) = &mut facts.largest {
            largest.extend(more);
        }
        Ok(facts)
    }
}
