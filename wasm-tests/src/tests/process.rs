//! What VMs share: data, queues, metrics, clock, log, faults.

use super::{guest, said, start};
use crate::{Callback, Host, HostCall, Level, MetricKind, Status, VmOptions};
use std::time::Duration;

/// Each tick writes with the compare-and-set number that it last read, 0 at first.
const CAS: &str = r#"
(global $cas (mut i32) (i32.const 0))
(func (export "proxy_on_tick") (param i32)
  (call $say (call $set_shared @"key" @"mine" (global.get $cas)))
  (call $say (call $get_shared @"key" (i32.const 16) (i32.const 20) (i32.const 24)))
  (global.set $cas (i32.load (i32.const 24)))
  (call $show))
"#;

#[test]
fn shared_data_compares_and_sets() {
    let (host, vm, root) = start(CAS);
    // A missing key takes any number, 0 compares nothing, the right number passes.
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 0 mine");
    assert_eq!(host.shared_data("", "key"), Some((b"mine".to_vec(), 1)));
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 0 mine");
    // Another VM was faster: the guest reads that, then its number is right again.
    host.set_shared_data("", "key", "theirs", 0).unwrap();
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "8 0 theirs");
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 0 mine");
}

#[test]
fn one_counter_numbers_all_keys_and_skips_zero() {
    let host = Host::new();
    host.set_shared_data("", "a", "", 77).unwrap();
    host.set_shared_data("", "b", "", 0).unwrap();
    assert_eq!(host.shared_data("", "b"), Some((Vec::new(), 2)));
    assert_eq!(host.set_shared_data("", "b", "x", 1), Err(Status::CasMismatch));
    host.set_last_cas(u32::MAX);
    host.set_shared_data("", "a", "x", 1).unwrap();
    assert_eq!(host.shared_data("", "a"), Some((b"x".to_vec(), 1)));
    assert_eq!(host.shared_keys(""), [b"a", b"b"]);
}

#[test]
fn vms_share_data_by_vm_id() {
    let module = guest(CAS);
    let host = Host::new();
    let options = VmOptions { vm_id: "other".into(), ..VmOptions::default() };
    for (vm, expected) in [
        (host.start(&module, "one").unwrap(), "0 0 mine"),
        (host.start_with(&module, "apart", options).unwrap(), "0 0 mine"),
    ] {
        let root = vm.configure("").unwrap();
        vm.tick(root).unwrap();
        assert_eq!(said(&host), expected);
    }
    assert_eq!(host.shared_data("", "key"), Some((b"mine".to_vec(), 1)));
    assert_eq!(host.shared_data("other", "key"), Some((b"mine".to_vec(), 2)));
    assert_eq!(host.shared_data("third", "key"), None);
}

#[test]
fn faults_strike_as_often_as_asked() {
    let (host, vm, root) = start(CAS);
    host.fail_after(HostCall::SetSharedData, 1, Status::CasMismatch, 2);
    host.fail(HostCall::GetSharedData, Status::InternalFailure, 1);
    assert_eq!(host.faults_left(HostCall::SetSharedData), 2);
    vm.tick(root).unwrap();
    // The failed read gave nothing, so the guest shows nothing.
    assert_eq!(said(&host), "0 10 ");
    vm.tick(root).unwrap();
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "8 0 mine 8 0 mine");
    assert_eq!(host.faults_left(HostCall::SetSharedData), 0);
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 0 mine");
    assert_eq!(host.calls(HostCall::SetSharedData), 4);
    // The failed writes wrote nothing.
    assert_eq!(host.shared_data("", "key").unwrap().1, 2);
}

#[test]
fn a_trap_inside_a_host_call_loses_what_came_after() {
    let (host, vm, root) = start(CAS);
    host.trap_in(HostCall::GetSharedData, 1);
    vm.tick(root).unwrap();
    let error = vm.tick(root).unwrap_err();
    assert!(error.to_string().contains("trap in proxy_get_shared_data"), "{error}");
    // The second write stands: shared data outlives the VM.
    assert_eq!(host.shared_data("", "key").unwrap().1, 2);
}

const METRICS: &str = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $say (call $define (i32.const 0) @"hits" (i32.const 24)))
  (call $say (call $define (i32.const 1) @"level" (i32.const 28)))
  (call $say (call $define (i32.const 2) @"sizes" (i32.const 40)))
  (call $say (call $define (i32.const 3) @"wrong" (i32.const 44)))
  (i32.const 1))
(func (export "proxy_on_tick") (param i32)
  (call $say (call $increment (i32.load (i32.const 24)) (i64.const 2)))
  (call $say (call $increment (i32.load (i32.const 24)) (i64.const 0)))
  (call $say (call $increment (i32.load (i32.const 28)) (i64.const -1)))
  (call $say (call $record (i32.load (i32.const 28)) (i64.const 9)))
  (call $say (call $record (i32.load (i32.const 40)) (i64.const 7)))
  (call $say (call $increment (i32.load (i32.const 40)) (i64.const 7)))
  (call $say (call $get_metric (i32.load (i32.const 24)) (i32.const 48)))
  (call $say (i32.load (i32.const 48)))
  (call $say (call $get_metric (i32.load (i32.const 40)) (i32.const 48)))
  (call $say (call $record (i32.const 4000) (i64.const 7))))
"#;

#[test]
fn metrics_follow_envoys_rules() {
    let (host, vm, root) = start(METRICS);
    assert_eq!(said(&host), "0 0 0 2");
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 2 0 0 0 2 0 2 2 1");
    assert_eq!(host.counter("hits"), Some(2));
    assert_eq!(host.gauge("level"), Some(9));
    assert_eq!(host.histogram("sizes"), Some(vec![7]));
    assert_eq!(host.counter("sizes"), None);
    assert!(host.metrics().iter().all(|metric| metric.defined_in == Callback::Configure));
}

#[test]
fn the_same_name_is_the_same_metric_in_every_vm() {
    let module = guest(METRICS);
    let host = Host::new();
    for name in ["one", "two"] {
        let vm = host.start(&module, name).unwrap();
        let root = vm.configure("").unwrap();
        vm.tick(root).unwrap();
    }
    assert_eq!(host.counter("hits"), Some(4));
    assert_eq!(host.histogram("sizes"), Some(vec![7, 7]));
    let kinds: Vec<MetricKind> = host.metrics().iter().map(|metric| metric.kind).collect();
    assert_eq!(kinds, [MetricKind::Counter, MetricKind::Gauge, MetricKind::Histogram]);
}

#[test]
fn a_vm_knows_only_metrics_that_it_defined() {
    let host = Host::new();
    let other = host.start(&guest(METRICS), "other").unwrap();
    other.configure("").unwrap();
    said(&host);
    // 4 is the id of the counter that the other VM defined.
    let vm = host
        .start(
            &guest(
                r#"(func (export "proxy_on_tick") (param i32)
                     (call $say (call $increment (i32.const 4) (i64.const 1))))"#,
            ),
            "worker",
        )
        .unwrap();
    let root = vm.configure("").unwrap();
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1");
    assert_eq!(host.counter("hits"), Some(0));
}

const CLOCKS: &str = r#"
(func $digits (param $time i64)
  (call $say (i32.wrap_i64 (i64.rem_u
    (i64.div_u (local.get $time) (i64.const 1000000000)) (i64.const 100)))))
(func (export "proxy_on_tick") (param i32)
  (drop (call $get_time (i32.const 40)))
  (call $digits (i64.load (i32.const 40)))
  (drop (call $clock (i32.const 0) (i64.const 0) (i32.const 40)))
  (call $digits (i64.load (i32.const 40)))
  (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 40)))
  (call $digits (i64.load (i32.const 40)))
  (call $say (call $clock (i32.const 2) (i64.const 0) (i32.const 40))))
"#;

#[test]
fn clocks_move_only_when_moved() {
    let (host, vm, root) = start(CLOCKS);
    vm.tick(root).unwrap();
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "0 0 0 58 0 0 0 58");
    host.advance(Duration::from_secs(7));
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "7 7 7 58");
    host.jump_wall(-3_000_000_000);
    host.jump_monotonic(-1_000_000_000);
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "4 4 6 58");
    assert_eq!(host.wall() % 100_000_000_000, 4_000_000_000);
    assert_eq!(host.monotonic() % 100_000_000_000, 6_000_000_000);
}

#[test]
fn the_log_has_levels_and_takes_stdout_and_stderr() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_tick") (param i32)
             (drop (call $get_log_level (i32.const 24)))
             (call $say (i32.load (i32.const 24)))
             (drop (call $log (i32.const 1) @"fine"))
             (drop (call $log (i32.const 3) @"bad \ff"))
             (call $say (call $log (i32.const 6) @"no such level"))
             (i32.store (i32.const 40) (i32.const 48)) (i32.store (i32.const 44) (i32.const 3))
             (i32.store (i32.const 48) (i32.const 0x0a6968))
             (drop (call $fd_write (i32.const 2) (i32.const 40) (i32.const 1) (i32.const 24)))
             (call $say (i32.load (i32.const 24)))
             (call $say (call $fd_write (i32.const 5) (i32.const 40) (i32.const 1) (i32.const 24))))"#,
    );
    vm.tick(root).unwrap();
    let lines: Vec<String> = host.log().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "[worker] Info: 2",
            "[worker] Warn: bad \u{fffd}",
            "[worker] Info: 2",
            "[worker] Error: hi",
            "[worker] Info: 3",
            "[worker] Info: 8",
        ]
    );
    assert!(host.logged("bad"));
    host.clear_log();
    host.set_log_level(Level::Debug);
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1 fine bad \u{fffd} 2 hi 3 8");
}

#[test]
fn queues_are_first_in_first_out() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_tick") (param i32)
             (call $say (call $resolve_queue @"" @"jobs" (i32.const 24)))
             (call $say (call $register_queue @"jobs" (i32.const 24)))
             (call $say (call $resolve_queue @"" @"jobs" (i32.const 28)))
             (call $say (i32.eq (i32.load (i32.const 24)) (i32.load (i32.const 28))))
             (call $say (call $enqueue (i32.load (i32.const 24)) @"first"))
             (call $say (call $enqueue (i32.load (i32.const 24)) @"second"))
             (call $say (call $dequeue (i32.load (i32.const 24)) (i32.const 16) (i32.const 20)))
             (call $show)
             (call $say (call $dequeue (i32.load (i32.const 24)) (i32.const 16) (i32.const 20)))
             (call $show)
             (call $say (call $dequeue (i32.load (i32.const 24)) (i32.const 16) (i32.const 20)))
             (call $say (call $enqueue (i32.const 99) @"lost")))"#,
    );
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "1 0 0 1 0 0 0 first 0 second 7 1");
}

#[test]
fn properties_come_from_the_test_the_stream_or_filter_state() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_tick") (param i32)
             (call $say (call $set_property @"x" @"y"))
             (call $say (call $get_property @"plugin_name" (i32.const 16) (i32.const 20)))
             (call $show))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say (call $get_property @"route_name" (i32.const 16) (i32.const 20)))
             (call $show)
             (call $say (call $get_property @"request\00path" (i32.const 16) (i32.const 20)))
             (call $show)
             (call $say (call $get_property @"mine" (i32.const 16) (i32.const 20)))
             (call $say (call $set_property @"mine" @"5\ff"))
             (call $say (call $get_property @"mine" (i32.const 16) (i32.const 20)))
             (call $say (call $get_property @"response\00code" (i32.const 16) (i32.const 20)))
             (i32.const 0))
           (func (export "proxy_on_log") (param i32)
             (call $say (call $get_property @"response\00code" (i32.const 16) (i32.const 20)))
             (call $say (i32.load8_u (i32.load (i32.const 16))))
             (call $say (i32.load (i32.const 20)))
             (call $say (call $get_property @"response\00flags" (i32.const 16) (i32.const 20)))
             (call $say (i32.load8_u offset=1 (i32.load (i32.const 16))))
             (i64.store (i32.const 16) (i64.const 0)))"#,
    );
    vm.tick(root).unwrap();
    // A root context has no filter state.
    assert_eq!(said(&host), "1 0 tidegate");
    let stream = vm.open(root).unwrap();
    stream.set_property(&["route_name"], "embed").unwrap();
    stream.request_headers([(":path", "/v1")], true).unwrap();
    assert_eq!(said(&host), "0 embed 0 /v1 1 0 0 1");
    assert_eq!(stream.filter_state("mine").unwrap(), Some(b"5\xff".to_vec()));
    stream.response_headers([(":status", "99")], true).unwrap();
    stream.finish().unwrap();
    assert_eq!(said(&host), "0 99 8 0 0");

    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/v1")], false).unwrap();
    assert_eq!(said(&host), "1  0 /v1 1 0 0 1");
    let outcome = stream.abort().unwrap();
    // No answer, so no code: what "5" left behind is shown, then the flag of a lost client.
    assert_eq!(said(&host), "1 53 2 0 64");
    assert_eq!(outcome.status(), None);
}

/// Pauses when there is a body.
const SEEN: &str = r#"
(func $look (param $path i32) (param $length i32)
  (call $say (call $get_property (local.get $path) (local.get $length) (i32.const 16) (i32.const 20))))
(func (export "proxy_on_request_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
  (call $look @"request\00url_path") (i32.eqz (local.get $end)))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $look @"request\00method") (call $look @"response\00code") (call $look @"response\00code_details")
  (i32.const 0))
(func (export "proxy_on_log") (param i32) (call $look @"request\00host"))
"#;

#[test]
fn request_properties_outlive_headers_that_were_held() {
    let (host, vm, root) = start(SEEN);
    let run = |end: bool| {
        let stream = vm.open(root).unwrap();
        let headers = [(":path", "/a?b"), (":method", "POST"), (":authority", "h")];
        stream.request_headers(headers, end).unwrap();
        if !end {
            stream.request_body(b"x", true).unwrap();
        }
        stream.response_headers([(":status", "200")], true).unwrap();
        stream.finish().unwrap();
        said(&host)
    };
    assert_eq!(run(false), "0 0 0 0 0");
    // Let pass at once, Envoy has lost them until the log.
    assert_eq!(run(true), "0 1 0 0 0");
}

#[test]
fn calls_to_clusters_are_answered_by_the_test() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_tick") (param i32)
             (call $say (call $http_call @"there" @"\03\00\00\00\05\00\00\00\02\00\00\00\07\00\00\00\03\00\00\00\0a\00\00\00\01\00\00\00:path\00/m\00:method\00GET\00:authority\00a\00" @"" @"" (i32.const 5) (i32.const 24))))
           (func (export "proxy_on_http_call_response") (param $id i32) (param $token i32) (param $headers i32) (param $size i32) (param i32)
             (call $say (local.get $token)) (call $say (local.get $headers)) (call $say (local.get $size))
             (call $say (call $get_header (i32.const 6) @":status" (i32.const 16) (i32.const 20)))
             (call $say (call $get_buffer (i32.const 4) (i32.const 0) (i32.const 9) (i32.const 16) (i32.const 20))))"#,
    );
    vm.tick(root).unwrap();
    host.add_cluster("there");
    vm.tick(root).unwrap();
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "2 0 0");
    let calls = vm.calls();
    assert_eq!((calls.len(), calls[1].headers.text(":path")), (2, Some("/m")));
    vm.answer_call(calls[0].token, 200, b"body").unwrap();
    vm.fail_call(calls[1].token).unwrap();
    // Of a call that failed nothing may be asked.
    assert_eq!(said(&host), "1 1 4 0 0 2 0 0 2 1");
    assert!(vm.fail_call(calls[1].token).is_err());
}

#[test]
fn foreign_functions_can_be_absent() {
    let (host, vm, root) = start(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say (call $foreign @"clear_route_cache" @"" (i32.const 16) (i32.const 20)))
             (call $say (call $foreign @"compress" @"" (i32.const 16) (i32.const 20)))
             (call $say (call $http_call @"cluster" @"" @"" @"" (i32.const 5) (i32.const 24)))
             (i32.const 0))"#,
    );
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], true).unwrap();
    assert_eq!(said(&host), "0 1 2");
    assert_eq!(stream.finish().unwrap().route_clears, 1);
    assert_eq!(host.route_clears(), 1);
    host.set_clear_route_cache(false);
    let stream = vm.open(root).unwrap();
    stream.request_headers([(":path", "/")], true).unwrap();
    assert_eq!(said(&host), "1 1 2");
    assert_eq!(stream.finish().unwrap().route_clears, 0);
    assert_eq!(host.route_clears(), 1);
}
