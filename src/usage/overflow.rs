//! Tells a context-length refusal from other bad requests, and reads its
//! numbers.
//!
//! The wordings are those of vLLM (several versions), SGLang, OpenAI, Anthropic
//! and Gemini, as users quote them:
//! <https://github.com/vllm-project/vllm/issues/20409> and others.

/// Bytes of an error body that are read.
const READ_MAX: usize = 4096;

/// Words that only a refusal for length has. vLLM: "maximum context length"
/// (prompt and cap), "cannot be greater than max_model_len" (cap alone),
/// "maximum model length" (prompt alone). SGLang: "the model's context length".
/// OpenAI: the code `context_length_exceeded`.
const WORDS: [&[u8]; 6] = [
    b"context length",
    b"context_length",
    b"max_model_len",
    b"model length",
    b"prompt is too long",
    b"input token count",
];

/// What stands right behind the number of prompt tokens.
const BEHIND: [&[u8]; 7] = [
    b" in the messages",                // vLLM, OpenAI
    b" in the prompt",                  // vLLM, completions
    b" in your prompt",                 // OpenAI, completions
    b" input tokens",                   // vLLM: "your request has 9000 input tokens"
    b" tokens from the input messages", // SGLang
    b" tokens in the input",            // vLLM, embeddings
    b" tokens) is longer than",         // SGLang, prompt alone
];

/// What stands right before it.
const BEFORE: [&[u8]; 4] = [
    b"messages resulted in ",   // OpenAI
    b"prompt is too long: ",    // Anthropic
    b"input token count (",     // Gemini
    b"decoder prompt (length ", // vLLM, prompt alone
];

/// A count that is only a bound: vLLM stops tokenizing where it is sure.
const AT_LEAST: &[u8] = b"at least ";

/// A refusal for length, as far as its numbers could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Prompt tokens that the engine counted.
    pub input: Option<u64>,
    /// It did not count to the end: there are at least so many.
    pub at_least: bool,
}

/// Reads the start of a 400 answer in pieces and tells whether it refuses the
/// request for its length.
#[derive(Clone, Debug, Default)]
pub struct OverflowScanner(Vec<u8>);

impl OverflowScanner {
    /// Reads the next bytes; those past the first 4 KiB are passed over.
    pub fn feed(&mut self, bytes: &[u8]) {
        let room = READ_MAX.saturating_sub(self.0.len());
        self.0.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or(&[]));
    }

    /// What the bytes so far say, if they refuse the request for its length.
    pub fn overflow(&self) -> Option<Overflow> {
        let find = |word: &[u8]| memchr::memmem::find(&self.0, word);
        WORDS.iter().find_map(|word| find(word))?;
        let behind = BEHIND.iter().find_map(|word| {
            let text = self.0.get(..find(word)?)?;
            let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            let (before, digits) = text.split_at_checked(text.len() - digits)?;
            Some((number(digits)?, before.ends_with(AT_LEAST)))
        });
        let before = || {
            BEFORE.iter().find_map(|word| {
                let text = self.0.get(find(word)? + word.len()..)?;
                let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
                Some((number(text.get(..digits)?)?, false))
            })
        };
        Some(behind.or_else(before).map_or_else(Overflow::default, |(input, at_least)| Overflow {
            input: Some(input),
            at_least,
        }))
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads an error of this message, byte by byte.
    fn read(message: &str) -> Option<Overflow> {
        let mut scanner = OverflowScanner::default();
        for byte in format!(r#"{{"error":{{"message":"{message}","code":400}}}}"#).bytes() {
            scanner.feed(&[byte]);
        }
        scanner.overflow()
    }

    #[test]
    fn the_wordings_of_engines_and_their_numbers() {
        let exact = |input| Some(Overflow { input: Some(input), at_least: false });
        let unknown = Some(Overflow::default());
        for (message, expected) in [
            (
                "This model's maximum context length is 16384 tokens. However, you requested \
                 122946 tokens (112946 in the messages, 10000 in the completion).",
                exact(112_946),
            ),
            (
                "This model's maximum context length is 2048 tokens. However, you requested \
                 2100 tokens (1100 in the prompt, 1000 in the completion).",
                exact(1100),
            ),
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum \
                 context length is 4096 tokens and your request has 2778 input tokens (8000 > \
                 4096 - 2778).",
                exact(2778),
            ),
            (
                "This model's maximum context length is 8192 tokens. However, your request has \
                 9001 input tokens. Please reduce the length of the input messages.",
                exact(9001),
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 100 \
                 output tokens and your prompt contains at least 8093 input tokens, for a total \
                 of at least 8193 tokens.",
                Some(Overflow { input: Some(8093), at_least: true }),
            ),
            (
                "The decoder prompt (length 9999) is longer than the maximum model length of 8192.",
                exact(9999),
            ),
            (
                "max_tokens=9000 cannot be greater than max_model_len=max_total_tokens=8192.",
                unknown,
            ),
            (
                "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
                exact(9000),
            ),
            (
                "Requested token count exceeds the model's maximum context length of 8192 tokens. \
                 You requested a total of 9500 tokens: 8500 tokens from the input messages and \
                 1000 tokens for the completion.",
                exact(8500),
            ),
            (
                "This model's maximum context length is 4097 tokens. However, your messages \
                 resulted in 4203 tokens.",
                exact(4203),
            ),
            ("prompt is too long: 208310 tokens > 200000 maximum", exact(208_310)),
            (
                "The input token count (1050000) exceeds the maximum number of tokens allowed \
                 (1048576).",
                exact(1_050_000),
            ),
            ("context length: 99999999999999999999999 input tokens", unknown),
            ("temperature must be non-negative, got 3 input tokens", None),
            ("max_tokens must be at least 1, got -186.", None),
        ] {
            assert_eq!(read(message), expected, "{message}");
        }
        assert!(read(r#"x","code":"context_length_exceeded"#).is_some());
        assert_eq!(read(&(" ".repeat(READ_MAX) + "context length")), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), word in 0_usize..7, digits in "[0-9]{0,30}") {
            let mut scanner = OverflowScanner(bytes);
            scanner.feed(b"context length");
            scanner.feed(digits.as_bytes());
            scanner.feed(BEHIND[word]);
            prop_assert!(scanner.overflow().is_some());
        }
    }
}
