//! The configuration: one JSON document, validated into an immutable
//! [`Config`] that all drivers share.

mod estimator;
mod node;
mod pools;

use crate::estimate::Settings as EstimatorSettings;
use crate::request::{Api, Media};
use node::{Members, Node, Unknown};
use pools::{largest, models, pool_names};
use serde_json::Value;
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

/// What may differ from route to route.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// In the order of the document.
    pub models: Vec<Model>,
    /// Where requests go that are not estimated.
    pub default_pool: Arc<Pool>,
    /// Output tokens that an uncapped request is taken to need.
    pub output_reserve: OutputReserve,
    /// The class of the tenants on this route: output lengths are learned apart.
    pub tenant_class: TenantClass,
    /// Tokens that content which is no text is taken to need.
    pub media_tokens: MediaTokens,
    /// The wire format, if it is not to be told by the path.
    pub api: Option<Api>,
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
    /// What to do about streams that were not asked for their usage.
    pub stream_usage: StreamUsage,
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

/// What a tenant was promised, as far as its requests are told apart here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TenantClass {
    /// A rate of its own.
    Guaranteed,
    /// A fair share of what is left.
    #[default]
    Elastic,
    /// What nobody else wants.
    Spot,
}

/// Tokens that one piece of content is taken to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaTokens {
    /// An image.
    pub image: u64,
    /// A piece of audio.
    pub audio: u64,
    /// A video.
    pub video: u64,
    /// A file, or content of a kind that is not known.
    pub file: u64,
}

impl Default for MediaTokens {
    /// An image of 1,024 × 1,024 is 765 tokens to GPT-4o, about 1,400 to
    /// Claude, 1,280 to Qwen2.5-VL at its default limit of pixels.
    fn default() -> Self {
        Self { image: 1024, audio: 1024, video: 8192, file: 4096 }
    }
}

/// Output tokens that an uncapped request is taken to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputReserve {
    /// So many.
    Tokens(u64),
    /// The 95th percentile of what its model and class were seen to need.
    Learned,
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

const FIELDS: [&str; 18] = [
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
    "usage_sources",
    "accept_encoding",
    "tenant_class",
    "media_tokens",
    "api",
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
            usage_sources: read("usage_sources").map_or_else(
                || Ok(vec![UsageSource::Headers, UsageSource::Body]),
                |node| usage_sources(&node),
            )?,
            narrow_accept_encoding: read("accept_encoding")
                .map_or(Ok(false), |node| node.word(&[("keep", false), ("narrow", true)]))?,
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

impl MediaTokens {
    /// The tokens of so much content; saturates.
    pub fn of(&self, media: Media) -> u64 {
        [
            media.images.saturating_mul(self.image),
            media.audio.saturating_mul(self.audio),
            media.videos.saturating_mul(self.video),
            media.files.saturating_mul(self.file),
        ]
        .iter()
        .fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }
}

impl Settings {
    /// Whether a request's model matters: some pools are for some names only.
    pub fn names_models(&self) -> bool {
        self.models.iter().any(|model| model.matches != Match::Any)
    }

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
            Some(node) => match node.value.as_str() {
                Some("longest") => OutputReserve::Longest,
                Some("learned") => OutputReserve::Learned,
                _ => OutputReserve::Tokens(node.integer(
                    1,
                    u64::from(u32::MAX),
                    ", or \"longest\" or \"learned\"",
                )?),
            },
            None => base.map_or(OutputReserve::Tokens(1024), |base| base.output_reserve),
        },
        tenant_class: match or("tenant_class") {
            Some(node) => node.word(&[
                ("guaranteed", TenantClass::Guaranteed),
                ("elastic", TenantClass::Elastic),
                ("spot", TenantClass::Spot),
            ])?,
            None => base.map_or_else(TenantClass::default, |base| base.tenant_class),
        },
        media_tokens: match or("media_tokens") {
            Some(node) => media_tokens(&node)?,
            None => base.map_or_else(MediaTokens::default, |base| base.media_tokens),
        },
        api: match or("api") {
            Some(node) => Some(node.word(&Api::WORDS)?),
            None => base.and_then(|base| base.api),
        },
        inspect,
        inspect_bytes_max,
        buffer_bytes,
        estimator: match or("estimator") {
            Some(node) => estimator::estimator(&node)?,
            None => base.map_or_else(EstimatorSettings::default, |base| base.estimator),
        },
        dry_run: match or("dry_run") {
            Some(node) => node.flag()?,
            None => base.is_some_and(|base| base.dry_run),
        },
        models,
    })
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

fn media_tokens(node: &Node<'_>) -> Result<MediaTokens, ConfigError> {
    let members = node.object()?;
    members.only(&["image", "audio", "video", "file"])?;
    let default = MediaTokens::default();
    let tokens =
        |key, default| members.get(key).map_or(Ok(default), |node| node.integer(0, 1 << 24, ""));
    Ok(MediaTokens {
        image: tokens("image", default.image)?,
        audio: tokens("audio", default.audio)?,
        video: tokens("video", default.video)?,
        file: tokens("file", default.file)?,
    })
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
        "tenant_class",
        "media_tokens",
        "api",
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
