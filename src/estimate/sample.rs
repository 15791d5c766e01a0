//! Reads a bounded sample of a text and counts its features.
//!
//! The first 2,400 bytes of a request's content are read in full, then 240 bytes at
//! the start of each further text and 60 each time the content is a sixth
//! longer: of 100 KB some 4 KB are read. Where they lie depends on
//! the content alone.

use super::features::{FEATURES, Feature, Tally, UNIT};

/// Content that is read in full: whole blocks.
const FULL: u64 = 10 * BLOCK as u64;
/// Bytes that are counted at once.
const BLOCK: usize = 240;
/// Beyond, a block is made of pieces of so many bytes, with gaps between them.
const PIECE: usize = 60;
/// A gap is this share of the content before it.
const GAP_SHARE: u64 = 6;
/// So many texts have blocks of their own. Those after them share blocks: a body
/// of tiny texts would cost a block for each.
const APART: u64 = 128;
/// Bytes before them, which tell where words and runs began.
const CONTEXT: usize = 16;
const BUFFER: usize = CONTEXT + BLOCK;

/// Reads the pieces of the texts of one request. The result does not depend
/// on how a text is cut into pieces.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// Content of the request read so far.
    content: u64,
    /// The block being filled, which speaks for the text since `from`;
    /// `None` between two texts.
    block: Option<Block>,
    /// The open text has bytes.
    begun: bool,
    /// Texts that ended.
    texts: u64,
}

#[derive(Clone, Debug)]
struct Block {
    from: u64,
    /// Where the next piece starts, once one is full.
    next: u64,
    /// Bytes of one piece.
    piece: usize,
    filled: usize,
    bytes: [u8; BUFFER],
}

impl Sampler {
    /// Reads the next piece; adds to `tally` what is decided.
    pub fn feed(&mut self, mut bytes: &[u8], tally: &mut Tally) {
        tally.add_text(bytes.len() as u64);
        self.begun |= !bytes.is_empty();
        while !bytes.is_empty() {
            let at = self.content;
            let block = self.block.get_or_insert_with(|| Block::at_start(at));
            let taken = if block.next > at {
                usize::try_from(block.next - at).unwrap_or(usize::MAX).min(bytes.len())
            } else if block.filled == BUFFER {
                block.close(at, tally);
                block.follow(at);
                0
            } else {
                let taken = block.fill(bytes);
                if block.at_stop() {
                    block.next = at + taken as u64 + gap(at + taken as u64);
                }
                taken
            };
            self.content += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// Whether a block is open that more texts may share.
    pub fn shares(&self) -> bool {
        self.block.is_some()
    }

    /// Ends a text that is a prompt of its own, or the last of those that share
    /// a block.
    pub fn finish_prompt(&mut self, tally: &mut Tally) {
        self.finish(tally);
        if let Some(block) = self.block.take() {
            block.close(self.content, tally);
        }
    }

    /// Ends the text and starts the next one of the same prompt.
    pub fn finish(&mut self, tally: &mut Tally) {
        if !core::mem::take(&mut self.begun) {
            return;
        }
        tally.add_end();
        self.texts = self.texts.saturating_add(1);
        if self.texts < APART
            && let Some(block) = self.block.take()
        {
            block.close(self.content, tally);
        }
    }
}

/// Content that is skipped after so much.
fn gap(content: u64) -> u64 {
    if content < FULL { 0 } else { content / GAP_SHARE }
}

impl Block {
    /// At the start of a text, with nothing before it.
    fn at_start(from: u64) -> Self {
        Self { from, next: 0, piece: BLOCK, filled: CONTEXT, bytes: [0; BUFFER] }
    }

    /// Becomes the block after itself. What stood before the bytes of this one
    /// stands before those of the next, or did in a text much like it.
    fn follow(&mut self, at: u64) {
        let context = self.bytes.last_chunk::<CONTEXT>().copied().unwrap_or_default();
        self.bytes.fill(0);
        if let Some(first) = self.bytes.first_chunk_mut::<CONTEXT>() {
            *first = context;
        }
        let piece = if gap(at) == 0 { BLOCK } else { PIECE };
        (self.from, self.piece, self.filled) = (at, piece, CONTEXT);
    }

    /// Takes bytes up to the end of the piece; returns how many.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let left = self.piece - (self.filled - CONTEXT) % self.piece;
        let bytes = bytes.get(..left).unwrap_or(bytes);
        if let Some(room) = self.bytes.get_mut(self.filled..self.filled + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.filled += bytes.len();
        bytes.len()
    }

    /// Whether a piece has just ended.
    fn at_stop(&self) -> bool {
        (self.filled - CONTEXT).is_multiple_of(self.piece)
    }

    /// Adds its counts for the text up to `to`.
    fn close(&self, to: u64, tally: &mut Tally) {
        let span = to - self.from;
        let Some(read) = self.filled.checked_sub(CONTEXT).filter(|read| *read > 0) else { return };
        let weight = span * UNIT / read as u64;
        tally.add_counts(&counts(&self.bytes), weight);
    }
}

/// Kinds of bytes, one bit each.
mod kind {
    pub(super) const LETTER: u8 = 1;
    pub(super) const DIGIT: u8 = 4;
    pub(super) const CONTROL: u8 = 32;
    pub(super) const PUNCTUATION: u8 = 64;
    pub(super) const HIGH: u8 = 128;
    /// What words are made of.
    pub(super) const WORD: u8 = LETTER | HIGH;

    /// Zero for the byte 0, which stands where there is no text.
    pub(super) fn of(byte: u8) -> u8 {
        let bit = |is: bool, kind: u8| if is { kind } else { 0 };
        let printable = byte.wrapping_sub(b'!') <= b'~' - b'!';
        let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
        let digit = byte.wrapping_sub(b'0') < 10;
        bit(letter, LETTER)
            | bit(digit, DIGIT)
            | bit(byte.wrapping_sub(1) < 31, CONTROL)
            | bit(printable && !letter && !digit, PUNCTUATION)
            | (byte & HIGH)
    }
}

type Counts = [u8; FEATURES];

/// The counted bytes, or what stood so many places before each of them.
fn back<const BACK: usize>(buffer: &[u8; BUFFER]) -> &[u8; BLOCK] {
    const { assert!(BACK <= CONTEXT) };
    buffer.get(CONTEXT - BACK..).and_then(|bytes| bytes.first_chunk()).unwrap_or(&[0; BLOCK])
}

// The loops below run over whole arrays of a length that the compiler knows:
// they become vector code.

fn map(bytes: &[u8; BUFFER], f: impl Fn(u8) -> u8) -> [u8; BUFFER] {
    let mut out = [0; BUFFER];
    for (slot, byte) in out.iter_mut().zip(bytes) {
        *slot = f(*byte);
    }
    out
}

fn count(bytes: &[u8; BLOCK], is: impl Fn(u8) -> bool) -> u8 {
    total(bytes.iter().map(|byte| is(*byte)))
}

/// How many are true. A vector's comparison gives all ones, which is less one:
/// adding these takes one operation less than adding ones.
fn total(all: impl Iterator<Item = bool>) -> u8 {
    all.fold(0_u8, |sum, is| sum.wrapping_add(if is { u8::MAX } else { 0 })).wrapping_neg()
}

fn pairs(before: &[u8; BLOCK], bytes: &[u8; BLOCK], is: impl Fn(u8, u8) -> bool) -> u8 {
    total(before.iter().zip(bytes).map(|(a, b)| is(*a, *b)))
}

/// The counts of one block; each is at most [`BLOCK`].
fn counts(buffer: &[u8; BUFFER]) -> Counts {
    use Feature as F;
    use kind::{CONTROL, DIGIT, HIGH, LETTER, PUNCTUATION, WORD};
    let mut counts = [0; FEATURES];
    let mut set = |feature: F, count: u8| {
        if let Some(slot) = counts.get_mut(feature as usize) {
            *slot = count;
        }
    };
    let kinds = map(buffer, kind::of);
    let (before, kind) = (back::<1>(&kinds), back::<0>(&kinds));
    let of = |bits: u8| count(kind, |kind| kind & bits != 0);
    let after = |before_bits: u8, bits: u8| {
        pairs(before, kind, |a, b| (a & before_bits != 0) & (b & bits != 0))
    };
    let after_none = |before_bits: u8, bits: u8| {
        pairs(before, kind, |a, b| (a & before_bits == 0) & (b & bits != 0))
    };
    let letters = of(LETTER);
    if letters > 0 {
        set(F::Word, after_none(WORD, LETTER));
        letter_counts(buffer, &kinds, &mut set);
    }
    if of(DIGIT) > 0 {
        set(F::Digit, of(DIGIT));
        set(F::Number, after_none(DIGIT, DIGIT));
        set(F::DigitInWord, after(LETTER, DIGIT));
    }
    let bytes = back::<0>(buffer);
    set(F::Space, count(bytes, |byte| byte == b' '));
    let spaces = |a: u8, b: u8| (a == b' ') & (b == b' ');
    set(F::SpaceRun, pairs(back::<1>(buffer), bytes, spaces));
    set(F::Newline, count(bytes, |byte| byte == b'\n'));
    set(F::Control, of(CONTROL));
    if of(PUNCTUATION) > 0 {
        set(F::Punctuation, of(PUNCTUATION));
        set(F::PunctuationGroup, after_none(PUNCTUATION, PUNCTUATION));
        let marks = back::<0>(buffer).iter().zip(back::<1>(buffer)).zip(kind);
        set(
            F::PunctuationRepeat,
            total(marks.map(|((a, b), k)| (a == b) & (k & PUNCTUATION != 0))),
        );
    }
    if of(HIGH) > 0 {
        let mut words = 0;
        for ((lead, byte), before) in
            back::<1>(buffer).iter().zip(back::<0>(buffer)).zip(back::<2>(&kinds))
        {
            if *lead >= 0xC0 {
                let feature = script(*lead, *byte);
                words += u8::from(before & WORD == 0);
                if let Some(slot) = counts.get_mut(feature as usize) {
                    *slot += 1;
                }
            }
        }
        if let Some(slot) = counts.get_mut(F::WordOther as usize) {
            *slot = words;
        }
    }
    counts
}

fn letter_counts(buffer: &[u8; BUFFER], kinds: &[u8; BUFFER], set: &mut impl FnMut(Feature, u8)) {
    let mut lower = map(buffer, |byte| byte | 0x20);
    for (byte, kind) in lower.iter_mut().zip(kinds) {
        // No letter is below b'a', so other bytes are none.
        *byte = if kind & kind::LETTER != 0 { *byte } else { 0 };
    }
    let here = back::<0>(&lower);
    let single = Feature::ALL.into_iter().skip(Feature::A as usize);
    for (feature, letter) in single.zip(*b"acdehilmnorstuy") {
        set(feature, count(here, |byte| byte == letter));
    }
    set(Feature::Jqx, count(here, |byte| (byte == b'j') | (byte == b'q') | (byte == b'x')));
    set(Feature::Kwz, count(here, |byte| (byte == b'k') | (byte == b'w') | (byte == b'z')));
}

/// The script of a character by its first two UTF-8 bytes (Unicode block chart).
fn script(lead: u8, second: u8) -> Feature {
    use Feature as F;
    match (lead, second) {
        (0xC3, _) => F::LatinOne,
        (0xC4..=0xC5, _) => F::LatinTwo,
        (0xC6..=0xCC, _) | (0xCD, 0x80..=0xAF) => F::LatinOther,
        (0xCD..=0xCF, _) => F::Greek,
        (0xD0, 0x90..=0xBF) | (0xD1, 0x80..=0x8F) => F::Cyrillic,
        (0xD0..=0xD3, _) | (0xD4, 0x80..=0xAF) => F::CyrillicExtended,
        (0xD4..=0xD5, _) | (0xD6, 0x80..=0x8F) => F::Armenian,
        (0xD6..=0xD7, _) => F::Hebrew,
        (0xD8..=0xD9, _) => F::Arabic,
        (0xDA..=0xDB, _) => F::ArabicExtended,
        (0xE0, 0xA4..=0xA5) => F::Devanagari,
        (0xE0, 0xA6..=0xA7) => F::Bengali,
        (0xE0, 0xA8..=0xA9) => F::Gurmukhi,
        (0xE0, 0xAA..=0xAB) => F::Gujarati,
        (0xE0, 0xAC..=0xAD) => F::Odia,
        (0xE0, 0xAE..=0xAF) => F::Tamil,
        (0xE0, 0xB0..=0xB1) => F::Telugu,
        (0xE0, 0xB2..=0xB3) => F::Kannada,
        (0xE0, 0xB4..=0xB5) => F::Malayalam,
        (0xE0, 0xB6..=0xB7) => F::Sinhala,
        (0xE0, 0xB8..=0xB9) => F::Thai,
        (0xE0, 0xBA..=0xBB) => F::Lao,
        (0xE0, 0xBC..=0xBF) => F::Tibetan,
        (0xE1, 0x80..=0x81) => F::Burmese,
        (0xE1, 0x82..=0x83) => F::Georgian,
        (0xE1, 0x84..=0x87) => F::Hangul,
        (0xE1, 0x88..=0x8D) => F::Ethiopic,
        (0xE1, 0x9E..=0x9F) => F::Khmer,
        (0xE1, 0xB8..=0xBB) => F::LatinStacked,
        (0xC2, _) | (0xE2, 0x80..=0x83) | (0xE3, 0x80) | (0xEF, 0xBC..=0xBF) => F::Neutral,
        (0xE2, _) => F::Symbol,
        (0xE3, 0x81) => F::Hiragana,
        (0xE3, 0x82..=0x83) => F::Katakana,
        (0xE3, 0x90..=0xBF) | (0xE4..=0xE9, _) => F::Han,
        (0xEA, 0xB0..=0xBF) | (0xEB..=0xED, _) => F::Hangul,
        (0xF0, 0x9F) => F::Emoji,
        _ => F::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tally(text: &[u8], cuts: &[usize]) -> Tally {
        let (mut sampler, mut tally) = (Sampler::default(), Tally::default());
        let mut from = 0;
        for &cut in cuts {
            let cut = cut.clamp(from, text.len());
            sampler.feed(&text[from..cut], &mut tally);
            from = cut;
        }
        sampler.feed(&text[from..], &mut tally);
        sampler.finish(&mut tally);
        tally
    }

    #[test]
    fn words_numbers_and_marks_are_counted() {
        let tally = tally("The cat, 123 4a; INTERNATIONAL --  x\n  ".as_bytes(), &[]);
        let expected = [
            (Feature::Digit, 4.0),
            (Feature::Number, 2.0),
            (Feature::Word, 5.0),
            (Feature::Punctuation, 4.0),
            (Feature::PunctuationGroup, 3.0),
            (Feature::PunctuationRepeat, 1.0),
            (Feature::Space, 9.0),
            (Feature::SpaceRun, 2.0),
            (Feature::Newline, 1.0),
            (Feature::N, 3.0),
        ];
        for (feature, count) in expected {
            assert_eq!(tally.get(feature), count, "{feature:?}");
        }
    }

    #[test]
    fn characters_are_counted_by_script() {
        let text = "Köln čaj Việt “a” →😀 Καλό Привіт سلام چ नमस्ते 電車は かな カナ 한국 ไทย";
        let tally = tally(text.as_bytes(), &[]);
        for (feature, count) in [
            (Feature::LatinOne, 1.0),
            (Feature::LatinTwo, 1.0),
            (Feature::LatinStacked, 1.0),
            (Feature::Neutral, 2.0),
            (Feature::Symbol, 1.0),
            (Feature::Emoji, 1.0),
            (Feature::Greek, 4.0),
            (Feature::Cyrillic, 5.0),
            (Feature::CyrillicExtended, 1.0),
            (Feature::Arabic, 4.0),
            (Feature::ArabicExtended, 1.0),
            (Feature::Devanagari, 6.0),
            (Feature::Han, 2.0),
            (Feature::Hiragana, 3.0),
            (Feature::Katakana, 2.0),
            (Feature::Hangul, 2.0),
            (Feature::Thai, 3.0),
        ] {
            assert_eq!(tally.get(feature), count, "{feature:?}");
        }
    }

    #[test]
    fn the_sample_is_bounded_and_stands_for_the_whole() {
        let text = "The cat sat on 12 mats.\n".repeat(50_000);
        let whole = tally(text.as_bytes(), &[]);
        assert_eq!(whole.total(), text.len() as u64);
        let words = whole.get(Feature::Word);
        assert!((words / 250_000.0 - 1.0).abs() < 0.05, "{words}");
        let (mut sampler, mut counted, mut last) = (Sampler::default(), 0, 0);
        for byte in text.as_bytes() {
            sampler.feed(&[*byte], &mut Tally::default());
            let filled = sampler.block.as_ref().unwrap().filled;
            counted += usize::from(filled != last);
            last = filled;
        }
        assert!((4096..12_000).contains(&counted), "{counted}");
    }

    #[test]
    fn each_text_starts_a_window() {
        let (mut sampler, mut tally) = (Sampler::default(), Tally::default());
        sampler.feed("a".repeat(100_000).as_bytes(), &mut tally);
        sampler.finish(&mut tally);
        sampler.feed("Привет".as_bytes(), &mut tally);
        sampler.finish(&mut tally);
        assert_eq!((tally.get(Feature::Cyrillic), tally.total()), (6.0, 100_012));
    }

    /// A body of tiny texts costs blocks by its bytes, not by its texts, and is
    /// counted as well.
    #[test]
    fn many_short_texts_share_blocks() {
        let (mut sampler, mut tally) = (Sampler::default(), Tally::default());
        let mut closed = 0;
        for _ in 0..50_000 {
            sampler.feed(b"word ", &mut tally);
            sampler.finish(&mut tally);
            closed += u32::from(sampler.block.is_none());
        }
        assert_eq!(closed, APART as u32 - 1);
        sampler.finish_prompt(&mut tally);
        assert_eq!((tally.total(), tally.get(Feature::Text)), (250_000, 50_000.0));
        let one = Tally::read("word ".repeat(50_000).as_bytes());
        let words = |tally: &Tally| tally.get(Feature::Word);
        assert!((words(&tally) / words(&one) - 1.0).abs() < 0.1, "{}", words(&tally));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_tally(
            bytes in prop_oneof![
                any::<Vec<u8>>(),
                "\\PC{0,900}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 4000..9000),
            ],
            mut cuts in prop::collection::vec(0_usize..9000, 0..8),
        ) {
            cuts.sort_unstable();
            let whole = tally(&bytes, &[]);
            prop_assert_eq!(whole.total(), bytes.len() as u64);
            prop_assert_eq!(tally(&bytes, &cuts), whole);
        }
    }
}
