//! One stream after another through the shipped filter: when it holds, what it
//! decides, what it leaves alone.

mod support;

use support::{CONFIG, Worker, chat, chat_body, config_with, ema, used};
use tidegate_wasm_tests::{
    Action, Chunks, End, Error, Headers, Host, Level, LocalReply, Module, Outcome, Request,
    Response, Verdict,
};

const POOL: &str = "x-tidegate-pool";

fn decided(outcome: &Outcome) -> (&str, &str) {
    (outcome.state("tidegate_pool").unwrap(), outcome.state("tidegate_reason").unwrap())
}

#[test]
fn a_chat_goes_to_the_pool_that_holds_it() {
    let worker = Worker::new(&ema());
    let short = worker.chat(4000, 1000);
    assert_eq!(decided(&short), ("short", "threshold"));
    assert_eq!(short.request_headers.text(POOL), Some("short-cluster"));
    assert_eq!((short.route_clears, short.verdict), (1, Verdict::Forwarded));
    assert_eq!(short.request_body, chat_body(4000).into_bytes(), "the body goes up unchanged");
    // 4,000 bytes at the start ratio, and a template of 7.
    assert_eq!(short.state("tidegate_estimate"), Some("1007"));
    assert_eq!(short.state("tidegate_reserve"), Some("1107"));
    assert_eq!(short.state("tidegate_actual_input"), Some("1000"));
    assert_eq!(short.state("tidegate_actual_output"), Some("10"));
    let long = worker.chat(40_000, 10_000);
    assert_eq!(decided(&long), ("long", "largest"));
    assert_eq!(long.request_headers.text(POOL), Some("long-cluster"));
    assert_eq!((worker.count("requests.short"), worker.count("requests.long")), (1, 1));
    assert_eq!((worker.count("reason.threshold"), worker.count("learned")), (1, 2));
    assert_eq!(worker.host.histogram("tidegate.estimate_error").unwrap()[0], 7);
}

#[test]
fn pieces_and_ends_of_the_body_make_no_difference() {
    let all = [
        (Chunks::Whole, End::WithLast),
        (Chunks::Every(1), End::EmptyPiece),
        (Chunks::Every(7), End::WithLast),
        (Chunks::Sizes(vec![0, 3, 0, 100]), End::EmptyPiece),
        (Chunks::Every(50), End::Trailers(Headers::from([("x-sum", "1")]))),
    ];
    for (chunks, end) in all {
        let worker = Worker::new(&ema());
        let request = chat(600).chunks(chunks.clone()).end(end);
        let outcome = worker.run(request, &used(150, 1));
        assert_eq!(outcome.state("tidegate_fit"), Some("307"), "{chunks:?}: {outcome}");
        assert_eq!(outcome.request_body, chat_body(600).into_bytes());
        assert!(outcome.request_complete);
    }
}

#[test]
fn what_is_no_chat_request_is_never_held() {
    let worker = Worker::new(CONFIG);
    let path = "/v1/chat/completions";
    let multipart = "multipart/form-data; boundary=x";
    let cases = [
        Request::new("GET", "/v1/models"),
        Request::new("GET", path),
        Request::new("CONNECT", path),
        Request::json(path, &b"--x"[..]).header("content-type", multipart),
        Request::json(path, &b"{}"[..]).without("content-type"),
        Request::new("GET", path).header("upgrade", "websocket").header("connection", "upgrade"),
        Request::json(path, &b"{}"[..]).header("upgrade", "h2c"),
    ];
    let count = cases.len() as u64;
    for request in cases {
        let outcome = worker.run(request, &Response::new(200));
        assert_eq!(decided(&outcome), ("long", "not_inspected"), "{outcome}");
        assert!(outcome.trace.iter().all(|step| step.action != Action::Pause), "{outcome}");
        assert_eq!(outcome.request_headers.text(POOL), Some("long-cluster"));
    }
    assert_eq!(worker.count("reason.not_inspected"), count);
    // JSON for a path that is not known is weighed.
    let outcome = worker.run(Request::json("/v1/other", &b"{}"[..]), &Response::new(200));
    assert_eq!(decided(&outcome), ("short", "unknown_path"));
}

#[test]
fn bodies_that_are_not_json_go_up_unchanged() {
    let worker = Worker::new(CONFIG);
    for body in [&b"{"[..], b"\xff\xfe", b"[1]", b"x"] {
        let outcome = worker.run(Request::json("/v1/chat/completions", body), &Response::new(400));
        assert_eq!(decided(&outcome), ("long", "unparsed"));
        assert_eq!(outcome.request_body, body);
    }
    let none = worker.run(Request::json("/v1/chat/completions", &b""[..]), &Response::new(400));
    assert_eq!(decided(&none), ("long", "unparsed"));
}

#[test]
fn a_clients_pool_header_has_no_effect() {
    let worker = Worker::new(CONFIG);
    let request = chat(40_000).add_header(POOL, "short-cluster").add_header(POOL, "evil");
    let outcome = worker.run(request, &used(10_000, 1));
    assert_eq!(outcome.request_headers.get_all(POOL), [b"long-cluster"]);
}

#[test]
fn bytes_that_are_not_utf8_do_no_harm() {
    let worker = Worker::new(CONFIG);
    let request = chat(400)
        .header("x-odd", b"caf\xe9")
        .header(POOL, b"\xff")
        .header("content-length", b"\xff")
        .header(":authority", b"\xfe");
    let response = used(100, 1).header("content-encoding", b"\xff").header("x-odd", b"\xe9");
    let outcome = worker.run(request, &response);
    assert_eq!(decided(&outcome), ("short", "threshold"));
    assert_eq!(outcome.request_headers.get("x-odd"), Some(&b"caf\xe9"[..]));
    let odd = chat(400).header("content-type", b"application/\xff").header(":path", b"/\xff");
    assert_eq!(decided(&worker.run(odd, &used(100, 1))), ("long", "not_inspected"));
    assert!(worker.vm.trap().is_none());
}

#[test]
fn a_body_past_the_limit_is_decided_from_its_length() {
    let worker = Worker::new(&config_with(r#""inspect_bytes_max": 4096, "buffer_bytes": 2097152"#));
    let send = |bytes, length: bool| {
        let request = chat(bytes).chunks(Chunks::Every(1000)).end(End::EmptyPiece);
        let request = if length { request } else { request.without("content-length") };
        let outcome = worker.run(request, &used(bytes as u64 / 4, 1));
        assert_eq!(outcome.request_body.len(), chat_body(bytes).len());
        (
            outcome.state("tidegate_pool").unwrap().to_owned(),
            outcome.state("tidegate_reason").unwrap().to_owned(),
        )
    };
    let limit = |pool: &str| (pool.to_owned(), "inspect_limit".to_owned());
    assert_eq!(send(10_000, true), limit("short"));
    assert_eq!(send(60_000, true), limit("long"));
    assert_eq!(send(10_000, false), limit("long"), "the rest may be anything");
    assert_eq!(send(3000, false), ("short".to_owned(), "threshold".to_owned()));
    // What was guessed teaches nothing.
    assert_eq!(worker.count("learned"), 1);
}

/// 8,192 tokens of 16 bytes are the most that the short pool can hold.
#[test]
fn a_prompt_too_long_for_the_smaller_pool_is_not_held_to_its_end() {
    let worker = Worker::new(&config_with(r#""buffer_bytes": 16777216"#));
    let send = |bytes, end| {
        worker.run(chat(bytes).chunks(Chunks::Every(16 << 10)).end(end), &used(bytes as u64 / 4, 1))
    };
    let held = |outcome: &Outcome| {
        let held = outcome.trace.iter().filter(|step| step.action == Action::Pause);
        held.map(|step| step.size).max().unwrap()
    };
    let long = send(10_000_000, End::EmptyPiece);
    assert_eq!(decided(&long), ("long", "early"));
    assert_eq!(held(&long), 8 * (16 << 10), "the piece after it was enough");
    assert!(long.request_complete && long.request_body.len() > 10_000_000);
    // Below that only the whole text tells, and one that is in hand is whole.
    assert_eq!(decided(&send(130_000, End::EmptyPiece)), ("long", "largest"));
    let whole = worker.run(chat(200_000), &used(50_000, 1));
    assert_eq!(decided(&whole), ("long", "largest"));
    let whole = worker.run(chat(200_000).end(End::EmptyPiece), &used(50_000, 1));
    assert_eq!(decided(&whole), ("long", "largest"));
    assert_eq!((worker.count("reason.early"), worker.count("learned")), (1, 3));
}

/// Envoy adds a read, a megabyte at the most, to what is held before it asks
/// us, and answers 413 if that is too much.
#[test]
fn a_body_is_held_only_while_the_next_read_surely_fits() {
    // Nothing is decided early: the ratio may get that high.
    let worker = Worker::new(&config_with(r#""estimator": {"ratio_max": 100}"#));
    let send = |bytes, length: bool, piece| {
        let request = chat(bytes).chunks(Chunks::Every(piece)).end(End::EmptyPiece);
        let request = if length { request } else { request.without("content-length") };
        worker.run(request, &used(bytes as u64 / 4, 1))
    };
    // Of unknown length and not complete: at the first piece.
    let blind = send(3000, false, 1000);
    assert_eq!(decided(&blind), ("long", "inspect_limit"));
    // Of unknown length, but complete.
    assert_eq!(decided(&send(3000, false, 10_000)), ("short", "threshold"));
    // Of known length: to the inspection limit if it fits, else at the first piece.
    assert_eq!(decided(&send(3000, true, 1000)), ("short", "threshold"));
    assert_eq!(decided(&send(1_200_000, true, 200_000)), ("long", "too_large"));
    let held = |outcome: &Outcome| {
        outcome.trace.iter().filter(|step| step.action == Action::Pause).count()
    };
    assert_eq!(held(&send(1_200_000, true, 200_000)), 1, "at the headers only");
    assert_eq!(held(&send(900_000, true, 200_000)), 3);
}

#[test]
fn headers_mode_decides_at_once() {
    let worker = Worker::new(&config_with(r#""inspect": "headers""#));
    let small = worker.chat(4000, 1000);
    assert_eq!(decided(&small), ("short", "content_length"));
    assert!(small.trace.iter().all(|step| step.action != Action::Pause), "{small}");
    assert_eq!(decided(&worker.chat(60_000, 15_000)), ("long", "content_length"));
    let chunked = worker.run(chat(400).without("content-length"), &used(100, 1));
    assert_eq!(decided(&chunked), ("long", "no_length"));
    assert_eq!(worker.count("learned"), 2);
}

#[test]
fn settings_differ_by_path_host_and_route() {
    let worker = Worker::new(&config_with(
        r#""overrides": [
            {"path_prefix": "/batch", "set": {"output_reserve": "longest"}},
            {"host": "dry.example", "set": {"dry_run": true}},
            {"route_name": "blind", "set": {"inspect": "headers"}}]"#,
    ));
    let body = chat_body(400).replace(r#","max_tokens":100"#, "").into_bytes();
    let to = |path: &str| Request::json(path, body.clone());
    let batch = worker.run(to("/batch/v1/chat/completions"), &used(100, 1));
    assert_eq!(decided(&batch), ("long", "largest"));
    let dry = worker
        .run(to("/v1/chat/completions").header(":authority", "dry.example:80"), &used(100, 1));
    assert_eq!(decided(&dry), ("short", "threshold"));
    assert_eq!((dry.request_headers.text(POOL), dry.route_clears), (None, 0));
    let blind = to("/v1/chat/completions").property(&["xds", "route_name"], "blind");
    assert_eq!(decided(&worker.run(blind, &used(100, 1))), ("short", "content_length"));
}

#[test]
fn a_host_without_the_foreign_function_works() {
    let worker = Worker::new(CONFIG);
    worker.host.set_clear_route_cache(false);
    assert_eq!(decided(&worker.chat(400, 100)), ("short", "threshold"));
}

#[test]
fn the_answer_is_watched_and_never_touched() {
    let worker = Worker::new(CONFIG);
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"漢\"}}],\"usage\":null}\r\n\r\n: ping\n\ndata: \
                {\"choices\":[],\"usage\":{\"prompt_tokens\":99,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
    for size in [1, 2, 3, 64, 1000] {
        let response =
            Response::events(body.as_bytes()).chunks(Chunks::Every(size)).end(End::EmptyPiece);
        let outcome = worker.run(chat(400), &response);
        assert_eq!(outcome.response_body, body.as_bytes());
        assert!(outcome.response_complete);
        assert_eq!(outcome.state("tidegate_actual_input"), Some("99"));
        let held = outcome.trace.iter().filter(|step| step.action == Action::Pause).count();
        assert_eq!(held, 1, "only the request's headers: {outcome}");
    }
    assert_eq!(worker.count("learned"), 5);
}

/// The filter is told by metadata of the host which pool answered.
#[test]
fn another_pool_that_answers_is_a_spill_only_if_the_request_fitted() {
    let worker = Worker::new(CONFIG);
    let pool = ["xds", "upstream_host_metadata", "filter_metadata", "tidegate", "pool"];
    let attempts = ["upstream", "request_attempt_count"];
    let send = |answer: &Response, count: u64| {
        let request = chat(400).property(&pool, "long");
        worker.run(request.property(&attempts, count.to_le_bytes().to_vec()), answer)
    };
    let counts = || ["spill.down", "spill.unclear", "under_route"].map(|name| worker.count(name));
    send(&used(107, 10), 1);
    assert_eq!(counts(), [1, 0, 0]);
    send(&used(9000, 10), 2);
    assert_eq!(counts(), [1, 0, 1]);
    send(&Response::events(&b"data: {}\n\n"[..]), 2);
    assert_eq!(counts(), [1, 1, 1]);
    let dry = Worker::new(&config_with(r#""dry_run": true"#));
    dry.run(chat(400).property(&pool, "long"), &used(107, 10));
    assert_eq!(dry.count("spill.down"), 0, "it never went where it was decided for");
}

#[test]
fn a_model_that_comes_late_is_waited_for() {
    let models = CONFIG.replace(
        r#""models": ["#,
        r#""inspect_bytes_max": 4096, "models": [{"match": "late", "pools": [
            {"name": "own", "cluster": "own", "max_model_len": 9000}]}, "#,
    );
    let worker = Worker::new(&models);
    let body = |bytes| {
        let body = chat_body(bytes).replacen(r#""model":"m","#, "", 1);
        let body = body.replace(r#""max_tokens":100"#, r#""max_tokens":100,"model":"late""#);
        Request::json("/v1/chat/completions", body.into_bytes()).chunks(Chunks::Every(3000))
    };
    assert_eq!(decided(&worker.run(body(9000), &used(2000, 1))), ("own", "largest"));
    // Not to be had within Envoy's buffer: no model's pool, but the default.
    let late = worker.run(body(1_200_000), &used(300_000, 1));
    assert_eq!(decided(&late), ("long", "inspect_limit"));
    assert_eq!(late.state("tidegate_estimate"), None);
}

#[test]
fn usage_may_come_in_headers() {
    let config = config_with(r#""usage_headers": {"input": "x-in", "output": "x-out"}"#);
    let worker = Worker::new(&config);
    let outcome =
        worker.run(chat(400), &Response::new(200).header("x-in", "77").header("x-out", "5"));
    assert_eq!(outcome.state("tidegate_actual_input"), Some("77"));
    assert_eq!(outcome.state("tidegate_actual_output"), Some("5"));
    // What a header lacks the body may have.
    let both = worker.run(chat(400), &used(70, 6).header("x-out", "8"));
    assert_eq!(both.state("tidegate_actual_input"), Some("70"));
    assert_eq!(both.state("tidegate_actual_output"), Some("8"));
}

#[test]
fn answers_without_usage_are_counted_by_cause() {
    let worker = Worker::new(CONFIG);
    let zstd = used(100, 1).header("content-encoding", "zstd");
    let stream = || Response::events(&b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n"[..]);
    let streaming = || {
        let body = chat_body(400).replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        Request::json("/v1/chat/completions", body.into_bytes())
    };
    worker.run(chat(400), &zstd);
    worker.run(chat(400), &Response::json(200, &b"{}"[..]));
    worker.run(chat(400), &Response::json(200, &b"{"[..]));
    worker.run(chat(400), &Response::new(200).header("content-type", "text/html").body(&b"x"[..]));
    worker.run(streaming(), &stream());
    // The stream breaks off.
    let exchange = streaming().send(&worker.vm, worker.root).unwrap();
    let live = exchange.stream();
    live.response_headers([(":status", "200"), ("content-type", "text/event-stream")], false)
        .unwrap();
    live.response_body(b"data: {", false).unwrap();
    exchange.abort().unwrap();
    for cause in ["encoded", "absent", "unreadable", "content_type", "not_asked", "aborted"] {
        assert_eq!(worker.count(&format!("usage_missing.{cause}")), 1, "{cause}");
    }
    assert_eq!(worker.count("learned"), 0);
}

#[test]
fn only_upstream_successes_teach() {
    let worker = Worker::new(CONFIG);
    for status in [400, 429, 500, 503] {
        let answer = Response::json(status, &br#"{"usage":{"prompt_tokens":9999}}"#[..]);
        worker.run(chat(4000), &answer);
    }
    let reply = LocalReply::by_envoy(200, "direct_response");
    chat(4000).send(&worker.vm, worker.root).unwrap().answer_locally(reply).unwrap();
    // The client leaves before, within and after the upload.
    chat(4000).send(&worker.vm, worker.root).unwrap().abort().unwrap();
    let stream = worker.vm.open(worker.root).unwrap();
    stream
        .request_headers(
            [
                (":method", "POST"),
                (":path", "/v1/chat/completions"),
                ("content-type", "application/json"),
                ("content-length", "100"),
            ],
            false,
        )
        .unwrap();
    stream.request_body(b"{\"mod", false).unwrap();
    assert_eq!(stream.abort().unwrap().verdict, Verdict::Held);
    assert_eq!(worker.count("learned"), 0);
    assert_eq!(
        worker.chat(4000, 1000).state("tidegate_estimate"),
        Worker::new(CONFIG).chat(4000, 1000).state("tidegate_estimate")
    );
}

#[test]
fn misroutes_are_counted() {
    let worker = Worker::new(CONFIG);
    let overflow =
        br#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#;
    worker.run(chat(400), &Response::json(400, &overflow[..]));
    assert_eq!(worker.count("under_route"), 1);
    worker.run(chat(400), &used(9000, 5));
    assert_eq!(worker.count("under_route"), 2);
    worker.run(chat(40_000), &used(3000, 5));
    assert_eq!(worker.count("over_route"), 1);
    let open_ended = chat_body(400).replace(r#","max_tokens":100"#, "").into_bytes();
    worker.run(Request::json("/v1/chat/completions", open_ended), &used(107, 8085));
    assert_eq!((worker.count("truncated"), worker.count("under_route")), (1, 3));
}

/// Clients that always ask for far more than they use are seen here.
#[test]
fn how_much_of_a_cap_is_used_is_recorded() {
    let worker = Worker::new(CONFIG);
    worker.run(chat(400), &used(107, 25));
    worker.run(chat(400), &used(107, 100));
    assert_eq!(worker.host.histogram("tidegate.cap_use").unwrap(), [250, 1000]);
}

#[test]
fn a_bad_configuration_is_refused_with_a_reason() {
    let host = Host::new();
    let vm = host.start(&Module::shipped().unwrap(), "main").unwrap();
    let refused = vm.configure(CONFIG.replace("8192", "0"));
    assert!(matches!(refused, Err(Error::Rejected { .. })), "{refused:?}");
    let line = host.log().into_iter().find(|line| line.level == Level::Error).unwrap();
    let expected =
        "tidegate: models[0].pools[0].max_model_len: 0: must be an integer from 1 to 4294967295";
    assert_eq!(line.text, expected);
    // {"version": 1} as google.protobuf.Struct.
    let bytes = b"\x0a\x14\x0a\x07version\x12\x09\x11\0\0\0\0\0\0\xf0?".to_vec();
    assert!(vm.configure(bytes).is_err());
    assert!(host.logged("google.protobuf.StringValue"));
    assert!(vm.trap().is_none());
}

#[test]
fn two_instances_in_one_vm_are_kept_apart() {
    let worker = Worker::new(CONFIG);
    let other = worker.vm.configure(config_with(r#""name": "other""#)).unwrap();
    for _ in 0..30 {
        worker.chat(8000, 4000);
    }
    let estimate = |root| {
        let outcome =
            tidegate_wasm_tests::exchange(&worker.vm, root, chat(8000), &Response::new(503));
        outcome.unwrap().state("tidegate_estimate").unwrap().parse::<u64>().unwrap()
    };
    assert!(estimate(worker.root).abs_diff(4000) < 10);
    assert!(estimate(other) < 3000, "nothing was learned");
    assert_eq!(worker.count("requests.short.instance.other"), 1);
    assert_eq!(worker.count("requests.short"), 31);
}

#[test]
fn two_configurations_of_one_name_learn_together_and_count_apart() {
    let worker = Worker::new(CONFIG);
    let pools = CONFIG.replace(r#""short""#, r#""a""#).replace(r#""long""#, r#""b""#);
    let other = worker.vm.configure(pools).unwrap();
    worker.chat(400, 100);
    tidegate_wasm_tests::exchange(&worker.vm, other, chat(400), &used(100, 1)).unwrap();
    assert_eq!((worker.count("requests.short"), worker.count("requests.a")), (1, 1));
    assert_eq!(worker.count("learned"), 2);
}

#[test]
fn a_new_configuration_keeps_what_was_learned_and_what_is_open() {
    let worker = Worker::new(CONFIG);
    for _ in 0..30 {
        worker.chat(8000, 4000);
    }
    let open = chat(8000).send(&worker.vm, worker.root).unwrap();
    let next = worker.vm.configure(CONFIG.replace("8192", "2000")).unwrap();
    open.answer(&used(4000, 5)).unwrap();
    worker.vm.close(worker.root).unwrap();
    let outcome =
        tidegate_wasm_tests::exchange(&worker.vm, next, chat(8000), &used(4000, 5)).unwrap();
    assert_eq!(decided(&outcome), ("long", "largest"));
    let estimate: u64 = outcome.state("tidegate_estimate").unwrap().parse().unwrap();
    assert!(estimate.abs_diff(4000) < 10, "{estimate}");
    assert_eq!(worker.count("learned"), 32);
}

#[test]
fn an_uncapped_answer_that_stops_by_length_is_truncated() {
    let worker = Worker::new(CONFIG);
    let cut = br#"{"choices":[{"finish_reason":"length"}],
        "usage":{"prompt_tokens":107,"completion_tokens":8000}}"#;
    let open_ended = chat_body(400).replace(r#","max_tokens":100"#, "").into_bytes();
    worker.run(Request::json("/v1/chat/completions", open_ended), &Response::json(200, &cut[..]));
    assert_eq!((worker.count("truncated"), worker.count("under_route")), (1, 1));
    worker.run(chat(400), &Response::json(200, &cut[..]));
    assert_eq!(worker.count("truncated"), 1);
}
