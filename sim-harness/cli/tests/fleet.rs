//! `tidegate-sim run` reports what it reported before: goldens beside the
//! scenarios, rewritten with `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate_sim::SECOND;
use tidegate_sim::workload::{ScaledRows, parse_rows};
use tidegate_sim_cli::files::{self, shared_data};

fn run(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim")).arg("run").args(args).output();
    let output = output.unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn scenario(name: &str, end: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    folder.join(format!("{name}{end}")).to_str().unwrap().to_owned()
}

fn golden(name: &str) {
    let (done, found) = run(&[&scenario(name, ".toml")]);
    assert!(done, "{name}: {found}");
    let path = scenario(name, ".golden.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, golden, "{name}: rewrite with TIDEGATE_BLESS=1 if this is right");
}

// One test each: they run side by side.

#[test]
fn two_pools_are_as_before() {
    golden("two-pools");
}

#[test]
fn tenants_are_as_before() {
    golden("tenants");
}

#[test]
fn a_shared_pool_is_as_before() {
    golden("shared-pool");
}

#[test]
fn overload_is_as_before() {
    golden("overload");
}

#[test]
fn failures_are_as_before() {
    golden("failures");
}

#[test]
fn azure_is_as_before() {
    golden("azure");
}

#[test]
fn lmsys_is_as_before() {
    golden("lmsys");
}

#[test]
fn conversations_are_as_before() {
    golden("sharegpt-like");
}

#[test]
fn a_tail_is_as_before() {
    golden("mix-with-64K-tail");
}

// These read traces, where there are some.

#[test]
fn azure_code_is_as_before() {
    if shared_data("traces/azure_llm_2023_code.csv.gz").is_some() {
        golden("azure-code");
    }
}

#[test]
fn mooncake_is_as_before() {
    if shared_data("traces/mooncake_conversation.jsonl.gz").is_some() {
        golden("mooncake-conversation");
    }
}

#[test]
fn agents_are_as_before() {
    if shared_data("traces/cc_agentic_sessions_sample.csv.gz").is_some() {
        golden("agent-heavy");
    }
}

/// The coefficient of variation of counts in bins of so many seconds.
fn variation(times: &[u64], seconds: u64) -> f64 {
    let bin = seconds * SECOND;
    let bins = times.iter().max().map_or(0, |last| last / bin);
    let mut counts = vec![0.0; bins as usize + 1];
    for at in times {
        *counts.get_mut((at / bin) as usize).unwrap() += 1.0;
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let square = counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>();
    (square / counts.len() as f64).sqrt() / mean
}

#[test]
fn real_traces_keep_their_bursts_at_another_rate() {
    for name in ["code", "conv"] {
        let Some(path) = shared_data(&format!("traces/azure_llm_2023_{name}.csv.gz")) else {
            return;
        };
        let rows = parse_rows(&files::read(&path).unwrap()).unwrap();
        let own: Vec<u64> = rows.iter().map(|row| row.arrival).collect();
        for factor in [1.7, 10.0, 100.0] {
            let mut copies = ScaledRows::new(factor, 0.5, 0);
            let copies = std::iter::from_fn(|| copies.next_of(rows.len()));
            let times: Vec<u64> = copies.map(|copy| copy.arrival(&rows)).collect();
            for bin in [1, 10, 60] {
                let (before, after) = (variation(&own, bin), variation(&times, bin));
                println!("{name} x{factor} {bin} s: {before:.3} {after:.3}");
                let off = (after / before - 1.0).abs();
                assert!(off < 0.1, "{name} x{factor} {bin} s: {before} {after}");
            }
        }
        let fast: Vec<u64> = own.iter().map(|at| at / 10).collect();
        let (before, after) = (variation(&own, 1), variation(&fast, 1));
        println!("{name}, a clock ten times as fast: {before:.3} {after:.3}");
        assert!(after < before * 0.8, "{name}: {before} {after}");
    }
}

#[test]
fn json_has_the_numbers_and_a_seed_changes_them() {
    let path = scenario("overload", ".toml");
    let read = |args: &[&str]| -> Value {
        let (done, text) = run(args);
        assert!(done, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let first = read(&[&path, "--json", "--seed", "1"]);
    let asked: u64 = first["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| tenant["asked"].as_u64().unwrap())
        .sum();
    assert_eq!(first["requests"], asked);
    let (_, text) = run(&[&path]);
    assert!(text.starts_with(&format!("{asked} requests")), "{text}");
    assert_ne!(first, read(&[&path, "--json", "--seed", "2"]));
}

#[test]
fn the_flag_s_policy_is_used_and_told() {
    let path = scenario("overload", ".toml");
    let (done, text) = run(&[&path, "--policy", "homogeneous"]);
    assert!(done && text.contains("\n\npools chosen by: homogeneous\n\n"), "{text}");
    let small = text.lines().find(|line| line.starts_with("small")).unwrap();
    assert_eq!(small.split_whitespace().nth(2), Some("0"), "{text}");
    let (done, text) = run(&[&path, "--policy", "best"]);
    assert!(!done && text.contains("allowed: tidegate, oracle, bytes/4"), "{text}");
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn documents_and_traces_are_found_beside_the_scenario() {
    let folder = folder("fleet-files");
    let document = r#"{"version": 1, "models": [{"match": "*", "pools": [
        {"name": "p", "cluster": "p", "max_model_len": 4096}]}]}"#;
    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:50.5,396,109\n\
                 2023-11-16 18:16:50.5,396,109\n";
    let scenario = "seconds = 20\nconfig = \"gate.json\"\n\
                    [pools.p]\nreplicas = 1\n\
                    [pools.p.hardware]\ngpu = \"h100_sxm\"\narchitecture = \"Llama-3.1-8B\"\n\
                    [[sources]]\ncaps = \"none\"\nlengths = { file = \"trace.csv\" }\n\
                    arrivals = { trace_speed = 0.5 }\n";
    for (name, text) in [("gate.json", document), ("trace.csv", trace), ("scenario.toml", scenario)]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let (done, text) = run(&[folder.join("scenario.toml").to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let pool = &report["pools"][0];
    // The third comes two minutes later.
    assert!(done && report["requests"] == 2, "{text}");
    assert_eq!((&pool["input_tokens"], &pool["output_tokens"]), (&770.into(), &153.into()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_wrong_scenario_names_its_field() {
    let folder = folder("fleet-wrong");
    let good = std::fs::read_to_string(scenario("overload", ".toml")).unwrap();
    for (from, to, part) in [
        ("seconds = 30", "seconds = \"x\"", "seconds: found \"x\""),
        ("seconds = 30", "seconds = ", "not TOML"),
        (
            "seconds = 30",
            "policy = \"best\"\nseconds = 30",
            "policy: found \"best\"; allowed: tide",
        ),
        ("replicas = 1", "replica = 1", ".replica: found an unknown field"),
        ("[pools.small", "[pools.tiny", "pools.tiny"),
        ("kv_cache_tokens = 12000", "kv_cache_tokens = 1", "kv_cache_tokens"),
        ("\"large\", \"max_model_len\": 8192", "\"large\"", "config: models[0].pools[1]"),
        ("named = \"azure\"", "named = \"azur\"", "sources[0].lengths.named"),
        ("named = \"azure\"", "file = \"none.csv\"", "none.csv"),
        ("per_second = 8, cv = 2", "per_second = 8, clients = 2", "sources[0].arrivals"),
        ("caps = \"none\"", "caps = \"some\"", "none, actual, ladder"),
        ("json = 1", "jsn = 1", "sources[1].texts.jsn"),
        ("replicas = 1", "replicas = 1\nevents = [{ replica = 0 }]", "events: found"),
        ("replicas = 1", "replicas = 1\nevents = [{ slow = 0, for_seconds = 1 }]", "[0].slow"),
        ("replicas = 1", "replicas = 1\nevents = [{ down_seconds = 1 }]", "[0].replica"),
        ("\"hasty\"", "\"hasty\"\nmodel = { a = 0 }", "model: found {\"a\":0}"),
        ("\"hasty\"", "\"hasty\"\nsessions = { turns = 0 }", "sessions.turns"),
        ("\"azure\" }", "\"azure\", tail = { share = 0.1, tokens = [9, 3] } }", "tail.tokens"),
        ("\"azure\" }", "\"azure\", tail = { tokens = [3, 9] } }", "tail.share"),
        ("cv = 2", "peak_to_mean = 2.5", "peak_to_mean: found 2.5"),
        ("per_second = 8, cv = 2", "rates = [[1, 2]]", "rates: found [[1,2]]; allowed: the first"),
        ("per_second = 8, cv = 2", "trace_rate = 3", "source 0: a trace's times"),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good, "{from}");
        let path = folder.join("wrong.toml");
        std::fs::write(&path, text).unwrap();
        let (done, error) = run(&[path.to_str().unwrap()]);
        assert!(!done && error.contains(part), "{to}: {error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
