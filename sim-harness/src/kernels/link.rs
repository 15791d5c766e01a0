//! Exchanges between GPUs where none was timed.

/// How GPUs reach each other where no exchange was timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Microseconds of the smallest exchange.
    pub latency: f64,
    /// Bytes a second that a ring reaches, one direction.
    pub bandwidth: f64,
}

/// Share of a link's bytes that a sum reaches.
const SUMMED: f64 = 0.56;
/// Bytes a second, one direction, of the PCIe link whose exchanges were timed.
const L40S_LINK: f64 = 32e9;
/// Links from here on are NVLink.
const NVLINK: f64 = 100e9;

impl Link {
    /// From the data sheet's bytes a second, one direction. A sum over two L40S
    /// takes 5.3 µs at least and moves 0.56 of its link's bytes
    /// (`aic_vllm_allreduce`). That is the only pair without NVLink that was
    /// timed, and such pairs go through the host: a faster PCIe link is not taken
    /// to be faster than that one.
    pub fn of(bytes_per_second: f64) -> Self {
        let timed = if bytes_per_second < NVLINK { L40S_LINK } else { f64::INFINITY };
        Self { latency: 5.3, bandwidth: SUMMED * bytes_per_second.min(timed) }
    }

    /// Microseconds of a sum of 2-byte elements.
    pub fn all_reduce(&self, gpus: u32, elements: f64) -> f64 {
        if gpus < 2 {
            return 0.0;
        }
        let ring = 2.0 * f64::from(gpus - 1) / f64::from(gpus);
        self.latency + ring * 2.0 * elements / self.bandwidth * 1e6
    }
}

impl Link {
    /// Microseconds of a gather of every rank's tokens and their routing, and of
    /// the scatter of the results: `elements` 2-byte numbers of one rank, the one
    /// with most tokens, to each other rank and back.
    ///
    /// NCCL's gather and scatter on two L40S (`aic_vllm_nccl`) are, within a
    /// tenth, the less of 6 µs and a third of the link's bytes, and of 23 µs and
    /// 0.64 of them; the routing's gather is 8 µs.
    pub fn exchange(&self, ranks: u32, elements: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let seconds = f64::from(ranks - 1) * 2.0 * elements / self.bandwidth * SUMMED;
        let (small, large) = (6.0 + seconds / 0.33 * 1e6, 23.0 + seconds / 0.64 * 1e6);
        2.0 * small.min(large) + 8.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_l40s_take_what_they_were_timed_at() {
        let link = Link::of(32e9);
        // Elements of both together, microseconds of gather and of scatter.
        for (elements, gather, scatter) in [
            (65_536.0, 12.45, 12.53),
            (524_288.0, 48.51, 47.48),
            (1_048_576.0, 71.79, 72.57),
            (4_194_304.0, 227.6, 233.9),
            (16_777_216.0, 868.0, 901.2),
        ] {
            let found = link.exchange(2, elements / 2.0) - 8.0;
            assert!((found / (gather + scatter) - 1.0).abs() < 0.12, "{elements}: {found}");
        }
        for (elements, sum) in [(1_024.0, 5.28), (262_144.0, 32.1), (4_194_304.0, 449.95)] {
            let found = link.all_reduce(2, elements);
            assert!((found / sum - 1.0).abs() < 0.12, "{elements}: {found}");
        }
        assert_eq!((link.exchange(1, 1e6), link.all_reduce(1, 1e6)), (0.0, 0.0));
        // A faster PCIe link is not taken to be faster; NVLink is.
        assert_eq!(Link::of(64e9), link);
        assert!(Link::of(450e9).exchange(2, 1e6) < 0.7 * link.exchange(2, 1e6));
    }
}
