//! One replica in time: steps start, end, and bring tokens.

use std::collections::VecDeque;

use super::config::{Config, ConfigError};
use super::policy::{Fcfs, Policy};
use super::scheduler::{Composed, Scheduler};
use super::sequence::Handoff;
use super::step::{StepTime, Work};
use super::transfer::Transfer;
use super::{Counts, Ended, Engine, Job, JobId, Load, Sink, TooLong};

/// A replica: one engine, or data-parallel ranks of one that step together.
#[derive(Debug)]
pub struct Replica<T> {
    time: T,
    ranks: Vec<Scheduler>,
    max_model_len: u32,
    /// Steps composed and not yet ended, at most: 1, or 2 with asynchronous
    /// scheduling. The first one runs.
    depth: usize,
    steps: VecDeque<Step>,
    /// When the first one started.
    start: u64,
    /// When the next one is to be composed; nothing while there is no reason to.
    due: Option<u64>,
    /// Steps to be reused.
    spare: Vec<Step>,
}

/// What all ranks do in one step.
#[derive(Debug, Default)]
struct Step {
    ranks: Vec<Composed>,
    duration: u64,
}

impl<T: StepTime> Replica<T> {
    /// An idle replica, first come first served. Fails when a setting is out of
    /// its range.
    pub fn new(config: Config, time: T) -> Result<Self, ConfigError> {
        Self::with_policy(config, time, 1, || Box::new(Fcfs))
    }

    /// `ranks` engines (at least 1), each with its own queue and KV cache, that
    /// start and end each step together, as data-parallel attention makes them.
    /// A job goes to the rank with the least of running plus four times waiting
    /// jobs, as vLLM's front end has it. `policy` is asked once a rank.
    pub fn with_policy(
        config: Config,
        time: T,
        ranks: u32,
        policy: impl Fn() -> Box<dyn Policy>,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        if !(1..=1_024).contains(&ranks) {
            let allowed = "1 to 1024".into();
            return Err(ConfigError { field: "ranks", value: ranks.into(), allowed });
        }
        let all = u64::from(ranks);
        Ok(Self {
            time,
            max_model_len: config.max_model_len,
            depth: if config.async_scheduling { 2 } else { 1 },
            ranks: (0..all)
                .map(|rank| Scheduler::new(config.clone(), policy(), rank, all))
                .collect(),
            steps: VecDeque::new(),
            start: 0,
            due: None,
            spare: Vec::new(),
        })
    }

    /// Lets jobs fetch their prompts' blocks from another replica.
    pub(super) fn set_transfer(&mut self, transfer: Transfer) {
        for rank in &mut self.ranks {
            rank.set_transfer(transfer);
        }
    }

    /// Takes a job into the queue.
    pub fn submit(&mut self, now: u64, job: &Job<'_>) -> Result<JobId, TooLong> {
        self.hand(now, job, Handoff::None)
    }

    /// Takes a job, or a part of one, into the queue.
    pub(super) fn hand(
        &mut self,
        now: u64,
        job: &Job<'_>,
        handoff: Handoff,
    ) -> Result<JobId, TooLong> {
        let tokens = u64::from(job.prompt_tokens.max(1)) + u64::from(job.output_tokens.max(1));
        if tokens > self.max_model_len.into() {
            return Err(TooLong {
                prompt_tokens: job.prompt_tokens,
                output_tokens: job.output_tokens,
                max_model_len: self.max_model_len,
            });
        }
        let busy = |rank: &Scheduler| {
            let load = rank.load();
            load.waiting * 4 + load.running
        };
        let ranks = self.ranks.iter().enumerate();
        let rank = ranks.min_by_key(|(_, rank)| busy(rank)).map_or(0, |(at, _)| at);
        let id = self.ranks.get_mut(rank).map_or(0, |rank| rank.submit(now, job, handoff));
        self.wake(now);
        Ok(id)
    }

    /// Drops a job, wherever it is. Says whether it was still there. A step that
    /// runs goes on to its end.
    pub fn abort(&mut self, now: u64, job: JobId) -> bool {
        let rank = (job % self.ranks.len() as u64) as usize;
        let there = self.ranks.get_mut(rank).is_some_and(|rank| rank.abort(job));
        self.wake(now);
        there
    }

    /// Tokens of a job that have come out; 0 for one that is gone. Steps that are
    /// under way are taken to bring it one each: for a job that is in fewer of
    /// them, as it made room or has its last token under way, it is too few by
    /// one or two.
    pub fn told(&self, job: JobId) -> u32 {
        let rank = (job % self.ranks.len() as u64) as usize;
        self.ranks.get(rank).map_or(0, |rank| rank.told(job, self.steps.len()))
    }

    /// While a step runs, the next one is composed at its end.
    fn wake(&mut self, now: u64) {
        if self.steps.is_empty() {
            self.due = Some(self.due.map_or(now, |due| due.min(now)));
        }
    }

    /// When to call [`Replica::advance`] next; nothing while idle.
    pub fn next_event(&self) -> Option<u64> {
        let end = self.end();
        // A step is composed once its instant has passed: all that is submitted
        // at that instant is in it.
        let due = self.due.map(|due| due + 1);
        match (due, end) {
            (Some(due), Some(end)) => Some(due.min(end)),
            (due, end) => due.or(end),
        }
    }

    /// When the running step ends.
    fn end(&self) -> Option<u64> {
        self.steps.front().map(|step| self.start + step.duration)
    }

    /// Tells everything that happens at or before `now`, in order of time.
    pub fn advance(&mut self, now: u64, sink: &mut dyn Sink) {
        loop {
            if let Some(due) = self.due
                && due < now
            {
                self.compose(due, sink);
            } else if let Some(end) = self.end()
                && end <= now
            {
                self.finish(end, sink);
            } else {
                return;
            }
        }
    }

    /// Composes the next step, at `at`.
    fn compose(&mut self, at: u64, sink: &mut dyn Sink) {
        self.due = None;
        if self.ranks.iter().all(Scheduler::is_idle) {
            return;
        }
        let mut step = self.spare.pop().unwrap_or_default();
        if step.ranks.is_empty() {
            step.ranks.resize_with(self.ranks.len(), Composed::default);
        }
        let mut any = false;
        for (rank, composed) in self.ranks.iter_mut().zip(&mut step.ranks) {
            any |= rank.compose(at, composed, sink);
        }
        if !any {
            // All that could run made room: now others may enter.
            if self.steps.is_empty() && step.ranks.iter().any(|composed| composed.room_made) {
                self.due = Some(at);
            } else if self.steps.is_empty() {
                self.due = self.ranks.iter().filter_map(Scheduler::next_fetched).min();
            }
            self.spare.push(step);
            return;
        }
        let time = match step.ranks.as_slice() {
            [only] => self.time.step(&only.work()),
            ranks => {
                let works: Vec<Work<'_>> = ranks.iter().map(Composed::work).collect();
                self.time.together(&works)
            }
        };
        step.duration = time.max(1);
        if self.steps.is_empty() {
            self.start = at;
        }
        self.steps.push_back(step);
        if self.steps.len() < self.depth {
            self.due = Some(at);
        }
    }

    /// The running step has ended, at `at`.
    fn finish(&mut self, at: u64, sink: &mut dyn Sink) {
        let Some(step) = self.steps.pop_front() else { return };
        for (rank, composed) in self.ranks.iter_mut().zip(&step.ranks) {
            rank.finish(at, composed, sink);
        }
        sink.step(&Ended {
            start: self.start,
            end: at,
            prefill_tokens: step.ranks.iter().map(Composed::prefill_tokens).sum(),
            decode: step.ranks.iter().map(|composed| composed.work().decode).sum(),
            load: self.load(),
        });
        self.spare.push(step);
        self.start = at;
        self.due = Some(at);
    }

    /// What it is busy with, all ranks together.
    pub fn load(&self) -> Load {
        self.ranks.iter().map(Scheduler::load).fold(Load::default(), Load::plus)
    }

    /// Prompt and output tokens of one job, at most.
    pub(super) fn max_model_len(&self) -> u32 {
        self.max_model_len
    }

    /// Counts since its start, all ranks together. A step of several ranks
    /// counts once.
    pub fn counts(&self) -> Counts {
        let each = self.ranks.iter().map(Scheduler::counts);
        let sum = each.fold(Counts::default(), Counts::plus);
        Counts { steps: sum.steps / self.ranks.len() as u64, ..sum }
    }

    /// The step time that it was made with.
    pub fn time(&self) -> &T {
        &self.time
    }
}

impl<T: StepTime> Engine for Replica<T> {
    fn submit(&mut self, now: u64, job: &Job<'_>) -> Result<JobId, TooLong> {
        Self::submit(self, now, job)
    }

    fn abort(&mut self, now: u64, job: JobId) -> bool {
        Self::abort(self, now, job)
    }

    fn next_event(&self) -> Option<u64> {
        Self::next_event(self)
    }

    fn advance(&mut self, now: u64, sink: &mut dyn Sink) {
        Self::advance(self, now, sink);
    }

    fn load(&self) -> Load {
        Self::load(self)
    }

    fn counts(&self) -> Counts {
        Self::counts(self)
    }
}
