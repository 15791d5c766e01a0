//! Load: real HTTP requests of a published workload, sent at its times, and
//! what became of them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate_sim::workload::{AZURE_2023, CapPolicy};
//! use tidegate_sim_cli::replay::{self, Options, Report, Source, Style, Workload};
//!
//! let workload = Workload {
//!     source: Source::Drawn(AZURE_2023),
//!     requests: Some(300),
//!     rate: Some(20.0),
//!     speedup: 1.0,
//!     caps: CapPolicy::Ladder,
//!     seed: 1,
//! };
//! let options = Options::new("http://127.0.0.1:10000", Style::new("sim-model", 1));
//! let run = replay::run(&options, workload.build()?, |_| {}).await?;
//! Report::new(&run, None).print(&mut std::io::stdout())?;
//! # Ok(())
//! # }
//! ```

mod drive;
mod judge;
mod plan;
mod print;
mod report;
mod send;
mod senders;
mod tenants;

#[cfg(test)]
pub(crate) use self::report::tests;

use std::fmt;
use std::time::{Duration, Instant};

use tidegate_sim::workload::{Request, TraceError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use self::drive::run_tenants;
pub use self::judge::{Verdict, Window, Windows, WindowsError, judge};
pub use self::plan::{DEFAULT_RATE, DEFAULT_REQUESTS, Prepared, Source, Style, Workload, prepare};
pub use self::report::{Errors, Estimate, Percentiles, PoolRow, Report};
pub use self::send::{Answered, Decision, Failure, Origin, Outcome, send};
pub use self::senders::{
    Arrivals, Bursts, Caps, Sender, Senders, SendersError, Sizes, TENANTS_EXAMPLE,
};
pub use self::tenants::{Promises, PromisesError, TenantReport, TenantRow};
use crate::client::{Client, ClientError};
use crate::text::Library;
use crate::tokenizer::{Tokenizer, UnknownTokenizer};

/// Why a replay could not run.
#[derive(Debug)]
pub enum ReplayError {
    /// The gateway's address is wrong.
    Gateway(ClientError),
    /// The trace is wrong.
    Trace(TraceError),
    /// An option is out of range.
    Option {
        /// Its name.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// No tokenizer has this name.
    Tokenizer(UnknownTokenizer),
    /// The first requests all found no gateway; carries the last one's reason.
    NoGateway(String),
    /// A task of the replay itself panicked; carries its message.
    Task(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(error) => error.fmt(f),
            Self::Trace(error) => write!(f, "trace: {error}"),
            Self::Option { field, value, allowed } => {
                write!(f, "{field}: found {value}; allowed: {allowed}")
            }
            Self::Tokenizer(error) => error.fmt(f),
            Self::NoGateway(why) => {
                write!(f, "the first {HOPELESS} requests got no connection; stopped: {why}")
            }
            Self::Task(why) => write!(f, "the replay broke off: {why}"),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Where and how requests are sent.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host[:port]`.
    pub gateway: String,
    /// A name of [`crate::tokenizer::NAMES`]: the one that the pools count by.
    pub tokenizer: String,
    /// How the requests look.
    pub style: Style,
    /// Time that one request may take.
    pub timeout: Duration,
}

impl Options {
    /// The usual options: cl100k_base, five minutes a request.
    pub fn new(gateway: &str, style: Style) -> Self {
        Self {
            gateway: gateway.into(),
            tokenizer: "cl100k_base".into(),
            style,
            timeout: Duration::from_mins(5),
        }
    }
}

/// What a replay yields.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// One for each request that has ended, in order of arrival.
    pub outcomes: Vec<Outcome>,
    /// From the first request to the last answer.
    pub duration: Duration,
    /// How far a request was sent after its time, at most.
    pub latest: Duration,
    /// Share of this machine's processor time that was in use; measured with
    /// tenants only.
    pub busy: Option<f64>,
}

/// When so many requests found no gateway, and none did, there is none.
const HOPELESS: usize = 20;

/// Texts that are written ahead of their time.
const AHEAD: usize = 64;

/// Sends the requests at their times and waits for every answer. Calls
/// `progress` for each answer as it comes. An answer that fails is an outcome,
/// not an error.
pub async fn run(
    options: &Options,
    requests: Vec<Request>,
    progress: impl FnMut(&Outcome),
) -> Result<Run, ReplayError> {
    run_until(options, requests, std::future::pending(), progress).await
}

/// The same until `stop`: then requests under way are broken off, and the run
/// holds those that have ended.
pub async fn run_until(
    options: &Options,
    requests: Vec<Request>,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(&Outcome),
) -> Result<Run, ReplayError> {
    let client = Client::new(&options.gateway).map_err(ReplayError::Gateway)?;
    let tokenizer: Tokenizer = options.tokenizer.parse().map_err(ReplayError::Tokenizer)?;
    let total = requests.len();
    let (writer, mut ready) = mpsc::channel(AHEAD);
    let style = options.style.clone();
    // Writing text takes processor time: on a thread of its own, ahead of time.
    let writing = tokio::task::spawn_blocking(move || {
        let library = Library::new(tokenizer);
        for (index, request) in requests.into_iter().enumerate() {
            if writer.blocking_send(prepare(&library, &style, index, request)).is_err() {
                break;
            }
        }
    });
    let mut sending = JoinSet::new();
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(total);
    let mut latest = Duration::ZERO;
    let mut start = None;
    let mut index = 0;
    let mut done = |outcome: Outcome, outcomes: &mut Vec<Outcome>| {
        progress(&outcome);
        outcomes.push(outcome);
        hopeless(outcomes)
    };
    let all = async {
        while let Some(prepared) = ready.recv().await {
            let start = *start.get_or_insert_with(Instant::now);
            let at = start + Duration::from_nanos(prepared.request.arrival);
            // Take answers in while waiting, so that progress shows.
            while let Ok(Some(ended)) =
                tokio::time::timeout_at(at.into(), join_next_or_wait(&mut sending)).await
            {
                done(ended?, &mut outcomes)?;
            }
            latest = latest.max(Instant::now().saturating_duration_since(at));
            let (client, timeout) = (client.clone(), options.timeout);
            let origin = Origin { index, ..Origin::default() };
            sending.spawn(async move { send(&client, origin, prepared, timeout).await });
            index += 1;
        }
        while let Some(ended) = sending.join_next().await {
            done(ended.map_err(|error| ReplayError::Task(error.to_string()))?, &mut outcomes)?;
        }
        writing.await.map_err(|error| ReplayError::Task(error.to_string()))
    };
    tokio::select! {
        ended = all => ended?,
        () = stop => {}
    }
    outcomes.sort_by_key(|outcome| outcome.index);
    let duration = start.map_or(Duration::ZERO, |start| start.elapsed());
    Ok(Run { outcomes, duration, latest, busy: None })
}

/// An error when the first requests to end all failed for want of a connection.
fn hopeless(outcomes: &[Outcome]) -> Result<(), ReplayError> {
    let no_connection = |outcome: &Outcome| matches!(outcome.result, Err(Failure::Connection(_)));
    match outcomes.last().map(|outcome| &outcome.result) {
        Some(Err(Failure::Connection(why)))
            if outcomes.len() == HOPELESS && outcomes.iter().all(no_connection) =>
        {
            Err(ReplayError::NoGateway(why.clone()))
        }
        _ => Ok(()),
    }
}

/// The next answer; waits for ever when none is under way.
async fn join_next_or_wait(sending: &mut JoinSet<Outcome>) -> Option<Result<Outcome, ReplayError>> {
    match sending.join_next().await {
        Some(ended) => Some(ended.map_err(|error| ReplayError::Task(error.to_string()))),
        None => std::future::pending().await,
    }
}
