//! A step time that is linear in what the step does.

use std::fmt;

use super::{StepTime, Work};

/// The figures. Defaults: Llama-3-8B in bf16 on one H100 (16 GB of weights, 16
/// GFLOP and 131 KB of KV cache a token; 3.35 TB/s at 80 %, 989 TFLOP/s at
/// 50 %, from the data sheet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Every step: reading the weights, launching. Nanoseconds, at least 1.
    pub step_ns: u64,
    /// Each prompt token in a step. Nanoseconds.
    pub prefill_token_ns: u64,
    /// Each decoding sequence in a step. Nanoseconds.
    pub decode_sequence_ns: u64,
    /// Each token of context that a decoding sequence reads. Nanoseconds.
    pub context_token_ns: u64,
}

impl Default for Linear {
    fn default() -> Self {
        Self {
            step_ns: 6_000_000,
            prefill_token_ns: 32_000,
            decode_sequence_ns: 20_000,
            context_token_ns: 49,
        }
    }
}

/// Which figure is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearError {
    /// The field of [`Linear`].
    pub field: &'static str,
    /// The value found. Nanoseconds.
    pub value: u64,
}

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value } = self;
        write!(f, "{field} is {value}; allowed: 0 (step_ns: 1) to {LONGEST_NS}")
    }
}

impl std::error::Error for LinearError {}

/// No step lasts longer than this: far above any real one, and small enough
/// that sums of times cannot overflow within a simulated century.
const LONGEST_NS: u64 = 60_000_000_000;

impl Linear {
    /// Says which figure is out of range, if any.
    pub fn check(&self) -> Result<(), LinearError> {
        for (field, value, least) in [
            ("step_ns", self.step_ns, 1),
            ("prefill_token_ns", self.prefill_token_ns, 0),
            ("decode_sequence_ns", self.decode_sequence_ns, 0),
            ("context_token_ns", self.context_token_ns, 0),
        ] {
            if value < least || value > LONGEST_NS {
                return Err(LinearError { field, value });
            }
        }
        Ok(())
    }
}

impl StepTime for Linear {
    fn step(&self, work: &Work<'_>) -> u64 {
        let prefill: u64 = work.prefill.iter().map(|chunk| u64::from(chunk.new)).sum();
        self.step_ns
            .saturating_add(self.prefill_token_ns.saturating_mul(prefill))
            .saturating_add(self.decode_sequence_ns.saturating_mul(work.decode.into()))
            .saturating_add(self.context_token_ns.saturating_mul(work.decode_context))
            .clamp(1, LONGEST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Chunk;

    #[test]
    fn time_is_what_the_figures_say() {
        let linear = Linear {
            step_ns: 1_000,
            prefill_token_ns: 10,
            decode_sequence_ns: 100,
            context_token_ns: 1,
        };
        let prefill = [Chunk { new: 20, context: 5 }, Chunk { new: 3, context: 0 }];
        let work = Work { prefill: &prefill, decode: 2, decode_context: 70, ..Work::default() };
        assert_eq!(linear.step(&work), 1_000 + 230 + 200 + 70);
        let error = Linear { step_ns: 0, ..linear }.check().unwrap_err().to_string();
        assert!(error.contains("step_ns is 0"), "{error}");
        let slow = Linear { prefill_token_ns: LONGEST_NS, ..linear };
        assert_eq!(slow.step(&work), LONGEST_NS);
    }
}
