//! The demo: live pools, a real Envoy with the filter in it, and a few hundred
//! real requests, on this machine and on free ports. It ends what it started.

use crate::progress;
use crate::replay::{self, Options, Outcome, ReplayError, Report, Source, Style};
use crate::replay::{Synthetic, Windows, WindowsError, Workload};
use crate::serve::{self, Handle, PoolsError, ServeError};
use std::fmt;
use std::io::{self, Write};
use tidegate_envoy_support::{ENVOY_YAML, Envoy, Template};
use tidegate_sim::workload::CapPolicy;

const MODEL: &str = "sim-model";
/// Lines of single decisions before the table.
const LINES: usize = 12;
const SEED: u64 = 1;

/// The pools that `envoy/envoy.yaml` expects, on free ports. Ten times as fast
/// as the model of one GPU says, so that the demo is short.
const POOLS: &str = r#"{"pools": [
    {"name": "short", "model": "sim-model", "tokenizer": "cl100k_base",
     "max_model_len": 8192, "ports": [0, 0], "timing": {"speed": 10}},
    {"name": "long", "model": "sim-model", "tokenizer": "cl100k_base",
     "max_model_len": 131072, "ports": [0, 0], "timing": {"speed": 10}}]}"#;

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
/// Ctrl-C at any time ends it and all that it started.
pub async fn run(requests: usize, keep: bool) -> Result<(), DemoError> {
    let pools = serve::parse_pools(POOLS.as_bytes()).map_err(DemoError::Pools)?;
    let pools = serve::start(pools).await.map_err(DemoError::Serve)?;
    let shown = tokio::select! {
        shown = show(&pools, requests, keep) => shown,
        signal = tokio::signal::ctrl_c() => {
            eprintln!("\nStopped. Nothing is left running.");
            signal.map_err(DemoError::Io)
        }
    };
    pools.stop().await;
    shown
}

async fn show(pools: &Handle, requests: usize, keep: bool) -> Result<(), DemoError> {
    let mut out = io::stdout();
    let envoy = start_envoy(pools).await?;
    introduce(pools, &envoy, &mut out)?;
    let workload = Workload {
        source: Source::Synthetic(Synthetic::Agent),
        requests: Some(requests),
        rate: Some(10.0),
        speedup: 1.0,
        caps: CapPolicy::Ladder,
        seed: SEED,
    };
    let load = workload.build().map_err(DemoError::Replay)?;
    let options = Options::new(&envoy.url(), Style::new(MODEL, SEED));
    let bar = progress::bar(requests as u64);
    let mut lines = 0;
    let run = replay::run(&options, load, |outcome| {
        lines += 1;
        if lines <= LINES {
            bar.suspend(|| println!("{}", decision_line(outcome)));
        } else if lines == LINES + 1 {
            bar.suspend(|| println!("       …\n"));
        }
        bar.inc(1);
    })
    .await
    .map_err(DemoError::Replay)?;
    bar.finish_and_clear();
    let configuration = Template::new(ENVOY_YAML).plugin().map_err(DemoError::Envoy)?;
    let windows = Windows::from_config(configuration.as_bytes(), MODEL);
    let windows = windows.map_err(DemoError::Windows)?;
    Report::new(&run, Some(&windows)).print(&mut out)?;
    look_next(&envoy, keep, &mut out)?;
    if keep {
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn start_envoy(pools: &Handle) -> Result<Envoy, DemoError> {
    let ports = |name: &str| {
        let ports: Vec<u16> = pools.pool(name).iter().map(std::net::SocketAddr::port).collect();
        <[u16; 2]>::try_from(ports)
            .map_err(|_| DemoError::Envoy(format!("pool {name} must have two replicas")))
    };
    let (short, long) = (ports("short")?, ports("long")?);
    let start = move || Envoy::builder().backends(short, long).workers(2).start();
    let started = tokio::task::spawn_blocking(start).await;
    started.map_err(|error| DemoError::Envoy(error.to_string()))?.map_err(DemoError::Envoy)
}

fn introduce(pools: &Handle, envoy: &Envoy, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Tidegate in a real Envoy, in front of four simulated vLLM replicas.\n")?;
    for replica in pools.addresses() {
        writeln!(
            out,
            "  pool {:<6} replica {}  http://{}",
            replica.pool, replica.index, replica.address
        )?;
    }
    writeln!(out, "  Envoy, two workers     {}\n", envoy.url())?;
    writeln!(
        out,
        "The filter sees bytes, not tokens. It starts at 4 bytes a token and learns from"
    )?;
    writeln!(
        out,
        "each answer. A request goes short if its prompt, judged with a margin, and its"
    )?;
    writeln!(
        out,
        "output cap fit 8,192 tokens. \"true\" is what the replica's tokenizer counted.\n"
    )?;
    writeln!(out, "{}", columns(["", "text", "estimate", "true", "error", "pool", "why"]))
}

fn columns([at, text, estimate, truth, error, pool, why]: [&str; 7]) -> String {
    format!("{at:>6} {text:<10}{estimate:>9}{truth:>9}{error:>8}  {pool:<6} {why}")
}

fn decision_line(outcome: &Outcome) -> String {
    let decision = &outcome.decision;
    let truth = f64::from(outcome.request.input_tokens);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let error = decision.estimate.map(|tokens| 100.0 * (tokens as f64 - truth) / truth);
    columns([
        &format!("#{}", outcome.index + 1),
        outcome.kind.name(),
        &or_dash(decision.estimate.map(|tokens| tokens.to_string())),
        &outcome.request.input_tokens.to_string(),
        &or_dash(error.map(|percent| format!("{percent:+.0} %"))),
        &or_dash(decision.pool.clone()),
        &or_dash(decision.reason.clone()),
    ])
}

fn look_next(envoy: &Envoy, keep: bool, out: &mut dyn Write) -> Result<(), DemoError> {
    let stats = envoy.stats().map_err(DemoError::Envoy)?;
    writeln!(out, "\nWhat Envoy counted ({}/stats?filter=tidegate):", envoy.admin_url())?;
    let ours = stats.iter().filter(|(name, value)| name.starts_with("wasmcustom.") && **value > 0);
    for (name, value) in ours {
        writeln!(out, "  {:<36}{value}", name.trim_start_matches("wasmcustom."))?;
    }
    if let Some(line) = envoy.access_log().last() {
        writeln!(out, "\nAn access log line:\n  {line}")?;
    }
    if keep {
        writeln!(out, "\nStill running, for you to look around. Ctrl-C ends it.")?;
    } else {
        writeln!(out, "\nAll stopped. To look around while it runs: make demo KEEP=1")?;
    }
    Ok(())
}
