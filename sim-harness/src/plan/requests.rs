//! The requests of one seed, and what the gate takes each of them to need.

use std::sync::Arc;

use super::question::{Question, Shape};
use crate::SECOND;
use crate::rng::Pcg;
use crate::workload::TraceRequest;

/// Streams of a seed.
const ROWS: u64 = 6;
const GAPS: u64 = 9;

/// What a gate takes a request for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Tokens that it is expected to take: what thresholds go by.
    pub need: u32,
    /// Tokens that it may take: what windows go by.
    pub fit: u32,
}

/// Requests in the order of their coming, some before and some after those that
/// count.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) rows: Arc<[TraceRequest]>,
    /// One for each row.
    pub(super) needs: Vec<Need>,
    pub(super) counts: Counts,
}

/// How many requests come first, and how many count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) warm: u64,
    pub(super) measured: u64,
}

/// Requests to simulate: the load goes on until those that count have ended.
pub(super) fn rows(
    question: &Question,
    rate: f64,
    counts: Counts,
    seed: u64,
) -> Arc<[TraceRequest]> {
    let all = counts.warm * 2 + counts.measured;
    let lengths = question.lengths.sample(all as usize, &mut Pcg::new(seed, ROWS));
    let mut gaps = Pcg::new(seed, GAPS);
    let shape = 1.0 / (question.cv * question.cv);
    let mut at = 0.0;
    lengths
        .into_iter()
        .map(|(input_tokens, output_tokens)| {
            let gap = if question.cv == 1.0 { gaps.exponential(1.0) } else { gaps.gamma(shape) };
            at += gap * SECOND as f64 / rate;
            let arrival = at as u64;
            TraceRequest { arrival, input_tokens, output_tokens, ..TraceRequest::default() }
        })
        .collect()
}

/// The requests of one pool among several: those that it takes and the next
/// smaller one does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slice {
    /// Threshold and window of the next smaller pool; zeros for the smallest.
    below: (u32, u32),
    /// Its own threshold and window; the largest pool takes all the rest.
    own: (u32, u32),
}

impl Slice {
    /// The `nth` of these pools.
    pub(super) fn of(shapes: &[Shape], nth: usize) -> Self {
        let of = |shape: &Shape| (shape.threshold, shape.window);
        let below = nth.checked_sub(1).and_then(|smaller| shapes.get(smaller));
        let last = nth + 1 == shapes.len();
        let own = shapes.get(nth).filter(|_| !last).map_or((u32::MAX, u32::MAX), of);
        Self { below: below.map_or((0, 0), of), own }
    }

    /// Whether the pool gets it.
    pub(super) fn has(&self, one: Need) -> bool {
        let takes = |(threshold, window): (u32, u32)| one.need <= threshold && one.fit <= window;
        takes(self.own) && !takes(self.below)
    }
}

impl Requests {
    /// Those of a slice, and how many of them come first and count.
    pub(super) fn slice(&self, slice: Slice) -> (Arc<[TraceRequest]>, Counts) {
        let mut counts = Counts { warm: 0, measured: 0 };
        let end = self.counts.warm + self.counts.measured;
        let rows = (0_u64..).zip(self.rows.iter().zip(&self.needs));
        let rows = rows.filter(|(_, (_, need))| slice.has(**need)).map(|(nth, (row, _))| {
            counts.warm += u64::from(nth < self.counts.warm);
            counts.measured += u64::from((self.counts.warm..end).contains(&nth));
            row.clone()
        });
        (rows.collect(), counts)
    }
}
