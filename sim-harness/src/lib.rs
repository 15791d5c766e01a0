//! Workloads and simulated GPU replicas for Tidegate.
//!
//! Everything here is pure: bytes and numbers go in, values come out. There are
//! no files, threads, clocks or sockets, and no float function beyond
//! `+ - * / sqrt` and `libm`, so that native code and a browser agree bit for
//! bit. The binary `tidegate-sim` adds the outside world.
//!
//! - [`workload`]: published traces and length distributions → requests.
//! - [`engine`]: one replica: prompts and output lengths go in, tokens with
//!   their times come out.
//! - [`fields`]: documents' fields, with errors that name what is allowed.
//! - [`histogram`]: many numbers in little memory.
//! - [`hardware`]: replicas on a real GPU with a model on it.
//! - [`kernels`]: times of single GPU kernels, from a sweep or a data sheet.
//! - [`fleet`]: gateways with the core's own gate in front of pools of replicas.
//! - [`plan`]: how many GPUs a load needs, in one pool and in several.
//! - [`policy`]: other rules than the gate's, to compare it with.
//! - [`report`]: pages, plots and files of numbers, as text.
//! - [`setup`]: documents about replicas.
//! - [`texts`]: real texts of several kinds, and how many tokens they are.
//! - [`rng`]: the one seeded source of randomness.
//!
//! All times are whole nanoseconds from a start that the caller chooses.

pub mod engine;
pub mod fields;
pub mod fleet;
pub mod hardware;
pub mod histogram;
pub mod kernels;
pub mod plan;
pub mod policy;
pub mod report;
pub mod rng;
pub mod setup;
pub mod table;
pub mod texts;
pub mod validate;
pub mod workload;

/// Nanoseconds in one second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in one millisecond.
pub const MILLISECOND: u64 = 1_000_000;
