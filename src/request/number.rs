//! Integers by the lax rules of the engine's request parser.

use super::Cap;

/// Reads an integer as vLLM's parser does (pydantic, lax mode): a number
/// without a fraction (`1e3`, `1024.0`), or a string that holds one (`"1024"`,
/// `" 1_024 "`, `"1024.0"`). Negative values read as 0; too large ones
/// saturate. `None` for everything else.
pub fn lax_integer(literal: &[u8], quoted: bool) -> Option<u64> {
    if quoted { quoted_integer(literal) } else { plain_integer(literal) }
}

fn plain_integer(literal: &[u8]) -> Option<u64> {
    if literal.iter().all(u8::is_ascii_digit) {
        return Some(digits(literal));
    }
    let value: f64 = serde_json::from_slice(literal).ok()?;
    let whole = value == value.trunc();
    whole.then_some(value as u64)
}

/// <https://docs.pydantic.dev/latest/concepts/conversion_table/>: blanks around,
/// one sign, single underscores between digits, a fraction of zeros.
fn quoted_integer(literal: &[u8]) -> Option<u64> {
    let text = literal.trim_ascii();
    let (negative, text) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?),
        None => (text, &b"0"[..]),
    };
    let groups = whole.split(|byte| *byte == b'_');
    let clean =
        groups.clone().all(|group| !group.is_empty() && group.iter().all(u8::is_ascii_digit));
    if !clean || !fraction.iter().all(|byte| *byte == b'0') {
        return None;
    }
    let value = groups.flatten().fold(0, |value, digit| push_digit(value, *digit));
    Some(if negative { 0 } else { value })
}

fn digits(literal: &[u8]) -> u64 {
    literal.iter().fold(0, |value, digit| push_digit(value, *digit))
}

fn push_digit(value: u64, digit: u8) -> u64 {
    value.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
}

impl From<Option<u64>> for Cap {
    /// A value that was there: its number, or unreadable.
    fn from(value: Option<u64>) -> Self {
        value.map_or(Self::Unreadable, Self::Tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_lax_rules() {
        let plain = |text: &str| lax_integer(text.as_bytes(), false);
        assert_eq!(plain("1024"), Some(1024));
        assert_eq!(plain("1e3"), Some(1000));
        assert_eq!(plain("1024.0"), Some(1024));
        assert_eq!(plain("10240e-1"), Some(1024));
        assert_eq!(plain("-5"), Some(0));
        assert_eq!(plain("1.5"), None);
        assert_eq!(plain("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(plain("1e300"), Some(u64::MAX));
        let quoted = |text: &str| lax_integer(text.as_bytes(), true);
        assert_eq!(quoted("1024"), Some(1024));
        assert_eq!(quoted(" +1_024.00 "), Some(1024));
        assert_eq!(quoted("-7"), Some(0));
        for bad in ["", "1e3", "1__0", "_1", "1.5", "0x10", "ten", "-", "1 0"] {
            assert_eq!(quoted(bad), None, "{bad:?}");
        }
    }
}
