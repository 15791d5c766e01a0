//! What is counted in a text: letters, words, digits, punctuation, blanks, and
//! characters by script.
//!
//! Tokenizers cut text at these places first and merge within them, so the
//! tokens of a text are nearly linear in these counts; the coefficients are
//! what `regress` learns for each model.

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// A count over a text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Feature { $(#[doc = $name] $(#[doc = ""] #[$doc])* $variant,)* }

        impl Feature {
            /// Every feature, in the order of its number.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name that tables use.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

features! {
    /// Digits.
    Digit => "digit",
    /// Digits that do not follow a digit.
    Number => "number",
    /// Digits after an ASCII letter.
    DigitInWord => "digit_in_word",
    /// Spaces.
    Space => "space",
    /// Spaces after a space.
    SpaceRun => "space_run",
    /// Newlines.
    Newline => "newline",
    /// Control characters, newlines too.
    Control => "control",
    /// ASCII punctuation.
    Punctuation => "punctuation",
    /// Punctuation that does not follow punctuation.
    PunctuationGroup => "punctuation_group",
    /// Punctuation after the same byte.
    PunctuationRepeat => "punctuation_repeat",
    /// ASCII letters that begin a word.
    Word => "word",
    /// Other characters that begin a word.
    WordOther => "word_other",
    A => "a", C => "c", D => "d", E => "e", H => "h", I => "i", L => "l", M => "m", N => "n",
    O => "o", R => "r", S => "s", T => "t", U => "u", Y => "y",
    /// The letters j, q and x.
    Jqx => "jqx",
    /// The letters k, w and z, which set languages apart.
    Kwz => "kwz",
    /// Accented letters of Western Europe.
    LatinOne => "latin_1",
    /// Accented letters of Central Europe and Turkish.
    LatinTwo => "latin_2",
    /// Other accented letters, and combining marks.
    LatinOther => "latin_other",
    /// Latin letters with stacked accents (Vietnamese).
    LatinStacked => "latin_stacked",
    /// Quotes, dashes and signs that all scripts share.
    Neutral => "neutral",
    /// Arrows, boxes, mathematical signs.
    Symbol => "symbol",
    Emoji => "emoji",
    /// Scripts that are not named here.
    Other => "other",
    Greek => "greek",
    Cyrillic => "cyrillic",
    /// Cyrillic letters that Russian does not use.
    CyrillicExtended => "cyrillic_extended",
    Armenian => "armenian",
    Hebrew => "hebrew",
    Arabic => "arabic",
    /// Arabic letters that Arabic does not use.
    ArabicExtended => "arabic_extended",
    Devanagari => "devanagari",
    Bengali => "bengali",
    Gurmukhi => "gurmukhi",
    Gujarati => "gujarati",
    Odia => "odia",
    Tamil => "tamil",
    Telugu => "telugu",
    Kannada => "kannada",
    Malayalam => "malayalam",
    Sinhala => "sinhala",
    Thai => "thai",
    Lao => "lao",
    Tibetan => "tibetan",
    Burmese => "burmese",
    Georgian => "georgian",
    Hangul => "hangul",
    Ethiopic => "ethiopic",
    Khmer => "khmer",
    Hiragana => "hiragana",
    Katakana => "katakana",
    Han => "han",
    /// Bytes of text.
    Bytes => "bytes",
    /// Texts: strings of content.
    Text => "text",
    /// Bytes of tool definitions and calls, which the template renders.
    Tools => "tools",
    /// Bytes of a body of which only the length is known.
    Unseen => "unseen",
    /// Chat messages.
    Message => "message",
    /// One, for every request that has text or messages.
    Constant => "constant",
}

/// How many features there are.
pub const FEATURES: usize = Feature::ALL.len();

/// Bytes whose text is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Tool definitions and calls, which the chat template renders as JSON.
    Tools,
    /// A body of which only the length is known.
    Unseen,
}

/// Counts are kept in these parts of one.
pub(super) const UNIT: u64 = 256;

/// What is known of a text: its length and its counts, which a sample stands
/// for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    bytes: u64,
    /// In parts of [`UNIT`].
    counts: [u64; FEATURES],
}

impl Default for Tally {
    fn default() -> Self {
        Self { bytes: 0, counts: [0; FEATURES] }
    }
}

impl Tally {
    /// `bytes` of one class.
    pub fn of(class: Class, bytes: u64) -> Self {
        let mut tally = Self::default();
        tally.add(class, bytes);
        tally
    }

    /// A whole text, read as the wire formats' readers do.
    pub fn read(text: &[u8]) -> Self {
        let (mut sampler, mut tally) = (super::Sampler::default(), Self::default());
        sampler.feed(text, &mut tally);
        sampler.finish(&mut tally);
        tally
    }

    /// Adds bytes of one class; saturates.
    pub fn add(&mut self, class: Class, bytes: u64) {
        let feature = match class {
            Class::Tools => Feature::Tools,
            Class::Unseen => Feature::Unseen,
        };
        self.bytes = self.bytes.saturating_add(bytes);
        self.count(feature, bytes.saturating_mul(UNIT));
    }

    /// Adds bytes of text that was read, or for which a sample speaks.
    pub(super) fn add_text(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Bytes of text.
    fn text_bytes(&self) -> f64 {
        let others = self.get(Feature::Tools) + self.get(Feature::Unseen);
        (self.bytes as f64 - others).max(0.0)
    }

    /// Adds the end of a text.
    pub(super) fn add_end(&mut self) {
        self.count(Feature::Text, UNIT);
    }

    /// Adds the counts of a sample, each standing for so many parts of
    /// [`UNIT`].
    pub(super) fn add_counts(&mut self, counts: &[u8; FEATURES], weight: u64) {
        // No text is long enough to wrap around.
        for (slot, count) in self.counts.iter_mut().zip(counts) {
            *slot = slot.wrapping_add(u64::from(*count) * weight);
        }
    }

    /// Adds to a count, in parts of [`UNIT`].
    fn count(&mut self, feature: Feature, parts: u64) {
        if let Some(slot) = self.counts.get_mut(feature as usize) {
            *slot = slot.saturating_add(parts);
        }
    }

    /// Adds another tally; saturates.
    pub fn merge(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// All bytes; saturates.
    pub fn total(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a body that was not read.
    pub(super) fn unseen(&self) -> u64 {
        self.get(Feature::Unseen) as u64
    }

    /// A count.
    pub fn get(&self, feature: Feature) -> f64 {
        if feature == Feature::Bytes {
            return self.text_bytes();
        }
        self.counts.get(feature as usize).map_or(0.0, |parts| *parts as f64 / UNIT as f64)
    }

    /// Takes `bytes` more of the same mix; of [`Class::Unseen`] if empty.
    pub fn extend(&mut self, bytes: u64) {
        if self.bytes == 0 {
            return self.add(Class::Unseen, bytes);
        }
        for slot in &mut self.counts {
            let more = u128::from(*slot) * u128::from(bytes) / u128::from(self.bytes);
            *slot = slot.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The regressors of a request with this text and so many messages.
    pub(super) fn regressors(&self, messages: u64) -> [f64; FEATURES] {
        let mut all = [0.0; FEATURES];
        for (slot, parts) in all.iter_mut().zip(&self.counts) {
            *slot = *parts as f64 / UNIT as f64;
        }
        let [.., message, constant] = &mut all;
        *message = messages as f64;
        *constant = 1.0;
        if let Some(bytes) = all.get_mut(Feature::Bytes as usize) {
            *bytes = self.text_bytes();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extending_keeps_the_mix() {
        let mut tally = Tally::read(b"ab 12");
        tally.extend(10);
        assert_eq!(tally.total(), 15);
        assert_eq!((tally.get(Feature::A), tally.get(Feature::Digit)), (3.0, 6.0));
        let mut empty = Tally::default();
        empty.extend(7);
        assert_eq!(empty, Tally::of(Class::Unseen, 7));
    }
}
