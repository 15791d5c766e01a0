//! When requests arrive.

use super::{Request, STREAM_ARRIVALS};
use crate::SECOND;
use crate::rng::Pcg;

/// Replaces the arrivals by a Poisson process of `rate` requests a second, in
/// the order of the slice. The first request comes after one waiting time.
///
/// A rate that is not above zero, or not finite, sends all of them at once.
pub fn poisson(requests: &mut [Request], rate: f64, seed: u64) {
    let mut rng = Pcg::new(seed, STREAM_ARRIVALS);
    let mean = if rate > 0.0 && rate.is_finite() { SECOND as f64 / rate } else { 0.0 };
    // Summed as a float: rounding each gap would bias high rates.
    let mut at = 0.0;
    for request in requests {
        at += rng.exponential(mean);
        request.arrival = at as u64;
    }
}

/// Divides every arrival by `speedup`, which must be above zero; otherwise
/// nothing changes.
pub fn compress(requests: &mut [Request], speedup: f64) {
    if speedup > 0.0 && speedup.is_finite() {
        for request in requests {
            request.arrival = (request.arrival as f64 / speedup) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank(count: usize) -> Vec<Request> {
        vec![Request { arrival: 0, input_tokens: 1, output_tokens: 1, cap: None }; count]
    }

    #[test]
    fn poisson_has_the_rate_and_the_spread_of_a_poisson_process() {
        let mut requests = blank(20_000);
        poisson(&mut requests, 10.0, 5);
        let gaps: Vec<f64> = requests
            .windows(2)
            .map(|w| (w[1].arrival - w[0].arrival) as f64 / SECOND as f64)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance =
            gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.1).abs() < 0.003, "mean gap {mean}");
        // The coefficient of variation of exponential gaps is 1.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{}", variance.sqrt() / mean);
    }

    #[test]
    fn no_rate_means_all_at_once() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut requests = blank(3);
            poisson(&mut requests, rate, 5);
            assert!(requests.iter().all(|r| r.arrival == 0));
        }
    }

    #[test]
    fn compress_keeps_the_order() {
        let mut requests = blank(3);
        requests[1].arrival = 10;
        requests[2].arrival = 30;
        compress(&mut requests, 10.0);
        let at: Vec<u64> = requests.iter().map(|r| r.arrival).collect();
        assert_eq!(at, [0, 1, 3]);
        compress(&mut requests, 0.0);
        assert_eq!(requests[2].arrival, 3);
    }
}
