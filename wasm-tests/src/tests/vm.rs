//! VMs: loading, root contexts, fuel, traps, reloading.

use super::{guest, said, start};
use crate::{Callback, Error, Host, HostCall, Module, Plugin, VmOptions};
use std::time::Duration;

fn module(text: &str) -> Module {
    Module::from_bytes(text.as_bytes()).unwrap()
}

#[test]
fn an_unknown_import_is_named() {
    let text = r#"(module (import "env" "proxy_tell_fortune" (func (param i32) (result i64)))
        (func (export "proxy_abi_version_0_2_1")))"#;
    let error = Host::new().start(&module(text), "worker").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the module imports `env` `proxy_tell_fortune`, func(i32) -> i64, which this host does \
         not have"
    );
    // A known name in the wrong place is unknown too.
    let text = r#"(module (import "wasi_unstable" "fd_write" (func))
        (func (export "proxy_abi_version_0_2_1")))"#;
    let error = Host::new().start(&module(text), "worker").unwrap_err();
    assert!(matches!(error, Error::UnknownImport { .. }), "{error}");
    // And a known one with the wrong type does not load either.
    let text = r#"(module (import "env" "proxy_log" (func (param i64)))
        (func (export "proxy_abi_version_0_2_1")))"#;
    let error = Host::new().start(&module(text), "worker").unwrap_err();
    assert!(matches!(error, Error::Module(_)), "{error}");
}

#[test]
fn every_listed_host_call_is_bound() {
    for call in HostCall::ALL {
        // The type is wrong on purpose: only a function that is bound can complain about it.
        let name = call.name();
        let text = format!(
            r#"(module (import "env" "{name}" (func (result f64)))
                 (func (export "proxy_abi_version_0_2_1")))"#
        );
        let error = Host::new().start(&module(&text), "worker").unwrap_err().to_string();
        assert!(error.contains(&format!("(env,{name}) type mismatch")), "{name}: {error}");
    }
}

#[test]
fn only_proxy_wasm_0_2_1_modules_load() {
    let error = Host::new().start(&module("(module)"), "worker").unwrap_err().to_string();
    assert!(error.contains("proxy_abi_version_0_2_1"), "{error}");
    let text = r#"(module (func (export "proxy_abi_version_0_2_1")))"#;
    let error = Host::new().start(&module(text), "worker").unwrap_err().to_string();
    assert!(error.contains("memory"), "{error}");
    assert!(Module::from_bytes(b"not wasm").is_err());
}

#[test]
fn a_module_tells_its_imports_and_exports() {
    let text = r#"(module (import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
        (memory (export "memory") 1) (func (export "proxy_on_tick") (param i32)))"#;
    let module = module(text);
    let list = |items: Vec<crate::Item>| {
        items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(list(module.imports()), "env.proxy_log func(i32, i32, i32) -> i32");
    assert_eq!(list(module.exports()), "memory memory\nproxy_on_tick func(i32)");
    assert_eq!(module.size(), text.len());
}

const LIFE: &str = r#"
(func (export "_initialize") (drop (call $log (i32.const 2) @"initialize")))
(func (export "proxy_on_context_create") (param $id i32) (param $root i32)
  (call $say (local.get $id)) (call $say (local.get $root)))
(func (export "proxy_on_vm_start") (param $id i32) (param $size i32) (result i32)
  (drop (call $get_buffer (i32.const 6) (i32.const 0) (local.get $size) (i32.const 16) (i32.const 20)))
  (call $show)
  (call $say (call $set_tick (i32.const 250)))
  (i32.const 1))
(func (export "proxy_on_configure") (param $id i32) (param $size i32) (result i32)
  (drop (call $get_buffer (i32.const 7) (i32.const 0) (local.get $size) (i32.const 16) (i32.const 20)))
  (call $show)
  (i32.ne (local.get $size) (i32.const 3)))
(func (export "proxy_on_done") (param i32) (result i32)
  (call $say (call $proxy_done)) (i32.const 0))
(func (export "proxy_on_delete") (param i32) (drop (call $log (i32.const 2) @"delete")))
(func (export "proxy_on_tick") (param i32) (call $say (call $proxy_done)))
"#;

#[test]
fn root_contexts_live_as_in_envoy() {
    let host = Host::new();
    let options = VmOptions { vm_configuration: b"vm".to_vec(), ..VmOptions::default() };
    let vm = host.start_with(&guest(LIFE), "worker", options).unwrap();
    assert_eq!(said(&host), "initialize");
    let first = vm.configure("first").unwrap();
    assert_eq!(said(&host), "1 0 vm 0 first");
    assert_eq!(vm.tick_period(first).unwrap(), Some(Duration::from_millis(250)));
    // A new configuration is a new root context in the same VM; the old one then goes.
    let second = vm.configure(Plugin::from("second")).unwrap();
    assert_eq!(said(&host), "2 0 vm 0 second");
    let stream = vm.open(second).unwrap();
    assert_eq!(said(&host), "3 2");
    // `proxy_done` inside `on_done` counts.
    assert!(!vm.close(first).unwrap());
    assert_eq!(said(&host), "0 delete");
    assert!(vm.tick(first).is_err());
    vm.tick(second).unwrap();
    assert_eq!(said(&host), "1");
    stream.finish().unwrap();
    assert_eq!(said(&host), "1 delete");
}

#[test]
fn a_refused_configuration_shows_what_was_logged() {
    let host = Host::new();
    let vm = host.start(&guest(LIFE), "worker").unwrap();
    let error = vm.configure("bad").unwrap_err();
    assert_eq!(
        error,
        Error::Rejected { callback: Callback::Configure, log: vec!["[worker] Info: bad".into()] }
    );
    // It is not set up again either.
    let good = vm.configure("good").unwrap();
    said(&host);
    vm.reload().unwrap();
    assert_eq!(said(&host), "initialize 1 0  0 good");
    vm.tick(good).unwrap();
}

#[test]
fn initialize_may_only_log() {
    let text = r#"(func (export "_initialize") (drop (call $get_log_level (i32.const 24))))"#;
    let error = Host::new().start(&guest(text), "worker").unwrap_err().to_string();
    assert!(error.contains("proxy_get_log_level is not allowed during _initialize"), "{error}");
}

const WORK: &str = r#"
(global $ticks (mut i32) (i32.const 0))
(func (export "proxy_on_tick") (param i32)
  (local $i i32)
  (drop (call $log (i32.const 2) @"tick"))
  (global.set $ticks (i32.add (global.get $ticks) (i32.const 1)))
  (call $say (global.get $ticks))
  (loop $again
    (local.set $i (i32.add (local.get $i) (i32.const 1)))
    (br_if $again (i32.lt_u (local.get $i) (i32.const 1000000)))))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (unreachable))
(func (export "proxy_on_log") (param i32) (call $proc_exit (i32.const 3)))
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (drop (memory.grow (i32.const 3))) (i32.const 1))
"#;

#[test]
fn fuel_is_the_same_every_time() {
    let measure = || {
        let (_, vm, root) = start(WORK);
        let before = vm.fuel_used();
        vm.tick(root).unwrap();
        let first = vm.last_fuel();
        vm.tick(root).unwrap();
        assert_eq!(vm.last_fuel(), first);
        assert_eq!(vm.fuel_used() - before, 2 * first);
        first
    };
    let fuel = measure();
    assert!(fuel > 1_000_000, "{fuel}");
    assert_eq!(measure(), fuel);
}

#[test]
fn memory_is_measured() {
    let (_, vm, _) = start(WORK);
    assert_eq!(vm.memory_pages(), 5);
}

#[test]
fn running_out_of_fuel_kills_the_vm_in_the_middle() {
    let (host, vm, root) = start(WORK);
    vm.starve(Callback::Tick, 10_000);
    let Err(Error::Trap(trap)) = vm.tick(root) else { panic!("it must trap") };
    assert!(trap.out_of_fuel);
    assert_eq!(trap.callback, Callback::Tick);
    assert_eq!(trap.log, ["[worker] Info: tick", "[worker] Info: 1"]);
    assert_eq!(vm.trap(), Some(*trap));
    // It is dead for good, and nothing is called any more.
    said(&host);
    assert!(matches!(vm.tick(root), Err(Error::Failed(_))));
    assert!(matches!(vm.open(root), Err(Error::Failed(_))));
    assert_eq!(said(&host), "");
    // A new instance starts afresh.
    vm.reload().unwrap();
    assert_eq!(vm.trap(), None);
    vm.tick(root).unwrap();
    assert_eq!(said(&host), "tick 1");
}

#[test]
fn a_limit_stops_a_long_callback() {
    let (_, vm, root) = start(WORK);
    vm.set_fuel_limit(900_000);
    // What one call was promised holds for that call only.
    vm.starve(Callback::Tick, 90_000_000);
    vm.tick(root).unwrap();
    assert!(matches!(vm.tick(root), Err(Error::Trap(trap)) if trap.out_of_fuel));
}

#[test]
fn streams_die_with_their_vm() {
    let (_, vm, root) = start(WORK);
    let (one, other) = (vm.open(root).unwrap(), vm.open(root).unwrap());
    let Err(Error::Trap(trap)) = one.request_headers([(":path", "/")], true) else {
        panic!("it must trap")
    };
    assert!(!trap.out_of_fuel);
    assert!(matches!(other.log(), Err(Error::Failed(_))));
    vm.reload().unwrap();
    assert!(matches!(other.log(), Err(Error::Misuse(_))));
    // A new stream may have an old one's id; the old handle does not reach it.
    let fresh = vm.open(root).unwrap();
    assert_eq!(fresh.id(), one.id());
    assert!(one.log().unwrap_err().to_string().contains("died with its VM"));
    let error = fresh.finish().unwrap_err().to_string();
    assert!(error.contains("proc_exit(3)"), "{error}");
}

#[test]
fn the_standard_library_finds_its_environment() {
    let host = Host::new();
    let options =
        VmOptions { environment: vec![("A".into(), "one".into())], ..VmOptions::default() };
    let text = r#"(func (export "proxy_on_tick") (param i32)
        (call $say (call $environ_sizes (i32.const 24) (i32.const 28)))
        (call $say (i32.load (i32.const 24)))
        (call $say (i32.load (i32.const 28)))
        (call $say (call $environ_get (i32.const 40) (i32.const 48)))
        (i32.store (i32.const 16) (i32.load (i32.const 40)))
        (i32.store (i32.const 20) (i32.const 5))
        (call $show)
        (call $say (call $random (i32.const 48) (i32.const 3)))
        (call $say (i32.rem_u (i32.load8_u (i32.const 48)) (i32.const 100))))"#;
    let vm = host.start_with(&guest(text), "worker", options).unwrap();
    let root = vm.configure("").unwrap();
    vm.tick(root).unwrap();
    // The first byte of SplitMix64 from seed 0 is 0xaf.
    assert_eq!(said(&host), "0 1 6 0 A=one 0 75");
}

#[test]
fn one_loaded_module_serves_all_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&guest(""));
}

#[test]
fn a_missing_module_says_how_to_build_it() {
    let path = std::path::PathBuf::from("target/tidegate.wasm");
    let text = Error::NotBuilt(path).to_string();
    assert!(text.contains("run `make wasm` first"), "{text}");
    assert!(matches!(Module::load("no/such/file".as_ref()), Err(Error::Read(..))));
}
