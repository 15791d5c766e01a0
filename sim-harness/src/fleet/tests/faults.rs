//! Replicas that fail, and clients that try again.

use super::*;

fn down(replica: u32, from: u64, to: u64) -> Fault {
    Fault { replica, during: (from * SECOND, to * SECOND), what: FaultKind::Down }
}

/// Requests of 0.9 s each, one a second, to a short pool of two replicas.
fn steady(faults: Vec<Fault>, retries: u32) -> Report {
    let rows: Vec<(u64, u32, u32)> = (0..40).map(|nth| (nth * 1_000 + 500, 100, 90)).collect();
    let mut source = traced("t", &rows);
    source.retries = retries;
    let mut scenario = scenario("", vec![source]);
    (scenario.end, scenario.pools[1].replicas) = (60 * SECOND, 2);
    scenario.pools[1].faults = faults;
    run(&scenario, 1).unwrap()
}

#[test]
fn what_a_replica_had_is_lost_and_clients_ask_again() {
    // At 10 s the request of 9.5 is in the first replica, which is back before
    // anybody has looked twice.
    let report = steady(vec![down(0, 10, 11)], 0);
    let (short, tenant) = (pool_of(&report, "short"), &report.tenants[0]);
    assert_eq!((short.downs, short.lost, short.left), (1, 1, 0));
    // What comes at 10.5 meets a replica that is down, and goes to the long pool.
    assert_eq!((short.unreachable, pool_of(&report, "long").served), (1, 1));
    assert_eq!((tenant.answered, tenant.failed, tenant.retries), (39, 1, 0));
    // What came before it broke off was paid for.
    assert!(tenant.settled > 39 * 190 + 100 && tenant.settled < 40 * 190, "{tenant:?}");
    let report = steady(vec![down(0, 10, 11)], 1);
    let tenant = &report.tenants[0];
    assert_eq!((tenant.answered, tenant.failed, tenant.retries), (40, 0, 1));
    // After half a second or a little less, by chance: a request of 11 + 89 × 10
    // ms that was lost after half of a second.
    let most = tenant.whole.p99.unwrap();
    assert!((1_770 * MILLISECOND..1_920 * MILLISECOND).contains(&most), "{most}");
}

#[test]
fn a_dead_replica_is_avoided_once_two_checks_have_failed() {
    // Nobody answers the checks at 15 and 20 s. The idle dead one is the least
    // loaded of all; from 20 s on nothing is sent there until the check at 35 s.
    let report = steady(vec![down(0, 12, 33)], 0);
    let short = pool_of(&report, "short");
    // Half of the pool is up: 1.4 times that share is still sent to it.
    let long = pool_of(&report, "long");
    assert_eq!((short.lost, short.unreachable, long.taken_over), (1, long.served, long.served));
    assert!((9..17).contains(&long.served), "{long:?}");
    assert_eq!(report.tenants[0].answered, 39);
    // With both down all of it goes long, and nothing comes back before 35 s.
    let report = steady(vec![down(0, 12, 33), down(1, 12, 33)], 0);
    assert_eq!(pool_of(&report, "long").served, 23);
    // With the long pool down as well, nobody is there.
    let mut scenario = scenario("", vec![traced("t", &[(1_000, 100, 10), (30_000, 100, 10)])]);
    scenario.end = 60 * SECOND;
    scenario.sources[0].retries = 2;
    scenario.pools.iter_mut().for_each(|pool| pool.faults.push(down(0, 0, 50)));
    let report = run(&scenario, 1).unwrap();
    let tenant = &report.tenants[0];
    assert_eq!((tenant.failed, tenant.retries, pool_of(&report, "long").served), (2, 4, 0));
    assert!(report.text().contains("replica 2"), "{}", report.text());
}

#[test]
fn a_pool_by_itself_tries_another_replica() {
    let rows: Vec<(u64, u32, u32)> = (0..8).map(|nth| (nth * 1_000 + 500, 100, 10)).collect();
    let mut scenario = scenario("", vec![traced("t", &rows)]);
    scenario.gateways.retry_too_long = false;
    scenario.pools[1].replicas = 2;
    scenario.pools[1].faults = vec![down(0, 0, 9)];
    let report = run(&scenario, 1).unwrap();
    let short = pool_of(&report, "short");
    assert_eq!((short.unreachable, short.taken_over, short.served), (8, 8, 8));
}

#[test]
fn a_cache_is_gone_after_a_restart_and_counts_stay() {
    let lengths = LengthSource::Fixed(100, 50);
    let mut source = source("t", lengths, Arrivals::Open { rate: 2.0, cv: 1.0 });
    source.sessions = Some(Sessions { turns: 1.0, think: 0, shared: 600 });
    let count = |faults: Vec<Fault>| {
        let mut scenario = scenario("", vec![source.clone()]);
        scenario.pools[1].faults = faults;
        scenario.gateways.retry_too_long = false;
        let report = run(&scenario, 1).unwrap();
        let short = pool_of(&report, "short");
        (short.cached / 512, short.served - short.cached / 512)
    };
    let (before, first) = count(Vec::new());
    assert!(before > 10 && first >= 1, "{before} {first}");
    let (after, misses) = count(vec![down(0, 5, 6)]);
    assert!(after < before && after > 5 && misses > first, "{before} {after} {first} {misses}");
}

#[test]
fn a_restart_forgets_no_counts() {
    let preempted = |faults: Vec<Fault>| {
        // Together they need more than the cache holds.
        let source = traced("t", &[(0, 300, 500), (0, 300, 500), (0, 300, 500)]);
        let mut scenario = scenario("", vec![source]);
        scenario.pools[1].engine.num_gpu_blocks = 64;
        scenario.pools[1].faults = faults;
        scenario.end = 60 * SECOND;
        let report = run(&scenario, 1).unwrap();
        pool_of(&report, "short").preemptions
    };
    let all = preempted(Vec::new());
    assert!(all > 0 && preempted(vec![down(0, 4, 5)]) > 0, "{all}");
}

#[test]
fn a_slow_replica_is_slow_for_a_while() {
    let slow =
        |factor| Fault { replica: 0, during: (0, 4 * SECOND), what: FaultKind::Slow(factor) };
    let took = |faults: Vec<Fault>, at| {
        let mut scenario = scenario("", vec![traced("t", &[(at, 100, 50)])]);
        scenario.pools[1].faults = faults;
        run(&scenario, 1).unwrap().tenants[0].whole.p50.unwrap() as f64
    };
    let usual = took(Vec::new(), 0);
    let near = |found: f64, times: f64| {
        assert!((found / usual / times - 1.0).abs() < 0.02, "{found} {usual} {times}");
    };
    near(took(vec![slow(3.0)], 0), 3.0);
    near(took(vec![slow(3.0), slow(2.0)], 0), 6.0);
    near(took(vec![slow(3.0)], 4_000), 1.0);
}

#[test]
fn who_gives_up_asks_again_where_clients_do() {
    let count = |retry_timeouts, timeout| {
        let mut source = traced("t", &[(0, 100, 50)]);
        (source.timeout, source.retry_timeouts) = (Some(timeout), retry_timeouts);
        source.retries = 2;
        let report = run(&scenario("", vec![source]), 1).unwrap();
        let (short, tenant) = (pool_of(&report, "short"), &report.tenants[0]);
        assert_eq!(tenant.answered + tenant.timed_out, 1);
        assert_eq!(short.sent, tenant.retries + 1);
        (short.left, tenant.timed_out, report.ended)
    };
    // It takes 501 ms.
    assert_eq!(count(true, SECOND).0, 0);
    let (left, gone, ended) = count(true, SECOND / 5);
    assert_eq!((left, gone), (3, 1));
    // Three times 0.2 s, and two waits of 0.5 and 1 s, a quarter less at most.
    assert!((1.7..2.1).contains(&ended), "{ended}");
    assert_eq!(count(false, SECOND / 5).0, 1);
}
