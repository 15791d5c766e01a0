//! What engines say of themselves to gateways, in virtual time: the rounds of
//! `envoy/src/scrape.rs`, and the report in an answer.

use std::sync::Arc;

use tidegate::config::Config;
use tidegate::pool::{LoadSources, Reading, Round, Scrape};
use tidegate::tenant::Capacity;
use tidegate::time::Instant;

use super::pool::Replicas;
use crate::SECOND;

/// The rounds of one worker.
#[derive(Debug, Default)]
pub(super) struct Scraper {
    /// As the configuration's capacities.
    pools: Vec<PoolRounds>,
}

#[derive(Debug, Default)]
struct PoolRounds {
    begun: Option<Instant>,
    /// The replica that is asked next.
    next: u32,
}

/// How often a worker looks whether a round is due; nothing if no pool is asked.
pub(super) fn period(config: &Config) -> Option<u64> {
    // An event that comes at its own instant would never end.
    config.scrape_interval().map(|interval| interval.as_nanos().clamp(1, SECOND))
}

impl Scraper {
    /// Makes the rounds that are due, and tells what each of them tells.
    pub(super) fn rounds<'r, 'p: 'r>(
        &mut self,
        now: Instant,
        capacities: &[Arc<Capacity>],
        replicas: &dyn Fn(&str) -> Option<&'r Replicas<'p>>,
        mut tell: impl FnMut(&Capacity, Reading),
    ) {
        self.pools.resize_with(capacities.len(), PoolRounds::default);
        for (capacity, rounds) in capacities.iter().zip(&mut self.pools) {
            let Some(load) = &capacity.load else { continue };
            let Some(scrape) = &load.scrape else { continue };
            let Some(replicas) = replicas(&capacity.name) else { continue };
            if !scrape.is_due(rounds.begun, now) {
                continue;
            }
            rounds.begun = Some(now);
            if let Some(mean) = rounds.round(load, scrape, replicas) {
                tell(capacity, mean);
            }
        }
    }
}

impl PoolRounds {
    /// One round of calls, which take no time. What fails says nothing: a replica
    /// that is down is not an idle one.
    fn round(
        &mut self,
        load: &LoadSources,
        scrape: &Scrape,
        replicas: &Replicas<'_>,
    ) -> Option<Reading> {
        let mut round = Round::default();
        for _ in 0..load.calls() {
            let answer = if scrape.whole_pool {
                whole_pool(replicas).map(|all| all.per_replica(load.replicas))
            } else {
                self.one(replicas)
            };
            if let Some(reading) = answer {
                round.add(reading);
            }
        }
        round.mean()
    }

    /// Replicas are asked in turn, those that are down too: the cluster that
    /// Envoy asks has no health checks.
    fn one(&mut self, replicas: &Replicas<'_>) -> Option<Reading> {
        let replica = self.next;
        self.next = (replica + 1) % replicas.len().max(1);
        replicas.reading(replica)
    }
}

/// Of all that are there: requests are summed and uses of the cache averaged, as
/// the core reads series of several engines.
fn whole_pool(replicas: &Replicas<'_>) -> Option<Reading> {
    let (mut round, mut waiting, mut running) = (Round::default(), 0, 0);
    for one in (0..replicas.len()).filter_map(|replica| replicas.reading(replica)) {
        round.add(one);
        waiting += one.waiting.unwrap_or(0);
        running += one.running.unwrap_or(0);
    }
    round.mean().map(|mean| Reading { waiting: Some(waiting), running: Some(running), ..mean })
}

/// What the header of a replica's answer says: vLLM's has no running requests.
pub(super) fn in_answer(reading: Reading) -> Reading {
    Reading { running: None, ..reading }
}
