//! From the name of a block to the first piece that holds it.

use super::table::NONE;

/// An open-addressed map from `u64` to places of a table: linear probing,
/// at most half full, deletion by shifting back.
///
/// The standard map asks the host for randomness, and an ordered one would cost
/// several times as much on the hottest path of long prompts.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: Vec<(u64, u32)>,
    used: usize,
}

impl Index {
    /// Spreads names that count up over the whole table.
    #[inline]
    fn home(&self, name: u64) -> usize {
        let hash = (name ^ (name >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The length is a power of two; its upper bits are the best mixed.
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    fn place(&self, name: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(name);
        loop {
            match self.slots.get(at) {
                Some(&(found, place)) if place != NONE => {
                    if found == name {
                        return Some(at);
                    }
                }
                _ => return None,
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// The first piece of the name.
    #[inline]
    pub(super) fn get(&self, name: u64) -> Option<u32> {
        self.slots.get(self.place(name)?).map(|&(_, place)| place)
    }

    /// Sets the first piece of the name.
    pub(super) fn set(&mut self, name: u64, piece: u32) {
        if let Some(slot) = self.place(name).and_then(|at| self.slots.get_mut(at)) {
            slot.1 = piece;
            return;
        }
        if (self.used + 1) * 2 > self.slots.len() {
            let size = (self.slots.len() * 2).max(64);
            let old = std::mem::replace(&mut self.slots, vec![(0, NONE); size]);
            for (name, piece) in old.into_iter().filter(|&(_, piece)| piece != NONE) {
                self.put(name, piece);
            }
        }
        self.used += 1;
        self.put(name, piece);
    }

    fn put(&mut self, name: u64, piece: u32) {
        let mut at = self.home(name);
        while self.slots.get(at).is_some_and(|slot| slot.1 != NONE) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = (name, piece);
        }
    }

    /// Forgets the name.
    pub(super) fn remove(&mut self, name: u64) {
        let Some(mut hole) = self.place(name) else { return };
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(&(name, piece)) = self.slots.get(at) else { break };
            if piece == NONE {
                break;
            }
            // It may move back to the hole unless its home lies after the hole.
            if (at.wrapping_sub(self.home(name)) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(slot) = self.slots.get_mut(hole) {
                    *slot = (name, piece);
                }
                hole = at;
            }
        }
        if let Some(slot) = self.slots.get_mut(hole) {
            slot.1 = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec((0u64..90, any::<bool>(), 0u32..1_000), 1..600),
        ) {
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            for (name, set, piece) in steps {
                // Names with equal low bits probe past each other.
                let name = name << 40;
                if set {
                    index.set(name, piece);
                    model.insert(name, piece);
                } else {
                    index.remove(name);
                    model.remove(&name);
                }
            }
            for name in 0..90 {
                prop_assert_eq!(index.get(name << 40), model.get(&(name << 40)).copied());
            }
        }
    }
}
