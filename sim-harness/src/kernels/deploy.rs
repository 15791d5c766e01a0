//! How a model is laid out over GPUs, and how much KV cache that leaves.

use std::fmt;

use super::{Architecture, Precision};

/// One model on the GPUs of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// What is served.
    pub model: &'static Architecture,
    /// GPUs that split every layer.
    pub tp: u32,
    /// GPUs that share the routed experts out; 1 splits each expert by `tp`.
    pub ep: u32,
    /// Replicas of the attention, each with its own requests, whose experts are
    /// shared. Each has `tp` GPUs.
    pub dp: u32,
    /// How weights are stored and multiplied. Embedding and head stay bfloat16.
    pub weights: Precision,
    /// How keys and values are stored.
    pub kv: Precision,
}

/// A layout that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    field: &'static str,
    found: u32,
    allowed: String,
}

impl LayoutError {
    /// `tp`, `dp` or `ep`.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}; allowed: {}", self.field, self.found, self.allowed)
    }
}

impl std::error::Error for LayoutError {}

/// What the engine keeps of a GPU's memory besides weights and KV cache.
///
/// The shares are the formula of `docs/validation.md`: the driver's part of the
/// data sheet's memory, the CUDA context, the communicator, and the activations
/// of the largest step. A measured block count is always better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// The data sheet's memory of one GPU, in bytes.
    pub bytes: f64,
    /// The engine's share of it (`gpu_memory_utilization`), above 0, at most 1.
    pub utilization: f64,
    /// The largest step, in tokens (`max_num_batched_tokens`).
    pub batched_tokens: u32,
    /// Sequences in one step (`max_num_seqs`).
    pub seats: u32,
    /// Tokens of a block.
    pub block: u32,
}

/// Share of the data sheet's memory that a process can see: an 80 GiB H100 shows
/// 79.1 GiB, a 24 GiB RTX 4090 23.5 GiB.
const VISIBLE: f64 = 0.985;
/// Bytes of the CUDA context and loaded kernels.
const CONTEXT: f64 = 0.35e9;
/// Bytes of the communicator's buffers, where GPUs work together.
const COMMUNICATOR: f64 = 0.35e9;

impl Deployment {
    /// A model on `tp` GPUs that share nothing else, in bfloat16.
    pub fn new(model: &'static Architecture, tp: u32) -> Self {
        let (weights, kv) = (Precision::Bf16, Precision::Bf16);
        Self { model, tp, ep: 1, dp: 1, weights, kv }
    }

    /// Whether the model can be split so.
    pub fn check(&self) -> Result<(), LayoutError> {
        let wrong = |field, found, allowed: String| Err(LayoutError { field, found, allowed });
        if self.tp == 0 || !self.model.heads.is_multiple_of(self.tp) {
            let allowed = format!("a divisor of the {} query heads", self.model.heads);
            return wrong("tp", self.tp, allowed);
        }
        if self.dp == 0 {
            return wrong("dp", self.dp, "1 or more".into());
        }
        let experts = self.model.experts.map_or(1, |experts| experts.count);
        if self.ep == 0 || !experts.is_multiple_of(self.ep) {
            return wrong("ep", self.ep, format!("a divisor of the {experts} experts"));
        }
        Ok(())
    }

    /// Bytes of weights on one GPU.
    pub fn weight_bytes(&self) -> f64 {
        let model = self.model;
        let each = self.weights.bytes() as f64;
        let tp = f64::from(self.tp);
        // Experts are either shared out or split; never more GPUs than there are.
        let experts_over = f64::from(self.ep.max(self.tp));
        let experts = (u64::from(model.expert_layers()) * model.expert_parameters()) as f64;
        let dense = model.dense_parameters() as f64 / tp;
        let vocabulary = 2.0 * model.vocabulary_parameters() as f64 / tp;
        (dense + experts / experts_over) * each + vocabulary
    }

    /// Bytes of keys and values of one token on one GPU.
    pub fn kv_bytes_per_token(&self) -> u64 {
        u64::from(self.model.layers) * self.model.kv_elements(self.tp) * self.kv.bytes()
    }

    /// KV blocks of one attention replica. 0 when the weights leave nothing.
    pub fn kv_blocks(&self, memory: &Memory) -> u32 {
        let tp = f64::from(self.tp);
        let model = self.model;
        let width = match model.experts {
            // A token's copies for its experts, one projection at a time.
            Some(e) => f64::from(e.topk * e.intermediate) / f64::from(self.ep.max(self.tp)),
            None => f64::from(model.intermediate) / tp,
        };
        // Gate and up, their product, and four vectors of the model's width.
        let a_token = 2.0 * (3.0 * width + 4.0 * f64::from(model.hidden));
        // Logits of a full batch in 32 bits, and one working copy.
        let logits = 8.0 * f64::from(memory.seats) * f64::from(model.vocab);
        let activations = a_token * f64::from(memory.batched_tokens) + logits;
        let communicator = if self.tp * self.dp > 1 { COMMUNICATOR } else { 0.0 };
        let usable = memory.bytes * VISIBLE * memory.utilization;
        let left = usable - self.weight_bytes() - activations - CONTEXT - communicator;
        let block = (u64::from(memory.block) * self.kv_bytes_per_token()) as f64;
        (left / block).max(0.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(mut deployment: Deployment, fp8: bool, bytes: f64, tokens: u32, seats: u32) -> u32 {
        if fp8 {
            deployment.weights = Precision::Fp8;
        }
        let (utilization, block) = (0.9, 16);
        deployment.kv_blocks(&Memory { bytes, utilization, batched_tokens: tokens, seats, block })
    }

    #[test]
    fn computed_blocks_are_near_what_engines_report() {
        // vLLM 0.19 on an RTX 4090, Llama-3.1-8B: 2,588 blocks.
        let llama = Deployment::new(Architecture::find("Llama-3.1-8B").unwrap(), 1);
        let found = blocks(llama, false, 24.0 * 1_073_741_824.0, 2_048, 256);
        assert!((2_450..2_850).contains(&found), "{found}");
        // What is larger than the GPU leaves nothing.
        let large = Deployment::new(Architecture::find("Llama-3.1-70B").unwrap(), 1);
        assert_eq!(blocks(large, false, 85.9e9, 2_048, 256), 0);
    }

    #[test]
    fn experts_are_shared_out_or_split_but_not_both() {
        let model = Architecture::find("Qwen3-30B-A3B").unwrap();
        let one = Deployment::new(model, 1);
        let split = Deployment { tp: 2, ..one };
        let shared = Deployment { dp: 2, ep: 2, ..one };
        let bytes = [one, split, shared].map(|d| d.weight_bytes());
        assert!((bytes[0] - 2.0 * 30.53e9).abs() < 0.05e9, "{bytes:?}");
        assert!((bytes[1] / bytes[0] - 0.5).abs() < 1e-9);
        // The attention is copied, the experts are halved.
        assert!(bytes[2] > bytes[1] && bytes[2] < 0.55 * bytes[0]);
    }

    #[test]
    fn a_split_that_cannot_be_is_told() {
        let dense = Deployment::new(Architecture::find("Llama-3.1-8B").unwrap(), 3);
        let error = dense.check().unwrap_err().to_string();
        assert!(error.contains("tp: found 3") && error.contains("32 query heads"), "{error}");
        assert!(Deployment { tp: 8, ..dense }.check().is_ok());
        assert!(Deployment { tp: 8, ep: 2, ..dense }.check().is_err());
    }
}
