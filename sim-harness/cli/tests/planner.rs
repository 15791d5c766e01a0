//! The planner of the browser: what `make planner` built gives the command's
//! own bytes, and its page can be clicked through.
//!
//! Needs Node, and for the page Chromium; skips with a word where one is
//! missing, unless `TIDEGATE_REQUIRE` lists `node` or `chromium`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn on_the_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Says that a test is skipped, or fails where it may not be.
fn skip<T>(part: &str, why: &str) -> Option<T> {
    let required = std::env::var("TIDEGATE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|listed| listed.trim() == part), "no {part}: {why}");
    println!("skipped: {why}");
    None
}

/// Node with a script of the planner's tests and the folder that was built.
fn script(name: &str, part: &str) -> Option<Command> {
    let folder = root().join("target/planner");
    if !folder.join("planner_bg.wasm").is_file() {
        return skip(part, "no planner: `make planner` builds it");
    }
    let Some(node) = on_the_path("node") else { return skip(part, "no node on the PATH") };
    let mut command = Command::new(node);
    command.arg("--no-warnings").arg("--experimental-websocket");
    command.arg(root().join("sim-harness/planner/tests").join(name));
    command.arg(folder.canonicalize().unwrap());
    Some(command)
}

/// What Node answers to a call.
fn call(name: &str, document: &Value) -> Option<Output> {
    let mut node = script("call.mjs", "node")?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let asked = json!({"call": name, "document": document}).to_string();
    node.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
    Some(node.wait_with_output().unwrap())
}

fn command(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate-sim")).args(args.split(' ')).output().unwrap()
}

/// A plan that a debug build makes in seconds, as flags and as a document.
const FLAGS: &str = "--model Llama-3.1-8B --gpu a100_sxm --rate 4 --slo-ttft-p99 2 \
                     --slo-tpot-p99 0.06 --max-model-len 32768 --requests 600 --seeds 1 \
                     --thresholds 1";

fn document() -> Value {
    json!({"model": "Llama-3.1-8B", "gpu": "a100_sxm", "rate": 4, "slo_ttft_p99": 2,
           "slo_tpot_p99": 0.06, "max_model_len": 32_768, "requests": 600, "seeds": 1,
           "thresholds": 1})
}

#[test]
fn wasm_gives_the_commands_bytes() {
    // One pool, with the checks that the command makes by itself.
    let mut checked = document();
    (checked["lengths"], checked["pools"]) = ("lmsys".into(), 1.into());
    // And splits of a trace of lengths far apart, without.
    let lines = (0..60).map(|nth| {
        let input = if nth % 7 == 0 { 9_000 + nth } else { 100 + 7 * nth };
        format!("2023-11-16 18:00:{nth:02},{input},{}", 20 + nth)
    });
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens".to_owned();
    let trace = std::iter::once(header).chain(lines).collect::<Vec<_>>().join("\n");
    let path = std::env::temp_dir().join(format!("tidegate-planner-{}.csv", std::process::id()));
    std::fs::write(&path, &trace).unwrap();
    let mut own = document();
    for (field, value) in [
        ("trace", json!(trace)),
        ("verify", json!(false)),
        ("caps", json!("actual")),
        ("cv", json!(2.0)),
        ("seed", json!(7)),
        ("kv", json!("fp8")),
    ] {
        own[field] = value;
    }
    let flags = format!("--trace {} --no-verify --caps actual --cv 2", path.display());
    let flags = format!("{flags} --seed 7 --kv fp8");
    for (document, flags) in [(checked, "--lengths lmsys --pools 1"), (own, flags.as_str())] {
        let Some(wasm) = call("plan", &document) else { break };
        let native = command(&format!("plan --json {flags} {FLAGS}"));
        assert!(wasm.status.success(), "{}", String::from_utf8_lossy(&wasm.stderr));
        assert!(native.status.success(), "{}", String::from_utf8_lossy(&native.stderr));
        let text = |output: Output| String::from_utf8(output.stdout).unwrap();
        assert_eq!(text(wasm) + "\n", text(native), "{flags}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn wasm_simulates_as_the_command_does() {
    let path = root().join("sim-harness/scenarios/two-pools.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut scenario: Value = toml::from_str(&text).unwrap();
    let Some(wasm) = call("simulate", &scenario) else { return };
    assert!(wasm.status.success(), "{}", String::from_utf8_lossy(&wasm.stderr));
    let native = command(&format!("run --json {}", path.display()));
    assert_eq!([wasm.stdout, b"\n".to_vec()].concat(), native.stdout);
    // A document inside the document, and a trace's text where there are no files.
    let config: Value = serde_json::from_str(scenario["config"].as_str().unwrap()).unwrap();
    scenario["config"] = config;
    scenario["sources"][1]["lengths"] = json!({"trace": "[[64, 0.5], [128, 0.4]]"});
    let wrong = call("simulate", &scenario).unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(said.starts_with(": sources[1].lengths.trace: point 1"), "{said}");
    scenario["sources"][1]["lengths"] = json!({"file": "trace.csv"});
    let wrong = call("simulate", &scenario).unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(said.contains("trace.csv: found a file; allowed here: its content"), "{said}");
}

#[test]
fn wasm_refuses_as_the_command_does() {
    let flags = "--lengths azure --rate 4 --slo-ttft-p99 2 --slo-tpot-p99 0.06";
    for (field, model, gpu, tp) in [
        ("gpu", "Llama-3.1-8B", "none", 1),
        ("tp", "Llama-3.1-8B", "l40s", 3),
        ("max_model_len", "Llama-3.1-70B", "l40s", 1),
    ] {
        let mut asked = document();
        (asked["lengths"], asked["max_model_len"]) = ("azure".into(), Value::Null);
        (asked["model"], asked["gpu"], asked["tp"]) = (model.into(), gpu.into(), tp.into());
        let Some(wasm) = call("plan", &asked) else { return };
        let native = command(&format!("plan {flags} --model {model} --gpu {gpu} --tp {tp}"));
        assert!(!wasm.status.success() && !native.status.success());
        let text = |output: Output| String::from_utf8(output.stderr).unwrap();
        let (wasm, native) = (text(wasm), text(native));
        let why = wasm.strip_prefix(&format!("{field}: ")).unwrap_or_else(|| panic!("{wasm}"));
        let flag = format!("--{}: {why}", field.replace('_', "-"));
        assert!(why.starts_with("found ") && native.contains(&flag), "{wasm}{native}");
    }
}

#[test]
fn the_page_can_be_clicked_through() {
    let Some(mut node) = script("page.mjs", "chromium") else { return };
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let Some(chromium) = names.iter().find_map(|name| on_the_path(name)) else {
        return skip("chromium", "no chromium on the PATH").unwrap_or(());
    };
    let output = node.arg(chromium).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
