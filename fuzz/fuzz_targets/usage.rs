//! Any answer, cut anywhere: the same usage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::usage::Scanner;

fuzz_target!(|input: (u16, Vec<u8>)| {
    let (cut, answer) = input;
    for make in [Scanner::json, Scanner::sse] {
        let mut whole = make();
        whole.feed(&answer);
        let mut pieces = make();
        let (head, tail) = answer.split_at(usize::from(cut).min(answer.len()));
        pieces.feed(head);
        for byte in tail {
            pieces.feed(std::slice::from_ref(byte));
        }
        assert_eq!(whole.finish(), pieces.finish());
    }
});
