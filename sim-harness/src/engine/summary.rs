//! What became of the requests of a replica, in flat memory.

use super::{Finished, Sink};
use crate::histogram::Histogram;

/// Latencies of all finished requests. Nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// From arrival to the first entry into the batch.
    pub queue: Histogram,
    /// From arrival to the first token (TTFT).
    pub first_token: Histogram,
    /// Between tokens, each request's mean (TPOT): last minus first token's
    /// time over output tokens less one. Requests of one token have none.
    pub per_token: Histogram,
    /// From arrival to the last token (E2E).
    pub whole: Histogram,
    /// Prompt tokens of the finished requests.
    pub prompt_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// When the last of them finished.
    pub end: u64,
    /// Sum over requests of the time spent in the batch, from the first entry.
    pub seat_time: u128,
}

impl Summary {
    /// Adds all of another one. The order does not matter.
    pub fn merge(&mut self, other: &Self) {
        self.queue.merge(&other.queue);
        self.first_token.merge(&other.first_token);
        self.per_token.merge(&other.per_token);
        self.whole.merge(&other.whole);
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.end = self.end.max(other.end);
        self.seat_time += other.seat_time;
    }
}

impl Sink for Summary {
    fn finished(&mut self, finished: &Finished) {
        self.queue.add(finished.scheduled - finished.arrival);
        self.first_token.add(finished.first_token - finished.arrival);
        let gaps = u64::from(finished.output_tokens - 1);
        if let Some(gap) = (finished.at - finished.first_token).checked_div(gaps) {
            self.per_token.add(gap);
        }
        self.whole.add(finished.at - finished.arrival);
        self.prompt_tokens += u64::from(finished.prompt_tokens);
        self.output_tokens += u64::from(finished.output_tokens);
        self.end = self.end.max(finished.at);
        self.seat_time += u128::from(finished.at - finished.scheduled);
    }
}
