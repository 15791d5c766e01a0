//! Attention of prompts and of new tokens.

use super::form::{Basis, OWN};
use super::gpu::Gpu;
use super::{DecodeAttention, Precision, PrefillAttention};

/// Keys that a block works on at a time.
const BLOCK: f64 = 128.0;

fn log(value: f64) -> f64 {
    libm::log2(value.max(1e-9))
}

fn element_bytes(precision: Precision) -> f64 {
    if precision == Precision::Bf16 { 2.0 } else { 1.0 }
}

/// Blocks of keys, in halves.
fn half_blocks(keys: f64) -> f64 {
    libm::ceil(keys / BLOCK * 2.0) / 2.0
}

/// Attention of new prompt tokens over what was computed before and, up to
/// themselves, over each other.
pub(super) fn prefill(gpu: &Gpu, shape: &PrefillAttention) -> Basis {
    let [batch, new, heads, kv, dim] =
        [shape.batch, shape.new, shape.heads, shape.kv_heads, shape.head_dim]
            .map(|size| f64::from(size.max(1)));
    let context = f64::from(shape.context);
    let group = (heads / kv).max(1.0);
    let narrow = shape.kv != Precision::Bf16;
    let before = half_blocks(context);
    // Blocks of rows × blocks of keys; a block of rows is of one head.
    let height = gpu.attention_rows();
    let columns = libm::ceil(new / height);
    let whole = libm::floor(new / height);
    let rest = new - whole * height;
    let part = height / BLOCK;
    let triangle = part * whole * (whole + 1.0) / 2.0
        + if rest > 0.0 { whole * part + half_blocks(rest) } else { 0.0 };
    let pairs = batch * heads * (columns * before + triangle);
    let blocks = batch * heads * columns;
    let pair_flops = 4.0 * height * BLOCK * dim;
    let per_sm = gpu.bf16 / gpu.sms;
    let longest =
        (before + (whole * part + half_blocks(rest)).max(triangle / columns)) * pair_flops / per_sm
            * 1e6;
    let load = blocks / gpu.sms;
    let waves = libm::ceil(load);
    // Blocks of like length run in whole waves; those of the causal triangle
    // fill each other's gaps, and wait for the longest. 8-bit keys and values
    // are multiplied as bfloat16.
    let alike = before / (before + triangle / columns);
    let compute = pairs * pair_flops / gpu.bf16 * 1e6 * (1.0 + alike * (waves / load - 1.0));
    let queries = batch * new * heads * dim * 2.0 * 2.0;
    let keys = batch * (context * element_bytes(shape.kv) + new * 2.0) * kv * dim * 2.0;
    let traffic = queries + keys;
    // As if the heads of a group shared blocks of rows.
    let packed = batch * kv * libm::ceil(new * group / height) / gpu.sms;
    let packed_pairs =
        batch * kv * (libm::ceil(new * group / height) * (before + triangle / columns));
    let exact = 4.0 * batch * heads * dim * new * (context + f64::midpoint(new, 1.0));
    let own: [f64; OWN] = [
        f64::from(u8::from(narrow)),
        log(batch),
        log(new),
        log(heads),
        log(kv),
        log(group),
        log(batch * heads),
        log(batch * kv),
        log(batch * new),
        log(load),
        waves / load,
        log(longest / compute),
        log(compute / (traffic / gpu.bandwidth * 1e6)),
        log(packed_pairs / pairs),
        heads % 8.0,
        log(new * group),
        log(exact / (pairs * pair_flops)),
        log(traffic / gpu.l2),
        packed,
        libm::ceil(packed) / packed,
    ];
    Basis {
        compute,
        memory: traffic / gpu.bandwidth * 1e6,
        cache: traffic / gpu.l2_bandwidth() * 1e6,
        resident: traffic / gpu.l2,
        latency: longest * (1.0 - alike) + gpu.cycles(1000.0 * waves),
        extra: 0.0,
        roofline: (exact / gpu.bf16 * 1e6).max(traffic / gpu.bandwidth * 1e6),
        own,
        ..Basis::default()
    }
}

/// Attention of one new token a sequence over its context.
pub(super) fn decode(gpu: &Gpu, shape: &DecodeAttention) -> Basis {
    let [batch, heads, kv, dim] = [shape.batch, shape.heads, shape.kv_heads, shape.head_dim]
        .map(|size| f64::from(size.max(1)));
    let context = shape.context.max(1.0);
    let group = (heads / kv).max(1.0);
    let bytes = element_bytes(shape.kv);
    let cached = batch * context * kv * dim * 2.0 * bytes;
    let traffic = cached + batch * heads * dim * 2.0 * 2.0;
    let blocks = batch * kv;
    // A sequence is split so that the blocks fill the SMs.
    let most = libm::ceil(context / BLOCK).max(1.0);
    let splits = libm::floor(gpu.sms / blocks).clamp(1.0, most);
    let load = blocks * splits / gpu.sms;
    let waves = libm::ceil(load);
    let each = libm::ceil(context / splits);
    // Rows are padded to what the kernel's tensor-core instruction, or its
    // smallest block, takes.
    let narrow = shape.kv != Precision::Bf16;
    let height = if narrow && !gpu.is_asynchronous() { 16.0 } else { 64.0 };
    let rows = libm::ceil(group / height) * height;
    let compute = 4.0 * batch * kv * rows * context * dim / gpu.bf16 * 1e6;
    let merge = if splits > 1.0 { 1.0 } else { 0.0 };
    let own: [f64; OWN] = [
        f64::from(u8::from(narrow)),
        log(batch),
        log(context),
        log(heads),
        log(kv),
        log(group),
        log(batch * heads),
        log(blocks),
        log(splits),
        log(each),
        log(load),
        log(waves),
        waves / load,
        log(traffic / gpu.l2),
        heads % 8.0,
        log(batch * context),
        log(compute / (traffic / gpu.bandwidth * 1e6)),
        log(most),
        libm::ceil(blocks / gpu.sms) / (blocks / gpu.sms),
        log(splits * kv),
    ];
    Basis {
        compute,
        memory: traffic / gpu.bandwidth * 1e6,
        cache: traffic / gpu.l2_bandwidth() * 1e6,
        resident: cached / gpu.l2,
        // A wave starts, waits for its first keys, and writes; then blocks of
        // keys one after the other.
        latency: gpu.cycles(waves * (6000.0 + 250.0 * (each / BLOCK)) + 2000.0 * merge),
        extra: 0.0,
        roofline: (4.0 * batch * heads * context * dim / gpu.bf16 * 1e6)
            .max(traffic / gpu.bandwidth * 1e6),
        own,
        ..Basis::default()
    }
}
