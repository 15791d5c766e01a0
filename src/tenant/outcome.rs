//! What becomes of a request: admitted, held, or refused and why.

use super::account::{Limit, Need, Refused};
use super::accounts::Accounts;
use super::bucket::Short;
use super::entitlement::Entitlement;
use super::ledger::Reservation;
use crate::time::{Instant, Span};

/// Where a tenant stands after a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Tokens that its first law lets through at once, if it has one.
    pub tokens: Option<Share>,
    /// Its concurrent requests, if they are limited.
    pub requests: Option<Share>,
}

/// A limit and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The limit.
    pub limit: u64,
    /// What is left, never negative.
    pub remaining: u64,
    /// Until all of it is left, if nothing more is charged.
    pub reset: Span,
}

/// Whether a tenant's limits cover a request.
#[derive(Debug)]
pub enum Admission<R = Reservation> {
    /// They do, and it is charged.
    Admitted(R, Standing),
    /// The memory is busy, and this tenant's requests pass then.
    Uncharged,
    /// They do not yet, and it waits: [`Gate::poll`](crate::gate::Gate::poll)
    /// tells when it is decided.
    Held,
    /// They do not, and it is not charged.
    Refused(Refusal),
}

impl<R> Admission<R> {
    /// The same with another value in the reservation's place.
    pub fn map<T>(self, value: impl FnOnce(R) -> T) -> Admission<T> {
        match self {
            Self::Admitted(reservation, standing) => {
                Admission::Admitted(value(reservation), standing)
            }
            Self::Uncharged => Admission::Uncharged,
            Self::Held => Admission::Held,
            Self::Refused(refusal) => Admission::Refused(refusal),
        }
    }
}

words! {
    /// Why a request is refused.
    Cause {
        /// The rate or a quota does not cover it yet.
        Tokens => "tokens",
        /// Too many tokens are in flight.
        TokensInFlight => "tokens_in_flight",
        /// Too many requests are open.
        Requests => "requests",
        /// The pool is full, or others come first.
        Capacity => "capacity",
        /// No limit of the tenant can ever cover it.
        TooLarge => "too_large",
        /// The tenant may use nothing.
        Suspended => "suspended",
        /// The account could not be changed.
        Busy => "busy",
    }
}

impl Cause {
    /// It may pass if it waits.
    pub fn passes(self) -> bool {
        match self {
            Self::Tokens | Self::TokensInFlight | Self::Requests | Self::Capacity => true,
            Self::TooLarge | Self::Suspended | Self::Busy => false,
        }
    }
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// Whole seconds after which it would be admitted, if nothing else is
    /// charged; at least 1. `None` if trying again is in vain.
    pub retry_after: Option<u64>,
    /// What it would have been charged.
    pub need: u64,
    /// The tenant's standing.
    pub standing: Standing,
}

/// How an account stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Tokens in flight.
    pub tokens: u64,
    /// Open requests.
    pub requests: u64,
    /// Tokens that the first law has left.
    pub left: u64,
    /// Tokens that it lacks.
    pub debt: u64,
}

impl Status {
    pub(super) fn new((tokens, requests): (u64, u64), level: Option<i64>) -> Self {
        let level = level.unwrap_or(0);
        let (left, debt) = (level.max(0).unsigned_abs(), level.min(0).unsigned_abs());
        Self { tokens, requests, left, debt }
    }
}

impl Standing {
    pub(super) fn of(accounts: &mut Accounts, tenant: &Entitlement, now: Instant) -> Self {
        let limits = &tenant.limits;
        let account = &mut accounts.all;
        let tokens = limits.laws.first().and_then(Option::as_ref).and_then(|law| {
            let level = account.level(limits, 0, now)?;
            let remaining = u64::try_from(level).unwrap_or(0);
            let lacks = i64::try_from(law.burst).unwrap_or(i64::MAX).saturating_sub(level);
            let reset = law.time_until(u64::try_from(lacks).unwrap_or(0));
            Some(Share { limit: law.burst, remaining, reset })
        });
        let requests = limits.requests.map(|limit| {
            let remaining = limit.saturating_sub(account.open().1);
            Share { limit, remaining, reset: Span::default() }
        });
        Self { tokens, requests }
    }
}

impl Refusal {
    /// The tenant's own limits do not cover it.
    pub(super) fn by_limits(
        tenant: &Entitlement,
        refused: Refused,
        need: Need,
        standing: Standing,
    ) -> Self {
        let cause = match (refused.limit, refused.short) {
            _ if tenant.suspended() => Cause::Suspended,
            (_, Short::Never) => Cause::TooLarge,
            (Limit::Law(_), _) => Cause::Tokens,
            (Limit::TokensInFlight, _) => Cause::TokensInFlight,
            (Limit::Requests, _) => Cause::Requests,
            (Limit::Workers, _) => Cause::Busy,
        };
        let retry_after = match refused.short {
            Short::Until(wait) => Some(wait.whole_secs().max(1)),
            Short::Never => None,
        };
        Self { cause, retry_after, need: need.charge, standing }
    }

    /// Its pool has no room for it, or others come first.
    pub(super) fn by_pool(wait: Span, need: Need, standing: Standing) -> Self {
        let retry_after = Some(wait.whole_secs().max(1));
        Self { cause: Cause::Capacity, retry_after, need: need.charge, standing }
    }

    /// Another cause than its limits.
    pub(super) fn other(cause: Cause, retry_after: Option<u64>, need: Need) -> Self {
        Self { cause, retry_after, need: need.charge, standing: Standing::default() }
    }
}
