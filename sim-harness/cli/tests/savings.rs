//! `tidegate-sim savings` makes a page whose tables agree with each other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::process::Command;

fn run(args: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"))
        .arg("savings")
        .args(args.split(' '))
        .output()
        .unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The cells of the rows that begin so.
fn rows(page: &str, start: &str) -> Vec<Vec<String>> {
    let rows = page.lines().filter(|line| line.starts_with(start));
    rows.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn a_small_page_says_the_same_in_all_its_tables() {
    let (done, page) = run("--small --only sharegpt-like --threads 2");
    assert!(done, "{page}");
    let overview = rows(&page, "| [sharegpt-like]");
    let overview = overview.first().unwrap();
    let fleets = ["homogeneous", "tuned", "two pools", "three pools", "oracle"];
    let mut shown = 0;
    for (nth, name) in fleets.iter().enumerate() {
        let start = format!("| {name} |");
        let [section, check] = &rows(&page, &start)[..] else {
            panic!("{name}: one row of sizes and one of checks\n{page}")
        };
        // GPUs with their seeds; replicas are planned at the rate of the check.
        assert_eq!(overview[nth + 3], section[3], "{name}");
        assert_eq!(section[3].split(' ').next(), Some(&*check[3]), "{name}");
        // 10 s at 20 requests a second.
        assert_eq!((&*check[2], &*check[5], &*check[6]), ("20", "10", "200"), "{name}");
        // What holds is no less, and where the check holds it is the same.
        if let Ok(held) = check[4].parse::<u32>() {
            let missed = |cell: &str| cell.trim_end_matches(" %").parse::<f64>().unwrap();
            let held_at_once = missed(&check[9]).max(missed(&check[10])) <= 1.0;
            let gpus: u32 = check[3].parse().unwrap();
            assert_eq!((held == gpus, held >= gpus), (held_at_once, true), "{name}: {check:?}");
        }
        shown += 1;
    }
    assert_eq!(shown, fleets.len());
    // What was planned is a fleet, and the single pool is no dearer when tuned.
    let gpus = |nth: usize| overview[nth + 3].split(' ').next()?.parse::<u32>().ok();
    assert!(gpus(1).unwrap() <= gpus(0).unwrap(), "{page}");
}

#[test]
fn an_unknown_load_is_told_which_there_are() {
    let (done, error) = run("--only azur");
    assert!(
        !done && error.contains("--only: found \"azur\"; allowed: azure, azure-code"),
        "{error}"
    );
}
