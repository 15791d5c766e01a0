//! Requests that wait, in a real Envoy: they go when there is room, leave when
//! their time is over, and nobody is forgotten.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::{count, gateway, size};
use tidegate_envoy_support::{Answer, Backend, Connection, Request, eventually, missing};

/// A pool of so many requests at a time.
fn config(requests: u64, entitlements: &str) -> String {
    format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
            {{"name": "short", "cluster": "short", "max_model_len": 8192,
              "capacity": {{"replicas": {requests}, "requests": 1}}}},
            {{"name": "long", "cluster": "long", "max_model_len": 131072}}]}}],
        "tenants": {{"from": [{{"header": "x-team"}}], "default": "others", "entitlements": [
            {{"name": "others", "tokens_per_second": 1000000, "on_limit": "hold",
              "ttft_target_ms": 1000}}, {entitlements}]}}}}"#
    )
}

fn request(team: &str) -> Vec<u8> {
    let body = r#"{"model":"m","prompt":[1,2,3,4,5,6],"max_tokens":4}"#;
    Request::post("/v1/completions", body).with("x-team", team).bytes()
}

const USED: &str = r#"{"usage":{"prompt_tokens":6,"completion_tokens":4}}"#;

/// 32 clients want more than the pool can do; two tenants share it two to
/// one, over several workers; the upstream never sees more than fits.
#[test]
fn two_tenants_share_a_full_pool_by_weight() {
    if missing() {
        return;
    }
    let seconds = size(4, 60) as u64;
    for workers in [2, 4] {
        static OPEN: AtomicU64 = AtomicU64::new(0);
        static MOST: AtomicU64 = AtomicU64::new(0);
        let backend = Backend::start(|_| {
            MOST.fetch_max(OPEN.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(40)); // what a request takes
            OPEN.fetch_sub(1, Ordering::SeqCst);
            Answer::json(200, USED)
        })
        .unwrap();
        let patient = r#""ttft_target_ms": 60000"#;
        let envoy = gateway(
            &backend,
            workers,
            &config(
                4,
                &format!(r#"{{"name": "a", "weight": 2, {patient}}}, {{"name": "b", {patient}}}"#),
            ),
        );
        let (stop, served) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
        let got = thread::scope(|scope| {
            for client in 0..32 {
                let (stop, served, envoy) = (&stop, &served, &envoy);
                scope.spawn(move || {
                    let bytes = request(["a", "b"][client % 2]);
                    let mut connection = Connection::open(envoy.port()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        connection.write(&bytes).unwrap();
                        assert_eq!(connection.response().unwrap().status, 200);
                        served[client % 2].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let now = || [0, 1].map(|at: usize| served[at].load(Ordering::Relaxed));
            let wait = |seconds| {
                let end = Instant::now() + Duration::from_secs(seconds);
                while Instant::now() < end {
                    thread::sleep(Duration::from_millis(20));
                }
            };
            wait(1);
            let before = now();
            wait(seconds);
            let after = now();
            stop.store(true, Ordering::Relaxed);
            [after[0] - before[0], after[1] - before[1]]
        });
        let ratio = got[0] as f64 / got[1] as f64;
        println!("{workers} workers, {seconds} s: {got:?} requests, {ratio:.3} to 1 (2 promised)");
        let tolerance = if seconds >= 60 { 0.03 } else { 0.1 };
        assert!((ratio / 2.0 - 1.0).abs() <= tolerance, "{got:?}");
        assert!(MOST.load(Ordering::SeqCst) <= 4, "more than fits");
        assert!(count(&envoy, "held") > 0);
        eventually("all to end", || {
            let gauge = |name: &str| count(&envoy, name);
            (gauge("pool_requests.short") == 0 && gauge("tenant_requests.a") == 0).then_some(())
        })
        .unwrap();
    }
}

/// What waits is let go at once when another ends, refused when its time is
/// over, and forgotten when its client leaves.
#[test]
fn a_held_request_goes_or_leaves_in_time() {
    if missing() {
        return;
    }
    let (gate, came) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let backend = {
        let (gate, came) = (Arc::clone(&gate), Arc::clone(&came));
        Backend::start(move |_| {
            came.fetch_add(1, Ordering::SeqCst);
            drop(gate.lock());
            Answer::json(200, USED)
        })
        .unwrap()
    };
    let came = || came.load(Ordering::SeqCst);
    let envoy = gateway(&backend, 1, &config(2, r#"{"name": "a"}"#));
    let closed = gate.lock().unwrap();
    let open = || {
        let mut connection = Connection::open(envoy.port()).unwrap();
        connection.write(&request("a")).unwrap();
        connection
    };
    let mut first = [open(), open()];
    eventually("two to be open", || (came() == 2).then_some(())).unwrap();
    let gone = open();
    eventually("it to be held", || (count(&envoy, "held") == 1).then_some(())).unwrap();
    drop(gone);
    eventually("it to have left", || (count(&envoy, "held_left") == 1).then_some(())).unwrap();
    let start = Instant::now();
    let mut late = open();
    let refused = late.response().unwrap();
    let waited = start.elapsed().as_millis();
    assert_eq!(refused.status, 429);
    assert!((1000..1500).contains(&waited), "{waited} ms");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let mut waits = open();
    eventually("it to be held", || (count(&envoy, "held") == 3).then_some(())).unwrap();
    drop(closed);
    for connection in &mut first {
        assert_eq!(connection.response().unwrap().status, 200);
    }
    assert_eq!(waits.response().unwrap().status, 200);
    assert_eq!(came(), 3, "what was refused or left never went up");
    eventually("all to end", || (count(&envoy, "pool_requests.short") == 0).then_some(())).unwrap();
}
