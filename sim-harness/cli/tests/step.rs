//! `tidegate-sim step` prints what it printed before: goldens beside this file,
//! rewritten with `TIDEGATE_BLESS=1`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::path::Path;
use std::process::Command;

fn run(args: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"))
        .arg("step")
        .args(args.split(' '))
        .output()
        .unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn steps_are_explained_as_before() {
    for (name, args) in [
        (
            "decode",
            "--model Llama-3.1-70B --gpu h100 --tp 4 --weights fp8 --decode 32 --context 4096",
        ),
        ("mixed", "--model Llama-3.1-8B --gpu a100 --prefill 512,256 --decode 64 --context 1000"),
        ("experts", "--model Qwen3-30B-A3B --gpu h200 --tp 2 --ep 2 --decode 16 --context 2000"),
        ("roofline", "--model Llama-3.1-8B --gpu l40s --prefill 2048 --roofline"),
        (
            "json",
            "--model DeepSeek-V3 --gpu h200 --tp 8 --ep 8 --weights fp8-block --decode 64 --json",
        ),
    ] {
        let (done, found) = run(args);
        assert!(done, "{name}: {found}");
        let file = format!("tests/goldens/step_{name}.txt");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &found).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        assert_eq!(found, golden, "{name}: rewrite with TIDEGATE_BLESS=1 if this is right");
    }
}

#[test]
fn wrong_flags_say_what_is_allowed() {
    for (args, said) in [
        ("--model none --gpu h100 --decode 1", "--model: found \"none\"; allowed: "),
        ("--model Llama-3.1-8B --gpu none --decode 1", "no data sheet of \"none\""),
        ("--model Llama-3.1-8B --gpu h100 --tp 3 --decode 1", "tp: found 3; allowed: a divisor"),
        ("--model Llama-3.1-8B --gpu h100", "found 0 tokens together; allowed: 1 to 1048576"),
    ] {
        let (done, text) = run(args);
        assert!(!done && text.contains(said), "{args}: {text}");
    }
}
