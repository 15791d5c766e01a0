//! Real text of an exact token length.
//!
//! A prompt's length is what a trace says, counted by the very tokenizer that
//! the backend uses: never bytes divided by four. Texts are shuffled seed
//! sentences, functions or records, cut to length; every length is counted
//! again after the cut.

mod words;

use tidegate_sim::rng::Pcg;
pub use tidegate_sim::texts::Kind;
use tidegate_sim::texts::units;
pub use words::Words;

use crate::tokenizer::{TOKENS_PER_ANSWER, TOKENS_PER_MESSAGE, Tokenizer};

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
}

/// The fewest prompt tokens of a chat: the template around one user message of
/// one token.
pub const LEAST_CHAT_TOKENS: u32 = TOKENS_PER_ANSWER + MESSAGE_OVERHEAD + 1;

/// Template and role of one message; each role is one token in both
/// vocabularies (a test holds that).
const MESSAGE_OVERHEAD: u32 = TOKENS_PER_MESSAGE + 1;

/// Prepared seeds with their token counts. Building one costs a few
/// milliseconds; share it.
#[derive(Debug)]
pub struct Library {
    tokenizer: Tokenizer,
    words: Words,
    units: Vec<(Kind, Vec<Unit>)>,
}

#[derive(Debug)]
struct Unit {
    text: String,
    tokens: u32,
}

impl Library {
    /// Prepares the seeds of every kind for one tokenizer.
    pub fn new(tokenizer: Tokenizer) -> Self {
        let units = units(|kind, text| Unit {
            // The glue becomes a part of the next word's first token.
            tokens: tokenizer.count(&text),
            text: text + kind.glue(),
        });
        Self { tokenizer, words: Words::new(tokenizer), units }
    }

    /// The tokenizer that counts.
    pub fn tokenizer(&self) -> Tokenizer {
        self.tokenizer
    }

    /// A text of exactly `tokens` tokens.
    pub fn text(&self, kind: Kind, tokens: u32, rng: &mut Pcg) -> String {
        let units = self.units.iter().find(|(k, _)| *k == kind).map_or(&[][..], |(_, u)| u);
        let mut text = String::new();
        let mut sum = 0u32;
        // Counts of pieces do not add up exactly: take a little too much to cut.
        let enough = tokens.saturating_add(tokens / 16 + 8);
        while sum < enough
            && let Some(unit) = rng.pick(units)
        {
            text.push_str(&unit.text);
            sum = sum.saturating_add(unit.tokens.max(1));
        }
        self.fit(&text, tokens, rng)
    }

    /// Cuts or fills a text to exactly `tokens` tokens.
    fn fit(&self, text: &str, tokens: u32, rng: &mut Pcg) -> String {
        let encoded = self.tokenizer.encode(text);
        // A cut can fall inside a character, or make other tokens of the rest:
        // cut a little more, fill up with whole words, and count again.
        for cut in 0..16u32 {
            let keep = tokens.saturating_sub(cut).min(encoded.len() as u32);
            let Some(mut text) =
                encoded.get(..keep as usize).and_then(|head| self.tokenizer.decode(head))
            else {
                continue;
            };
            let counted = self.tokenizer.count(&text);
            if counted > tokens {
                continue;
            }
            if counted < tokens {
                self.extend(&mut text, tokens - counted, rng);
                if self.tokenizer.count(&text) != tokens {
                    continue;
                }
            }
            return text;
        }
        let mut text = String::new();
        self.extend(&mut text, tokens, rng);
        text
    }

    fn extend(&self, text: &mut String, tokens: u32, rng: &mut Pcg) {
        let seed = u64::from(rng.next_u32());
        for index in 0..u64::from(tokens) {
            // From 1: a piece in the middle keeps its space.
            text.push_str(self.words.piece(seed, index + 1));
        }
    }

    /// A chat whose prompt, template included, has exactly `tokens` tokens, or
    /// [`LEAST_CHAT_TOKENS`] when that is more. Longer ones often have a system
    /// message and earlier turns.
    pub fn chat(&self, kind: Kind, tokens: u32, rng: &mut Pcg) -> Vec<Message> {
        let mut rest = tokens.max(LEAST_CHAT_TOKENS) - TOKENS_PER_ANSWER;
        let mut roles = Vec::new();
        if rest >= 100 && rng.chance(0.5) {
            roles.push("system");
        }
        if rest >= 400 && rng.chance(0.5) {
            for _ in 0..=rng.below(3) {
                roles.extend(["user", "assistant"]);
            }
        }
        roles.push("user");
        rest -= MESSAGE_OVERHEAD * roles.len() as u32;
        let last = roles.len() - 1;
        let lengths: Vec<u32> = roles
            .iter()
            .enumerate()
            .map(|(index, role)| {
                let share = match *role {
                    _ if index == last => rest,
                    "system" => 10 + rng.below(30),
                    // At most a half each, so that something stays for the last.
                    _ => 1 + rng.below(rest / 2),
                };
                rest -= share;
                share
            })
            .collect();
        let messages = roles.into_iter().zip(lengths);
        messages
            .map(|(role, length)| Message { role, content: self.text(kind, length, rng) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::NAMES;

    fn libraries() -> impl Iterator<Item = Library> {
        NAMES.iter().map(|name| Library::new(name.parse().unwrap()))
    }

    #[test]
    fn every_kind_has_every_length_exactly() {
        for library in libraries() {
            let mut rng = Pcg::new(1, 1);
            for kind in Kind::ALL {
                for tokens in (1..80).chain([200, 777, 1_500, 6_000]) {
                    let text = library.text(kind, tokens, &mut rng);
                    let counted = library.tokenizer.count(&text);
                    assert_eq!(counted, tokens, "{kind:?}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn texts_are_of_their_kind_and_not_filled_up() {
        for library in libraries() {
            let mut rng = Pcg::new(2, 2);
            for (kind, sign) in [
                (Kind::Chinese, '的'),
                (Kind::Japanese, 'の'),
                (Kind::Arabic, 'ل'),
                (Kind::Hindi, 'क'),
                (Kind::Russian, 'о'),
                (Kind::Json, '{'),
                (Kind::C, ';'),
            ] {
                let text = library.text(kind, 400, &mut rng);
                assert!(text.contains(sign), "{kind:?}: {text}");
                let latin = text.chars().filter(char::is_ascii_alphabetic).count();
                if !matches!(kind, Kind::Json | Kind::C) {
                    assert!(latin < 60, "{kind:?} has {latin} Latin letters: {text}");
                }
            }
        }
    }

    #[test]
    fn chats_have_every_length_exactly_with_their_template() {
        for library in libraries() {
            let mut rng = Pcg::new(3, 3);
            let mut shapes = std::collections::BTreeSet::new();
            for tokens in (LEAST_CHAT_TOKENS..150).chain([400, 401, 1_000, 1_001, 4_000, 9_999]) {
                for kind in [Kind::English, Kind::Hindi, Kind::Rust] {
                    let chat = library.chat(kind, tokens, &mut rng);
                    let pairs = chat.iter().map(|m| (m.role, m.content.as_str()));
                    assert_eq!(library.tokenizer.count_chat(pairs), tokens, "{chat:?}");
                    assert!(chat.iter().all(|m| !m.content.is_empty()));
                    shapes.insert(chat.len());
                }
            }
            assert!(shapes.len() >= 3, "all chats look alike: {shapes:?}");
            let least = library.chat(Kind::English, 1, &mut rng);
            assert_eq!((least.len(), library.tokenizer.count(&least[0].content)), (1, 1));
        }
    }

    #[test]
    fn a_seed_fixes_the_text() {
        let library = Library::new("cl100k_base".parse().unwrap());
        let draw = |seed| library.chat(Kind::Spanish, 900, &mut Pcg::new(seed, 0));
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
