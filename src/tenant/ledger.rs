//! Reserve, then settle, exactly once: the accounts of all tenants and pools in
//! memory that workers share.
//!
//! A slot is named by a hash of the instance's and the tenant's (or pool's)
//! names, never by a position or a hash of the configuration. It is made when
//! the instance is configured, before any worker serves, and only if it is not
//! there: no configuration fills a bucket.

use super::account::{Need, Settled};
use super::accounts::{Accounts, HeldCharges, RequestLimits};
use super::entitlement::Entitlement;
use super::outcome::{Admission, Cause, Refusal, Standing, Status};
use super::pool::{Capacity, Contender, PoolAccount, Taken};
use super::slot::{self, Content};
use crate::config::{Pool, TenantClass};
use crate::estimate::hash;
use crate::pool::{Load, Reading, Source};
use crate::share::{Slots, Updated};
use crate::time::{Instant, Span};
use std::sync::Arc;

/// Settlements that wait for memory that is busy.
const PENDING_MAX: usize = if cfg!(test) { 4 } else { 4096 };

/// A worker that has not looked for so long has slept.
const ASLEEP: Span = Span::from_secs(5);
/// Others show a heartbeat within this time.
const AWAKE: Span = Span::from_secs(5);

/// What a request asks of its tenant's and its pool's accounts.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Whose it is.
    pub tenant: Arc<Entitlement>,
    /// The same, as pools know it.
    pub who: Contender,
    /// Hash of its pool's name.
    pub pool: u64,
    /// What its pool can do, if that is known.
    pub capacity: Option<Arc<Capacity>>,
    /// What it needs.
    pub need: Need,
}

impl Ask {
    /// The tenant may use nothing, or nothing of this pool.
    fn suspended(&self) -> bool {
        let in_pool = self.tenant.limits_in(self.pool);
        self.tenant.suspended() || in_pool.is_some_and(|(_, limits)| limits.suspend())
    }

    fn limits(&self) -> RequestLimits<'_> {
        RequestLimits { all: &self.tenant.limits, pool: self.tenant.limits_in(self.pool) }
    }
}

/// What a request reserved, or what of it is still to be given back. Give it
/// to [`Ledger::settle`].
#[derive(Debug)]
pub struct Reservation {
    tenant: Option<(Arc<Entitlement>, HeldCharges)>,
    pool: Option<(Arc<Capacity>, Taken)>,
}

impl Reservation {
    /// Whose it is, if tenants are told apart.
    pub fn tenant(&self) -> Option<&Arc<Entitlement>> {
        self.tenant.as_ref().map(|(tenant, _)| tenant)
    }

    /// What its tenant was charged.
    pub fn reserved(&self) -> u64 {
        self.tenant.as_ref().map_or(0, |(_, held)| held.reserved())
    }
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actual {
    /// What it is charged, by its tenant's weights.
    pub charge: u64,
    /// Its tokens.
    pub tokens: u64,
    /// What the replica of its pool that answered said of itself.
    pub report: Option<Reading>,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Reservations of dead workers that were taken back.
    pub expired: u64,
    /// Settlements that were given up since the last tick: too many waited.
    pub lost: u64,
}

/// The accounts of one instance, as one worker sees them.
#[derive(Debug)]
pub struct Ledger {
    instance: u64,
    /// Who reserves: a number that no other worker has or had.
    incarnation: u64,
    /// Settlements that are still to be made, in part or whole.
    pending: Vec<(Reservation, Actual)>,
    lost: u64,
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
            lost: 0,
            looked: Instant::default(),
            awake: Instant::default(),
        }
    }

    /// Makes the slots of tenants and pools that have none yet. To be called
    /// while nobody serves.
    pub fn open(
        &self,
        slots: &mut dyn Slots,
        tenants: &[Arc<Entitlement>],
        pools: &[Arc<Capacity>],
    ) {
        for tenant in tenants {
            slot::make::<Accounts>(slots, self.instance, tenant.key());
        }
        for capacity in pools {
            slot::make::<PoolAccount>(slots, self.instance, capacity.key());
        }
    }

    /// Charges a request, if all limits of its tenant cover it and it is its
    /// turn in its pool. All pass, or nothing is charged. `holds` says that it
    /// waits if they do not.
    pub fn admit(
        &mut self,
        slots: &mut dyn Slots,
        now: Instant,
        ask: &Ask,
        holds: bool,
    ) -> Admission {
        let Ask { tenant, capacity, need, .. } = ask;
        if ask.suspended() {
            return Admission::Refused(Refusal::other(Cause::Suspended, None, *need));
        }
        // Its own limits come first: whom they refuse waits for no pool.
        let guaranteed = tenant.class == TenantClass::Guaranteed;
        let mut pool = None;
        if let Some(capacity) = capacity.as_ref().filter(|_| !guaranteed) {
            let taken = self
                .covered(slots, now, ask)
                .and_then(|standing| self.take(slots, now, ask, capacity, (standing, holds)));
            match taken {
                Ok(taken) => pool = taken,
                Err(denied) => return denied.into(),
            }
        }
        let mut outcome = None;
        let updated = self.change(slots, ask.who.key, |accounts: &mut Accounts| {
            let admitted = accounts.admit(ask.limits(), now, self.incarnation, *need);
            let standing = Standing::of(accounts, tenant, now);
            let changed = admitted.is_ok();
            outcome = Some((admitted, standing));
            changed
        });
        let (held, standing) = match (updated, outcome) {
            (Updated::Done, Some((Ok(held), standing))) => (held, standing),
            (Updated::Done, Some((Err(refused), standing))) => {
                self.give_back(slots, now, pool);
                return Admission::Refused(Refusal::by_limits(tenant, refused, *need, standing));
            }
            _ => {
                self.give_back(slots, now, pool);
                return busy(ask).into();
            }
        };
        if let Some(capacity) = capacity.as_ref().filter(|_| guaranteed) {
            // Whatever the pool says, it is promised.
            let told = (standing, holds);
            pool = self.take(slots, now, ask, capacity, told).unwrap_or(None);
        }
        let tenant = Some((Arc::clone(tenant), held));
        Admission::Admitted(Reservation { tenant, pool }, standing)
    }

    /// Takes room in a pool for a request that is nobody's, whatever there is.
    pub fn occupy(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Arc<Capacity>,
        tokens: u64,
    ) -> Option<Reservation> {
        let mut taken = None;
        let updated = self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            taken = pool.occupy(capacity, now, self.incarnation, tokens);
            taken.is_some()
        });
        let taken = taken.filter(|_| updated == Updated::Done)?;
        Some(Reservation { tenant: None, pool: Some((Arc::clone(capacity), taken)) })
    }

    /// How a pool stands for a request of so many tokens.
    pub fn load(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Capacity,
        tokens: u64,
    ) -> Option<Load> {
        let mut load = None;
        self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            load = Some(pool.load(capacity, now, tokens));
            false
        });
        load
    }

    /// Notes what a round of scrapes told of a pool.
    pub fn report(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Capacity,
        reading: Reading,
    ) {
        self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            pool.report(capacity, now, Source::Scrapes, reading);
            true
        });
    }

    /// Takes a look at the pools' pressures, each tick of one worker, and lets
    /// thresholds follow: `pairs` has pools and the next larger ones.
    pub fn watch<'a>(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        pools: &[Arc<Capacity>],
        pairs: impl Iterator<Item = (&'a Pool, &'a Pool)>,
    ) {
        let mut means = Vec::with_capacity(pools.len());
        for capacity in pools {
            let mut mean = 0;
            self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
                mean = pool.watch(capacity, now);
                true
            });
            means.push((&capacity.name, mean));
        }
        for (own, larger) in pairs {
            let larger = means.iter().find(|(name, _)| **name == larger.name);
            if let (Some(range), Some((_, larger))) = (own.threshold_range, larger) {
                self.change(slots, hash(own.name.as_bytes()), |pool: &mut PoolAccount| {
                    pool.adapt(own.threshold, range, *larger);
                    true
                });
            }
        }
    }

    /// Whether the tenant's own limits cover a request, as far as can be seen
    /// without a change; where it stands, or what becomes of the request.
    pub(super) fn covered(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        ask: &Ask,
    ) -> Result<Standing, Denied> {
        let Ask { tenant, need, .. } = ask;
        let mut outcome = None;
        self.change(slots, ask.who.key, |accounts: &mut Accounts| {
            let checked = accounts.check(ask.limits(), now, *need);
            outcome = Some((checked, Standing::of(accounts, tenant, now)));
            false
        });
        let (checked, standing) = outcome.ok_or_else(|| busy(ask))?;
        checked.map(|()| standing).map_err(|refused| {
            Denied::Refused(Refusal::by_limits(tenant, refused, *need, standing))
        })
    }

    /// Takes room in the pool. `None` if it goes uncharged: the pool's memory is
    /// busy, and the tenant's requests pass then.
    fn take(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        ask: &Ask,
        capacity: &Arc<Capacity>,
        (standing, holds): (Standing, bool),
    ) -> Result<Option<(Arc<Capacity>, Taken)>, Denied> {
        let who = ask.who;
        let mut outcome = None;
        let updated = self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            let taken = pool.admit(capacity, now, self.incarnation, who, ask.need.tokens);
            if let Err(wait) = &taken {
                let back = Span::from_secs(wait.whole_secs().max(1));
                pool.want(now, who.key, ask.need.tokens, (!holds).then_some(back));
            }
            outcome = Some(taken);
            true
        });
        match (updated, outcome) {
            (Updated::Done, Some(Ok(taken))) => Ok(Some((Arc::clone(capacity), taken))),
            (Updated::Done, Some(Err(wait))) => {
                let refusal = Refusal::by_pool(wait, ask.need, standing);
                Err(Denied::Refused(refusal))
            }
            _ if ask.tenant.admit_on_busy => Ok(None),
            _ => Err(busy(ask)),
        }
    }

    /// Undoes what was taken for a request that is refused after all.
    fn give_back(
        &mut self,
        slots: &mut dyn Slots,
        now: Instant,
        pool: Option<(Arc<Capacity>, Taken)>,
    ) {
        let mut rest = Reservation { tenant: None, pool };
        self.try_settle(slots, now, &mut rest, Actual::default());
        self.keep(rest, Actual::default());
    }

    /// A held request of the tenant was refused: it is expected back.
    pub(super) fn expect_back(&self, slots: &mut dyn Slots, now: Instant, ask: &Ask) {
        if let Some(capacity) = &ask.capacity {
            self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
                let back = Some(Span::from_secs(1));
                pool.want(now, ask.who.key, ask.need.tokens, back);
                true
            });
        }
    }

    /// Gives back a part of what an open request reserved: it needs less than was
    /// thought. `None`, and nothing is changed, if the memory is busy.
    pub fn lower(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        reservation: &mut Reservation,
        need: Need,
    ) -> Option<Settled> {
        let Reservation { tenant, pool } = reservation;
        let mut settled = Settled::default();
        if let Some((tenant, held)) = tenant {
            let mut lowered = None;
            let updated = self.change(slots, tenant.key(), |accounts: &mut Accounts| {
                let mut held = held.clone();
                settled = accounts.lower(now, &mut held, need);
                lowered = Some(held);
                true
            });
            *held = lowered.filter(|_| updated == Updated::Done)?;
        }
        if let Some((capacity, taken)) = pool {
            let mut lowered = None;
            let updated = self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
                let mut taken = taken.clone();
                pool.lower(now, &mut taken, need.tokens);
                lowered = Some(taken);
                true
            });
            if let Some(less) = lowered.filter(|_| updated == Updated::Done) {
                *taken = less;
            }
        }
        Some(settled)
    }

    /// Ends a request. If the memory is busy it is done later, and `None` is
    /// returned: [`tick`](Self::tick) tries again. Beyond so many that wait the
    /// oldest is given up.
    pub fn settle(
        &mut self,
        slots: &mut dyn Slots,
        now: Instant,
        reservation: Reservation,
        actual: Actual,
    ) -> Option<Settled> {
        let mut reservation = reservation;
        let settled = self.try_settle(slots, now, &mut reservation, actual);
        self.keep(reservation, actual);
        settled
    }

    /// Makes what can be made of a settlement, and leaves the rest.
    fn try_settle(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        reservation: &mut Reservation,
        actual: Actual,
    ) -> Option<Settled> {
        let mut settled = None;
        if let Some((tenant, held)) = &reservation.tenant {
            let updated = self.change(slots, tenant.key(), |accounts: &mut Accounts| {
                settled = Some(accounts.settle(now, held, actual.charge));
                true
            });
            if updated == Updated::Done {
                reservation.tenant = None;
            } else {
                settled = None;
            }
        }
        if let Some((capacity, taken)) = &reservation.pool {
            let updated = self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
                pool.settle(capacity, now, taken, actual.tokens);
                if let Some(reading) = actual.report {
                    pool.report(capacity, now, Source::Answer, reading);
                }
                true
            });
            if updated == Updated::Done {
                reservation.pool = None;
            }
        }
        settled
    }

    fn keep(&mut self, rest: Reservation, actual: Actual) {
        if rest.tenant.is_none() && rest.pool.is_none() {
            return;
        }
        if self.pending.len() >= PENDING_MAX {
            self.pending.remove(0);
            self.lost += 1;
        }
        // By the time that it is settled its report is old.
        self.pending.push((rest, Actual { report: None, ..actual }));
    }

    /// Settles what waits, and takes back what dead workers hold of these
    /// tenants and pools. A worker that has just slept takes all others for
    /// dead: it waits until they have had time to show themselves.
    pub fn tick(
        &mut self,
        slots: &mut dyn Slots,
        now: Instant,
        tenants: &[Arc<Entitlement>],
        pools: &[Arc<Capacity>],
        alive: impl Fn(u64) -> bool,
    ) -> Ticked {
        for (mut reservation, actual) in core::mem::take(&mut self.pending) {
            self.try_settle(slots, now, &mut reservation, actual);
            self.keep(reservation, actual);
        }
        let mut ticked = Ticked { lost: core::mem::take(&mut self.lost), expired: 0 };
        if now.since(self.looked) > ASLEEP {
            self.awake = now;
        }
        self.looked = now;
        if now.since(self.awake) < AWAKE {
            return ticked;
        }
        let alive = |incarnation| incarnation == self.incarnation || alive(incarnation);
        for tenant in tenants {
            let mut expired = 0;
            let updated = self.change(slots, tenant.key(), |accounts: &mut Accounts| {
                expired = accounts.expire(now, alive);
                expired > 0
            });
            ticked.expired += if updated == Updated::Done { expired } else { 0 };
        }
        for capacity in pools {
            self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
                pool.expire(now, alive) > 0
            });
        }
        ticked
    }

    /// How a tenant's account stands.
    pub fn status(&self, slots: &mut dyn Slots, now: Instant, tenant: &Entitlement) -> Status {
        let mut status = Status::default();
        self.change(slots, tenant.key(), |accounts: &mut Accounts| {
            let account = &mut accounts.all;
            status = Status::new(account.open(), account.level(&tenant.limits, 0, now));
            false
        });
        status
    }

    /// How a pool's account stands, and what each of these tenants' ended
    /// requests used in it.
    pub fn pool_status(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Capacity,
        tenants: &[Arc<Entitlement>],
    ) -> (Status, Vec<u64>) {
        let mut status = (Status::default(), Vec::new());
        self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            let served = tenants.iter().map(|tenant| pool.served(tenant.key())).collect();
            status = (Status::new(pool.open(), pool.level(capacity, now)), served);
            false
        });
        status
    }

    /// Sorts tenants by whose turn it is in a pool: the first one's request goes
    /// first; of two that are level the one that came first, whose last place in
    /// its line is the smaller.
    pub(super) fn sort(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Capacity,
        lines: &mut [(Contender, Vec<usize>)],
    ) {
        self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            lines.sort_by_cached_key(|(who, line)| {
                (pool.order(capacity, now, *who), line.last().copied())
            });
            false
        });
    }

    /// Tells the other workers for whom this one's requests wait, the first one
    /// first.
    pub(super) fn publish(
        &self,
        slots: &mut dyn Slots,
        now: Instant,
        capacity: &Capacity,
        waiting: &[Contender],
    ) {
        self.change(slots, capacity.key(), |pool: &mut PoolAccount| {
            pool.publish(now, self.incarnation, waiting)
        });
    }

    fn change<C: Content>(
        &self,
        slots: &mut dyn Slots,
        key: u64,
        mut change: impl FnMut(&mut C) -> bool,
    ) -> Updated {
        slot::change(slots, self.instance, key, &mut change)
    }
}

/// What becomes of a request that is not charged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denied {
    Refused(Refusal),
    /// It passes all the same.
    Uncharged,
}

impl From<Denied> for Admission {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Refused(refusal) => Self::Refused(refusal),
            Denied::Uncharged => Self::Uncharged,
        }
    }
}

/// The memory is busy.
fn busy(ask: &Ask) -> Denied {
    if ask.tenant.admit_on_busy {
        return Denied::Uncharged;
    }
    Denied::Refused(Refusal::other(Cause::Busy, Some(1), ask.need))
}

#[cfg(test)]
mod tests;
