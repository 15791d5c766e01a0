//! Public trace formats → requests.
//!
//! - Azure: CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens`.
//! - Mooncake: one JSON object a line with `timestamp` (milliseconds),
//!   `input_length` and `output_length`; other fields are ignored.
//! - A distribution of totals: see [`Cdf::parse`].

use std::fmt;

use serde_json::Value;

use super::{Cdf, LengthError, Request, TraceRequest};
use crate::{MILLISECOND, SECOND};

/// What a trace file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Trace {
    /// Requests with their times, earliest first, the first at 0. No caps.
    Timed(Vec<Request>),
    /// A distribution of total tokens; arrivals are the caller's.
    Totals(Cdf),
}

/// What is wrong with a trace. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// The bytes look like none of the formats; carries the first line's start.
    UnknownFormat(String),
    /// The header is not Azure's; carries the header found.
    Header(String),
    /// The file has no requests.
    Empty,
    /// A line has another number of columns, or is no JSON object.
    Line {
        /// The line.
        line: usize,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// A field of a line is missing or out of range.
    Field {
        /// The line.
        line: usize,
        /// The field's name.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The distribution is wrong.
    Lengths(LengthError),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFormat(start) => write!(
                f,
                "the trace starts with {start:?}; allowed: Azure CSV (header {AZURE_HEADER}), \
                 Mooncake JSON lines ({MOONCAKE_LINE}), a distribution ([[total_tokens, \
                 cumulative_fraction], ...] or {{\"cdf\": [...]}})"
            ),
            Self::Header(found) => {
                write!(f, "line 1: header {found:?}; allowed: {AZURE_HEADER}")
            }
            Self::Empty => write!(f, "the trace has no requests"),
            Self::Line { line, why } => write!(f, "line {line}: {why}"),
            Self::Field { line, field, value, allowed } => {
                write!(f, "line {line}: {field} is {value:?}; allowed: {allowed}")
            }
            Self::Lengths(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {}

const MOONCAKE_LINE: &str = r#"{"timestamp": 0, "input_length": 9, "output_length": 9}"#;
pub(super) const AZURE_HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const COUNT: &str = "a whole number of tokens, 1 to 4294967295";
/// Mooncake's clock ticks every 3 seconds: requests of one tick are spread over
/// at most this much.
pub(super) const MOONCAKE_TICK: u64 = 3 * SECOND;

/// Reads a trace, finding its format from its first byte. No gzip here.
pub fn parse_trace(bytes: &[u8]) -> Result<Trace, TraceError> {
    let bytes = strip_mark(bytes);
    let first = bytes.iter().copied().find(|b| !b.is_ascii_whitespace());
    let unknown = || TraceError::UnknownFormat(start(bytes));
    match first {
        // Points are lists; a list of anything else is no distribution.
        Some(b'[') if begins_with_object(bytes) => Err(unknown()),
        Some(b'[') => Cdf::parse(bytes).map(Trace::Totals).map_err(TraceError::Lengths),
        // One object with "cdf" is a distribution; one object a line is Mooncake.
        Some(b'{') => match serde_json::from_slice::<Value>(bytes) {
            Ok(whole) if whole.get("cdf").is_some() => {
                Cdf::parse(bytes).map(Trace::Totals).map_err(TraceError::Lengths)
            }
            _ if names_mooncake(bytes) => parse_mooncake_jsonl(bytes).map(Trace::Timed),
            _ => Err(unknown()),
        },
        Some(b'T') => parse_azure_csv(bytes).map(Trace::Timed),
        None => Err(TraceError::Empty),
        Some(_) => Err(unknown()),
    }
}

/// Without the mark that some editors put in front of UTF-8 text.
pub(super) fn strip_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// The start of the first line that holds something.
pub(super) fn start(bytes: &[u8]) -> String {
    let bytes = bytes.trim_ascii_start();
    let start: Vec<u8> = bytes.iter().copied().take_while(|&b| b != b'\n').take(60).collect();
    String::from_utf8_lossy(&start).into_owned()
}

/// A list whose first item is an object.
fn begins_with_object(bytes: &[u8]) -> bool {
    let mut signs = bytes.iter().copied().filter(|b| !b.is_ascii_whitespace());
    (signs.next(), signs.next()) == (Some(b'['), Some(b'{'))
}

/// The first line has one of Mooncake's fields, be it well-formed or not.
fn names_mooncake(bytes: &[u8]) -> bool {
    lines(bytes).next().is_some_and(|(_, line)| {
        ["\"timestamp\"", "\"input_length\"", "\"output_length\""].iter().any(|f| line.contains(f))
    })
}

/// The lines that hold something, with their numbers from 1.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, std::borrow::Cow<'_, str>)> {
    bytes
        .split(|&b| b == b'\n')
        .enumerate()
        .map(|(index, line)| (index + 1, String::from_utf8_lossy(line.trim_ascii())))
        .filter(|(_, line)| !line.is_empty())
}

/// Sorts by time and starts at 0. Traces are nearly sorted, not always quite.
fn rebased(mut requests: Vec<Request>) -> Result<Vec<Request>, TraceError> {
    requests.sort_by_key(|r| r.arrival);
    let start = requests.first().ok_or(TraceError::Empty)?.arrival;
    for request in &mut requests {
        request.arrival -= start;
    }
    Ok(requests)
}

/// Reads the Azure LLM inference traces of 2023 and 2024.
pub fn parse_azure_csv(bytes: &[u8]) -> Result<Vec<Request>, TraceError> {
    let mut lines = lines(bytes);
    let (_, header) = lines.next().ok_or(TraceError::Empty)?;
    if header != AZURE_HEADER {
        return Err(TraceError::Header(header.into_owned()));
    }
    let (mut requests, mut request) = (Vec::new(), TraceRequest::default());
    for (line, text) in lines {
        azure_line(text.as_bytes(), line, &mut request)?;
        requests.push(without_names(&request));
    }
    rebased(requests)
}

fn without_names(request: &TraceRequest) -> Request {
    let &TraceRequest { arrival, input_tokens, output_tokens, .. } = request;
    Request { arrival, input_tokens, output_tokens, cap: None }
}

/// Reads one line of an Azure trace; its time is since 1970.
pub(super) fn azure_line(
    bytes: &[u8],
    line: usize,
    request: &mut TraceRequest,
) -> Result<(), TraceError> {
    let text = String::from_utf8_lossy(bytes);
    let mut columns = text.split(',');
    let (Some(time), Some(input), Some(output), None) =
        (columns.next(), columns.next(), columns.next(), columns.next())
    else {
        let found = text.split(',').count();
        let why = format!("{found} columns; allowed: 3, as in {AZURE_HEADER}");
        return Err(TraceError::Line { line, why });
    };
    request.arrival = timestamp(time).ok_or_else(|| TraceError::Field {
        line,
        field: "TIMESTAMP",
        value: time.into(),
        allowed: "YYYY-MM-DD hh:mm:ss with up to 9 decimals, UTC",
    })?;
    request.input_tokens = count(input, line, "ContextTokens")?;
    request.output_tokens = count(output, line, "GeneratedTokens")?;
    Ok(())
}

fn count(text: &str, line: usize, field: &'static str) -> Result<u32, TraceError> {
    text.trim().parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(|| TraceError::Field {
        line,
        field,
        value: text.into(),
        allowed: COUNT,
    })
}

/// Nanoseconds since 1970 of `YYYY-MM-DD hh:mm:ss[.fraction][+00:00|Z]`.
fn timestamp(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_suffix("+00:00").or(text.strip_suffix('Z')).unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-');
    let year = digits(date.next()?, 4)?;
    let month = digits(date.next()?, 2).filter(|m| (1..=12).contains(m))?;
    let day = digits(date.next()?, 2).filter(|d| (1..=31).contains(d))?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = clock.split(':');
    let hour = digits(clock.next()?, 2).filter(|&h| h < 24)?;
    let minute = digits(clock.next()?, 2).filter(|&m| m < 60)?;
    let second = digits(clock.next()?, 2).filter(|&s| s < 61)?;
    if date.next().is_some() || clock.next().is_some() || !(1970..2200).contains(&year) {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let mut nanos = digits(fraction, fraction.len())?;
    for _ in fraction.len()..9 {
        nanos *= 10;
    }
    // Days from the civil date, with March as the year's first month.
    let (y, m) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND + nanos)
}

fn digits(text: &str, length: usize) -> Option<u64> {
    (text.len() == length && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

/// Reads the Mooncake traces. Their clock ticks every 3 seconds, so requests of
/// one tick are spread evenly over it: sent at once they would be a burst that
/// the recorded service never saw.
pub fn parse_mooncake_jsonl(bytes: &[u8]) -> Result<Vec<Request>, TraceError> {
    let (mut requests, mut request) = (Vec::new(), TraceRequest::default());
    for (line, text) in lines(bytes) {
        mooncake_line(text.as_bytes(), line, &mut request)?;
        requests.push(without_names(&request));
    }
    let mut requests = rebased(requests)?;
    spread_ticks(&mut requests);
    Ok(requests)
}

/// Reads one line of a Mooncake trace.
pub(super) fn mooncake_line(
    bytes: &[u8],
    line: usize,
    request: &mut TraceRequest,
) -> Result<(), TraceError> {
    // Nearly all lines are plain; the rest, and all errors, are the parser's.
    if let Some(millis) = plain_line(bytes, request) {
        request.arrival = millis * MILLISECOND;
        return Ok(());
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|e| TraceError::Line { line, why: format!("not JSON: {e}") })?;
    if !value.is_object() {
        return Err(TraceError::Line { line, why: "allowed: one JSON object a line".into() });
    }
    let millis = whole(&value, line, "timestamp", "whole milliseconds from the start")?;
    request.arrival = millis.checked_mul(MILLISECOND).ok_or_else(|| TraceError::Field {
        line,
        field: "timestamp",
        value: millis.to_string(),
        allowed: "whole milliseconds, at most 18446744073709",
    })?;
    request.input_tokens = tokens(&value, line, "input_length")?;
    request.output_tokens = tokens(&value, line, "output_length")?;
    request.names.clear();
    if let Some(ids) = value.get("hash_ids") {
        let all = ids.as_array().map(|ids| ids.iter().map(Value::as_u64).collect());
        let all: Option<Option<Vec<u64>>> = all;
        request.names = all.flatten().ok_or_else(|| TraceError::Field {
            line,
            field: "hash_ids",
            value: ids.to_string().chars().take(60).collect(),
            allowed: "a list of whole numbers",
        })?;
    }
    Ok(())
}

/// A line with nothing but whole numbers of at most 18 digits in the fields that
/// we know, each once; nothing for any other line. Gives the milliseconds.
fn plain_line(bytes: &[u8], request: &mut TraceRequest) -> Option<u64> {
    request.names.clear();
    let (mut millis, mut input, mut output, mut named) = (None, None, None, false);
    let mut rest = bytes.strip_prefix(b"{")?.trim_ascii_start();
    loop {
        let (key, after) = rest
            .strip_prefix(b"\"")?
            .split_at_checked(rest.iter().skip(1).position(|&b| b == b'"')?)?;
        rest = after.strip_prefix(b"\"")?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        if key == b"hash_ids" {
            rest = rest.strip_prefix(b"[")?.trim_ascii_start();
            if std::mem::replace(&mut named, true) {
                return None;
            }
            while !rest.starts_with(b"]") {
                if !request.names.is_empty() {
                    rest = rest.strip_prefix(b",")?.trim_ascii_start();
                }
                request.names.push(plain_number(&mut rest)?);
            }
            rest = rest.strip_prefix(b"]")?.trim_ascii_start();
        } else {
            let field = match key {
                b"timestamp" => &mut millis,
                b"input_length" => &mut input,
                b"output_length" => &mut output,
                _ => return None,
            };
            if field.replace(plain_number(&mut rest)?).is_some() {
                return None;
            }
        }
        if let Some(end) = rest.strip_prefix(b"}") {
            let tokens = |n: Option<u64>| u32::try_from(n?).ok().filter(|&n| n > 0);
            (request.input_tokens, request.output_tokens) = (tokens(input)?, tokens(output)?);
            return millis.filter(|&m| end.is_empty() && m <= u64::MAX / MILLISECOND);
        }
        rest = rest.strip_prefix(b",")?.trim_ascii_start();
    }
}

/// A whole number without leading zeros, and the space behind it.
fn plain_number(rest: &mut &[u8]) -> Option<u64> {
    let (mut number, mut digits) = (0u64, 0);
    let mut bytes = *rest;
    while let [digit @ b'0'..=b'9', after @ ..] = bytes {
        number = number * 10 + u64::from(digit - b'0');
        digits += 1;
        if digits > 18 {
            return None;
        }
        bytes = after;
    }
    let leading_zero = digits > 1 && rest.starts_with(b"0");
    *rest = bytes.trim_ascii_start();
    (digits > 0 && !leading_zero).then_some(number)
}

fn whole(
    value: &Value,
    line: usize,
    field: &'static str,
    allowed: &'static str,
) -> Result<u64, TraceError> {
    value.get(field).and_then(Value::as_u64).ok_or_else(|| TraceError::Field {
        line,
        field,
        value: value.get(field).map_or_else(|| "absent".into(), Value::to_string),
        allowed,
    })
}

fn tokens(value: &Value, line: usize, field: &'static str) -> Result<u32, TraceError> {
    let found = whole(value, line, field, COUNT)?;
    u32::try_from(found).ok().filter(|&n| n > 0).ok_or_else(|| TraceError::Field {
        line,
        field,
        value: found.to_string(),
        allowed: COUNT,
    })
}

fn spread_ticks(requests: &mut [Request]) {
    let times: Vec<u64> = requests.iter().map(|r| r.arrival).collect();
    let mut rest = requests;
    let mut at = 0;
    while let Some(&tick) = times.get(at) {
        let batch = times.iter().skip(at).take_while(|&&t| t == tick).count();
        let next = times.get(at + batch).map_or(tick + MOONCAKE_TICK, |&t| t);
        let width = (next - tick).min(MOONCAKE_TICK);
        let (these, others) = rest.split_at_mut(batch);
        for (index, request) in these.iter_mut().enumerate() {
            request.arrival = tick + width * index as u64 / batch as u64;
        }
        rest = others;
        at += batch;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        parse_trace(text.as_bytes()).unwrap_err().to_string()
    }

    fn timed(text: &str) -> Vec<Request> {
        match parse_trace(text.as_bytes()).unwrap() {
            Trace::Timed(requests) => requests,
            Trace::Totals(cdf) => panic!("{cdf:?}"),
        }
    }

    #[test]
    fn azure_times_start_at_zero_and_keep_their_fractions() {
        let requests = timed(
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
             2023-11-16 18:15:46.6805900,374,44\r\n\
             2023-11-16 18:15:50.9951690,396,109\r\n",
        );
        let expected = [
            Request { arrival: 0, input_tokens: 374, output_tokens: 44, cap: None },
            Request { arrival: 4_314_579_000, input_tokens: 396, output_tokens: 109, cap: None },
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn timestamps_are_seconds_since_1970() {
        assert_eq!(timestamp("1970-01-01 00:00:00"), Some(0));
        assert_eq!(timestamp("2000-03-01 00:00:00"), Some(951_868_800 * SECOND));
        assert_eq!(timestamp("2024-02-29T12:00:00.5Z"), Some(1_709_208_000 * SECOND + SECOND / 2));
        let azure_2024 = timestamp("2024-05-10 00:00:00.009930+00:00");
        assert_eq!(azure_2024, Some(1_715_299_200 * SECOND + 9_930_000));
        for wrong in ["", "2024-05-10", "2024-13-01 00:00:00", "2024-05-10 24:00:00", "x y"] {
            assert_eq!(timestamp(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn mooncake_batches_are_spread_over_their_tick() {
        let line = |t: u64| format!("{{\"timestamp\":{t},\"input_length\":5,\"output_length\":7}}");
        let text = [0, 0, 0, 3_000, 60_000].map(line).join("\n");
        let at: Vec<u64> = timed(&text).iter().map(|r| r.arrival / MILLISECOND).collect();
        assert_eq!(at, [0, 1_000, 2_000, 3_000, 60_000]);
    }

    #[test]
    fn a_distribution_is_told_from_a_trace() {
        for text in ["[[10, 1.0]]", "{\"cdf\": [[10, 1.0]]}", " \n{\n\"cdf\": [[10, 1.0]]}"] {
            assert!(matches!(parse_trace(text.as_bytes()), Ok(Trace::Totals(_))), "{text}");
        }
    }

    #[test]
    fn errors_name_line_field_value_and_what_is_allowed() {
        let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        let message = error(&format!("{head}2023-11-16 18:15:46.0,374,-1"));
        for part in ["line 2", "GeneratedTokens", "-1", "1 to 4294967295"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(error(&format!("{head}yesterday,1,1")).contains("TIMESTAMP"));
        assert!(error(&format!("{head}\n2023-11-16 18:15:46,1")).contains("line 3: 2 columns"));
        assert!(error("TIME,A,B\n").contains("header"));
        assert!(error(head).contains("no requests"));
        assert!(error("").contains("no requests"));
        for other in ["{\"a\": 1}", "{\n  \"a\": 1\n}", "{\"a\":1}\n{\"a\":2}", "[{\"a\": 1}]"] {
            let message = error(other);
            for part in ["Azure CSV", "Mooncake JSON lines", "input_length", "cdf"] {
                assert!(message.contains(part), "{other}: {message}");
            }
        }
        assert!(error("num_prefill_tokens,num_decode_tokens\n1,2").contains("num_prefill_tokens"));
        let message = error("{\"timestamp\":1,\"input_length\":0,\"output_length\":1}");
        assert!(message.contains("input_length") && message.contains("\"0\""), "{message}");
        assert!(error("{\"timestamp\":1}").contains("absent"));
        assert!(error("{\"timestamp\":1,\n").contains("line 1: not JSON"));
        assert!(
            error("{\"timestamp\":18446744073709551615,\"input_length\":1,\"output_length\":1}")
                .contains("at most")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, head in "(T|\\{|\\[|TIMESTAMP,ContextTokens,GeneratedTokens\n)?") {
            let mut all = head.into_bytes();
            all.extend(bytes);
            let _ = parse_trace(&all);
        }

        #[test]
        fn azure_round_trip(rows in prop::collection::vec((0u64..86_400, 1u32.., 1u32..), 1..20)) {
            let mut text = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
            for (s, input, output) in &rows {
                let (h, m, s) = (s / 3_600, s / 60 % 60, s % 60);
                let _ = writeln!(text, "2023-11-16 {h:02}:{m:02}:{s:02}.25,{input},{output}");
            }
            let mut expected = rows.clone();
            expected.sort_by_key(|r| r.0);
            let start = expected[0].0;
            let parsed = timed(&text);
            prop_assert_eq!(parsed.len(), rows.len());
            for (request, (s, input, output)) in parsed.iter().zip(expected) {
                prop_assert_eq!(request.arrival, (s - start) * SECOND);
                prop_assert_eq!((request.input_tokens, request.output_tokens), (input, output));
            }
        }
    }
}
