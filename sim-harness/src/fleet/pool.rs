//! The replicas of one pool, and what they were busy with.

use std::cell::Cell;
use std::collections::BTreeSet;

use tidegate::pool::Reading;

use super::record::{PoolLog, RecordingSink};
use super::scenario::{Dispatch, Fault, FaultKind, FleetError, Pool};
use super::session::NAME_TOKENS;
use crate::engine::{
    Counts, Ended, Fcfs, Finished, Job, JobId, Policy, Replica, Sink, StepTime, Work,
};

/// Replicas on virtual time.
pub(super) struct Replicas<'a> {
    pool: &'a Pool,
    all: Vec<One<'a>>,
    /// Open requests and place of each, so that the least loaded of ten thousand is
    /// found at once.
    by_load: BTreeSet<(u32, u32)>,
    next: u32,
    /// Gateways look at the replicas: one was down.
    checked: bool,
    /// Times that one went down.
    pub(super) downs: u64,
    /// The window of each, tokens.
    pub(super) window: u32,
    /// Nothing unless the run is recorded.
    pub(super) log: Option<PoolLog>,
}

struct One<'a> {
    engine: Replica<Paced<'a>>,
    open: u32,
    load: Load,
    /// The event of the loop that stands for its next one.
    due: Option<u64>,
    /// What it did before it was last down.
    past: Counts,
    /// It is not there.
    down: bool,
    failed_checks: u32,
}

impl One<'_> {
    /// Gateways know that it is not there.
    fn is_shunned(&self) -> bool {
        self.failed_checks >= UNHEALTHY
    }
}

/// KV use over time, and who has finished since it was last looked at.
#[derive(Debug, Default)]
struct Load {
    finished: Vec<Finished>,
    /// Blocks × nanoseconds.
    kv_time: u128,
    kv_most: u64,
}

impl Sink for Load {
    fn finished(&mut self, finished: &Finished) {
        self.finished.push(*finished);
    }

    fn step(&mut self, step: &Ended) {
        // What it holds after a step it held during it, and a little less.
        self.kv_time += u128::from(step.load.kv_used) * u128::from(step.end - step.start);
        self.kv_most = self.kv_most.max(step.load.kv_used);
    }
}

/// KV use of a pool. Shares, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct KvUse {
    pub(super) mean: f64,
    pub(super) most: f64,
}

/// A step time that is made longer.
struct Paced<'a> {
    time: &'a dyn StepTime,
    /// So many times as long; 1 for as it is.
    factor: Cell<f64>,
}

impl Paced<'_> {
    fn paced(&self, time: u64) -> u64 {
        let factor = self.factor.get();
        if factor == 1.0 { time } else { ((time as f64 * factor) as u64).max(1) }
    }
}

impl StepTime for Paced<'_> {
    fn step(&self, work: &Work<'_>) -> u64 {
        self.paced(self.time.step(work))
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        self.paced(self.time.together(ranks))
    }
}

/// Failed checks in a row after which nothing is sent to a replica.
const UNHEALTHY: u32 = 2;

fn engine(pool: &Pool) -> Result<Replica<Paced<'_>>, FleetError> {
    let policy = || -> Box<dyn Policy> { Box::new(Fcfs) };
    let mut config = pool.engine.clone();
    if NAME_TOKENS.is_multiple_of(config.block_size.max(1)) {
        config.prefix_id_tokens = NAME_TOKENS;
    }
    let time = Paced { time: &*pool.time, factor: Cell::new(1.0) };
    Replica::with_policy(config, time, pool.ranks, policy)
        .map_err(|error| FleetError::Engine(pool.name.clone(), error))
}

impl<'a> Replicas<'a> {
    pub(super) fn new(pool: &'a Pool) -> Result<Self, FleetError> {
        let mut all = Vec::new();
        for _ in 0..pool.replicas {
            all.push(One {
                engine: engine(pool)?,
                open: 0,
                load: Load::default(),
                due: None,
                past: Counts::default(),
                down: false,
                failed_checks: 0,
            });
        }
        let window = pool.engine.max_model_len;
        let by_load = (0..pool.replicas).map(|place| (0, place)).collect();
        Ok(Self { pool, all, by_load, next: 0, checked: false, downs: 0, window, log: None })
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// The replica that the next request goes to, as far as gateways know who is
    /// there; not `but`, if there is another one.
    pub(super) fn pick(&self, but: Option<u32>) -> Option<u32> {
        let only = self.all.len() == 1;
        let usable = |place: &u32| {
            let there = self.all.get(*place as usize).is_some_and(|one| !one.is_shunned());
            there && (only || Some(*place) != but)
        };
        match self.pool.dispatch {
            // Those behind the last one, and then those before.
            Dispatch::RoundRobin => (self.next..self.len()).chain(0..self.next).find(usable),
            Dispatch::LeastLoaded => self.by_load.iter().map(|(_, place)| *place).find(usable),
        }
    }

    fn set_open(&mut self, replica: u32, open: u32) {
        if let Some(one) = self.all.get_mut(replica as usize).filter(|one| one.open != open) {
            self.by_load.remove(&(one.open, replica));
            one.open = open;
            self.by_load.insert((open, replica));
        }
    }

    /// Whether a replica is there.
    pub(super) fn is_up(&self, replica: u32) -> bool {
        self.all.get(replica as usize).is_some_and(|one| !one.down)
    }

    /// What a replica says of itself now; nothing while it is down.
    pub(super) fn reading(&self, replica: u32) -> Option<Reading> {
        let one = self.all.get(replica as usize).filter(|one| !one.down)?;
        let load = one.engine.load();
        Some(Reading {
            waiting: Some(load.waiting as u64 * 1000),
            running: Some(load.running as u64 * 1000),
            kv_use: Some((load.kv_usage() * 1000.0 + 0.5) as u64),
        })
    }

    /// Share of the replicas that gateways take for healthy.
    pub(super) fn healthy(&self) -> f64 {
        let healthy = self.all.iter().filter(|one| !one.is_shunned()).count();
        healthy as f64 / self.all.len().max(1) as f64
    }

    /// Gives a job to a replica; says the job's name there.
    pub(super) fn submit(&mut self, now: u64, replica: u32, job: &Job<'_>) -> Option<JobId> {
        let one = self.all.get_mut(replica as usize)?;
        let id = one.engine.submit(now, job).ok()?;
        let open = one.open + 1;
        self.set_open(replica, open);
        self.pass(replica);
        if let Some(log) = &mut self.log {
            log.came(now, replica, id, (job.prompt_tokens, job.output_tokens));
        }
        Some(id)
    }

    /// It was this replica's turn.
    pub(super) fn pass(&mut self, replica: u32) {
        self.next = (replica + 1) % self.len().max(1);
    }

    /// The replica that a fault befalls.
    pub(super) fn of_fault(&self, nth: u32) -> Option<u32> {
        self.pool.faults.get(nth as usize).map(|fault| fault.replica)
    }

    fn faults_of(&self, now: u64, replica: u32) -> impl Iterator<Item = &'a Fault> + use<'a> {
        let at_work = move |fault: &&Fault| {
            fault.replica == replica && fault.during.0 <= now && now < fault.during.1
        };
        self.pool.faults.iter().filter(at_work)
    }

    /// A replica is there, and will not be after [`Replicas::refresh`].
    pub(super) fn goes_down(&self, now: u64, replica: u32) -> bool {
        let down = self.faults_of(now, replica).any(|fault| fault.what == FaultKind::Down);
        down && self.is_up(replica)
    }

    /// Brings a replica to what befalls it now.
    pub(super) fn refresh(&mut self, now: u64, replica: u32) -> Result<(), FleetError> {
        let goes_down = self.goes_down(now, replica);
        let down = self.faults_of(now, replica).any(|fault| fault.what == FaultKind::Down);
        let slow = self.faults_of(now, replica).filter_map(|fault| match fault.what {
            FaultKind::Slow(factor) => Some(factor),
            FaultKind::Down => None,
        });
        let factor = slow.product();
        let Some(one) = self.all.get_mut(replica as usize) else { return Ok(()) };
        one.down = down;
        if goes_down {
            if let Some(log) = &mut self.log {
                log.lost(now, replica);
            }
            one.past = one.past.plus(one.engine.counts());
            one.engine = engine(self.pool)?;
            one.due = None;
            self.downs += 1;
        }
        one.engine.time().factor.set(factor);
        if goes_down {
            self.set_open(replica, 0);
        }
        Ok(())
    }

    /// Tokens that had come out of a job.
    pub(super) fn told(&self, replica: u32, job: JobId) -> u32 {
        self.all.get(replica as usize).map_or(0, |one| one.engine.told(job))
    }

    /// Somebody has to begin to look at the replicas: one of them is down, and
    /// nobody does.
    pub(super) fn begin_checks(&mut self) -> bool {
        let begin = !self.checked && self.all.iter().any(|one| one.down);
        self.checked |= begin;
        begin
    }

    /// Gateways look at all replicas; says whether they have to go on.
    pub(super) fn check(&mut self) -> bool {
        for one in &mut self.all {
            one.failed_checks = if one.down { one.failed_checks + 1 } else { 0 };
        }
        self.checked = self.all.iter().any(|one| one.down);
        self.checked
    }

    /// A client left. Says how many tokens had come out for it.
    pub(super) fn abort(&mut self, now: u64, replica: u32, job: JobId) -> u32 {
        let Some(one) = self.all.get_mut(replica as usize) else { return 0 };
        let told = one.engine.told(job);
        if one.engine.abort(now, job) {
            let open = one.open.saturating_sub(1);
            self.set_open(replica, open);
            if let Some(log) = &mut self.log {
                log.left(now, replica, job);
            }
        }
        told
    }

    /// When a replica wants to be woken, if the loop does not know that yet.
    pub(super) fn wake(&mut self, replica: u32) -> Option<u64> {
        let one = self.all.get_mut(replica as usize)?;
        let next = one.engine.next_event();
        if next == one.due {
            return None;
        }
        one.due = next;
        next
    }

    /// Lets a replica run on: to `now`, and further, to before `until`, as long
    /// as nobody finishes. An event that is no longer due does nothing.
    pub(super) fn run(&mut self, replica: u32, now: u64, until: u64, done: &mut Vec<Finished>) {
        let Some(one) = self.all.get_mut(replica as usize) else { return };
        if one.due != Some(now) {
            return;
        }
        one.due = None;
        let mut at = now;
        loop {
            let log = self.log.as_mut();
            one.engine.advance(at, &mut RecordingSink { sink: &mut one.load, log, replica });
            if !one.load.finished.is_empty() {
                break;
            }
            match one.engine.next_event() {
                Some(next) if next < until => at = next,
                _ => break,
            }
        }
        let open = one.open.saturating_sub(one.load.finished.len() as u32);
        done.append(&mut one.load.finished);
        self.set_open(replica, open);
    }

    /// Jobs that are in it.
    pub(super) fn jobs(&self) -> usize {
        let loads = self.all.iter().map(|one| one.engine.load());
        loads.map(|load| load.running + load.waiting).sum()
    }

    pub(super) fn counts(&self) -> Counts {
        let each = self.all.iter().map(|one| one.past.plus(one.engine.counts()));
        each.fold(Counts::default(), Counts::plus)
    }

    /// Blocks of KV cache, of all of them.
    pub(super) fn blocks(&self) -> u64 {
        self.all.iter().map(|one| one.engine.load().kv_capacity).sum()
    }

    /// KV use over so many nanoseconds.
    pub(super) fn kv_use(&self, time: u64) -> KvUse {
        let capacity = |one: &One<'_>| one.engine.load().kv_capacity.max(1);
        let blocks: u64 = self.all.iter().map(capacity).sum();
        let used: u128 = self.all.iter().map(|one| one.load.kv_time).sum();
        let most = self.all.iter().map(|one| one.load.kv_most as f64 / capacity(one) as f64);
        KvUse {
            mean: used as f64 / (blocks as f64 * time.max(1) as f64),
            most: most.fold(0.0, f64::max),
        }
    }
}
