//! What engines say of themselves, in a real Envoy before live pools: others than
//! its clients keep a pool busy, and what comes through the gateway gives way.

mod support;

use support::count;
use tidegate_envoy_support::{
    Answer, Backend, Connection, Envoy, Request, Response, eventually, missing,
};
use tidegate_sim_cli::serve::{self, Handle};

/// Two long prompts fill most of a short replica's KV cache, and leave room for
/// small ones.
const POOLS: &str = r#"{"pools": [
    {"name": "short", "model": "m", "max_model_len": 8192, "ports": [0, 0],
     "timing": {"step_ms": 20}, "engine": {"kv_cache_tokens": 16384}},
    {"name": "long", "model": "m", "max_model_len": 131072, "ports": [0, 0],
     "timing": {"step_ms": 20}}]}"#;

/// By its own ledger the short pool is as good as empty.
fn config(load: &str) -> String {
    format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
            {{"name": "short", "cluster": "short", "max_model_len": 8192,
              "capacity": {{"replicas": 2, "requests": 1000}}, "load": {load},
              "spill": {{"enter": 0.7, "leave": 0.5, "dwell_ms": 100}}}},
            {{"name": "long", "cluster": "long", "max_model_len": 131072,
              "capacity": {{"replicas": 2, "requests": 1000}}}}]}}]}}"#
    )
}

/// A cluster of its own for the metrics: its endpoints are taken in turn.
fn metrics_cluster(ports: [u16; 2]) -> String {
    let [a, b] = ports.map(|port| {
        format!(
            "      - endpoint: {{ address: {{ socket_address: \
             {{ address: 127.0.0.1, port_value: {port} }} }} }}\n"
        )
    });
    format!(
        "  clusters:\n  - name: short_metrics\n    connect_timeout: 1s\n    \
         lb_policy: ROUND_ROBIN\n    load_assignment:\n      cluster_name: short_metrics\n      \
         endpoints:\n      - lb_endpoints:\n  {a}  {b}"
    )
}

struct Fleet {
    runtime: tokio::runtime::Runtime,
    pools: Handle,
}

impl Fleet {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let pools = serve::parse_pools(POOLS.as_bytes()).unwrap();
        let pools = runtime.block_on(serve::start(pools)).unwrap();
        Self { runtime, pools }
    }

    fn ports(&self, name: &str) -> [u16; 2] {
        let ports: Vec<u16> = self.pools.pool(name).iter().map(|a| a.port()).collect();
        ports.try_into().unwrap()
    }

    fn envoy(&self, metrics: [u16; 2], load: &str) -> Envoy {
        let envoy = Envoy::builder()
            .backends(self.ports("short"), self.ports("long"))
            .replace("  clusters:\n", &metrics_cluster(metrics))
            .configuration(&config(load))
            .health_interval("0.05s")
            .workers(2)
            .exact_balance()
            .start()
            .unwrap();
        // Under load a first look at the replicas' health may come to nothing.
        eventually("the short pool to answer", || {
            (ask(&envoy, false).header("x-sim-pool") == Some("short")).then_some(())
        })
        .unwrap();
        envoy
    }

    /// Requests that do not pass the gateway: two for each short replica. They go
    /// on for a minute, or until they are dropped.
    fn others(&self) -> Vec<Connection> {
        let mut open = Vec::new();
        for (at, port) in self.ports("short").into_iter().cycle().take(4).enumerate() {
            let first = at * 10_000;
            let ids: Vec<String> = (first..first + 6500).map(|id| id.to_string()).collect();
            let body = format!(r#"{{"model":"m","prompt":[{}],"max_tokens":1600}}"#, ids.join(","));
            let request =
                Request::post("/v1/completions", body).with("x-sim-output-tokens", "1600");
            let mut connection = Connection::open(port).unwrap();
            connection.write(&request.bytes()).unwrap();
            open.push(connection);
        }
        open
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for index in 0..2 {
            for pool in ["short", "long"] {
                self.runtime.block_on(self.pools.kill(pool, index)).unwrap();
            }
        }
    }
}

/// One small request through the gateway.
fn ask(envoy: &Envoy, stream: bool) -> Response {
    let body =
        format!(r#"{{"model":"m","prompt":"hello there","max_tokens":2,"stream":{stream}}}"#);
    let request = Request::post("/v1/completions", body).with("x-sim-output-tokens", "2");
    let response = request.send(envoy.port()).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("endpoint-load-metrics"), None);
    response
}

fn goes_to(envoy: &Envoy, pool: &str, reason: &str) {
    eventually(&format!("requests to go to {pool} for {reason}"), || {
        let response = ask(envoy, false);
        let told = (response.header("x-tidegate-pool"), response.header("x-tidegate-reason"));
        (told == (Some(pool), Some(reason))).then_some(())
    })
    .unwrap();
}

#[test]
fn a_pool_that_others_keep_busy_is_seen_by_its_metrics() {
    if missing() {
        return;
    }
    let fleet = Fleet::start();
    // In front of each replica's metrics, so that they can die alone.
    let proxies = fleet.ports("short").map(|port| {
        Backend::start(move |request| match Request::get(&request.path).send(port) {
            Ok(response) => Answer::json(response.status, response.text()),
            Err(_) => Answer::nothing(),
        })
        .unwrap()
    });
    let load = r#"{"metrics": {"cluster": "short_metrics", "interval_ms": 200}}"#;
    let envoy = fleet.envoy([0, 1].map(|at: usize| proxies[at].port()), load);
    let kv_use = || count(&envoy, "pool_reported_kv.short");
    goes_to(&envoy, "short", "threshold");
    let others = fleet.others();
    goes_to(&envoy, "long", "spill");
    eventually("the gauge to show it", || (kv_use() >= 700).then_some(())).unwrap();
    assert_eq!(count(&envoy, "pool_reported_running.short"), 4);
    let prometheus = envoy.prometheus().unwrap();
    assert!(prometheus.contains(r#"tidegate_pool_reported_kv{pool="short"}"#), "{prometheus}");
    let asked = [0, 1].map(|at: usize| proxies[at].requests().len());
    assert!(asked[0].abs_diff(asked[1]) <= 1 && asked[0] >= 2, "not in turn: {asked:?}");
    drop(others);
    goes_to(&envoy, "short", "threshold");
    // The engines fall silent while others come back: the ledger alone decides.
    drop(proxies);
    let _others = fleet.others();
    let stale = count(&envoy, "pool_report_stale.short");
    eventually("the report to be old", || {
        ask(&envoy, false);
        (count(&envoy, "pool_report_stale.short") > stale + 1).then_some(())
    })
    .unwrap();
    assert!(count(&envoy, "pool_scrape_failed.short") > 0);
    assert_eq!(kv_use(), 0);
    assert_eq!(ask(&envoy, false).header("x-tidegate-pool"), Some("short"));
}

/// Envoy answers such calls within the tick that makes them.
#[test]
fn clusters_that_are_not_there_or_empty_break_nothing() {
    if missing() {
        return;
    }
    let fleet = Fleet::start();
    let empty = "  clusters:\n  - name: empty\n    connect_timeout: 1s\n    \
                 load_assignment: { cluster_name: empty }\n";
    let load =
        |cluster: &str| format!(r#"{{"metrics": {{"cluster": "{cluster}", "interval_ms": 100}}}}"#);
    let long = format!(r#""max_model_len": 131072, "load": {},"#, load("empty"));
    let config = config(&load("nobody")).replace(r#""max_model_len": 131072,"#, &long);
    let envoy = Envoy::builder()
        .backends(fleet.ports("short"), fleet.ports("long"))
        .replace("  clusters:\n", empty)
        .configuration(&config)
        .start()
        .unwrap();
    eventually("calls to fail", || {
        assert_eq!(ask(&envoy, false).header("x-tidegate-pool"), Some("short"));
        let failed =
            ["short", "long"].map(|pool| count(&envoy, &format!("pool_scrape_failed.{pool}")));
        failed.iter().all(|count| *count > 4).then_some(())
    })
    .unwrap();
    assert!(!envoy.log().contains("panicked"), "{}", envoy.log());
}

#[test]
fn a_pool_that_others_keep_busy_is_seen_by_its_answers() {
    if missing() {
        return;
    }
    let fleet = Fleet::start();
    let envoy = fleet.envoy(fleet.ports("short"), r#"{"orca": true}"#);
    let _others = fleet.others();
    // As vLLM, streamed answers carry no report.
    for _ in 0..5 {
        assert_eq!(ask(&envoy, true).header("x-tidegate-pool"), Some("short"));
    }
    goes_to(&envoy, "long", "spill");
    eventually("the gauge to show it", || {
        (count(&envoy, "pool_reported_kv.short") >= 700).then_some(())
    })
    .unwrap();
    // Nobody asks the pool now: after ten seconds its last word is old.
    goes_to(&envoy, "short", "threshold");
    assert_eq!(count(&envoy, "orca_unreadable"), 0);
}
