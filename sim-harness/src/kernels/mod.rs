//! How long a GPU takes: kernels, steps, and the GPUs and models they run on.
//!
//! A step is a sum of kernels ([`Kernels`]) plus what the host adds. The same
//! composition prices measured tables, fitted models and a plain roofline.

mod architecture;
mod attention;
mod comm;
pub(crate) mod csv;
mod deploy;
mod elementwise;
mod fit;
mod form;
mod forward;
mod gemm;
pub mod gpu;
mod grid;
mod host;
mod layerwise;
mod link;
mod measured;
mod model;
mod moe;
mod price;
mod roofline;
pub mod score;
mod search;
mod step;
mod store;
mod sweep;
mod trees;

pub use architecture::{Architecture, Experts, Latent, MODELS, UnknownModel};
pub use csv::CsvError;
pub use deploy::{Deployment, LayoutError, Memory};
pub use fit::{Effort, Fit};
pub use forward::{Breakdown, Composed, Forward, IN_PROMPT_KERNEL};
pub use gpu::Gpu;
pub use host::HostTime;
pub use layerwise::{LayerFiles, LayerProfile, plain_name};
pub use link::Link;
pub use measured::Sweep;
pub use model::{Model, Tier, roofline};
pub use price::{Asked, PriceError, Priced, Pricing, Profiles, find_gpu};
pub use roofline::{Roofline, experts_hit};
pub use step::{Execution, Explained, StepModel};
pub use store::{StoreError, decode, encode, shipped};
pub use sweep::{Family, Routing, Sample, Shape, TABLES, parse};

/// How numbers are stored and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// bfloat16: 2 bytes.
    Bf16,
    /// 8-bit float, one scale a tensor: 1 byte.
    Fp8,
    /// 8-bit float, one scale a block: 1 byte.
    Fp8Block,
}

/// Attention of new prompt tokens over themselves and what was computed before,
/// in one layer on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillAttention {
    /// Sequences of this shape in the batch.
    pub batch: u32,
    /// New tokens of each.
    pub new: u32,
    /// Tokens of each computed before.
    pub context: u32,
    /// Query heads on this GPU.
    pub heads: u32,
    /// Key and value heads on this GPU.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// How keys and values are stored.
    pub kv: Precision,
}

/// Attention of one new token a sequence over its context, in one layer on one
/// GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeAttention {
    /// Sequences.
    pub batch: u32,
    /// Their mean context. Tokens.
    pub context: f64,
    /// Query heads on this GPU.
    pub heads: u32,
    /// Key and value heads on this GPU.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// How keys and values are stored.
    pub kv: Precision,
}

/// Routed experts of one layer on one GPU, both projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moe {
    /// Tokens of the batch.
    pub tokens: u32,
    /// Model width.
    pub hidden: u32,
    /// Width of one expert, before it is split by `tp`.
    pub intermediate: u32,
    /// Experts a token goes to.
    pub topk: u32,
    /// Experts in all.
    pub experts: u32,
    /// GPUs that split each expert.
    pub tp: u32,
    /// GPUs that share the experts out.
    pub ep: u32,
    /// How weights are stored.
    pub precision: Precision,
}

/// Times of single kernels on one kind of GPU, in microseconds.
pub trait Kernels {
    /// `m × k` by `k × n`: tokens × inputs by outputs.
    fn gemm(&self, m: u32, n: u32, k: u32, precision: Precision) -> f64;
    /// See [`PrefillAttention`].
    fn prefill_attention(&self, shape: &PrefillAttention) -> f64;
    /// See [`DecodeAttention`].
    fn decode_attention(&self, shape: &DecodeAttention) -> f64;
    /// See [`Moe`].
    fn moe(&self, shape: &Moe) -> f64;
    /// Sum of `elements` 2-byte numbers over `gpus` GPUs; `graph`: inside a
    /// CUDA graph.
    fn all_reduce(&self, gpus: u32, elements: u64, graph: bool) -> f64;
    /// A pass over memory (norm, rotary embedding, activation): bytes read and
    /// written.
    fn elementwise(&self, bytes: u64) -> f64;
    /// Next tokens from the scores of a vocabulary. Eight short kernels and
    /// eight bytes a score, as the sampler takes in the layer profiles of
    /// LLMServingSim (<https://github.com/casys-kaist/LLMServingSim>).
    fn sampler(&self, sequences: u32, vocabulary: u32) -> f64 {
        let bytes = 8 * u64::from(sequences) * u64::from(vocabulary);
        7.0 * self.elementwise(0) + self.elementwise(bytes)
    }
}
