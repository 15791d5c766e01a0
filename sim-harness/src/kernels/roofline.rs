//! The plain roofline: the data sheet's peaks, and nothing that a kernel loses.
//!
//! A baseline. Real kernels reach 40 to 90 % of it, and have a floor.

use super::{DecodeAttention, Gpu, Kernels, Moe, Precision, PrefillAttention, Routing, Shape};

/// Kernel times at a GPU's peaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline(pub Gpu);

impl Roofline {
    fn micros(&self, shape: &Shape) -> f64 {
        super::roofline(&self.0, shape)
    }
}

/// Distinct experts that tokens meet when each goes to `topk` of `experts`, all
/// alike likely.
pub fn experts_hit(tokens: f64, topk: u32, experts: u32) -> f64 {
    let experts = f64::from(experts.max(1));
    let missed = libm::pow(1.0 - f64::from(topk).min(experts) / experts, tokens);
    experts * (1.0 - missed)
}

impl Kernels for Roofline {
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
        if gpus < 2 { 0.0 } else { self.micros(&Shape::AllReduce { gpus, elements, graph }) }
    }

    fn elementwise(&self, bytes: u64) -> f64 {
        bytes as f64 / self.0.bandwidth * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_takes_the_longer_of_its_two_limits() {
        let gpu = Roofline(Gpu::named("h100_sxm").unwrap());
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.02, "{a} {b}");
        // One row streams the weights; many rows are products.
        near(gpu.gemm(1, 8_192, 8_192, Precision::Bf16), 2.0 * 8_192.0 * 8_192.0 / 3.35e12 * 1e6);
        let flops = 2.0 * 16_384.0 * 8_192.0 * 8_192.0;
        near(gpu.gemm(16_384, 8_192, 8_192, Precision::Bf16), flops / 989e12 * 1e6);
        near(gpu.gemm(16_384, 8_192, 8_192, Precision::Fp8), flops / 1_978e12 * 1e6);
        assert_eq!(gpu.all_reduce(1, 1_000, true), 0.0);
        assert!((experts_hit(1.0, 8, 128) - 8.0).abs() < 1e-9);
        assert!(experts_hit(64.0, 8, 128) < 128.0 && experts_hit(64.0, 8, 128) > 120.0);
    }
}
