//! What the tests of the shipped filter share.
#![allow(dead_code)] // each test binary uses its part

use std::path::Path;
use tidegate_envoy_support::{Backend, Envoy};
use tidegate_wasm_tests::{
    Exchange, Host, Module, Outcome, Request, Response, Root, Verdict, Vm, exchange,
};

/// Two pools, at 8,192 and 131,072 tokens.
pub const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short-cluster", "max_model_len": 8192},
    {"name": "long", "cluster": "long-cluster", "max_model_len": 131072}]}]}"#;

/// With the estimator of which the first estimates are known: four bytes to a
/// token.
pub fn ema() -> String {
    config_with(r#""estimator": {"kind": "ema"}"#)
}

/// The configuration with more fields.
pub fn config_with(fields: &str) -> String {
    CONFIG.replacen(r#""version": 1"#, &format!(r#""version": 1, {fields}"#), 1)
}

/// One worker with the shipped filter.
pub struct Worker {
    pub host: Host,
    pub vm: Vm,
    pub root: Root,
}

impl Worker {
    pub fn new(config: &str) -> Self {
        Self::on(&Host::new(), "worker", config)
    }

    pub fn on(host: &Host, name: &str, config: &str) -> Self {
        let vm = host.start(&Module::shipped().unwrap(), name).unwrap();
        let root = vm.configure(config).unwrap();
        Self { host: host.clone(), vm, root }
    }

    pub fn run(&self, request: Request, response: &Response) -> Outcome {
        exchange(&self.vm, self.root, request, response).unwrap()
    }

    /// A chat of so many content bytes, answered with so many prompt tokens.
    pub fn chat(&self, bytes: usize, prompt_tokens: u64) -> Outcome {
        self.run(chat(bytes), &used(prompt_tokens, 10))
    }

    /// Sends a small chat; it is open, and in the cluster of that name.
    pub fn place(&self) -> (Exchange, String) {
        let exchange = chat(400).send(&self.vm, self.root).unwrap();
        assert_eq!(exchange.stream().verdict().unwrap(), Verdict::Forwarded);
        let headers = exchange.stream().upstream_headers().unwrap();
        let pool = headers.text("x-tidegate-pool").unwrap().to_owned();
        (exchange, pool)
    }

    pub fn count(&self, name: &str) -> u64 {
        self.host.counter(&format!("tidegate.{name}")).unwrap_or_else(|| panic!("no {name}"))
    }
}

/// An Envoy whose pools are all this backend, with requests spread evenly over
/// its workers.
pub fn gateway(backend: &Backend, workers: u32, config: &str) -> Envoy {
    let port = backend.port();
    Envoy::builder()
        .backends([port; 2], [port; 2])
        .configuration(config)
        .workers(workers)
        .exact_balance()
        .start()
        .unwrap()
}

/// What the filter in an Envoy has counted under this name, or its gauge shows.
pub fn count(envoy: &Envoy, name: &str) -> u64 {
    envoy.counter(&format!("wasmcustom.tidegate.{name}")).unwrap_or(0)
}

/// A chat completion body of so many content bytes of English.
pub fn chat_body(bytes: usize) -> String {
    let text: String =
        "the cat sat on the mat and thought of the sea. ".chars().cycle().take(bytes).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":100}}"#)
}

pub fn chat(bytes: usize) -> Request<'static> {
    Request::json("/v1/chat/completions", chat_body(bytes).into_bytes())
}

/// A successful answer with this usage.
pub fn used(input: u64, output: u64) -> Response<'static> {
    let usage = format!(r#"{{"prompt_tokens":{input},"completion_tokens":{output}}}"#);
    Response::json(200, format!(r#"{{"choices":[],"usage":{usage}}}"#).into_bytes())
}

/// Compares with a golden file beside the tests; `TIDEGATE_BLESS=1` rewrites it.
pub fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; TIDEGATE_BLESS=1 writes it", path.display()));
    assert_eq!(actual, expected, "{name} changed; TIDEGATE_BLESS=1 rewrites it");
}

/// The reduced size, or the full one under `make prove`.
pub fn size(reduced: usize, full: usize) -> usize {
    if std::env::var_os("TIDEGATE_PROVE").is_some() { full } else { reduced }
}
