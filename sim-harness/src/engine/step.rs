//! What one step does, and who knows how long that takes.
//!
//! The scheduler composes a step; a time model prices it. They meet only here.

/// New tokens of one sequence whose prompt is not yet computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens that this step computes. At least 1.
    pub new: u32,
    /// Tokens computed before, or found in the prefix cache: attention reads
    /// their keys and values.
    pub context: u32,
}

/// One step of one replica, as the scheduler composed it.
///
/// Decoding sequences are summed up: a stretch of steps in which nothing else
/// happens is then priced step by step without looking at any sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work<'a> {
    /// Sequences that compute prompt tokens, in the order of the schedule.
    pub prefill: &'a [Chunk],
    /// Sequences that decode one token each.
    pub decode: u32,
    /// Context of the decoding sequences, summed. Tokens, the new one excluded.
    pub decode_context: u64,
    /// Context of the longest of them. Tokens.
    pub decode_context_max: u32,
    /// Sequences that yield a token: the decoding ones, and those whose prompt
    /// ends in this step.
    pub sampled: u32,
    /// Sequences that enter the batch in this step, for costs paid once a
    /// request.
    pub admitted: u32,
}

impl Work<'_> {
    /// Tokens that the step computes.
    pub fn tokens(&self) -> u64 {
        u64::from(self.decode) + self.prefill.iter().map(|chunk| u64::from(chunk.new)).sum::<u64>()
    }
}

/// A model of how long a step takes.
pub trait StepTime {
    /// Nanoseconds from the start of the step to the start of the next one on a
    /// busy replica. At least 1. The same work takes the same time.
    fn step(&self, work: &Work<'_>) -> u64;

    /// A step that data-parallel ranks take together, each with its own work
    /// (that of an idle rank is empty): none starts the next one before all have
    /// ended. By default the slowest rank's time.
    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        let busy = ranks.iter().filter(|work| work.tokens() > 0);
        busy.map(|work| self.step(work)).max().unwrap_or(1)
    }
}

/// A borrowed model is a model: replicas may share one.
impl<T: StepTime + ?Sized> StepTime for &T {
    fn step(&self, work: &Work<'_>) -> u64 {
        (**self).step(work)
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        (**self).together(ranks)
    }
}

impl<T: StepTime + ?Sized> StepTime for Box<T> {
    fn step(&self, work: &Work<'_>) -> u64 {
        (**self).step(work)
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        (**self).together(ranks)
    }
}
