//! Any answer of any format, cut anywhere: the same usage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::request::Api;
use tidegate::usage::Scanner;

// The first byte picks the format (`'0'` is the first one of `Api::WORDS`), the
// second is `'s'` for a stream, the third picks the cut; the rest is the answer.
fuzz_target!(|input: &[u8]| {
    let [format, kind, cut, answer @ ..] = input else { return };
    let (_, api) = Api::WORDS[usize::from(format.wrapping_sub(b'0')) % Api::WORDS.len()];
    let scanner = || if *kind == b's' { Scanner::sse(api) } else { Scanner::json(api) };
    let mut whole = scanner();
    whole.feed(answer);
    let mut pieces = scanner();
    let (head, tail) = answer.split_at(answer.len() * usize::from(*cut) / 256);
    pieces.feed(head);
    for byte in tail {
        pieces.feed(std::slice::from_ref(byte));
    }
    assert_eq!(whole.finish(), pieces.finish());
});
