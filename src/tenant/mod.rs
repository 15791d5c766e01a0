//! What tenants were promised, and what they got.

mod account;
mod bucket;
mod entitlement;
mod ledger;
mod refusal;

pub use account::{
    Account, EXPIRY, HOLDERS_MAX, Held, LAWS, Limit, Limits, Need, Refused, Settled,
};
pub use bucket::{Bucket, Charge, Corrected, Law, STARTS_MAX, Short, TOKENS_MAX};
pub use entitlement::{Entitlement, ReserveOutput, Weights};
pub use ledger::{Admission, Cause, Ledger, Refusal, Reservation, Share, Standing, Status};
