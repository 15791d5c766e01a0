//! Replicas that fail on purpose, and what they say of their load.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

mod common;

use std::time::{Duration, Instant};

use common::{await_metric, client, json, pools};
use serde_json::{Value, json};
use tidegate_sim_cli::client::{Client, Events};
use tidegate_sim_cli::serve::{Admin, Handle};

const CHAT: &str = "/v1/chat/completions";
const WANTS_20: &[(&str, &str)] = &[("x-sim-output-tokens", "20")];

fn chat(fields: &Value) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

/// A client of the admin listener, and what ends it.
async fn admin(handle: Handle) -> (Client, impl AsyncFnOnce() -> Handle) {
    let admin = Admin::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = Client::new(&format!("http://{}", admin.address().unwrap())).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(admin.serve(handle, async { drop(ended.await) }));
    let end = async move || {
        drop(end);
        serving.await.unwrap().unwrap()
    };
    (client, end)
}

const FAULT: &str = "/replicas/short/0/fault";

async fn set(admin: &Client, fault: Value) {
    let response = admin.send("PUT", FAULT, &[], fault.to_string()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(json(response).await["replicas"][0]["fault"], fault);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_shows_and_heals() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let (admin, end) = admin(handle).await;
    let full = || client.post(CHAT, WANTS_20, chat(&json!({})));
    let stream = || client.post(CHAT, WANTS_20, chat(&json!({"stream": true})));

    set(&admin, json!({"kind": "status", "status": 503})).await;
    assert_eq!(full().await.unwrap().status(), 503);
    assert_eq!(client.send("GET", "/health", &[], "").await.unwrap().status(), 200);

    set(&admin, json!({"kind": "reset", "after_tokens": 5})).await;
    assert!(full().await.is_err(), "an answer that is not streamed has no first byte");
    let mut events = Events::new(stream().await.unwrap().into_body());
    let mut seen = 0;
    let broken = loop {
        match events.next().await {
            Ok(Some(_)) => seen += 1,
            Ok(None) => panic!("the stream ended in order"),
            Err(error) => break error,
        }
    };
    assert_eq!(seen, 1 + 5, "the role and five tokens, then {broken}");
    // What was cut is no longer in the engine.
    await_metric(&client, "vllm:num_requests_running", "", 0.0).await;

    set(&admin, json!({"kind": "stalled"})).await;
    let mut stalled = std::pin::pin!(full());
    let silent = tokio::time::timeout(Duration::from_millis(100), &mut stalled).await;
    assert!(silent.is_err(), "a stalled replica answered");
    await_metric(&client, "vllm:num_requests_waiting", "", 1.0).await;
    assert_eq!(admin.send("DELETE", FAULT, &[], "").await.unwrap().status(), 200);
    assert_eq!(stalled.await.unwrap().status(), 200, "it goes on where it stood");

    set(&admin, json!({"kind": "crash"})).await;
    assert!(full().await.is_err());
    set(&admin, json!({"kind": "slow", "factor": 1000.0})).await;
    let started = Instant::now();
    let mut slow = std::pin::pin!(full());
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut slow).await.is_err());
    admin.send("DELETE", FAULT, &[], "").await.unwrap();
    slow.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "20 steps of 0.2 s each were due");

    // By itself, after its time; a later fault is not healed by an earlier one.
    let brief = json!({"kind": "status", "status": 500, "seconds": 0.05}).to_string();
    admin.send("PUT", FAULT, &[], brief.clone()).await.unwrap();
    admin
        .send("PUT", FAULT, &[], json!({"kind": "status", "status": 501}).to_string())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(full().await.unwrap().status(), 501);
    admin.send("PUT", FAULT, &[], brief).await.unwrap();
    let healed = async { while full().await.unwrap().status() != 200 {} };
    tokio::time::timeout(Duration::from_secs(10), healed).await.expect("it stayed ill");
    end().await.stop().await;
}

#[tokio::test]
async fn the_admin_says_what_is_wrong_with_a_call() {
    let (admin, end) = admin(pools().await).await;
    for (method, path, body, status, part) in [
        ("GET", "/", "", 404, "GET /replicas"),
        ("POST", "/replicas", "", 405, "only GET"),
        ("GET", FAULT, "", 405, "only PUT and DELETE"),
        ("PUT", "/replicas/short/2/fault", "", 404, "no replica short/2; there are: short/0"),
        ("PUT", "/replicas/short/x/fault", "", 404, "there are: short/0"),
        ("PUT", FAULT, "{", 400, "not JSON"),
        ("PUT", FAULT, r#"{"kind": "fire"}"#, 400, "found \"fire\"; allowed: slow, stalled"),
    ] {
        let response = admin.send(method, path, &[], body).await.unwrap();
        assert_eq!(response.status(), status, "{method} {path} {body}");
        let error = json(response).await["error"].as_str().unwrap().to_owned();
        assert!(error.contains(part), "{error}");
    }
    end().await.stop().await;
}

#[tokio::test]
async fn the_load_report_comes_to_who_asks() {
    let handle = pools().await;
    let client = client(&handle, "short");
    let header = "endpoint-load-metrics";
    for (format, report) in [
        (
            "text",
            "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0",
        ),
        (
            "JSON",
            r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#,
        ),
    ] {
        let asks: &[_] = &[("endpoint-load-metrics-format", format)];
        let answer = client.post(CHAT, asks, chat(&json!({}))).await.unwrap();
        assert_eq!(answer.headers()[header], report);
    }
    let plain = client.post(CHAT, &[], chat(&json!({}))).await.unwrap();
    assert!(!plain.headers().contains_key(header));
}
