//! The command as a process: exit codes, signals, pipes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// The processes that run in this one's name.
fn children(child: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task", child.id());
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    lists.flat_map(|l| l.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

fn gone(id: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{id}")).exists()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_replay_without_a_gateway_stops_early_and_says_why() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let start = Instant::now();
    // Sent at their times they would take a hundred seconds.
    let args = ["replay", "--gateway", &closed, "--synthetic", "lmsys", "--requests", "10000"];
    let output = command(&args).args(["--rate", "100"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("first 20 requests got no connection"), "{text}");
    assert!(!text.contains("Connection("), "Debug text: {text}");
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_replay_reports_what_is_done() {
    let handle = common::pools().await;
    let gateway = format!("http://{}", handle.pool("long")[0]);
    let args = ["replay", "--gateway", &gateway, "--synthetic", "lmsys", "--requests", "10000"];
    let child = command(&args).args(["--rate", "100", "--model", "m", "--json"]).spawn().unwrap();
    let client = common::client(&handle, "long");
    let some = async {
        while common::metric(&client, "vllm:request_success_total", "").await < 5.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), some).await.unwrap();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("of 10000 requests had ended"), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["answered"].as_u64().unwrap() >= 1, "{report}");
}

#[test]
fn a_wrong_calibration_names_its_flag() {
    let folder = std::env::temp_dir().join(format!("tidegate-command-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("bodies");
    let error = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let path = file.to_string_lossy();
        let args = ["calibrate", "--bodies", &path, "--tokenizer", "x", "--threshold", "9"];
        stderr(&command(&args).output().unwrap())
    };
    let tokenizer = error(r#"{"body": "{}", "prompt_tokens": {"t": 1}}"#);
    let empty = error("");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(tokenizer.contains("--tokenizer: found \"x\""), "{tokenizer}");
    assert!(empty.contains("--bodies: the file has no bodies"), "{empty}");
}

#[test]
fn a_demo_whose_reader_leaves_ends_quietly() {
    if tidegate_envoy_support::missing() {
        return;
    }
    let mut child = command(&["demo"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Tidegate in a real Envoy"), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(141), String::new()));
}

#[test]
fn a_demo_that_is_interrupted_says_so_when_all_is_down() {
    if tidegate_envoy_support::missing() {
        return;
    }
    // While Envoy starts, and while requests are under way.
    for early in [true, false] {
        let mut child = command(&["demo"]).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let started = Instant::now();
        while children(&child).len() < 2 && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let envoy = children(&child);
        assert_eq!(envoy.len(), 2, "Envoy and its watchdog");
        if !early {
            assert!(out.by_ref().lines().any(|line| line.unwrap().contains('#')), "no decision");
        }
        interrupt(&child);
        // The first line only ends the one in which the terminal shows ^C.
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = said.find(|line| line.as_ref().is_ok_and(|l| !l.is_empty())).unwrap().unwrap();
        assert_eq!(said, "Stopped. Nothing is left running.");
        assert!(envoy.iter().all(|id| gone(*id)), "said before it was so");
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

#[test]
fn a_demo_that_is_kept_ends_well_by_an_interrupt() {
    if tidegate_envoy_support::missing() {
        return;
    }
    let mut child = command(&["demo", "--keep", "--requests", "3"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().is_ok_and(|l| l.contains("Still running"))).unwrap().unwrap();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(lines.last().unwrap().unwrap(), "All stopped.");
}
