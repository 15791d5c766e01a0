//! The same trace through the native core and through the shipped filter: the
//! decisions are equal to the byte.

mod support;

use std::sync::Arc;
use support::{Worker, config_with, size};
use tidegate::config::Config;
use tidegate::gate::{Answer, Body, Decision, Gate, Settlement};
use tidegate::request::{Api, Scanner};
use tidegate::time::Instant;
use tidegate::usage::Usage;
use tidegate_sim::workload::CapPolicy;
use tidegate_sim_cli::replay::{Source, Style, Synthetic, Workload, prepare};
use tidegate_sim_cli::text::Library;
use tidegate_wasm_tests::{Chunks, Outcome, Request};

/// What is compared, as one line.
fn native(decision: &Decision, settlement: &Settlement) -> String {
    let budget = decision.budget.unwrap();
    format!(
        "{} {} estimate={} fit={} reserve={} input={:?} output={:?} error={:?}",
        decision.pool.name,
        decision.reason.word(),
        budget.input,
        budget.fit,
        budget.reserve,
        settlement.usage.input,
        settlement.usage.output,
        settlement.error_permille,
    )
}

fn shipped(outcome: &Outcome, error: Option<u64>) -> String {
    let state = |name: &str| outcome.state(name).unwrap();
    let number = |name: &str| outcome.state(name).map(|text| text.parse::<u64>().unwrap());
    format!(
        "{} {} estimate={} fit={} reserve={} input={:?} output={:?} error={error:?}",
        state("tidegate_pool"),
        state("tidegate_reason"),
        state("tidegate_estimate"),
        state("tidegate_fit"),
        state("tidegate_reserve"),
        number("tidegate_actual_input"),
        number("tidegate_actual_output"),
    )
}

#[test]
fn native_and_shipped_decide_alike() {
    let workload = Workload {
        source: Source::Synthetic(Synthetic::Agent),
        requests: Some(size(300, 3000)),
        rate: Some(10.0),
        speedup: 1.0,
        caps: CapPolicy::Ladder,
        seed: 7,
    };
    let library = Library::new("o200k_base".parse().unwrap());
    let style = Style::new("m", 7);
    // Some bodies are long, and all are to be read whole.
    let config = config_with(r#""inspect_bytes_max": 16777216, "buffer_bytes": 16777216"#);
    let worker = Worker::new(&config);
    worker.host.set_buffer_limit(16 << 20);
    let settings = Arc::clone(Config::parse(config.as_bytes()).unwrap().base());
    let mut gate = Gate::new();
    let requests = workload.build().unwrap();
    println!("{} requests", requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        let (input, output) = (u64::from(request.input_tokens), u64::from(request.output_tokens));
        let body = prepare(&library, &style, index, request).body;

        let mut scanner = Scanner::new(Api::Chat);
        scanner.feed(body.as_bytes());
        let (ticket, decision) = gate.open(&settings, Body::Whole(scanner.finish().unwrap()));
        let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
        let answer = Answer {
            status: Some(200),
            usage: Some(Ok(usage)),
            complete: true,
            ..Answer::default()
        };
        let now = Instant::from_nanos(worker.host.monotonic());
        let settlement = gate.close(now, ticket, &answer);

        let request = Request::json("/v1/chat/completions", body.into_bytes())
            .chunks(Chunks::Every(1 + index * 37 % 20_000));
        let outcome = worker.run(request, &support::used(input, output));
        let errors = worker.host.histogram("tidegate.estimate_error").unwrap();
        assert_eq!(
            shipped(&outcome, errors.last().copied()),
            native(&decision, &settlement),
            "request {index}"
        );
        worker.host.advance(std::time::Duration::from_millis(100));
    }
}
