//! A replica's own time, which may run faster or slower than ours.

use std::time::{Duration, Instant};

/// Nanoseconds of an engine, from its start, against the real clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// When the rate was set,
    real: Instant,
    /// and what time it was then for the engine.
    engine: u64,
    /// Engine seconds in a real one; 0 stands still.
    rate: f64,
}

/// Longest wait that is asked for: a timer must be able to hold it.
const LONGEST: Duration = Duration::from_hours(24);

impl Clock {
    pub(super) fn new(real: Instant, rate: f64) -> Self {
        Self { real, engine: 0, rate }
    }

    /// The engine's time.
    pub(super) fn at(&self, real: Instant) -> u64 {
        let passed = real.saturating_duration_since(self.real).as_nanos() as f64 * self.rate;
        self.engine.saturating_add(passed as u64)
    }

    /// When it is that time for the engine; nothing while it stands still.
    pub(super) fn when(&self, engine: u64) -> Option<Instant> {
        if self.rate <= 0.0 {
            return None;
        }
        // Rounded up: who comes then must not be early.
        let nanos = engine.saturating_sub(self.engine) as f64 / self.rate + 1.0;
        Some(self.real + Duration::from_nanos(nanos as u64).min(LONGEST))
    }

    /// Goes on from now at another rate.
    pub(super) fn set_rate(&mut self, real: Instant, rate: f64) {
        *self = Self { engine: self.at(real), real, rate };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_at_its_rate_and_never_back() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::new(start, 10.0);
        assert_eq!(clock.at(after(5)), 50_000_000);
        clock.set_rate(after(5), 0.0);
        assert_eq!(clock.at(after(500)), 50_000_000);
        assert_eq!(clock.when(50_000_001), None);
        clock.set_rate(after(500), 0.5);
        assert_eq!(clock.at(after(504)), 52_000_000);
        let when = clock.when(51_000_000).unwrap();
        assert!(clock.at(when) >= 51_000_000 && when <= after(503), "{when:?}");
        // What is past is due at once.
        assert!(clock.when(1).unwrap() <= after(501));
    }
}
