//! The models and their pools, from the document.

use super::node::Node;
use super::{ConfigError, short_list};
use crate::pool::{LoadSources, Scrape, SpillLaw, ThresholdRange};
use crate::tenant::{Law, TOKENS_MAX};
use crate::time::Span;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model, or a family of them, and the pools that serve it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Which names it stands for.
    pub matches: Match,
    /// Smallest window first.
    pub pools: Vec<Arc<Pool>>,
}

/// A pattern for model names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// This name.
    Exact(String),
    /// Names that start so.
    Prefix(String),
    /// Every name, and requests without one.
    Any,
}

/// A pool of like replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name in metrics and logs.
    pub name: String,
    /// Its Envoy cluster, the value of the pool header.
    pub cluster: String,
    /// The window of its replicas, in tokens (vLLM's `max_model_len`).
    pub max_model_len: u64,
    /// Requests that are expected to take up to so many tokens are for this pool,
    /// if its window holds what they may take.
    pub threshold: u64,
    /// What to do about streams that were not asked for their usage.
    pub stream_usage: StreamUsage,
    /// What it can do, if that is known.
    pub capacity: Option<PoolCapacity>,
    /// When it sends elsewhere what another pool can take, if ever.
    pub spill: Option<SpillLaw>,
    /// Between what its threshold follows the load, if it does.
    pub threshold_range: Option<ThresholdRange>,
    /// Where its engines say how busy they are, if they are asked.
    pub load: Option<LoadSources>,
}

/// What all replicas of a pool can do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolCapacity {
    /// Like replicas.
    pub replicas: u64,
    /// Prompt and output tokens in a second, and how many may come at once.
    pub law: Option<Law>,
    /// Tokens of open requests: what fits the KV cache.
    pub tokens_in_flight: Option<u64>,
    /// Open requests.
    pub requests: Option<u64>,
    /// Tokens that a tenant which was short comes first with, at the most.
    pub credit: u64,
}

/// What to do about streams that were not asked for their usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamUsage {
    /// Nothing: they teach nothing.
    #[default]
    Off,
    /// Ask, unless the client says no; the client sees the usage.
    Add,
    /// Ask, and take the extra event out of the client's view.
    AddAndHide,
}

/// The pool with the largest window of the model for every name, else of all.
pub(super) fn largest(models: &[Model]) -> Option<Arc<Pool>> {
    let any = models.iter().find(|model| model.matches == Match::Any);
    let pools = any.map_or(models, core::slice::from_ref).iter().flat_map(|model| &model.pools);
    pools.max_by_key(|pool| pool.max_model_len).cloned()
}

pub(super) fn models(node: &Node<'_>) -> Result<Vec<Model>, ConfigError> {
    let list = short_list(node)?;
    if list.is_empty() {
        return Err(node.refuse("must have at least one model"));
    }
    let mut models: Vec<Model> = Vec::new();
    for node in list {
        let members = node.object()?;
        members.only(&["match", "pools"])?;
        let pattern = members.need("match", "a model's name, a prefix that ends in *, or *")?;
        let matches = match_of(&pattern)?;
        if models.iter().any(|model| model.matches == matches) {
            return Err(pattern.refuse("must differ from the other models' match"));
        }
        let pools = pools(&members.need("pools", "a list of pools")?)?;
        models.push(Model { matches, pools });
    }
    Ok(models)
}

/// All pools, sorted by name, each once. Metrics and capacities are counted by
/// name, so a name must stand for the same everywhere.
pub(super) fn each_once<'a>(
    pools: impl Iterator<Item = &'a Arc<Pool>>,
) -> Result<Vec<Arc<Pool>>, ConfigError> {
    let mut known: BTreeMap<&str, &Arc<Pool>> = BTreeMap::new();
    for pool in pools {
        let first = known.entry(&pool.name).or_insert(pool);
        let field = format!("pool \"{}\"", pool.name);
        if first.cluster != pool.cluster {
            return Err(ConfigError {
                field,
                value: format!("\"{}\"", pool.cluster),
                allowed: format!("already stands for the cluster \"{}\" elsewhere", first.cluster),
            });
        }
        if (first.capacity, first.spill, &first.load) != (pool.capacity, pool.spill, &pool.load) {
            return Err(ConfigError {
                field: field + ".capacity, spill and load",
                value: "(differs)".to_owned(),
                allowed: "must be the same wherever the pool is named".to_owned(),
            });
        }
    }
    Ok(known.into_values().cloned().collect())
}

fn match_of(node: &Node<'_>) -> Result<Match, ConfigError> {
    let text = node.text()?;
    match text.strip_suffix('*') {
        _ if text.is_empty() || text.len() > crate::request::MODEL_MAX => {
            let max = crate::request::MODEL_MAX;
            Err(node.refuse(format!("must be 1 to {max} bytes")))
        }
        Some("") => Ok(Match::Any),
        Some(prefix) => Ok(Match::Prefix(prefix.to_owned())),
        None => Ok(Match::Exact(text.to_owned())),
    }
}

const POOL: [&str; 9] = [
    "name",
    "cluster",
    "max_model_len",
    "threshold",
    "stream_usage",
    "capacity",
    "spill",
    "threshold_range",
    "load",
];

/// Reads when a pool spills. Its load must be known.
fn spill(node: &Node<'_>, capacity: Option<&PoolCapacity>) -> Result<SpillLaw, ConfigError> {
    needs_load(node, capacity)?;
    let members = node.object()?;
    members.only(&["enter", "leave", "dwell_ms"])?;
    let mark = |key, default: u64| {
        members.get(key).map_or(Ok(default), |node| {
            node.number(0.0, 10.0).map(|mark| (mark * 1000.0 + 0.5) as u64)
        })
    };
    let (enter, leave) = (mark("enter", 900)?, mark("leave", 700)?);
    if leave >= enter {
        let what =
            format!("leave ({}) must be below enter ({})", leave as f64 / 1e3, enter as f64 / 1e3);
        return Err(node.refuse(what));
    }
    let dwell = members.get("dwell_ms").map_or(Ok(5000), |node| node.integer(0, 600_000, ""))?;
    Ok(SpillLaw { enter, leave, dwell: Span::from_millis(dwell) })
}

/// Reads between what a threshold may move.
fn threshold_range(
    node: &Node<'_>,
    capacity: Option<&PoolCapacity>,
    max_model_len: u64,
) -> Result<ThresholdRange, ConfigError> {
    needs_load(node, capacity)?;
    match &*node.list()? {
        [min, max] => {
            let min = min.integer(1, max_model_len, " (the pool's max_model_len)")?;
            let max = max.integer(min, max_model_len, " (the pool's max_model_len)")?;
            Ok(ThresholdRange { min, max })
        }
        _ => Err(node.refuse("must be the lowest and the highest threshold")),
    }
}

/// Reads where a pool's engines say how busy they are. A report may be missing:
/// then what is in flight decides, so that must be known.
fn load_sources(
    node: &Node<'_>,
    capacity: Option<&PoolCapacity>,
) -> Result<LoadSources, ConfigError> {
    needs_load(node, capacity)?;
    let members = node.object()?;
    members.only(&["metrics", "orca"])?;
    let scrape = members.get("metrics").map(|node| scrape(&node)).transpose()?;
    let orca = members.get("orca").map_or(Ok(false), |node| node.flag())?;
    if scrape.is_none() && !orca {
        return Err(node.refuse("must have metrics, or orca that is true"));
    }
    Ok(LoadSources { replicas: capacity.map_or(1, |one| one.replicas), scrape, orca })
}

fn scrape(node: &Node<'_>) -> Result<Scrape, ConfigError> {
    let members = node.object()?;
    members.only(&["cluster", "path", "interval_ms", "covers"])?;
    let cluster = visible(&members.need("cluster", "an Envoy cluster of the pool's replicas")?)?;
    let path = match members.get("path") {
        Some(node) => {
            let path = visible(&node)?;
            if !path.starts_with('/') {
                return Err(node.refuse("must begin with /"));
            }
            path
        }
        None => "/metrics".to_owned(),
    };
    let interval =
        members.get("interval_ms").map_or(Ok(1000), |node| node.integer(100, 60_000, ""))?;
    let whole_pool = members
        .get("covers")
        .map_or(Ok(false), |node| node.word(&[("replica", false), ("pool", true)]))?;
    Ok(Scrape { cluster, path, interval: Span::from_millis(interval), whole_pool })
}

/// A text that may stand in a header.
fn visible(node: &Node<'_>) -> Result<String, ConfigError> {
    let text = node.text()?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(node.refuse("must be visible ASCII characters"));
    }
    Ok(text.to_owned())
}

fn needs_load(node: &Node<'_>, capacity: Option<&PoolCapacity>) -> Result<(), ConfigError> {
    let known = capacity.is_some_and(|one| one.tokens_in_flight.or(one.requests).is_some());
    let what =
        "needs capacity.tokens_in_flight or capacity.requests: what is in flight must be known";
    if known { Ok(()) } else { Err(node.refuse(what)) }
}

/// Reads what one replica can do and how many there are.
fn capacity(node: &Node<'_>, max_model_len: u64) -> Result<PoolCapacity, ConfigError> {
    let members = node.object()?;
    let of_each = ["tokens_per_second", "tokens_in_flight", "requests"];
    members.only(&["replicas", of_each[0], of_each[1], of_each[2], "burst", "credit"])?;
    if of_each.iter().all(|key| members.get(key).is_none()) {
        let what = "must have tokens_per_second, tokens_in_flight or requests";
        return Err(node.refuse(what));
    }
    let replicas =
        members.need("replicas", "how many replicas the pool has")?.integer(1, 1 << 16, "")?;
    let all = |key: &str, min: u64| {
        let each = members.get(key).map(|node| node.integer(min, TOKENS_MAX, "")).transpose()?;
        Ok(each.map(|each| each.saturating_mul(replicas)))
    };
    let tokens = |key: &str, min: u64, default: u64| {
        members.get(key).map_or(Ok(default), |node| node.integer(min, TOKENS_MAX, ""))
    };
    // An engine that cannot hold one whole window does not start.
    let tokens_in_flight = all("tokens_in_flight", max_model_len)?;
    let rate = all("tokens_per_second", 1)?.map(|rate| rate.min(TOKENS_MAX));
    let two_seconds = rate.unwrap_or(0).saturating_mul(2);
    let law = match (rate, members.get("burst")) {
        (Some(rate), _) => {
            let default = two_seconds.max(max_model_len).min(TOKENS_MAX);
            let burst = tokens("burst", max_model_len, default)?;
            Some(Law::per_second(rate, burst, burst))
        }
        (None, Some(node)) => return Err(node.refuse("needs tokens_per_second")),
        (None, None) => None,
    };
    Ok(PoolCapacity {
        replicas,
        law,
        tokens_in_flight,
        requests: all("requests", 1)?,
        credit: tokens("credit", 0, two_seconds.max(max_model_len))?,
    })
}

fn pools(node: &Node<'_>) -> Result<Vec<Arc<Pool>>, ConfigError> {
    let list = short_list(node)?;
    if list.is_empty() {
        return Err(node.refuse("must have at least one pool"));
    }
    let mut pools: Vec<(Pool, Node<'_>)> = Vec::new();
    for node in list {
        let members = node.object()?;
        members.only(&POOL)?;
        let name_node = members.need("name", "a name for metrics and logs")?;
        let name = name_node.name()?;
        let cluster = visible(&members.need("cluster", "the name of an Envoy cluster")?)?;
        if pools.iter().any(|(pool, _)| pool.name == name) {
            return Err(name_node.refuse("must differ from the model's other pools"));
        }
        let max_model_len = members
            .need("max_model_len", "the window of the pool's replicas in tokens")?
            .integer(1, u64::from(u32::MAX), "")?;
        let threshold = members.get("threshold").map_or(Ok(max_model_len), |node| {
            node.integer(1, max_model_len, " (the pool's max_model_len)")
        })?;
        let stream_usage = members.get("stream_usage").map_or(Ok(StreamUsage::Off), |node| {
            node.word(&[
                ("off", StreamUsage::Off),
                ("add", StreamUsage::Add),
                ("add_and_hide", StreamUsage::AddAndHide),
            ])
        })?;
        let capacity =
            members.get("capacity").map(|node| capacity(&node, max_model_len)).transpose()?;
        let spill = members.get("spill").map(|node| spill(&node, capacity.as_ref())).transpose()?;
        let threshold_range = members
            .get("threshold_range")
            .map(|node| threshold_range(&node, capacity.as_ref(), max_model_len))
            .transpose()?;
        let load =
            members.get("load").map(|node| load_sources(&node, capacity.as_ref())).transpose()?;
        let pool = Pool {
            name,
            cluster,
            max_model_len,
            threshold,
            stream_usage,
            capacity,
            spill,
            threshold_range,
            load,
        };
        pools.push((pool, node));
    }
    pools.sort_by_key(|(pool, _)| pool.max_model_len);
    if let Some((pool, node)) = pools.last()
        && pool.threshold != pool.max_model_len
    {
        return Err(node.refuse("must not have a threshold: the largest pool takes all the rest"));
    }
    if let Some((pool, node)) = pools.last()
        && pool.threshold_range.is_some()
    {
        return Err(node.refuse("must not have a threshold_range: it is the largest pool"));
    }
    for pair in pools.windows(2) {
        if let [(small, _), (large, node)] = pair
            && (small.max_model_len == large.max_model_len || small.threshold >= large.threshold)
        {
            return Err(node.refuse(format!(
                "must have a larger max_model_len and a larger threshold than pool \"{}\" \
                 (max_model_len {}, threshold {}), else it is never chosen",
                small.name, small.max_model_len, small.threshold
            )));
        }
    }
    Ok(pools.into_iter().map(|(pool, _)| Arc::new(pool)).collect())
}
