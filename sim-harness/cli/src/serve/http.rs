//! The HTTP face of one replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;
use tidegate_sim::rng::Pcg;

use super::answer::{Answer, Payload};
use super::ask::{Api, Ask, read};
use super::fault::{BreakOff, Fault};
use super::metrics::Finish;
use super::refusal::Refusal;
use super::replica::{Replica, Wanted};
use crate::text::Words;

/// The request header with the true output length of every choice, 1 to
/// 4294967295. Without it the length follows from the prompt's text.
pub const OUTPUT_TOKENS_HEADER: &str = "x-sim-output-tokens";
/// The request header that makes a replica answer with that status, 400 to 599,
/// as a failing backend does.
pub const STATUS_HEADER: &str = "x-sim-status";
/// The response header with the name of the pool that answered.
pub const POOL_HEADER: &str = "x-sim-pool";

/// Asks for a load report in an answer's header: `text` or `json`. As vLLM does,
/// answers that are streamed carry none.
const LOAD_FORMAT_HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
/// Carries it. Source: vLLM's `entrypoints/serve/utils/orca_metrics.py`.
const LOAD_HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// Longest output that is drawn when the client names none.
const LONGEST_DRAWN: u32 = 400;

/// What the handlers of one replica share.
pub(super) struct Service {
    pub(super) replica: Arc<Replica>,
    pub(super) words: Arc<Words>,
    pub(super) requests: AtomicU64,
}

impl Service {
    pub(super) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Payload>, BreakOff> {
        let mut response = self.route(request).await?;
        if let Ok(name) = HeaderValue::from_str(&self.replica.pool.name) {
            response.headers_mut().insert(POOL_HEADER, name);
        }
        Ok(response)
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Payload>, BreakOff> {
        let (allowed, api) = match request.uri().path() {
            "/v1/chat/completions" => (Method::POST, Some(Api::Chat)),
            "/v1/completions" => (Method::POST, Some(Api::Completions)),
            "/v1/models" | "/health" | "/metrics" => (Method::GET, None),
            _ => return Ok(reply(StatusCode::NOT_FOUND, JSON, r#"{"detail":"Not Found"}"#)),
        };
        if request.method() != allowed {
            let detail = r#"{"detail":"Method Not Allowed"}"#;
            let mut response = reply(StatusCode::METHOD_NOT_ALLOWED, JSON, detail);
            if let Ok(allowed) = HeaderValue::from_str(allowed.as_str()) {
                response.headers_mut().insert(ALLOW, allowed);
            }
            return Ok(response);
        }
        Ok(match api {
            Some(api) => match self.generate(api, request).await {
                Ok(answer) => answer?,
                Err(refusal) => {
                    let status = StatusCode::from_u16(refusal.status);
                    reply(status.unwrap_or(StatusCode::BAD_REQUEST), JSON, refusal.body())
                }
            },
            None => match request.uri().path() {
                "/health" => reply(StatusCode::OK, TEXT, ""),
                "/metrics" => reply(StatusCode::OK, PROMETHEUS, self.replica.metrics_text()),
                _ => reply(StatusCode::OK, JSON, self.models()),
            },
        })
    }

    async fn generate(
        &self,
        api: Api,
        request: Request<Incoming>,
    ) -> Result<Result<Response<Payload>, BreakOff>, Refusal> {
        let (parts, body) = request.into_parts();
        let media = parts.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let media = media.split(';').next().unwrap_or("").trim();
        if !media.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::media_type());
        }
        // A body that breaks off has no reader left: any answer will do.
        let body = body.collect().await.map_err(|_| Refusal::not_json(0, "body broke off"))?;
        let body = body.to_bytes();
        if let Some(status) = number(&parts.headers, STATUS_HEADER, 400, 599)? {
            return Err(Refusal::induced(status as u16));
        }
        let tokens_left = match self.replica.fault() {
            Some(Fault::Status { status }) => return Err(Refusal::induced(status)),
            Some(Fault::Reset { after_tokens }) => Some(after_tokens),
            _ => None,
        };
        let output = number(&parts.headers, OUTPUT_TOKENS_HEADER, 1, u32::MAX)?;
        let pool = Arc::clone(&self.replica.pool);
        // Counting tokens of a long prompt takes milliseconds: not on the
        // threads that serve everybody.
        let ask = tokio::task::spawn_blocking(move || read(api, &body, &pool))
            .await
            .map_err(|_| Refusal::induced(500))??;
        let outputs = self.replica.submit(&wanted(&ask, output));
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        let id = parts.headers.get("x-request-id").and_then(|v| v.to_str().ok());
        let id = id.map_or_else(|| format!("{count:032x}"), str::to_owned);
        let stream = ask.stream;
        let model = &self.replica.pool.model;
        let answer = Answer::new(ask, Arc::clone(&self.words), &id, model, unix_seconds());
        if stream {
            let body = Payload::events(answer, outputs, tokens_left);
            return Ok(Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", body)));
        }
        Ok(answer.full(outputs, tokens_left).await.map(|text| {
            let mut response = reply(StatusCode::OK, JSON, text);
            let format = parts.headers.get(LOAD_FORMAT_HEADER).and_then(|v| v.to_str().ok());
            if let Some(report) = format.and_then(|format| self.load_report(format)) {
                response.headers_mut().insert(LOAD_HEADER, report);
            }
            response
        }))
    }

    /// The load report of ORCA, as vLLM sends it to who asks; nothing in another
    /// format than `text` and `json`.
    fn load_report(&self, format: &str) -> Option<HeaderValue> {
        let load = self.replica.load();
        let (usage, waiting) = (load.kv_usage(), load.waiting as f64);
        let report = match format.to_ascii_lowercase().as_str() {
            "text" => format!(
                "TEXT named_metrics.num_requests_waiting={waiting:?}, \
                 named_metrics.kv_cache_usage_perc={usage:?}"
            ),
            "json" => format!(
                r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
            ),
            _ => return None,
        };
        HeaderValue::from_str(&report).ok()
    }

    fn models(&self) -> String {
        let pool = &self.replica.pool;
        json!({"object": "list", "data": [{
            "id": pool.model, "object": "model", "created": unix_seconds(), "owned_by": "vllm",
            "root": pool.model, "parent": null, "max_model_len": pool.max_model_len,
            "permission": [],
        }]})
        .to_string()
    }
}

/// One sequence a choice, cut at the cap and at the window.
pub(super) fn wanted(ask: &Ask, output: Option<u32>) -> Vec<Wanted<'_>> {
    let each = ask.prompts.iter().flat_map(|prompt| {
        let drawn = || 1 + Pcg::new(prompt.hash, 0).below(LONGEST_DRAWN);
        let output = output.unwrap_or_else(drawn);
        let finish = if output > prompt.room { Finish::Length } else { Finish::Stop };
        let wanted = Wanted {
            prompt_tokens: prompt.tokens,
            output_tokens: output.min(prompt.room),
            blocks: &prompt.blocks,
            priority: ask.priority,
            finish,
        };
        std::iter::repeat_n(wanted, ask.n as usize)
    });
    each.collect()
}

/// A header's whole number; nothing when absent.
fn number(
    headers: &HeaderMap,
    name: &'static str,
    least: u32,
    most: u32,
) -> Result<Option<u32>, Refusal> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let number = number.filter(|n| (least..=most).contains(n));
    number.map(Some).ok_or_else(|| {
        let found = String::from_utf8_lossy(value.as_bytes());
        let why = format!("header {name}: found {found:?}; allowed: {least} to {most}");
        Refusal::parameter(name, why)
    })
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

fn reply(
    status: StatusCode,
    media: &'static str,
    text: impl Into<hyper::body::Bytes>,
) -> Response<Payload> {
    respond(status, media, Payload::full(text))
}

fn respond(status: StatusCode, media: &'static str, body: Payload) -> Response<Payload> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[allow(
    clippy::disallowed_types,
    reason = "`created` is wall-clock time; nothing is decided by it"
)]
fn unix_seconds() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
