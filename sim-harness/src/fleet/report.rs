//! What a run came to.

use tidegate::config::TenantClass;
use tidegate::tenant::Cause;

use super::book::{CAUSES, PoolBook, TenantBook};
use super::pool::Replicas;
use super::record::Record;
use super::scenario::Scenario;
use super::sim::Simulation;
use crate::SECOND;
use crate::histogram::Histogram;
use crate::policy::Policy;

/// The same bytes for the same scenario and seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Seconds for which sources sent.
    pub seconds: f64,
    /// When the last request ended. Seconds.
    pub ended: f64,
    /// Promises and the estimate's error are counted from here on. Seconds.
    pub warm_up: f64,
    /// Gateways, and workers of each.
    pub gateways: (u32, u32),
    /// Who chose pools.
    pub policy: Policy,
    /// Sorted by name.
    pub pools: Vec<PoolReport>,
    /// Sorted by name.
    pub tenants: Vec<TenantReport>,
    /// The estimate's error on prompt tokens: answers, mean, median, 95th
    /// percentile. Shares of the true tokens.
    pub errors: (u64, f64, f64, f64),
    /// The run over time, until somebody takes it.
    pub(super) record: Option<Record>,
}

/// Median and 99th percentile, in nanoseconds. Nothing if so many requests
/// never came so far that the value does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Half of all are at or below.
    pub p50: Option<u64>,
    /// 99 of 100 are.
    pub p99: Option<u64>,
}

/// One pool. Latencies are from the arrival at a replica, of all requests that
/// came to one and were not refused; whose client left, it never got there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Replicas.
    pub replicas: u32,
    /// Requests that the gate sent to it.
    pub sent: u64,
    /// Requests that it answered.
    pub served: u64,
    /// Requests that it refused for their length.
    pub refused: u64,
    /// Second attempts: requests that a smaller pool had refused for their length,
    /// or whose replica was down.
    pub taken_over: u64,
    /// Requests whose client left before the end.
    pub left: u64,
    /// Times that a replica went down.
    pub downs: u64,
    /// Requests lost with their replica.
    pub lost: u64,
    /// Attempts that found their replica, or enough of the pool, down.
    pub unreachable: u64,
    /// Answers that the window cut short.
    pub truncated: u64,
    /// Requests sent here that needed a larger pool.
    pub under_routed: u64,
    /// Requests sent here that a smaller pool would have held.
    pub over_routed: u64,
    /// Requests sent here since their own pool was under pressure.
    pub moved: u64,
    /// Times that it began or ended to send elsewhere what another pool can take.
    pub spill_changes: u64,
    /// Times that a request made room for others.
    pub preemptions: u64,
    /// Prompt tokens of answered requests.
    pub input: u64,
    /// Of these, tokens found in a prefix cache.
    pub cached: u64,
    /// Their output tokens.
    pub output: u64,
    /// Mean share of the KV cache in use, to the last end.
    pub kv_mean: f64,
    /// The most of any replica.
    pub kv_most: f64,
    /// To the entry into the batch.
    pub queue: Figures,
    /// To the first token.
    pub first_token: Figures,
    /// Between tokens, each request's mean, of answered requests with at least
    /// two.
    pub per_token: Figures,
}

/// One tenant. Every request that it asked is answered, refused, too long,
/// timed out, failed or cut.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// Its class; nothing where the document has no tenants.
    pub class: Option<&'static str>,
    /// Requests.
    pub asked: u64,
    /// Answered whole.
    pub answered: u64,
    /// Refused for good by its limits: each cause and how many.
    pub refused: Vec<(&'static str, u64)>,
    /// Refused by the engine for their length.
    pub too_long: u64,
    /// Given up by a client that had waited long enough.
    pub timed_out: u64,
    /// Lost with a replica, or sent to none, each time that it was asked.
    pub failed: u64,
    /// Still open when the simulation ended.
    pub cut: u64,
    /// Answers with status 429, those that a client came back after included.
    pub sent_away: u64,
    /// Times that a client asked again.
    pub retries: u64,
    /// Times that a request waited in a gateway.
    pub held: u64,
    /// How long, of those that were let go or refused in the end.
    pub waited: Figures,
    /// Tokens settled, by the tenant's weights.
    pub settled: u64,
    /// Of reserved tokens, so many were given back.
    pub refunded: u64,
    /// Tokens a second that it was promised, all gateways together; nothing if
    /// its rate is not limited.
    pub promised: Option<f64>,
    /// Tokens a second settled, from the warm-up's end to the sources' end.
    pub got: f64,
    /// That, as a share of what all tenants got.
    pub share: f64,
    /// From the first asking to the first token, of all that asked: one that was
    /// not answered whole never got there.
    pub first_token: Figures,
    /// The same, of the answered ones alone.
    pub answered_first_token: Figures,
    /// From the first asking to the answer's end, of all that asked.
    pub whole: Figures,
}

/// The figures of `all` requests, of which those in the histogram got so far.
fn figures(histogram: &Histogram, all: u64) -> Figures {
    let at = |share: f64| {
        let rank = (share * all as f64).ceil().max(1.0);
        let known = histogram.count();
        (rank <= known as f64).then(|| histogram.quantile(rank / known as f64))
    };
    Figures { p50: at(0.5), p99: at(0.99) }
}

impl Report {
    pub(super) fn new(simulation: &Simulation<'_>) -> Self {
        let Simulation { scenario, now, errors, .. } = simulation;
        let seconds = |nanos: u64| nanos as f64 / SECOND as f64;
        let pools = simulation.pools.iter().zip(&simulation.pool_books);
        let pools = pools.zip(&scenario.config.pool_names);
        let tenants = simulation.tenant_names.iter().zip(&simulation.tenant_books);
        let all: u64 = simulation.tenant_books.iter().map(|book| book.counted).sum();
        let error = |share| errors.quantile(share) as f64 / 1e3;
        Self {
            seconds: seconds(scenario.end),
            ended: seconds(*now),
            warm_up: seconds(scenario.warm_up),
            gateways: (scenario.gateways.count, scenario.gateways.workers),
            policy: simulation.fleet.policy(),
            pools: pools.map(|((pool, book), name)| pool_report(name, pool, book, *now)).collect(),
            tenants: tenants.map(|(name, book)| tenant_report(name, book, scenario, all)).collect(),
            errors: (errors.count(), errors.mean() / 1e3, error(0.5), error(0.95)),
            record: None,
        }
    }

    /// Requests that were asked, of all tenants.
    pub fn asked(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.asked).sum()
    }
}

fn pool_report(name: &str, pool: &Replicas<'_>, book: &PoolBook, now: u64) -> PoolReport {
    let kv = pool.kv_use(now);
    let came = book.served + book.left + book.lost;
    PoolReport {
        name: name.to_owned(),
        replicas: pool.len(),
        sent: book.sent,
        served: book.served,
        refused: book.refused,
        taken_over: book.taken_over,
        left: book.left,
        downs: pool.downs,
        lost: book.lost,
        unreachable: book.unreachable,
        truncated: book.truncated,
        under_routed: book.under_routed,
        over_routed: book.over_routed,
        moved: book.moved,
        spill_changes: book.spill_changes,
        preemptions: pool.counts().preemptions,
        input: book.input,
        cached: book.cached,
        output: book.output,
        kv_mean: kv.mean,
        kv_most: kv.most,
        queue: figures(&book.queue, came),
        first_token: figures(&book.first_token, came),
        per_token: figures(&book.per_token, book.per_token.count()),
    }
}

fn tenant_report(name: &str, book: &TenantBook, scenario: &Scenario, all: u64) -> TenantReport {
    let tenants = scenario.config.tenants.as_ref();
    let entitlement = tenants.and_then(|tenants| tenants.named(name.as_bytes()));
    let law = entitlement.and_then(|one| one.limits.laws.first().copied().flatten());
    let gateways = f64::from(scenario.gateways.count);
    let counted = (scenario.end - scenario.warm_up) as f64 / SECOND as f64;
    let class = |class: TenantClass| {
        TenantClass::WORDS.iter().find(|(_, one)| *one == class).map_or("", |(word, _)| *word)
    };
    debug_assert_eq!(CAUSES, book.refused.len());
    let causes = Cause::ALL.iter().zip(book.refused).filter(|(_, count)| *count > 0);
    TenantReport {
        name: name.to_owned(),
        class: entitlement.map(|one| class(one.class)),
        asked: book.asked,
        answered: book.answered,
        refused: causes.map(|(cause, count)| (cause.word(), count)).collect(),
        too_long: book.too_long,
        timed_out: book.timed_out,
        failed: book.failed,
        cut: book.cut,
        sent_away: book.sent_away,
        retries: book.retries,
        held: book.held,
        waited: figures(&book.waited, book.waited.count()),
        settled: book.settled,
        refunded: book.refunded,
        promised: law.map(|law| law.tokens as f64 / law.period.as_secs_f64() * gateways),
        got: book.counted as f64 / counted,
        share: if all == 0 { 0.0 } else { book.counted as f64 / all as f64 },
        first_token: figures(&book.first_token, book.asked),
        answered_first_token: figures(&book.first_token, book.answered),
        whole: figures(&book.whole, book.asked),
    }
}
