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
    /// Names that count up stay together, sixteen by sixteen, as they are used;
    /// the groups are spread over the whole table.
    #[inline]
    fn home(&self, name: u64) -> usize {
        let group = name >> 4;
        let hash = (group ^ (group >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The length is a power of two; the product's upper bits are mixed best.
        ((hash >> 32 << 4) | (name & 15)) as usize & (self.slots.len() - 1)
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

    /// Gives the first piece of the name, or sets it where there is none.
    pub(super) fn get_or_set(&mut self, name: u64, piece: u32) -> Option<u32> {
        if (self.used + 1) * 2 > self.slots.len() {
            let size = (self.slots.len() * 2).max(64);
            let old = std::mem::replace(&mut self.slots, vec![(0, NONE); size]);
            for (name, piece) in old.into_iter().filter(|&(_, piece)| piece != NONE) {
                self.put(name, piece);
            }
        }
        let mut at = self.home(name);
        loop {
            match self.slots.get_mut(at) {
                Some(&mut (found, place)) if place != NONE => {
                    if found == name {
                        return Some(place);
                    }
                }
                Some(slot) => {
                    *slot = (name, piece);
                    self.used += 1;
                    return None;
                }
                None => return None,
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Sets the first piece of a name that is there from `old` to `new`, none
    /// for [`NONE`]. Gives what it was when it was not `old`.
    pub(super) fn replace(&mut self, name: u64, old: u32, new: u32) -> Option<u32> {
        let at = self.place(name)?;
        let slot = self.slots.get_mut(at)?;
        if slot.1 != old {
            return Some(slot.1);
        }
        if new == NONE {
            self.close(at);
        } else {
            slot.1 = new;
        }
        None
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

    /// Empties a slot; those behind it move up.
    fn close(&mut self, mut hole: usize) {
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
            steps in prop::collection::vec((0u64..90, 0u8..3, 0u32..3), 1..600),
            shift in prop_oneof![Just(0), Just(4), Just(40)],
        ) {
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            for (name, what, piece) in steps {
                // Names with equal low bits probe past each other.
                let name = name << shift;
                let there = model.get(&name).copied();
                if what == 0 {
                    prop_assert_eq!(index.get_or_set(name, piece), there);
                    model.entry(name).or_insert(piece);
                    continue;
                }
                let new = if what == 1 { NONE } else { piece + 1 };
                let other = there.filter(|&there| there != piece);
                prop_assert_eq!(index.replace(name, piece, new), other);
                if there == Some(piece) {
                    model.remove(&name);
                    if new != NONE {
                        model.insert(name, new);
                    }
                }
            }
            for name in 0..90 {
                prop_assert_eq!(index.get(name << shift), model.get(&(name << shift)).copied());
            }
        }
    }
}
