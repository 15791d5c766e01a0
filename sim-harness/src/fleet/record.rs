//! A run over time, for reports that people look at: bounded, whatever the run.
//!
//! Nothing is recorded unless it is asked for. What is recorded changes nothing
//! of the run.

mod timeline;
mod trace;

use std::collections::BTreeMap;

use tidegate::gate::Settlement;

use timeline::{Slot, Timeline};
use trace::Follower;
pub use trace::{Follow, ReplicaTrace, RequestLife};

use super::book::PoolBook;
use super::gateway::Opened;
use super::pool::Replicas;
use super::scenario::{FleetError, Scenario};
use super::sim::Simulation;
use super::source::Ask;
use crate::SECOND;
use crate::engine::{Ended, Event, Finished, JobId, Sink};
use crate::histogram::Histogram;
use crate::texts::Kind;

/// Latencies over time are kept in so many nanoseconds: 0.1 ms, so that a slot
/// takes little memory.
const TICK: u64 = 100_000;
/// Buckets of lengths: four from one power of two to the next.
const PER_DOUBLING: f64 = 4.0;

/// What came of the requests that a pool got in a while.
#[derive(Clone, Debug, Default)]
struct Requests {
    sent: u64,
    refused: u64,
    left: u64,
    under: u64,
    over: u64,
    truncated: u64,
    /// Of those that came to a replica then, in ticks.
    ttft: Histogram,
}

impl Slot for Requests {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.refused += other.refused;
        self.left += other.left;
        self.under += other.under;
        self.over += other.over;
        self.truncated += other.truncated;
        self.ttft.merge(&other.ttft);
    }
}

/// The estimate's error in a while: answers, and the sum of thousandths.
#[derive(Clone, Debug, Default)]
struct Errors(u64, u64);

impl Slot for Errors {
    fn add(&mut self, other: &Self) {
        self.0 += other.0;
        self.1 += other.1;
    }
}

/// Times nanoseconds, of a pool's replicas in a while.
#[derive(Clone, Debug, Default)]
struct Busy {
    running: u128,
    waiting: u128,
    blocks: u128,
}

impl Slot for Busy {
    fn add(&mut self, other: &Self) {
        self.running += other.running;
        self.waiting += other.waiting;
        self.blocks += other.blocks;
    }
}

/// What the replicas of one pool tell.
#[derive(Debug)]
pub(super) struct PoolLog {
    busy: Timeline<Busy>,
    follower: Option<Follower>,
}

impl PoolLog {
    pub(super) fn came(&mut self, at: u64, replica: u32, job: JobId, tokens: (u32, u32)) {
        if let Some(follower) = self.follower.as_mut().filter(|one| one.follows(replica)) {
            follower.came(at, job, tokens);
        }
    }

    pub(super) fn left(&mut self, at: u64, replica: u32, job: JobId) {
        if let Some(follower) = self.follower.as_mut().filter(|one| one.follows(replica)) {
            follower.left(at, job);
        }
    }

    /// A replica has gone down: all that it had has left.
    pub(super) fn lost(&mut self, at: u64, replica: u32) {
        if let Some(follower) = self.follower.as_mut().filter(|one| one.follows(replica)) {
            follower.lost(at);
        }
    }
}

/// A replica's sink whose words are recorded, if they are to be.
pub(super) struct RecordingSink<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) log: Option<&'a mut PoolLog>,
    pub(super) replica: u32,
}

impl RecordingSink<'_> {
    fn follower(&mut self) -> Option<&mut Follower> {
        let follower = self.log.as_mut()?.follower.as_mut();
        follower.filter(|one| one.follows(self.replica))
    }
}

impl Sink for RecordingSink<'_> {
    fn event(&mut self, event: Event) {
        if let Some(follower) = self.follower() {
            follower.event(event);
        }
        self.sink.event(event);
    }

    fn finished(&mut self, finished: &Finished) {
        if let Some(follower) = self.follower() {
            follower.finished(finished);
        }
        self.sink.finished(finished);
    }

    fn step(&mut self, step: &Ended) {
        if let Some(log) = self.log.as_mut() {
            let load = step.load;
            // As it is after the step, it is taken to have been during it.
            log.busy.over(step.start, step.end, |slot, nanos| {
                let nanos = u128::from(nanos);
                slot.running += load.running as u128 * nanos;
                slot.waiting += load.waiting as u128 * nanos;
                slot.blocks += u128::from(load.kv_used) * nanos;
            });
        }
        if let Some(follower) = self.follower() {
            follower.step(step);
        }
        self.sink.step(step);
    }
}

/// What one kind of text came to: by the how-manieth request it was.
#[derive(Clone, Debug, Default)]
struct Ratio {
    requests: u64,
    /// Text bytes, tokens as the gate estimated them, tokens, of the requests
    /// from one count to the next.
    steps: Vec<(u64, u64, u64)>,
}

/// Of one pool.
#[derive(Debug)]
struct PoolRecorder {
    requests: Timeline<Requests>,
    e2e: Histogram,
    lengths: Vec<u64>,
}

/// Records a run.
#[derive(Debug)]
pub(super) struct Recorder {
    pools: Vec<PoolRecorder>,
    errors: Timeline<Errors>,
    texts: BTreeMap<Kind, Ratio>,
    logs: Vec<PoolLog>,
}

/// In which bucket a length is.
pub(crate) fn length_bucket(length: u64) -> usize {
    (libm::log2(length.max(1) as f64) * PER_DOUBLING + 1e-9) as usize
}

impl Recorder {
    /// Fails if the replica that is to be followed is not one of the scenario's.
    pub(super) fn new(scenario: &Scenario, follow: Option<Follow>) -> Result<Self, FleetError> {
        let names = &scenario.config.pool_names;
        if let Some(follow) = &follow {
            let pool = scenario.pools.iter().find(|pool| pool.name == follow.pool);
            if pool.is_none_or(|pool| follow.replica >= pool.replicas) {
                let known = scenario.pools.iter().map(|pool| match pool.replicas {
                    1 => format!("{}/0", pool.name),
                    many => format!("{0}/0 to {0}/{1}", pool.name, many - 1),
                });
                let (known, Follow { pool, replica, .. }) =
                    (known.collect::<Vec<_>>().join(", "), follow);
                let why = format!("no replica is {pool}/{replica}; there are {known}");
                return Err(FleetError::Scenario(why));
            }
        }
        let end = scenario.end;
        let pool = |_: &String| PoolRecorder {
            requests: Timeline::new(end),
            e2e: Histogram::default(),
            lengths: Vec::new(),
        };
        let log = |name: &String| PoolLog {
            busy: Timeline::new(end),
            follower: follow.clone().filter(|follow| follow.pool == *name).map(Follower::new),
        };
        Ok(Self {
            pools: names.iter().map(pool).collect(),
            errors: Timeline::new(end),
            texts: BTreeMap::new(),
            logs: names.iter().map(log).collect(),
        })
    }

    /// The logs of pools, in the order of the document's names, for them to keep
    /// until [`Recorder::done`].
    pub(super) fn logs(&mut self) -> Vec<PoolLog> {
        std::mem::take(&mut self.logs)
    }

    fn requests(&mut self, now: u64, pool: usize, change: impl FnOnce(&mut Requests)) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.requests.at(now, change);
        }
    }

    /// A gate has looked at a request whose text has so many bytes.
    pub(super) fn opened(&mut self, ask: &Ask, bytes: Option<u64>, opened: &Opened) {
        let estimate = opened.budget.map(|budget| budget.input);
        let (Some(bytes), Some(estimate)) = (bytes, estimate) else { return };
        let ratio = self.texts.entry(ask.kind).or_default();
        ratio.requests += 1;
        let place = length_bucket(ratio.requests);
        if place >= ratio.steps.len() {
            ratio.steps.resize(place + 1, (0, 0, 0));
        }
        if let Some(sums) = ratio.steps.get_mut(place) {
            sums.0 += bytes;
            sums.1 += estimate;
            sums.2 += u64::from(ask.input);
        }
    }

    /// A request was sent to a pool.
    pub(super) fn sent(&mut self, now: u64, pool: usize, ask: &Ask) {
        self.requests(now, pool, |slot| slot.sent += 1);
        let Some(pool) = self.pools.get_mut(pool) else { return };
        let output = ask.output.min(ask.cap.unwrap_or(u32::MAX));
        let place = length_bucket(u64::from(ask.input) + u64::from(output));
        if place >= pool.lengths.len() {
            pool.lengths.resize(place + 1, 0);
        }
        if let Some(count) = pool.lengths.get_mut(place) {
            *count += 1;
        }
    }

    /// A pool refused a request for its length.
    pub(super) fn refused(&mut self, now: u64, pool: usize) {
        self.requests(now, pool, |slot| slot.refused += 1);
    }

    /// A pool answered a request.
    pub(super) fn served(&mut self, pool: usize, done: &Finished) {
        let ticks = (done.first_token - done.arrival) / TICK;
        self.requests(done.arrival, pool, |slot| slot.ttft.add(ticks));
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.e2e.add(done.at - done.arrival);
        }
    }

    /// A client left a pool.
    pub(super) fn left(&mut self, now: u64, pool: usize) {
        self.requests(now, pool, |slot| slot.left += 1);
    }

    /// The gate's judgement on a request that it sent to a pool.
    pub(super) fn judged(&mut self, now: u64, pool: usize, settlement: &Settlement) {
        if let Some(error) = settlement.error_permille {
            self.errors.at(now, |slot| *slot = Errors(slot.0 + 1, slot.1 + error));
        }
        let Settlement { under_route, over_route, truncated, .. } = *settlement;
        if under_route || over_route || truncated {
            self.requests(now, pool, |slot| {
                slot.under += u64::from(under_route);
                slot.over += u64::from(over_route);
                slot.truncated += u64::from(truncated);
            });
        }
    }

    /// What was recorded. `pools` has of each its log, its blocks of KV cache in
    /// all replicas, and its latencies.
    pub(super) fn done(mut self, pools: Vec<PoolEnd>) -> Record {
        let logs = pools.iter().filter_map(|pool| pool.log.as_ref());
        let widths = logs.map(|log| log.busy.width());
        let widths = widths.chain(self.pools.iter().map(|pool| pool.requests.width()));
        let width = widths.chain([self.errors.width()]).max().unwrap_or(1);
        self.errors.widen(width);
        let error = |slot: &Errors| (slot.0 > 0).then(|| slot.1 as f64 / slot.0 as f64 / 1e3);
        let (mut records, mut trace) = (Vec::new(), None);
        for (mut of, end) in self.pools.into_iter().zip(pools) {
            of.requests.widen(width);
            let mut points: Vec<PoolMoment> =
                of.requests.slots().iter().map(PoolMoment::of).collect();
            if let Some(mut log) = end.log {
                log.busy.widen(width);
                points.resize(points.len().max(log.busy.slots().len()), PoolMoment::default());
                for (point, busy) in points.iter_mut().zip(log.busy.slots()) {
                    let mean = |sum: u128| sum as f64 / width as f64;
                    point.running = mean(busy.running);
                    point.waiting = mean(busy.waiting);
                    point.kv = mean(busy.blocks) / end.blocks.max(1) as f64;
                }
                trace = trace.or(log.follower.map(Follower::done));
            }
            let came = end.came;
            records.push(PoolRecord {
                name: end.name,
                threshold: end.threshold,
                moments: points,
                lengths: of.lengths,
                ttft: curve(&end.first_token, came),
                tpot: curve(&end.per_token, end.per_token.count()),
                e2e: curve(&of.e2e, came),
            });
        }
        let texts = self.texts.into_iter().map(|(kind, ratio)| TextRecord::of(kind, &ratio));
        Record {
            width: width as f64 / SECOND as f64,
            errors: self.errors.slots().iter().map(error).collect(),
            texts: texts.collect(),
            pools: records,
            trace,
        }
    }
}

/// A pool at the end of a run.
pub(super) struct PoolEnd {
    pub(super) name: String,
    /// Up to so many tokens are for it; nothing for the largest.
    pub(super) threshold: Option<u64>,
    pub(super) log: Option<PoolLog>,
    /// Blocks of KV cache of all its replicas.
    pub(super) blocks: u64,
    /// Requests that came to a replica and were not refused.
    pub(super) came: u64,
    pub(super) first_token: Histogram,
    pub(super) per_token: Histogram,
}

/// Shares, and what so many of all requests were at or below, in seconds: up to
/// the share that there is a value for.
fn curve(histogram: &Histogram, all: u64) -> Vec<(f64, f64)> {
    let shares = (0..100).map(|percent| f64::from(percent) / 100.0);
    let shares = shares.chain([0.995, 0.999, 1.0]);
    let at = |share: f64| {
        let (rank, known) = ((share * all as f64).ceil().max(1.0), histogram.count() as f64);
        let value = (rank <= known).then(|| histogram.quantile(rank / known))?;
        Some((share, value as f64 / SECOND as f64))
    };
    shares.filter_map(at).collect()
}

/// A run over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// How wide each of the times is, in seconds. The first begins at 0.
    pub width: f64,
    /// In the order of the report's pools.
    pub pools: Vec<PoolRecord>,
    /// The estimate's mean error on the prompts of answers that came in each of
    /// the times, as a share; nothing where none came.
    pub errors: Vec<Option<f64>>,
    /// By kind, those that were there.
    pub texts: Vec<TextRecord>,
    /// The replica that was followed.
    pub trace: Option<ReplicaTrace>,
}

/// One pool over time.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// Up to so many tokens are for it; nothing for the largest.
    pub threshold: Option<u64>,
    /// One for each of the times, to the last in which something happened here.
    pub moments: Vec<PoolMoment>,
    /// Requests sent to it, by prompt plus output up to the cap: [`length_edge`].
    pub lengths: Vec<u64>,
    /// From the arrival at a replica to the first token: shares of all that came
    /// to one, in seconds. Who left or was cut never got there.
    pub ttft: Vec<(f64, f64)>,
    /// Between tokens, of answers with at least two.
    pub tpot: Vec<(f64, f64)>,
    /// From the arrival at a replica to the last token.
    pub e2e: Vec<(f64, f64)>,
}

/// Where the `nth` bucket of lengths begins. Tokens.
pub fn length_edge(nth: usize) -> f64 {
    libm::exp2(nth as f64 / PER_DOUBLING)
}

/// A pool in one of the times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolMoment {
    /// Requests sent to it.
    pub sent: u64,
    /// Refused for their length.
    pub refused: u64,
    /// Whose client left.
    pub left: u64,
    /// Judged then: sent to too small a pool, to too large a one, cut short by
    /// the window.
    pub under: u64,
    /// The same.
    pub over: u64,
    /// The same.
    pub truncated: u64,
    /// Of those that came to a replica then and were answered: seconds to the
    /// first token, to 0.1 ms.
    pub ttft_p50: Option<f64>,
    /// The same.
    pub ttft_p99: Option<f64>,
    /// Requests in batches, on average over the time; of all replicas.
    pub running: f64,
    /// Requests that wait to enter one.
    pub waiting: f64,
    /// Share of the KV cache in use.
    pub kv: f64,
}

impl PoolMoment {
    fn of(slot: &Requests) -> Self {
        let at = |share| {
            let ticks = (slot.ttft.count() > 0).then(|| slot.ttft.quantile(share))?;
            Some((ticks * TICK) as f64 / SECOND as f64)
        };
        Self {
            sent: slot.sent,
            refused: slot.refused,
            left: slot.left,
            under: slot.under,
            over: slot.over,
            truncated: slot.truncated,
            ttft_p50: at(0.5),
            ttft_p99: at(0.99),
            ..Self::default()
        }
    }
}

/// One kind of text: what the gates made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRecord {
    /// Which.
    pub kind: Kind,
    /// Requests with such a text that a gate looked at.
    pub requests: u64,
    /// The how-manieth request on, from 1; text bytes for each prompt token as the
    /// gates estimated it; the same as it was. Means over the requests from there
    /// to the next.
    pub steps: Vec<(f64, f64, f64)>,
}

impl TextRecord {
    fn of(kind: Kind, ratio: &Ratio) -> Self {
        let step = |(nth, &(bytes, estimated, actual)): (usize, &(u64, u64, u64))| {
            let per = |tokens: u64| bytes as f64 / tokens.max(1) as f64;
            (actual > 0).then(|| (length_edge(nth).ceil(), per(estimated), per(actual)))
        };
        let steps = ratio.steps.iter().enumerate().filter_map(step).collect();
        Self { kind, requests: ratio.requests, steps }
    }
}

impl Simulation<'_> {
    /// Records the run, and follows a replica through it.
    pub(super) fn recorded(mut self, follow: Option<Follow>) -> Result<Self, FleetError> {
        let mut recorder = Recorder::new(self.scenario, follow)?;
        for (pool, log) in self.pools.iter_mut().zip(recorder.logs()) {
            pool.log = Some(log);
        }
        self.recorder = Some(Box::new(recorder));
        Ok(self)
    }

    /// Tells the recorder, if there is one, and what time it is.
    pub(super) fn note(&mut self, note: impl FnOnce(&mut Recorder, u64)) {
        if let Some(recorder) = &mut self.recorder {
            note(recorder, self.now);
        }
    }

    /// What was recorded.
    pub(super) fn take_record(&mut self) -> Option<Record> {
        let recorder = self.recorder.take()?;
        let config = &self.scenario.config;
        let all = config.base().models.iter().flat_map(|model| match &model.pools[..] {
            [smaller @ .., _] => smaller,
            [] => &[],
        });
        let threshold =
            |name: &String| all.clone().find(|pool| pool.name == *name).map(|pool| pool.threshold);
        let pools = self.pools.iter_mut().zip(&self.pool_books).zip(&config.pool_names);
        let end = |((pool, book), name): ((&mut Replicas<'_>, &PoolBook), &String)| PoolEnd {
            name: name.clone(),
            threshold: threshold(name),
            log: pool.log.take(),
            blocks: pool.blocks(),
            came: book.served + book.left,
            first_token: book.first_token.clone(),
            per_token: book.per_token.clone(),
        };
        Some(recorder.done(pools.map(end).collect()))
    }
}
