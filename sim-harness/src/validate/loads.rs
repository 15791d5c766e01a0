//! Replays points of a closed loop and stages of a load curve.

use super::curve::{Curve, Stage, knee};
use super::judge::{Judged, at_least, engine, nanos};
use super::load::{self, Loop, open_loop};
use super::points::Point;
use super::replay::{Ask, Client, Outcome, Replayed, replay};
use super::score::Scores;
use crate::engine::Config;
use crate::kernels::{
    Architecture, Asked, Deployment, Execution, HostTime, Memory, Pricing, Profiles, find_gpu,
    plain_name,
};

/// One point or stage, replayed: what was measured and what came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Which.
    pub name: String,
    /// (simulated, measured) milliseconds to the first token.
    pub ttft: (f64, f64),
    /// Milliseconds of a later token.
    pub tpot: (f64, f64),
    /// Milliseconds from sending to the last token.
    pub e2e: (f64, f64),
    /// Requests a second.
    pub throughput: (f64, f64),
}

impl Part {
    fn add_to(&self, scores: &mut Scores) {
        scores.ttft.add(self.ttft.0, self.ttft.1);
        scores.tpot.add(self.tpot.0, self.tpot.1);
        scores.e2e.add(self.e2e.0, self.e2e.1);
        scores.throughput.add(self.throughput.0, self.throughput.1);
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

/// What a point's server was.
struct Server {
    config: Config,
    deployment: Deployment,
    execution: Execution,
    host: HostTime,
    computed: bool,
}

fn server(point: &Point, profiles: &Profiles<'_>) -> Result<Server, String> {
    if point.backend != "vllm" {
        return Err(format!("the engine is {}; only vLLM's scheduler is modelled", point.backend));
    }
    if point.mode != "agg" || point.tp == 0 {
        return Err("prompts and answers on different GPUs: their split is not modelled".into());
    }
    if point.concurrency == 0 {
        return Err("the requests in flight are not told".into());
    }
    if point.pp > 1 {
        return Err("pipeline stages are not modelled".into());
    }
    let model = Architecture::find(&point.model).map_err(|error| format!("model: {error}"))?;
    let Some(weights) = point.weights() else {
        return Err(format!("precision {:?}; allowed: bf16, fp8", point.precision));
    };
    let ep = if model.experts.is_some() { point.ep } else { 1 };
    let deployment = Deployment { dp: point.dp, ep, weights, ..Deployment::new(model, point.tp) };
    deployment.check().map_err(|error| error.to_string())?;
    let gpu = find_gpu(&point.system, profiles.gpus)
        .ok_or_else(|| format!("no data sheet of {:?}", point.system))?;
    let longest = point.input + point.output;
    let seats = point.concurrency.div_ceil(point.dp);
    let budget = 8_192;
    let blocks = deployment.kv_blocks(&Memory {
        bytes: gpu.memory,
        utilization: 0.9,
        batched_tokens: budget,
        seats,
        block: 16,
    });
    // InferenceX turns it on; others have it since it is vLLM's default.
    let is_async = !point.date.is_empty() || at_least(&point.version, (0, 14));
    let config = Config {
        max_num_seqs: seats,
        max_num_batched_tokens: budget,
        num_gpu_blocks: blocks,
        max_model_len: longest,
        enable_prefix_caching: false,
        scheduler_reserve_full_isl: at_least(&point.version, (0, 19)) && !point.version.is_empty(),
        async_scheduling: is_async,
        ..Config::default()
    };
    config.check().map_err(|error| error.to_string())?;
    let execution = Execution::vllm(budget, seats, longest);
    Ok(Server {
        config,
        deployment,
        execution,
        host: HostTime::vllm(is_async, point.tp, if ep > 1 { point.dp } else { 1 }),
        computed: true,
    })
}

fn play_point(
    point: &Point,
    server: &Server,
    profiles: &Profiles<'_>,
    pricing: Pricing,
) -> Result<(Part, String), String> {
    let asked = Asked {
        gpu: &point.system,
        deployment: server.deployment,
        execution: server.execution.clone(),
        host: server.host,
    };
    let priced = profiles.price(&asked, pricing).map_err(|error| error.to_string())?;
    let mut engine = engine(&server.config, priced.time.as_ref(), &server.deployment)?;
    // Points with a date are InferenceX's.
    let kind = if point.date.is_empty() { Loop::STEADY } else { Loop::INFERENCE_X };
    let lengths = kind.requests(point.input, point.output, point.concurrency);
    let asks: Vec<Ask<'_>> = lengths
        .iter()
        .map(|(input, output)| Ask { at: 0, input: *input, output: *output, blocks: &[] })
        .collect();
    let places = point.concurrency as usize;
    let client = if pricing == Pricing::Model { Client::api() } else { Client::default() };
    let replayed =
        replay(engine.as_mut(), Client { in_flight: Some(places), ..client }, &asks, &[]);
    let warm = (kind.warm * point.concurrency) as usize;
    let later = mean(lengths.iter().skip(warm).map(|l| f64::from(l.1))) - 1.0;
    let figures = |ttft: f64, tpot: f64| {
        let e2e = ttft + tpot * later;
        (e2e, f64::from(point.concurrency) / e2e * 1e3)
    };
    let outcomes = || replayed.outcomes.iter().skip(warm).flatten();
    let ttft = mean(outcomes().map(Outcome::ttft)) * 1e3;
    let tpot = mean(outcomes().map(Outcome::tpot)) * 1e3;
    let (simulated, measured) = (figures(ttft, tpot), figures(point.ttft_ms, point.tpot_ms));
    let name = format!("tp{} {}/{} c{}", point.tp, point.input, point.output, point.concurrency);
    Ok((
        Part {
            name,
            ttft: (ttft, point.ttft_ms),
            tpot: (tpot, point.tpot_ms),
            e2e: (simulated.0, measured.0),
            throughput: (simulated.1, measured.1),
        },
        priced.source,
    ))
}

/// Names of runs, and why they cannot be replayed.
pub type NotReplayed = Vec<(String, String)>;

fn group_name(point: &Point) -> String {
    let model = point.model.rsplit('/').next().unwrap_or(&point.model);
    let words = [
        point.backend.as_str(),
        point.version.as_str(),
        model,
        point.system.as_str(),
        point.precision.as_str(),
        if point.mode == "agg" { "" } else { point.mode.as_str() },
    ];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Replays points, those of one model on one kind of GPU as one run.
pub fn judge_points(
    points: &[Point],
    profiles: &Profiles<'_>,
    wanted: &dyn Fn(&str) -> bool,
) -> (Vec<Judged>, NotReplayed) {
    let mut names: Vec<String> = points.iter().map(group_name).collect();
    names.sort();
    names.dedup();
    let (mut judged, mut not) = (Vec::new(), Vec::new());
    for name in names.into_iter().filter(|name| wanted(name)) {
        let group = points.iter().filter(|point| group_name(point) == name);
        let mut run = Judged { name: name.clone(), ..Judged::default() };
        let mut reasons: Vec<(String, u32)> = Vec::new();
        let mut scores = vec![Scores::default(); Pricing::ALL.len()];
        let mut failed: Vec<Option<String>> = vec![None; Pricing::ALL.len()];
        for point in group {
            let server = match server(point, profiles) {
                Ok(server) => server,
                Err(reason) => {
                    match reasons.iter_mut().find(|(known, _)| *known == reason) {
                        Some((_, count)) => *count += 1,
                        None => reasons.push((reason, 1)),
                    }
                    continue;
                }
            };
            for (index, pricing) in Pricing::ALL.into_iter().enumerate() {
                match play_point(point, &server, profiles, pricing) {
                    Ok((part, source)) => {
                        if let Some(scores) = scores.get_mut(index) {
                            part.add_to(scores);
                        }
                        if pricing == Pricing::Model {
                            run.source = source;
                            run.blocks.push((
                                part.name.clone(),
                                server.config.num_gpu_blocks,
                                server.computed,
                            ));
                            run.parts.push(part);
                        }
                    }
                    Err(reason) => {
                        if let Some(slot) = failed.get_mut(index) {
                            *slot = Some(reason);
                        }
                    }
                }
            }
        }
        for (reason, count) in reasons {
            not.push((format!("{name} ({count} points)"), reason));
        }
        for ((pricing, scores), failed) in Pricing::ALL.into_iter().zip(scores).zip(failed) {
            match failed {
                Some(reason) if scores.tpot.is_empty() => run.without.push((pricing, reason)),
                _ => run.scores.push((pricing, scores)),
            }
        }
        if !run.parts.is_empty() {
            judged.push(run);
        }
    }
    (judged, not)
}

/// A curve whose server cannot be told, or has what is not modelled.
fn curve_server(
    curve: &Curve,
    file: &str,
    profiles: &Profiles<'_>,
) -> Result<(Server, String), String> {
    let seats = curve.max_num_seqs.ok_or("max_num_seqs is not told")?;
    if curve.variant.contains("quantization") {
        return Err("how it was quantised is not told".into());
    }
    // The file's name tells the model and the GPU.
    let words: Vec<String> = file.split(['_', '.', ' ']).map(str::to_ascii_lowercase).collect();
    let named =
        || words.iter().find_map(|word| find_gpu(word, profiles.gpus).filter(|_| word.len() > 2));
    let gpu = named().ok_or("the file's name tells no GPU")?;
    let plain = plain_name(file);
    let model =
        crate::kernels::MODELS.iter().filter(|model| plain.contains(&plain_name(model.name)));
    let model =
        model.max_by_key(|model| model.name.len()).ok_or("the file's name tells no model")?;
    let deployment = Deployment::new(model, 1);
    let (longest, budget) = (512, if curve.chunked_prefill { 2_048 } else { 8_192 });
    let blocks = deployment.kv_blocks(&Memory {
        bytes: gpu.memory,
        utilization: 0.9,
        batched_tokens: budget,
        seats,
        block: 16,
    });
    let config = Config {
        max_num_seqs: seats,
        max_num_batched_tokens: budget,
        num_gpu_blocks: blocks,
        max_model_len: longest,
        enable_prefix_caching: curve.prefix_caching,
        enable_chunked_prefill: curve.chunked_prefill,
        scheduler_reserve_full_isl: false,
        async_scheduling: false,
        ..Config::default()
    };
    config.check().map_err(|error| error.to_string())?;
    let execution = Execution::vllm(budget, seats, longest);
    let server =
        Server { config, deployment, execution, host: HostTime::vllm(false, 1, 1), computed: true };
    Ok((server, gpu.name))
}

/// Requests in flight that the curves' client allows: 44 workers of 10.
const IN_FLIGHT: usize = 440;

fn play_stage(
    stage: &Stage,
    server: &Server,
    gpu: &str,
    profiles: &Profiles<'_>,
    pricing: Pricing,
) -> Result<(Part, String), String> {
    let asked = Asked {
        gpu,
        deployment: server.deployment,
        execution: server.execution.clone(),
        host: server.host,
    };
    let priced = profiles.price(&asked, pricing).map_err(|error| error.to_string())?;
    let mut engine = engine(&server.config, priced.time.as_ref(), &server.deployment)?;
    let input = libm::round(stage.input) as u32;
    // The tool counts tokens of the text again; the server was asked for a round
    // number.
    let output = libm::ceil(stage.output / 8.0) as u32 * 8;
    let prompts: Vec<Vec<u64>> = (0..load::PROMPTS).map(|p| load::blocks(p, input)).collect();
    let of = |prompt: usize| prompts.get(prompt).map_or(&[][..], Vec::as_slice);
    // Each prompt once, as the stages before have asked them.
    let warm = (0..load::PROMPTS).map(|prompt| (0.1 * prompt as f64, prompt));
    let start = 0.1 * load::PROMPTS as f64 + 5.0;
    let offered = open_loop(stage.offered, stage.requests);
    let all = warm.chain(offered.iter().map(|offered| (start + offered.at, offered.prompt)));
    let asks: Vec<Ask<'_>> =
        all.map(|(at, prompt)| Ask { at: nanos(at), input, output, blocks: of(prompt) }).collect();
    let client = if pricing == Pricing::Model { Client::api() } else { Client::default() };
    let client = Client { in_flight: Some(IN_FLIGHT), ..client };
    let mut replayed = replay(engine.as_mut(), client, &asks, &[]);
    replayed.outcomes.drain(..load::PROMPTS);
    let Replayed { outcomes, .. } = &replayed;
    let ended = || outcomes.iter().flatten();
    let ttft = mean(ended().map(Outcome::ttft)) * 1e3;
    let e2e = mean(ended().map(Outcome::e2e)) * 1e3;
    let achieved = ended().count() as f64 / replayed.makespan();
    let tpot = (e2e - ttft) / (stage.output - 1.0).max(1.0);
    Ok((
        Part {
            name: format!("{} rps", stage.offered),
            ttft: (ttft, stage.ttft_ms),
            tpot: (tpot, stage.tpot_ms),
            e2e: (e2e, stage.e2e_ms),
            throughput: (achieved, stage.achieved),
        },
        priced.source,
    ))
}

/// Replays one curve of a file.
pub fn judge_curve(curve: &Curve, file: &str, profiles: &Profiles<'_>) -> Result<Judged, String> {
    let (server, gpu) = curve_server(curve, file, profiles)?;
    let mut run = Judged { name: format!("{file} {}", curve.variant), ..Judged::default() };
    run.blocks.push((String::new(), server.config.num_gpu_blocks, server.computed));
    for pricing in Pricing::ALL {
        let mut scores = Scores::default();
        let mut parts = Vec::new();
        let mut failed = None;
        for stage in &curve.stages {
            match play_stage(stage, &server, &gpu, profiles, pricing) {
                Ok((part, source)) => {
                    part.add_to(&mut scores);
                    if pricing == Pricing::Model {
                        run.source = source;
                    }
                    parts.push(part);
                }
                Err(reason) => failed = Some(reason),
            }
        }
        if let Some(reason) = failed {
            if pricing == Pricing::Model {
                return Err(reason);
            }
            run.without.push((pricing, reason));
            continue;
        }
        run.scores.push((pricing, scores));
        if pricing == Pricing::Model {
            let offered = || curve.stages.iter().map(|stage| stage.offered);
            let simulated = knee(offered().zip(parts.iter().map(|part| part.throughput.0)));
            let measured = knee(offered().zip(parts.iter().map(|part| part.throughput.1)));
            run.knee = Some((simulated, measured));
            run.parts = parts;
        }
    }
    Ok(run)
}
