//! What tenants were promised, and what they got.

mod account;
mod accounts;
mod bucket;
mod entitlement;
mod ledger;
mod meter;
mod outcome;
mod pool;
mod queue;
mod refusal;
mod slot;

pub use account::{
    Account, EXPIRY, HOLDERS_MAX, Held, LAWS, Limit, Limits, Need, Refused, Settled,
};
pub use accounts::{Accounts, HeldCharges, POOLS_MAX, RequestLimits};
pub use bucket::{Bucket, Charge, Corrected, Law, STARTS_MAX, Short, TOKENS_MAX};
pub use entitlement::{Entitlement, ReserveOutput, Weights};
pub use ledger::{Actual, Ask, Ledger, Reservation, Ticked};
pub use outcome::{Admission, Cause, Refusal, Share, Standing, Status};
pub use pool::{Capacity, Contender, HOLD_TICK, PoolAccount, Taken, WEIGHT_MAX};
pub use queue::{Hold, HoldLimits, Queue, Released};
