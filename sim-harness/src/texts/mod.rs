//! Texts of several languages and kinds, and the tokens that they are.
//!
//! A [`Kind`] has seeds: sentences, functions or records, written for this
//! project. A *unit* is a seed with its numbers and names filled in. What a
//! tokenizer makes of each unit is in [`TOKENS`], so that a simulation needs no
//! vocabulary to have real texts of known lengths.

mod seeds;
mod tokens;

use std::str::FromStr;

use crate::rng::Pcg;
pub use seeds::ONE_TOKEN;
pub use tokens::TOKENS;

/// What a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variants are names of languages")]
pub enum Kind {
    English,
    German,
    Spanish,
    Russian,
    Chinese,
    Japanese,
    Arabic,
    Hindi,
    Rust,
    Python,
    C,
    Json,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::English,
        Self::German,
        Self::Spanish,
        Self::Russian,
        Self::Chinese,
        Self::Japanese,
        Self::Arabic,
        Self::Hindi,
        Self::Rust,
        Self::Python,
        Self::C,
        Self::Json,
    ];

    /// Its name, lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::English => "english",
            Self::German => "german",
            Self::Spanish => "spanish",
            Self::Russian => "russian",
            Self::Chinese => "chinese",
            Self::Japanese => "japanese",
            Self::Arabic => "arabic",
            Self::Hindi => "hindi",
            Self::Rust => "rust",
            Self::Python => "python",
            Self::C => "c",
            Self::Json => "json",
        }
    }

    fn seeds(self) -> &'static [&'static str] {
        match self {
            Self::English => seeds::ENGLISH,
            Self::German => seeds::GERMAN,
            Self::Spanish => seeds::SPANISH,
            Self::Russian => seeds::RUSSIAN,
            Self::Chinese => seeds::CHINESE,
            Self::Japanese => seeds::JAPANESE,
            Self::Arabic => seeds::ARABIC,
            Self::Hindi => seeds::HINDI,
            Self::Rust => seeds::RUST,
            Self::Python => seeds::PYTHON,
            Self::C => seeds::C,
            Self::Json => seeds::JSON,
        }
    }

    /// What stands between two units.
    pub fn glue(self) -> &'static str {
        match self {
            Self::English
            | Self::German
            | Self::Spanish
            | Self::Russian
            | Self::Arabic
            | Self::Hindi => " ",
            _ => "",
        }
    }
}

/// How many units are made of each seed.
const VARIANTS: usize = 6;

/// Every unit of every kind, always the same; `each` gets its text without the
/// glue.
pub fn units<T>(each: impl Fn(Kind, String) -> T) -> Vec<(Kind, Vec<T>)> {
    let mut rng = Pcg::new(0, 0);
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let seeds = kind.seeds().iter().flat_map(|seed| [*seed; VARIANTS]);
            (kind, seeds.map(|seed| each(kind, fill(seed, &mut rng))).collect())
        })
        .collect()
}

/// Fills a seed's `#` with numbers and its `@` with names.
fn fill(seed: &str, rng: &mut Pcg) -> String {
    let mut text = String::with_capacity(seed.len() + 16);
    for c in seed.chars() {
        match c {
            '#' => text.push_str(&(2 + rng.below(97)).to_string()),
            '@' => text.push_str(rng.pick(seeds::NAMES).copied().unwrap_or("item")),
            c => text.push(c),
        }
    }
    text
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown kind of text {name:?}; allowed: {names}")
        })
    }
}
