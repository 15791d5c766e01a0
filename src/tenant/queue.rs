//! Requests that wait: for their tenant's limits, or for their turn in a pool.
//!
//! Each worker holds its own. Within a tenant they leave in the order in which
//! they came; between tenants by class, then by who had least in the pool, as
//! the pool's slot says, which all workers share. A request waits no longer than
//! its tenant's TTFT target, and leaves then with a refusal that says when to
//! come back.

use super::ledger::{Ask, Ledger};
use super::outcome::{Admission, Cause, Refusal};
use super::pool::{Capacity, Contender};
use crate::share::Slots;
use crate::time::{Instant, Span};
use std::sync::Arc;

/// With so many waiting …
const MANY: u64 = 128;
/// … and for each so many more, there is so much time between two looks.
const LOOK: Span = Span::from_millis(1);

/// How much one worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// A request that may wait: its whole body is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The driver's name for it.
    pub id: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// How much its worker holds.
    pub limits: HoldLimits,
}

/// A request that waited and is decided. If it is admitted, its reservation must
/// go into its ticket: [`Ticket::enter`](crate::gate::Ticket::enter).
#[derive(Debug)]
#[must_use]
pub struct Released {
    /// As in [`Hold`].
    pub id: u64,
    /// How long it waited.
    pub waited: Span,
    /// Never [`Admission::Held`].
    pub admission: Admission,
}

#[derive(Debug)]
struct Waiting {
    hold: Hold,
    ask: Ask,
    since: Instant,
    /// It is decided, and leaves at the end of this look.
    decided: Option<Admission>,
}

/// The requests that one worker holds.
#[derive(Debug, Default)]
pub struct Queue {
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    bytes: u64,
    /// Pools whose slot names a request of ours.
    published: Vec<Arc<Capacity>>,
    looked: Instant,
}

impl Queue {
    /// Nothing waits, and no pool says so.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.published.is_empty()
    }

    /// Admits a request, or holds it, or refuses it. `hold` is `None` for one
    /// that cannot wait.
    pub fn admit(
        &mut self,
        slots: &mut dyn Slots,
        ledger: &mut Ledger,
        now: Instant,
        ask: Ask,
        hold: Option<Hold>,
    ) -> Admission {
        let hold = hold.filter(|hold| ask.tenant.hold && self.has_room(hold, ask.who));
        // Nobody overtakes an older request of its own tenant.
        let older = |one: &Waiting| one.ask.pool == ask.pool && one.ask.who.key == ask.who.key;
        if let (Some(hold), true) = (hold, self.waiting.iter().any(older)) {
            return self.push(now, ask, hold);
        }
        match (ledger.admit(slots, now, &ask, hold.is_some()), hold) {
            (Admission::Refused(refusal), Some(hold)) if refusal.cause.passes() => {
                self.push(now, ask, hold)
            }
            (admission, _) => admission,
        }
    }

    /// Whether one more of this tenant may wait: no tenant has more than half of
    /// the places.
    fn has_room(&self, hold: &Hold, who: Contender) -> bool {
        let own = self.waiting.iter().filter(|one| one.ask.who.key == who.key).count() as u64;
        (self.waiting.len() as u64) < hold.limits.requests
            && own < hold.limits.requests.div_ceil(2)
            && self.bytes.saturating_add(hold.bytes) <= hold.limits.bytes
    }

    fn push(&mut self, now: Instant, ask: Ask, hold: Hold) -> Admission {
        self.bytes = self.bytes.saturating_add(hold.bytes);
        self.waiting.push(Waiting { hold, ask, since: now, decided: None });
        Admission::Held
    }

    /// Its client has left; nothing was charged for it.
    pub fn leave(&mut self, id: u64) {
        if let Some(at) = self.waiting.iter().position(|one| one.hold.id == id) {
            let left = self.waiting.remove(at);
            self.bytes = self.bytes.saturating_sub(left.hold.bytes);
        }
    }

    /// Decides what can be decided now. With very many waiting a look takes a
    /// while, so the next is not at once.
    pub fn poll(
        &mut self,
        slots: &mut dyn Slots,
        ledger: &mut Ledger,
        now: Instant,
    ) -> Vec<Released> {
        let pause = Span::from_nanos(LOOK.as_nanos() * (self.waiting.len() as u64 / MANY));
        if self.is_empty() || now.since(self.looked) < pause {
            return Vec::new();
        }
        self.looked = now;
        let mut pools: Vec<u64> = self.waiting.iter().map(|one| one.ask.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        let mut published = Vec::new();
        for pool in pools {
            published.extend(self.poll_pool(slots, ledger, now, pool));
        }
        for capacity in core::mem::replace(&mut self.published, published) {
            if self.published.iter().all(|one| one.name != capacity.name) {
                ledger.publish(slots, now, &capacity, &[]);
            }
        }
        for one in self.waiting.iter_mut().filter(|one| one.decided.is_none()) {
            // It was tried once more above.
            if now.since(one.since) >= one.ask.tenant.ttft_target {
                one.decided = Some(late(slots, ledger, now, &one.ask));
            }
        }
        let (decided, waiting) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|one| one.decided.is_some());
        self.waiting = waiting;
        let bytes = decided.iter().map(|one| one.hold.bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        let released = |one: Waiting| {
            let Waiting { hold, since, decided, .. } = one;
            Some(Released { id: hold.id, waited: now.since(since), admission: decided? })
        };
        decided.into_iter().filter_map(released).collect()
    }

    /// Decides those whose turn it is in one pool. Returns the pool if one is
    /// left that waits for it.
    fn poll_pool(
        &mut self,
        slots: &mut dyn Slots,
        ledger: &mut Ledger,
        now: Instant,
        pool: u64,
    ) -> Option<Arc<Capacity>> {
        // Each tenant's requests, last first; those of tenants whose own limits do
        // not cover their first one are left out as that shows.
        let mut lines: Vec<(Contender, Vec<usize>)> = Vec::new();
        for (at, one) in self.waiting.iter().enumerate().rev().filter(|(_, o)| o.ask.pool == pool) {
            match lines.iter_mut().find(|(who, _)| who.key == one.ask.who.key) {
                Some((_, line)) => line.push(at),
                None => lines.push((one.ask.who, vec![at])),
            }
        }
        loop {
            let capacity = lines
                .iter()
                .filter_map(|(_, line)| self.waiting.get(*line.last()?)?.ask.capacity.clone());
            let capacity = capacity.into_iter().next();
            if let (Some(capacity), 2..) = (&capacity, lines.len()) {
                ledger.sort(slots, now, capacity, &mut lines);
            }
            let mut went = None;
            let mut stuck: Vec<u64> = Vec::new();
            for (who, line) in &lines {
                let Some(one) = line.last().and_then(|at| self.waiting.get_mut(*at)) else {
                    stuck.push(who.key);
                    continue;
                };
                match ledger.admit(slots, now, &one.ask, true) {
                    Admission::Refused(refusal) if refusal.cause == Cause::Capacity => {
                        let waits = lines.iter().map(|(who, _)| *who);
                        let waits: Vec<Contender> =
                            waits.filter(|who| !stuck.contains(&who.key)).collect();
                        let capacity = capacity?;
                        ledger.publish(slots, now, &capacity, &waits);
                        return Some(capacity);
                    }
                    // Whom its own limits keep waits for no pool; and busy memory may be
                    // free at the next look.
                    Admission::Refused(Refusal { retry_after: Some(_), .. }) => {
                        stuck.push(who.key);
                    }
                    admission => {
                        one.decided = Some(admission);
                        went = Some(who.key);
                        break;
                    }
                }
            }
            lines.retain(|(who, _)| !stuck.contains(&who.key));
            // Whose request went may have another one, in another place.
            let key = went?;
            if let Some((_, line)) = lines.iter_mut().find(|(who, _)| who.key == key) {
                line.pop();
            }
        }
    }
}

/// What becomes of a request whose time is over.
fn late(slots: &mut dyn Slots, ledger: &Ledger, now: Instant, ask: &Ask) -> Admission {
    match ledger.covered(slots, now, ask) {
        Err(refused) => refused.into(),
        // The pool had no room a moment ago, else it would have been admitted.
        Ok(standing) => {
            ledger.expect_back(slots, now, ask);
            Admission::Refused(Refusal::by_pool(Span::default(), ask.need, standing))
        }
    }
}

#[cfg(test)]
mod tests;
