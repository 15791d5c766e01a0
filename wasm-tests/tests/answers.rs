//! What the shipped filter does with answers, and for the sake of them, in a
//! real Envoy.

#[path = "support/compress.rs"]
mod compress;

use compress::{brotli, gzip, zlib};
use serde_json::{Value, json};
use tidegate_envoy_support::{
    Answer, Backend, Builder, Connection, Envoy, Request, eventually, missing,
};

const CHAT: &str = "/v1/chat/completions";
const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 8192},
    {"name": "long", "cluster": "long", "max_model_len": 131072}]}]}"#;

fn config_with(fields: &str) -> String {
    CONFIG.replacen(r#""version": 1"#, &format!(r#""version": 1, {fields}"#), 1)
}

fn builder(backend: &Backend) -> Builder {
    Envoy::builder().backends([backend.port(); 2], [backend.port(); 2])
}

fn chat(fields: &Value) -> Request {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Request::post(CHAT, body.to_string())
}

fn count(envoy: &Envoy, name: &str) -> u64 {
    envoy.counter(&format!("wasmcustom.tidegate.{name}")).unwrap()
}

fn actual(line: &Value) -> (Option<&str>, Option<&str>) {
    let field = |name| line.get(name).and_then(Value::as_str);
    (field("actual_input"), field("actual_output"))
}

/// A prompt of 10 MB goes up while it still comes in.
#[test]
fn a_huge_prompt_is_decided_early_and_not_held() {
    if missing() {
        return;
    }
    let backend = Backend::start(|_| Answer::json(200, "{}")).unwrap();
    let envoy = builder(&backend).start().unwrap();
    let content = "the tide comes in and goes out. ".repeat(10_000_000 / 32);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    let bytes = Request::post(CHAT, body.to_string()).bytes();
    let mut client = Connection::open(envoy.port()).unwrap();
    // Envoy asks after each read; some are short.
    client.write(&bytes[..200_000]).unwrap();
    let sent = || envoy.counter("cluster.long.upstream_cx_tx_bytes_total").unwrap();
    eventually("the upstream to see the start", || (sent() >= 130_000).then_some(())).unwrap();
    assert_eq!(count(&envoy, "reason.early"), 1);
    assert!(backend.requests().is_empty(), "the rest is still to come");
    client.write(&bytes[200_000..]).unwrap();
    let response = client.response().unwrap();
    assert_eq!((response.status, response.header("x-tidegate-reason")), (200, Some("early")));
    assert_eq!(backend.requests()[0].body, body.to_string().into_bytes());
    // The same over HTTP/2.
    let front = Envoy::http2_front(envoy.port()).unwrap();
    let response = Request::post(CHAT, body.to_string()).send(front.port()).unwrap();
    assert_eq!((response.status, response.header("x-tidegate-reason")), (200, Some("early")));
    assert_eq!(backend.requests()[1].body, body.to_string().into_bytes());
}

const USED: &str = r#"{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":2,
    "prompt_tokens_details":{"cached_tokens":5}}}"#;

/// Envoy's own filter for AI traffic reads the answer too, before ours.
fn with_protocol_manager(builder: Builder) -> Builder {
    let manager = r#"- name: envoy.filters.http.ai_protocol_manager
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager
              response_handling:
                token_usage:
                  include_unconfigured_routes: true
                  default_llm_protocol: OPENAI_CHAT_COMPLETIONS
          - name: envoy.filters.http.router
"#;
    builder.replace("- name: envoy.filters.http.router\n", manager)
}

#[test]
fn usage_comes_from_envoys_own_reader() {
    if missing() {
        return;
    }
    let backend = Backend::start(|request| match request.header("x-answer") {
        Some("stream") => {
            Answer::stream(&[format!("data: {}\n\ndata: [DONE]\n\n", USED.replace('\n', ""))])
        }
        Some("headers") => Answer::json(200, USED).with("x-in", "71"),
        Some("broken") => {
            Answer::stream(&[format!("data: {}\n\n", USED.replace('\n', ""))]).broken()
        }
        _ => Answer::json(200, USED),
    })
    .unwrap();
    // Our own reader is not asked at all.
    let config = config_with(
        r#""usage_sources": ["metadata", "headers"], "usage_headers": {"input": "x-in"}"#,
    );
    let envoy = with_protocol_manager(builder(&backend).configuration(&config)).start().unwrap();
    for answer in ["json", "stream", "headers"] {
        let request = chat(&json!({"max_tokens": 9})).with("x-answer", answer);
        assert_eq!(request.send(envoy.port()).unwrap().status, 200);
    }
    for line in envoy.access_log_of(3).unwrap() {
        assert_eq!(actual(&line), (Some("70"), Some("2")));
    }
    assert_eq!(count(&envoy, "usage_disagree"), 1);
    // What breaks off is not published.
    let request = chat(&json!({"max_tokens": 9})).with("x-answer", "broken");
    drop(request.send(envoy.port()));
    assert_eq!(actual(&envoy.access_log_of(4).unwrap()[3]), (None, None));
    assert_eq!(count(&envoy, "usage_missing.aborted"), 1);
}

const TOKEN: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"漢字\"}}],\"usage\":null}\r\n\r\n";
const LAST: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":2}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A stream in packets of so many bytes (0: all of it, with its length), with its
/// usage only if asked for it.
fn stream(request: &Request, packet: usize) -> Answer {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let asked = body["stream_options"]["include_usage"] == true;
    let events = [TOKEN, ": ping\n\n", if asked { LAST } else { "" }, DONE].concat();
    if packet == 0 {
        return Answer::events(events);
    }
    let parts: Vec<&[u8]> = events.as_bytes().chunks(packet).collect();
    Answer::stream(&parts).pause(std::time::Duration::from_millis(1))
}

fn asking(mode: &str) -> String {
    let window = r#""max_model_len": 8192"#;
    CONFIG.replacen(window, &format!(r#"{window}, "stream_usage": "{mode}""#), 1)
}

#[test]
fn a_stream_states_its_usage_and_the_client_does_not_see_it() {
    if missing() {
        return;
    }
    let backend = Backend::start(|request| {
        stream(request, request.header("x-packet").map_or(1000, |packet| packet.parse().unwrap()))
    })
    .unwrap();
    let envoy = builder(&backend).configuration(&asking("add_and_hide")).start().unwrap();
    let front = Envoy::http2_front(envoy.port()).unwrap();
    let seen = [TOKEN, ": ping\n\n", DONE].concat();
    let mut sent = 0;
    for port in [envoy.port(), front.port()] {
        for packet in ["0", "1", "7", "1000"] {
            for framing in ["x-none", "transfer-encoding"] {
                let request = chat(&json!({"stream": true, "user": "é"}));
                let request = request.with(framing, "chunked").with("x-packet", packet);
                let before: Value = serde_json::from_slice(&request.body).unwrap();
                let response = request.send(port).unwrap();
                assert_eq!((response.status, &*response.body), (200, seen.as_bytes()));
                let mut went: Value =
                    serde_json::from_slice(&backend.requests().pop().unwrap().body).unwrap();
                let options = went.as_object_mut().unwrap().remove("stream_options");
                assert_eq!((went, options), (before, Some(json!({"include_usage": true}))));
                sent += 1;
            }
        }
    }
    for line in envoy.access_log_of(sent).unwrap() {
        assert_eq!(actual(&line), (Some("70"), Some("2")));
    }
    let sent = sent as u64;
    let counts = ["added", "skipped", "hidden", "passed"];
    let counts = counts.map(|name| count(&envoy, &format!("stream_usage.{name}")));
    assert_eq!(counts, [sent, 0, sent, 0]);
}

/// Envoy sends the changed body again to the next pool.
#[test]
fn a_second_attempt_asks_too() {
    if missing() {
        return;
    }
    let overflow = r#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#;
    let short = Backend::start(move |_| Answer::json(400, overflow)).unwrap();
    let long = Backend::start(|request| stream(request, 1000)).unwrap();
    let envoy = Envoy::builder()
        .backends([short.port(); 2], [long.port(); 2])
        .configuration(&asking("add_and_hide"))
        .start()
        .unwrap();
    eventually("the long pool to be seen healthy", || {
        envoy.counter("cluster.long.membership_healthy").ok().filter(|hosts| *hosts == 2)
    })
    .unwrap();
    let response = chat(&json!({"stream": true})).send(envoy.port()).unwrap();
    assert_eq!((response.status, response.header("x-envoy-attempt-count")), (200, Some("2")));
    assert_eq!(response.body, [TOKEN, ": ping\n\n", DONE].concat().as_bytes());
    assert_eq!(short.requests()[0].body, long.requests()[0].body);
    assert_eq!(actual(&envoy.access_log_of(1).unwrap()[0]), (Some("70"), Some("2")));
}

/// Packets of one byte, of a few, and all at once.
#[test]
fn compressed_answers_are_read_and_never_changed() {
    if missing() {
        return;
    }
    let events = [TOKEN, LAST, DONE].concat();
    let pieces: Vec<&[u8]> = [TOKEN, LAST, DONE].map(str::as_bytes).to_vec();
    // As servers send it, and 65 MiB of blanks.
    let bodies = [
        ("gzip", gzip(events.as_bytes())),
        ("br", brotli(&pieces, 22)),
        ("deflate", zlib(events.as_bytes())),
        ("gzip", gzip(&vec![b' '; 65 << 20])),
        ("br", brotli(&[&vec![b'\n'; 65 << 20]], 22)),
    ];
    let sent = bodies.clone();
    let backend = Backend::start(move |request| {
        let number = |name| request.header(name).unwrap().parse::<usize>().unwrap();
        let (encoding, body) = &sent[number("x-body")];
        let parts: Vec<&[u8]> = body.chunks(number("x-packet")).collect();
        let pause = std::time::Duration::from_millis(u64::from(body.len() < 1000));
        Answer::stream(&parts).with("content-encoding", encoding).pause(pause)
    })
    .unwrap();
    let narrow = config_with(r#""accept_encoding": "narrow""#);
    let envoy = builder(&backend).configuration(&narrow).start().unwrap();
    let mut lines = 0;
    for (index, (encoding, body)) in bodies.iter().enumerate() {
        for packet in ["1", "7", "100000"] {
            let huge = index > 2;
            if huge && packet != "100000" {
                continue;
            }
            let request = chat(&json!({"stream": true}))
                .with("accept-encoding", "gzip, zstd, br;q=0.5, deflate")
                .with("x-body", &index.to_string())
                .with("x-packet", packet);
            let response = request.send(envoy.port()).unwrap();
            assert_eq!(
                (response.status, response.header("content-encoding")),
                (200, Some(*encoding))
            );
            assert_eq!(&response.body, body, "{encoding}, {packet}");
            let accepted = backend.requests().pop().unwrap();
            assert_eq!(accepted.header("accept-encoding"), Some("gzip, br;q=0.5, deflate"));
            lines += 1;
            let line = envoy.access_log_of(lines).unwrap().pop().unwrap();
            let expected = if huge { (None, None) } else { (Some("70"), Some("2")) };
            assert_eq!(actual(&line), expected, "{encoding}, {packet}");
        }
    }
    assert_eq!(count(&envoy, "usage_missing.encoded_large"), 2);
    assert!(!envoy.log().contains("unreachable"), "a VM trapped: {}", envoy.log());
}
