//! Requests that wait: for their tenant's limits, or for their turn in a pool.
//!
//! Each worker holds its own. Within a tenant they leave in the order in which
//! they came; between tenants by class, then by who had least in the pool, as
//! the pool's slot says, which all workers share. A request waits no longer than
//! its tenant's TTFT target, and leaves then with a refusal that says when to
//! come back.

use super::entitlement::Entitlement;
use super::ledger::{Ask, Ledger};
use super::outcome::{Admission, Cause, Refusal};
use super::pool::{Capacity, Who};
use crate::share::Slots;
use crate::time::{Instant, Span};
use std::sync::Arc;

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
}

impl Waiting {
    fn late(&self, now: Instant) -> bool {
        now.since(self.since) >= self.ask.tenant.ttft_target
    }

    fn is_of(&self, tenant: &Entitlement, pool: u64) -> bool {
        self.ask.pool == pool && self.ask.tenant.name == tenant.name
    }
}

/// The requests that one worker holds.
#[derive(Debug, Default)]
pub struct Queue {
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    bytes: u64,
    /// Pools whose slot names a request of ours.
    published: Vec<Arc<Capacity>>,
}

impl Queue {
    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Admits a request, or holds it, or refuses it. `hold` is `None` for one
    /// that cannot wait.
    pub fn admit(
        &mut self,
        slots: &mut dyn Slots,
        ledger: &Ledger,
        now: Instant,
        ask: &Ask,
        hold: Option<Hold>,
    ) -> Admission {
        let hold = hold.filter(|_| ask.tenant.hold).filter(|hold| self.has_room(hold));
        // Nobody overtakes an older request of its own tenant.
        let older = self.waiting.iter().any(|one| one.is_of(&ask.tenant, ask.pool));
        if let (true, Some(hold)) = (older, hold) {
            return self.push(now, ask, hold);
        }
        match (ledger.admit(slots, now, ask), hold) {
            (Admission::Refused(refusal), Some(hold)) if refusal.cause.passes() => {
                self.push(now, ask, hold)
            }
            (admission, _) => admission,
        }
    }

    fn has_room(&self, hold: &Hold) -> bool {
        (self.waiting.len() as u64) < hold.limits.requests
            && self.bytes.saturating_add(hold.bytes) <= hold.limits.bytes
    }

    fn push(&mut self, now: Instant, ask: &Ask, hold: Hold) -> Admission {
        self.bytes = self.bytes.saturating_add(hold.bytes);
        self.waiting.push(Waiting { hold, ask: ask.clone(), since: now });
        Admission::Held
    }

    /// Its client has left; nothing was charged for it.
    pub fn leave(&mut self, id: u64) {
        if let Some(at) = self.waiting.iter().position(|one| one.hold.id == id) {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) -> Waiting {
        let waiting = self.waiting.remove(at);
        self.bytes = self.bytes.saturating_sub(waiting.hold.bytes);
        waiting
    }

    fn release(&mut self, now: Instant, at: usize, admission: Admission) -> Released {
        let Waiting { hold, since, .. } = self.remove(at);
        Released { id: hold.id, waited: now.since(since), admission }
    }

    /// Decides what can be decided now.
    pub fn poll(&mut self, slots: &mut dyn Slots, ledger: &Ledger, now: Instant) -> Vec<Released> {
        let mut released = Vec::new();
        // Late ones are tried once more below, and leave if that is in vain.
        let mut pools: Vec<u64> = self.waiting.iter().map(|one| one.ask.pool).collect();
        pools.sort_unstable();
        pools.dedup();
        let mut published = Vec::new();
        for pool in pools {
            let first = self.poll_pool(slots, ledger, now, pool, &mut released);
            published.extend(first);
        }
        for capacity in core::mem::take(&mut self.published) {
            if published.iter().all(|one| one.name != capacity.name) {
                ledger.publish(slots, now, &capacity, &[]);
            }
        }
        self.published = published;
        while let Some(at) = self.waiting.iter().position(|one| one.late(now)) {
            let ask = self.waiting.get(at).map(|one| one.ask.clone());
            let refused = ask.map(|ask| refusal(slots, ledger, now, &ask));
            released.extend(refused.map(|refused| self.release(now, at, refused)));
        }
        released
    }

    /// Admits those whose turn it is in one pool. Returns the pool if one is
    /// left that waits for it.
    fn poll_pool(
        &mut self,
        slots: &mut dyn Slots,
        ledger: &Ledger,
        now: Instant,
        pool: u64,
        released: &mut Vec<Released>,
    ) -> Option<Arc<Capacity>> {
        // Tenants whose own limits do not cover their first request.
        let mut stuck: Vec<u64> = Vec::new();
        loop {
            let mut firsts: Vec<(Who, usize)> = Vec::new();
            let mut capacity = None;
            for (at, one) in self.waiting.iter().enumerate().filter(|(_, one)| one.ask.pool == pool)
            {
                let who = one.ask.tenant.who();
                if !stuck.contains(&who.key) && firsts.iter().all(|(first, _)| first.key != who.key)
                {
                    firsts.push((who, at));
                    capacity = capacity.or_else(|| one.ask.capacity.clone());
                }
            }
            if let (Some(capacity), 2..) = (&capacity, firsts.len()) {
                ledger.sort(slots, now, capacity, &mut firsts);
            }
            let (who, at) = firsts.first().copied()?;
            let ask = self.waiting.get(at)?.ask.clone();
            // Whom its own limits keep waits for no pool.
            if ask.capacity.is_some() && ledger.covered(slots, now, &ask).is_err() {
                stuck.push(who.key);
                continue;
            }
            match ledger.admit(slots, now, &ask) {
                Admission::Refused(refusal) if refusal.cause.passes() => {
                    if let (Some(capacity), true) =
                        (&ask.capacity, refusal.cause == Cause::Capacity)
                    {
                        let waiting: Vec<Who> = firsts.iter().map(|(who, _)| *who).collect();
                        ledger.publish(slots, now, capacity, &waiting);
                        return Some(Arc::clone(capacity));
                    }
                    stuck.push(who.key);
                }
                // Busy memory: the next look may find it free.
                Admission::Refused(Refusal { retry_after: Some(_), .. }) => stuck.push(who.key),
                admission => released.push(self.release(now, at, admission)),
            }
        }
    }
}

/// What becomes of a request whose time is over.
fn refusal(slots: &mut dyn Slots, ledger: &Ledger, now: Instant, ask: &Ask) -> Admission {
    match ledger.covered(slots, now, ask) {
        Err(denied) => denied.into(),
        // The pool had no room a moment ago, else it would have been admitted.
        Ok(standing) => Admission::Refused(Refusal::by_pool(Span::default(), ask.need, standing)),
    }
}

#[cfg(test)]
mod tests;
