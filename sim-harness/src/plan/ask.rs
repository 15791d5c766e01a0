//! A question as a document: what the command's flags and the browser's page
//! have in common.

use serde_json::Value;

use super::price::Price;
use super::question::{Effort, PlanError, Question, Slo, Source};
use crate::fields::{FieldError, Fields};
use crate::kernels::{Architecture, Deployment, Gpu, Precision, find_gpu};
use crate::workload::{Lengths, NAMED, Trace, parse_trace};

/// What a document may have, by the names of the command's flags.
const FIELDS: [&str; 24] = [
    "lengths",
    "trace",
    "model",
    "gpu",
    "tp",
    "weights",
    "kv",
    "enable_expert_parallel",
    "gpu_memory_utilization",
    "max_model_len",
    "rate",
    "cv",
    "caps",
    "slo_ttft_p99",
    "slo_tpot_p99",
    "pools",
    "prices",
    "seed",
    "seeds",
    "requests",
    "thresholds",
    "rates",
    "verify",
    "check_seconds",
];

/// The engine's share of a GPU's memory where none is named: vLLM's own.
pub const UTILIZATION: f64 = 0.9;
/// The longest request where none is named: the papers' homogeneous window.
pub const WINDOW: u32 = 65_536;
/// Pools at most, where nothing is named.
pub const POOLS: u32 = 2;

impl Effort {
    /// A first answer, for someone who waits: fewer requests and thresholds,
    /// and the answer is not checked at the full rate.
    pub fn quick() -> Self {
        Self { requests: 5_000, thresholds: 3, verify: false, ..Self::default() }
    }
}

/// A question, and what only its answer's figures need.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What to plan for.
    pub question: Question,
    /// Prices of one's own, before the shipped ones.
    pub prices: Vec<Price>,
}

impl Ask {
    /// Reads a document: an object whose fields have the names of the command's
    /// flags, with `_` for `-`.
    ///
    /// `lengths` is the name of a published distribution; or `trace` is the text
    /// of a trace's file, and `prices` that of a price table's. Numbers are
    /// numbers. Required: one of the first two, `model`, `gpu`, `rate`,
    /// `slo_ttft_p99`, `slo_tpot_p99`.
    ///
    /// # Errors
    ///
    /// [`PlanError::Question`] with the field, the value found and what is
    /// allowed; `question` stands for the document itself. What a field may be
    /// only in company of others is for [`plan`](super::plan) to say.
    pub fn parse(document: &Value) -> Result<Self, PlanError> {
        let fields = Fields::new("", document, &FIELDS)?;
        let lengths = Source::read(&fields)?;
        let number = |field: &str| {
            let found = fields.get(field).and_then(Value::as_f64);
            found.ok_or_else(|| fields.wrong(field, "a number"))
        };
        let whole = |field: &str, range: std::ops::RangeInclusive<u64>, default: u64| {
            fields.whole(field, range, Some(default))
        };
        let text = |field: &str, default: &'static str| match fields.get(field) {
            None => Ok(default),
            Some(_) => fields.text(field),
        };
        let gpu = fields.text("gpu")?;
        let gpu = find_gpu(gpu, &[]).ok_or_else(|| {
            let known: Vec<String> = Gpu::all().into_iter().map(|gpu| gpu.name).collect();
            fields.wrong("gpu", known.join(", "))
        })?;
        let model = Architecture::find(fields.text("model")?)
            .map_err(|error| PlanError::Question("model", error.to_string()))?;
        let precision = |field: &str| {
            let found = text(field, "bf16")?;
            let precision = Precision::NAMED.iter().find(|(name, _)| *name == found);
            let names = Precision::NAMED.map(|(name, _)| name).join(", ");
            precision.map(|(_, precision)| *precision).ok_or_else(|| fields.wrong(field, names))
        };
        let tp = whole("tp", 0..=u32::MAX.into(), 1)? as u32;
        let ep = if fields.switch("enable_expert_parallel", false)? { tp } else { 1 };
        let (weights, kv) = (precision("weights")?, precision("kv")?);
        let caps = text("caps", "ladder")?.parse();
        let prices = match fields.get("prices") {
            None => Vec::new(),
            Some(_) => Price::parse(fields.text("prices")?)
                .map_err(|error| PlanError::Question("prices", error.to_string()))?,
        };
        let full = Effort::default();
        let question = Question {
            lengths,
            caps: caps.map_err(|_| fields.wrong("caps", "none, actual, ladder"))?,
            cv: fields.number("cv", f64::MIN..=f64::MAX, 1.0)?,
            rate: number("rate")?,
            slo: Slo { ttft_p99: number("slo_ttft_p99")?, tpot_p99: number("slo_tpot_p99")? },
            gpu,
            deployment: Deployment { ep, weights, kv, ..Deployment::new(model, tp) },
            utilization: fields.number(
                "gpu_memory_utilization",
                f64::MIN..=f64::MAX,
                UTILIZATION,
            )?,
            window: whole("max_model_len", 0..=u32::MAX.into(), WINDOW.into())? as u32,
            pools: whole("pools", 0..=u32::MAX.into(), POOLS.into())? as u32,
            seed: whole("seed", 0..=u64::MAX, 1)?,
            effort: Effort {
                requests: whole("requests", 500..=10_000_000, full.requests)?,
                seeds: whole("seeds", 1..=20, full.seeds)?,
                thresholds: whole("thresholds", 1..=9, full.thresholds as u64)? as usize,
                tune: true,
                verify: fields.switch("verify", full.verify)?,
                seconds: fields.number("check_seconds", 0.0..=3_600.0, full.seconds)?,
                rates: rates(&fields, full.rates)?,
            },
        };
        Ok(Self { question, prices })
    }
}

/// Rates as factors of the asked one.
fn rates(fields: &Fields, default: Vec<f64>) -> Result<Vec<f64>, FieldError> {
    if fields.get("rates").is_none() {
        return Ok(default);
    }
    let all = fields.list("rates")?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    all.ok_or_else(|| fields.wrong("rates", "a list of numbers"))
}

impl Source {
    /// Reads `lengths` or `trace` of a document that may have more.
    ///
    /// # Errors
    ///
    /// As those of [`Ask::parse`].
    pub fn read(fields: &Fields) -> Result<Self, PlanError> {
        match (fields.get("lengths"), fields.get("trace")) {
            (Some(name), None) => {
                let names = || NAMED.each_ref().map(|(name, _)| *name).join(", ");
                let found = name.as_str().and_then(|name| name.parse().ok());
                Ok(Self::Drawn(found.ok_or_else(|| fields.wrong("lengths", names()))?))
            }
            (None, Some(_)) => match parse_trace(fields.text("trace")?.as_bytes()) {
                Ok(Trace::Timed(requests)) => Ok(Self::Trace(requests.into())),
                Ok(Trace::Totals(cdf)) => Ok(Self::Drawn(Lengths::from_total(cdf))),
                Err(error) => Err(PlanError::Question("trace", error.to_string())),
            },
            (None, None) => Err(fields.wrong("lengths", "this field, or trace").into()),
            (Some(_), Some(_)) => {
                // Not the trace itself, which may be long.
                let why = "found beside lengths; allowed: one of the two";
                Err(PlanError::Question("trace", why.into()))
            }
        }
    }

    /// The share of requests whose prompt and answer have so many tokens or fewer.
    pub fn share_within(&self, tokens: u32) -> f64 {
        match self {
            Self::Drawn(lengths) => lengths.total.fraction(tokens),
            Self::Trace(rows) => {
                let within = |row: &&crate::workload::Request| {
                    row.input_tokens.saturating_add(row.output_tokens) <= tokens
                };
                rows.iter().filter(within).count() as f64 / rows.len().max(1) as f64
            }
        }
    }
}

impl From<FieldError> for PlanError {
    fn from(error: FieldError) -> Self {
        let FieldError { path, found, allowed } = error;
        match FIELDS.iter().find(|field| **field == path) {
            Some(field) => Self::Question(field, format!("found {found}; allowed: {allowed}")),
            None => Self::Question("question", format!("{path}: {found}; allowed: {allowed}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::AZURE_2023;

    fn document() -> Value {
        json!({
            "lengths": "azure", "model": "Llama-3.1-8B", "gpu": "l40s",
            "rate": 5, "slo_ttft_p99": 2, "slo_tpot_p99": 0.1,
        })
    }

    fn with(field: &str, value: Value) -> Value {
        let mut document = document();
        document[field] = value;
        document
    }

    #[test]
    fn what_is_not_named_is_as_the_command_has_it() {
        let Ask { question, prices } = Ask::parse(&document()).unwrap();
        assert!(matches!(question.lengths, Source::Drawn(lengths) if lengths == AZURE_2023));
        assert_eq!((question.rate, question.cv, question.utilization), (5.0, 1.0, 0.9));
        assert_eq!((question.window, question.pools, question.seed), (65_536, 2, 1));
        assert_eq!((question.effort, prices.len()), (Effort::default(), 0));
        assert_eq!(question.deployment.tp, 1);
    }

    #[test]
    fn every_effort_that_is_named_is_taken() {
        let mut document = with("verify", json!(false));
        document["requests"] = json!(700);
        document["seeds"] = json!(2);
        document["thresholds"] = json!(4);
        document["check_seconds"] = json!(7.5);
        document["rates"] = json!([0.5]);
        let expected = Effort {
            requests: 700,
            seeds: 2,
            thresholds: 4,
            tune: true,
            verify: false,
            seconds: 7.5,
            rates: vec![0.5],
        };
        assert_eq!(Ask::parse(&document).unwrap().question.effort, expected);
    }

    #[test]
    fn wrong_fields_are_named_with_what_is_allowed() {
        for (field, value, said) in [
            ("lengths", json!("azur"), "lengths: found \"azur\"; allowed: azure, lmsys, agent"),
            ("lengths", Value::Null, "lengths: found null; allowed: this field, or trace"),
            ("trace", json!("TIME"), "trace: found beside lengths"),
            ("model", json!("none"), "model: found \"none\"; allowed: CodeLlama"),
            ("gpu", json!("none"), "gpu: found \"none\"; allowed: a100_sxm, "),
            ("tp", json!(1.5), "tp: found 1.5; allowed: a whole number"),
            ("rate", json!("5"), "rate: found \"5\"; allowed: a number"),
            ("rate", Value::Null, "rate: found null; allowed: a number"),
            ("kv", json!("fp4"), "kv: found \"fp4\"; allowed: bf16, fp8, fp8_block"),
            ("caps", json!("some"), "caps: found \"some\"; allowed: none, actual, ladder"),
            ("rates", json!([1, "x"]), "rates: found [1,\"x\"]; allowed: a list of numbers"),
            ("seeds", json!(0), "seeds: found 0; allowed: a whole number, 1 to 20"),
            ("verify", json!(1), "verify: found 1; allowed: true or false"),
            ("check_seconds", json!(-1), "check_seconds: found -1; allowed: a number, 0 to 3600"),
            ("prices", json!("x"), "prices: line 1: found \"x\""),
            ("speed", json!(1), "question: speed: an unknown field; allowed: lengths, trace"),
        ] {
            let error = Ask::parse(&with(field, value)).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let error = Ask::parse(&json!([])).unwrap_err().to_string();
        assert!(error.starts_with("question: the document: []; allowed: an object"), "{error}");
        let mut trace = with("trace", json!("nonsense"));
        trace["lengths"] = Value::Null;
        let error = Ask::parse(&trace).unwrap_err().to_string();
        assert!(error.starts_with("trace: the trace starts with \"nonsense\""), "{error}");
    }

    #[test]
    fn shares_are_those_of_the_trace_and_of_the_distribution() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,90,10\n\
                    2023-11-16 18:00:01,91,10\n";
        let mut document = with("trace", json!(text));
        document["lengths"] = Value::Null;
        let trace = Ask::parse(&document).unwrap().question.lengths;
        assert_eq!([99, 100, 101].map(|tokens| trace.share_within(tokens)), [0.0, 0.5, 1.0]);
        let drawn = Ask::parse(&with("lengths", json!("lmsys"))).unwrap().question.lengths;
        assert_eq!(drawn.share_within(512), 0.638_327);
    }
}
