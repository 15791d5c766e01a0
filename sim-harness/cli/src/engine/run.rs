//! Reads the trace, drives the replicas.

use std::fmt;
use std::io::{self, BufRead as _, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tidegate_sim::SECOND;
use tidegate_sim::engine::{
    Config, ConfigError, Counts, Disaggregated, Ended, Engine, Fcfs, Finished, Job, Load, Policy,
    Priority, Replica, Sink, Summary, Transfer,
};
use tidegate_sim::workload::{TraceError, TraceReader, TraceRequest};

use super::Report;
use crate::files::{self, FileError};
use crate::hardware::Timing;

/// Which replica a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dispatch {
    /// One after the other. Replicas run on threads of their own.
    RoundRobin,
    /// The one with the least of running plus four times waiting requests at
    /// that instant, the first of equals. All run on one thread.
    LeastLoaded,
}

/// Replicas that share the work of one: see [`Disaggregated`].
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Those that compute prompts. At least 1.
    pub prefill: usize,
    /// Those that compute answers. At least 1.
    pub decode: usize,
    /// How blocks get from the ones to the others.
    pub transfer: Transfer,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The trace: Azure CSV or Mooncake JSON lines, plain or gzipped.
    pub trace: PathBuf,
    /// Times that the trace is run, one after the other.
    pub repeat: u32,
    /// Replicas. At least 1.
    pub replicas: usize,
    /// Data-parallel ranks of each. A split replica has none.
    pub ranks: u32,
    /// Split each replica into prefill and decode.
    pub split: Option<Split>,
    /// Threads, at most. At least 1.
    pub threads: usize,
    /// Which replica a request goes to.
    pub dispatch: Dispatch,
    /// The replicas' settings.
    pub config: Config,
    /// Schedule by priority, not first come first served.
    pub by_priority: bool,
    /// How long steps take.
    pub timing: Timing,
    /// Write a CSV line for each request here, in order of their ends.
    pub requests: Option<PathBuf>,
    /// Write a CSV line for each replica and second here.
    pub series: Option<PathBuf>,
}

/// Why a run failed.
#[derive(Debug)]
pub enum RunError {
    /// The trace cannot be read.
    File(FileError),
    /// The trace is wrong.
    Trace(TraceError),
    /// A setting is out of range.
    Config(ConfigError),
    /// The step time cannot be made; says why.
    Time(String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Trace(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::Time(error) => error.fmt(f),
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for RunError {}

impl From<TraceError> for RunError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

/// Far enough for all that is submitted to end, and no overflow.
const FOREVER: u64 = u64::MAX / 4;

/// Runs the whole trace.
pub fn run(plan: &Plan) -> Result<Report, RunError> {
    if let Timing::Linear(linear) = &plan.timing {
        linear.check().map_err(|error| RunError::Time(error.to_string()))?;
    }
    let mut replicas = Vec::with_capacity(plan.replicas);
    for _ in 0..plan.replicas.max(1) {
        replicas.push(replica(plan)?);
    }
    if plan.dispatch == Dispatch::LeastLoaded || plan.requests.is_some() || plan.series.is_some() {
        together(plan, replicas)
    } else {
        apart(plan, replicas)
    }
}

type Any = Box<dyn Engine + Send>;

fn replica(plan: &Plan) -> Result<Any, RunError> {
    // Each has its own: tables that fill as they are read are not shared.
    let time = || plan.timing.step_time(&plan.config).map_err(RunError::Time);
    if let Some(Split { prefill, decode, transfer }) = plan.split {
        let some = |count| {
            (0..count).map(|_| Ok((plan.config.clone(), time()?))).collect::<Result<_, RunError>>()
        };
        let pair = Disaggregated::new(some(prefill)?, some(decode)?, transfer);
        return Ok(Box::new(pair.map_err(RunError::Config)?));
    }
    let policy = || -> Box<dyn Policy> {
        if plan.by_priority { Box::new(Priority) } else { Box::new(Fcfs) }
    };
    let replica = Replica::with_policy(plan.config.clone(), time()?, plan.ranks, policy);
    Ok(Box::new(replica.map_err(RunError::Config)?))
}

/// Calls `each` for every request of the trace, in order of time.
fn read(
    plan: &Plan,
    mut each: impl FnMut(&TraceRequest) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let mut base = 0;
    for _ in 0..plan.repeat.max(1) {
        let mut file = files::open(&plan.trace).map_err(RunError::File)?;
        let (mut reader, mut line, mut last) = (TraceReader::default(), Vec::new(), 0);
        loop {
            line.clear();
            let read = file.read_until(b'\n', &mut line);
            let read = read.map_err(|e| RunError::File(FileError::new(&plan.trace, e)))?;
            if read == 0 {
                reader.end()?;
            } else {
                reader.line(&line)?;
            }
            while let Some(mut request) = reader.next_request() {
                last = request.arrival;
                request.arrival += base;
                each(&request)?;
                reader.recycle(request);
            }
            if read == 0 {
                break;
            }
        }
        base += last + 1;
    }
    Ok(())
}

fn job(request: &TraceRequest, tag: u64) -> Job<'_> {
    Job { prefix: &request.names, tag, ..Job::new(request.input_tokens, request.output_tokens) }
}

/// Requests on their way to a thread.
#[derive(Debug, Default)]
struct Batch {
    /// Which of the thread's replicas; arrival, prompt and output tokens; names.
    requests: Vec<(usize, u64, u32, u32, usize)>,
    names: Vec<u64>,
}

/// Requests that a thread is given at a time.
const BATCH: usize = 1_024;

/// What a thread's replicas did.
type Done = (Summary, Counts, u64);

/// Replicas that know nothing of each other: each thread has its share.
fn apart(plan: &Plan, replicas: Vec<Any>) -> Result<Report, RunError> {
    let (all, threads) = (replicas.len(), plan.threads.clamp(1, replicas.len()));
    let mut shares: Vec<Vec<Any>> = Vec::new();
    shares.resize_with(threads, Vec::new);
    for (nth, replica) in replicas.into_iter().enumerate() {
        if let Some(share) = shares.get_mut(nth % threads) {
            share.push(replica);
        }
    }
    std::thread::scope(|scope| {
        let mut inboxes: Vec<(SyncSender<Batch>, Batch)> = Vec::new();
        let mut workers = Vec::new();
        for share in shares {
            let (sender, receiver) = sync_channel(8);
            inboxes.push((sender, Batch::default()));
            workers.push(scope.spawn(move || serve(&receiver, share)));
        }
        let mut count = 0;
        let read = read(plan, |request| {
            let replica = count % all;
            count += 1;
            let Some((sender, batch)) = inboxes.get_mut(replica % threads) else { return Ok(()) };
            let TraceRequest { arrival, input_tokens, output_tokens, names } = request;
            let names_count = names.len();
            let row = (replica / threads, *arrival, *input_tokens, *output_tokens, names_count);
            batch.requests.push(row);
            batch.names.extend_from_slice(names);
            if batch.requests.len() == BATCH {
                // A worker that is gone has panicked: joining it tells.
                let _ = sender.send(std::mem::take(batch));
            }
            Ok(())
        });
        for (sender, batch) in inboxes {
            let _ = sender.send(batch);
        }
        let mut report = Report::new(plan, count as u64);
        for worker in workers {
            match worker.join() {
                Ok((summary, counts, refused)) => report.add(&summary, counts, refused),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        read.map(|()| report)
    })
}

fn serve(inbox: &Receiver<Batch>, mut replicas: Vec<Any>) -> Done {
    let (mut summary, mut refused) = (Summary::default(), 0);
    for batch in inbox {
        let mut names = batch.names.as_slice();
        for (nth, arrival, prompt, output, count) in batch.requests {
            let (mine, rest) = names.split_at_checked(count).unwrap_or((names, &[]));
            names = rest;
            if let Some(replica) = replicas.get_mut(nth) {
                replica.advance(arrival, &mut summary);
                let job = Job { prefix: mine, ..Job::new(prompt, output) };
                refused += u64::from(replica.submit(arrival, &job).is_err());
            }
        }
    }
    let mut counts = Counts::default();
    for replica in &mut replicas {
        replica.advance(FOREVER, &mut summary);
        counts = counts.plus(replica.counts());
    }
    (summary, counts, refused)
}

/// All replicas at the same instant, on one thread.
fn together(plan: &Plan, mut replicas: Vec<Any>) -> Result<Report, RunError> {
    let mut rows = Rows::new(plan)?;
    let mut records: Vec<Record> = replicas.iter().map(|_| Record::new(plan)).collect();
    let (mut count, mut refused) = (0u64, 0);
    let advance = |replicas: &mut Vec<Any>, records: &mut Vec<Record>, rows: &mut Rows, now| {
        for (replica, record) in replicas.iter_mut().zip(records.iter_mut()) {
            replica.advance(now, record);
        }
        rows.write(records)
    };
    read(plan, |request| {
        advance(&mut replicas, &mut records, &mut rows, request.arrival)?;
        let place = match plan.dispatch {
            Dispatch::RoundRobin => (count % replicas.len() as u64) as usize,
            Dispatch::LeastLoaded => {
                let busy = |replica: &Any| {
                    let load = replica.load();
                    load.waiting * 4 + load.running
                };
                let least = replicas.iter().enumerate().min_by_key(|(_, replica)| busy(replica));
                least.map_or(0, |(place, _)| place)
            }
        };
        if let Some(replica) = replicas.get_mut(place) {
            let refuses = replica.submit(request.arrival, &job(request, count)).is_err();
            refused += u64::from(refuses);
        }
        count += 1;
        Ok(())
    })?;
    advance(&mut replicas, &mut records, &mut rows, FOREVER)?;
    rows.end()?;
    let mut report = Report::new(plan, count);
    report.add(&Summary::default(), Counts::default(), refused);
    for (replica, record) in replicas.iter().zip(&records) {
        report.add(&record.summary, replica.counts(), 0);
    }
    Ok(report)
}

/// What one replica told since the last writing.
struct Record {
    summary: Summary,
    finished: Option<Vec<Finished>>,
    seconds: Option<Vec<(u64, Load)>>,
    load: Load,
    next: u64,
}

impl Record {
    fn new(plan: &Plan) -> Self {
        Self {
            summary: Summary::default(),
            finished: plan.requests.is_some().then(Vec::new),
            seconds: plan.series.is_some().then(Vec::new),
            load: Load::default(),
            next: 1,
        }
    }
}

impl Sink for Record {
    fn finished(&mut self, finished: &Finished) {
        self.summary.finished(finished);
        if let Some(rows) = &mut self.finished {
            rows.push(*finished);
        }
    }

    fn step(&mut self, step: &Ended) {
        if let Some(rows) = &mut self.seconds {
            // What was so at each whole second that has passed.
            while self.next * SECOND < step.end {
                rows.push((self.next, self.load));
                self.next += 1;
            }
        }
        self.load = step.load;
    }
}

type File = (PathBuf, Box<dyn Write>);

/// The files of rows.
struct Rows {
    requests: Option<File>,
    series: Option<File>,
}

impl Rows {
    fn new(plan: &Plan) -> Result<Self, RunError> {
        let create = |path: &Option<PathBuf>, header: &str| -> Result<Option<File>, RunError> {
            match path {
                None => Ok(None),
                Some(path) => {
                    let file = std::fs::File::create(path);
                    let wrong = |error| RunError::Write(path.clone(), error);
                    let mut out = io::BufWriter::new(file.map_err(wrong)?);
                    writeln!(out, "{header}").map_err(wrong)?;
                    Ok(Some((path.clone(), Box::new(out))))
                }
            }
        };
        Ok(Self {
            requests: create(
                &plan.requests,
                "index,replica,arrival_s,scheduled_s,first_token_s,finished_s,input_tokens,\
                 output_tokens,cached_tokens,preemptions",
            )?,
            series: create(&plan.series, "t,replica,running,waiting,kv_cache_pct")?,
        })
    }

    /// Writes what has been told since the last time, in order of time.
    fn write(&mut self, records: &mut [Record]) -> Result<(), RunError> {
        if let Some((path, out)) = &mut self.requests {
            let each = records.iter_mut().enumerate().flat_map(|(replica, record)| {
                record
                    .finished
                    .iter_mut()
                    .flat_map(move |rows| rows.drain(..).map(move |finished| (replica, finished)))
            });
            let mut rows: Vec<(usize, Finished)> = each.collect();
            rows.sort_by_key(|(_, finished)| finished.at);
            for (replica, row) in rows {
                write_request(out, replica, &row).map_err(|e| wrong(path, e))?;
            }
        }
        if let Some((path, out)) = &mut self.series {
            let each = records.iter_mut().enumerate().flat_map(|(replica, record)| {
                record.seconds.iter_mut().flat_map(move |rows| {
                    rows.drain(..).map(move |(second, load)| (second, replica, load))
                })
            });
            let mut rows: Vec<(u64, usize, Load)> = each.collect();
            rows.sort_by_key(|&(second, replica, _)| (second, replica));
            for (second, replica, load) in rows {
                let Load { running, waiting, .. } = load;
                let usage = load.kv_usage() * 100.0;
                writeln!(out, "{second},{replica},{running},{waiting},{usage:.2}")
                    .map_err(|e| wrong(path, e))?;
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(), RunError> {
        for (path, mut out) in [self.requests, self.series].into_iter().flatten() {
            out.flush().map_err(|e| wrong(&path, e))?;
        }
        Ok(())
    }
}

fn wrong(path: &Path, error: io::Error) -> RunError {
    RunError::Write(path.into(), error)
}

fn write_request(out: &mut dyn Write, replica: usize, row: &Finished) -> io::Result<()> {
    let seconds = |nanos: u64| format!("{}.{:09}", nanos / SECOND, nanos % SECOND);
    writeln!(
        out,
        "{},{replica},{},{},{},{},{},{},{},{}",
        row.tag,
        seconds(row.arrival),
        seconds(row.scheduled),
        seconds(row.first_token),
        seconds(row.at),
        row.prompt_tokens,
        row.output_tokens,
        row.cached_tokens,
        row.preemptions
    )
}
