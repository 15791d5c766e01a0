//! How many GPUs a load needs: in one pool, in one well-tuned pool, in several
//! with Tidegate before them, and with lengths that nobody can know.
//!
//! ```text
//! Question ─► formulas ─► first counts ─► fleet simulations (Runner) ─► Plan
//! ```
//!
//! The simulations are [`crate::fleet`]'s: the core's own gate decides. Nothing
//! here starts a thread: whoever plans brings a [`Runner`], which gets batches of
//! independent [`Trial`]s. What the batches are does not depend on how many run
//! at once. What is shown and what is left out: `docs/plan.md`.

mod analytic;
mod answer;
mod ask;
mod check;
mod curve;
mod emit;
mod load;
mod make;
mod page;
mod price;
mod print;
mod question;
mod requests;
mod search;
#[cfg(test)]
mod tests;
mod trial;

pub use analytic::{Guess, PoolGuess};
pub use answer::{Alternative, AtRate, Candidate, Drifted, Plan, Sized};
pub use ask::{Ask, POOLS, UTILIZATION, WINDOW};
pub use check::{Check, Checked, TRIES, check_fleets};
pub use emit::PoolPlan;
pub use load::{LoadCurve, LoadPoint, load_curves};
pub use make::{Stage, plan};
pub use price::{Price, PriceLine};
pub use question::{Effort, PlanError, Question, Shape, Slo, Source};
pub use search::Scale;
pub use trial::{Allowed, Layout, Outcome, PoolOutcome, Runner, Serial, StepTimes, Trial};
