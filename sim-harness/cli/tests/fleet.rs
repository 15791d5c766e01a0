//! `tidegate-sim run` reports what it reported before: goldens beside the
//! scenarios, rewritten with `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

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
fn overload_is_as_before() {
    golden("overload");
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
fn a_wrong_scenario_names_its_field() {
    let folder = std::env::temp_dir().join(format!("tidegate-fleet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let good = std::fs::read_to_string(scenario("overload", ".toml")).unwrap();
    for (from, to, part) in [
        ("seconds = 30", "seconds = \"x\"", "seconds: found \"x\""),
        ("seconds = 30", "seconds = ", "not TOML"),
        ("replicas = 1", "replica = 1", ".replica: found an unknown field"),
        ("[pools.small", "[pools.tiny", "pools.tiny"),
        ("kv_cache_tokens = 12000", "kv_cache_tokens = 1", "kv_cache_tokens"),
        ("\"large\", \"max_model_len\": 8192", "\"large\"", "config: models[0].pools[1]"),
        ("named = \"azure\"", "named = \"azur\"", "sources[0].lengths.named"),
        ("named = \"azure\"", "file = \"none.csv\"", "none.csv"),
        ("per_second = 8, cv = 2", "per_second = 8, clients = 2", "sources[0].arrivals"),
        ("caps = \"none\"", "caps = \"some\"", "none, actual, ladder"),
        ("json = 1", "jsn = 1", "sources[1].texts.jsn"),
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
