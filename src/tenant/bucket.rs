//! A token bucket whose charges are corrected later, exactly.
//!
//! A request is charged its reserve when it is admitted, and what it really
//! used when it ends. The law is about both: at every admission, and for every
//! window that ends there, the charges of the requests admitted in the window
//! (reserves of open ones, actual amounts of ended ones) are at most
//! `rate × window + burst`.
//!
//! A plain bucket breaks it. Let a request reserve the whole burst and run until
//! the bucket is full again. If its refund then refills the bucket after others
//! have emptied it, twice the burst passes at once. How much of a refund is
//! still due depends on the charges since the request was admitted: none, if
//! the bucket was full at any moment since.
//!
//! So the bucket is kept as a list of nested ones. For a window that starts at
//! `s`, let `Q(s)` be the charges since `s` less the refill since `s`. The law
//! says that `Q(s) ≤ burst` for every `s`. `Q` can be largest only for starts
//! just before a charge, and of those only for the ones that no later start
//! exceeds; the list holds these, oldest (and largest) first. A refund lowers
//! `Q(s)` for the starts up to its own request's, down to the largest of the
//! later ones.
//!
//! The list is short. When it is full, two neighbours become one with the
//! larger `Q` and the later start, which can only lose a part of a refund.

use crate::bytes::{put, take, take_u64};
use crate::time::{Instant, Span};

/// Starts that a bucket remembers; few in tests, so that the list gets full.
pub const STARTS_MAX: usize = if cfg!(test) { 4 } else { 16 };
/// Charges are counted in billionths of a token, so that any refill is whole.
pub(super) const UNIT: i64 = 1_000_000_000;
/// Tokens of a burst, of a floor, or of one charge, at the most.
pub const TOKENS_MAX: u64 = 1 << 31;

/// Stands for the number of starts of a bucket that was never used.
const UNUSED: u8 = u8::MAX;

/// The most that can be charged: a burst and a floor.
const CHARGED_MAX: i64 = 2 * TOKENS_MAX.cast_signed() * UNIT;

/// What a bucket promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Law {
    /// So many tokens …
    pub tokens: u64,
    /// … for each so much time.
    pub period: Span,
    /// Tokens that may pass at once, at most [`TOKENS_MAX`].
    pub burst: u64,
    /// The level may fall so far below zero; what would lie below is forgiven.
    pub floor: u64,
}

impl Law {
    /// A rate in tokens per second.
    pub fn per_second(tokens: u64, burst: u64, floor: u64) -> Self {
        Self { tokens, period: Span::from_secs(1), burst, floor }
    }

    /// How long so many tokens take to flow in; the longest span if for ever.
    pub fn time_until(&self, tokens: u64) -> Span {
        self.time_for(Self::units(tokens)).unwrap_or(Span::from_nanos(u64::MAX))
    }

    pub(super) fn units(tokens: u64) -> i64 {
        i64::try_from(tokens.min(TOKENS_MAX)).unwrap_or(i64::MAX).saturating_mul(UNIT)
    }

    /// What flows in over so much time, rounded down.
    pub(super) fn refill(&self, time: Span) -> i64 {
        let tokens = u128::from(self.tokens.min(TOKENS_MAX));
        let units = tokens * u128::from(time.as_nanos()) * UNIT as u128
            / u128::from(self.period.as_nanos().max(1));
        i64::try_from(units).unwrap_or(i64::MAX)
    }

    /// How long so much takes to flow in, rounded up; `None` if for ever.
    pub(super) fn time_for(&self, units: i64) -> Option<Span> {
        let units = u128::try_from(units).unwrap_or(0);
        let nanos = (units * u128::from(self.period.as_nanos()))
            .div_ceil(u128::from(self.tokens).checked_mul(UNIT as u128).filter(|rate| *rate > 0)?);
        Some(Span::from_nanos(u64::try_from(nanos).ok()?))
    }
}

/// Why a bucket does not take a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// It will after so much time, if nothing else is charged.
    Until(Span),
    /// It never will: the charge is larger than the burst, or nothing flows in.
    Never,
}

/// A charge that may be corrected. Of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    id: u64,
    /// The tokens that were charged.
    pub tokens: u64,
}

/// What a correction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrected {
    /// Tokens of the refund that were not due any more, rounded up.
    pub clamped: u64,
    /// Tokens below the floor that were forgiven, rounded up.
    pub forgiven: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Start {
    /// The number of the charge that it stands just before.
    id: u64,
    /// Charges since then less the refill since then; positive.
    charged: i64,
}

/// The state of one bucket; a new one is full. It keeps its law, so that time
/// that has passed counts by the law of that time, and what an old request still
/// settles counts by the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    law: Law,
    at: Instant,
    /// Number of the last charge.
    last: u64,
    /// Oldest first; the sums fall, strictly.
    starts: Vec<Start>,
}

impl Bucket {
    /// Lets time pass, then takes on a law. A clock that goes back passes none.
    fn adopt(&mut self, law: &Law, now: Instant) {
        self.advance(now);
        self.law = *law;
    }

    fn advance(&mut self, now: Instant) {
        let refill = self.law.refill(now.since(self.at));
        // A refill that rounds to nothing leaves the time for the next.
        if refill > 0 || self.starts.is_empty() {
            self.at = self.at.max(now);
        }
        for start in &mut self.starts {
            start.charged = start.charged.saturating_sub(refill);
        }
        self.starts.retain(|start| start.charged > 0);
    }

    /// Where the floor is.
    fn most(&self) -> i64 {
        Law::units(self.law.burst).saturating_add(Law::units(self.law.floor))
    }

    fn used(&self) -> i64 {
        self.starts.first().map_or(0, |start| start.charged)
    }

    /// Whether nothing that was charged still counts.
    pub(super) fn full(&mut self, now: Instant) -> bool {
        self.advance(now);
        self.starts.is_empty()
    }

    /// Whole tokens that could be charged now; negative if it is in debt.
    pub fn level(&mut self, law: &Law, now: Instant) -> i64 {
        self.adopt(law, now);
        Law::units(law.burst).saturating_sub(self.used()).div_euclid(UNIT)
    }

    /// Whether so many tokens could be charged now; changes no level.
    pub fn check(&mut self, law: &Law, now: Instant, tokens: u64) -> Result<(), Short> {
        self.adopt(law, now);
        if tokens > law.burst.min(TOKENS_MAX) {
            return Err(Short::Never);
        }
        let more = Law::units(tokens) - Law::units(law.burst);
        let lacks = self.used().saturating_add(more);
        if lacks <= 0 {
            return Ok(());
        }
        Err(law.time_for(lacks).map_or(Short::Never, Short::Until))
    }

    /// Charges so many tokens, whether or not [`check`](Self::check) allows it.
    pub fn charge(&mut self, law: &Law, now: Instant, tokens: u64) -> Charge {
        self.adopt(law, now);
        let tokens = tokens.min(TOKENS_MAX);
        self.last = self.last.wrapping_add(1);
        let id = self.last;
        let units = Law::units(tokens);
        let mut forgiven = 0;
        if units > 0 {
            let charged = units.min(self.most());
            forgiven = self.raise(id, units).max(units - charged);
            self.starts.push(Start { id, charged });
            if charged < units {
                self.drop_exceeded();
            }
            self.shorten();
        }
        // What was forgiven was not charged, so it is not given back either.
        Charge { id, tokens: tokens.saturating_sub(tokens_up(forgiven)) }
    }

    /// Puts what the request really used in place of what was charged.
    pub fn correct(&mut self, now: Instant, charge: Charge, actual: u64) -> Corrected {
        self.advance(now);
        let actual = actual.min(TOKENS_MAX);
        if actual > charge.tokens {
            return self.exceed(charge.id, Law::units(actual - charge.tokens));
        }
        let refund = Law::units(charge.tokens - actual);
        let before = self.used();
        // Windows that start after the request do not contain it.
        for start in self.starts.iter_mut().filter(|start| start.id <= charge.id) {
            start.charged = start.charged.saturating_sub(refund);
        }
        self.drop_exceeded();
        let clamped = refund.saturating_sub(before.saturating_sub(self.used()));
        Corrected { clamped: tokens_up(clamped), forgiven: 0 }
    }

    /// The request used more than was charged.
    fn exceed(&mut self, id: u64, units: i64) -> Corrected {
        let forgiven = self.raise(id, units);
        let at = self.starts.iter().take_while(|start| start.id < id).count();
        let later = self.starts.get(at).copied().unwrap_or_default();
        if later.id != id {
            // Its own start was joined with the next, or its window was empty
            // at some moment: no more than the next was charged in it.
            let most = self.most();
            let charged = later.charged.saturating_add(units).min(most);
            if charged > later.charged {
                self.starts.insert(at, Start { id, charged });
                self.drop_exceeded();
                self.shorten();
            }
        }
        Corrected { clamped: 0, forgiven: tokens_up(forgiven) }
    }

    /// Adds to the windows that start at or before a charge, down to the floor.
    /// Returns what is forgiven.
    fn raise(&mut self, id: u64, units: i64) -> i64 {
        let most = self.most();
        let mut forgiven = 0;
        for start in self.starts.iter_mut().filter(|start| start.id <= id) {
            let raised = start.charged.saturating_add(units);
            forgiven = forgiven.max(raised.saturating_sub(most));
            start.charged = raised.min(most);
        }
        self.drop_exceeded();
        forgiven
    }

    /// Drops starts that a later one reaches.
    fn drop_exceeded(&mut self) {
        let mut largest = 0;
        let mut kept: Vec<Start> = Vec::with_capacity(self.starts.len());
        for start in self.starts.iter().rev().filter(|start| start.charged > 0) {
            if start.charged > largest {
                largest = start.charged;
                kept.push(*start);
            }
        }
        kept.reverse();
        self.starts = kept;
    }

    /// Appends its bytes.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        // Most buckets of most accounts.
        if *self == Self::default() {
            return bytes.push(UNUSED);
        }
        let Law { tokens, period, burst, floor } = self.law;
        let at = self.at.as_nanos();
        bytes.push(self.starts.len() as u8);
        put(bytes, &[tokens, period.as_nanos(), burst, floor, at, self.last]);
        for start in &self.starts {
            put(bytes, &[start.id, start.charged.cast_unsigned()]);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` if it cannot be that.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let [count] = take(bytes)?;
        if count == UNUSED {
            return Some(Self::default());
        }
        let law = Law {
            tokens: take_u64(bytes)?,
            period: Span::from_nanos(take_u64(bytes)?),
            burst: take_u64(bytes)?,
            floor: take_u64(bytes)?,
        };
        let at = Instant::from_nanos(take_u64(bytes)?);
        let last = take_u64(bytes)?;
        let mut starts: Vec<Start> = Vec::with_capacity(STARTS_MAX.min(count.into()));
        for _ in 0..count {
            let (id, charged) = (take_u64(bytes)?, take_u64(bytes)?.cast_signed());
            let falls = starts.last().is_none_or(|one| one.id < id && one.charged > charged);
            if !falls || !(1..=CHARGED_MAX).contains(&charged) || id > last {
                return None;
            }
            starts.push(Start { id, charged });
        }
        (starts.len() <= STARTS_MAX).then_some(Self { law, at, last, starts })
    }

    /// Joins the two neighbours that are nearest in their sums.
    fn shorten(&mut self) {
        if self.starts.len() <= STARTS_MAX {
            return;
        }
        let gaps = self.starts.windows(2).map(|pair| match pair {
            [older, later] => older.charged - later.charged,
            _ => i64::MAX,
        });
        let nearest = gaps.enumerate().min_by_key(|(_, gap)| *gap);
        if let Some((at, _)) = nearest
            && let Some(later) = self.starts.get(at + 1).map(|start| start.id)
        {
            if let Some(older) = self.starts.get_mut(at) {
                older.id = later;
            }
            self.starts.remove(at + 1);
        }
    }
}

/// Whole tokens, rounded up.
fn tokens_up(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0).div_ceil(UNIT as u64)
}

#[cfg(test)]
mod tests;
