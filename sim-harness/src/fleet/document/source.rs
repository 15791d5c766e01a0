//! Who sends what, as a document.

use std::sync::Arc;

use serde_json::Value;

use super::super::{Arrivals, LengthSource, Sessions, Source, Tail};
use super::{DocumentError, Files, time};
use crate::fields::{FieldError, Fields};
use crate::texts::Kind;
use crate::workload::{CapPolicy, Lengths, Rates, Trace, parse_rows, parse_sessions, parse_trace};

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

/// Reads the `nth` source.
pub(super) fn parse(nth: usize, value: &Value, files: Files<'_>) -> Result<Source, DocumentError> {
    let fields = Fields::new(&format!("sources[{nth}]"), value, &SOURCE_FIELDS)?;
    let or = |field: &str, default: &str| match fields.get(field) {
        None => Ok(default.to_owned()),
        Some(_) => fields.text(field).map(str::to_owned),
    };
    let caps = or("caps", "ladder")?;
    let (lengths, tail) = lengths(&fields, files)?;
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

fn lengths(
    source: &Fields,
    files: Files<'_>,
) -> Result<(LengthSource, Option<Tail>), DocumentError> {
    let allowed = "one of named = \"azure\", \"lmsys\" or \"agent\", file = a trace or a \
                   distribution, trace = the text of such a file, fixed = [prompt, output], \
                   sessions = a file (tail: beside any)";
    let known = ["named", "file", "trace", "fixed", "sessions", "tail"];
    let fields = one_of(source, "lengths", allowed, &known)?;
    let tail = tail(&fields)?;
    let read = |field: &str| -> Result<(String, Vec<u8>), DocumentError> {
        let name = fields.text(field)?;
        Ok((name.into(), files(name).map_err(DocumentError::File)?))
    };
    let of_trace = |bytes: &[u8]| match parse_trace(bytes)? {
        // Once more, with the names of its blocks.
        Trace::Timed(_) => Ok(LengthSource::Trace(parse_rows(bytes)?.into())),
        Trace::Totals(cdf) => Ok(LengthSource::Drawn(Lengths::from_total(cdf))),
    };
    let mut found = known.iter().filter(|key| **key != "tail" && fields.get(key).is_some());
    let (Some(kind), None) = (found.next(), found.next()) else {
        return Err(source.wrong("lengths", allowed).into());
    };
    let lengths = match *kind {
        "named" => {
            let name = fields.get("named").and_then(Value::as_str);
            let named = name.and_then(|name| name.parse().ok());
            LengthSource::Drawn(named.ok_or_else(|| fields.wrong("named", "azure, lmsys, agent"))?)
        }
        "file" => {
            let (name, bytes) = read("file")?;
            of_trace(&bytes).map_err(|error| DocumentError::Trace(name, error))?
        }
        "trace" => {
            let lengths = of_trace(fields.text("trace")?.as_bytes());
            lengths.map_err(|error| DocumentError::Trace(fields.at("trace"), error))?
        }
        "sessions" => {
            let (name, bytes) = read("sessions")?;
            let all = parse_sessions(&String::from_utf8_lossy(&bytes));
            LengthSource::Sessions(all.map_err(|error| DocumentError::Trace(name, error))?.into())
        }
        _ => {
            let pair = fields.get("fixed").and_then(pair);
            let pair =
                pair.ok_or_else(|| fields.wrong("fixed", "[prompt, output] in tokens, from 1"));
            let (input, output) = pair?;
            LengthSource::Fixed(input, output)
        }
    };
    Ok((lengths, tail))
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
