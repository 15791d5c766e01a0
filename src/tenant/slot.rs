//! The slots of tenants and pools: their names, what stands at their head, and
//! how they are changed.

use crate::bytes::{take, take_u64};
use crate::share::{Slots, Updated};

/// Part of the slots' names as well, so that builds of different layouts do not
/// touch each other's.
const LAYOUT: u32 = 5;

/// The head of the slot of the thing whose full name has this hash.
pub(super) fn head(magic: [u8; 4], key: u64) -> Vec<u8> {
    // Room for the usual: growing costs more than the numbers do.
    let mut bytes = Vec::with_capacity(512);
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

/// What a slot holds.
pub(super) trait Content: Sized {
    /// What it is, in the slot's name.
    const KIND: &str;
    fn decode(key: u64, bytes: &[u8]) -> Option<Self>;
    fn encode(&self, key: u64) -> Vec<u8>;
}

/// Runs a change on a slot's content; it says whether it changed. A slot that is
/// not there, or not to be read, is none that is full. One function for each
/// content: the changes differ, and the module is to be small.
#[inline(never)]
pub(super) fn change<C: Content>(
    slots: &mut dyn Slots,
    instance: u64,
    key: u64,
    change: &mut dyn FnMut(&mut C) -> bool,
) -> Updated {
    let mut found = true;
    let updated = slots.update(&name::<C>(instance, key), &mut |bytes| {
        let content = bytes.and_then(|bytes| C::decode(key, bytes));
        found = content.is_some();
        let mut content = content?;
        change(&mut content).then(|| content.encode(key))
    });
    if found { updated } else { Updated::Failed }
}

/// Makes a slot, if it is not there. To be called while nobody serves: what is not
/// there cannot be compared with.
pub(super) fn make<C: Content + Default>(slots: &mut dyn Slots, instance: u64, key: u64) {
    slots.update(&name::<C>(instance, key), &mut |bytes| match bytes {
        Some(bytes) if C::decode(key, bytes).is_some() => None,
        _ => Some(C::default().encode(key)),
    });
}

/// As `format!("tidegate.{LAYOUT}.{instance:016x}.{KIND}.{key:016x}")`, which takes
/// four times as long, on each look.
fn name<C: Content>(instance: u64, key: u64) -> String {
    let mut name = String::with_capacity(64);
    name.push_str("tidegate.");
    name.extend(char::from_digit(LAYOUT, 10));
    name.push('.');
    hex(&mut name, instance);
    name.push('.');
    name.push_str(C::KIND);
    name.push('.');
    hex(&mut name, key);
    name
}

fn hex(text: &mut String, number: u64) {
    let digit = |place: usize| DIGITS.get((number >> (60 - 4 * place)) as usize & 0xF);
    let digits: [u8; 16] = core::array::from_fn(|place| digit(place).copied().unwrap_or_default());
    text.push_str(str::from_utf8(&digits).unwrap_or_default());
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::pool::PoolAccount;

    #[test]
    fn names_are_as_they_were() {
        let (instance, key) = (0x0123_4567_89ab_cdef, 0xf0);
        let kind = PoolAccount::KIND;
        let expected = format!("tidegate.{LAYOUT}.{instance:016x}.{kind}.{key:016x}");
        assert_eq!(name::<PoolAccount>(instance, key), expected);
    }
}
