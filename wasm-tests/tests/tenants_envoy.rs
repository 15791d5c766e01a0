//! Tenants in a real Envoy: promises hold over all workers, and every end of a
//! request settles.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use support::{count, gateway, size};
use tidegate_envoy_support::{
    Answer, Backend, Connection, Envoy, Request, eventually, missing, trap_at, wasm_file,
};

fn config(entitlement: &str) -> String {
    format!(
        r#"{{"version": 1, "buffer_bytes": 16777216, "models": [{{"match": "*", "pools": [
            {{"name": "short", "cluster": "short", "max_model_len": 8192}},
            {{"name": "long", "cluster": "long", "max_model_len": 131072}}]}}],
        "tenants": {{"from": [{{"header": "x-team"}}], "default": "others", "entitlements": [
            {{"name": "others", "tokens_per_second": 100}},
            {{"name": "acme", "reserve_output": "cap", {entitlement}}}]}}}}"#
    )
}

/// A completion of token ids for acme: what it reserves is exact.
fn tokens(prompt: usize, cap: usize) -> Request {
    let ids = vec!["7"; prompt].join(",");
    let body = format!(r#"{{"model":"m","prompt":[{ids}],"max_tokens":{cap}}}"#);
    Request::post("/v1/completions", body).with("x-team", "acme")
}

fn used(input: usize, output: usize) -> String {
    format!(r#"{{"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#)
}

/// Waits until nothing is reserved, as the gauges say.
fn idle(envoy: &Envoy) {
    eventually("all reservations to end", || {
        let gauge = |name: &str| count(envoy, &format!("{name}.acme"));
        (gauge("tenant_requests") == 0 && gauge("tenant_tokens_in_flight") == 0).then_some(())
    })
    .unwrap();
}

/// 16 clients ask for much more than the rate, over 2 and 4 workers. Each
/// request is 40 tokens, and uses what it reserved.
#[test]
fn the_rate_is_kept_and_used_up_over_all_workers() {
    if missing() {
        return;
    }
    const RATE: u64 = 2000;
    const BURST: u64 = 1000;
    let seconds = size(5, 60) as u64;
    for workers in [2, 4] {
        let backend = Backend::start(|_| Answer::json(200, used(30, 10))).unwrap();
        let limits = format!(r#""tokens_per_second": {RATE}, "burst": {BURST}"#);
        let envoy = gateway(&backend, workers, &config(&limits));
        let (admitted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let request = tokens(30, 10).bytes();
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let mut client = Connection::open(envoy.port()).unwrap();
                    while Instant::now() < end {
                        client.write(&request).unwrap();
                        match client.response().unwrap().status {
                            200 => admitted.fetch_add(1, Ordering::Relaxed),
                            429 => refused.fetch_add(1, Ordering::Relaxed),
                            other => panic!("{other}"),
                        };
                    }
                });
            }
        });
        let passed = start.elapsed().as_secs_f64();
        let (admitted, refused) = (admitted.into_inner(), refused.into_inner());
        let tokens = admitted * 40;
        let promised = RATE as f64 * passed + BURST as f64;
        println!(
            "{workers} workers, {passed:.1} s: {tokens} tokens of {promised:.0} promised, \
             {admitted} requests admitted, {refused} refused"
        );
        assert!(refused > admitted, "demand was to be at least twice the limit");
        assert!(tokens as f64 <= promised, "more than was promised");
        // The last requests of the clients end before the time is up.
        let least = RATE as f64 * seconds as f64 + BURST as f64;
        assert!(tokens as f64 >= 0.99 * least, "{tokens} of {least}");
        idle(&envoy);
        assert_eq!(count(&envoy, "tenant_settled.acme"), tokens);
        let busy = envoy.worker_connections().unwrap();
        assert!(busy.len() == workers as usize && busy.iter().all(|n| *n > 0), "{busy:?}");
    }
}

#[test]
fn of_many_at_once_only_as_many_pass_as_fit() {
    if missing() {
        return;
    }
    let answer = Answer::json(200, used(900, 10)).pause(Duration::from_millis(300));
    let backend = Backend::start(move |_| answer.clone()).unwrap();
    let limits = r#""tokens_per_second": 1, "burst": 1000"#;
    let envoy = gateway(&backend, 2, &config(limits));
    let (passed, barrier) = (AtomicU64::new(0), Barrier::new(5));
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let mut client = Connection::open(envoy.port()).unwrap();
                barrier.wait();
                client.write(&tokens(900, 10).bytes()).unwrap();
                let status = client.response().unwrap().status;
                assert!(status == 200 || status == 429, "{status}");
                passed.fetch_add(u64::from(status == 200), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(passed.into_inner(), 1);
}

/// What an upstream or a client does, and what it costs of 50 + 20 tokens.
#[test]
fn every_end_settles() {
    if missing() {
        return;
    }
    let backend = Backend::start(|request| {
        let token = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
        let usage = format!("data: {}\n\n", used(50, 5));
        let slow = Duration::from_millis(50);
        match request.header("x-answer").unwrap_or("") {
            "404" => Answer::json(404, "{}"),
            "503" => Answer::json(503, "{}"),
            "nothing" => Answer::nothing(),
            "slow" => Answer::json(200, used(50, 5)).pause(Duration::from_secs(20)),
            "stream" => Answer::stream(&[token, &usage, "data: [DONE]\n\n"]),
            "silent stream" => Answer::stream(&[token, "data: [DONE]\n\n"]),
            "broken stream" => Answer::stream(&[token, token]).broken(),
            "slow stream" => Answer::stream(&[token; 200]).pause(slow),
            _ => Answer::json(200, used(50, 5)),
        }
    })
    .unwrap();
    let limits = r#""tokens_per_second": 1, "burst": 100000, "requests": 4"#;
    let envoy = gateway(&backend, 2, &config(limits));
    let request = |answer: &str| tokens(50, 20).with("x-answer", answer);
    let settled = || count(&envoy, "tenant_settled.acme");
    let (mut before, mut ends) = (0, 0);
    let mut check = |what: &str, least: u64, most: u64| {
        ends += 1;
        eventually(what, || (count(&envoy, "tenant_admitted.acme") == ends).then_some(())).unwrap();
        idle(&envoy);
        let cost = settled() - before;
        assert!((least..=most).contains(&cost), "{what}: {cost}, not {least} to {most}");
        before += cost;
    };
    for (answer, status, least, most) in [
        ("json", 200, 55, 55),
        ("stream", 200, 55, 55),
        ("silent stream", 200, 52, 52),
        ("404", 404, 0, 0),
        ("503", 503, 0, 0),
        ("nothing", 503, 0, 0),
    ] {
        assert_eq!(request(answer).send(envoy.port()).unwrap().status, status, "{answer}");
        check(answer, least, most);
    }
    let mut client = Connection::open(envoy.port()).unwrap();
    client.write(&request("broken stream").bytes()).unwrap();
    let head = client.head().unwrap();
    assert!(client.body(&head).is_err());
    check("broken stream", 51, 52);

    let mut client = Connection::open(envoy.port()).unwrap();
    client.write(&request("slow").bytes()).unwrap();
    eventually("the request to arrive", || {
        (backend.requests().last()?.header("x-answer")? == "slow").then_some(())
    })
    .unwrap();
    drop(client);
    check("the client leaves before the answer", 50, 50);

    let mut client = Connection::open(envoy.port()).unwrap();
    client.write(&request("slow stream").bytes()).unwrap();
    client.head().unwrap();
    client.read(40).unwrap();
    drop(client);
    check("the client leaves within the stream", 51, 70);
}

/// The worker's VM traps with streams open. What they reserved comes back once
/// its heartbeat is cold.
#[test]
fn a_trap_with_many_streams_open_leaves_nothing_reserved() {
    if missing() {
        return;
    }
    let token = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
    let answer = Answer::stream(&[token; 400]).pause(Duration::from_millis(50));
    let backend = Arc::new(Backend::start(move |_| answer.clone()).unwrap());
    let wasm = std::fs::read(wasm_file().unwrap()).unwrap();
    let port = backend.port();
    let envoy = Envoy::builder()
        .backends([port; 2], [port; 2])
        .configuration(&config(r#""tokens_per_second": 1, "burst": 100000, "requests": 50"#))
        .module(&trap_at(&wasm, "proxy_on_request_trailers").unwrap())
        .edit(|t| t.insert_after("codec_type:", "http_protocol_options: { enable_trailers: true }"))
        .start()
        .unwrap();
    let open: Vec<Connection> = (0..50)
        .map(|_| {
            let mut client = Connection::open(envoy.port()).unwrap();
            client.write(&tokens(50, 20).bytes()).unwrap();
            assert_eq!(client.head().unwrap().status, 200);
            client
        })
        .collect();
    let status = || tokens(50, 20).send(envoy.port()).map_or(0, |answer| answer.status);
    assert_eq!(status(), 429, "50 are open");
    let mut client = Connection::open(envoy.port()).unwrap();
    client
        .write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
              transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-trailer: 1\r\n\r\n",
        )
        .unwrap();
    drop(client.response());
    drop(open);
    eventually("the filter to come back", || (status() == 429).then_some(())).unwrap();
    let trapped = Instant::now();
    // Longer than `eventually` waits: a heartbeat is cold after 30 s.
    while count(&envoy, "reservation_expired") < 50 {
        assert!(trapped.elapsed() < Duration::from_secs(45), "nothing expires");
        thread::sleep(Duration::from_millis(200));
    }
    idle(&envoy);
    assert_eq!(count(&envoy, "reservation_expired"), 50);
}
