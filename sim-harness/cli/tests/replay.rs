//! The load generator against running pools, without a gateway between.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

mod common;

use std::time::Duration;

use common::{metric, pools};
use tidegate_sim::workload::{CapPolicy, LMSYS_CHAT_1M, Request};
use tidegate_sim_cli::replay::{
    Failure, Options, Outcome, Report, Senders, Source, Style, TenantReport, Verdict, Window,
    Windows, Workload, run, run_tenants,
};

fn windows() -> Windows {
    let window = |name: &str, size| Window {
        name: name.into(),
        cluster: name.into(),
        max_model_len: size,
        threshold: size,
    };
    Windows::new(vec![window("short", 200), window("long", 2_000)])
}

fn options(handle: &tidegate_sim_cli::serve::Handle, pool: &str) -> Options {
    let mut options = Options::new(&format!("http://{}", handle.pool(pool)[0]), Style::new("m", 1));
    options.timeout = Duration::from_mins(1);
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_see_exactly_the_planned_lengths() {
    let handle = pools().await;
    let workload = Workload {
        source: Source::Drawn(LMSYS_CHAT_1M),
        requests: Some(120),
        rate: Some(400.0),
        speedup: 1.0,
        caps: CapPolicy::None,
        seed: 9,
    };
    let mut requests = workload.build().unwrap();
    // All of them fit the long pool whole.
    requests.retain(|r| r.input_tokens + r.output_tokens < 2_000);
    let mut heard = 0;
    let run = run(&options(&handle, "long"), requests.clone(), |_| heard += 1).await.unwrap();
    assert_eq!(heard, requests.len());
    let report = Report::new(&run, Some(&windows()));
    assert_eq!(report.answered, requests.len(), "{:?}", report.errors);
    let (checked, other) = report.prompt_lengths;
    assert!(checked > requests.len() / 2, "{checked} of {}", requests.len());
    assert_eq!(other, 0);
    for (outcome, request) in run.outcomes.iter().zip(&requests) {
        assert_eq!(outcome.request, *request);
        let answer = outcome.result.as_ref().unwrap();
        assert_eq!(answer.output_tokens, request.output_tokens);
        assert_eq!(answer.first_token.is_some(), outcome.stream);
    }
    // The backend's own counters agree, over streams without usage too.
    let client = common::client(&handle, "long");
    let sum = |pick: fn(&Request) -> u32| requests.iter().map(|r| f64::from(pick(r))).sum::<f64>();
    assert_eq!(metric(&client, "vllm:prompt_tokens_total", "").await, sum(|r| r.input_tokens));
    assert_eq!(metric(&client, "vllm:generation_tokens_total", "").await, sum(|r| r.output_tokens));
    assert!(report.ttft.unwrap().p50 > 0.0);
    assert!(report.tpot.unwrap().p50 > 0.0);
    assert!(report.estimate.is_none());
    assert_eq!(report.pools.len(), 1);
    assert_eq!(report.pools[0].name, "long");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misroutes_are_found_without_a_gateway() {
    let handle = pools().await;
    let request =
        |input_tokens, output_tokens, cap| Request { arrival: 0, input_tokens, output_tokens, cap };
    let requests = vec![
        request(100, 20, Some(256)),   // refused: 356 > 200
        request(150, 90, None),        // cut at the window
        request(150, 90, Some(50)),    // cut at its cap
        request(100, 20, None),        // right
        request(100, 20, Some(2_000)), // fits no pool
    ];
    let run_short = run(&options(&handle, "short"), requests.clone(), |_| {}).await.unwrap();
    let report = Report::new(&run_short, Some(&windows()));
    match &run_short.outcomes[0].result {
        Err(Failure::ContextLength(said)) => assert!(said.contains("max_model_len"), "{said}"),
        other => panic!("{other:?}"),
    }
    let cut = run_short.outcomes[1].result.as_ref().unwrap();
    assert_eq!((cut.output_tokens, cut.finish.as_str()), (50, "length"));
    assert_eq!(report.verdict(Verdict::UnderRoute), Some(2));
    assert_eq!(report.verdict(Verdict::TooLarge), Some(1));
    assert_eq!(report.verdict(Verdict::Right), Some(2));
    assert_eq!(report.errors.values().sum::<usize>(), 2);
    let run_long = run(&options(&handle, "long"), requests, |_| {}).await.unwrap();
    let report = Report::new(&run_long, Some(&windows()));
    // 150 + 50 fits the threshold of 200 to the token; 150 + 90 does not.
    assert_eq!(report.verdict(Verdict::OverRoute), Some(2));
    assert_eq!(report.verdict(Verdict::TooLarge), Some(1));
    assert_eq!(report.verdict(Verdict::Right), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_out_at_their_times() {
    let handle = pools().await;
    let requests: Vec<Request> = (0..20)
        .map(|i| Request { arrival: i * 20_000_000, input_tokens: 50, output_tokens: 2, cap: None })
        .collect();
    let run = run(&options(&handle, "short"), requests, |_| {}).await.unwrap();
    assert!(run.duration >= Duration::from_millis(380), "{:?}", run.duration);
    assert!(run.duration < Duration::from_secs(10), "{:?}", run.duration);
}

#[tokio::test]
async fn a_gateway_that_is_not_there_is_a_failure_of_each_request() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let options = Options::new(&format!("http://{closed}"), Style::new("m", 1));
    let requests = vec![Request { arrival: 0, input_tokens: 9, output_tokens: 1, cap: None }; 3];
    let run = run(&options, requests, |_| {}).await.unwrap();
    let report = Report::new(&run, None);
    assert_eq!((report.answered, report.errors["connection"]), (0, 3));
    assert!(matches!(run.outcomes[0].result, Err(Failure::Connection(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_send_as_their_patterns_say() {
    let handle = pools().await;
    let size = r#""input_tokens": 20, "output_tokens": 40"#;
    let text = format!(
        r#"{{"seconds": 2, "tenants": [
            {{"name": "loop", "clients": 3, "pause_s": 0.01, {size}}},
            {{"name": "bursts", "rate": 200, "on_s": 0.2, "off_s": 0.3, "from_s": 0.5, "to_s": 1.5,
              {size}}}]}}"#
    );
    let senders = Senders::parse(text.as_bytes()).unwrap();
    let options = options(&handle, "long");
    let run = run_tenants(&options, &senders, std::future::pending(), |_| {}).await.unwrap();
    let report = TenantReport::new(&run, &senders, None);
    let of = |tenant: usize| run.outcomes.iter().filter(move |outcome| outcome.tenant == tenant);
    let sent = |outcome: &Outcome| Duration::from_nanos(outcome.request.arrival);
    // Each client of the loop waits for its answer: never more than three are open.
    let mut steps: Vec<(Duration, i32)> = Vec::new();
    for outcome in of(0) {
        let end = sent(outcome) + outcome.result.as_ref().unwrap().end;
        steps.extend([(sent(outcome), 1), (end, -1)]);
        // Between its look at the clock and its sending a busy machine may pause it.
        assert!(sent(outcome) < Duration::from_millis(2100), "{:?}", sent(outcome));
    }
    steps.sort_unstable();
    let open = steps.iter().scan(0, |open, (_, step)| {
        *open += step;
        Some(*open)
    });
    assert_eq!(open.max(), Some(3));
    // The bursts do not wait for anything, but they end.
    let late = run.latest + Duration::from_millis(100);
    for outcome in of(1) {
        let since = sent(outcome).checked_sub(Duration::from_millis(500)).unwrap();
        let within = Duration::from_millis((since.as_millis() % 500) as u64);
        assert!(since < Duration::from_secs(1) + late, "{since:?}");
        assert!(within <= Duration::from_millis(200) + late, "{within:?}, late by {late:?}");
    }
    // 200 a second for twice 0.2 s.
    assert!((50..=110).contains(&report.rows[1].sent), "{report:?}");
    assert_eq!(report.rows[1].tokens, 60 * report.rows[1].sent as u64);
    let shares: f64 = report.rows.iter().filter_map(|row| row.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
}
