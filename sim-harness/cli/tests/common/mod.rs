//! Shared by the tests against running pools.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::time::Duration;

use hyper::Response;
use hyper::body::Incoming;
use serde_json::Value;
use tidegate_sim_cli::client::{Client, Event, Events, read_all};
use tidegate_sim_cli::serve::{Handle, parse_pools, start};

/// A pool `short` of two replicas with a window of 200, a pool `long` of one
/// with 2,000; steps of a fifth of a millisecond.
pub async fn pools() -> Handle {
    let timing = r#"{"step_ms": 0.2, "prefill_us_per_token": 1, "decode_us_per_request": 1}"#;
    let text = format!(
        r#"{{"pools": [
            {{"name": "short", "model": "m", "max_model_len": 200, "ports": [0, 0], "timing": {timing}}},
            {{"name": "long", "model": "m", "max_model_len": 2000, "ports": [0], "timing": {timing}}}
        ]}}"#
    );
    start(parse_pools(text.as_bytes()).unwrap()).await.unwrap()
}

/// A client of a pool's first replica.
pub fn client(handle: &Handle, pool: &str) -> Client {
    Client::new(&format!("http://{}", handle.pool(pool)[0])).unwrap()
}

/// A JSON answer.
pub async fn json(response: Response<Incoming>) -> Value {
    serde_json::from_slice(&read_all(response.into_body()).await.unwrap()).unwrap()
}

/// A stream's documents, which must end with `[DONE]`.
pub async fn events(response: Response<Incoming>) -> Vec<Value> {
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let mut events = Events::new(response.into_body());
    let (mut documents, mut done) = (Vec::new(), false);
    while let Some(event) = events.next().await.unwrap() {
        assert!(!done, "{event:?} after [DONE]");
        match event {
            Event::Data(document) => documents.push(document),
            Event::Done => done = true,
            Event::Unreadable(text) => panic!("{text}"),
        }
    }
    assert!(done, "no [DONE]");
    documents
}

/// One of a replica's metrics, summed over its rows that contain `part`.
pub async fn metric(client: &Client, name: &str, part: &str) -> f64 {
    let response = client.send("GET", "/metrics", &[], "").await.unwrap();
    let text = String::from_utf8(read_all(response.into_body()).await.unwrap().into()).unwrap();
    let rows = text.lines().filter(|l| l.starts_with(&format!("{name}{{")) && l.contains(part));
    let values: Vec<f64> = rows.map(|l| l.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "no {name} with {part:?} in\n{text}");
    values.iter().sum()
}

/// Asks until a metric has a value.
pub async fn await_metric(client: &Client, name: &str, part: &str, value: f64) {
    let wait = async {
        while (metric(client, name, part).await - value).abs() > 1e-9 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let met = tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok();
    assert!(met, "{name} is {}, not {value}", metric(client, name, part).await);
}
