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
}

/// Expected load of one of `moe.ep` GPUs.
pub(super) fn load(moe: &Moe, routing: Routing) -> Load {
    let [tokens, topk, experts, ep] =
        [moe.tokens, moe.topk, moe.experts, moe.ep].map(|size| f64::from(size.max(1)));
    let topk = topk.min(experts);
    let local = (experts / ep).max(1.0);
    if routing == Routing::Balanced {
        // Laid out one after the other.
        let assigned = tokens * topk / ep;
        let distinct = (tokens * topk).min(local);
        let each = (assigned / distinct).max(1.0);
        let padded = distinct * libm::ceil(each / BLOCK) * BLOCK;
        return Load { distinct, padded, busiest: each };
    }
    let exponent = routing.exponent();
    let groups = f64::from(GROUPS).min(local);
    let count = libm::round(groups) as u32;
    let share = |group: u32| libm::pow((f64::from(group) + 0.5) / groups + 0.5 / local, -exponent);
    let sum: f64 = (0..count).map(share).sum();
    let mut load = Load { distinct: 0.0, padded: 0.0, busiest: 0.0 };
    for group in 0..count {
        // Probability that one token picks a certain expert of the group.
        let picked = (topk * share(group) / sum * groups / experts).min(1.0);
        let hit = 1.0 - libm::pow(1.0 - picked, tokens);
        let each = tokens * picked / hit.max(1e-9);
        let members = local / groups;
        load.distinct += members * hit;
        load.padded += members * hit * libm::ceil(each / BLOCK) * BLOCK;
        load.busiest = load.busiest.max(each);
    }
    load.distinct = load.distinct.max(1.0);
    load.padded = load.padded.max(BLOCK);
    load
}

/// What the experts ask of the GPU.
pub(super) fn basis(gpu: &Gpu, moe: &Moe, routing: Routing) -> Basis {
    let [tokens, hidden, width, topk, experts, tp, ep] =
        [moe.tokens, moe.hidden, moe.intermediate, moe.topk, moe.experts, moe.tp, moe.ep]
            .map(|size| f64::from(size.max(1)));
    let width = (width / tp).max(1.0);
    let local = (experts / ep).max(1.0);
    let Load { distinct, padded, busiest } = load(moe, routing);
    let eight = moe.precision != Precision::Bf16;
    let bytes = if eight { 1.0 } else { 2.0 };
    let peak = gpu.peak(moe.precision);
    let assigned = tokens * topk / ep;
    let weights = 3.0 * hidden * width * distinct * bytes;
    let acts = assigned * (2.0 * hidden + 3.0 * width) * 2.0;
    let traffic = weights + acts;
    let compute = 6.0 * hidden * width * padded / peak * 1e6;
    let rows = padded / BLOCK;
    let (first, second) = (rows * 2.0 * width / BLOCK / gpu.sms, rows * hidden / BLOCK / gpu.sms);
    let cycles = (libm::ceil(first) * hidden + libm::ceil(second) * width) / BLOCK * 100.0;
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
