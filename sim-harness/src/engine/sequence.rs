//! One sequence, from its submission to its end.

use super::kv::Holding;
use super::policy::Rank;
use super::table::NONE;

/// Where a sequence is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nowhere: the place is free.
    #[default]
    Gone,
    /// In the queue.
    Waiting,
    /// In the queue; its prompt's blocks are being fetched from elsewhere.
    Fetching,
    /// In the batch; tokens before its next one are still to be computed.
    Prefill,
    /// In the batch; one token a step.
    Decode,
    /// In the batch; its last token is on its way.
    Ending,
    /// Done; its blocks are kept for another engine that fetches them.
    Kept,
}

/// Whether one engine computes a job's prompt and another one its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Handoff {
    /// This one does both.
    #[default]
    None,
    /// This one computes the prompt and keeps its blocks until told.
    Give,
    /// This one fetches the prompt's blocks.
    Fetch,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) job: u64,
    pub(super) tag: u64,
    pub(super) serial: u64,
    pub(super) stage: Stage,
    /// [`Handoff::Fetch`] until it has been done.
    pub(super) handoff: Handoff,
    pub(super) prompt: u32,
    pub(super) output: u32,
    pub(super) priority: i32,
    pub(super) arrival: u64,
    /// When it first entered the batch, and when its first token came.
    pub(super) scheduled: Option<u64>,
    pub(super) first_token: u64,
    /// In the queue: its place there.
    pub(super) rank: Rank,
    /// In the batch: its place there grows with this.
    pub(super) seat: u64,
    /// Output tokens that it had when it last entered the batch or the queue,
    /// those on their way included.
    pub(super) produced: u32,
    /// Tokens computed; while it decodes, its base says.
    pub(super) computed: u32,
    pub(super) base: u64,
    /// Tokens computed when it began to decode.
    pub(super) entered: u32,
    /// Blocks that it uses; while it decodes, the tokens computed say.
    pub(super) blocks: u32,
    /// Blocks that can be found by its content; while it decodes, as above.
    pub(super) written: u32,
    /// Of these, blocks that others can find by their names: what decoding fills is
    /// named when it is freed, so that no step has to look for it.
    pub(super) findable: u32,
    /// The names, and how many of the blocks that it will fill have one.
    pub(super) names: Vec<u64>,
    pub(super) named: u32,
    pub(super) holdings: Vec<Holding>,
    /// Where the cache keeps the rest of its blocks after it made room.
    pub(super) own: u32,
    pub(super) cached: u32,
    pub(super) preemptions: u32,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            job: u64::MAX,
            tag: 0,
            serial: 0,
            stage: Stage::Gone,
            handoff: Handoff::None,
            prompt: 1,
            output: 1,
            priority: 0,
            arrival: 0,
            scheduled: None,
            first_token: 0,
            rank: Rank::default(),
            seat: 0,
            produced: 0,
            computed: 0,
            base: 0,
            entered: 0,
            blocks: 0,
            written: 0,
            findable: 0,
            names: Vec::new(),
            named: 0,
            holdings: Vec::new(),
            own: NONE,
            cached: 0,
            preemptions: 0,
        }
    }
}

impl Sequence {
    /// Tokens known when it last entered: prompt and output so far.
    pub(super) fn known(&self) -> u32 {
        self.prompt + self.produced
    }

    /// Tokens to compute in all. The last one that comes out is not computed.
    pub(super) fn total(&self) -> u32 {
        self.prompt + self.output - 1
    }

    /// Which output token comes out when `computed` tokens have been computed.
    pub(super) fn nth(&self, computed: u32) -> u32 {
        computed - self.prompt + 1
    }
}
