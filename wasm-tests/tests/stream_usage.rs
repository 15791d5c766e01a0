//! Streams that were not asked for their usage: asked by us, and the answer
//! taken out of the client's view.

mod support;

use support::{CONFIG, Worker, chat_body, used};
use tidegate_wasm_tests::{Action, Chunks, End, Headers, Outcome, Request, Response};

fn config(mode: &str) -> String {
    let window = r#""max_model_len": 8192"#;
    CONFIG.replacen(window, &format!(r#"{window}, "stream_usage": "{mode}""#), 1)
}

fn body(fields: &str) -> String {
    chat_body(400).replace(r#""max_tokens":100"#, &format!(r#""stream":true{fields}"#))
}

fn chat(fields: &str) -> Request<'static> {
    Request::json("/v1/chat/completions", body(fields).into_bytes())
}

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"漢\"}}],\"usage\":null}\r\n\r\n";
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":99,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn stream() -> Response<'static> {
    Response::events([TOKEN, ": ping\n\n", USAGE, DONE].concat().into_bytes())
}

fn sent(outcome: &Outcome) -> (&str, bool) {
    let body = std::str::from_utf8(&outcome.request_body).unwrap();
    let length = outcome.request_headers.text("content-length");
    (body, length.is_none_or(|length| length == body.len().to_string()))
}

fn counts(worker: &Worker) -> [u64; 4] {
    ["added", "skipped", "hidden", "passed"]
        .map(|name| worker.count(&format!("stream_usage.{name}")))
}

#[test]
fn by_default_nothing_is_added() {
    let worker = Worker::new(CONFIG);
    let outcome = worker.run(chat(""), &stream());
    assert_eq!(sent(&outcome), (&*body(""), true));
    assert_eq!(counts(&worker), [0; 4]);
}

#[test]
fn a_stream_is_made_to_state_its_usage() {
    let worker = Worker::new(&config("add"));
    let added = body("").replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1);
    for (chunks, end) in [
        (Chunks::Whole, End::WithLast),
        (Chunks::Every(1), End::EmptyPiece),
        (Chunks::Every(7), End::WithLast),
    ] {
        let outcome = worker.run(chat("").chunks(chunks.clone()).end(end.clone()), &stream());
        assert_eq!(sent(&outcome), (&*added, true));
        let unknown = chat("").without("content-length").end(end);
        assert_eq!(sent(&worker.run(unknown, &stream())).0, added);
        assert_eq!(outcome.response_body, [TOKEN, ": ping\n\n", USAGE, DONE].concat().as_bytes());
    }
    assert_eq!((counts(&worker), worker.count("learned")), ([6, 0, 0, 0], 6));
    // The client's other options stay.
    let options = r#","stream_options":{"continuous_usage_stats":true}"#;
    let outcome = worker.run(chat(options), &stream());
    let both = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    assert_eq!(sent(&outcome), (&*body(both), true));
    // An engine that does not heed it was asked all the same.
    worker.run(chat(""), &Response::events(DONE.as_bytes()));
    assert_eq!(worker.count("usage_missing.absent"), 1);
    assert_eq!(worker.count("usage_missing.not_asked"), 0);
}

#[test]
fn who_asked_refused_or_does_not_stream_is_left_alone() {
    let worker = Worker::new(&config("add"));
    for fields in [
        r#","stream_options":{"include_usage":true}"#,
        r#","stream_options":{"include_usage":false}"#,
        r#","stream":false"#,
    ] {
        assert_eq!(sent(&worker.run(chat(fields), &stream())), (&*body(fields), true));
    }
    assert_eq!(counts(&worker), [0; 4]);
    assert_eq!(worker.count("usage_missing.not_asked"), 0, "these streams stated it");
    // Hidden, the client's no is kept by us.
    let worker = Worker::new(&config("add_and_hide"));
    let outcome = worker.run(chat(r#","stream_options":{"include_usage":false}"#), &stream());
    assert_eq!(sent(&outcome), (&*body(r#","stream_options":{"include_usage":true}"#), true));
    assert_eq!(outcome.response_body, [TOKEN, ": ping\n\n", DONE].concat().as_bytes());
    // Who asked sees it.
    let asked = worker.run(chat(r#","stream_options":{"include_usage":true}"#), &stream());
    assert_eq!(asked.response_body, [TOKEN, ": ping\n\n", USAGE, DONE].concat().as_bytes());
    assert_eq!(counts(&worker), [1, 0, 1, 0]);
}

#[test]
fn a_body_that_cannot_be_changed_is_counted() {
    // Odd, not whole, ended by trailers, or for a pool that says no.
    let worker = Worker::new(&config("add"));
    let odd = r#","stream_options":{},"stream_options":{}"#;
    assert_eq!(sent(&worker.run(chat(odd), &stream())), (&*body(odd), true));
    assert_eq!(counts(&worker), [0, 1, 0, 0]);
    let trailers = chat("").end(End::Trailers(Headers::from([("x-sum", "1")])));
    assert_eq!(sent(&worker.run(trailers, &stream())), (&*body(""), true));
    assert_eq!(counts(&worker), [0, 2, 0, 0]);
    let odd = chat("").header("content-length", "x");
    assert_eq!(worker.run(odd, &stream()).request_body, body("").as_bytes());
    assert_eq!(counts(&worker), [0, 3, 0, 0]);
    // As long as Envoy can hold: one byte more and it would answer 413.
    let limits = r#""inspect_bytes_max": 4096, "buffer_bytes": 4096"#;
    let limited =
        config("add").replacen(r#""version": 1"#, &format!(r#""version": 1, {limits}"#), 1);
    let worker = Worker::new(&limited);
    let pad = |bytes: usize| format!(r#","user":"{}""#, "x".repeat(bytes - body("").len() - 10));
    for (bytes, counted) in [(4056, [1, 0, 0, 0]), (4057, [1, 1, 0, 0]), (4097, [1, 2, 0, 0])] {
        let fields = pad(bytes);
        assert_eq!(body(&fields).len(), bytes);
        worker.run(chat(&fields).chunks(Chunks::Every(1000)), &stream());
        assert_eq!(counts(&worker), counted, "{bytes}");
    }
    // The VM never copies more than a megabyte.
    let limits =
        r#""inspect_bytes_max": 4194304, "buffer_bytes": 4194304, "estimator": {"ratio_max": 100}"#;
    let large = config("add").replacen(r#""version": 1"#, &format!(r#""version": 1, {limits}"#), 1);
    let worker = Worker::new(&large);
    worker.host.set_buffer_limit(4 << 20);
    for (bytes, counted) in [(1 << 20, [1, 0, 0, 0]), ((1 << 20) + 1, [1, 1, 0, 0])] {
        worker.run(chat(&pad(bytes)).chunks(Chunks::Every(100_000)), &stream());
        assert_eq!(counts(&worker), counted, "{bytes}");
    }
    // A pool of its own mind, and a dry run.
    let short = Worker::new(&config("add"));
    let long = chat_body(40_000).replace(r#""max_tokens""#, r#""stream":true,"max_tokens""#);
    let long = Request::json("/v1/chat/completions", long.into_bytes());
    short.run(long, &stream());
    let dry = config("add").replacen(r#""version": 1"#, r#""version": 1, "dry_run": true"#, 1);
    let dry = Worker::new(&dry);
    assert_eq!(sent(&dry.run(chat(""), &stream())), (&*body(""), true));
    assert_eq!((counts(&short), counts(&dry)), ([0; 4], [0; 4]));
}

#[test]
fn the_usage_that_was_added_is_hidden_and_nothing_else() {
    for size in [1, 2, 3, 64, 1000] {
        for end in [End::WithLast, End::EmptyPiece, End::Trailers(Headers::from([("x-sum", "1")]))]
        {
            let worker = Worker::new(&config("add_and_hide"));
            let response = stream().chunks(Chunks::Every(size)).end(end);
            let response = response.header("content-length", "300");
            let outcome = worker.run(chat(""), &response);
            assert_eq!(outcome.response_body, [TOKEN, ": ping\n\n", DONE].concat().as_bytes());
            assert_eq!(outcome.response_headers.text("content-length"), None);
            assert!(outcome.response_complete);
            assert_eq!(outcome.state("tidegate_actual_input"), Some("99"));
            let held = outcome.trace.iter().filter(|step| step.action == Action::Pause).count();
            assert_eq!(held, 1, "only the request's headers: {outcome}");
            assert_eq!((counts(&worker), worker.count("learned")), ([1, 0, 1, 0], 1));
        }
    }
}

/// Eleven bytes of each event wait for the next piece, which is as long as what
/// passes then: not the same bytes.
#[test]
fn a_piece_that_is_as_long_as_what_passes_is_replaced_too() {
    let worker = Worker::new(&config("add_and_hide"));
    let tokens = TOKEN.replace("漢", "1") + &TOKEN.replace("漢", "2") + DONE;
    let sizes = vec![11, TOKEN.len() - 2, 20];
    let response = Response::events(tokens.clone().into_bytes()).chunks(Chunks::Sizes(sizes));
    let outcome = worker.run(chat(""), &response);
    assert_eq!(String::from_utf8(outcome.response_body).unwrap(), tokens);
}

#[test]
fn what_waits_when_the_stream_ends_is_passed() {
    let worker = Worker::new(&config("add_and_hide"));
    let cut = [TOKEN, "data: {\"choices\":[],"].concat();
    for end in [End::WithLast, End::EmptyPiece] {
        let response = Response::events(cut.clone().into_bytes()).chunks(Chunks::Every(5)).end(end);
        assert_eq!(worker.run(chat(""), &response).response_body, cut.as_bytes());
    }
    // The client leaves while something waits.
    let exchange = chat("").send(&worker.vm, worker.root).unwrap();
    let live = exchange.stream();
    live.response_headers([(":status", "200"), ("content-type", "text/event-stream")], false)
        .unwrap();
    live.response_body(cut.as_bytes(), false).unwrap();
    assert_eq!(live.client_body().unwrap(), TOKEN.as_bytes());
    exchange.abort().unwrap();
    assert_eq!(worker.count("usage_missing.aborted"), 1);
}

#[test]
fn other_answers_are_never_edited() {
    let worker = Worker::new(&config("add_and_hide"));
    let same = |response: Response<'static>, bytes: &[u8]| {
        let outcome = worker.run(chat(""), &response.header("content-length", "7"));
        assert_eq!(outcome.response_body, bytes);
        assert_eq!(outcome.response_headers.text("content-length"), Some("7"));
    };
    let json = br#"{"choices":[],"usage":{"prompt_tokens":99,"completion_tokens":3}}"#;
    same(used(99, 3), json);
    assert_eq!(counts(&worker), [1, 0, 0, 0]);
    let stream = stream().chunks(Chunks::Every(50));
    let plain = [TOKEN, ": ping\n\n", USAGE, DONE].concat().into_bytes();
    same(stream.clone().header("content-encoding", "x-odd"), &plain);
    same(stream.header(":status", "201"), &plain);
    // What was not to be seen may have been.
    assert_eq!(counts(&worker), [3, 0, 0, 1]);
    let long =
        format!("data: {{\"choices\":[],\"pad\":\"{}\",\"usage\":{{}}}}\n\n", "x".repeat(20_000));
    let response = Response::events(long.clone().into_bytes()).chunks(Chunks::Every(1000));
    assert_eq!(worker.run(chat(""), &response).response_body, long.as_bytes());
    assert_eq!(counts(&worker), [4, 0, 0, 2]);
}
