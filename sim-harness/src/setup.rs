//! Documents about replicas: how long their steps take, and how they schedule.

use serde_json::Value;

use crate::engine::{Config, Linear};
use crate::fields::{FieldError, Fields};
use crate::hardware::{Hardware, Layout, Timing};
use crate::kernels::Precision;

/// The fields of `timing`.
pub const TIMING_FIELDS: [&str; 4] =
    ["step_ms", "prefill_us_per_token", "decode_us_per_request", "context_ns_per_token"];

/// The fields of `engine`.
pub const ENGINE_FIELDS: [&str; 7] = [
    "scheduling_policy",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_tokens",
    "block_size",
    "enable_prefix_caching",
    "async_scheduling",
];

/// Tokens that the KV cache holds unless the document says otherwise.
const KV_CACHE_TOKENS: u64 = 400_000;

/// How long the steps of a pool's replicas take: by `hardware` or `timing`.
pub fn parse_timing(pool: &Fields) -> Result<Timing, FieldError> {
    if let Some(value) = pool.get("hardware") {
        if pool.get("timing").is_some() {
            return Err(pool.wrong("timing", "nothing beside hardware, which says it"));
        }
        let fields = Fields::new(&pool.at("hardware"), value, &HARDWARE_FIELDS)?;
        return Ok(Timing::Hardware(Box::new(parse_hardware(&fields)?)));
    }
    let default = Linear::default();
    let empty = Value::Object(serde_json::Map::new());
    let path = pool.at("timing");
    let fields = Fields::new(&path, pool.get("timing").unwrap_or(&empty), &TIMING_FIELDS)?;
    let time = |field: &str, unit: f64, default_ns: u64| -> Result<u64, FieldError> {
        let value = fields.number(field, 0.0..=60_000.0, default_ns as f64 / unit)?;
        Ok((value * unit) as u64)
    };
    Ok(Timing::Linear(Linear {
        step_ns: time("step_ms", 1e6, default.step_ns)?.max(1),
        prefill_token_ns: time("prefill_us_per_token", 1e3, default.prefill_token_ns)?,
        decode_sequence_ns: time("decode_us_per_request", 1e3, default.decode_sequence_ns)?,
        context_token_ns: time("context_ns_per_token", 1.0, default.context_token_ns)?,
    }))
}

/// The fields of `hardware`.
pub const HARDWARE_FIELDS: [&str; 8] = [
    "gpu",
    "architecture",
    "tp",
    "data_parallel_size",
    "enable_expert_parallel",
    "weights",
    "kv_cache_dtype",
    "gpu_memory_utilization",
];

fn parse_hardware(fields: &Fields) -> Result<Hardware, FieldError> {
    let precision = |field: &str| {
        let Some(value) = fields.get(field) else { return Ok(Precision::Bf16) };
        let found = Precision::NAMED.iter().find(|(name, _)| value.as_str() == Some(*name));
        let names = Precision::NAMED.map(|(name, _)| name).join(", ");
        found.map(|(_, precision)| *precision).ok_or_else(|| fields.wrong(field, names))
    };
    Hardware::new(
        fields.text("gpu")?,
        fields.text("architecture")?,
        Layout {
            tp: fields.whole("tp", 1..=64, Some(1))? as u32,
            data_parallel: fields.whole("data_parallel_size", 1..=64, Some(1))? as u32,
            expert_parallel: fields.switch("enable_expert_parallel", false)?,
        },
        (precision("weights")?, precision("kv_cache_dtype")?),
        fields.number("gpu_memory_utilization", 0.01..=1.0, 0.9)?,
    )
    .map_err(|error| {
        let field = match error.field {
            "dp" => "data_parallel_size",
            "ep" => "enable_expert_parallel",
            other => other,
        };
        fields.wrong(field, error.allowed)
    })
}

/// How a pool's replicas schedule: `engine`.
pub fn parse_engine(
    pool: &Fields,
    timing: &Timing,
    max_model_len: u32,
) -> Result<Config, FieldError> {
    let default = Config::default();
    let empty = Value::Object(serde_json::Map::new());
    let path = pool.at("engine");
    let fields = Fields::new(&path, pool.get("engine").unwrap_or(&empty), &ENGINE_FIELDS)?;
    let whole = |field: &str, least: u32, default: u32| -> Result<u32, FieldError> {
        let range = u64::from(least)..=u64::from(u32::MAX);
        Ok(fields.whole(field, range, Some(default.into()))? as u32)
    };
    let max_num_seqs =
        fields.whole("max_num_seqs", 1..=100_000, Some(default.max_num_seqs.into()))? as u32;
    let max_num_batched_tokens =
        whole("max_num_batched_tokens", 1, default.max_num_batched_tokens)?;
    // As vLLM at its start.
    if max_num_batched_tokens < max_num_seqs {
        let allowed = format!("at least max_num_seqs, {max_num_seqs}");
        let found = max_num_batched_tokens.to_string();
        return Err(FieldError { path: fields.at("max_num_batched_tokens"), found, allowed });
    }
    let block_size = fields.whole("block_size", 1..=1_024, Some(default.block_size.into()))? as u32;
    let config = Config {
        max_num_seqs,
        max_num_batched_tokens,
        block_size,
        prefix_id_tokens: block_size,
        max_model_len,
        enable_prefix_caching: fields
            .switch("enable_prefix_caching", default.enable_prefix_caching)?,
        async_scheduling: fields.switch("async_scheduling", default.async_scheduling)?,
        every_token: true,
        ..default
    };
    // As vLLM at its start: one sequence of the window must fit.
    let least = u64::from(max_model_len);
    let room = match timing {
        Timing::Linear(_) => KV_CACHE_TOKENS.max(least),
        Timing::Hardware(hardware) => {
            u64::from(hardware.kv_blocks(&config)) * u64::from(block_size)
        }
    };
    if fields.get("kv_cache_tokens").is_none() && room < least {
        let allowed = format!("at most the {room} tokens that the GPU's memory leaves");
        return Err(pool.wrong("max_model_len", allowed));
    }
    let kv_tokens =
        fields.whole("kv_cache_tokens", least..=u64::from(u32::MAX), Some(room.max(least)))?;
    // vLLM keeps one block for itself.
    let num_gpu_blocks = kv_tokens.div_ceil(block_size.into()) as u32 + 1;
    Ok(Config { num_gpu_blocks, ..config })
}
