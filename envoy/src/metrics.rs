//! Counters and histograms, all defined at configure time.

use crate::host::{Counter, Gauge, Histogram};
use tidegate::config::Config;
use tidegate::gate::{Charged, Decision, Missing, Reason, Settlement};
use tidegate::tenant::{Admission, Cause, Status};

/// The metrics of one configuration: its pools give them their names.
pub(crate) struct Metrics {
    /// By pool name, sorted.
    requests: Vec<(String, Counter)>,
    /// In the order of [`Reason::ALL`].
    reasons: Vec<Counter>,
    /// In the order of [`Missing::ALL`].
    missing: Vec<Counter>,
    under_route: Option<Counter>,
    over_route: Option<Counter>,
    truncated: Option<Counter>,
    spill_down: Option<Counter>,
    spill_unclear: Option<Counter>,
    learned: Option<Counter>,
    unreadable: Option<Counter>,
    disagreed: Option<Counter>,
    pub(crate) stream_usage: StreamUsage,
    pub(crate) tenants: TenantMetrics,
    estimate_error: Option<Histogram>,
    cap_use: Option<Histogram>,
}

/// What was done about streams that were not asked for their usage.
pub(crate) struct StreamUsage {
    /// Requests that were made to ask.
    added: Option<Counter>,
    /// Requests that were left alone although their pool's setting says `add`.
    skipped: Option<Counter>,
    /// Events that the client did not see.
    hidden: Option<Counter>,
    /// Events, and encoded streams, in which the client may have seen it.
    passed: Option<Counter>,
}

impl StreamUsage {
    pub(crate) fn asked(&self, asked: bool) {
        raise(if asked { self.added } else { self.skipped }, true);
    }

    pub(crate) fn ended(&self, hidden: u64, passed: u64) {
        raise_by(self.hidden, hidden);
        raise_by(self.passed, passed);
    }
}

/// What tenants were let through and charged.
pub(crate) struct TenantMetrics {
    uncharged: Option<Counter>,
    /// In the order of [`Cause::ALL`].
    refused: Vec<Counter>,
    refunded: Option<Counter>,
    exceeded: Option<Counter>,
    clamped: Option<Counter>,
    forgiven: Option<Counter>,
    expired: Option<Counter>,
    /// In the order of the configuration's tenants, sorted by name.
    each: Vec<(String, EachTenant)>,
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
    gauges: Option<TenantGauges>,
}

#[derive(Clone, Copy)]
struct TenantGauges {
    tokens: Option<Gauge>,
    requests: Option<Gauge>,
    left: Option<Gauge>,
    debt: Option<Gauge>,
}

/// Tenants whose names stand in metrics.
const TENANTS_MAX: usize = 100;

impl TenantMetrics {
    fn define(
        config: &Config,
        count: &impl Fn(&str) -> Option<Counter>,
        gauge: impl Fn(&str) -> Option<Gauge>,
    ) -> Self {
        let Some(tenants) = &config.tenants else {
            return Self {
                uncharged: None,
                refused: Vec::new(),
                refunded: None,
                exceeded: None,
                clamped: None,
                forgiven: None,
                expired: None,
                each: Vec::new(),
            };
        };
        let counters = |name: &str| EachTenant {
            admitted: count(&format!("tenant_admitted.{name}")),
            refused: count(&format!("tenant_refused.{name}")),
            reserved: count(&format!("tenant_reserved.{name}")),
            settled: count(&format!("tenant_settled.{name}")),
            gauges: None,
        };
        let all = tenants.all();
        let other = (all.len() > TENANTS_MAX).then(|| counters("other"));
        let each = all.iter().enumerate().map(|(at, tenant)| {
            let name = &tenant.name;
            let metrics = other.filter(|_| at >= TENANTS_MAX).unwrap_or_else(|| EachTenant {
                gauges: Some(TenantGauges {
                    tokens: gauge(&format!("tenant_tokens_in_flight.{name}")),
                    requests: gauge(&format!("tenant_requests.{name}")),
                    left: gauge(&format!("tenant_left.{name}")),
                    debt: gauge(&format!("tenant_debt.{name}")),
                }),
                ..counters(name)
            });
            (name.clone(), metrics)
        });
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
            each: each.collect(),
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
            Admission::Refused(refusal) => {
                raise(each.and_then(|each| each.refused), true);
                raise(self.refused.get(refusal.cause as usize).copied(), true);
            }
        }
    }

    fn settled(&self, charged: &Charged) {
        let each = self.of(&charged.tenant.name);
        raise_by(each.and_then(|each| each.settled), charged.actual);
        let settled = charged.settled.unwrap_or_default();
        raise_by(self.refunded, settled.refunded);
        raise_by(self.exceeded, settled.exceeded);
        raise_by(self.clamped, settled.clamped);
        raise_by(self.forgiven, settled.forgiven);
    }

    pub(crate) fn expired(&self, reservations: u64) {
        raise_by(self.expired, reservations);
    }

    /// Shows how the account of the tenant at this place stands.
    pub(crate) fn set(&self, at: usize, status: &Status) {
        let Some(gauges) = self.each.get(at).and_then(|(_, each)| each.gauges) else { return };
        for (gauge, value) in [
            (gauges.tokens, status.tokens),
            (gauges.requests, status.requests),
            (gauges.left, status.left),
            (gauges.debt, status.debt),
        ] {
            if let Some(gauge) = gauge {
                gauge.set(value);
            }
        }
    }
}

impl Metrics {
    pub(crate) fn define(
        config: &Config,
        counter: impl Fn(&str) -> Option<Counter>,
        histogram: impl Fn(&str) -> Option<Histogram>,
    ) -> Self {
        let instance = match config.name.as_str() {
            "tidegate" => String::new(),
            name => format!(".instance.{name}"),
        };
        let count = |name: &str| counter(&format!("tidegate.{name}{instance}"));
        Self {
            requests: config
                .pool_names
                .iter()
                .filter_map(|pool| Some((pool.clone(), count(&format!("requests.{pool}"))?)))
                .collect(),
            reasons: Reason::ALL
                .iter()
                .filter_map(|reason| count(&format!("reason.{}", reason.word())))
                .collect(),
            missing: Missing::ALL
                .iter()
                .filter_map(|cause| count(&format!("usage_missing.{}", cause.word())))
                .collect(),
            under_route: count("under_route"),
            over_route: count("over_route"),
            truncated: count("truncated"),
            spill_down: count("spill.down"),
            spill_unclear: count("spill.unclear"),
            learned: count("learned"),
            unreadable: count("cap_unreadable"),
            disagreed: count("usage_disagree"),
            stream_usage: StreamUsage {
                added: count("stream_usage.added"),
                skipped: count("stream_usage.skipped"),
                hidden: count("stream_usage.hidden"),
                passed: count("stream_usage.passed"),
            },
            tenants: TenantMetrics::define(config, &count, |name| {
                Gauge::define(&format!("tidegate.{name}{instance}"))
            }),
            estimate_error: histogram(&format!("tidegate.estimate_error{instance}")),
            cap_use: histogram(&format!("tidegate.cap_use{instance}")),
        }
    }

    pub(crate) fn opened(&self, decision: &Decision) {
        let at = self.requests.binary_search_by(|(name, _)| name.cmp(&decision.pool.name));
        let requests = at.ok().and_then(|at| self.requests.get(at)).map(|(_, counter)| *counter);
        raise(requests, true);
        raise(self.reasons.get(decision.reason as usize).copied(), true);
        raise(self.unreadable, decision.unreadable);
    }

    pub(crate) fn closed(&self, settlement: &Settlement) {
        raise(self.under_route, settlement.under_route);
        raise(self.over_route, settlement.over_route);
        raise(self.truncated, settlement.truncated);
        raise(self.spill_down, settlement.spilled);
        raise(self.spill_unclear, settlement.spill_unclear);
        raise(self.learned, settlement.learned);
        if let Some(missing) = settlement.missing {
            raise(self.missing.get(missing as usize).copied(), true);
        }
        raise(self.disagreed, settlement.disagreed);
        if let Some(charged) = &settlement.charged {
            self.tenants.settled(charged);
        }
        record(self.estimate_error, settlement.error_permille);
        record(self.cap_use, settlement.cap_use_permille);
    }
}

fn raise(counter: Option<Counter>, happened: bool) {
    raise_by(counter, u64::from(happened));
}

fn raise_by(counter: Option<Counter>, count: u64) {
    if let Some(counter) = counter {
        counter.raise(count);
    }
}

fn record(histogram: Option<Histogram>, value: Option<u64>) {
    if let (Some(histogram), Some(value)) = (histogram, value) {
        histogram.record(value);
    }
}
