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
    /// Weights, keys and values come from the device memory.
    cold: bool,
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
        Self {
            gpu: fit.gpu().clone(),
            sources: vec![Source { fit, weight: 1.0, trust: 1.0 }],
            cold: false,
        }
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
        Self { gpu: gpu.clone(), sources, cold: false }
    }

    /// As in a serving step. A sweep runs the same kernel over and over, and
    /// finds what fits in the L2 there; between two passes of one layer a
    /// server has read all others, and finds nothing.
    #[must_use]
    pub fn serving(self) -> Self {
        Self { cold: true, ..self }
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
        // What a prompt attends to was written just before.
        let cold = self.cold && matches!(family, Family::Gemm | Family::Decode | Family::Moe);
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
            let correction = fit.correction(&features);
            let weight = source.weight(&self.gpu, family);
            let total = if cold { basis.evicted().terms(&constants) } else { terms }.total();
            sum += weight * (libm::log(total) + source.trust * correction);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::shipped;
    use super::*;

    fn known() -> Vec<Model> {
        let fits = shipped();
        let mut models: Vec<Model> = fits.iter().cloned().map(Model::measured).collect();
        models.extend(Gpu::all().iter().map(|gpu| Model::cross(gpu, &fits)));
        models.push(Model::cross(&Gpu::named("b200").unwrap(), &[]));
        models
    }

    #[test]
    fn a_gpu_never_predicts_itself_in_the_cross_tier() {
        let fits = shipped();
        let model = Model::cross(&Gpu::named("h100").unwrap(), &fits);
        assert_eq!(model.sources().collect::<Vec<_>>(), ["a100_sxm", "l40s", "h200_sxm"]);
        let shape = Shape::Gemm { m: 64, n: 4096, k: 4096, precision: Precision::Bf16 };
        let others: Vec<Fit> =
            fits.into_iter().filter(|fit| fit.gpu().name != "h100_sxm").collect();
        assert_eq!(model.micros(&shape), Model::cross(model.gpu(), &others).micros(&shape));
    }

    #[test]
    fn sixteen_times_the_work_takes_longer() {
        let precisions = [Precision::Bf16, Precision::Fp8];
        for model in known() {
            let name = model.gpu().name.clone();
            for precision in precisions {
                let gemm = |m, n| model.gemm(m, n, 4096, precision);
                assert!(gemm(512, 4096) < gemm(8192, 4096), "{name} {precision:?}");
                assert!(gemm(16, 2048) < gemm(16, 32_768), "{name} {precision:?}");
                let shape = PrefillAttention {
                    batch: 1,
                    new: 512,
                    context: 0,
                    heads: 32,
                    kv_heads: 8,
                    head_dim: 128,
                    kv: precision,
                };
                let prefill = |new, context| {
                    model.prefill_attention(&PrefillAttention { new, context, ..shape })
                };
                assert!(prefill(512, 0) < prefill(8192, 0), "{name} {precision:?}");
                assert!(prefill(512, 2048) < prefill(512, 32_768), "{name} {precision:?}");
                let decode = |batch, context| {
                    model.decode_attention(&DecodeAttention {
                        batch,
                        context,
                        heads: 32,
                        kv_heads: 8,
                        head_dim: 128,
                        kv: precision,
                    })
                };
                assert!(decode(8, 4096.0) < decode(128, 4096.0), "{name} {precision:?}");
                assert!(decode(32, 1000.0) < decode(32, 16_000.0), "{name} {precision:?}");
            }
            assert!(model.elementwise(1 << 20) < model.elementwise(1 << 30), "{name}");
            assert!(model.all_reduce(4, 1 << 20, true) < model.all_reduce(4, 1 << 26, true));
            assert_eq!(model.all_reduce(1, 1 << 20, true), 0.0);
        }
    }

    #[test]
    fn a_server_finds_nothing_in_the_cache() {
        let fit = shipped().into_iter().find(|fit| fit.gpu().name == "l40s").unwrap();
        let swept = Model::measured(fit);
        let served = swept.clone().serving();
        let decode = |batch| DecodeAttention {
            batch,
            context: 4096.0,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            kv: Precision::Bf16,
        };
        // 67 MB of keys and values fit in 96 MB; 1 GB does not.
        let seconds = 67e6 / swept.gpu().bandwidth;
        assert!(swept.decode_attention(&decode(4)) < seconds * 1e6);
        assert!(served.decode_attention(&decode(4)) > seconds * 1e6);
        let large = [&swept, &served].map(|model| model.decode_attention(&decode(64)));
        assert!((large[0] / large[1] - 1.0).abs() < 0.01, "{large:?}");
    }

    #[test]
    fn no_kernel_beats_the_hardware() {
        for model in known() {
            let gpu = model.gpu();
            for (m, n, k) in [(8192, 8192, 8192), (16, 16_384, 16_384)] {
                let shape = Shape::Gemm { m, n, k, precision: Precision::Bf16 };
                assert!(model.micros(&shape) > roofline(gpu, &shape), "{} {shape:?}", gpu.name);
            }
        }
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        let size = prop_oneof![0_u32..300, 0_u32..200_000, Just(u32::MAX)];
        let precision =
            prop_oneof![Just(Precision::Bf16), Just(Precision::Fp8), Just(Precision::Fp8Block)];
        let sizes = prop::array::uniform7(size);
        (0_u32..5, sizes, precision, any::<bool>()).prop_map(|(kind, sizes, precision, flag)| {
            let [one, two, three, four, five, tp, ep] = sizes;
            match kind {
                0 => Shape::Gemm { m: one, n: two, k: three, precision },
                1 => Shape::Prefill(PrefillAttention {
                    batch: one,
                    new: two,
                    context: three,
                    heads: four,
                    kv_heads: five,
                    head_dim: tp,
                    kv: precision,
                }),
                2 => Shape::Decode(DecodeAttention {
                    batch: one,
                    context: f64::from(two) / 3.0,
                    heads: four,
                    kv_heads: five,
                    head_dim: tp,
                    kv: precision,
                }),
                3 => {
                    let routing = if flag { Routing::Balanced } else { Routing::SERVED };
                    let moe = Moe {
                        tokens: one,
                        hidden: two,
                        intermediate: three,
                        topk: four,
                        experts: five,
                        tp,
                        ep,
                        precision,
                    };
                    Shape::Moe(moe, routing)
                }
                _ => Shape::AllReduce { gpus: one, elements: u64::from(two) << 20, graph: flag },
            }
        })
    }

    proptest! {
        // Each case asks eighteen models.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_shape_has_a_time(shape in shapes()) {
            thread_local! {
                static MODELS: Vec<Model> = known();
            }
            MODELS.with(|models| for model in models {
                let micros = model.micros(&shape);
                assert!(micros.is_finite() && micros > 0.0, "{}: {micros}", model.gpu().name);
                let roofline = roofline(model.gpu(), &shape);
                assert!(roofline.is_finite() && roofline >= 0.0, "{roofline}");
            });
        }
    }
}
