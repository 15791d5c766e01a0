//! What can be wrong with a replica, on purpose.

use std::fmt;

use serde_json::{Value, json};

use crate::fields::{FieldError, Fields};

/// A fault of one replica. It lasts until another one or none is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Its time passes this many times slower: a hot GPU, a noisy neighbour.
    Slow {
        /// 1 to 1,000,000.
        factor: f64,
    },
    /// Its time stands still: it takes requests, says that it is healthy, and
    /// yields nothing.
    Stalled,
    /// Requests for text get this status.
    Status {
        /// 400 to 599.
        status: u16,
    },
    /// Connections break off in the middle of an answer.
    Reset {
        /// Tokens of an answer that still arrive. An answer that is not streamed
        /// breaks off before its first byte.
        after_tokens: u32,
    },
    /// Its port is closed and its connections are cut; what it had in its cache
    /// is lost.
    Crash,
}

/// The kinds and their fields, for help and errors.
pub const FAULTS: &str = r#"{"kind": "slow", "factor": 4}
{"kind": "stalled"}
{"kind": "status", "status": 503}
{"kind": "reset", "after_tokens": 10}
{"kind": "crash"}"#;

const KINDS: &str = "slow, stalled, status, reset, crash";

impl Fault {
    /// Reads a fault and for how many seconds it lasts, if that is limited.
    pub(super) fn parse(document: &Value) -> Result<(Self, Option<f64>), FieldError> {
        let known = ["kind", "factor", "status", "after_tokens", "seconds"];
        let any = Fields::new("", document, &known)?;
        let kind = any.text("kind")?;
        let only = |own: &str| {
            let known: Vec<&str> =
                ["kind", "seconds", own].into_iter().filter(|f| !f.is_empty()).collect();
            Fields::new("", document, &known)
        };
        let fault = match kind {
            "slow" => {
                let fields = only("factor")?;
                if fields.get("factor").is_none() {
                    return Err(fields.wrong("factor", "a number, 1 to 1000000"));
                }
                Self::Slow { factor: fields.number("factor", 1.0..=1e6, 1.0)? }
            }
            "stalled" => only("").map(|_| Self::Stalled)?,
            "status" => {
                let status = only("status")?.whole("status", 400..=599, None)?;
                Self::Status { status: status as u16 }
            }
            "reset" => {
                let most = u64::from(u32::MAX);
                let tokens = only("after_tokens")?.whole("after_tokens", 0..=most, None)?;
                Self::Reset { after_tokens: tokens as u32 }
            }
            "crash" => only("").map(|_| Self::Crash)?,
            _ => return Err(any.wrong("kind", KINDS)),
        };
        let seconds = match any.get("seconds") {
            None => None,
            Some(_) => Some(any.number("seconds", 0.001..=1e6, 1.0)?),
        };
        Ok((fault, seconds))
    }

    /// The fault as [`FAULTS`] writes it.
    pub(super) fn document(self) -> Value {
        match self {
            Self::Slow { factor } => json!({"kind": "slow", "factor": factor}),
            Self::Stalled => json!({"kind": "stalled"}),
            Self::Status { status } => json!({"kind": "status", "status": status}),
            Self::Reset { after_tokens } => json!({"kind": "reset", "after_tokens": after_tokens}),
            Self::Crash => json!({"kind": "crash"}),
        }
    }

    /// How fast its time passes, 1 being right.
    pub(super) fn rate(self) -> f64 {
        match self {
            Self::Slow { factor } => 1.0 / factor,
            Self::Stalled => 0.0,
            Self::Status { .. } | Self::Reset { .. } | Self::Crash => 1.0,
        }
    }
}

/// The connection is to be broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BreakOff;

impl fmt::Display for BreakOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken off on purpose")
    }
}

impl std::error::Error for BreakOff {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_read_as_it_is_written() {
        for line in FAULTS.lines() {
            let document: Value = serde_json::from_str(line).unwrap();
            let (fault, seconds) = Fault::parse(&document).unwrap();
            assert_eq!(seconds, None);
            assert_eq!(Fault::parse(&fault.document()).unwrap().0, fault, "{line}");
        }
        let limited = json!({"kind": "crash", "seconds": 1.5});
        assert_eq!(Fault::parse(&limited).unwrap(), (Fault::Crash, Some(1.5)));
    }

    #[test]
    fn errors_name_the_field_the_value_and_what_is_allowed() {
        for (document, message) in [
            (json!([]), "the document: found []; allowed: an object"),
            (json!({"kind": "fire"}), &format!("kind: found \"fire\"; allowed: {KINDS}")[..]),
            (json!({"kind": "slow"}), "factor: found absent; allowed: a number, 1 to 1000000"),
            (
                json!({"kind": "slow", "factor": 0}),
                "factor: found 0; allowed: a number, 1 to 1000000",
            ),
            (
                json!({"kind": "status", "status": 200}),
                "status: found 200; allowed: a whole number, 400 to 599",
            ),
            (
                json!({"kind": "crash", "factor": 2}),
                "factor: found an unknown field; allowed: kind, seconds",
            ),
        ] {
            assert_eq!(Fault::parse(&document).unwrap_err().to_string(), message);
        }
    }
}
