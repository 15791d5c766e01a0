//! Small plans, made whole.

use std::sync::Arc;

use tidegate::config::Config;
use tidegate::pool::choose;

use super::*;
use crate::kernels::{Architecture, Deployment, find_gpu};
use crate::workload::{AGENT_HEAVY, AZURE_2023, CapPolicy, Request};

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
        effort: Effort { requests: 600, seeds: 1, thresholds: 1, tune: false, verify: false },
    }
}

fn quiet(question: Question) -> Result<Plan, PlanError> {
    plan(question, &mut Serial::default(), &mut |_| ())
}

fn gpus(plan: &Plan) -> [Option<u32>; 3] {
    [plan.homogeneous.gpus(), plan.tuned.gpus(), plan.two.as_ref().and_then(Alternative::gpus)]
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
    Trial {
        question: Arc::new(question),
        allowed: vec![Some(Allowed::ALL); replicas.len()],
        layout,
        replicas: replicas.to_vec(),
        rate: 20.0,
        warm: 100,
        measured: 1_500,
        seed: 3,
    }
}

fn two(oracle: bool) -> Layout {
    let shape = |window| Shape { window, seats: 256, batched: 8_192 };
    Layout { shapes: vec![shape(2_048), shape(32_768)], reserve: 640, oracle }
}

#[test]
fn the_document_parses_and_sends_each_length_where_the_plan_says() {
    let config = Config::parse(two(false).document().to_string().as_bytes()).unwrap();
    let model = config.base().model(Some(b"any")).unwrap();
    for (fit, pool) in [(1, "short"), (2_048, "short"), (2_049, "long"), (99_999, "long")] {
        assert_eq!(choose(model, fit).unwrap().0.name, pool, "{fit}");
    }
    assert_eq!(config.base().default_pool.name, "long");
    // As many go there as the formulas take to go there, but for the estimate's
    // caution.
    let question = question(20.0);
    let layout = two(false);
    let outcome = trial(question.clone(), layout, &[3, 3]).run(&mut StepTimes::default()).unwrap();
    let sample = analytic::Sample::new(&question);
    let shapes = two(false).shapes;
    let guess =
        analytic::guess(&question, &sample, &shapes, 20.0, &mut StepTimes::default()).unwrap();
    let (found, expected) = (outcome.pools[0].requests as f64 / 1_500.0, guess.pools[0].share);
    assert!((found - expected).abs() < 0.06, "{found} {expected}");
}

/// The oracle sends a request to the short pool exactly if it fits: none comes
/// back, none is cut short.
#[test]
fn the_oracle_is_exact() {
    let rows = (0..40u32).map(|nth| Request {
        arrival: 0,
        input_tokens: 1_900 + 5 * nth,
        output_tokens: 100,
        cap: None,
    });
    let lengths = Source::Trace(rows.collect());
    let question = Question { lengths, ..question(20.0) };
    let run = |oracle| {
        trial(question.clone(), two(oracle), &[4, 4]).run(&mut StepTimes::default()).unwrap()
    };
    let (exact, real) = (run(true), run(false));
    let misplaced = |outcome: &Outcome| -> u64 {
        outcome.pools.iter().map(|pool| pool.retried + pool.truncated).sum::<u64>() + outcome.lost
    };
    assert_eq!(misplaced(&exact), 0);
    // 1,900 to 1,945 with 100 more fit 2,048: 10 of 40.
    let share = exact.pools[0].requests as f64 / 1_500.0;
    assert!((share - 0.25).abs() < 0.04, "{share}");
    // With caps of clients in place of the truth, almost none does.
    assert!(real.pools[0].requests < exact.pools[0].requests / 2, "{:?}", real.pools[0]);
}

#[test]
fn a_trial_that_is_hopeless_ends_early_and_says_so() {
    let mut trial = trial(question(20.0), two(false), &[1, 1]);
    (trial.rate, trial.warm, trial.measured) = (60.0, 10, 300);
    let whole = trial.run(&mut StepTimes::default()).unwrap();
    assert!(whole.whole && whole.pools[0].late > 15);
    assert_eq!(whole.pools.iter().map(|pool| pool.requests).sum::<u64>() + whole.lost, 300);
    trial.allowed = vec![Some(Allowed { late: 5, slow: 5 }), None];
    let early = trial.run(&mut StepTimes::default()).unwrap();
    assert!(!early.whole && early.pools[0].requests < whole.pools[0].requests / 2);
    assert_eq!(early.p99(|tally| &tally.ttft, 300), None, "what was cut off has no figures");
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
    assert!(error(Question { slo, ..question(1.0) }).starts_with("slo-tpot-p99: found -1"));
    assert!(error(Question { window: 100, ..question(1.0) }).starts_with("max-model-len"));
    let large = error(Question { window: 1 << 20, ..question(1.0) });
    assert!(large.contains("tokens of KV cache that the model's weights leave on 1 x l40s"));
    let lengths = Source::Trace(Vec::new().into());
    assert!(error(Question { lengths, ..question(1.0) }).contains("no requests"));
    assert!(error(Question { pools: 4, ..question(1.0) }).starts_with("pools: found 4"));
}

#[test]
fn thresholds_divide_the_requests() {
    for lengths in [AZURE_2023, AGENT_HEAVY] {
        let sample =
            analytic::Sample::new(&Question { lengths: Source::Drawn(lengths), ..question(1.0) });
        let found = sample.thresholds(32_768, 6);
        assert!(found.len() >= 4 && found.is_sorted(), "{found:?}");
        assert!(found.iter().all(|t| t.is_multiple_of(256) && *t < 32_768), "{found:?}");
    }
    // All alike: nothing to divide.
    let row = Request { arrival: 0, input_tokens: 200, output_tokens: 40, cap: None };
    let question = Question {
        lengths: Source::Trace(vec![row].into()),
        caps: CapPolicy::Actual,
        ..question(1.0)
    };
    assert!(analytic::Sample::new(&question).thresholds(32_768, 6).is_empty());
}
