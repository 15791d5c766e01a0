//! What engines say of themselves in the shipped filter: one worker asks, all
//! know, and a report that does not come changes nothing.

mod support;

use std::time::Duration;
use support::{Worker, chat, used};
use tidegate_wasm_tests::{Host, Outcome, Response};

/// The short pool has room for many requests, so its own ledger never spills.
fn config(load: &str) -> String {
    format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
            {{"name": "short", "cluster": "short-cluster", "max_model_len": 8192,
              "capacity": {{"replicas": 2, "requests": 100}}, "load": {load},
              "spill": {{"enter": 0.9, "leave": 0.5, "dwell_ms": 0}}}},
            {{"name": "long", "cluster": "long-cluster", "max_model_len": 131072,
              "capacity": {{"replicas": 4, "requests": 100}}}}]}}]}}"#
    )
}

const METRICS: &str =
    r#"{"metrics": {"cluster": "engines", "path": "/metrics?x=1", "interval_ms": 500}}"#;

/// Where a request goes now; it is answered at once.
fn goes(worker: &Worker) -> String {
    let (exchange, pool) = worker.place();
    exchange.answer(&used(100, 10)).unwrap();
    pool
}

fn tick(worker: &Worker, millis: u64) {
    worker.host.advance(Duration::from_millis(millis));
    worker.vm.tick(worker.root).unwrap();
}

fn metrics(waiting: u64, running: u64, kv_use: f64) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {kv_use}\n"
    )
}

/// Answers all calls that are open, in turn with these.
fn answer(worker: &Worker, texts: &[String]) {
    let calls = worker.vm.calls();
    assert_eq!(calls.len(), texts.len());
    for (call, text) in calls.iter().zip(texts) {
        worker.vm.answer_call(call.token, 200, text.as_bytes()).unwrap();
    }
}

fn gauge(host: &Host, name: &str) -> u64 {
    host.gauge(&format!("tidegate.{name}")).unwrap()
}

#[test]
fn one_worker_asks_and_all_know() {
    let host = Host::new();
    host.add_cluster("engines");
    let config = config(METRICS);
    let [main, one, two] = ["main", "one", "two"].map(|name| Worker::on(&host, name, &config));
    assert_eq!(one.vm.tick_period(one.root).unwrap(), Some(Duration::from_millis(500)));
    assert_eq!((goes(&one), goes(&two)), ("short-cluster".into(), "short-cluster".into()));
    for worker in [&main, &one, &two] {
        tick(worker, 400);
        tick(worker, 400);
        tick(worker, 400);
    }
    assert_eq!((main.vm.calls().len(), two.vm.calls().len()), (0, 0));
    // As many calls as replicas, and no more while they are open.
    let calls = one.vm.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!((&*calls[0].cluster, calls[0].timeout), ("engines", Duration::from_millis(500)));
    assert_eq!(calls[0].headers.text(":path"), Some("/metrics?x=1"));
    // Others than this gateway's clients keep one of the two replicas busy.
    one.vm.answer_call(calls[1].token, 200, metrics(90, 100, 1.0).as_bytes()).unwrap();
    assert_eq!(goes(&two), "short-cluster", "a round is one only as a whole");
    one.vm.answer_call(calls[0].token, 200, metrics(0, 20, 0.1).as_bytes()).unwrap();
    assert_eq!(goes(&two), "long-cluster");
    // 210 requests, where two replicas take 200; 45 wait for each, beside 60.
    tick(&one, 500);
    tick(&one, 500);
    assert_eq!(gauge(&host, "pool_pressure.short"), 1750);
    let reported = ["waiting", "running", "kv"];
    let reported = reported.map(|what| gauge(&host, &format!("pool_reported_{what}.short")));
    assert_eq!(reported, [90, 120, 550]);
    // The next round finds both idle.
    let idle = metrics(0, 1, 0.01);
    answer(&one, &[idle.clone(), idle]);
    assert_eq!(goes(&one), "short-cluster");
    // A new configuration: what was asked for the old one is of no interest.
    tick(&one, 500);
    assert_eq!(one.vm.calls().len(), 2);
    assert!(one.vm.close(one.root).unwrap());
    assert_eq!(one.vm.calls().len(), 0);
}

#[test]
fn engines_that_fall_silent_leave_the_ledger_to_decide() {
    let host = Host::new();
    let worker = Worker::on(&host, "worker", &config(METRICS));
    goes(&worker);
    tick(&worker, 1000);
    // There is no such cluster: two calls failed at once.
    assert_eq!((worker.vm.calls().len(), worker.count("pool_scrape_failed.short")), (0, 2));
    host.add_cluster("engines");
    tick(&worker, 500);
    let full = metrics(300, 100, 1.0);
    answer(&worker, &[full.clone(), full]);
    assert_eq!(goes(&worker), "long-cluster");
    let stale = worker.count("pool_report_stale.short");
    // They die. For three intervals the last report counts.
    tick(&worker, 1000);
    let [first, second] = [0, 1].map(|at| worker.vm.calls()[at].token);
    worker.vm.fail_call(first).unwrap();
    worker.vm.answer_call(second, 503, b"no healthy upstream").unwrap();
    assert_eq!(worker.count("pool_scrape_failed.short"), 4);
    assert_eq!(goes(&worker), "long-cluster");
    tick(&worker, 501);
    assert_eq!(goes(&worker), "short-cluster");
    // What is no metrics, and what is too much of them.
    let long = metrics(300, 100, 1.0) + &"\n".repeat(4 << 20);
    answer(&worker, &["<html>".into(), long]);
    assert_eq!(worker.count("pool_scrape_failed.short"), 6);
    assert_eq!(worker.count("pool_report_stale.short"), stale);
    for _ in 0..3 {
        tick(&worker, 1000);
    }
    assert_eq!(worker.count("pool_report_stale.short"), stale + 3);
    assert_eq!(gauge(&host, "pool_reported_waiting.short"), 0);
    // One of two that answers is a report again.
    let calls = worker.vm.calls();
    worker.vm.fail_call(calls[0].token).unwrap();
    worker.vm.answer_call(calls[1].token, 200, metrics(0, 95, 0.2).as_bytes()).unwrap();
    assert_eq!(goes(&worker), "long-cluster");
    assert_eq!(worker.vm.trap(), None);
}

#[test]
fn an_aggregator_tells_of_the_whole_pool() {
    let host = Host::new();
    host.add_cluster("engines");
    let whole = METRICS.replace(r#""interval_ms""#, r#""covers": "pool", "interval_ms""#);
    let worker = Worker::on(&host, "worker", &config(&whole));
    goes(&worker);
    tick(&worker, 1000);
    let total = |more: u64| {
        let more = format!("vllm:num_requests_running{{engine=\"9\"}} {more}\n");
        vec![metrics(0, 120, 0.5) + &more]
    };
    answer(&worker, &total(30));
    assert_eq!(goes(&worker), "short-cluster", "75 of 100 in each");
    tick(&worker, 1000);
    assert_eq!(gauge(&host, "pool_reported_running.short"), 150);
    answer(&worker, &total(60));
    assert_eq!(goes(&worker), "long-cluster", "90 of 100 in each");
}

#[test]
fn answers_tell_how_busy_their_replica_is() {
    const HEADER: &str = "endpoint-load-metrics";
    let host = Host::new();
    let [one, two] =
        ["one", "two"].map(|name| Worker::on(&host, name, &config(r#"{"orca": true}"#)));
    let told = |worker: &Worker, report: &str| -> Outcome {
        worker.place().0.answer(&used(100, 10).header(HEADER, report)).unwrap()
    };
    let busy = "TEXT named_metrics.kv_cache_usage_perc=0.97, named_metrics.num_requests_waiting=0";
    // Whoever asked: the report is for the gateway.
    let request = chat(400).header("endpoint-load-metrics-format", "json");
    let sent = request.send(&one.vm, one.root).unwrap();
    let up = sent.stream().upstream_headers().unwrap();
    assert_eq!(up.text("endpoint-load-metrics-format"), Some("TEXT"));
    let outcome = sent.answer(&used(100, 10).header(HEADER, busy)).unwrap();
    assert_eq!(outcome.response_headers.get(HEADER), None);
    assert_eq!(outcome.status(), Some(200));
    assert_eq!(goes(&two), "long-cluster");
    host.advance(Duration::from_secs(10));
    assert_eq!(goes(&two), "long-cluster");
    host.advance(Duration::from_millis(1));
    assert_eq!(goes(&two), "short-cluster", "it is old");
    // One that answers in the place of the pool says nothing of the pool.
    let response = used(100, 10).header(HEADER, busy);
    let sent = chat(400).property(
        &["xds", "upstream_host_metadata", "filter_metadata", "tidegate", "pool"],
        "long",
    );
    sent.send(&one.vm, one.root).unwrap().answer(&response).unwrap();
    assert_eq!(goes(&two), "short-cluster");
    let outcome = told(&one, "BIN CgAA");
    assert_eq!(outcome.response_headers.get(HEADER), None);
    assert_eq!((one.count("orca_unreadable"), goes(&two)), (1, "short-cluster".into()));
    // In a dry run nothing is asked for, and what comes stays.
    let dry =
        config(r#"{"orca": true}"#).replacen(r#""version""#, r#""dry_run": true, "version""#, 1);
    let dry = Worker::on(&host, "dry", &dry);
    let sent = chat(400).send(&dry.vm, dry.root).unwrap();
    // Its VM is ten seconds younger than the report, and knows that it is old.
    assert_eq!(sent.stream().filter_state("tidegate_pool").unwrap().unwrap(), b"short");
    let up = sent.stream().upstream_headers().unwrap();
    assert_eq!(up.text("endpoint-load-metrics-format"), None);
    let outcome = sent.answer(&response).unwrap();
    assert_eq!(outcome.response_headers.text(HEADER), Some(busy));
}

/// What asking costs: beside what a pool with a capacity costs, one header up,
/// and one down that is read and taken out.
#[test]
fn a_report_in_an_answer_makes_the_known_host_calls() {
    let calls = |load: &str, response: &Response| {
        let worker = Worker::new(&config(load));
        let run = || worker.place().0.answer(response).unwrap();
        run();
        let sum = || worker.host.calls_by_callback().values().sum::<u64>();
        let before = sum();
        run();
        sum() - before
    };
    let report =
        used(100, 10).header("endpoint-load-metrics", "TEXT named_metrics.kv_cache_usage_perc=0.1");
    let plain = calls(METRICS, &used(100, 10));
    assert_eq!(calls(r#"{"orca": true}"#, &used(100, 10)), plain + 2);
    assert_eq!(calls(r#"{"orca": true}"#, &report), plain + 3);
}
