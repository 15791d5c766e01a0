//! A burst of long requests, with spill and without.

use super::*;

/// Requests above 2,000 tokens are for the long pool; those of the burst fit the
/// short one as well.
fn burst(spill: &str) -> Scenario {
    let capacity = r#""capacity": {"replicas": 1, "requests": 16}"#;
    let document = format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [
          {{"name": "short", "cluster": "short", "max_model_len": 8000, "threshold": 2000,
            {capacity}{spill}}},
          {{"name": "long", "cluster": "long", "max_model_len": 32000, {capacity}{spill}}}]}}]}}"#
    );
    let pool = |name, window| {
        let mut pool = pool(name, window);
        pool.engine.max_num_seqs = 16;
        pool.engine.num_gpu_blocks = 8000;
        pool
    };
    // Each of the two pools serves some 16 of the long ones a second.
    let open = |tenant: &str, prompt, rate, from, to| Source {
        start: from * SECOND,
        stop: to * SECOND,
        caps: CapPolicy::Actual,
        ..source(tenant, LengthSource::Fixed(prompt, 40), Arrivals::Open { rate, cv: 1.0 })
    };
    Scenario {
        config: Arc::new(Config::parse(document.as_bytes()).unwrap()),
        gateways: Gateways { count: 1, workers: 2, retry_too_long: true },
        policy: crate::policy::Policy::Tidegate,
        pools: vec![pool("long", 32_000), pool("short", 8000)],
        sources: vec![
            open("short", 300, 4.0, 0, 120),
            open("long", 4000, 6.0, 0, 120),
            // Five times as many for half a minute.
            open("burst", 4000, 24.0, 30, 60),
            // Who comes half a minute after its end.
            open("after", 4000, 1.0, 90, 120),
        ],
        end: 120 * SECOND,
        drain: 600 * SECOND,
        warm_up: 0,
    }
}

fn p99(report: &Report, tenant: &str) -> u64 {
    let found = report.tenants.iter().find(|one| one.name == tenant).unwrap();
    found.first_token.p99.unwrap() / MILLISECOND
}

#[test]
fn a_burst_is_shared_without_swinging_and_is_over_when_it_is_over() {
    let calm = run(&burst(r#", "spill": {"dwell_ms": 5000}"#), 1).unwrap();
    let alone = run(&burst(""), 1).unwrap();
    let restless = r#", "spill": {"enter": 0.6, "leave": 0.59, "dwell_ms": 0}"#;
    let restless = run(&burst(restless), 1).unwrap();
    // Printed: p99 of the TTFT in the burst and later, moved, changes.
    for (name, report) in [("spill", &calm), ("none", &alone), ("no hysteresis", &restless)] {
        let pools: Vec<(u64, u64)> =
            report.pools.iter().map(|pool| (pool.moved, pool.spill_changes)).collect();
        println!("{name}: {} ms, {} ms; {pools:?}", p99(report, "burst"), p99(report, "after"));
    }
    // At most twice in ten seconds, over the burst and its end.
    for pool in &calm.pools {
        assert!(pool.spill_changes <= 12, "{pool:?}");
    }
    assert!(pool_of(&calm, "short").moved > 50);
    assert!(p99(&calm, "after") < 2000, "it is over");
    // Without spill the queue is still there; without marks apart it swings.
    assert!(p99(&alone, "after") > 3 * p99(&calm, "after"));
    assert!(restless.pools.iter().any(|pool| pool.spill_changes > 24), "{restless:?}");
}
