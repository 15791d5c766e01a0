//! The tenants document: who sends what, and when.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tidegate_sim::rng::Pcg;
use tidegate_sim::workload::{CapPolicy, Lengths, Request, apply_caps};

use crate::fields::{FieldError, Fields};
use crate::text::LEAST_CHAT_TOKENS;

/// A document with every field. Shown by `replay --help`.
pub const TENANTS_EXAMPLE: &str = r#"{"seconds": 60, "warmup_s": 10, "tenants": [
  {"name": "search", "headers": {"x-team": "search"},
   "clients": 8, "pause_s": 0.5,
   "input_tokens": 500, "output_tokens": 200, "cap": 1600},
  {"name": "batch", "headers": {"authorization": "Bearer key-of-batch"},
   "rate": 20, "on_s": 5, "off_s": 15, "from_s": 20, "to_s": 50,
   "lengths": "lmsys", "cap": "ladder", "obey_retry_after": true},
  {"name": "nightly", "tenant": "batch", "headers": {"x-team": "batch"},
   "rate": 1, "lengths": "azure", "cap_times": 8}
]}"#;

/// Many tenants, and how long they send.
#[derive(Clone, Debug)]
pub struct Senders {
    /// How long requests are sent.
    pub length: Duration,
    /// What is sent before this time is not counted.
    pub warmup: Duration,
    /// Who sends, at least one.
    pub tenants: Vec<Sender>,
}

/// Clients of one tenant that behave alike.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Its name in the report.
    pub name: String,
    /// The tenant's name in the gateway's configuration.
    pub tenant: String,
    /// Headers that tell the gateway who it is.
    pub headers: Vec<(String, String)>,
    /// When requests come.
    pub arrivals: Arrivals,
    /// Requests come in bursts.
    pub bursts: Option<Bursts>,
    /// From when it sends.
    pub from: Duration,
    /// Until when.
    pub to: Duration,
    /// How long its requests are.
    pub sizes: Sizes,
    /// Which caps they name.
    pub caps: Caps,
    /// A refused request comes again when its answer's `Retry-After` says so.
    /// Otherwise it is lost.
    pub obeys: bool,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// A closed loop: each client waits for its answer, and so much longer.
    Clients(usize, Duration),
    /// A Poisson process: requests a second, however many are open.
    Poisson(f64),
}

/// So long on, then so long off, from the sender's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Above zero.
    pub on: Duration,
    /// Above zero.
    pub off: Duration,
}

impl Bursts {
    /// The time, from the sender's start, at which so much of it was on.
    pub fn time_of(&self, active: Duration) -> Duration {
        let rounds = (active.as_secs_f64() / self.on.as_secs_f64()) as u32;
        active.saturating_add(self.off.saturating_mul(rounds))
    }

    /// The same time if it is on, else when it is on again.
    pub fn next_on(&self, at: Duration) -> Duration {
        let round = (self.on + self.off).as_nanos().max(1);
        let within = Duration::from_nanos((at.as_nanos() % round) as u64);
        if within < self.on { at } else { at + (self.on + self.off).saturating_sub(within) }
    }
}

/// How long requests are.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All the same: prompt and output tokens.
    Fixed(u32, u32),
    /// As published.
    Drawn(Lengths),
}

/// Which caps requests name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caps {
    /// Always this.
    Fixed(u32),
    /// So many times the true output.
    Times(u32),
    /// A policy of its own.
    Policy(CapPolicy),
}

impl Sender {
    /// So many of its requests, the same for the same seed. Their arrival is
    /// for whoever sends them.
    pub(super) fn draw(&self, count: usize, seed: u64) -> Vec<Request> {
        let mut rng = Pcg::new(seed, 0);
        let mut requests: Vec<Request> = (0..count)
            .map(|_| {
                let (input_tokens, output_tokens) = match &self.sizes {
                    Sizes::Fixed(input, output) => (*input, *output),
                    Sizes::Drawn(lengths) => lengths.draw(&mut rng),
                };
                let input_tokens = input_tokens.max(LEAST_CHAT_TOKENS);
                Request { arrival: 0, input_tokens, output_tokens, cap: None }
            })
            .collect();
        match self.caps {
            Caps::Policy(policy) => apply_caps(&mut requests, policy, seed),
            Caps::Fixed(cap) => requests.iter_mut().for_each(|one| one.cap = Some(cap)),
            Caps::Times(times) => {
                for one in &mut requests {
                    one.cap = Some(one.output_tokens.saturating_mul(times));
                }
            }
        }
        requests
    }
}

/// What is wrong with a tenants document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendersError {
    /// Not JSON; carries the parser's words.
    NotJson(String),
    /// A field.
    Field(FieldError),
}

impl fmt::Display for SendersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "the tenants document is not JSON: {why}"),
            Self::Field(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendersError {}

impl From<FieldError> for SendersError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

/// The longest run, in seconds.
const LONGEST: f64 = 86_400.0;
const TOKENS_MAX: u64 = 1_000_000;
const SENDER_FIELDS: [&str; 16] = [
    "name",
    "tenant",
    "headers",
    "clients",
    "pause_s",
    "rate",
    "on_s",
    "off_s",
    "from_s",
    "to_s",
    "lengths",
    "input_tokens",
    "output_tokens",
    "cap",
    "cap_times",
    "obey_retry_after",
];

impl Senders {
    /// Reads a tenants document.
    pub fn parse(bytes: &[u8]) -> Result<Self, SendersError> {
        let document: Value =
            serde_json::from_slice(bytes).map_err(|e| SendersError::NotJson(e.to_string()))?;
        let fields = Fields::new("", &document, &["seconds", "warmup_s", "tenants"])?;
        let Some(length) = above_zero(&fields, "seconds")? else {
            return Err(fields.wrong("seconds", "a number above 0").into());
        };
        let warmup = Duration::from_secs_f64(fields.number("warmup_s", 0.0..=LONGEST, 0.0)?);
        if warmup >= length {
            return Err(fields.wrong("warmup_s", "less than seconds").into());
        }
        let mut tenants = Vec::new();
        let mut names = BTreeSet::new();
        for (index, value) in fields.list("tenants")?.iter().enumerate() {
            let fields = Fields::new(&format!("tenants[{index}]"), value, &SENDER_FIELDS)?;
            let sender = sender(&fields, length)?;
            if !names.insert(sender.name.clone()) {
                return Err(fields.wrong("name", "a name that no other entry has").into());
            }
            tenants.push(sender);
        }
        Ok(Self { length, warmup, tenants })
    }
}

fn above_zero(fields: &Fields<'_>, field: &str) -> Result<Option<Duration>, FieldError> {
    if fields.get(field).is_none() {
        return Ok(None);
    }
    let seconds = fields.number(field, 0.0..=LONGEST, 0.0)?;
    let duration = Duration::from_secs_f64(seconds);
    if duration.is_zero() {
        return Err(fields.wrong(field, "a number above 0"));
    }
    Ok(Some(duration))
}

fn sender(fields: &Fields<'_>, length: Duration) -> Result<Sender, FieldError> {
    let name = fields.text("name")?.to_owned();
    let tenant =
        if fields.get("tenant").is_some() { fields.text("tenant")?.into() } else { name.clone() };
    let seconds = |field, default| fields.number(field, 0.0..=length.as_secs_f64(), default);
    let from = Duration::from_secs_f64(seconds("from_s", 0.0)?);
    let to = Duration::from_secs_f64(seconds("to_s", length.as_secs_f64())?);
    if to <= from {
        return Err(fields.wrong("to_s", "more than from_s"));
    }
    let bursts = match (above_zero(fields, "on_s")?, above_zero(fields, "off_s")?) {
        (Some(on), Some(off)) => Some(Bursts { on, off }),
        (None, None) => None,
        (Some(_), None) => return Err(fields.wrong("off_s", "a number above 0, beside on_s")),
        (None, Some(_)) => return Err(fields.wrong("on_s", "a number above 0, beside off_s")),
    };
    Ok(Sender {
        name,
        tenant,
        headers: headers(fields)?,
        arrivals: arrivals(fields)?,
        bursts,
        from,
        to,
        sizes: sizes(fields)?,
        caps: caps(fields)?,
        obeys: fields.switch("obey_retry_after", false)?,
    })
}

fn headers(fields: &Fields<'_>) -> Result<Vec<(String, String)>, FieldError> {
    let Some(value) = fields.get("headers") else { return Ok(Vec::new()) };
    let wrong = || fields.wrong("headers", "an object of names and texts");
    let pairs = value.as_object().ok_or_else(wrong)?.iter();
    pairs
        .map(|(name, value)| Ok((name.clone(), value.as_str().ok_or_else(wrong)?.to_owned())))
        .collect()
}

fn arrivals(fields: &Fields<'_>) -> Result<Arrivals, FieldError> {
    match (fields.get("clients"), fields.get("rate")) {
        (Some(_), None) => {
            let clients = fields.whole("clients", 1..=10_000, None)? as usize;
            let pause = fields.number("pause_s", 0.0..=LONGEST, 0.0)?;
            Ok(Arrivals::Clients(clients, Duration::from_secs_f64(pause)))
        }
        (None, Some(_)) if fields.get("pause_s").is_some() => {
            Err(fields.wrong("pause_s", "only beside clients"))
        }
        (None, Some(_)) => {
            let rate = fields.number("rate", 0.0..=100_000.0, 0.0)?;
            if rate > 0.0 {
                Ok(Arrivals::Poisson(rate))
            } else {
                Err(fields.wrong("rate", "a number above 0"))
            }
        }
        _ => Err(fields.wrong("clients", "either clients or rate")),
    }
}

fn sizes(fields: &Fields<'_>) -> Result<Sizes, FieldError> {
    let fixed = fields.get("input_tokens").or(fields.get("output_tokens")).is_some();
    if fields.get("lengths").is_none() {
        let tokens = |field| fields.whole(field, 1..=TOKENS_MAX, None).map(|n| n as u32);
        return Ok(Sizes::Fixed(tokens("input_tokens")?, tokens("output_tokens")?));
    }
    if fixed {
        return Err(fields.wrong("lengths", "either lengths, or input_tokens and output_tokens"));
    }
    let lengths = fields.text("lengths")?.parse();
    lengths.map(Sizes::Drawn).map_err(|_| fields.wrong("lengths", "azure, lmsys or agent"))
}

fn caps(fields: &Fields<'_>) -> Result<Caps, FieldError> {
    if fields.get("cap_times").is_some() {
        if fields.get("cap").is_some() {
            return Err(fields.wrong("cap", "either cap or cap_times"));
        }
        return Ok(Caps::Times(fields.whole("cap_times", 1..=1000, None)? as u32));
    }
    match fields.get("cap") {
        None => Ok(Caps::Policy(CapPolicy::Actual)),
        Some(Value::String(word)) => {
            let policy = word.parse();
            policy.map(Caps::Policy).map_err(|_| fields.wrong("cap", CAP))
        }
        Some(_) => {
            let cap = fields.whole("cap", 1..=TOKENS_MAX, None);
            cap.map(|n| Caps::Fixed(n as u32)).map_err(|_| fields.wrong("cap", CAP))
        }
    }
}

const CAP: &str = "a whole number, 1 to 1000000, or none, actual or ladder";

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_example_says_all_there_is() {
        let senders = Senders::parse(TENANTS_EXAMPLE.as_bytes()).unwrap();
        assert_eq!((senders.length, senders.warmup), (seconds(60.0), seconds(10.0)));
        let [search, batch, nightly] = senders.tenants.as_slice() else { panic!() };
        assert_eq!(search.arrivals, Arrivals::Clients(8, seconds(0.5)));
        assert_eq!(search.headers, [("x-team".to_owned(), "search".to_owned())]);
        assert_eq!((search.from, search.to), (Duration::ZERO, seconds(60.0)));
        assert!(!search.obeys && search.bursts.is_none());
        let request =
            Request { arrival: 0, input_tokens: 500, output_tokens: 200, cap: Some(1600) };
        assert_eq!(search.draw(2, 1), [request; 2]);
        assert_eq!(batch.arrivals, Arrivals::Poisson(20.0));
        assert_eq!(batch.bursts, Some(Bursts { on: seconds(5.0), off: seconds(15.0) }));
        assert_eq!((batch.from, batch.to), (seconds(20.0), seconds(50.0)));
        assert!(batch.obeys);
        assert_eq!((nightly.name.as_str(), nightly.tenant.as_str()), ("nightly", "batch"));
        let drawn = nightly.draw(50, 1);
        assert!(drawn.iter().all(|r| r.cap == Some(8 * r.output_tokens)));
        assert!(drawn.iter().any(|r| r.output_tokens != drawn[0].output_tokens));
        for field in SENDER_FIELDS {
            assert!(TENANTS_EXAMPLE.contains(&format!("\"{field}\"")), "{field}");
        }
    }

    #[test]
    fn wrong_fields_are_named() {
        let wrong = |from: &str, to: &str| {
            assert_eq!(TENANTS_EXAMPLE.matches(from).count(), 1, "{from}");
            let text = TENANTS_EXAMPLE.replace(from, to);
            Senders::parse(text.as_bytes()).unwrap_err().to_string()
        };
        for (from, to, path) in [
            ("\"seconds\": 60", "\"seconds\": 0", "seconds"),
            ("\"warmup_s\": 10", "\"warmup_s\": 60", "warmup_s"),
            ("\"clients\": 8, ", "", "tenants[0].clients"),
            ("\"clients\": 8", "\"clients\": 8, \"rate\": 2", "tenants[0].clients"),
            ("\"clients\": 8", "\"rate\": 2", "tenants[0].pause_s"),
            ("\"rate\": 20", "\"rate\": 0", "tenants[1].rate"),
            ("\"on_s\": 5, ", "", "tenants[1].on_s"),
            ("\"to_s\": 50", "\"to_s\": 20", "tenants[1].to_s"),
            ("\"lengths\": \"lmsys\"", "\"lengths\": \"lm\"", "tenants[1].lengths"),
            ("\"input_tokens\": 500", "\"input_tokens\": 0", "tenants[0].input_tokens"),
            ("\"cap\": \"ladder\"", "\"cap\": \"much\"", "tenants[1].cap"),
            ("\"cap_times\": 8", "\"cap_times\": 8, \"cap\": 1", "tenants[2].cap"),
            ("\"name\": \"nightly\"", "\"name\": \"batch\"", "tenants[2].name"),
            ("{\"x-team\": \"search\"}", "[]", "tenants[0].headers"),
            ("\"obey_retry_after\"", "\"obey\"", "tenants[1].obey"),
        ] {
            let error = wrong(from, to);
            assert!(error.starts_with(&format!("{path}: ")), "{path}: {error}");
        }
        assert!(Senders::parse(b"{").unwrap_err().to_string().contains("not JSON"));
    }

    #[test]
    fn bursts_are_on_and_off() {
        let bursts = Bursts { on: seconds(2.0), off: seconds(3.0) };
        for (at, next) in [(0.0, 0.0), (1.5, 1.5), (2.0, 5.0), (4.5, 5.0), (5.5, 5.5), (8.0, 10.0)]
        {
            assert_eq!(bursts.next_on(seconds(at)), seconds(next), "{at}");
        }
        for (active, time) in [(0.5, 0.5), (1.5, 1.5), (2.5, 5.5), (4.5, 10.5)] {
            assert_eq!(bursts.time_of(seconds(active)), seconds(time), "{active}");
        }
    }
}
