//! What is counted while a fleet runs.

use tidegate::gate::Settlement;
use tidegate::tenant::Cause;

use crate::engine::Finished;
use crate::histogram::Histogram;

/// How a request ended, for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With its whole answer.
    Answered,
    /// Its tenant's limits did not cover it, each time that it asked.
    Refused(Cause),
    /// The engine refused it for its length.
    TooLong,
    /// Its client did not wait any longer.
    TimedOut,
    /// Its replica went down, or none could be reached, each time that it asked.
    Failed,
    /// The simulation ended before it did.
    Cut,
}

/// One pool. Requests that are answered elsewhere than where they were sent
/// count as sent to the one and as served by the other.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolBook {
    pub(super) sent: u64,
    pub(super) served: u64,
    /// Refused for their length.
    pub(super) refused: u64,
    /// Second attempts: those that another pool had refused, or whose replica
    /// was down.
    pub(super) taken_over: u64,
    pub(super) left: u64,
    /// Attempts that found their replica, or enough of the pool, down.
    pub(super) unreachable: u64,
    /// Lost with their replica.
    pub(super) lost: u64,
    pub(super) truncated: u64,
    pub(super) under_routed: u64,
    pub(super) over_routed: u64,
    /// Sent here since their own pool was under pressure.
    pub(super) moved: u64,
    /// Times that the pool began or ended to send others away.
    pub(super) spill_changes: u64,
    pub(super) input: u64,
    /// Of these, found in the prefix cache.
    pub(super) cached: u64,
    pub(super) output: u64,
    /// From the arrival at the replica. Nanoseconds.
    pub(super) queue: Histogram,
    pub(super) first_token: Histogram,
    pub(super) per_token: Histogram,
}

impl PoolBook {
    /// A replica has answered.
    pub(super) fn served(&mut self, done: &Finished) {
        self.served += 1;
        self.input += u64::from(done.prompt_tokens);
        self.cached += u64::from(done.cached_tokens);
        self.output += u64::from(done.output_tokens);
        self.queue.add(done.scheduled - done.arrival);
        self.first_token.add(done.first_token - done.arrival);
        let gaps = u64::from(done.output_tokens.saturating_sub(1));
        if let Some(gap) = (done.at - done.first_token).checked_div(gaps) {
            self.per_token.add(gap);
        }
    }

    /// The gate's judgement on a request that it sent here.
    pub(super) fn judged(&mut self, settlement: &Settlement) {
        self.truncated += u64::from(settlement.truncated);
        self.under_routed += u64::from(settlement.under_route);
        self.over_routed += u64::from(settlement.over_route);
    }
}

/// Causes, as their places in `Cause::ALL`.
pub(super) const CAUSES: usize = Cause::ALL.len();

/// One tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantBook {
    pub(super) asked: u64,
    pub(super) answered: u64,
    pub(super) refused: [u64; CAUSES],
    pub(super) too_long: u64,
    pub(super) timed_out: u64,
    pub(super) failed: u64,
    pub(super) cut: u64,
    /// Answers with status 429, of which a request may get several.
    pub(super) sent_away: u64,
    /// Times that a client asked again, after one or otherwise.
    pub(super) retries: u64,
    /// Requests that waited in a gateway.
    pub(super) held: u64,
    /// How long they did, of those that were decided in the end. Nanoseconds.
    pub(super) waited: Histogram,
    /// Tokens settled, by the tenant's weights.
    pub(super) settled: u64,
    /// Of these, so many in the time that promises are counted for.
    pub(super) counted: u64,
    /// Of what was reserved, so much was given back.
    pub(super) refunded: u64,
    /// From the first asking to the first token. Nanoseconds.
    pub(super) first_token: Histogram,
    /// From the first asking to the end of the answer.
    pub(super) whole: Histogram,
}

impl TenantBook {
    pub(super) fn ended(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Answered => self.answered += 1,
            Outcome::Refused(cause) => {
                let place = Cause::ALL.iter().position(|one| *one == cause);
                if let Some(count) = place.and_then(|place| self.refused.get_mut(place)) {
                    *count += 1;
                }
            }
            Outcome::TooLong => self.too_long += 1,
            Outcome::TimedOut => self.timed_out += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Cut => self.cut += 1,
        }
    }

    /// Requests that have ended.
    pub(super) fn all_ended(&self) -> u64 {
        let refused: u64 = self.refused.iter().sum();
        self.answered + refused + self.too_long + self.timed_out + self.failed + self.cut
    }
}
