//! The Tidegate filter: Envoy's callbacks become calls of the policy core, and
//! its decisions become a header, filter state and counters.

#![allow(missing_docs)] // the SDK's entry macro exports functions without

mod answer;
mod decode;
mod held;
mod host;
mod metrics;
mod scrape;
mod stream;
mod tenant;
mod worker;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{ContextType, LogLevel};
use tidegate::config::Config;
use worker::Instance;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|context| Box::new(Root { context, instance: None }));
}}

/// One configuration of one instance, in one VM.
struct Root {
    context: u32,
    instance: Option<Instance>,
}

impl Context for Root {
    fn on_done(&mut self) -> bool {
        if let Some(instance) = &self.instance {
            instance.metrics.retire();
        }
        true
    }

    fn on_http_call_response(&mut self, token: u32, headers: usize, size: usize, _trailers: usize) {
        if let Some(instance) = &self.instance {
            scrape::ended(instance, token, headers, size);
        }
    }
}

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
        self.instance = Some(Instance::new(config));
        true
    }

    fn on_tick(&mut self) {
        if let Some(instance) = &self.instance {
            instance.tick(self.context);
        }
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(stream::Stream::new(context_id, self.instance.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
