//! One simulation of one fleet: how many of its requests miss what was promised.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate::config::Config;
use tidegate::pool::Budget;

use super::question::{PlanError, Question, Shape};
use super::requests::{Counts, Need};
use crate::SECOND;
use crate::engine::{Rounded, StepTime, Work};
use crate::fleet::{self, Arrivals, Dispatch, Fate, Gateways, LengthSource, Pool, Scenario, Watch};
use crate::histogram::Histogram;
use crate::kernels::{
    Asked, Deployment, Execution, Fit, Gpu, HostTime, Pricing, Profiles, shipped,
};
use crate::policy::Policy;
use crate::texts::Kind;
use crate::workload::{CapPolicy, TraceRequest};

/// Pools, smallest window first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One for each pool.
    pub shapes: Vec<Shape>,
    /// What stands in for a cap that a client does not name.
    pub reserve: u32,
    /// Whoever shares the requests out knows their true lengths.
    pub oracle: bool,
}

/// Names of so many pools, smallest first.
pub(super) fn names(count: usize) -> &'static [&'static str] {
    match count {
        0 | 1 => &["all"],
        2 => &["short", "long"],
        3 => &["short", "middle", "long"],
        _ => &["short", "middle", "upper", "long"],
    }
}

impl Layout {
    /// The document for the gateways.
    pub fn document(&self) -> Value {
        let pools = self.shapes.iter().zip(names(self.shapes.len()));
        let pool = |(shape, name): (&Shape, &&str)| {
            let (window, threshold) = (shape.window, shape.threshold);
            if threshold < window {
                json!({"name": name, "cluster": name, "max_model_len": window, "threshold": threshold})
            } else {
                json!({"name": name, "cluster": name, "max_model_len": window})
            }
        };
        let pools: Vec<Value> = pools.map(pool).collect();
        json!({
            "version": 1,
            "output_reserve": self.reserve,
            "models": [{"match": "*", "pools": pools}],
            "default_pool": names(self.shapes.len()).last(),
        })
    }
}

/// How many requests may come late, or slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// First tokens after the promise.
    pub late: u64,
    /// Answers slower than the promise.
    pub slow: u64,
}

impl Allowed {
    /// Whatever happens.
    pub(super) const ALL: Self = Self { late: u64::MAX, slow: u64::MAX };
}

/// One simulation to run. Equal trials have equal outcomes, wherever they run.
#[derive(Clone, Debug)]
pub struct Trial {
    pub(super) question: Arc<Question>,
    pub(super) layout: Layout,
    /// Who shares the requests out: the gate, which reads texts; or, where there
    /// is one pool or lengths are known, the truth.
    pub(super) policy: Policy,
    /// What the gate takes each request for is written down.
    pub(super) tells: bool,
    /// Of each pool.
    pub(super) replicas: Vec<u32>,
    /// Who comes when.
    pub(super) rows: Arc<[TraceRequest]>,
    pub(super) counts: Counts,
    pub(super) seed: u64,
    /// The run ends as soon as there are more than these.
    pub(super) allowed: Allowed,
}

/// What one pool's requests came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolOutcome {
    /// Answered here.
    pub requests: u64,
    /// First tokens after the promise.
    pub late: u64,
    /// Answers slower than the promise.
    pub slow: u64,
    /// Answers cut short by the window: late and slow, whatever they were.
    pub truncated: u64,
    /// Refused by a smaller pool for their length.
    pub retried: u64,
    /// Nanoseconds.
    pub(super) ttft: Histogram,
    pub(super) tpot: Histogram,
}

/// What a trial came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// One for each pool, as the layout has them.
    pub pools: Vec<PoolOutcome>,
    /// Requests that were not answered: refused for their length.
    pub lost: u64,
    /// All requests that count have ended: nothing was cut off.
    pub whole: bool,
    /// Mean share of the KV cache in use, of each pool.
    pub kv: Vec<f64>,
    /// Times that a request made room for others.
    pub preemptions: u64,
    /// What the gate took each request for, in order; of trials that ask for it.
    pub(super) needs: Vec<Need>,
}

impl Outcome {
    /// The figures of all requests; nothing where a figure does not exist.
    pub(super) fn p99(&self, of: impl Fn(&PoolOutcome) -> &Histogram, all: u64) -> Option<f64> {
        let mut sum = Histogram::default();
        for pool in &self.pools {
            sum.merge(of(pool));
        }
        // Answers of one token have no time between tokens: they are fast.
        let rank = all - all / 100;
        let (known, answered) = (sum.count(), self.pools.iter().map(|t| t.requests).sum::<u64>());
        let without = answered - known;
        if rank > answered || !self.whole {
            return None;
        }
        let rank = rank.saturating_sub(without).max(1);
        Some(sum.quantile(rank as f64 / known.max(1) as f64) as f64 / SECOND as f64)
    }
}

/// Counts what the requests of a trial come to.
struct Judge<'a> {
    trial: &'a Trial,
    /// Of each place among the document's pools by name, the layout's.
    order: Vec<usize>,
    slo: (u64, u64),
    pools: Vec<PoolOutcome>,
    lost: u64,
    ended: u64,
    needs: Vec<Need>,
}

impl Watch for Judge<'_> {
    fn placed(&mut self, nth: u64, budget: &Budget) {
        let tokens = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        let need = Need { need: tokens(budget.need), fit: tokens(budget.fit) };
        if let Some(slot) = self.needs.get_mut(nth as usize - 1) {
            *slot = need;
        }
    }

    fn ended(&mut self, fate: &Fate) -> bool {
        let Self { trial: Trial { counts, allowed, .. }, .. } = self;
        if fate.nth <= counts.warm || fate.nth > counts.warm + counts.measured {
            return true;
        }
        self.ended += 1;
        let place = fate.pool.and_then(|place| self.order.get(place)).copied();
        if let Some(pool) = place.and_then(|place| self.pools.get_mut(place)) {
            pool.requests += 1;
            pool.late += u64::from(fate.truncated || fate.first_token > self.slo.0);
            let slow = fate.per_token.is_some_and(|time| time > self.slo.1);
            pool.slow += u64::from(fate.truncated || slow);
            pool.truncated += u64::from(fate.truncated);
            pool.retried += u64::from(fate.retried);
            pool.ttft.add(fate.first_token);
            if let Some(time) = fate.per_token {
                pool.tpot.add(time);
            }
        } else {
            self.lost += 1;
        }
        let late = self.pools.iter().map(|pool| pool.late).sum::<u64>() + self.lost;
        let slow = self.pools.iter().map(|pool| pool.slow).sum::<u64>() + self.lost;
        let hopeless = late > allowed.late || slow > allowed.slow;
        let enough = self.ended == counts.measured && self.needs.is_empty();
        !enough && !hopeless
    }
}

/// Step times that are made once, for the trials of one thread.
#[derive(Default)]
pub struct StepTimes {
    fits: Vec<Fit>,
    /// What the times are of.
    replica: Option<(Gpu, Deployment, u32)>,
    times: BTreeMap<(u32, u32), Rc<dyn StepTime>>,
}

/// One of them.
struct Lent(Rc<dyn StepTime>);

impl StepTime for Lent {
    fn step(&self, work: &Work<'_>) -> u64 {
        self.0.step(work)
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        self.0.together(ranks)
    }
}

impl StepTimes {
    /// The step time of a replica.
    pub(super) fn time(
        &mut self,
        question: &Question,
        shape: Shape,
    ) -> Result<Rc<dyn StepTime>, PlanError> {
        let Question { gpu, deployment, window, .. } = question;
        let same = |known: &(Gpu, Deployment, u32)| {
            known.0 == *gpu && known.1 == *deployment && known.2 == *window
        };
        if !self.replica.as_ref().is_some_and(same) {
            self.replica = Some((gpu.clone(), *deployment, *window));
            self.times.clear();
        }
        let key = (shape.seats, shape.batched);
        if let Some(time) = self.times.get(&key) {
            return Ok(Rc::clone(time));
        }
        if self.fits.is_empty() {
            self.fits = shipped();
        }
        let ranks = if deployment.ep > 1 { deployment.dp } else { 1 };
        let asked = Asked {
            gpu: &gpu.name,
            deployment: *deployment,
            execution: Execution::vllm(shape.batched, shape.seats, *window),
            host: HostTime::vllm(true, deployment.tp, ranks),
        };
        let gpus = std::slice::from_ref(gpu);
        let profiles = Profiles { fits: &self.fits, gpus, ..Profiles::default() };
        let priced = profiles.price(&asked, Pricing::Model);
        let priced = priced.map_err(|error| PlanError::Question("gpu", error.to_string()))?;
        let time: Rc<dyn StepTime> = Rc::new(Rounded::new(priced.time));
        self.times.insert(key, Rc::clone(&time));
        Ok(time)
    }
}

impl Trial {
    /// A whole fleet behind its gate, to its end.
    pub(super) fn fleet(
        question: &Arc<Question>,
        layout: &Layout,
        (rows, counts): (&Arc<[TraceRequest]>, Counts),
        seed: u64,
        replicas: &[u32],
    ) -> Self {
        Self {
            question: Arc::clone(question),
            layout: layout.clone(),
            policy: if layout.shapes.len() == 1 || layout.oracle {
                Policy::Oracle
            } else {
                Policy::Tidegate
            },
            tells: false,
            replicas: replicas.to_vec(),
            rows: Arc::clone(rows),
            counts,
            seed,
            allowed: Allowed::ALL,
        }
    }

    fn scenario(&self, bench: &mut StepTimes) -> Result<Scenario, PlanError> {
        let question = &*self.question;
        let document = self.layout.document().to_string();
        let config = Config::parse(document.as_bytes())
            .map_err(|error| PlanError::Question("pools", error.to_string()))?;
        let all = self.layout.shapes.iter().zip(&self.replicas);
        let mut pools = Vec::new();
        for ((shape, replicas), name) in all.zip(names(self.layout.shapes.len())) {
            pools.push(Pool {
                name: (*name).to_owned(),
                replicas: *replicas,
                dispatch: Dispatch::LeastLoaded,
                engine: question.engine(*shape),
                ranks: question.deployment.dp,
                time: Box::new(Lent(bench.time(question, *shape)?)),
                faults: Vec::new(),
            });
        }
        let lengths = LengthSource::Trace(Arc::clone(&self.rows));
        let source = fleet::Source {
            tenant: "all".into(),
            texts: vec![(Kind::English, 2), (Kind::Python, 1), (Kind::German, 1), (Kind::Json, 1)],
            // Caps are for the gate to go by: else whatever fits is served.
            caps: if self.policy == Policy::Oracle { CapPolicy::Actual } else { question.caps },
            retries: 0,
            ..fleet::Source::new(lengths, Arrivals::Trace { speed: 1.0 })
        };
        Ok(Scenario {
            config: Arc::new(config),
            gateways: Gateways { count: 1, workers: 2, retry_too_long: true },
            policy: self.policy,
            pools,
            sources: vec![source],
            // To the last request's end.
            end: u64::MAX / 4,
            drain: 0,
            warm_up: 0,
        })
    }

    /// Runs it.
    pub fn run(&self, bench: &mut StepTimes) -> Result<Outcome, PlanError> {
        let scenario = self.scenario(bench)?;
        let names = names(self.layout.shapes.len());
        let place = |name: &String| names.iter().position(|one| one == name).unwrap_or(0);
        let order: Vec<usize> = scenario.config.pool_names.iter().map(place).collect();
        let nanos = |seconds: f64| (seconds * SECOND as f64) as u64;
        let slo = self.question.slo;
        let needs = if self.tells { self.rows.len() } else { 0 };
        let mut judge = Judge {
            trial: self,
            order,
            slo: (nanos(slo.ttft_p99), nanos(slo.tpot_p99)),
            pools: vec![PoolOutcome::default(); names.len()],
            lost: 0,
            ended: 0,
            needs: vec![Need { need: u32::MAX, fit: u32::MAX }; needs],
        };
        let report = fleet::watch(&scenario, self.seed, &mut judge)?;
        let kv = |name: &&str| {
            report.pools.iter().find(|pool| pool.name == **name).map_or(0.0, |pool| pool.kv_mean)
        };
        Ok(Outcome {
            kv: names.iter().map(kv).collect(),
            preemptions: report.pools.iter().map(|pool| pool.preemptions).sum(),
            whole: judge.ended == self.counts.measured,
            pools: judge.pools,
            lost: judge.lost,
            needs: judge.needs,
        })
    }
}

/// Who runs trials. Outcomes are in the trials' order, and do not depend on how
/// many run at once.
pub trait Runner {
    /// Runs all of them.
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError>;
}

/// Runs one after the other.
#[derive(Default)]
pub struct Serial(StepTimes);

impl Runner for Serial {
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        trials.iter().map(|trial| trial.run(&mut self.0)).collect()
    }
}
