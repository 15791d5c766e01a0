//! One simulated replica: prompts and output lengths go in, tokens with their
//! times come out.
//!
//! An engine has no clock. Its driver says what time it is, asks when the next
//! thing happens and comes back then: a simulator jumps there, a live server
//! sleeps until there. [`Batch`] is a simple model; a faithful vLLM scheduler
//! will implement the same trait.

mod batch;
mod step;

pub use batch::{Batch, Timing, TimingError};
pub use step::{Chunk, StepTime, Work};

/// One sequence to produce: one prompt and one choice of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Prompt tokens to prefill; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens to produce; 0 counts as 1. The caller has cut it at the cap and
    /// at the window.
    pub output_tokens: u32,
}

/// Names a job within one engine. Never used twice.
pub type JobId = u64;

/// One token came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds.
    pub at: u64,
    /// Whose.
    pub job: JobId,
    /// Which of its output tokens, from 1.
    pub token: u32,
    /// It was the job's last; the job is gone.
    pub last: bool,
}

/// What a replica is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs in the batch.
    pub running: usize,
    /// Jobs that wait to enter it.
    pub waiting: usize,
    /// Tokens of KV cache in use or reserved.
    pub kv_used: u64,
    /// Tokens of KV cache in all. At least 1.
    pub kv_capacity: u64,
}

/// A replica on virtual time.
///
/// `now` never decreases from call to call, and [`Engine::advance`] has been
/// called with it before any other method is.
pub trait Engine {
    /// Takes a job into the queue.
    fn submit(&mut self, now: u64, job: Job) -> JobId;

    /// Drops a job, wherever it is. Says whether it was still there.
    fn abort(&mut self, now: u64, job: JobId) -> bool;

    /// When the next event may happen; nothing while idle.
    fn next_event(&self) -> Option<u64>;

    /// Appends every event at or before `now`, in order of time.
    fn advance(&mut self, now: u64, events: &mut Vec<Event>);

    /// What it is busy with.
    fn load(&self) -> Load;
}
