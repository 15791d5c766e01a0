//! Sequences that decode, one token a step each, without a visit a step.
//!
//! A counter counts the steps. A sequence that has computed `c` tokens at count
//! `n` has computed `c + k` at `n + k`; its *base*, `n - c`, never changes. From
//! bases follow, without a look at any sequence: how many need a block now, who
//! produces its last token now, and the contexts' sum.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Counts start here, so that no base is negative.
const START: u64 = 1 << 32;

/// The sequences that decode.
#[derive(Debug)]
pub(super) struct Decoders {
    /// Steps, counted from [`START`].
    now: u64,
    count: u32,
    /// Sequences by their base modulo the block size, and `now` modulo it.
    phases: Vec<u32>,
    at: usize,
    context: u64,
    /// The least base, that of the longest context, while it is known.
    least: Option<u64>,
    /// By the count at which they have computed all they will: the count, the
    /// sequence's place and its job.
    ends: BinaryHeap<Reverse<(u64, u32, u64)>>,
}

impl Decoders {
    pub(super) fn new(block_size: u32) -> Self {
        let size = block_size.max(1);
        Self {
            now: START,
            count: 0,
            phases: vec![0; size as usize],
            at: (START % u64::from(size)) as usize,
            context: 0,
            least: None,
            ends: BinaryHeap::new(),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Tokens that all have computed, summed.
    pub(super) fn context(&self) -> u64 {
        self.context
    }

    /// Tokens that a sequence has computed.
    #[inline]
    pub(super) fn computed(&self, base: u64) -> u32 {
        (self.now - base) as u32
    }

    fn phase(&mut self, base: u64) -> Option<&mut u32> {
        let size = self.phases.len() as u64;
        self.phases.get_mut((base % size) as usize)
    }

    /// How many need a new block for their next token.
    #[inline]
    pub(super) fn need(&self) -> u32 {
        self.phases.get(self.at).copied().unwrap_or(0)
    }

    /// Adds a sequence that has computed `computed` tokens and will compute
    /// `total`. Gives its base.
    pub(super) fn add(&mut self, computed: u32, total: u32, place: u32, job: u64) -> u64 {
        let base = self.now - u64::from(computed);
        if let Some(phase) = self.phase(base) {
            *phase += 1;
        }
        self.context += u64::from(computed);
        self.least = match self.least {
            _ if self.count == 0 => Some(base),
            Some(least) => Some(least.min(base)),
            None => None,
        };
        self.count += 1;
        self.ends.push(Reverse((base + u64::from(total), place, job)));
        base
    }

    /// Removes a sequence. What it left in the heap is told apart by its base.
    pub(super) fn remove(&mut self, base: u64) {
        if let Some(phase) = self.phase(base) {
            *phase -= 1;
        }
        self.context -= self.now - base;
        self.count -= 1;
        if self.least == Some(base) {
            self.least = None;
        }
    }

    /// The least base is not known and has to be told by [`Decoders::set_least`].
    pub(super) fn least_is_lost(&self) -> bool {
        self.count > 0 && self.least.is_none()
    }

    pub(super) fn set_least(&mut self, base: Option<u64>) {
        self.least = base;
    }

    /// The longest context, 0 when none decodes.
    pub(super) fn longest(&self) -> u32 {
        if self.count == 0 { 0 } else { self.least.map_or(0, |base| self.computed(base)) }
    }

    /// All compute a token.
    #[inline]
    pub(super) fn step(&mut self) {
        self.now += 1;
        self.at = if self.at + 1 == self.phases.len() { 0 } else { self.at + 1 };
        self.context += u64::from(self.count);
    }

    /// The next sequence that has computed all it will by now: its place, its
    /// job and the base that it had. It may have been removed since.
    #[inline]
    pub(super) fn pop_ended(&mut self, total: impl Fn(u32, u64) -> Option<u64>) -> Option<u32> {
        while let Some(&Reverse((end, place, job))) = self.ends.peek() {
            if end > self.now {
                return None;
            }
            self.ends.pop();
            if total(place, job) == Some(end) {
                return Some(place);
            }
        }
        None
    }
}
