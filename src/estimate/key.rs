//! Names of models as numbers.

use crate::config::TenantClass;
use std::hash::{BuildHasher, Hasher};

/// What something was learned for: a hash of the model's name and more, the
/// same in every process and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

impl Key {
    /// Of all models together.
    pub const GLOBAL: Self = Self(0);

    /// Of one model, all classes together.
    pub fn model(model: &[u8]) -> Self {
        Self(fnv(FNV_OFFSET, model).max(1))
    }

    /// Of one model's texts of one category.
    #[must_use]
    pub(super) fn category(self, category: u8) -> Self {
        Self(fnv(self.0, &[0xFF, category]).max(1))
    }

    /// Of one model's answers to tenants of one class.
    #[must_use]
    pub fn tenant(self, class: TenantClass) -> Self {
        Self(fnv(self.0, &[0xFE, class as u8]).max(1))
    }
}

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;

/// FNV-1a, 64 bits: <https://www.rfc-editor.org/rfc/rfc9923.html>.
pub(crate) fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// The hash of a byte string, the same in every process and version.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    fnv(FNV_OFFSET, bytes)
}

/// A hasher for keys that are hashes already; fixed, so that every run and
/// every platform iterates alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = fnv(self.0, bytes);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl BuildHasher for KeyHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}
