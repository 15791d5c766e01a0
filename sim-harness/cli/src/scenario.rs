//! Scenario files: TOML that says what to simulate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate::config::{Config, ConfigError};
use tidegate_sim::SECOND;
use tidegate_sim::fleet::{
    Arrivals, Dispatch, Fault, Gateways, LengthSource, Pool, Scenario, Sessions, Source, Tail, What,
};
use tidegate_sim::policy::Policy;
use tidegate_sim::texts::Kind;
use tidegate_sim::workload::{
    CapPolicy, Lengths, Rates, Trace, TraceError, parse_rows, parse_sessions, parse_trace,
};

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
        policy: policy(&fields)?,
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
                (seconds("down_seconds")?, What::Down)
            }
            (None, Some(_)) => {
                let factor = fields.number("slow", 0.01..=1000.0, 1.0)?;
                (seconds("for_seconds")?, What::Slow(factor))
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

const SOURCE_FIELDS: [&str; 14] = [
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
    "retry_timeouts",
    "sessions",
    "comment",
];

fn source(nth: usize, value: &Value, folder: &Path) -> Result<Source, ScenarioError> {
    let fields = Fields::new(&format!("sources[{nth}]"), value, &SOURCE_FIELDS)?;
    let or = |field: &str, default: &str| match fields.get(field) {
        None => Ok(default.to_owned()),
        Some(_) => fields.text(field).map(str::to_owned),
    };
    let caps = or("caps", "ladder")?;
    let (lengths, tail) = lengths(&fields, folder)?;
    let (arrivals, trace_from) = arrivals(&fields)?;
    Ok(Source {
        tenant: or("tenant", "default")?,
        models: models(&fields)?,
        path: or("path", "/v1/chat/completions")?,
        texts: texts(&fields)?,
        lengths,
        arrivals,
        caps: caps
            .parse::<CapPolicy>()
            .map_err(|_| fields.wrong("caps", "none, actual, ladder"))?,
        start: time(&fields, "start_seconds", Some(0.0))?.unwrap_or(0),
        stop: time(&fields, "stop_seconds", None)?.unwrap_or(u64::MAX),
        timeout: time(&fields, "timeout_seconds", None)?.filter(|time| *time > 0),
        retries: fields.whole("retries", 0..=1_000, Some(2))? as u32,
        retry_timeouts: fields.switch("retry_timeouts", false)?,
        sessions: sessions(&fields)?,
        tail,
        trace_from,
    })
}

/// One model, or several with weights.
fn models(source: &Fields) -> Result<Vec<(String, u32)>, FieldError> {
    let Some(value) = source.get("model") else { return Ok(vec![("m".into(), 1)]) };
    let Some(all) = value.as_object() else {
        let one = source.text("model");
        let one = one.map_err(|_| source.wrong("model", "a name, or names with weights"))?;
        return Ok(vec![(one.into(), 1)]);
    };
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let fields = Fields::new(&source.at("model"), value, &names)?;
    let mut models = Vec::new();
    for name in names {
        models.push((name.to_owned(), fields.whole(name, 0..=1_000_000, None)? as u32));
    }
    models.retain(|(_, weight)| *weight > 0);
    if models.is_empty() { Err(source.wrong("model", "a weight above 0")) } else { Ok(models) }
}

fn sessions(source: &Fields) -> Result<Option<Sessions>, FieldError> {
    let Some(value) = source.get("sessions") else { return Ok(None) };
    let known = ["turns", "think_seconds", "shared_tokens"];
    let fields = Fields::new(&source.at("sessions"), value, &known)?;
    Ok(Some(Sessions {
        turns: fields.number("turns", 1.0..=100_000.0, 1.0)?,
        think: time(&fields, "think_seconds", Some(0.0))?.unwrap_or(0),
        shared: fields.whole("shared_tokens", 0..=1 << 24, Some(0))? as u32,
    }))
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

/// Two numbers of tokens.
fn pair(value: &Value) -> Option<(u32, u32)> {
    let list = value.as_array().filter(|list| list.len() == 2)?;
    let tokens = |at: usize| {
        let tokens = list.get(at)?.as_u64().filter(|tokens| (1..=1 << 30).contains(tokens));
        tokens.map(|tokens| tokens as u32)
    };
    tokens(0).zip(tokens(1))
}

fn tail(lengths: &Fields) -> Result<Option<Tail>, FieldError> {
    let Some(value) = lengths.get("tail") else { return Ok(None) };
    let fields = Fields::new(&lengths.at("tail"), value, &["share", "tokens"])?;
    let share = fields.number("share", 0.0..=1.0, -1.0)?;
    if share < 0.0 {
        return Err(fields.wrong("share", "a number, 0 to 1"));
    }
    let tokens = fields.get("tokens").and_then(pair).filter(|(from, to)| 2 <= *from && from <= to);
    let tokens = tokens.ok_or_else(|| fields.wrong("tokens", "[from, to] in tokens, from 2"))?;
    Ok(Some(Tail { share, tokens }))
}

fn lengths(source: &Fields, folder: &Path) -> Result<(LengthSource, Option<Tail>), ScenarioError> {
    let allowed = "one of named = \"azure\", \"lmsys\" or \"agent\", file = a trace or a \
                   distribution, fixed = [prompt, output], sessions = a file (tail: beside any)";
    let known = ["named", "file", "fixed", "sessions", "tail"];
    let fields = one_of(source, "lengths", allowed, &known)?;
    let tail = tail(&fields)?;
    let found = ["named", "file", "fixed", "sessions"].map(|key| fields.get(key));
    let lengths: Result<LengthSource, ScenarioError> = match found {
        [None, None, None, Some(_)] => {
            let path = folder.join(fields.text("sessions")?);
            let all = parse_sessions(&files::read_text(&path)?);
            let all = all.map_err(|error| ScenarioError::Trace(path, error))?;
            Ok(LengthSource::Sessions(all.into()))
        }
        [Some(name), None, None, None] => {
            let named = name.as_str().and_then(|name| name.parse::<Synthetic>().ok());
            let named = named.ok_or_else(|| fields.wrong("named", "azure, lmsys, agent"))?;
            Ok(LengthSource::Drawn(named.lengths()))
        }
        [None, Some(_), None, None] => {
            let path = folder.join(fields.text("file")?);
            let bytes = files::read(&path)?;
            let read = || match parse_trace(&bytes)? {
                // Once more, with the names of its blocks.
                Trace::Timed(_) => Ok(LengthSource::Trace(parse_rows(&bytes)?.into())),
                Trace::Totals(cdf) => Ok(LengthSource::Drawn(Lengths::from_total(cdf))),
            };
            read().map_err(|error| ScenarioError::Trace(path, error))
        }
        [None, None, Some(list), None] => {
            let (input, output) = pair(list)
                .ok_or_else(|| fields.wrong("fixed", "[prompt, output] in tokens, from 1"))?;
            Ok(LengthSource::Fixed(input, output))
        }
        _ => Err(source.wrong("lengths", allowed).into()),
    };
    Ok((lengths?, tail))
}

/// Kinds of arrivals by the one field that each must have, and what it may have
/// beside it.
const ARRIVALS: [(&str, &[&str]); 5] = [
    ("per_second", &["cv", "peak_to_mean", "period_seconds"]),
    ("rates", &["cv", "period_seconds"]),
    ("clients", &["think_seconds"]),
    ("trace_speed", &["trace_from_seconds"]),
    ("trace_rate", &["trace_from_seconds"]),
];

/// When requests come, and where a trace begins.
fn arrivals(source: &Fields) -> Result<(Arrivals, u64), FieldError> {
    let kinds = ARRIVALS.map(|(kind, more)| format!("{kind} (with {})", more.join(", ")));
    let allowed = format!("one of {}", kinds.join("; "));
    let value = source.get("arrivals").ok_or_else(|| source.wrong("arrivals", &*allowed))?;
    let Some((kind, more)) = ARRIVALS.iter().find(|(kind, _)| value.get(*kind).is_some()) else {
        return Err(source.wrong("arrivals", allowed));
    };
    let known: Vec<&str> = std::iter::once(*kind).chain(more.iter().copied()).collect();
    let fields = Fields::new(&source.at("arrivals"), value, &known)?;
    let cv = fields.number("cv", 0.01..=100.0, 1.0)?;
    let seconds = |field: &str| match fields.get(field) {
        None => Ok(None),
        Some(_) => fields.number(field, 1e-3..=1e9, 1.0).map(Some),
    };
    let from = time(&fields, "trace_from_seconds", Some(0.0))?.unwrap_or(0);
    let arrivals = match *kind {
        "per_second" => {
            let rate = fields.number("per_second", 1e-6..=1e7, 1.0)?;
            let peak = fields.number("peak_to_mean", 1.0..=2.0, 1.0)?;
            if fields.get("peak_to_mean").is_none() && fields.get("period_seconds").is_none() {
                Arrivals::Open { rate, cv }
            } else {
                let period = seconds("period_seconds")?.unwrap_or(86_400.0);
                let rates = Rates::day(rate, peak, period);
                let rates = rates.map_err(|why| source.wrong("arrivals", why))?;
                Arrivals::Varying { rates: Arc::new(rates), cv }
            }
        }
        "rates" => {
            let point = |point: &Value| match point.as_array().map(Vec::as_slice) {
                Some([at, rate]) => at.as_f64().zip(rate.as_f64()),
                _ => None,
            };
            let points = fields.list("rates")?.iter().map(point).collect::<Option<Vec<_>>>();
            let points =
                points.ok_or_else(|| fields.wrong("rates", "a list of [seconds, rate]"))?;
            let rates = Rates::new(points, seconds("period_seconds")?);
            let rates = rates.map_err(|why| fields.wrong("rates", why))?;
            Arrivals::Varying { rates: Arc::new(rates), cv }
        }
        "clients" => Arrivals::Closed {
            clients: fields.whole("clients", 1..=1_000_000, None)? as u32,
            think: time(&fields, "think_seconds", Some(0.0))?.unwrap_or(0),
        },
        "trace_speed" => Arrivals::Trace { speed: fields.number("trace_speed", 1e-6..=1e6, 1.0)? },
        _ => Arrivals::Scaled { rate: fields.number("trace_rate", 1e-6..=1e7, 1.0)? },
    };
    Ok((arrivals, from))
}
