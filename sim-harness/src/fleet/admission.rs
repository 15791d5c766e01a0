//! A tenant's limits, asked once for each request. The only place that knows
//! how the core admits.

use std::sync::Arc;

use tidegate::gate::{Gate, Ticket};
use tidegate::tenant::{Admission, Cause, Entitlement, Refusal};
use tidegate::time::Instant;

use super::gateway::Memory;

/// What a gateway tells its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// The request goes up.
    Passes,
    /// It is answered here.
    Refused {
        /// Why.
        cause: Cause,
        /// The client may come back after so many seconds: with status 429.
        retry_after: Option<u64>,
    },
}

/// Asks the tenant's limits. What passes is charged in its ticket.
pub(super) fn admit(
    gate: &Gate,
    now: Instant,
    slots: &mut Memory,
    tenant: &Arc<Entitlement>,
    ticket: &mut Ticket,
) -> Admitted {
    match gate.admit(now, slots, tenant, ticket) {
        Admission::Admitted(..) | Admission::Uncharged => Admitted::Passes,
        Admission::Refused(refusal) => told(&refusal),
    }
}

fn told(refusal: &Refusal) -> Admitted {
    let may_return = refusal.status() == 429;
    Admitted::Refused {
        cause: refusal.cause,
        retry_after: refusal.retry_after.filter(|_| may_return),
    }
}
