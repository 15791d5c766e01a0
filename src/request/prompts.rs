//! Requests with several prompts.

use super::Media;
use super::value::Sum;
use crate::estimate::Tally;

/// Prompts that are sequences of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct Prompts {
    pub(super) count: u64,
    pub(super) all: Tally,
    /// The one that is being read.
    pub(super) current: Tally,
    pub(super) largest: Tally,
    pub(super) ids: u64,
    current_ids: u64,
    pub(super) largest_ids: u64,
    /// Ids that stand in the outer list form one prompt.
    loose_ids: u64,
    pub(super) media: Media,
}

impl Prompts {
    /// Text bytes of the longest, the open one included.
    pub(super) fn longest(&self) -> u64 {
        self.largest.total().max(self.current.total())
    }

    pub(super) fn close_text(&mut self) {
        let text = core::mem::take(&mut self.current);
        self.count += 1;
        self.all.merge(&text);
        if text.total() > self.largest.total() {
            self.largest = text;
        }
    }

    pub(super) fn close_object(&mut self, sum: &Sum) {
        self.media.merge(&sum.media);
        self.current.merge(&sum.text);
        self.close_text();
    }

    pub(super) fn add_id(&mut self, inner: bool) {
        if inner {
            self.current_ids += 1;
        } else {
            self.loose_ids += 1;
        }
    }

    /// Ends a list: an inner one is a prompt, the outer one only by its own ids.
    pub(super) fn close_ids(&mut self, inner: bool) {
        let ids = if inner { &mut self.current_ids } else { &mut self.loose_ids };
        let ids = core::mem::take(ids);
        if inner || ids > 0 {
            self.count += 1;
            self.ids += ids;
            self.largest_ids = self.largest_ids.max(ids);
        }
    }

    #[inline(never)]
    pub(super) fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.all.merge(&other.all);
        if other.largest.total() > self.largest.total() {
            self.largest = other.largest.clone();
        }
        self.ids += other.ids;
        self.largest_ids = self.largest_ids.max(other.largest_ids);
        self.media.merge(&other.media);
    }

    /// The pairs that a scorer makes of two lists: each of the one with each of
    /// the other if that is a single one, else one by one. Which of equal lists
    /// belong together is not kept: the largest pair is that of the two largest.
    #[inline(never)]
    pub(super) fn pairs(mut self, mut other: Self) -> Self {
        let count = self.count.max(other.count);
        for side in [&mut self, &mut other] {
            if side.count == 1 {
                side.repeat(count);
            }
        }
        self.largest.merge(&other.largest);
        self.all.merge(&other.all);
        self.media.merge(&other.media);
        self.ids = self.ids.saturating_add(other.ids);
        self.largest_ids = self.largest_ids.saturating_add(other.largest_ids);
        self.count = count;
        self
    }

    /// Each prompt so many times.
    pub(super) fn repeat(&mut self, times: u64) {
        self.all = multiply(&self.all, times);
        self.ids = self.ids.saturating_mul(times);
        self.count = self.count.saturating_mul(times);
    }
}

/// By doubling; saturates.
#[inline(never)]
fn multiply(tally: &Tally, times: u64) -> Tally {
    let (mut sum, mut power, mut left) = (Tally::default(), tally.clone(), times);
    while left > 0 {
        if left % 2 == 1 {
            sum.merge(&power);
        }
        let half = power.clone();
        power.merge(&half);
        left /= 2;
    }
    sum
}
