//! The pools document: which backends to start.
//!
//! ```json
//! {"pools": [
//!   {"name": "short", "model": "sim-model", "tokenizer": "cl100k_base",
//!    "max_model_len": 8192, "ports": [8101, 8102]},
//!   {"name": "long", "model": "sim-model", "tokenizer": "cl100k_base",
//!    "max_model_len": 131072, "ports": [0],
//!    "speed": 10, "hardware": {"gpu": "h100_sxm", "architecture": "Llama-3.1-8B"}}
//! ]}
//! ```
//!
//! A port 0 lets the system choose; each port is one replica.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde_json::Value;
use tidegate_sim::engine::{Config, Fcfs, Policy, Priority, Replica, StepTime};
use tidegate_sim::setup::{ENGINE_FIELDS, parse_engine, parse_timing};

use crate::fields::{FieldError, Fields};
use crate::hardware::Timing;
use crate::tokenizer::{NAMES, Tokenizer};

/// A document with every field; `timing` and `engine` have their defaults. Shown
/// by `serve --help`.
pub const POOLS_EXAMPLE: &str = r#"{"pools": [
  {"name": "short", "model": "sim-model", "max_model_len": 8192, "ports": [8101, 8102]},
  {"name": "long", "model": "sim-model", "max_model_len": 131072, "ports": [0],
   "tokenizer": "cl100k_base", "host": "127.0.0.1", "speed": 1,
   "timing": {"step_ms": 6, "prefill_us_per_token": 32, "decode_us_per_request": 20,
              "context_ns_per_token": 49},
   "engine": {"scheduling_policy": "fcfs", "max_num_seqs": 256, "max_num_batched_tokens": 8192,
              "kv_cache_tokens": 400000, "block_size": 16,
              "enable_prefix_caching": true, "async_scheduling": true}},
  {"name": "real", "model": "sim-model", "max_model_len": 8192, "ports": [0],
   "hardware": {"gpu": "h100_sxm", "architecture": "Llama-3.1-8B", "tp": 1,
                "data_parallel_size": 1, "enable_expert_parallel": false,
                "weights": "bf16", "kv_cache_dtype": "bf16",
                "gpu_memory_utilization": 0.9}}
]}"#;

/// One pool of equal replicas.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name; answers carry it in `x-sim-pool`.
    pub name: String,
    /// The model that it serves.
    pub model: String,
    /// The tokenizer that counts its prompts.
    pub tokenizer: Tokenizer,
    /// The window: prompt and output tokens of one sequence. At least 2.
    pub max_model_len: u32,
    /// The address to listen on. Default 127.0.0.1.
    pub host: IpAddr,
    /// A port for each replica; 0 lets the system choose.
    pub ports: Vec<u16>,
    /// How long its steps take.
    pub timing: Timing,
    /// How it schedules them.
    pub engine: Config,
    /// Requests with a lower `priority` go first; otherwise first come, first
    /// served.
    pub by_priority: bool,
    /// Seconds that pass for a replica in a real one. 0.001 to 1,000,000.
    pub speed: f64,
}

impl Pool {
    /// One of its replicas, idle, on virtual time.
    pub(super) fn replica(&self) -> Result<Replica<Box<dyn StepTime + Send>>, String> {
        let time = self.timing.step_time(&self.engine)?;
        let ranks = match &self.timing {
            Timing::Linear(_) => 1,
            Timing::Hardware(hardware) => hardware.ranks(),
        };
        let policy = || -> Box<dyn Policy> {
            if self.by_priority { Box::new(Priority) } else { Box::new(Fcfs) }
        };
        Replica::with_policy(self.engine.clone(), time, ranks, policy)
            .map_err(|error| error.to_string())
    }
}

/// What is wrong with a pools document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolsError {
    /// Not JSON; carries the parser's words.
    NotJson(String),
    /// A field.
    Field(FieldError),
}

impl fmt::Display for PoolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "the pools document is not JSON: {why}"),
            Self::Field(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PoolsError {}

impl From<FieldError> for PoolsError {
    fn from(error: FieldError) -> Self {
        Self::Field(error)
    }
}

/// Reads a pools document.
pub fn parse_pools(bytes: &[u8]) -> Result<Vec<Pool>, PoolsError> {
    let document: Value =
        serde_json::from_slice(bytes).map_err(|e| PoolsError::NotJson(e.to_string()))?;
    let fields = Fields::new("", &document, &["pools"])?;
    let mut pools: Vec<Pool> = Vec::new();
    let mut ports = BTreeSet::new();
    for (index, value) in fields.list("pools")?.iter().enumerate() {
        let path = format!("pools[{index}]");
        let pool = parse_pool(&path, value)?;
        if pools.iter().any(|other| other.name == pool.name) {
            return Err(FieldError {
                path: format!("{path}.name"),
                found: format!("{:?} again", pool.name),
                allowed: "a name that no other pool has".into(),
            }
            .into());
        }
        if let Some(port) = pool.ports.iter().find(|&&port| port != 0 && !ports.insert(port)) {
            return Err(FieldError {
                path: format!("{path}.ports"),
                found: format!("{port} again"),
                allowed: "each port once; 0 lets the system choose".into(),
            }
            .into());
        }
        pools.push(pool);
    }
    Ok(pools)
}

const POOL_FIELDS: [&str; 10] = [
    "name",
    "model",
    "tokenizer",
    "max_model_len",
    "host",
    "ports",
    "speed",
    "timing",
    "hardware",
    "engine",
];

fn parse_pool(path: &str, value: &Value) -> Result<Pool, FieldError> {
    let fields = Fields::new(path, value, &POOL_FIELDS)?;
    let name = fields.text("name")?;
    // It becomes a header's value.
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        return Err(fields.wrong("name", "letters, digits, '-', '_' and '.'"));
    }
    let tokenizer = match fields.get("tokenizer") {
        None => NAMES[0],
        Some(_) => fields.text("tokenizer")?,
    };
    let tokenizer = tokenizer.parse().map_err(|_| fields.wrong("tokenizer", NAMES.join(", ")))?;
    let host = match fields.get("host") {
        None => IpAddr::from([127, 0, 0, 1]),
        Some(_) => fields
            .text("host")?
            .parse()
            .map_err(|_| fields.wrong("host", "an IP address such as 127.0.0.1"))?,
    };
    let max_model_len = fields.whole("max_model_len", 2..=u64::from(u32::MAX), None)? as u32;
    let mut ports = Vec::new();
    for (index, port) in fields.list("ports")?.iter().enumerate() {
        let port = port.as_u64().and_then(|port| u16::try_from(port).ok());
        ports.push(port.ok_or_else(|| {
            FieldError {
                path: fields.at(&format!("ports[{index}]")),
                found: fields
                    .list("ports")
                    .ok()
                    .and_then(|l| l.get(index))
                    .map_or_else(|| "absent".into(), Value::to_string),
                allowed: "a port, 0 to 65535; 0 lets the system choose".into(),
            }
        })?);
    }
    let timing = parse_timing(&fields)?;
    Ok(Pool {
        engine: parse_engine(&fields, &timing, max_model_len)?,
        by_priority: by_priority(&fields)?,
        timing,
        // Many times faster: a demonstration need not wait for a real GPU.
        speed: fields.number("speed", SPEEDS, 1.0)?,
        name: name.into(),
        model: fields.text("model")?.into(),
        tokenizer,
        max_model_len,
        host,
        ports,
    })
}

/// What is allowed as a speed.
pub(crate) const SPEEDS: std::ops::RangeInclusive<f64> = 0.001..=1e6;

fn by_priority(pool: &Fields) -> Result<bool, FieldError> {
    let Some(engine) = pool.get("engine") else { return Ok(false) };
    let fields = Fields::new(&pool.at("engine"), engine, &ENGINE_FIELDS)?;
    match fields.get("scheduling_policy").map(Value::as_str) {
        None | Some(Some("fcfs")) => Ok(false),
        Some(Some("priority")) => Ok(true),
        Some(_) => Err(fields.wrong("scheduling_policy", "fcfs, priority")),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_sim::engine::Linear;
    use tidegate_sim::setup::{HARDWARE_FIELDS, TIMING_FIELDS};

    use super::*;

    fn error(text: &str) -> String {
        parse_pools(text.as_bytes()).unwrap_err().to_string()
    }

    fn with(extra: &str) -> String {
        format!(
            r#"{{"pools": [{{"name": "a", "model": "m", "max_model_len": 100, "ports": [0]{extra}}}]}}"#
        )
    }

    #[test]
    fn defaults_fill_what_is_absent() {
        let pools = parse_pools(with("").as_bytes()).unwrap();
        assert_eq!(pools[0].tokenizer.name(), "cl100k_base");
        assert!(matches!(pools[0].timing, Timing::Linear(linear) if linear == Linear::default()));
        assert_eq!((pools[0].engine.num_gpu_blocks, pools[0].engine.max_model_len), (25_001, 100));
        assert_eq!(pools[0].engine.check(), Ok(()));
        assert!(pools[0].host.is_loopback());
        assert!((pools[0].speed - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_example_shows_every_field_with_its_default() {
        let pools = parse_pools(POOLS_EXAMPLE.as_bytes()).unwrap();
        let linear = |at: usize| match pools[at].timing {
            Timing::Linear(linear) => Some(linear),
            Timing::Hardware(_) => None,
        };
        assert_eq!((linear(0), linear(1)), (Some(Linear::default()), Some(Linear::default())));
        // 80 GB less 16 GB of weights at 128 KiB a token.
        let blocks = pools[2].engine.num_gpu_blocks;
        assert!((20_000..30_000).contains(&blocks), "{blocks}");
        let engine = Config { max_model_len: 131_072, ..pools[0].engine.clone() };
        assert_eq!(pools[1].engine, engine);
        assert_eq!(pools[1].host, pools[0].host);
        assert_eq!(pools[1].tokenizer.name(), pools[0].tokenizer.name());
        let all = POOL_FIELDS.iter().chain(&TIMING_FIELDS).chain(&ENGINE_FIELDS);
        for field in all.chain(&HARDWARE_FIELDS) {
            assert!(POOLS_EXAMPLE.contains(&format!("\"{field}\":")), "{field}");
        }
    }

    #[test]
    fn errors_name_the_field_the_value_and_what_is_allowed() {
        for (text, parts) in [
            ("{", vec!["not JSON"]),
            ("[]", vec!["the document", "[]", "an object"]),
            ("{}", vec!["pools", "absent", "at least one"]),
            (r#"{"pools": [{"nam": "a"}]}"#, vec!["pools[0].nam", "name, model, tokenizer"]),
            (&with(r#", "tokenizer": "gpt2""#), vec!["tokenizer", "gpt2", "o200k_base"]),
            (&with(r#", "host": "localhost""#), vec!["host", "localhost", "127.0.0.1"]),
            (&with(r#", "timing": {"step": 1}"#), vec!["pools[0].timing.step", "step_ms"]),
            (&with(r#", "timing": {"step_ms": -1}"#), vec!["timing.step_ms", "-1", "0 to 60000"]),
            (&with(r#", "engine": {"kv_cache_tokens": 99}"#), vec!["kv_cache_tokens", "100 to"]),
            (
                &with(r#", "engine": {"scheduling_policy": "lifo"}"#),
                vec!["engine.scheduling_policy: found \"lifo\"; allowed: fcfs, priority"],
            ),
            (&with(r#", "engine": {"async_scheduling": 1}"#), vec!["async_scheduling", "true or"]),
            (
                &with(r#", "engine": {"max_num_seqs": 9, "max_num_batched_tokens": 8}"#),
                vec![
                    "pools[0].engine.max_num_batched_tokens: found 8;",
                    "allowed: at least max_num_seqs",
                ],
            ),
            (
                &with(r#", "hardware": {"gpu": "h900", "architecture": "Llama-3.1-8B"}"#),
                vec!["pools[0].hardware.gpu: found \"h900\"; allowed: ", "h100_sxm"],
            ),
            (
                &with(r#", "hardware": {"gpu": "l40s", "architecture": "GPT-9"}"#),
                vec!["hardware.architecture: found \"GPT-9\"; allowed: ", "Llama-3.1-8B"],
            ),
            (
                &with(r#", "hardware": {"gpu": "l40s", "architecture": "Llama-3.1-8B", "tp": 3}"#),
                vec!["hardware.tp: found 3; allowed: ", "divisor of the 32 query heads"],
            ),
            (
                &with(r#", "hardware": {"gpu": "l40s", "architecture": "Llama-3.1-70B"}"#),
                vec!["pools[0].max_model_len: found 100; allowed: at most the 0 tokens"],
            ),
            (
                &with(r#", "timing": {}, "hardware": {"gpu": "l40s"}"#),
                vec!["pools[0].timing: found {}; allowed: nothing beside hardware"],
            ),
            (&with(r#", "speed": 0"#), vec!["pools[0].speed: found 0; allowed: a number, 0.001"]),
        ] {
            let message = error(text);
            for part in parts {
                assert!(message.contains(part), "{text}: {message}");
            }
        }
        let pool = |name: &str, port: u32| {
            format!(r#"{{"name": "{name}", "model": "m", "max_model_len": 9, "ports": [{port}]}}"#)
        };
        let two = |a: String, b: String| error(&format!(r#"{{"pools": [{a}, {b}]}}"#));
        assert!(two(pool("a", 0), pool("a", 0)).contains("pools[1].name"));
        assert!(two(pool("a", 81), pool("b", 81)).contains("81 again"));
        assert!(two(pool("a", 0), pool("b", 65_536)).contains("pools[1].ports[0]: found 65536"));
        assert!(two(pool("a", 0), pool("b c", 1)).contains("letters, digits"));
    }
}
