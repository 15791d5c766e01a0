//! Compressed answers: read as they pass, in bounded memory, and never changed.

#[path = "support/compress.rs"]
mod compress;
mod support;

use compress::{brotli, gzip, raw_deflate, zlib};
use support::{CONFIG, Worker, chat, config_with, used};
use tidegate_wasm_tests::{Chunks, Outcome, Response};

const USAGE: &[u8] = br#"{"choices":[],"usage":{"prompt_tokens":99,"completion_tokens":3}}"#;

fn stream() -> Vec<u8> {
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\" 漢字\"}}]}\n\n".repeat(200);
    let usage = String::from_utf8_lossy(USAGE).into_owned();
    format!("{token}data: {usage}\n\ndata: [DONE]\n\n").into_bytes()
}

fn encoded(encoding: &str, body: impl Into<Vec<u8>>) -> Response<'static> {
    Response::json(200, body.into()).header("content-encoding", encoding)
}

fn read(outcome: &Outcome) -> bool {
    outcome.state("tidegate_actual_input") == Some("99")
}

#[test]
fn encodings_are_read_whatever_the_pieces() {
    let worker = Worker::new(CONFIG);
    let events = stream();
    let pieces: Vec<&[u8]> = events.chunks(100).collect();
    for (encoding, body) in [
        ("gzip", gzip(&events)),
        ("X-GZip", [gzip(&events[..5000]), gzip(&events[5000..])].concat()),
        ("deflate", zlib(&events)),
        ("br", brotli(&pieces, 22)),
        ("BR", brotli(&pieces, 23)),
        ("br", brotli(&pieces, 10)),
        ("identity", events.clone()),
    ] {
        for size in [1, 7, 1000, 1 << 20] {
            let response = Response::events(body.clone()).header("content-encoding", encoding);
            let outcome = worker.run(chat(400), &response.chunks(Chunks::Every(size)));
            assert!(read(&outcome), "{encoding}, {size}");
            assert_eq!(outcome.response_body, body);
        }
    }
    for (encoding, body) in [("gzip", gzip(USAGE)), ("br", brotli(&[USAGE], 22))] {
        assert!(read(&worker.run(chat(400), &encoded(encoding, body))), "{encoding}");
    }
    assert_eq!(worker.count("learned"), 7 * 4 + 2);
}

#[test]
fn refusals_are_read_too() {
    let worker = Worker::new(CONFIG);
    let words = br#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#;
    for (encoding, body) in [("gzip", gzip(words)), ("br", brotli(&[words], 22))] {
        worker.run(chat(400), &encoded(encoding, body).header(":status", "400"));
    }
    assert_eq!(worker.count("under_route"), 2);
    worker.run(chat(400), &encoded("zstd", &words[..]).header(":status", "400"));
    assert_eq!(worker.count("under_route"), 2);
}

/// A server that never ends its gzip or Brotli stream has said all the same.
#[test]
fn a_stream_that_lacks_its_end_is_read() {
    let worker = Worker::new(CONFIG);
    let events = stream();
    for (encoding, mut body, trailer) in [
        ("gzip", gzip(&events), 8),
        ("deflate", zlib(&events), 4),
        ("br", brotli(&[&events], 22), 1),
    ] {
        body.truncate(body.len() - trailer);
        let response = Response::events(body).header("content-encoding", encoding);
        assert!(read(&worker.run(chat(400), &response.chunks(Chunks::Every(100)))), "{encoding}");
    }
}

#[test]
fn what_cannot_be_read_is_counted_by_cause() {
    let worker = Worker::new(CONFIG);
    let counts = || {
        ["encoded", "encoded_large", "unreadable", "aborted"]
            .map(|cause| worker.count(&format!("usage_missing.{cause}")))
    };
    // {"usage":null} by the zstd command.
    let zstd = b"\x28\xb5\x2f\xfd\x04\x00\x71\x00\x00{\"usage\":null}\x00\x00\x00\x00";
    for encoding in ["zstd", "gzip, br", "br, br", "", "compress"] {
        assert!(!read(&worker.run(chat(400), &encoded(encoding, &zstd[..]))));
    }
    assert_eq!(counts(), [5, 0, 0, 0]);
    // A window of 16 MiB, and one of those that RFC 7932 does not know.
    worker.run(chat(400), &encoded("br", brotli(&[USAGE], 24)));
    worker.run(chat(400), &encoded("br", &b"\x11\x00"[..]));
    assert_eq!(counts(), [5, 2, 0, 0]);
    let broken = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xFF;
        bytes[middle + 1] ^= 0x55;
        bytes
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() / 2);
        bytes
    };
    let unreadable = [
        ("gzip", broken(gzip(USAGE))),
        ("gzip", USAGE.to_vec()),
        ("gzip", cut(gzip(USAGE))),
        ("deflate", broken(zlib(USAGE))),
        // Some servers leave the zlib header out, against RFC 9110.
        ("deflate", raw_deflate(USAGE)),
        ("br", broken(brotli(&[USAGE], 22))),
        ("br", cut(brotli(&[USAGE], 22))),
        ("br", USAGE.to_vec()),
    ];
    for (done, (encoding, body)) in unreadable.into_iter().enumerate() {
        let outcome = worker.run(chat(400), &encoded(encoding, body.clone()));
        assert_eq!(outcome.response_body, body);
        assert_eq!(counts(), [5, 2, done as u64 + 1, 0], "{encoding}");
    }
    // The client leaves.
    let exchange = chat(400).send(&worker.vm, worker.root).unwrap();
    let live = exchange.stream();
    let headers =
        [(":status", "200"), ("content-type", "application/json"), ("content-encoding", "gzip")];
    live.response_headers(headers, false).unwrap();
    live.response_body(&gzip(USAGE)[..20], false).unwrap();
    exchange.abort().unwrap();
    assert_eq!(counts(), [5, 2, 8, 1]);
    assert_eq!(worker.count("learned"), 0);
    assert!(worker.vm.trap().is_none());
}

/// Each of these needs 4 MiB of window: more than 15 at a time are not read.
#[test]
fn decoders_share_a_bounded_memory() {
    let worker = Worker::new(CONFIG);
    let body = brotli(&[USAGE], 22);
    let open: Vec<_> = (0..20)
        .map(|_| {
            let exchange = chat(400).send(&worker.vm, worker.root).unwrap();
            let headers = [
                (":status", "200"),
                ("content-type", "application/json"),
                ("content-encoding", "br"),
            ];
            exchange.stream().response_headers(headers, false).unwrap();
            exchange.stream().response_body(&body[..10], false).unwrap();
            exchange
        })
        .collect();
    for exchange in open {
        exchange.stream().response_body(&body[10..], true).unwrap();
        exchange.stream().finish().unwrap();
    }
    assert_eq!((worker.count("learned"), worker.count("usage_missing.encoded_large")), (15, 5));
    assert!(worker.vm.memory_pages() < 1200, "{} pages", worker.vm.memory_pages());
    // And then they are.
    for _ in 0..20 {
        worker.run(chat(400), &encoded("br", body.clone()));
    }
    assert_eq!((worker.count("learned"), worker.count("usage_missing.encoded_large")), (35, 5));
}

#[test]
fn a_client_may_be_asked_for_less() {
    let sent = |config: &str, accepted: &str| {
        let outcome =
            Worker::new(config).run(chat(400).header("accept-encoding", accepted), &used(100, 1));
        outcome.request_headers.text("accept-encoding").unwrap().to_owned()
    };
    let narrow = config_with(r#""accept_encoding": "narrow""#);
    for (accepted, expected) in [
        ("gzip, deflate, br, zstd", "gzip, deflate, br"),
        ("zstd;q=1.0,br;q=0.5 , *;q=0.1", "br;q=0.5"),
        ("GZIP;q=0.5,br", "GZIP;q=0.5,br"),
        ("zstd", "identity"),
        ("*", "identity"),
        ("", "identity"),
        ("identity;q=0, gzip", "identity;q=0, gzip"),
    ] {
        assert_eq!(sent(&narrow, accepted), expected);
        assert_eq!(sent(CONFIG, accepted), accepted);
    }
    let none = Worker::new(&narrow).run(chat(400), &used(100, 1));
    assert_eq!(none.request_headers.text("accept-encoding"), None);
    let dry = config_with(r#""accept_encoding": "narrow", "dry_run": true"#);
    assert_eq!(sent(&dry, "zstd"), "zstd");
}
