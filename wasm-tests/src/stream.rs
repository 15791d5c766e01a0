//! One HTTP stream, driven callback by callback.

use crate::abi::Direction;
use crate::http::{LocalReply, Phase, Shown, Step, StreamState};
use crate::machine::Machine;
use crate::{Action, Headers, Result, Vm};
use std::cell::RefMut;
use std::collections::BTreeMap;
use std::fmt;

/// Envoy's response flag for a client that went away (`DC`).
pub const FLAG_CLIENT_GONE: u64 = 0x4000;

/// An open stream. Streams of one VM may be driven in any interleaving.
#[derive(Clone, Debug)]
pub struct Stream {
    vm: Vm,
    id: u32,
    generation: u32,
}

impl Stream {
    pub(crate) fn new(vm: Vm, id: u32, generation: u32) -> Self {
        Self { vm, id, generation }
    }

    fn machine(&self) -> Result<RefMut<'_, Machine>> {
        self.vm.machine_of(self.generation)
    }

    fn state<R>(&self, look: impl FnOnce(&mut StreamState) -> R) -> Result<R> {
        Ok(look(self.machine()?.stream(self.id)?))
    }

    /// Request headers; `end` says that no body follows.
    pub fn request_headers(&self, headers: impl Into<Headers>, end: bool) -> Result<Action> {
        self.machine()?.headers(self.id, Direction::Request, headers.into(), end)
    }

    /// A piece of the request's body, perhaps empty.
    pub fn request_body(&self, chunk: &[u8], end: bool) -> Result<Action> {
        self.machine()?.body(self.id, Direction::Request, chunk, end)
    }

    /// Request trailers; they end the request.
    pub fn request_trailers(&self, trailers: impl Into<Headers>) -> Result<Action> {
        self.machine()?.trailers(self.id, Direction::Request, trailers.into())
    }

    /// The upstream's response headers, with `:status`.
    pub fn response_headers(&self, headers: impl Into<Headers>, end: bool) -> Result<Action> {
        self.machine()?.headers(self.id, Direction::Response, headers.into(), end)
    }

    /// A piece of the response's body.
    pub fn response_body(&self, chunk: &[u8], end: bool) -> Result<Action> {
        self.machine()?.body(self.id, Direction::Response, chunk, end)
    }

    /// Response trailers; they end the response.
    pub fn response_trailers(&self, trailers: impl Into<Headers>) -> Result<Action> {
        self.machine()?.trailers(self.id, Direction::Response, trailers.into())
    }

    /// Runs the local reply, the filter's own or Envoy's 413, through the response callbacks.
    pub fn deliver_local_reply(&self) -> Result<()> {
        self.machine()?.reply(self.id)
    }

    /// Envoy answers by itself, for instance with 503 "no_healthy_upstream" or a time-out; our
    /// response callbacks see it.
    pub fn envoy_replies(&self, reply: LocalReply) -> Result<()> {
        self.state(|stream| stream.local_reply.get_or_insert(reply).clone())?;
        self.deliver_local_reply()
    }

    /// Access-log time.
    pub fn log(&self) -> Result<()> {
        self.machine()?.log(self.id)
    }

    /// The filter is about to be destroyed.
    pub fn done(&self) -> Result<()> {
        self.machine()?.done(self.id)
    }

    /// The filter is destroyed; the handle is of no use afterwards.
    pub fn delete(&self) -> Result<Outcome> {
        let stream = self.machine()?.delete(self.id)?;
        Ok(Outcome::new(stream))
    }

    /// The end of a stream in Envoy's order: log, done, delete.
    pub fn finish(&self) -> Result<Outcome> {
        self.log()?;
        self.done()?;
        self.delete()
    }

    /// The client goes away: no more callbacks but log, done and delete.
    pub fn abort(&self) -> Result<Outcome> {
        self.set_property(&["response", "flags"], FLAG_CLIENT_GONE.to_le_bytes())?;
        self.set_property(&["response", "code_details"], "downstream_remote_disconnect")?;
        self.finish()
    }

    /// Sets what `get_property` finds at this path. Numbers are 8 bytes, little-endian.
    pub fn set_property(&self, path: &[&str], value: impl Into<Vec<u8>>) -> Result<()> {
        self.put_property(path.join("\0").into_bytes(), value.into())
    }

    pub(crate) fn put_property(&self, path: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.state(|stream| {
            stream.properties.insert(path, value);
        })
    }

    /// What the filter wrote with `set_property`.
    pub fn filter_state(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.state(|stream| stream.filter_state.get(name).cloned())
    }

    /// Where the request stands.
    pub fn verdict(&self) -> Result<Verdict> {
        self.state(|stream| Verdict::of(stream))
    }

    /// The request's headers as they are now; what the upstream got, once they went on.
    pub fn upstream_headers(&self) -> Result<Headers> {
        self.state(|stream| stream.request.headers.clone())
    }

    /// The body bytes that went to the upstream so far.
    pub fn upstream_body(&self) -> Result<Vec<u8>> {
        self.state(|stream| stream.request.sent.clone())
    }

    /// The body bytes that went to the client so far.
    pub fn client_body(&self) -> Result<Vec<u8>> {
        self.state(|stream| stream.response.sent.clone())
    }

    /// The reply that did not come from the upstream, if there is one.
    pub fn local_reply(&self) -> Result<Option<LocalReply>> {
        self.state(|stream| stream.local_reply.clone())
    }

    /// Whether the filter has reset the stream (`close_stream`).
    pub fn was_reset(&self) -> Result<bool> {
        self.state(|stream| stream.reset)
    }

    /// The context id, for instance to look for it in a log.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// What became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its headers went to the upstream.
    Forwarded,
    /// It was answered without an upstream.
    Replied,
    /// The filter still holds it.
    Held,
}

impl Verdict {
    fn of(stream: &StreamState) -> Self {
        if stream.local_reply.is_some() {
            Self::Replied
        } else if stream.request.headers_phase == Phase::Sent {
            Self::Forwarded
        } else {
            Self::Held
        }
    }
}

/// Everything that can be seen of a finished stream from outside.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What became of the request.
    pub verdict: Verdict,
    /// Whether the whole request went to the upstream, to its end.
    pub request_complete: bool,
    /// The request's headers as the upstream got them.
    pub request_headers: Headers,
    /// The request's body as the upstream got it.
    pub request_body: Vec<u8>,
    /// The request's trailers as the upstream got them.
    pub request_trailers: Headers,
    /// Whether the whole response went to the client, to its end.
    pub response_complete: bool,
    /// The response's headers as the client got them.
    pub response_headers: Headers,
    /// The response's body as the client got it.
    pub response_body: Vec<u8>,
    /// The response's trailers as the client got them.
    pub response_trailers: Headers,
    /// The answer that did not come from the upstream.
    pub local_reply: Option<LocalReply>,
    /// Whether the filter reset the stream.
    pub reset: bool,
    /// What the filter wrote with `set_property`, by name.
    pub filter_state: BTreeMap<String, Vec<u8>>,
    /// How often the filter cleared the route cache.
    pub route_clears: u32,
    /// Every callback and its answer.
    pub trace: Vec<Step>,
    /// Fuel that all callbacks of the stream took.
    pub fuel: u64,
}

impl Outcome {
    fn new(stream: StreamState) -> Self {
        let verdict = Verdict::of(&stream);
        let (request, response) = (stream.request, stream.response);
        let (request_complete, response_complete) = (request.complete(), response.complete());
        let sent = |headers, phase| if phase == Phase::Sent { headers } else { Headers::new() };
        let mut outcome = Self {
            verdict,
            request_complete,
            request_headers: sent(request.headers, request.headers_phase),
            request_body: request.sent,
            request_trailers: sent(request.trailers, request.trailers_phase),
            response_complete,
            response_headers: sent(response.headers, response.headers_phase),
            response_body: response.sent,
            response_trailers: sent(response.trailers, response.trailers_phase),
            local_reply: stream.local_reply,
            reset: stream.reset,
            filter_state: stream.filter_state,
            route_clears: stream.route_clears,
            trace: stream.trace,
            fuel: stream.fuel,
        };
        if let Some(reply) = outcome.local_reply.as_ref().filter(|_| !stream.replying) {
            // Envoy sent it past us.
            outcome.response_headers = reply.response_headers();
            outcome.response_body.clone_from(&reply.body);
            outcome.response_complete = true;
        }
        outcome
    }

    /// A value of filter state when it is text.
    pub fn state(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.filter_state.get(name)?).ok()
    }

    /// The status that the client got.
    pub fn status(&self) -> Option<u32> {
        self.response_headers.text(":status")?.parse().ok()
    }

    /// The trace on one line, such as `request_headers(5):Pause request_body(20,end):Continue`.
    pub fn trace_text(&self) -> String {
        self.trace.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state: BTreeMap<_, _> =
            self.filter_state.iter().map(|(name, value)| (name, Shown(value))).collect();
        f.debug_struct("Outcome")
            .field("verdict", &self.verdict)
            .field("request_complete", &self.request_complete)
            .field("request_headers", &self.request_headers)
            .field("request_body", &Shown(&self.request_body))
            .field("request_trailers", &self.request_trailers)
            .field("response_complete", &self.response_complete)
            .field("response_headers", &self.response_headers)
            .field("response_body", &Shown(&self.response_body))
            .field("response_trailers", &self.response_trailers)
            .field("local_reply", &self.local_reply)
            .field("reset", &self.reset)
            .field("filter_state", &state)
            .field("route_clears", &self.route_clears)
            .field("trace", &self.trace_text())
            .field("fuel", &self.fuel)
            .finish()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.verdict, self.trace_text())
    }
}
