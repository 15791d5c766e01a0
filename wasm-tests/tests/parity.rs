//! The same trace through the native core and through the shipped filter: the
//! decisions are equal to the byte.

mod support;

use serde_json::{Value, json};
use std::sync::Arc;
use support::{Worker, config_with, size};
use tidegate::config::{Config, Inspect, Settings};
use tidegate::gate::{Answer, Body, Decision, Gate, Settlement, surely_largest};
use tidegate::request::{Api, Scanner};
use tidegate::share::NoSlots;
use tidegate::time::Instant;
use tidegate::usage::Usage;
use tidegate_sim::workload::{AGENT_HEAVY, CapPolicy};
use tidegate_sim_cli::replay::{Source, Style, Workload, prepare};
use tidegate_sim_cli::text::Library;
use tidegate_wasm_tests::{Chunks, Outcome, Request, Response};

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

/// How the driver of the native core reads a body, as the filter does: in
/// pieces, and no further than needed.
fn read(api: Api, body: &[u8], piece: usize, settings: &Settings) -> Body {
    if settings.inspect == Inspect::Headers {
        return Body::Length(api, Some(body.len() as u64));
    }
    let mut scanner = Scanner::new(api, b"");
    let limit = body.len().min(settings.inspect_bytes_max as usize);
    let (mut at, mut early) = (0, false);
    while at < limit && !early {
        let end = limit.min(at + piece);
        scanner.feed(&body[at..end]);
        at = end;
        early = at < body.len() && surely_largest(settings, &scanner);
    }
    if at == body.len() {
        return Body::Whole(scanner.finish().unwrap());
    }
    let unread = (body.len() - at) as u64;
    Body::Cut { facts: scanner.cut(unread).unwrap(), unread: Some(unread), early }
}

/// The body as it is, or its text as the prompts of a text completion.
fn dress(index: usize, body: String) -> (Api, &'static str, Vec<u8>) {
    if index % 4 != 3 {
        return (Api::Chat, "/v1/chat/completions", body.into_bytes());
    }
    let chat: Value = serde_json::from_str(&body).unwrap();
    let prompts: Vec<&Value> =
        chat["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    let body = json!({"model": "m", "prompt": prompts, "max_tokens": chat["max_tokens"], "n": 2});
    (Api::Completions, "/v1/completions", body.to_string().into_bytes())
}

fn answer(index: usize, input: u64, output: u64) -> Response<'static> {
    if index.is_multiple_of(2) {
        return support::used(input, output);
    }
    let usage = json!({"prompt_tokens": input, "completion_tokens": output});
    let last = json!({"choices": [], "usage": usage});
    let stream = format!("data: {{\"choices\":[]}}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    Response::events(stream.into_bytes()).chunks(Chunks::Every(1 + index % 50))
}

fn decide_alike(fields: &str) {
    let workload = Workload {
        source: Source::Drawn(AGENT_HEAVY),
        requests: Some(size(200, 2000)),
        rate: Some(10.0),
        speedup: 1.0,
        caps: CapPolicy::Ladder,
        seed: 7,
    };
    let library = Library::new("o200k_base".parse().unwrap());
    let style = Style::new("m", 7);
    let config = config_with(fields);
    let worker = Worker::new(&config);
    worker.host.set_buffer_limit(16 << 20);
    let settings = Arc::clone(Config::parse(config.as_bytes()).unwrap().base());
    let mut gate = Gate::new("tidegate", 1);
    let requests = workload.build().unwrap();
    println!("{fields}: {} requests", requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        let (input, output) = (u64::from(request.input_tokens), u64::from(request.output_tokens));
        let (api, path, body) = dress(index, prepare(&library, &style, index, request).body);
        let piece = 1 + index * 37 % 20_000;
        let (ticket, decision) = gate.open(&settings, read(api, &body, piece, &settings));
        let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
        let ended = Answer {
            status: Some(200),
            usage: Some(Ok(usage)),
            complete: true,
            ..Answer::default()
        };
        let now = Instant::from_nanos(worker.host.monotonic());
        let settlement = gate.close(now, &mut NoSlots, ticket, &ended);

        let request = Request::json(path, body).chunks(Chunks::Every(piece));
        let outcome = worker.run(request, &answer(index, input, output));
        let errors = worker.host.histogram("tidegate.estimate_error").unwrap();
        assert_eq!(
            shipped(&outcome, errors.last().copied()),
            native(&decision, &settlement),
            "{fields}, request {index}"
        );
        worker.host.advance(std::time::Duration::from_millis(100));
    }
}

#[test]
fn whole_bodies_are_decided_alike() {
    // Some bodies are long, and all but those decided early are read whole.
    decide_alike(r#""inspect_bytes_max": 16777216, "buffer_bytes": 16777216"#);
}

#[test]
fn cut_bodies_are_decided_alike() {
    decide_alike(r#""inspect_bytes_max": 16384, "buffer_bytes": 16777216"#);
}

#[test]
fn unread_bodies_are_decided_alike() {
    decide_alike(r#""inspect": "headers""#);
}
