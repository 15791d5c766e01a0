//! A report as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::report::{Figures, PoolReport, Report, TenantReport};
use crate::policy::Policy;
use crate::report::Table;
use crate::table::percent;

/// Milliseconds; `never` where the figure does not exist.
fn ms(figure: Option<u64>) -> String {
    figure.map_or_else(|| "never".into(), |nanos| format!("{:.1}", nanos as f64 / 1e6))
}

impl Report {
    /// As tables. Every line is the same for the same scenario and seed.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (gateways, workers) = self.gateways;
        let _ = writeln!(
            out,
            "{} requests in {:.1} s, the last one ended after {:.1} s; gateways: {gateways}, workers \
             of each: {workers}\n",
            self.asked(),
            self.seconds,
            self.ended
        );
        if self.policy != Policy::Tidegate {
            let _ = writeln!(out, "pools chosen by: {}\n", self.policy);
        }
        let tables: Vec<String> = self.tables().iter().map(Table::text).collect();
        out.push_str(&tables.join("\n"));
        let (count, mean, p50, p95) = self.errors;
        let _ = writeln!(
            out,
            "\nerror of the estimate after {:.0} s, {count} prompts: mean {}, p50 {}, p95 {}",
            self.warm_up,
            percent(mean),
            percent(p50),
            percent(p95)
        );
        out
    }

    /// The tables of the text.
    pub fn tables(&self) -> Vec<Table> {
        let pools = self.pools_tables().into_iter().chain(self.rare_table());
        pools.chain(self.tenants_tables()).collect()
    }

    fn pools_tables(&self) -> [Table; 2] {
        let rows = |cells: &dyn Fn(&PoolReport) -> Vec<String>| -> Vec<Vec<String>> {
            let row = |pool| std::iter::once(pool).map(|pool: &PoolReport| pool.name.clone());
            self.pools.iter().map(|pool| row(pool).chain(cells(pool)).collect()).collect()
        };
        let counts = rows(&|pool| {
            let counts = [
                u64::from(pool.replicas),
                pool.sent,
                pool.served,
                pool.refused,
                pool.taken_over,
                pool.left,
                pool.truncated,
                pool.under_routed,
                pool.over_routed,
                pool.moved,
                pool.spill_changes,
                pool.preemptions,
            ];
            counts.iter().map(u64::to_string).collect()
        });
        let heads = [
            "pool",
            "replicas",
            "sent",
            "served",
            "refused",
            "taken over",
            "left",
            "truncated",
            "under",
            "over",
            "moved",
            "changes",
            "preempted",
        ];
        let counts = Table::new("pools", "Pools: requests", &heads, counts);
        let times = rows(&|pool| {
            let PoolReport { first_token, per_token, queue, .. } = pool;
            let mut cells: Vec<String> = [first_token, per_token, queue]
                .iter()
                .flat_map(|figures| [ms(figures.p50), ms(figures.p99)])
                .collect();
            cells.extend([percent(pool.kv_mean), percent(pool.kv_most)]);
            cells
        });
        let heads = [
            "pool, ms",
            "TTFT p50",
            "p99",
            "TPOT p50",
            "p99",
            "queue p50",
            "p99",
            "KV mean",
            "most",
        ];
        [counts, Table::new("pools-times", "Pools: milliseconds and memory", &heads, times)]
    }

    /// What most fleets have none of: shared prefixes, and replicas that fail.
    fn rare_table(&self) -> Option<Table> {
        if self.pools.iter().all(|pool| pool.cached + pool.downs + pool.unreachable == 0) {
            return None;
        }
        let row = |pool: &PoolReport| {
            let cached = pool.cached as f64 / pool.input.max(1) as f64;
            let counts = [pool.downs, pool.lost, pool.unreachable].map(|count| count.to_string());
            let mut row = vec![pool.name.clone(), percent(cached)];
            row.extend(counts);
            row
        };
        let rows: Vec<Vec<String>> = self.pools.iter().map(row).collect();
        let heads = ["pool", "prompts cached", "downs", "lost", "unreachable"];
        Some(Table::new("pools-rare", "Pools: shared prefixes and failures", &heads, rows))
    }

    fn tenants_tables(&self) -> [Table; 2] {
        let counts: Vec<Vec<String>> = self
            .tenants
            .iter()
            .map(|tenant| {
                let refused: u64 = tenant.refused.iter().map(|(_, count)| count).sum();
                let counts = [
                    tenant.asked,
                    tenant.answered,
                    refused,
                    tenant.too_long,
                    tenant.timed_out,
                    tenant.cut,
                    tenant.sent_away,
                    tenant.retries,
                    tenant.held,
                ];
                let mut row = vec![tenant.name.clone()];
                row.extend(counts.iter().map(u64::to_string));
                if tenant.held == 0 {
                    row.extend(["-".to_owned(), "-".to_owned()]);
                } else {
                    row.extend([ms(tenant.waited.p50), ms(tenant.waited.p99)]);
                }
                let failed = Some(("replica", tenant.failed)).filter(|(_, count)| *count > 0);
                let why = tenant
                    .refused
                    .iter()
                    .chain(&failed)
                    .map(|(cause, count)| format!("{cause} {count}"));
                row.push(why.collect::<Vec<_>>().join(", "));
                row
            })
            .collect();
        let heads = [
            "tenant",
            "asked",
            "answered",
            "refused",
            "too long",
            "timed out",
            "cut",
            "429s",
            "came back",
            "held",
            "ms p50",
            "p99",
            "refused for",
        ];
        let counts = Table::new("tenants", "Tenants: requests", &heads, counts);
        let rates: Vec<Vec<String>> = self
            .tenants
            .iter()
            .map(|tenant| {
                let TenantReport { first_token, answered_first_token: answered, whole, .. } =
                    tenant;
                vec![
                    tenant.name.clone(),
                    tenant.class.unwrap_or("-").to_owned(),
                    tenant.promised.map_or_else(|| "-".into(), |rate| format!("{rate:.1}")),
                    format!("{:.1}", tenant.got),
                    percent(tenant.share),
                    tenant.settled.to_string(),
                    tenant.refunded.to_string(),
                    ms(first_token.p50),
                    ms(first_token.p99),
                    ms(answered.p50),
                    ms(answered.p99),
                    ms(whole.p50),
                    ms(whole.p99),
                ]
            })
            .collect();
        let heads = [
            "tenant",
            "class",
            "promised/s",
            "got/s",
            "share",
            "settled",
            "refunded",
            "TTFT p50",
            "p99",
            "answered p50",
            "p99",
            "E2E p50",
            "p99",
        ];
        [counts, Table::new("tenants-rates", "Tenants: tokens and milliseconds", &heads, rates)]
    }

    /// The same numbers as one JSON document.
    pub fn json(&self) -> Value {
        let (count, mean, p50, p95) = self.errors;
        json!({
            "requests": self.asked(),
            "seconds": self.seconds,
            "ended_s": self.ended,
            "warm_up_s": self.warm_up,
            "gateways": self.gateways.0,
            "workers": self.gateways.1,
            "policy": self.policy.to_string(),
            "pools": self.pools.iter().map(pool_json).collect::<Vec<_>>(),
            "tenants": self.tenants.iter().map(tenant_json).collect::<Vec<_>>(),
            "estimate_error": {"prompts": count, "mean": mean, "p50": p50, "p95": p95},
        })
    }
}

/// Milliseconds; null where the figure does not exist.
fn figures_json(figures: Figures) -> Value {
    let ms = |figure: Option<u64>| figure.map(|nanos| nanos as f64 / 1e6);
    json!({"p50": ms(figures.p50), "p99": ms(figures.p99)})
}

fn pool_json(pool: &PoolReport) -> Value {
    json!({
        "name": pool.name,
        "replicas": pool.replicas,
        "sent": pool.sent,
        "served": pool.served,
        "refused": pool.refused,
        "taken_over": pool.taken_over,
        "left": pool.left,
        "downs": pool.downs,
        "lost": pool.lost,
        "unreachable": pool.unreachable,
        "truncated": pool.truncated,
        "under_routed": pool.under_routed,
        "over_routed": pool.over_routed,
        "moved": pool.moved,
        "spill_changes": pool.spill_changes,
        "preemptions": pool.preemptions,
        "input_tokens": pool.input,
        "cached_tokens": pool.cached,
        "output_tokens": pool.output,
        "kv_mean": pool.kv_mean,
        "kv_most": pool.kv_most,
        "queue_ms": figures_json(pool.queue),
        "ttft_ms": figures_json(pool.first_token),
        "tpot_ms": figures_json(pool.per_token),
    })
}

fn tenant_json(tenant: &TenantReport) -> Value {
    let refused: serde_json::Map<String, Value> =
        tenant.refused.iter().map(|(cause, n)| ((*cause).to_owned(), (*n).into())).collect();
    json!({
        "name": tenant.name,
        "class": tenant.class,
        "asked": tenant.asked,
        "answered": tenant.answered,
        "refused": refused,
        "too_long": tenant.too_long,
        "timed_out": tenant.timed_out,
        "failed": tenant.failed,
        "cut": tenant.cut,
        "status_429": tenant.sent_away,
        "came_back": tenant.retries,
        "held": tenant.held,
        "hold_ms": figures_json(tenant.waited),
        "settled_tokens": tenant.settled,
        "refunded_tokens": tenant.refunded,
        "promised_per_s": tenant.promised,
        "got_per_s": tenant.got,
        "share": tenant.share,
        "ttft_ms": figures_json(tenant.first_token),
        "answered_ttft_ms": figures_json(tenant.answered_first_token),
        "e2e_ms": figures_json(tenant.whole),
    })
}
