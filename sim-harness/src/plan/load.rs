//! What a planned fleet does at other rates than the one that it is planned for.

use std::sync::Arc;

use super::answer::{Alternative, Plan};
use super::question::PlanError;
use super::requests::rows;
use super::trial::{Outcome, Runner, Trial};

/// Rates that are tried, as shares of the asked one.
const FACTORS: [f64; 8] = [0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3];

/// The latencies of one fleet, by load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    /// Which fleet.
    pub name: &'static str,
    /// In order of load.
    pub points: Vec<LoadPoint>,
}

/// A fleet at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPoint {
    /// Requests a second, as a share of the asked rate.
    pub load: f64,
    /// 99th percentiles over all requests, in seconds; nothing where so many were
    /// never answered.
    pub ttft_p99: Option<f64>,
    /// The same.
    pub tpot_p99: Option<f64>,
}

/// The curves of the answer and of the tuned single pool, each with the replicas
/// that the plan gives it: simulated with one seed, at the plan's scale. There
/// counts are rounded, so that a curve is a little off the plan's own figures.
pub fn load_curves(plan: &Plan, runner: &mut dyn Runner) -> Result<Vec<LoadCurve>, PlanError> {
    let mut fleets: Vec<(&'static str, &Alternative)> = vec![("tuned single pool", &plan.tuned)];
    if plan.splits {
        fleets.insert(0, ("plan", plan.answer()));
    }
    let question = Arc::new(plan.question.clone());
    let share = plan.scale.rate / question.rate;
    let (mut names, mut trials) = (Vec::new(), Vec::new());
    for (name, fleet) in fleets {
        let Ok(size) = &fleet.size else { continue };
        let scaled = |count: &u32| ((f64::from(*count) * share).round() as u32).max(1);
        let replicas: Vec<u32> = size.replicas.iter().map(scaled).collect();
        names.push(name);
        for factor in FACTORS {
            let scale = plan.scale.times(factor);
            let (counts, seed) = (scale.requests(), question.seed);
            let rows = rows(&question, scale.rate, counts, seed);
            let trial = Trial::fleet(&question, &fleet.layout, (&rows, counts), seed, &replicas);
            trials.push(trial);
        }
    }
    let outcomes = runner.run(&trials)?;
    let all: Vec<(&Trial, &Outcome)> = trials.iter().zip(&outcomes).collect();
    let curves = names.into_iter().zip(all.chunks(FACTORS.len()));
    let point = |(factor, (trial, outcome)): (&f64, &(&Trial, &Outcome))| LoadPoint {
        load: *factor,
        ttft_p99: outcome.p99(|pool| &pool.ttft, trial.counts.measured),
        tpot_p99: outcome.p99(|pool| &pool.tpot, trial.counts.measured),
    };
    let curve = |(name, all): (&'static str, &[(&Trial, &Outcome)])| LoadCurve {
        name,
        points: FACTORS.iter().zip(all).map(point).collect(),
    };
    Ok(curves.map(curve).collect())
}
