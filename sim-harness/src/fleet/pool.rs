//! The replicas of one pool, and what they were busy with.

use super::scenario::{Dispatch, FleetError, Pool};
use crate::engine::{Counts, Ended, Fcfs, Finished, Job, JobId, Policy, Replica, Sink, StepTime};

/// Replicas on virtual time.
pub(super) struct Replicas<'a> {
    dispatch: Dispatch,
    all: Vec<One<'a>>,
    next: usize,
    /// The window of each, tokens.
    pub(super) window: u32,
}

struct One<'a> {
    engine: Replica<&'a dyn StepTime>,
    open: u32,
    load: Load,
    /// The event of the loop that stands for its next one.
    due: Option<u64>,
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

impl<'a> Replicas<'a> {
    pub(super) fn new(pool: &'a Pool) -> Result<Self, FleetError> {
        let wrong = |error| FleetError::Engine(pool.name.clone(), error);
        let policy = || -> Box<dyn Policy> { Box::new(Fcfs) };
        let mut all = Vec::new();
        for _ in 0..pool.replicas {
            let config = pool.engine.clone();
            let engine = Replica::with_policy(config, &*pool.time, pool.ranks, policy);
            let engine = engine.map_err(wrong)?;
            all.push(One { engine, open: 0, load: Load::default(), due: None });
        }
        let window = pool.engine.max_model_len;
        Ok(Self { dispatch: pool.dispatch, all, next: 0, window })
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// Sends a job to a replica; says which, and the job's name there.
    pub(super) fn submit(&mut self, now: u64, job: &Job<'_>) -> Option<(u32, JobId)> {
        let place = match self.dispatch {
            Dispatch::RoundRobin => {
                let place = self.next;
                self.next = (place + 1) % self.all.len().max(1);
                place
            }
            Dispatch::LeastLoaded => {
                let least = self.all.iter().enumerate().min_by_key(|(_, one)| one.open);
                least.map_or(0, |(place, _)| place)
            }
        };
        let one = self.all.get_mut(place)?;
        let id = one.engine.submit(now, job).ok()?;
        one.open += 1;
        Some((place as u32, id))
    }

    /// A client left. Says how many tokens had come out for it.
    pub(super) fn abort(&mut self, now: u64, replica: u32, job: JobId) -> u32 {
        let Some(one) = self.all.get_mut(replica as usize) else { return 0 };
        let told = one.engine.told(job);
        if one.engine.abort(now, job) {
            one.open = one.open.saturating_sub(1);
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
            one.engine.advance(at, &mut one.load);
            if !one.load.finished.is_empty() {
                break;
            }
            match one.engine.next_event() {
                Some(next) if next < until => at = next,
                _ => break,
            }
        }
        one.open = one.open.saturating_sub(one.load.finished.len() as u32);
        done.append(&mut one.load.finished);
    }

    /// Jobs that are in it.
    pub(super) fn jobs(&self) -> usize {
        let loads = self.all.iter().map(|one| one.engine.load());
        loads.map(|load| load.running + load.waiting).sum()
    }

    pub(super) fn counts(&self) -> Counts {
        self.all.iter().map(|one| one.engine.counts()).fold(Counts::default(), Counts::plus)
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
