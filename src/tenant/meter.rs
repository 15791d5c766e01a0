//! What a pool's rate lets through: a plain bucket, whose refunds come back in
//! full. A promise is kept for every window by nested buckets, which lose refunds
//! to long requests that overlap; what a pool can do is no promise, and must not
//! stay idle.

use super::bucket::{Law, UNIT};
use crate::time::{Instant, Span};

/// The state of a pool's rate; a new one is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meter {
    /// Charges less refill, never negative.
    charged: i64,
    at: Instant,
}

impl Meter {
    fn advance(&mut self, law: &Law, now: Instant) {
        let refill = law.refill(now.since(self.at));
        if refill > 0 {
            self.charged = self.charged.saturating_sub(refill).max(0);
            self.at = self.at.max(now);
        }
    }

    /// Tokens that are left; negative if more was charged than there was.
    pub(super) fn level(&mut self, law: &Law, now: Instant) -> i64 {
        self.advance(law, now);
        Law::units(law.burst).saturating_sub(self.charged).div_euclid(UNIT)
    }

    /// Whether so many tokens are left, or it is full: else for how long not.
    pub(super) fn check(&mut self, law: &Law, now: Instant, tokens: u64) -> Result<(), Span> {
        self.advance(law, now);
        let need = Law::units(tokens.min(law.burst));
        let lacks = self.charged.saturating_add(need).saturating_sub(Law::units(law.burst));
        if lacks <= 0 { Ok(()) } else { Err(law.time_for(lacks).unwrap_or(Span::from_secs(1))) }
    }

    /// Charges so many tokens; below the law's floor nothing more is owed.
    pub(super) fn charge(&mut self, law: &Law, now: Instant, tokens: u64) {
        self.advance(law, now);
        let most = Law::units(law.burst).saturating_add(Law::units(law.floor));
        self.charged = self.charged.saturating_add(Law::units(tokens)).min(most);
    }

    /// Puts what was really used in place of what was charged.
    pub(super) fn correct(&mut self, charged: u64, actual: u64) {
        let less = Law::units(charged).saturating_sub(Law::units(actual));
        self.charged = self.charged.saturating_sub(less).max(0);
    }

    pub(super) fn encode(self) -> [u64; 2] {
        [self.charged.cast_unsigned(), self.at.as_nanos()]
    }

    pub(super) fn decode([charged, at]: [u64; 2]) -> Self {
        Self { charged: charged.cast_signed().max(0), at: Instant::from_nanos(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn what_was_not_used_comes_back_and_no_more() {
        let (law, mut meter) = (Law::per_second(100, 1000, 500), Meter::default());
        assert_eq!((meter.level(&law, at(0)), meter.check(&law, at(0), 1000)), (1000, Ok(())));
        meter.charge(&law, at(0), 900);
        assert_eq!(meter.check(&law, at(0), 300), Err(Span::from_secs(2)));
        // What is larger than the burst passes when it is full.
        assert_eq!(meter.check(&law, at(0), 9000), Err(Span::from_secs(9)));
        meter.correct(900, 100);
        assert_eq!(meter.level(&law, at(1000)), 1000);
        meter.correct(5000, 0);
        assert_eq!(meter.level(&law, at(1000)), 1000);
        // More than was charged, down to the floor.
        meter.charge(&law, at(1000), 10);
        meter.correct(10, 300);
        assert_eq!(meter.level(&law, at(1000)), 700);
        meter.charge(&law, at(1000), 9000);
        assert_eq!(meter.level(&law, at(1000)), -500);
        assert_eq!(Meter::decode(meter.encode()), meter);
        let none = Law::per_second(0, 10, 0);
        assert_eq!(meter.check(&none, at(9000), 1), Err(Span::from_secs(1)));
    }
}
