//! Tidegate's policy core: which GPU pool serves an LLM request, judged by the
//! tokens it will need, with no tokenizer and no I/O.
//!
//! # The problem
//!
//! Fleets of vLLM or SGLang servers are set up for the longest context, while
//! most requests are short. A gateway could send the short ones to cheaper,
//! faster replicas, but it sees bytes, and the engine counts tokens; how many
//! bytes make a token differs tenfold between kinds of text and from one
//! tokenizer to the next.
//!
//! # The model
//!
//! The policy is a state machine: facts and a time go in, decisions come out.
//!
//! - [`request`] reads a body, cut anywhere, into facts.
//! - [`estimate`] turns its bytes into tokens, at ratios learned from answers.
//! - [`pool`] adds the output and picks the smallest pool that holds the sum.
//! - [`usage`] reads the answer for what was really used.
//! - [`gate`] is the one facade over these: a request opens, its answer closes it.
//! - [`share`] lets workers tell each other what they learned.
//! - [`config`] validates the one JSON document that sets all of this up.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate::config::Config;
//! use tidegate::gate::{Answer, Body, Gate};
//! use tidegate::request::{Api, Scanner};
//! use tidegate::share::NoSlots;
//! use tidegate::time::Instant;
//! use tidegate::usage::Usage;
//!
//! let config = Config::parse(br#"{"version": 1, "models": [{"match": "*", "pools": [
//!     {"name": "short", "cluster": "short", "max_model_len": 8192},
//!     {"name": "long", "cluster": "long", "max_model_len": 131072}]}]}"#)?;
//! let mut gate = Gate::new("tidegate", 1);
//! let settings = Arc::clone(config.base());
//!
//! let mut scanner = Scanner::new(Api::Chat, b"/v1/chat/completions");
//! scanner.feed(br#"{"model": "m", "max_tokens": 64, "#);
//! scanner.feed(br#""messages": [{"role": "user", "content": "What is a tide gate?"}]}"#);
//! let (ticket, decision) = gate.open(&settings, Body::Whole(scanner.finish()?));
//! assert_eq!(decision.pool.name, "short");
//!
//! let usage = Usage { input: Some(14), output: Some(40), ..Usage::default() };
//! let answer = Answer { status: Some(200), usage: Some(Ok(usage)), ..Answer::default() };
//! let settlement = gate.close(Instant::from_nanos(1), &mut NoSlots, ticket, &answer);
//! assert!(!settlement.under_route);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//!
//! No I/O, no clock, no logging, no randomness, no host types: `now` is an
//! argument, reasons are return values, and memory that workers share is
//! behind the one-method trait [`share::Slots`]. It runs alike, bit for bit,
//! in Envoy, in the simulator and in a browser. It has no tokenizer, and it
//! does not read images or audio: those teach nothing.

#[macro_use]
mod words;

mod bytes;
pub mod config;
pub mod estimate;
pub mod gate;
pub mod json;
#[cfg(test)]
mod nodes;
pub mod pool;
pub mod request;
pub mod share;
pub mod tenant;
pub mod time;
pub mod usage;
