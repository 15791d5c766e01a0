//! Sessions, and prompts that begin alike.

use super::*;
use crate::workload::Turn;

/// One pool for all, of this many replicas whose caches hold all that comes.
fn one_pool(replicas: u32, sources: Vec<Source>) -> Scenario {
    let document = r#"{"version": 1, "models": [{"match": "*", "pools": [
        {"name": "all", "cluster": "all", "max_model_len": 65536}]}]}"#;
    let mut pool = pool("all", 65_536);
    pool.replicas = replicas;
    Scenario {
        config: Arc::new(Config::parse(document.as_bytes()).unwrap()),
        pools: vec![pool],
        ..scenario("", sources)
    }
}

fn recorded(turns: &[(u64, u32, u32)]) -> LengthSource {
    let turn = |&(think, input_tokens, output_tokens): &(u64, u32, u32)| Turn {
        think: think * SECOND,
        input_tokens,
        output_tokens,
    };
    LengthSource::Sessions(Arc::new([turns.iter().map(turn).collect()]))
}

#[test]
fn a_session_finds_what_its_turns_before_left() {
    let turns = [(0, 1_000, 10), (1, 1_500, 10), (2, 3_000, 10), (0, 700, 30), (1, 720, 10)];
    let closed = Arrivals::Closed { clients: 1, think: 2 * SECOND };
    let mut scenario = one_pool(1, vec![source("t", recorded(&turns), closed)]);
    scenario.end = 60 * SECOND;
    let report = run(&scenario, 1).unwrap();
    let pool = pool_of(&report, "all");
    let whole = pool.served / 5;
    // Full blocks of 16 of the prompt before and its answer but the last token: of
    // 1,009 and 1,509. What is shorter than the one before begins anew. The last one
    // does not have the answer before in it: full blocks of 700. The last session may
    // be cut.
    let upto = [0, 0, 1_008, 1_008 + 1_504, 1_008 + 1_504, 1_008 + 1_504 + 688];
    let expected = whole * upto[5] + upto[(pool.served % 5) as usize];
    assert!(whole >= 3 && pool.cached == expected, "{pool:?}");
}

#[test]
fn an_answer_is_not_computed_again_by_the_turn_after_it() {
    let near = |found: Option<u64>, micros: u64| {
        let (found, expected) = (found.unwrap(), micros * 1_000);
        assert!(found.abs_diff(expected) <= expected / 400, "{found} {expected}");
    };
    // An answer that the second turn has in it, and one of a token more, which does
    // not fit into it.
    for (output, found) in [(600, 1_584), (601, 992)] {
        // One at about 10 s.
        let arrivals = Arrivals::Open { rate: 0.1, cv: 0.01 };
        let source = source("t", recorded(&[(0, 1_000, output), (1, 1_600, 1)]), arrivals);
        let mut scenario = one_pool(1, vec![source]);
        scenario.end = 19 * SECOND;
        let report = run(&scenario, 1).unwrap();
        let pool = pool_of(&report, "all");
        assert_eq!((pool.served, pool.cached), (2, found), "{output}");
        // The step's 10 ms, and 10 µs for each token that is not there yet.
        near(pool.first_token.p50, 10_000 + 10 * (1_600 - found));
        near(pool.first_token.p99, 20_000);
    }
    let closed = Arrivals::Closed { clients: 1, think: SECOND / 2 };
    let mut source = source("t", LengthSource::Fixed(100, 400), closed);
    source.sessions = Some(Sessions { turns: 1_000.0, think: SECOND / 2, shared: 0 });
    let mut scenario = one_pool(1, vec![source]);
    scenario.end = 60 * SECOND;
    let report = run(&scenario, 1).unwrap();
    let pool = pool_of(&report, "all");
    // Each turn has 500 tokens more than the one before; all of those but the last
    // have full blocks but for 15 at most.
    let expected: u64 = (1..pool.served).map(|turn| (500 * turn - 1) / 16 * 16).sum();
    assert!(pool.served > 10 && pool.cached == expected, "{pool:?}");
    let most = pool.first_token.p99.unwrap();
    assert!(most < 11_200_000, "of 500 tokens it would be 15 ms: {most}");
}

#[test]
fn it_is_remembered_by_the_replica_that_had_it() {
    let cached = |replicas, dispatch| {
        let lengths = LengthSource::Fixed(600, 20);
        let mut source = source("t", lengths, Arrivals::Open { rate: 2.0, cv: 1.0 });
        source.sessions = Some(Sessions { turns: 6.0, think: SECOND / 2, shared: 0 });
        let mut scenario = one_pool(replicas, vec![source]);
        scenario.end = 30 * SECOND;
        scenario.pools[0].dispatch = dispatch;
        scenario.pools[0].engine.num_gpu_blocks = 100_000;
        let report = run(&scenario, 1).unwrap();
        let pool = pool_of(&report, "all");
        assert!(pool.served > 100, "{pool:?}");
        pool.cached as f64 / pool.input as f64
    };
    // Of six turns' prompts of 600, 1220, … five sixths are there already.
    let (one, many) = (cached(1, Dispatch::LeastLoaded), cached(8, Dispatch::RoundRobin));
    assert!(one > 0.7 && many < one / 2.0 && many > 0.02, "{one} {many}");
}

#[test]
fn all_sessions_of_a_source_begin_alike_where_it_says_so() {
    let cached = |shared| {
        let mut source =
            source("t", LengthSource::Fixed(100, 2), Arrivals::Open { rate: 5.0, cv: 0.5 });
        source.sessions = Some(Sessions { turns: 1.0, think: 0, shared });
        let report = run(&one_pool(1, vec![source.clone(), source]), 1).unwrap();
        let pool = pool_of(&report, "all");
        assert_eq!(pool.input, pool.served * u64::from(100 + shared));
        (pool.served, pool.cached)
    };
    assert_eq!(cached(0).1, 0);
    let (served, found) = cached(2_000);
    // Three whole names, after the first request of each of the two sources, unless
    // both came at once.
    assert!(found <= (served - 2) * 1_536 && found >= (served - 6) * 1_536, "{served} {found}");
}

#[test]
fn a_session_is_as_long_as_was_asked_for_and_ends_with_a_failure() {
    let closed = Arrivals::Closed { clients: 4, think: 0 };
    let mut source = source("t", LengthSource::Fixed(20, 20), closed);
    source.sessions = Some(Sessions { turns: 4.0, think: 0, shared: 0 });
    let mut scenario = one_pool(4, vec![source]);
    scenario.end = 60 * SECOND;
    let report = run(&scenario, 1).unwrap();
    // A prompt of turn n has 40 n - 20 tokens: their mean says how many turns there
    // were. Geometric: E[n (n + 1) / 2] / E[n] is 4.
    let pool = pool_of(&report, "all");
    let mean = pool.input as f64 / pool.served as f64;
    assert!((mean / (40.0 * 4.0 - 20.0) - 1.0).abs() < 0.2, "{mean} {}", pool.served);
    // Turns that outgrow the window are the last.
    let turns: Vec<(u64, u32, u32)> = (1..=9).map(|n| (0, n * 10_000, 1)).collect();
    scenario.sources[0].sessions = None;
    scenario.sources[0].lengths = recorded(&turns);
    let report = run(&scenario, 1).unwrap();
    let tenant = &report.tenants[0];
    assert!(
        tenant.too_long > 4 && tenant.answered.abs_diff(tenant.too_long * 6) <= 24,
        "{tenant:?}"
    );
}

#[test]
fn nobody_sends_after_the_end() {
    let closed = Arrivals::Closed { clients: 3, think: MILLISECOND };
    let turns = [(0, 100, 1), (1, 200, 1), (20, 300, 1)];
    let report = run(&one_pool(1, vec![source("t", recorded(&turns), closed)]), 1).unwrap();
    // The third turn would come at 21 s. Who thinks about it does nothing else.
    assert_eq!((report.asked(), report.tenants[0].answered), (6, 6));
}

#[test]
fn equal_names_in_a_trace_are_equal_prompts_once() {
    let row = |arrival: u64, names: &[u64]| TraceRequest {
        arrival: arrival * SECOND,
        input_tokens: 1_024,
        output_tokens: 1,
        names: names.into(),
    };
    let rows = [row(0, &[1, 2]), row(1, &[1, 3]), row(2, &[1, 3]), row(3, &[4, 5])];
    let lengths = LengthSource::Trace(Arc::new(rows));
    let cached = |arrivals| {
        let mut scenario = one_pool(1, vec![source("t", lengths.clone(), arrivals)]);
        scenario.pools[0].engine.num_gpu_blocks = 100_000;
        pool_of(&run(&scenario, 1).unwrap(), "all").cached
    };
    // The last token is always computed: a block less.
    let once = 512 + 1_008;
    assert_eq!(cached(Arrivals::Trace { speed: 1.0 }), once);
    // Another pass is another crowd, and so is a copy.
    let closed = cached(Arrivals::Closed { clients: 1, think: SECOND / 2 });
    assert!(closed % once == 0 || closed % once == 512, "{closed}");
    assert!(closed >= 2 * once && closed <= 6 * once, "{closed}");
    assert_eq!(cached(Arrivals::Scaled { rate: 3.0 }), 3 * once);
}
