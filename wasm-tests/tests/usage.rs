//! Where an answer's usage is looked for.

mod support;

use support::{Worker, chat, config_with, used};
use tidegate_wasm_tests::{HostCall, Outcome, Request, Response};

const METADATA: [&str; 3] = ["metadata", "typed_filter_metadata", "envoy.ai.token_usage"];

fn actual(outcome: &Outcome) -> (Option<&str>, Option<&str>) {
    (outcome.state("tidegate_actual_input"), outcome.state("tidegate_actual_output"))
}

/// 70 prompt tokens and 2 generated ones, as Envoy 1.40.0 publishes them.
fn with_metadata(request: Request<'static>) -> Request<'static> {
    let message = b"\x08\x01\x1a\x02\x08F\"\x02\x08\x02*\x02\x08H2\x04\n\x02\x08\x05H\x01";
    request.property(&METADATA, &message[..])
}

#[test]
fn sources_are_asked_in_the_order_of_the_configuration() {
    let worker = Worker::new(&config_with(
        r#""usage_sources": ["metadata", "body", "headers"], "usage_headers": {"input": "x-in"}"#,
    ));
    let stated = worker.run(with_metadata(chat(400)), &used(70, 2).header("x-in", "70"));
    assert_eq!(actual(&stated), (Some("70"), Some("2")));
    assert_eq!(worker.count("usage_disagree"), 0);
    let disagreed = worker.run(with_metadata(chat(400)), &used(99, 2));
    assert_eq!(actual(&disagreed), (Some("70"), Some("2")));
    assert_eq!(worker.count("usage_disagree"), 1);
    let absent = worker.run(chat(400), &used(99, 3).header("x-in", "70"));
    assert_eq!(actual(&absent), (Some("99"), Some("3")));
    assert_eq!(worker.count("usage_disagree"), 2);
    // What our own reader cannot read Envoy's may have read.
    let html = Response::new(200).header("content-type", "text/html").body(&b"x"[..]);
    let stated = worker.run(with_metadata(chat(400)), &html);
    assert_eq!(actual(&stated), (Some("70"), Some("2")));
    assert_eq!(worker.count("usage_missing.content_type"), 0);
    assert_eq!(worker.count("learned"), 4);
}

#[test]
fn a_source_that_is_not_named_is_not_asked() {
    let worker = Worker::new(&config_with(r#""usage_headers": {"input": "x-in"}"#));
    let body = worker.run(with_metadata(chat(400)), &used(99, 3));
    assert_eq!(actual(&body), (Some("99"), Some("3")));
    let calls = |worker: &Worker| worker.host.calls(HostCall::GetProperty);
    let worker = Worker::new(&config_with(
        r#""usage_sources": ["body"], "usage_headers": {"input": "x-in"}"#,
    ));
    worker.run(chat(400), &used(99, 3).header("x-in", "5"));
    assert_eq!(worker.count("usage_disagree"), 0);
    // Metadata costs one call where it is named.
    let none = calls(&worker);
    let worker = Worker::new(&config_with(r#""usage_sources": ["metadata", "body"]"#));
    worker.run(chat(400), &used(99, 3));
    assert_eq!(calls(&worker), none + 1);
}
