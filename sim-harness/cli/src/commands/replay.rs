//! `tidegate-sim replay`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_sim::workload::{AZURE_2023, CapPolicy, Lengths};

use super::CommandError;
use crate::files;
use crate::interrupt::Interrupt;
use crate::progress;
use crate::replay::{self, Options, Promises, Report, Run, Senders, Source, Style};
use crate::replay::{TENANTS_EXAMPLE, TenantReport, Windows, Workload};
use crate::tokenizer::Tokenizer;

/// Flags of `replay`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true)
          .args(["trace", "synthetic", "tenants"]), after_long_help = tenants_help())]
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
    synthetic: Option<Lengths>,
    /// Many tenants, each with its own clients: see below.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["requests", "rate", "caps", "speedup"])]
    tenants: Option<PathBuf>,
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
    /// The gateway's configuration, to judge misroutes by, and what tenants are
    /// promised: the Tidegate JSON, or an envoy.yaml that holds it.
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

/// What `--tenants` reads, below its example.
const TENANTS_WORDS: &str = "\
An entry is a closed loop of `clients`, which pause for `pause_s` after an
answer, or a Poisson process of `rate` requests a second; from `from_s` to
`to_s`, all the time or for `on_s` of each `on_s` + `off_s` seconds.
`headers` tell the gateway who it is; `tenant` is its name in --config, where
that differs. Lengths are `input_tokens` and `output_tokens`, or `lengths`:
azure, lmsys or agent. `cap` is a number, none, actual (the default) or ladder;
`cap_times` is so many times the output. A refused request is lost, or with
`obey_retry_after` comes again as its answer's Retry-After says.
What is sent within `warmup_s` is not counted. Requests that are open after
`seconds` are answered to their end.";

fn tenants_help() -> String {
    format!("The document of --tenants:\n\n{TENANTS_EXAMPLE}\n\n{TENANTS_WORDS}")
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
        let config = match &self.config {
            None => None,
            Some(path) => Some(files::read(path).map_err(|e| CommandError::File("--config", e))?),
        };
        let windows = match &config {
            None => None,
            Some(bytes) => {
                let windows = Windows::from_config(bytes, &self.model);
                Some(windows.map_err(CommandError::Windows)?)
            }
        };
        let mut style = Style::new(&self.model, self.seed);
        style.stream_share = self.stream_share;
        style.usage_share = self.usage_share;
        let mut options = Options::new(&self.gateway, style);
        options.tokenizer.clone_from(&self.tokenizer);
        options.timeout = Duration::from_secs(self.timeout);
        let Ended { run, tenants, interrupted } = match &self.tenants {
            Some(path) => tenants(path, config.as_deref(), &options).await?,
            None => self.workload(&options).await?,
        };
        let report = Report::new(&run, windows.as_ref());
        if let Some(warning) = length_warning(report.prompt_lengths, &options.tokenizer) {
            eprintln!("{warning}");
        }
        let mut text = Vec::new();
        let printed = if self.json {
            let mut document = report.json();
            if let (Some(tenants), Some(all)) = (&tenants, document.as_object_mut()) {
                all.extend(tenants.json().as_object().cloned().unwrap_or_default());
            }
            writeln!(text, "{document}")
        } else {
            let tenants = tenants.map_or(Ok(()), |tenants| {
                tenants.print(&mut text).and_then(|()| writeln!(text, "\nAll of it"))
            });
            tenants.and_then(|()| report.print(&mut text))
        };
        let mut out = std::io::stdout();
        printed
            .and_then(|()| out.write_all(&text))
            .and_then(|()| out.flush())
            .map_err(CommandError::Output)?;
        if interrupted {
            return Err(CommandError::Interrupted);
        }
        if report.answered == 0 {
            let first = run.outcomes.iter().find_map(|outcome| outcome.result.as_ref().err());
            let first = first.map_or_else(String::new, ToString::to_string);
            return Err(CommandError::NothingAnswered(first));
        }
        Ok(())
    }

    /// A trace or a distribution.
    async fn workload(&self, options: &Options) -> Result<Ended, CommandError> {
        let source = match (&self.trace, &self.synthetic) {
            (Some(path), _) => {
                Source::Trace(files::read(path).map_err(|e| CommandError::File("--trace", e))?)
            }
            (None, named) => Source::Drawn(named.clone().unwrap_or(AZURE_2023)),
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
        let planned = requests.len();
        let interrupt = Interrupt::listen().map_err(CommandError::Output)?;
        let bar = progress::bar(planned as u64);
        let run = replay::run_until(options, requests, interrupt.wait(), |_| bar.inc(1)).await;
        bar.finish_and_clear();
        let run = run.map_err(CommandError::Replay)?;
        let ended = run.outcomes.len();
        if ended < planned {
            eprintln!(
                "Stopped when {ended} of {planned} requests had ended; the others are not counted."
            );
        }
        Ok(Ended { run, tenants: None, interrupted: ended < planned })
    }
}

/// What was sent, by whom.
struct Ended {
    run: Run,
    tenants: Option<TenantReport>,
    interrupted: bool,
}

/// The tenants of a document.
async fn tenants(
    path: &Path,
    config: Option<&[u8]>,
    options: &Options,
) -> Result<Ended, CommandError> {
    let bytes = files::read(path).map_err(|e| CommandError::File("--tenants", e))?;
    let senders = Senders::parse(&bytes).map_err(CommandError::Tenants)?;
    let promises = config.map(|bytes| Promises::from_config(bytes, &senders)).transpose();
    let promises = promises.map_err(CommandError::Promises)?;
    let interrupt = Interrupt::listen().map_err(CommandError::Output)?;
    let bar = progress::seconds(senders.length.as_secs());
    let tick = |passed: Duration| bar.set_position(passed.as_secs());
    let run = replay::run_tenants(options, &senders, interrupt.wait(), tick).await;
    bar.finish_and_clear();
    let run = run.map_err(CommandError::Replay)?;
    let interrupted = interrupt.asked();
    if interrupted {
        eprintln!("Stopped; what had not ended is not counted.");
    }
    let report = TenantReport::new(&run, &senders, promises.as_ref());
    Ok(Ended { run, tenants: Some(report), interrupted })
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
