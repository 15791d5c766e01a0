//! Answers become [`Usage`]: what the engine says it used.
//!
//! A scanner reads the answer's bytes as they pass, cut anywhere, and keeps
//! none of them. Absent, `null` and 0 are different things.

mod hide;
mod openai;
mod overflow;
mod sources;
mod sse;

pub use hide::Filter;
pub use overflow::{Overflow, OverflowScanner};
pub use sources::{Merged, merge};

use crate::request::{Api, lax_integer};

/// Tokens used by one request, as its answer states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens that came from the prefix cache; part of `input`.
    pub cached: Option<u64>,
    /// Generated tokens over all sequences, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens; part of `output`.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Usage from the values of two response headers, each an integer in
    /// decimal digits; `None` if neither can be read.
    pub fn from_headers(input: Option<&[u8]>, output: Option<&[u8]>) -> Option<Self> {
        let read = |value: Option<&[u8]>| {
            let digits = value?.trim_ascii();
            let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            all.then(|| lax_integer(digits, false)).flatten()
        };
        let usage = Self { input: read(input), output: read(output), ..Self::default() };
        (usage != Self::default()).then_some(usage)
    }
}

/// What an answer's bytes told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The usage, or why there is none.
    pub usage: Result<Usage, NoUsage>,
    /// A sequence ended because it met its limit of tokens: the client's cap or
    /// the engine's window (`finish_reason: "length"` and its like).
    pub stopped_by_length: bool,
}

/// Why an answer's bytes gave no usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoUsage {
    /// The bytes are complete and carry none (absent or `null`).
    Absent,
    /// The bytes are not valid JSON.
    Unreadable,
}

/// Reads an answer in pieces.
#[derive(Clone, Debug)]
pub struct Scanner(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Json(crate::json::Scanner, openai::Reader),
    Sse(sse::Events),
}

impl Scanner {
    /// For a body that is one JSON document.
    pub fn json() -> Self {
        Self(Kind::Json(crate::json::Scanner::new(), openai::Reader::default()))
    }

    /// For a stream of server-sent events.
    pub fn sse() -> Self {
        Self(Kind::Sse(sse::Events::new()))
    }

    /// The scanner for an answer of this format and `content-type`; `None` if
    /// the type is neither JSON nor server-sent events.
    pub fn for_answer(_api: Api, value: &[u8]) -> Option<Self> {
        let end = memchr::memchr(b';', value).unwrap_or(value.len());
        let media = value.get(..end)?.trim_ascii();
        if media.eq_ignore_ascii_case(b"application/json") {
            Some(Self::json())
        } else if media.eq_ignore_ascii_case(b"text/event-stream") {
            Some(Self::sse())
        } else {
            None
        }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Json(json, reader) => json.feed(bytes, reader),
            Kind::Sse(events) => events.feed(bytes),
        }
    }

    /// What the answer stated: of a stream, the last word on each thing. A
    /// stream that broke off may be finished too: what it said so far stands.
    pub fn finish(self) -> Told {
        let usage = match self.0 {
            Kind::Json(mut json, mut reader) => json
                .finish(&mut reader)
                .map_err(|_| NoUsage::Unreadable)
                .and_then(|()| reader.usage().ok_or(NoUsage::Absent)),
            Kind::Sse(events) => events.finish().ok_or(NoUsage::Absent),
        };
        Told { usage, stopped_by_length: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn read(mut scanner: Scanner, bytes: &[u8], cuts: &[usize]) -> Result<Usage, NoUsage> {
        let mut from = 0;
        for &cut in cuts {
            let cut = cut.clamp(from, bytes.len());
            scanner.feed(&bytes[from..cut]);
            from = cut;
        }
        scanner.feed(&bytes[from..]);
        scanner.finish().usage
    }

    fn oracle(value: &Value) -> Option<Usage> {
        let usage = value.as_object()?.get("usage")?.as_object()?;
        let count = |value: Option<&Value>| {
            let value = value.filter(|value| value.is_number())?;
            lax_integer(value.to_string().as_bytes(), false)
        };
        let detail =
            |of: &str, key: &str| count(usage.get(of).and_then(|details| details.get(key)));
        Some(Usage {
            input: count(usage.get("prompt_tokens")),
            cached: detail("prompt_tokens_details", "cached_tokens"),
            output: count(usage.get("completion_tokens")),
            reasoning: detail("completion_tokens_details", "reasoning_tokens"),
        })
    }

    const FINAL: &str = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":11,"total_tokens":18,
        "completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#;

    fn final_usage() -> Usage {
        Usage { input: Some(11), cached: Some(4), output: Some(7), reasoning: None }
    }

    #[test]
    fn a_json_answer() {
        assert_eq!(read(Scanner::json(), FINAL.as_bytes(), &[]), Ok(final_usage()));
        let no = |body: &str| read(Scanner::json(), body.as_bytes(), &[]).unwrap_err();
        assert_eq!(no(r#"{"usage":null}"#), NoUsage::Absent);
        assert_eq!(no(r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#), NoUsage::Absent);
        assert_eq!(no(r#"{"usage":{"prompt_tokens":1}"#), NoUsage::Unreadable);
        let zero = read(Scanner::json(), br#"{"usage":{"completion_tokens":0}}"#, &[]);
        assert_eq!(zero, Ok(Usage { output: Some(0), ..Usage::default() }));
    }

    #[test]
    fn a_stream_in_every_dress() {
        let compact = FINAL.replace("\n        ", "");
        let token = r#"{"choices":[{"delta":{"content":"漢 \"usage\":{\"prompt_tokens\":9}"}}],"usage":null}"#;
        let streams = [
            format!("data: {token}\n\ndata: {compact}\n\ndata: [DONE]\n\n"),
            format!("data:{token}\r\n\r\ndata:{compact}\r\n\r\ndata:[DONE]\r\n\r\n"),
            format!("data: {token}\r\rdata: {compact}\r\r"),
            format!("\u{feff}: comment\nevent: x\nid: 1\ndata: {compact}\n\n: ping\n\n"),
            // One event over several data lines; a later event without usage.
            format!("data: {}\n\ndata: {token}\n\n", FINAL.replace('\n', "\ndata: ")),
            // The last event lacks its newline.
            format!("data: {token}\n\ndata: {compact}"),
            // A field that only starts like data, and a line without a colon.
            format!("data: {compact}\n\ndatum: {{\"usage\":{{}}}}\n\ndata\n\n"),
            // Usage on each event grows: the last counts, never the sum.
            format!("data: {}\n\ndata: {compact}\n\n", compact.replace("11", "10")),
        ];
        for stream in &streams {
            for cut in 0..=stream.len() {
                let usage = read(Scanner::sse(), stream.as_bytes(), &[cut]);
                assert_eq!(usage, Ok(final_usage()), "cut at {cut} of {stream:?}");
            }
            let every: Vec<usize> = (0..stream.len()).collect();
            assert_eq!(read(Scanner::sse(), stream.as_bytes(), &every), Ok(final_usage()));
        }
    }

    #[test]
    fn a_stream_without_usage_says_so() {
        let stream = b"data: {\"choices\":[],\"usage\":null}\n\ndata: [DONE]\n\n";
        assert_eq!(read(Scanner::sse(), stream, &[]), Err(NoUsage::Absent));
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

    fn answer() -> impl Strategy<Value = String> {
        let count = prop::sample::select(vec!["0", "17", "1e2", "null", "\"3\"", "{}", "2.5"]);
        let member = (
            prop::sample::select(vec![
                "usage",
                "prompt_tokens",
                "completion_tokens",
                "us\\u0061ge",
                "total_tokens",
                "prompt_tokens_details",
                "completion_tokens_details",
                "cached_tokens",
                "reasoning_tokens",
                "choices",
            ]),
            count.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
                prop::collection::vec(
                    (
                        prop::sample::select(vec![
                            "usage",
                            "prompt_tokens",
                            "completion_tokens",
                            "cached_tokens",
                            "prompt_tokens_details",
                            "completion_tokens_details",
                            "reasoning_tokens",
                        ]),
                        inner,
                    ),
                    0..5,
                )
                .prop_map(|members| object(&members))
            }),
        );
        prop::collection::vec(member, 0..6).prop_map(|members| object(&members))
    }

    fn object<K: AsRef<str>>(members: &[(K, String)]) -> String {
        let members: Vec<String> =
            members.iter().map(|(key, value)| format!("\"{}\":{value}", key.as_ref())).collect();
        format!("{{{}}}", members.join(", "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn usage_equals_that_of_a_parsed_tree(
            body in answer(),
            mut cuts in prop::collection::vec(0_usize..300, 0..6),
        ) {
            cuts.sort_unstable();
            let expected = oracle(&serde_json::from_str(&body).unwrap());
            prop_assert_eq!(read(Scanner::json(), body.as_bytes(), &cuts).ok(), expected, "{}", body);
            let stream = format!("data: {body}\n\n");
            prop_assert_eq!(read(Scanner::sse(), stream.as_bytes(), &cuts).ok(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in any::<Vec<u8>>(),
            mut cuts in prop::collection::vec(0_usize..300, 0..6),
        ) {
            cuts.sort_unstable();
            for scanner in [Scanner::json(), Scanner::sse()] {
                let whole = read(scanner.clone(), &bytes, &[]);
                prop_assert_eq!(read(scanner, &bytes, &cuts), whole);
            }
        }
    }
}
