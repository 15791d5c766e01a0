//! `replay --tenants` against live pools behind a real Envoy with the filter.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

mod common;

use std::process::{Command, Stdio};

use common::pools;
use serde_json::Value;
use tidegate_envoy_support::{Envoy, Request, eventually, missing};

/// `over` asks for much more than it may have, `under` for less. Both use what
/// they reserve.
const CONFIG: &str = r#"{"version": 1, "buffer_bytes": 16777216,
  "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short", "max_model_len": 200},
    {"name": "long", "cluster": "long", "max_model_len": 2000}]}],
  "tenants": {
    "from": [{"header": "x-team"}, {"api_key": "authorization"}], "default": "others",
    "entitlements": [
      {"name": "others", "tokens_per_second": 1},
      {"name": "over", "tokens_per_second": 300, "burst": 600, "requests": 3},
      {"name": "under", "tokens_per_second": 5000, "count": {"input": 0.5},
       "keys": ["sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]}]}}"#;
const TENANTS: &str = r#"{"seconds": 4, "tenants": [
  {"name": "over", "headers": {"x-team": "over"}, "clients": 4, "pause_s": 0.05,
   "input_tokens": 60, "output_tokens": 20},
  {"name": "under", "headers": {"authorization": "Bearer secret"}, "rate": 20,
   "input_tokens": 40, "output_tokens": 10},
  {"name": "patient", "tenant": "over", "headers": {"x-team": "over"}, "clients": 1,
   "input_tokens": 60, "output_tokens": 20, "obey_retry_after": true, "to_s": 2}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_agrees_with_the_filter() {
    if missing() {
        return;
    }
    let handle = pools().await;
    let port = |pool: &str, replica: usize| handle.pool(pool)[replica].port();
    let envoy = Envoy::builder()
        .backends([port("short", 0), port("short", 1)], [port("long", 0); 2])
        .configuration(CONFIG)
        .start()
        .unwrap();
    let folder = std::env::temp_dir().join(format!("tidegate-tenants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (config, tenants) = (file("config.json", CONFIG), file("tenants.json", TENANTS));
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"))
        .args(["replay", "--gateway", &envoy.url(), "--model", "m", "--usage-share", "1", "--json"])
        .args(["--tenants".as_ref(), tenants.as_os_str()])
        .args(["--config".as_ref(), config.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [over, under, patient] = report["tenants"].as_array().unwrap().as_slice() else {
        panic!("{report:#}")
    };
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let refused = |row: &Value| -> u64 {
        row["refused"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    let both = |of: &dyn Fn(&Value) -> u64| of(over) + of(patient);
    let count = |name: &str| envoy.counter(&format!("wasmcustom.tidegate.{name}")).unwrap_or(0);
    let same = |name: &str, reported: u64| {
        let agree = || (count(name) == reported).then_some(());
        let agreed = eventually(name, agree);
        assert!(agreed.is_ok(), "{name}: {} by the filter, {reported} by us", count(name));
    };
    same("tenant_admitted.over", both(&|row| number(row, "admitted")));
    same("tenant_refused.over", both(&refused));
    same("tenant_settled.over", both(&|row| number(row, "tokens")));
    same("tenant_admitted.under", number(under, "admitted"));
    same("tenant_settled.under", number(under, "tokens"));
    same("refused.tokens", both(&|row| row["refused"]["429, tokens"].as_u64().unwrap_or(0)));
    same("refused.requests", both(&|row| row["refused"]["429, requests"].as_u64().unwrap_or(0)));
    // What was promised was nearly used up, and not exceeded.
    let promised = 600.0 + 300.0 * report["duration_s"].as_f64().unwrap();
    let got = both(&|row| number(row, "tokens")) as f64;
    assert!(got <= promised && got > 0.9 * promised, "{got} of {promised}");
    assert_eq!(over["promised"], 1800.0);
    assert!(refused(over) > number(over, "admitted"), "{over:#}");
    // 40 + 10 tokens, of which the prompt's count by half.
    assert_eq!((refused(under), number(under, "tokens")), (0, 30 * number(under, "admitted")));
    assert!(number(under, "asked") > 40 && under["promised_per_second"] == 5000.0);
    // Who obeys asks seldom, and the same again.
    let again = number(patient, "sent") - number(patient, "asked");
    assert!((1..=4).contains(&again) && refused(patient) <= 5, "{patient:#}");
    assert!(report["processor_busy"].as_f64().unwrap() > 0.0);
    // What passes has no reason for a refusal.
    let body = r#"{"model":"m","prompt":[7],"max_tokens":1}"#;
    let passes = Request::post("/v1/completions", body).with("x-team", "under");
    let answer = passes.send(envoy.port()).unwrap();
    assert_eq!((answer.status, answer.header("x-tidegate-refused")), (200, None));
    handle.stop().await;
}
