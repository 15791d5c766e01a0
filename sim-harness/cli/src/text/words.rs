//! Answers of an exact length: real English in which every piece is one token.

use tidegate_sim::texts::ONE_TOKEN;

use crate::tokenizer::Tokenizer;

/// A ring of one-token pieces. The piece at `start + i` is the answer's token
/// `i`, and any run of them has exactly as many tokens as pieces.
#[derive(Debug)]
pub struct Words {
    pieces: Vec<&'static str>,
    /// Where sentences start, so that answers do.
    starts: Vec<usize>,
}

impl Words {
    /// Keeps the sentences that the tokenizer cuts into whole pieces.
    pub fn new(tokenizer: Tokenizer) -> Self {
        let (mut pieces, mut starts) = (Vec::new(), Vec::new());
        for sentence in ONE_TOKEN {
            let cut = cut(sentence);
            // The first piece also stands without its space, at an answer's start.
            let first = cut.first().map(|piece| piece.trim_start());
            if cut.iter().copied().chain(first).all(|piece| tokenizer.count(piece) == 1) {
                starts.push(pieces.len());
                pieces.extend(cut);
            }
        }
        Self { pieces, starts }
    }

    /// The answer's token `index`, from 0, of the answer that `seed` names.
    pub fn piece(&self, seed: u64, index: u64) -> &'static str {
        let pick = |list: &[usize]| -> usize {
            let count = list.len().max(1) as u64;
            list.get((seed % count) as usize).copied().unwrap_or(0)
        };
        let count = self.pieces.len().max(1) as u64;
        let at = (pick(&self.starts) as u64 + index) % count;
        let piece = self.pieces.get(at as usize).copied().unwrap_or("");
        if index == 0 { piece.trim_start() } else { piece }
    }

    /// A whole answer of `tokens` tokens.
    pub fn text(&self, seed: u64, tokens: u64) -> String {
        (0..tokens).map(|index| self.piece(seed, index)).collect()
    }
}

/// Cuts before every space and every mark.
fn cut(sentence: &'static str) -> Vec<&'static str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, byte) in sentence.bytes().enumerate() {
        if at > start && matches!(byte, b' ' | b',' | b'.') {
            pieces.extend(sentence.get(start..at));
            start = at;
        }
    }
    pieces.extend(sentence.get(start..));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::NAMES;

    #[test]
    fn any_length_has_exactly_that_many_tokens() {
        for name in NAMES {
            let tokenizer: Tokenizer = name.parse().unwrap();
            let words = Words::new(tokenizer);
            assert_eq!(words.starts.len(), ONE_TOKEN.len(), "{name} loses sentences");
            for seed in 0..20 {
                for tokens in (0..60).chain([500, 1_000]) {
                    let text = words.text(seed, tokens);
                    assert_eq!(u64::from(tokenizer.count(&text)), tokens, "{name}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn answers_start_at_a_sentence_and_differ_by_seed() {
        let words = Words::new("cl100k_base".parse().unwrap());
        assert!(words.text(0, 4).starts_with("The first answer"));
        assert!(words.text(1, 4).starts_with("We can see"));
    }
}
