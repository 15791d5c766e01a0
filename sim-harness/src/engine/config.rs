//! vLLM's settings, by their names.

use std::fmt;

/// The settings of one replica, or of each rank of one. Defaults: those of vLLM
/// 0.19 for an API server on an H100-class GPU, with the KV cache of Llama-3-8B
/// in bf16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sequences in one batch, at most. At least 1.
    pub max_num_seqs: u32,
    /// Tokens in one step, at most. At least 1.
    pub max_num_batched_tokens: u32,
    /// Tokens of one KV block. At least 1.
    pub block_size: u32,
    /// KV blocks as vLLM reports them at its start. It keeps one of them for
    /// itself, so at least 2.
    pub num_gpu_blocks: u32,
    /// Prompt and output tokens of one sequence, at most. One such sequence must
    /// fit into the KV cache, as vLLM demands at its start. At least 2.
    pub max_model_len: u32,
    /// Keep the blocks of past sequences for later ones with the same prefix.
    pub enable_prefix_caching: bool,
    /// Tokens of each block that a job names: a multiple of `block_size`.
    pub prefix_id_tokens: u32,
    /// Cut prompts to what is left of a step's budget. Without, a waiting job
    /// enters only a step that computes all of its prompt, and a prompt longer
    /// than the budget is cut all the same: vLLM would refuse to start.
    pub enable_chunked_prefill: bool,
    /// Prompt tokens of one sequence in one step, at most; 0 is no limit.
    pub long_prefill_token_threshold: u32,
    /// Let a job enter only if its whole input fits into the KV cache, not just
    /// its first chunk. vLLM: on by default since PR 37307 (0.19); before, there
    /// was no such check.
    pub scheduler_reserve_full_isl: bool,
    /// Compose the next step while one runs: it then does not know what the
    /// running one brings. vLLM: on by default since 0.14. A job's first token
    /// then comes at the end of the second step after it was scheduled, as it
    /// does in the measured runs of vLLM 0.19 in `../shared/data/measured`.
    pub async_scheduling: bool,
    /// Tell every token, not only the first and the last of each job.
    pub every_token: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            block_size: 16,
            num_gpu_blocks: 25_001,
            max_model_len: 131_072,
            enable_prefix_caching: true,
            prefix_id_tokens: 16,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            scheduler_reserve_full_isl: true,
            async_scheduling: true,
            every_token: false,
        }
    }
}

/// Which setting is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field of [`Config`].
    pub field: &'static str,
    /// The value found.
    pub value: u64,
    /// What is allowed.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; allowed: {}", self.field, self.value, self.allowed)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Tokens that the KV cache holds.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.num_gpu_blocks.saturating_sub(1)) * u64::from(self.block_size)
    }

    /// Says which setting is out of range, if any.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, value: u32, allowed: &str| {
            Err(ConfigError { field, value: value.into(), allowed: allowed.into() })
        };
        for (field, value, least) in [
            ("max_num_seqs", self.max_num_seqs, 1),
            ("max_num_batched_tokens", self.max_num_batched_tokens, 1),
            ("block_size", self.block_size, 1),
            ("num_gpu_blocks", self.num_gpu_blocks, 2),
            ("max_model_len", self.max_model_len, 2),
        ] {
            if value < least {
                return wrong(field, value, &format!("at least {least}"));
            }
        }
        if self.prefix_id_tokens == 0 || !self.prefix_id_tokens.is_multiple_of(self.block_size) {
            let allowed = format!("a multiple of block_size, {}", self.block_size);
            return wrong("prefix_id_tokens", self.prefix_id_tokens, &allowed);
        }
        if u64::from(self.max_model_len) > self.kv_tokens() {
            let allowed = format!(
                "at most the {} tokens of the KV cache: (num_gpu_blocks - 1) * block_size",
                self.kv_tokens()
            );
            return wrong("max_model_len", self.max_model_len, &allowed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let error = |config: Config| config.check().unwrap_err().to_string();
        let good = Config::default();
        assert_eq!(good.check(), Ok(()));
        let message = error(Config { max_num_seqs: 0, ..good.clone() });
        assert_eq!(message, "max_num_seqs is 0; allowed: at least 1");
        let message = error(Config { prefix_id_tokens: 24, ..good.clone() });
        assert!(message.contains("multiple of block_size, 16"), "{message}");
        let message = error(Config { num_gpu_blocks: 11, ..good });
        assert!(message.contains("max_model_len is 131072; allowed: at most the 160 tokens"));
    }
}
