//! Tells a context-length refusal from other bad requests.

/// Bytes of an error body that are read.
const READ_MAX: usize = 4096;

/// How engines word it. vLLM: "maximum context length" (prompt and cap),
/// "cannot be greater than max_model_len" (cap alone), "maximum model length"
/// (prompt alone). SGLang: "the model's context length". OpenAI: the code
/// `context_length_exceeded`.
const WORDS: [&[u8]; 4] = [b"context length", b"context_length", b"max_model_len", b"model length"];

/// A refusal for length, as far as its numbers could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Prompt tokens that the engine counted.
    pub input: Option<u64>,
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
        let named = WORDS.iter().any(|word| memchr::memmem::find(&self.0, word).is_some());
        named.then(Overflow::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_for_length_are_told_apart() {
        let read = |body: &str| {
            let mut scanner = OverflowScanner::default();
            for byte in body.bytes() {
                scanner.feed(&[byte]);
            }
            scanner.overflow().is_some()
        };
        assert!(read(
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#
        ));
        assert!(read(r#"{"error":{"code":"context_length_exceeded"}}"#));
        assert!(read(
            r#"{"error":{"message":"max_tokens=9 cannot be greater than max_model_len=8"}}"#
        ));
        assert!(read(r#"{"error":{"message":"longer than the maximum model length of 8"}}"#));
        assert!(!read(r#"{"error":{"message":"temperature must be non-negative"}}"#));
        assert!(!read(&(" ".repeat(READ_MAX) + "context length")));
    }
}
