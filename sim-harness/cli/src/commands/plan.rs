//! `tidegate-sim plan`.

use std::path::PathBuf;
use std::time::Instant;

use tidegate_sim::kernels::{Deployment, Gpu, find_gpu};
use tidegate_sim::plan::{Effort, PlanError, Price, Question, Slo, Source, load_curves, plan};
use tidegate_sim::workload::{CapPolicy, Lengths, Trace, parse_trace};

use super::CommandError;
use super::model::ModelArgs;
use super::out::{self, OutArgs};
use crate::files;
use crate::plan::with_threads;
use crate::replay::Synthetic;

/// Flags of `plan`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How long requests are: Azure CSV, Mooncake JSON lines or a distribution,
    /// plain or gzipped. Its times are not used.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "lengths",
        conflicts_with = "lengths"
    )]
    trace: Option<PathBuf>,
    /// A published distribution instead.
    #[arg(long, value_name = "azure|lmsys|agent")]
    lengths: Option<Synthetic>,
    #[command(flatten)]
    model: ModelArgs,
    /// Share the experts out over a replica's GPUs instead of splitting each.
    #[arg(long)]
    enable_expert_parallel: bool,
    /// The engine's share of a GPU's memory.
    #[arg(long, default_value_t = 0.9)]
    gpu_memory_utilization: f64,
    /// The longest prompt and answer that the fleet must take, tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    max_model_len: u32,
    /// Requests a second.
    #[arg(long, value_name = "R")]
    rate: f64,
    /// Burstiness of arrivals: 1 is a Poisson process.
    #[arg(long, default_value_t = 1.0)]
    cv: f64,
    /// Which caps clients name: none, actual, or a ladder of round numbers.
    #[arg(long, default_value = "ladder")]
    caps: CapPolicy,
    /// 99 of 100 of all requests have their first token within so many seconds.
    #[arg(long, value_name = "SECONDS")]
    slo_ttft_p99: f64,
    /// 99 of 100 have so many seconds between tokens, or less.
    #[arg(long, value_name = "SECONDS")]
    slo_tpot_p99: f64,
    /// Pools at most.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    pools: u32,
    /// Prices of GPUs: CSV with gpu,usd_per_hour,date,source.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Seed of all that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Seeds that the answer has to hold for.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=20))]
    seeds: u64,
    /// Requests of one simulation, about: the rate is scaled down to that.
    #[arg(long, value_name = "N", default_value_t = Effort::default().requests,
          value_parser = clap::value_parser!(u64).range(500..=10_000_000))]
    requests: u64,
    /// Thresholds to try.
    #[arg(long, value_name = "N", default_value_t = Effort::default().thresholds as u64,
          value_parser = clap::value_parser!(u64).range(1..=9))]
    thresholds: u64,
    /// Rates at which the answer is sized again, as factors of the asked one.
    #[arg(long, value_name = "F,F,...", value_delimiter = ',', default_values_t = [0.7, 1.3])]
    rates: Vec<f64>,
    /// Neither the full rate nor other rates and lengths.
    #[arg(long)]
    no_verify: bool,
    /// Threads, at most; 0: one a core. The plan is the same.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    out: OutArgs,
}

impl Args {
    fn question(&self) -> Result<Question, CommandError> {
        let wrong = |flag, why: String| CommandError::Flag(flag, why);
        let lengths = match (&self.trace, self.lengths) {
            (Some(path), _) => {
                let bytes = files::read(path).map_err(|e| CommandError::File("--trace", e))?;
                match parse_trace(&bytes).map_err(|e| wrong("--trace", e.to_string()))? {
                    Trace::Timed(requests) => Source::Trace(requests.into()),
                    Trace::Totals(cdf) => Source::Drawn(Lengths::from_total(cdf)),
                }
            }
            (None, named) => Source::Drawn(named.unwrap_or(Synthetic::Azure).lengths()),
        };
        let ModelArgs { gpu: name, tp, .. } = &self.model;
        let gpu = find_gpu(name, &[]).ok_or_else(|| {
            let known: Vec<String> = Gpu::all().into_iter().map(|gpu| gpu.name).collect();
            wrong("--gpu", format!("found {name:?}; allowed: {}", known.join(", ")))
        })?;
        let ep = if self.enable_expert_parallel { *tp } else { 1 };
        let deployment = Deployment { ep, ..self.model.deployment()? };
        Ok(Question {
            lengths,
            caps: self.caps,
            cv: self.cv,
            rate: self.rate,
            slo: Slo { ttft_p99: self.slo_ttft_p99, tpot_p99: self.slo_tpot_p99 },
            gpu,
            deployment,
            utilization: self.gpu_memory_utilization,
            window: self.max_model_len,
            pools: self.pools,
            seed: self.seed,
            effort: Effort {
                requests: self.requests,
                seeds: self.seeds,
                thresholds: self.thresholds as usize,
                tune: true,
                verify: !self.no_verify,
                rates: self.rates.clone(),
            },
        })
    }

    pub(super) fn run(self) -> Result<(), CommandError> {
        let prices = match &self.prices {
            None => Vec::new(),
            Some(path) => {
                let text = files::read_text(path).map_err(|e| CommandError::File("--prices", e))?;
                Price::parse(&text).map_err(|e| CommandError::Flag("--prices", e.to_string()))?
            }
        };
        let question = self.question()?;
        let start = Instant::now();
        let mut progress = |what: &str| {
            eprintln!("{:6.1} s: {what}", start.elapsed().as_secs_f64());
        };
        let plan = with_threads(self.threads, |runner| plan(question, runner, &mut progress));
        let plan = plan.map_err(|error| match error {
            PlanError::Question(field, why) => CommandError::Flag(flag(field), why),
            other => CommandError::Plan(other),
        })?;
        if let Some(folder) = &self.out.out {
            progress("the fleets at other rates");
            let load = with_threads(self.threads, |runner| load_curves(&plan, runner));
            let load = load.map_err(CommandError::Plan)?;
            let page = plan.page(&prices, &load);
            out::write(folder, &page.files(plan.page_json(&prices, &load)))?;
        }
        let text =
            if self.json { format!("{:#}\n", plan.json(&prices)) } else { plan.text(&prices) };
        super::print(&text)?;
        // Not on the standard output, which is the same each time.
        eprintln!("{:.1} s of real time", start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// The flag behind a part of a question.
fn flag(field: &str) -> &'static str {
    match field {
        "rate" => "--rate",
        "slo_ttft_p99" => "--slo-ttft-p99",
        "slo_tpot_p99" => "--slo-tpot-p99",
        "cv" => "--cv",
        "gpu" => "--gpu",
        "tp" => "--tp",
        "trace" => "--trace",
        "gpu_memory_utilization" => "--gpu-memory-utilization",
        "max_model_len" => "--max-model-len",
        "rates" => "--rates",
        _ => "--pools",
    }
}
