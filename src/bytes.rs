//! Reading and writing fixed layouts.

/// The next `N` bytes; `None` if there are fewer.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

/// The next little-endian number.
#[inline(never)] // small, and called from very many places
pub(crate) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

/// Appends numbers, little-endian.
#[inline(never)]
pub(crate) fn put(bytes: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
}
