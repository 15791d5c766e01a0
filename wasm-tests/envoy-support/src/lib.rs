//! A real Envoy for tests and for the demo, and a real Redis for tests.
//!
//! [`Envoy::builder`] takes `envoy/envoy.yaml`, puts free ports and the path of
//! the filter into it, starts Envoy and waits until it serves. What a test
//! wants otherwise, it changes in the text of that file; each change must find
//! its place exactly once, so that a test cannot go on testing a line that is
//! no longer there.
//!
//! ```no_run
//! # fn main() -> Result<(), String> {
//! use tidegate_envoy_support::{Answer, Backend, Envoy, Request};
//!
//! let short = Backend::start(|_| Answer::json(200, r#"{"pool":"short"}"#))?;
//! let long = Backend::start(|_| Answer::json(200, r#"{"pool":"long"}"#))?;
//! let envoy = Envoy::builder()
//!     .backends([short.port(); 2], [long.port(); 2])
//!     .start()?;
//! let answer = Request::post("/v1/chat/completions", "{}").send(envoy.port())?;
//! assert_eq!(answer.header("x-tidegate-pool"), Some("short"));
//! assert_eq!(envoy.counter("wasmcustom.tidegate.requests.short")?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Beside it stand the two ends of the wire: [`Request`] is a small HTTP/1.1
//! client, [`Backend`] a server whose answers the test writes.
//!
//! Errors are sentences (`String`): the reader is a person at a failed test.

mod backend;
mod envoy;
mod find;
mod http;
mod redis;
mod template;
mod trap;

pub use backend::{Answer, Backend};
pub use envoy::{Builder, Envoy, eventually};
pub use find::{envoy_binary, missing, wasm_file};
pub use http::{Connection, Request, Response};
pub use redis::{Redis, redis_missing};
pub use template::{ENVOY_YAML, RATELIMIT_YAML, TWO_INSTANCES_YAML, Template};
pub use trap::trap_at;
