//! A tenant's limits: asked once for each request, and again while it is held.
//! The only place that knows how the core admits.

use std::sync::Arc;

use tidegate::config::Config;
use tidegate::gate::{Gate, Ticket};
use tidegate::share::LocalSlots;
use tidegate::tenant::{Admission, Cause, Entitlement, Released};
use tidegate::time::{Instant, Span};

/// What a gateway does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It goes up.
    Passes,
    /// It waits until [`poll`] tells of it.
    Held,
    /// It is answered here.
    Refused {
        /// Why.
        cause: Cause,
        /// The client may come back after so many seconds: with status 429.
        retry_after: Option<u64>,
    },
}

/// Asks the limits. What passes is charged in its ticket. With `hold`, the
/// request's name and the bytes of its body, it may be held.
pub(super) fn admit(
    gate: &mut Gate,
    now: Instant,
    slots: &mut LocalSlots,
    (config, tenant): (&Config, &Arc<Entitlement>),
    ticket: &mut Ticket,
    hold: Option<(u64, u64)>,
) -> Admitted {
    told(&gate.admit(now, slots, config, tenant, ticket, hold))
}

/// Takes what was decided about a request that was held.
pub(super) fn enter(ticket: &mut Ticket, admission: Admission) -> Admitted {
    told(&ticket.enter(admission))
}

/// Requests that were held and are decided now.
pub(super) fn poll(gate: &mut Gate, now: Instant, slots: &mut LocalSlots) -> Vec<Released> {
    gate.poll(now, slots)
}

/// How soon to poll again; nothing while nothing is held.
pub(super) fn next_poll(gate: &Gate) -> Option<Span> {
    gate.next_wake()
}

fn told(admission: &Admission<u64>) -> Admitted {
    match admission {
        Admission::Admitted(..) | Admission::Uncharged => Admitted::Passes,
        Admission::Held => Admitted::Held,
        Admission::Refused(refusal) => Admitted::Refused {
            cause: refusal.cause,
            retry_after: refusal.retry_after.filter(|_| refusal.status() == 429),
        },
    }
}
