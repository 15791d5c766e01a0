//! One simulated replica: prompts and output lengths go in, tokens with their
//! times come out.
//!
//! The scheduler is that of vLLM's v1 engine, as of 0.19: [`Config`] has its
//! settings by their names, [`Replica`] its loop. It decides what a step holds;
//! a [`StepTime`] says how long that takes. Tensor and expert parallelism are
//! in the step time only.
//!
//! An engine has no clock. Its driver says what time it is, asks when the next
//! thing happens and comes back then: a simulator jumps there, a live server
//! sleeps until there.
//!
//! ```
//! use tidegate_sim::engine::{Config, Event, Job, Linear, Replica, What};
//!
//! let mut replica = Replica::new(Config::default(), Linear::default())?;
//! replica.submit(0, &Job::new(1_000, 3))?;
//! let mut events: Vec<Event> = Vec::new();
//! while let Some(at) = replica.next_event() {
//!     replica.advance(at, &mut events);
//! }
//! assert!(matches!(events.last().unwrap().what, What::Token { nth: 3, last: true }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is cheap, and why it is exact
//!
//! A decoding sequence is not touched by a step in which nothing happens to it:
//! its length follows from a counter of steps, blocks that decoding needs are
//! counted by the sequences' phase within a block, and the step that ends each
//! is known when it starts to decode. So a step costs what it changes, however
//! many sequences run, and there is one code path for all steps. The same
//! results as visiting each sequence in each step: `tests/engine_oracle.rs`
//! compares both on random workloads.
//!
//! # Where it differs from vLLM
//!
//! - A job's output length is known, as if set by its cap. One that ends by
//!   itself would, scheduled asynchronously, be in one step more, for nothing.
//! - Jobs of one instant are told apart by the order of their submission.
//! - Blocks with a named answer's tokens are found by others once the job has
//!   ended, left or made room; in vLLM as soon as they are full. It makes no
//!   difference to who sends the answer back after it has ended.
//! - What was fetched for waiting jobs is given up when nothing else can run:
//!   vLLM stands still.
//!
//! # What is left out
//!
//! Speculative decoding, multi-modal inputs, LoRA limits, sliding-window and
//! hybrid caches, and pipeline parallelism.

mod config;
mod decoders;
mod disaggregated;
mod index;
mod kv;
mod linear;
mod policy;
mod replica;
mod rounded;
mod scheduler;
mod sequence;
mod step;
mod summary;
mod table;
mod transfer;

pub use config::{Config, ConfigError};
pub use disaggregated::Disaggregated;
pub use linear::{Linear, LinearError};
pub use policy::{Fcfs, Policy, Priority, Rank, Ticket};
pub use replica::Replica;
pub use rounded::Rounded;
pub use step::{Chunk, StepTime, Work};
pub use summary::Summary;
pub use transfer::Transfer;

use std::fmt;

/// One sequence to produce: one prompt and one choice of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job<'a> {
    /// Prompt tokens to prefill; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens to produce; 0 counts as 1. The caller has cut it at the cap and
    /// at the window.
    pub output_tokens: u32,
    /// Names of the prompt's leading blocks of [`Config::prefix_id_tokens`]
    /// tokens each; the last may be part filled. Equal names at the same place
    /// mean equal tokens from the prompt's start, as with chained hashes.
    /// Prompt beyond them is taken for unlike all others.
    pub prefix: &'a [u64],
    /// The names go on behind the prompt: the first one that the prompt does not
    /// fill holds tokens of the answer, too, and those behind it are of the
    /// answer alone. Names beyond what is computed of both count nothing.
    /// Otherwise an answer is taken for unlike all others.
    pub names_answer: bool,
    /// The lower, the sooner, where the policy looks at it.
    pub priority: i32,
    /// The caller's own name for it, handed back in [`Finished`].
    pub tag: u64,
}

impl Job<'_> {
    /// A job with a prompt unlike all others.
    pub fn new(prompt_tokens: u32, output_tokens: u32) -> Self {
        Self { prompt_tokens, output_tokens, prefix: &[], names_answer: false, priority: 0, tag: 0 }
    }
}

/// Names a job within one engine. Never used twice.
pub type JobId = u64;

/// Something happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds.
    pub at: u64,
    /// Whose.
    pub job: JobId,
    /// What.
    pub what: What,
}

/// What happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It entered the batch, for the first time or again.
    Scheduled {
        /// Tokens found in the prefix cache.
        cached: u32,
    },
    /// Its prompt's KV blocks, computed elsewhere, are on their way.
    Fetching {
        /// When they will be there. Nanoseconds.
        until: u64,
    },
    /// It made room for others and waits again; its tokens are computed anew.
    Preempted,
    /// A token came out.
    Token {
        /// Which of its output tokens, from 1.
        nth: u32,
        /// It was the job's last; the job is gone.
        last: bool,
    },
}

/// A job that has run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub job: JobId,
    /// The caller's name for it.
    pub tag: u64,
    /// When it was submitted. Nanoseconds, as the times below.
    pub arrival: u64,
    /// When it first entered the batch.
    pub scheduled: u64,
    /// When its first token came out.
    pub first_token: u64,
    /// When its last token came out.
    pub at: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that it produced.
    pub output_tokens: u32,
    /// Tokens found in the prefix cache when it first entered the batch.
    pub cached_tokens: u32,
    /// Times that it made room for others.
    pub preemptions: u32,
}

/// A step that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it started. Nanoseconds.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Prompt tokens that it computed.
    pub prefill_tokens: u32,
    /// Sequences that decoded in it.
    pub decode: u32,
    /// What the replica is busy with after it: finished jobs are gone, the next
    /// step is not yet composed. This is what vLLM logs and exports.
    pub load: Load,
}

/// Takes what an engine tells, in order of time. All default to nothing.
pub trait Sink {
    /// Something happened to a job. Tokens between its first and its last are
    /// told only with [`Config::every_token`].
    fn event(&mut self, event: Event) {
        let _ = event;
    }

    /// A job has run to its end. Told after the event of its last token.
    fn finished(&mut self, finished: &Finished) {
        let _ = finished;
    }

    /// A step has ended. Told after the tokens that it brought.
    fn step(&mut self, step: &Ended) {
        let _ = step;
    }
}

/// Keeps the events.
impl Sink for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}

/// Listens to nothing.
impl Sink for () {}

/// What a replica is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs in the batch.
    pub running: usize,
    /// Jobs that wait to enter it.
    pub waiting: usize,
    /// Blocks of KV cache in use. Cached blocks that nobody uses are free.
    pub kv_used: u64,
    /// Blocks of KV cache in all. At least 1.
    pub kv_capacity: u64,
}

impl Load {
    /// The sum of two replicas' loads.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            kv_used: self.kv_used + other.kv_used,
            kv_capacity: self.kv_capacity + other.kv_capacity,
        }
    }

    /// Share of the KV cache in use, 0 to 1: vLLM's `kv_cache_usage_perc`.
    pub fn kv_usage(&self) -> f64 {
        self.kv_used as f64 / self.kv_capacity.max(1) as f64
    }
}

/// Counts since an engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps that ended.
    pub steps: u64,
    /// Times that a job made room for others.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache when jobs first enter the batch. As
    /// in vLLM, returns of those that made room are left out; unlike vLLM 0.19,
    /// failed attempts to enter are, too.
    pub prefix_queries: u64,
    /// Of these, tokens found.
    pub prefix_hits: u64,
    /// Prompt tokens computed, those of preempted jobs anew.
    pub prefill_tokens: u64,
    /// Tokens that came out.
    pub output_tokens: u64,
}

impl Counts {
    /// The sum of two replicas' counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            preemptions: self.preemptions + other.preemptions,
            prefix_queries: self.prefix_queries + other.prefix_queries,
            prefix_hits: self.prefix_hits + other.prefix_hits,
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            output_tokens: self.output_tokens + other.output_tokens,
        }
    }
}

/// A job that can never run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that it wants to produce.
    pub output_tokens: u32,
    /// What both may be together.
    pub max_model_len: u32,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt_tokens, output_tokens, max_model_len } = self;
        write!(
            f,
            "{prompt_tokens} prompt and {output_tokens} output tokens; allowed: together at most \
             max_model_len, {max_model_len}"
        )
    }
}

impl std::error::Error for TooLong {}

/// A replica on virtual time.
///
/// `now` never decreases from call to call. A step that starts at some instant
/// holds what was submitted at or before it.
pub trait Engine {
    /// Takes a job into the queue.
    fn submit(&mut self, now: u64, job: &Job<'_>) -> Result<JobId, TooLong>;

    /// Drops a job, wherever it is. Says whether it was still there.
    fn abort(&mut self, now: u64, job: JobId) -> bool;

    /// When to call [`Engine::advance`] next; nothing while idle.
    fn next_event(&self) -> Option<u64>;

    /// Tells everything that happens at or before `now`, in order of time.
    fn advance(&mut self, now: u64, sink: &mut dyn Sink);

    /// What it is busy with.
    fn load(&self) -> Load;

    /// Counts since its start.
    fn counts(&self) -> Counts;
}
