//! A bounded table of what was learned, by key.

use super::{Key, KeyHasher};
use crate::time::Instant;
use hashbrown::HashMap;

/// What can stand in a [`Table`].
pub(super) trait Taught {
    /// When it was last taught.
    fn taught(&self) -> Instant;
}

/// At most `MAX` values by key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table<T, const MAX: usize>(HashMap<Key, T, KeyHasher>);

impl<T, const MAX: usize> Default for Table<T, MAX> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T: Taught, const MAX: usize> Table<T, MAX> {
    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.0.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.0.get_mut(&key)
    }

    /// Whether a value can be set without another making place for it, in a
    /// table of at most `max`.
    pub(super) fn has_place(&self, key: Key, max: usize) -> bool {
        self.0.len() < max.min(MAX) || self.0.contains_key(&key)
    }

    /// Sets a value, if there is place.
    pub(super) fn set(&mut self, key: Key, value: T) {
        if self.has_place(key, MAX) {
            self.0.insert(key, value);
        }
    }

    pub(super) fn remove(&mut self, key: Key) {
        self.0.remove(&key);
    }

    /// The value that was taught the longest time ago.
    pub(super) fn oldest(&self) -> Option<(Instant, Key)> {
        self.0.iter().map(|(key, value)| (value.taught(), *key)).min()
    }

    /// Makes place for a key: drops the oldest value if the table is full, and
    /// returns its key.
    pub(super) fn make_place(&mut self, key: Key) -> Option<Key> {
        if self.has_place(key, MAX) {
            return None;
        }
        let (_, oldest) = self.oldest()?;
        self.remove(oldest);
        Some(oldest)
    }

    /// The value of a key, made if it is not there; the oldest makes place.
    pub(super) fn open(&mut self, key: Key, make: impl FnOnce() -> T) -> &mut T {
        self.make_place(key);
        self.0.entry(key).or_insert_with(make)
    }

    /// All values in the order of their keys.
    pub(super) fn sorted(&self) -> Vec<(Key, &T)> {
        let mut all: Vec<_> = self.0.iter().map(|(key, value)| (*key, value)).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    impl Taught for u64 {
        fn taught(&self) -> Instant {
            Instant::default() + Span::from_secs(*self)
        }
    }

    #[test]
    fn a_full_table_takes_a_new_key_only_for_the_oldest() {
        let mut table = Table::<u64, 3>::default();
        for (key, taught) in [(7, 2), (8, 1), (9, 3)] {
            table.set(Key(key), taught);
        }
        table.set(Key(1), 9);
        assert_eq!(table.sorted(), [(Key(7), &2), (Key(8), &1), (Key(9), &3)], "no place");
        table.set(Key(9), 4);
        assert_eq!(table.make_place(Key(9)), None, "it is there");
        assert_eq!(*table.open(Key(1), || 5), 5);
        assert_eq!(table.sorted(), [(Key(1), &5), (Key(7), &2), (Key(9), &4)]);
        table.remove(Key(7));
        assert!(table.has_place(Key(2), 3) && table.has_place(Key(2), 9));
        assert!(!table.has_place(Key(2), 2) && table.has_place(Key(1), 2));
    }
}
