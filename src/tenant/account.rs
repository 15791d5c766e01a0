//! All limits of one tenant, or of one pool, in one place: a request passes all
//! of them or is charged to none.
//!
//! An account lies in a slot that workers share. It is changed by pure
//! functions, so that a driver can run them again when another worker was
//! faster. Limits are arguments: a new configuration changes what is promised,
//! never what was charged.

use super::bucket::{Bucket, Charge, Law, Short};
use crate::time::{Instant, Span};

/// Laws of one account: a rate, and quotas for a minute, an hour and a day.
pub const LAWS: usize = 4;
/// Workers that can hold reservations in one account at a time.
pub const HOLDERS_MAX: usize = 256;
/// A worker that shows no heartbeat for so long has died with what it held.
pub const EXPIRY: Span = Span::from_secs(30);

/// What is promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The rate and the quotas, each in its place; `None` for no limit.
    pub laws: [Option<Law>; LAWS],
    /// Tokens of open requests; `None` for no limit.
    pub tokens_in_flight: Option<u64>,
    /// Open requests; `None` for no limit.
    pub requests: Option<u64>,
}

impl Limits {
    /// Nothing ever passes.
    pub(super) fn suspend(&self) -> bool {
        self.requests == Some(0)
            || self.tokens_in_flight == Some(0)
            || self.laws.iter().flatten().any(|law| law.tokens == 0 || law.burst == 0)
    }
}

/// What a request would hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// What it would be charged: tokens by their weights.
    pub charge: u64,
    /// Tokens of KV cache that it may fill.
    pub tokens: u64,
}

/// What an open request holds. Give it back to [`Account::settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    charges: [Option<Charge>; LAWS],
    need: Need,
    /// The holder that has it, among all that ever had the account's.
    holder: u64,
}

impl Held {
    /// What it was charged.
    pub fn reserved(&self) -> u64 {
        self.need.charge
    }
}

/// Which limit does not cover a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The law at this place.
    Law(usize),
    /// Tokens in flight.
    TokensInFlight,
    /// Concurrent requests.
    Requests,
    /// More workers hold something than an account can know.
    Workers,
}

/// A request that is not covered. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The limit that it would wait for longest.
    pub limit: Limit,
    /// When it would be covered, if nothing else is charged; for limits on what
    /// is open that depends on other requests.
    pub short: Short,
}

impl Refused {
    /// The one that lasts longer; this one, if both last as long.
    pub(super) fn longer(self, other: Self) -> Self {
        let longer = match (self.short, other.short) {
            (Short::Never, _) => false,
            (Short::Until(_), Short::Never) => true,
            (Short::Until(known), Short::Until(new)) => new > known,
        };
        if longer { other } else { self }
    }
}

/// What settling did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Of what was reserved, so much was given back.
    pub refunded: u64,
    /// Of that, so much was not due any more under some law.
    pub clamped: u64,
    /// So much more than reserved was used.
    pub exceeded: u64,
    /// Of that, so much fell below some floor and is forgiven.
    pub forgiven: u64,
}

/// Reservations of one worker. One that was taken for dead and comes back is
/// another holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holder {
    id: u64,
    incarnation: u64,
    touched: Instant,
    tokens: u64,
    requests: u64,
}

/// The state of one account; a new one is full and idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    buckets: [Bucket; LAWS],
    /// Those that hold something, in no order.
    holders: Vec<Holder>,
    /// The last one's number.
    last_holder: u64,
}

impl Account {
    /// Tokens and requests that all workers hold.
    pub fn open(&self) -> (u64, u64) {
        self.holders.iter().fold((0, 0), |(tokens, requests), holder| {
            (tokens.saturating_add(holder.tokens), requests.saturating_add(holder.requests))
        })
    }

    /// Tokens that the law at this place has left; negative in debt.
    pub fn level(&mut self, limits: &Limits, law: usize, now: Instant) -> Option<i64> {
        let promised = limits.laws.get(law)?.as_ref()?;
        Some(self.buckets.get_mut(law)?.level(promised, now))
    }

    /// Charges a request, if every limit covers it.
    pub fn admit(
        &mut self,
        limits: &Limits,
        now: Instant,
        incarnation: u64,
        need: Need,
    ) -> Result<Held, Refused> {
        self.check(limits, now, need)?;
        // Nobody may hold anything without a name.
        let unknown = Refused { limit: Limit::Workers, short: Short::Until(EXPIRY) };
        self.take(limits, now, incarnation, need).ok_or(unknown)
    }

    /// Charges a request, covered or not. `None` if too many workers hold
    /// something already.
    pub fn take(
        &mut self,
        limits: &Limits,
        now: Instant,
        incarnation: u64,
        need: Need,
    ) -> Option<Held> {
        let holder = self.holder(now, incarnation)?;
        holder.tokens = holder.tokens.saturating_add(need.tokens);
        holder.requests = holder.requests.saturating_add(1);
        let holder = holder.id;
        let mut charges = [None; LAWS];
        for ((bucket, law), charge) in self.buckets.iter_mut().zip(&limits.laws).zip(&mut charges) {
            *charge = law.as_ref().map(|law| bucket.charge(law, now, need.charge));
        }
        Some(Held { charges, need, holder })
    }

    /// Whether every limit covers a request; charges nothing.
    pub fn check(&mut self, limits: &Limits, now: Instant, need: Need) -> Result<(), Refused> {
        let mut worst: Option<Refused> = None;
        let mut refuse = |limit, short| {
            let refused = Refused { limit, short };
            worst = Some(worst.map_or(refused, |known| known.longer(refused)));
        };
        for (at, (bucket, law)) in self.buckets.iter_mut().zip(&limits.laws).enumerate() {
            if let Some(Err(short)) = law.as_ref().map(|law| bucket.check(law, now, need.charge)) {
                refuse(Limit::Law(at), short);
            }
        }
        let (tokens, requests) = self.open();
        let over = |open: u64, more: u64, max: Option<u64>| {
            max.filter(|max| open.saturating_add(more) > *max)
                .map(|max| if more > max { Short::Never } else { Short::Until(Span::default()) })
        };
        if let Some(short) = over(tokens, need.tokens, limits.tokens_in_flight) {
            refuse(Limit::TokensInFlight, short);
        }
        if let Some(short) = over(requests, 1, limits.requests) {
            refuse(Limit::Requests, short);
        }
        worst.map_or(Ok(()), Err)
    }

    /// Ends a request that used `actual` of what it was charged.
    pub fn settle(&mut self, now: Instant, held: &Held, actual: u64) -> Settled {
        self.release(now, held);
        let mut settled = Settled {
            refunded: held.need.charge.saturating_sub(actual),
            exceeded: actual.saturating_sub(held.need.charge),
            ..Settled::default()
        };
        for (bucket, charge) in self.buckets.iter_mut().zip(held.charges) {
            let Some(charge) = charge else { continue };
            let corrected = bucket.correct(now, charge, actual);
            settled.clamped = settled.clamped.max(corrected.clamped);
            settled.forgiven = settled.forgiven.max(corrected.forgiven);
        }
        settled
    }

    /// Gives back a part of what an open request holds: it needs less than was
    /// thought.
    pub fn lower(&mut self, now: Instant, held: &mut Held, need: Need) -> Settled {
        let charge = need.charge.min(held.need.charge);
        let tokens = need.tokens.min(held.need.tokens);
        if let Some(holder) = self.holders.iter_mut().find(|one| one.id == held.holder) {
            holder.tokens = holder.tokens.saturating_sub(held.need.tokens - tokens);
            holder.touched = now;
        }
        let mut settled = Settled { refunded: held.need.charge - charge, ..Settled::default() };
        for (bucket, held) in self.buckets.iter_mut().zip(&mut held.charges) {
            let Some(held) = held else { continue };
            let corrected = bucket.correct(now, *held, charge);
            settled.clamped = settled.clamped.max(corrected.clamped);
            held.tokens = held.tokens.min(charge);
        }
        held.need = Need { charge, tokens };
        settled
    }

    fn release(&mut self, now: Instant, held: &Held) {
        // What was taken for dead has nothing left to give back.
        if let Some(holder) = self.holders.iter_mut().find(|one| one.id == held.holder) {
            holder.tokens = holder.tokens.saturating_sub(held.need.tokens);
            holder.requests = holder.requests.saturating_sub(1);
            holder.touched = now;
        }
        self.holders.retain(|holder| holder.requests > 0);
    }

    /// Nothing that was charged counts any more, and nothing is open.
    pub(super) fn idle(&mut self, now: Instant) -> bool {
        self.holders.is_empty() && self.buckets.iter_mut().all(|bucket| bucket.full(now))
    }

    fn holder(&mut self, now: Instant, incarnation: u64) -> Option<&mut Holder> {
        let at = self.holders.iter().position(|one| one.incarnation == incarnation);
        let at = at.or_else(|| {
            (self.holders.len() < HOLDERS_MAX).then(|| {
                self.last_holder = self.last_holder.wrapping_add(1);
                let id = self.last_holder;
                self.holders.push(Holder { id, incarnation, ..Holder::default() });
                self.holders.len() - 1
            })
        })?;
        let holder = self.holders.get_mut(at)?;
        holder.touched = now;
        Some(holder)
    }

    /// Takes back what workers hold that neither live nor touched the account
    /// for [`EXPIRY`]. Their charges stand: nobody knows what was used. Returns
    /// the requests that were given up.
    pub fn expire(&mut self, now: Instant, alive: impl Fn(u64) -> bool) -> u64 {
        let mut expired: u64 = 0;
        self.holders.retain(|holder| {
            let dead = !alive(holder.incarnation) && now.since(holder.touched) > EXPIRY;
            expired = expired.saturating_add(if dead { holder.requests } else { 0 });
            !dead
        });
        expired
    }
}

/// The account as bytes, part of a slot.
mod layout {
    use super::{Account, HOLDERS_MAX, Holder};
    use crate::bytes::{put, take, take_u64};
    use crate::tenant::bucket::Bucket;
    use crate::time::Instant;

    impl Account {
        /// Appends its bytes.
        pub(in crate::tenant) fn encode(&self, bytes: &mut Vec<u8>) {
            for bucket in &self.buckets {
                bucket.encode(bytes);
            }
            put(bytes, &[self.last_holder]);
            bytes.extend((self.holders.len() as u32).to_le_bytes());
            for holder in &self.holders {
                let Holder { id, incarnation, touched, tokens, requests } = holder;
                put(bytes, &[*id, *incarnation, touched.as_nanos(), *tokens, *requests]);
            }
        }

        /// Reads what [`encode`](Self::encode) wrote; `None` if it cannot be that.
        pub(in crate::tenant) fn decode(rest: &mut &[u8]) -> Option<Self> {
            let mut account = Self::default();
            for bucket in &mut account.buckets {
                *bucket = Bucket::decode(rest)?;
            }
            account.last_holder = take_u64(rest)?;
            let holders = u32::from_le_bytes(take(rest)?);
            if holders as usize > HOLDERS_MAX {
                return None;
            }
            for _ in 0..holders {
                account.holders.push(Holder {
                    id: take_u64(rest)?,
                    incarnation: take_u64(rest)?,
                    touched: Instant::from_nanos(take_u64(rest)?),
                    tokens: take_u64(rest)?,
                    requests: take_u64(rest)?,
                });
            }
            Some(account)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn limits() -> Limits {
        Limits {
            laws: [
                Some(Law::per_second(100, 1000, 500)),
                Some(Law { tokens: 6000, period: Span::from_secs(60), burst: 2500, floor: 0 }),
                None,
                None,
            ],
            tokens_in_flight: Some(2000),
            requests: Some(3),
        }
    }

    fn need(charge: u64) -> Need {
        Need { charge, tokens: charge }
    }

    #[test]
    fn a_request_passes_all_limits_or_is_charged_to_none() {
        let (limits, mut account) = (limits(), Account::default());
        let held = account.admit(&limits, at(0), 1, need(900)).unwrap();
        let before = account.clone();
        let refused = account.admit(&limits, at(0), 2, need(200)).unwrap_err();
        assert_eq!(refused.limit, Limit::Law(0));
        assert_eq!(refused.short, Short::Until(Span::from_secs(1)));
        assert_eq!(account, before);
        // The rate has filled up again, but the tokens in flight have not ended.
        let refused = account.admit(&limits, at(20_000), 2, Need { charge: 100, tokens: 1200 });
        assert_eq!(refused.unwrap_err().limit, Limit::TokensInFlight);
        let more = account.admit(&limits, at(20_000), 2, need(1000)).unwrap();
        // The rate covers it in 1 s; what lasts longest is told.
        let refused = account.check(&limits, at(20_000), Need { charge: 100, tokens: 3000 });
        assert_eq!(refused, Err(Refused { limit: Limit::TokensInFlight, short: Short::Never }));
        assert_eq!(account.open(), (1900, 2));
        account.settle(at(21_000), &held, 900);
        account.settle(at(21_000), &more, 400);
        assert_eq!(account.open(), (0, 0));
        assert_eq!(account.level(&limits, 0, at(21_000)), Some(700));
    }

    #[test]
    fn concurrent_requests_are_counted_over_all_workers() {
        let (limits, mut account) = (limits(), Account::default());
        let held: Vec<Held> =
            (0..3).map(|worker| account.admit(&limits, at(0), worker, need(1)).unwrap()).collect();
        assert_eq!(account.admit(&limits, at(0), 9, need(1)).unwrap_err().limit, Limit::Requests);
        for held in held {
            account.settle(at(0), &held, 1);
        }
        assert!(account.admit(&limits, at(0), 9, need(1)).is_ok());
    }

    #[test]
    fn a_dead_worker_s_reservations_come_back_and_a_live_one_s_never_do() {
        let (limits, mut account) = (limits(), Account::default());
        let dead = account.admit(&limits, at(0), 1, need(100)).unwrap();
        let live = account.admit(&limits, at(0), 2, need(200)).unwrap();
        assert_eq!(account.expire(at(30_000), |worker| worker == 2), 0);
        assert_eq!(account.expire(at(30_001), |worker| worker == 2), 1);
        assert_eq!(account.open(), (200, 1));
        // A worker that was only slow finds nothing to give back twice, not even
        // what it holds anew.
        let anew = account.admit(&limits, at(31_000), 1, need(50)).unwrap();
        account.settle(at(31_000), &dead, 100);
        assert_eq!(account.open(), (250, 2));
        account.settle(at(31_000), &anew, 50);
        assert_eq!(account.open(), (200, 1));
        assert_eq!(account.expire(at(9_000_000), |worker| worker == 2), 0);
        account.settle(at(9_000_000), &live, 200);
        assert_eq!(account.open(), (0, 0));
    }

    #[test]
    fn new_limits_do_not_fill_a_bucket() {
        let (mut limits, mut account) = (limits(), Account::default());
        account.admit(&limits, at(0), 1, need(900)).unwrap();
        limits.laws[0].as_mut().unwrap().burst = 2000;
        assert_eq!(account.level(&limits, 0, at(0)), Some(1100));
        limits.laws[0].as_mut().unwrap().burst = 500;
        assert_eq!(account.level(&limits, 0, at(0)), Some(-400));
    }

    proptest! {
        /// What is open is what was admitted and not settled; what cannot be
        /// admitted leaves no trace; and all survives its encoding.
        #[test]
        fn reservations_are_conserved(
            steps in prop::collection::vec((0_u8..3, 0_u64..900, 0_u64..4, 0_u64..2000), 1..80),
        ) {
            let (limits, mut account) = (limits(), Account::default());
            let (mut open, mut now) = (Vec::<(u64, Held)>::new(), 0);
            for (kind, tokens, worker, millis) in steps {
                now += millis;
                match kind {
                    0 if !open.is_empty() => {
                        let (_, held) = open.remove(tokens as usize % open.len());
                        account.settle(at(now), &held, tokens);
                    }
                    1 if !open.is_empty() && millis % 2 == 0 => {
                        let one = tokens as usize % open.len();
                        account.lower(at(now), &mut open[one].1, need(tokens / 2));
                        prop_assert!(open[one].1.reserved() <= tokens / 2);
                    }
                    _ => {
                        account.level(&limits, 0, at(now));
                        account.level(&limits, 1, at(now));
                        let before = account.clone();
                        if let Ok(held) = account.admit(&limits, at(now), worker, need(tokens)) {
                            open.push((worker, held));
                        } else {
                            prop_assert_eq!(&account, &before);
                        }
                    }
                }
                let tokens: u64 = open.iter().map(|(_, held)| held.need.tokens).sum();
                prop_assert_eq!(account.open(), (tokens, open.len() as u64));
                let mut bytes = Vec::new();
                account.encode(&mut bytes);
                prop_assert_eq!(Account::decode(&mut &*bytes), Some(account.clone()));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in 0_usize..200) {
            let _ = Account::decode(&mut &*bytes);
            let mut account = Account::default();
            account.admit(&limits(), at(0), 1, need(9)).unwrap();
            let mut whole = Vec::new();
            account.encode(&mut whole);
            whole.truncate(cut);
            whole.extend(&bytes);
            let _ = Account::decode(&mut &*whole);
        }
    }
}
