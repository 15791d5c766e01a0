//! Matrix products, the language-model head among them.

use super::Precision;
use super::form::{Basis, OWN};
use super::gpu::Gpu;

/// Rows and columns of the output that one block computes, and what share of
/// the peak a block of this shape reaches.
const TILES: [(f64, f64, f64); 10] = [
    (256.0, 128.0, 1.0),
    (128.0, 256.0, 1.0),
    (128.0, 128.0, 0.93),
    (128.0, 64.0, 0.75),
    (64.0, 128.0, 0.75),
    (64.0, 256.0, 0.8),
    (64.0, 64.0, 0.55),
    (32.0, 128.0, 0.5),
    (32.0, 64.0, 0.4),
    (16.0, 64.0, 0.22),
];

/// What of the peak a large product usually reaches.
const SHARE: f64 = 0.85;

/// Layers that a sweep goes round.
const LAYERS: f64 = 6.0;

/// The best tile and split of the inner dimension.
struct Choice {
    /// Microseconds.
    time: f64,
    tile: usize,
    split: f64,
    waves: f64,
    /// Blocks an SM, not rounded up.
    load: f64,
}

fn choose(gpu: &Gpu, m: f64, n: f64, k: f64, per_cycle: f64) -> Choice {
    let mut best = Choice { time: f64::INFINITY, tile: 0, split: 1.0, waves: 1.0, load: 1.0 };
    for (index, (rows, columns, share)) in TILES.iter().enumerate() {
        let tiles = libm::ceil(m / rows) * libm::ceil(n / columns);
        for split in [1.0, 2.0, 4.0, 8.0, 16.0] {
            if split > 1.0 && k / split < 128.0 {
                break;
            }
            let load = tiles * split / gpu.sms;
            let waves = libm::ceil(load);
            let steps = libm::ceil(k / split / 64.0) * 64.0;
            let one = gpu.cycles(2.0 * rows * columns * steps / (per_cycle * share));
            // Partial sums are written and read once more, in the L2.
            let partial = if split > 1.0 {
                m * n * 4.0 * split * 2.0 / gpu.l2_bandwidth() * 1e6 + gpu.cycles(1500.0)
            } else {
                0.0
            };
            let time = waves * one + partial;
            if time < best.time {
                best = Choice { time, tile: index, split, waves, load };
            }
        }
    }
    best
}

/// What a product of `m × k` and `k × n` asks of the GPU.
pub(super) fn basis(gpu: &Gpu, m: u32, n: u32, k: u32, precision: Precision) -> Basis {
    let [m, n, k] = [m, n, k].map(|size| f64::from(size.max(1)));
    let eight = precision != Precision::Bf16;
    let bytes = if eight { 1.0 } else { 2.0 };
    let peak = gpu.peak(precision);
    let per_cycle = peak / (gpu.sms * gpu.clock);
    let choice = choose(gpu, m, n, k, per_cycle);
    let (rows, columns, _) = TILES.get(choice.tile).copied().unwrap_or((128.0, 128.0, 1.0));
    let compulsory = (m * k + n * k) * bytes + m * n * 2.0;
    // Blocks of one wave share what they read; the next wave reads again.
    let side = libm::sqrt(gpu.sms * rows * columns);
    let again = (m * n * k * bytes * 2.0 / side - (m * k + n * k) * bytes).max(0.0);
    let traffic = compulsory + 0.5 * again;
    let to_micros = 1e6 / gpu.bandwidth;
    // Inputs are read wide and written narrow, one block a row, by a kernel of
    // its own.
    let extra = if eight { m * k * 3.0 * to_micros + 0.85 * m / gpu.sms + 2.0 } else { 0.0 };
    let sustained = 2.0 * m * n * k / (peak * (gpu.sustained() / SHARE).min(1.0)) * 1e6;
    let latency = gpu.cycles(k / choice.split / 64.0 * 60.0);
    let log = |value: f64| libm::log2(value.max(1e-9));
    let load = |rows: f64, columns: f64| libm::ceil(m / rows) * libm::ceil(n / columns) / gpu.sms;
    let [large, wide, middle, small] =
        [load(256.0, 128.0), load(128.0, 256.0), load(128.0, 128.0), load(64.0, 64.0)];
    let own: [f64; OWN] = [
        f64::from(u8::from(eight)),
        log(m),
        log(n),
        log(k),
        log(m * n),
        log(n * k),
        log(m * k),
        log(n / k),
        log(middle),
        libm::ceil(middle) / middle,
        libm::ceil(large) / large,
        libm::ceil(small) / small,
        choice.tile as f64 * 8.0 + log(choice.split),
        log(choice.waves),
        choice.waves / choice.load,
        log(compulsory / gpu.l2),
        f64::from(u8::from(n % 128.0 == 0.0)),
        log(choice.time / (traffic * to_micros)),
        libm::ceil(wide) / wide,
        log(choice.time / gpu.cycles(1000.0)),
    ];
    Basis {
        compute: choice.time.max(sustained),
        memory: traffic * to_micros,
        cache: traffic / gpu.l2_bandwidth() * 1e6,
        // Sweeps go round a handful of equal layers, so that a layer is found
        // in the L2 again only if all of them fit.
        resident: LAYERS * n * k * bytes / gpu.l2,
        latency,
        extra,
        roofline: (2.0 * m * n * k / peak * 1e6).max(compulsory * to_micros),
        own,
        ..Basis::default()
    }
}
