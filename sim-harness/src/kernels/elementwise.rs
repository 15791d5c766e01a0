//! Passes over memory: norms, rotary embedding, activations, sampling.

use super::gpu::Gpu;

/// Cycles from start to end of a pass over nothing.
const FLOOR: f64 = 3000.0;
/// Share of the bandwidth that a pass reaches.
const SHARE: f64 = 0.85;

/// Microseconds for so many bytes read and written.
pub(super) fn micros(gpu: &Gpu, bytes: u64) -> f64 {
    let bytes = bytes as f64;
    // What the kernel before has just written is still in the L2.
    let bandwidth =
        if bytes < 0.5 * gpu.l2 { gpu.l2_bandwidth().max(gpu.bandwidth) } else { gpu.bandwidth };
    gpu.cycles(FLOOR) + bytes / (SHARE * bandwidth) * 1e6
}
