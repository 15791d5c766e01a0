//! Answers byte for byte in vLLM's shapes: fields in its order, absent and null
//! where it has them absent and null.
//!
//! Source: vLLM's `entrypoints/openai/{chat_completion,completion}/serving.py`
//! and `protocol.py`, as of 2026. Streams are dumped with `exclude_unset`, so
//! `usage` is absent from all events but those that carry it; full answers have
//! every field. One difference: vLLM's end-of-sequence token counts and has no
//! text, here each counted token has text.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde_json::Value;

use super::ask::{Api, Ask};
use super::fault::BreakOff;
use super::metrics::Finish;
use super::replica::{Output, Outputs};
use crate::text::Words;

/// A request's answer in the making.
pub(super) struct Answer {
    ask: Ask,
    words: Arc<Words>,
    /// Already JSON strings.
    id: String,
    model: String,
    created: u64,
    /// Tokens produced, by choice.
    produced: Vec<u32>,
}

impl Answer {
    pub(super) fn new(ask: Ask, words: Arc<Words>, id: &str, model: &str, created: u64) -> Self {
        let prefix = if ask.api == Api::Chat { "chatcmpl" } else { "cmpl" };
        let choices = ask.prompts.len() * ask.n as usize;
        Self {
            id: Value::from(format!("{prefix}-{id}")).to_string(),
            model: Value::from(model).to_string(),
            created,
            words,
            produced: vec![0; choices],
            ask,
        }
    }

    /// The choice's prompt.
    fn prompt(&self, choice: usize) -> (u32, u64) {
        let prompt = self.ask.prompts.get(choice / self.ask.n.max(1) as usize);
        prompt.map_or((0, 0), |prompt| (prompt.tokens, prompt.hash))
    }

    /// Names the choice's text.
    fn seed(&self, choice: usize) -> u64 {
        self.prompt(choice).1.wrapping_add(choice as u64)
    }

    fn prompt_tokens(&self) -> u64 {
        self.ask.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum()
    }

    fn completion_tokens(&self) -> u64 {
        self.produced.iter().map(|&tokens| u64::from(tokens)).sum()
    }

    fn head(&self, object: &str) -> String {
        format!(
            r#"{{"id":{},"object":"{object}","created":{},"model":{},"choices":["#,
            self.id, self.created, self.model
        )
    }

    /// Ends a stream's event, with usage where it was asked for on each.
    fn close(&self, choice: usize, out: &mut String) {
        out.push(']');
        if self.ask.continuous_usage {
            let produced = self.produced.get(choice).copied().unwrap_or(0);
            let usage = usage(self.prompt(choice).0.into(), produced.into());
            let _ = write!(out, r#","usage":{{{usage}}}"#);
        }
        out.push_str("}\n\n");
    }

    /// A chat stream's first events: one a choice, with the role.
    fn roles(&self, out: &mut String) {
        for choice in 0..self.produced.len() {
            let _ = write!(
                out,
                r#"data: {}{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}"#,
                self.head("chat.completion.chunk")
            );
            self.close(choice, out);
        }
    }

    /// One token's event.
    fn token(&mut self, output: Output, out: &mut String) {
        let choice = output.choice;
        let word = self.words.piece(self.seed(choice), u64::from(output.token) - 1);
        let word = Value::from(word).to_string();
        if let Some(produced) = self.produced.get_mut(choice) {
            *produced = output.token;
        }
        let finish = output.finish.map_or("null".into(), |f| format!("\"{}\"", f.name()));
        let _ = match self.ask.api {
            Api::Chat => {
                let stop = if output.finish.is_some() { r#""stop_reason":null,"# } else { "" };
                write!(
                    out,
                    r#"data: {}{{"index":{choice},"delta":{{"content":{word}}},"logprobs":null,"finish_reason":{finish},{stop}"token_ids":null}}"#,
                    self.head("chat.completion.chunk")
                )
            }
            Api::Completions => write!(
                out,
                r#"data: {}{{"index":{choice},"text":{word},"logprobs":null,"finish_reason":{finish},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}"#,
                self.head("text_completion")
            ),
        };
        self.close(choice, out);
    }

    /// The stream's end.
    fn end(&self, out: &mut String) {
        if self.ask.include_usage {
            let object = match self.ask.api {
                Api::Chat => "chat.completion.chunk",
                Api::Completions => "text_completion",
            };
            let usage = usage(self.prompt_tokens(), self.completion_tokens());
            let _ = write!(out, "data: {}],\"usage\":{{{usage}}}}}\n\n", self.head(object));
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// The whole answer, once every choice has ended; or, after so many tokens,
    /// nothing.
    pub(super) async fn full(
        mut self,
        mut outputs: Outputs,
        mut tokens_left: Option<u32>,
    ) -> Result<String, BreakOff> {
        let mut finishes = vec![Finish::Stop; self.produced.len()];
        while let Some(output) = outputs.receiver.recv().await {
            spend(&mut tokens_left)?;
            if let Some(produced) = self.produced.get_mut(output.choice) {
                *produced = output.token;
            }
            if let Some((finish, end)) = finishes.get_mut(output.choice).zip(output.finish) {
                *finish = end;
            }
        }
        let (object, tail) = match self.ask.api {
            Api::Chat => (
                "chat.completion",
                r#","prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null"#,
            ),
            Api::Completions => ("text_completion", r#","kv_transfer_params":null"#),
        };
        let mut out = self.head(object);
        for (choice, (&produced, finish)) in self.produced.iter().zip(finishes).enumerate() {
            let text = self.words.text(self.seed(choice), produced.into());
            let text = Value::from(text).to_string();
            let comma = if choice > 0 { "," } else { "" };
            let finish = finish.name();
            let _ = match self.ask.api {
                Api::Chat => write!(
                    out,
                    r#"{comma}{{"index":{choice},"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null}},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null}}"#
                ),
                Api::Completions => write!(
                    out,
                    r#"{comma}{{"index":{choice},"text":{text},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}}"#
                ),
            };
        }
        let usage = usage(self.prompt_tokens(), self.completion_tokens());
        let _ = write!(
            out,
            r#"],"service_tier":null,"system_fingerprint":null,"usage":{{{usage},"prompt_tokens_details":null}}{tail}}}"#
        );
        Ok(out)
    }
}

/// Takes one token from what may still be sent, if that is limited.
fn spend(tokens_left: &mut Option<u32>) -> Result<(), BreakOff> {
    if let Some(left) = tokens_left {
        *left = left.checked_sub(1).ok_or(BreakOff)?;
    }
    Ok(())
}

/// vLLM's order of the fields.
fn usage(prompt: u64, completion: u64) -> String {
    let total = prompt + completion;
    format!(r#""prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}"#)
}

/// A response's body.
pub(super) enum Payload {
    /// All of it at once.
    Full(Option<Bytes>),
    /// Server-sent events as the tokens come.
    Events(Box<Events>),
}

/// The stream's state.
pub(super) struct Events {
    answer: Answer,
    outputs: Outputs,
    /// Tokens after which the connection breaks off.
    tokens_left: Option<u32>,
    flushed: bool,
    started: bool,
    ended: bool,
}

impl Payload {
    pub(super) fn full(text: impl Into<Bytes>) -> Self {
        Self::Full(Some(text.into()))
    }

    pub(super) fn events(answer: Answer, outputs: Outputs, tokens_left: Option<u32>) -> Self {
        Self::Events(Box::new(Events {
            answer,
            outputs,
            tokens_left,
            flushed: false,
            started: false,
            ended: false,
        }))
    }
}

impl Events {
    /// Every event that is ready: one frame holds several when the client is
    /// slower than the engine.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BreakOff>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        loop {
            // What was written before must have left when the connection breaks
            // off: hyper sends when a body has nothing more for the moment.
            if self.tokens_left == Some(0) && !self.flushed {
                if !out.is_empty() {
                    break;
                }
                self.flushed = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.outputs.receiver.poll_recv(context) {
                Poll::Ready(Some(output)) => {
                    if let Err(broken) = spend(&mut self.tokens_left) {
                        self.ended = true;
                        return Poll::Ready(Some(Err(broken)));
                    }
                    if !self.started && self.answer.ask.api == Api::Chat {
                        self.answer.roles(&mut out);
                    }
                    self.started = true;
                    self.answer.token(output, &mut out);
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    self.answer.end(&mut out);
                    break;
                }
                Poll::Pending if out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(out.into())))
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = BreakOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Events(events) => {
                events.poll(context).map(|bytes| bytes.map(|b| b.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Events(events) => events.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
