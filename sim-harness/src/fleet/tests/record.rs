//! What is recorded of a run is what happened, and changes nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;
use crate::report::perfetto;

/// Follows the first replica of a pool for ever.
fn follow(pool: &str) -> Follow {
    Follow { pool: pool.into(), replica: 0, from: 0, until: u64::MAX }
}

/// All that can become of a request: too long for both pools, truncated, left,
/// queued.
fn busy() -> Scenario {
    let lengths = LengthSource::Drawn(AZURE_2023);
    let arrivals = Arrivals::Open { rate: 12.0, cv: 2.0 };
    let mut source = source("t", lengths, arrivals);
    source.caps = CapPolicy::Ladder;
    source.timeout = Some(3 * SECOND);
    source.texts = vec![(Kind::English, 2), (Kind::Json, 1)];
    scenario("", vec![source])
}

#[test]
fn a_record_adds_up_to_the_report_and_changes_nothing() {
    let scenario = busy();
    let plain = run(&scenario, 3).unwrap();
    let (report, record) = super::super::record(&scenario, 3, Some(follow("short"))).unwrap();
    assert_eq!(plain, report);
    assert_eq!(super::super::record(&scenario, 3, Some(follow("short"))).unwrap().1, record);
    let mut left = 0;
    for (pool, of) in report.pools.iter().zip(&record.pools) {
        let sum = |of_moment: fn(&PoolMoment) -> u64| of.moments.iter().map(of_moment).sum::<u64>();
        assert_eq!(of.name, pool.name);
        assert_eq!(of.lengths.iter().sum::<u64>(), pool.sent);
        for (found, expected) in [
            (sum(|moment| moment.sent), pool.sent),
            (sum(|moment| moment.refused), pool.refused),
            (sum(|moment| moment.left), pool.left),
            (sum(|moment| moment.under), pool.under_routed),
            (sum(|moment| moment.over), pool.over_routed),
            (sum(|moment| moment.truncated), pool.truncated),
        ] {
            assert_eq!(found, expected, "{}", pool.name);
        }
        // The mean over the record's times is the mean over the run.
        let kv: f64 = of.moments.iter().map(|moment| moment.kv).sum::<f64>() * record.width;
        assert!((kv / report.ended - pool.kv_mean).abs() < 1e-9, "{kv} {}", pool.kv_mean);
        let p99 = of.ttft.iter().find(|(share, _)| *share == 0.99).map(|(_, value)| *value);
        assert_eq!(p99, pool.first_token.p99.map(|nanos| nanos as f64 / SECOND as f64));
        left += pool.left;
    }
    assert!(left > 0 && record.pools.iter().all(|pool| !pool.ttft.is_empty()));
    assert_eq!(record.texts.iter().map(|text| text.requests).sum::<u64>(), report.asked());
    let tall = record.errors.iter().flatten().fold(0.0, |most: f64, error| most.max(*error));
    assert!(tall > report.errors.1, "{tall} {:?}", report.errors);
}

/// Names, times and durations in nanoseconds of the events of a phase.
fn events<'a>(trace: &'a Value, phase: &str) -> Vec<(&'a str, u64, u64, &'a Value)> {
    let nanos = |event: &Value, key: &str| {
        event.get(key).and_then(Value::as_f64).map_or(0, |micros| (micros * 1e3).round() as u64)
    };
    let all = trace["traceEvents"].as_array().unwrap().iter();
    let all = all.filter(|event| event["ph"] == phase);
    let name = |event: &'a Value| event["name"].as_str().unwrap();
    all.map(|event| (name(event), nanos(event, "ts"), nanos(event, "dur"), event)).collect()
}

#[test]
fn a_trace_has_the_steps_and_lives_of_its_replica() {
    // The second one waits for the step that the first one is in, and leaves
    // before its end.
    let mut impatient = traced("t", &[(505, 200, 400)]);
    impatient.timeout = Some(SECOND);
    let scenario = scenario("", vec![traced("t", &[(500, 100, 5)]), impatient]);
    let (_, record) = super::super::record(&scenario, 1, Some(follow("short"))).unwrap();
    let trace = record.trace.unwrap();
    let json: Value = serde_json::from_str(&perfetto(&trace)).unwrap();
    let steps = events(&json, "X");
    let (name, start, length, _) = steps[0];
    assert_eq!((name, start, length), ("prefill", 500 * MILLISECOND, 11 * MILLISECOND));
    assert_eq!((steps[1].0, steps[1].2), ("prefill + decode", 12 * MILLISECOND));
    assert_eq!((steps[2].0, steps[2].2), ("decode", 10 * MILLISECOND));
    assert!(steps.windows(2).all(|pair| pair[0].1 + pair[0].2 <= pair[1].1));
    // Busy without a pause from the first request's coming to the end.
    let last = steps.last().unwrap();
    let sum: u64 = steps.iter().map(|(_, _, length, _)| length).sum();
    assert_eq!(sum, last.1 + last.2 - start);
    let ms = |nanos: u64| nanos / MILLISECOND;
    let phases = |phase, job: u64| -> Vec<(&str, u64)> {
        let all = events(&json, phase).into_iter().filter(|(.., event)| event["id"] == job);
        all.map(|(name, at, ..)| (name, ms(at))).collect()
    };
    assert_eq!(trace.lives.len(), 2);
    let [first, second] = [trace.lives[0].job, trace.lives[1].job];
    let begins = [("request", 500), ("queued", 500), ("prefill", 500), ("decode", 511)];
    assert_eq!(phases("b", first), begins);
    let ends = [("queued", 500), ("prefill", 511), ("decode", 553), ("request", 553)];
    assert_eq!(phases("e", first), ends);
    assert_eq!(phases("b", second)[1..], [("queued", 505), ("prefill", 511), ("decode", 523)]);
    assert_eq!(phases("e", second)[2..], [("decode", 1505), ("request", 1505)]);
}

#[test]
fn a_busy_trace_is_sound() {
    let (_, record) = super::super::record(&busy(), 3, Some(follow("long"))).unwrap();
    let trace = record.trace.unwrap();
    assert!(trace.lives.iter().any(|life| life.left) && !trace.full);
    let json: Value = serde_json::from_str(&perfetto(&trace)).unwrap();
    let steps = events(&json, "X");
    assert!(steps.len() > 100);
    assert!(steps.windows(2).all(|pair| pair[0].1 + pair[0].2 <= pair[1].1));
    // Each request's slices end in the order opposite to that of their begin.
    let mut open: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for event in json["traceEvents"].as_array().unwrap() {
        let name = event["name"].as_str().unwrap();
        if event["ph"] == "b" {
            open.entry(event["id"].as_u64().unwrap()).or_default().push(name);
        } else if event["ph"] == "e" {
            assert_eq!(open.get_mut(&event["id"].as_u64().unwrap()).unwrap().pop(), Some(name));
        }
    }
    assert!(!open.is_empty() && open.values().all(Vec::is_empty));
}

#[test]
fn only_what_is_there_can_be_followed() {
    for (pool, replica) in [("short", 1), ("none", 0)] {
        let follow = Follow { pool: pool.into(), replica, from: 0, until: 1 };
        let error = super::super::record(&busy(), 1, Some(follow)).unwrap_err().to_string();
        let known = format!("no replica is {pool}/{replica}; there are long/0, short/0");
        assert_eq!(error, known);
    }
}
