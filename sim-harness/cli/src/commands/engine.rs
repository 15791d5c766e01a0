//! `tidegate-sim engine`.

use std::path::PathBuf;
use std::time::Instant;

use tidegate_sim::engine::{Config, Linear, Transfer};

use super::CommandError;
use super::model::PrecisionArg;
use crate::engine::{Dispatch, Plan, Split, run};
use crate::hardware::{Hardware, HardwareError, Layout, Timing};

/// Flags of `engine`. The scheduler's have the names of vLLM's.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The trace: Azure CSV or Mooncake JSON lines, plain or gzipped.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Run the trace this many times, one after the other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Replicas.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replicas: u32,
    /// Which replica a request goes to.
    #[arg(long, value_enum, default_value = "round-robin")]
    dispatch: Dispatch,
    /// Threads, at most; 0: one a core. The result is the same.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Data-parallel ranks of each replica, which step together.
    #[arg(long, default_value_t = 1)]
    data_parallel_size: u32,
    /// Split each replica: so many engines compute its prompts.
    #[arg(long, value_name = "N", requires = "decode_engines",
          conflicts_with = "data_parallel_size",
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    prefill_engines: Option<u32>,
    /// And so many its answers.
    #[arg(long, value_name = "N", requires = "prefill_engines",
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    decode_engines: Option<u32>,
    /// KV cache of one token that goes from the ones to the others, bytes.
    #[arg(long, default_value_t = Transfer::default().bytes_per_token)]
    kv_bytes_per_token: u64,
    /// The link that it goes over, bytes a second.
    #[arg(long, default_value_t = Transfer::default().bytes_per_second,
          value_parser = clap::value_parser!(u64).range(1..))]
    kv_bytes_per_second: u64,
    /// Each such transfer, milliseconds.
    #[arg(long, default_value_t = 1.0)]
    kv_latency_ms: f64,
    /// Sequences in one batch, at most.
    #[arg(long, default_value_t = Config::default().max_num_seqs)]
    max_num_seqs: u32,
    /// Tokens in one step, at most.
    #[arg(long, default_value_t = Config::default().max_num_batched_tokens)]
    max_num_batched_tokens: u32,
    /// Tokens of one KV block.
    #[arg(long, default_value_t = Config::default().block_size)]
    block_size: u32,
    /// KV blocks; vLLM keeps one of them for itself. Default: 25001, or what the
    /// GPU's memory holds.
    #[arg(long)]
    num_gpu_blocks: Option<u32>,
    /// Prompt and output tokens of one request, at most. Longer ones are refused.
    #[arg(long, default_value_t = Config::default().max_model_len)]
    max_model_len: u32,
    /// Do not keep KV blocks for later prompts.
    #[arg(long)]
    no_prefix_caching: bool,
    /// Tokens for each of the trace's hash_ids: Mooncake's are 512.
    #[arg(long, default_value_t = 512)]
    prefix_id_tokens: u32,
    /// Do not cut prompts to what is left of a step's budget.
    #[arg(long)]
    no_chunked_prefill: bool,
    /// Prompt tokens of one request in one step, at most; 0: no limit.
    #[arg(long, default_value_t = 0)]
    long_prefill_token_threshold: u32,
    /// Let a request enter when its first chunk fits, as before vLLM 0.19.
    #[arg(long)]
    no_scheduler_reserve_full_isl: bool,
    /// Compose a step only when the one before it has ended.
    #[arg(long)]
    no_async_scheduling: bool,
    /// Steps of this GPU, such as h100_sxm, instead of the figures below. The KV
    /// blocks are then what --model leaves of its memory, unless given.
    #[arg(long, value_name = "NAME", requires = "model")]
    gpu: Option<String>,
    /// The model on it, such as Llama-3.1-8B.
    #[arg(long, value_name = "NAME", requires = "gpu")]
    model: Option<String>,
    /// GPUs that split every layer.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "gpu")]
    tp: u32,
    /// Share the experts out over all GPUs instead of splitting each.
    #[arg(long, requires = "gpu")]
    enable_expert_parallel: bool,
    /// How weights are stored.
    #[arg(long, value_enum, default_value = "bf16", requires = "gpu")]
    weights: PrecisionArg,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value = "bf16", requires = "gpu")]
    kv: PrecisionArg,
    /// Each step, milliseconds.
    #[arg(long, default_value_t = 6.0)]
    step_ms: f64,
    /// Each prompt token in a step, microseconds.
    #[arg(long, default_value_t = 32.0)]
    prefill_us_per_token: f64,
    /// Each request that decodes in a step, microseconds.
    #[arg(long, default_value_t = 20.0)]
    decode_us_per_request: f64,
    /// Each token of context that it reads, nanoseconds.
    #[arg(long, default_value_t = 49.0)]
    context_ns_per_token: f64,
    /// Write a CSV line for each request here, in order of their ends.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Write running, waiting and KV use of each replica and second here, as CSV.
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn plan(self) -> Result<Plan, CommandError> {
        let transfer = Transfer {
            latency_ns: (self.kv_latency_ms * 1e6) as u64,
            bytes_per_token: self.kv_bytes_per_token,
            bytes_per_second: self.kv_bytes_per_second,
        };
        let split = self.prefill_engines.zip(self.decode_engines);
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let config = Config {
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            block_size: self.block_size,
            max_model_len: self.max_model_len,
            enable_prefix_caching: !self.no_prefix_caching,
            prefix_id_tokens: self.prefix_id_tokens,
            enable_chunked_prefill: !self.no_chunked_prefill,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            scheduler_reserve_full_isl: !self.no_scheduler_reserve_full_isl,
            async_scheduling: !self.no_async_scheduling,
            every_token: false,
            ..Config::default()
        };
        let hardware = match self.gpu.zip(self.model) {
            None => None,
            Some((gpu, model)) => {
                let precisions = (self.weights.into(), self.kv.into());
                let layout = Layout {
                    tp: self.tp,
                    data_parallel: self.data_parallel_size,
                    expert_parallel: self.enable_expert_parallel,
                };
                let found = Hardware::new(&gpu, &model, layout, precisions, 0.9);
                Some(found.map_err(|HardwareError { field, allowed }| {
                    let (flag, value) = match field {
                        "gpu" => ("--gpu", gpu),
                        "tp" => ("--tp", self.tp.to_string()),
                        "dp" => ("--data-parallel-size", self.data_parallel_size.to_string()),
                        "ep" => ("--enable-expert-parallel", "true".into()),
                        _ => ("--model", model),
                    };
                    CommandError::Flag(flag.into(), format!("found {value}; allowed: {allowed}"))
                })?)
            }
        };
        // vLLM keeps one block for itself.
        let computed = hardware.as_ref().map(|hardware| hardware.kv_blocks(&config) + 1);
        if computed == Some(1) {
            let why = format!("found {}; its weights leave no memory for a KV cache", self.tp);
            return Err(CommandError::Flag("--tp".into(), why));
        }
        let blocks = self.num_gpu_blocks.or(computed).unwrap_or(config.num_gpu_blocks);
        let linear = Linear {
            step_ns: (self.step_ms * 1e6) as u64,
            prefill_token_ns: (self.prefill_us_per_token * 1e3) as u64,
            decode_sequence_ns: (self.decode_us_per_request * 1e3) as u64,
            context_token_ns: self.context_ns_per_token as u64,
        };
        Ok(Plan {
            trace: self.trace,
            repeat: self.repeat,
            replicas: self.replicas as usize,
            ranks: self.data_parallel_size,
            split: split.map(|(prefill, decode)| Split {
                prefill: prefill as usize,
                decode: decode as usize,
                transfer,
            }),
            threads: if self.threads == 0 { cores() } else { self.threads },
            dispatch: self.dispatch,
            config: Config { num_gpu_blocks: blocks, ..config },
            // Traces have no priorities.
            by_priority: false,
            timing: hardware.map_or(Timing::Linear(linear), |h| Timing::Hardware(Box::new(h))),
            requests: self.requests,
            series: self.series,
        })
    }

    pub(super) fn run(self) -> Result<(), CommandError> {
        let (json, start) = (self.json, Instant::now());
        let report = run(&self.plan()?).map_err(CommandError::Engine)?;
        let seconds = start.elapsed().as_secs_f64();
        let text = if json { report.json().to_string() + "\n" } else { report.text() };
        super::print(&text)?;
        // Not on the standard output, which is the same each time.
        let rate = report.requests as f64 / seconds;
        eprintln!("{seconds:.3} s of real time with reading: {rate:.0} requests a second");
        Ok(())
    }
}
