//! How pools stand that state a capacity.

use super::tenants::AccountGauges;
use super::{raise, set};
use crate::host::{Counter, Gauge};
use tidegate::config::Config;
use tidegate::pool::Load;
use tidegate::tenant::{Capacity, Status};

pub(crate) struct PoolMetrics {
    /// In the order of the configuration's capacities, sorted by name.
    pools: Vec<OnePool>,
    /// Reports in answers that tell nothing.
    orca_unreadable: Option<Counter>,
}

struct OnePool {
    account: AccountGauges,
    /// In thousandths of its capacity.
    pressure: Option<Gauge>,
    /// 1 while it sends elsewhere what another pool can take.
    spills: Option<Gauge>,
    /// Where it follows the load.
    threshold: Option<Gauge>,
    /// Of a pool whose engines are asked.
    reports: Option<Reports>,
}

/// What a pool's engines say.
struct Reports {
    replicas: u64,
    /// Requests, in all replicas.
    waiting: Option<Gauge>,
    running: Option<Gauge>,
    /// In thousandths.
    kv_use: Option<Gauge>,
    /// Seconds without a young report.
    stale: Option<Counter>,
    /// Scrapes that told nothing.
    failed: Option<Counter>,
}

impl Reports {
    fn define(
        capacity: &Capacity,
        gauge: &impl Fn(&str) -> Option<Gauge>,
        counter: &impl Fn(&str) -> Option<Counter>,
    ) -> Option<Self> {
        let (name, load) = (&capacity.name, capacity.load.as_ref()?);
        let [waiting, running, kv_use] =
            ["waiting", "running", "kv"].map(|what| gauge(&format!("pool_reported_{what}.{name}")));
        Some(Self {
            replicas: load.replicas,
            waiting,
            running,
            kv_use,
            stale: counter(&format!("pool_report_stale.{name}")),
            failed: counter(&format!("pool_scrape_failed.{name}")),
        })
    }

    fn set(&self, load: &Load) {
        let reading = load.reported.unwrap_or_default();
        let all = |each: Option<u64>| {
            each.unwrap_or(0).saturating_mul(self.replicas).saturating_add(500) / 1000
        };
        set(self.waiting, all(reading.waiting));
        set(self.running, all(reading.running));
        set(self.kv_use, reading.kv_use.unwrap_or(0));
    }
}

impl PoolMetrics {
    pub(super) fn define(
        config: &Config,
        gauge: &impl Fn(&str) -> Option<Gauge>,
        counter: &impl Fn(&str) -> Option<Counter>,
    ) -> Self {
        let asked = |one: &Capacity| one.load.as_ref().is_some_and(|load| load.orca);
        let asked = config.capacities.iter().any(|one| asked(one));
        let pools = config.capacities.iter().map(|capacity| {
            let name = &capacity.name;
            OnePool {
                account: AccountGauges::define("pool", name, gauge),
                pressure: gauge(&format!("pool_pressure.{name}")),
                spills: gauge(&format!("pool_spills.{name}")),
                threshold: if config.uses_load {
                    gauge(&format!("pool_threshold.{name}"))
                } else {
                    None
                },
                reports: Reports::define(capacity, gauge, counter),
            }
        });
        let orca_unreadable = if asked { counter("orca_unreadable") } else { None };
        Self { pools: pools.collect(), orca_unreadable }
    }

    /// Shows how the pool at this place stands.
    pub(crate) fn set(&self, at: usize, status: &Status, load: &Load) {
        let Some(pool) = self.pools.get(at) else { return };
        pool.account.set(status);
        set(pool.pressure, load.pressure);
        set(pool.spills, u64::from(load.spills));
        set(pool.threshold, load.threshold.unwrap_or(0));
        if let Some(reports) = &pool.reports {
            reports.set(load);
        }
    }

    /// A second has passed.
    pub(crate) fn reported(&self, at: usize, load: &Load) {
        let reports = self.pools.get(at).and_then(|pool| pool.reports.as_ref());
        raise(reports.and_then(|reports| reports.stale), load.reported.is_none());
    }

    /// A scrape of the pool at this place told nothing.
    pub(crate) fn scrape_failed(&self, at: usize) {
        let reports = self.pools.get(at).and_then(|pool| pool.reports.as_ref());
        raise(reports.and_then(|reports| reports.failed), true);
    }

    /// An answer had a report.
    pub(crate) fn orca(&self, readable: bool) {
        raise(self.orca_unreadable, !readable);
    }

    pub(super) fn retire(&self) {
        for at in 0..self.pools.len() {
            self.set(at, &Status::default(), &Load::default());
        }
    }
}
