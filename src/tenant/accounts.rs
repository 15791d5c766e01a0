//! All that one tenant is charged: over all pools, and in each pool for which
//! it has limits of its own. Both pass together, or nothing is charged.

use super::account::{Account, EXPIRY, Held, Limit, Limits, Need, Refused, Settled};
use super::bucket::Short;
use super::slot::{self, Content};
use crate::bytes::take_u64;
use crate::time::Instant;

const MAGIC: [u8; 4] = *b"TGac";
/// Pools in which a tenant can have limits of its own, those of former
/// configurations included.
pub const POOLS_MAX: usize = 64;

/// What a request is measured by: the tenant's limits and, by the hash of the
/// pool's name, those in its pool.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits<'a> {
    /// Over all pools.
    pub all: &'a Limits,
    /// In the request's pool.
    pub pool: Option<(u64, &'a Limits)>,
}

/// What an open request holds in the accounts of its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCharges {
    all: Held,
    pool: Option<(u64, Held)>,
}

impl HeldCharges {
    /// What it was charged.
    pub fn reserved(&self) -> u64 {
        self.all.reserved()
    }
}

/// The content of a tenant's slot; a new one is full and idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Over all pools.
    pub all: Account,
    /// By the hash of the pool's name, in no order.
    pools: Vec<(u64, Account)>,
}

impl Accounts {
    /// Charges a request, if every limit covers it.
    pub fn admit(
        &mut self,
        limits: RequestLimits<'_>,
        now: Instant,
        incarnation: u64,
        need: Need,
    ) -> Result<HeldCharges, Refused> {
        self.check(limits, now, need)?;
        let unknown = Refused { limit: Limit::Workers, short: Short::Until(EXPIRY) };
        let pool = match limits.pool {
            Some((key, limits)) => {
                let account = self.pool(key, now).ok_or(unknown)?;
                Some((key, account.take(limits, now, incarnation, need).ok_or(unknown)?))
            }
            None => None,
        };
        // Whoever is known to one of them is known to the other, or becomes so.
        let all = self.all.take(limits.all, now, incarnation, need);
        if let (None, Some((key, held))) = (&all, &pool)
            && let Some(account) = self.pool(*key, now)
        {
            account.settle(now, held, 0);
        }
        Ok(HeldCharges { all: all.ok_or(unknown)?, pool })
    }

    /// Whether every limit covers a request; charges nothing. If both refuse,
    /// the one that lasts longer is told.
    pub fn check(
        &mut self,
        limits: RequestLimits<'_>,
        now: Instant,
        need: Need,
    ) -> Result<(), Refused> {
        let all = self.all.check(limits.all, now, need);
        let unknown = Refused { limit: Limit::Workers, short: Short::Until(EXPIRY) };
        let pool = limits.pool.map_or(Ok(()), |(key, limits)| {
            self.pool(key, now).ok_or(unknown)?.check(limits, now, need)
        });
        match (all, pool) {
            (Err(all), Err(pool)) => Err(all.longer(pool)),
            (all, pool) => all.and(pool),
        }
    }

    /// Ends a request that used `actual` of what it was charged.
    pub fn settle(&mut self, now: Instant, held: &HeldCharges, actual: u64) -> Settled {
        let mut settled = self.all.settle(now, &held.all, actual);
        if let Some((key, held)) = &held.pool
            && let Some((_, account)) = self.pools.iter_mut().find(|(known, _)| known == key)
        {
            let more = account.settle(now, held, actual);
            settled.clamped = settled.clamped.max(more.clamped);
            settled.forgiven = settled.forgiven.max(more.forgiven);
        }
        settled
    }

    /// Gives back a part of what an open request holds, as [`Account::lower`]
    /// does.
    pub fn lower(&mut self, now: Instant, held: &mut HeldCharges, need: Need) -> Settled {
        let mut settled = self.all.lower(now, &mut held.all, need);
        if let Some((key, held)) = &mut held.pool
            && let Some((_, account)) = self.pools.iter_mut().find(|(known, _)| known == key)
        {
            let more = account.lower(now, held, need);
            settled.clamped = settled.clamped.max(more.clamped);
        }
        settled
    }

    /// Takes back what dead workers hold, as [`Account::expire`] does.
    pub fn expire(&mut self, now: Instant, alive: impl Fn(u64) -> bool) -> u64 {
        for (_, account) in &mut self.pools {
            account.expire(now, &alive);
        }
        self.all.expire(now, alive)
    }

    /// The account in a pool. `None` if there are too many.
    fn pool(&mut self, key: u64, now: Instant) -> Option<&mut Account> {
        let mut at = self.pools.iter().position(|(known, _)| *known == key);
        if at.is_none() {
            if self.pools.len() >= POOLS_MAX {
                // Of pools that no configuration has any more.
                self.pools.retain_mut(|(_, account)| !account.idle(now));
            }
            at = (self.pools.len() < POOLS_MAX).then(|| {
                self.pools.push((key, Account::default()));
                self.pools.len() - 1
            });
        }
        self.pools.get_mut(at?).map(|(_, account)| account)
    }
}

impl Content for Accounts {
    const KIND: &str = "tenant";

    fn encode(&self, key: u64) -> Vec<u8> {
        let mut bytes = slot::head(MAGIC, key);
        self.all.encode(&mut bytes);
        for (key, account) in &self.pools {
            bytes.extend(key.to_le_bytes());
            account.encode(&mut bytes);
        }
        bytes
    }

    fn decode(key: u64, bytes: &[u8]) -> Option<Self> {
        let mut rest = slot::body(MAGIC, key, bytes)?;
        let all = Account::decode(&mut rest)?;
        let mut pools = Vec::new();
        while !rest.is_empty() {
            pools.push((take_u64(&mut rest)?, Account::decode(&mut rest)?));
        }
        (pools.len() <= POOLS_MAX).then_some(Self { all, pools })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::Law;
    use crate::time::Span;
    use proptest::prelude::*;

    fn limits(rate: u64, requests: u64) -> Limits {
        Limits {
            laws: [Some(Law::per_second(rate, rate * 10, rate)), None, None, None],
            tokens_in_flight: None,
            requests: Some(requests),
        }
    }

    fn need(charge: u64) -> Need {
        Need { charge, tokens: charge }
    }

    #[test]
    fn a_pool_s_limits_and_the_tenant_s_pass_together() {
        let (all, short, long) = (limits(100, 9), limits(80, 9), limits(10, 9));
        let mut accounts = Accounts::default();
        let now = Instant::default();
        let both = |key, pool| RequestLimits { all: &all, pool: Some((key, pool)) };
        let held = accounts.admit(both(1, &long), now, 7, need(100)).unwrap();
        // The long pool's share is used up; the short one's is not.
        let before = accounts.clone();
        let refused = accounts.admit(both(1, &long), now, 7, need(50)).unwrap_err();
        assert_eq!(refused.limit, Limit::Law(0));
        assert_eq!(accounts, before);
        accounts.admit(both(2, &short), now, 7, need(800)).unwrap();
        // All of it is the tenant's.
        let refused = accounts.check(both(3, &short), now, need(150)).unwrap_err();
        assert_eq!(refused.limit, Limit::Law(0));
        let settled = accounts.settle(now, &held, 40);
        assert_eq!(settled.refunded, 60);
        accounts.admit(both(1, &long), now, 7, need(60)).unwrap();
        assert!(accounts.check(both(1, &long), now, need(1)).is_err());
        let (tokens, requests) = accounts.all.open();
        assert_eq!((tokens, requests), (860, 2));
        // Of two refusals the longer is told.
        let wait = |key, limits, charge| {
            let both = RequestLimits { all: &all, pool: Some((key, limits)) };
            accounts.clone().check(both, now, need(charge)).unwrap_err().short
        };
        assert_eq!(wait(1, &long, 100), Short::Until(Span::from_secs(10)));
        assert_eq!(wait(2, &short, 800), Short::Until(Span::from_secs(10)));
        assert_eq!(Accounts::decode(5, &accounts.encode(5)), Some(accounts.clone()));
        assert_eq!(Accounts::decode(6, &accounts.encode(5)), None);
    }

    #[test]
    fn what_a_pool_s_account_holds_is_lowered_and_expires_as_well() {
        let (all, pool) = (limits(100, 9), limits(50, 9));
        let (mut accounts, now) = (Accounts::default(), Instant::default());
        let both = RequestLimits { all: &all, pool: Some((1, &pool)) };
        let mut held = accounts.admit(both, now, 7, need(400)).unwrap();
        assert!(accounts.check(both, now, need(200)).is_err());
        accounts.lower(now, &mut held, need(100));
        assert!(accounts.check(both, now, need(400)).is_ok());
        assert_eq!(accounts.pools[0].1.open(), (100, 1));
        assert_eq!(accounts.expire(now + Span::from_secs(31), |_| false), 1);
        assert_eq!(accounts.pools[0].1.open(), (0, 0));
    }

    #[test]
    fn pools_that_are_gone_make_room() {
        let (all, pool) = (limits(1000, 900), limits(10, 1));
        let mut accounts = Accounts::default();
        let now = Instant::default();
        let both = |key| RequestLimits { all: &all, pool: Some((key, &pool)) };
        let held: Vec<HeldCharges> = (0..POOLS_MAX as u64)
            .map(|key| accounts.admit(both(key), now, 7, need(10)).unwrap())
            .collect();
        // One too many is refused, and nothing is charged for it.
        let refused = accounts.admit(both(99), now, 7, need(1)).unwrap_err();
        assert_eq!((refused.limit, accounts.all.open().1), (Limit::Workers, POOLS_MAX as u64));
        for held in held {
            accounts.settle(now, &held, 10);
        }
        // What they used counts for a while.
        assert!(accounts.admit(both(99), now, 7, need(1)).is_err());
        let later = now + Span::from_secs(1);
        assert!(accounts.admit(both(99), later, 7, need(1)).is_ok());
        assert!(accounts.admit(both(99), later, 7, need(1)).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in 0_usize..300) {
            let _ = Accounts::decode(0, &bytes);
            let all = limits(10, 3);
            let mut accounts = Accounts::default();
            let both = RequestLimits { all: &all, pool: Some((1, &all)) };
            accounts.admit(both, Instant::default(), 1, need(9)).unwrap();
            let mut whole = accounts.encode(0);
            whole.truncate(cut);
            whole.extend(&bytes);
            let _ = Accounts::decode(0, &whole);
        }
    }
}
