//! Scenario files: TOML that says what to simulate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate::config::{Config, ConfigError};
use tidegate_sim::SECOND;
use tidegate_sim::fleet::{Arrivals, Dispatch, Gateways, LengthSource, Pool, Scenario, Source};
use tidegate_sim::texts::Kind;
use tidegate_sim::workload::{CapPolicy, Lengths, Trace, TraceError, parse_trace};

use crate::fields::{FieldError, Fields};
use crate::files::{self, FileError};
use crate::hardware::Timing;
use crate::replay::Synthetic;
use crate::serve::{parse_engine, parse_timing};

/// A scenario as it is read from a file.
pub struct Loaded {
    /// What to simulate.
    pub scenario: Scenario,
    /// The file's own seed; 1 if it has none.
    pub seed: u64,
}

/// Why a scenario cannot be run.
#[derive(Debug)]
pub enum ScenarioError {
    /// A file that cannot be read.
    File(FileError),
    /// Not TOML; carries the parser's words.
    NotToml(String),
    /// A field.
    Field(FieldError),
    /// The gateways' document.
    Config(ConfigError),
    /// A trace; carries its path.
    Trace(PathBuf, TraceError),
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::NotToml(why) => write!(f, "the scenario is not TOML: {why}"),
            Self::Field(error) => error.fmt(f),
            Self::Config(error) => write!(f, "config: {error}"),
            Self::Trace(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl From<FieldError> for ScenarioError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

impl From<FileError> for ScenarioError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

/// Reads a scenario. Paths in it start at its own folder.
pub fn load(path: &Path) -> Result<Loaded, ScenarioError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(&files::read_text(path)?, folder)
}

const FIELDS: [&str; 8] = [
    "seed",
    "seconds",
    "warm_up_seconds",
    "drain_seconds",
    "config",
    "gateways",
    "pools",
    "sources",
];

fn parse(text: &str, folder: &Path) -> Result<Loaded, ScenarioError> {
    let document: Value =
        toml::from_str(text).map_err(|error| ScenarioError::NotToml(error.to_string()))?;
    let fields = Fields::new("", &document, &FIELDS)?;
    let config = config(&fields, folder)?;
    let seconds = time(&fields, "seconds", None)?.unwrap_or(0);
    let mut pools = Vec::new();
    let named = fields.get("pools").and_then(Value::as_object);
    for (name, value) in named.ok_or_else(|| fields.wrong("pools", "a table for each pool"))? {
        pools.push(pool(name, value, &config)?);
    }
    let sources = fields.list("sources")?.iter().enumerate();
    let sources = sources.map(|(nth, value)| source(nth, value, folder));
    let scenario = Scenario {
        gateways: gateways(&fields)?,
        config: Arc::new(config),
        pools,
        sources: sources.collect::<Result<_, _>>()?,
        end: seconds,
        drain: time(&fields, "drain_seconds", Some(600.0))?.unwrap_or(0),
        warm_up: time(&fields, "warm_up_seconds", Some(0.0))?.unwrap_or(0),
    };
    Ok(Loaded { scenario, seed: fields.whole("seed", 0..=u64::MAX, Some(1))? })
}

/// The document itself, or the path of its file.
fn config(fields: &Fields, folder: &Path) -> Result<Config, ScenarioError> {
    let text = fields.text("config").map_err(|_| {
        fields.wrong("config", "the filter's JSON document, or the path of a file with it")
    })?;
    let bytes = if text.trim_start().starts_with('{') {
        text.as_bytes().to_vec()
    } else {
        files::read(&folder.join(text))?
    };
    Config::parse(&bytes).map_err(ScenarioError::Config)
}

/// A field with seconds, in nanoseconds; nothing only where it has no default
/// and is absent.
fn time(fields: &Fields, field: &str, default: Option<f64>) -> Result<Option<u64>, FieldError> {
    if fields.get(field).is_none() && default.is_none() {
        return Ok(None);
    }
    let seconds = fields.number(field, 0.0..=1e8, default.unwrap_or(0.0))?;
    Ok(Some((seconds * SECOND as f64) as u64))
}

fn gateways(fields: &Fields) -> Result<Gateways, FieldError> {
    let empty = Value::Object(Map::new());
    let value = fields.get("gateways").unwrap_or(&empty);
    let fields = Fields::new("gateways", value, &["count", "workers", "retry_too_long"])?;
    Ok(Gateways {
        count: fields.whole("count", 1..=1_000, Some(1))? as u32,
        workers: fields.whole("workers", 1..=256, Some(2))? as u32,
        retry_too_long: fields.switch("retry_too_long", true)?,
    })
}

const POOL_FIELDS: [&str; 5] = ["replicas", "dispatch", "timing", "hardware", "engine"];

fn pool(name: &str, value: &Value, config: &Config) -> Result<Pool, FieldError> {
    let fields = Fields::new(&format!("pools.{name}"), value, &POOL_FIELDS)?;
    let known = std::iter::once(config.base()).flat_map(|settings| &settings.models);
    let known = known.flat_map(|model| &model.pools).find(|pool| pool.name == name);
    let window = known.map(|pool| pool.max_model_len).ok_or_else(|| FieldError {
        path: format!("pools.{name}"),
        found: "a pool that the configuration's models do not name".into(),
        allowed: config.pool_names.join(", "),
    })?;
    let timing = parse_timing(&fields)?;
    let mut engine = parse_engine(&fields, &timing, u32::try_from(window).unwrap_or(u32::MAX))?;
    engine.every_token = false;
    let time = timing.step_time(&engine).map_err(|why| fields.wrong("hardware", why))?;
    Ok(Pool {
        name: name.to_owned(),
        replicas: fields.whole("replicas", 1..=100_000, None)? as u32,
        dispatch: match fields.get("dispatch").map(Value::as_str) {
            None | Some(Some("least-loaded")) => Dispatch::LeastLoaded,
            Some(Some("round-robin")) => Dispatch::RoundRobin,
            Some(_) => return Err(fields.wrong("dispatch", "least-loaded, round-robin")),
        },
        ranks: match &timing {
            Timing::Linear(_) => 1,
            Timing::Hardware(hardware) => hardware.ranks(),
        },
        engine,
        time,
    })
}

const SOURCE_FIELDS: [&str; 12] = [
    "tenant",
    "model",
    "path",
    "texts",
    "lengths",
    "arrivals",
    "caps",
    "start_seconds",
    "stop_seconds",
    "timeout_seconds",
    "retries",
    "comment",
];

fn source(nth: usize, value: &Value, folder: &Path) -> Result<Source, ScenarioError> {
    let fields = Fields::new(&format!("sources[{nth}]"), value, &SOURCE_FIELDS)?;
    let or = |field: &str, default: &str| match fields.get(field) {
        None => Ok(default.to_owned()),
        Some(_) => fields.text(field).map(str::to_owned),
    };
    let caps = or("caps", "ladder")?;
    Ok(Source {
        tenant: or("tenant", "default")?,
        model: or("model", "m")?,
        path: or("path", "/v1/chat/completions")?,
        texts: texts(&fields)?,
        lengths: lengths(&fields, folder)?,
        arrivals: arrivals(&fields)?,
        caps: caps
            .parse::<CapPolicy>()
            .map_err(|_| fields.wrong("caps", "none, actual, ladder"))?,
        start: time(&fields, "start_seconds", Some(0.0))?.unwrap_or(0),
        stop: time(&fields, "stop_seconds", None)?.unwrap_or(u64::MAX),
        timeout: time(&fields, "timeout_seconds", None)?.filter(|time| *time > 0),
        retries: fields.whole("retries", 0..=1_000, Some(2))? as u32,
    })
}

fn texts(source: &Fields) -> Result<Vec<(Kind, u32)>, FieldError> {
    let Some(value) = source.get("texts") else { return Ok(vec![(Kind::English, 1)]) };
    let names = Kind::ALL.map(Kind::name);
    let fields = Fields::new(&source.at("texts"), value, &names)?;
    let mut texts = Vec::new();
    for kind in Kind::ALL {
        let weight = fields.whole(kind.name(), 0..=1_000_000, Some(0))? as u32;
        if weight > 0 {
            texts.push((kind, weight));
        }
    }
    if texts.is_empty() { Err(source.wrong("texts", "a weight above 0")) } else { Ok(texts) }
}

/// The one member of a table that says which of several things it is.
fn one_of<'a>(
    source: &'a Fields<'a>,
    field: &str,
    allowed: &'a str,
    known: &[&str],
) -> Result<Fields<'a>, FieldError> {
    let value = source.get(field).ok_or_else(|| source.wrong(field, allowed))?;
    Fields::new(&source.at(field), value, known)
}

fn lengths(source: &Fields, folder: &Path) -> Result<LengthSource, ScenarioError> {
    let allowed = "one of named = \"azure\", \"lmsys\" or \"agent\", file = a trace or a \
                   distribution, fixed = [prompt, output]";
    let fields = one_of(source, "lengths", allowed, &["named", "file", "fixed"])?;
    let found = ["named", "file", "fixed"].map(|key| fields.get(key));
    match found {
        [Some(name), None, None] => {
            let named = name.as_str().and_then(|name| name.parse::<Synthetic>().ok());
            let named = named.ok_or_else(|| fields.wrong("named", "azure, lmsys, agent"))?;
            Ok(LengthSource::Drawn(named.lengths()))
        }
        [None, Some(_), None] => {
            let path = folder.join(fields.text("file")?);
            let trace = parse_trace(&files::read(&path)?);
            Ok(match trace.map_err(|error| ScenarioError::Trace(path, error))? {
                Trace::Timed(requests) => LengthSource::Trace(requests.into()),
                Trace::Totals(cdf) => LengthSource::Drawn(Lengths::from_total(cdf)),
            })
        }
        [None, None, Some(list)] => {
            let tokens = |at: usize| {
                let token = list.as_array().filter(|list| list.len() == 2)?.get(at)?.as_u64();
                token.filter(|tokens| (1..=1 << 30).contains(tokens)).map(|tokens| tokens as u32)
            };
            let pair = tokens(0).zip(tokens(1));
            let (input, output) =
                pair.ok_or_else(|| fields.wrong("fixed", "[prompt, output] in tokens, from 1"))?;
            Ok(LengthSource::Fixed(input, output))
        }
        _ => Err(source.wrong("lengths", allowed).into()),
    }
}

fn arrivals(source: &Fields) -> Result<Arrivals, FieldError> {
    let allowed = "one of per_second = a rate (with cv = its burstiness), clients = how many (with \
                   think_seconds), trace_speed = times as fast as the trace";
    let known = ["per_second", "cv", "clients", "think_seconds", "trace_speed"];
    let fields = one_of(source, "arrivals", allowed, &known)?;
    let has = |key: &str| fields.get(key).is_some();
    match (has("per_second"), has("clients"), has("trace_speed")) {
        (true, false, false) => Ok(Arrivals::Open {
            rate: fields.number("per_second", 1e-6..=1e7, 1.0)?,
            cv: fields.number("cv", 0.01..=100.0, 1.0)?,
        }),
        (false, true, false) => Ok(Arrivals::Closed {
            clients: fields.whole("clients", 1..=1_000_000, None)? as u32,
            think: time(&fields, "think_seconds", Some(0.0))?.unwrap_or(0),
        }),
        (false, false, true) => {
            Ok(Arrivals::Trace { speed: fields.number("trace_speed", 1e-6..=1e6, 1.0)? })
        }
        _ => Err(source.wrong("arrivals", allowed)),
    }
}
