//! All policies beside each other on the same requests.

use std::sync::Arc;

use tidegate::config::Config;

use super::*;
use crate::engine::{self, Linear};
use crate::fleet::{self, Arrivals, Dispatch, Gateways, LengthSource, Report, Scenario, Source};
use crate::texts::Kind;
use crate::workload::{AZURE_2023, CapPolicy};
use crate::{MILLISECOND, SECOND};

const DOCUMENT: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 4096},
    {"name": "long", "cluster": "long", "max_model_len": 65536}]}]}"#;

fn pool(name: &str, window: u32, replicas: u32) -> fleet::Pool {
    let engine = engine::Config {
        max_model_len: window,
        num_gpu_blocks: 20_000,
        max_num_seqs: 64,
        ..engine::Config::default()
    };
    let time = Linear {
        step_ns: 10 * MILLISECOND,
        prefill_token_ns: 10_000,
        decode_sequence_ns: 50_000,
        context_token_ns: 0,
    };
    let (name, time) = (name.to_owned(), Box::new(time));
    let (dispatch, faults) = (Dispatch::LeastLoaded, Vec::new());
    fleet::Pool { name, replicas, dispatch, engine, ranks: 1, time, faults }
}

/// 800 requests or so.
fn scenario(policy: Policy, lengths: LengthSource, kinds: &[Kind]) -> Scenario {
    let source = Source {
        tenant: "t".into(),
        texts: kinds.iter().map(|kind| (*kind, 1)).collect(),
        caps: CapPolicy::Ladder,
        retries: 0,
        ..Source::new(lengths, Arrivals::Open { rate: 16.0, cv: 1.0 })
    };
    Scenario {
        config: Arc::new(Config::parse(DOCUMENT.as_bytes()).unwrap()),
        gateways: Gateways { count: 1, workers: 2, retry_too_long: true },
        policy,
        pools: vec![pool("short", 4_096, 2), pool("long", 65_536, 2)],
        sources: vec![source],
        end: 50 * SECOND,
        drain: 600 * SECOND,
        warm_up: 5 * SECOND,
    }
}

/// What a run came to, of both pools.
#[derive(Clone, Copy, Debug)]
struct Row {
    short: u64,
    long: u64,
    under: u64,
    over: u64,
    refused: u64,
    truncated: u64,
    moved: u64,
    error: f64,
}

impl Row {
    fn new(report: &Report) -> Self {
        let sum = |of: fn(&fleet::PoolReport) -> u64| report.pools.iter().map(of).sum();
        let sent = |name: &str| {
            report.pools.iter().filter(|pool| pool.name == name).map(|pool| pool.sent).sum()
        };
        Self {
            short: sent("short"),
            long: sent("long"),
            under: sum(|pool| pool.under_routed),
            over: sum(|pool| pool.over_routed),
            refused: sum(|pool| pool.refused),
            truncated: sum(|pool| pool.truncated),
            moved: sum(|pool| pool.moved),
            error: report.errors.1,
        }
    }
}

fn row(policy: Policy, lengths: LengthSource, kinds: &[Kind]) -> Row {
    let report = fleet::run(&scenario(policy, lengths, kinds), 1).unwrap();
    assert_eq!(report.policy, policy);
    let row = Row::new(&report);
    println!("{policy:<12} {row:?}");
    row
}

#[test]
fn each_policy_misses_what_it_does_not_know() {
    let azure = || LengthSource::Drawn(AZURE_2023);
    let kinds = [Kind::English, Kind::German, Kind::Chinese, Kind::Hindi];
    let rows = Policy::ALL.map(|policy| row(policy, azure(), &kinds));
    let [gate, oracle, static4, input, spillover, one] = rows;
    let all = one.long;
    assert!(all > 600 && rows.iter().all(|row| row.short + row.long == all), "{all}");
    // Who knows lengths misses nothing.
    assert_eq!((oracle.under, oracle.over, oracle.refused, oracle.error), (0, 0, 0, 0.0));
    // Who sends all to the largest pool misses all that the other could hold.
    assert_eq!((one.short, one.under, one.over), (0, 0, oracle.short));
    // The gate errs to the safe side.
    assert!(gate.under == 0 && gate.over > 0 && gate.over < all / 50, "{gate:?}");
    assert!(static4.under > 10 && static4.refused > 0, "{static4:?}");
    assert!(static4.error > 3.0 * gate.error && gate.error > 0.02, "{static4:?} {gate:?}");
    // Whose cap or answer is long is sent where it does not fit.
    assert!(input.under > 4 && input.over < gate.over, "{input:?}");
    assert!((input.error - gate.error).abs() < 0.005, "{input:?} {gate:?}");
    // The same estimate, but a pool's crowd counts.
    assert!(spillover.moved > 50 && spillover.short + spillover.moved >= gate.short);
    assert_eq!((spillover.under, oracle.moved + gate.moved + one.moved), (0, 0));
}

#[test]
fn four_bytes_a_token_are_too_many_for_other_scripts() {
    let azure = || LengthSource::Drawn(AZURE_2023);
    let english = row(Policy::BytesBy4, azure(), &[Kind::English]);
    let others = row(Policy::BytesBy4, azure(), &[Kind::Chinese, Kind::Hindi, Kind::Json]);
    assert!(others.under > 4 * english.under.max(3) && others.over == 0, "{others:?}");
    assert!(english.over > english.under, "{english:?}");
}

/// 4,100 tokens, of which 600 are the prompt.
#[test]
fn long_answers_need_their_caps_to_be_read() {
    let talk = || LengthSource::Fixed(600, 3_500);
    let input = row(Policy::InputOnly, talk(), &[Kind::English]);
    let gate = row(Policy::Tidegate, talk(), &[Kind::English]);
    let oracle = row(Policy::Oracle, talk(), &[Kind::English]);
    assert_eq!((input.long, input.under, oracle.short), (0, input.short, 0));
    // Those without a cap, which is three in ten, nobody can tell.
    assert!(gate.under == gate.truncated && gate.under * 2 < input.under, "{gate:?}");
    assert_eq!((gate.refused, input.refused + input.truncated), (0, input.short));
}

#[test]
fn words_and_policies_are_one_to_one() {
    for policy in Policy::ALL.into_iter().chain([Policy::Spillover(7)]) {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    for wrong in ["", "Oracle", "spillover:", "spillover:0", "spillover:x", "bytes/5"] {
        let error = wrong.parse::<Policy>().unwrap_err();
        assert!(error.contains("allowed: tidegate, oracle, bytes/4"), "{error}");
    }
}

/// Four requests a replica are in the short pool; the fifth is the first to move.
#[test]
fn spillover_counts_what_is_in_the_pool() {
    let config = Config::parse(DOCUMENT.as_bytes()).unwrap();
    let model = config.base().model(Some(b"m")).unwrap();
    let of = |fit| Budget {
        input: 100,
        fit,
        need: fit,
        reserve: 200,
        output_cap: 100,
        output_learned: 100,
    };
    let known = |fit| Known { model, budget: of(fit), bytes: 0, cap: None, truth: (0, 0) };
    let choose = |fit, crowd: f64| {
        let choice = Policy::Spillover(4).choose(&known(fit), &|pool| {
            assert_eq!(pool.name, "short");
            crowd
        });
        choice.map(|choice| (choice.pool.name.clone(), choice.moved)).unwrap()
    };
    assert_eq!(choose(4_096, 3.9), ("short".into(), false));
    assert_eq!(choose(4_096, 4.0), ("long".into(), true));
    // What is long stays long, and nobody asks how full that pool is.
    assert_eq!(choose(4_097, 9.0), ("long".into(), false));
    assert!(Policy::Tidegate.choose(&known(1), &|_| 0.0).is_none());
}

/// Thresholds are for what a request takes, windows for what it may take: who
/// knows the lengths goes by the truth for the one and by the cap for the other.
#[test]
fn the_oracle_goes_by_true_lengths_and_fits_the_cap() {
    let document = DOCUMENT.replacen("4096", "4096, \"threshold\": 1000", 1);
    let config = Config::parse(document.as_bytes()).unwrap();
    let model = config.base().model(Some(b"m")).unwrap();
    assert!(model.pools[0].threshold == 1_000 && model.pools[0].max_model_len == 4_096);
    let budget = Budget {
        input: 0,
        fit: 60_000,
        need: 60_000,
        reserve: 0,
        output_cap: 0,
        output_learned: 0,
    };
    let goes = |output: u64, cap: u64| {
        let known = Known { model, budget, bytes: 0, cap: Some(cap), truth: (800, output) };
        Policy::Oracle.choose(&known, &|_| 0.0).unwrap().pool.name.clone()
    };
    assert_eq!(
        (goes(200, 3_296), goes(201, 3_296), goes(200, 3_297)),
        ("short".into(), "long".into(), "long".into())
    );
}
