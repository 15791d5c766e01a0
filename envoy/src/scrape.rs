//! Asks engines how busy they are: one worker does, for all.
//!
//! A round is as many calls as a pool has replicas, to a limit: Envoy takes its
//! endpoints in turn, and no answer tells whose it is. When all calls of a round
//! have ended, the mean of those that told something goes to all workers. What
//! fails is counted, and leaves the last report to grow old.

use crate::host::{self, SharedData};
use crate::worker::Instance;
use std::cell::RefCell;
use std::time::Duration;
use tidegate::pool::{LoadSources, MetricsScanner, Reading, Round};
use tidegate::time::Instant;

/// What is longer is not read. An engine's metrics are some 50 KB.
const BODY_MAX: usize = 4 << 20;
/// A call ends after so long, or with its interval.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// The rounds of one configuration, in one VM.
#[derive(Default)]
pub(crate) struct Scraper(RefCell<Rounds>);

#[derive(Default)]
struct Rounds {
    /// As the configuration's capacities.
    pools: Vec<PoolRounds>,
    /// The tokens of open calls, and the places of their pools.
    calls: Vec<(u32, usize)>,
}

#[derive(Default)]
struct PoolRounds {
    begun: Option<Instant>,
    open: u64,
    round: Round,
}

/// Begins the rounds that are due; in a tick of the root context only.
pub(crate) fn begin(instance: &Instance, now: Instant) {
    let mut rounds = instance.scraper.0.borrow_mut();
    let Rounds { pools, calls } = &mut *rounds;
    pools.resize_with(instance.config.capacities.len(), PoolRounds::default);
    for (at, (capacity, pool)) in instance.config.capacities.iter().zip(pools).enumerate() {
        let Some(load) = &capacity.load else { continue };
        let Some(scrape) = &load.scrape else { continue };
        if pool.open > 0 || !scrape.is_due(pool.begun, now) {
            continue;
        }
        pool.begun = Some(now);
        for _ in 0..load.calls() {
            let timeout = Duration::from_nanos(scrape.interval.as_nanos()).min(TIMEOUT_MAX);
            match host::fetch(&scrape.cluster, &scrape.path, timeout) {
                Some(token) => {
                    calls.push((token, at));
                    pool.open += 1;
                }
                None => instance.metrics.pools.scrape_failed(at),
            }
        }
    }
}

/// A call has ended; in the root context's callback for that only.
pub(crate) fn ended(instance: &Instance, token: u32, headers: usize, size: usize) {
    let mut rounds = instance.scraper.0.borrow_mut();
    let Rounds { pools, calls } = &mut *rounds;
    let Some(call) = calls.iter().position(|(known, _)| *known == token) else { return };
    let (_, at) = calls.swap_remove(call);
    let capacity = instance.config.capacities.get(at);
    let (Some(pool), Some(capacity)) = (pools.get_mut(at), capacity) else { return };
    let Some(load) = &capacity.load else { return };
    pool.open = pool.open.saturating_sub(1);
    match read(load, headers, size) {
        Some(reading) => pool.round.add(reading),
        None => instance.metrics.pools.scrape_failed(at),
    }
    if pool.open == 0
        && let Some(mean) = core::mem::take(&mut pool.round).mean()
    {
        let worker = instance.worker.borrow();
        worker.gate.ledger().report(&mut SharedData, host::now(), capacity, mean);
    }
}

/// What an answer of so many headers and bytes tells.
fn read(load: &LoadSources, headers: usize, size: usize) -> Option<Reading> {
    // A call that failed has none, and nothing may be asked of it.
    if headers == 0 || size > BODY_MAX || host::fetched_status().as_deref() != Some(b"200") {
        return None;
    }
    let mut scanner = MetricsScanner::default();
    host::read_fetched(size, |bytes| scanner.feed(bytes));
    let reading = scanner.finish()?;
    let whole = load.scrape.as_ref().is_some_and(|scrape| scrape.whole_pool);
    Some(if whole { reading.per_replica(load.replicas) } else { reading })
}
