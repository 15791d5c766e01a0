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
        for caps in ["ladder", "none", "actual"] {
            let start = format!("| {name} | {caps} |");
            let all = rows(&page, &start);
            let (section, checks) = all.split_first().unwrap();
            let rates: Vec<&str> = checks.iter().map(|row| &*row[3]).collect();
            let expected = if caps == "ladder" { &["5", "20"][..] } else { &["20"] };
            assert_eq!(rates, expected, "{start}");
            let check = checks.last().unwrap();
            // GPUs with their seeds; replicas are planned at the rate of the check.
            if caps == "ladder" {
                assert_eq!(overview[nth + 3], section[4], "{name}");
            }
            assert_eq!(section[4].split(' ').next(), Some(&*check[4]), "{start}");
            // 10 s at the least, and seconds of so many requests.
            for check in checks {
                let [rate, seconds, requests] =
                    [3, 6, 7].map(|nth| check[nth].parse::<f64>().unwrap());
                assert!(seconds >= 10.0 && (rate * seconds - requests).abs() <= rate, "{check:?}");
            }
            // What holds is no less, and where the check holds it is the same.
            for check in checks {
                let Ok(held) = check[5].parse::<u32>() else { continue };
                let missed = |cell: &str| cell.trim_end_matches(" %").parse::<f64>().unwrap();
                let held_at_once = missed(&check[10]).max(missed(&check[11])) <= 1.0;
                let gpus: u32 = check[4].parse().unwrap();
                assert_eq!((held == gpus, held >= gpus), (held_at_once, true), "{check:?}");
            }
            shown += 1;
        }
    }
    assert_eq!(shown, 3 * fleets.len());
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
