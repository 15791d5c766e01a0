//! Any body, cut anywhere: the same facts, and valid exactly when serde_json
//! says so (down to the depth that we follow).
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::request::{Api, Scanner};

fuzz_target!(|input: (u16, Vec<u8>)| {
    let (cut, body) = input;
    for api in [Api::Chat, Api::Completions] {
        let mut whole = Scanner::new(api, b"");
        whole.feed(&body);
        let mut pieces = Scanner::new(api, b"");
        let (head, tail) = body.split_at(usize::from(cut).min(body.len()));
        pieces.feed(head);
        let _ = pieces.clone().cut(tail.len() as u64);
        for byte in tail {
            pieces.feed(std::slice::from_ref(byte));
        }
        let facts = whole.finish();
        assert_eq!(facts, pieces.finish());
        let deep = body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > 64;
        let long_number = body.split(|byte| !byte.is_ascii_digit()).any(|run| run.len() > 50);
        if !deep && !long_number {
            let json = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&body);
            let value = serde_json::from_slice::<serde_json::Value>(json);
            assert_eq!(facts.is_ok(), value.is_ok_and(|value| value.is_object()));
        }
    }
});
