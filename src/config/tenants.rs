//! Who the tenants are and what they are promised, from the document.

use super::capacity::Reserve;
use super::node::{Members, Node};
use super::{ConfigError, Pool, TenantClass};
use crate::tenant::{
    Entitlement, HoldLimits, LAWS, Law, Limits, POOLS_MAX, ReserveOutput, TOKENS_MAX, WEIGHT_MAX,
    Weights,
};
use crate::time::Span;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tenants that one document can name.
const TENANTS_MAX: usize = 1024;
/// Segments of a property's path.
const PATH_MAX: usize = 8;
/// Bytes of an identity.
const IDENTITY_MAX: usize = 256;
/// SHA-256 of nothing: what a key comes to that was not there.
const OF_NOTHING: [u8; 4] = [0xE3, 0xB0, 0xC4, 0x42];

/// The tenants of an instance.
#[derive(Clone, Debug)]
pub struct Tenants {
    /// Where a request's tenant is looked for, in this order.
    pub sources: Vec<TenantSource>,
    /// Answers carry `x-ratelimit-*` headers.
    pub headers: bool,
    /// What one worker holds of requests that wait.
    pub hold: HoldLimits,
    /// Sorted by name.
    entitlements: Vec<Arc<Entitlement>>,
    /// How much of what pools can do is promised and kept.
    pub(super) reserve: Reserve,
    /// Whose requests are of no known tenant.
    default: Arc<Entitlement>,
    /// What sources call them, beside their names.
    identities: BTreeMap<Vec<u8>, Arc<Entitlement>>,
    /// SHA-256 of API keys.
    keys: BTreeMap<[u8; 32], Arc<Entitlement>>,
}

/// A trusted place that names a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantSource {
    /// An attribute of the stream: a JWT claim in dynamic metadata, filter
    /// state, the peer's certificate.
    Property(Vec<String>),
    /// A request header that an earlier filter sets.
    Header(String),
    /// A request header with an API key, perhaps behind `Bearer`.
    ApiKey(String),
}

impl Tenants {
    /// The tenant that has this name or this identity.
    pub fn named(&self, name: &[u8]) -> Option<&Arc<Entitlement>> {
        let at = self.entitlements.binary_search_by(|one| one.name.as_bytes().cmp(name));
        let found = at.ok().and_then(|at| self.entitlements.get(at));
        found.or_else(|| self.identities.get(name))
    }

    /// The tenant with this API key; a scheme such as `Bearer` in front is
    /// passed over.
    pub fn with_key(&self, value: &[u8]) -> Option<&Arc<Entitlement>> {
        let value = value.trim_ascii();
        let key = match value.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
            _ => value,
        };
        self.keys.get(&<[u8; 32]>::from(Sha256::digest(key)))
    }

    /// The tenant that all others share.
    pub fn default(&self) -> &Arc<Entitlement> {
        &self.default
    }

    /// All of them, sorted by name.
    pub fn all(&self) -> &[Arc<Entitlement>] {
        &self.entitlements
    }
}

const TENANTS: [&str; 7] =
    ["from", "default", "entitlements", "ratelimit_headers", "safety", "headroom", "hold"];

/// Reads the tenants of a document that has these pools.
pub(super) fn tenants(node: &Node<'_>, pools: &[Arc<Pool>]) -> Result<Tenants, ConfigError> {
    let members = node.clone().secret().object()?;
    members.only(&TENANTS)?;
    let list = members.need("entitlements", "a list of tenants")?;
    let nodes = list.list()?;
    if nodes.is_empty() || nodes.len() > TENANTS_MAX {
        return Err(list.refuse(format!("must have 1 to {TENANTS_MAX} entries")));
    }
    let default_node =
        members.need("default", "the name of the entitlement that all others share")?;
    let default_name = default_node.name()?;
    // What is absent elsewhere is as in the default tenant's entitlement.
    let name_of = |node: &Node<'_>| node.object()?.need("name", "the tenant's name")?.name();
    let mut first = None;
    for node in &nodes {
        if name_of(node)? == default_name {
            first = Some(entitlement(node, None, pools)?);
        }
    }
    let Some(default) = first else {
        return Err(default_node.refuse("must be the name of an entitlement"));
    };
    if default.limits.laws.first().is_none_or(Option::is_none) {
        let what = "must have tokens_per_second: all unknown tenants share it";
        return Err(default_node.refuse(what));
    }
    let mut entitlements: Vec<Arc<Entitlement>> = Vec::with_capacity(nodes.len());
    let (mut keys, mut identities) = (BTreeMap::new(), BTreeMap::new());
    for node in &nodes {
        let one = Arc::new(entitlement(node, Some(&default), pools)?);
        let members = node.object()?;
        if entitlements.iter().any(|other| other.name == one.name) {
            return Err(members
                .need("name", "")?
                .refuse("must differ from the other tenants' names"));
        }
        for node in members.get("identities").map_or(Ok(Vec::new()), |node| node.list())? {
            let identity = node.text()?;
            if identity.is_empty() || identity.len() > IDENTITY_MAX {
                return Err(node.refuse(format!("must be 1 to {IDENTITY_MAX} bytes")));
            }
            if identities.insert(identity.as_bytes().to_vec(), Arc::clone(&one)).is_some() {
                return Err(node.refuse("must be one tenant's only"));
            }
        }
        for key in members.get("keys").map_or(Ok(Vec::new()), |node| node.list())? {
            if keys.insert(key_hash(&key)?, Arc::clone(&one)).is_some() {
                return Err(secret(&key, "must be one tenant's only"));
            }
        }
        entitlements.push(one);
    }
    entitlements.sort_by(|a, b| a.name.cmp(&b.name));
    let tenants = Tenants {
        reserve: Reserve::read(&members)?,
        hold: members.get("hold").map_or(Ok(HOLD), |node| hold(&node))?,
        sources: members.get("from").map_or(Ok(Vec::new()), |node| sources(&node))?,
        headers: members.get("ratelimit_headers").map_or(Ok(true), |node| node.flag())?,
        default: Arc::new(default),
        entitlements,
        identities,
        keys,
    };
    Ok(tenants)
}

const HOLD: HoldLimits = HoldLimits { requests: 256, bytes: 16 << 20 };

fn hold(node: &Node<'_>) -> Result<HoldLimits, ConfigError> {
    let members = node.object()?;
    members.only(&["requests", "bytes"])?;
    let read = |key, max, default: u64| {
        members.get(key).map_or(Ok(default), |node| node.integer(0, max, ""))
    };
    Ok(HoldLimits {
        requests: read("requests", 4096, HOLD.requests)?,
        bytes: read("bytes", 1 << 30, HOLD.bytes)?,
    })
}

fn sources(node: &Node<'_>) -> Result<Vec<TenantSource>, ConfigError> {
    let mut sources = Vec::new();
    for node in node.list()? {
        let members = node.object()?;
        members.only(&["property", "header", "api_key"])?;
        let found = [
            members.get("property").map(|node| property(&node)),
            members.get("header").map(|node| node.header().map(TenantSource::Header)),
            members.get("api_key").map(|node| node.header().map(TenantSource::ApiKey)),
        ];
        let mut found = found.into_iter().flatten();
        match (found.next(), found.next()) {
            (Some(source), None) => sources.push(source?),
            _ => return Err(node.refuse("must have one of property, header and api_key")),
        }
    }
    Ok(sources)
}

fn property(node: &Node<'_>) -> Result<TenantSource, ConfigError> {
    let path: Vec<String> =
        node.list()?.iter().map(|node| node.text().map(str::to_owned)).collect::<Result<_, _>>()?;
    if path.is_empty() || path.len() > PATH_MAX || path.iter().any(String::is_empty) {
        return Err(node.refuse(format!("must be 1 to {PATH_MAX} names, none of them empty")));
    }
    Ok(TenantSource::Property(path))
}

/// An error that does not repeat the value: it may be a key.
fn secret(node: &Node<'_>, allowed: &str) -> ConfigError {
    ConfigError { field: node.path.clone(), value: "(not shown)".into(), allowed: allowed.into() }
}

fn key_hash(node: &Node<'_>) -> Result<[u8; 32], ConfigError> {
    let wrong = || secret(node, "must be \"sha256:\" and 64 hexadecimal digits");
    let digits = node.value.as_str().and_then(|text| text.strip_prefix("sha256:"));
    let hexadecimal =
        |digits: &&str| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.filter(hexadecimal).ok_or_else(wrong)?;
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        let pair = digits.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    if hash.starts_with(&OF_NOTHING) {
        return Err(secret(node, "must not be the hash of nothing"));
    }
    Ok(hash)
}

/// Limits of a tenant, over all pools or in one.
const LIMITS: [&str; 6] =
    ["tokens_per_second", "burst", "debt_max", "quotas", "tokens_in_flight", "requests"];

const ENTITLEMENT: [&str; 17] = [
    "name",
    "class",
    "weight",
    "pools",
    "on_limit",
    "ttft_target_ms",
    "identities",
    "keys",
    "tokens_per_second",
    "burst",
    "debt_max",
    "quotas",
    "tokens_in_flight",
    "requests",
    "count",
    "reserve_output",
    "on_busy",
];

/// Reads an entitlement; what is absent is as in `base`.
fn entitlement(
    node: &Node<'_>,
    base: Option<&Entitlement>,
    pools: &[Arc<Pool>],
) -> Result<Entitlement, ConfigError> {
    let members = node.object()?;
    members.only(&ENTITLEMENT)?;
    let node = members.need("name", "the tenant's name")?;
    let name = node.name()?;
    if name == "other" {
        return Err(node.refuse("must not be other, which metrics call the rest"));
    }
    let class = members
        .get("class")
        .map_or(Ok(base.map_or_else(TenantClass::default, |base| base.class)), |node| {
            node.word(&TenantClass::WORDS)
        })?;
    let guaranteed = class == TenantClass::Guaranteed;
    Ok(Entitlement {
        name,
        class,
        weight: members.get("weight").map_or(Ok(base.map_or(1, |base| base.weight)), |node| {
            node.integer(1, WEIGHT_MAX, "")
        })?,
        limits: limits(&members, base.map(|base| &base.limits))?,
        pools: members.get("pools").map_or(Ok(Vec::new()), |node| in_pools(&node, pools))?,
        weights: match members.get("count") {
            Some(node) => weights(&node)?,
            None => base.map_or_else(Weights::default, |base| base.weights),
        },
        reserve_output: match members.get("reserve_output") {
            Some(node) => {
                node.word(&[("cap", ReserveOutput::Cap), ("learned", ReserveOutput::Learned)])?
            }
            None if guaranteed => ReserveOutput::Cap,
            None => ReserveOutput::Learned,
        },
        hold: match members.get("on_limit") {
            Some(node) => node.word(&[("refuse", false), ("hold", true)])?,
            None => base.is_some_and(|base| base.hold),
        },
        ttft_target: match members.get("ttft_target_ms") {
            Some(node) => Span::from_millis(node.integer(10, 600_000, "")?),
            None => base.map_or(Span::from_secs(5), |base| base.ttft_target),
        },
        admit_on_busy: match members.get("on_busy") {
            Some(node) => node.word(&[("refuse", false), ("admit", true)])?,
            None => !guaranteed,
        },
    })
}

/// Limits in single pools, on top of those over all pools.
fn in_pools(node: &Node<'_>, pools: &[Arc<Pool>]) -> Result<Vec<(String, Limits)>, ConfigError> {
    let members = node.object()?;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    members.only(&names)?;
    if members.entries().len() > POOLS_MAX {
        return Err(node.refuse(format!("must have at most {POOLS_MAX} pools")));
    }
    let read = |(name, node): (&str, Node<'_>)| {
        let members = node.object()?;
        members.only(&LIMITS)?;
        Ok((name.to_owned(), limits(&members, None)?))
    };
    members.entries().into_iter().map(read).collect()
}

/// A limit; `None` stands for "unlimited".
fn limit(node: &Node<'_>) -> Result<Option<u64>, ConfigError> {
    if node.value.as_str() == Some("unlimited") {
        return Ok(None);
    }
    node.integer(0, TOKENS_MAX, ", or \"unlimited\"").map(Some)
}

fn limits(members: &Members<'_>, base: Option<&Limits>) -> Result<Limits, ConfigError> {
    let or = |key, default: Option<u64>| members.get(key).map_or(Ok(default), |node| limit(&node));
    Ok(Limits {
        laws: laws(members, base)?,
        tokens_in_flight: or("tokens_in_flight", base.and_then(|base| base.tokens_in_flight))?,
        requests: or("requests", base.and_then(|base| base.requests))?,
    })
}

/// A rate and quotas belong together: whoever names one of them names all.
fn laws(members: &Members<'_>, base: Option<&Limits>) -> Result<[Option<Law>; LAWS], ConfigError> {
    let parts = ["tokens_per_second", "burst", "debt_max", "quotas"];
    if let Some(base) = base.filter(|_| parts.iter().all(|key| members.get(key).is_none())) {
        return Ok(base.laws);
    }
    let tokens =
        |key, default| members.get(key).map_or(Ok(default), |node| node.integer(0, TOKENS_MAX, ""));
    let rate = members.get("tokens_per_second").map(|node| limit(&node)).transpose()?.flatten();
    let mut law = None;
    if let Some(rate) = rate {
        // Ten seconds' worth, and debt of as much.
        let burst = tokens("burst", rate.saturating_mul(10).min(TOKENS_MAX))?;
        law = Some(Law::per_second(rate, burst, tokens("debt_max", burst)?));
    } else if let Some(node) = members.get("burst").or_else(|| members.get("debt_max")) {
        return Err(node.refuse("needs tokens_per_second"));
    }
    let [minute, hour, day] = members.get("quotas").map_or(Ok([None; 3]), |node| quotas(&node))?;
    Ok([law, minute, hour, day])
}

fn quotas(node: &Node<'_>) -> Result<[Option<Law>; 3], ConfigError> {
    let members = node.object()?;
    members.only(&["minute", "hour", "day"])?;
    let quota = |key, seconds| -> Result<Option<Law>, ConfigError> {
        let Some(node) = members.get(key) else { return Ok(None) };
        let tokens = node.integer(0, TOKENS_MAX, "")?;
        let period = Span::from_secs(seconds);
        Ok(Some(Law { tokens, period, burst: tokens, floor: tokens }))
    };
    Ok([quota("minute", 60)?, quota("hour", 3600)?, quota("day", 86_400)?])
}

fn weights(node: &Node<'_>) -> Result<Weights, ConfigError> {
    let members = node.object()?;
    members.only(&["input", "cached", "output", "reasoning"])?;
    let weight = |key, default: u32| {
        members.get(key).map_or(Ok(default), |node| {
            // In thousandths: what is counted must add up exactly.
            node.number(0.0, 100.0).map(|weight| (weight * 1000.0 + 0.5) as u32)
        })
    };
    let default = Weights::default();
    let (input, output) = (weight("input", default.input)?, weight("output", default.output)?);
    Ok(Weights {
        input,
        cached: weight("cached", input)?,
        output,
        reasoning: weight("reasoning", output)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(tenants: &str) -> Result<Tenants, ConfigError> {
        let document = format!(
            r#"{{"version": 1, "models": [{{"match": "*", "pools": [
               {{"name": "p", "cluster": "p", "max_model_len": 8192}}]}}], "tenants": {tenants}}}"#
        );
        Config::parse(document.as_bytes()).map(|config| config.tenants.unwrap())
    }

    const OTHERS: &str = r#"{"name": "others", "tokens_per_second": 100, "requests": 5}"#;

    fn with(entitlement: &str) -> Result<Tenants, ConfigError> {
        parse(&format!(r#"{{"default": "others", "entitlements": [{OTHERS}, {entitlement}]}}"#))
    }

    #[test]
    fn what_is_absent_is_as_in_the_default_and_unlimited_has_its_word() {
        let tenants = with(
            r#"{"name": "a", "class": "guaranteed", "tokens_per_second": 500, "burst": 900,
                "debt_max": 0, "quotas": {"hour": 7000}, "requests": "unlimited"}"#,
        )
        .unwrap();
        let others = tenants.default();
        let law = |tokens, burst, floor| Some(Law::per_second(tokens, burst, floor));
        assert_eq!(others.limits.laws, [law(100, 1000, 1000), None, None, None]);
        assert_eq!(
            (others.limits.requests, others.reserve_output),
            (Some(5), ReserveOutput::Learned)
        );
        let a = tenants.named(b"a").unwrap();
        let hour = Law { tokens: 7000, period: Span::from_secs(3600), burst: 7000, floor: 7000 };
        assert_eq!(a.limits.laws, [law(500, 900, 0), None, Some(hour), None]);
        assert_eq!((a.limits.requests, a.limits.tokens_in_flight), (None, None));
        assert_eq!((a.reserve_output, a.admit_on_busy), (ReserveOutput::Cap, false));
        let b = with(r#"{"name": "b"}"#).unwrap();
        assert_eq!(b.named(b"b").unwrap().limits, b.default().limits);
        assert!(b.named(b"c").is_none());
        let zero = with(r#"{"name": "z", "tokens_per_second": 0}"#).unwrap();
        assert!(zero.named(b"z").unwrap().suspended() && !zero.default().suspended());
    }

    #[test]
    fn keys_are_found_by_their_hashes() {
        // printf secret | sha256sum
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let tenants = with(&format!(r#"{{"name": "a", "keys": ["sha256:{hash}"]}}"#)).unwrap();
        for value in [&b"secret"[..], b"Bearer secret", b" bearer  secret "] {
            assert_eq!(tenants.with_key(value).unwrap().name, "a");
        }
        for value in [&b"Secret"[..], b"", b"Bearer ", hash.as_bytes()] {
            assert!(tenants.with_key(value).is_none());
        }
    }

    #[test]
    fn a_tenant_has_its_name_and_other_identities() {
        let tenants = with(r#"{"name": "a", "identities": ["spiffe://x/ns/a", "A@x.example"]}"#);
        let tenants = tenants.unwrap();
        for name in [&b"a"[..], b"spiffe://x/ns/a", b"A@x.example"] {
            assert_eq!(tenants.named(name).unwrap().name, "a");
        }
        assert!(tenants.named(b"spiffe://x/ns/b").is_none());
    }

    #[test]
    fn weights_are_kept_to_thousandths() {
        let tenants =
            with(r#"{"name": "a", "count": {"input": 1.001, "output": 0.0009}}"#).unwrap();
        let weights = tenants.named(b"a").unwrap().weights;
        assert_eq!((weights.input, weights.cached, weights.output), (1001, 1001, 1));
    }

    #[test]
    fn sources_keep_their_order() {
        let tenants = parse(&format!(
            r#"{{"default": "others", "entitlements": [{OTHERS}], "from": [
               {{"property": ["metadata", "filter_metadata", "jwt", "sub"]}},
               {{"header": "x-team"}}, {{"api_key": "authorization"}}]}}"#
        ))
        .unwrap();
        let path = ["metadata", "filter_metadata", "jwt", "sub"].map(str::to_owned).to_vec();
        assert_eq!(
            tenants.sources,
            [
                TenantSource::Property(path),
                TenantSource::Header("x-team".into()),
                TenantSource::ApiKey("authorization".into()),
            ]
        );
    }

    #[test]
    fn errors_name_the_field_and_never_a_key() {
        let message = |result: Result<Tenants, ConfigError>| result.unwrap_err().to_string();
        let entitlement = |text: &str| message(with(text));
        for (error, expected) in [
            (entitlement(r#"{"name": "A"}"#), "entitlements[1].name: \"A\": must be 1 to 64"),
            (entitlement(OTHERS), "entitlements[1].name: \"others\": must differ"),
            (
                entitlement(r#"{"name": "a", "tokens_per_second": -1}"#),
                "must be an integer from 0 to 2147483648, or \"unlimited\"",
            ),
            (entitlement(r#"{"name": "a", "burst": 5}"#), "burst: 5: needs tokens_per_second"),
            (entitlement(r#"{"name": "a", "qoutas": {}}"#), "did you mean \"quotas\"?"),
            (entitlement(r#"{"name": "a", "count": {"input": -1}}"#), "from 0 to 100"),
            (
                message(parse(r#"{"default": "x", "entitlements": [{"name": "a"}]}"#)),
                "tenants.default: \"x\": must be the name of an entitlement",
            ),
            (
                message(parse(r#"{"default": "a", "entitlements": [{"name": "a"}]}"#)),
                "tenants.default: \"a\": must have tokens_per_second",
            ),
            (message(parse(r#"{"default": "a", "entitlements": []}"#)), "must have 1 to 1024"),
            (
                message(parse(&format!(
                    r#"{{"default": "others", "entitlements": [{OTHERS}], "from": [{{}}]}}"#
                ))),
                "tenants.from[0]: {}: must have one of property, header and api_key",
            ),
        ] {
            assert!(error.contains(expected), "{error}\n  lacks: {expected}");
        }
        for (text, expected) in [
            (r#"{"name": "a", "keys": ["sk-x"]}"#, "keys[0]: (not shown): must be \"sha256"),
            (r#"{"name": "a", "keys": "sk-x"}"#, "keys: (a string): must be a list"),
            (r#"["sk-x"]"#, "entitlements[1]: (a list): must be an object"),
            (r#"{"name": ["sk-x"]}"#, "name: (a list): must be a string"),
        ] {
            let message = entitlement(text);
            assert!(message.contains(expected) && !message.contains("sk-"), "{message}");
        }
        let nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let nothing = entitlement(&format!(r#"{{"name": "a", "keys": ["{nothing}"]}}"#));
        assert!(nothing.contains("must not be the hash of nothing"), "{nothing}");
        let sign = format!(r#"{{"name": "a", "keys": ["sha256:{}"]}}"#, "+1".repeat(32));
        assert!(entitlement(&sign).contains("64 hexadecimal digits"));
        assert!(entitlement(r#"{"name": "other"}"#).contains("must not be other"));
    }
}
