//! One stream: header phases, body buffering, replies, resuming, the end.

use super::{said, start};
use crate::{Action, Headers, LocalReply, Plugin, Verdict};

/// Pauses at the headers and at the body until its end; then sets a header.
const HOLD: &str = r#"
(func (export "proxy_on_request_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
  (call $say (local.get $count))
  (i32.eqz (local.get $end)))
(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size))
  (if (local.get $end) (then
    (call $say (call $get_header (i32.const 0) @"X-Who" (i32.const 16) (i32.const 20)))
    (call $show)
    (call $say (call $set_header (i32.const 0) @"X-Pool" @"\fflong"))))
  (i32.eqz (local.get $end)))
(func (export "proxy_on_request_trailers") (param i32 i32) (result i32)
  (call $say (call $get_header (i32.const 1) @"x-sum" (i32.const 16) (i32.const 20)))
  (call $show)
  (i32.const 0))
"#;

#[test]
fn a_held_body_accumulates_and_headers_can_still_change() {
    let (host, vm, root) = start(HOLD);
    let stream = vm.open(root).unwrap();
    let headers = [("x-who", b"caf\xe9".as_slice()), ("x-pool", b"a"), ("x-POOL", b"b")];
    assert_eq!(stream.request_headers(headers, false).unwrap(), Action::Pause);
    assert_eq!(stream.verdict().unwrap(), Verdict::Held);
    assert_eq!(stream.request_body(b"abc", false).unwrap(), Action::Pause);
    assert_eq!(stream.request_body(b"", false).unwrap(), Action::Pause);
    assert_eq!(stream.upstream_body().unwrap(), b"");
    assert_eq!(stream.request_body(b"de", true).unwrap(), Action::Continue);
    assert_eq!(said(&host), "3 3 3 5 0 caf\u{fffd} 0");
    assert_eq!(stream.verdict().unwrap(), Verdict::Forwarded);
    assert_eq!(stream.upstream_body().unwrap(), b"abcde");
    let sent = stream.upstream_headers().unwrap();
    assert_eq!(sent.get_all("x-pool"), [b"\xfflong"]);
    let outcome = stream.finish().unwrap();
    assert!(outcome.request_complete);
    assert_eq!(
        outcome.trace_text(),
        "request_headers(3):Pause request_body(3):Pause request_body(3):Pause \
         request_body(5,end):Continue"
    );
}

#[test]
fn trailers_release_what_waits() {
    let (host, vm, root) = start(HOLD);
    let stream = vm.open(root).unwrap();
    stream.request_headers([("x-who", "me")], false).unwrap();
    stream.request_body(b"abc", false).unwrap();
    stream.request_trailers([("x-sum", "6")]).unwrap();
    assert_eq!(said(&host), "1 3 0 6");
    let outcome = stream.finish().unwrap();
    assert!(outcome.request_complete);
    assert_eq!(outcome.request_body, b"abc");
    assert_eq!(outcome.request_trailers, Headers::from([("x-sum", "6")]));
}

/// Lets everything pass and tries the header maps everywhere.
const PASS: &str = r#"
(func $probe (param $map i32)
  (call $say (call $get_header (local.get $map) @"a" (i32.const 16) (i32.const 20)))
  (call $say (call $set_header (local.get $map) @"b" @"new"))
  (call $say (call $add_header (local.get $map) @"b" @"more"))
  (call $say (call $remove_header (local.get $map) @"c")))
(func $pairs (param $map i32)
  (call $say (call $get_pairs (local.get $map) (i32.const 16) (i32.const 20)))
  (call $say (i32.load (i32.const 20))))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $probe (i32.const 0)) (call $probe (i32.const 2)) (i32.const 0))
(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size)) (call $probe (i32.const 0)) (call $pairs (i32.const 0)) (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $probe (i32.const 2)) (call $probe (i32.const 0)) (i32.const 0))
(func (export "proxy_on_response_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size)) (call $probe (i32.const 2)) (i32.const 0))
(func (export "proxy_on_log") (param i32)
  (call $probe (i32.const 0)) (call $probe (i32.const 2)) (call $pairs (i32.const 0))
  (call $probe (i32.const 3)))
(func (export "proxy_on_tick") (param i32)
  (call $probe (i32.const 0)) (call $probe (i32.const 8)))
"#;

#[test]
fn header_maps_are_open_in_their_phase_only() {
    let (host, vm, root) = start(PASS);
    let stream = vm.open(root).unwrap();
    stream.request_headers([("a", "1"), ("c", "2")], false).unwrap();
    assert_eq!(said(&host), "0 0 0 0 2 2 2 2");
    stream.request_body(b"xy", false).unwrap();
    stream.request_body(b"z", true).unwrap();
    // Each piece by itself, the map is gone, and its pairs are an empty list.
    assert_eq!(said(&host), "2 2 2 2 2 0 0 1 2 2 2 2 0 0");
    stream.response_headers([("a", "1"), ("c", "3")], false).unwrap();
    assert_eq!(said(&host), "0 0 0 0 2 2 2 2");
    stream.response_body(b"xyz", true).unwrap();
    assert_eq!(said(&host), "3 2 2 2 2");
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "2 2 2 2 2 2 2 2");
    let outcome = stream.finish().unwrap();
    // Readable again in the log, not writable; there were no trailers. The pairs are three:
    // 4 + 3 * 10 bytes of frame, 3 bytes of names, 8 of values.
    assert_eq!(said(&host), "0 2 2 2 0 2 2 2 0 45 1 2 2 2");
    let expected = Headers::from([("a", "1"), ("b", "new"), ("b", "more")]);
    assert_eq!(outcome.request_headers, expected);
    assert_eq!(outcome.response_headers, expected);
    assert_eq!(outcome.request_body, b"xyz");
    assert_eq!(outcome.response_body, b"xyz");
    assert!(outcome.request_complete && outcome.response_complete);
}

#[test]
fn names_match_in_any_case_and_the_first_value_wins() {
    let (host, vm, root) = start(HOLD);
    let stream = vm.open(root).unwrap();
    stream.request_headers([("X-WHO", "one"), ("x-who", "two")], false).unwrap();
    stream.request_body(b"", true).unwrap();
    assert_eq!(said(&host), "2 0 0 one 0");
    let headers = stream.upstream_headers().unwrap();
    assert_eq!(headers.get("X-Who"), Some(b"one".as_slice()));
    assert_eq!(headers.iter().next().unwrap().0, b"x-who");
}

#[test]
fn pairs_can_be_replaced_as_a_whole() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say (call $set_pairs (i32.const 0)
               @"\01\00\00\00\02\00\00\00\01\00\00\00Ab\00v\00"))
             (call $say (call $set_pairs (i32.const 0) @"\01\00\00\00\ff\00\00\00\01\00\00\00Ab"))
             (call $say (call $set_pairs (i32.const 0) (i32.const 1024) (i32.const 999999)))
             (i32.const 0))"#,
    );
    let stream = vm.open(root).unwrap();
    stream.request_headers([("a", "1"), ("b", "2")], true).unwrap();
    assert_eq!(said(&host), "0 2 6");
    assert_eq!(stream.upstream_headers().unwrap(), Headers::from([("ab", "v")]));
}

#[test]
fn without_the_flag_a_pause_at_the_headers_stops_the_body_callbacks() {
    let (host, vm, _) = start(&format!(
        r#"{HOLD}
           (func (export "proxy_on_tick") (param i32)
             (call $say (call $act_for (i32.const 3)))
             (drop (call $get_buffer (i32.const 0) (i32.const 0) (i32.const 9) (i32.const 16) (i32.const 20)))
             (call $show)
             (call $say (call $resume (i32.const 0))))"#
    ));
    let mut plugin = Plugin::from("");
    plugin.allow_on_headers_stop_iteration = false;
    let root = vm.configure(plugin).unwrap();
    let stream = vm.open(root).unwrap();
    assert_eq!(stream.id(), 3);
    stream.request_headers([("x-who", "me")], false).unwrap();
    stream.request_body(b"abc", false).unwrap();
    stream.request_body(b"def", true).unwrap();
    assert_eq!(said(&host), "1");
    assert_eq!(stream.verdict().unwrap(), Verdict::Held);
    // Released from a tick, the body callback runs once, over all that came.
    vm.tick(root).unwrap();
    // Before that, the filter cannot see it.
    assert_eq!(said(&host), "0  0 6 2  2");
    let outcome = stream.finish().unwrap();
    assert_eq!(outcome.verdict, Verdict::Forwarded);
    assert_eq!(outcome.request_body, b"abcdef");
    assert!(outcome.request_complete);
}

#[test]
fn a_tick_releases_a_held_request() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
           (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (i32.const 1))
           (func (export "proxy_on_tick") (param $root i32)
             (call $say (call $set_property @"early" @"yes"))
             (call $say (call $act_for (i32.const 9)))
             (call $say (call $act_for (i32.const 2)))
             (call $say (call $set_header (i32.const 0) @"x-late" @"yes"))
             (call $say (call $get_property @"request\00path" (i32.const 16) (i32.const 20)))
             (call $say (call $resume (i32.const 0)))
             (call $say (call $get_property @"request\00path" (i32.const 16) (i32.const 20)))
             (call $say (call $set_header (i32.const 0) @"x-late" @"no")))"#,
    );
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], false).unwrap();
    stream.request_body(b"abc", true).unwrap();
    assert!(stream.response_headers([(":status", "200")], true).is_err());
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1 2 0 0 0 0 1 2");
    // Each callback starts as the context that it is for.
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1 2 0 2 1 0 1 2");
    stream.response_headers([(":status", "200")], true).unwrap();
    let outcome = stream.finish().unwrap();
    assert_eq!(outcome.request_headers.text("x-late"), Some("yes"));
    assert_eq!(outcome.request_body, b"abc");
    // A stream that is gone cannot be acted for.
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1 2 2 2 1 0 1 2");
}

const BUFFERS: &str = r#"
(func $read (param $start i32) (param $length i32)
  (call $say (call $get_buffer (i32.const 0) (local.get $start) (local.get $length) (i32.const 16) (i32.const 20)))
  (call $show))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $read (i32.const 0) (i32.const 9))
  (call $say (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 0) @"early"))
  (i32.const 0))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $read (i32.const 1) (i32.const 2))
  (call $read (i32.const 2) (i32.const 99))
  (call $read (i32.const 99) (i32.const 1))
  (call $say (call $get_buffer (i32.const 0) (i32.const 9) (i32.const -1) (i32.const 16) (i32.const 20)))
  (call $say (call $get_buffer (i32.const 4) (i32.const 0) (i32.const 9) (i32.const 16) (i32.const 20)))
  (call $say (call $get_buffer (i32.const 7) (i32.const 0) (i32.const 9) (i32.const 16) (i32.const 20)))
  (call $say (call $get_buffer (i32.const 9) (i32.const 0) (i32.const 9) (i32.const 16) (i32.const 20)))
  (call $say (call $set_buffer (i32.const 0) (i32.const 1) (i32.const 1) @"middle"))
  (call $say (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 2) @"front"))
  (call $say (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 0) @"<"))
  (call $say (call $set_buffer (i32.const 0) (i32.const 99) (i32.const 0) @">"))
  (i32.const 0))
(func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
  (call $say (call $set_buffer (i32.const 1) (i32.const 0) (i32.const 99) @"all"))
  (i32.const 0))
"#;

#[test]
fn buffers_are_read_in_slices_and_written_at_the_edges() {
    let (host, vm, root) = start(BUFFERS);
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], false).unwrap();
    assert_eq!(said(&host), "0  2");
    stream.request_body(b"abcd", true).unwrap();
    assert_eq!(said(&host), "0 bc 0 cd 0  0 1 1 2 2 2 0 0");
    stream.response_headers([(":status", "200")], false).unwrap();
    stream.response_body(b"old", true).unwrap();
    let outcome = stream.finish().unwrap();
    assert_eq!(outcome.request_body, b"<abcd>");
    assert_eq!(outcome.response_body, b"all");
}

#[test]
fn a_body_above_the_limit_gets_413_from_envoy_only_while_it_is_held() {
    let (host, vm, root) = start(&format!(
        r#"{HOLD}
           (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
             (call $say (i32.const 77)) (i32.const 0))"#
    ));
    host.set_buffer_limit(4);
    let stream = vm.open(root).unwrap();
    stream.request_headers([("x-who", "me")], false).unwrap();
    stream.request_body(b"abcd", false).unwrap();
    assert_eq!(stream.local_reply().unwrap(), None);
    stream.request_body(b"e", false).unwrap();
    let reply = stream.local_reply().unwrap().unwrap();
    assert_eq!((reply.status, reply.by_filter), (413, false));
    // The filter was not asked about the byte too many, but it sees the answer.
    assert_eq!(said(&host), "1 4");
    stream.deliver_local_reply().unwrap();
    assert_eq!(said(&host), "77");
    let outcome = stream.finish().unwrap();
    assert_eq!(outcome.status(), Some(413));
    assert_eq!(outcome.response_body, b"Payload Too Large");
    assert_eq!(outcome.request_body, b"");

    // One piece can be too much as well.
    let stream = vm.open(root).unwrap();
    stream.request_headers([("x-who", "me")], false).unwrap();
    stream.request_body(b"abcde", false).unwrap();
    assert_eq!(stream.local_reply().unwrap().map(|reply| reply.status), Some(413));

    let (host, vm, root) = start(PASS);
    host.set_buffer_limit(4);
    let stream = vm.open(root).unwrap();
    stream.request_headers([("a", "1")], false).unwrap();
    stream.request_body(b"abcdefgh", false).unwrap();
    stream.request_body(b"ij", true).unwrap();
    assert_eq!(stream.finish().unwrap().request_body, b"abcdefghij");
}

#[test]
fn the_log_cannot_change_headers_that_are_still_held() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
           (func (export "proxy_on_log") (param i32)
             (call $say (call $get_header (i32.const 0) @"a" (i32.const 16) (i32.const 20)))
             (call $say (call $get_header (i32.const 6) @"a" (i32.const 16) (i32.const 20)))
             (call $say (call $remove_header (i32.const 0) @"a")))"#,
    );
    let stream = vm.open(root).unwrap();
    stream.request_headers([("a", "1")], false).unwrap();
    stream.abort().unwrap();
    assert_eq!(said(&host), "0 1 2");
}

/// Refuses in the request body, returning Continue all the same.
const REFUSE: &str = r#"
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $say (call $reply (i32.const 429) @"over the limit" @"slow down"
    @"\01\00\00\00\01\00\00\00\01\00\00\00R\009\00" (i32.const -1)))
  (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $say (call $get_header (i32.const 2) @":status" (i32.const 16) (i32.const 20)))
  (call $show)
  (call $say (call $add_header (i32.const 2) @"x-seen" @"1"))
  (i32.const 0))
(func (export "proxy_on_response_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size)) (i32.const 0))
(func (export "proxy_on_log") (param i32)
  (drop (call $get_property @"response\00code_details" (i32.const 16) (i32.const 20)))
  (call $show))
"#;

#[test]
fn a_local_reply_runs_our_own_response_callbacks() {
    let (host, vm, root) = start(REFUSE);
    host.set_buffer_limit(2);
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], false).unwrap();
    assert_eq!(stream.request_body(b"abc", false).unwrap(), Action::Pause);
    assert_eq!(said(&host), "0");
    assert_eq!(stream.verdict().unwrap(), Verdict::Replied);
    // Envoy sends no more of the request, and no upstream answers.
    assert!(stream.request_body(b"d", true).is_err());
    assert!(stream.response_headers([(":status", "200")], true).is_err());
    stream.deliver_local_reply().unwrap();
    assert_eq!(said(&host), "0 429 0 9");
    let outcome = stream.finish().unwrap();
    assert_eq!(said(&host), "over_the_limit");
    assert_eq!(outcome.status(), Some(429));
    assert_eq!(outcome.response_headers.text("r"), Some("9"));
    assert_eq!(outcome.response_headers.text("x-seen"), Some("1"));
    assert_eq!(outcome.response_body, b"slow down");
    assert_eq!(outcome.request_body, b"");
    let reply = outcome.local_reply.unwrap();
    assert!(reply.by_filter);
    assert_eq!(reply.grpc_status, None);
}

#[test]
fn envoy_can_answer_by_itself() {
    let (host, vm, root) = start(REFUSE);
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], true).unwrap();
    stream.envoy_replies(LocalReply::by_envoy(503, "no_healthy_upstream")).unwrap();
    let outcome = stream.finish().unwrap();
    assert_eq!(said(&host), "0 503 0 no_healthy_upstream");
    assert_eq!(outcome.status(), Some(503));
    assert!(outcome.response_complete);
}

#[test]
fn a_held_response_streams_nothing() {
    let (_, vm, root) = start(
        r#"(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
           (func (export "proxy_on_response_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
             (i32.eqz (local.get $end)))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $close (i32.const 0))) (i32.const 0))"#,
    );
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], true).unwrap();
    assert!(stream.was_reset().unwrap());
    stream.response_headers([(":status", "200")], false).unwrap();
    stream.response_body(b"ab", false).unwrap();
    assert_eq!(stream.client_body().unwrap(), b"");
    stream.response_body(b"c", true).unwrap();
    assert_eq!(stream.client_body().unwrap(), b"abc");
    let outcome = stream.finish().unwrap();
    assert!(outcome.reset && outcome.response_complete);
    assert_eq!(outcome.status(), Some(200));
}

#[test]
fn what_envoy_never_does_is_an_error() {
    let (_, vm, root) = start("");
    let stream = vm.open(root).unwrap();
    let refused = |result: crate::Result<Action>| {
        assert!(matches!(result, Err(crate::Error::Misuse(_))), "{result:?}");
    };
    refused(stream.request_body(b"", true));
    refused(stream.response_headers([(":status", "200")], true));
    stream.request_headers([(":path", "/")], true).unwrap();
    refused(stream.request_headers([(":path", "/")], true));
    refused(stream.request_body(b"", true));
    refused(stream.response_body(b"", true));
    assert!(stream.deliver_local_reply().is_err());
    stream.finish().unwrap();
    assert!(stream.finish().is_err());
}
