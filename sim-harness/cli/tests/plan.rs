//! `tidegate-sim plan` says what it said before: a golden beside this file,
//! rewritten with `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate::config::Config;

fn run(args: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"))
        .arg("plan")
        .args(args.split(' '))
        .output()
        .unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// A plan that a debug build makes in seconds.
const SMALL: &str = "--lengths azure --model Llama-3.1-8B --gpu a100_sxm --rate 6 --slo-ttft-p99 2 \
                     --slo-tpot-p99 0.06 --max-model-len 32768 --requests 600 --seeds 2 \
                     --thresholds 1";

#[test]
fn a_small_plan_is_as_before() {
    let (done, found) = run(SMALL);
    assert!(done, "{found}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/plan.txt");
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, golden, "rewrite with TIDEGATE_BLESS=1 if this is right");
}

#[test]
fn json_has_its_shape_and_threads_change_nothing() {
    let args = format!("{SMALL} --no-verify --json").replace("--seeds 2", "--seeds 1");
    let (done, one) = run(&format!("{args} --threads 1"));
    assert!(done, "{one}");
    let (_, two) = run(&format!("{args} --threads 2"));
    assert_eq!(one, two);
    let plan: Value = serde_json::from_str(&one).unwrap();
    let gpus = |value: &Value| value["gpus"].as_u64().unwrap();
    let pools = plan["plan"]["pools"].as_array().unwrap();
    let replicas: u64 = pools.iter().map(|pool| pool["replicas"].as_u64().unwrap()).sum();
    assert_eq!(gpus(&plan["plan"]), replicas);
    for pool in pools {
        assert!(pool["name"].is_string() && pool["max_num_seqs"].is_u64(), "{pool}");
        let flag = format!("--max-model-len {} ", pool["max_model_len"]);
        assert!(pool["command"].as_str().unwrap().contains(&flag), "{pool}");
    }
    for baseline in ["homogeneous", "tuned_homogeneous", "oracle"] {
        assert!(gpus(&plan["baselines"][baseline]) > 0, "{baseline}");
    }
    assert_eq!(plan["plan"]["threshold"].is_u64(), plan["plan"]["splits"] == true);
    assert_eq!(plan["slo"]["ttft_p99_s"], 2.0);
    assert_eq!(plan["price"]["usd_per_gpu_hour"], 2.21);
    Config::parse(plan["config"].to_string().as_bytes()).unwrap();
    assert!(plan["envoy"].as_str().unwrap().starts_with("clusters:\n- name: "));
}

#[test]
fn wrong_flags_say_what_is_allowed() {
    let model = "--model Llama-3.1-8B --gpu l40s";
    let promise = "--rate 5 --slo-ttft-p99 2 --slo-tpot-p99 0.1";
    for (args, said) in [
        (format!("{model} {promise}"), "--trace <FILE>"),
        (format!("--lengths azur {model} {promise}"), "azure, lmsys, agent"),
        (format!("--lengths azure --trace f {model} {promise}"), "cannot be used with"),
        (format!("--lengths azure --model none --gpu l40s {promise}"), "--model: found \"none\""),
        (format!("--lengths azure --model Llama-3.1-8B --gpu none {promise}"), "a100_sxm, "),
        (format!("--lengths azure {model} --tp 3 {promise}"), "--tp: found 3; allowed: a divisor"),
        (
            format!("--lengths azure {model} {promise} --pools 5"),
            "--pools: found 5; allowed: 1 to 4",
        ),
        (
            format!("--lengths azure {model} {promise} --caps x"),
            "--caps: found \"x\"; allowed: none,",
        ),
        (format!("--lengths azure {model} {promise} --seeds 0"), "--seeds: found 0; allowed: "),
        (
            format!("--lengths azure {model} {promise} --rate 0").replace("--rate 5 ", ""),
            "--rate: ",
        ),
        (
            format!("--lengths azure --model Llama-3.1-70B --gpu a100 --tp 2 {promise}"),
            "--max-model-len: found 65536; allowed: at most ",
        ),
        (format!("--trace /none {model} {promise}"), "--trace: cannot read /none"),
        (format!("--lengths azure {model} {promise} --prices /none"), "--prices: cannot read"),
    ] {
        let (done, text) = run(&args);
        assert!(!done && text.contains(said), "{args}: {text}");
    }
}
