//! Sums over the GPUs of a node.

use super::form::{Basis, OWN};
use super::gpu::Gpu;

/// What an all-reduce asks of the GPU and its links.
pub(super) fn basis(gpu: &Gpu, gpus: u32, elements: u64, graph: bool) -> Basis {
    let gpus = f64::from(gpus.max(1));
    let bytes = elements.max(1) as f64 * 2.0;
    // Everybody reads everybody's, or halves twice.
    let once = (gpus - 1.0) * bytes / gpu.link * 1e6;
    let twice = 2.0 * (gpus - 1.0) / gpus * bytes / gpu.link * 1e6;
    let log = |value: f64| libm::log2(value.max(1e-9));
    let mut own = [0.0; OWN];
    let features = [
        f64::from(u8::from(graph)),
        gpus,
        log(bytes),
        log(once),
        log(twice),
        log(bytes / gpu.l2),
        f64::from(u8::from(gpu.has_switch())),
    ];
    for (slot, value) in own.iter_mut().zip(features) {
        *slot = value;
    }
    Basis {
        compute: 0.0,
        memory: twice.min(once),
        cache: twice.min(once),
        resident: bytes / gpu.l2,
        latency: gpu.cycles(3000.0 * (gpus - 1.0)),
        extra: if graph { 0.0 } else { 12.0 },
        roofline: twice,
        own,
        ..Basis::default()
    }
}
