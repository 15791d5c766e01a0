//! What stands at the head of every slot: what it is, in which layout, whose.

use crate::bytes::{take, take_u64};

/// Part of the slots' names as well, so that builds of different layouts do not
/// touch each other's.
pub(super) const LAYOUT: u32 = 2;

/// The head of the slot of the thing whose full name has this hash.
pub(super) fn head(magic: [u8; 4], key: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(magic);
    bytes.extend(LAYOUT.to_le_bytes());
    bytes.extend(key.to_le_bytes());
    bytes
}

/// What follows the head; `None` if the slot is not that thing's in this layout.
pub(super) fn body(magic: [u8; 4], key: u64, mut bytes: &[u8]) -> Option<&[u8]> {
    let rest = &mut bytes;
    let known =
        take(rest)? == magic && u32::from_le_bytes(take(rest)?) == LAYOUT && take_u64(rest)? == key;
    known.then_some(bytes)
}
