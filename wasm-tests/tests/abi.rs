//! What the shipped module is made of: its imports and exports, its size, and
//! what a request costs: fuel, and calls of the host.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;
use support::{CONFIG, Worker, chat, config_with, golden, used};
use tidegate_wasm_tests::{Callback, Chunks, Module, Outcome, Response, Verdict};

/// Bytes of the module, names included. The decoders for gzip and deflate take
/// some 55 KB of it, the one for Brotli 190 KB, two thirds of that its dictionary;
/// what engines report (configuration, calls, two formats, gauges) 23 KB. Beliefs of any
/// size take 5 KB more than those of one did.
const SIZE_MAX: usize = 1_171_000;
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

/// `busy` has every kind of limit, and many open requests.
const TENANTS: &str = r#""tenants": {"from": [{"header": "x-team"}], "default": "others",
    "entitlements": [
        {"name": "others", "tokens_per_second": 50, "burst": 700},
        {"name": "quiet", "tokens_per_second": 1000, "burst": 100000},
        {"name": "busy", "tokens_per_second": 100000, "requests": 1000, "tokens_in_flight": 10000000,
         "quotas": {"minute": 10000000, "hour": 100000000, "day": 1000000000}}]}"#;

/// Fuel of one request on a warm VM, body in pieces of 16 KiB as Envoy reads it.
///
/// A unit is one operator of each block that is entered, run or jumped over, so
/// it overstates branchy code; it is for noticing change, not for timing.
fn fuel(bytes: usize, answer: &Response) -> u64 {
    let worker = Worker::new(CONFIG);
    worker.chat(bytes, 100);
    worker.run(chat(bytes).chunks(Chunks::Every(16 << 10)), answer).fuel
}

/// Fuel that a tenant adds to a request while so many others of its are open.
fn limited(team: &str, open: usize) -> u64 {
    let cost = |config: &str| {
        let worker = Worker::new(config);
        let send = |bytes: usize| {
            worker.host.advance(Duration::from_millis(10));
            let sent = chat(bytes).header("x-team", team).send(&worker.vm, worker.root).unwrap();
            assert_eq!(sent.stream().verdict().unwrap(), Verdict::Forwarded);
            sent
        };
        // Every second one stays open: the buckets remember the starts of many windows.
        let mut held = Vec::new();
        for number in 0..open {
            held.push(send(2000 - 10 * number));
            send(1500).answer(&used(300, 10)).unwrap();
        }
        send(2 << 10).answer(&used(500, 10)).unwrap();
        send(2 << 10).answer(&used(500, 10)).unwrap().fuel
    };
    cost(&config_with(TENANTS)) - cost(CONFIG)
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
        ("admission and settlement", limited("quiet", 0)),
        ("the same with every limit and 100 requests open", limited("busy", 100)),
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

/// Each host call must earn its place: a new one shows here, with the callback
/// that makes it.
#[test]
fn a_limited_request_makes_the_known_host_calls() {
    type Calls = BTreeMap<(Callback, &'static str), u64>;
    let calls = |config: &str, team: &str, status: u32| -> Calls {
        let worker = Worker::new(config);
        let run =
            || -> Outcome { worker.run(chat(2 << 10).header("x-team", team), &used(500, 10)) };
        run();
        let before = worker.host.calls_by_callback();
        assert_eq!(run().status(), Some(status));
        let made = |(at, count): (_, u64)| (at, count - before.get(&at).unwrap_or(&0));
        let calls = worker.host.calls_by_callback().into_iter().map(made);
        calls.filter(|(_, count)| *count > 0).collect()
    };
    let limits = config_with(TENANTS);
    let columns = [
        ("admitted", calls(&limits, "quiet", 200)),
        ("refused", calls(&limits, "others", 429)),
        ("without tenants", calls(CONFIG, "quiet", 200)),
    ];
    let rows: BTreeSet<_> = columns.iter().flat_map(|(_, calls)| calls.keys().copied()).collect();
    let mut text = String::new();
    let mut line = |first: String, cells: [String; 3]| {
        writeln!(text, "{first:<50}{}", cells.map(|cell| format!("{cell:>17}")).concat()).unwrap();
    };
    line("callback and call".into(), columns.each_ref().map(|(title, _)| (*title).into()));
    for row in rows {
        let count = |(_, calls): &(_, Calls)| calls.get(&row).map_or("-".into(), u64::to_string);
        line(format!("{} {}", row.0, row.1), columns.each_ref().map(count));
    }
    let sum = |(_, calls): &(_, Calls)| calls.values().sum::<u64>().to_string();
    line("all".into(), columns.each_ref().map(sum));
    for column in &columns {
        println!("a request, {}: {} host calls", column.0, sum(column));
    }
    golden("host_calls.txt", &text);
}
