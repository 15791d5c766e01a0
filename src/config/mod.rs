//! The configuration: one JSON document, validated into an immutable
//! [`Config`] that all drivers share.

mod node;

use crate::estimate::Settings as EstimatorSettings;
use node::{Members, Node, Unknown};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest `version` of the document that this build knows.
pub const VERSION: u64 = 1;
/// Models, pools of a model, and overrides: so many at the most.
const LIST_MAX: usize = 64;

/// Why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field, as a path such as `models[0].pools[1].threshold`.
    pub field: String,
    /// Its value as JSON, cut to 80 bytes.
    pub value: String,
    /// What would be allowed.
    pub allowed: String,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}: {}", self.field, self.value, self.allowed)
    }
}

impl core::error::Error for ConfigError {}

/// Something odd in a document that was taken all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(pub String);

impl core::fmt::Display for Warning {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A validated document.
#[derive(Clone, Debug)]
pub struct Config {
    /// The instance's name; state and metrics of instances with different
    /// names are kept apart.
    pub name: String,
    /// The request header that carries the chosen pool's cluster.
    pub pool_header: String,
    /// The response headers that carry usage, if any.
    pub usage_headers: UsageHeaders,
    /// Names of all pools, sorted, each once.
    pub pool_names: Vec<String>,
    /// What was odd.
    pub warnings: Vec<Warning>,
    base: Arc<Settings>,
    overrides: Vec<Override>,
}

/// Response headers that carry usage, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageHeaders {
    /// Prompt tokens.
    pub input: Option<String>,
    /// Output tokens.
    pub output: Option<String>,
}

/// What may differ from route to route.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// In the order of the document.
    pub models: Vec<Model>,
    /// Where requests go that are not estimated.
    pub default_pool: Arc<Pool>,
    /// Output tokens that an uncapped chat request is taken to need.
    pub output_reserve: OutputReserve,
    /// What of a request is looked at.
    pub inspect: Inspect,
    /// A body is decided at so many bytes, read to its end or not.
    pub inspect_bytes_max: u64,
    /// Envoy's limit on a body that a filter holds; more is answered with 413.
    pub buffer_bytes: u64,
    /// How bytes per token are learned.
    pub estimator: EstimatorSettings,
    /// Decide and count, but leave the request's route alone.
    pub dry_run: bool,
}

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
    /// Requests up to so many tokens are for this pool.
    pub threshold: u64,
}

/// Output tokens that an uncapped chat request is taken to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputReserve {
    /// So many.
    Tokens(u64),
    /// As many as the largest window leaves.
    Longest,
}

/// What of a request is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspect {
    /// The body.
    Body,
    /// Only the headers: the length decides.
    Headers,
}

#[derive(Clone, Debug)]
struct Override {
    path_prefix: Option<String>,
    host: Option<String>,
    route_name: Option<String>,
    settings: Arc<Settings>,
}

const FIELDS: [&str; 13] = [
    "version",
    "name",
    "models",
    "default_pool",
    "estimator",
    "output_reserve",
    "pool_header",
    "inspect",
    "inspect_bytes_max",
    "buffer_bytes",
    "usage_headers",
    "overrides",
    "dry_run",
];

impl Config {
    /// Reads a document. On `version`s newer than [`VERSION`] an unknown field
    /// is a warning, else an error.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| not_json(bytes, &error))?;
        let version = value.get("version").and_then(Value::as_f64);
        let allowed = version.is_some_and(|version| version > VERSION as f64);
        let unknown = Unknown { allowed, ..Unknown::default() };
        let root = Node::root(&value, &unknown).object()?;
        root.need("version", "the number 1")?.integer(1, u64::MAX, "")?;
        root.only(&FIELDS)?;
        let read = |key| root.get(key);
        let base = Arc::new(settings(&root, None)?);
        let mut overrides = Vec::new();
        for node in read("overrides").map_or(Ok(Vec::new()), |node| short_list(&node))? {
            overrides.push(override_of(&node, &base)?);
        }
        let every = || core::iter::once(&base).chain(overrides.iter().map(|one| &one.settings));
        let pools = every().flat_map(|settings| &settings.models).flat_map(|model| &model.pools);
        let pool_names = pool_names(pools)?;
        Ok(Self {
            name: read("name").map_or(Ok("tidegate".to_owned()), |node| node.name())?,
            pool_header: read("pool_header")
                .map_or(Ok("x-tidegate-pool".to_owned()), |node| node.header())?,
            usage_headers: read("usage_headers")
                .map_or(Ok(UsageHeaders::default()), |node| usage_headers(&node))?,
            pool_names,
            warnings: unknown.warnings.take(),
            base,
            overrides,
        })
    }

    /// Whether an override asks for the host.
    pub fn wants_host(&self) -> bool {
        self.overrides.iter().any(|one| one.host.is_some())
    }

    /// Whether an override asks for the route's name.
    pub fn wants_route_name(&self) -> bool {
        self.overrides.iter().any(|one| one.route_name.is_some())
    }

    /// The settings for a request: those of the first override whose every
    /// condition holds, else the document's own. `host` may carry a port.
    pub fn settings(&self, path: &[u8], host: &[u8], route_name: Option<&[u8]>) -> &Arc<Settings> {
        let host = host_without_port(host);
        let holds = |one: &&Override| {
            one.path_prefix.as_ref().is_none_or(|prefix| path.starts_with(prefix.as_bytes()))
                && one.host.as_ref().is_none_or(|name| name.as_bytes().eq_ignore_ascii_case(host))
                && one.route_name.as_ref().is_none_or(|name| route_name == Some(name.as_bytes()))
        };
        self.overrides.iter().find(holds).map_or(&self.base, |one| &one.settings)
    }

    /// The settings of the document itself.
    pub fn base(&self) -> &Arc<Settings> {
        &self.base
    }
}

impl Settings {
    /// The model that a name falls to: the exact one, else the longest prefix,
    /// else `*`.
    pub fn model(&self, name: Option<&[u8]>) -> Option<&Model> {
        let rank = |model: &&Model| match (&model.matches, name) {
            (Match::Exact(exact), Some(name)) if exact.as_bytes() == name => Some(usize::MAX),
            (Match::Prefix(prefix), Some(name)) if name.starts_with(prefix.as_bytes()) => {
                Some(prefix.len())
            }
            (Match::Any, _) => Some(0),
            _ => None,
        };
        let ranked = self.models.iter().filter_map(|model| Some((rank(&model)?, model)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, model)| model)
    }
}

fn not_json(bytes: &[u8], error: &serde_json::Error) -> ConfigError {
    // In a Struct each key stands behind its tag (field 1, length-delimited: a
    // line feed, to a text reader) and its length.
    let key = |name: &str| {
        let tagged = [&[0x0A, name.len() as u8], name.as_bytes()].concat();
        memchr::memmem::find(bytes, &tagged).is_some()
    };
    let struct_like = bytes.first() == Some(&0x0A) && FIELDS.iter().any(|name| key(name));
    let field = "configuration".to_owned();
    if struct_like {
        return ConfigError {
            field,
            value: "protobuf bytes".to_owned(),
            allowed: "must be JSON text: set the plugin's configuration as a \
                      google.protobuf.StringValue, not as a google.protobuf.Struct"
                .to_owned(),
        };
    }
    let value = if bytes.is_empty() { "(empty)".to_owned() } else { error.to_string() };
    ConfigError { field, value, allowed: "must be a JSON document, see README".to_owned() }
}

fn short_list<'a>(node: &Node<'a>) -> Result<Vec<Node<'a>>, ConfigError> {
    let list = node.list()?;
    if list.len() > LIST_MAX {
        return Err(node.refuse(format!("must have at most {LIST_MAX} entries")));
    }
    Ok(list)
}

/// Reads settings; fields that are absent come from `base`.
fn settings(members: &Members<'_>, base: Option<&Settings>) -> Result<Settings, ConfigError> {
    let models = match (members.get("models"), base) {
        (None, Some(base)) => base.models.clone(),
        _ => models(&members.need("models", "a list of models and their pools")?)?,
    };
    let default_pool = match (members.get("default_pool"), base) {
        (Some(node), _) => {
            let name = node.text()?;
            let found = models.iter().flat_map(|model| &model.pools).find(|pool| pool.name == name);
            found.cloned().ok_or_else(|| {
                let mut names: Vec<&str> =
                    models.iter().flat_map(|m| &m.pools).map(|pool| pool.name.as_str()).collect();
                names.dedup();
                node.refuse(format!("must be one of the pools: {}", names.join(", ")))
            })?
        }
        (None, Some(base)) if members.get("models").is_none() => base.default_pool.clone(),
        _ => largest(&models).ok_or_else(|| {
            let node = members.need("models", "a list");
            node.map_or_else(|error| error, |node| node.refuse("must have at least one model"))
        })?,
    };
    let or = |key| members.get(key);
    let inspect = match or("inspect") {
        Some(node) => node.word(&[("body", Inspect::Body), ("headers", Inspect::Headers)])?,
        None => base.map_or(Inspect::Body, |base| base.inspect),
    };
    if inspect == Inspect::Headers && !models.iter().any(|model| model.matches == Match::Any) {
        return Err(ConfigError {
            field: members.path_of("inspect"),
            value: "\"headers\"".to_owned(),
            allowed: "needs a model that matches \"*\": the headers do not name one".to_owned(),
        });
    }
    let bytes = |key, default, base: Option<u64>| match or(key) {
        Some(node) => node.integer(1024, 1 << 30, ""),
        None => Ok(base.unwrap_or(default)),
    };
    let buffer_bytes = bytes("buffer_bytes", 1 << 20, base.map(|base| base.buffer_bytes))?;
    let inspect_bytes_max =
        bytes("inspect_bytes_max", 512 << 10, base.map(|base| base.inspect_bytes_max))?;
    if inspect_bytes_max > buffer_bytes {
        let note = format!("must be at most buffer_bytes ({buffer_bytes})");
        let field = members.path_of("inspect_bytes_max");
        return Err(ConfigError { field, value: inspect_bytes_max.to_string(), allowed: note });
    }
    Ok(Settings {
        default_pool,
        output_reserve: match or("output_reserve") {
            Some(node) if node.value.as_str() == Some("longest") => OutputReserve::Longest,
            Some(node) => {
                OutputReserve::Tokens(node.integer(1, u64::from(u32::MAX), ", or \"longest\"")?)
            }
            None => base.map_or(OutputReserve::Tokens(1024), |base| base.output_reserve),
        },
        inspect,
        inspect_bytes_max,
        buffer_bytes,
        estimator: match or("estimator") {
            Some(node) => estimator(&node)?,
            None => base.map_or_else(EstimatorSettings::default, |base| base.estimator),
        },
        dry_run: match or("dry_run") {
            Some(node) => node.flag()?,
            None => base.is_some_and(|base| base.dry_run),
        },
        models,
    })
}

/// The pool with the largest window of the model for every name, else of all.
fn largest(models: &[Model]) -> Option<Arc<Pool>> {
    let any = models.iter().find(|model| model.matches == Match::Any);
    let pools = any.map_or(models, core::slice::from_ref).iter().flat_map(|model| &model.pools);
    pools.max_by_key(|pool| pool.max_model_len).cloned()
}

fn models(node: &Node<'_>) -> Result<Vec<Model>, ConfigError> {
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

/// The names of all pools, sorted. Metrics are counted by name, so a name must
/// stand for one cluster everywhere.
fn pool_names<'a>(pools: impl Iterator<Item = &'a Arc<Pool>>) -> Result<Vec<String>, ConfigError> {
    let mut clusters: BTreeMap<&str, &str> = BTreeMap::new();
    for pool in pools {
        let cluster = clusters.entry(&pool.name).or_insert(&pool.cluster);
        if *cluster != pool.cluster {
            return Err(ConfigError {
                field: format!("pool \"{}\"", pool.name),
                value: format!("\"{}\"", pool.cluster),
                allowed: format!("already stands for the cluster \"{cluster}\" elsewhere"),
            });
        }
    }
    Ok(clusters.into_keys().map(str::to_owned).collect())
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

fn pools(node: &Node<'_>) -> Result<Vec<Arc<Pool>>, ConfigError> {
    let list = short_list(node)?;
    if list.is_empty() {
        return Err(node.refuse("must have at least one pool"));
    }
    let mut pools: Vec<(Pool, Node<'_>)> = Vec::new();
    for node in list {
        let members = node.object()?;
        members.only(&["name", "cluster", "max_model_len", "threshold"])?;
        let name_node = members.need("name", "a name for metrics and logs")?;
        let name = name_node.name()?;
        let cluster_node = members.need("cluster", "the name of an Envoy cluster")?;
        let cluster = cluster_node.text()?.to_owned();
        if cluster.is_empty() || !cluster.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(cluster_node.refuse("must be visible ASCII characters"));
        }
        if pools.iter().any(|(pool, _)| pool.name == name) {
            return Err(name_node.refuse("must differ from the model's other pools"));
        }
        let max_model_len = members
            .need("max_model_len", "the window of the pool's replicas in tokens")?
            .integer(1, u64::from(u32::MAX), "")?;
        let threshold = members.get("threshold").map_or(Ok(max_model_len), |node| {
            node.integer(1, max_model_len, " (the pool's max_model_len)")
        })?;
        pools.push((Pool { name, cluster, max_model_len, threshold }, node));
    }
    pools.sort_by_key(|(pool, _)| pool.max_model_len);
    if let Some((pool, node)) = pools.last()
        && pool.threshold != pool.max_model_len
    {
        return Err(node.refuse("must not have a threshold: the largest pool takes all the rest"));
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

fn estimator(node: &Node<'_>) -> Result<EstimatorSettings, ConfigError> {
    let members = node.object()?;
    members.only(&[
        "start_ratio",
        "decay",
        "margin",
        "min_samples",
        "ratio_min",
        "ratio_max",
        "message_tokens",
    ])?;
    let default = EstimatorSettings::default();
    let number =
        |key, min, max, default| members.get(key).map_or(Ok(default), |node| node.number(min, max));
    let ratio_min = number("ratio_min", 0.1, 100.0, default.ratio_min)?;
    let ratio_max = number("ratio_max", ratio_min, 100.0, default.ratio_max)?;
    Ok(EstimatorSettings {
        start_ratio: number("start_ratio", ratio_min, ratio_max, default.start_ratio)?,
        decay: number("decay", 0.0, 0.9999, default.decay)?,
        margin: number("margin", 0.0, 10.0, default.margin)?,
        min_samples: number("min_samples", 0.0, 1e6, default.min_samples)?,
        ratio_min,
        ratio_max,
        message_tokens: members
            .get("message_tokens")
            .map_or(Ok(default.message_tokens), |node| node.integer(0, 1000, ""))?,
    })
}

fn usage_headers(node: &Node<'_>) -> Result<UsageHeaders, ConfigError> {
    let members = node.object()?;
    members.only(&["input", "output"])?;
    let header = |key| members.get(key).map(|node| node.header()).transpose();
    Ok(UsageHeaders { input: header("input")?, output: header("output")? })
}

fn override_of(node: &Node<'_>, base: &Settings) -> Result<Override, ConfigError> {
    let members = node.object()?;
    members.only(&["path_prefix", "host", "route_name", "set"])?;
    let text = |key| members.get(key).map(|node| node.text().map(str::to_owned)).transpose();
    let (path_prefix, host, route_name) =
        (text("path_prefix")?, text("host")?, text("route_name")?);
    if let Some(node) = members.get("host").filter(|_| {
        host.as_ref().is_some_and(|host| host_without_port(host.as_bytes()).len() < host.len())
    }) {
        return Err(node.refuse("must be a host without a port"));
    }
    if path_prefix.is_none() && host.is_none() && route_name.is_none() {
        return Err(node.refuse("must name a path_prefix, a host or a route_name"));
    }
    let set = members.need("set", "the settings that differ")?.object()?;
    set.only(&[
        "models",
        "default_pool",
        "output_reserve",
        "inspect",
        "inspect_bytes_max",
        "buffer_bytes",
        "dry_run",
    ])?;
    let settings = Arc::new(settings(&set, Some(base))?);
    Ok(Override { path_prefix, host, route_name, settings })
}

fn host_without_port(host: &[u8]) -> &[u8] {
    // An IPv6 literal stands in brackets, so the last colon is the port's.
    let port = memchr::memrchr(b':', host)
        .filter(|at| host.get(at + 1..).is_some_and(|port| port.iter().all(u8::is_ascii_digit)));
    port.and_then(|at| host.get(..at)).unwrap_or(host)
}

#[cfg(test)]
mod tests;
