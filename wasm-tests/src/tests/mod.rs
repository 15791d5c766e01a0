//! Tests of the host itself, with guests written as WebAssembly text.

mod exchange;
mod http;
mod process;
mod vm;

use crate::{Host, Module, Root, Vm};
use std::fmt::Write;

/// What every guest starts with. Host functions put their results at address 16 (pointer),
/// 20 (length) and 24 (a number).
const PRELUDE: &str = r#"
(import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_log_level" (func $get_log_level (param i32) (result i32)))
(import "env" "proxy_get_current_time_nanoseconds" (func $get_time (param i32) (result i32)))
(import "env" "proxy_set_tick_period_milliseconds" (func $set_tick (param i32) (result i32)))
(import "env" "proxy_get_buffer_bytes" (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_pairs" (func $get_pairs (param i32 i32 i32) (result i32)))
(import "env" "proxy_set_header_map_pairs" (func $set_pairs (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_value" (func $get_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_replace_header_map_value" (func $set_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_add_header_map_value" (func $add_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_remove_header_map_value" (func $remove_header (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_property" (func $get_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_shared_data" (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_register_shared_queue" (func $register_queue (param i32 i32 i32) (result i32)))
(import "env" "proxy_resolve_shared_queue" (func $resolve_queue (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_dequeue_shared_queue" (func $dequeue (param i32 i32 i32) (result i32)))
(import "env" "proxy_enqueue_shared_queue" (func $enqueue (param i32 i32 i32) (result i32)))
(import "env" "proxy_continue_stream" (func $resume (param i32) (result i32)))
(import "env" "proxy_close_stream" (func $close (param i32) (result i32)))
(import "env" "proxy_send_local_response" (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_effective_context" (func $act_for (param i32) (result i32)))
(import "env" "proxy_call_foreign_function" (func $foreign (param i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_done" (func $proxy_done (result i32)))
(import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_metric" (func $get_metric (param i32 i32) (result i32)))
(import "env" "proxy_record_metric" (func $record (param i32 i64) (result i32)))
(import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
(import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes (param i32 i32) (result i32)))
(memory (export "memory") 2)
(global $free (mut i32) (i32.const 65536))
(func (export "proxy_abi_version_0_2_1"))
(func (export "proxy_on_memory_allocate") (param i32) (result i32)
  (global.get $free)
  (global.set $free (i32.add (global.get $free) (local.get 0))))
;; Logs a number below 100.
(func $say (param i32)
  (i32.store8 (i32.const 32) (i32.add (i32.const 48) (i32.div_u (local.get 0) (i32.const 10))))
  (i32.store8 (i32.const 33) (i32.add (i32.const 48) (i32.rem_u (local.get 0) (i32.const 10))))
  (if (i32.lt_u (local.get 0) (i32.const 10))
    (then (drop (call $log (i32.const 2) (i32.const 33) (i32.const 1))))
    (else (drop (call $log (i32.const 2) (i32.const 32) (i32.const 2))))))
;; Logs the bytes that a host function gave, and forgets them.
(func $show
  (drop (call $log (i32.const 2) (i32.load (i32.const 16)) (i32.load (i32.const 20))))
  (i64.store (i32.const 16) (i64.const 0)))
"#;

/// Compiles a guest. `@"text"` stands for a pointer and a length; `\00` and the like may be in
/// it, as in any string of WebAssembly text.
fn guest(callbacks: &str) -> Module {
    let mut text = format!("(module {PRELUDE}");
    let mut data = String::new();
    let mut at = 1024;
    let mut pieces = callbacks.split("@\"");
    text.push_str(pieces.next().unwrap());
    for piece in pieces {
        let (string, rest) = piece.split_once('"').expect("a closing quote");
        let length = string.len() - 2 * string.matches('\\').count();
        write!(text, "(i32.const {at}) (i32.const {length}){rest}").unwrap();
        write!(data, "(data (i32.const {at}) \"{string}\")").unwrap();
        at += length + 1;
    }
    text.push_str(&data);
    text.push(')');
    Module::from_bytes(text.as_bytes()).unwrap()
}

/// A process with one VM and one root context.
fn start(callbacks: &str) -> (Host, Vm, Root) {
    let host = Host::new();
    let vm = host.start(&guest(callbacks), "worker").unwrap();
    let root = vm.configure("").unwrap();
    (host, vm, root)
}

/// What the guests said since the last time, on one line.
fn said(host: &Host) -> String {
    let lines: Vec<String> = host.log().into_iter().map(|line| line.text).collect();
    host.clear_log();
    lines.join(" ")
}
