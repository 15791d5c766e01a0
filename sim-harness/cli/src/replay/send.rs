//! One request to the gateway, and what came back.

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
    /// Its place in the workload, from 0.
    pub index: usize,
    /// What was sent. `input_tokens` is the prompt's true length.
    pub request: Request,
    /// What its text was.
    pub kind: Kind,
    /// The answer was to be streamed.
    pub stream: bool,
    /// What the gateway said of its decision.
    pub decision: Decision,
    /// The pool that answered, by the backend's own word.
    pub answered_by: Option<String>,
    /// The answer, or why there is none.
    pub result: Result<Answered, Failure>,
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
    /// A 400 that names the context length.
    ContextLength,
    /// Another status.
    Status(u16),
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
            Self::ContextLength => "400 context length".into(),
            Self::Status(status) => format!("status {status}"),
            Self::Connection(_) => "connection".into(),
            Self::Malformed(_) => "malformed answer".into(),
            Self::Timeout => "timeout".into(),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Connection(error.to_string())
    }
}

/// Sends one request and reads its answer to the end.
pub async fn send(client: &Client, index: usize, prepared: Prepared, most: Duration) -> Outcome {
    let Prepared { request, kind, stream, body } = prepared;
    let mut outcome = Outcome {
        index,
        request,
        kind,
        stream,
        decision: Decision::default(),
        answered_by: None,
        result: Err(Failure::Timeout),
    };
    let start = Instant::now();
    let output = request.output_tokens.to_string();
    let exchange = async {
        let headers = [(OUTPUT_TOKENS_HEADER, output.as_str())];
        let response = client.post("/v1/chat/completions", &headers, body).await?;
        outcome.decision = decision(response.headers());
        outcome.answered_by = text(response.headers(), POOL_HEADER);
        match response.status().as_u16() {
            200 if stream => read_stream(response, start).await,
            200 => read_full(response, start).await,
            status => Err(refused(status, response).await),
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
    }
}

async fn refused(status: u16, response: Response<Incoming>) -> Failure {
    let body = read_all(response.into_body()).await.unwrap_or_default();
    // vLLM's three refusals: prompt and cap, the cap alone, the prompt alone.
    let words: [&[u8]; 3] = [b"maximum context length", b"max_model_len", b"maximum model length"];
    let about_length = words.iter().any(|words| contains(&body, words));
    if status == 400 && about_length { Failure::ContextLength } else { Failure::Status(status) }
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
