//! Counters and histograms, all defined at configure time.

mod pools;
mod tenants;

use crate::host::{Counter, Gauge, Histogram};
use pools::PoolMetrics;
use tenants::TenantMetrics;
use tidegate::config::Config;
use tidegate::gate::{Decision, Missing, Reason, Settlement};

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
    pub(crate) pools: PoolMetrics,
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
        let gauge = |name: &str| Gauge::define(&format!("tidegate.{name}{instance}"));
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
            tenants: TenantMetrics::define(config, &count, &gauge, &|name| {
                histogram(&format!("tidegate.{name}{instance}"))
            }),
            pools: PoolMetrics::define(config, &gauge, &count),
            estimate_error: histogram(&format!("tidegate.estimate_error{instance}")),
            cap_use: histogram(&format!("tidegate.cap_use{instance}")),
        }
    }

    /// This configuration is gone. Gauges that the next one has as well are set
    /// again at its next tick.
    pub(crate) fn retire(&self) {
        self.tenants.retire();
        self.pools.retire();
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

fn set(gauge: Option<Gauge>, value: u64) {
    if let Some(gauge) = gauge {
        gauge.set(value);
    }
}
