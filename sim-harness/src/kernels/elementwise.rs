//! Passes over memory: norms, rotary embedding, activations, sampling.

use super::form::hit_share;
use super::gpu::Gpu;

/// Cycles from start to end of a pass over next to nothing: 1.9 µs on an RTX
/// 4090 and 2.4 µs on an RTX PRO 6000 in the layer profiles of LLMServingSim
/// (<https://github.com/casys-kaist/LLMServingSim>).
const FLOOR: f64 = 5500.0;
/// Share of the bandwidth that a pass reaches.
const SHARE: f64 = 0.85;
/// Share of the L2 that the output of the kernel before may fill and still be
/// there; the pass writes as much again.
const KEPT: f64 = 0.6;

/// Microseconds for so many bytes read and written.
pub(super) fn micros(gpu: &Gpu, bytes: u64) -> f64 {
    let bytes = bytes as f64;
    let hit = hit_share(bytes / gpu.l2 / KEPT);
    let seconds = bytes * (hit / gpu.l2_bandwidth() + (1.0 - hit) / gpu.bandwidth) / SHARE;
    gpu.cycles(FLOOR) + seconds * 1e6
}
