//! Any body of any format, cut anywhere: the same facts, and valid exactly when
//! serde_json says so (down to the depth that we follow).
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::request::{Api, Scanner};

// The first byte picks the format (`'0'` is the first one of `Api::WORDS`), the
// second the cut; the rest is the body.
fuzz_target!(|input: &[u8]| {
    let [format, cut, body @ ..] = input else { return };
    let (_, api) = Api::WORDS[usize::from(format.wrapping_sub(b'0')) % Api::WORDS.len()];
    let scanner = || Scanner::new(api, b"/v1beta/models/m:generateContent");
    let mut whole = scanner();
    whole.feed(body);
    let mut pieces = scanner();
    let (head, tail) = body.split_at(body.len() * usize::from(*cut) / 256);
    pieces.feed(head);
    let _ = pieces.text_bytes();
    let _ = pieces.clone().cut(tail.len() as u64);
    for byte in tail {
        pieces.feed(std::slice::from_ref(byte));
    }
    let facts = whole.finish();
    assert_eq!(facts, pieces.finish());
    let deep = body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > 64;
    let long_number = body.split(|byte| !byte.is_ascii_digit()).any(|run| run.len() > 50);
    if !deep && !long_number {
        let json = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
        let value = serde_json::from_slice::<serde_json::Value>(json);
        let any = api == Api::Unknown;
        assert_eq!(facts.is_ok(), value.is_ok_and(|value| any || value.is_object()));
    }
});
