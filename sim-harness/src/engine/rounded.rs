//! A step time that is asked less often.

use std::cell::Cell;

use super::{StepTime, Work};

/// Prices decode-only steps with their contexts rounded, and remembers the last
/// price: a stretch of such steps asks the model once in sixteen steps or less.
///
/// Mean and longest context are rounded to the nearest multiple of 1/64 to 1/128
/// of themselves: by at most 0.8 %, up as often as down. Other steps are priced
/// as they are. Equal work still takes equal time, whatever came before. A model
/// that costs less than a few dozen nanoseconds a step needs none of this.
#[derive(Clone, Debug)]
pub struct Rounded<T> {
    model: T,
    last: Cell<(Key, u64)>,
}

/// Sequences, their contexts' sum and the longest, rounded, and new ones.
type Key = (u32, u64, u32, u32);

impl<T> Rounded<T> {
    /// Asks `model`.
    pub fn new(model: T) -> Self {
        // No work has no sequences: nothing finds this.
        Self { model, last: Cell::new(((0, 0, 0, 0), 0)) }
    }
}

/// What a context is a multiple of.
fn grain(context: u64) -> u64 {
    let power = 1 << context.max(1).ilog2();
    (power / 64u64).max(1)
}

impl<T: StepTime> StepTime for Rounded<T> {
    fn step(&self, work: &Work<'_>) -> u64 {
        if work.decode == 0 || !work.prefill.is_empty() {
            return self.model.step(work);
        }
        let count = u64::from(work.decode);
        let unit = grain(work.decode_context / count) * count;
        let context = (work.decode_context + unit / 2) / unit * unit;
        let longest = u64::from(work.decode_context_max);
        let unit = grain(longest);
        let longest = ((longest + unit / 2) / unit * unit) as u32;
        let key = (work.decode, context, longest, work.admitted);
        let (known, time) = self.last.get();
        if known == key {
            return time;
        }
        let rounded = Work { decode_context: context, decode_context_max: longest, ..*work };
        let time = self.model.step(&rounded);
        self.last.set((key, time));
        time
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        self.model.together(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Chunk, Linear};

    /// Counts how often it is asked.
    struct Counting(Linear, Cell<u32>);

    impl StepTime for Counting {
        fn step(&self, work: &Work<'_>) -> u64 {
            self.1.set(self.1.get() + 1);
            self.0.step(work)
        }
    }

    #[test]
    fn a_stretch_asks_seldom_and_is_off_by_little() {
        let plain = Linear { step_ns: 1, ..Linear::default() };
        let rounded = Rounded::new(Counting(plain, Cell::new(0)));
        let (mut exact, mut found) = (0, 0);
        for step in 0..1_600u64 {
            let decode_context = 30 * (1_024 + step);
            let decode_context_max = 2_048 + step as u32;
            let work = Work { decode: 30, decode_context, decode_context_max, ..Work::default() };
            let (one, other) = (plain.step(&work), rounded.step(&work));
            assert!(one.abs_diff(other) * 100 < one, "{one} {other}");
            exact += one;
            found += other;
        }
        assert!(exact.abs_diff(found) * 2_000 < exact, "{exact} {found}");
        let asked = rounded.model.1.get();
        assert!(asked <= 200, "{asked}");
        // What came before changes nothing, and prompts are priced exactly.
        let work = Work { decode: 30, decode_context: 30 * 1_500, ..Work::default() };
        let fresh = Rounded::new(plain).step(&work);
        assert_eq!(rounded.step(&work), fresh);
        let prefill = [Chunk { new: 7, context: 1_003 }];
        let mixed = Work { prefill: &prefill, decode_context: 30 * 1_501, ..work };
        assert_eq!(rounded.step(&mixed), plain.step(&mixed));
    }
}
