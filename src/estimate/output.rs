//! How long answers get: a quantile of the output tokens of each model and
//! class of tenants, learned online.
//!
//! Each keeps a histogram with a quarter of an octave to a bucket, which
//! forgets slowly. Histograms of several workers add up.

use super::Key;
use super::table::{Table, Taught};
use crate::time::Instant;

/// Pairs of a model and a class of tenants that one table holds.
pub const OUTPUTS_MAX: usize = 64;
/// Quarters of octaves, from 1 token to 2^20.
const BUCKETS: usize = 80;
/// An answer's weight fades to a third over so many answers.
const MEMORY: f32 = 500.0;
/// The reserve of a model that is not known counts as so many answers, so it
/// stops mattering to the 95th percentile after 38.
const FIRST_WEIGHT: f64 = 2.0;

/// Output tokens of many answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lengths {
    counts: [f32; BUCKETS],
    /// When it was last taught.
    pub(super) taught: Instant,
}

/// The bucket of a number of tokens: its octave and the next two bits.
fn bucket(tokens: u64) -> usize {
    let tokens = tokens.clamp(1, (1 << 20) - 1);
    let octave = tokens.ilog2();
    let quarter = if octave >= 2 { tokens >> (octave - 2) } else { tokens << (2 - octave) };
    (octave as usize) * 4 + (quarter & 3) as usize
}

/// The largest number of tokens in a bucket.
fn upper(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4, bucket as u64 % 4);
    ((5 + quarter) << octave).div_ceil(4) - 1
}

impl Lengths {
    fn new(taught: Instant) -> Self {
        Self { counts: [0.0; BUCKETS], taught }
    }

    fn learn(&mut self, now: Instant, tokens: u64) {
        for count in &mut self.counts {
            *count *= 1.0 - 1.0 / MEMORY;
        }
        if let Some(count) = self.counts.get_mut(bucket(tokens)) {
            *count += 1.0;
        }
        self.taught = now;
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.taught = self.taught.max(other.taught);
    }

    /// The buckets that count something.
    pub(super) fn filled(&self) -> impl Iterator<Item = (u8, f32)> + '_ {
        (0_u8..).zip(self.counts).filter(|(_, count)| *count > 0.0)
    }

    /// From what [`filled`](Self::filled) gave; `None` if it cannot be so.
    pub(super) fn from_filled(
        taught: Instant,
        filled: impl Iterator<Item = (u8, f32)>,
    ) -> Option<Self> {
        let mut lengths = Self::new(taught);
        for (bucket, count) in filled {
            let sane = (0.0..=1e9).contains(&count);
            *lengths.counts.get_mut(usize::from(bucket)).filter(|_| sane)? = count;
        }
        Some(lengths)
    }
}

impl Taught for Lengths {
    fn taught(&self) -> Instant {
        self.taught
    }
}

/// The lengths of every known pair of model and class.
pub(super) type Outputs = Table<Lengths, OUTPUTS_MAX>;

impl Outputs {
    /// Learns that an answer took so many tokens.
    pub(super) fn learn(&mut self, now: Instant, key: Key, tokens: u64) {
        self.open(key, || Lengths::new(now)).learn(now, tokens);
    }

    /// Adds another table.
    pub(super) fn merge(&mut self, other: &Self) {
        for (key, theirs) in other.sorted() {
            match self.get_mut(key) {
                Some(mine) => mine.add(theirs),
                None => self.set(key, theirs.clone()),
            }
        }
    }

    /// The tokens that 95 of 100 answers do not exceed, as these tables know
    /// it together; near `first` as long as they know little.
    pub(super) fn high(tables: [&Self; 2], key: Key, first: u64) -> u64 {
        let known = tables.map(|table| table.get(key));
        let count = |bucket: usize| -> f64 {
            let learned = known.iter().flatten().filter_map(|lengths| lengths.counts.get(bucket));
            learned.map(|count| f64::from(*count)).sum()
        };
        let mut counts = [0.0; BUCKETS];
        for (at, slot) in counts.iter_mut().enumerate() {
            *slot = count(at);
        }
        if let Some(slot) = counts.get_mut(bucket(first)) {
            *slot += FIRST_WEIGHT;
        }
        let mut left = counts.iter().sum::<f64>() * 0.95;
        for (at, count) in counts.iter().enumerate() {
            left -= count;
            if left <= 0.0 {
                // With nothing learned this is `first` itself.
                return if at == bucket(first) { upper(at).min(first) } else { upper(at) };
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;
    use proptest::prelude::*;

    fn at(second: u64) -> Instant {
        Instant::default() + Span::from_secs(second)
    }

    fn high(outputs: &Outputs, first: u64) -> u64 {
        Outputs::high([outputs, &Outputs::default()], Key(1), first)
    }

    #[test]
    fn the_first_reserve_fades_and_the_quantile_follows() {
        let mut outputs = Outputs::default();
        assert_eq!(high(&outputs, 1000), 1000);
        for n in 0..40 {
            outputs.learn(at(n), Key(1), 100);
        }
        assert!((100..128).contains(&high(&outputs, 1000)), "{}", high(&outputs, 1000));
        // One answer of ten is long.
        for n in 0..500 {
            outputs.learn(at(n), Key(1), if n % 10 == 0 { 3000 } else { 100 });
        }
        assert!((3000..3600).contains(&high(&outputs, 1000)), "{}", high(&outputs, 1000));
        // And it forgets.
        for n in 0..3000 {
            outputs.learn(at(n), Key(1), 50);
        }
        assert!(high(&outputs, 1000) < 64);
        assert_eq!(Outputs::high([&outputs, &outputs], Key(2), 77), 77, "another pair");
    }

    #[test]
    fn a_full_table_drops_what_is_stale() {
        let mut outputs = Outputs::default();
        for n in 0..=OUTPUTS_MAX as u64 {
            outputs.learn(at(n), Key(n), 10);
        }
        assert_eq!(outputs.sorted().len(), OUTPUTS_MAX);
        assert!(outputs.get(Key(0)).is_none());
    }

    #[test]
    fn bounds_of_buckets() {
        let mut last = 0;
        for tokens in 1..5000 {
            let at = bucket(tokens);
            assert!(at >= last && upper(at) >= tokens, "{tokens}: {at} to {}", upper(at));
            assert!(upper(at) as f64 <= tokens as f64 * 1.25 + 1.0, "{tokens}");
            last = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn tables_add_up(answers in prop::collection::vec((0_u64..3, 0_u64..1 << 40), 0..60)) {
            let (mut a, mut b) = (Outputs::default(), Outputs::default());
            for (n, (key, tokens)) in answers.iter().enumerate() {
                if n % 2 == 0 { &mut a } else { &mut b }.learn(at(n as u64), Key(*key), *tokens);
            }
            let (mut ab, mut ba) = (a.clone(), b.clone());
            ab.merge(&b);
            ba.merge(&a);
            prop_assert_eq!(&ab, &ba);
            let apart = Outputs::high([&a, &b], Key(1), 500);
            let together = Outputs::high([&ab, &Outputs::default()], Key(1), 500);
            prop_assert_eq!(bucket(apart), bucket(together));
        }
    }
}
