//! Something counted over time, in a bounded number of slots.

/// Slots of a timeline, at most.
const SLOTS: usize = 240;

/// What a slot holds: two can be made one.
pub(super) trait Slot: Clone + Default {
    /// Adds all of another one.
    fn add(&mut self, other: &Self);
}

/// Slots of equal width from 0 on. When time goes beyond the last one, two
/// become one each, and all are twice as wide.
#[derive(Clone, Debug)]
pub(super) struct Timeline<T> {
    width: u64,
    slots: Vec<T>,
}

impl<T: Slot> Timeline<T> {
    /// For about so many nanoseconds: half of the slots, as runs go on for a
    /// while after their sources have ended.
    pub(super) fn new(expected: u64) -> Self {
        Self { width: (expected / (SLOTS as u64 / 2)).max(1), slots: Vec::new() }
    }

    /// How wide a slot is. Nanoseconds.
    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// Makes slots at least so wide, by doubling.
    pub(super) fn widen(&mut self, width: u64) {
        while self.width < width {
            self.double();
        }
    }

    fn double(&mut self) {
        self.width = self.width.saturating_mul(2);
        let pairs = self.slots.chunks(2).map(|pair| {
            let mut sum = T::default();
            for slot in pair {
                sum.add(slot);
            }
            sum
        });
        self.slots = pairs.collect();
    }

    /// Changes the slot of an instant.
    pub(super) fn at(&mut self, time: u64, change: impl FnOnce(&mut T)) {
        while time / self.width >= SLOTS as u64 {
            self.double();
        }
        let place = (time / self.width) as usize;
        if place >= self.slots.len() {
            self.slots.resize(place + 1, T::default());
        }
        if let Some(slot) = self.slots.get_mut(place) {
            change(slot);
        }
    }

    /// Changes each slot that a span touches, with how many of its nanoseconds
    /// are there.
    pub(super) fn over(&mut self, start: u64, end: u64, mut change: impl FnMut(&mut T, u64)) {
        let mut from = start;
        while from < end {
            // The slot's width is known once there is a slot.
            self.at(from, |_| {});
            let to = ((from / self.width + 1).saturating_mul(self.width)).min(end);
            self.at(from, |slot| change(slot, to - from));
            from = to;
        }
    }

    /// All of them, from the first on.
    pub(super) fn slots(&self) -> &[T] {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Sum(u64);

    impl Slot for Sum {
        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }
    }

    proptest! {
        /// Nothing is lost and all is where it was, however far time goes.
        #[test]
        fn doubling_keeps_what_was_counted(
            spans in prop::collection::vec((0u64..1 << 40, 0u64..1 << 12, 0u32..30), 1..50),
            expected in 0u64..10_000,
        ) {
            let mut line = Timeline::<Sum>::new(expected);
            let spans: Vec<(u64, u64)> = spans.into_iter().map(|(t, d, s)| (t >> s, d)).collect();
            for &(start, length) in &spans {
                line.over(start, start + length, |slot, nanos| slot.0 += nanos);
            }
            prop_assert!(line.slots().len() <= SLOTS);
            for (nth, slot) in line.slots().iter().enumerate() {
                let (low, high) = (nth as u64 * line.width(), (nth as u64 + 1) * line.width());
                let within = |&(start, length): &(u64, u64)| {
                    (start + length).min(high).saturating_sub(start.max(low))
                };
                prop_assert_eq!(slot.0, spans.iter().map(within).sum::<u64>());
            }
        }
    }
}
