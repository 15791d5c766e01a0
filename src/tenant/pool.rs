//! A pool's capacity, and whose turn it is when that is short.
//!
//! Guaranteed tenants pass whenever their own limits cover a request; what they
//! use is charged to the pool all the same, and what they may still have in
//! flight is kept free for them. The others get what is left: elastic tenants
//! before spot ones and, within a class, whoever had least.
//!
//! *Who had least.* Each tenant has a virtual time: the tokens that it was
//! charged in this pool, divided by its weight; a settlement corrects it, and of
//! what is open counts what its requests use of their reserves on average. While
//! there is room, nobody looks at it. When there is none, those who want the
//! pool go by it, the least first: tenants that all want more than they get are
//! served by their weights (start-time fair queueing, Goyal et al., SIGCOMM
//! 1996; the virtual token counter of arXiv 2401.00588). Who was short while it
//! wanted more comes first later, but only so many tokens' worth: the credit.
//! Who wants nothing earns nothing: who comes back is lifted to where the others
//! are.
//!
//! *Who wants.* A worker that holds requests publishes its first one; nobody who
//! comes after it in order passes. A tenant that was refused is expected back
//! for a moment: meanwhile room for one request of it is kept free from those
//! who come after it.

mod flows;

use super::account::{Account, Held, Limits, Need};
use super::meter::Meter;
use super::slot::{self, Content};
use crate::bytes::{put, take, take_u64};
use crate::config::TenantClass;
use crate::estimate::hash;
use crate::pool::{
    Load, LoadSources, Reading, Reports, Source, Spill, SpillLaw, ThresholdRange, adapt_threshold,
};
use crate::time::{Instant, Span};
use flows::Flows;

const MAGIC: [u8; 4] = *b"TGpl";
/// Workers that can wait for one pool at a time.
const HEADS_MAX: usize = 256;
/// Virtual time of one token of a tenant of weight 1.
const SCALE: u64 = 1000;
/// The largest weight.
pub const WEIGHT_MAX: u64 = SCALE;
/// How often a worker looks whether a request that it holds may go.
pub const HOLD_TICK: Span = Span::from_millis(10);
/// Another worker's first request counts once it has waited so long: it is not
/// known earlier to all.
const SETTLED: Span = Span::from_millis(20);
/// A worker that did not look for so long does not wait any more.
const GONE: Span = Span::from_millis(250);
/// A tenant that is expected back keeps at most one part of so many free.
const EXPECTED_PART: u64 = 4;
/// A pool that never spills takes others' requests up to this pressure.
const TAKES: u64 = 900;

/// What a pool can do, and what of it is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The pool's name.
    pub name: String,
    /// What all its replicas can do.
    pub limits: Limits,
    /// Tokens in flight and open requests that are kept free for guaranteed
    /// tenants, as far as they do not have them already.
    pub kept: (u64, u64),
    /// Tokens that a tenant which was short comes first with, at the most.
    pub credit: u64,
    /// When it sends elsewhere what another pool can take, if ever.
    pub spill: Option<SpillLaw>,
    /// Where its engines say how busy they are, if they are asked.
    pub load: Option<LoadSources>,
}

impl Capacity {
    pub(super) fn key(&self) -> u64 {
        hash(self.name.as_bytes())
    }
}

/// A tenant that asks a pool for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Hash of the tenant's name.
    pub key: u64,
    /// Its class.
    pub class: TenantClass,
    /// Its share among its class, 1 to [`WEIGHT_MAX`].
    pub weight: u64,
}

impl Contender {
    fn time(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(SCALE) / self.weight.max(1)
    }
}

/// What an open request holds in a pool. Give it back to
/// [`PoolAccount::settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    all: Held,
    /// Of a guaranteed tenant.
    kept: Option<Held>,
    who: Contender,
    /// The number of its tenant's flow.
    flow: u64,
    tokens: u64,
    /// What it is likely to use of them: the rate is charged that.
    likely: u64,
}

/// The first request of one worker that waits for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    incarnation: u64,
    key: u64,
    since: Instant,
    seen: Instant,
}

/// The content of a pool's slot; a new one is empty and idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolAccount {
    all: Account,
    /// Of that, what guaranteed tenants have in flight.
    kept: Account,
    meter: Meter,
    flows: Flows,
    /// In no order, one for each worker.
    heads: Vec<Head>,
    spill: Spill,
    /// The pressure, averaged over some ticks.
    mean: u64,
    /// Its threshold now; 0 for the configured one.
    threshold: u64,
    /// What its engines said.
    reports: Reports,
}

impl PoolAccount {
    /// Tokens and requests in flight.
    pub fn open(&self) -> (u64, u64) {
        self.all.open()
    }

    /// Tokens that the rate has left; negative if guaranteed tenants took more.
    pub fn level(&mut self, capacity: &Capacity, now: Instant) -> Option<i64> {
        let law = capacity.limits.laws.first()?.as_ref()?;
        Some(self.meter.level(law, now))
    }

    /// Tokens that a tenant's ended requests used, since it is known here.
    pub fn served(&self, key: u64) -> u64 {
        self.flows.of(key).map_or(0, |flow| flow.served)
    }

    /// Takes room for a request, if there is some and it is the tenant's turn.
    /// That it asked is kept in mind either way.
    pub fn admit(
        &mut self,
        capacity: &Capacity,
        now: Instant,
        incarnation: u64,
        who: Contender,
        tokens: u64,
    ) -> Result<Taken, Span> {
        let flow = self.flows.arrive(now, who, capacity.credit);
        let guaranteed = who.class == TenantClass::Guaranteed;
        let likely = self.flows.expects(who.key, tokens);
        if !guaranteed {
            self.room(capacity, now, who, tokens)?;
            if self.is_behind(capacity, now, incarnation, who) {
                return Err(Span::default());
            }
        }
        let (need, none) = (Need { charge: tokens, tokens }, Limits::default());
        let all = self.all.take(&none, now, incarnation, need).ok_or(HOLD_TICK)?;
        let kept = if guaranteed { self.kept.take(&none, now, incarnation, need) } else { None };
        if let Some(law) = capacity.limits.laws.first().and_then(Option::as_ref) {
            self.meter.charge(law, now, likely);
        }
        self.flows.charge(who, tokens);
        self.observe(capacity, now);
        Ok(Taken { all, kept, who, flow, tokens, likely })
    }

    /// The tenant waits: its request of so many tokens is held, or it was told to
    /// come back after so much time.
    pub fn want(&mut self, now: Instant, key: u64, tokens: u64, back: Option<Span>) {
        self.flows.want(now, key, tokens, back);
    }

    /// Takes room for a request that is nobody's, whatever there is.
    pub fn occupy(
        &mut self,
        capacity: &Capacity,
        now: Instant,
        incarnation: u64,
        tokens: u64,
    ) -> Option<Taken> {
        let nobody = Contender { key: 0, class: TenantClass::Guaranteed, weight: 1 };
        self.admit(capacity, now, incarnation, nobody, tokens).ok()
    }

    /// How it stands for a request of so many tokens.
    pub fn load(&self, capacity: &Capacity, now: Instant, tokens: u64) -> Load {
        let pressure = self.pressure(capacity, now);
        let mut spill = self.spill;
        if let Some(law) = &capacity.spill {
            spill.observe(law, now, pressure);
        }
        Load {
            pressure,
            spills: capacity.spill.is_some() && spill.is_on(),
            changes: spill.changes(),
            adds: self
                .in_flight(capacity, (tokens, 1))
                .saturating_sub(self.in_flight(capacity, (0, 0))),
            takes_until: capacity.spill.map_or(TAKES, |law| law.enter),
            threshold: Some(self.threshold).filter(|threshold| *threshold > 0),
            reported: capacity.load.as_ref().and_then(|load| self.reports.told(load, now)),
        }
    }

    /// What is in flight, or what its engines report if that is more.
    fn pressure(&self, capacity: &Capacity, now: Instant) -> u64 {
        let reported = capacity
            .load
            .as_ref()
            .map_or(0, |load| self.reports.pressure(load, now, capacity.limits.requests));
        self.in_flight(capacity, (0, 0)).max(reported)
    }

    /// Its engines say how busy they are.
    pub fn report(&mut self, capacity: &Capacity, now: Instant, source: Source, reading: Reading) {
        self.reports.add(now, source, reading);
        self.observe(capacity, now);
    }

    /// The fullest of what it has so much of, in thousandths, with more open.
    fn in_flight(&self, capacity: &Capacity, (tokens, requests): (u64, u64)) -> u64 {
        let (open_tokens, open_requests) = self.all.open();
        let of = |open: u64, more: u64, max: Option<u64>| {
            max.map_or(0, |max| open.saturating_add(more).saturating_mul(1000) / max.max(1))
        };
        let limits = &capacity.limits;
        of(open_tokens, tokens, limits.tokens_in_flight).max(of(
            open_requests,
            requests,
            limits.requests,
        ))
    }

    fn observe(&mut self, capacity: &Capacity, now: Instant) {
        if let Some(law) = &capacity.spill {
            let pressure = self.pressure(capacity, now);
            self.spill.observe(law, now, pressure);
        }
    }

    /// Takes a look at the pressure, each tick of one worker. Returns its mean.
    pub fn watch(&mut self, capacity: &Capacity, now: Instant) -> u64 {
        self.observe(capacity, now);
        self.mean = (self.mean.saturating_mul(4).saturating_add(self.pressure(capacity, now))) / 5;
        self.mean
    }

    /// Moves the threshold, which the configuration sets to so much, by its own
    /// pressure and that of the next larger pool.
    pub fn adapt(&mut self, configured: u64, range: ThresholdRange, larger: u64) {
        let known = if self.threshold == 0 { configured } else { self.threshold };
        self.threshold = adapt_threshold(known, range, self.mean, larger);
    }

    /// Ends a request that used so many tokens.
    pub fn settle(&mut self, capacity: &Capacity, now: Instant, taken: &Taken, actual: u64) {
        self.all.settle(now, &taken.all, actual);
        if let Some(kept) = &taken.kept {
            self.kept.settle(now, kept, actual);
        }
        self.meter.correct(taken.likely, actual);
        self.flows.settle(now, taken.who, taken.flow, taken.tokens, actual);
        self.observe(capacity, now);
    }

    /// Gives back a part of the room that an open request took.
    pub fn lower(&mut self, now: Instant, taken: &mut Taken, tokens: u64) {
        let need = Need { charge: tokens, tokens };
        self.all.lower(now, &mut taken.all, need);
        if let Some(kept) = &mut taken.kept {
            self.kept.lower(now, kept, need);
        }
        let lowered = taken.tokens.min(tokens);
        let likely = self.flows.expects(taken.who.key, lowered).min(taken.likely);
        self.meter.correct(taken.likely, likely);
        self.flows.lower(taken.who, taken.flow, taken.tokens, lowered);
        (taken.tokens, taken.likely) = (lowered, likely);
    }

    /// Whether the capacity covers so many tokens for a tenant that is not
    /// guaranteed, and one request of each that is expected back and comes before
    /// it. What is larger than all that is ever left passes alone.
    fn room(
        &mut self,
        capacity: &Capacity,
        now: Instant,
        who: Contender,
        tokens: u64,
    ) -> Result<(), Span> {
        let limits = &capacity.limits;
        // One that asks for more than a part of the pool cannot keep it all free.
        let most = limits.tokens_in_flight.map_or(u64::MAX, |max| max / EXPECTED_PART);
        let (back_tokens, back_requests) = self.flows.expected(now, who, capacity.credit, most);
        let law = limits.laws.first().and_then(Option::as_ref);
        if let Some(law) = law {
            let back = back_tokens.min(law.burst / EXPECTED_PART);
            let likely = self.flows.expects(who.key, tokens);
            self.meter.check(law, now, likely.saturating_add(back))?;
        }
        let ((all_tokens, all_requests), (kept_tokens, kept_requests)) =
            (self.all.open(), self.kept.open());
        let others = all_requests.saturating_sub(kept_requests);
        let fits = |max: Option<u64>, kept: u64, kept_open: u64, open: u64, more: u64| {
            // What guaranteed tenants have beyond what is kept for them counts.
            max.is_none_or(|max| {
                let others = open.saturating_sub(kept_open);
                others.saturating_add(more) <= max.saturating_sub(kept.max(kept_open))
            })
        };
        let kept_max = capacity.kept;
        let tokens_fit =
            |more: u64| fits(limits.tokens_in_flight, kept_max.0, kept_tokens, all_tokens, more);
        let requests = back_requests.saturating_add(1);
        let requests_fit = fits(limits.requests, kept_max.1, kept_requests, all_requests, requests);
        let ever = limits.tokens_in_flight.map(|max| max.saturating_sub(kept_max.0));
        let alone = others == 0 && ever.is_some_and(|ever| tokens > ever);
        let passes = requests_fit && (tokens_fit(tokens.saturating_add(back_tokens)) || alone);
        if passes { Ok(()) } else { Err(Span::default()) }
    }

    /// Whether a request that is held comes before this tenant.
    fn is_behind(
        &self,
        capacity: &Capacity,
        now: Instant,
        incarnation: u64,
        who: Contender,
    ) -> bool {
        let mine = self.order(capacity, now, who);
        let first = |head: &&Head| {
            let known = head.incarnation == incarnation || now.since(head.since) > SETTLED;
            known && head.key != who.key && now.since(head.seen) <= GONE
        };
        let heads = self.heads.iter().filter(first);
        heads
            .filter_map(|head| self.flows.of(head.key))
            .any(|flow| self.order(capacity, now, flow.who) < mine)
    }

    /// Where a tenant stands among those who want the pool: the least first.
    pub fn order(&self, capacity: &Capacity, now: Instant, who: Contender) -> (TenantClass, u64) {
        self.flows.order(now, who, capacity.credit)
    }

    /// Says for whom a worker holds requests that wait for the pool, the first
    /// one first. Returns whether that is news worth writing.
    pub fn publish(&mut self, now: Instant, incarnation: u64, waiting: &[Contender]) -> bool {
        let mut news = false;
        for who in waiting {
            news |= self.flows.hold(now, who.key);
        }
        self.heads.retain(|head| now.since(head.seen) <= GONE);
        let at = self.heads.iter().position(|head| head.incarnation == incarnation);
        let Some(who) = waiting.first() else {
            return at.map(|at| self.heads.swap_remove(at)).is_some();
        };
        let new = Head { incarnation, key: who.key, since: now, seen: now };
        match at.and_then(|at| self.heads.get_mut(at)) {
            Some(head) if head.key == who.key => {
                let late = now.since(head.seen) > SETTLED;
                head.seen = if late { now } else { head.seen };
                news | late
            }
            Some(head) => {
                *head = new;
                true
            }
            None => {
                let room = self.heads.len() < HEADS_MAX;
                if room {
                    self.heads.push(new);
                }
                news | room
            }
        }
    }

    /// Takes back what dead workers hold, as [`Account::expire`] does.
    pub fn expire(&mut self, now: Instant, alive: impl Fn(u64) -> bool) -> u64 {
        self.kept.expire(now, &alive);
        let expired = self.all.expire(now, alive);
        if expired > 0 {
            self.flows.forget_open();
        }
        expired
    }
}

/// The slot's bytes.
mod layout {
    use super::flows::{FLOWS_MAX, Flow, Flows};
    use super::{
        Account, Contender, Content, HEADS_MAX, Head, Instant, MAGIC, Meter, PoolAccount, Reports,
        Spill, TenantClass, put, slot, take, take_u64,
    };

    impl Content for PoolAccount {
        const KIND: &str = "pool";

        fn encode(&self, key: u64) -> Vec<u8> {
            let mut bytes = slot::head(MAGIC, key);
            self.all.encode(&mut bytes);
            self.kept.encode(&mut bytes);
            put(&mut bytes, &self.meter.encode());
            put(&mut bytes, &[self.flows.last]);
            bytes.extend((self.flows.all.len() as u32).to_le_bytes());
            for flow in &self.flows.all {
                bytes.push(flow.who.class as u8);
                let numbers = [
                    flow.who.key,
                    flow.who.weight,
                    flow.number,
                    flow.virtual_time,
                    flow.open,
                    flow.used_permille,
                    flow.base_then,
                    flow.wants_until.as_nanos(),
                    flow.wanted,
                    flow.held_until.as_nanos(),
                    flow.touched.as_nanos(),
                    flow.served,
                ];
                put(&mut bytes, &numbers);
            }
            bytes.extend((self.heads.len() as u32).to_le_bytes());
            for head in &self.heads {
                let (since, seen) = (head.since.as_nanos(), head.seen.as_nanos());
                put(&mut bytes, &[head.incarnation, head.key, since, seen]);
            }
            put(&mut bytes, &self.spill.encode());
            put(&mut bytes, &[self.mean, self.threshold]);
            put(&mut bytes, self.reports.encode().as_flattened());
            bytes
        }

        fn decode(key: u64, bytes: &[u8]) -> Option<Self> {
            let mut bytes = slot::body(MAGIC, key, bytes)?;
            let rest = &mut bytes;
            let (all, kept) = (Account::decode(rest)?, Account::decode(rest)?);
            let count = |rest: &mut &[u8], max: usize| {
                let count = u32::from_le_bytes(take(rest)?) as usize;
                (count <= max).then_some(count)
            };
            let meter = Meter::decode([take_u64(rest)?, take_u64(rest)?]);
            let mut flows = Flows { all: Vec::new(), last: take_u64(rest)? };
            for _ in 0..count(rest, FLOWS_MAX)? {
                let [class] = take(rest)?;
                let (_, class) = *TenantClass::WORDS.get(usize::from(class))?;
                flows.all.push(Flow {
                    who: Contender { key: take_u64(rest)?, class, weight: take_u64(rest)? },
                    number: take_u64(rest)?,
                    virtual_time: take_u64(rest)?,
                    open: take_u64(rest)?,
                    used_permille: take_u64(rest)?,
                    base_then: take_u64(rest)?,
                    wants_until: Instant::from_nanos(take_u64(rest)?),
                    wanted: take_u64(rest)?,
                    held_until: Instant::from_nanos(take_u64(rest)?),
                    touched: Instant::from_nanos(take_u64(rest)?),
                    served: take_u64(rest)?,
                });
            }
            let mut heads = Vec::new();
            for _ in 0..count(rest, HEADS_MAX)? {
                heads.push(Head {
                    incarnation: take_u64(rest)?,
                    key: take_u64(rest)?,
                    since: Instant::from_nanos(take_u64(rest)?),
                    seen: Instant::from_nanos(take_u64(rest)?),
                });
            }
            let spill = Spill::decode([take_u64(rest)?, take_u64(rest)?, take_u64(rest)?]);
            let (mean, threshold) = (take_u64(rest)?, take_u64(rest)?);
            let mut numbers = [[0; 4]; 2];
            for number in numbers.as_flattened_mut() {
                *number = take_u64(rest)?;
            }
            let (reports, whole) = (Reports::decode(numbers), rest.is_empty());
            whole.then_some(Self {
                all,
                kept,
                meter,
                flows,
                heads,
                spill,
                mean,
                threshold,
                reports,
            })
        }
    }
}

#[cfg(test)]
mod tests;
