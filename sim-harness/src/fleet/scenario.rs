//! What to simulate.

use std::fmt;
use std::sync::Arc;

use tidegate::config::Config;

use super::session::NAME_TOKENS;
use crate::engine::{self, StepTime};
use crate::policy::Policy;
use crate::texts::Kind;
use crate::workload::{CapPolicy, Lengths, Rates, TraceRequest, Turn, mean_rate};

/// A fleet and the load on it. Times are nanoseconds from the start.
pub struct Scenario {
    /// The document that the gateways run.
    pub config: Arc<Config>,
    /// The gateways.
    pub gateways: Gateways,
    /// Who chooses the pool of each request.
    pub policy: Policy,
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
    /// What happens to them, in any order.
    pub faults: Vec<Fault>,
}

/// Something that happens to one replica of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Which one, from 0.
    pub replica: u32,
    /// When it begins, and when it is over. Nanoseconds.
    pub during: (u64, u64),
    /// What it is.
    pub what: FaultKind,
}

/// What happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// It is gone, with all its jobs and its cache, and comes back empty.
    Down,
    /// Its steps take so many times as long. Above 0.
    Slow(f64),
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
    /// Names of models, each with its weight. Not empty.
    pub models: Vec<(String, u32)>,
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
    /// A client whose request was refused for now, or failed, asks again, so many
    /// times: when it was told to, or after [`super::backoff`].
    pub retries: u32,
    /// A client that has waited long enough asks again, too.
    pub retry_timeouts: bool,
    /// Requests come as the turns of sessions.
    pub sessions: Option<Sessions>,
    /// Some requests are longer than `lengths` says.
    pub tail: Option<Tail>,
    /// A trace begins here, so many nanoseconds after its own beginning.
    pub trace_from: u64,
}

/// Sessions: an arrival is a first turn, and each answer is followed by the next
/// turn, whose prompt is all that came before and a new message. A session ends
/// with its last turn, or with the first one that is not answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sessions {
    /// Turns, on average: geometric. At least 1.
    pub turns: f64,
    /// Mean of the exponential time between an answer and the next turn.
    pub think: u64,
    /// Tokens that every session of the source begins with: instructions, tools.
    pub shared: u32,
}

/// Rare long requests among short ones: the prompt is made so long that prompt
/// and output come to a number drawn evenly from a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// Share of requests, 0 to 1.
    pub share: f64,
    /// Tokens in all, from and to, both included.
    pub tokens: (u32, u32),
}

/// How long requests are. With [`Sessions`] it says the new tokens of each turn
/// and its output.
#[derive(Clone, Debug)]
pub enum LengthSource {
    /// Drawn from a distribution.
    Drawn(Lengths),
    /// Those of a trace, in its order, again and again. Not empty. Where it names
    /// blocks of its prompts, of [`super::NAME_TOKENS`] tokens each, those of one
    /// pass through the trace are shared.
    Trace(Arc<[TraceRequest]>),
    /// All alike: prompt and output tokens.
    Fixed(u32, u32),
    /// Recorded sessions, one for each arrival, in their order, again and again.
    /// Neither they nor the list are empty.
    Sessions(Arc<[Vec<Turn>]>),
}

/// When requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Gaps that are independent, with a gamma distribution.
    Open {
        /// Requests a second. Above 0.
        rate: f64,
        /// Coefficient of variation of the gaps: 1 is a Poisson process. Above 0.
        cv: f64,
    },
    /// As open, at a rate that changes with the scenario's time.
    Varying {
        /// Requests a second.
        rates: Arc<Rates>,
        /// Coefficient of variation of the gaps if the rate did not change.
        cv: f64,
    },
    /// The trace's own times, so many times as fast. Ends with the trace.
    Trace {
        /// Above 0.
        speed: f64,
    },
    /// The trace's own times, each for as many requests as make up this rate over
    /// the whole trace: see [`crate::workload::Copies`]. Ends with the trace.
    Scaled {
        /// Requests a second. Above 0.
        rate: f64,
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
            for fault in &pool.faults {
                let factor = if let FaultKind::Slow(factor) = fault.what { factor } else { 1.0 };
                let order = fault.during.0 < fault.during.1;
                if fault.replica >= pool.replicas || !order || !(0.01..=1000.0).contains(&factor) {
                    return wrong(format!(
                        "pool {:?}: {fault:?}; allowed: replicas below {}, some time, 0.01 to 1000 \
                         times as slow",
                        pool.name, pool.replicas
                    ));
                }
            }
            let blocks = pool.engine.block_size.max(1);
            let names = pool.engine.enable_prefix_caching && !NAME_TOKENS.is_multiple_of(blocks);
            if names && self.sources.iter().any(Source::shares) {
                return wrong(format!(
                    "pool {:?}: block_size {blocks}; allowed where prompts share prefixes: a \
                     divisor of {NAME_TOKENS}",
                    pool.name
                ));
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
    /// English chats for model `m`, all the time, with the default caps and
    /// without limits of patience; two retries, as OpenAI's clients have it.
    pub fn new(lengths: LengthSource, arrivals: Arrivals) -> Self {
        Self {
            tenant: "default".into(),
            models: vec![("m".into(), 1)],
            path: "/v1/chat/completions".into(),
            texts: vec![(Kind::English, 1)],
            lengths,
            arrivals,
            caps: CapPolicy::default(),
            start: 0,
            stop: u64::MAX,
            timeout: None,
            retries: 2,
            retry_timeouts: false,
            sessions: None,
            tail: None,
            trace_from: 0,
        }
    }

    /// Whether prompts may begin alike.
    fn shares(&self) -> bool {
        match &self.lengths {
            LengthSource::Sessions(_) => true,
            LengthSource::Trace(rows) => rows.iter().any(|row| !row.names.is_empty()),
            _ => self.sessions.is_some(),
        }
    }

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
        if !self.models.iter().any(|(_, weight)| *weight > 0) {
            return Some("it needs a model with a weight above 0".into());
        }
        let recorded = match &self.lengths {
            LengthSource::Trace(rows) if rows.is_empty() => {
                return Some("its trace is empty".into());
            }
            LengthSource::Trace(rows) => {
                // Names of other blocks would make prompts alike that are not.
                let odd = rows.iter().find(|row| {
                    let names = row.input_tokens.div_ceil(NAME_TOKENS) as usize;
                    !row.names.is_empty() && row.names.len() != names
                });
                if let Some(row) = odd {
                    let (names, tokens) = (row.names.len(), row.input_tokens);
                    return Some(format!(
                        "its trace has {names} names for {tokens} tokens; allowed: one for each \
                         {NAME_TOKENS}, or none"
                    ));
                }
                false
            }
            LengthSource::Sessions(all) if all.is_empty() || all.iter().any(Vec::is_empty) => {
                return Some("its sessions are empty".into());
            }
            LengthSource::Sessions(_) => true,
            _ => false,
        };
        if recorded && (self.sessions.is_some() || self.tail.is_some()) {
            return Some("recorded sessions have their own turns and lengths".into());
        }
        if self.sessions.is_some_and(|s| !(s.turns >= 1.0 && s.turns.is_finite())) {
            return Some("sessions must have 1 turn at least".into());
        }
        if let Some(Tail { share, tokens: (from, to) }) = self.tail
            && !((0.0..=1.0).contains(&share) && 2 <= from && from <= to)
        {
            return Some("the tail must be a share of 0 to 1, of 2 tokens or more".into());
        }
        let rows = if let LengthSource::Trace(rows) = &self.lengths { Some(rows) } else { None };
        match &self.arrivals {
            Arrivals::Open { rate, cv } if !above_zero(*rate) || !above_zero(*cv) => {
                Some("rate and cv must be above 0".into())
            }
            Arrivals::Varying { cv, .. } if !above_zero(*cv) => Some("cv must be above 0".into()),
            Arrivals::Trace { speed: number } | Arrivals::Scaled { rate: number }
                if !above_zero(*number) =>
            {
                Some("the trace's speed or rate must be above 0".into())
            }
            Arrivals::Trace { .. } | Arrivals::Scaled { .. } if rows.is_none() => {
                Some("a trace's times need a trace's lengths".into())
            }
            Arrivals::Scaled { .. } if rows.is_none_or(|rows| mean_rate(rows).is_none()) => {
                Some("a trace whose requests all come at once has no rate to scale".into())
            }
            Arrivals::Closed { clients: 0, .. } => Some("it needs a client".into()),
            _ => None,
        }
    }
}
