//! A vector with numbered, reusable places.

/// Places numbered by `u32`. A number out of range reads a default and never
/// panics: there is none, but the compiler cannot know.
#[derive(Debug, Default)]
pub(super) struct Table<T> {
    items: Vec<T>,
    free: Vec<u32>,
    none: T,
}

/// No place.
pub(super) const NONE: u32 = u32::MAX;

impl<T: Default> Table<T> {
    /// Puts an item into a free place.
    pub(super) fn add(&mut self, item: T) -> u32 {
        if let Some(place) = self.free.pop() {
            *self.at_mut(place) = item;
            return place;
        }
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    /// Takes a free place without touching what is left in it.
    pub(super) fn reuse(&mut self) -> u32 {
        match self.free.pop() {
            Some(place) => place,
            None => self.add(T::default()),
        }
    }

    /// Frees a place; its item stays until the place is used again.
    pub(super) fn release(&mut self, place: u32) {
        self.free.push(place);
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> &T {
        debug_assert!((place as usize) < self.items.len(), "no place {place}");
        self.items.get(place as usize).unwrap_or(&self.none)
    }

    #[inline]
    pub(super) fn at_mut(&mut self, place: u32) -> &mut T {
        debug_assert!((place as usize) < self.items.len(), "no place {place}");
        match self.items.get_mut(place as usize) {
            Some(item) => item,
            None => &mut self.none,
        }
    }

    pub(super) fn get(&self, place: u32) -> Option<&T> {
        self.items.get(place as usize)
    }
}
