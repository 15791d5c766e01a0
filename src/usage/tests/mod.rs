//! The meaning of the scanner, fixed by what a parsed tree says.

mod oracle;

use super::*;
use oracle::{Answer, oracle};
use proptest::prelude::*;

fn read(mut scanner: Scanner, bytes: &[u8], cuts: &[usize]) -> Told {
    let mut from = 0;
    for &cut in cuts {
        let cut = cut.clamp(from, bytes.len());
        scanner.feed(&bytes[from..cut]);
        from = cut;
    }
    scanner.feed(&bytes[from..]);
    scanner.finish()
}

fn scanner(api: Api, stream: bool) -> Scanner {
    if stream { Scanner::sse(api) } else { Scanner::json(api) }
}

/// Name, format, whether it is a stream, and the answer, of each fuzz seed.
fn seeds() -> Vec<(String, Api, bool, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/usage");
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let [api, kind] = [0, 1].map(|at| text.as_bytes()[at]);
        let api = Api::WORDS[usize::from(api - b'0')].1;
        (file.file_name().into_string().unwrap(), api, kind == b's', text[3..].to_owned())
    };
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// Input, cached, output and reasoning tokens, and whether a limit was met.
type Numbers = ([Option<u64>; 4], bool);

fn numbers(told: Told) -> Numbers {
    let usage = told.usage.unwrap_or_default();
    ([usage.input, usage.cached, usage.output, usage.reasoning], told.stopped_by_length)
}

#[test]
fn every_format_at_every_cut() {
    let known: &[(&str, [Option<u64>; 4], bool)] = &[
        ("chat-continuous", [Some(11), None, Some(7), None], true),
        ("chat-dress", [Some(0), None, None, None], false),
        ("chat-json", [Some(11), Some(4), Some(7), Some(2)], true),
        ("chat-stream", [Some(11), Some(4), Some(7), Some(2)], false),
        ("completions-json", [Some(3), None, Some(32), None], true),
        ("completions-stream", [Some(3), None, Some(2), None], true),
        ("embeddings-json", [Some(8), None, None, None], false),
        ("embeddings-total", [Some(9), None, None, None], false),
        ("gemini-json", [Some(14), Some(2), Some(8), Some(3)], true),
        ("gemini-list", [Some(14), Some(2), Some(8), Some(3)], false),
        ("gemini-stream", [Some(14), Some(2), Some(8), Some(3)], false),
        ("generate-batch", [Some(11), Some(2), Some(9), None], false),
        ("generate-json", [Some(5), Some(1), Some(7), None], true),
        ("generate-list", [Some(11), Some(2), Some(15), None], true),
        ("generate-stream", [Some(5), Some(1), Some(7), None], true),
        ("messages-json", [Some(125), Some(20), Some(7), None], true),
        ("messages-late", [Some(30), None, Some(15), None], true),
        ("messages-stream", [Some(35), Some(10), Some(15), None], false),
        ("rerank-cohere", [Some(45), None, Some(0), None], false),
        ("rerank-json", [Some(56), None, None, None], false),
        ("responses-failed", [Some(37), None, Some(0), None], false),
        ("responses-incomplete", [Some(37), Some(8), Some(11), Some(5)], true),
        ("responses-json", [Some(37), Some(8), Some(11), Some(5)], false),
        ("responses-stream", [Some(37), Some(8), Some(11), Some(5)], false),
        ("unknown-cut", [Some(1), None, None, None], false),
        ("unknown-json", [Some(1), None, Some(0), None], false),
    ];
    let seeds = seeds();
    assert_eq!(seeds.len(), known.len());
    for ((name, api, stream, answer), (known, counts, stopped)) in seeds.iter().zip(known) {
        assert_eq!(name, known);
        let bytes = answer.as_bytes();
        for cut in 0..=bytes.len() {
            let told = read(scanner(*api, *stream), bytes, &[cut]);
            assert_eq!(numbers(told), (*counts, *stopped), "{name} cut at {cut}");
        }
        let every: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(numbers(read(scanner(*api, *stream), bytes, &every)), (*counts, *stopped));
    }
}

#[test]
fn absent_null_and_zero_are_different() {
    let no = |body: &str| read(Scanner::json(Api::Chat), body.as_bytes(), &[]).usage;
    assert_eq!(no(r#"{"usage":null}"#), Err(NoUsage::Absent));
    assert_eq!(no(r#"{"usage":{}}"#), Err(NoUsage::Absent));
    assert_eq!(no(r#"{"usage":{"prompt_tokens":null}}"#), Err(NoUsage::Absent));
    assert_eq!(no(r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#), Err(NoUsage::Absent));
    assert_eq!(no(r#"[{"usage":{"prompt_tokens":1}}]"#), Err(NoUsage::Absent));
    assert_eq!(no(r#"{"usage":{"prompt_tokens":1}"#), Err(NoUsage::Unreadable));
    let zero = Usage { output: Some(0), ..Usage::default() };
    assert_eq!(no(r#"{"usage":{"completion_tokens":0}}"#), Ok(zero));
}

/// Frames some documents as a stream, its lines ending so.
fn stream(documents: &[&str], end: &str) -> String {
    let event = |one: &&str| ["data: ", *one, end, end].concat();
    documents.iter().map(event).collect()
}

fn last(api: Api, documents: &[&str]) -> Numbers {
    numbers(read(Scanner::sse(api), stream(documents, "\n").as_bytes(), &[]))
}

#[test]
fn the_last_word_counts_never_the_sum() {
    let usage = |n: u64| format!(r#"{{"usage":{{"prompt_tokens":{n},"completion_tokens":{n}}}}}"#);
    let (one, two) = (usage(10), usage(11));
    let expected = ([Some(11), None, Some(11), None], false);
    assert_eq!(last(Api::Chat, &[&one, &two]), expected);
    // Later events without usage, of errors and pings, change nothing.
    let error = r#"{"error":{"message":"overloaded"}}"#;
    let later = ["{\"usage\":null}", error, "{\"usage\":{}}", "no json", "[DONE]"];
    assert_eq!(last(Api::Chat, &[&[two.as_str()][..], &later].concat()), expected);
}

#[test]
fn messages_merge_by_field() {
    let start = |usage: &str| format!(r#"{{"message":{{"usage":{usage}}}}}"#);
    let delta = |usage: &str| format!(r#"{{"usage":{usage}}}"#);
    let both = |one: &str, other: &str| last(Api::Messages, &[&start(one), &delta(other)]).0;
    let one = r#"{"input_tokens":5,"cache_read_input_tokens":100,"output_tokens":1}"#;
    assert_eq!(both(one, r#"{"output_tokens":9}"#), [Some(105), Some(100), Some(9), None]);
    // An explicit zero is not absence: all of the prompt came from the cache.
    let other = r#"{"input_tokens":0,"output_tokens":9}"#;
    assert_eq!(both(one, r#"{"input_tokens":0,"cache_read_input_tokens":105}"#)[0], Some(105));
    // But no prompt has no tokens.
    assert_eq!(both(one, other), [Some(105), Some(100), Some(9), None]);
    assert_eq!(both(r#"{"input_tokens":0}"#, other)[0], Some(0));
}

#[test]
fn prompts_of_one_stream_are_added_up_if_all_are_known() {
    let chunk = |index: u64, out: u64| {
        format!(
            r#"{{"index":{index},"meta_info":{{"prompt_tokens":5,"completion_tokens":{out}}}}}"#
        )
    };
    let (a, b, c) = (chunk(0, 1), chunk(2, 2), chunk(1, 4));
    let told = |documents: &[&str]| last(Api::Generate, documents).0;
    assert_eq!(told(&[&a, &b, &c, "[DONE]"]), [Some(15), None, Some(7), None]);
    assert_eq!(told(&[&a, &b, &c]), [None; 4], "it may not have got to the fourth prompt");
    assert_eq!(told(&[&a, &b, "[DONE]"]), [None; 4], "nothing of the second");
    assert_eq!(told(&[&a, &chunk(256, 1), "[DONE]"]), [None; 4], "too many");
}

#[test]
fn a_list_of_any_length_is_added_up() {
    let told = |last: &str| {
        let item = r#"{"meta_info":{"prompt_tokens":5,"completion_tokens":2}},"#;
        let body = format!("[{}{last}]", item.repeat(1000));
        numbers(read(Scanner::json(Api::Generate), body.as_bytes(), &[])).0
    };
    let last = r#"{"meta_info":{"prompt_tokens":7,"completion_tokens":null}}"#;
    assert_eq!(told(last), [Some(5007), None, None, None]);
    assert_eq!(told(r#"{"error":"no"}"#), [None; 4]);
}

#[test]
fn an_event_without_end_is_passed_over() {
    let fine = stream(&[r#"{"usage":{"prompt_tokens":7}}"#], "\n");
    // Long inside a string, or only in blanks after the document.
    let padded: [fn(usize) -> String; 2] = [
        |size| format!(r#"{{"usage":{{"prompt_tokens":3}},"x":"{}"}}"#, "a".repeat(size - 36)),
        |size| format!(r#"{{"usage":{{"prompt_tokens":3}}}}{}"#, " ".repeat(size - 29)),
    ];
    for (document, size, expected) in padded.into_iter().flat_map(|document| {
        [(1000, Some(3)), (1 << 20, Some(3)), ((1 << 20) + 1, None)]
            .map(|(size, expected)| (document, size, expected))
    }) {
        let document = document(size);
        assert_eq!(document.len(), size);
        let long = format!("data: {document}\n\n");
        for pieces in [1 << 21, 4096] {
            let feed = |bytes: &[u8]| {
                let mut scanner = Scanner::sse(Api::Chat);
                bytes.chunks(pieces).for_each(|piece| scanner.feed(piece));
                numbers(scanner.finish()).0[0]
            };
            assert_eq!(feed(long.as_bytes()), expected, "{size}");
            // The next one is read again.
            assert_eq!(feed(format!("{long}{fine}").as_bytes()), Some(7), "{size}");
        }
    }
}

#[test]
fn usage_in_headers() {
    let usage = Usage::from_headers(Some(b" 12 "), None).unwrap();
    assert_eq!((usage.input, usage.output), (Some(12), None));
    assert_eq!(Usage::from_headers(Some(b"-5"), Some(b"\xff")), None);
}

#[test]
fn content_types() {
    let scanner = |value: &[u8]| Scanner::for_answer(Api::Chat, value);
    assert!(scanner(b"Application/JSON; charset=utf-8").is_some());
    assert!(scanner(b"text/event-stream").is_some());
    assert!(scanner(b"text/html").is_none());
}

fn answers() -> impl Strategy<Value = (Api, bool, Answer)> {
    let seeds: Vec<_> = seeds()
        .into_iter()
        .map(|(_, api, stream, text)| (api, stream, Answer::parse(&text, stream)))
        .collect();
    (prop::sample::select(seeds), oracle::changes()).prop_map(|((api, stream, mut answer), all)| {
        answer.change(&all);
        (api, stream, answer)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn usage_is_that_of_parsed_trees(
        (api, stream, answer) in answers(),
        mut cuts in prop::collection::vec(0_usize..900, 0..6),
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        broken in any::<bool>(),
    ) {
        cuts.sort_unstable();
        let text = answer.text(stream, end, broken);
        let told = read(scanner(api, stream), text.as_bytes(), &[]);
        prop_assert_eq!(told, oracle(api, stream, &answer), "{:?} {}", api, text);
        prop_assert_eq!(read(scanner(api, stream), text.as_bytes(), &cuts), told);
        let every: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(read(scanner(api, stream), text.as_bytes(), &every), told);
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in any::<Vec<u8>>(),
        mut cuts in prop::collection::vec(0_usize..300, 0..6),
    ) {
        cuts.sort_unstable();
        for (_, api) in Api::WORDS {
            for stream in [false, true] {
                let whole = read(scanner(api, stream), &bytes, &[]);
                prop_assert_eq!(read(scanner(api, stream), &bytes, &cuts), whole);
            }
        }
    }
}
