//! The shipped filter in a real Envoy, between real clients and live pools that
//! count with a real tokenizer. What `envoy.yaml` alone promises is tested in
//! `envoy-support`.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_envoy_support::{
    Answer, Backend, Connection, Envoy, Request, Response, eventually, missing,
};
use tidegate_sim::workload::{AGENT_HEAVY, CapPolicy};
use tidegate_sim_cli::replay::{
    self, Failure, Options, Report, Source, Style, Verdict, Windows, Workload,
};
use tidegate_sim_cli::serve::{self, Handle};

const CHAT: &str = "/v1/chat/completions";
const POOLS: &str = r#"{"pools": [
    {"name": "short", "model": "sim-model", "tokenizer": "o200k_base",
     "max_model_len": 8192, "ports": [0, 0], "speed": 100},
    {"name": "long", "model": "sim-model", "tokenizer": "o200k_base",
     "max_model_len": 131072, "ports": [0, 0], "speed": 100}]}"#;
const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 8192},
    {"name": "long", "cluster": "long", "max_model_len": 131072}]}]}"#;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

async fn pools() -> Handle {
    serve::start(serve::parse_pools(POOLS.as_bytes()).unwrap()).await.unwrap()
}

fn ports(pools: &Handle, name: &str) -> [u16; 2] {
    pools.pool(name).iter().map(|a| a.port()).collect::<Vec<_>>().try_into().unwrap()
}

fn envoy(pools: &Handle, workers: u32) -> Envoy {
    Envoy::builder()
        .backends(ports(pools, "short"), ports(pools, "long"))
        .workers(workers)
        .exact_balance()
        .health_interval("0.05s")
        .start()
        .unwrap()
}

fn load(requests: usize, rate: f64) -> Vec<tidegate_sim::workload::Request> {
    let source = Source::Drawn(AGENT_HEAVY);
    let (requests, rate) = (Some(requests), Some(rate));
    let caps = CapPolicy::Ladder;
    Workload { source, requests, rate, speedup: 1.0, caps, seed: 3 }.build().unwrap()
}

fn options(envoy: &Envoy) -> Options {
    let style = Style { usage_share: 1.0, ..Style::new("sim-model", 3) };
    Options { tokenizer: "o200k_base".into(), ..Options::new(&envoy.url(), style) }
}

/// One worker, then two: what one learns the other knows.
#[test]
fn requests_find_their_pool_and_the_estimate_gets_better() {
    if missing() {
        return;
    }
    let runtime = runtime();
    for workers in [1, 2] {
        let pools = runtime.block_on(pools());
        let envoy = envoy(&pools, workers);
        let run = runtime.block_on(replay::run(&options(&envoy), load(200, 40.0), |_| {})).unwrap();
        let windows = Windows::from_config(CONFIG.as_bytes(), "sim-model").unwrap();
        let report = Report::new(&run, Some(&windows));
        assert_eq!((report.answered, report.errors.len()), (200, 0), "{:?}", report.errors);
        let estimate = report.estimate.clone().unwrap();
        assert!(
            // Without learning the halves of this load differ by a tenth.
            estimate.second_half.mean < 0.7 * estimate.first_half.mean,
            "{workers} workers: {estimate:?}"
        );
        let under = report.verdict(Verdict::UnderRoute).unwrap();
        assert!(under <= 2, "{under} of 200 went where they did not fit");
        let count = |name: &str| envoy.counter(&format!("wasmcustom.tidegate.{name}")).unwrap();
        let (short, long) = (count("requests.short"), count("requests.long"));
        assert!(short > 50 && long > 20 && short + long == 200, "{short} short, {long} long");
        // The last answers may still be on their way to the log phase.
        eventually("all to be learned", || (count("learned") >= 195).then_some(())).unwrap();
        assert_eq!(count("under_route"), under as u64, "the filter's own judgement");
        let admitted = envoy.worker_connections().unwrap();
        assert_eq!(admitted.len(), workers as usize);
        assert!(admitted.iter().all(|n| *n > 0), "a worker took no connection: {admitted:?}");
        let prometheus = envoy.prometheus().unwrap();
        assert!(prometheus.contains(r#"tidegate_requests{pool="short"}"#), "{prometheus}");
        runtime.block_on(pools.stop());
    }
}

/// The short pool dies under load and comes back.
#[test]
fn a_dead_short_pool_costs_only_what_it_was_answering() {
    if missing() {
        return;
    }
    let runtime = runtime();
    runtime.block_on(async {
        let mut pools = pools().await;
        let envoy = envoy(&pools, 2);
        let options = options(&envoy);
        let (seen, enough) = (AtomicUsize::new(0), tokio::sync::Notify::new());
        let start = std::time::Instant::now();
        let run = replay::run(&options, load(160, 60.0), |_| {
            if seen.fetch_add(1, Ordering::Relaxed) == 80 {
                enough.notify_one();
            }
        });
        let death = async {
            enough.notified().await;
            pools.kill("short", 0).await.unwrap();
            pools.kill("short", 1).await.unwrap();
            start.elapsed()
        };
        let (run, killed) = tokio::join!(run, death);
        for outcome in &run.unwrap().outcomes {
            let before = std::time::Duration::from_nanos(outcome.request.arrival) <= killed;
            let cut = match &outcome.result {
                Ok(_) => continue,
                Err(Failure::Connection(_) | Failure::Malformed(_)) => true,
                Err(Failure::Status(status, _)) => *status == 503,
                Err(_) => false,
            };
            assert!(cut && before, "dead after {killed:?}: {outcome:?}");
        }
        let run = replay::run(&options, load(80, 60.0), |_| {}).await.unwrap();
        let mut stood_in = 0;
        for outcome in &run.outcomes {
            assert!(outcome.result.is_ok(), "while dead: {outcome:?}");
            assert_eq!(outcome.answered_by.as_deref(), Some("long"), "{outcome:?}");
            stood_in += u64::from(outcome.decision.pool.as_deref() == Some("short"));
        }
        assert!(stood_in > 20, "only {stood_in} were for the short pool");
        let count = |name: &str| envoy.counter(&format!("wasmcustom.tidegate.{name}")).unwrap();
        let spilled = count("spill.down");
        assert!(spilled >= stood_in, "{spilled} counted, {stood_in} stood in");
        // A spill is no misroute; a cold estimate may be.
        assert!(count("under_route") <= 3);

        pools.restart("short", 0).await.unwrap();
        pools.restart("short", 1).await.unwrap();
        let back = async {
            loop {
                let run = replay::run(&options, load(10, 100.0), |_| {}).await.unwrap();
                let chosen = |o: &&replay::Outcome| o.decision.pool.as_deref() == Some("short");
                let mut short = run.outcomes.iter().filter(chosen).peekable();
                if short.peek().is_some()
                    && short.all(|outcome| outcome.answered_by.as_deref() == Some("short"))
                {
                    break;
                }
            }
        };
        let limit = std::time::Duration::from_secs(30);
        tokio::time::timeout(limit, back).await.expect("the short pool is not back");
        pools.stop().await;
    });
}

fn scripted() -> (Backend, Envoy) {
    let backend = Backend::start(answer).unwrap();
    let port = backend.port();
    let envoy = Envoy::builder().backends([port; 2], [port; 2]).start().unwrap();
    (backend, envoy)
}

const EVENTS: [&str; 5] = [
    "data: {\"choices\":[{\"delta\":{\"content\":\"漢",
    "字\"}}],\"usage\":null}\r\n\r\n: ping\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tok",
    "ens\":70,\"completion_tokens\":2}}\n",
    "\ndata: [DONE]\n\n",
];

fn answer(request: &Request) -> Answer {
    match request.header("x-answer") {
        Some("stream") => Answer::stream(&EVENTS),
        Some("endless") => {
            Answer::stream(&["data: {}\n\n"; 200]).pause(std::time::Duration::from_millis(20))
        }
        Some("nothing") => Answer::nothing(),
        Some(status) => Answer::json(status.parse().unwrap(), usage(9999)),
        None => {
            let tokens = request.header("x-tokens").map_or(70, |tokens| tokens.parse().unwrap());
            Answer::json(200, usage(tokens))
        }
    }
}

fn usage(tokens: u64) -> String {
    json!({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 2}}).to_string()
}

fn chat(bytes: usize) -> Request {
    let content = "the tide comes in and goes out. ".repeat(bytes / 32 + 1);
    let messages = json!([{"role": "user", "content": content[..bytes]}]);
    Request::post(CHAT, json!({"model": "m", "max_tokens": 9, "messages": messages}).to_string())
}

fn field<'a>(line: &'a Value, name: &str) -> &'a str {
    line.get(name).and_then(Value::as_str).unwrap_or("-")
}

#[test]
fn a_stream_passes_byte_for_byte_and_is_read() {
    if missing() {
        return;
    }
    let (_backend, envoy) = scripted();
    let answer = chat(300).with("x-answer", "stream").send(envoy.port()).unwrap();
    assert_eq!(answer.body, EVENTS.concat().as_bytes());
    let line = &envoy.access_log_of(1).unwrap()[0];
    assert_eq!((field(line, "actual_input"), field(line, "actual_output")), ("70", "2"));
    assert_eq!(envoy.counter("wasmcustom.tidegate.learned").unwrap(), 1);
}

/// One connection for each of two workers: what the first learns the second
/// knows, though it saw no answer.
#[test]
fn workers_share_what_they_learn() {
    if missing() {
        return;
    }
    let backend = Backend::start(answer).unwrap();
    let port = backend.port();
    let envoy = Envoy::builder().backends([port; 2], [port; 2]).workers(2).exact_balance();
    let envoy = envoy.start().unwrap();
    let (mut first, mut second) =
        (Connection::open(envoy.port()).unwrap(), Connection::open(envoy.port()).unwrap());
    let estimate = |connection: &mut Connection, status: Option<&str>| {
        let request = chat(3000).with("x-tokens", "2007");
        let request = status.map_or(request.clone(), |status| request.with("x-answer", status));
        connection.write(&request.bytes()).unwrap();
        let response = connection.response().unwrap();
        response.header("x-tidegate-estimate").unwrap().parse::<u64>().unwrap()
    };
    let unknowing = estimate(&mut second, Some("500"));
    assert!(unknowing < 1000, "{unknowing}");
    for _ in 0..30 {
        estimate(&mut first, None);
    }
    assert_eq!(envoy.worker_connections().unwrap(), [1, 1]);
    eventually("the second worker to know", || {
        (estimate(&mut second, Some("500")).abs_diff(2007) < 20).then_some(())
    })
    .unwrap();
}

#[test]
fn odd_requests_are_served_and_do_no_harm() {
    if missing() {
        return;
    }
    let (backend, envoy) = scripted();
    let send = |request: Request| -> Response { request.send(envoy.port()).unwrap() };
    let reason = |response: &Response| response.header("x-tidegate-reason").map(str::to_owned);
    let multipart =
        Request::post(CHAT, "--x--").with("content-type", "multipart/form-data; boundary=x");
    for (request, expected) in [
        (Request::post(CHAT, ""), "unparsed"),
        (Request::post(CHAT, "{"), "unparsed"),
        (Request::post(CHAT, "{}"), "threshold"),
        (multipart, "not_inspected"),
        (Request::get("/v1/models"), "not_inspected"),
        (Request::post("/v1/other", "{}"), "unknown_path"),
        (chat(600_000), "early"),
        (chat(3000).with("transfer-encoding", "chunked"), "threshold"),
    ] {
        let what = format!("{} {} {}", request.method, request.path, request.body.len());
        let response = send(request);
        assert_eq!(response.status, 200, "{what}");
        assert_eq!(reason(&response).as_deref(), Some(expected), "{what}");
    }
    // Bytes that are no UTF-8, in a header and in the path.
    let mut client = Connection::open(envoy.port()).unwrap();
    let body = chat(300).body;
    let head = format!(
        "POST {CHAT}?q=%ff HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nx-odd: caf",
        body.len()
    );
    client
        .write(&[head.as_bytes(), b"\xe9\r\nx-tidegate-pool: \xff\r\n\r\n", &body].concat())
        .unwrap();
    let response = client.response().unwrap();
    assert_eq!((response.status, reason(&response).as_deref()), (200, Some("threshold")));
    // A spoofed header neither chooses nor reaches the replica twice.
    let response = send(chat(300).with("x-tidegate-pool", "evil"));
    assert_eq!(response.header("x-tidegate-pool"), Some("short"));
    let last = backend.requests().pop().unwrap();
    assert_eq!(last.header("x-tidegate-pool"), Some("short"));
    assert!(!envoy.log().contains("unreachable"), "a VM trapped: {}", envoy.log());
}

/// A listener with nothing but Envoy's defaults: 1 MiB of buffer.
#[test]
fn no_upload_gets_413_at_the_default_limit() {
    if missing() {
        return;
    }
    let backend = Backend::start(answer).unwrap();
    let port = backend.port();
    let envoy = Envoy::builder()
        .backends([port; 2], [port; 2])
        .configuration(CONFIG)
        .edit(|t| t.remove_line("request_body_buffer_limit:"))
        .edit(|t| t.remove_line("per_connection_buffer_limit_bytes:"))
        .start()
        .unwrap();
    for bytes in [0, 1, 900_000, 3_000_000] {
        for framing in ["x-none", "transfer-encoding"] {
            for _ in 0..20 {
                let request = chat(bytes).with(framing, "chunked");
                let response = request.send(envoy.port()).unwrap();
                assert_eq!(response.status, 200, "{bytes} bytes, {framing}");
            }
        }
    }
    let sent = |request: Request| request.send(envoy.port()).unwrap();
    for body in ["", "x"] {
        assert_eq!(sent(Request::post(CHAT, body)).header("x-tidegate-reason"), Some("unparsed"));
    }
    assert_eq!(envoy.counter("http.tidegate.downstream_rq_too_large").unwrap(), 0);
}

#[test]
fn overrides_apply_by_route_and_a_dry_run_leaves_the_route_alone() {
    if missing() {
        return;
    }
    let backend = Backend::start(answer).unwrap();
    let port = backend.port();
    let config = CONFIG.replacen(
        r#""version": 1"#,
        r#""version": 1, "overrides": [
            {"route_name": "largest", "path_prefix": "/blind", "set": {"inspect": "headers"}},
            {"path_prefix": "/dry", "set": {"dry_run": true}}]"#,
        1,
    );
    let envoy = Envoy::builder().backends([port; 2], [port; 2]).configuration(&config);
    let envoy = envoy.start().unwrap();
    // The route that a request has when it arrives is `largest`.
    let blind = Request { path: format!("/blind{CHAT}"), ..chat(300) };
    let response = blind.send(envoy.port()).unwrap();
    assert_eq!(response.header("x-tidegate-reason"), Some("content_length"));
    let dry = Request { path: format!("/dry{CHAT}"), ..chat(300) };
    let response = dry.send(envoy.port()).unwrap();
    assert_eq!(response.header("x-tidegate-pool"), Some("short"), "what it would have done");
    let line = envoy.access_log_of(2).unwrap().pop().unwrap();
    assert_eq!((field(&line, "route"), field(&line, "cluster")), ("largest", "long"));
    assert_eq!(backend.requests().pop().unwrap().header("x-tidegate-pool"), None);
    assert_eq!(envoy.counter("wasmcustom.tidegate.requests.short").unwrap(), 2);
    assert_eq!(envoy.counter("wasmcustom.tidegate.spill.down").unwrap(), 0);
}

#[test]
fn bad_ends_teach_nothing() {
    if missing() {
        return;
    }
    let (_backend, envoy) = scripted();
    for status in ["400", "404", "429", "500", "503"] {
        let answer = chat(300).with("x-answer", status).send(envoy.port()).unwrap();
        assert_eq!(answer.status.to_string(), status);
    }
    let reset = chat(300).with("x-answer", "nothing").send(envoy.port()).unwrap();
    assert_eq!(reset.status, 503);
    // The client leaves in the middle of its upload, and of the answer.
    let upload = chat(5000).bytes();
    let mut client = Connection::open(envoy.port()).unwrap();
    client.write(&upload[..2000]).unwrap();
    drop(client);
    let mut client = Connection::open(envoy.port()).unwrap();
    client.write(&chat(300).with("x-answer", "endless").bytes()).unwrap();
    assert_eq!(client.head().unwrap().status, 200);
    drop(client);
    let aborted = || envoy.counter("wasmcustom.tidegate.usage_missing.aborted").ok();
    eventually("the abort", || aborted().filter(|n| *n == 1)).unwrap();
    assert_eq!(envoy.counter("wasmcustom.tidegate.learned").unwrap(), 0);
    // And the filter goes on.
    assert_eq!(chat(300).send(envoy.port()).unwrap().status, 200);
    eventually("the lesson", || {
        envoy.counter("wasmcustom.tidegate.learned").ok().filter(|n| *n == 1)
    })
    .unwrap();
}
