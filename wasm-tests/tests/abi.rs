//! What the shipped module is made of: its imports and exports, its size, and
//! the fuel that a request costs.

mod support;

use std::fmt::Write as _;
use support::{CONFIG, Worker, chat, golden, used};
use tidegate_wasm_tests::{Chunks, Module, Response};

/// Bytes of the module, names included. The decoders for gzip and deflate take
/// some 55 KB of it, the one for Brotli 190 KB, two thirds of that its dictionary.
const SIZE_MAX: usize = 1_130_000;
/// Fuel may differ from the golden by so much, in per cent.
const TOLERANCE: u64 = 5;

#[test]
fn imports_and_exports_are_the_known_ones() {
    let module = Module::shipped().unwrap();
    let mut text = String::new();
    for (kind, items) in [("import", module.imports()), ("export", module.exports())] {
        let mut lines: Vec<String> = items.iter().map(|item| format!("{kind} {item}")).collect();
        lines.sort_unstable();
        writeln!(text, "{}", lines.join("\n")).unwrap();
    }
    golden("abi.txt", &text);
}

#[test]
fn the_module_stays_small_and_names_no_machine() {
    let module = Module::shipped().unwrap();
    assert!(module.size() <= SIZE_MAX, "{} bytes", module.size());
    let bytes = std::fs::read(tidegate_wasm_tests::wasm_path().unwrap()).unwrap();
    for path in [env!("CARGO_MANIFEST_DIR"), &std::env::var("HOME").unwrap()] {
        let path = path.as_bytes();
        assert!(!bytes.windows(path.len()).any(|window| window == path), "a build path is inside");
    }
}

/// Fuel of one request on a warm VM, body in pieces of 16 KiB as Envoy reads it.
///
/// A unit is one operator of each block that is entered, run or jumped over, so
/// it overstates branchy code; it is for noticing change, not for timing.
fn fuel(bytes: usize, answer: &Response) -> u64 {
    let worker = Worker::new(CONFIG);
    worker.chat(bytes, 100);
    worker.run(chat(bytes).chunks(Chunks::Every(16 << 10)), answer).fuel
}

#[test]
fn a_request_costs_the_known_fuel() {
    let stream: String = (0..100)
        .map(|n| format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" w{n}\"}}}}]}}\n\n"))
        .chain(["data: {\"choices\":[],\"usage\":{\"prompt_tokens\":500,\"completion_tokens\":100}}\n\n".to_owned()])
        .collect();
    let measured = [
        ("chat of 2 KB", fuel(2 << 10, &used(500, 10))),
        ("chat of 100 KB", fuel(100 << 10, &used(25_000, 10))),
        ("chat of 2 KB, 100 events", fuel(2 << 10, &Response::events(stream.into_bytes()))),
    ];
    let mut text = String::new();
    for (name, fuel) in measured {
        println!("{name}: {fuel} fuel");
        writeln!(text, "{name}: {fuel}").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/fuel.txt");
    let known = std::fs::read_to_string(path).unwrap_or_default();
    let close = |(name, fuel): &(&str, u64)| {
        let line = known.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let golden: u64 = line.and_then(|line| line.parse().ok()).unwrap_or(0);
        fuel.abs_diff(golden) * 100 <= golden * TOLERANCE
    };
    if !measured.iter().all(close) {
        golden("fuel.txt", &text);
    }
}
