//! What to simulate.

use std::fmt;
use std::sync::Arc;

use tidegate::config::Config;

use crate::engine::{self, StepTime};
use crate::texts::Kind;
use crate::workload::{CapPolicy, Lengths, Request};

/// A fleet and the load on it. Times are nanoseconds from the start.
pub struct Scenario {
    /// The document that the gateways run.
    pub config: Arc<Config>,
    /// The gateways.
    pub gateways: Gateways,
    /// One for each pool that the document names, by name, in any order.
    pub pools: Vec<Pool>,
    /// Who sends.
    pub sources: Vec<Source>,
    /// Sources send nothing new from here on, and promises are counted to here.
    pub end: u64,
    /// Requests still open so long after `end` are cut off, and counted as cut.
    pub drain: u64,
    /// Tokens promised are compared with tokens got from here on, so that a
    /// burst at the start does not count.
    pub warm_up: u64,
}

/// Like gateways, each with its own workers and its own memory: they share
/// nothing, as Envoy processes do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateways {
    /// How many. At least 1.
    pub count: u32,
    /// Workers of each. At least 1.
    pub workers: u32,
    /// A request that a smaller pool refuses for its length goes to the largest
    /// pool, once, as the shipped Envoy configuration has it.
    pub retry_too_long: bool,
}

/// Replicas of one pool.
pub struct Pool {
    /// The pool's name in the document.
    pub name: String,
    /// Replicas. At least 1.
    pub replicas: u32,
    /// Which of them a request goes to.
    pub dispatch: Dispatch,
    /// The settings of each. Its `max_model_len` is the pool's in the document.
    pub engine: engine::Config,
    /// Data-parallel ranks of each. At least 1.
    pub ranks: u32,
    /// How long their steps take.
    pub time: Box<dyn StepTime>,
}

/// Which replica of a pool a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest open requests, the first of equals.
    LeastLoaded,
}

/// Clients of one tenant that ask for one model.
#[derive(Clone, Debug)]
pub struct Source {
    /// The tenant's name. Of no meaning where the document has no tenants.
    pub tenant: String,
    /// The model's name.
    pub model: String,
    /// The path of the requests, for the document's overrides.
    pub path: String,
    /// Kinds of text, each with its weight. Not empty.
    pub texts: Vec<(Kind, u32)>,
    /// How long requests are.
    pub lengths: LengthSource,
    /// When they come.
    pub arrivals: Arrivals,
    /// Which caps they name.
    pub caps: CapPolicy,
    /// Nothing before this.
    pub start: u64,
    /// Nothing new from here on.
    pub stop: u64,
    /// A client waits so long for an answer's end, from each time that it asks;
    /// nothing for as long as it takes.
    pub timeout: Option<u64>,
    /// A client that is told to come back later does so, so many times.
    pub retries: u32,
}

/// How long requests are.
#[derive(Clone, Debug)]
pub enum LengthSource {
    /// Drawn from a distribution.
    Drawn(Lengths),
    /// Those of a trace, in its order, again and again. Not empty.
    Trace(Arc<[Request]>),
    /// All alike: prompt and output tokens.
    Fixed(u32, u32),
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Gaps that are independent, with a gamma distribution.
    Open {
        /// Requests a second. Above 0.
        rate: f64,
        /// Coefficient of variation of the gaps: 1 is a Poisson process. Above 0.
        cv: f64,
    },
    /// The trace's own times, so many times as fast. Ends with the trace.
    Trace {
        /// Above 0.
        speed: f64,
    },
    /// Clients that each wait for their answer.
    Closed {
        /// How many. At least 1.
        clients: u32,
        /// Mean of the exponential time between an answer and the next request.
        think: u64,
    },
}

/// What is wrong with a scenario, or with the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetError {
    /// A part of the scenario; says which, and what is allowed.
    Scenario(String),
    /// A replica's settings; carries the pool's name.
    Engine(String, engine::ConfigError),
    /// The simulator lost or doubled something: a defect of its own.
    Broken(String),
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario(why) => f.write_str(why),
            Self::Engine(pool, error) => write!(f, "pool {pool:?}: {error}"),
            Self::Broken(what) => write!(f, "the simulation is broken: {what}"),
        }
    }
}

impl std::error::Error for FleetError {}

impl Scenario {
    /// Says what is wrong, if anything.
    pub(super) fn check(&self) -> Result<(), FleetError> {
        let wrong = |why: String| Err(FleetError::Scenario(why));
        if self.gateways.count == 0 || self.gateways.workers == 0 {
            return wrong("gateways and their workers: at least 1 of each".into());
        }
        if self.end == 0 || self.warm_up >= self.end {
            return wrong("the scenario must last longer than its warm-up".into());
        }
        for name in &self.config.pool_names {
            if self.pools.iter().filter(|pool| pool.name == *name).count() != 1 {
                return wrong(format!("pool {name:?} of the configuration must stand here once"));
            }
        }
        for pool in &self.pools {
            if !self.config.pool_names.contains(&pool.name) {
                let names = self.config.pool_names.join(", ");
                return wrong(format!("pool {:?} is not one of {names}", pool.name));
            }
            if pool.replicas == 0 {
                return wrong(format!("pool {:?} needs a replica", pool.name));
            }
        }
        for (nth, source) in self.sources.iter().enumerate() {
            if let Some(why) = source.wrong(&self.config) {
                return wrong(format!("source {nth}: {why}"));
            }
        }
        Ok(())
    }
}

impl Source {
    fn wrong(&self, config: &Config) -> Option<String> {
        let above_zero = |number: f64| number > 0.0 && number.is_finite();
        if let Some(tenants) = &config.tenants
            && tenants.named(self.tenant.as_bytes()).is_none()
        {
            return Some(format!("no tenant of the configuration is called {:?}", self.tenant));
        }
        if !self.texts.iter().any(|(_, weight)| *weight > 0) {
            return Some("it needs a kind of text with a weight above 0".into());
        }
        if matches!(&self.lengths, LengthSource::Trace(rows) if rows.is_empty()) {
            return Some("its trace is empty".into());
        }
        match self.arrivals {
            Arrivals::Open { rate, cv } if !above_zero(rate) || !above_zero(cv) => {
                Some("rate and cv must be above 0".into())
            }
            Arrivals::Trace { speed } if !above_zero(speed) => {
                Some("the trace's speed must be above 0".into())
            }
            Arrivals::Trace { .. } if !matches!(self.lengths, LengthSource::Trace(_)) => {
                Some("a trace's times need a trace's lengths".into())
            }
            Arrivals::Closed { clients: 0, .. } => Some("it needs a client".into()),
            _ => None,
        }
    }
}
