//! Real tokenizers, embedded: true token counts with no download.

use std::fmt;
use std::str::FromStr;

use tiktoken_rs::{CoreBPE, cl100k_base_singleton, o200k_base_singleton};

/// The names that [`Tokenizer::from_str`] knows.
pub const NAMES: [&str; 2] = ["cl100k_base", "o200k_base"];

/// Tokens around every chat message: start, role separator, end.
pub const TOKENS_PER_MESSAGE: u32 = 3;
/// Tokens that prime the answer: `<|start|>assistant<|message|>`.
pub const TOKENS_PER_ANSWER: u32 = 3;

/// A published vocabulary. Copies share one instance, loaded at first use.
#[derive(Clone, Copy)]
pub struct Tokenizer {
    name: &'static str,
    bpe: &'static CoreBPE,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({})", self.name)
    }
}

/// No tokenizer has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTokenizer(pub String);

impl fmt::Display for UnknownTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown tokenizer {:?}; allowed: {}", self.0, NAMES.join(", "))
    }
}

impl std::error::Error for UnknownTokenizer {}

impl FromStr for Tokenizer {
    type Err = UnknownTokenizer;

    /// The tokenizer of a name in [`NAMES`]. The first call for a name loads
    /// its vocabulary.
    fn from_str(name: &str) -> Result<Self, UnknownTokenizer> {
        match name {
            "cl100k_base" => Ok(Self { name: NAMES[0], bpe: cl100k_base_singleton() }),
            "o200k_base" => Ok(Self { name: NAMES[1], bpe: o200k_base_singleton() }),
            _ => Err(UnknownTokenizer(name.into())),
        }
    }
}

impl Tokenizer {
    /// Its name, one of [`NAMES`].
    pub fn name(self) -> &'static str {
        self.name
    }

    /// How many tokens the text has. Special tokens are read as plain text, as
    /// a server does with what clients write.
    pub fn count(self, text: &str) -> u32 {
        u32::try_from(self.bpe.count_ordinary(text)).unwrap_or(u32::MAX)
    }

    /// The text's tokens.
    pub fn encode(self, text: &str) -> Vec<u32> {
        self.bpe.encode_ordinary(text)
    }

    /// The text of tokens; nothing when they end inside a character.
    pub fn decode(self, tokens: &[u32]) -> Option<String> {
        self.bpe.decode_bytes(tokens).ok().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// Prompt tokens of a chat: the contents and roles with the template around
    /// them, as OpenAI documents it for these vocabularies. `messages` yields
    /// `(role, content)`.
    pub fn count_chat<'a>(self, messages: impl IntoIterator<Item = (&'a str, &'a str)>) -> u32 {
        messages.into_iter().fold(TOKENS_PER_ANSWER, |sum, (role, content)| {
            let message = TOKENS_PER_MESSAGE + self.count(role) + self.count(content);
            sum.saturating_add(message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_match_the_published_examples() {
        // From OpenAI's cookbook, "How to count tokens with tiktoken".
        let cl100k: Tokenizer = "cl100k_base".parse().unwrap();
        let o200k: Tokenizer = "o200k_base".parse().unwrap();
        assert_eq!(cl100k.encode("tiktoken is great!"), [83, 1609, 5963, 374, 2294, 0]);
        assert_eq!((cl100k.count("お誕生日おめでとう"), o200k.count("お誕生日おめでとう")), (9, 8));
        assert_eq!(cl100k.decode(&cl100k.encode("Tür")).as_deref(), Some("Tür"));
    }

    #[test]
    fn half_a_character_has_no_text() {
        let tokenizer: Tokenizer = "cl100k_base".parse().unwrap();
        let tokens = tokenizer.encode("\u{1F9FF}");
        assert!(tokens.len() > 1);
        assert_eq!(tokenizer.decode(&tokens[..1]), None);
    }

    #[test]
    fn special_tokens_in_a_prompt_are_plain_text() {
        let tokenizer: Tokenizer = "cl100k_base".parse().unwrap();
        assert!(tokenizer.count("<|endoftext|>") > 1);
    }

    #[test]
    fn a_wrong_name_says_what_is_allowed() {
        let error = "llama3".parse::<Tokenizer>().unwrap_err().to_string();
        assert!(error.contains("llama3") && error.contains("cl100k_base, o200k_base"), "{error}");
    }
}
