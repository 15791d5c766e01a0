//! What is sent: a workload with real text around it.

use std::fmt::Write as _;

use serde_json::Value;
use tidegate_sim::rng::Pcg;
use tidegate_sim::workload::{
    CapPolicy, Lengths, Request, Trace, apply_caps, compress, parse_trace, poisson, synthesize,
};

use super::ReplayError;
use crate::text::{Kind, LEAST_CHAT_TOKENS, Library, Message};

/// Where lengths and times come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The plain bytes of a trace file: see [`parse_trace`].
    Trace(Vec<u8>),
    /// A distribution that the project carries.
    Drawn(Lengths),
}

/// Which requests are sent, and when.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Where lengths and times come from.
    pub source: Source,
    /// At most so many requests. Default: the whole trace;
    /// [`DEFAULT_REQUESTS`] of a distribution.
    pub requests: Option<usize>,
    /// Poisson arrivals at this rate, a second, instead of the trace's times.
    /// Default: the trace's times; [`DEFAULT_RATE`] for a distribution.
    pub rate: Option<f64>,
    /// Divides every arrival time. Above 0.
    pub speedup: f64,
    /// How clients choose `max_tokens`.
    pub caps: CapPolicy,
    /// Fixes everything that is drawn.
    pub seed: u64,
}

/// Requests of a distribution, unless told otherwise.
pub const DEFAULT_REQUESTS: usize = 300;
/// Their rate a second.
pub const DEFAULT_RATE: f64 = 10.0;

impl Workload {
    /// The requests in order of arrival. Prompts shorter than a chat can be
    /// (8 tokens) count as that long.
    pub fn build(&self) -> Result<Vec<Request>, ReplayError> {
        for (field, value) in [("speedup", Some(self.speedup)), ("rate", self.rate)] {
            if let Some(value) = value
                && !(value > 0.0 && value.is_finite())
            {
                return Err(ReplayError::Option {
                    field,
                    value: value.to_string(),
                    allowed: "a number above 0",
                });
            }
        }
        let drawn = |lengths: &Lengths| {
            let count = self.requests.unwrap_or(DEFAULT_REQUESTS);
            synthesize(lengths, count, self.rate.unwrap_or(DEFAULT_RATE), self.seed)
        };
        let mut requests = match &self.source {
            Source::Drawn(lengths) => drawn(lengths),
            Source::Trace(bytes) => match parse_trace(bytes).map_err(ReplayError::Trace)? {
                Trace::Totals(cdf) => drawn(&Lengths::from_total(cdf)),
                Trace::Timed(mut requests) => {
                    requests.truncate(self.requests.unwrap_or(usize::MAX));
                    if let Some(rate) = self.rate {
                        poisson(&mut requests, rate, self.seed);
                    }
                    requests
                }
            },
        };
        if requests.is_empty() {
            return Err(ReplayError::Option {
                field: "requests",
                value: "0".into(),
                allowed: "at least 1",
            });
        }
        for request in &mut requests {
            request.input_tokens = request.input_tokens.max(LEAST_CHAT_TOKENS);
        }
        compress(&mut requests, self.speedup);
        apply_caps(&mut requests, self.caps, self.seed);
        Ok(requests)
    }
}

/// How the requests look.
#[derive(Clone, Debug)]
pub struct Style {
    /// The model that they name.
    pub model: String,
    /// Share of streamed answers, 0 to 1.
    pub stream_share: f64,
    /// Share of the streams that ask for usage, 0 to 1.
    pub usage_share: f64,
    /// Share of the bodies that write letters outside ASCII as `\uXXXX`, as
    /// Python's `json.dumps` does; 0 to 1.
    pub escaped_share: f64,
    /// Fixes everything that is drawn.
    pub seed: u64,
}

impl Style {
    /// The usual mixture for a model.
    pub fn new(model: &str, seed: u64) -> Self {
        Self { model: model.into(), stream_share: 0.5, usage_share: 0.8, escaped_share: 0.1, seed }
    }
}

/// One request, ready to send.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Its lengths, cap and time.
    pub request: Request,
    /// What its text is.
    pub kind: Kind,
    /// The answer is streamed.
    pub stream: bool,
    /// Bytes of its messages' contents, as UTF-8.
    pub content_bytes: usize,
    /// The JSON body.
    pub body: String,
}

/// What people and programs send, in percent.
const MIXTURE: [(Kind, u32); 12] = [
    (Kind::English, 35),
    (Kind::German, 7),
    (Kind::Spanish, 7),
    (Kind::Russian, 7),
    (Kind::Chinese, 8),
    (Kind::Japanese, 6),
    (Kind::Arabic, 5),
    (Kind::Hindi, 5),
    (Kind::Rust, 5),
    (Kind::Python, 7),
    (Kind::C, 3),
    (Kind::Json, 5),
];

const STREAM_TEXT: u64 = 100;

/// Writes the body of the request at `index`. Its text depends on the seed and
/// the index alone.
pub fn prepare(library: &Library, style: &Style, index: usize, request: Request) -> Prepared {
    let mut rng = Pcg::new(style.seed, STREAM_TEXT + index as u64);
    let kind = draw_kind(&mut rng);
    let stream = rng.chance(style.stream_share);
    let usage = stream && rng.chance(style.usage_share);
    let escaped = rng.chance(style.escaped_share);
    // Both spellings of the cap are in use.
    let cap_field = if rng.chance(0.5) { "max_tokens" } else { "max_completion_tokens" };
    let chat = library.chat(kind, request.input_tokens, &mut rng);
    let content_bytes = chat.iter().map(|message| message.content.len()).sum();
    let mut body = String::from("{\"model\":");
    body.push_str(&json_string(&style.model, false));
    body.push_str(",\"messages\":[");
    for (place, Message { role, content }) in chat.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let content = json_string(content, escaped);
        let _ = write!(body, "{comma}{{\"role\":\"{role}\",\"content\":{content}}}");
    }
    body.push(']');
    if let Some(cap) = request.cap {
        let _ = write!(body, ",\"{cap_field}\":{cap}");
    }
    body.push_str(",\"temperature\":0.7");
    if stream {
        body.push_str(",\"stream\":true");
    }
    if usage {
        body.push_str(",\"stream_options\":{\"include_usage\":true}");
    }
    body.push('}');
    Prepared { request, kind, stream, content_bytes, body }
}

fn draw_kind(rng: &mut Pcg) -> Kind {
    let mut left = rng.below(MIXTURE.iter().map(|(_, share)| share).sum());
    for (kind, share) in MIXTURE {
        if left < share {
            return kind;
        }
        left -= share;
    }
    Kind::English
}

fn json_string(text: &str, escaped: bool) -> String {
    let plain = Value::from(text).to_string();
    if !escaped || plain.is_ascii() {
        return plain;
    }
    let mut out = String::with_capacity(plain.len() * 3);
    let mut units = [0u16; 2];
    for c in plain.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sim::workload::LMSYS_CHAT_1M;

    fn workload(source: Source) -> Workload {
        Workload {
            source,
            requests: None,
            rate: None,
            speedup: 1.0,
            caps: CapPolicy::Ladder,
            seed: 1,
        }
    }

    #[test]
    fn bodies_have_the_planned_prompt_and_cap() {
        let library = Library::new("cl100k_base".parse().unwrap());
        let style = Style { escaped_share: 0.5, ..Style::new("m \"x\"", 3) };
        let requests = workload(Source::Drawn(LMSYS_CHAT_1M)).build().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for (index, request) in requests.into_iter().take(150).enumerate() {
            let prepared = prepare(&library, &style, index, request);
            let body: Value = serde_json::from_str(&prepared.body).unwrap();
            let messages = body["messages"].as_array().unwrap();
            let pairs = messages
                .iter()
                .map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap()));
            assert_eq!(library.tokenizer().count_chat(pairs), request.input_tokens);
            let cap = body.get("max_tokens").or(body.get("max_completion_tokens"));
            assert_eq!(cap.and_then(Value::as_u64), request.cap.map(u64::from));
            assert_eq!(body["model"], "m \"x\"");
            assert_eq!(body.get("stream").is_some(), prepared.stream);
            let usage = body.get("stream_options").is_some();
            assert!(!usage || prepared.stream);
            seen.insert((prepared.stream, usage, prepared.body.contains("\\u0")));
            assert_eq!(prepare(&library, &style, index, request).body, prepared.body);
        }
        assert!(seen.len() >= 5, "requests look alike: {seen:?}");
    }

    #[test]
    fn escapes_are_read_back_as_the_same_text() {
        let text = "né \u{1F9FF} \"\\\n";
        let escaped = json_string(text, true);
        assert!(escaped.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }

    #[test]
    fn a_trace_keeps_its_times_unless_a_rate_is_given() {
        let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                   2023-11-16 18:00:00.0,3,44\n2023-11-16 18:00:10.0,396,109\n";
        let mut workload = workload(Source::Trace(csv.into()));
        workload.speedup = 10.0;
        let requests = workload.build().unwrap();
        assert_eq!(requests.iter().map(|r| r.arrival).collect::<Vec<_>>(), [0, 1_000_000_000]);
        assert_eq!(requests.iter().map(|r| r.input_tokens).collect::<Vec<_>>(), [8, 396]);
        workload.rate = Some(5.0);
        assert_ne!(workload.build().unwrap()[1].arrival, 1_000_000_000);
        workload.requests = Some(1);
        assert_eq!(workload.build().unwrap().len(), 1);
    }

    #[test]
    fn wrong_options_are_named() {
        let mut workload = workload(Source::Trace("[[100, 1.0]]".into()));
        assert_eq!(workload.build().unwrap().len(), DEFAULT_REQUESTS);
        workload.rate = Some(0.0);
        assert!(workload.build().unwrap_err().to_string().contains("rate"));
        workload.rate = None;
        workload.speedup = f64::NAN;
        assert!(workload.build().unwrap_err().to_string().contains("speedup"));
        workload.speedup = 1.0;
        workload.requests = Some(0);
        assert!(workload.build().unwrap_err().to_string().contains("requests"));
        workload.source = Source::Trace("nonsense".into());
        assert!(workload.build().unwrap_err().to_string().contains("allowed: Azure CSV"));
        assert!("azur".parse::<Lengths>().unwrap_err().contains("azure, lmsys, agent"));
    }
}
