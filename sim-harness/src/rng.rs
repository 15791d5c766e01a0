//! The simulator's one source of randomness: PCG-XSH-RR 64/32.
//!
//! Source: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
//! Statistically Good Algorithms for Random Number Generation", 2014.

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// A seeded generator. Equal seed and stream give equal numbers everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcg {
    state: u64,
    increment: u64,
}

impl Pcg {
    /// Starts a generator. Two streams of one seed are independent, so that a
    /// change in how many lengths are drawn leaves the arrivals alone.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut pcg = Self { state: 0, increment: (stream << 1) | 1 };
        pcg.next_u32();
        pcg.state = pcg.state.wrapping_add(seed);
        pcg.next_u32();
        pcg
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let xorshifted = (((old >> 18) ^ old) >> 27) as u32;
        xorshifted.rotate_right((old >> 59) as u32)
    }

    /// A number in `0.0 ..= 1.0 - 2^-53`, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        let high = u64::from(self.next_u32()) << 21;
        let low = u64::from(self.next_u32()) >> 11;
        (high | low) as f64 / 9_007_199_254_740_992.0
    }

    /// A whole number in `0 .. bound`, each as likely as the others; 0 when
    /// `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 {
            return 0;
        }
        // Numbers under this limit would make small results a little likelier.
        let limit = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= limit {
                return (product >> 32) as u32;
            }
        }
    }

    /// One of the items, or nothing when there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        items.get(self.below(count) as usize)
    }

    /// True with the given probability, `0.0 ..= 1.0`.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A waiting time with the given mean: exponential, never infinite.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // `1 - unit` is never 0, so the logarithm is finite.
        -mean * libm::log(1.0 - self.unit())
    }

    /// A normal number of mean 0 and deviation 1 (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * libm::log(square) / square).sqrt();
            }
        }
    }

    /// A gamma number of this shape, above 0, and mean 1 (Marsaglia and Tsang,
    /// "A Simple Method for Generating Gamma Variables", 2000). Its coefficient
    /// of variation is `1 / sqrt(shape)`.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        // A small shape is a larger one's, made smaller.
        let (base, boost) = if shape < 1.0 {
            (shape + 1.0, libm::pow(1.0 - self.unit(), 1.0 / shape))
        } else {
            (shape, 1.0)
        };
        let d = base - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            let v = v * v * v;
            if v > 0.0 && libm::log(1.0 - self.unit()) < 0.5 * x * x + d * (1.0 - v + libm::log(v))
            {
                return d * v * boost / shape;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_reference_implementation() {
        // First outputs of the reference demo, `pcg32_srandom(42, 54)`.
        let mut pcg = Pcg::new(42, 54);
        let first: Vec<u32> = (0..6).map(|_| pcg.next_u32()).collect();
        assert_eq!(
            first,
            [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]
        );
    }

    #[test]
    fn below_covers_its_range_and_nothing_else() {
        let mut pcg = Pcg::new(1, 1);
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[pcg.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1_150).contains(&n)), "{seen:?}");
        assert_eq!(pcg.below(0), 0);
    }

    #[test]
    fn exponential_has_the_mean_that_was_asked_for() {
        let mut pcg = Pcg::new(3, 9);
        let sum: f64 = (0..20_000).map(|_| pcg.exponential(5.0)).sum();
        assert!((sum / 20_000.0 - 5.0).abs() < 0.15, "{}", sum / 20_000.0);
    }

    #[test]
    fn gamma_and_normal_have_their_means_and_deviations() {
        let figures = |draw: &mut dyn FnMut() -> f64| {
            let all: Vec<f64> = (0..40_000).map(|_| draw()).collect();
            let mean = all.iter().sum::<f64>() / 40_000.0;
            let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 40_000.0;
            (mean, variance.sqrt())
        };
        let mut pcg = Pcg::new(5, 1);
        let (mean, deviation) = figures(&mut || pcg.normal());
        assert!(mean.abs() < 0.02 && (deviation - 1.0).abs() < 0.02, "{mean} {deviation}");
        for cv in [0.5, 1.0, 2.0, 3.0] {
            let (mean, deviation) = figures(&mut || pcg.gamma(1.0 / (cv * cv)));
            assert!((mean - 1.0).abs() < 0.05, "{cv}: mean {mean}");
            assert!((deviation / cv - 1.0).abs() < 0.05, "{cv}: deviation {deviation}");
        }
    }
}
