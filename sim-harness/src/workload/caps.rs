//! Which `max_tokens` clients name.
//!
//! No public trace carries caps, so they are a policy of the workload.

use std::str::FromStr;

use super::{Request, STREAM_CAPS};
use crate::rng::Pcg;

/// How the clients choose their caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CapPolicy {
    /// No request names a cap.
    None,
    /// Each cap is the true output length.
    Actual,
    /// A share of [`LADDER_NONE_SHARE`] names none; the others name the
    /// smallest of [`LADDER_STEPS`] that is at least twice the true output.
    #[default]
    Ladder,
}

/// The ladder's share of requests without a cap.
pub const LADDER_NONE_SHARE: f64 = 0.30;

/// The round numbers that people put into `max_tokens`, rising.
pub const LADDER_STEPS: [u32; 6] = [256, 512, 1_024, 2_048, 4_096, 8_192];

impl FromStr for CapPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "actual" => Ok(Self::Actual),
            "ladder" => Ok(Self::Ladder),
            _ => Err(format!("unknown cap policy {text:?}; allowed: none, actual, ladder")),
        }
    }
}

impl CapPolicy {
    /// The cap of a request that will produce so many tokens.
    ///
    /// An output of which no step is the double (above 4,096 tokens) goes
    /// without a cap: a client that expects that much does not cut it off.
    pub fn draw(self, output_tokens: u32, rng: &mut Pcg) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Actual => Some(output_tokens),
            Self::Ladder if rng.chance(LADDER_NONE_SHARE) => None,
            Self::Ladder => {
                let wanted = output_tokens.saturating_mul(2);
                LADDER_STEPS.into_iter().find(|&step| step >= wanted)
            }
        }
    }
}

/// Sets every request's cap.
pub fn apply_caps(requests: &mut [Request], policy: CapPolicy, seed: u64) {
    let mut rng = Pcg::new(seed, STREAM_CAPS);
    for request in requests {
        request.cap = policy.draw(request.output_tokens, &mut rng);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capped(output_tokens: u32, policy: CapPolicy) -> Vec<Option<u32>> {
        let request = Request { arrival: 0, input_tokens: 9, output_tokens, cap: Some(1) };
        let mut requests = vec![request; 1_000];
        apply_caps(&mut requests, policy, 11);
        requests.iter().map(|r| r.cap).collect()
    }

    #[test]
    fn none_and_actual_are_exact() {
        assert!(capped(300, CapPolicy::None).iter().all(Option::is_none));
        assert!(capped(300, CapPolicy::Actual).iter().all(|&c| c == Some(300)));
    }

    #[test]
    fn ladder_takes_the_smallest_step_of_at_least_twice_the_output() {
        for (output, step) in [(1, 256), (128, 256), (129, 512), (512, 1_024), (4_096, 8_192)] {
            let caps = capped(output, CapPolicy::Ladder);
            let none = caps.iter().filter(|c| c.is_none()).count();
            assert!((250..350).contains(&none), "{none} of 1000 without a cap");
            assert!(caps.iter().flatten().all(|&c| c == step), "output {output}");
        }
        assert!(capped(4_097, CapPolicy::Ladder).iter().all(Option::is_none));
    }

    #[test]
    fn a_wrong_name_says_what_is_allowed() {
        assert_eq!("ladder".parse(), Ok(CapPolicy::Ladder));
        let error = "laddr".parse::<CapPolicy>().unwrap_err();
        assert!(error.contains("laddr") && error.contains("none, actual, ladder"), "{error}");
    }
}
