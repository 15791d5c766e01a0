//! What may differ from route to route.

use super::ConfigError;
use super::estimator::estimator;
use super::node::{Members, Node};
use super::pools::{Match, Model, Pool, largest, models};
use crate::estimate::Settings as EstimatorSettings;
use crate::request::{Api, Media};
use std::sync::Arc;

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
    /// The tenant of all requests of this route, if it is not to be found in
    /// the request.
    pub tenant: Option<String>,
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

impl TenantClass {
    /// Every class and its word in the configuration.
    pub const WORDS: [(&str, Self); 3] =
        [("guaranteed", Self::Guaranteed), ("elastic", Self::Elastic), ("spot", Self::Spot)];
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
    /// The largest window of all pools, in tokens.
    pub fn largest_window(&self) -> u64 {
        let pools = self.models.iter().flat_map(|model| &model.pools);
        pools.map(|pool| pool.max_model_len).max().unwrap_or(0)
    }

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

/// The members of the document that an override may set as well.
pub(super) const FIELDS: [&str; 12] = [
    "models",
    "default_pool",
    "output_reserve",
    "tenant",
    "tenant_class",
    "media_tokens",
    "api",
    "inspect",
    "inspect_bytes_max",
    "buffer_bytes",
    "estimator",
    "dry_run",
];

/// Reads settings; fields that are absent come from `base`.
pub(super) fn settings(
    members: &Members<'_>,
    base: Option<&Settings>,
) -> Result<Settings, ConfigError> {
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
            Some(node) => node.word(&TenantClass::WORDS)?,
            None => base.map_or_else(TenantClass::default, |base| base.tenant_class),
        },
        tenant: match or("tenant") {
            Some(node) => Some(node.name()?),
            None => base.and_then(|base| base.tenant.clone()),
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
            Some(node) => estimator(&node)?,
            None => base.map_or_else(EstimatorSettings::default, |base| base.estimator.clone()),
        },
        dry_run: match or("dry_run") {
            Some(node) => node.flag()?,
            None => base.is_some_and(|base| base.dry_run),
        },
        models,
    })
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
