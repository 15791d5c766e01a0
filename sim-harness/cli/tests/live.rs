//! One engine, two faces: over HTTP in real time it answers when the same
//! engine on virtual time says it would.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::time::Duration;

use tidegate_sim::workload::{AZURE_2023, CapPolicy};
use tidegate_sim_cli::replay::{Options, Source, Style, Workload, prepare, run};
use tidegate_sim_cli::serve::{Offline, parse_pools, simulate, start};
use tidegate_sim_cli::text::Library;

const POOLS: &str = r#"{"pools": [{"name": "a", "model": "m", "max_model_len": 8192,
    "ports": [0], "hardware": {"gpu": "h100_sxm", "architecture": "Llama-3.1-8B"}}]}"#;

/// (median of |live - virtual|, median of the same by virtual). Seconds, share.
fn difference(pairs: &[(Duration, u64)]) -> (f64, f64) {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let absolute = |&(live, wanted): &(Duration, u64)| (live.as_secs_f64() - seconds(wanted)).abs();
    let relative = |pair: &(Duration, u64)| absolute(pair) / seconds(pair.1);
    (median(pairs.iter().map(absolute).collect()), median(pairs.iter().map(relative).collect()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_and_virtual_replicas_answer_alike() {
    let prove = std::env::var_os("TIDEGATE_PROVE").is_some();
    let workload = Workload {
        source: Source::Drawn(AZURE_2023),
        requests: Some(if prove { 300 } else { 60 }),
        rate: Some(10.0),
        speedup: 1.0,
        caps: CapPolicy::None,
        seed: 5,
    };
    let mut requests = workload.build().unwrap();
    requests.retain(|r| r.input_tokens + r.output_tokens < 8_192);
    let style = Style { stream_share: 1.0, ..Style::new("m", 5) };

    let mut pools = parse_pools(POOLS.as_bytes()).unwrap();
    let pool = pools.remove(0);
    let library = Library::new("cl100k_base".parse().unwrap());
    let bodies: Vec<String> = (requests.iter().enumerate())
        .map(|(index, request)| prepare(&library, &style, index, *request).body)
        .collect();
    let offline: Vec<Offline<'_>> = (requests.iter().zip(&bodies))
        .map(|(request, body)| Offline {
            arrival: request.arrival,
            body,
            output_tokens: request.output_tokens,
        })
        .collect();
    let wanted = simulate(&pool, &offline).unwrap();

    let handle = start(vec![pool]).await.unwrap();
    let options = Options::new(&format!("http://{}", handle.pool("a")[0]), style);
    let run = run(&options, requests.clone(), |_| {}).await.unwrap();
    handle.stop().await;

    assert_eq!(wanted.len(), requests.len());
    let (mut first, mut end) = (Vec::new(), Vec::new());
    for (outcome, wanted) in run.outcomes.iter().zip(&wanted) {
        let answer = outcome.result.as_ref().unwrap();
        assert_eq!(answer.output_tokens, wanted.output_tokens);
        first.push((answer.first_token.unwrap(), wanted.first_token - wanted.arrival));
        end.push((answer.end, wanted.at - wanted.arrival));
    }
    for (name, pairs) in [("TTFT", first), ("end to end", end)] {
        let (absolute, relative) = difference(&pairs);
        println!(
            "{name}: {} requests, median difference {:.2} ms, {:.2} %",
            pairs.len(),
            absolute * 1e3,
            relative * 1e2
        );
        // A machine that also compiles is late; one that only measures is not.
        let (seconds, share) = if prove { (0.005, 0.03) } else { (0.02, 0.1) };
        assert!(absolute <= seconds || relative <= share, "{name}: {absolute} s, {relative}");
    }
}
