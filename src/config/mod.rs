//! The configuration: one JSON document, validated into an immutable
//! [`Config`] that all drivers share.

mod capacity;
mod estimator;
mod node;
mod pools;
mod settings;
mod tenants;

pub use pools::{Match, Model, Pool, PoolCapacity, StreamUsage};
pub use settings::{Inspect, MediaTokens, OutputReserve, Settings, TenantClass};
pub use tenants::{TenantSource, Tenants};

use crate::tenant::Capacity;
use crate::time::Span;
use capacity::{Reserve, capacities};
use node::{Node, Unknown};
use pools::each_once;
use serde_json::Value;
use settings::settings;
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
    /// Where usage is looked for; the first that states a number wins.
    pub usage_sources: Vec<UsageSource>,
    /// Encodings that the filter cannot read are taken out of `accept-encoding`.
    pub narrow_accept_encoding: bool,
    /// The tenants, if their use is limited.
    pub tenants: Option<Tenants>,
    /// Names of all pools, sorted, each once.
    pub pool_names: Vec<String>,
    /// What pools can do, of those that say so, sorted by name.
    pub capacities: Vec<Arc<Capacity>>,
    /// Which pool a request goes to depends on their loads, too.
    pub uses_load: bool,
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

/// A place where an answer's usage may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageSource {
    /// The response headers of [`UsageHeaders`].
    Headers,
    /// What Envoy's AI Protocol Manager found (`envoy.ai.token_usage`).
    Metadata,
    /// The answer itself.
    Body,
}

#[derive(Clone, Debug)]
struct Override {
    path_prefix: Option<String>,
    host: Option<String>,
    route_name: Option<String>,
    settings: Arc<Settings>,
}

/// Members of the document beside those of [`settings::FIELDS`].
const FIELDS: [&str; 8] = [
    "version",
    "name",
    "pool_header",
    "usage_headers",
    "usage_sources",
    "accept_encoding",
    "tenants",
    "overrides",
];

/// Every member that a document may have.
fn fields() -> impl Iterator<Item = &'static str> {
    FIELDS.into_iter().chain(settings::FIELDS)
}

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
        root.only(&fields().collect::<Vec<_>>())?;
        let read = |key| root.get(key);
        let base = Arc::new(settings(&root, None)?);
        let mut overrides = Vec::new();
        for node in read("overrides").map_or(Ok(Vec::new()), |node| short_list(&node))? {
            overrides.push(override_of(&node, &base)?);
        }
        let every = || core::iter::once(&base).chain(overrides.iter().map(|one| &one.settings));
        let pools = every().flat_map(|settings| &settings.models).flat_map(|model| &model.pools);
        let pools = each_once(pools)?;
        let tenants = read("tenants").map(|node| tenants::tenants(&node, &pools)).transpose()?;
        let entitlements = tenants.as_ref().map_or(&[][..], Tenants::all);
        let reserve = tenants.as_ref().map_or_else(Reserve::default, |one| one.reserve);
        for name in every().filter_map(|settings| settings.tenant.as_ref()) {
            if tenants.as_ref().is_none_or(|tenants| tenants.named(name.as_bytes()).is_none()) {
                return Err(ConfigError {
                    field: "tenant".to_owned(),
                    value: format!("\"{name}\""),
                    allowed: "must be the name of an entitlement in tenants".to_owned(),
                });
            }
        }
        Ok(Self {
            name: read("name").map_or(Ok("tidegate".to_owned()), |node| node.name())?,
            pool_header: read("pool_header")
                .map_or(Ok("x-tidegate-pool".to_owned()), |node| node.header())?,
            usage_headers: read("usage_headers")
                .map_or(Ok(UsageHeaders::default()), |node| usage_headers(&node))?,
            usage_sources: read("usage_sources").map_or_else(
                || Ok(vec![UsageSource::Headers, UsageSource::Body]),
                |node| usage_sources(&node),
            )?,
            narrow_accept_encoding: read("accept_encoding")
                .map_or(Ok(false), |node| node.word(&[("keep", false), ("narrow", true)]))?,
            capacities: capacities("tenants", reserve, &pools, entitlements)?,
            uses_load: every()
                .flat_map(|settings| &settings.models)
                .flat_map(|model| &model.pools)
                .any(|pool| pool.spill.is_some() || pool.threshold_range.is_some()),
            tenants,
            pool_names: pools.iter().map(|pool| pool.name.clone()).collect(),
            warnings: unknown.warnings.take(),
            base,
            overrides,
        })
    }

    /// What the pool of this name can do, if it says so.
    pub fn capacity(&self, pool: &str) -> Option<&Arc<Capacity>> {
        let at = self.capacities.binary_search_by(|one| one.name.as_str().cmp(pool));
        at.ok().and_then(|at| self.capacities.get(at))
    }

    /// The shortest time between two rounds of questions to engines; `None` if none
    /// is asked.
    pub fn scrape_interval(&self) -> Option<Span> {
        let loads = self.capacities.iter().filter_map(|capacity| capacity.load.as_ref());
        loads.filter_map(|load| Some(load.scrape.as_ref()?.interval)).min()
    }

    /// Each pool and the next larger one of its model, in the document and its
    /// overrides.
    pub fn neighbours(&self) -> impl Iterator<Item = (&Pool, &Pool)> {
        let settings =
            core::iter::once(&self.base).chain(self.overrides.iter().map(|o| &o.settings));
        let pools = settings.flat_map(|settings| &settings.models).map(|model| &*model.pools);
        pools.flat_map(|pools| pools.windows(2)).filter_map(|pair| match pair {
            [own, larger] => Some((&**own, &**larger)),
            _ => None,
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

fn not_json(bytes: &[u8], error: &serde_json::Error) -> ConfigError {
    // In a Struct each key stands behind its tag (field 1, length-delimited: a
    // line feed, to a text reader) and its length.
    let key = |name: &str| {
        let tagged = [&[0x0A, name.len() as u8], name.as_bytes()].concat();
        memchr::memmem::find(bytes, &tagged).is_some()
    };
    let struct_like = bytes.first() == Some(&0x0A) && fields().any(key);
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

fn usage_headers(node: &Node<'_>) -> Result<UsageHeaders, ConfigError> {
    let members = node.object()?;
    members.only(&["input", "output"])?;
    let header = |key| members.get(key).map(|node| node.header()).transpose();
    Ok(UsageHeaders { input: header("input")?, output: header("output")? })
}

fn usage_sources(node: &Node<'_>) -> Result<Vec<UsageSource>, ConfigError> {
    let mut sources = Vec::new();
    for node in node.list()? {
        let source = node.word(&[
            ("headers", UsageSource::Headers),
            ("metadata", UsageSource::Metadata),
            ("body", UsageSource::Body),
        ])?;
        if sources.contains(&source) {
            return Err(node.refuse("must be named once"));
        }
        sources.push(source);
    }
    if sources.is_empty() {
        return Err(node.refuse("must name at least one source"));
    }
    Ok(sources)
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
    set.only(&settings::FIELDS)?;
    if let Some(estimator) = set.get("estimator") {
        // What is known of models is one thing for the whole instance.
        let members = estimator.object()?;
        for key in ["learned", "export_seconds"] {
            if members.get(key).is_some() {
                return Err(ConfigError {
                    field: members.path_of(key),
                    value: "(not shown)".to_owned(),
                    allowed: "must stand in the estimator of the document itself".to_owned(),
                });
            }
        }
    }
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
