//! One pass through a model, kernel by kernel.

use super::{DecodeAttention, Deployment, Kernels, Latent, Moe, Precision, PrefillAttention};
use crate::engine::{Chunk, Work};

/// Where a step's time goes. Microseconds on the GPU, per family of kernels; the
/// host's part is in [`super::HostTime`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Projections of attention and of dense networks, routers, shared experts.
    pub gemm: f64,
    /// Attention of prompt tokens.
    pub prefill_attention: f64,
    /// Attention of decoding sequences.
    pub decode_attention: f64,
    /// Routed experts.
    pub moe: f64,
    /// Norms, rotary embedding, activation, KV write, embedding.
    pub elementwise: f64,
    /// Sums and exchanges between GPUs.
    pub all_reduce: f64,
    /// Logits.
    pub lm_head: f64,
    /// Choice of tokens.
    pub sampler: f64,
}

impl Breakdown {
    /// The families and their times, in the order of a step.
    pub fn parts(&self) -> [(&'static str, f64); 8] {
        [
            ("gemm", self.gemm),
            ("prefill_attention", self.prefill_attention),
            ("decode_attention", self.decode_attention),
            ("moe", self.moe),
            ("elementwise", self.elementwise),
            ("all_reduce", self.all_reduce),
            ("lm_head", self.lm_head),
            ("sampler", self.sampler),
        ]
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, time)| time).sum()
    }

    /// Family by family.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            gemm: self.gemm + other.gemm,
            prefill_attention: self.prefill_attention + other.prefill_attention,
            decode_attention: self.decode_attention + other.decode_attention,
            moe: self.moe + other.moe,
            elementwise: self.elementwise + other.elementwise,
            all_reduce: self.all_reduce + other.all_reduce,
            lm_head: self.lm_head + other.lm_head,
            sampler: self.sampler + other.sampler,
        }
    }
}

/// What decoding costs in the kernel of prompts, which splits no context and
/// packs no heads, against its own: the median over vLLM's profiles of the RTX
/// 4090 and the RTX PRO 6000 with 16 sequences and more
/// (`llmservingsim_vllm_attention`). Where all heads of the longest chunk fit
/// into one tile of rows, that kernel serves decoding as well as its own.
pub const IN_PROMPT_KERNEL: f64 = 2.0;

/// Rows of an attention kernel's tile.
const TILE_ROWS: u32 = 128;

/// A model of one pass, in parts that depend on one or two numbers each. All
/// times are microseconds of the whole pass, all layers together.
pub trait Forward {
    /// What follows from the number of tokens alone. `graph`: inside a CUDA
    /// graph.
    fn tokens(&self, tokens: u32, graph: bool) -> Breakdown;

    /// What follows from the number of sequences that yield a token.
    fn sequences(&self, sampled: u32) -> Breakdown;

    /// Attention of sequences that decode, with this mean context.
    fn decode_attention(&self, sequences: u32, context: f64) -> f64;

    /// Attention of one chunk alone.
    fn prefill_attention(&self, chunk: Chunk) -> f64;

    /// Attention of a step that has both, where it was timed together; nothing
    /// where it is put together from the two above.
    fn joint_attention(&self, work: &Work<'_>) -> Option<(f64, f64)> {
        let _ = work;
        None
    }

    /// Attention of a step that has both: of the chunks, and what the decoding
    /// sequences add. By default sums, but each kernel's fixed part is paid once,
    /// and decoding costs up to [`IN_PROMPT_KERNEL`] times what it costs alone.
    fn mixed_attention(&self, work: &Work<'_>) -> (f64, f64) {
        if let Some(times) = self.joint_attention(work) {
            return times;
        }
        let fixed = self.prefill_attention(Chunk { new: 1, context: 0 });
        let each = work.prefill.iter().map(|chunk| self.prefill_attention(*chunk) - fixed);
        let prefill = fixed + each.map(|time| time.max(0.0)).sum::<f64>();
        if work.decode == 0 {
            return (prefill, 0.0);
        }
        let context = work.decode_context as f64 / f64::from(work.decode);
        let decode = self.decode_attention(work.decode, context);
        let idle = self.decode_attention(1, 1.0);
        let longest = work.prefill.iter().map(|chunk| chunk.new).max().unwrap_or(0);
        let factor = if longest > self.packed_rows() { IN_PROMPT_KERNEL } else { 1.0 };
        (prefill, factor * (decode - idle).max(0.0))
    }

    /// Tokens whose heads of one group fill a tile of the attention kernel.
    fn packed_rows(&self) -> u32 {
        0
    }
}

impl<T: Forward + ?Sized> Forward for Box<T> {
    fn tokens(&self, tokens: u32, graph: bool) -> Breakdown {
        (**self).tokens(tokens, graph)
    }

    fn sequences(&self, sampled: u32) -> Breakdown {
        (**self).sequences(sampled)
    }

    fn decode_attention(&self, sequences: u32, context: f64) -> f64 {
        (**self).decode_attention(sequences, context)
    }

    fn prefill_attention(&self, chunk: Chunk) -> f64 {
        (**self).prefill_attention(chunk)
    }

    fn joint_attention(&self, work: &Work<'_>) -> Option<(f64, f64)> {
        (**self).joint_attention(work)
    }

    fn mixed_attention(&self, work: &Work<'_>) -> (f64, f64) {
        (**self).mixed_attention(work)
    }

    fn packed_rows(&self) -> u32 {
        (**self).packed_rows()
    }
}

/// A pass put together from single kernels.
#[derive(Clone, Debug)]
pub struct Composed<K> {
    deployment: Deployment,
    kernels: K,
}

/// Microseconds of choosing one token of the whole batch, and of each sequence
/// more: an RTX PRO 6000 takes 10 and 0.65 over 152,000 words in vLLM's profiles
/// (`llmservingsim_vllm_per_sequence`).
const SAMPLER: (f64, f64) = (10.0, 0.65);

impl<K: Kernels> Composed<K> {
    /// Prices this deployment with these kernels.
    pub fn new(deployment: Deployment, kernels: K) -> Self {
        Self { deployment, kernels }
    }

    /// Outputs and inputs of one layer's attention projections on one GPU.
    fn attention_gemms(&self) -> Vec<(u32, u32)> {
        let Deployment { model, tp, .. } = self.deployment;
        let (heads, hidden, dim) = (model.heads_on(tp), model.hidden, model.head_dim);
        match model.latent {
            None => {
                let qkv = (heads + 2 * model.kv_heads_on(tp)) * dim;
                vec![(qkv, hidden), (hidden, heads * dim)]
            }
            // Down to both ranks at once; queries up; into and out of the kept
            // vector's space; out.
            Some(Latent { q_rank, kv_rank, rope, v_head_dim }) => vec![
                (q_rank + kv_rank + rope, hidden),
                (heads * dim, q_rank),
                (heads * kv_rank, dim - rope),
                (heads * v_head_dim, kv_rank),
                (hidden, heads * v_head_dim),
            ],
        }
    }

    fn gemms(&self, m: u32) -> f64 {
        let Deployment { model, tp, weights, .. } = self.deployment;
        // The sweeps' products with a scale a block time the host, not the GPU.
        let precision = match weights {
            Precision::Fp8Block => Precision::Fp8,
            other => other,
        };
        let gemm = |n: u32, k: u32| self.kernels.gemm(m, n, k, precision);
        let network = |width: u32| {
            let width = width.div_ceil(tp);
            gemm(2 * width, model.hidden) + gemm(model.hidden, width)
        };
        let attention: f64 = self.attention_gemms().iter().map(|(n, k)| gemm(*n, *k)).sum();
        let sparse = f64::from(model.expert_layers());
        let dense = f64::from(model.layers) - sparse;
        let mut sum = f64::from(model.layers) * attention;
        if dense > 0.0 {
            sum += dense * network(model.intermediate);
        }
        if let Some(experts) = model.experts {
            let router = self.kernels.gemm(m, experts.count, model.hidden, Precision::Bf16);
            let shared = if experts.shared > 0 {
                network(experts.shared * experts.intermediate)
            } else {
                0.0
            };
            sum += sparse * (router + shared);
        }
        sum
    }

    fn moe(&self, tokens: u32) -> f64 {
        let Deployment { model, tp, ep, dp, weights, .. } = self.deployment;
        let Some(experts) = model.experts else { return 0.0 };
        // Shared out, an expert serves the tokens of all attention replicas.
        let (tp, tokens) = if ep > 1 { (1, tokens * dp) } else { (tp, tokens) };
        // The sweeps' experts with a scale a tensor are an untuned kernel.
        let precision = match weights {
            Precision::Fp8 => Precision::Fp8Block,
            other => other,
        };
        let shape = Moe {
            tokens,
            hidden: model.hidden,
            intermediate: experts.intermediate,
            topk: experts.topk,
            experts: experts.count,
            tp,
            ep,
            precision,
        };
        f64::from(model.expert_layers()) * self.kernels.moe(&shape)
    }

    /// Bytes that the small kernels of one layer read and write for a token, one
    /// entry a kernel.
    fn passes(&self) -> Vec<u64> {
        let Deployment { model, tp, kv, weights, .. } = self.deployment;
        let hidden = u64::from(model.hidden);
        let heads = u64::from(model.heads_on(tp) + model.kv_heads_on(tp));
        let query_key = heads * u64::from(model.head_dim);
        // Input and residual are read, sum and result written.
        let norm = 8 * hidden;
        let rope = 4 * query_key;
        let store = model.kv_elements(tp) * (2 + kv.bytes());
        let mut passes = vec![rope, store];
        if model.qk_norm {
            passes.push(4 * query_key);
        }
        // Of 8-bit weights the timed products quantise their inputs first; vLLM
        // does that in the norm or the activation before, so these count there.
        if weights == Precision::Bf16 {
            passes.extend([norm, norm]);
            // The experts' activation is inside their kernel.
            if model.expert_layers() < model.layers {
                passes.push(6 * u64::from(model.intermediate.div_ceil(tp)));
            }
        }
        passes
    }

    fn exchange(&self, tokens: u32, graph: bool) -> f64 {
        let Deployment { model, tp, ep, dp, .. } = self.deployment;
        let width = u64::from(model.hidden);
        let one = self.kernels.all_reduce(tp, u64::from(tokens) * width, graph);
        let mut sum = 2.0 * f64::from(model.layers) * one;
        if dp > 1 && ep > 1 {
            // Every rank gathers all tokens and scatters the results: together
            // the traffic of one sum over the ranks.
            let all = u64::from(tokens) * u64::from(dp) * width;
            let exchange = self.kernels.all_reduce(dp, all, graph);
            sum += f64::from(model.expert_layers()) * exchange;
        }
        sum
    }

    fn decode_shape(&self, batch: u32, context: f64) -> DecodeAttention {
        let Deployment { model, tp, kv, .. } = self.deployment;
        let (kv_heads, head_dim) = match model.latent {
            // One vector serves as key and as value.
            Some(latent) => (1, u32::midpoint(latent.kv_rank, latent.rope)),
            None => (model.kv_heads_on(tp), model.head_dim),
        };
        DecodeAttention { batch, context, heads: model.heads_on(tp), kv_heads, head_dim, kv }
    }

    fn prefill_shape(&self, chunk: Chunk, context: u32) -> PrefillAttention {
        let Deployment { model, tp, kv, .. } = self.deployment;
        PrefillAttention {
            batch: 1,
            new: chunk.new,
            context,
            heads: model.heads_on(tp),
            // A latent vector is unfolded into full heads for a prompt.
            kv_heads: if model.latent.is_some() {
                model.heads_on(tp)
            } else {
                model.kv_heads_on(tp)
            },
            head_dim: model.head_dim,
            kv,
        }
    }

    /// Sums a function of the visible context over the layers, of which every
    /// second may look back over a window only.
    fn over_layers(&self, context: f64, time: impl Fn(f64) -> f64) -> f64 {
        let layers = f64::from(self.deployment.model.layers);
        match self.deployment.model.window {
            None => layers * time(context),
            Some(window) => layers / 2.0 * (time(context) + time(context.min(f64::from(window)))),
        }
    }
}

impl<K: Kernels> Forward for Composed<K> {
    fn tokens(&self, tokens: u32, graph: bool) -> Breakdown {
        let Deployment { model, .. } = self.deployment;
        if tokens == 0 {
            return Breakdown::default();
        }
        let many = u64::from(tokens);
        let passes: f64 =
            self.passes().iter().map(|bytes| self.kernels.elementwise(bytes * many)).sum();
        let hidden = u64::from(model.hidden);
        let ends = self.kernels.elementwise(4 * hidden * many);
        Breakdown {
            gemm: self.gemms(tokens),
            moe: self.moe(tokens),
            elementwise: f64::from(model.layers) * passes + 2.0 * ends,
            all_reduce: self.exchange(tokens, graph),
            ..Breakdown::default()
        }
    }

    fn sequences(&self, sampled: u32) -> Breakdown {
        let Deployment { model, tp, .. } = self.deployment;
        if sampled == 0 {
            return Breakdown::default();
        }
        let words = model.vocab.div_ceil(tp);
        let (once, each) = SAMPLER;
        let scale = f64::from(model.vocab) / 151_936.0;
        Breakdown {
            lm_head: self.kernels.gemm(sampled, words, model.hidden, Precision::Bf16),
            sampler: once + each * scale * f64::from(sampled),
            ..Breakdown::default()
        }
    }

    fn decode_attention(&self, sequences: u32, context: f64) -> f64 {
        if sequences == 0 {
            return 0.0;
        }
        let time = |context: f64| {
            self.kernels.decode_attention(&self.decode_shape(sequences, context.max(1.0)))
        };
        self.over_layers(context, time)
    }

    fn packed_rows(&self) -> u32 {
        let Deployment { model, tp, .. } = self.deployment;
        TILE_ROWS / (model.heads_on(tp) / model.kv_heads_on(tp)).max(1)
    }

    fn prefill_attention(&self, chunk: Chunk) -> f64 {
        if chunk.new == 0 {
            return 0.0;
        }
        let time = |context: f64| {
            self.kernels.prefill_attention(&self.prefill_shape(chunk, context as u32))
        };
        self.over_layers(f64::from(chunk.context), time)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kernels::{Architecture, Experts};

    /// Kernels whose times can be added up by hand: 1 µs each, but attention
    /// takes its tokens and a sum its elements.
    #[derive(Clone, Debug)]
    pub(crate) struct Plain;

    impl Kernels for Plain {
        fn gemm(&self, m: u32, n: u32, k: u32, _: Precision) -> f64 {
            f64::from(m) * f64::from(n) * f64::from(k)
        }
        fn prefill_attention(&self, shape: &PrefillAttention) -> f64 {
            10.0 + f64::from(shape.new) * (f64::from(shape.context) + f64::from(shape.new) / 2.0)
        }
        fn decode_attention(&self, shape: &DecodeAttention) -> f64 {
            5.0 + f64::from(shape.batch) * shape.context
        }
        fn moe(&self, shape: &Moe) -> f64 {
            f64::from(shape.tokens) * 1_000.0 + f64::from(shape.tp) + 10.0 * f64::from(shape.ep)
        }
        fn all_reduce(&self, gpus: u32, elements: u64, graph: bool) -> f64 {
            if gpus < 2 { 0.0 } else { elements as f64 + if graph { 0.0 } else { 100.0 } }
        }
        fn elementwise(&self, bytes: u64) -> f64 {
            bytes as f64
        }
    }

    /// Two layers of width 8, 4 heads of 2 over 2 key heads, network 6, 10 words.
    pub(crate) static TINY: Architecture = Architecture {
        name: "tiny",
        layers: 2,
        hidden: 8,
        heads: 4,
        kv_heads: 2,
        head_dim: 2,
        intermediate: 6,
        vocab: 10,
        experts: None,
        latent: None,
        qk_norm: false,
        window: None,
    };

    /// The same with four experts in its second layer.
    pub(crate) static TINY_MOE: Architecture = Architecture {
        experts: Some(Experts { count: 4, topk: 2, intermediate: 3, shared: 1, dense_layers: 1 }),
        ..TINY
    };

    #[test]
    fn a_pass_is_the_sum_that_one_writes_down_by_hand() {
        let one = Composed::new(Deployment::new(&TINY, 1), Plain);
        let pass = one.tokens(3, true);
        // qkv 16 × 8, o 8 × 8, gate and up 12 × 8, down 8 × 6.
        assert_eq!(pass.gemm, 2.0 * 3.0 * f64::from(16 * 8 + 8 * 8 + 12 * 8 + 8 * 6));
        // Two norms of 8 × 8, rope 4 × 12, store 8 × 4, activation 6 × 6; the
        // ends 2 × 4 × 8.
        assert_eq!(pass.elementwise, 3.0 * f64::from(2 * (64 + 64 + 48 + 32 + 36) + 64));
        assert_eq!((pass.all_reduce, pass.moe), (0.0, 0.0));
        let head = one.sequences(2);
        assert_eq!(head.lm_head, f64::from(2 * 10 * 8));
        assert_eq!(one.decode_attention(4, 10.0), 2.0 * 45.0);
        assert_eq!(one.prefill_attention(Chunk { new: 4, context: 2 }), 2.0 * 26.0);

        let two = Composed::new(Deployment::new(&TINY, 2), Plain);
        let pass = two.tokens(3, true);
        assert_eq!(pass.gemm, 2.0 * 3.0 * f64::from(8 * 8 + 8 * 4 + 6 * 8 + 8 * 3));
        assert_eq!(pass.all_reduce, 4.0 * 24.0);
        assert_eq!(two.tokens(3, false).all_reduce, 4.0 * 124.0);
        assert_eq!(pass.parts().iter().map(|p| p.1).sum::<f64>(), pass.total());
    }

    #[test]
    fn chunks_and_decoding_share_a_kernels_fixed_part() {
        let one = Composed::new(Deployment::new(&TINY, 1), Plain);
        let chunks = [Chunk { new: 4, context: 2 }, Chunk { new: 2, context: 0 }];
        let work = Work {
            prefill: &chunks,
            decode: 4,
            decode_context: 40,
            decode_context_max: 10,
            ..Work::default()
        };
        let (prefill, decode) = one.mixed_attention(&work);
        // 16 and 2 products above the fixed 10; the smallest chunk has half a one.
        assert_eq!(prefill, 2.0 * (10.5 + (16.0 - 0.5) + (2.0 - 0.5)));
        // Four tokens of two heads a group are far from a tile of 128 rows.
        assert_eq!(decode, 2.0 * (45.0 - 6.0));
        let long = [Chunk { new: 65, context: 0 }];
        let (_, decode) = one.mixed_attention(&Work { prefill: &long, ..work });
        assert_eq!(decode, IN_PROMPT_KERNEL * 2.0 * (45.0 - 6.0));
    }

    #[test]
    fn experts_serve_every_attention_replica_when_shared_out() {
        let split = Deployment { tp: 2, ..Deployment::new(&TINY_MOE, 2) };
        assert_eq!(Composed::new(split, Plain).tokens(3, true).moe, 3_000.0 + 2.0 + 10.0);
        let shared = Deployment { dp: 2, ep: 2, ..Deployment::new(&TINY_MOE, 1) };
        let pass = Composed::new(shared, Plain).tokens(3, true);
        assert_eq!(pass.moe, 6_000.0 + 1.0 + 20.0);
        // One expert layer exchanges both replicas' tokens.
        assert_eq!(pass.all_reduce, f64::from(2 * 3 * 8));
        // One dense network, one shared expert, one router.
        let attention = 2 * (16 * 8 + 8 * 8);
        let gemm = attention + (12 * 8 + 8 * 6) + (6 * 8 + 8 * 3) + 4 * 8;
        assert_eq!(pass.gemm, 3.0 * f64::from(gemm));
    }

    #[test]
    fn a_window_bounds_every_second_layer() {
        static WINDOWED: Architecture = Architecture { window: Some(4), ..TINY };
        let pass = Composed::new(Deployment::new(&WINDOWED, 1), Plain);
        assert_eq!(pass.decode_attention(1, 10.0), 15.0 + 9.0);
    }
}
