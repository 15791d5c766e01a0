//! Tenants in the shipped filter: who they are, what they are told, and what
//! every end of a request leaves behind.

mod support;

use serde_json::Value;
use std::time::Duration;
use support::{Worker, chat, chat_body, config_with, used};
use tidegate_wasm_tests::{
    Callback, Chunks, Host, HostCall, LocalReply, Outcome, Request, Response, Status, Verdict,
};

/// `acme` may have 3,000 tokens at once and 100 a second; all others together 500.
const TENANTS: &str = r#""tenants": {
    "from": [{"property": ["metadata", "filter_metadata", "jwt", "sub"]},
             {"header": "x-team"}, {"api_key": "authorization"}],
    "default": "others",
    "entitlements": [
        {"name": "others", "tokens_per_second": 50, "burst": 500},
        {"name": "acme", "tokens_per_second": 100, "burst": 3000, "requests": 3,
         "reserve_output": "cap",
         "keys": ["sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]},
        {"name": "gone", "tokens_per_second": 0}]}"#;

fn worker() -> Worker {
    Worker::new(&config_with(TENANTS))
}

/// A completion of so many token ids and so much output: what it reserves is
/// known whatever is learned.
fn tokens(prompt: usize, cap: usize) -> Request<'static> {
    let ids = vec!["7"; prompt].join(",");
    let body = format!(r#"{{"model":"m","prompt":[{ids}],"max_tokens":{cap}}}"#);
    Request::json("/v1/completions", body.into_bytes())
}

/// A request of the tenant: 107 prompt tokens, and a cap of 100.
fn of(team: &str) -> Request<'static> {
    tokens(107, 100).header("x-team", team)
}

fn tenant(outcome: &Outcome) -> &str {
    outcome.state("tidegate_tenant").unwrap()
}

fn header<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a str> {
    outcome.response_headers.text(name)
}

#[test]
fn the_first_source_that_says_anything_decides() {
    let worker = worker();
    let ask = |request: Request<'static>| worker.run(request, &used(100, 10));
    let jwt = |request: Request<'static>, sub: &str| {
        request.property(&["metadata", "filter_metadata", "jwt", "sub"], sub)
    };
    assert_eq!(tenant(&ask(chat(400))), "others");
    assert_eq!(tenant(&ask(of("acme"))), "acme");
    assert_eq!(tenant(&ask(jwt(chat(400), "acme"))), "acme");
    assert_eq!(tenant(&ask(jwt(of("acme"), "nobody"))), "others", "the claim comes first");
    assert_eq!(tenant(&ask(jwt(of("acme"), " "))), "acme", "an empty claim says nothing");
    let key = |value: &str| chat(400).header("authorization", value);
    assert_eq!(tenant(&ask(key("Bearer secret"))), "acme");
    assert_eq!(tenant(&ask(key("Bearer other"))), "others");
    let route = r#""overrides": [{"path_prefix": "/v1", "set": {"tenant": "acme"}}], "#;
    let worker = Worker::new(&config_with(&(route.to_owned() + TENANTS)));
    assert_eq!(tenant(&worker.run(of("others"), &used(100, 10))), "acme", "the route comes first");
}

#[test]
fn a_request_over_the_limit_gets_an_answer_that_tells_when_to_come_back() {
    let worker = worker();
    let first = worker.run(of("acme"), &used(100, 10));
    assert_eq!(header(&first, "x-ratelimit-limit-tokens"), Some("3000"));
    assert_eq!(header(&first, "x-ratelimit-remaining-tokens"), Some("2793"));
    assert_eq!(header(&first, "x-ratelimit-reset-tokens"), Some("2.070s"));
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), Some("2"));
    // 110 were used: 2,890 are left, and a little has come back.
    worker.host.advance(Duration::from_micros(500));
    let ask = || worker.run(tokens(2880, 100).header("x-team", "acme"), &used(2840, 50));
    let refused = ask();
    assert_eq!((refused.verdict, refused.status()), (Verdict::Replied, Some(429)));
    assert!(refused.request_body.is_empty());
    assert_eq!(header(&refused, "retry-after"), Some("1"));
    assert_eq!(header(&refused, "x-ratelimit-remaining-tokens"), Some("2890"));
    assert_eq!(header(&refused, "x-ratelimit-reset-tokens"), Some("1.100s"), "rounded up");
    let error: Value = serde_json::from_slice(&refused.response_body).unwrap();
    assert_eq!(error["error"]["code"], "rate_limit_exceeded");
    assert_eq!(refused.state("tidegate_refused"), Some("tokens"));
    worker.host.advance(Duration::from_secs(1));
    assert_eq!(ask().status(), Some(200));
    assert_eq!((worker.count("tenant_admitted.acme"), worker.count("tenant_refused.acme")), (2, 1));
    assert_eq!((worker.count("refused.tokens"), worker.count("tenant_settled.acme")), (1, 3000));
    // Other APIs get errors of their own shape.
    let claude =
        Request::json("/v1/messages", chat_body(10_000).into_bytes()).header("x-team", "acme");
    let refused = worker.run(claude, &used(1, 1));
    let error: Value = serde_json::from_slice(&refused.response_body).unwrap();
    assert_eq!((refused.status(), &error["type"]), (Some(429), &Value::from("error")));
}

#[test]
fn what_can_never_pass_and_who_may_not_are_told_so() {
    let worker = worker();
    let large = worker.run(tokens(3000, 1).header("x-team", "acme"), &used(1, 1));
    assert_eq!((large.status(), header(&large, "retry-after")), (Some(400), None));
    assert_eq!(large.state("tidegate_refused"), Some("too_large"));
    let gone = worker.run(of("gone"), &used(1, 1));
    assert_eq!((gone.status(), gone.state("tidegate_refused")), (Some(403), Some("suspended")));
}

/// What nobody reads is no way around a limit: it counts by its bytes.
#[test]
fn a_request_that_is_not_read_is_charged_all_the_same() {
    let ask = |request: Request<'static>, team: &str| {
        let worker = worker();
        let outcome = worker.run(request.header("x-team", team), &used(107, 3));
        (
            outcome.status(),
            worker.count("tenant_reserved.acme"),
            worker.count("tenant_settled.acme"),
        )
    };
    let body = chat_body(1000).into_bytes();
    let size = body.len() as u64;
    let path = "/v1/chat/completions";
    for kind in ["text/plain", "application/vnd.api+json", ""] {
        let request = || Request::json(path, body.clone()).header("content-type", kind);
        assert_eq!(ask(request(), "acme"), (Some(200), size, 110), "{kind}");
        assert_eq!(ask(request(), "gone").0, Some(403), "{kind}");
    }
    let broken = [&b"{\"messages\":NaN,"[..], &body].concat();
    let reserved = broken.len() as u64;
    assert_eq!(ask(Request::json(path, broken), "acme"), (Some(200), reserved, 110));
    let unknown = Request::json(path, body.clone()).header("content-type", "text/plain");
    // Nobody knows how long it is: it may be as long as the largest window.
    assert_eq!(ask(unknown.without("content-length"), "acme").0, Some(400));
    assert_eq!(ask(Request::new("GET", "/v1/models"), "acme"), (Some(200), 0, 110));
}

#[test]
fn a_dry_run_counts_and_lets_all_pass() {
    let worker = Worker::new(&config_with(&(r#""dry_run": true, "#.to_owned() + TENANTS)));
    let large = worker.run(tokens(3000, 1).header("x-team", "acme"), &used(3000, 1));
    assert_eq!((large.status(), large.state("tidegate_refused")), (Some(200), Some("too_large")));
    assert_eq!(worker.count("tenant_settled.acme"), 0, "what is not admitted is not charged");
}

/// In flight and left, as the gauges show it after a tick.
fn gauges(worker: &Worker) -> (u64, u64, u64) {
    for _ in 0..2 {
        worker.vm.tick(worker.root).unwrap();
    }
    let gauge = |name: &str| worker.host.gauge(&format!("tidegate.{name}.acme")).unwrap();
    (gauge("tenant_tokens_in_flight"), gauge("tenant_requests"), gauge("tenant_left"))
}

#[test]
fn every_end_gives_back_what_was_not_used() {
    let silent = || Response::json(200, &br#"{"choices":[]}"#[..]);
    let body = |worker: &Worker| of("acme").send(&worker.vm, worker.root).unwrap();
    type Ends = Vec<(&'static str, Box<dyn Fn(&Worker)>, u64)>;
    let ends: Ends = vec![
        ("usage", Box::new(move |w| drop(body(w).answer(&used(100, 50)).unwrap())), 150),
        // 14 bytes passed.
        ("no usage", Box::new(move |w| drop(body(w).answer(&silent()).unwrap())), 107 + 3),
        ("a 4xx", Box::new(move |w| drop(body(w).answer(&Response::new(404)).unwrap())), 0),
        ("a 5xx", Box::new(move |w| drop(body(w).answer(&Response::new(503)).unwrap())), 0),
        (
            "a local reply",
            Box::new(move |w| {
                let reply = LocalReply::by_envoy(504, "upstream_response_timeout");
                drop(body(w).answer_locally(reply).unwrap());
            }),
            0,
        ),
        (
            "the client left before the answer",
            Box::new(move |w| drop(body(w).abort().unwrap())),
            107,
        ),
    ];
    for (what, end, expected) in ends {
        let worker = worker();
        end(&worker);
        assert_eq!(gauges(&worker), (0, 0, 3000 - expected), "{what}");
        assert_eq!(worker.count("tenant_settled.acme"), expected, "{what}");
    }
}

#[test]
fn concurrent_requests_of_all_workers_share_one_limit() {
    let host = Host::new();
    let config = config_with(TENANTS);
    let workers = ["a", "b"].map(|name| Worker::on(&host, name, &config));
    let send = |at: usize| of("acme").send(&workers[at].vm, workers[at].root).unwrap();
    let open: Vec<_> = [0, 1, 0].into_iter().map(send).collect();
    let refused = workers[1].run(of("acme"), &used(1, 1));
    assert_eq!(refused.state("tidegate_refused"), Some("requests"));
    for exchange in open {
        exchange.answer(&used(100, 10)).unwrap();
    }
    assert_eq!(workers[1].run(of("acme"), &used(1, 1)).status(), Some(200));
}

#[test]
fn what_a_trapped_vm_held_comes_back() {
    let worker = worker();
    let open = of("acme").send(&worker.vm, worker.root).unwrap();
    assert_eq!(gauges(&worker).1, 1);
    worker.vm.starve(Callback::RequestBody, 10_000);
    assert!(of("acme").send(&worker.vm, worker.root).is_err() || worker.vm.trap().is_some());
    drop(open);
    worker.vm.reload().unwrap();
    worker.run(of("others"), &used(10, 1));
    assert_eq!(gauges(&worker).1, 1, "its heartbeat is not cold yet");
    for _ in 0..=31 {
        worker.host.advance(Duration::from_secs(1));
        worker.vm.tick(worker.root).unwrap();
    }
    assert_eq!(gauges(&worker), (0, 0, 3000));
    assert_eq!(worker.count("reservation_expired"), 1);
}

#[test]
fn a_new_configuration_fills_no_bucket() {
    let worker = worker();
    worker.run(tokens(2900, 50).header("x-team", "acme"), &used(2900, 50));
    // Other order, one tenant less, another limit.
    let config = r#""tenants": {"default": "acme", "from": [{"header": "x-team"}], "entitlements": [
        {"name": "acme", "tokens_per_second": 100, "burst": 3000, "reserve_output": "cap"}]}"#;
    let root = worker.vm.configure(config_with(config).as_str()).unwrap();
    let worker = Worker { root, ..worker };
    let refused = worker.run(of("acme"), &used(1, 1));
    assert_eq!((refused.status(), header(&refused, "retry-after")), (Some(429), Some("2")));
}

/// Tenants are reordered, taken away and added while requests are open: levels
/// and reservations go on by name.
#[test]
fn a_configuration_may_change_under_load() {
    let entitlement = |name: &str, more: &str| {
        format!(
            r#"{{"name": "{name}", "tokens_per_second": 100, "burst": 3000,
                "reserve_output": "cap"{more}}}"#
        )
    };
    let config = |entitlements: &[String]| {
        config_with(&format!(
            r#""tenants": {{"default": "others", "from": [{{"header": "x-team"}}],
               "entitlements": [{{"name": "others", "tokens_per_second": 50, "burst": 500}}, {}]}}"#,
            entitlements.join(", ")
        ))
    };
    let (acme, beta) = (entitlement("acme", ""), entitlement("beta", r#", "requests": 1"#));
    let worker = Worker::new(&config(&[acme.clone(), beta.clone()]));
    let open = |worker: &Worker, team: &str| {
        tokens(1907, 100).header("x-team", team).send(&worker.vm, worker.root).unwrap()
    };
    let first = [open(&worker, "acme"), open(&worker, "beta")];
    let push = |worker: &Worker, config: String| {
        let root = worker.vm.configure(config.as_str()).unwrap();
        Worker { host: worker.host.clone(), vm: worker.vm.clone(), root }
    };
    // The other way round, with one more; then without acme at all.
    let other = push(&worker, config(&[beta.clone(), entitlement("new", ""), acme.clone()]));
    assert_eq!((gauges(&other).0, gauges(&other).1), (2007, 1));
    assert_eq!(open(&other, "acme").stream().verdict().unwrap(), Verdict::Replied);
    assert_eq!(open(&other, "beta").stream().verdict().unwrap(), Verdict::Replied);
    let without = push(&other, config(&[beta]));
    let [acme_s, beta_s] = first;
    acme_s.answer(&used(1907, 50)).unwrap();
    beta_s.answer(&used(1907, 0)).unwrap();
    without.run(of("beta"), &used(107, 0));
    // It comes back, and 1,957 of its 3,000 are gone.
    let back = push(&without, config(&[acme]));
    assert_eq!(gauges(&back), (0, 0, 1043));
}

#[test]
fn busy_memory_decides_as_the_tenant_s_setting_says() {
    let tenants = TENANTS.replace(r#""name": "acme","#, r#""name": "acme", "on_busy": "refuse","#);
    let worker = Worker::new(&config_with(&tenants));
    worker.host.fail(HostCall::SetSharedData, Status::CasMismatch, u64::MAX);
    let refused = worker.run(of("acme"), &used(1, 1));
    assert_eq!((refused.status(), refused.state("tidegate_refused")), (Some(429), Some("busy")));
    assert_eq!(worker.run(of("others"), &used(1, 1)).status(), Some(200), "elastic by default");
    assert_eq!(worker.count("uncharged"), 1);
}

/// A prompt that surely goes to the long pool goes up before its end; what is
/// not read of it counts by its bytes, until it is.
#[test]
fn a_long_prompt_is_not_kept_waiting_and_pays_for_what_it_is() {
    let tenants = TENANTS.replace(r#""burst": 3000"#, r#""burst": 200000"#);
    let body = chat_body(300_000);
    let size = body.len() as u64;
    let mut needs = Vec::new();
    // More than is inspected came at once, or all that came is.
    for (inspect, reason) in [(4_096, "inspect_limit"), (524_288, "early")] {
        let worker =
            Worker::new(&config_with(&format!(r#""inspect_bytes_max": {inspect}, {tenants}"#)));
        let stream = worker.vm.open(worker.root).unwrap();
        let headers = [
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            (":authority", "x"),
            ("content-type", "application/json"),
            ("content-length", &*size.to_string()),
            ("x-team", "acme"),
        ];
        stream.request_headers(headers, false).unwrap();
        let (start, rest) = body.as_bytes().split_at(150_000);
        stream.request_body(start, false).unwrap();
        assert_eq!(stream.verdict().unwrap(), Verdict::Forwarded);
        assert_eq!(stream.filter_state("tidegate_reason").unwrap().unwrap(), reason.as_bytes());
        let first = gauges(&worker).0;
        if reason == "early" {
            assert_eq!(first, 131_072, "the window is the most that it can be");
        }
        let (middle, end) = rest.split_at(100_000);
        stream.request_body(middle, false).unwrap();
        assert_eq!(gauges(&worker).0, first);
        stream.request_body(end, true).unwrap();
        // The estimate, and a cap of 100.
        let (tokens, requests, left) = gauges(&worker);
        assert!((40_000..100_000).contains(&tokens) && requests == 1, "{tokens}");
        assert_eq!(left, 200_000 - tokens);
        assert_eq!(stream.upstream_body().unwrap().len() as u64, size);
        stream.finish().unwrap();
        assert_eq!(gauges(&worker), (0, 0, 200_000));
        needs.push(tokens);
    }
    assert_eq!(needs[0], needs[1], "whatever was read when");

    // Without a length it is read as far as Envoy's buffer surely holds it: to its end,
    // or no further than the first read.
    let request = Request::json("/v1/chat/completions", body.into_bytes());
    let request = request.without("content-length").header("x-team", "acme");
    let request = request.chunks(Chunks::Every(16_384));
    for (buffer, reason) in [(16_777_216, "largest"), (1_048_576, "inspect_limit")] {
        let document = config_with(&format!(r#""buffer_bytes": {buffer}, {tenants}"#));
        let worker = Worker::new(&document);
        let outcome = worker.run(request.clone(), &used(70_000, 10));
        assert_eq!(outcome.state("tidegate_reason"), Some(reason));
        assert_eq!(gauges(&worker), (0, 0, 200_000 - 70_010));
    }
}
