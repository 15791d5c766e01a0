//! The driver of whole requests.

use super::{said, start};
use crate::{Chunks, End, LocalReply, Request, Response, Verdict, exchange};

/// Holds the request until its end and says what sizes it sees.
const SIZES: &str = r#"
(func (export "proxy_on_request_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
  (call $say (local.get $end)) (i32.eqz (local.get $end)))
(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size)) (i32.eqz (local.get $end)))
(func (export "proxy_on_response_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $say (local.get $size)) (i32.const 0))
(func (export "proxy_on_log") (param i32) (drop (call $log (i32.const 2) @"log")))
(func (export "proxy_on_done") (param i32) (result i32) (drop (call $log (i32.const 2) @"done")) (i32.const 1))
(func (export "proxy_on_delete") (param i32) (drop (call $log (i32.const 2) @"delete")))
"#;

#[test]
fn bodies_fall_into_pieces() {
    let (host, vm, root) = start(SIZES);
    let run = |chunks: Chunks, end: End| {
        let request = Request::json("/", b"abcdefg").chunks(chunks.clone()).end(end.clone());
        let response = Response::json(200, b"ABCDEFG").chunks(chunks).end(end);
        let outcome = exchange(&vm, root, request, &response).unwrap();
        assert_eq!(outcome.request_body, b"abcdefg");
        assert_eq!(outcome.response_body, b"ABCDEFG");
        assert!(outcome.request_complete && outcome.response_complete);
        assert!(outcome.fuel > 0);
        said(&host)
    };
    assert_eq!(run(Chunks::Whole, End::WithLast), "0 7 7 log done delete");
    assert_eq!(run(Chunks::Whole, End::EmptyPiece), "0 7 7 7 0 log done delete");
    assert_eq!(run(Chunks::Every(3), End::WithLast), "0 3 6 7 3 3 1 log done delete");
    assert_eq!(
        run(Chunks::Sizes(vec![1, 0, 4]), End::WithLast),
        "0 1 1 5 7 1 0 4 2 log done delete"
    );
    assert_eq!(run(Chunks::Sizes(vec![7]), End::WithLast), "0 7 7 log done delete");
    let trailers = End::Trailers([("x-end", "1")].into());
    assert_eq!(run(Chunks::Every(4), trailers), "0 4 7 4 3 log done delete");
}

#[test]
fn no_body_ends_with_the_headers() {
    let (host, vm, root) = start(SIZES);
    let outcome = exchange(&vm, root, Request::new("GET", "/"), &Response::new(204)).unwrap();
    assert_eq!(said(&host), "1 log done delete");
    assert_eq!(outcome.status(), Some(204));
    let request = Request::new("POST", "/").end(End::EmptyPiece);
    exchange(&vm, root, request, &Response::new(204)).unwrap();
    assert_eq!(said(&host), "0 0 log done delete");
}

#[test]
fn requests_may_overlap_and_end_in_many_ways() {
    let (host, vm, root) = start(SIZES);
    let one = Request::json("/", b"abc").send(&vm, root).unwrap();
    let two = Request::json("/", b"abcde").send(&vm, root).unwrap();
    let three = Request::json("/", b"a").send(&vm, root).unwrap();
    let two = two.answer(&Response::new(200)).unwrap();
    let one = one.abort().unwrap();
    let three = three.answer_locally(LocalReply::by_envoy(504, "response_timeout")).unwrap();
    assert_eq!((one.status(), two.status(), three.status()), (None, Some(200), Some(504)));
    assert_eq!((one.request_body.len(), two.request_body.len()), (3, 5));
    assert_eq!((one.verdict, three.verdict), (Verdict::Forwarded, Verdict::Replied));
    assert_eq!(said(&host).matches("delete").count(), 3);
}

#[test]
fn a_request_that_is_held_for_ever_is_told_apart() {
    let (_, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#,
    );
    let outcome = exchange(&vm, root, Request::new("GET", "/"), &Response::new(200)).unwrap();
    assert_eq!(outcome.verdict, Verdict::Held);
    assert!(!outcome.request_complete);
    assert!(outcome.request_headers.is_empty());
    assert_eq!(outcome.status(), None);
}

#[test]
fn a_request_answered_on_the_way_is_not_sent_further() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
             (call $say (local.get $size))
             (drop (call $reply (i32.const 400) @"" @"no" @"" (i32.const 3)))
             (drop (call $reply (i32.const 500) @"" @"too late" @"" (i32.const 3)))
             (i32.const 1))"#,
    );
    let request = Request::json("/", b"abcdef").chunks(Chunks::Every(2)).end(End::EmptyPiece);
    let outcome = exchange(&vm, root, request, &Response::new(200)).unwrap();
    assert_eq!(said(&host), "2");
    assert_eq!(outcome.status(), Some(400));
    assert_eq!(outcome.response_body, b"no");
    assert_eq!(outcome.local_reply.unwrap().grpc_status, Some(3));
}

#[test]
fn requests_carry_headers_and_properties() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $get_property @"xds\00route_name" (i32.const 16) (i32.const 20)))
             (call $show)
             (i32.const 0))"#,
    );
    let request = Request::json("/v1", b"{}")
        .header("Content-Type", b"text/\xe9")
        .add_header("x-a", "1")
        .add_header("x-a", "2")
        .without("content-length")
        .property(&["xds", "route_name"], "embed");
    let outcome = exchange(&vm, root, request, &Response::events(b"data: 1\n\n")).unwrap();
    assert_eq!(said(&host), "embed");
    let headers = outcome.request_headers;
    assert_eq!(headers.get_all("content-type"), [b"text/\xe9"]);
    assert_eq!(headers.text("content-type"), None);
    assert_eq!(headers.get_all("x-a"), [b"1", b"2"]);
    assert_eq!(headers.get("content-length"), None);
    assert_eq!(headers.text(":method"), Some("POST"));
    assert_eq!(outcome.response_headers.text("content-type"), Some("text/event-stream"));
}
