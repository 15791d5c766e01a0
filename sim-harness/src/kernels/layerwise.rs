//! A pass timed layer by layer on the very GPU, as LLMServingSim profiles vLLM.
//!
//! Four files: `llmservingsim_vllm_dense.csv` (a layer's time by tokens),
//! `…_per_sequence.csv` (head and sampler by sequences), `…_attention.csv` (one
//! layer's attention by chunk, chunk's context, decoding sequences and their
//! context, together), `…_moe.csv` (experts by tokens and distinct experts).
//! Times are exact on the points and straight lines between.

use std::collections::BTreeMap;

use super::csv::{CsvError, Table};
use super::{Architecture, Breakdown, Deployment, Forward, Link, experts_hit};
use crate::engine::{Chunk, Work};

/// The texts of a profile's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerFiles<'a> {
    /// `llmservingsim_vllm_dense.csv`.
    pub dense: &'a str,
    /// `llmservingsim_vllm_per_sequence.csv`.
    pub per_sequence: &'a str,
    /// `llmservingsim_vllm_attention.csv`.
    pub attention: &'a str,
    /// `llmservingsim_vllm_moe.csv`; empty when absent.
    pub moe: &'a str,
}

type Line = BTreeMap<u32, f64>;
type Plane = BTreeMap<u32, Line>;
type Space = BTreeMap<u32, Plane>;

/// The profile of one model on one kind of GPU.
#[derive(Clone, Debug)]
pub struct LayerProfile {
    deployment: Deployment,
    link: Link,
    /// Projections of one layer.
    gemm: Line,
    /// Small kernels of one layer.
    small: Line,
    /// Embedding and last norm.
    ends: Line,
    lm_head: Line,
    sampler: Line,
    moe: Plane,
    /// Chunk → its context → decoding sequences → their context.
    attention: BTreeMap<u32, Space>,
}

/// The points at both sides of a number, and how far it is from the lower. Below
/// the first the first counts; beyond the last the last two are prolonged.
fn around<T>(map: &BTreeMap<u32, T>, x: f64) -> Option<(&T, &T, f64)> {
    let whole = x.max(0.0) as u32;
    let (first, value) = map.iter().next()?;
    if x <= f64::from(*first) {
        return Some((value, value, 0.0));
    }
    let mut low = map.range(..=whole).next_back()?;
    let high = map.range(whole.saturating_add(1)..).next().or_else(|| {
        let last = low;
        low = map.range(..*last.0).next_back()?;
        Some(last)
    });
    let Some(high) = high else { return Some((low.1, low.1, 0.0)) };
    let (from, to) = (f64::from(*low.0), f64::from(*high.0));
    Some((low.1, high.1, (x - from) / (to - from)))
}

/// A value between two points, each read by `read`.
fn blend<T>(map: &BTreeMap<u32, T>, x: f64, read: impl Fn(&T) -> f64) -> f64 {
    let Some((low, high, share)) = around(map, x) else { return 0.0 };
    let value = read(low);
    if share == 0.0 { value } else { (value + (read(high) - value) * share).max(0.0) }
}

fn line(line: &Line, x: f64) -> f64 {
    blend(line, x, |value| *value)
}

fn plane(map: &Plane, x: f64, y: f64) -> f64 {
    blend(map, x, |inner| line(inner, y))
}

/// Letters and digits only, in lower case: `RTX PRO 6000` is `rtxpro6000`.
pub fn plain_name(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Which lines of the files count.
struct Wanted {
    hardware: String,
    model: &'static Architecture,
    tp: u32,
}

impl Wanted {
    fn is(&self, row: &super::csv::Row<'_>) -> bool {
        let text = |column| row.text(column).unwrap_or_default();
        plain_name(text("hw")) == self.hardware
            && Architecture::find(text("model")).is_ok_and(|model| model == self.model)
            && text("tp").parse() == Ok(self.tp)
    }
}

const GEMMS: [&str; 4] = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"];
const ENDS: [&str; 2] = ["embedding", "final_layernorm"];

impl LayerProfile {
    /// Reads the profile of this deployment on `hardware`; nothing when the
    /// files do not have it.
    pub fn parse(
        files: &LayerFiles<'_>,
        hardware: &str,
        deployment: Deployment,
        link: Link,
    ) -> Result<Option<Self>, CsvError> {
        let wanted =
            Wanted { hardware: plain_name(hardware), model: deployment.model, tp: deployment.tp };
        let mut profile = Self {
            deployment,
            link,
            gemm: Line::new(),
            small: Line::new(),
            ends: Line::new(),
            lm_head: Line::new(),
            sampler: Line::new(),
            moe: Plane::new(),
            attention: BTreeMap::new(),
        };
        let columns = ["hw", "model", "tp", "layer", "tokens", "time_us"];
        let mut table = Table::new("dense", files.dense, &columns)?;
        while let Some(row) = table.next()? {
            if !wanted.is(&row) {
                continue;
            }
            let layer = row.text("layer").unwrap_or_default();
            let (line, times) = match layer {
                _ if GEMMS.contains(&layer) => (&mut profile.gemm, 1.0),
                _ if ENDS.contains(&layer) => (&mut profile.ends, 1.0),
                // Before the attention and before the network.
                "layernorm" => (&mut profile.small, 2.0),
                _ => (&mut profile.small, 1.0),
            };
            *line.entry(row.count("tokens")?).or_default() += times * row.positive("time_us")?;
        }
        let columns = ["hw", "model", "tp", "layer", "sequences", "time_us"];
        let mut table = Table::new("per_sequence", files.per_sequence, &columns)?;
        while let Some(row) = table.next()? {
            if wanted.is(&row) {
                let head = row.text("layer") == Some("lm_head");
                let line = if head { &mut profile.lm_head } else { &mut profile.sampler };
                line.insert(row.count("sequences")?, row.positive("time_us")?);
            }
        }
        profile.read_attention(files.attention, &wanted)?;
        if !files.moe.is_empty() {
            // Experts that are shared out are whole on each GPU. Where no split
            // was timed, a split expert takes its part of a whole one's time.
            let split = if deployment.ep > 1 { 1 } else { deployment.tp };
            for tp in [split, 1] {
                if profile.moe.is_empty() {
                    let wanted = Wanted { tp, hardware: wanted.hardware.clone(), ..wanted };
                    profile.read_moe(files.moe, &wanted, f64::from(tp) / f64::from(split))?;
                }
            }
        }
        let whole = !profile.gemm.is_empty()
            && !profile.lm_head.is_empty()
            && !profile.attention.is_empty()
            && (deployment.model.experts.is_none() || !profile.moe.is_empty());
        Ok(whole.then_some(profile))
    }

    fn read_moe(&mut self, text: &str, wanted: &Wanted, share: f64) -> Result<(), CsvError> {
        let columns = ["hw", "model", "tp", "tokens", "activated_experts", "time_us"];
        let mut table = Table::new("moe", text, &columns)?;
        while let Some(row) = table.next()? {
            if wanted.is(&row) {
                let plane = self.moe.entry(row.count("tokens")?).or_default();
                plane.insert(row.count("activated_experts")?, share * row.positive("time_us")?);
            }
        }
        Ok(())
    }

    fn read_attention(&mut self, text: &str, wanted: &Wanted) -> Result<(), CsvError> {
        let axes = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"];
        let others = ["hw", "model", "tp", "time_us"];
        let mut table = Table::new("attention", text, &[&axes[..], &others[..]].concat())?;
        while let Some(row) = table.next()? {
            if !wanted.is(&row) {
                continue;
            }
            let [mut chunk, mut context, mut sequences, mut length] = [0; 4];
            for (slot, axis) in
                [&mut chunk, &mut context, &mut sequences, &mut length].into_iter().zip(axes)
            {
                *slot = row.whole(axis)?;
            }
            let space = self.attention.entry(chunk).or_default();
            let line = space.entry(context).or_default().entry(sequences).or_default();
            line.insert(length, row.positive("time_us")?);
        }
        Ok(())
    }

    /// One layer's attention of chunks and decoding sequences together.
    fn joint(&self, chunk: f64, context: f64, sequences: f64, length: f64) -> f64 {
        // A chunk shorter than any that was timed runs the same kernel.
        let chunk = match self.attention.range(1..).next() {
            Some((least, _)) if chunk > 0.0 => chunk.max(f64::from(*least)),
            _ => chunk,
        };
        blend(&self.attention, chunk, |space| {
            blend(space, context, |map| plane(map, sequences, length))
        })
    }

    fn layers(&self) -> f64 {
        f64::from(self.deployment.model.layers)
    }
}

/// The one chunk that has as many tokens and products as several. Where several
/// short ones have fewer products than one of all their tokens, one with as many
/// products.
fn one_chunk(chunks: &[Chunk]) -> (f64, f64) {
    let (mut new, mut products) = (0.0, 0.0);
    for chunk in chunks {
        let own = f64::from(chunk.new);
        new += own;
        products += own * (f64::from(chunk.context) + own / 2.0);
    }
    if new == 0.0 {
        return (0.0, 0.0);
    }
    let context = products / new - new / 2.0;
    if context >= 0.0 { (new, context) } else { ((2.0 * products).sqrt(), 0.0) }
}

impl Forward for LayerProfile {
    fn tokens(&self, tokens: u32, _graph: bool) -> Breakdown {
        if tokens == 0 {
            return Breakdown::default();
        }
        let Deployment { model, tp, ep, dp, .. } = self.deployment;
        let (many, layers) = (f64::from(tokens), self.layers());
        let sparse = f64::from(model.expert_layers());
        let moe = model.experts.map_or(0.0, |experts| {
            // All replicas' tokens meet all experts, of which this GPU has a part.
            let met = if ep > 1 { many * f64::from(dp) } else { many };
            let hit = experts_hit(met, experts.topk, experts.count) / f64::from(ep);
            sparse * plane(&self.moe, met / f64::from(ep), hit)
        });
        let width = f64::from(model.hidden);
        let mut exchange = 2.0 * layers * self.link.all_reduce(tp, many * width);
        if dp > 1 && ep > 1 {
            exchange += sparse * self.link.exchange(dp, many * width);
        }
        Breakdown {
            gemm: layers * line(&self.gemm, many),
            elementwise: layers * line(&self.small, many) + line(&self.ends, many),
            moe,
            all_reduce: exchange,
            ..Breakdown::default()
        }
    }

    fn sequences(&self, sampled: u32) -> Breakdown {
        if sampled == 0 {
            return Breakdown::default();
        }
        let many = f64::from(sampled);
        let (lm_head, sampler) = (line(&self.lm_head, many), line(&self.sampler, many));
        Breakdown { lm_head, sampler, ..Breakdown::default() }
    }

    fn decode_attention(&self, sequences: u32, context: f64) -> f64 {
        if sequences == 0 {
            return 0.0;
        }
        self.layers() * self.joint(0.0, 0.0, f64::from(sequences), context)
    }

    fn prefill_attention(&self, chunk: Chunk) -> f64 {
        if chunk.new == 0 {
            return 0.0;
        }
        self.layers() * self.joint(f64::from(chunk.new), f64::from(chunk.context), 0.0, 0.0)
    }

    fn joint_attention(&self, work: &Work<'_>) -> Option<(f64, f64)> {
        let (new, context) = one_chunk(work.prefill);
        let alone = self.joint(new, context, 0.0, 0.0);
        if work.decode == 0 {
            return Some((self.layers() * alone, 0.0));
        }
        let sequences = f64::from(work.decode);
        let length = work.decode_context as f64 / sequences;
        let both = self.joint(new, context, sequences, length);
        Some((self.layers() * alone, self.layers() * (both - alone).max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DENSE: &str = "hw,model,tp,layer,tokens,time_us
G 1,Llama-3.1-8B,1,qkv_proj,1,10
G 1,Llama-3.1-8B,1,qkv_proj,3,30
G 1,Llama-3.1-8B,1,layernorm,1,1
G 1,Llama-3.1-8B,1,layernorm,3,1
G 1,Llama-3.1-8B,1,embedding,1,5
G 1,Llama-3.1-8B,2,embedding,1,99
G 2,Llama-3.1-8B,1,embedding,1,99
";
    const SEQUENCES: &str = "hw,model,tp,layer,sequences,time_us
G 1,Llama-3.1-8B,1,lm_head,1,100
G 1,Llama-3.1-8B,1,lm_head,5,120
G 1,Llama-3.1-8B,1,sampler,1,7
";
    const ATTENTION: &str = "hw,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us
G 1,Llama-3.1-8B,1,0,0,1,16,2
G 1,Llama-3.1-8B,1,0,0,4,16,4
G 1,Llama-3.1-8B,1,0,0,1,64,6
G 1,Llama-3.1-8B,1,0,0,4,64,20
G 1,Llama-3.1-8B,1,16,0,0,0,3
G 1,Llama-3.1-8B,1,16,64,0,0,9
G 1,Llama-3.1-8B,1,64,0,0,0,30
G 1,Llama-3.1-8B,1,64,64,0,0,50
G 1,Llama-3.1-8B,1,16,0,1,16,8
G 1,Llama-3.1-8B,1,16,64,1,16,14
G 1,Llama-3.1-8B,1,64,0,1,16,33
G 1,Llama-3.1-8B,1,64,64,1,16,55
";

    fn profile() -> LayerProfile {
        let files =
            LayerFiles { dense: DENSE, per_sequence: SEQUENCES, attention: ATTENTION, moe: "" };
        let deployment = Deployment::new(Architecture::find("Llama-3.1-8B").unwrap(), 1);
        LayerProfile::parse(&files, "g1", deployment, Link::of(64e9)).unwrap().unwrap()
    }

    #[test]
    fn times_are_exact_on_the_points_and_straight_between() {
        let profile = profile();
        let pass = profile.tokens(2, true);
        assert_eq!((pass.gemm, pass.elementwise), (32.0 * 20.0, 32.0 * 2.0 + 5.0));
        let head = profile.sequences(4);
        assert_eq!((head.lm_head, head.sampler), (115.0, 7.0));
        assert_eq!(profile.decode_attention(4, 64.0), 32.0 * 20.0);
        assert_eq!(profile.decode_attention(1, 40.0), 32.0 * 4.0);
        // Beyond the last point, and before the first.
        assert_eq!(profile.decode_attention(1, 88.0), 32.0 * 8.0);
        assert_eq!(profile.decode_attention(1, 3.0), 32.0 * 2.0);
        assert_eq!(profile.prefill_attention(Chunk { new: 16, context: 32 }), 32.0 * 6.0);
        // Shorter than any chunk that was timed: not the decode kernel.
        assert_eq!(profile.prefill_attention(Chunk { new: 2, context: 0 }), 32.0 * 3.0);
    }

    #[test]
    fn a_mixed_batch_is_read_as_one_kernel() {
        let chunk = [Chunk { new: 16, context: 64 }];
        let work = Work {
            prefill: &chunk,
            decode: 1,
            decode_context: 16,
            decode_context_max: 16,
            ..Work::default()
        };
        assert_eq!(profile().mixed_attention(&work), (32.0 * 9.0, 32.0 * 5.0));
        // Two halves: the second looks back on the first, so they are one chunk.
        let halves = [Chunk { new: 8, context: 64 }, Chunk { new: 8, context: 72 }];
        let halves = Work { prefill: &halves, ..work };
        assert_eq!(profile().mixed_attention(&halves), (32.0 * 9.0, 32.0 * 5.0));
        // Two prompts of their own have fewer products than one of both.
        let (new, context) = one_chunk(&[Chunk { new: 8, context: 0 }; 2]);
        assert!((new - 128_f64.sqrt()).abs() < 1e-12 && context == 0.0);
    }

    #[test]
    fn what_is_not_in_the_files_is_told() {
        let deployment = Deployment::new(Architecture::find("Llama-3.1-8B").unwrap(), 1);
        let files =
            LayerFiles { dense: DENSE, per_sequence: SEQUENCES, attention: ATTENTION, moe: "" };
        let parse = |files: &LayerFiles<'_>, hardware, deployment| {
            LayerProfile::parse(files, hardware, deployment, Link::of(64e9))
        };
        assert!(parse(&files, "g3", deployment).unwrap().is_none());
        let other = Deployment::new(Architecture::find("Qwen3-32B").unwrap(), 1);
        assert!(parse(&files, "g1", other).unwrap().is_none());
        let broken = ATTENTION.replace("64,64,1,16,55", "64,64,1,16,0");
        let files = LayerFiles { attention: &broken, ..files };
        let error = parse(&files, "g1", deployment).unwrap_err().to_string();
        assert!(error.contains("attention: line 13, column time_us"), "{error}");
    }

    #[test]
    fn experts_are_read_by_tokens_and_distinct_experts() {
        let moe = "hw,model,tp,tokens,activated_experts,time_us
G 1,Mixtral-8x7B,1,1,2,10
G 1,Mixtral-8x7B,1,64,4,20
G 1,Mixtral-8x7B,1,64,8,40
";
        let rename = |text: &str| text.replace("Llama-3.1-8B", "Mixtral-8x7B");
        let [dense, per_sequence, attention] = [DENSE, SEQUENCES, ATTENTION].map(rename);
        // The same on two GPUs.
        let twice = |text: String| {
            let rows = text.split_once('\n').unwrap().1.replace("B,1,", "B,2,");
            text + &rows
        };
        let [dense, per_sequence, attention] = [dense, per_sequence, attention].map(twice);
        let files =
            LayerFiles { dense: &dense, per_sequence: &per_sequence, attention: &attention, moe };
        let of = |deployment| {
            let found = LayerProfile::parse(&files, "g1", deployment, Link::of(64e9));
            found.unwrap().unwrap().tokens(64, true)
        };
        let one = Deployment::new(Architecture::find("Mixtral-8x7B").unwrap(), 1);
        assert_eq!(one.model.layers, 32);
        // 64 tokens meet all eight experts.
        assert!((of(one).moe / (32.0 * 40.0) - 1.0).abs() < 1e-6);
        // Split in two: half the time of a whole one, and a sum over the GPUs.
        let split = of(Deployment { tp: 2, ..one });
        assert!((split.moe / (32.0 * 20.0) - 1.0).abs() < 1e-6 && split.all_reduce > 0.0);
        // Shared out over two ranks: half of the experts, met by both ranks' tokens.
        let shared = of(Deployment { dp: 2, ep: 2, ..one });
        assert!((shared.moe / (32.0 * 20.0) - 1.0).abs() < 1e-6);
        let exchange = 32.0 * Link::of(64e9).exchange(2, 64.0 * 4_096.0);
        assert!((shared.all_reduce - exchange).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn longer_contexts_never_take_less(n in 1_u32..9, a in 0.0..500.0, more in 0.0..500.0) {
            let profile = profile();
            prop_assert!(profile.decode_attention(n, a + more) >= profile.decode_attention(n, a));
        }
    }
}
