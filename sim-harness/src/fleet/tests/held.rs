//! Requests that wait in a gateway, and pools that tenants share.

use super::*;

const ONE_AT_A_TIME: &str = r#", "tenants": {"default": "a", "entitlements": [
    {"name": "a", "tokens_per_second": 100000, "requests": 1, "on_limit": "hold",
     "ttft_target_ms": 400}]}"#;

#[test]
fn who_is_held_goes_when_another_ends_and_no_later_than_its_target() {
    // 11 + 19 × 10 ms each, all at once: two wait for their turn, three too long.
    let rows = [(0, 100, 20); 5];
    let mut scenario = scenario(ONE_AT_A_TIME, vec![traced("a", &rows)]);
    let report = run(&scenario, 1).unwrap();
    let tenant = &report.tenants[0];
    assert_eq!((tenant.asked, tenant.held, tenant.answered), (5, 4, 2));
    assert_eq!(tenant.refused, [("requests", 3)]);
    assert_eq!((tenant.sent_away, tenant.settled), (3, 240));
    let near = |figure: Option<u64>, millis: u64| {
        figure.unwrap().abs_diff(millis * MILLISECOND) < MILLISECOND * 2
    };
    assert!(near(tenant.waited.p50, 400) && near(tenant.waited.p99, 400), "{tenant:?}");
    assert!(near(tenant.answered_first_token.p99, 201 + 11), "{tenant:?}");
    // On another worker it is let go within 10 ms.
    scenario.gateways.workers = 50;
    let tenant = &run(&scenario, 1).unwrap().tenants[0];
    assert_eq!((tenant.held, tenant.answered), (4, 2));
    let waited = tenant.answered_first_token.p99.unwrap() - 212 * MILLISECOND;
    assert!(waited > 0 && waited <= 11 * MILLISECOND, "{waited}");
}

#[test]
fn who_leaves_while_it_is_held_pays_nothing() {
    let mut hasty = traced("a", &[(10, 100, 20)]);
    hasty.timeout = Some(100 * MILLISECOND);
    let scenario = scenario(ONE_AT_A_TIME, vec![traced("a", &[(0, 100, 20)]), hasty]);
    let tenant = &run(&scenario, 1).unwrap().tenants[0];
    assert_eq!((tenant.answered, tenant.timed_out, tenant.held), (1, 1, 1));
    assert_eq!((tenant.settled, tenant.waited.p50), (120, None));
}

#[test]
fn a_dry_run_holds_nobody() {
    let dry = r#", "dry_run": true"#.to_owned() + ONE_AT_A_TIME;
    let tenant =
        &run(&scenario(&dry, vec![traced("a", &[(0, 100, 20); 5])]), 1).unwrap().tenants[0];
    assert_eq!((tenant.held, tenant.answered), (0, 5));
}

/// Of a body of 3 KB a kilobyte is read before it goes up: the rest reserves a
/// token a byte, until it has passed. Two such reserves are too much at once.
#[test]
fn what_went_up_before_its_end_pays_for_what_it_is() {
    let document = r#", "inspect_bytes_max": 1024, "tenants": {"default": "a",
        "entitlements": [{"name": "a", "tokens_per_second": 100, "burst": 3600}]}"#;
    let tenant =
        &run(&scenario(document, vec![traced("a", &[(0, 600, 5); 2])]), 1).unwrap().tenants[0];
    assert_eq!((tenant.answered, tenant.settled), (2, 1210));
}

/// A pool of one replica, which three tenants share; `batch` is spot.
const SHARED: &str = r#"{"version": 1,
    "models": [{"match": "*", "pools": [
      {"name": "p", "cluster": "p", "max_model_len": 4000,
       "capacity": {"replicas": 1, "requests": 8}}]}],
    "tenants": {"default": "batch", "headroom": 1, "entitlements": [
      {"name": "gold", "class": "guaranteed", "tokens_per_second": 4000, "requests": 2,
       "on_limit": "hold", "ttft_target_ms": 2000},
      {"name": "one", "class": "elastic", "weight": 1, "tokens_per_second": "unlimited",
       "on_limit": "hold", "ttft_target_ms": 20000},
      {"name": "two", "class": "elastic", "weight": 2, "tokens_per_second": "unlimited",
       "on_limit": "hold", "ttft_target_ms": 20000},
      {"name": "batch", "class": "spot", "tokens_per_second": 100000,
       "on_limit": "hold", "ttft_target_ms": 20000}]}}"#;

fn shared(sources: Vec<Source>) -> Scenario {
    let mut pool = pool("p", 4000);
    pool.engine.max_num_seqs = 8;
    Scenario {
        config: Arc::new(Config::parse(SHARED.as_bytes()).unwrap()),
        gateways: Gateways { count: 1, workers: 2, retry_too_long: true },
        policy: crate::policy::Policy::Tidegate,
        pools: vec![pool],
        sources,
        end: 70 * SECOND,
        drain: 600 * SECOND,
        warm_up: 10 * SECOND,
    }
}

fn clients(tenant: &str, clients: u32, output: u32) -> Source {
    let arrivals = Arrivals::Closed { clients, think: 0 };
    source(tenant, LengthSource::Fixed(100, output), arrivals)
}

fn got(report: &Report, name: &str) -> f64 {
    report.tenants.iter().find(|tenant| tenant.name == name).unwrap().got
}

#[test]
fn elastic_tenants_share_a_full_pool_by_their_weights() {
    // Lengths differ: tokens are shared, not requests.
    let report = run(&shared(vec![clients("one", 12, 30), clients("two", 12, 90)]), 1).unwrap();
    let ratio = got(&report, "two") / got(&report, "one");
    assert!((ratio / 2.0 - 1.0).abs() < 0.03, "{ratio}");
    assert_eq!(report.tenants.iter().map(|one| one.sent_away).sum::<u64>(), 0);
    // What one leaves the other has.
    let alone = run(&shared(vec![clients("one", 12, 30)]), 1).unwrap();
    let shared_by_two = got(&report, "one") + got(&report, "two");
    assert!(got(&alone, "one") > 0.9 * shared_by_two, "{alone:?}");
}

#[test]
fn a_guaranteed_tenant_does_not_feel_a_flood() {
    let arrivals = Arrivals::Open { rate: 4.0, cv: 1.0 };
    let gold = || source("gold", LengthSource::Fixed(200, 10), arrivals.clone());
    let p99 = |report: &Report| {
        let gold = report.tenants.iter().find(|one| one.name == "gold").unwrap();
        gold.first_token.p99.unwrap() as f64
    };
    let alone = run(&shared(vec![gold()]), 1).unwrap();
    let flooded = run(&shared(vec![gold(), clients("batch", 60, 200)]), 1).unwrap();
    assert!(got(&flooded, "batch") > 400.0, "{flooded:?}");
    let ratio = p99(&flooded) / p99(&alone);
    assert!(ratio < 1.2, "{ratio}");
}
