//! A small proxy-wasm host for tests of the shipped .wasm.
//!
//! It plays the part of Envoy: one [`Host`] is a process with its clock, shared data, metrics and
//! log; each [`Vm`] in it is a worker's instance of the [`Module`]; each [`Stream`] is one request.
//! Tests set state, drive callbacks and look at outcomes. They never list the host calls that they
//! expect, so the filter may be rewritten without touching them.
//!
//! ```no_run
//! use tidegate_wasm_tests::{Host, Module, Request, Response, exchange};
//!
//! # fn main() -> tidegate_wasm_tests::Result<()> {
//! let config = r#"{"version": 1, "models": [{"match": "*", "pools": [
//!     {"name": "short", "cluster": "short", "max_model_len": 8192},
//!     {"name": "long", "cluster": "long", "max_model_len": 131072}]}]}"#;
//! let host = Host::new();
//! let vm = host.start(&Module::shipped()?, "worker-1")?;
//! let root = vm.configure(config)?;
//! let body = br#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}"#;
//! let request = Request::json("/v1/chat/completions", body.as_slice());
//! let usage = br#"{"usage": {"prompt_tokens": 8, "completion_tokens": 2}}"#;
//! let outcome = exchange(&vm, root, request, &Response::json(200, usage.as_slice()))?;
//! assert_eq!(outcome.request_headers.text("x-tidegate-pool"), Some("short"));
//! assert_eq!(outcome.state("tidegate_actual_input"), Some("8"));
//! # Ok(())
//! # }
//! ```
//!
//! # Where it differs from Envoy
//!
//! - Time stands still unless a test moves it, and no timer fires by itself.
//! - Once headers have gone on they are out of reach, for every filter alike. Envoy leaves them
//!   within reach of a filter that had paused at them, though changes are lost there too.
//! - A filter cannot add trailers to a message that has none.
//! - Clusters are names ([`Host::add_cluster`]): the test answers calls to them. gRPC calls out fail
//!   as they do for an unknown cluster.
//! - `clear_route_cache` is the only foreign function. Queues work but wake nobody.

mod abi;
mod error;
mod exchange;
mod faults;
mod guest;
mod headers;
mod host;
mod http;
mod imports;
mod machine;
mod metrics;
mod module;
mod shared;
mod stream;
mod vm;

pub use abi::{Action, Callback, HostCall, Level, Status};
pub use error::{Error, Result, Trap};
pub use exchange::{Chunks, End, Exchange, Request, Response, exchange};
pub use guest::HttpCall;
pub use headers::Headers;
pub use host::{DEFAULT_BUFFER_LIMIT, Host, LogLine};
pub use http::{LocalReply, Step};
pub use metrics::{Metric, MetricKind};
pub use module::{Item, Module, wasm_path};
pub use stream::{FLAG_CLIENT_GONE, Outcome, Stream, Verdict};
pub use vm::{Plugin, Root, Vm, VmOptions};

#[cfg(test)]
mod tests;
