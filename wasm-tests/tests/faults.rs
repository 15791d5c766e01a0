//! The shipped filter when the host misbehaves, and what workers share.

mod support;

use std::time::Duration;
use support::{CONFIG, Worker, chat, chat_body, size, used};
use tidegate_wasm_tests::{Callback, Chunks, Host, HostCall, Response, Status};

fn estimate(worker: &Worker) -> u64 {
    let outcome = worker.run(chat(8000), &Response::new(503));
    outcome.state("tidegate_estimate").unwrap().parse().unwrap()
}

fn tick(host: &Host, workers: &[&Worker]) {
    host.advance(Duration::from_secs(1));
    for worker in workers {
        worker.vm.tick(worker.root).unwrap();
    }
}

#[test]
fn workers_learn_from_each_other() {
    let host = Host::new();
    let main = Worker::on(&host, "main", CONFIG);
    let (a, b) = (Worker::on(&host, "a", CONFIG), Worker::on(&host, "b", CONFIG));
    assert!(estimate(&b) < 3000, "nothing was learned");
    for _ in 0..30 {
        a.chat(8000, 4000);
    }
    tick(&host, &[&main, &a, &b]);
    tick(&host, &[&main, &a, &b]);
    assert!(estimate(&b).abs_diff(4000) < 10, "{}", estimate(&b));
    let parts =
        host.shared_keys("").iter().filter(|key| key.windows(5).any(|w| w == b".part")).count();
    assert_eq!(parts, 2, "the main thread's VM serves nothing and takes no part");
}

#[test]
fn a_trap_costs_the_vm_and_not_what_it_learned() {
    let host = Host::new();
    let worker = Worker::on(&host, "a", CONFIG);
    for _ in 0..30 {
        worker.chat(8000, 4000);
    }
    tick(&host, &[&worker]);
    // The VM runs out of fuel in the middle of a body, as a trap would end it.
    worker.vm.starve(Callback::RequestBody, 10_000);
    let dead = chat(8000).send(&worker.vm, worker.root);
    assert!(dead.is_err() || worker.vm.trap().is_some());
    worker.vm.reload().unwrap();
    assert!(estimate(&worker).abs_diff(4000) < 10, "{}", estimate(&worker));
    // Its old part is taken over once nobody beats its heart.
    host.advance(Duration::from_secs(31));
    for _ in 0..3 {
        tick(&host, &[&worker]);
    }
    worker.chat(8000, 4000);
    let parts =
        host.shared_keys("").iter().filter(|key| key.windows(5).any(|w| w == b".part")).count();
    assert_eq!(parts, 1, "the dead VM's part was taken over");
}

/// What one instance logs another takes as its prior, and estimates as well.
#[test]
fn what_was_learned_is_logged_and_can_be_given_back() {
    let host = Host::new();
    let config = support::config_with(r#""estimator": {"export_seconds": 10}"#);
    let worker = Worker::on(&host, "a", &config);
    for _ in 0..60 {
        worker.chat(8000, 4000);
    }
    for _ in 0..9 {
        tick(&host, &[&worker]);
    }
    let logged = |host: &Host| -> Vec<String> {
        let lines = host.log().into_iter().map(|line| line.text);
        lines.filter_map(|line| Some(line.split_once("learned ")?.1.to_owned())).collect()
    };
    assert!(logged(&host).is_empty(), "too early");
    tick(&host, &[&worker]);
    let learned = logged(&host).pop().expect("a line");
    let given = support::config_with(&format!(r#""estimator": {{"learned": {learned}}}"#));
    let (known, new) = (Worker::new(&given), Worker::new(CONFIG));
    let off = |worker: &Worker| estimate(worker).abs_diff(4000);
    assert!(off(&known) < 150 && off(&new) > 500, "{} and {}", off(&known), off(&new));
}

#[test]
fn shared_data_that_never_takes_a_write_does_no_harm() {
    let host = Host::new();
    let worker = Worker::on(&host, "a", CONFIG);
    host.fail(HostCall::SetSharedData, Status::CasMismatch, u64::MAX);
    for _ in 0..30 {
        worker.chat(8000, 4000);
        tick(&host, &[&worker]);
    }
    assert!(estimate(&worker).abs_diff(4000) < 10, "it goes on learning by itself");
    host.clear_faults();
    tick(&host, &[&worker]);
    assert!(worker.vm.trap().is_none());
}

#[test]
fn foreign_content_in_our_slots_does_no_harm() {
    let host = Host::new();
    let (a, b) = (Worker::on(&host, "a", CONFIG), Worker::on(&host, "b", CONFIG));
    a.chat(8000, 4000);
    tick(&host, &[&a, &b]);
    for key in host.shared_keys("") {
        host.set_shared_data("", &key, b"TGpt\x01\0\0\0nonsense", 0).unwrap();
    }
    for _ in 0..30 {
        a.chat(8000, 4000);
    }
    for _ in 0..3 {
        tick(&host, &[&a, &b]);
    }
    assert!(estimate(&b).abs_diff(4000) < 50, "sharing goes on: {}", estimate(&b));
    assert!(a.vm.trap().is_none() && b.vm.trap().is_none());
}

#[test]
fn clocks_that_jump_do_no_harm() {
    let host = Host::new();
    let worker = Worker::on(&host, "a", CONFIG);
    for step in [3_600_000_000_000, -3_600_000_000_000, 1, -5_000_000_000] {
        worker.chat(8000, 4000);
        host.jump_wall(step);
        tick(&host, &[&worker]);
    }
    host.jump_monotonic(86_400_000_000_000);
    for _ in 0..30 {
        worker.chat(8000, 4000);
    }
    assert!(estimate(&worker).abs_diff(4000) < 50, "{}", estimate(&worker));
}

#[test]
fn memory_reaches_a_plateau() {
    let worker = Worker::new(CONFIG);
    let requests = size(5_000, 100_000);
    let mut plateau = 0;
    for n in 0..requests {
        // Other models, sizes and ends each time; some are cut, some refused.
        let body = chat_body(200 + n % 977 * 40).replace("\"m\"", &format!("\"m{n}\""));
        let request = tidegate_wasm_tests::Request::json("/v1/chat/completions", body.into_bytes())
            .chunks(Chunks::Every(4096 + n % 5000));
        let exchange = request.send(&worker.vm, worker.root).unwrap();
        match n % 5 {
            0 => drop(exchange.abort().unwrap()),
            1 => drop(exchange.answer(&Response::new(503)).unwrap()),
            _ => drop(exchange.answer(&used(50 + n as u64 % 977 * 10, 5)).unwrap()),
        }
        if n % 100 == 0 {
            tick(&worker.host, &[&worker]);
        }
        if n == requests / 5 {
            plateau = worker.vm.memory_pages();
        }
    }
    let end = worker.vm.memory_pages();
    println!("{requests} requests: {plateau} pages after a fifth, {end} at the end");
    assert!(end <= plateau + 1, "{plateau} pages grew to {end}");
}
