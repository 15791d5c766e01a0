//! A trace in virtual time: the same on any number of threads, nothing lost, and
//! never more than the seats allow.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tidegate_sim::engine::{Config, Linear, Transfer};
use tidegate_sim::rng::Pcg;
use tidegate_sim_cli::engine::{Dispatch, Plan, Report, Split, run};
use tidegate_sim_cli::files;
use tidegate_sim_cli::hardware::Timing;

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Conversations whose prompts grow: later turns share what came before.
fn write_trace(path: &Path, requests: u32) {
    let (mut rng, mut text) = (Pcg::new(7, 0), String::new());
    for nth in 0..requests {
        let (chat, turns) = (rng.below(40), 1 + rng.below(6));
        let names: Vec<u32> = (0..turns).map(|turn| chat * 10 + turn).collect();
        let input = turns * 512 - rng.below(512);
        let output = 1 + rng.below(200);
        let millis = nth / 9 * 300;
        let _ = writeln!(
            text,
            "{{\"timestamp\": {millis}, \"input_length\": {input}, \"output_length\": {output}, \
             \"hash_ids\": {names:?}}}"
        );
    }
    std::fs::write(path, text).unwrap();
}

fn plan(trace: &Path) -> Plan {
    Plan {
        trace: trace.into(),
        repeat: 1,
        replicas: 5,
        ranks: 1,
        split: None,
        threads: 1,
        dispatch: Dispatch::RoundRobin,
        config: Config {
            max_num_seqs: 8,
            num_gpu_blocks: 900,
            max_model_len: 8_192,
            prefix_id_tokens: 512,
            ..Config::default()
        },
        by_priority: false,
        timing: Timing::Linear(Linear::default()),
        requests: None,
        series: None,
    }
}

fn check(report: &Report, requests: u64) {
    assert_eq!((report.requests, report.refused), (requests, 0));
    assert_eq!(report.summary.whole.count(), requests, "every request ends once");
    // Throughput × mean time in the batch ≤ seats.
    let most = u128::from(report.seats) * u128::from(report.summary.end);
    assert!(report.counts.preemptions > 0 || report.summary.seat_time <= most);
}

#[test]
fn threads_change_nothing() {
    let folder = Folder::new("threads");
    let trace = folder.file("trace.jsonl");
    write_trace(&trace, 3_000);
    let one = run(&plan(&trace)).unwrap();
    check(&one, 3_000);
    assert!(one.counts.preemptions > 0 && one.counts.prefix_hits > 0, "{:?}", one.counts);
    for threads in [2, 3, 16] {
        let many = run(&Plan { threads, ..plan(&trace) }).unwrap();
        assert_eq!(many, one, "{threads} threads");
    }
    // With rows, all run on one thread: the same report, and rows to match it.
    let (requests, series) = (folder.file("requests.csv"), folder.file("series.csv"));
    let rows =
        Plan { requests: Some(requests.clone()), series: Some(series.clone()), ..plan(&trace) };
    assert_eq!(run(&rows).unwrap(), one);
    let text = std::fs::read_to_string(requests).unwrap();
    let ends: Vec<f64> =
        text.lines().skip(1).map(|row| row.split(',').nth(5).unwrap().parse().unwrap()).collect();
    assert_eq!(ends.len(), 3_000);
    assert!(ends.is_sorted());
    let text = std::fs::read_to_string(series).unwrap();
    let full = text.lines().skip(1).any(|row| row.split(',').nth(2) == Some("8"));
    assert!(full, "some second has all seats of a replica taken:\n{text}");
}

#[test]
fn the_least_loaded_replica_is_no_worse() {
    let folder = Folder::new("least");
    let trace = folder.file("trace.jsonl");
    write_trace(&trace, 2_000);
    let (turns, least) = (plan(&trace), Plan { dispatch: Dispatch::LeastLoaded, ..plan(&trace) });
    let (turns, least) = (run(&turns).unwrap(), run(&least).unwrap());
    check(&least, 2_000);
    assert!(least.summary.queue.mean() < turns.summary.queue.mean());
}

#[test]
fn split_and_parallel_replicas_lose_nothing_on_any_number_of_threads() {
    let folder = Folder::new("split");
    let trace = folder.file("trace.jsonl");
    write_trace(&trace, 1_000);
    let split = Some(Split { prefill: 1, decode: 2, transfer: Transfer::default() });
    for plan in [Plan { split, ..plan(&trace) }, Plan { ranks: 2, ..plan(&trace) }] {
        let one = run(&plan).unwrap();
        check(&one, 1_000);
        assert_eq!(run(&Plan { threads: 2, ..plan }).unwrap(), one);
    }
}

#[test]
fn what_is_too_long_is_counted_and_what_is_wrong_is_named() {
    let folder = Folder::new("wrong");
    let trace = folder.file("trace.jsonl");
    let row = |input: u32| {
        format!("{{\"timestamp\": 0, \"input_length\": {input}, \"output_length\": 9}}\n")
    };
    std::fs::write(&trace, row(10) + &row(9_000)).unwrap();
    let report = run(&plan(&trace)).unwrap();
    assert_eq!((report.requests, report.refused, report.summary.whole.count()), (2, 1, 1));
    std::fs::write(&trace, row(10) + "{\n").unwrap();
    let error = run(&plan(&trace)).unwrap_err().to_string();
    assert!(error.contains("line 2: not JSON"), "{error}");
    let config = Config { num_gpu_blocks: 9, ..plan(&trace).config };
    let error = run(&Plan { config, ..plan(&trace) }).unwrap_err().to_string();
    assert!(error.contains("max_model_len is 8192; allowed: at most the 128"), "{error}");
    let error = run(&plan(&folder.file("none"))).unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
}

#[test]
fn published_traces_run_whole() {
    for (name, replicas, requests) in [
        ("traces/azure_llm_2023_conv.csv.gz", 1, 19_366),
        ("traces/mooncake_conversation.jsonl.gz", 8, 12_031),
    ] {
        let Some(trace) = files::shared_data(name) else { return };
        let config = Config { prefix_id_tokens: 512, ..Config::default() };
        let plan = Plan { config, replicas, threads: 2, ..plan(&trace) };
        check(&run(&plan).unwrap(), requests);
    }
}
