//! Reserve, then settle, exactly once: the accounts of all tenants in memory
//! that workers share.
//!
//! An account's slot is named by a hash of the instance's and the tenant's
//! names, never by a position or a hash of the configuration. It is made when
//! the instance is configured, before any worker serves, and only if it is not
//! there: no configuration fills a bucket.

use super::account::{Account, Held, Limit, Need, Refused, Settled};
use super::bucket::Short;
use super::entitlement::Entitlement;
use crate::estimate::hash;
use crate::share::{Slots, Updated};
use crate::time::{Instant, Span};
use std::sync::Arc;

/// Settlements that wait for memory that is busy.
const PENDING_MAX: usize = 4096;

/// A worker that has not looked for so long has slept.
const ASLEEP: Span = Span::from_secs(5);
/// Others show a heartbeat within this time.
const AWAKE: Span = Span::from_secs(5);
/// Part of the slots' names, so that builds of different layouts do not touch
/// each other's accounts.
const LAYOUT: u32 = 1;

/// What a request reserved. Give it back to [`Ledger::settle`].
#[derive(Debug)]
pub struct Reservation {
    tenant: Arc<Entitlement>,
    held: Held,
}

impl Reservation {
    /// Whose it is.
    pub fn tenant(&self) -> &Arc<Entitlement> {
        &self.tenant
    }

    /// What was charged.
    pub fn reserved(&self) -> u64 {
        self.held.reserved()
    }
}

/// Where a tenant stands after a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Tokens that its first law lets through at once, if it has one.
    pub tokens: Option<Share>,
    /// Its concurrent requests, if they are limited.
    pub requests: Option<Share>,
}

/// A limit and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The limit.
    pub limit: u64,
    /// What is left, never negative.
    pub remaining: u64,
    /// Until all of it is left, if nothing more is charged.
    pub reset: Span,
}

/// Whether a tenant's limits cover a request.
#[derive(Debug)]
pub enum Admission<R = Reservation> {
    /// They do, and it is charged.
    Admitted(R, Standing),
    /// The memory is busy, and this tenant's requests pass then.
    Uncharged,
    /// They do not, and it is not charged.
    Refused(Refusal),
}

impl<R> Admission<R> {
    /// The same with another value in the reservation's place.
    pub fn map<T>(self, value: impl FnOnce(R) -> T) -> Admission<T> {
        match self {
            Self::Admitted(reservation, standing) => {
                Admission::Admitted(value(reservation), standing)
            }
            Self::Uncharged => Admission::Uncharged,
            Self::Refused(refusal) => Admission::Refused(refusal),
        }
    }
}

words! {
    /// Why a request is refused.
    Cause {
        /// The rate or a quota does not cover it yet.
        Tokens => "tokens",
        /// Too many tokens are in flight.
        TokensInFlight => "tokens_in_flight",
        /// Too many requests are open.
        Requests => "requests",
        /// No limit of the tenant can ever cover it.
        TooLarge => "too_large",
        /// The tenant may use nothing.
        Suspended => "suspended",
        /// The account could not be changed.
        Busy => "busy",
    }
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// Whole seconds after which it would be admitted, if nothing else is
    /// charged; at least 1. `None` if trying again is in vain.
    pub retry_after: Option<u64>,
    /// What it would have been charged.
    pub need: u64,
    /// The tenant's standing.
    pub standing: Standing,
}

/// How an account stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Tokens in flight.
    pub tokens: u64,
    /// Open requests.
    pub requests: u64,
    /// Tokens that the first law has left.
    pub left: u64,
    /// Tokens that it lacks.
    pub debt: u64,
}

/// The accounts of one instance, as one worker sees them.
#[derive(Debug)]
pub struct Ledger {
    instance: u64,
    /// Who reserves: a number that no other worker has or had.
    incarnation: u64,
    pending: Vec<(Reservation, u64)>,
    /// When this worker last looked, and since when it has looked often enough
    /// to tell who is dead.
    looked: Instant,
    awake: Instant,
}

impl Ledger {
    /// Of the instance of this name, for the worker of this incarnation.
    pub fn new(instance: &str, incarnation: u64) -> Self {
        Self {
            instance: hash(instance.as_bytes()),
            incarnation,
            pending: Vec::new(),
            looked: Instant::default(),
            awake: Instant::default(),
        }
    }

    /// Makes the tenant's account, if it is not there. To be called while
    /// nobody serves: what is not there cannot be compared with.
    pub fn open(&self, slots: &mut impl Slots, tenant: &Entitlement) {
        let (name, key) = self.slot(tenant);
        slots.update(&name, &mut |bytes| match bytes {
            Some(bytes) if Account::decode(key, bytes).is_some() => None,
            _ => Some(Account::default().encode(key)),
        });
    }

    /// Charges a request, if all limits of its tenant cover it.
    pub fn admit(
        &self,
        slots: &mut impl Slots,
        now: Instant,
        tenant: &Arc<Entitlement>,
        need: Need,
    ) -> Admission {
        if tenant.suspended() {
            let never = Refused { limit: Limit::Requests, short: Short::Never };
            return Admission::Refused(refusal(tenant, never, need, Standing::default()));
        }
        let mut outcome = None;
        let updated = self.change(slots, tenant, |account| {
            let admitted = account.admit(&tenant.limits, now, self.incarnation, need);
            let standing = standing(account, tenant, now);
            let changed = admitted.is_ok();
            outcome = Some((admitted, standing));
            changed
        });
        match (updated, outcome) {
            (Updated::Done, Some((Ok(held), standing))) => {
                let tenant = Arc::clone(tenant);
                Admission::Admitted(Reservation { tenant, held }, standing)
            }
            (Updated::Done, Some((Err(refused), standing))) => {
                Admission::Refused(refusal(tenant, refused, need, standing))
            }
            _ if tenant.admit_on_busy => Admission::Uncharged,
            _ => Admission::Refused(Refusal {
                cause: Cause::Busy,
                retry_after: Some(1),
                need: need.charge,
                standing: Standing::default(),
            }),
        }
    }

    /// Ends a request that used `actual` of what it was charged. If the memory
    /// is busy it is done later, and `None` is returned: [`tick`](Self::tick)
    /// tries again. Beyond so many that wait the oldest is given up.
    pub fn settle(
        &mut self,
        slots: &mut impl Slots,
        now: Instant,
        reservation: Reservation,
        actual: u64,
    ) -> Option<Settled> {
        let settled = self.try_settle(slots, now, &reservation, actual);
        if settled.is_none() {
            if self.pending.len() >= PENDING_MAX {
                self.pending.remove(0);
            }
            self.pending.push((reservation, actual));
        }
        settled
    }

    fn try_settle(
        &self,
        slots: &mut impl Slots,
        now: Instant,
        Reservation { tenant, held }: &Reservation,
        actual: u64,
    ) -> Option<Settled> {
        let mut settled = Settled::default();
        let updated = self.change(slots, tenant, |account| {
            settled = account.settle(now, held, actual);
            true
        });
        (updated == Updated::Done).then_some(settled)
    }

    /// Settles what waits, and takes back what dead workers hold of these
    /// tenants. Returns the reservations that were taken back. A worker that
    /// has just slept takes all others for dead: it waits until they have had
    /// time to show themselves.
    pub fn tick<'a>(
        &mut self,
        slots: &mut impl Slots,
        now: Instant,
        tenants: impl Iterator<Item = &'a Arc<Entitlement>>,
        alive: impl Fn(u64) -> bool,
    ) -> u64 {
        for (reservation, actual) in core::mem::take(&mut self.pending) {
            self.settle(slots, now, reservation, actual);
        }
        if now.since(self.looked) > ASLEEP {
            self.awake = now;
        }
        self.looked = now;
        if now.since(self.awake) < AWAKE {
            return 0;
        }
        let mut all = 0;
        for tenant in tenants {
            let mut expired = 0;
            let updated = self.change(slots, tenant, |account| {
                expired = account.expire(now, |incarnation| {
                    incarnation == self.incarnation || alive(incarnation)
                });
                expired > 0
            });
            all += if updated == Updated::Done { expired } else { 0 };
        }
        all
    }

    /// How a tenant's account stands.
    pub fn status(&self, slots: &mut impl Slots, now: Instant, tenant: &Entitlement) -> Status {
        let mut status = Status::default();
        self.change(slots, tenant, |account| {
            let (tokens, requests) = account.open();
            let level = account.level(&tenant.limits, 0, now).unwrap_or(0);
            let (left, debt) = (level.max(0).unsigned_abs(), level.min(0).unsigned_abs());
            status = Status { tokens, requests, left, debt };
            false
        });
        status
    }

    /// Runs a change on the tenant's account; it says whether it changed. An
    /// account that is not there, or not to be read, is none that is full.
    fn change(
        &self,
        slots: &mut impl Slots,
        tenant: &Entitlement,
        mut change: impl FnMut(&mut Account) -> bool,
    ) -> Updated {
        let (name, key) = self.slot(tenant);
        let mut found = true;
        let updated = slots.update(&name, &mut |bytes| {
            let account = bytes.and_then(|bytes| Account::decode(key, bytes));
            found = account.is_some();
            let mut account = account?;
            change(&mut account).then(|| account.encode(key))
        });
        if found { updated } else { Updated::Failed }
    }

    /// The slot's name, and the hash of the account's full name.
    fn slot(&self, tenant: &Entitlement) -> (String, u64) {
        let key = hash(tenant.name.as_bytes());
        (format!("tidegate.{LAYOUT}.{:016x}.tenant.{key:016x}", self.instance), key)
    }
}

fn standing(account: &mut Account, tenant: &Entitlement, now: Instant) -> Standing {
    let limits = &tenant.limits;
    let tokens = limits.laws.first().and_then(Option::as_ref).and_then(|law| {
        let level = account.level(limits, 0, now)?;
        let remaining = u64::try_from(level).unwrap_or(0);
        let lacks = i64::try_from(law.burst).unwrap_or(i64::MAX).saturating_sub(level);
        let reset = law.time_until(u64::try_from(lacks).unwrap_or(0));
        Some(Share { limit: law.burst, remaining, reset })
    });
    let requests = limits.requests.map(|limit| {
        let remaining = limit.saturating_sub(account.open().1);
        Share { limit, remaining, reset: Span::default() }
    });
    Standing { tokens, requests }
}

fn refusal(tenant: &Entitlement, refused: Refused, need: Need, standing: Standing) -> Refusal {
    let cause = match (refused.limit, refused.short) {
        _ if tenant.suspended() => Cause::Suspended,
        (_, Short::Never) => Cause::TooLarge,
        (Limit::Law(_), _) => Cause::Tokens,
        (Limit::TokensInFlight, _) => Cause::TokensInFlight,
        (Limit::Requests, _) => Cause::Requests,
        (Limit::Workers, _) => Cause::Busy,
    };
    let retry_after = match refused.short {
        Short::Until(wait) => Some(wait.as_nanos().div_ceil(1_000_000_000).max(1)),
        Short::Never => None,
    };
    Refusal { cause, retry_after, need: need.charge, standing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TenantClass;
    use crate::share::Change;
    use crate::tenant::{Law, Limits, ReserveOutput, Weights};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Memory in which every write meets so many others that came first.
    #[derive(Default)]
    struct Memory {
        slots: BTreeMap<String, Vec<u8>>,
        busy: u32,
    }

    impl Slots for Memory {
        fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
            // A run whose result is thrown away, as after a lost race.
            change(self.slots.get(name).map(Vec::as_slice));
            if self.busy > 0 {
                self.busy -= 1;
                return Updated::Busy;
            }
            if let Some(bytes) = change(self.slots.get(name).map(Vec::as_slice)) {
                self.slots.insert(name.to_owned(), bytes);
            }
            Updated::Done
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn tenant(name: &str, law: Law) -> Arc<Entitlement> {
        Arc::new(Entitlement {
            name: name.into(),
            class: TenantClass::Elastic,
            limits: Limits {
                laws: [Some(law), None, None, None],
                tokens_in_flight: None,
                requests: Some(4),
            },
            weights: Weights::default(),
            reserve_output: ReserveOutput::Cap,
            admit_on_busy: false,
        })
    }

    fn in_flight(ledger: &Ledger, memory: &mut Memory, tenant: &Entitlement) -> (u64, u64) {
        let status = ledger.status(memory, at(0), tenant);
        (status.tokens, status.requests)
    }

    fn need(charge: u64) -> Need {
        Need { charge, tokens: charge }
    }

    fn admitted(admission: Admission) -> Reservation {
        match admission {
            Admission::Admitted(reservation, _) => reservation,
            other => panic!("{other:?}"),
        }
    }

    fn refused(admission: Admission) -> Refusal {
        match admission {
            Admission::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn workers_share_one_account_and_tenants_do_not() {
        let (mut memory, law) = (Memory::default(), Law::per_second(100, 1000, 0));
        let (acme, other) = (tenant("acme", law), tenant("other", law));
        let (mut a, b) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
        a.open(&mut memory, &acme);
        a.open(&mut memory, &other);
        let reservation = admitted(a.admit(&mut memory, at(0), &acme, need(900)));
        let refusal = refused(b.admit(&mut memory, at(0), &acme, need(350)));
        assert_eq!((refusal.cause, refusal.retry_after), (Cause::Tokens, Some(3)));
        assert_eq!(refusal.standing.tokens.unwrap().remaining, 100);
        admitted(b.admit(&mut memory, at(0), &other, need(900)));
        // Another instance has its own accounts.
        let x = Ledger::new("x", 3);
        x.open(&mut memory, &acme);
        admitted(x.admit(&mut memory, at(0), &acme, need(900)));
        let settled = a.settle(&mut memory, at(0), reservation, 100).unwrap();
        assert_eq!(settled.refunded, 800);
        admitted(b.admit(&mut memory, at(0), &acme, need(350)));
        // Opening again, as a new configuration does, fills nothing.
        a.open(&mut memory, &acme);
        assert_eq!(refused(b.admit(&mut memory, at(0), &acme, need(600))).cause, Cause::Tokens);
    }

    #[test]
    fn a_settlement_that_meets_busy_memory_is_made_later() {
        let mut memory = Memory::default();
        let acme = tenant("acme", Law::per_second(100, 1000, 0));
        let mut ledger = Ledger::new("tidegate", 1);
        ledger.open(&mut memory, &acme);
        let reservation = admitted(ledger.admit(&mut memory, at(0), &acme, need(900)));
        memory.busy = 2;
        assert_eq!(ledger.settle(&mut memory, at(0), reservation, 100), None);
        assert_eq!(refused(ledger.admit(&mut memory, at(0), &acme, need(1))).cause, Cause::Busy);
        ledger.tick(&mut memory, at(0), [&acme].into_iter(), |_| false);
        assert_eq!(in_flight(&ledger, &mut memory, &acme), (0, 0));
        admitted(ledger.admit(&mut memory, at(0), &acme, need(900)));
        // It can also be told to let requests pass, uncharged.
        let lenient = Arc::new(Entitlement { admit_on_busy: true, ..(*acme).clone() });
        memory.busy = 1;
        let admission = ledger.admit(&mut memory, at(0), &lenient, need(1));
        assert!(matches!(admission, Admission::Uncharged), "{admission:?}");
    }

    #[test]
    fn what_a_dead_worker_held_comes_back() {
        let mut memory = Memory::default();
        let acme = tenant("acme", Law::per_second(100, 1000, 0));
        let (dead, mut alive) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
        alive.open(&mut memory, &acme);
        admitted(dead.admit(&mut memory, at(0), &acme, need(10)));
        admitted(alive.admit(&mut memory, at(0), &acme, need(20)));
        let mut tick = |millis| alive.tick(&mut memory, at(millis), [&acme].into_iter(), |_| false);
        for second in 0..=30 {
            assert_eq!(tick(second * 1000), 0);
        }
        assert_eq!((tick(30_001), tick(30_002)), (1, 0));
        // All slept, and the other lives: it has time to show itself.
        admitted(dead.admit(&mut memory, at(31_000), &acme, need(10)));
        let mut tick = |millis| alive.tick(&mut memory, at(millis), [&acme].into_iter(), |_| false);
        assert_eq!((tick(90_000), tick(91_000), tick(94_999), tick(95_000)), (0, 0, 0, 1));
        assert_eq!(in_flight(&alive, &mut memory, &acme), (20, 1));
    }

    #[test]
    fn a_suspended_tenant_is_refused_whatever_it_asks() {
        let mut memory = Memory::default();
        let none = tenant("none", Law::per_second(0, 80_000, 0));
        let ledger = Ledger::new("tidegate", 1);
        let refusal = refused(ledger.admit(&mut memory, at(0), &none, need(0)));
        assert_eq!((refusal.cause, refusal.retry_after), (Cause::Suspended, None));
        let small = tenant("small", Law::per_second(1, 10, 0));
        // An account that is not there is not one that is full.
        let lost = refused(ledger.admit(&mut memory, at(0), &small, need(1)));
        assert_eq!((lost.cause, memory.slots.len()), (Cause::Busy, 0));
        ledger.open(&mut memory, &small);
        assert_eq!(
            refused(ledger.admit(&mut memory, at(0), &small, need(11))).cause,
            Cause::TooLarge
        );
    }

    proptest! {
        /// `Retry-After` is true: whoever has no other traffic and comes back
        /// then is admitted, and a second earlier is not.
        #[test]
        fn retry_after_is_true(
            rate in 1_u64..500, burst in 1_u64..5000, first in 1_u64..5000, then in 1_u64..5000,
            millis in 0_u64..5000,
        ) {
            let (mut memory, acme) =
                (Memory::default(), tenant("acme", Law::per_second(rate, burst, 0)));
            let ledger = Ledger::new("tidegate", 1);
            ledger.open(&mut memory, &acme);
            let _ = ledger.admit(&mut memory, at(0), &acme, need(first));
            let probe = |memory: &Memory, millis| {
                let mut copy = Memory { slots: memory.slots.clone(), busy: 0 };
                ledger.admit(&mut copy, at(millis), &acme, need(then))
            };
            if let Admission::Refused(refusal) = probe(&memory, millis) {
                match refusal.retry_after {
                    None => prop_assert!(then > burst),
                    Some(secs) => {
                        let later = probe(&memory, millis + secs * 1000);
                        prop_assert!(matches!(later, Admission::Admitted(..)));
                        let earlier = probe(&memory, millis + (secs - 1) * 1000);
                        prop_assert!(matches!(earlier, Admission::Refused(_)));
                    }
                }
            }
        }
    }
}
