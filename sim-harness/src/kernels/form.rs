//! The analytic form: an additive floor, and a p-norm of compute, memory and
//! latency.
//!
//! ```text
//! time = floor + extra + (computeᵖ + memoryᵖ + latencyᵖ)^(1/p)
//! ```
//!
//! The knee between the bounds is broad, so a norm fits and a maximum does not.
//! Floor and latency are counted in cycles: that is what carries over to
//! another GPU.

use super::gpu::Gpu;
use super::sweep::{Family, Shape};
use super::{attention, comm, gemm, moe};

/// Features of a shape that a correction may look at.
pub(super) const FEATURES: usize = 26;
/// Of these, those that a family defines itself; the others follow from the
/// form's terms.
pub(super) const OWN: usize = 20;

/// What a kernel has to do on a GPU, at data-sheet speed. Microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Basis {
    /// At the peak rate, tiles and waves rounded up.
    pub(super) compute: f64,
    /// The bytes at the bandwidth of the device memory.
    pub(super) memory: f64,
    /// The same bytes at that of the L2.
    pub(super) cache: f64,
    /// What must fit for that, as a share of the L2.
    pub(super) resident: f64,
    /// Steps that wait for each other.
    pub(super) latency: f64,
    /// What comes on top: quantisation of the inputs.
    pub(super) extra: f64,
    /// A thousand cycles.
    pub(super) kilocycle: f64,
    /// The plain roofline: operations at peak or bytes at bandwidth.
    pub(super) roofline: f64,
    /// The family's own features.
    pub(super) own: [f64; OWN],
}

/// Number of constants of a form.
pub(super) const CONSTANTS: usize = 7;

/// The constants of a form, as natural logarithms: floor in thousands of
/// cycles, efficiency of compute and of memory, weight of latency, exponent
/// minus one, efficiency of the L2, weight of the extra.
pub(super) type Constants = [f64; CONSTANTS];

/// The form taken apart. Microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    floor: f64,
    compute: f64,
    memory: f64,
    latency: f64,
    total: f64,
}

/// Share of an access that the L2 serves when this share of it is asked for: a
/// steep switch where it is full.
pub(super) fn hit_share(resident: f64) -> f64 {
    1.0 / (1.0 + libm::pow(resident / 1.05, 24.0))
}

impl Basis {
    /// What the shape asks of the GPU.
    pub(super) fn new(gpu: &Gpu, shape: &Shape) -> Self {
        let mut basis = match shape {
            Shape::Gemm { m, n, k, precision } => gemm::basis(gpu, *m, *n, *k, *precision),
            Shape::Prefill(shape) => attention::prefill(gpu, shape),
            Shape::Decode(shape) => attention::decode(gpu, shape),
            Shape::Moe(shape, routing) => moe::basis(gpu, shape, *routing),
            Shape::AllReduce { gpus, elements, graph } => {
                comm::basis(gpu, *gpus, *elements, *graph)
            }
        };
        basis.kilocycle = gpu.cycles(1000.0);
        basis
    }

    /// With nothing in the L2.
    pub(super) fn evicted(&self) -> Self {
        Self { resident: f64::MAX, ..self.clone() }
    }

    /// The form's value.
    pub(super) fn terms(&self, constants: &Constants) -> Terms {
        let [floor, compute, memory, latency, norm, cache, extra] = constants.map(libm::exp);
        let hit = hit_share(self.resident);
        let floor = floor * self.kilocycle + extra * self.extra;
        let compute = self.compute / compute;
        let memory = hit * self.cache / cache + (1.0 - hit) * self.memory / memory;
        let latency = latency * self.latency;
        let p = 1.0 + norm;
        // The largest is taken out so that no power over- or underflows.
        let top = compute.max(memory).max(latency).max(1e-9);
        let sum = [compute, memory, latency].map(|term| libm::pow(term / top, p));
        let total = floor + top * libm::pow(sum.iter().sum(), 1.0 / p);
        Terms { floor, compute, memory, latency, total }
    }

    /// All features, the terms' shares first: they mean the same on every GPU.
    pub(super) fn features(&self, terms: &Terms) -> [f64; FEATURES] {
        let log = |value: f64| libm::log(value.max(1e-12));
        let share = |term: f64| term / terms.total;
        let mut features = [0.0; FEATURES];
        let generic = [
            log(terms.total / self.kilocycle),
            share(terms.floor),
            log(share(terms.compute).max(1e-4)),
            log(share(terms.memory).max(1e-4)),
            log(share(terms.latency).max(1e-4)),
            log(self.resident.max(1e-4)),
        ];
        for (slot, value) in features.iter_mut().zip(generic.into_iter().chain(self.own)) {
            *slot = value;
        }
        features
    }
}

/// Where [`Basis::features`] has the family's first own feature: its precision.
const PRECISION: usize = FEATURES - OWN;

/// Lets a correction see a bfloat16 kernel.
pub(super) fn mark_as_bf16(features: &mut [f64; FEATURES]) {
    if let Some(feature) = features.get_mut(PRECISION) {
        *feature = 0.0;
    }
}

/// The features that are the logarithm of a size along which a sweep steps.
pub(super) fn axes(family: Family) -> &'static [usize] {
    match family {
        Family::Gemm | Family::GemmFp8Block => &[PRECISION + 1],
        Family::Prefill | Family::Decode => &[PRECISION + 2],
        Family::Moe | Family::MoeFp8 => &[PRECISION + 1],
        Family::AllReduce => &[PRECISION + 2],
    }
}

impl Terms {
    /// Microseconds.
    pub(super) fn total(&self) -> f64 {
        self.total
    }
}

/// Where the constants are before any timing was seen, and how far timings
/// usually move them (standard deviations of the logarithms). Efficiencies are
/// held tight: left free they swallow what belongs to latency, and misprice
/// the next GPU.
pub(super) fn prior(family: Family) -> (Constants, Constants) {
    let (at, width) = match family {
        Family::Gemm => {
            ([3.5, 0.85, 0.85, 1.0, 1.2, 0.6, 1.0], [0.4, 0.10, 0.08, 0.7, 0.5, 0.3, 0.5])
        }
        Family::GemmFp8Block => {
            ([90.0, 0.7, 0.85, 1.0, 2.0, 0.6, 1.0], [0.7, 0.2, 0.1, 0.7, 0.5, 0.3, 0.5])
        }
        Family::Prefill => {
            ([18.0, 0.70, 0.85, 1.5, 1.0, 0.6, 1.0], [0.3, 0.15, 0.08, 0.5, 0.5, 0.3, 0.5])
        }
        Family::Decode => {
            ([14.0, 0.5, 0.88, 1.0, 1.0, 0.7, 1.0], [0.3, 0.3, 0.06, 0.7, 0.5, 0.3, 0.5])
        }
        Family::Moe | Family::MoeFp8 => {
            ([40.0, 0.6, 0.80, 1.0, 1.0, 0.6, 1.0], [0.3, 0.15, 0.1, 0.7, 0.5, 0.3, 0.5])
        }
        Family::AllReduce => {
            ([8.0, 0.7, 0.7, 1.0, 1.0, 0.7, 1.0], [0.5, 0.3, 0.3, 0.7, 0.5, 0.3, 0.7])
        }
    };
    (at.map(libm::log), width)
}
