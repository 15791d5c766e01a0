//! Times of kernels from what was fitted: on this GPU, or on others.

use super::fit::{Fit, precision_of};
use super::form::Basis;
use super::gpu::Gpu;
use super::sweep::{Family, Routing, Shape};
use super::{DecodeAttention, Kernels, Moe, Precision, PrefillAttention};

/// How a time was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// From a sweep of that GPU.
    Measured,
    /// From its data sheet and sweeps of other GPUs.
    Cross,
}

/// Kernel times of one GPU.
#[derive(Clone, Debug)]
pub struct Model {
    gpu: Gpu,
    sources: Vec<Source>,
}

#[derive(Clone, Debug)]
struct Source {
    fit: Fit,
    /// Before those that lack a family or precision are left out.
    weight: f64,
    /// Share of the correction that carries over.
    trust: f64,
}

impl Model {
    /// The measured tier.
    pub fn measured(fit: Fit) -> Self {
        Self { gpu: fit.gpu().clone(), sources: vec![Source { fit, weight: 1.0, trust: 1.0 }] }
    }

    /// The cross tier: `gpu` by its data sheet, `others` as fitted. Whatever is
    /// fitted for a GPU of its name is left out.
    pub fn cross(gpu: &Gpu, others: &[Fit]) -> Self {
        let sources = others
            .iter()
            .filter(|fit| fit.gpu().name != gpu.name)
            .map(|fit| {
                let (weight, trust) = likeness(gpu, fit.gpu());
                Source { fit: fit.clone(), weight, trust }
            })
            .collect();
        Self { gpu: gpu.clone(), sources }
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Names of the GPUs whose timings it rests on.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|source| source.fit.gpu().name.as_str())
    }

    /// Time of a kernel. Microseconds. Where no source has the family, the
    /// form at its usual constants.
    pub fn micros(&self, shape: &Shape) -> f64 {
        let basis = Basis::new(&self.gpu, shape);
        let (family, precision) = (shape.family(), precision_of(shape));
        let (mut sum, mut weights) = (0.0, 0.0);
        for source in &self.sources {
            let Some(fit) = source.fit.family(family) else { continue };
            let lent = source.lends(&self.gpu, family, precision);
            let Some(constants) = fit.constants(lent) else { continue };
            let terms = basis.terms(&constants);
            let mut features = basis.features(&terms);
            if lent != precision {
                super::form::mark_as_bf16(&mut features);
            }
            let correction = fit.correction.value(&features);
            let weight = source.weight(&self.gpu, family);
            sum += weight * (libm::log(terms.total()) + source.trust * correction);
            weights += weight;
        }
        if weights > 0.0 {
            return libm::exp(sum / weights);
        }
        basis.terms(&super::form::prior(family).0).total()
    }
}

impl Source {
    /// What its word on a family weighs.
    fn weight(&self, target: &Gpu, family: Family) -> f64 {
        match family {
            // Links count there, not chips.
            Family::AllReduce if self.fit.gpu().has_switch() != target.has_switch() => 1e-6,
            _ => self.weight,
        }
    }

    /// The precision whose constants and correction serve for a target's.
    fn lends(&self, target: &Gpu, family: Family, precision: Precision) -> Precision {
        let stranger = self.fit.gpu().capability != target.capability;
        let has = self.fit.family(family).is_some_and(|fit| fit.constants(precision).is_some());
        // What an 8-bit kernel loses against the 16-bit one is the doing of its
        // software, and does not carry over.
        let faulty = matches!(family, Family::Prefill | Family::MoeFp8);
        if has && !(stranger && faulty) { precision } else { Precision::Bf16 }
    }
}

/// The plain roofline of a kernel: operations at peak or bytes at bandwidth,
/// whichever takes longer. Microseconds.
pub fn roofline(gpu: &Gpu, shape: &Shape) -> f64 {
    Basis::new(gpu, shape).roofline
}

/// How much a source weighs for a target, and how much of its correction is
/// believed.
fn likeness(target: &Gpu, source: &Gpu) -> (f64, f64) {
    if target.capability == source.capability {
        return (1.0, 1.0);
    }
    let same_kernels = target.is_asynchronous() == source.is_asynchronous();
    (if same_kernels { 0.1 } else { 0.03 }, 0.6)
}

impl Kernels for Model {
    fn gemm(&self, m: u32, n: u32, k: u32, precision: Precision) -> f64 {
        self.micros(&Shape::Gemm { m, n, k, precision })
    }

    fn prefill_attention(&self, shape: &PrefillAttention) -> f64 {
        self.micros(&Shape::Prefill(*shape))
    }

    fn decode_attention(&self, shape: &DecodeAttention) -> f64 {
        self.micros(&Shape::Decode(*shape))
    }

    fn moe(&self, shape: &Moe) -> f64 {
        self.micros(&Shape::Moe(*shape, Routing::SERVED))
    }

    fn all_reduce(&self, gpus: u32, elements: u64, graph: bool) -> f64 {
        if gpus < 2 {
            return 0.0;
        }
        self.micros(&Shape::AllReduce { gpus, elements, graph })
    }

    fn elementwise(&self, bytes: u64) -> f64 {
        super::elementwise::micros(&self.gpu, bytes)
    }
}
