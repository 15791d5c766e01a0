//! A whole trace through simulated replicas, in virtual time.
//!
//! Requests are read as they are needed and forgotten when they finish: memory
//! does not grow with the trace. Replicas that do not depend on each other run
//! on threads of their own; the report is the same on any number of them.

mod report;
mod run;

pub use report::Report;
pub use run::{Dispatch, Plan, RunError, Split, run};
