//! `tidegate-sim replay`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_sim::workload::CapPolicy;

use super::CommandError;
use crate::files;
use crate::interrupt::Interrupt;
use crate::progress;
use crate::replay::{self, Options, Report, Source, Style, Synthetic, Windows, Workload};
use crate::tokenizer::Tokenizer;

/// Flags of `replay`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["trace", "synthetic"]))]
pub(super) struct Args {
    /// The gateway, such as http://127.0.0.1:10000.
    #[arg(long, value_name = "URL")]
    gateway: String,
    /// A trace: Azure CSV, Mooncake JSON lines or a length distribution in
    /// JSON, plain or gzipped.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A published distribution: azure, lmsys or agent.
    #[arg(long, value_name = "NAME")]
    synthetic: Option<Synthetic>,
    /// Requests to send [default: the whole trace; 300 of a distribution].
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Poisson arrivals, a second [default: the trace's own times; 10 for a
    /// distribution].
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Fixes everything that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The clients' max_tokens: none, actual or ladder.
    #[arg(long, value_name = "POLICY", default_value = "ladder")]
    caps: CapPolicy,
    /// Send so many times faster.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    speedup: f64,
    /// Share of streamed answers, 0 to 1.
    #[arg(long, value_name = "F", default_value_t = 0.5, value_parser = share)]
    stream_share: f64,
    /// Share of the streams that ask for usage, 0 to 1.
    #[arg(long, value_name = "F", default_value_t = 0.8, value_parser = share)]
    usage_share: f64,
    /// The model that requests name.
    #[arg(long, value_name = "NAME", default_value = "sim-model")]
    model: String,
    /// The tokenizer that the pools count by: cl100k_base or o200k_base.
    #[arg(long, value_name = "NAME", default_value = "cl100k_base", value_parser = tokenizer)]
    tokenizer: String,
    /// The gateway's configuration, to judge misroutes by: the Tidegate JSON, or
    /// an envoy.yaml that holds it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds that one request may take, 1 to 86400.
    #[arg(long, value_name = "S", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found {text:?}; allowed: a number, 0 to 1"))
}

fn tokenizer(text: &str) -> Result<String, String> {
    text.parse::<Tokenizer>().map(|found| found.name().into()).map_err(|error| error.to_string())
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let source = match (&self.trace, self.synthetic) {
            (Some(path), _) => {
                Source::Trace(files::read(path).map_err(|e| CommandError::File("--trace", e))?)
            }
            (None, named) => Source::Synthetic(named.unwrap_or(Synthetic::Azure)),
        };
        let windows = match &self.config {
            None => None,
            Some(path) => {
                let bytes = files::read(path).map_err(|e| CommandError::File("--config", e))?;
                let windows = Windows::from_config(&bytes, &self.model);
                Some(windows.map_err(CommandError::Windows)?)
            }
        };
        let workload = Workload {
            source,
            requests: self.requests,
            rate: self.rate,
            speedup: self.speedup,
            caps: self.caps,
            seed: self.seed,
        };
        let requests = workload.build().map_err(CommandError::Replay)?;
        let mut style = Style::new(&self.model, self.seed);
        style.stream_share = self.stream_share;
        style.usage_share = self.usage_share;
        let mut options = Options::new(&self.gateway, style);
        options.tokenizer = self.tokenizer;
        options.timeout = Duration::from_secs(self.timeout);
        let planned = requests.len();
        let interrupt = Interrupt::listen().map_err(CommandError::Output)?;
        let bar = progress::bar(planned as u64);
        let run = replay::run_until(&options, requests, interrupt.wait(), |_| bar.inc(1)).await;
        bar.finish_and_clear();
        let run = run.map_err(CommandError::Replay)?;
        let ended = run.outcomes.len();
        if ended < planned {
            eprintln!(
                "Stopped when {ended} of {planned} requests had ended; the others are not counted."
            );
        }
        let report = Report::new(&run, windows.as_ref());
        if let Some(warning) = length_warning(report.prompt_lengths, &options.tokenizer) {
            eprintln!("{warning}");
        }
        let mut text = Vec::new();
        let printed =
            if self.json { writeln!(text, "{}", report.json()) } else { report.print(&mut text) };
        let mut out = std::io::stdout();
        printed
            .and_then(|()| out.write_all(&text))
            .and_then(|()| out.flush())
            .map_err(CommandError::Output)?;
        if ended < planned {
            return Err(CommandError::Interrupted);
        }
        if report.answered == 0 {
            let first = run.outcomes.iter().find_map(|outcome| outcome.result.as_ref().err());
            let first = first.map_or_else(String::new, ToString::to_string);
            return Err(CommandError::NothingAnswered(first));
        }
        Ok(())
    }
}

/// What to say when backends counted other prompt lengths than were planned.
fn length_warning((checked, differ): (usize, usize), tokenizer: &str) -> Option<String> {
    (differ > 0).then(|| {
        format!(
            "warning: {differ} of {checked} answers count another prompt length than was planned \
             with --tokenizer {tokenizer}; allowed: the tokenizer and chat template of the pools. \
             The answers' counts are taken as the truth."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_lengths_than_planned_are_told() {
        assert_eq!(length_warning((9, 0), "o200k_base"), None);
        let warning = length_warning((9, 8), "o200k_base").unwrap();
        assert!(warning.contains("8 of 9") && warning.contains("--tokenizer o200k_base"));
    }
}
