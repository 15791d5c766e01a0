//! What kind of text bytes are: the script, or for plain Latin text the kind
//! (prose, code, digits, …), read from a bounded sample.
//!
//! Bytes per token differ by a factor of ten between kinds of text (1.0 for
//! digits, 11 for Bengali on a large vocabulary) but little within one. A
//! request is rarely of one kind, so the result is a [`Tally`]: how many bytes
//! of each class, not one label.

/// Bytes looked at in each sampled window.
const WINDOW: u64 = 64;
/// Least distance between the starts of two windows of one text.
const STEP_MIN: u64 = 256;
/// Further in, windows stand a sixteenth of their offset apart: a text of a
/// megabyte is read in about a hundred windows.
const STEP_SHARE: u64 = 16;

macro_rules! classes {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// A class of text whose bytes per token are learned together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Class { $($(#[$doc])* $variant,)* }

        impl Class {
            /// Every class, in the order of its number.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name that logs and reports use.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

classes! {
    /// Common English words stand in the text.
    English => "english",
    /// Latin letters without accents, of another language or style.
    Plain => "plain",
    /// The same with many of k, j, w and z.
    PlainRare => "plain_rare",
    /// Latin with a few accented letters.
    Latin => "latin",
    /// Latin, 1/32 to 1/16 of the bytes in accented letters.
    LatinSome => "latin_some",
    /// Latin, 1/16 to 1/8.
    LatinMany => "latin_many",
    /// Latin, more than 1/8.
    LatinMost => "latin_most",
    /// Latin with stacked accents (Vietnamese).
    LatinStacked => "latin_stacked",
    /// Prose or code with some punctuation (1/16 to 1/8).
    Light => "light",
    /// The same with runs of blanks.
    LightIndented => "light_indented",
    /// Much punctuation (1/8 to 1/4): code, markup, JSON.
    Code => "code",
    /// The same with runs of blanks.
    CodeIndented => "code_indented",
    /// More than a quarter punctuation.
    Dense => "dense",
    /// Runs of blanks between words.
    Indented => "indented",
    /// More than half blanks.
    Blank => "blank",
    /// More than half digits.
    Digits => "digits",
    /// A quarter to a half digits, little punctuation: hexadecimal, identifiers.
    Hex => "hex",
    /// The same with punctuation: tables, dates.
    Table => "table",
    /// An eighth to a quarter digits, with blanks.
    DigitsSome => "digits_some",
    /// The same without blanks.
    DigitsPacked => "digits_packed",
    /// No blanks, case and digits mixed: base64.
    Base64 => "base64",
    /// No blanks otherwise.
    Packed => "packed",
    /// Symbols, arrows, rare scripts.
    Symbols => "symbols",
    /// Emoji.
    Emoji => "emoji",
    /// Greek.
    Greek => "greek",
    /// Cyrillic.
    Cyrillic => "cyrillic",
    /// Armenian.
    Armenian => "armenian",
    /// Hebrew.
    Hebrew => "hebrew",
    /// Arabic.
    Arabic => "arabic",
    /// Devanagari.
    Devanagari => "devanagari",
    /// Bengali.
    Bengali => "bengali",
    /// Gurmukhi.
    Gurmukhi => "gurmukhi",
    /// Gujarati.
    Gujarati => "gujarati",
    /// Odia.
    Odia => "odia",
    /// Tamil.
    Tamil => "tamil",
    /// Telugu.
    Telugu => "telugu",
    /// Kannada.
    Kannada => "kannada",
    /// Malayalam.
    Malayalam => "malayalam",
    /// Sinhala.
    Sinhala => "sinhala",
    /// Thai.
    Thai => "thai",
    /// Lao.
    Lao => "lao",
    /// Tibetan.
    Tibetan => "tibetan",
    /// Burmese.
    Burmese => "burmese",
    /// Georgian.
    Georgian => "georgian",
    /// Hangul.
    Hangul => "hangul",
    /// Ethiopic.
    Ethiopic => "ethiopic",
    /// Khmer.
    Khmer => "khmer",
    /// Japanese: Han with kana.
    Japanese => "japanese",
    /// Han without kana.
    Han => "han",
    /// Tool definitions and calls, which the chat template renders as JSON.
    Tools => "tools",
    /// A body of which only the length is known.
    Unseen => "unseen",
}

/// How many classes there are.
pub const CLASSES: usize = Class::ALL.len();

/// Bytes of text by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; CLASSES]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl Tally {
    /// `bytes` of one class.
    pub fn of(class: Class, bytes: u64) -> Self {
        let mut tally = Self::default();
        tally.add(class, bytes);
        tally
    }

    /// Adds bytes of one class; saturates.
    pub fn add(&mut self, class: Class, bytes: u64) {
        if let Some(slot) = self.0.get_mut(class as usize) {
            *slot = slot.saturating_add(bytes);
        }
    }

    /// Adds another tally; saturates.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// All bytes; saturates.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The classes that have bytes, in order.
    pub fn parts(&self) -> impl Iterator<Item = (Class, u64)> + '_ {
        Class::ALL.into_iter().zip(self.0).filter(|(_, bytes)| *bytes > 0)
    }

    /// The class with most bytes, the first of equals; `None` if empty.
    pub fn dominant(&self) -> Option<Class> {
        let mut best = None;
        for (class, bytes) in self.parts() {
            if best.is_none_or(|(_, most)| bytes > most) {
                best = Some((class, bytes));
            }
        }
        best.map(|(class, _)| class)
    }

    /// Takes `bytes` more of the same mix; of [`Class::Unseen`] if empty.
    pub fn extend(&mut self, bytes: u64) {
        let total = self.total();
        let Some(dominant) = self.dominant() else {
            return self.add(Class::Unseen, bytes);
        };
        let mut left = bytes;
        for slot in &mut self.0 {
            let share = u128::from(*slot) * u128::from(bytes) / u128::from(total);
            let share = u64::try_from(share).unwrap_or(u64::MAX).min(left);
            *slot = slot.saturating_add(share);
            left -= share;
        }
        self.add(dominant, left);
    }
}

/// Reads the pieces of one text and tells its classes. The result does not
/// depend on how the text is cut into pieces.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// Bytes of the text read so far.
    offset: u64,
    /// Where the next window starts.
    next: u64,
    /// The class of the last full window, which speaks for the bytes up to `next`.
    window: Option<Window>,
}

impl Sampler {
    /// Reads the next piece; adds to `tally` what is decided.
    pub fn feed(&mut self, mut bytes: &[u8], tally: &mut Tally) {
        while !bytes.is_empty() {
            if let Some(window) = &mut self.window {
                // Inside a window, or between it and the next.
                let (head, rest) = cut(bytes, WINDOW.saturating_sub(window.len));
                if head.is_empty() {
                    let (skipped, rest) = cut(rest, self.next - self.offset);
                    self.offset += skipped.len() as u64;
                    bytes = rest;
                } else {
                    window.feed(head);
                    self.offset += head.len() as u64;
                    bytes = rest;
                }
            }
            if self.offset == self.next {
                self.close(tally);
                self.next = self.offset + STEP_MIN.max(self.offset / STEP_SHARE);
                self.window = Some(Window::new(self.offset));
            }
        }
    }

    /// Ends the text and starts the next one.
    pub fn finish(&mut self, tally: &mut Tally) {
        self.close(tally);
        *self = Self::default();
    }

    fn close(&mut self, tally: &mut Tally) {
        if let Some(window) = self.window.take() {
            tally.add(window.class(), self.offset - window.start);
        }
    }
}

fn cut(bytes: &[u8], at: u64) -> (&[u8], &[u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

/// The bytes of one window. It is judged when it is closed: counting over a
/// short array compiles to vector code.
#[derive(Clone, Debug)]
struct Window {
    start: u64,
    len: u64,
    bytes: [u8; WINDOW as usize],
}

/// Where the bytes of a non-ASCII character are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// A script with a class of its own.
    Own(Class),
    Kana,
    Accented,
    Stacked,
    Symbol,
    /// General punctuation and the like, which says nothing.
    Neutral,
}

/// Bytes of a window by script. Every count is at most [`WINDOW`].
struct Scripts {
    own: [u8; CLASSES],
    kana: bool,
    accented: u8,
    stacked: u8,
    symbols: u8,
}

impl Window {
    fn new(start: u64) -> Self {
        Self { start, len: 0, bytes: [0; WINDOW as usize] }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let from = self.len as usize;
        if let Some(slots) = self.bytes.get_mut(from..from + bytes.len()) {
            slots.copy_from_slice(bytes);
            self.len += bytes.len() as u64;
        }
    }

    /// The thresholds are shares of the window. They were chosen on
    /// `tidegate-sim calibrate`, where they separate the ratios best.
    fn class(&self) -> Class {
        // The whole array, of a length that the compiler knows: behind the end
        // of a short window stand zeros, which count as nothing.
        let bytes = &self.bytes;
        let share = |count: u8, of: u64| u64::from(count) * of > self.len;
        let other = count(bytes, |byte| byte >= 0x80);
        let scripts = if other == 0 { Scripts::none() } else { Scripts::of(bytes) };
        if other > 0
            && let Some((class, count)) = scripts.main()
            && u64::from(count) * 4 >= self.len
        {
            return if class == Class::Han && scripts.kana { Class::Japanese } else { class };
        }
        let digits = count(bytes, |byte| byte.is_ascii_digit());
        let blanks = count(bytes, |byte| (1..=b' ').contains(&byte));
        let letters = count(bytes, |byte| byte.is_ascii_alphabetic());
        let punctuation = self.len as u8 - digits - blanks - letters - other;
        let indented = share(pairs(bytes, |a, b| a == b' ' && b == b' '), 8);
        let flips = || {
            pairs(bytes, |a, b| {
                b.is_ascii_uppercase() && (a.is_ascii_lowercase() || a.is_ascii_digit())
            })
        };
        let accented = scripts.accented + scripts.stacked;
        match () {
            () if share(scripts.symbols, 4) => Class::Symbols,
            () if share(digits, 2) => Class::Digits,
            () if share(digits, 4) && share(punctuation, 16) => Class::Table,
            () if share(digits, 4) => Class::Hex,
            () if share(digits, 8) && share(blanks, 16) => Class::DigitsSome,
            () if share(digits, 8) => Class::DigitsPacked,
            () if share(blanks, 2) => Class::Blank,
            () if share(punctuation, 4) => Class::Dense,
            () if share(punctuation, 8) && indented => Class::CodeIndented,
            () if share(punctuation, 8) => Class::Code,
            () if u64::from(blanks) * 32 < self.len && share(flips(), 8) => Class::Base64,
            () if u64::from(blanks) * 32 < self.len => Class::Packed,
            () if share(punctuation, 16) && indented => Class::LightIndented,
            () if share(punctuation, 16) => Class::Light,
            () if indented => Class::Indented,
            () if share(scripts.stacked, 32) => Class::LatinStacked,
            () if share(accented, 8) => Class::LatinMost,
            () if share(accented, 16) => Class::LatinMany,
            () if share(accented, 32) => Class::LatinSome,
            () if accented > 0 => Class::Latin,
            () if pairs(bytes, |a, b| a == b't' && b == b'h') > 0 => Class::English,
            () if share(count(bytes, |b| matches!(b, b'k' | b'j' | b'w' | b'z')), 32) => {
                Class::PlainRare
            }
            () => Class::Plain,
        }
    }
}

/// How many bytes of a window are so.
fn count(bytes: &[u8; WINDOW as usize], is: impl Fn(u8) -> bool) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum + u8::from(is(*byte)))
}

/// How many pairs of neighbours in a window are so.
fn pairs(bytes: &[u8; WINDOW as usize], are: impl Fn(u8, u8) -> bool) -> u8 {
    bytes.iter().zip(bytes.iter().skip(1)).fold(0, |sum, (a, b)| sum + u8::from(are(*a, *b)))
}

impl Scripts {
    const fn none() -> Self {
        Self { own: [0; CLASSES], kana: false, accented: 0, stacked: 0, symbols: 0 }
    }

    fn of(bytes: &[u8]) -> Self {
        let mut scripts = Self::none();
        // The first byte of a character whose second is to come, or 0; and the
        // script of the character being read, for its further bytes.
        let (mut lead, mut current) = (0, None);
        for &byte in bytes {
            if byte < 0x80 {
                (lead, current) = (0, None);
            } else if byte >= 0xC0 {
                (lead, current) = (byte, None);
            } else if lead != 0 {
                let script = script(core::mem::take(&mut lead), byte);
                current = Some(script);
                scripts.count(script, 2);
            } else if let Some(script) = current {
                scripts.count(script, 1);
            }
        }
        scripts
    }

    fn count(&mut self, script: Script, bytes: u8) {
        let slot = match script {
            Script::Own(class) => self.own.get_mut(class as usize),
            Script::Kana => {
                self.kana = true;
                self.own.get_mut(Class::Japanese as usize)
            }
            Script::Accented => Some(&mut self.accented),
            Script::Stacked => Some(&mut self.stacked),
            Script::Symbol => Some(&mut self.symbols),
            Script::Neutral => None,
        };
        if let Some(slot) = slot {
            *slot += bytes;
        }
    }

    /// The script with a class of its own that has most bytes.
    fn main(&self) -> Option<(Class, u8)> {
        let all = Class::ALL.into_iter().zip(self.own);
        all.filter(|(_, bytes)| *bytes > 0).rev().max_by_key(|(_, bytes)| *bytes)
    }
}

/// The script of a character by its first two UTF-8 bytes (Unicode block chart).
fn script(lead: u8, second: u8) -> Script {
    use Class as C;
    use Script::{Accented, Kana, Neutral, Own, Stacked, Symbol};
    match (lead, second) {
        (0xC2..=0xCC, _) | (0xCD, 0x80..=0xAF) => Accented,
        (0xCD..=0xCF, _) => Own(C::Greek),
        (0xD0..=0xD3, _) | (0xD4, 0x80..=0xAF) => Own(C::Cyrillic),
        (0xD4..=0xD5, _) | (0xD6, 0x80..=0x8F) => Own(C::Armenian),
        (0xD6..=0xD7, _) => Own(C::Hebrew),
        (0xD8..=0xDB, _) => Own(C::Arabic),
        (0xE0, 0xA4..=0xA5) => Own(C::Devanagari),
        (0xE0, 0xA6..=0xA7) => Own(C::Bengali),
        (0xE0, 0xA8..=0xA9) => Own(C::Gurmukhi),
        (0xE0, 0xAA..=0xAB) => Own(C::Gujarati),
        (0xE0, 0xAC..=0xAD) => Own(C::Odia),
        (0xE0, 0xAE..=0xAF) => Own(C::Tamil),
        (0xE0, 0xB0..=0xB1) => Own(C::Telugu),
        (0xE0, 0xB2..=0xB3) => Own(C::Kannada),
        (0xE0, 0xB4..=0xB5) => Own(C::Malayalam),
        (0xE0, 0xB6..=0xB7) => Own(C::Sinhala),
        (0xE0, 0xB8..=0xB9) => Own(C::Thai),
        (0xE0, 0xBA..=0xBB) => Own(C::Lao),
        (0xE0, 0xBC..=0xBF) => Own(C::Tibetan),
        (0xE1, 0x80..=0x81) => Own(C::Burmese),
        (0xE1, 0x82..=0x83) => Own(C::Georgian),
        (0xE1, 0x84..=0x87) => Own(C::Hangul),
        (0xE1, 0x88..=0x8D) => Own(C::Ethiopic),
        (0xE1, 0x9E..=0x9F) => Own(C::Khmer),
        (0xE1, 0xB8..=0xBB) => Stacked,
        (0xE2, 0x80..=0x83) | (0xE3, 0x80) | (0xEF, _) => Neutral,
        (0xE2, _) => Symbol,
        (0xE3, 0x81..=0x83) => Kana,
        (0xE3, 0x90..=0xBF) | (0xE4..=0xE9, _) => Own(C::Han),
        (0xEA, 0xB0..=0xBF) | (0xEB..=0xED, _) => Own(C::Hangul),
        (0xF0, 0x9F) => Own(C::Emoji),
        _ => Symbol,
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

    fn class(text: &str) -> Class {
        tally(text.as_bytes(), &[]).dominant().unwrap()
    }

    #[test]
    fn kinds_and_scripts_are_told_apart() {
        assert_eq!(class("The weather in the north is not worth the journey."), Class::English);
        assert_eq!(
            class("Der Zug nach Köln kommt um zehn und hält in Bonn auch"),
            Class::LatinMany
        );
        assert_eq!(class("Поезд отправляется в десять"), Class::Cyrillic);
        assert_eq!(class("列车十点出发，请不要迟到"), Class::Han);
        assert_eq!(class("電車は十時に出発します"), Class::Japanese);
        assert_eq!(class("მატარებელი ათზე გადის"), Class::Georgian);
        assert_eq!(class("if (a[i] == b[j]) { c(a, b); }"), Class::Dense);
        assert_eq!(class("3141592653589793 2384626433"), Class::Digits);
        assert_eq!(class("iVBORwQxKGgoAAfAANSUhEUgaAAAUAcAAFCAYAbACN"), Class::Base64);
    }

    #[test]
    fn a_text_of_two_kinds_is_tallied_as_two() {
        let text = "The cat sat on the mat and the dog lay there. ".repeat(20)
            + &"Поезд отправляется в десять. ".repeat(20);
        let tally = tally(text.as_bytes(), &[]);
        assert_eq!(tally.total(), text.len() as u64);
        let parts: Vec<Class> = tally.parts().map(|(class, _)| class).collect();
        assert_eq!(parts, [Class::English, Class::Cyrillic]);
    }

    #[test]
    fn a_long_text_costs_few_windows() {
        let (mut sampler, mut tally, mut windows) = (Sampler::default(), Tally::default(), 0);
        for _ in 0..1 << 20 {
            let before = sampler.next;
            sampler.feed(b"a", &mut tally);
            windows += u32::from(sampler.next != before);
        }
        assert!(windows < 128, "{windows}");
    }

    #[test]
    fn extending_keeps_the_mix() {
        let mut tally = Tally::of(Class::Han, 300);
        tally.add(Class::English, 100);
        tally.extend(401);
        assert_eq!(tally.total(), 801);
        assert_eq!(tally.parts().collect::<Vec<_>>(), [(Class::English, 200), (Class::Han, 601)]);
        let mut empty = Tally::default();
        empty.extend(7);
        assert_eq!(empty, Tally::of(Class::Unseen, 7));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_tally(
            bytes in prop_oneof![
                any::<Vec<u8>>(),
                "\\PC{0,900}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 4000..6000),
            ],
            mut cuts in prop::collection::vec(0_usize..6000, 0..8),
        ) {
            cuts.sort_unstable();
            let whole = tally(&bytes, &[]);
            prop_assert_eq!(whole.total(), bytes.len() as u64);
            prop_assert_eq!(tally(&bytes, &cuts), whole);
        }
    }
}
