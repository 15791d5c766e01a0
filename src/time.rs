//! Instants and spans in whole nanoseconds.
//!
//! The core has no clock: every driver passes `now`. Arithmetic saturates, so
//! a clock that steps back yields an empty span, never a wrapped one.

use core::ops::Add;

/// A point in time: nanoseconds since an origin that all drivers of one
/// [`Gate`](crate::gate::Gate) share. Never decreasing for one driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// From nanoseconds since the shared origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the shared origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` lies ahead.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Add<Span> for Instant {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// From nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// From whole seconds; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// From whole milliseconds; saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up.
    pub const fn whole_secs(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Seconds, as a float for ratios and reports.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_saturate() {
        let (a, b) = (Instant::from_nanos(5), Instant::from_nanos(9));
        assert_eq!(b.since(a), Span::from_nanos(4));
        assert_eq!(a.since(b), Span::default());
        assert_eq!(
            Instant::from_nanos(u64::MAX) + Span::from_secs(1),
            Instant::from_nanos(u64::MAX)
        );
    }
}
