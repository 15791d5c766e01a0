//! Every format through the shipped filter in a real Envoy: whether bytes come
//! at once or one by one, the filter reads the same and changes nothing.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate::request::Api;
use tidegate::usage::{Scanner, Usage};
use tidegate_envoy_support::{Answer, Backend, Connection, Envoy, Request, missing};

/// A case: a request, and an answer to it.
#[derive(Clone)]
struct Case {
    name: String,
    api: Api,
    request: Vec<u8>,
    answer: String,
    stream: bool,
}

impl Case {
    fn path(&self) -> &'static str {
        match (self.api, self.stream) {
            (Api::Chat, _) => "/v1/chat/completions",
            (Api::Completions, _) => "/v1/completions",
            (Api::Responses, _) => "/v1/responses",
            (Api::Embeddings, _) => "/v1/embeddings",
            (Api::Rerank, _) => "/v1/rerank",
            (Api::Messages, _) => "/v1/messages?beta=true",
            (Api::Gemini, false) => "/v1beta/models/gemini-x:generateContent",
            (Api::Gemini, true) => "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
            (Api::Generate, _) => "/generate",
            (Api::Unknown, _) => "/v1/audio/translations",
        }
    }

    /// What the scanner reads from the whole answer on this machine.
    fn expected(&self) -> Usage {
        let content_type: &[u8] =
            if self.stream { b"text/event-stream" } else { b"application/json" };
        let mut scanner = Scanner::for_answer(self.api, content_type).unwrap();
        scanner.feed(self.answer.as_bytes());
        scanner.finish().usage.unwrap()
    }

    fn answer(&self) -> Answer {
        if self.stream {
            Answer::stream(&[&self.answer])
        } else {
            Answer::json(200, self.answer.as_bytes())
        }
    }
}

/// The fuzzer's seeds, without the bytes that tell it what they are.
fn seeds(target: &str, skip: usize) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let seed = |file: std::io::Result<std::fs::DirEntry>| {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        (file.file_name().into_string().unwrap(), text[skip..].to_owned())
    };
    std::fs::read_dir(folder).unwrap().map(seed).collect()
}

/// Each answer, with the requests of its format in turn.
fn cases() -> Vec<Case> {
    let requests = seeds("request", 2);
    let mut cases = Vec::new();
    for (at, (name, text)) in seeds("usage", 1).into_iter().enumerate() {
        let (word, _) = name.split_once('-').unwrap();
        let (_, api) = Api::WORDS.into_iter().find(|(known, _)| *known == word).unwrap();
        let of_api = |(name, _): &(&String, &String)| name.starts_with(&format!("{word}-"));
        let bodies: Vec<_> = requests.iter().filter(of_api).collect();
        let request = bodies[at % bodies.len()].1.clone().into_bytes();
        let stream = text.starts_with('s');
        cases.push(Case { name, api, request, answer: text[2..].to_owned(), stream });
    }
    cases
}

/// Sends all cases through a new Envoy; gives its access log.
fn run(cases: &[Case], trickled: bool) -> Vec<Value> {
    let answers: Arc<BTreeMap<String, Answer>> =
        Arc::new(cases.iter().map(|case| (case.name.clone(), case.answer())).collect());
    let backend = Backend::start(move |request| {
        let answer = answers[request.header("x-case").unwrap()].clone();
        if trickled { answer.trickled() } else { answer }
    })
    .unwrap();
    let envoy =
        Envoy::builder().backends([backend.port(); 2], [backend.port(); 2]).start().unwrap();
    for (count, case) in cases.iter().enumerate() {
        let request = Request::post(case.path(), case.request.clone()).with("x-case", &case.name);
        let mut client = Connection::open(envoy.port()).unwrap();
        // Odd pieces: 1, 2, 3, … bytes, then again from 1.
        let pieces = if trickled { 1..40 } else { 1 << 20..1 + (1 << 20) };
        let bytes = request.bytes();
        let mut rest = &bytes[..];
        for size in pieces.cycle() {
            let (piece, after) = rest.split_at(size.min(rest.len()));
            client.write(piece).unwrap();
            rest = after;
            if rest.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let answer = client.response().unwrap();
        assert_eq!(answer.text(), case.answer, "{}: what the client got", case.name);
        let seen = backend.requests();
        assert_eq!(seen.last().unwrap().body, case.request, "{}: what went up", case.name);
        // What one teaches, the next is estimated by: one after the other.
        envoy.access_log_of(count + 1).unwrap();
    }
    envoy.access_log_of(cases.len()).unwrap()
}

#[test]
fn every_format_is_read_alike_at_once_and_byte_by_byte() {
    if missing() {
        return;
    }
    let cases = cases();
    assert!(Api::WORDS.iter().all(|(_, api)| cases.iter().any(|case| case.api == *api)));
    let (whole, trickled) = (run(&cases, false), run(&cases, true));
    for ((case, whole), trickled) in cases.iter().zip(&whole).zip(&trickled) {
        for field in ["pool", "reason", "estimate", "fit", "reserve"] {
            assert_eq!(whole[field], trickled[field], "{} of {}", field, case.name);
            assert!(!whole[field].is_null(), "no {field} of {}", case.name);
        }
        let usage = case.expected();
        for log in [whole, trickled] {
            let actual = ["actual_input", "actual_output"].map(|field| {
                log.get(field).map(|value| value.as_str().unwrap().parse::<u64>().unwrap())
            });
            assert_eq!(actual, [usage.input, usage.output], "{}: {log}", case.name);
        }
        let unknown = case.api == Api::Unknown;
        assert_eq!(whole["reason"] == "unknown_path", unknown, "{}", case.name);
    }
}
