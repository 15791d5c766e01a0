//! The requests behind points and curves, of which only the means are recorded.
//! How they were made is public; where it is not told, the usual way is taken.

use crate::rng::Pcg;

/// Lengths of one request: prompt and output tokens.
pub(super) type Lengths = (u32, u32);

/// How the requests of a closed-loop point are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loop {
    /// The shortest prompt and the longest, as shares of what is asked for.
    input: (f64, f64),
    /// The same for outputs.
    output: (f64, f64),
    /// Requests for each place.
    rounds: u32,
    /// Of these, how many go before those that count.
    pub(super) warm: u32,
}

impl Loop {
    /// InferenceX: lengths drawn evenly from eight tenths of what is asked for up
    /// to all of it, ten requests for each place, all of which count
    /// (`--random-range-ratio 0.8 --num-prompts 10 × concurrency`, its
    /// `benchmarks/70b_fp8_h100_slurm.sh`).
    pub(super) const INFERENCE_X: Self =
        Self { input: (0.8, 1.0), output: (0.8, 1.0), rounds: 10, warm: 0 };
    /// Any other: lengths as asked for, but outputs a little uneven, so that
    /// requests which start together do not go on together; the start does not
    /// count.
    pub(super) const STEADY: Self =
        Self { input: (1.0, 1.0), output: (0.9, 1.1), rounds: 8, warm: 3 };

    /// The requests of a point.
    pub(super) fn requests(&self, input: u32, output: u32, places: u32) -> Vec<Lengths> {
        let mut rng = Pcg::new(u64::from(input) << 32 | u64::from(output), 0);
        let mut draw = |asked: u32, (least, most): (f64, f64)| {
            let from = (f64::from(asked) * least) as u32;
            let to = (f64::from(asked) * most) as u32;
            (from + (rng.unit() * f64::from(to - from + 1)) as u32).max(1)
        };
        let count = self.rounds * places;
        (0..count).map(|_| (draw(input, self.input), draw(output, self.output))).collect()
    }
}

/// One request of a load curve.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offered {
    /// Seconds from the stage's start.
    pub(super) at: f64,
    /// Which of the distinct prompts.
    pub(super) prompt: usize,
}

/// Distinct prompts of the load curves' data set, and those that begin alike: ten
/// system prompts of 128 tokens with ten questions each, in inference-perf's
/// `demos/kubecon-na-2025/config.yaml`.
pub(super) const PROMPTS: usize = 100;
const ALIKE: usize = 10;
const SYSTEM_TOKENS: u32 = 128;

/// Names of a distinct prompt's blocks of 16 tokens.
pub(super) fn blocks(prompt: usize, tokens: u32) -> Vec<u64> {
    let group = (prompt / ALIKE) as u64;
    let own = prompt as u64;
    let all = u64::from(tokens.div_ceil(16));
    let shared = u64::from(SYSTEM_TOKENS / 16).min(all);
    (0..shared)
        .map(|i| group << 32 | i)
        .chain((shared..all).map(|i| (1 << 62) | own << 32 | i))
        .collect()
}

/// Arrivals of one stage: exponential gaps, as inference-perf's timer draws them,
/// that together take the stage's time; and prompts in turn.
pub(super) fn open_loop(rate: f64, requests: u32) -> Vec<Offered> {
    let mut rng = Pcg::new(requests.into(), 1);
    let mut at = 0.0;
    let mut times = Vec::with_capacity(requests as usize);
    for _ in 0..requests {
        at += -libm::log(1.0 - rng.unit());
        times.push(at);
    }
    let scale = if at > 0.0 { f64::from(requests) / rate / at } else { 0.0 };
    let each = times.into_iter().enumerate();
    each.map(|(index, at)| Offered { at: at * scale, prompt: index % PROMPTS }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lie_between_the_ratio_and_all_of_it() {
        let lengths = Loop::INFERENCE_X.requests(1_000, 100, 64);
        assert_eq!(lengths.len(), 640);
        assert!(lengths.iter().all(|l| (800..=1_000).contains(&l.0) && (80..=100).contains(&l.1)));
        let mean = lengths.iter().map(|l| f64::from(l.0)).sum::<f64>() / 640.0;
        assert!((mean - 900.0).abs() < 8.0, "{mean}");
        let steady = Loop::STEADY.requests(1_000, 100, 4);
        assert!(steady.iter().all(|l| l.0 == 1_000 && (90..=110).contains(&l.1)));
    }

    #[test]
    fn prompts_of_a_group_begin_alike_and_arrivals_have_their_rate() {
        let (a, b, c) = (blocks(0, 200), blocks(1, 200), blocks(10, 200));
        assert_eq!((a.len(), &a[..8]), (13, &b[..8]));
        assert!(a[8..] != b[8..] && a[0] != c[0]);
        let arrivals = open_loop(50.0, 10_000);
        let last = arrivals.last().unwrap().at;
        assert!((last - 200.0).abs() < 1e-6, "{last}");
    }
}
