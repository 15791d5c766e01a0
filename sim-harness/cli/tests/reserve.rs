//! What a tenant gets of its rate when its clients set caps far above what
//! they need: the core on virtual time, every cap eight times the output.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate::config::Config;
use tidegate::gate::{Answer, Body, Gate, Ticket};
use tidegate::request::{Api, RequestFacts, Scanner};
use tidegate::share::LocalSlots;
use tidegate::tenant::Admission;
use tidegate::time::Instant;
use tidegate::usage::Usage;
use tidegate_sim::workload::{AZURE_2023, LMSYS_CHAT_1M, Lengths, Request, synthesize};

/// Tokens a second that the tenant is promised.
const RATE: u64 = 20_000;
/// What comes in is so many times the rate.
const DEMAND: f64 = 2.0;
const SECOND: u64 = 1_000_000_000;
/// A first token after 0.2 s, then one each 20 ms.
const FIRST: u64 = SECOND / 5;
const EACH: u64 = SECOND / 50;

/// The full size, under `make prove`.
fn full() -> bool {
    std::env::var_os("TIDEGATE_PROVE").is_some()
}

/// Seconds that are not counted: the burst is used up, output lengths are learned.
fn warm() -> u64 {
    if full() { 250 } else { 60 }
}

/// Seconds that are.
fn counted() -> u64 {
    if full() { 600 } else { 100 }
}

/// Twice as much as the tenant may have, in Poisson arrivals, with answers so
/// many times as long as published.
fn demand(lengths: &Lengths, times: u32) -> Vec<(Request, RequestFacts)> {
    let draw = |count, rate| {
        let mut requests = synthesize(lengths, count, rate, 1);
        for request in &mut requests {
            request.output_tokens *= times;
        }
        requests
    };
    let mean = |requests: &[Request]| {
        let tokens = |r: &Request| f64::from(r.input_tokens) + f64::from(r.output_tokens);
        requests.iter().map(tokens).sum::<f64>() / requests.len() as f64
    };
    let sample = draw(10_000, 1.0);
    let rate = DEMAND * RATE as f64 / mean(&sample);
    // More than come in time.
    let count = 1.1 * rate * (warm() + counted()) as f64;
    let mut requests = draw(count as usize, rate);
    assert!(requests.last().unwrap().arrival > (warm() + counted()) * SECOND);
    requests.retain(|request| request.arrival < (warm() + counted()) * SECOND);
    requests.into_iter().map(|request| (request, facts(&request))).collect()
}

/// Token ids: the prompt's estimate is exact, so only caps matter.
fn facts(request: &Request) -> RequestFacts {
    let ids = vec!["7"; request.input_tokens as usize].join(",");
    let cap = 8 * request.output_tokens;
    let body = format!(r#"{{"model":"m","prompt":[{ids}],"max_tokens":{cap}}}"#);
    let mut scanner = Scanner::new(Api::Completions, b"/v1/completions");
    scanner.feed(body.as_bytes());
    scanner.finish().unwrap()
}

/// The share of its rate that a tenant gets.
fn delivered(
    requests: &[(Request, RequestFacts)],
    reserve_output: &str,
    burst_seconds: u64,
) -> f64 {
    let config = format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
            {{"name": "pool", "cluster": "pool", "max_model_len": 131072}}]}}],
        "tenants": {{"default": "acme", "from": [], "entitlements": [
            {{"name": "acme", "tokens_per_second": {RATE}, "burst": {},
              "reserve_output": "{reserve_output}"}}]}}}}"#,
        RATE * burst_seconds
    );
    let config = Config::parse(config.as_bytes()).unwrap();
    let (settings, tenants) = (config.base(), config.tenants.as_ref().unwrap());
    let tenant = tenants.default();
    let (mut gate, mut memory) = (Gate::new("tidegate", 1), LocalSlots::default());
    gate.ledger().open(&mut memory, tenants.all(), &[]);
    let mut open: BTreeMap<usize, Ticket> = BTreeMap::new();
    let mut ends = BinaryHeap::new();
    let mut settled = 0;
    let mut close = |gate: &mut Gate, memory: &mut LocalSlots, at, ticket, request: &Request| {
        let usage = Usage {
            input: Some(request.input_tokens.into()),
            output: Some(request.output_tokens.into()),
            ..Usage::default()
        };
        let answer = Answer {
            status: Some(200),
            usage: Some(Ok(usage)),
            complete: true,
            ..Answer::default()
        };
        let settlement = gate.close(Instant::from_nanos(at), memory, ticket, &answer);
        if at >= warm() * SECOND {
            settled += settlement.charged.unwrap().actual;
        }
    };
    for (number, (request, facts)) in requests.iter().enumerate() {
        while let Some(&Reverse((at, ended))) = ends.peek()
            && at <= request.arrival
        {
            ends.pop();
            let ticket = open.remove(&ended).unwrap();
            close(&mut gate, &mut memory, at, ticket, &requests[ended].0);
        }
        let (mut ticket, _) = gate.open(settings, Body::Whole(facts.clone()));
        let now = Instant::from_nanos(request.arrival);
        match gate.admit(now, &mut memory, &config, tenant, &mut ticket, None) {
            Admission::Admitted(..) => {
                open.insert(number, ticket);
                let took = FIRST + EACH * u64::from(request.output_tokens);
                ends.push(Reverse((request.arrival + took, number)));
            }
            Admission::Refused(_) => {}
            other => panic!("nobody else uses the memory, and nobody waits: {other:?}"),
        }
    }
    settled as f64 / (RATE * counted()) as f64
}

#[test]
fn learned_reserves_deliver_the_rate_under_caps_of_eight_times_the_output() {
    let bursts: &[u64] = if full() { &[2, 5, 10, 20, 40] } else { &[2, 10] };
    let of = |name: &str, lengths: &Lengths, times, holds_from: u64| {
        let requests = demand(lengths, times);
        let answers: f64 = requests.iter().map(|(r, _)| f64::from(r.output_tokens)).sum();
        println!("{name}: {:.0} tokens an answer, burst of", answers / requests.len() as f64);
        for reserve in ["learned", "cap"] {
            print!("  {reserve:<8} delivers");
            for burst in bursts.iter().copied() {
                let share = delivered(&requests, reserve, burst);
                print!("{burst:>5} s {:.1} %", 100.0 * share);
                // More was admitted just before the time than just before its end.
                assert!(share < 1.05, "{name}, burst {burst}: {share}");
                if reserve == "learned" && burst >= holds_from {
                    assert!(share >= 0.95, "{name}, burst {burst}: {share}");
                }
            }
            println!();
        }
    };
    of("LMSYS", &LMSYS_CHAT_1M, 1, 2);
    of("Azure", &AZURE_2023, 1, 2);
    if full() {
        of("LMSYS, 8 times as long", &LMSYS_CHAT_1M, 8, 40);
    }
}
