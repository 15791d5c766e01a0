//! Small plans, made whole.

use std::sync::Arc;

use tidegate::config::Config;
use tidegate::pool::{Budget, choose};

use super::analytic::{STEP, Sample};
use super::requests::{Counts, Requests, Slice, rows};
use super::*;
use crate::kernels::{Architecture, Deployment, find_gpu};
use crate::policy::Policy;
use crate::workload::{AGENT_HEAVY, AZURE_2023, CapPolicy, Request, TraceRequest};

/// Llama-3.1-8B on an L40S.
fn question(rate: f64) -> Question {
    Question {
        lengths: Source::Drawn(AZURE_2023),
        caps: CapPolicy::Ladder,
        cv: 1.0,
        rate,
        slo: Slo { ttft_p99: 2.0, tpot_p99: 0.08 },
        gpu: find_gpu("l40s", &[]).unwrap(),
        deployment: Deployment::new(Architecture::find("Llama-3.1-8B").unwrap(), 1),
        utilization: 0.9,
        window: 32_768,
        pools: 2,
        seed: 1,
        effort: Effort {
            requests: 600,
            seeds: 1,
            thresholds: 1,
            tune: false,
            verify: false,
            ..Effort::default()
        },
    }
}

fn quiet(question: Question) -> Result<Plan, PlanError> {
    plan(question, &mut Serial::default(), &mut |_| ())
}

fn gpus(plan: &Plan) -> [Option<u32>; 3] {
    [plan.homogeneous.gpus(), plan.tuned.gpus(), plan.pools.first().and_then(Alternative::gpus)]
}

#[test]
fn more_rate_never_needs_fewer_gpus_and_a_looser_promise_never_more() {
    let of = |rate: f64, ttft_p99: f64, tpot_p99: f64| {
        let slo = Slo { ttft_p99, tpot_p99 };
        gpus(&quiet(Question { slo, ..question(rate) }).unwrap())
    };
    // Rates that need no scaling down.
    let all = [of(1.5, 2.0, 0.08), of(4.0, 2.0, 0.08)];
    let looser = of(4.0, 4.0, 0.15);
    for kind in 0..3 {
        let counts = all.map(|gpus| gpus[kind].unwrap());
        assert!(counts[0] <= counts[1], "{kind}: {counts:?}");
        assert!(looser[kind].unwrap() <= counts[1], "{kind}: {looser:?} {counts:?}");
    }
}

fn trial(question: Question, layout: Layout, replicas: &[u32]) -> Trial {
    let counts = Counts { warm: 200, measured: 1_500 };
    Trial {
        rows: rows(&question, 20.0, counts, 3),
        question: Arc::new(question),
        policy: if layout.shapes.len() > 1 { Policy::Tidegate } else { Policy::Oracle },
        tells: false,
        allowed: Allowed::ALL,
        layout,
        replicas: replicas.to_vec(),
        counts,
        seed: 3,
    }
}

fn run(trial: &Trial) -> Outcome {
    trial.run(&mut StepTimes::default()).unwrap()
}

fn largest() -> Shape {
    Shape::largest(32_768, 256, 8_192)
}

fn two() -> Layout {
    Layout { shapes: vec![largest().smaller(2_048), largest()], reserve: 640, oracle: false }
}

#[test]
fn the_document_parses_and_sends_each_length_where_the_plan_says() {
    let config = Config::parse(two().document().to_string().as_bytes()).unwrap();
    let model = config.base().model(Some(b"any")).unwrap();
    // The short window ends half-way from 2,048 to 32,768.
    let cases = [
        (1, 1, "short"),
        (17_408, 2_048, "short"),
        (17_409, 2_048, "long"),
        (2_049, 2_049, "long"),
        (99_999, 99_999, "long"),
    ];
    for (fit, need, pool) in cases {
        let rest = Budget { input: 0, fit, need, reserve: 0, output_cap: 0, output_learned: 0 };
        assert_eq!(choose(model, rest).unwrap().0.name, pool, "{fit} {need}");
    }
    assert_eq!(config.base().default_pool.name, "long");
    // As many go there as the formulas take to go there, but for the estimate's
    // error.
    let question = question(20.0);
    let outcome = run(&trial(question.clone(), two(), &[3, 3]));
    let sample = analytic::Sample::new(&question);
    let guess =
        analytic::guess(&question, &sample, &two(), 20.0, &mut StepTimes::default()).unwrap();
    let (found, expected) = (outcome.pools[0].requests as f64 / 1_500.0, guess.pools[0].share);
    assert!((found - expected).abs() < 0.04, "{found} {expected}");
}

/// What the search rests on: pools that are simulated alone, with the requests
/// that the gate told, do what they do in a fleet behind the gate.
#[test]
fn a_pool_alone_does_what_it_does_in_the_fleet() {
    let question = question(20.0);
    let fleet = trial(question.clone(), two(), &[4, 4]);
    let whole = run(&fleet);
    let single = Layout { shapes: vec![largest()], ..two() };
    let told = trial(question.clone(), single.clone(), &[12]);
    let told = Trial { policy: Policy::Tidegate, tells: true, ..told };
    let requests =
        Requests { rows: Arc::clone(&told.rows), needs: run(&told).needs, counts: told.counts };
    let mut shared = 0;
    for (nth, pool) in whole.pools.iter().enumerate() {
        let (rows, counts) = requests.slice(Slice::of(&two().shapes, nth));
        let alone = trial(question.clone(), single.clone(), &[4]);
        let alone = run(&Trial { rows, counts, ..alone });
        let near = |a: u64, b: u64| a.abs_diff(b) <= 12 + b / 20;
        let alone = &alone.pools[0];
        assert!(near(alone.requests, pool.requests), "{nth}: {alone:?} {pool:?}");
        assert!(near(alone.late, pool.late) && near(alone.slow, pool.slow), "{nth}: {alone:?}");
        let median = |pool: &PoolOutcome| pool.ttft.quantile(0.5) as f64;
        assert!((median(alone) / median(pool) - 1.0).abs() < 0.1, "{nth}");
        shared += alone.requests;
    }
    // Every request is in one slice.
    assert_eq!(shared, 1_500);
}

#[test]
fn slices_part_the_requests_as_the_gate_does() {
    let shapes = vec![largest().smaller(512), largest().smaller(4_096), largest()];
    let config = Layout { shapes: shapes.clone(), ..two() }.document().to_string();
    let config = Config::parse(config.as_bytes()).unwrap();
    let model = config.base().model(None).unwrap();
    for need in (1..40_000).step_by(97) {
        for fit in [need, need + 9_000, need + 17_000] {
            let rest = Budget {
                input: 0,
                fit: fit.into(),
                need: need.into(),
                reserve: 0,
                output_cap: 0,
                output_learned: 0,
            };
            let chosen = choose(model, rest).unwrap().0;
            let has = |nth: usize| Slice::of(&shapes, nth).has(requests::Need { need, fit });
            let of: Vec<usize> = (0..3).filter(|nth| has(*nth)).collect();
            let names = ["short", "middle", "long"].map(|name| name == chosen.name);
            assert_eq!(of.len(), 1, "{need} {fit}");
            assert!(names[of[0]], "{need} {fit}: {of:?}, {}", chosen.name);
        }
    }
}

#[test]
fn a_slice_knows_how_many_of_it_come_first_and_how_many_count() {
    let needs = |need| requests::Need { need, fit: need };
    // Short and long ones in turn; two come before those that count, two after.
    let all = Requests {
        rows: vec![TraceRequest::default(); 9].into(),
        needs: (0..9).map(|nth| needs(if nth % 2 == 0 { 100 } else { 9_000 })).collect(),
        counts: Counts { warm: 2, measured: 5 },
    };
    let of = |nth| {
        let (rows, counts) = all.slice(Slice::of(&two().shapes, nth));
        (rows.len(), counts)
    };
    assert_eq!(of(0), (5, Counts { warm: 1, measured: 3 }));
    assert_eq!(of(1), (4, Counts { warm: 1, measured: 2 }));
}

#[test]
fn a_fleet_that_misses_gets_more_where_it_misses_until_it_holds() {
    let question = Arc::new(question(60.0));
    let counts = Counts { warm: 100, measured: 600 };
    let all: Vec<_> = [3, 4].map(|seed| (seed, rows(&question, 60.0, counts, seed))).into();
    let layout = two();
    let put = |replicas: [u32; 2], tries| {
        let mut fleets = [check::LoadTest::new(&layout, replicas.to_vec())];
        let mut serial = Serial::default();
        let mut searcher = search::Searcher::new(Arc::clone(&question), &mut serial);
        check::load_test(&question, &mut fleets, (&all, counts), tries, &mut searcher).unwrap();
        let [one] = fleets;
        (one, searcher.runs)
    };
    let late = |of: &[Outcome]| of.iter().map(|one| search::missed(one).0).sum::<u64>();
    let (ample, trials) = put([30, 20], 4);
    assert!(ample.holds && ample.added == 0 && trials == 2, "{:?}", ample.replicas);
    let (few, trials) = put([1, 20], 0);
    assert!(!few.holds && few.added == 0 && trials == 2, "{:?}", few.last);
    assert!(late(&few.last) > 12, "{:?}", few.last);
    // The short pool is the one that is too small.
    let (grown, trials) = put([1, 20], 20);
    assert!(grown.holds && late(&grown.last) <= 12, "{:?}", grown.replicas);
    assert_eq!(late(&grown.first), late(&few.last));
    assert_eq!(grown.replicas, [1 + grown.added, 20]);
    assert_eq!(trials, 2 * (1 + u64::from(grown.added)));
}

/// A hundredth more each time, two after four times, four after eight: what is far too
/// small gets there.
#[test]
fn a_fleet_that_goes_on_missing_grows_faster() {
    let layout = two();
    let missed = |late| PoolOutcome { requests: 1_000, late, ..PoolOutcome::default() };
    let outcome = Outcome { pools: vec![missed(100), missed(3)], ..Outcome::default() };
    let mut fleet = check::LoadTest::new(&layout, vec![1_000, 50]);
    let more: Vec<u32> = (0..12)
        .map(|_| {
            let before = fleet.replicas[0];
            assert!(fleet.judge(std::slice::from_ref(&outcome), 1_000, true));
            fleet.replicas[0] - before
        })
        .collect();
    assert_eq!(more, [10, 11, 11, 11, 21, 22, 22, 23, 46, 48, 49, 51]);
    assert_eq!(fleet.replicas[1], 50, "it missed nothing to speak of");
    assert!(!fleet.judge(&[outcome], 1_000, false) && !fleet.holds);
}

#[test]
fn a_check_tells_what_holds_at_another_rate() {
    let mut plan = quiet(question(4.0)).unwrap();
    let check = |plan: &Plan, rate, tries| {
        let check = Check { rate, seconds: 60.0, seeds: 1, all: false, tries };
        let all = check_fleets(plan, &check, &mut Serial::default()).unwrap();
        all.into_iter().find(|one| one.name == "tuned").unwrap()
    };
    // Ten times as many for ten times the rate, and one for a tenth.
    let needed = plan.tuned.size.as_ref().unwrap().replicas[0];
    plan.tuned.size.as_mut().unwrap().replicas = vec![needed + 2];
    let more = check(&plan, 12.0, 0);
    assert_eq!((more.replicas, more.held), (vec![(needed + 2) * 3], Some((needed + 2) * 3)));
    assert_eq!(check(&plan, 0.4, 0).replicas, [1]);
    // Too few: it says what they miss, and with how many it holds.
    plan.tuned.size.as_mut().unwrap().replicas = vec![1];
    assert_eq!(check(&plan, 16.0, 0).held, None);
    let few = check(&plan, 16.0, 40);
    assert!(few.gpus == 4 && few.late.max(few.slow) > 0.01, "{few:?}");
    assert!(few.held.unwrap() > 4, "{few:?}");
}

/// A thread that makes one plan after the other keeps none of the first's times.
#[test]
fn step_times_are_of_the_replica_that_is_asked_for() {
    let small = question(20.0);
    let faster = Question { gpu: find_gpu("h100_sxm", &[]).unwrap(), ..small.clone() };
    let wider = Question { window: 65_536, ..small.clone() };
    let mut kept = StepTimes::default();
    let mut seen = Vec::new();
    for question in [&small, &faster, &small, &wider] {
        let trial = trial(question.clone(), two(), &[4, 4]);
        let outcome = trial.run(&mut kept).unwrap();
        assert_eq!(outcome, run(&trial));
        seen.push(outcome);
    }
    assert!(seen[0] != seen[1] && seen[0] == seen[2]);
}

/// All that pools of some windows serve comes late under one seed. Keeps the windows
/// that were simulated with known lengths, and with estimates.
#[derive(Default)]
struct Spoiled {
    serial: Serial,
    seed: u64,
    windows: Vec<u32>,
    known_lengths: Vec<u32>,
    estimated: Vec<u32>,
}

impl Runner for Spoiled {
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        let mut outcomes = self.serial.run(trials)?;
        for (trial, outcome) in trials.iter().zip(&mut outcomes) {
            let [alone] = trial.layout.shapes[..] else { continue };
            if trial.layout.oracle {
                self.known_lengths.push(alone.window);
                continue;
            }
            self.estimated.push(alone.window);
            if trial.seed == self.seed && self.windows.contains(&alone.window) {
                outcome.pools[0].late = outcome.pools[0].requests;
            }
        }
        Ok(outcomes)
    }
}

#[test]
fn searches_come_nearer_and_try_each_others_best() {
    let effort = Effort { thresholds: 3, ..question(4.0).effort };
    let question = Question { effort, ..question(4.0) };
    let mut runner = Spoiled::default();
    let sound = plan(question.clone(), &mut runner, &mut |_| ()).unwrap();
    let own = sound.pools[0].layout.shapes[0];
    let oracle = sound.oracle.as_ref().unwrap().layout.shapes[0];
    assert!(runner.known_lengths.contains(&own.window), "{:?}", runner.known_lengths);
    assert!(runner.estimated.contains(&oracle.window), "{oracle:?}: {:?}", runner.estimated);
    // The first quantile is the best: nearer from there to the next, twice.
    let quantiles = Sample::new(&question).thresholds(question.window, 3, false);
    let half = |other: u32| quantiles[0].midpoint(other).next_multiple_of(STEP);
    let [once, twice] = [half(quantiles[1]), half(half(quantiles[1]))];
    let tried = |threshold| sound.candidates.iter().any(|one| one.thresholds == [threshold]);
    assert!(tried(once) && tried(twice), "{once}, {twice}: {:?}", sound.candidates);
}

#[test]
fn a_split_that_one_seed_spoils_makes_way_for_the_next() {
    let effort = Effort { thresholds: 3, seeds: 2, ..question(4.0).effort };
    let question = Question { effort, ..question(4.0) };
    let mut runner = Spoiled::default();
    let mut stages = Vec::new();
    let hear = &mut |stage: &Stage<'_>| stages.push((stage.done, stage.of));
    let sound = plan(question.clone(), &mut runner, hear).unwrap();
    let split = |plan: &Plan| plan.pools[0].layout.shapes[0];
    let of = stages[0].1;
    assert!(stages.iter().copied().eq((0..).map(|done| (done, of)).take(stages.len())));
    assert!(stages.len() as u32 <= of && of <= stages.len() as u32 + 1, "{stages:?}");
    // The two that the first seed likes best.
    let mut best: Vec<(Option<u32>, u32)> =
        sound.candidates.iter().map(|one| (one.gpus, one.thresholds[0])).collect();
    best.sort_unstable();
    let windows = best.iter().take(2).map(|(_, threshold)| largest().smaller(*threshold).window);
    let seed = question.seed + 1;
    let mut runner = Spoiled { seed, windows: windows.collect(), ..Spoiled::default() };
    let spoiled = plan(question, &mut runner, &mut |_| ()).unwrap();
    assert!(!runner.windows.contains(&split(&spoiled).window), "{best:?}");
    assert!(spoiled.pools[0].size.is_ok(), "{:?}", spoiled.pools[0].size);
}

#[test]
fn several_thresholds_are_apart() {
    let effort = Effort { thresholds: 3, ..question(4.0).effort };
    let plan = quiet(Question { pools: 3, effort, ..question(4.0) }).unwrap();
    let apart = |one: &&Candidate| one.thresholds.windows(2).all(|two| two[1] >= two[0] + STEP);
    assert!(plan.candidates.iter().all(|one| apart(&one)), "{:?}", plan.candidates);
    assert!(plan.candidates.iter().any(|one| one.thresholds.len() == 2));
}

#[test]
fn the_papers_single_pool_is_the_tuned_one_where_that_is_dearer() {
    let mut plan = quiet(question(4.0)).unwrap();
    let verified = |name, added| Checked { name, added, ..Checked::default() };
    plan.verified = vec![verified("homogeneous", 1), verified("tuned", 2)];
    let (papers, tuned) = (plan.homogeneous.clone(), plan.tuned.clone());
    plan.tune();
    assert_eq!(plan.tuned, tuned, "it is no dearer");
    plan.homogeneous.size.as_mut().unwrap().gpus = 1;
    plan.tuned.size.as_mut().unwrap().gpus = 2;
    plan.tune();
    assert_eq!((plan.tuned.gpus(), plan.tuned.layout == papers.layout), (Some(1), true));
    assert_eq!(plan.verified[1], verified("tuned", 1));
}

#[test]
fn a_trial_that_is_hopeless_ends_early_and_says_so() {
    let mut trial = trial(question(60.0), two(), &[1, 1]);
    trial.rows = rows(&trial.question, 60.0, trial.counts, 3);
    let whole = run(&trial);
    assert!(whole.whole && whole.pools[0].late > 15);
    assert_eq!(whole.pools.iter().map(|pool| pool.requests).sum::<u64>() + whole.lost, 1_500);
    trial.allowed = Allowed { late: 5, slow: 5 };
    let early = run(&trial);
    assert!(!early.whole && early.pools[0].requests < whole.pools[0].requests / 2);
    assert_eq!(early.p99(|pool| &pool.ttft, 1_500), None, "what was cut off has no figures");
}

#[test]
fn what_no_fleet_can_hold_is_told() {
    let slo = Slo { ttft_p99: 0.02, tpot_p99: 0.08 };
    let plan = quiet(Question { slo, ..question(4.0) }).unwrap();
    let why = plan.tuned.size.as_ref().unwrap_err();
    assert!(why.contains("more replicas do not help"), "{why}");
    assert!(plan.text(&[]).contains("No fleet of these kinds holds the promise"));
    assert_eq!(plan.json(&[])["plan"]["gpus"], serde_json::Value::Null);
}

#[test]
fn wrong_questions_name_the_part() {
    let error = |question: Question| quiet(question).unwrap_err().to_string();
    assert!(error(question(0.0)).starts_with("rate: found 0; allowed"));
    let slo = Slo { ttft_p99: 2.0, tpot_p99: -1.0 };
    assert!(error(Question { slo, ..question(1.0) }).starts_with("slo_tpot_p99: found -1"));
    assert!(error(Question { window: 100, ..question(1.0) }).starts_with("max_model_len"));
    let large = error(Question { window: 1 << 20, ..question(1.0) });
    assert!(large.contains("tokens of KV cache that the model's weights leave on 1 x l40s"));
    let lengths = Source::Trace(Vec::new().into());
    assert!(error(Question { lengths, ..question(1.0) }).contains("no requests"));
    assert!(error(Question { pools: 5, ..question(1.0) }).starts_with("pools: found 5"));
}

#[test]
fn thresholds_divide_the_requests() {
    for lengths in [AZURE_2023, AGENT_HEAVY] {
        let sample =
            analytic::Sample::new(&Question { lengths: Source::Drawn(lengths), ..question(1.0) });
        let found = sample.thresholds(32_768, 6, false);
        assert!(found.len() >= 4 && found.is_sorted(), "{found:?}");
        assert!(found.iter().all(|t| t.is_multiple_of(128) && *t < 32_768), "{found:?}");
    }
    // All alike: nothing to divide.
    let row = Request { arrival: 0, input_tokens: 200, output_tokens: 40, cap: None };
    let question = Question {
        lengths: Source::Trace(vec![row].into()),
        caps: CapPolicy::Actual,
        ..question(1.0)
    };
    assert!(analytic::Sample::new(&question).thresholds(32_768, 6, false).is_empty());
}
