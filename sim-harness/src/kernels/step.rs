//! The time of one step: a pass on the GPU, and what the host adds.

use super::grid::{Curve, Surface};
use super::{Breakdown, Forward, HostTime};
use crate::engine::{Chunk, StepTime, Work};

/// How an engine runs its passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Tokens that steps of decoding sequences are padded to, in order, each run
    /// as one CUDA graph. Larger ones, and all steps with prompt tokens, are
    /// launched piece by piece. Empty: no graphs.
    pub graph_sizes: Vec<u32>,
    /// The largest step, in tokens.
    pub max_tokens: u32,
    /// Sequences in one step, at most.
    pub max_sequences: u32,
    /// The longest context, in tokens.
    pub max_context: u32,
}

impl Execution {
    /// vLLM's: 1, 2, 4, then every 8 up to twice the seats, at most 512.
    pub fn vllm(max_tokens: u32, max_sequences: u32, max_context: u32) -> Self {
        let most = (2 * max_sequences).min(512).min(max_tokens);
        let sizes = [1, 2, 4].into_iter().chain((8..=most).step_by(8));
        let graph_sizes = sizes.filter(|size| *size <= most).collect();
        Self { graph_sizes, max_tokens, max_sequences, max_context }
    }

    /// What a step of so many decoding sequences is padded to; nothing when no
    /// graph holds it.
    pub fn padded(&self, sequences: u32) -> Option<u32> {
        let next = self.graph_sizes.partition_point(|size| *size < sequences);
        self.graph_sizes.get(next).copied()
    }
}

/// A step's time, explained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explained {
    /// The pass.
    pub gpu: Breakdown,
    /// What the host adds to it. Microseconds.
    pub host: f64,
    /// It ran as one CUDA graph.
    pub graph: bool,
}

impl Explained {
    /// Microseconds of the step.
    pub fn total(&self) -> f64 {
        self.gpu.total() + self.host
    }
}

/// A decode-only step without attention: what a rank does alone, and what ranks
/// do together.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed {
    alone: f64,
    experts: f64,
    exchange: f64,
}

impl Fixed {
    fn of(pass: &Breakdown) -> Self {
        let (experts, exchange) = (pass.moe, pass.all_reduce);
        Self { alone: pass.total() - experts - exchange, experts, exchange }
    }
}

/// Prices steps from tables made once.
///
/// What depends on one or two numbers is tabulated (`grid`): tokens, sequences,
/// sequences and their mean context, a chunk and its context. A decode-only step
/// costs two look-ups.
#[derive(Clone, Debug)]
pub struct StepModel<F> {
    pass: F,
    host: HostTime,
    execution: Execution,
    layers: u32,
    /// Decode-only steps without attention, by sequences.
    decode: Vec<Fixed>,
    /// Passes launched piece by piece, by tokens: what a rank does alone.
    eager: Curve,
    /// The same, experts that ranks share.
    eager_experts: Curve,
    /// The same, sums and exchanges.
    eager_exchange: Curve,
    /// Head and sampler by sequences.
    head: Curve,
    /// Attention by decoding sequences and mean context.
    attention: Surface,
    /// Attention by a chunk's tokens and its context.
    prefill: Surface,
}

/// A pass whose attention is read from the tables.
struct Tabulated<'a, F>(&'a StepModel<F>);

impl<F: Forward> Forward for Tabulated<'_, F> {
    fn tokens(&self, tokens: u32, graph: bool) -> Breakdown {
        self.0.pass.tokens(tokens, graph)
    }

    fn sequences(&self, sampled: u32) -> Breakdown {
        self.0.pass.sequences(sampled)
    }

    fn decode_attention(&self, sequences: u32, context: f64) -> f64 {
        self.0.attention.at(f64::from(sequences), context, |n, context| {
            self.0.pass.decode_attention(n as u32, context as f64)
        })
    }

    fn prefill_attention(&self, chunk: Chunk) -> f64 {
        self.0.prefill.at(f64::from(chunk.new), f64::from(chunk.context), |new, context| {
            let (new, context) = (new as u32, context as u32);
            self.0.pass.prefill_attention(Chunk { new, context })
        })
    }

    fn packed_rows(&self) -> u32 {
        self.0.pass.packed_rows()
    }
}

impl<F: Forward> StepModel<F> {
    /// Tabulates a pass of `layers` layers.
    pub fn new(pass: F, layers: u32, host: HostTime, execution: Execution) -> Self {
        let seats = execution.max_sequences;
        let head = Curve::new(u64::from(seats), |n| pass.sequences(n as u32).total());
        let decode = (0..=seats)
            .map(|n| {
                let (tokens, graph) = match execution.padded(n) {
                    Some(padded) if n > 0 => (padded, true),
                    _ => (n, false),
                };
                let fixed = Fixed::of(&pass.tokens(tokens, graph));
                Fixed { alone: fixed.alone + pass.sequences(n).total(), ..fixed }
            })
            .collect();
        let most = u64::from(execution.max_tokens.max(seats));
        let pieces = |n| Fixed::of(&pass.tokens(n as u32, false));
        let eager = Curve::new(most, |n| pieces(n).alone);
        let eager_experts = Curve::new(most, |n| pieces(n).experts);
        let eager_exchange = Curve::new(most, |n| pieces(n).exchange);
        let context = u64::from(execution.max_context);
        let attention = Surface::new((u64::from(seats), context));
        let prefill = Surface::new((u64::from(execution.max_tokens), context));
        Self {
            pass,
            host,
            execution,
            layers,
            decode,
            eager,
            eager_experts,
            eager_exchange,
            head,
            attention,
            prefill,
        }
    }

    /// The pass that it was made from.
    pub fn pass(&self) -> &F {
        &self.pass
    }

    /// The host's constants.
    pub fn host(&self) -> &HostTime {
        &self.host
    }

    fn context(work: &Work<'_>) -> f64 {
        work.decode_context as f64 / f64::from(work.decode.max(1))
    }

    /// The same step without tables, family by family.
    pub fn explain(&self, work: &Work<'_>) -> Explained {
        let tokens = work.tokens() as u32;
        let (gpu, graph) = if work.prefill.is_empty() {
            let padded = self.execution.padded(tokens).filter(|_| tokens > 0);
            let pass = self.pass.tokens(padded.unwrap_or(tokens), padded.is_some());
            let decode_attention = self.pass.decode_attention(work.decode, Self::context(work));
            (Breakdown { decode_attention, ..pass }, padded.is_some())
        } else {
            let (prefill_attention, decode_attention) = self.pass.mixed_attention(work);
            let pass = self.pass.tokens(tokens, false);
            (Breakdown { prefill_attention, decode_attention, ..pass }, false)
        };
        let gpu = gpu.plus(&self.pass.sequences(work.sampled));
        let host = self.host.added(gpu.total(), work, self.layers, graph);
        Explained { gpu, host, graph }
    }

    /// Microseconds of a step.
    #[inline]
    pub fn micros(&self, work: &Work<'_>) -> f64 {
        if work.prefill.is_empty() {
            return self.decode_only(work);
        }
        let tokens = work.tokens() as f64;
        let together = self.eager_experts.at(tokens) + self.eager_exchange.at(tokens);
        let gpu = self.eager.at(tokens) + together + self.rest(work);
        gpu + self.host.added(gpu, work, self.layers, false)
    }

    #[inline]
    fn decode_only(&self, work: &Work<'_>) -> f64 {
        let fixed = self.fixed(work.decode);
        let attention = Tabulated(self).decode_attention(work.decode, Self::context(work));
        let gpu = fixed.alone + fixed.experts + fixed.exchange + attention;
        gpu + self.host.added(gpu, work, self.layers, self.is_graph(work.decode))
    }

    #[inline]
    fn fixed(&self, sequences: u32) -> Fixed {
        self.decode.get(sequences as usize).copied().unwrap_or_else(|| {
            let n = f64::from(sequences);
            Fixed {
                alone: self.eager.at(n) + self.head.at(n),
                experts: self.eager_experts.at(n),
                exchange: self.eager_exchange.at(n),
            }
        })
    }

    fn is_graph(&self, sequences: u32) -> bool {
        self.execution.graph_sizes.last().is_some_and(|max| sequences <= *max)
    }

    /// Attention, head and sampler of a step with prompt tokens.
    fn rest(&self, work: &Work<'_>) -> f64 {
        let (prefill, decode) = match self.pass.joint_attention(work) {
            Some(times) => times,
            None => Tabulated(self).mixed_attention(work),
        };
        prefill + decode + self.head.at(f64::from(work.sampled))
    }
}

impl<F: Forward> StepTime for StepModel<F> {
    #[inline]
    fn step(&self, work: &Work<'_>) -> u64 {
        ((self.micros(work) * 1e3) as u64).max(1)
    }

    fn together(&self, ranks: &[Work<'_>]) -> u64 {
        // Experts see all ranks' tokens, so a rank has its part of them; but the
        // rank with most tokens has them all to send. One rank with prompt tokens
        // takes all out of the graph.
        let tokens = || ranks.iter().map(|work| work.tokens() as f64);
        let mean = tokens().sum::<f64>() / ranks.len().max(1) as f64;
        let decode_only = ranks.iter().all(|work| work.prefill.is_empty());
        let most = ranks.iter().map(|work| work.decode).max().unwrap_or(0);
        let graph = decode_only && self.is_graph(most);
        let shared = if graph {
            let fixed = self.fixed(most);
            fixed.experts + fixed.exchange
        } else {
            let sent = tokens().fold(0.0, f64::max);
            self.eager_experts.at(mean) + self.eager_exchange.at(sent)
        };
        let slowest = ranks.iter().map(|work| {
            let alone = if graph {
                let attention = Tabulated(self).decode_attention(work.decode, Self::context(work));
                self.fixed(most).alone + attention
            } else {
                self.eager.at(work.tokens() as f64) + self.rest(work)
            };
            let gpu = alone + shared;
            gpu + self.host.added(gpu, work, self.layers, graph)
        });
        ((slowest.fold(0.0, f64::max) * 1e3) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward::tests::{Plain, TINY, TINY_MOE};
    use super::super::{Composed, Deployment};
    use super::*;
    use proptest::prelude::*;

    fn model(host: HostTime) -> StepModel<Composed<Plain>> {
        let pass = Composed::new(Deployment::new(&TINY, 1), Plain);
        StepModel::new(pass, 2, host, Execution::vllm(512, 64, 4_096))
    }

    fn decode(n: u32, context: u32) -> Work<'static> {
        let decode_context = u64::from(n) * u64::from(context);
        let decode_context_max = context;
        Work { decode: n, decode_context, decode_context_max, sampled: n, ..Work::default() }
    }

    #[test]
    fn graphs_are_vllms_and_pad() {
        let sizes = Execution::vllm(8_192, 16, 1_024);
        assert_eq!(sizes.graph_sizes, [1, 2, 4, 8, 16, 24, 32]);
        assert_eq!((sizes.padded(3), sizes.padded(8), sizes.padded(33)), (Some(4), Some(8), None));
        assert_eq!(Execution::vllm(8_192, 1_024, 1).graph_sizes.last(), Some(&512));
    }

    #[test]
    fn a_step_is_its_pass_and_what_the_host_adds() {
        // 9 sequences run as a graph of 16, but read 9 contexts and yield 9 tokens.
        let pass = Composed::new(Deployment::new(&TINY, 1), Plain);
        let sum = pass.tokens(16, true).total()
            + pass.sequences(9).total()
            + pass.decode_attention(9, 100.0);
        let bare = model(HostTime::NONE);
        assert!((bare.micros(&decode(9, 100)) - sum).abs() < 1e-9);
        assert_eq!(bare.step(&decode(9, 100)), (sum * 1e3) as u64);
        let host = HostTime { dispatch: 3.0, tail: 4.0, ..HostTime::NONE };
        assert!((model(host).micros(&decode(9, 100)) - sum - 7.0).abs() < 1e-9);
        // Nothing takes no time.
        assert_eq!(bare.step(&Work::default()), 1);
    }

    #[test]
    fn ranks_wait_for_the_slowest() {
        let bare = model(HostTime::NONE);
        let chunk = [Chunk { new: 32, context: 0 }];
        let long = Work { prefill: &chunk, sampled: 1, ..decode(4, 100) };
        let alone = bare.step(&long);
        assert_eq!(bare.together(&[long, long]), alone);
        // Without experts or exchanges the other rank changes nothing.
        assert_eq!(bare.together(&[long, decode(4, 100)]), alone);
        assert_eq!(bare.together(&[decode(4, 100), Work::default()]), bare.step(&decode(4, 100)));
    }

    #[test]
    fn ranks_share_experts_evenly_and_send_what_the_largest_has() {
        let deployment = Deployment { dp: 2, ep: 2, ..Deployment::new(&TINY_MOE, 1) };
        let pass = Composed::new(deployment, Plain);
        let chunk = [Chunk { new: 28, context: 0 }];
        let long = Work { prefill: &chunk, sampled: 5, admitted: 1, ..decode(4, 100) };
        let (own, mean) = (pass.tokens(32, false), pass.tokens(18, false));
        let (prefill, decoding) = pass.mixed_attention(&long);
        let expected =
            own.total() - own.moe + mean.moe + prefill + decoding + pass.sequences(5).total();
        let execution = Execution::vllm(512, 64, 4_096);
        let model = StepModel::new(pass, 2, HostTime::NONE, execution);
        let found = model.together(&[decode(4, 100), long]);
        assert!((found as f64 / 1e3 / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        // Decoding alone, both run the larger one's graph.
        let both = model.together(&[decode(3, 100), decode(7, 100)]);
        let pass = Composed::new(deployment, Plain);
        let graph = pass.tokens(8, true).total() + pass.sequences(7).total();
        let expected = graph + pass.decode_attention(7, 100.0);
        assert!((both as f64 / 1e3 / expected - 1.0).abs() < 1e-6, "{both} {expected}");
    }

    proptest! {
        #[test]
        fn tables_say_what_the_pass_says(
            n in 0_u32..64,
            context in 1_u32..4_000,
            new in 1_u32..400,
            before in 0_u32..3_000,
        ) {
            let model = model(HostTime::vllm(true, 1, 1));
            let near = |work: &Work<'_>| {
                let (table, exact) = (model.micros(work), model.explain(work).total());
                (table / exact - 1.0).abs() < 2e-3
            };
            let chunks = [Chunk { new, context: before }];
            let mixed = Work { prefill: &chunks, sampled: n + 1, admitted: 1, ..decode(n, context) };
            prop_assert!(near(&mixed), "{mixed:?}");
            prop_assert!(n == 0 || near(&decode(n, context)));
            // More context never takes less.
            prop_assert!(model.step(&decode(n, context + 7)) >= model.step(&decode(n, context)));
        }
    }
}
