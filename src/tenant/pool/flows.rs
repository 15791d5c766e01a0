//! Who had how much of a pool, and who comes first.

use super::{Contender, GONE, HOLD_TICK, SCALE};
use crate::config::TenantClass;
use crate::time::{Instant, Span};

/// Tenants that are known to one pool at a time; few in tests.
pub(super) const FLOWS_MAX: usize = if cfg!(test) { 4 } else { 256 };
/// A refused tenant is taken to want the pool for so long after the time at
/// which it was told to come back …
const PATIENCE: Span = Span::from_millis(500);
/// … which is at most so far away: it may not come at all.
const BACK_MAX: Span = Span::from_secs(2);

/// What one tenant got of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) who: Contender,
    /// Which of all that the pool ever knew: what an older one of the same tenant
    /// took is not settled here.
    pub(super) number: u64,
    /// What it was charged, in virtual time: reserves of open requests, actual
    /// amounts of ended ones, and what it was lifted by.
    pub(super) virtual_time: u64,
    /// Of that, reserves of open requests.
    pub(super) open: u64,
    /// What its requests use of what they reserve, in thousandths; an average.
    pub(super) used_permille: u64,
    /// Where the others were when it last asked.
    pub(super) base_then: u64,
    /// It was refused and is expected back until then, for so many tokens.
    pub(super) wants_until: Instant,
    pub(super) wanted: u64,
    /// Requests of it are held, as was last said. One worker's last request may
    /// have gone while others hold more, so it is not taken back.
    pub(super) held_until: Instant,
    pub(super) touched: Instant,
    /// Tokens that ended requests used.
    pub(super) served: u64,
}

impl Flow {
    /// What it had, as far as can be foreseen: of what is open it will use as much
    /// as it used to.
    fn service(&self) -> u64 {
        let ended = self.virtual_time.saturating_sub(self.open);
        ended.saturating_add(self.open.saturating_mul(self.used_permille) / 1000)
    }

    fn wants(&self, now: Instant) -> bool {
        self.wants_until.max(self.held_until) > now
    }
}

/// All tenants that are known to one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flows {
    /// In no order.
    pub(super) all: Vec<Flow>,
    /// The last one's number.
    pub(super) last: u64,
}

impl Flows {
    pub(super) fn of(&self, key: u64) -> Option<&Flow> {
        self.all.iter().find(|flow| flow.who.key == key)
    }

    fn of_mut(&mut self, key: u64) -> Option<&mut Flow> {
        self.all.iter_mut().find(|flow| flow.who.key == key)
    }

    /// Where a tenant stands among those who want the pool: the least first.
    pub(super) fn order(&self, now: Instant, who: Contender, credit: u64) -> (TenantClass, u64) {
        (who.class, self.start_tag(now, who, credit).0)
    }

    /// What a tenant is taken to have had if it asks now, and where the others
    /// are: at the least of those who want the pool. Where nobody does there is
    /// room for all, and they are at the most: whoever comes next to nothing then
    /// starts level with them.
    fn start_tag(&self, now: Instant, who: Contender, credit: u64) -> (u64, u64) {
        let others =
            || self.all.iter().filter(|one| one.who.key != who.key && one.who.class == who.class);
        let least = others().filter(|one| one.wants(now)).map(Flow::service).min();
        let base = least.or_else(|| others().map(Flow::service).max());
        let (Some(flow), Some(base)) = (self.of(who.key), base) else {
            let had = self.of(who.key).map(Flow::service).or(base).unwrap_or(0);
            return (had, had);
        };
        let (had, credit) = (flow.service(), who.time(credit));
        let least = match least {
            // Alone in wanting it.
            None if flow.wants(now) => had,
            Some(least) if flow.wants(now) => least.saturating_sub(credit),
            // It keeps what it was behind by when it last asked.
            _ => base.saturating_sub(credit.min(flow.base_then.saturating_sub(had))),
        };
        (had.max(least), base)
    }

    /// A tenant asks: it is lifted to where it may stand. Returns its number.
    pub(super) fn arrive(&mut self, now: Instant, who: Contender, credit: u64) -> u64 {
        let (start, base) = self.start_tag(now, who, credit);
        if let Some(flow) = self.of_mut(who.key) {
            flow.virtual_time =
                flow.virtual_time.saturating_add(start.saturating_sub(flow.service()));
            (flow.who, flow.base_then, flow.touched) = (who, base, now);
            return flow.number;
        }
        if self.all.len() >= FLOWS_MAX {
            // One without open requests, if there is one.
            let oldest = (0..self.all.len())
                .min_by_key(|at| self.all.get(*at).map(|flow| (flow.open > 0, flow.touched)));
            oldest.map(|at| self.all.swap_remove(at));
        }
        self.last = self.last.wrapping_add(1);
        self.all.push(Flow {
            who,
            number: self.last,
            virtual_time: start,
            open: 0,
            used_permille: 1000,
            base_then: base,
            wants_until: Instant::default(),
            wanted: 0,
            held_until: Instant::default(),
            touched: now,
            served: 0,
        });
        self.last
    }

    /// What a tenant's request of so many tokens is likely to use.
    pub(super) fn expects(&self, key: u64, tokens: u64) -> u64 {
        tokens.saturating_mul(self.of(key).map_or(1000, |flow| flow.used_permille)) / 1000
    }

    /// It is charged so many tokens.
    pub(super) fn charge(&mut self, who: Contender, tokens: u64) {
        if let Some(flow) = self.of_mut(who.key) {
            let time = who.time(tokens);
            flow.virtual_time = flow.virtual_time.saturating_add(time);
            flow.open = flow.open.saturating_add(time);
        }
    }

    /// An open request turns out to reserve less.
    pub(super) fn lower(&mut self, who: Contender, number: u64, from: u64, to: u64) {
        let less = who.time(from).saturating_sub(who.time(to));
        if let Some(flow) = self.of_mut(who.key).filter(|flow| flow.number == number) {
            flow.virtual_time = flow.virtual_time.saturating_sub(less);
            flow.open = flow.open.saturating_sub(less);
        }
    }

    /// A request ends.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        who: Contender,
        number: u64,
        tokens: u64,
        used: u64,
    ) {
        let Some(flow) = self.of_mut(who.key).filter(|flow| flow.number == number) else { return };
        let reserved = who.time(tokens);
        flow.virtual_time =
            flow.virtual_time.saturating_sub(reserved).saturating_add(who.time(used));
        flow.open = flow.open.saturating_sub(reserved);
        flow.served = flow.served.saturating_add(used);
        flow.touched = now;
        if let Some(share) = used.saturating_mul(1000).checked_div(tokens) {
            flow.used_permille = (flow.used_permille * 7 + share.min(4 * SCALE)) / 8;
        }
    }

    /// A request of it waits: it is held, or it was told to come back after so
    /// much time.
    pub(super) fn want(&mut self, now: Instant, key: u64, tokens: u64, back: Option<Span>) {
        let Some(flow) = self.of_mut(key) else { return };
        match back {
            Some(after) => {
                flow.wants_until = now + after.min(BACK_MAX) + PATIENCE;
                flow.wanted = tokens;
            }
            None => flow.held_until = now + GONE,
        }
    }

    /// Requests of it are still held. Returns whether that is news worth writing.
    pub(super) fn hold(&mut self, now: Instant, key: u64) -> bool {
        let late = |flow: &&mut Flow| flow.held_until <= now + HOLD_TICK + HOLD_TICK + HOLD_TICK;
        match self.of_mut(key).filter(late) {
            Some(flow) => flow.held_until = now + GONE,
            None => return false,
        }
        true
    }

    /// Room for one request of each tenant that was refused, is expected back and
    /// comes before this one: tokens, at most `most` for each, and requests.
    pub(super) fn expected(
        &self,
        now: Instant,
        who: Contender,
        credit: u64,
        most: u64,
    ) -> (u64, u64) {
        let mine = self.order(now, who, credit);
        let back = self.all.iter().filter(|flow| flow.who.key != who.key);
        let back = back.filter(|flow| flow.wants_until > now);
        let first = back.filter(|flow| self.order(now, flow.who, credit) < mine);
        first.fold((0, 0), |(tokens, requests), flow| {
            (flow.wanted.min(most).saturating_add(tokens), requests + 1)
        })
    }

    /// Some worker died with what it held: nobody knows of whom that was.
    pub(super) fn forget_open(&mut self) {
        for flow in &mut self.all {
            flow.open = 0;
        }
    }
}
