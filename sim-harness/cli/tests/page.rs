//! The pages of `run --out` and `plan --out`: sound, whole, with the numbers of
//! their JSON, and not wider than a phone. The last needs a Chromium on the PATH;
//! without one it skips, unless `TIDEGATE_REQUIRE` lists `chromium`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// A run of two pools whose names want to be markup, short enough for each test.
const SCENARIO: &str = r#"
seconds = 20
config = '''
{"version": 1, "models": [{"match": "*", "pools": [
  {"name": "short", "cluster": "short", "max_model_len": 4096},
  {"name": "a-pool-whose-name-is-longer-than-a-phone-is-wide", "cluster": "long", "max_model_len": 65536}]}]}
'''
[pools.short]
replicas = 2
[pools.a-pool-whose-name-is-longer-than-a-phone-is-wide]
replicas = 1
[[sources]]
tenant = "<script>\"x\" & 'y'</script>"
lengths = { named = "azure" }
arrivals = { per_second = 10 }
texts = { english = 6, german = 2, json = 1 }
timeout_seconds = 5
"#;

/// A plan that a debug build makes in seconds: answers are short.
const PLAN: &str = "--model Llama-3.1-8B --gpu a100_sxm --rate 20 --slo-ttft-p99 2 --slo-tpot-p99 0.06 \
                    --max-model-len 32768 --requests 500 --seeds 1 --thresholds 1 --no-verify";

/// One request in eight is long.
fn trace() -> String {
    let heads = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    let row = |nth: u32| {
        let (input, output) =
            if nth.is_multiple_of(8) { (5_000 + nth * 50, 20) } else { (300 + nth * 9, 5) };
        format!("2023-11-16 18:15:{nth:02}.5,{input},{}\n", output + nth % 5)
    };
    heads + &(0..60).map(row).collect::<String>()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn command(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the scenario; what it printed and where its files are.
fn run(name: &str, more: &[&str]) -> (String, PathBuf) {
    let folder = folder(name);
    let scenario = folder.join("scenario.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let out = folder.join("out");
    let args = ["run", scenario.to_str().unwrap(), "--out", out.to_str().unwrap()];
    (command(&[&args, more].concat()), out)
}

/// Makes the plan, once for all tests: the page's path.
fn plan() -> &'static Path {
    static PAGE: OnceLock<PathBuf> = OnceLock::new();
    PAGE.get_or_init(|| {
        let out = folder("plan");
        let file = out.join("trace.csv");
        std::fs::write(&file, trace()).unwrap();
        let args: Vec<&str> = PLAN.split_whitespace().collect();
        let files = ["--trace", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
        command(&[&["plan"], &args[..], &files].concat());
        out
    })
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Every element ends, in the right order, and nothing comes from elsewhere.
fn sound(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = html.strip_prefix("<!DOCTYPE html>").unwrap();
    for (nth, piece) in body.split('<').enumerate().skip(1) {
        let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("piece {nth}: {piece}"));
        assert!(!text.contains('>') || open.last() == Some(&"style"), "{piece}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{nth}: {piece}");
        } else {
            let name = tag.trim_end_matches('/').split(' ').next().unwrap();
            if name != "meta" && !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for word in ["<script", "http:", "https:", "url(", "@import", " src=", " href=", "<link", "NaN"]
    {
        assert!(!html.contains(word), "{word}");
    }
}

/// The cells of a table, row by row, the heads first.
fn cells(html: &str, id: &str) -> Vec<Vec<String>> {
    let table = html.split(&format!("<table id=\"table-{id}\"")).nth(1).unwrap();
    let table = table.split("</table>").next().unwrap();
    let row = |row: &str| {
        let cell =
            |cell: &str| cell.split_once('>').unwrap().1.split('<').next().unwrap().to_owned();
        let row = row.replace("<td", "<th");
        row.split("<th").skip(1).filter(|cell| !cell.starts_with("ead")).map(cell).collect()
    };
    table.split("<tr>").skip(1).map(row).collect()
}

/// Each plot of the JSON stands in the page, and in the CSV with as many points.
fn plots(folder: &Path, ids: &[&str]) -> Value {
    let json: Value = serde_json::from_str(&read(folder, "report.json")).unwrap();
    let (html, csv) = (read(folder, "report.html"), read(folder, "plots.csv"));
    let all = json["plots"].as_array().unwrap();
    let found: Vec<&str> = all.iter().map(|plot| plot["id"].as_str().unwrap()).collect();
    assert_eq!(found, ids);
    for plot in all {
        let id = plot["id"].as_str().unwrap();
        let figure = html.split(&format!("<figure id=\"plot-{id}\">")).nth(1).unwrap();
        let figure = figure.split("</figure>").next().unwrap();
        assert!(figure.contains("<path") && !figure.contains("no data"), "{id}");
        // An axis without a name has names for its places.
        for axis in ["x", "y"] {
            let label = plot[axis].as_str().unwrap();
            assert!(!label.is_empty() || plot["places"].is_array(), "{id}: {axis}");
            let drawn = figure.contains(&format!(">{label}</text>"));
            assert!(drawn || label.is_empty(), "{id}: {label}");
        }
        let series = plot["series"].as_array().unwrap();
        let points: usize =
            series.iter().map(|series| series["points"].as_array().unwrap().len()).sum();
        let lines = csv.lines().filter(|line| line.starts_with(&format!("{id},"))).count();
        assert!(points > 0 && points == lines, "{id}: {points} {lines}");
    }
    json
}

#[test]
fn a_runs_page_has_its_numbers() {
    let (printed, out) = run("run", &["--trace-replica", "short/1", "--trace-seconds", "5"]);
    let html = read(&out, "report.html");
    sound(&html);
    let ids = [
        "lengths",
        "ttft",
        "tpot",
        "e2e",
        "ttft-time",
        "queue",
        "kv",
        "load",
        "misroutes",
        "misroutes-time",
        "ratio",
        "error-time",
    ];
    let json = plots(&out, &ids);
    assert_eq!(
        json["report"]["requests"],
        printed.split(' ').next().unwrap().parse::<u64>().unwrap()
    );
    let table = cells(&html, "pools");
    assert_eq!(table.len(), 3);
    for (row, pool) in table[1..].iter().zip(json["report"]["pools"].as_array().unwrap()) {
        let columns = ["name", "replicas", "sent", "served", "refused", "taken_over", "left"];
        for (column, cell) in columns.iter().zip(row) {
            assert_eq!(*cell, pool[*column].to_string().trim_matches('"'), "{column}");
        }
        assert!(printed.contains(&row[0]));
    }
    // What the printed table says stands in the page and in the CSV.
    assert!(read(&out, "tenants.csv").contains("\"<script>\"\"x\"\" & 'y'</script>\","));
    let times = cells(&html, "pools-times");
    assert_eq!(times[0][2], "TTFT p99");
    let csv = read(&out, "pools-times.csv");
    assert_eq!(csv.lines().nth(1).unwrap(), times[1].join(","));
    let trace: Value = serde_json::from_str(&read(&out, "trace.json")).unwrap();
    assert_eq!(trace["otherData"]["replica"], "short/1");
    let late = |event: &Value| event["ph"] == "X" && event["ts"].as_f64().unwrap() >= 5e6;
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.len() > 100 && !events.iter().any(late));

    let (again, other) = run("again", &["--trace-replica", "short/1", "--trace-seconds", "5"]);
    assert_eq!(printed, again);
    for file in std::fs::read_dir(&out).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert_eq!(read(&out, &name), read(&other, &name), "{name}");
    }
    for folder in [out, other] {
        std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }
}

#[test]
fn a_plans_page_has_its_numbers() {
    let out = plan();
    let html = read(out, "report.html");
    sound(&html);
    let json = plots(out, &["gpus", "savings", "lengths", "thresholds", "load-ttft", "load-tpot"]);
    let report = &json["report"];
    let fleets = cells(&html, "fleets");
    for (name, value) in [
        ("homogeneous", &report["baselines"]["homogeneous"]),
        ("tuned", &report["baselines"]["tuned_homogeneous"]),
        ("two pools", &report["splits"][0]),
        ("oracle", &report["baselines"]["oracle"]),
    ] {
        let row = fleets.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(row[5], value["gpus"].to_string(), "{name}");
        let bar = &json["plots"][0];
        let places = bar["places"].as_array().unwrap();
        let place = places.iter().position(|place| place == name).unwrap();
        assert_eq!(bar["series"][0]["points"][place][1].as_f64(), value["gpus"].as_f64(), "{name}");
    }
    let saved = report["savings"]["homogeneous"].as_f64().unwrap();
    let answer = if report["plan"]["splits"] == true { "two pools" } else { "tuned" };
    let savings = json["plots"][1]["series"].as_array().unwrap();
    let savings = savings.iter().find(|series| series["name"] == answer).unwrap();
    assert!((savings["points"][0][1].as_f64().unwrap() / 100.0 - saved).abs() < 1e-9);
    // More load on the same replicas makes them slower.
    let points = report["load"][0]["points"].as_array().unwrap();
    let pace = |nth: usize| points[nth]["tpot_p99_s"].as_f64().unwrap_or(f64::INFINITY);
    assert!(points.len() == 8 && pace(7) > pace(0), "{points:?}");
    assert!(html.contains("max-model-len") && html.contains("static_resources"));
}

#[test]
fn wrong_flags_say_what_is_allowed() {
    let folder = folder("wrong");
    let scenario = folder.join("scenario.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let (scenario, out) = (scenario.to_str().unwrap(), folder.join("out"));
    let out = ["--out", out.to_str().unwrap()];
    for (args, said) in [
        (&["--trace-replica", "short/0"][..], "--out <DIR>"),
        (&[out[0], out[1], "--trace-replica", "short"], "a pool's name, / and a replica's number"),
        (&[out[0], out[1], "--trace-replica", "short/2"], "no replica is short/2; there are"),
        (&[out[0], out[1], "--trace-seconds", "0"], "1.."),
        (&["--out", scenario], "cannot write"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"));
        let output = command.args(["run", scenario]).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{args:?}: {text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The first Chromium on the PATH; nothing with a word about it.
fn chromium() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let there = |name: &&str| {
        let output = Command::new(name).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = names.into_iter().find(there);
    if found.is_none() {
        let required = std::env::var("TIDEGATE_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|part| part.trim() == "chromium");
        assert!(!required, "TIDEGATE_REQUIRE lists chromium, but none is on the PATH");
        eprintln!("skipped: no chromium on the PATH");
    }
    found
}

/// Asks a page for the widths of its parts. Whoever reads the page needs no script,
/// this test does. It runs in a frame: windows are not as narrow as a phone.
const PROBE: &str = "<script>
const outside = '.scroll, pre, svg';
const wide = [...document.querySelectorAll('body *')].filter(element =>
  !element.closest(outside) && element.getBoundingClientRect().right > innerWidth + 0.5);
const texts = [...document.querySelectorAll('svg.plot text')].map(element => {
  const [text, svg] = [element, element.closest('svg')].map(one => one.getBoundingClientRect());
  const cut = text.left < svg.left - 1 || text.right > svg.right + 1;
  return {words: element.textContent, height: text.height, cut};
});
parent.document.documentElement.setAttribute('data-found', encodeURIComponent(JSON.stringify({
  page: document.documentElement.scrollWidth,
  window: innerWidth,
  plots: document.querySelectorAll('svg.plot').length,
  wide: wide.map(element => element.outerHTML.slice(0, 80)),
  lowest: Math.min(...texts.map(text => text.height)),
  cut: texts.filter(text => text.cut).map(text => text.words),
})));
</script>";

/// What the probe found, in a frame of so many pixels.
fn probe(chromium: &str, folder: &Path, width: u32) -> Value {
    let html = read(folder, "report.html").replace("</body>", &format!("{PROBE}</body>"));
    let html = html.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!(
        "<!DOCTYPE html><meta charset=utf-8><iframe style='border:0' width={width} height=1000 \
         srcdoc=\"{html}\"></iframe>"
    );
    let (page, profile) = (folder.join("frame.html"), folder.join("profile"));
    std::fs::write(&page, frame).unwrap();
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--window-size=1600,1200", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    std::fs::remove_dir_all(profile).unwrap();
    std::fs::remove_file(page).unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let found = dom.split("data-found=\"").nth(1).unwrap_or_else(|| panic!("{dom}"));
    let found = found.split('"').next().unwrap();
    let mut bytes = Vec::new();
    let mut parts = found.split('%');
    bytes.extend(parts.next().unwrap().bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn pages_fit_a_phone_and_a_screen() {
    let Some(chromium) = chromium() else { return };
    let (_, out) = run("browser", &[]);
    for (folder, count) in [(out.as_path(), 12), (plan(), 6)] {
        for width in [400, 1400] {
            let found = probe(chromium, folder, width);
            let number = |key: &str| found[key].as_f64().unwrap();
            assert_eq!(number("window"), f64::from(width), "{found}");
            assert!(number("page") <= number("window"), "{found}");
            assert_eq!(found["wide"], serde_json::json!([]));
            assert_eq!(found["cut"], serde_json::json!([]));
            assert_eq!(found["plots"], count);
            // A line of text of 10 pixels is a little higher than that.
            assert!(number("lowest") > 10.0, "{found}");
        }
    }
    std::fs::remove_dir_all(out.parent().unwrap()).unwrap();
}
