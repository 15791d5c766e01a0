//! `tidegate-sim step`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tidegate_sim::engine::{Chunk, Work};
use tidegate_sim::kernels::{Asked, Deployment, Execution, Explained, HostTime, Pricing, find_gpu};

use super::CommandError;
use super::model::ModelArgs;
use crate::validate::{self, Timings};

/// Flags of `step`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// GPUs that share the experts out; 1 splits each expert by --tp.
    #[arg(long, value_name = "N", default_value_t = 1)]
    ep: u32,
    /// Attention replicas, each with a step like this one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    dp: u32,
    /// Prompt tokens that the step computes: one sequence's, or several, as
    /// 512,256. 0 is none.
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "0")]
    prefill: Vec<u32>,
    /// Tokens of those sequences that were computed before.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    cached: u32,
    /// Sequences that decode.
    #[arg(long, value_name = "N", default_value_t = 0)]
    decode: u32,
    /// Their mean context.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: u32,
    /// Kernel timings to take instead of the shipped fits: a folder as for
    /// validate.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Take the data sheet's peaks instead of kernels' times.
    #[arg(long, conflicts_with = "profiles")]
    roofline: bool,
    /// The schedule is made between steps, not during them, as before vLLM 0.14.
    #[arg(long)]
    synchronous: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let wrong = |flag: &'static str, why: String| CommandError::Flag(flag.into(), why);
        let deployment = Deployment { ep: self.ep, dp: self.dp, ..self.model.deployment()? };
        deployment.check().map_err(|e| wrong("the layout", e.to_string()))?;
        let chunks = self.prefill.iter().filter(|new| **new > 0);
        let chunks: Vec<Chunk> =
            chunks.map(|new| Chunk { new: *new, context: self.cached }).collect();
        let work = Work {
            prefill: &chunks,
            decode: self.decode,
            decode_context: u64::from(self.decode) * u64::from(self.context),
            decode_context_max: self.context,
            sampled: self.decode + chunks.len() as u32,
            admitted: chunks.len() as u32,
        };
        let tokens = work.tokens();
        if tokens == 0 || tokens > 1 << 20 {
            let why = format!("found {tokens} tokens together; allowed: 1 to 1048576");
            return Err(wrong("--prefill and --decode", why));
        }
        let timings = match &self.profiles {
            Some(folder) => validate::read_timings(folder, &[&self.model.gpu])
                .map_err(CommandError::Validate)?,
            None => Timings::default(),
        };
        let seats = self.decode.max(256);
        let longest = self.context.max(self.cached + tokens as u32);
        let asked = Asked {
            gpu: &self.model.gpu,
            deployment,
            execution: Execution::vllm(tokens.max(2_048) as u32, seats, longest),
            host: HostTime::vllm(!self.synchronous, self.model.tp, self.dp),
        };
        let pricing = if self.roofline { Pricing::Roofline } else { Pricing::Model };
        let (explained, source) = timings
            .with_profiles(|profiles| profiles.explain(&asked, pricing, &work))
            .map_err(|e| wrong("--gpu", e.to_string()))?;
        let gpu = find_gpu(&self.model.gpu, timings.gpus())
            .map_or(self.model.gpu.clone(), |gpu| gpu.name);
        let head =
            Head { model: deployment.model.name, gpu: &gpu, tp: self.model.tp, source: &source };
        super::print(&if self.json { head.json(&explained) } else { head.text(&explained) })
    }
}

struct Head<'a> {
    model: &'a str,
    gpu: &'a str,
    tp: u32,
    source: &'a str,
}

/// A family's name and its microseconds, the host last.
fn parts(explained: &Explained) -> impl Iterator<Item = (&'static str, f64)> {
    explained.gpu.parts().into_iter().chain([("host", explained.host)])
}

impl Head<'_> {
    fn json(&self, explained: &Explained) -> String {
        let round = |x: f64| (x * 1e3).round() / 1e3;
        let families: Map<String, Value> =
            parts(explained).map(|(name, us)| (name.into(), json!(round(us)))).collect();
        let document = json!({
            "model": self.model,
            "gpu": self.gpu,
            "tp": self.tp,
            "kernels": self.source,
            "graph": explained.graph,
            "families_us": families,
            "total_us": round(explained.total()),
        });
        format!("{document:#}\n")
    }

    fn text(&self, explained: &Explained) -> String {
        let total = explained.total();
        let mut out = String::new();
        let graph = if explained.graph { "one CUDA graph" } else { "launched piece by piece" };
        let Self { model, gpu, tp, source } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{model} on {gpu}, tp {tp}; kernels: {source}; {graph}\n");
        let _ = writeln!(out, "{:<18}{:>12}{:>8}", "family", "us", "share");
        for (name, us) in parts(explained).filter(|(_, us)| *us > 0.0) {
            let _ = writeln!(out, "{name:<18}{us:>12.1}{:>7.1}%", us / total * 100.0);
        }
        let _ = writeln!(out, "{:<18}{total:>12.1}{:>7.1}%", "step", 100.0);
        out
    }
}
