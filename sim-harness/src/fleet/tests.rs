//! The loop, on small fleets whose times can be worked out by hand.

mod faults;
mod held;
mod record;
mod reports;
mod sessions;
mod spill;

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::config::Config;

use super::*;
use crate::engine::{self, Linear};
use crate::texts::Kind;
use crate::workload::{AZURE_2023, CapPolicy, LMSYS_CHAT_1M, Rates, TraceRequest};
use crate::{MILLISECOND, SECOND};

/// Two pools of one replica each, with windows of 1,000 and 8,000 tokens.
const POOLS: &str = r#""version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 1000},
    {"name": "long", "cluster": "long", "max_model_len": 8000}]}]"#;

/// A step of 10 ms and 10 µs for each prompt token.
const TIME: Linear = Linear {
    step_ns: 10 * MILLISECOND,
    prefill_token_ns: 10_000,
    decode_sequence_ns: 0,
    context_token_ns: 0,
};

fn pool(name: &str, window: u32) -> Pool {
    let engine = engine::Config {
        max_model_len: window,
        num_gpu_blocks: window / 16 * 4 + 2,
        max_num_seqs: 4,
        async_scheduling: false,
        ..engine::Config::default()
    };
    Pool {
        name: name.into(),
        replicas: 1,
        dispatch: Dispatch::LeastLoaded,
        engine,
        ranks: 1,
        time: Box::new(TIME),
        faults: Vec::new(),
    }
}

fn source(tenant: &str, lengths: LengthSource, arrivals: Arrivals) -> Source {
    Source {
        tenant: tenant.into(),
        caps: CapPolicy::Actual,
        retries: 0,
        ..Source::new(lengths, arrivals)
    }
}

fn scenario(more: &str, sources: Vec<Source>) -> Scenario {
    let document = format!("{{{POOLS}{more}}}");
    Scenario {
        config: Arc::new(Config::parse(document.as_bytes()).unwrap()),
        gateways: Gateways { count: 1, workers: 1, retry_too_long: true },
        policy: crate::policy::Policy::Tidegate,
        pools: vec![pool("long", 8000), pool("short", 1000)],
        sources,
        end: 10 * SECOND,
        drain: 600 * SECOND,
        warm_up: 0,
    }
}

fn row(arrival: u64, input_tokens: u32, output_tokens: u32) -> TraceRequest {
    TraceRequest { arrival, input_tokens, output_tokens, names: Vec::new() }
}

/// Requests at these milliseconds, of so many prompt and output tokens.
fn trace(rows: &[(u64, u32, u32)]) -> (LengthSource, Arrivals) {
    let rows: Vec<TraceRequest> = rows
        .iter()
        .map(|&(millis, input, output)| row(millis * MILLISECOND, input, output))
        .collect();
    (LengthSource::Trace(rows.into()), Arrivals::Trace { speed: 1.0 })
}

fn traced(tenant: &str, rows: &[(u64, u32, u32)]) -> Source {
    let (lengths, arrivals) = trace(rows);
    source(tenant, lengths, arrivals)
}

fn pool_of<'a>(report: &'a Report, name: &str) -> &'a PoolReport {
    report.pools.iter().find(|pool| pool.name == name).unwrap()
}

#[test]
fn one_request_takes_what_its_replica_takes() {
    let report = run(&scenario("", vec![traced("t", &[(500, 100, 5)])]), 1).unwrap();
    let short = pool_of(&report, "short");
    assert_eq!((short.sent, short.served, short.input, short.output), (1, 1, 100, 5));
    // A step with 100 prompt tokens, and four without.
    let near = |figure: Option<u64>, expected: u64| {
        let found = figure.unwrap();
        assert!(found.abs_diff(expected) <= expected / 400, "{found} {expected}");
    };
    near(short.first_token.p99, 11 * MILLISECOND);
    near(short.per_token.p50, 10 * MILLISECOND);
    let tenant = &report.tenants[0];
    near(tenant.first_token.p50, 11 * MILLISECOND);
    near(tenant.whole.p99, 51 * MILLISECOND);
    assert_eq!((tenant.asked, tenant.answered, tenant.settled), (1, 1, 105));
    assert_eq!(report.ended, 0.551);
    // One full block of 16 and a few for 50 ms of 551.
    assert!(short.kv_mean > 0.0 && short.kv_most < 0.05, "{short:?}");
    assert_eq!(pool_of(&report, "long").sent, 0);
}

/// A step that starts at an instant does not hold what comes a nanosecond later.
#[test]
fn a_job_is_never_scheduled_before_it_came() {
    let request = |nth: u64| row(nth / 2 * SECOND + nth % 2, 100, 2);
    let rows: Vec<TraceRequest> = (0..20).map(request).collect();
    let lengths = LengthSource::Trace(rows.into());
    let source = source("t", lengths, Arrivals::Trace { speed: 1.0 });
    let report = run(&scenario("", vec![source]), 1).unwrap();
    let short = pool_of(&report, "short");
    // The second of each pair waits for the first one's step.
    assert_eq!((short.served, short.queue.p50), (20, Some(0)));
    let waited = short.queue.p99.unwrap();
    assert!(waited.abs_diff(11 * MILLISECOND) < MILLISECOND / 10, "{waited}");
}

const EMA: &str = r#", "estimator": {"kind": "ema", "margin": 0}"#;

#[test]
fn what_a_pool_refuses_the_largest_gets_once() {
    // Without a margin an average is too low for half of the texts.
    let rows: Vec<(u64, u32, u32)> =
        (0..40).map(|nth| (nth * 200, 890 + 2 * nth as u32, 90)).collect();
    let mut scenario = scenario(EMA, vec![traced("t", &rows)]);
    let report = run(&scenario, 1).unwrap();
    let (short, long) = (pool_of(&report, "short"), pool_of(&report, "long"));
    assert!(short.refused > 0 && short.refused == long.taken_over, "{report:?}");
    assert_eq!((short.served + long.served, short.sent + long.sent), (40, 40));
    assert_eq!(short.under_routed, short.refused);
    assert_eq!(report.tenants[0].answered, 40);
    // Without the second attempt they end there.
    scenario.gateways.retry_too_long = false;
    let report = run(&scenario, 1).unwrap();
    let short = pool_of(&report, "short");
    assert_eq!(report.tenants[0].too_long, short.refused);
    assert_eq!(report.tenants[0].answered + short.refused, 40);
    assert!(report.tenants[0].first_token.p99.is_none(), "who was refused counts");
}

#[test]
fn what_no_pool_holds_is_refused_and_what_has_no_cap_is_cut_short() {
    let mut source = traced("t", &[(0, 9_000, 10), (1_000, 7_900, 500), (2_000, 7_900, 50)]);
    source.caps = CapPolicy::None;
    let report = run(&scenario("", vec![source]), 1).unwrap();
    let long = pool_of(&report, "long");
    assert_eq!((long.sent, long.refused, long.served), (3, 1, 2));
    assert_eq!((long.truncated, long.output), (1, 150));
    assert_eq!(report.tenants[0].too_long, 1);
}

const TENANTS: &str = r#", "tenants": {"default": "b", "entitlements": [
    {"name": "a", "tokens_per_second": 100, "burst": 400},
    {"name": "b", "tokens_per_second": 100000, "burst": 1000000}]}"#;

#[test]
fn who_comes_back_when_told_is_admitted() {
    let rows = [(0, 250, 50), (100, 250, 50)];
    let mut source = traced("a", &rows);
    source.retries = 1;
    let mut scenario = scenario(TENANTS, vec![source]);
    let report = run(&scenario, 1).unwrap();
    let tenant = &report.tenants[0];
    assert_eq!((tenant.asked, tenant.answered, tenant.sent_away, tenant.retries), (2, 2, 1, 1));
    assert_eq!((tenant.promised, tenant.settled), (Some(100.0), 600));
    // It had to wait for whole seconds.
    assert!(report.ended > 2.0 && report.ended < 4.2, "{}", report.ended);
    scenario.sources[0].retries = 0;
    let report = run(&scenario, 1).unwrap();
    let tenant = &report.tenants[0];
    assert_eq!((tenant.answered, tenant.refused.as_slice()), (1, &[("tokens", 1)][..]));
    // A dry run refuses nobody, and sends all where they would go without.
    let dry = r#", "dry_run": true"#.to_owned() + TENANTS;
    let dry = super::tests::scenario(&dry, scenario.sources);
    let report = run(&dry, 1).unwrap();
    assert_eq!((report.tenants[0].answered, pool_of(&report, "long").served), (2, 2));
}

#[test]
fn gateways_do_not_share_what_their_workers_do() {
    // Each lets 400 tokens through at once.
    let rows: Vec<(u64, u32, u32)> = (0..200).map(|_| (0, 150, 50)).collect();
    for (count, workers, answered) in [(1, 1, 2), (1, 4, 2), (3, 2, 6)] {
        let mut scenario = scenario(TENANTS, vec![traced("a", &rows)]);
        scenario.gateways = Gateways { count, workers, retry_too_long: true };
        let report = run(&scenario, 1).unwrap();
        let tenant = &report.tenants[0];
        // Estimates are a little off 150.
        assert!(tenant.answered.abs_diff(answered) <= u64::from(count), "{count} {tenant:?}");
        assert_eq!(tenant.promised, Some(100.0 * f64::from(count)));
    }
}

#[test]
fn who_does_not_wait_leaves_its_seat_and_pays_for_what_came() {
    let mut hasty = traced("b", &[(0, 100, 800)]);
    // A first token after 11 ms, then one every 10.
    hasty.timeout = Some(200 * MILLISECOND);
    let report = run(&scenario(TENANTS, vec![hasty]), 1).unwrap();
    let tenant = &report.tenants[1];
    assert_eq!((tenant.asked, tenant.timed_out, pool_of(&report, "short").left), (1, 1, 1));
    // The prompt as estimated, and the tokens that had come out.
    assert!((100..150).contains(&tenant.settled), "{tenant:?}");
    assert_eq!((report.ended, tenant.first_token.p50), (0.2, None));
}

#[test]
fn clients_in_a_loop_wait_for_their_answers() {
    let closed = |clients, think| Arrivals::Closed { clients, think };
    let one = source("t", LengthSource::Fixed(100, 10), closed(1, 0));
    // 11 + 9 × 10 ms, and 1 ms before each.
    let report = run(&scenario("", vec![one.clone()]), 1).unwrap();
    assert_eq!(report.asked(), 10_000_u64.div_ceil(102));
    // Two replicas take two clients as one takes one.
    let two = source("t", LengthSource::Fixed(100, 10), closed(2, 0));
    let mut scenario_of_two = scenario("", vec![two]);
    for dispatch in [Dispatch::LeastLoaded, Dispatch::RoundRobin] {
        for pool in &mut scenario_of_two.pools {
            (pool.replicas, pool.dispatch, pool.engine.max_num_seqs) = (2, dispatch, 1);
        }
        let asked = run(&scenario_of_two, 1).unwrap().asked();
        assert!(asked >= 190, "{dispatch:?} {asked}");
    }
    let slow = source("t", LengthSource::Fixed(100, 10), closed(3, SECOND));
    let asked = run(&scenario("", vec![slow]), 1).unwrap().asked();
    assert!((15..40).contains(&asked), "{asked}");
    // What is still open at the end is cut, and counted.
    let mut cut = scenario("", vec![one]);
    (cut.end, cut.drain) = (SECOND, 0);
    cut.sources[0].stop = SECOND;
    let tenant = &run(&cut, 1).unwrap().tenants[0];
    assert_eq!((tenant.asked, tenant.answered, tenant.cut), (10, 9, 1));
    // What was settled at the end is no part of the rate up to it.
    assert_eq!(tenant.got, 9.0 * 110.0);
    assert!(tenant.settled > 9 * 110, "{tenant:?}");
}

#[test]
fn the_estimate_gets_better_and_workers_learn_from_each_other() {
    let arrivals = Arrivals::Open { rate: 40.0, cv: 1.0 };
    let mut source = source("t", LengthSource::Drawn(AZURE_2023), arrivals);
    source.texts = vec![(Kind::Hindi, 1), (Kind::Json, 1)];
    let mean = |workers, warm_up| {
        let mut scenario = scenario("", vec![source.clone()]);
        scenario.pools.iter_mut().for_each(|pool| pool.replicas = 20);
        scenario.gateways.workers = workers;
        (scenario.warm_up, scenario.drain) = (warm_up, SECOND);
        run(&scenario, 1).unwrap().errors.1
    };
    let (all, late) = (mean(1, 0), mean(1, 5 * SECOND));
    assert!(late < all && late < 0.06, "{all} {late}");
    // Each of 20 workers has seen ten answers of its own.
    let many = mean(20, 5 * SECOND);
    assert!(many < late * 1.5, "{many} {late}");
}

#[test]
fn bursts_and_traces_keep_their_rates() {
    let count = |arrivals, lengths| {
        let source = source("t", lengths, arrivals);
        let mut scenario = scenario("", vec![source]);
        scenario.pools.iter_mut().for_each(|pool| pool.replicas = 50);
        run(&scenario, 3).unwrap().asked()
    };
    for cv in [0.5, 1.0] {
        let asked = count(Arrivals::Open { rate: 100.0, cv }, LengthSource::Fixed(20, 2));
        assert!((900..1_100).contains(&asked), "{asked}");
    }
    let (rows, _) = trace(&[(0, 20, 2), (4_000, 20, 2), (12_000, 20, 2)]);
    assert_eq!(count(Arrivals::Trace { speed: 1.0 }, rows.clone()), 2);
    assert_eq!(count(Arrivals::Trace { speed: 2.0 }, rows), 3);
}

#[test]
fn headers_mode_and_long_bodies_are_decided_as_in_envoy() {
    let rows: Vec<(u64, u32, u32)> = (0..20).map(|nth| (nth * 100, 600, 5)).collect();
    let document = r#", "inspect": "headers""#;
    let report = run(&scenario(document, vec![traced("t", &rows)]), 1).unwrap();
    // Nobody sees the caps of 5: with 1,024 tokens for the output all are long.
    assert_eq!((report.tenants[0].answered, pool_of(&report, "long").sent), (20, 20));
    // 600 tokens are some 3 KB. The cap comes first and is read.
    let report =
        run(&scenario(r#", "inspect_bytes_max": 1024"#, vec![traced("t", &rows)]), 1).unwrap();
    assert_eq!(report.tenants[0].answered, 20);
    assert!(pool_of(&report, "short").sent > 10, "{report:?}");
    // A cut body teaches nothing: the error stays that of a stranger.
    let whole = run(&scenario("", vec![traced("t", &rows)]), 1).unwrap();
    assert!(whole.errors.1 < report.errors.1, "{:?} {:?}", whole.errors, report.errors);
}

#[test]
fn wrong_scenarios_are_named() {
    let arrivals = Arrivals::Open { rate: 1.0, cv: 1.0 };
    let good = || {
        let source = source("a", LengthSource::Fixed(10, 10), arrivals.clone());
        scenario(TENANTS, vec![source])
    };
    let error = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = good();
        change(&mut scenario);
        run(&scenario, 1).unwrap_err().to_string()
    };
    assert!(run(&good(), 1).is_ok());
    assert!(error(&|s| s.gateways.workers = 0).contains("workers"));
    assert!(error(&|s| s.pools.truncate(1)).contains("\"short\""));
    assert!(error(&|s| s.pools[0].name = "x".into()).contains("long"));
    assert!(error(&|s| s.pools[1].replicas = 0).contains("replica"));
    assert!(error(&|s| s.pools[1].engine.max_num_seqs = 0).contains("max_num_seqs"));
    assert!(error(&|s| s.sources[0].tenant = "c".into()).contains("source 0: no tenant"));
    assert!(error(&|s| s.sources[0].texts.clear()).contains("text"));
    let trace = Arrivals::Trace { speed: 1.0 };
    assert!(error(&|s| s.sources[0].arrivals = trace.clone()).contains("trace's lengths"));
    let none = Arrivals::Open { rate: 0.0, cv: 1.0 };
    assert!(error(&|s| s.sources[0].arrivals = none.clone()).contains("above 0"));
    assert!(error(&|s| s.warm_up = s.end).contains("warm-up"));
    assert!(error(&|s| s.sources[0].models.clear()).contains("model"));
    let tail = Some(Tail { share: 1.5, tokens: (2, 3) });
    assert!(error(&|s| s.sources[0].tail = tail).contains("tail"));
    let sessions = Some(Sessions { turns: 0.5, think: 0, shared: 0 });
    assert!(error(&|s| s.sources[0].sessions = sessions).contains("1 turn"));
    let none: Arc<[Vec<_>]> = Arc::new([Vec::new()]);
    let none = LengthSource::Sessions(none);
    assert!(error(&|s| s.sources[0].lengths = none.clone()).contains("sessions are empty"));
    let fault = Fault { replica: 1, during: (0, 1), what: FaultKind::Down };
    assert!(error(&|s| s.pools[0].faults.push(fault)).contains("replicas below 1"));
    let one = trace_of_one();
    let scaled = Arrivals::Scaled { rate: 1.0 };
    let named = TraceRequest { input_tokens: 600, names: vec![7], ..row(0, 1, 1) };
    let named = LengthSource::Trace(Arc::new([named]));
    assert!(error(&|s| s.sources[0].lengths = named.clone()).contains("1 names for 600 tokens"));
    let at_once = |s: &mut Scenario| {
        (s.sources[0].lengths, s.sources[0].arrivals) = (one.clone(), scaled.clone());
    };
    assert!(error(&at_once).contains("all come at once"));
    let sessions = Some(Sessions { turns: 2.0, think: 0, shared: 0 });
    let odd = |s: &mut Scenario| {
        s.sources[0].sessions = sessions;
        (s.pools[0].engine.block_size, s.pools[0].engine.prefix_id_tokens) = (24, 24);
    };
    assert!(error(&odd).contains("divisor of 512"));
}

/// More of each pool: both kinds of reports, and something that goes by them.
const REPORTS: &str = r#", "capacity": {"replicas": 2, "requests": 4}, "spill": {"dwell_ms": 100},
    "load": {"orca": true, "metrics": {"cluster": "m", "interval_ms": 100}}"#;

fn trace_of_one() -> LengthSource {
    trace(&[(0, 20, 2)]).0
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let what = prop_oneof![Just(FaultKind::Down), (0.5..20.0).prop_map(FaultKind::Slow)];
    (0_u32..2, 0..4 * SECOND, 1..15 * SECOND, what).prop_map(|(replica, from, time, what)| Fault {
        replica,
        during: (from, from + time),
        what,
    })
}

fn any_source() -> impl Strategy<Value = Source> {
    let lengths = prop_oneof![
        Just(LengthSource::Drawn(AZURE_2023)),
        Just(LengthSource::Drawn(LMSYS_CHAT_1M)),
        (8_u32..3_000, 1_u32..300).prop_map(|(i, o)| LengthSource::Fixed(i, o)),
    ];
    let arrivals = prop_oneof![
        (1.0..30.0, 0.3..4.0).prop_map(|(rate, cv)| Arrivals::Open { rate, cv }),
        (1_u32..6, 0..SECOND).prop_map(|(clients, think)| Arrivals::Closed { clients, think }),
        (1.0..30.0).prop_map(|rate| Arrivals::Varying {
            rates: Arc::new(Rates::day(rate, 1.9, 3.0).unwrap()),
            cv: 1.5,
        }),
    ];
    let caps =
        prop_oneof![Just(CapPolicy::None), Just(CapPolicy::Actual), Just(CapPolicy::Ladder),];
    let timeout = prop::option::of(1..3 * SECOND);
    let sessions = prop::option::of((1.0..5.0, 0..SECOND, 0_u32..1_500));
    let more = (sessions, prop::bool::ANY);
    (prop::bool::ANY, lengths, arrivals, caps, timeout, 0_u32..4, more).prop_map(
        |(first, lengths, arrivals, caps, timeout, retries, (sessions, again))| Source {
            caps,
            timeout,
            retries,
            retry_timeouts: again,
            sessions: sessions.map(|(turns, think, shared)| Sessions { turns, think, shared }),
            ..source(if first { "a" } else { "b" }, lengths, arrivals)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// `run` itself fails if a request is lost or doubled, a job stays in a
    /// replica or a reservation stays open. And the same seed gives the same
    /// bytes, whatever else is so.
    #[test]
    fn nothing_is_lost_and_nothing_is_random(
        sources in prop::collection::vec(any_source(), 1..4),
        (count, workers, retry_too_long) in (1_u32..3, 1_u32..4, prop::bool::ANY),
        (tenants, round_robin, reports, drain, seed) in
            (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY, 0..20 * SECOND, any::<u64>()),
        faults in prop::collection::vec(any_fault(), 0..5),
    ) {
        let more = if tenants { TENANTS } else { "" };
        let mut scenario = scenario(more, sources);
        if reports {
            let pools = POOLS.replace("000}", &format!("000{REPORTS}}}"));
            let document = format!("{{{pools}{more}}}");
            scenario.config = Arc::new(Config::parse(document.as_bytes()).unwrap());
        }
        scenario.gateways = Gateways { count, workers, retry_too_long };
        (scenario.end, scenario.drain) = (3 * SECOND, drain);
        if round_robin || !faults.is_empty() {
            scenario.pools.iter_mut().for_each(|pool| pool.replicas = 2);
        }
        if round_robin {
            scenario.pools.iter_mut().for_each(|pool| pool.dispatch = Dispatch::RoundRobin);
        }
        for (nth, fault) in faults.into_iter().enumerate() {
            scenario.pools[nth % 2].faults.push(fault);
        }
        let report = run(&scenario, seed);
        prop_assert!(report.is_ok(), "{:?}", report);
        let report = report.unwrap();
        let same = run(&scenario, seed).unwrap();
        prop_assert_eq!(report.text(), same.text());
        prop_assert_eq!(report.json(), same.json());
        // What replicas got is what gateways sent up.
        for pool in &report.pools {
            let came = pool.served + pool.left + pool.refused + pool.lost + pool.unreachable;
            prop_assert_eq!(came, pool.sent + pool.taken_over, "{:?}", pool);
        }
        let sum = |each: &dyn Fn(&PoolReport) -> u64| report.pools.iter().map(each).sum::<u64>();
        let answered: u64 = report.tenants.iter().map(|tenant| tenant.answered).sum();
        prop_assert_eq!(sum(&|pool| pool.served), answered);
    }
}
