//! Measured kernel times of one GPU, read between their points: the plainest
//! model there is, and a baseline for the others.
//!
//! Times are exact on the points of the sweep. Between them lines are straight
//! in the logarithms; a shape that was not swept takes its nearest neighbours'
//! times, scaled by the work.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    DecodeAttention, Gpu, Kernels, Moe, Precision, PrefillAttention, Routing, Sample, Shape,
};

/// Times of one shape along one axis, in logarithms, in order.
type Line = Vec<(f64, f64)>;
/// Lines of a family by a shape.
type Lines<K> = BTreeMap<K, Line>;
/// Attention by heads, key-value heads, precision.
type AttentionKey = (u32, u32, Precision);

/// Measured times of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// (n, k), precision → time by m.
    gemm: BTreeMap<Precision, Lines<(u32, u32)>>,
    /// Batch → time by length.
    prefill: BTreeMap<AttentionKey, Lines<u32>>,
    /// Batch → time by context.
    decode: BTreeMap<AttentionKey, Lines<u32>>,
    /// (hidden, width, topk, experts, tp, ep) → time by tokens.
    moe: BTreeMap<Precision, Lines<[u32; 6]>>,
    /// GPUs, in a graph → time by elements.
    all_reduce: Lines<(u32, bool)>,
    /// For the passes over memory, which no sweep has.
    gpu: Option<Gpu>,
}

fn ln(x: f64) -> f64 {
    libm::log(x.max(1e-9))
}

/// The logarithm of a line's value: straight between points, prolonged beyond
/// the last, flat before the first.
fn read(line: &[(f64, f64)], x: f64) -> Option<f64> {
    let (first, last) = (line.first()?, line.last()?);
    if line.len() == 1 || x <= first.0 {
        return Some(first.1);
    }
    let next = line.partition_point(|point| point.0 <= x).clamp(1, line.len() - 1);
    let (low, high) = (line.get(next - 1)?, line.get(next)?);
    if x == last.0 {
        return Some(last.1);
    }
    Some(low.1 + (high.1 - low.1) * (x - low.0) / (high.0 - low.0))
}

/// Between two lines of a family whose key is a number.
fn between(lines: &Lines<u32>, key: f64, x: f64) -> Option<f64> {
    let whole = key as u32;
    let low = lines.range(..=whole).next_back().or_else(|| lines.iter().next())?;
    let value = read(low.1, x)?;
    if f64::from(*low.0) >= key {
        return Some(value);
    }
    let here = ln(f64::from(*low.0));
    let Some(high) = lines.range(whole + 1..).next() else {
        // Beyond the last: prolonged by the last two.
        let Some(before) = lines.range(..*low.0).next_back() else { return Some(value) };
        let slope = (value - read(before.1, x)?) / (here - ln(f64::from(*before.0)));
        return Some(value + slope * (ln(key) - here));
    };
    let share = (ln(key) - here) / (ln(f64::from(*high.0)) - here);
    Some(value + (read(high.1, x)? - value) * share)
}

fn sort<K: Ord>(lines: &mut Lines<K>) {
    for line in lines.values_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        line.dedup_by(|a, b| a.0 == b.0);
    }
}

impl Sweep {
    /// Takes what was timed on one GPU.
    pub fn new(gpu: &Gpu, samples: &[Sample]) -> Self {
        let mut sweep = Self { gpu: Some(gpu.clone()), ..Self::default() };
        for Sample { shape, micros } in samples {
            let time = ln(*micros);
            let add = |line: &mut Line, x: f64| line.push((ln(x), time));
            match *shape {
                Shape::Gemm { m, n, k, precision } => {
                    let lines = sweep.gemm.entry(precision).or_default();
                    add(lines.entry((n, k)).or_default(), m.into());
                }
                Shape::Prefill(p) if p.context == 0 => {
                    let lines = sweep.prefill.entry((p.heads, p.kv_heads, p.kv)).or_default();
                    add(lines.entry(p.batch).or_default(), p.new.into());
                }
                Shape::Decode(d) => {
                    let lines = sweep.decode.entry((d.heads, d.kv_heads, d.kv)).or_default();
                    add(lines.entry(d.batch).or_default(), d.context);
                }
                Shape::Moe(m, routing) if routing == Routing::SERVED => {
                    let key = [m.hidden, m.intermediate, m.topk, m.experts, m.tp, m.ep];
                    let lines = sweep.moe.entry(m.precision).or_default();
                    add(lines.entry(key).or_default(), m.tokens.into());
                }
                Shape::AllReduce { gpus, elements, graph } => {
                    add(sweep.all_reduce.entry((gpus, graph)).or_default(), elements as f64);
                }
                Shape::Prefill(_) | Shape::Moe(..) => {}
            }
        }
        sweep.gemm.values_mut().for_each(sort);
        sweep.prefill.values_mut().for_each(sort);
        sweep.decode.values_mut().for_each(sort);
        sweep.moe.values_mut().for_each(sort);
        sort(&mut sweep.all_reduce);
        sweep
    }

    /// Whether anything was read that a step needs.
    pub fn is_empty(&self) -> bool {
        self.gemm.is_empty() || self.decode.is_empty() || self.prefill.is_empty()
    }

    /// Whether all-reduce was measured among so many GPUs.
    pub fn has_all_reduce(&self, gpus: u32) -> bool {
        self.all_reduce.contains_key(&(gpus, true))
    }

    /// Whether experts were measured in this precision.
    pub fn has_moe(&self, precision: Precision) -> bool {
        self.moe.contains_key(&precision)
    }

    /// The lines of the nearest measured heads, and the factor to theirs.
    fn attention(
        family: &BTreeMap<AttentionKey, Lines<u32>>,
        (heads, kv_heads, kv): AttentionKey,
    ) -> Option<(&Lines<u32>, f64)> {
        if let Some(lines) = family.get(&(heads, kv_heads, kv)) {
            return Some((lines, 1.0));
        }
        let far = |key: &AttentionKey| {
            let away = |a: u32, b: u32| {
                let x = ln(f64::from(a) / f64::from(b));
                if x < 0.0 { -x } else { x }
            };
            let other = f64::from(u8::from(key.2 != kv));
            away(key.1, kv_heads) * 2.0 + away(key.0, heads) + 100.0 * other
        };
        let nearest = family.iter().min_by(|a, b| far(a.0).total_cmp(&far(b.0)))?;
        Some((nearest.1, f64::from(heads) / f64::from(nearest.0.0)))
    }
}

impl Kernels for Sweep {
    #[allow(clippy::many_single_char_names, reason = "m, n and k are the field's names")]
    fn gemm(&self, m: u32, n: u32, k: u32, precision: Precision) -> f64 {
        let lines = self.gemm.get(&precision).or_else(|| self.gemm.values().next());
        let Some(lines) = lines else { return 0.0 };
        let x = ln(f64::from(m));
        let key = (n, k);
        if let Some(time) = lines.get(&key).and_then(|line| read(line, x)) {
            return libm::exp(time);
        }
        // A time is a constant and a part that grows with n × k: straight lines
        // along n and along k keep both.
        let around = |axis: &BTreeSet<u32>, x: u32| {
            let low = axis.range(..=x).next_back().or_else(|| axis.iter().next()).copied();
            let high = axis.range(x..).next().or_else(|| axis.iter().next_back()).copied();
            low.zip(high)
        };
        let ns: BTreeSet<u32> = lines.keys().map(|key| key.0).collect();
        let ks: BTreeSet<u32> = lines.keys().map(|key| key.1).collect();
        let (Some((n0, n1)), Some((k0, k1))) = (around(&ns, n), around(&ks, k)) else {
            return 0.0;
        };
        let corner = |n, k| lines.get(&(n, k)).and_then(|line| read(line, x)).map(libm::exp);
        let share = |low: u32, high: u32, x: u32| {
            if high == low { 0.0 } else { f64::from(x - low) / f64::from(high - low) }
        };
        let corners = (corner(n0, k0), corner(n0, k1), corner(n1, k0), corner(n1, k1));
        if let (Some(a), Some(b), Some(c), Some(d)) = corners {
            // Outside of the sweep the nearest edge is scaled.
            let (inner_n, inner_k) = (n.clamp(n0, n1), k.clamp(k0, k1));
            let (u, v) = (share(n0, n1, inner_n), share(k0, k1, inner_k));
            let inner = (a + (b - a) * v) * (1.0 - u) + (c + (d - c) * v) * u;
            let scale = f64::from(n) * f64::from(k) / f64::from(inner_n) / f64::from(inner_k);
            return inner * scale;
        }
        // A sweep with holes: the nearest shape, scaled by its weights.
        let far = |key: &(u32, u32)| {
            let away = |a: u32, b: u32| ln(f64::from(a)) - ln(f64::from(b));
            let (dn, dk) = (away(key.0, n), away(key.1, k));
            dn * dn + 2.0 * dk * dk
        };
        let nearest = lines.iter().min_by(|a, b| far(a.0).total_cmp(&far(b.0)));
        let scaled = nearest.and_then(|(other, line)| {
            let scale = f64::from(n) * f64::from(k) / f64::from(other.0) / f64::from(other.1);
            Some(libm::exp(read(line, x)?) * scale)
        });
        scaled.unwrap_or(0.0)
    }

    fn prefill_attention(&self, shape: &PrefillAttention) -> f64 {
        let key = (shape.heads, shape.kv_heads, shape.kv);
        let Some((lines, scale)) = Self::attention(&self.prefill, key) else { return 0.0 };
        // The length whose causal half has as many products.
        let (new, context) = (f64::from(shape.new), f64::from(shape.context));
        let same = (new * (new + 2.0 * context)).sqrt();
        let time = between(lines, f64::from(shape.batch), ln(same));
        time.map_or(0.0, |time| libm::exp(time) * scale * f64::from(shape.head_dim) / 128.0)
    }

    fn decode_attention(&self, shape: &DecodeAttention) -> f64 {
        let key = (shape.heads, shape.kv_heads, shape.kv);
        let Some((lines, scale)) = Self::attention(&self.decode, key) else { return 0.0 };
        let time = between(lines, f64::from(shape.batch), ln(shape.context.max(1.0)));
        time.map_or(0.0, |time| libm::exp(time) * scale * f64::from(shape.head_dim) / 128.0)
    }

    fn moe(&self, shape: &Moe) -> f64 {
        let lines = self.moe.get(&shape.precision).or_else(|| self.moe.values().next());
        let Some(lines) = lines else { return 0.0 };
        let key = [shape.hidden, shape.intermediate, shape.topk, shape.experts, shape.tp, shape.ep];
        let x = ln(f64::from(shape.tokens));
        if let Some(time) = lines.get(&key).and_then(|line| read(line, x)) {
            return libm::exp(time);
        }
        let far = |other: &[u32; 6]| -> f64 {
            let each = other.iter().zip(&key).map(|(a, b)| {
                let x = ln(f64::from((*a).max(1)) / f64::from((*b).max(1)));
                x * x
            });
            each.sum()
        };
        let nearest = lines.iter().min_by(|a, b| far(a.0).total_cmp(&far(b.0)));
        let Some((other, line)) = nearest else { return 0.0 };
        let weights = |[hidden, width, _, experts, tp, ep]: [u32; 6]| {
            f64::from(hidden) * f64::from(width) * f64::from(experts)
                / f64::from(tp.max(1))
                / f64::from(ep.max(1))
        };
        let scale = weights(key) / weights(*other);
        read(line, x).map_or(0.0, |time| libm::exp(time) * scale)
    }

    fn all_reduce(&self, gpus: u32, elements: u64, graph: bool) -> f64 {
        if gpus <= 1 {
            return 0.0;
        }
        let x = ln(elements as f64);
        let line = self
            .all_reduce
            .get(&(gpus, graph))
            .or_else(|| self.all_reduce.range((gpus, false)..).next().map(|(_, line)| line));
        line.and_then(|line| read(line, x)).map_or(0.0, libm::exp)
    }

    fn elementwise(&self, bytes: u64) -> f64 {
        self.gpu.as_ref().map_or(0.0, |gpu| super::elementwise::micros(gpu, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attention(batch: u32, new: u32, heads: u32) -> PrefillAttention {
        let (kv_heads, head_dim, kv) = (1, 128, Precision::Bf16);
        PrefillAttention { batch, new, context: 0, heads, kv_heads, head_dim, kv }
    }

    fn sweep() -> Sweep {
        let precision = Precision::Bf16;
        let gemm =
            |m, n, micros| Sample { shape: Shape::Gemm { m, n, k: 1_024, precision }, micros };
        let prefill = |new, micros| Sample { shape: Shape::Prefill(attention(1, new, 8)), micros };
        let decode = |batch, context, micros| {
            let (heads, kv_heads, head_dim, kv) = (8, 1, 128, precision);
            let shape = DecodeAttention { batch, context, heads, kv_heads, head_dim, kv };
            Sample { shape: Shape::Decode(shape), micros }
        };
        let reduce = |elements, graph, micros| Sample {
            shape: Shape::AllReduce { gpus: 2, elements, graph },
            micros,
        };
        let samples = [
            gemm(4, 1_024, 20.0),
            gemm(1, 1_024, 10.0),
            gemm(1, 4_096, 40.0),
            gemm(4, 4_096, 80.0),
            prefill(128, 10.0),
            prefill(1_024, 80.0),
            decode(1, 128.0, 10.0),
            decode(1, 1_024.0, 20.0),
            decode(8, 128.0, 30.0),
            decode(8, 1_024.0, 160.0),
            reduce(1_024, true, 5.0),
            reduce(4_096, true, 20.0),
            reduce(1_024, false, 20.0),
        ];
        Sweep::new(&Gpu::named("h100_sxm").unwrap(), &samples)
    }

    fn decode(sweep: &Sweep, batch: u32, context: f64) -> f64 {
        let (heads, kv_heads, head_dim, kv) = (8, 1, 128, Precision::Bf16);
        sweep.decode_attention(&DecodeAttention { batch, context, heads, kv_heads, head_dim, kv })
    }

    #[test]
    fn times_are_exact_on_the_points() {
        let sweep = sweep();
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        near(sweep.gemm(1, 1024, 1024, Precision::Bf16), 10.0);
        near(sweep.gemm(4, 4096, 1024, Precision::Bf16), 80.0);
        near(sweep.gemm(2, 1024, 1024, Precision::Bf16), 200_f64.sqrt());
        near(decode(&sweep, 8, 1024.0), 160.0);
        near(decode(&sweep, 1, 128.0), 10.0);
        near(sweep.all_reduce(2, 2048, true), 10.0);
        near(sweep.all_reduce(2, 1024, false), 20.0);
        assert_eq!(sweep.all_reduce(1, 1024, true), 0.0);
        assert!(sweep.has_all_reduce(2) && !sweep.has_all_reduce(4) && !sweep.is_empty());
    }

    #[test]
    fn an_unmeasured_shape_lies_between_its_neighbours() {
        // A third of the way along n; and outside, in proportion.
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        near(sweep().gemm(1, 2048, 1024, Precision::Bf16), 20.0);
        near(sweep().gemm(1, 8192, 1024, Precision::Bf16), 80.0);
        near(sweep().gemm(1, 2048, 512, Precision::Bf16), 10.0);
        // Twice the heads of the only measured ones.
        assert!((sweep().prefill_attention(&attention(1, 128, 16)) - 20.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn more_work_never_takes_less_time(m in 1_u32..9_000, more in 1_u32..4_000, batch in 1_u32..40) {
            let sweep = sweep();
            let gemm = |m| sweep.gemm(m, 3000, 1024, Precision::Bf16);
            prop_assert!(gemm(m + more) >= gemm(m));
            let (a, b) = (f64::from(m), f64::from(m + more));
            prop_assert!(decode(&sweep, batch, b) >= decode(&sweep, batch, a));
            prop_assert!(decode(&sweep, batch + 1, a) >= decode(&sweep, batch, a));
            prop_assert!(sweep.all_reduce(2, u64::from(m + more), true) >= sweep.all_reduce(2, u64::from(m), true));
        }
    }
}
