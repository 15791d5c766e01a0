//! `tidegate-sim plan`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use tidegate_sim::plan::{
    Ask, Effort, POOLS, PlanError, Stage, UTILIZATION, WINDOW, load_curves, plan,
};

use super::CommandError;
use super::model::ModelArgs;
use super::out::{self, OutArgs};
use crate::files;
use crate::plan::with_threads;
use crate::progress;

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
    lengths: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// Share the experts out over a replica's GPUs instead of splitting each.
    #[arg(long)]
    enable_expert_parallel: bool,
    /// The engine's share of a GPU's memory.
    #[arg(long, default_value_t = UTILIZATION)]
    gpu_memory_utilization: f64,
    /// The longest prompt and answer that the fleet must take, tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = WINDOW)]
    max_model_len: u32,
    /// Requests a second.
    #[arg(long, value_name = "R")]
    rate: f64,
    /// Burstiness of arrivals: 1 is a Poisson process.
    #[arg(long, default_value_t = 1.0)]
    cv: f64,
    /// Which caps clients name: none, actual, or a ladder of round numbers.
    #[arg(long, default_value = "ladder")]
    caps: String,
    /// 99 of 100 of all requests have their first token within so many seconds.
    #[arg(long, value_name = "SECONDS")]
    slo_ttft_p99: f64,
    /// 99 of 100 have so many seconds between tokens, or less.
    #[arg(long, value_name = "SECONDS")]
    slo_tpot_p99: f64,
    /// Pools at most.
    #[arg(long, default_value_t = POOLS)]
    pools: u32,
    /// Prices of GPUs: CSV with gpu,usd_per_hour,date,source.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Seed of all that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Seeds that the answer has to hold for.
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
    /// Requests of one simulation, about: the rate is scaled down to that.
    #[arg(long, value_name = "N", default_value_t = Effort::default().requests)]
    requests: u64,
    /// Thresholds to try.
    #[arg(long, value_name = "N", default_value_t = Effort::default().thresholds as u64)]
    thresholds: u64,
    /// Rates at which the answer is sized again, as factors of the asked one.
    #[arg(long, value_name = "F,F,...", value_delimiter = ',', default_values_t = [0.7, 1.3])]
    rates: Vec<f64>,
    /// Seconds of requests that count in the check at the full rate, at least.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    check_seconds: f64,
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
    /// The flags as the document that the library reads.
    fn document(&self) -> Result<Value, CommandError> {
        let ModelArgs { model, gpu, tp, .. } = &self.model;
        let [weights, kv] = self.model.precisions();
        let mut document = json!({
            "model": model, "gpu": gpu, "tp": tp, "weights": weights, "kv": kv,
            "enable_expert_parallel": self.enable_expert_parallel,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "max_model_len": self.max_model_len,
            "rate": self.rate, "cv": self.cv, "caps": self.caps,
            "slo_ttft_p99": self.slo_ttft_p99, "slo_tpot_p99": self.slo_tpot_p99,
            "pools": self.pools, "seed": self.seed, "seeds": self.seeds,
            "requests": self.requests, "thresholds": self.thresholds,
            "rates": self.rates, "verify": !self.no_verify,
            "check_seconds": self.check_seconds,
        });
        let mut put = |field: &str, text: String| {
            if let Some(fields) = document.as_object_mut() {
                fields.insert(field.into(), text.into());
            }
        };
        if let Some(path) = &self.trace {
            let bytes = files::read(path).map_err(|e| CommandError::File("--trace", e))?;
            put("trace", String::from_utf8_lossy(&bytes).into_owned());
        }
        if let Some(name) = &self.lengths {
            put("lengths", name.clone());
        }
        if let Some(path) = &self.prices {
            let text = files::read_text(path).map_err(|e| CommandError::File("--prices", e))?;
            put("prices", text);
        }
        Ok(document)
    }

    pub(super) fn run(self) -> Result<(), CommandError> {
        let failed = |error| match error {
            PlanError::Question(field, why) => CommandError::Flag(flag(field), why),
            other => CommandError::Plan(other),
        };
        let Ask { question, prices } = Ask::parse(&self.document()?).map_err(failed)?;
        let start = Instant::now();
        let mut bar = None;
        let mut progress = |stage: &Stage<'_>| {
            if let Some(bar) = bar.get_or_insert_with(|| progress::stages(stage.of)) {
                bar.set_position(stage.done.into());
                bar.set_message(stage.what.to_owned());
            } else {
                let (seconds, Stage { done, of, what }) = (start.elapsed().as_secs_f64(), stage);
                eprintln!("{seconds:6.1} s, {} of {of}: {what}", done + 1);
            }
        };
        let plan = with_threads(self.threads, |runner| plan(question, runner, &mut progress));
        if let Some(Some(bar)) = bar {
            bar.finish_and_clear();
        }
        let plan = plan.map_err(failed)?;
        if let Some(folder) = &self.out.out {
            eprintln!("{:6.1} s: the fleets at other rates", start.elapsed().as_secs_f64());
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
fn flag(field: &str) -> Cow<'static, str> {
    format!("--{}", field.replace('_', "-")).into()
}
