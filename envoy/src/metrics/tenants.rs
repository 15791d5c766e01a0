//! What tenants were let through, charged and promised.

use super::{raise, raise_by, record, set};
use crate::host::{Counter, Gauge, Histogram};
use std::cell::RefCell;
use std::collections::VecDeque;
use tidegate::config::{Config, Tenants};
use tidegate::gate::Charged;
use tidegate::tenant::{Admission, Cause, Settled, Status, Ticked};
use tidegate::time::Span;

/// Tenants whose names stand in metrics.
const TENANTS_MAX: usize = 100;
/// Ticks over which shares are measured.
const SHARE_TICKS: usize = 10;

/// What tenants were let through and charged. All of it is empty where nothing
/// is limited.
#[derive(Default)]
pub(crate) struct TenantMetrics {
    uncharged: Option<Counter>,
    /// In the order of [`Cause::ALL`].
    refused: Vec<Counter>,
    refunded: Option<Counter>,
    exceeded: Option<Counter>,
    clamped: Option<Counter>,
    forgiven: Option<Counter>,
    expired: Option<Counter>,
    lost: Option<Counter>,
    conflicts: Option<Counter>,
    held: Option<Counter>,
    left: Option<Counter>,
    hold_time: Option<Histogram>,
    /// In the order of the configuration's tenants, sorted by name.
    each: Vec<(String, EachTenant)>,
    /// Tokens that each tenant's requests had used at the last ticks.
    served: RefCell<VecDeque<Vec<u64>>>,
}

/// Metrics that carry a tenant's name; those of tenants beyond
/// [`TENANTS_MAX`] are counted under `other`.
#[derive(Clone, Copy)]
struct EachTenant {
    admitted: Option<Counter>,
    refused: Option<Counter>,
    reserved: Option<Counter>,
    settled: Option<Counter>,
    /// `None` for `other`: gauges of several tenants make no sense together.
    gauges: Option<AccountGauges>,
    /// Of what pools with a capacity did, in thousandths.
    share: Option<Gauge>,
}

#[derive(Clone, Copy)]
pub(super) struct AccountGauges {
    tokens: Option<Gauge>,
    requests: Option<Gauge>,
    left: Option<Gauge>,
    debt: Option<Gauge>,
}

impl AccountGauges {
    /// Of a `tenant` or a `pool` of this name.
    pub(super) fn define(kind: &str, name: &str, gauge: impl Fn(&str) -> Option<Gauge>) -> Self {
        Self {
            tokens: gauge(&format!("{kind}_tokens_in_flight.{name}")),
            requests: gauge(&format!("{kind}_requests.{name}")),
            left: gauge(&format!("{kind}_left.{name}")),
            debt: gauge(&format!("{kind}_debt.{name}")),
        }
    }

    pub(super) fn set(&self, status: &Status) {
        set(self.tokens, status.tokens);
        set(self.requests, status.requests);
        set(self.left, status.left);
        set(self.debt, status.debt);
    }
}

impl TenantMetrics {
    pub(super) fn define(
        config: &Config,
        count: &impl Fn(&str) -> Option<Counter>,
        gauge: &impl Fn(&str) -> Option<Gauge>,
        histogram: &impl Fn(&str) -> Option<Histogram>,
    ) -> Self {
        let Some(tenants) = &config.tenants else { return Self::default() };
        Self {
            uncharged: count("uncharged"),
            refused: Cause::ALL
                .iter()
                .filter_map(|cause| count(&format!("refused.{}", cause.word())))
                .collect(),
            refunded: count("refunded"),
            exceeded: count("exceeded"),
            clamped: count("refund_clamped"),
            forgiven: count("debt_forgiven"),
            expired: count("reservation_expired"),
            lost: count("settlement_lost"),
            conflicts: count("slot_conflict"),
            held: count("held"),
            left: count("held_left"),
            hold_time: histogram("hold_time"),
            each: each(tenants, !config.capacities.is_empty(), count, gauge),
            served: RefCell::default(),
        }
    }

    fn of(&self, tenant: &str) -> Option<&EachTenant> {
        let at = self.each.binary_search_by(|(name, _)| name.as_str().cmp(tenant));
        self.each.get(at.ok()?).map(|(_, metrics)| metrics)
    }

    pub(crate) fn decided(&self, tenant: &str, admission: &Admission<u64>) {
        let each = self.of(tenant);
        match admission {
            Admission::Admitted(reserved, _) => {
                raise(each.and_then(|each| each.admitted), true);
                raise_by(each.and_then(|each| each.reserved), *reserved);
            }
            Admission::Uncharged => raise(self.uncharged, true),
            Admission::Held => raise(self.held, true),
            Admission::Refused(refusal) => {
                raise(each.and_then(|each| each.refused), true);
                raise(self.refused.get(refusal.cause as usize).copied(), true);
            }
        }
    }

    /// A held request was decided.
    pub(crate) fn waited(&self, time: Span) {
        record(self.hold_time, Some(time.as_nanos() / 1_000_000));
    }

    /// The client of a held request did not wait.
    pub(crate) fn left(&self) {
        raise(self.left, true);
    }

    pub(super) fn settled(&self, charged: &Charged) {
        let each = self.of(&charged.tenant.name);
        raise_by(each.and_then(|each| each.settled), charged.actual);
        let settled = charged.settled.unwrap_or_default();
        self.lowered(&settled);
        raise_by(self.exceeded, settled.exceeded);
        raise_by(self.forgiven, settled.forgiven);
    }

    /// What was reserved was more than is needed.
    pub(crate) fn lowered(&self, settled: &Settled) {
        raise_by(self.refunded, settled.refunded);
        raise_by(self.clamped, settled.clamped);
    }

    /// What a tick did, and how often workers were in each other's way since the
    /// last.
    pub(crate) fn ticked(&self, ticked: &Ticked, conflicts: u64) {
        raise_by(self.expired, ticked.expired);
        raise_by(self.lost, ticked.lost);
        raise_by(self.conflicts, conflicts);
    }

    /// Shows how the account of the tenant at this place stands.
    pub(crate) fn set(&self, at: usize, status: &Status) {
        let gauges = self.each.get(at).and_then(|(_, each)| each.gauges);
        if let Some(gauges) = gauges {
            gauges.set(status);
        }
    }

    /// Shows each tenant's share of the last ticks, from what its requests used
    /// so far.
    pub(crate) fn set_shares(&self, served: Vec<u64>) {
        let mut ticks = self.served.borrow_mut();
        ticks.push_back(served);
        if ticks.len() > SHARE_TICKS {
            ticks.pop_front();
        }
        let (Some(first), Some(last)) = (ticks.front(), ticks.back()) else { return };
        let used = || last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first));
        let all: u64 = used().sum();
        for ((_, each), used) in self.each.iter().zip(used()) {
            set(each.share, used.saturating_mul(1000).checked_div(all).unwrap_or(0));
        }
    }

    pub(super) fn retire(&self) {
        for (_, each) in &self.each {
            if let Some(gauges) = each.gauges {
                gauges.set(&Status::default());
            }
            set(each.share, 0);
        }
    }
}

fn each(
    tenants: &Tenants,
    shared: bool,
    count: &impl Fn(&str) -> Option<Counter>,
    gauge: &impl Fn(&str) -> Option<Gauge>,
) -> Vec<(String, EachTenant)> {
    let counters = |name: &str| EachTenant {
        admitted: count(&format!("tenant_admitted.{name}")),
        refused: count(&format!("tenant_refused.{name}")),
        reserved: count(&format!("tenant_reserved.{name}")),
        settled: count(&format!("tenant_settled.{name}")),
        gauges: None,
        share: None,
    };
    let all = tenants.all();
    let other = (all.len() > TENANTS_MAX).then(|| counters("other"));
    let metrics = |(at, name): (usize, &String)| {
        other.filter(|_| at >= TENANTS_MAX).unwrap_or_else(|| EachTenant {
            gauges: Some(AccountGauges::define("tenant", name, gauge)),
            share: if shared { gauge(&format!("tenant_share.{name}")) } else { None },
            ..counters(name)
        })
    };
    let names = all.iter().map(|tenant| &tenant.name);
    names.enumerate().map(|(at, name)| (name.clone(), metrics((at, name)))).collect()
}
