//! What the host adds to a pass.

use crate::engine::Work;

/// `T = T_gpu + dispatch + max(0, floor − T_gpu) + tail`: the host prepares and
/// launches while the GPU works, so only what exceeds the GPU's time shows; the
/// dispatch and the tail never overlap. Microseconds. Where each figure comes
/// from: `docs/validation.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostTime {
    /// From the end of one pass to the start of the next, at best.
    pub dispatch: f64,
    /// Host work of a step that the GPU hides: schedule, inputs, outputs.
    pub floor: f64,
    /// The same for each sequence of the step.
    pub floor_sequence: f64,
    /// Launches of one layer outside of a whole graph, hidden likewise.
    pub floor_layer: f64,
    /// Host work that the GPU waits for.
    pub tail: f64,
    /// What each layer's sums over GPUs wait for the latest of them, beyond what
    /// sums timed in a loop show.
    pub layer: f64,
    /// What a sequence of the step adds to each layer beyond what kernels timed
    /// with even batches show.
    pub layer_sequence: f64,
}

impl HostTime {
    /// No host at all.
    pub const NONE: Self = Self {
        dispatch: 0.0,
        floor: 0.0,
        floor_sequence: 0.0,
        floor_layer: 0.0,
        tail: 0.0,
        layer: 0.0,
        layer_sequence: 0.0,
    };

    /// vLLM's, with the schedule made while a step runs (0.14 and later) or
    /// between steps, on `gpus` GPUs that split every layer and `ranks` that share
    /// experts.
    pub fn vllm(asynchronous: bool, gpus: u32, ranks: u32) -> Self {
        let tail = match (asynchronous, gpus) {
            (true, _) => 0.0,
            (false, 1) => 500.0,
            (false, _) => 1_500.0,
        };
        // Ranks tell each other their tokens before each step.
        let agree = if ranks > 1 { 300.0 } else { 0.0 };
        Self {
            dispatch: 126.0 + agree,
            floor: 1_000.0,
            floor_sequence: 4.42,
            floor_layer: 32.1,
            tail,
            layer: 2.0 * 3.3 * f64::from(gpus.max(2).ilog2() - 1),
            layer_sequence: 0.35,
        }
    }

    /// Microseconds that it adds to `gpu` microseconds of a pass of `layers`
    /// layers.
    #[inline]
    pub fn added(&self, gpu: f64, work: &Work<'_>, layers: u32, graph: bool) -> f64 {
        let sequences = f64::from(work.decode) + work.prefill.len() as f64;
        let layers = f64::from(layers);
        let launches = if graph { 0.0 } else { self.floor_layer * layers };
        let floor = self.floor + self.floor_sequence * sequences + launches;
        let uneven = layers * (self.layer + self.layer_sequence * sequences);
        self.dispatch + (floor - gpu).max(0.0) + self.tail + uneven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_gpu_does_not_hide_is_added() {
        let host = HostTime {
            dispatch: 1.0,
            floor: 100.0,
            floor_sequence: 2.0,
            floor_layer: 10.0,
            tail: 5.0,
            layer: 0.25,
            layer_sequence: 0.5,
        };
        let work = Work { decode: 10, admitted: 1, ..Work::default() };
        assert_eq!(host.added(500.0, &work, 4, true), 1.0 + 5.0 + 21.0);
        assert_eq!(host.added(50.0, &work, 4, true), 1.0 + 70.0 + 5.0 + 21.0);
        assert_eq!(host.added(50.0, &work, 4, false), 1.0 + 110.0 + 5.0 + 21.0);
        assert_eq!(HostTime::NONE.added(1.0, &work, 4, false), 0.0);
    }
}
