//! The official OpenAI and Anthropic clients meet a limit. `make clients`
//! installs them.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tidegate_envoy_support::{Answer, Backend, Envoy, Request, missing};

/// 60 tokens at once; the keys are "secret" and "claude". A request reserves
/// and uses about 50, so the next has to wait two seconds.
const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 8192},
    {"name": "long", "cluster": "long", "max_model_len": 131072}]}],
  "tenants": {"from": [{"api_key": "authorization"}, {"api_key": "x-api-key"}],
    "default": "others", "entitlements": [
      {"name": "others", "tokens_per_second": 1},
      {"name": "a", "tokens_per_second": 20, "burst": 70, "reserve_output": "cap",
       "keys": ["sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]},
      {"name": "b", "tokens_per_second": 20, "burst": 70, "reserve_output": "cap",
       "keys": ["sha256:c857d09db23e6822e3600bc06ad8d58f92ed62bc8efd81c753f77048662cb97d"]}]}}"#;

fn answer(request: &Request) -> Answer {
    let body = if request.path.starts_with("/v1/messages") {
        r#"{"id":"m","type":"message","role":"assistant","model":"m",
            "content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn",
            "stop_sequence":null,"usage":{"input_tokens":20,"output_tokens":40}}"#
    } else {
        r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,
            "message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
            "usage":{"prompt_tokens":20,"completion_tokens":40,"total_tokens":60}}"#
    };
    Answer::json(200, body)
}

#[test]
fn they_parse_a_refusal_and_come_back_when_it_says() {
    if missing() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let installed = root.join(".clients");
    if !installed.join("openai").is_dir() {
        let required = std::env::var("TIDEGATE_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|part| part.trim() == "clients"), "no clients");
        eprintln!("skipped: no clients, `make clients` installs them");
        return;
    }
    let backend = Backend::start(answer).unwrap();
    let port = backend.port();
    let envoy =
        Envoy::builder().backends([port; 2], [port; 2]).configuration(CONFIG).start().unwrap();
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/check.py"))
        .arg(envoy.url())
        .env("PYTHONPATH", &installed)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    for client in ["openai", "anthropic"] {
        let told = &told[client];
        assert_eq!(told["told"]["status"], 429, "{told}");
        let seconds: f64 = told["told"]["retry_after"].as_str().unwrap().parse().unwrap();
        let waited = told["waited"].as_f64().unwrap();
        // It tried once more at once, was told, waited, and was let through.
        assert!(seconds >= 1.0 && waited >= seconds - 1.0 && waited < seconds + 3.0, "{told}");
    }
    assert_eq!(told["openai"]["told"]["code"], "rate_limit_exceeded");
    assert_eq!(told["openai"]["told"]["body"]["type"], "tokens");
    assert_eq!(told["anthropic"]["told"]["body"]["error"]["type"], "rate_limit_error");
    // Two answers for each; what was refused never went up.
    assert_eq!(backend.requests().iter().filter(|one| one.method == "POST").count(), 4);
}
