//! One request to the gateway, and what came back.

use std::fmt;
use std::time::{Duration, Instant};

use hyper::header::HeaderMap;
use hyper::{Response, body::Incoming};
use serde_json::Value;
use tidegate_sim::workload::Request;

use super::plan::Prepared;
use crate::client::{Client, ClientError, Event, Events, read_all};
use crate::serve::{OUTPUT_TOKENS_HEADER, POOL_HEADER};
use crate::text::Kind;

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its place in the order of sending, from 0.
    pub index: usize,
    /// Which of the tenants sent it; 0 where there are none.
    pub tenant: usize,
    /// How often the same request was sent before.
    pub retries: u32,
    /// What was sent. `input_tokens` is the prompt's length as it was planned.
    pub request: Request,
    /// What its text was.
    pub kind: Kind,
    /// The answer was to be streamed.
    pub stream: bool,
    /// Bytes of the messages' contents, as UTF-8.
    pub content_bytes: usize,
    /// What the gateway said of its decision.
    pub decision: Decision,
    /// The pool that answered, by the backend's own word.
    pub answered_by: Option<String>,
    /// The answer, or why there is none.
    pub result: Result<Answered, Failure>,
}

impl Outcome {
    /// The prompt's true length: what the answer's usage says where it says so,
    /// for the backend's tokenizer may not be the one that wrote the text; else
    /// the length that was planned.
    pub fn prompt_tokens(&self) -> u32 {
        let stated = self.result.as_ref().ok().and_then(|answer| answer.prompt_tokens);
        stated.filter(|tokens| *tokens > 0).unwrap_or(self.request.input_tokens)
    }

    /// (estimate - truth) / truth of the prompt's tokens; nothing without an
    /// estimate.
    pub fn estimate_error(&self) -> Option<f64> {
        let truth = f64::from(self.prompt_tokens());
        Some((self.decision.estimate? as f64 - truth) / truth)
    }
}

/// What the gateway says in response headers; absent parts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// `x-tidegate-pool`: the pool that it chose.
    pub pool: Option<String>,
    /// `x-tidegate-reason`: why.
    pub reason: Option<String>,
    /// `x-tidegate-estimate`: prompt tokens, the mean estimate.
    pub estimate: Option<u64>,
    /// `x-tidegate-fit`: prompt and output tokens, the conservative estimate.
    pub fit: Option<u64>,
    /// Why a tenant's limits refused it: `x-tidegate-refused`, or else the type
    /// or the code of the error.
    pub refused: Option<String>,
    /// `retry-after`: seconds until it may come again.
    pub retry_after: Option<u64>,
}

/// Who sends a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    /// Its place in the order of sending.
    pub index: usize,
    /// The tenant's place, if there are tenants.
    pub tenant: usize,
    /// How often the same request was sent before.
    pub retries: u32,
    /// Headers that tell who it is.
    pub headers: &'a [(String, String)],
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Output tokens: by usage, or else the events with text.
    pub output_tokens: u32,
    /// Prompt tokens by usage, where the answer has usage.
    pub prompt_tokens: Option<u32>,
    /// `stop` or `length`.
    pub finish: String,
    /// Time to the first token; streams only.
    pub first_token: Option<Duration>,
    /// Time to the end.
    pub end: Duration,
}

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A 400 that names the context length; carries what the server said.
    ContextLength(String),
    /// Another status, and what the server said.
    Status(u16, String),
    /// No connection, or it broke.
    Connection(String),
    /// The answer is not in OpenAI's shape; says what is wrong.
    Malformed(String),
    /// No end within the time allowed.
    Timeout,
}

impl Failure {
    /// A short name to count by.
    pub fn name(&self) -> String {
        match self {
            Self::ContextLength(_) => "400 context length".into(),
            Self::Status(status, _) => format!("status {status}"),
            Self::Connection(_) => "connection".into(),
            Self::Malformed(_) => "malformed answer".into(),
            Self::Timeout => "timeout".into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self {
            Self::ContextLength(why)
            | Self::Status(_, why)
            | Self::Connection(why)
            | Self::Malformed(why)
                if !why.is_empty() =>
            {
                write!(f, ": {}", one_line(why))
            }
            _ => Ok(()),
        }
    }
}

/// Characters of a server's words that are shown.
const SHOWN: usize = 200;

/// At most [`SHOWN`] characters, none of which moves the cursor.
fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.trim().chars().take(SHOWN).map(plain).collect();
    if text.trim().chars().nth(SHOWN).is_some() {
        line.push('…');
    }
    line
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connection(why) => Self::Connection(why),
            other => Self::Connection(other.to_string()),
        }
    }
}

/// Sends one request and reads its answer to the end.
pub async fn send(
    client: &Client,
    from: Origin<'_>,
    prepared: Prepared,
    most: Duration,
) -> Outcome {
    let Prepared { request, kind, stream, content_bytes, body } = prepared;
    let mut outcome = Outcome {
        index: from.index,
        tenant: from.tenant,
        retries: from.retries,
        request,
        kind,
        stream,
        content_bytes,
        decision: Decision::default(),
        answered_by: None,
        result: Err(Failure::Timeout),
    };
    let start = Instant::now();
    let output = request.output_tokens.to_string();
    let exchange = async {
        let mut headers = vec![(OUTPUT_TOKENS_HEADER, output.as_str())];
        headers.extend(from.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let response = client.post("/v1/chat/completions", &headers, body).await?;
        outcome.decision = decision(response.headers());
        outcome.answered_by = text(response.headers(), POOL_HEADER);
        match response.status().as_u16() {
            200 if stream => read_stream(response, start).await,
            200 => read_full(response, start).await,
            status => {
                let (failure, limit) = refused(status, response).await;
                outcome.decision.refused = outcome.decision.refused.take().or(limit);
                Err(failure)
            }
        }
    };
    if let Ok(result) = tokio::time::timeout(most, exchange).await {
        outcome.result = result;
    }
    outcome
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim();
    // Envoy writes "-" for filter state that is not there.
    (!value.is_empty() && value != "-").then(|| value.to_owned())
}

fn decision(headers: &HeaderMap) -> Decision {
    let number = |name| text(headers, name)?.parse().ok();
    Decision {
        pool: text(headers, "x-tidegate-pool"),
        reason: text(headers, "x-tidegate-reason"),
        estimate: number("x-tidegate-estimate"),
        fit: number("x-tidegate-fit"),
        refused: text(headers, "x-tidegate-refused"),
        retry_after: number("retry-after"),
    }
}

/// What the answer says, and if a limit of a tenant refused the request, which.
async fn refused(status: u16, response: Response<Incoming>) -> (Failure, Option<String>) {
    let body = read_all(response.into_body()).await.unwrap_or_default();
    // vLLM's three refusals: prompt and cap, the cap alone, the prompt alone.
    let words: [&[u8]; 3] = [b"maximum context length", b"max_model_len", b"maximum model length"];
    let about_length = words.iter().any(|words| contains(&body, words));
    let said = message(&body);
    let failure = if status == 400 && about_length {
        Failure::ContextLength(said)
    } else {
        Failure::Status(status, said)
    };
    (failure, limit(&body))
}

/// The limit that an error in OpenAI's shape names.
fn limit(body: &[u8]) -> Option<String> {
    let json: Value = serde_json::from_slice(body).ok()?;
    let member = |name: &str| json.get("error")?.get(name)?.as_str();
    match member("code")? {
        "rate_limit_exceeded" => member("type").map(str::to_owned),
        "request_exceeds_limit" => Some("too_large".into()),
        "tenant_suspended" => Some("suspended".into()),
        _ => None,
    }
}

/// The message of an error in OpenAI's shape, or else the body itself.
fn message(body: &[u8]) -> String {
    let json = serde_json::from_slice::<Value>(body).ok();
    let message = json.as_ref().and_then(|json| json.pointer("/error/message")?.as_str());
    message.map_or_else(|| one_line(&String::from_utf8_lossy(body)), one_line)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

async fn read_full(response: Response<Incoming>, start: Instant) -> Result<Answered, Failure> {
    let body = read_all(response.into_body()).await?;
    let malformed = |why: &str| Failure::Malformed(why.into());
    let answer: Value = serde_json::from_slice(&body).map_err(|_| malformed("not JSON"))?;
    let usage = answer.get("usage").ok_or_else(|| malformed("no usage"))?;
    let choice = answer.get("choices").and_then(|choices| choices.get(0));
    let finish = choice.and_then(|choice| choice.get("finish_reason")?.as_str());
    Ok(Answered {
        output_tokens: count(usage, "completion_tokens")
            .ok_or_else(|| malformed("no completion_tokens"))?,
        prompt_tokens: count(usage, "prompt_tokens"),
        finish: finish.ok_or_else(|| malformed("no finish_reason"))?.into(),
        first_token: None,
        end: start.elapsed(),
    })
}

async fn read_stream(response: Response<Incoming>, start: Instant) -> Result<Answered, Failure> {
    let mut events = Events::new(response.into_body());
    let (mut texts, mut usage, mut finish, mut first, mut done) = (0, None, None, None, false);
    while let Some(event) = events.next().await? {
        let data = match event {
            Event::Done => {
                done = true;
                continue;
            }
            Event::Unreadable(text) => return Err(Failure::Malformed(text)),
            Event::Data(data) => data,
        };
        if let Some(found) = data.get("usage").filter(|usage| !usage.is_null()) {
            usage = Some(found.clone());
        }
        let Some(choice) = data.get("choices").and_then(|choices| choices.get(0)) else { continue };
        let content = choice.get("delta").and_then(|delta| delta.get("content")?.as_str());
        if content.is_some_and(|content| !content.is_empty()) {
            first.get_or_insert_with(|| start.elapsed());
            texts += 1;
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            finish = Some(reason.to_owned());
        }
    }
    let end = start.elapsed();
    let malformed = |why: &str| Failure::Malformed(why.into());
    if !done {
        return Err(malformed("the stream ended without [DONE]"));
    }
    let usage = usage.as_ref();
    Ok(Answered {
        output_tokens: usage.and_then(|usage| count(usage, "completion_tokens")).unwrap_or(texts),
        prompt_tokens: usage.and_then(|usage| count(usage, "prompt_tokens")),
        finish: finish.ok_or_else(|| malformed("no finish_reason"))?,
        first_token: first,
        end,
    })
}

fn count(usage: &Value, field: &str) -> Option<u32> {
    usage.get(field)?.as_u64().and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_limit_that_refused() {
        let error = |kind: &str, code: &str| {
            limit(format!(r#"{{"error": {{"type": "{kind}", "code": "{code}"}}}}"#).as_bytes())
        };
        assert_eq!(error("requests", "rate_limit_exceeded").as_deref(), Some("requests"));
        assert_eq!(error("x", "request_exceeds_limit").as_deref(), Some("too_large"));
        assert_eq!(error("x", "tenant_suspended").as_deref(), Some("suspended"));
        assert_eq!((error("tokens", "model_not_found"), limit(b"no")), (None, None));
    }

    #[test]
    fn failures_tell_what_the_server_said_within_bounds() {
        let body = br#"{"error": {"message": "the model\nis asleep", "code": 503}}"#;
        let failure = Failure::Status(503, message(body));
        assert_eq!(failure.to_string(), "status 503: the model is asleep");
        assert_eq!(Failure::Status(502, message(b"")).to_string(), "status 502");
        let long = Failure::Status(500, message(&[b'x'; 5_000])).to_string();
        assert!(long.len() < 230 && long.ends_with('…'), "{long}");
        assert_eq!(Failure::Timeout.to_string(), "timeout");
        assert_eq!(Failure::Connection("refused".into()).to_string(), "connection: refused");
    }
}
