//! Routed experts: which of them are hit decides what is read.

use super::form::{Basis, OWN};
use super::gpu::Gpu;
use super::sweep::Routing;
use super::{Moe, Precision};

/// Tokens of an expert that a block works on at a time.
const BLOCK: f64 = 64.0;
/// Experts are taken in so many groups of like popularity.
const GROUPS: u32 = 32;

/// What the routing makes of a batch on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Distinct experts that get a token.
    pub(super) distinct: f64,
    /// Tokens, each expert's rounded up to whole blocks.
    pub(super) padded: f64,
    /// Tokens of the busiest expert.
    pub(super) busiest: f64,
    /// Tokens of all, one counted for each expert it goes to.
    pub(super) assigned: f64,
}

/// Expected load of one of `moe.ep` GPUs.
pub(super) fn load(moe: &Moe, routing: Routing) -> Load {
    let [tokens, topk, experts, ep] =
        [moe.tokens, moe.topk, moe.experts, moe.ep].map(|size| f64::from(size.max(1)));
    let topk = topk.min(experts);
    let local = (experts / ep).max(1.0);
    if routing == Routing::Balanced {
        // A token's experts are spread evenly over all.
        let assigned = tokens * topk / ep;
        let distinct = assigned.clamp(1.0, local);
        let each = (assigned / distinct).max(1.0);
        let padded = distinct * libm::ceil(each / BLOCK) * BLOCK;
        return Load { distinct, padded, busiest: each, assigned };
    }
    let popularity = Popularity::new(routing.exponent(), tokens, topk, experts);
    let groups = f64::from(GROUPS).min(local);
    let count = libm::round(groups) as u32;
    let loads: Vec<f64> = (0..count)
        .map(|group| popularity.at((f64::from(group) + 0.5) / f64::from(count)))
        .collect();
    let mean = loads.iter().sum::<f64>() / f64::from(count);
    let variance =
        loads.iter().map(|load| (load - mean) * (load - mean)).sum::<f64>() / f64::from(count);
    // The time is that of the busiest GPU: the largest of `ep` sums of `local`
    // loads, in standard deviations of one of them.
    let above = match moe.ep {
        0 | 1 => 0.0,
        2 | 3 => 0.56,
        4..=7 => 1.03,
        _ => 1.42,
    };
    let spread = libm::sqrt(variance / local) / mean;
    let scale = tokens * topk / experts / mean * (1.0 + above * spread).min(ep);
    let mut load = Load { distinct: 0.0, padded: 0.0, busiest: 0.0, assigned: 0.0 };
    for each in loads {
        let each = (each * scale).min(tokens);
        // Loads are whole numbers; those near a half are taken in part.
        let hit = (1.5 * each - 0.25).clamp(0.0, 1.0);
        let members = local / f64::from(count);
        load.distinct += members * hit;
        load.padded += members * hit * libm::ceil((each / BLOCK).max(1e-9)) * BLOCK;
        load.assigned += members * each;
        load.busiest = load.busiest.max(each);
    }
    load.distinct = load.distinct.clamp(1.0, (tokens * topk).max(1.0));
    load.padded = load.padded.max(BLOCK);
    load
}

/// Loads of the experts as the sweeps draw them: by a power law between two
/// bounds. (At exponent 1 the logarithm of a load is uniform.)
struct Popularity {
    low: f64,
    high: f64,
    /// One minus the exponent, never 0.
    power: f64,
}

impl Popularity {
    fn new(exponent: f64, tokens: f64, topk: f64, experts: f64) -> Self {
        let many = tokens * topk > experts;
        let (low, high) = if many { (1.0, (0.8 * tokens).max(2.0)) } else { (0.01, 2.0) };
        let power = 1.0 - exponent;
        let power = if power.abs() < 1e-3 { -1e-3 } else { power };
        Self { low: libm::pow(low, power), high: libm::pow(high, power), power }
    }

    /// The load that this share of the experts stays below, up to a factor.
    fn at(&self, share: f64) -> f64 {
        libm::pow(self.low + (self.high - self.low) * share, 1.0 / self.power)
    }
}

/// What the experts ask of the GPU.
pub(super) fn basis(gpu: &Gpu, moe: &Moe, routing: Routing) -> Basis {
    let [tokens, hidden, width, topk, experts, tp, ep] =
        [moe.tokens, moe.hidden, moe.intermediate, moe.topk, moe.experts, moe.tp, moe.ep]
            .map(|size| f64::from(size.max(1)));
    let width = (width / tp).max(1.0);
    let local = (experts / ep).max(1.0);
    let Load { distinct, padded, busiest, assigned } = load(moe, routing);
    let eight = moe.precision != Precision::Bf16;
    let bytes = if eight { 1.0 } else { 2.0 };
    let peak = gpu.peak(moe.precision);
    let weights = 3.0 * hidden * width * distinct * bytes;
    let acts = assigned * (2.0 * hidden + 3.0 * width) * 2.0;
    let traffic = weights + acts;
    let rows = padded / BLOCK;
    let first = rows * 2.0 * width / BLOCK / gpu.sms;
    let second = rows * hidden / BLOCK / gpu.sms;
    // The first product has twice the work of the second; each is done in whole
    // waves.
    let compute = 2.0 * hidden * width * padded / peak
        * 1e6
        * (2.0 * libm::ceil(first) / first + libm::ceil(second) / second);
    // One block after the other along the inner dimensions.
    let cycles = (hidden + width) / BLOCK * 100.0;
    let log = |value: f64| libm::log2(value.max(1e-9));
    let own: [f64; OWN] = [
        match moe.precision {
            Precision::Bf16 => 0.0,
            Precision::Fp8 => 1.0,
            Precision::Fp8Block => 2.0,
        },
        log(tokens),
        log(hidden),
        log(width),
        topk,
        log(experts),
        log(tp),
        log(ep),
        routing.exponent(),
        log(local),
        log(assigned),
        log(distinct),
        log(assigned / distinct),
        log(hidden * width),
        log(first),
        log(busiest),
        log(compute / (traffic / gpu.bandwidth * 1e6)),
        log(moe.intermediate.into()),
        log(compute),
        libm::ceil(first) / first,
    ];
    Basis {
        compute,
        memory: traffic / gpu.bandwidth * 1e6,
        cache: traffic / gpu.l2_bandwidth() * 1e6,
        resident: weights / gpu.l2,
        latency: gpu.cycles(cycles),
        extra: if eight { assigned * hidden * 3.0 / gpu.bandwidth * 1e6 } else { 0.0 },
        roofline: (6.0 * hidden * width * assigned / peak * 1e6).max(traffic / gpu.bandwidth * 1e6),
        own,
        ..Basis::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moe(tokens: u32, ep: u32) -> Moe {
        Moe {
            tokens,
            hidden: 2048,
            intermediate: 768,
            topk: 8,
            experts: 128,
            tp: 1,
            ep,
            precision: Precision::Bf16,
        }
    }

    #[test]
    fn experts_are_hit_one_by_one_until_all_are() {
        let distinct = |tokens, routing| load(&moe(tokens, 1), routing).distinct;
        assert_eq!(distinct(1, Routing::Balanced), 8.0);
        assert_eq!(distinct(4, Routing::Balanced), 32.0);
        assert_eq!(distinct(64, Routing::Balanced), 128.0);
        // 8 tokens × 8 experts that are not all different.
        let some = distinct(8, Routing::PowerLaw(1.01));
        assert!((30.0..60.0).contains(&some), "{some}");
        assert!(distinct(2048, Routing::PowerLaw(1.01)) > 120.0);
        // A token to each expert: one of 8 GPUs has one of them.
        assert_eq!(load(&moe(1, 8), Routing::Balanced).distinct, 1.0);
    }

    #[test]
    fn the_busiest_gpu_has_more_than_its_share() {
        let share = |ep| load(&moe(512, ep), Routing::PowerLaw(1.2)).assigned / (512.0 * 8.0);
        assert!((share(1) - 1.0).abs() < 0.02, "{}", share(1));
        assert!((0.16..0.3).contains(&share(8)), "{}", share(8));
        let even = load(&moe(512, 8), Routing::Balanced).assigned;
        assert_eq!(even, 512.0);
    }
}
