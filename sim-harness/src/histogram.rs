//! Counts of whole numbers over a wide range in little memory.

/// Bits of a value that its bucket keeps.
const KEPT: u32 = 9;

/// A histogram with buckets of equal relative width: values up to 511 are
/// exact, larger ones are kept to within 0.2 %. At most 0.25 MB, however many
/// values. Sum and extremes are exact. Merging is exact and in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

fn bucket(value: u64) -> usize {
    // How far to shift so that the kept bits are left.
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(KEPT);
    ((u64::from(shift) << (KEPT - 1)) + (value >> shift)) as usize
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let half = 1 << (KEPT - 1);
    let shift = (bucket / half).saturating_sub(1);
    let low = (bucket - shift * half) << shift;
    low + (1 << shift) / 2
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        let at = bucket(value);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(at) {
            *count += 1;
        }
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Adds all values of another one.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 when there are none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The greatest; 0 when there are none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value at the nearest rank of a share, 0 to 1; 0 when there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let rank = rank.clamp(1, self.count.max(1));
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(at).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_near_and_merging_changes_nothing(
            values in prop::collection::vec((0u32..64, any::<u64>()), 1..200),
            share in 0.0..1.0f64,
        ) {
            let mut values: Vec<u64> = values.into_iter().map(|(s, v)| v >> s).collect();
            let (mut whole, mut left, mut right) =
                (Histogram::default(), Histogram::default(), Histogram::default());
            for (nth, &value) in values.iter().enumerate() {
                whole.add(value);
                if nth % 3 == 0 { left.add(value) } else { right.add(value) }
            }
            right.merge(&left);
            prop_assert_eq!(&whole, &right);
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let found = whole.quantile(share);
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 * 0.002, "{} {}", found, exact);
            prop_assert_eq!(whole.max(), values[values.len() - 1]);
        }
    }
}
