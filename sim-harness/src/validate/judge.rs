//! Replays each measured run and scores it.

use super::loads::Part;
use super::ranks::Ranks;
use super::replay::{Ask, Client, replay};
use super::runs::Run;
use super::score::{Scores, equal_order, series_difference};
use crate::engine::{Config, Engine, Fcfs, Replica, StepTime};
use crate::kernels::{
    Architecture, Asked, Deployment, Execution, HostTime, Memory, Precision, Pricing, Profiles,
    find_gpu,
};

/// How the schedule itself compares to what was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Mean absolute difference of requests in batches, percent of the peak.
    pub running: Option<f64>,
    /// Of requests in queues.
    pub waiting: Option<f64>,
    /// Of the KV cache in use.
    pub kv: Option<f64>,
    /// Share of requests first scheduled in the recorded order, 0 to 1.
    pub order: f64,
}

/// One run, judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// The run's name.
    pub name: String,
    /// Where the kernels come from.
    pub source: String,
    /// The run's scores by who priced it.
    pub scores: Vec<(Pricing, Scores)>,
    /// Who could not price it, and why.
    pub without: Vec<(Pricing, String)>,
    /// Its points or stages; none for a run of single requests.
    pub parts: Vec<Part>,
    /// The schedule, where it was recorded.
    pub schedule: Option<Schedule>,
    /// Where a load curve bends: (simulated, measured) requests a second; nothing
    /// where it does not.
    pub knee: Option<(Option<f64>, Option<f64>)>,
    /// KV blocks of one engine, by part, and whether they were computed.
    pub blocks: Vec<(String, u32, bool)>,
}

const SECOND: f64 = 1e9;
/// Seconds within which ranks record the step that they take together. No step
/// is as short.
const ONE_STEP: f64 = 0.001;

pub(super) fn nanos(seconds: f64) -> u64 {
    (seconds * SECOND) as u64
}

/// Whether a version is at least this; one that is not told is new.
pub(super) fn at_least(version: &str, wanted: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= wanted,
        _ => true,
    }
}

/// The engine of a deployment: ranks that share experts step together, others do
/// not.
pub(super) fn engine<'a>(
    config: &Config,
    time: &'a dyn StepTime,
    deployment: &Deployment,
) -> Result<Box<dyn Engine + 'a>, String> {
    let replica = |ranks| {
        let replica = Replica::with_policy(config.clone(), time, ranks, || Box::new(Fcfs));
        replica.map_err(|error| error.to_string())
    };
    if deployment.ep > 1 || deployment.dp == 1 {
        return Ok(Box::new(replica(deployment.dp)?));
    }
    let engines: Result<Vec<_>, String> = (0..deployment.dp).map(|_| replica(1)).collect();
    Ok(Box::new(Ranks::new(engines?)))
}

/// Replays a run of single requests. `Err` tells why it cannot be replayed.
pub fn judge_run(run: &Run, profiles: &Profiles<'_>) -> Result<Judged, String> {
    let meta = &run.meta;
    let model = Architecture::find(&meta.model).map_err(|error| format!("model: {error}"))?;
    let weights = match meta.dtype.as_str() {
        "fp8" => Precision::Fp8,
        _ => Precision::Bf16,
    };
    // Without expert parallelism too the experts are split over all ranks' GPUs.
    let shared = model.experts.is_some() && (meta.ep || meta.dp > 1);
    let ep = if shared { meta.tp * meta.dp } else { 1 };
    let deployment =
        Deployment { tp: meta.tp, dp: meta.dp, ep, weights, ..Deployment::new(model, meta.tp) };
    deployment.check().map_err(|error| error.to_string())?;
    let longest = run.requests.iter().map(|r| r.input + r.output).max().unwrap_or(2).max(2);
    let computed = || {
        let gpu = find_gpu(&meta.hardware, profiles.gpus)?;
        Some(deployment.kv_blocks(&Memory {
            bytes: gpu.memory,
            utilization: 0.9,
            batched_tokens: meta.max_num_batched_tokens,
            seats: meta.max_num_seqs,
            block: meta.block_size,
        }))
    };
    let Some(blocks) = meta.num_gpu_blocks.or_else(computed) else {
        return Err(format!("no block count, and the memory of {:?} is unknown", meta.hardware));
    };
    let execution = Execution::vllm(meta.max_num_batched_tokens, meta.max_num_seqs, longest);
    let is_async = at_least(&meta.version, (0, 14));
    let host = HostTime::vllm(is_async, meta.tp, if ep > 1 { meta.dp } else { 1 });
    let config = Config {
        max_num_seqs: meta.max_num_seqs,
        max_num_batched_tokens: meta.max_num_batched_tokens,
        block_size: meta.block_size,
        prefix_id_tokens: meta.block_size,
        num_gpu_blocks: blocks,
        max_model_len: longest,
        enable_prefix_caching: true,
        scheduler_reserve_full_isl: at_least(&meta.version, (0, 19)),
        async_scheduling: is_async,
        ..Config::default()
    };
    let asks: Vec<Ask<'_>> = run
        .requests
        .iter()
        .map(|r| Ask { at: nanos(r.arrival), input: r.input, output: r.output, blocks: &r.blocks })
        .collect();
    let instants: Vec<u64> = run.series.iter().map(|second| nanos(second.t)).collect();
    let mut judged = Judged { name: meta.run.clone(), ..Judged::default() };
    judged.blocks.push((String::new(), blocks, meta.num_gpu_blocks.is_none()));
    let asked = Asked { gpu: &meta.hardware, deployment, execution, host };
    for pricing in Pricing::ALL {
        let priced = match profiles.price(&asked, pricing) {
            Ok(priced) => priced,
            Err(error) if pricing == Pricing::Model => return Err(error.to_string()),
            Err(error) => {
                judged.without.push((pricing, error.to_string()));
                continue;
            }
        };
        let mut engine = engine(&config, priced.time.as_ref(), &deployment)?;
        let replayed = replay(engine.as_mut(), Client::default(), &asks, &instants);
        let mut scores = Scores::default();
        let mut order = Vec::new();
        for (outcome, measured) in replayed.outcomes.iter().zip(&run.requests) {
            let Some(outcome) = outcome else { continue };
            scores.ttft.add(outcome.ttft(), measured.first_token - measured.arrival);
            scores.e2e.add(outcome.e2e(), measured.last_token - measured.arrival);
            if measured.output > 1 {
                let later = f64::from(measured.output - 1);
                let tpot = (measured.last_token - measured.first_token) / later;
                scores.tpot.add(outcome.tpot(), tpot);
            }
            order.push((outcome.scheduled as f64, measured.scheduled));
        }
        let tokens: f64 = run.requests.iter().map(|r| f64::from(r.output)).sum();
        let first = run.requests.iter().map(|r| r.arrival).fold(f64::INFINITY, f64::min);
        let last = run.requests.iter().map(|r| r.last_token).fold(0.0, f64::max);
        scores.throughput.add(tokens / replayed.makespan(), tokens / (last - first));
        judged.scores.push((pricing, scores));
        if pricing == Pricing::Model {
            judged.source = priced.source;
            let series = |pick: &dyn Fn(usize) -> Option<(f64, f64)>| {
                series_difference((0..run.series.len()).filter_map(pick))
            };
            let pair = |i: usize| Some((replayed.series.get(i)?, run.series.get(i)?));
            judged.schedule = Some(Schedule {
                running: series(&|i| pair(i).map(|(s, r)| (s.running as f64, r.running))),
                waiting: series(&|i| pair(i).map(|(s, r)| (s.waiting as f64, r.waiting))),
                kv: series(&|i| pair(i).map(|(s, r)| (s.kv_usage() * 100.0, r.kv_percent))),
                order: equal_order(&order, ONE_STEP),
            });
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(at_least("0.19.0", (0, 14)) && at_least("1.0", (0, 14)));
        assert!(!at_least("0.9.1", (0, 14)));
        assert!(at_least("", (0, 14)) && at_least("nightly-5b8c", (0, 14)));
    }
}
