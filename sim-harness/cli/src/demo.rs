//! The demo: live pools, a real Envoy with the filter in it, and a few hundred
//! real requests, on this machine and on free ports. It ends what it started.

mod learning;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_envoy_support::{ENVOY_YAML, Envoy};
use tidegate_sim::workload::{AGENT_HEAVY, CapPolicy};
use tokio::sync::Notify;

use crate::interrupt::Interrupt;
use crate::progress;
use crate::replay::{self, Options, Outcome, ReplayError, Report, Run, Source, Style};
use crate::replay::{Verdict, Windows, WindowsError, Workload};
use crate::serve::{self, Handle, PoolsError, ServeError};

const MODEL: &str = "sim-model";
/// Lines of single decisions as they come.
const FIRST: usize = 12;
/// And of the last ones, after the run.
const LAST: usize = 8;
const SEED: u64 = 1;

/// The pools that `envoy/envoy.yaml` expects, on free ports. Ten times as fast
/// as the GPU is, so that the demo is short.
const POOLS: &str = r#"{"pools": [
    {"name": "short", "model": "sim-model", "tokenizer": "cl100k_base",
     "max_model_len": 8192, "ports": [0, 0], "speed": 10,
     "hardware": {"gpu": "h100_sxm", "architecture": "Llama-3.1-8B"}},
    {"name": "long", "model": "sim-model", "tokenizer": "cl100k_base",
     "max_model_len": 131072, "ports": [0, 0], "speed": 10,
     "hardware": {"gpu": "h100_sxm", "architecture": "Llama-3.1-8B"}}]}"#;

/// Why the demo could not run.
#[derive(Debug)]
pub enum DemoError {
    /// The pools document.
    Pools(PoolsError),
    /// The pools.
    Serve(ServeError),
    /// Envoy: missing, or it did not start; says why.
    Envoy(String),
    /// The filter's configuration in `envoy.yaml`.
    Windows(WindowsError),
    /// The load.
    Replay(ReplayError),
    /// Standard output, or the signal handler.
    Io(io::Error),
    /// All of it is on this machine, and yet requests failed: their number, that
    /// of all requests, how many failed in which way, and the first failure.
    Failed {
        /// Requests that failed.
        failed: usize,
        /// All of them.
        requests: usize,
        /// How many failed in which way.
        names: BTreeMap<String, usize>,
        /// The first failure, in words.
        first: String,
    },
}

/// How a demo ended that no error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It showed all that it has to show.
    Done,
    /// Ctrl-C came first.
    Interrupted,
}

impl fmt::Display for DemoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pools(error) => error.fmt(f),
            Self::Serve(error) => error.fmt(f),
            Self::Envoy(why) => write!(f, "Envoy: {why}"),
            Self::Windows(error) => error.fmt(f),
            Self::Replay(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Failed { failed, requests, names, first } => {
                let names: Vec<_> = names.iter().map(|(name, n)| format!("{name}: {n}")).collect();
                let names = names.join(", ");
                write!(f, "{failed} of {requests} requests failed ({names}); the first: {first}")
            }
        }
    }
}

impl std::error::Error for DemoError {}

impl From<io::Error> for DemoError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs the demo with so many requests; `keep` leaves it running until Ctrl-C.
/// Ctrl-C at any time ends it and all that it started. When this returns nothing
/// is left running.
pub async fn run(requests: usize, keep: bool) -> Result<Ended, DemoError> {
    let interrupt = Interrupt::listen()?;
    let pools = serve::parse_pools(POOLS.as_bytes()).map_err(DemoError::Pools)?;
    let pools = serve::start(pools).await.map_err(DemoError::Serve)?;
    let ended = with_envoy(&pools, requests, keep, &interrupt).await;
    pools.stop().await;
    let mut out = io::stdout();
    match &ended {
        Ok(Ended::Interrupted) => eprintln!("\nStopped. Nothing is left running."),
        Ok(Ended::Done) if !keep => {
            writeln!(out, "\nAll stopped. To look around while it runs: make demo KEEP=1")?;
        }
        Ok(Ended::Done) | Err(DemoError::Failed { .. }) => writeln!(out, "\nAll stopped.")?,
        Err(_) => {}
    }
    ended
}

/// Envoy is gone when this returns.
async fn with_envoy(
    pools: &Handle,
    requests: usize,
    keep: bool,
    interrupt: &Interrupt,
) -> Result<Ended, DemoError> {
    let (short, long) = (ports(pools, "short")?, ports(pools, "long")?);
    let stop = Arc::new(AtomicBool::new(false));
    let called_off = Arc::clone(&stop);
    let mut starting = tokio::task::spawn_blocking(move || {
        Envoy::builder().backends(short, long).workers(2).start_unless(&called_off)
    });
    let started = tokio::select! {
        started = &mut starting => started,
        () = interrupt.wait() => {
            stop.store(true, Ordering::Relaxed);
            // It gives up, or it was up already and ends by being dropped.
            drop(starting.await);
            return Ok(Ended::Interrupted);
        }
    };
    let envoy = started.map_err(|error| DemoError::Envoy(error.to_string()))?;
    show(pools, &envoy.map_err(DemoError::Envoy)?, requests, keep, interrupt).await
}

fn ports(pools: &Handle, name: &str) -> Result<[u16; 2], DemoError> {
    let ports: Vec<u16> = pools.pool(name).iter().map(SocketAddr::port).collect();
    ports.try_into().map_err(|_| DemoError::Envoy(format!("pool {name} must have two replicas")))
}

async fn show(
    pools: &Handle,
    envoy: &Envoy,
    requests: usize,
    keep: bool,
    interrupt: &Interrupt,
) -> Result<Ended, DemoError> {
    let mut out = io::stdout();
    introduce(pools, envoy, &mut out)?;
    let Some(run) = send(envoy, requests, interrupt).await? else { return Ok(Ended::Interrupted) };
    print_last(&run.outcomes, &mut out)?;
    let windows = Windows::from_config(ENVOY_YAML.as_bytes(), MODEL);
    let report = Report::new(&run, Some(&windows.map_err(DemoError::Windows)?));
    report.print_pools(&mut out)?;
    print_misroutes(&report, &mut out)?;
    learning::print(&run.outcomes, &mut out)?;
    print_counters(envoy, &mut out)?;
    if keep {
        look_around(envoy, &mut out)?;
        interrupt.wait().await;
    }
    verdict(&report, &run.outcomes)
}

/// Sends the load and prints the first decisions as they come. Nothing when
/// Ctrl-C ended it.
async fn send(
    envoy: &Envoy,
    requests: usize,
    interrupt: &Interrupt,
) -> Result<Option<Run>, DemoError> {
    let workload = Workload {
        source: Source::Drawn(AGENT_HEAVY),
        requests: Some(requests),
        rate: Some(10.0),
        speedup: 1.0,
        caps: CapPolicy::Ladder,
        seed: SEED,
    };
    let load = workload.build().map_err(DemoError::Replay)?;
    let options = Options::new(&envoy.url(), Style::new(MODEL, SEED));
    let bar = progress::bar(requests as u64);
    let (mut lines, mut printed, unread) = (0, Ok(()), Notify::new());
    let stop = async {
        tokio::select! {
            () = interrupt.wait() => {}
            () = unread.notified() => {}
        }
    };
    let run = replay::run_until(&options, load, stop, |outcome| {
        lines += 1;
        if lines <= FIRST {
            let line = decision_line(outcome);
            let written = bar.suspend(|| writeln!(io::stdout(), "{line}"));
            if written.is_err() {
                // Whoever read has left, as `head` does: no reason to go on.
                printed = written;
                unread.notify_one();
            }
        }
        bar.inc(1);
    })
    .await;
    bar.finish_and_clear();
    printed?;
    let run = run.map_err(DemoError::Replay)?;
    Ok((run.outcomes.len() == requests).then_some(run))
}

fn print_last(outcomes: &[Outcome], out: &mut dyn Write) -> io::Result<()> {
    if outcomes.len() > FIRST {
        writeln!(out, "       …")?;
        let rest = outcomes.len().saturating_sub(LAST).max(FIRST);
        for outcome in outcomes.get(rest..).unwrap_or_default() {
            writeln!(out, "{}", decision_line(outcome))?;
        }
    }
    writeln!(out)
}

/// In one line, for there are hardly any.
fn print_misroutes(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let count = |verdict| report.verdict(verdict).unwrap_or(0);
    write!(
        out,
        "\nWent to the wrong pool: {} that did not fit it, {} that a smaller one held",
        count(Verdict::UnderRoute),
        count(Verdict::OverRoute)
    )?;
    for (verdict, name) in [
        (Verdict::Spill, "answered by another pool than the chosen one"),
        (Verdict::TooLarge, "that fit no pool"),
        (Verdict::Unknown, "not judged"),
    ] {
        match count(verdict) {
            0 => {}
            n => write!(out, ", {n} {name}")?,
        }
    }
    writeln!(out)
}

fn verdict(report: &Report, outcomes: &[Outcome]) -> Result<Ended, DemoError> {
    let failure = |outcome: &Outcome| Some(outcome.result.as_ref().err()?.to_string());
    match outcomes.iter().find_map(failure) {
        None => Ok(Ended::Done),
        Some(first) => Err(DemoError::Failed {
            failed: report.requests - report.answered,
            requests: report.requests,
            names: report.errors.clone(),
            first,
        }),
    }
}

fn introduce(pools: &Handle, envoy: &Envoy, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "Tidegate in a real Envoy, in front of four simulated vLLM replicas: Llama-3.1-8B on\n\
         an H100 each, ten times as fast.\n"
    )?;
    for pool in ["short", "long"] {
        let urls: Vec<String> = pools.pool(pool).iter().map(|at| format!("http://{at}")).collect();
        writeln!(out, "  pool {pool:<6} {}", urls.join("  "))?;
    }
    writeln!(out, "  Envoy       {}  (two workers)\n", envoy.url())?;
    writeln!(
        out,
        "The filter sees bytes, not tokens. It starts at 4 bytes a token and learns from each\n\
         answer. A request goes short if its prompt, judged with a margin, and its output cap fit\n\
         8,192 tokens. \"true\" is what the replica's tokenizer counted.\n"
    )?;
    writeln!(out, "{}", columns(["", "text", "estimate", "true", "error", "pool", "why"]))
}

fn columns([at, text, estimate, truth, error, pool, why]: [&str; 7]) -> String {
    format!("{at:>6} {text:<10}{estimate:>9}{truth:>9}{error:>8}  {pool:<6} {why}")
}

fn decision_line(outcome: &Outcome) -> String {
    let decision = &outcome.decision;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let error = outcome.estimate_error().map(|error| 100.0 * error);
    columns([
        &format!("#{}", outcome.index + 1),
        outcome.kind.name(),
        &or_dash(decision.estimate.map(|tokens| tokens.to_string())),
        &outcome.prompt_tokens().to_string(),
        &or_dash(error.map(|percent| format!("{percent:+.0} %"))),
        &or_dash(decision.pool.clone()),
        &or_dash(decision.reason.clone()),
    ])
}

/// What Envoy itself counted, several to a line.
fn print_counters(envoy: &Envoy, out: &mut dyn Write) -> Result<(), DemoError> {
    let stats = envoy.stats().map_err(DemoError::Envoy)?;
    writeln!(out, "\nWhat Envoy counted")?;
    let ours = stats.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix("wasmcustom.tidegate.")?;
        (*value > 0).then(|| format!("{name} {value}"))
    });
    let mut line = String::new();
    for counter in ours {
        if line.len() + counter.len() > WIDTH {
            writeln!(out, " {line}")?;
            line.clear();
        }
        line.push(' ');
        line.push_str(&counter);
        line.push(',');
    }
    writeln!(out, " {}", line.trim_end_matches(','))?;
    Ok(())
}

/// Columns of a line of counters.
const WIDTH: usize = 90;

fn look_around(envoy: &Envoy, out: &mut dyn Write) -> io::Result<()> {
    if let Some(line) = envoy.access_log().last() {
        writeln!(out, "\nAn access log line\n  {line}")?;
    }
    writeln!(out, "\nStill running, for you to look around. Ctrl-C ends it.")?;
    writeln!(out, "  send to     {}/v1/chat/completions, model {MODEL}", envoy.url())?;
    writeln!(out, "  counters    {}/stats?filter=tidegate", envoy.admin_url())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Failure;
    use crate::replay::tests::{outcome, run};

    #[test]
    fn a_failed_request_fails_the_demo_by_name() {
        let mut outcomes: Vec<Outcome> = (0..3).map(|i| outcome(i, 100, None)).collect();
        let end =
            |outcomes: &[Outcome]| verdict(&Report::new(&run(outcomes.to_vec()), None), outcomes);
        assert!(matches!(end(&outcomes), Ok(Ended::Done)));
        outcomes[1].result = Err(Failure::Status(503, "no healthy upstream".into()));
        assert_eq!(
            end(&outcomes).unwrap_err().to_string(),
            "1 of 3 requests failed (status 503: 1); the first: status 503: no healthy upstream"
        );
    }

    #[test]
    fn misroutes_are_told_in_a_line() {
        let mut outcomes: Vec<Outcome> = (0..3).map(|i| outcome(i, 9_000, None)).collect();
        outcomes[0].result = Err(Failure::Timeout);
        outcomes[1].decision.pool = Some("short".into());
        let windows = Windows::from_config(ENVOY_YAML.as_bytes(), MODEL).unwrap();
        let mut text = Vec::new();
        print_misroutes(&Report::new(&run(outcomes), Some(&windows)), &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "\nWent to the wrong pool: 1 that did not fit it, 0 that a smaller one held, \
             1 not judged\n"
        );
    }

    #[test]
    fn the_last_decisions_are_none_of_the_first() {
        let lines = |count: usize| {
            let outcomes: Vec<Outcome> = (0..count).map(|i| outcome(i, 100, Some(90))).collect();
            let mut text = Vec::new();
            print_last(&outcomes, &mut text).unwrap();
            String::from_utf8(text).unwrap().matches('#').count()
        };
        assert_eq!((lines(FIRST), lines(FIRST + 3), lines(300)), (0, 3, LAST));
        assert!(decision_line(&outcome(0, 100, Some(90))).contains("-10 %"));
    }
}
