//! Against real traces and real token counts, where they are at hand: beside
//! the project in `../shared/data`. Without them these tests say so and pass,
//! unless `TIDEGATE_REQUIRE` lists `data`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use serde_json::Value;
use tidegate_sim::workload::{AZURE_2023, LMSYS_CHAT_1M, Trace, parse_trace};
use tidegate_sim_cli::files;
use tidegate_sim_cli::tokenizer::{NAMES, Tokenizer};

fn data(name: &str) -> Option<Vec<u8>> {
    files::shared_data(name).map(|path| files::read(&path).unwrap())
}

#[test]
fn published_traces_are_read_whole() {
    // Rows and means as their publishers state them.
    for (name, rows, input, output, seconds) in [
        ("traces/azure_llm_2023_conv.csv.gz", 19_366, 1_154.7, 211.1, 3_501.7),
        ("traces/azure_llm_2023_code.csv.gz", 8_819, 2_047.8, 27.9, 3_435.9),
        ("traces/mooncake_conversation.jsonl.gz", 12_031, 12_035.1, 342.6, 3_537.0),
    ] {
        let Some(bytes) = data(name) else { return };
        let Trace::Timed(requests) = parse_trace(&bytes).unwrap() else { panic!("{name}") };
        assert_eq!(requests.len(), rows, "{name}");
        let mean = |pick: fn(&tidegate_sim::workload::Request) -> u32| {
            requests.iter().map(|r| f64::from(pick(r))).sum::<f64>() / rows as f64
        };
        assert!((mean(|r| r.input_tokens) - input).abs() < 0.1, "{name}");
        assert!((mean(|r| r.output_tokens) - output).abs() < 0.1, "{name}");
        let span = requests.last().unwrap().arrival as f64 / 1e9;
        assert!((span - seconds).abs() < 4.0, "{name}: {span}");
        assert!(requests.is_sorted_by_key(|r| r.arrival));
    }
}

#[test]
fn the_tables_are_the_published_distributions() {
    for (name, lengths) in [("azure", AZURE_2023), ("lmsys", LMSYS_CHAT_1M)] {
        let Some(bytes) = data(&format!("cdf/{name}_cdf.json")) else { return };
        let Trace::Totals(published) = parse_trace(&bytes).unwrap() else { panic!("{name}") };
        for tokens in [64, 100, 512, 1_024, 2_048, 3_000, 4_096, 8_192, 65_536] {
            let (ours, theirs) = (lengths.total.fraction(tokens), published.fraction(tokens));
            assert!((ours - theirs).abs() < 1e-5, "{name} at {tokens}: {ours} {theirs}");
        }
    }
}

#[test]
fn the_template_is_counted_as_the_published_counts_have_it() {
    let Some(bytes) = data("tokens/chat_bodies.jsonl.gz") else { return };
    let mut checked = 0;
    for line in String::from_utf8(bytes).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let body: Value = match &row["body"] {
            Value::String(text) => serde_json::from_str(text).unwrap(),
            body => body.clone(),
        };
        let messages = body["messages"].as_array().unwrap();
        let plain: Option<Vec<(&str, &str)>> =
            messages.iter().map(|m| Some((m["role"].as_str()?, m["content"].as_str()?))).collect();
        let Some(pairs) = plain else { continue };
        for name in NAMES {
            let tokenizer: Tokenizer = name.parse().unwrap();
            let counted = u64::from(tokenizer.count_chat(pairs.iter().copied()));
            let published = row["prompt_tokens"][name].as_u64().unwrap();
            assert_eq!(counted, published, "{name}: {pairs:?}");
        }
        checked += 1;
    }
    assert!(checked > 500, "{checked}");
}
