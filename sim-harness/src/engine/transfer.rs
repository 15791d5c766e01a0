//! KV blocks on their way from one replica to another.

use super::config::ConfigError;

/// How long that takes. Fetches of one replica (or rank) go one after the
/// other: they share its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Each fetch. Nanoseconds.
    pub latency_ns: u64,
    /// Bytes of KV cache of one token, all layers and heads.
    pub bytes_per_token: u64,
    /// Bytes a second of the link. At least 1.
    pub bytes_per_second: u64,
}

impl Default for Transfer {
    /// Llama-3-8B in bf16 (131,072 bytes a token) over 400 Gbit/s.
    fn default() -> Self {
        Self { latency_ns: 1_000_000, bytes_per_token: 131_072, bytes_per_second: 50_000_000_000 }
    }
}

impl Transfer {
    /// Says which figure is out of range, if any.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.bytes_per_second == 0 {
            let allowed = "at least 1".into();
            return Err(ConfigError { field: "bytes_per_second", value: 0, allowed });
        }
        Ok(())
    }

    /// Nanoseconds for so many tokens.
    pub(super) fn time(self, tokens: u32) -> u64 {
        let bytes = u128::from(self.bytes_per_token) * u128::from(tokens);
        let nanos = bytes * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        self.latency_ns.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
