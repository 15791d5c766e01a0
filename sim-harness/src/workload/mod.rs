//! Requests to send: when, how long, with which cap.
//!
//! Arrivals and lengths are independent: lengths come from a published trace
//! or distribution, arrivals from the trace's own times or from a Poisson
//! process at a rate that the caller names.

mod arrivals;
mod caps;
mod lengths;
mod rates;
mod scale;
mod sessions;
mod stream;
mod trace;

pub use arrivals::{compress, poisson};
pub use caps::{CapPolicy, LADDER_NONE_SHARE, LADDER_STEPS, apply_caps};
pub use lengths::{
    AGENT_HEAVY, AZURE_2023, Cdf, LMSYS_CHAT_1M, LengthError, Lengths, NAMED, Split,
};
pub use rates::Rates;
pub use scale::{ScaledRow, ScaledRows, mean_rate, mix};
pub use sessions::{SESSIONS_HEADER, Turn, parse_sessions};
pub use stream::{TraceReader, TraceRequest, parse_rows};
pub use trace::{Trace, TraceError, parse_azure_csv, parse_mooncake_jsonl, parse_trace};

use crate::rng::Pcg;

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it is sent: nanoseconds from the workload's start.
    pub arrival: u64,
    /// Tokens of the whole prompt, the chat template included. At least 1.
    pub input_tokens: u32,
    /// Tokens that the model wants to produce if nothing stops it. At least 1.
    pub output_tokens: u32,
    /// The client's `max_tokens`, if it names one.
    pub cap: Option<u32>,
}

// Streams of the seed: a change in one draw leaves the others alone.
const STREAM_ARRIVALS: u64 = 1;
const STREAM_LENGTHS: u64 = 2;
const STREAM_CAPS: u64 = 3;

/// Draws `count` requests: lengths from a distribution, arrivals from a Poisson
/// process of `rate` requests a second (see [`poisson`] for its range). No caps
/// yet: see [`apply_caps`].
pub fn synthesize(lengths: &Lengths, count: usize, rate: f64, seed: u64) -> Vec<Request> {
    let mut rng = Pcg::new(seed, STREAM_LENGTHS);
    let mut requests: Vec<Request> = (0..count)
        .map(|_| {
            let (input_tokens, output_tokens) = lengths.draw(&mut rng);
            Request { arrival: 0, input_tokens, output_tokens, cap: None }
        })
        .collect();
    poisson(&mut requests, rate, seed);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_do_not_depend_on_the_rate_nor_arrivals_on_the_lengths() {
        let slow = synthesize(&AZURE_2023, 500, 1.0, 7);
        let fast = synthesize(&AZURE_2023, 500, 50.0, 7);
        let other = synthesize(&LMSYS_CHAT_1M, 500, 50.0, 7);
        let lengths = |r: &[Request]| -> Vec<(u32, u32)> {
            r.iter().map(|r| (r.input_tokens, r.output_tokens)).collect()
        };
        let arrivals = |r: &[Request]| -> Vec<u64> { r.iter().map(|r| r.arrival).collect() };
        assert_eq!(lengths(&slow), lengths(&fast));
        assert_ne!(lengths(&fast), lengths(&other));
        assert_eq!(arrivals(&fast), arrivals(&other));
        assert_ne!(arrivals(&slow), arrivals(&fast));
    }

    #[test]
    fn a_seed_fixes_everything_and_another_changes_it() {
        assert_eq!(synthesize(&AZURE_2023, 50, 5.0, 1), synthesize(&AZURE_2023, 50, 5.0, 1));
        assert_ne!(synthesize(&AZURE_2023, 50, 5.0, 1), synthesize(&AZURE_2023, 50, 5.0, 2));
    }
}
