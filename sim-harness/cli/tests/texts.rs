//! The library's table of tokens is what the tokenizer says. Rewritten with
//! `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used, reason = "a test stops at once")]

use std::fmt::Write as _;
use std::path::Path;

use tidegate_sim::texts::units;
use tidegate_sim_cli::tokenizer::Tokenizer;

#[test]
fn the_table_has_the_tokenizers_counts() {
    let tokenizer: Tokenizer = "cl100k_base".parse().unwrap();
    let mut text = String::from(
        "//! Tokens of each unit, as `cl100k_base` counts them. Written by a test of the\n\
         //! command, `cli/tests/texts.rs`, which has the tokenizer.\n\n\
         /// For each kind, in the order of `Kind::ALL`: the tokens of each of its units.\n\
         #[rustfmt::skip]\n\
         pub const TOKENS: [&[u8]; 12] = [\n",
    );
    for (kind, counts) in units(|_, text| u8::try_from(tokenizer.count(&text)).unwrap()) {
        let _ = writeln!(text, "    // {}", kind.name());
        text.push_str("    &[");
        for (nth, count) in counts.iter().enumerate() {
            text.push_str(if nth % 20 == 0 { "\n        " } else { " " });
            let _ = write!(text, "{count},");
        }
        text.push_str("\n    ],\n");
    }
    text.push_str("];\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/texts/tokens.rs");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, text, "TIDEGATE_BLESS=1 rewrites {}", path.display());
}
