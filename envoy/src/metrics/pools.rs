//! How pools stand that state a capacity.

use super::set;
use super::tenants::AccountGauges;
use crate::host::Gauge;
use tidegate::config::Config;
use tidegate::pool::Load;
use tidegate::tenant::Status;

/// In the order of the configuration's capacities, sorted by name.
pub(crate) struct PoolMetrics(Vec<OnePool>);

struct OnePool {
    account: AccountGauges,
    /// In thousandths of its capacity.
    pressure: Option<Gauge>,
    /// 1 while it sends elsewhere what another pool can take.
    spills: Option<Gauge>,
    /// Where it follows the load.
    threshold: Option<Gauge>,
}

impl PoolMetrics {
    pub(super) fn define(config: &Config, gauge: &impl Fn(&str) -> Option<Gauge>) -> Self {
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
            }
        });
        Self(pools.collect())
    }

    /// Shows how the pool at this place stands.
    pub(crate) fn set(&self, at: usize, status: &Status, load: &Load) {
        let Some(pool) = self.0.get(at) else { return };
        pool.account.set(status);
        set(pool.pressure, load.pressure);
        set(pool.spills, u64::from(load.spills));
        set(pool.threshold, load.threshold.unwrap_or(0));
    }

    pub(super) fn retire(&self) {
        for at in 0..self.0.len() {
            self.set(at, &Status::default(), &Load::default());
        }
    }
}
