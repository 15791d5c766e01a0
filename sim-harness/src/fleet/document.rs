//! Scenarios as documents.

mod source;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate::config::{Config, ConfigError};

use super::{Dispatch, Fault, FaultKind, Gateways, Pool, Scenario};
use crate::SECOND;
use crate::fields::{FieldError, Fields};
use crate::hardware::Timing;
use crate::policy::Policy;
use crate::setup::{parse_engine, parse_timing};
use crate::workload::TraceError;

/// A scenario as it is read from a document.
pub struct Loaded {
    /// What to simulate.
    pub scenario: Scenario,
    /// The document's own seed; 1 if it has none.
    pub seed: u64,
}

/// Why a document is no scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentError {
    /// A file that it names; carries what was said about it.
    File(String),
    /// A field.
    Field(FieldError),
    /// The gateways' document.
    Config(ConfigError),
    /// A trace; carries its file's name, or `trace`.
    Trace(String, TraceError),
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(why) => f.write_str(why),
            Self::Field(error) => error.fmt(f),
            Self::Config(error) => write!(f, "config: {error}"),
            Self::Trace(name, error) => write!(f, "{name}: {error}"),
        }
    }
}

impl std::error::Error for DocumentError {}

impl From<FieldError> for DocumentError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

/// Reads the files that a document names: bytes without gzip, or what is wrong.
pub type Files<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, String>;

const FIELDS: [&str; 9] = [
    "seed",
    "seconds",
    "warm_up_seconds",
    "drain_seconds",
    "config",
    "gateways",
    "policy",
    "pools",
    "sources",
];

impl Loaded {
    /// Reads a scenario: `docs/fleet.md` has its fields.
    pub fn parse(document: &Value, files: Files<'_>) -> Result<Self, DocumentError> {
        let fields = Fields::new("", document, &FIELDS)?;
        let config = config(&fields, files)?;
        let seconds = time(&fields, "seconds", None)?.unwrap_or(0);
        let mut pools = Vec::new();
        let named = fields.get("pools").and_then(Value::as_object);
        for (name, value) in named.ok_or_else(|| fields.wrong("pools", "a table for each pool"))? {
            pools.push(pool(name, value, &config)?);
        }
        let sources = fields.list("sources")?.iter().enumerate();
        let sources = sources.map(|(nth, value)| source::parse(nth, value, files));
        let scenario = Scenario {
            gateways: gateways(&fields)?,
            policy: policy(&fields)?,
            config: Arc::new(config),
            pools,
            sources: sources.collect::<Result<_, _>>()?,
            end: seconds,
            drain: time(&fields, "drain_seconds", Some(600.0))?.unwrap_or(0),
            warm_up: time(&fields, "warm_up_seconds", Some(0.0))?.unwrap_or(0),
        };
        Ok(Self { scenario, seed: fields.whole("seed", 0..=u64::MAX, Some(1))? })
    }
}

/// The document itself, as an object or as its text, or the path of its file.
fn config(fields: &Fields, files: Files<'_>) -> Result<Config, DocumentError> {
    if let Some(document) = fields.get("config").filter(|value| value.is_object()) {
        return Config::parse(document.to_string().as_bytes()).map_err(DocumentError::Config);
    }
    let text = fields.text("config").map_err(|_| {
        fields.wrong("config", "the filter's JSON document, or the path of a file with it")
    })?;
    let bytes = if text.trim_start().starts_with('{') {
        text.as_bytes().to_vec()
    } else {
        files(text).map_err(DocumentError::File)?
    };
    Config::parse(&bytes).map_err(DocumentError::Config)
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

fn policy(fields: &Fields) -> Result<Policy, FieldError> {
    if fields.get("policy").is_none() {
        return Ok(Policy::default());
    }
    fields.text("policy")?.parse().map_err(|_| fields.wrong("policy", Policy::ALLOWED))
}

const POOL_FIELDS: [&str; 6] = ["replicas", "dispatch", "timing", "hardware", "engine", "events"];

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
        faults: faults(&fields)?,
    })
}

/// What happens to a pool's replicas.
fn faults(pool: &Fields) -> Result<Vec<Fault>, FieldError> {
    if pool.get("events").is_none() {
        return Ok(Vec::new());
    }
    let fault = |(nth, value)| -> Result<Fault, FieldError> {
        let known = ["at_seconds", "replica", "down_seconds", "slow", "for_seconds"];
        let fields = Fields::new(&format!("{}[{nth}]", pool.at("events")), value, &known)?;
        let seconds = |field: &str| {
            // Not for no time at all.
            let time = fields.number(field, 1e-6..=1e8, 0.0)?;
            if time == 0.0 { Err(fields.wrong(field, "a number, 1e-6 to 1e8")) } else { Ok(time) }
        };
        let (time, what) = match (fields.get("down_seconds"), fields.get("slow")) {
            (Some(_), None) if fields.get("for_seconds").is_none() => {
                (seconds("down_seconds")?, FaultKind::Down)
            }
            (None, Some(_)) => {
                let factor = fields.number("slow", 0.01..=1000.0, 1.0)?;
                (seconds("for_seconds")?, FaultKind::Slow(factor))
            }
            _ => return Err(pool.wrong("events", EVENTS)),
        };
        let from = time_of(fields.number("at_seconds", 0.0..=1e8, 0.0)?);
        let replica = fields.whole("replica", 0..=100_000, None)? as u32;
        Ok(Fault { replica, during: (from, from + time_of(time)), what })
    };
    pool.list("events")?.iter().enumerate().map(fault).collect()
}

const EVENTS: &str =
    "at_seconds, replica, and down_seconds, or slow (times as long) and for_seconds";

fn time_of(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}
