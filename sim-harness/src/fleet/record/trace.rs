//! One replica, step by step.

use std::collections::BTreeMap;

use crate::engine::{Ended, Event, Finished, JobId, What};

/// Which replica to follow, and from when to when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// A pool's name.
    pub pool: String,
    /// Which of its replicas, from 0.
    pub replica: u32,
    /// From then on. Nanoseconds, as the end.
    pub from: u64,
    /// Nothing that begins then or later.
    pub until: u64,
}

/// Steps that are kept, and requests, at most: about 100 MB of JSON.
const STEPS: usize = 200_000;
const LIVES: usize = 50_000;

/// What one replica did in a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTrace {
    /// Which one, and when.
    pub follow: Follow,
    /// Its steps, in order of time. They do not overlap.
    pub steps: Vec<Ended>,
    /// The requests that came to it meanwhile, in that order, each to its end.
    pub lives: Vec<RequestLife>,
    /// There was more than is kept.
    pub full: bool,
}

/// One request in a replica. Nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLife {
    /// Its name there.
    pub job: JobId,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that it is to produce.
    pub output_tokens: u32,
    /// When it came.
    pub arrival: u64,
    /// When it first entered the batch.
    pub scheduled: Option<u64>,
    /// When its first token came out.
    pub first_token: Option<u64>,
    /// When it made room for others.
    pub preempted: Vec<u64>,
    /// When its last token came out, or its client left; nothing if it was there
    /// at the end.
    pub end: Option<u64>,
    /// Its client left.
    pub left: bool,
}

/// Follows one replica.
#[derive(Debug)]
pub(super) struct Follower {
    trace: ReplicaTrace,
    /// Where the open ones are among the lives.
    open: BTreeMap<JobId, usize>,
}

impl Follower {
    pub(super) fn new(follow: Follow) -> Self {
        let trace = ReplicaTrace { follow, steps: Vec::new(), lives: Vec::new(), full: false };
        Self { trace, open: BTreeMap::new() }
    }

    pub(super) fn follows(&self, replica: u32) -> bool {
        self.trace.follow.replica == replica
    }

    fn within(&self, at: u64) -> bool {
        (self.trace.follow.from..self.trace.follow.until).contains(&at)
    }

    pub(super) fn came(&mut self, at: u64, job: JobId, (prompt, output): (u32, u32)) {
        if !self.within(at) {
            return;
        }
        if self.trace.lives.len() >= LIVES {
            self.trace.full = true;
            return;
        }
        self.open.insert(job, self.trace.lives.len());
        self.trace.lives.push(RequestLife {
            job,
            prompt_tokens: prompt,
            output_tokens: output,
            arrival: at,
            scheduled: None,
            first_token: None,
            preempted: Vec::new(),
            end: None,
            left: false,
        });
    }

    fn life(&mut self, job: JobId) -> Option<&mut RequestLife> {
        self.trace.lives.get_mut(*self.open.get(&job)?)
    }

    pub(super) fn step(&mut self, step: &Ended) {
        if !self.within(step.start) {
            return;
        }
        if self.trace.steps.len() >= STEPS {
            self.trace.full = true;
            return;
        }
        self.trace.steps.push(*step);
    }

    pub(super) fn event(&mut self, event: Event) {
        let Some(life) = self.life(event.job) else { return };
        match event.what {
            What::Scheduled { .. } => life.scheduled = life.scheduled.or(Some(event.at)),
            What::Token { nth: 1, .. } => life.first_token = Some(event.at),
            What::Preempted => life.preempted.push(event.at),
            What::Token { .. } | What::Fetching { .. } => {}
        }
    }

    pub(super) fn finished(&mut self, done: &Finished) {
        if let Some(life) = self.life(done.job) {
            life.end = Some(done.at);
        }
        self.open.remove(&done.job);
    }

    pub(super) fn left(&mut self, at: u64, job: JobId) {
        if let Some(life) = self.life(job) {
            (life.end, life.left) = (Some(at), true);
        }
        self.open.remove(&job);
    }

    /// The replica is gone, and all that it had.
    pub(super) fn lost(&mut self, at: u64) {
        for job in self.open.keys().copied().collect::<Vec<_>>() {
            self.left(at, job);
        }
    }

    pub(super) fn done(self) -> ReplicaTrace {
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replica_had_ends_with_it() {
        let follow = Follow { pool: "p".into(), replica: 0, from: 10, until: 100 };
        let mut follower = Follower::new(follow);
        for (at, job) in [(5, 1), (20, 2), (30, 3), (40, 4)] {
            follower.came(at, job, (100, 10));
        }
        follower.left(50, 3);
        follower.lost(60);
        // It is back, and another one comes.
        follower.came(70, 5, (100, 10));
        let ends = follower.done().lives.into_iter().map(|one| (one.job, one.end, one.left));
        let expected =
            [(2, Some(60), true), (3, Some(50), true), (4, Some(60), true), (5, None, false)];
        assert_eq!(ends.collect::<Vec<_>>(), expected);
    }
}
