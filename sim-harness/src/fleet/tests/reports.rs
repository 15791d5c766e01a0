//! What engines report, and what it is good for: two gateways that each see half
//! of the load.

use tidegate::pool::Reading;
use tidegate::time::Instant;

use super::super::pool::Replicas;
use super::super::scrape::Scraper;
use super::*;
use crate::engine::Job;

const METRICS: &str = r#", "load": {"metrics": {"cluster": "m", "interval_ms": 250}}"#;
const WHOLE_POOL: &str =
    r#", "load": {"metrics": {"cluster": "m", "interval_ms": 250, "covers": "pool"}}"#;
const ORCA: &str = r#", "load": {"orca": true}"#;

/// A short pool that spills, and a long one with room for that.
fn document(replicas: u32, load: &str) -> Arc<Config> {
    let document = format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
          {{"name": "short", "cluster": "short", "max_model_len": 4000, "spill": {{"dwell_ms": 250}},
            "capacity": {{"replicas": {replicas}, "requests": 16}}{load}}},
          {{"name": "long", "cluster": "long", "max_model_len": 32000,
            "capacity": {{"replicas": 3, "requests": 16}}}}]}}]}}"#
    );
    Arc::new(Config::parse(document.as_bytes()).unwrap())
}

fn replicas(name: &str, window: u32, replicas: u32) -> Pool {
    let mut pool = pool(name, window);
    (pool.replicas, pool.engine.max_num_seqs, pool.engine.num_gpu_blocks) = (replicas, 16, 8000);
    pool
}

/// For 50 seconds half as many again as the short pool serves: some 7 a second.
fn crowd(gateways: u32, load: &str) -> Scenario {
    let open = |rate, from, to| Source {
        start: from * SECOND,
        stop: to * SECOND,
        ..source("t", LengthSource::Fixed(500, 200), Arrivals::Open { rate, cv: 1.0 })
    };
    Scenario {
        config: document(1, load),
        gateways: Gateways { count: gateways, workers: 2, retry_too_long: true },
        policy: crate::policy::Policy::Tidegate,
        pools: vec![replicas("long", 32_000, 3), replicas("short", 4000, 1)],
        sources: vec![open(4.0, 0, 60), open(6.0, 10, 60)],
        end: 60 * SECOND,
        drain: 600 * SECOND,
        warm_up: 0,
    }
}

/// The short pool's p99 TTFT in milliseconds, and how many went elsewhere: means
/// of so many seeds.
fn short_pool(seeds: u64, gateways: u32, load: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for seed in 1..=seeds {
        let report = run(&crowd(gateways, load), seed).unwrap();
        sum.0 += pool_of(&report, "short").first_token.p99.unwrap() / MILLISECOND;
        sum.1 += pool_of(&report, "long").moved;
    }
    let mean = (sum.0 / seeds, sum.1 / seeds);
    println!("{seeds} seeds, {gateways} gateways{load}: {} ms, {} moved", mean.0, mean.1);
    mean
}

/// By its own ledger each of two gateways takes the short pool for half as full as
/// it is, and spills when a queue of a whole batch is there.
#[test]
fn engines_tell_of_what_another_gateway_sent() {
    let [alone, scraped, orca] = ["", METRICS, ORCA].map(|load| short_pool(3, 2, load));
    assert!(3 * scraped.0 < 2 * alone.0, "{scraped:?} {alone:?}");
    assert!(2 * scraped.1 > 3 * alone.1, "{scraped:?} {alone:?}");
    // A moving average of what ends is later, and does not say how many run.
    assert!(5 * orca.0 < 4 * alone.0 && scraped.0 < orca.0, "{orca:?} {alone:?}");
}

#[test]
fn one_replica_is_the_whole_pool() {
    assert_eq!(short_pool(1, 2, WHOLE_POOL), short_pool(1, 2, METRICS));
}

/// They say what it knows, a little later.
#[test]
fn engines_have_no_news_for_a_gateway_that_sent_it_all() {
    let (alone, scraped) = (short_pool(1, 1, ""), short_pool(1, 1, METRICS));
    assert!(alone.0 < 50 && scraped.0 < 50, "{alone:?} {scraped:?}");
    assert!(alone.1.abs_diff(scraped.1) < alone.1 / 10, "{alone:?} {scraped:?}");
}

/// What each of so many rounds tells of `pool`, of how many wait in each replica.
fn waiting(config: &Config, pool: &Replicas<'_>, rounds: u64) -> Vec<u64> {
    let (mut scraper, mut told) = (Scraper::default(), Vec::new());
    // Looked at twice as often as rounds are due.
    for look in 0..2 * rounds {
        let now = Instant::from_nanos(look * 125 * MILLISECOND);
        let only = |name: &str| (name == "short").then_some(pool);
        scraper.rounds(now, &config.capacities, &only, |capacity, mean| {
            assert_eq!((capacity.name.as_str(), mean.running), ("short", Some(0)));
            told.push(mean.waiting.unwrap());
        });
    }
    told
}

#[test]
fn replicas_are_asked_in_turn_and_one_that_is_down_is_not_idle() {
    let mut two = replicas("short", 4000, 2);
    let down = |replica, until| Fault { replica, during: (0, until), what: FaultKind::Down };
    two.faults = vec![down(0, 2 * SECOND), down(1, SECOND)];
    let mut pool = Replicas::new(&two).unwrap();
    let (one, both) = (document(1, METRICS), document(2, METRICS));
    let whole = document(2, WHOLE_POOL);
    // Nobody answers.
    for replica in 0..2 {
        pool.refresh(0, replica).unwrap();
    }
    for config in [&one, &both, &whole] {
        assert!(waiting(config, &pool, 3).is_empty());
    }
    // Replica 1 is back, and 20 wait there.
    pool.refresh(SECOND, 1).unwrap();
    for _ in 0..20 {
        pool.submit(SECOND, 1, &Job::new(100, 10)).unwrap();
    }
    assert_eq!(waiting(&both, &pool, 2), [20_000, 20_000]);
    // The call to the other one fails: that round tells nothing.
    assert_eq!(waiting(&one, &pool, 4), [20_000, 20_000]);
    // With both, an idle one counts.
    pool.refresh(2 * SECOND, 0).unwrap();
    assert_eq!(waiting(&one, &pool, 4), [0, 20_000, 0, 20_000]);
    for config in [&both, &whole] {
        assert_eq!(waiting(config, &pool, 2), [10_000, 10_000]);
    }
    let reading = pool.reading(1).unwrap();
    let told = Reading { waiting: Some(20_000), running: Some(0), kv_use: Some(0) };
    assert_eq!(reading, told);
    assert_eq!(super::super::scrape::in_answer(reading), Reading { running: None, ..told });
}
