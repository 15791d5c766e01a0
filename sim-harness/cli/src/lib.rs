//! The command `tidegate-sim`: live GPU pools and load for a real gateway.
//!
//! - [`serve`]: OpenAI-compatible backends that answer as vLLM does.
//! - [`replay`]: real HTTP requests of a published workload, and what became of
//!   them.
//! - [`calibrate`]: scores of the estimators on known token counts.
//! - [`demo`]: pools, a real Envoy and load, all on this machine.
//! - [`plan`]: the planner's simulations on threads.
//! - [`savings`]: plans for all kinds of loads, as one page.
//! - [`scenario`]: files that say what fleet to simulate.
//! - [`text`]: real text of an exact token length.
//! - [`tokenizer`]: published vocabularies, embedded.
//! - [`validate`]: replays of measured serving runs.
//! - [`commands`]: the flags.
//! - [`interrupt`] hears Ctrl-C.
//!
//! `main` is a thin shell over this library; tests and the demo call it
//! directly.

pub mod calibrate;
pub mod client;
pub mod commands;
pub mod demo;
pub mod engine;
pub mod files;
pub mod interrupt;
pub mod plan;
pub mod prior;
pub mod progress;
pub mod replay;
pub mod savings;
pub mod scenario;
pub mod serve;
pub mod stats;
pub mod text;
pub mod tokenizer;
pub mod validate;

pub use tidegate_sim::{fields, hardware};
