//! The Tidegate filter: Envoy's callbacks become calls of the policy core, and
//! its decisions become a header, filter state and counters.

#![allow(missing_docs)] // the SDK's entry macro exports functions without

mod answer;
mod decode;
mod host;
mod metrics;
mod stream;
mod tenant;
mod worker;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use std::time::Duration;
use tidegate::config::Config;
use worker::Instance;

/// How often workers exchange what they learned.
const TICK: Duration = Duration::from_secs(1);

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}

/// One configuration of one instance, in one VM.
#[derive(Default)]
struct Root(Option<Instance>);

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        host::follow_log_level();
        let config = match Config::parse(&host::configuration(size)) {
            Ok(config) => config,
            Err(error) => {
                log::error!("tidegate: {error}");
                return false;
            }
        };
        for warning in &config.warnings {
            log::warn!("tidegate: {warning}");
        }
        self.0 = Some(Instance::new(config));
        host::tick_every(TICK);
        true
    }

    fn on_tick(&mut self) {
        if let Some(instance) = &self.0 {
            instance.tick();
        }
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(stream::Stream::new(self.0.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
