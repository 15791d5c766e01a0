//! The state of one HTTP stream, as Envoy's filter chain keeps it. Nothing here calls the guest.

use crate::abi::Direction;
use crate::{Action, Callback, Error, Headers, Result, Status};
use std::collections::BTreeMap;
use std::fmt;

/// Where a header or trailer map stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not come yet.
    #[default]
    Unseen,
    /// The filter has it in hand: in its callback, or held since.
    Open,
    /// It went on. Envoy takes the map away from the filter here.
    Sent,
}

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Half {
    pub(crate) headers: Headers,
    pub(crate) headers_phase: Phase,
    pub(crate) trailers: Headers,
    pub(crate) trailers_phase: Phase,
    /// The body bytes that the filter can see.
    pub(crate) buffer: Vec<u8>,
    /// The body bytes that went on.
    pub(crate) sent: Vec<u8>,
    /// Whether the filter holds the buffer, or is in the body callback.
    pub(crate) buffer_open: bool,
    /// Paused at the headers without `allow_on_headers_stop_iteration`: no body callbacks.
    pub(crate) stop_all: bool,
    /// The filter paused at the headers. Envoy then still shows their properties after they went
    /// on.
    pub(crate) pinned: bool,
    /// Body or trailers came while the body callbacks were off.
    pub(crate) withheld: bool,
    /// The sender has finished.
    pub(crate) ended: bool,
}

impl Half {
    /// Lets everything that waits go on.
    pub(crate) fn release(&mut self) {
        if self.headers_phase == Phase::Open {
            self.headers_phase = Phase::Sent;
        }
        if self.trailers_phase == Phase::Open {
            self.trailers_phase = Phase::Sent;
        }
        if self.sent.is_empty() {
            // The usual case is one release of the whole body: move it, copy nothing.
            std::mem::swap(&mut self.sent, &mut self.buffer);
        } else {
            self.sent.extend_from_slice(&self.buffer);
        }
        self.buffer.clear();
        self.buffer_open = false;
        self.stop_all = false;
    }

    /// The bytes that the filter may look at now.
    pub(crate) fn visible(&self) -> &[u8] {
        if self.buffer_open { &self.buffer } else { &[] }
    }

    /// Throws away what waits.
    pub(crate) fn drop_buffer(&mut self) {
        self.buffer.clear();
        self.buffer_open = false;
    }

    /// Whether all that came has gone on.
    pub(crate) fn complete(&self) -> bool {
        let waits = self.headers_phase == Phase::Open
            || self.trailers_phase == Phase::Open
            || self.buffer_open;
        self.ended && !waits
    }

    /// Envoy's rule: prepend, replace all, or append; nothing in the middle.
    pub(crate) fn write_buffer(
        &mut self,
        start: usize,
        length: usize,
        bytes: &[u8],
    ) -> Result<(), Status> {
        if !self.buffer_open {
            return Err(Status::BadArgument);
        }
        if start == 0 && length == 0 {
            self.buffer.splice(0..0, bytes.iter().copied());
        } else if start == 0 && length >= self.buffer.len() {
            self.buffer.clear();
            self.buffer.extend_from_slice(bytes);
        } else if start >= self.buffer.len() {
            self.buffer.extend_from_slice(bytes);
        } else {
            return Err(Status::BadArgument);
        }
        Ok(())
    }
}

/// Bytes as a failing test should show them.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, more) = self.0.split_at(self.0.len().min(300));
        write!(
            f,
            "{} bytes \"{}{}\"",
            self.0.len(),
            head.escape_ascii(),
            if more.is_empty() { "" } else { "..." }
        )
    }
}

/// An answer that does not come from the upstream.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LocalReply {
    /// HTTP status.
    pub status: u32,
    /// What `response.code_details` says.
    pub details: String,
    /// Headers beside those that Envoy adds itself.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// gRPC status, when one was given.
    pub grpc_status: Option<i32>,
    /// Whether our filter sent it; otherwise Envoy did.
    pub by_filter: bool,
}

impl fmt::Debug for LocalReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalReply")
            .field("status", &self.status)
            .field("details", &self.details)
            .field("headers", &self.headers)
            .field("body", &Shown(&self.body))
            .field("grpc_status", &self.grpc_status)
            .field("by_filter", &self.by_filter)
            .finish()
    }
}

impl LocalReply {
    /// A reply by Envoy itself, such as a time-out or "no healthy upstream".
    pub fn by_envoy(status: u32, details: &str) -> Self {
        Self { status, details: details.to_string(), ..Self::default() }
    }

    /// The headers that the client, and before it the filter's response callback, gets.
    pub(crate) fn response_headers(&self) -> Headers {
        let mut headers = Headers::from([(":status", self.status.to_string())]);
        headers.extend(self.headers.iter());
        if !self.body.is_empty() {
            headers.set("content-length", self.body.len().to_string());
            if headers.get("content-type").is_none() {
                headers.add("content-type", "text/plain");
            }
        }
        headers
    }
}

/// One callback of a stream and what the filter answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which callback.
    pub callback: Callback,
    /// Number of headers, or of body bytes that the filter could see.
    pub size: usize,
    /// Whether it ended the stream.
    pub end: bool,
    /// What the filter answered.
    pub action: Action,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.end { ",end" } else { "" };
        write!(f, "{}({}{end}):{:?}", self.callback, self.size, self.action)
    }
}

/// One HTTP stream.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// Its root context.
    pub(crate) root: u32,
    pub(crate) request: Half,
    pub(crate) response: Half,
    pub(crate) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) filter_state: BTreeMap<String, Vec<u8>>,
    pub(crate) local_reply: Option<LocalReply>,
    /// The local reply is on its way through the response callbacks.
    pub(crate) replying: bool,
    pub(crate) logging: bool,
    /// The filter asked to go on (`continue_stream`); done after the callback.
    pub(crate) resume_request: bool,
    pub(crate) resume_response: bool,
    pub(crate) reset: bool,
    pub(crate) route_clears: u32,
    pub(crate) trace: Vec<Step>,
    pub(crate) fuel: u64,
}

impl StreamState {
    pub(crate) fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// The map of this ABI number, if the filter may read it now. `Err` means that it may not.
    pub(crate) fn readable(&self, map: u32) -> Result<&Headers, Status> {
        let (headers, phase) = match map {
            0 => (&self.request.headers, self.request.headers_phase),
            1 => (&self.request.trailers, self.request.trailers_phase),
            2 => (&self.response.headers, self.response.headers_phase),
            3 => (&self.response.trailers, self.response.trailers_phase),
            _ if self.logging => return Err(Status::NotFound),
            _ => return Err(Status::BadArgument),
        };
        match phase {
            Phase::Open => Ok(headers),
            // The access log sees the final maps, all but the request's trailers.
            Phase::Sent if self.logging && map != 1 => Ok(headers),
            _ if self.logging => Err(Status::NotFound),
            _ => Err(Status::BadArgument),
        }
    }

    /// The map of this ABI number, if the filter may change it now.
    pub(crate) fn writable(&mut self, map: u32) -> Result<&mut Headers, Status> {
        if self.logging {
            return Err(Status::BadArgument);
        }
        let (headers, phase) = match map {
            0 => (&mut self.request.headers, self.request.headers_phase),
            1 => (&mut self.request.trailers, self.request.trailers_phase),
            2 => (&mut self.response.headers, self.response.headers_phase),
            3 => (&mut self.response.trailers, self.response.trailers_phase),
            _ => return Err(Status::BadArgument),
        };
        if phase == Phase::Open { Ok(headers) } else { Err(Status::BadArgument) }
    }

    /// A property: what the test set, else what Envoy knows from the stream, else filter state.
    pub(crate) fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        let known = || self.known_property(path);
        let state = || self.filter_state.get(std::str::from_utf8(path).ok()?).cloned();
        self.properties.get(path).cloned().or_else(known).or_else(state)
    }

    fn known_property(&self, path: &[u8]) -> Option<Vec<u8>> {
        let half = &self.request;
        let shown = half.headers_phase == Phase::Open || half.pinned || self.logging;
        let request = |name| half.headers.get(name).filter(|_| shown).map(<[u8]>::to_vec);
        let answered = self.response.headers_phase != Phase::Unseen;
        match path {
            b"request\0path" => request(":path"),
            b"request\0url_path" => {
                let mut path = request(":path")?;
                let end = path.iter().position(|byte| *byte == b'?').unwrap_or(path.len());
                path.truncate(end);
                Some(path)
            }
            b"request\0host" => request(":authority"),
            b"request\0method" => request(":method"),
            b"response\0code" if answered => {
                let code: u64 = self.response.headers.text(":status")?.parse().ok()?;
                Some(code.to_le_bytes().to_vec())
            }
            b"response\0code_details" if answered => {
                let reply = self.local_reply.as_ref().map(|reply| reply.details.as_str());
                Some(reply.unwrap_or("via_upstream").as_bytes().to_vec())
            }
            b"response\0flags" => Some(0_u64.to_le_bytes().to_vec()),
            _ => None,
        }
    }

    /// Refuses what Envoy never does, so that a test cannot prove things about it.
    pub(crate) fn check(&self, direction: Direction, callback: Callback) -> Result<()> {
        let wrong = |what: &str| Err(Error::misuse(format!("{callback}: {what}")));
        let half = match direction {
            Direction::Request if self.local_reply.is_some() => {
                return wrong("the request has been answered locally");
            }
            Direction::Request if self.reset => return wrong("the filter has reset the stream"),
            Direction::Request => &self.request,
            Direction::Response if self.local_reply.is_some() && !self.replying => {
                return wrong("the request has been answered locally: deliver that reply");
            }
            Direction::Response if !self.replying && self.request.headers_phase != Phase::Sent => {
                return wrong("no upstream can answer, the request's headers have not gone on");
            }
            Direction::Response => &self.response,
        };
        let first = matches!(callback, Callback::RequestHeaders | Callback::ResponseHeaders);
        match (first, half.headers_phase) {
            (true, Phase::Unseen) => Ok(()),
            (true, _) => wrong("the headers came before"),
            (false, Phase::Unseen) => wrong("the headers must come first"),
            (false, _) if half.ended => wrong("this direction has ended"),
            (false, _) => Ok(()),
        }
    }
}
