//! Requests that wait in the shipped filter: for their tenant's limits, and for
//! their turn in a pool that is full.

mod support;

use std::time::Duration;
use support::{Worker, used};
use tidegate_wasm_tests::{Chunks, End, Exchange, Host, Request, Verdict};

/// The short pool takes two requests at a time, of which one is kept free for
/// `first`. `slow` has a rate of its own.
const CONFIG: &str = r#"{"version": 1, "inspect_bytes_max": 4096, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short-cluster", "max_model_len": 8192, "stream_usage": "add",
     "capacity": {"replicas": 2, "requests": 2}},
    {"name": "long", "cluster": "long-cluster", "max_model_len": 131072}]}],
    "tenants": {"from": [{"header": "x-team"}], "default": "others",
    "hold": {"requests": 5, "bytes": 100000}, "entitlements": [
    {"name": "others", "tokens_per_second": 1000000, "on_limit": "hold", "ttft_target_ms": 2000},
    {"name": "first", "class": "guaranteed", "requests": 3, "tokens_per_second": 1000000},
    {"name": "slow", "tokens_per_second": 100, "burst": 300, "on_limit": "hold"},
    {"name": "refused", "on_limit": "refuse"}, {"name": "spot", "class": "spot"}]}}"#;

fn worker() -> Worker {
    Worker::new(CONFIG)
}

fn body() -> String {
    format!(r#"{{"model":"m","prompt":[{}],"max_tokens":100}}"#, vec!["7"; 100].join(","))
}

fn of(team: &str) -> Request<'static> {
    Request::json("/v1/completions", body().into_bytes()).header("x-team", team)
}

fn send(worker: &Worker, request: Request<'static>) -> Exchange {
    request.send(&worker.vm, worker.root).unwrap()
}

fn verdict(exchange: &Exchange) -> Verdict {
    exchange.stream().verdict().unwrap()
}

/// Time goes by, and the timer fires as often as the filter asked for.
fn pass(worker: &Worker, millis: u64) {
    let mut left = Duration::from_millis(millis);
    while !left.is_zero() {
        let period = worker.vm.tick_period(worker.root).unwrap().unwrap().min(left);
        worker.host.advance(period);
        worker.vm.tick(worker.root).unwrap();
        left -= period;
    }
}

fn gauge(worker: &Worker, name: &str) -> u64 {
    worker.host.gauge(&format!("tidegate.{name}")).unwrap()
}

#[test]
fn a_request_waits_until_another_ends() {
    let worker = worker();
    assert_eq!(worker.vm.tick_period(worker.root).unwrap(), Some(Duration::from_secs(1)));
    let first = send(&worker, of("others"));
    assert_eq!(verdict(&first), Verdict::Forwarded);
    let second = send(&worker, of("others"));
    assert_eq!(verdict(&second), Verdict::Held);
    assert_eq!(worker.vm.tick_period(worker.root).unwrap(), Some(Duration::from_millis(10)));
    pass(&worker, 500);
    assert_eq!(verdict(&second), Verdict::Held);
    // What is kept for the guaranteed one is there for it.
    let promised = send(&worker, of("first"));
    assert_eq!(verdict(&promised), Verdict::Forwarded);
    // The end of the first lets the second go at once, whole.
    first.answer(&used(100, 10)).unwrap();
    assert_eq!(verdict(&second), Verdict::Forwarded);
    let stream = second.stream();
    assert_eq!(stream.upstream_headers().unwrap().text("x-tidegate-pool"), Some("short-cluster"));
    assert_eq!(stream.upstream_body().unwrap(), body().into_bytes());
    pass(&worker, 10);
    assert_eq!(worker.vm.tick_period(worker.root).unwrap(), Some(Duration::from_secs(1)));
    let outcome = second.answer(&used(100, 10)).unwrap();
    assert_eq!(
        (outcome.status(), outcome.state("tidegate_actual_output")),
        (Some(200), Some("10"))
    );
    // It is told where it stands, as who did not wait is.
    assert_eq!(outcome.response_headers.text("x-ratelimit-limit-tokens"), Some("10000000"));
    promised.answer(&used(100, 10)).unwrap();
    assert_eq!((worker.count("held"), worker.count("requests.short")), (1, 3));
    assert_eq!(worker.host.histogram("tidegate.hold_time"), Some(vec![500]));
    pass(&worker, 1000);
    assert_eq!(
        (gauge(&worker, "pool_requests.short"), gauge(&worker, "tenant_share.others")),
        (0, 0)
    );
    let third = send(&worker, of("others"));
    pass(&worker, 1000);
    assert_eq!(gauge(&worker, "pool_requests.short"), 1);
    assert_eq!(gauge(&worker, "pool_tokens_in_flight.short"), 200);
    third.answer(&used(100, 10)).unwrap();
    pass(&worker, 1000);
    assert_eq!(gauge(&worker, "tenant_share.others"), 1000);
    // A configuration that is gone leaves nothing behind.
    let waiting = send(&worker, of("others"));
    pass(&worker, 1000);
    assert_eq!(gauge(&worker, "tenant_requests.others"), 1);
    waiting.answer(&used(100, 10)).unwrap();
    worker.vm.close(worker.root).unwrap();
    for name in ["tenant_requests.others", "tenant_share.others", "pool_left.short"] {
        assert_eq!(gauge(&worker, name), 0, "{name}");
    }
}

#[test]
fn it_waits_for_its_own_limit_no_longer_than_its_target() {
    let worker = worker();
    send(&worker, of("slow")).answer(&used(100, 100)).unwrap();
    let second = send(&worker, of("slow"));
    assert_eq!(verdict(&second), Verdict::Held);
    // 100 are left, and 100 come in a second.
    pass(&worker, 990);
    assert_eq!(verdict(&second), Verdict::Held);
    pass(&worker, 10);
    assert_eq!(verdict(&second), Verdict::Forwarded);
    second.answer(&used(100, 100)).unwrap();

    // One that waits for its turn in vain.
    let first = send(&worker, of("others"));
    let late = send(&worker, of("others"));
    pass(&worker, 1990);
    assert_eq!(verdict(&late), Verdict::Held);
    pass(&worker, 10);
    assert_eq!(verdict(&late), Verdict::Replied);
    late.stream().deliver_local_reply().unwrap();
    let refused = late.stream().finish().unwrap();
    assert_eq!(
        (refused.status(), refused.state("tidegate_refused")),
        (Some(429), Some("capacity"))
    );
    assert_eq!(refused.response_headers.text("retry-after"), Some("1"));
    assert!(refused.request_body.is_empty());
    first.answer(&used(100, 10)).unwrap();
    assert_eq!(worker.count("refused.capacity"), 1);
    assert_eq!(worker.count("tenant_refused.others"), 1);
}

#[test]
fn who_leaves_while_it_waits_is_charged_nothing() {
    let worker = worker();
    let first = send(&worker, of("others"));
    let gone = send(&worker, of("others"));
    let third = send(&worker, of("others"));
    let outcome = gone.abort().unwrap();
    assert_eq!(outcome.verdict, Verdict::Held);
    assert_eq!(worker.count("held_left"), 1);
    first.answer(&used(100, 10)).unwrap();
    assert_eq!(verdict(&third), Verdict::Forwarded);
    third.answer(&used(100, 10)).unwrap();
    pass(&worker, 1000);
    assert_eq!(gauge(&worker, "tenant_requests.others"), 0);
    assert_eq!(worker.count("tenant_settled.others"), 220);
}

#[test]
fn only_what_is_whole_and_has_room_waits() {
    let worker = worker();
    let first = send(&worker, of("others"));
    // Longer than what is read.
    let ids = vec!["7"; 5000].join(",");
    let long = format!(r#"{{"model":"m","max_tokens":1,"prompt":[{ids}]}}"#).into_bytes();
    let cut = Request::json("/v1/completions", long).header("x-team", "others");
    let cut = send(&worker, cut.chunks(Chunks::Every(3000)));
    assert_eq!(verdict(&cut), Verdict::Replied);
    // With trailers, and in pieces.
    let trailers = of("others").chunks(Chunks::Every(7)).end(End::Trailers([("a", "b")].into()));
    let trailers = send(&worker, trailers);
    assert_eq!(verdict(&trailers), Verdict::Held);
    // Of a tenant that is not to wait.
    assert_eq!(verdict(&send(&worker, of("refused"))), Verdict::Replied);
    // A request without a body keeps no GPU busy.
    let get = Request::new("GET", "/v1/models").header("x-team", "others");
    assert_eq!(verdict(&send(&worker, get)), Verdict::Forwarded);
    let held = [send(&worker, of("others")), send(&worker, of("others"))];
    assert!(held.iter().all(|one| verdict(one) == Verdict::Held));
    assert_eq!(
        verdict(&send(&worker, of("others"))),
        Verdict::Replied,
        "half of the places are taken"
    );
    first.answer(&used(100, 10)).unwrap();
    assert_eq!(verdict(&trailers), Verdict::Forwarded);
    let trailers = trailers.answer(&used(100, 10)).unwrap();
    assert_eq!(trailers.request_trailers.text("a"), Some("b"));
    for one in held {
        one.answer(&used(100, 10)).unwrap();
    }
}

#[test]
fn a_held_stream_can_be_made_to_state_its_usage() {
    let worker = worker();
    let first = send(&worker, of("others"));
    let body = br#"{"model":"m","stream":true,"max_tokens":9,"messages":[]}"#.to_vec();
    let request = Request::json("/v1/chat/completions", body).header("x-team", "others");
    let held = send(&worker, request);
    assert_eq!(verdict(&held), Verdict::Held);
    first.answer(&used(100, 10)).unwrap();
    let sent = String::from_utf8(held.stream().upstream_body().unwrap()).unwrap();
    assert!(sent.contains("include_usage"), "{sent}");
    let length = held.stream().upstream_headers().unwrap();
    assert_eq!(length.text("content-length"), Some(&*sent.len().to_string()));
    held.answer(&used(10, 9)).unwrap();
}

#[test]
fn workers_share_the_pool_and_its_turns() {
    let host = Host::new();
    let [one, two] = ["one", "two"].map(|name| Worker::on(&host, name, CONFIG));
    let first = send(&one, of("others"));
    let spot = send(&two, of("spot"));
    assert_eq!(verdict(&spot), Verdict::Held);
    let second = send(&two, of("others"));
    assert_eq!(verdict(&second), Verdict::Held);
    first.answer(&used(100, 10)).unwrap();
    assert_eq!(verdict(&second), Verdict::Held, "nobody wakes another worker");
    pass(&two, 10);
    // It came later, but spot tenants come last.
    assert_eq!((verdict(&second), verdict(&spot)), (Verdict::Forwarded, Verdict::Held));
    second.answer(&used(100, 10)).unwrap();
    assert_eq!(verdict(&spot), Verdict::Forwarded);
    spot.answer(&used(100, 10)).unwrap();
}

#[test]
fn a_dry_run_holds_nobody() {
    let worker = Worker::new(&CONFIG.replacen("{", r#"{"dry_run": true, "#, 1));
    let open: Vec<Exchange> = (0..5).map(|_| send(&worker, of("others"))).collect();
    assert!(open.iter().all(|one| verdict(one) == Verdict::Forwarded));
    assert_eq!(worker.count("refused.capacity"), 4);
    for one in open {
        one.answer(&used(100, 10)).unwrap();
    }
    pass(&worker, 1000);
    assert_eq!(gauge(&worker, "pool_requests.short"), 0);
}

/// Letting a request go is about its stream; what a tick does next is not: calls of a
/// stream would be cancelled with it.
#[test]
fn a_tick_that_lets_a_request_go_asks_engines_for_the_root() {
    let host = Host::new();
    host.add_cluster("engines");
    let load =
        r#""load": {"metrics": {"cluster": "engines", "path": "/metrics", "interval_ms": 500}}"#;
    let config = CONFIG.replacen(r#""capacity": {"#, &format!(r#"{load}, "capacity": {{"#), 1);
    let worker = Worker::on(&host, "one", &config);
    let first = send(&worker, of("slow"));
    let second = send(&worker, of("slow"));
    assert_eq!((verdict(&first), verdict(&second)), (Verdict::Forwarded, Verdict::Held));
    first.answer(&used(100, 10)).unwrap();
    assert_eq!((verdict(&second), worker.vm.calls().len()), (Verdict::Held, 0));
    host.advance(Duration::from_secs(5));
    worker.vm.tick(worker.root).unwrap();
    assert_eq!(verdict(&second), Verdict::Forwarded);
    assert_eq!(worker.vm.calls().len(), 2, "as many as replicas");
    second.answer(&used(100, 10)).unwrap();
    assert_eq!(worker.vm.calls().len(), 2, "they outlive the stream");
}
