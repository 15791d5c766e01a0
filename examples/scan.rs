//! Reads a chat body so many times, in pieces of 16 KiB as Envoy hands them on:
//! `scan` as the filter does, `memchr` with a search for the end of strings and
//! nothing else. `docs/instructions.sh` counts what they cost.

use std::hint::black_box;
use std::process::ExitCode;
use tidegate::request::{Api, Scanner};

const PIECE: usize = 16 << 10;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, bytes, times] = args.as_slice() else {
        eprintln!("usage: scan scan|memchr BYTES TIMES");
        return ExitCode::FAILURE;
    };
    let number = |text: &String| text.parse::<usize>().unwrap_or(0);
    let text: String = "the cat sat on the mat and thought of the sea. "
        .chars()
        .cycle()
        .take(number(bytes))
        .collect();
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    for _ in 0..number(times) {
        let body = black_box(body.as_bytes());
        if what == "memchr" {
            let quotes =
                body.chunks(PIECE).flat_map(|piece| memchr::memchr2_iter(b'"', b'\\', piece));
            black_box(quotes.count());
        } else {
            let mut scanner = Scanner::new(Api::Chat, b"/v1/chat/completions");
            body.chunks(PIECE).for_each(|piece| scanner.feed(piece));
            black_box(scanner.finish().is_ok());
        }
    }
    ExitCode::SUCCESS
}
