//! What pools can do against what tenants are promised.

use super::node::Members;
use super::{ConfigError, Pool, TenantClass};
use crate::tenant::{Capacity, Entitlement, Limits};
use std::sync::Arc;

/// How much of the pools' capacity may be promised, and how much of what is
/// promised is kept free. In thousandths: sums must be exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserve {
    safety: u64,
    headroom: u64,
}

impl Default for Reserve {
    /// A tenth is not promised, and all that is promised is kept free.
    fn default() -> Self {
        Self { safety: 100, headroom: 1000 }
    }
}

impl Reserve {
    pub(super) fn read(members: &Members<'_>) -> Result<Self, ConfigError> {
        let share = |key, max, default: u64| {
            members.get(key).map_or(Ok(default), |node| {
                node.number(0.0, max).map(|share| (share * 1000.0 + 0.5) as u64)
            })
        };
        let Self { safety, headroom } = Self::default();
        Ok(Self {
            safety: share("safety", 0.9, safety)?,
            headroom: share("headroom", 1.0, headroom)?,
        })
    }

    /// What of a capacity may be promised.
    fn promisable(self, capacity: u64) -> u64 {
        capacity.saturating_mul(1000_u64.saturating_sub(self.safety)) / 1000
    }
}

/// One of the three things that a pool has so much of.
#[derive(Clone, Copy)]
enum Dimension {
    Rate,
    TokensInFlight,
    Requests,
}

impl Dimension {
    const ALL: [Self; 3] = [Self::Rate, Self::TokensInFlight, Self::Requests];

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "tokens_per_second",
            Self::TokensInFlight => "tokens_in_flight",
            Self::Requests => "requests",
        }
    }

    fn of_pool(self, pool: &Pool) -> Option<u64> {
        let capacity = pool.capacity?;
        match self {
            Self::Rate => capacity.law.map(|law| law.tokens),
            Self::TokensInFlight => capacity.tokens_in_flight,
            Self::Requests => capacity.requests,
        }
    }

    fn of(self, limits: &Limits) -> Option<u64> {
        match self {
            Self::Rate => limits.laws.first()?.map(|law| law.tokens),
            Self::TokensInFlight => limits.tokens_in_flight,
            Self::Requests => limits.requests,
        }
    }

    /// What limits are in tokens as they are, of a tenant that counts them by
    /// weights.
    fn plain(self, tenant: &Entitlement, limits: &Limits) -> Option<u64> {
        let limit = self.of(limits)?;
        match self {
            Self::Rate => {
                // What is cached costs a pool next to nothing.
                let least = tenant.weights.input.min(tenant.weights.output);
                limit.saturating_mul(1000).checked_div(least.into())
            }
            Self::TokensInFlight | Self::Requests => Some(limit),
        }
    }

    /// What a tenant has in one pool, by that pool's own limits and by its own.
    fn in_pool(self, tenant: &Entitlement, pool: &Pool) -> Option<u64> {
        let (_, limits) = tenant.pools.iter().find(|(name, _)| *name == pool.name)?;
        let own = self.plain(tenant, &tenant.limits).unwrap_or(u64::MAX);
        self.plain(tenant, limits).map(|limit| limit.min(own))
    }

    /// What a tenant is promised over all pools.
    fn promised(self, tenant: &Entitlement, pools: &[&Pool]) -> Option<u64> {
        let in_pools = || pools.iter().map(|pool| self.in_pool(tenant, pool)).sum();
        self.plain(tenant, &tenant.limits).or_else(in_pools)
    }
}

/// The pools' capacities, sorted by name, unless more is promised to guaranteed
/// tenants than there is.
pub(super) fn capacities(
    path: &str,
    reserve: Reserve,
    pools: &[Arc<Pool>],
    tenants: &[Arc<Entitlement>],
) -> Result<Vec<Arc<Capacity>>, ConfigError> {
    let known: Vec<&Pool> =
        pools.iter().map(Arc::as_ref).filter(|pool| pool.capacity.is_some()).collect();
    let guaranteed = |one: &&Arc<Entitlement>| one.class == TenantClass::Guaranteed;
    let guaranteed: Vec<&Entitlement> =
        tenants.iter().filter(guaranteed).map(Arc::as_ref).filter(|one| !one.suspended()).collect();
    for dimension in Dimension::ALL {
        let of_pools: Vec<&Pool> =
            known.iter().filter(|pool| dimension.of_pool(pool).is_some()).copied().collect();
        for pool in &of_pools {
            let parts: Vec<(&str, u64)> = guaranteed
                .iter()
                .filter_map(|one| Some((one.name.as_str(), dimension.in_pool(one, pool)?)))
                .collect();
            check(path, reserve, dimension, &[pool], &parts)?;
        }
        if of_pools.is_empty() {
            continue;
        }
        let mut parts = Vec::new();
        for one in &guaranteed {
            let promised = dimension.promised(one, &of_pools).ok_or_else(|| ConfigError {
                field: format!("{path}.entitlements \"{}\"", one.name),
                value: "(no number)".to_owned(),
                allowed: format!(
                    "a guaranteed tenant needs a number for {}, over all pools or in each: pools \
                     state theirs (and tokens must count)",
                    dimension.name()
                ),
            })?;
            parts.push((one.name.as_str(), promised));
        }
        // Where some pool's capacity is not known, the sum is not either.
        if of_pools.len() == pools.len() {
            check(path, reserve, dimension, &of_pools, &parts)?;
        }
    }
    let kept = |pool: &Pool, dimension: Dimension| {
        let promised = guaranteed.iter().fold(0_u64, |sum, one| {
            let own = || dimension.plain(one, &one.limits);
            let promised = dimension.in_pool(one, pool).or_else(own);
            sum.saturating_add(promised.unwrap_or(0))
        });
        let most = dimension.of_pool(pool).map_or(0, |capacity| reserve.promisable(capacity));
        promised.min(most).saturating_mul(reserve.headroom) / 1000
    };
    let capacity = |pool: &&Pool| {
        let stated = pool.capacity?;
        Some(Arc::new(Capacity {
            name: pool.name.clone(),
            limits: Limits {
                laws: [stated.law, None, None, None],
                tokens_in_flight: stated.tokens_in_flight,
                requests: stated.requests,
            },
            kept: (kept(pool, Dimension::TokensInFlight), kept(pool, Dimension::Requests)),
            credit: stated.credit,
            spill: pool.spill,
            load: pool.load.clone(),
        }))
    };
    let mut capacities: Vec<Arc<Capacity>> = known.iter().filter_map(capacity).collect();
    capacities.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(capacities)
}

/// Refuses to promise more than these pools can do, with the sums.
fn check(
    path: &str,
    reserve: Reserve,
    dimension: Dimension,
    pools: &[&Pool],
    parts: &[(&str, u64)],
) -> Result<(), ConfigError> {
    let promised = parts.iter().fold(0_u64, |sum, (_, tokens)| sum.saturating_add(*tokens));
    let stated = pools.iter().filter_map(|pool| {
        let all = dimension.of_pool(pool)?;
        Some((pool.name.as_str(), pool.capacity?.replicas, all))
    });
    let capacity = stated.clone().fold(0_u64, |sum, (_, _, all)| sum.saturating_add(all));
    let most = reserve.promisable(capacity);
    if promised <= most {
        return Ok(());
    }
    let sum: Vec<String> = parts.iter().map(|(name, part)| format!("{name} {part}")).collect();
    let of: Vec<String> = stated
        .map(|(name, replicas, all)| format!("{name} {replicas} x {}", all / replicas.max(1)))
        .collect();
    let safety = reserve.safety as f64 / 1000.0;
    Err(ConfigError {
        field: format!("{path}.entitlements"),
        value: format!("{} = {promised} {}", sum.join(" + "), dimension.name()),
        allowed: format!(
            "guaranteed tenants may be promised at most ({}) x (1 - safety {safety}) = {most}",
            of.join(" + ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::tenant::Law;

    fn parse(short: &str, tenants: &str) -> Result<Config, String> {
        let document = format!(
            r#"{{"version": 1, "models": [{{"match": "*", "pools": [
               {{"name": "short", "cluster": "s", "max_model_len": 8192, "capacity": {short}}},
               {{"name": "long", "cluster": "l", "max_model_len": 65536, "capacity":
                {{"replicas": 2, "tokens_per_second": 500, "tokens_in_flight": 100000,
                  "requests": 16, "credit": 7, "burst": 90000}}}}]}}],
               "tenants": {{"default": "others", "entitlements": [
               {{"name": "others", "tokens_per_second": 100, "requests": 5}}, {tenants}]}}}}"#
        );
        Config::parse(document.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_promised_in_each_pool_adds_up_and_who_is_suspended_has_nothing() {
        let tenant = |more: &str| {
            format!(
                r#"{{"name": "a", "class": "guaranteed", "tokens_in_flight": 1, "requests": 1,
                    {more}}}"#
            )
        };
        let in_pools = |long: u64| {
            tenant(&format!(
                r#""tokens_per_second": "unlimited", "pools": {{"short": {{"tokens_per_second": 5400}},
                   "long": {{"tokens_per_second": {long}}}}}"#
            ))
        };
        assert!(parse(SHORT, &in_pools(900)).is_ok());
        let error = parse(SHORT, &in_pools(901)).unwrap_err();
        assert!(error.contains("(long 2 x 500) x (1 - safety 0.1) = 900"), "{error}");
        let one = tenant(
            r#""tokens_per_second": "unlimited", "pools": {"short": {"tokens_per_second": 5400}}"#,
        );
        assert!(parse(SHORT, &one).unwrap_err().contains("over all pools or in each"));
        let suspended = tenant(r#""tokens_per_second": 90000, "burst": 0"#);
        let config = parse(SHORT, &suspended).unwrap();
        assert_eq!(config.capacity("short").unwrap().kept, (0, 0));
        // The sum over all pools is not known where one states nothing.
        let unknown = r#"{"replicas": 4, "tokens_per_second": 1500}"#;
        let many = r#"{"name": "a", "class": "guaranteed", "tokens_per_second": 1,
                       "tokens_in_flight": 1, "requests": 9999}"#;
        assert!(parse(unknown, many).is_ok());
    }

    #[test]
    fn headroom_is_the_part_of_promises_that_is_kept() {
        let guaranteed = r#"{"name": "a", "class": "guaranteed", "tokens_per_second": 1,
                             "tokens_in_flight": 1000, "requests": 10}"#;
        let document = |headroom: &str| {
            let config =
                parse(SHORT, &format!(r#"{guaranteed}], "headroom": {headroom}, "from": ["#));
            config.unwrap().capacity("long").unwrap().kept
        };
        assert_eq!((document("1"), document("0.5"), document("0")), ((1000, 10), (500, 5), (0, 0)));
    }

    const SHORT: &str = r#"{"replicas": 4, "tokens_per_second": 1500, "requests": 64}"#;

    #[test]
    fn a_pool_can_do_what_its_replicas_can() {
        let tenants = parse(SHORT, r#"{"name": "a"}"#).unwrap();
        let short = tenants.capacity("short").unwrap();
        assert_eq!(short.limits.laws[0], Some(Law::per_second(6000, 12_000, 12_000)));
        assert_eq!((short.limits.requests, short.limits.tokens_in_flight), (Some(256), None));
        assert_eq!((short.kept, short.credit), ((0, 0), 12_000));
        let long = tenants.capacity("long").unwrap();
        assert_eq!(long.limits.laws[0], Some(Law::per_second(1000, 90_000, 90_000)));
        assert_eq!((long.limits.tokens_in_flight, long.credit), (Some(200_000), 7));
        assert!(tenants.capacity("other").is_none());
    }

    #[test]
    fn what_guaranteed_tenants_have_is_kept_free_in_each_pool() {
        let tenants = parse(
            SHORT,
            r#"{"name": "a", "class": "guaranteed", "tokens_per_second": 700,
                "tokens_in_flight": 50000, "requests": 40,
                "pools": {"long": {"tokens_in_flight": 20000, "requests": 4}}},
               {"name": "b", "class": "guaranteed", "tokens_per_second": 700,
                "tokens_in_flight": 500, "requests": 6}"#,
        )
        .unwrap();
        assert_eq!(tenants.capacity("short").unwrap().kept, (0, 46));
        assert_eq!(tenants.capacity("long").unwrap().kept, (20_500, 10));
    }

    #[test]
    fn more_than_there_is_cannot_be_promised() {
        let guaranteed = |name: &str, rate: u64, more: &str| {
            format!(
                r#"{{"name": "{name}", "class": "guaranteed", "tokens_per_second": {rate},
                    "tokens_in_flight": 1000, "requests": 10{more}}}"#
            )
        };
        let two = |a, b| format!("{}, {}", guaranteed("a", a, ""), guaranteed("b", b, ""));
        assert!(parse(SHORT, &two(4000, 2300)).is_ok());
        assert_eq!(
            parse(SHORT, &two(4000, 2301)).unwrap_err(),
            "tenants.entitlements: a 4000 + b 2301 = 6301 tokens_per_second: guaranteed tenants \
             may be promised at most (long 2 x 500 + short 4 x 1500) x (1 - safety 0.1) = 6300"
        );
        // Tokens that count half are twice as many.
        let half = r#", "count": {"input": 0.5, "cached": 0.1}"#;
        assert!(parse(SHORT, &guaranteed("a", 3150, half)).is_ok());
        let error = parse(SHORT, &guaranteed("a", 3151, half)).unwrap_err();
        assert!(error.contains("a 6302 = 6302 tokens_per_second"), "{error}");
        let nothing = r#", "count": {"output": 0}"#;
        assert!(parse(SHORT, &guaranteed("a", 1, nothing)).unwrap_err().contains("must count"));
        // A tenant's own limit holds in each pool as well.
        let in_long = r#", "pools": {"long": {"requests": 29}}"#;
        let config = parse(SHORT, &guaranteed("a", 1, in_long)).unwrap();
        assert_eq!(config.capacity("long").unwrap().kept.1, 10);
        let in_long = r#", "requests": 40, "pools": {"long": {"requests": 29}}"#;
        let many = guaranteed("a", 1, in_long).replacen(r#""requests": 10, "#, "", 1);
        let many = many.replacen(r#""requests": 10"#, r#""burst": 9"#, 1);
        assert_eq!(
            parse(SHORT, &many).unwrap_err(),
            "tenants.entitlements: a 29 = 29 requests: guaranteed tenants may be promised at most \
             (long 2 x 16) x (1 - safety 0.1) = 28"
        );
        let unlimited = r#"{"name": "a", "class": "guaranteed", "tokens_per_second": 9,
                            "requests": 3}"#;
        assert_eq!(
            parse(SHORT, unlimited).unwrap_err(),
            "tenants.entitlements \"a\": (no number): a guaranteed tenant needs a number for \
             tokens_in_flight, over all pools or in each: pools state theirs (and tokens must \
             count)"
        );
    }

    #[test]
    fn errors_name_the_field() {
        for (short, expected) in [
            ("{}", "capacity: {}: must have tokens_per_second, tokens_in_flight or requests"),
            (r#"{"requests": 3}"#, "capacity.replicas: (absent): is required: how many replicas"),
            (r#"{"replicas": 0, "requests": 3}"#, "must be an integer from 1 to"),
            (
                r#"{"replicas": 1, "tokens_in_flight": 8191}"#,
                "tokens_in_flight: 8191: must be an integer from 8192",
            ),
            (r#"{"replicas": 1, "requests": 1, "burst": 5}"#, "burst: 5: needs tokens_per_second"),
            (
                r#"{"replicas": 1, "tokens_per_second": 1}, "spill": {}"#,
                "spill: {}: needs capacity.tokens_in_flight or capacity.requests",
            ),
            (
                r#"{"replicas": 1, "requests": 1}, "spill": {"enter": 0.5}"#,
                "leave (0.7) must be below enter (0.5)",
            ),
            (
                r#"{"replicas": 1, "requests": 1}, "threshold_range": [9, 8]"#,
                "threshold_range[1]: 8: must be an integer from 9 to 8192",
            ),
            (r#"{"replicas": 1, "requests": 1}, "threshold_range": [9]"#, "lowest and the highest"),
        ] {
            let error = parse(short, r#"{"name": "a"}"#).unwrap_err();
            assert!(error.contains(expected), "{error}\n  lacks: {expected}");
        }
        for (tenant, expected) in [
            (r#"{"name": "a", "weight": 0}"#, "weight: 0: must be an integer from 1 to 1000"),
            (r#"{"name": "a", "on_limit": "wait"}"#, "on_limit: \"wait\""),
            (r#"{"name": "a", "ttft_target_ms": 1}"#, "from 10 to 600000"),
            (r#"{"name": "a", "pools": {"shrot": {}}}"#, "did you mean \"short\"?"),
            (r#"{"name": "a", "pools": {"short": {"rate": 1}}}"#, "pools.short.rate"),
        ] {
            let error = parse(SHORT, tenant).unwrap_err();
            assert!(error.contains(expected), "{error}\n  lacks: {expected}");
        }
    }
}
