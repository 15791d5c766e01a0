//! How a request ended, and what became of it.

use crate::pool::Reading;
use crate::tenant::{Entitlement, Settled};
use crate::usage::{Overflow, Usage};
use std::sync::Arc;

words! {
    /// Why a successful answer taught nothing.
    Missing {
        /// A stream that was not asked for its usage, and gave none.
        NotAsked => "not_asked",
        /// The answer carries none.
        Absent => "absent",
        /// The answer's bytes are not valid JSON.
        Unreadable => "unreadable",
        /// The answer's `content-encoding` is not one that is read.
        Encoded => "encoded",
        /// Decoding the answer would take too much memory.
        EncodedLarge => "encoded_large",
        /// The answer is neither JSON nor server-sent events.
        ContentType => "content_type",
        /// The answer broke off, or the client left, before usage came.
        Aborted => "aborted",
    }
}

/// How a request ended.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The status of an answer that came from upstream; `None` if none came
    /// or if it was a local reply.
    pub status: Option<u16>,
    /// What the answer stated, or why that is not known.
    pub usage: Option<Result<Usage, Missing>>,
    /// A sequence ended at its limit of tokens.
    pub stopped_by_length: bool,
    /// Two sources of usage told different numbers.
    pub disagreed: bool,
    /// The answer refuses the request for its length.
    pub overflow: Option<Overflow>,
    /// The name of the pool that answered, if the driver can tell.
    pub served_by: Option<&'a [u8]>,
    /// It was not the first attempt that was answered.
    pub retried: bool,
    /// What the replica that answered says of itself.
    pub report: Option<Reading>,
    /// The answer ended; `false` if it broke off.
    pub complete: bool,
    /// The client left before the answer ended.
    pub aborted: bool,
    /// Output tokens that passed, as far as events or bytes tell.
    pub output_seen: u64,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Prompt and output tokens, as far as the answer stated them.
    pub usage: Usage,
    /// |estimated − actual| prompt tokens, in thousandths of the actual.
    pub error_permille: Option<u64>,
    /// Why a successful answer has no usage.
    pub missing: Option<Missing>,
    /// Two sources of usage told different numbers.
    pub disagreed: bool,
    /// Output tokens in thousandths of the client's cap.
    pub cap_use_permille: Option<u64>,
    /// It was sent to a pool that it did not fit.
    pub under_route: bool,
    /// It was sent to a larger pool than it needed.
    pub over_route: bool,
    /// The window of its pool cut its output short.
    pub truncated: bool,
    /// Another pool answered although it fitted: its own was down.
    pub spilled: bool,
    /// Another pool answered a later attempt, and the answer does not tell
    /// whether for the request's length or because its own was down.
    pub spill_unclear: bool,
    /// The estimator learned from it.
    pub learned: bool,
    /// Prompt and output tokens that it used: as the answer stated them, else
    /// as estimated and as seen to pass; `None` if there are none. What a
    /// quota counts.
    pub tokens: Option<u64>,
    /// What its tenant was charged in the end, in place of what it reserved.
    pub charged: Option<Charged>,
}

/// What a tenant was charged for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Whose request it was.
    pub tenant: Arc<Entitlement>,
    /// What it reserved.
    pub reserved: u64,
    /// What it used, by the tenant's weights.
    pub actual: u64,
    /// How the account took it; `None` if that has to wait for a tick.
    pub settled: Option<Settled>,
}
