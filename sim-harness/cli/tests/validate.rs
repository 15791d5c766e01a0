//! `tidegate-sim validate` on measured runs, where they are at hand, and on
//! folders that hold what it cannot replay.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::path::Path;

use serde_json::Value;
use tidegate_sim_cli::files;
use tidegate_sim_cli::validate::{read_measured, read_profiles, run};

fn validate(measured: &Path, profiles: &Path, only: Option<&str>) -> Value {
    let measured = read_measured(measured).unwrap();
    let profiles = read_profiles(profiles, &measured).unwrap();
    run(&measured, &profiles, only).json()
}

#[test]
fn the_rtx_4090_run_is_met() {
    let Some(measured) = files::shared_data("measured") else { return };
    let Some(profiles) = files::shared_data("profiles") else { return };
    let report = validate(&measured, &profiles, Some("RTX4090"));
    let run = &report["runs"][0];
    let number = |value: &Value| value.as_f64().unwrap();
    for (name, most) in [("tpot", 0.04), ("e2e", 0.04), ("ttft", 0.1), ("throughput", 0.03)] {
        let found = number(&run[name]["median_ape"]);
        assert!(found <= most, "{name}: {found}");
        assert_eq!(run[name]["n"], if name == "throughput" { 1 } else { 300 });
        // The data sheet alone is far off.
        let roofline = number(&run["baselines"]["roofline"][name]["median_ape"]);
        assert!(roofline > 1.5 * most, "{name}: {roofline}");
    }
    let schedule = &run["schedule"];
    for name in ["running_difference", "waiting_difference", "kv_difference"] {
        let found = number(&schedule[name]);
        assert!(found <= 0.05, "{name}: {found}");
    }
    assert!(number(&schedule["equal_order"]) >= 0.98, "{schedule}");
    assert_eq!(run["kv"][0]["num_gpu_blocks"], 2_588);
    assert_eq!(run["kernels"], "layer profile");
    assert!(run["baselines"]["fleet_sim"]["not_applicable"].as_str().unwrap().contains("RTX4090"));
}

#[test]
fn what_cannot_be_replayed_is_listed_with_its_reason() {
    let folder = std::env::temp_dir().join(format!("tidegate-validate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let requests = "run,idx,input_tokens,output_tokens,arrival_s,queued_s,scheduled_s,first_token_s,last_token_s
lonely,0,10,10,0,0,0,0.1,0.2
h100,0,100,10,0,0,0,0.03,0.12
h100,1,100,10,0.5,0.5,0.5,0.53,0.62
strange,0,100,10,0,0,0,0.1,0.2
";
    let meta = r#"[
        {"run": "h100", "hardware": "H100", "model": "meta-llama/Llama-3.1-8B", "vllm": "0.19.0"},
        {"run": "strange", "hardware": "H100", "model": "a/none"},
        {"run": "absent", "hardware": "H100", "model": "Llama-3.1-8B"}
    ]"#;
    let head = "backend,model_path,system,isl,osl,concurrency,tp_size,precision,silicon_ttft_ms,silicon_tpot_ms";
    let points = "sglang,a/Llama-3.1-8B,h100_sxm,100,10,4,1,fp8,10,5
vllm,a/Llama-3.1-8B,h100_sxm,100,10,4,1,nvfp4,10,5
vllm,a/Llama-3.1-8B,h100_sxm,100,10,2,1,fp8,30,6
";
    for (name, text) in [
        ("any_requests.csv", requests),
        ("any_meta.json", meta),
        ("points.csv", &format!("{head}\n{points}")),
        ("broken_series.csv", "run,t,running,waiting,kv_cache_pct\nh100,soon,1,0,0\n"),
        ("notes.txt", "hello"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::write(folder.join("bytes"), [0xff, 0xfe, 0x00]).unwrap();
    let report = validate(&folder, &folder, None);
    std::fs::remove_dir_all(&folder).unwrap();
    let names: Vec<&str> = report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["h100", "vllm Llama-3.1-8B h100_sxm fp8"]);
    // Without timings of that folder the shipped fits serve.
    assert_eq!(report["runs"][0]["kernels"], "fit of h100_sxm");
    assert_eq!(report["runs"][0]["kv"][0]["computed"], true);
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_string();
    let not: Vec<String> = report["not_replayed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| text(item, "name") + ": " + &text(item, "reason"))
        .collect();
    for said in [
        "lonely: nothing tells its GPU and model",
        "absent: no requests of it were recorded",
        "strange: model: found \"a/none\"; allowed: ",
        "the engine is sglang",
        "precision \"nvfp4\"; allowed: bf16, fp8",
        "broken_series.csv: broken_series.csv: line 2, column t: found \"soon\"",
        "notes.txt: not in one of the known formats",
        "bytes: cannot read",
    ] {
        assert!(not.iter().any(|line| line.contains(said)), "{said} in {not:#?}");
    }
    for name in ["ttft", "tpot", "e2e", "throughput"] {
        assert_eq!(report["overall"][name]["runs"], 2);
        assert!(report["baselines"]["roofline"][name]["median_ape"].is_number());
    }
}
