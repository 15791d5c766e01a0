//! A fleet in virtual time: gateways that run the core's own gate, in front of
//! pools of replicas, and the clients of tenants before them.
//!
//! ```text
//! Source ─ Ask, text ─► Fleet (worker: Gate, Exchange) ─► Replicas ─► engine::Replica
//!    ▲                     │ LocalSlots: one for each gateway    │
//!    └── 429, answer ◄─────┴──────────── Usage ◄─────────────────┘
//! ```
//!
//! The gate sees what a gateway sees: the counts of a text, a cap, when an answer
//! has ended, its usage, and what engines report where the document asks them. It
//! does not see how long the answer will be, nor what kind of text it is given.
//! The one heap of events is ordered by time, then replicas first, then by the
//! order in which events were made; every draw is from generators of one seed. So
//! a report depends on the scenario and the seed alone.
//!
//! # What is left out
//!
//! Networks and proxies take no time. Memory that workers share is never
//! contended. A trace's rows do not say whose answers they go on from: only a
//! session's next turn finds the answer before it in a cache. Texts of a session's
//! turns are drawn anew. Requests are chats of one message, and stream their
//! answers with their usage. A body that is too long for every pool but the largest
//! is read to `inspect_bytes_max` all the same: that decides alike, a little later.

mod admission;
mod book;
mod document;
mod fault;
mod gateway;
mod life;
mod page;
mod pool;
mod print;
mod record;
mod report;
mod scenario;
mod scrape;
mod session;
mod sim;
mod source;
#[cfg(test)]
mod tests;
mod texts;
mod watch;

pub use document::{DocumentError, Files, Loaded};
pub(crate) use record::length_bucket;
pub use record::{
    Follow, PoolMoment, PoolRecord, Record, ReplicaTrace, RequestLife, TextRecord, length_edge,
};
pub use report::{Figures, PoolReport, Report, TenantReport};
pub use scenario::{
    Arrivals, Dispatch, Fault, FaultKind, FleetError, Gateways, LengthSource, Pool, Scenario,
    Sessions, Source, Tail,
};
pub use session::NAME_TOKENS;
pub use watch::{Fate, Watch};

/// Runs a scenario to its end.
///
/// Every request that began has ended once, no job is left in a replica and
/// nothing is reserved: otherwise it fails with [`FleetError::Broken`].
pub fn run(scenario: &Scenario, seed: u64) -> Result<Report, FleetError> {
    sim::Simulation::new(scenario, seed)?.run()
}

/// Runs a scenario until `watch` has seen enough, or to its end.
///
/// A run that was ended early has no checks of its end.
pub fn watch(scenario: &Scenario, seed: u64, watch: &mut dyn Watch) -> Result<Report, FleetError> {
    sim::Simulation::new(scenario, seed)?.watched(watch).run()
}

/// Runs a scenario to its end as [`run`] does, and records it over time; with
/// `follow`, one replica step by step. The report is the same.
pub fn record(
    scenario: &Scenario,
    seed: u64,
    follow: Option<Follow>,
) -> Result<(Report, Record), FleetError> {
    let mut report = sim::Simulation::new(scenario, seed)?.recorded(follow)?.run()?;
    let record = report.record.take();
    Ok((report, record.ok_or_else(|| sim::broken("the record is lost"))?))
}
