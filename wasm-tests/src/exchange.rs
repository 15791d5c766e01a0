//! A whole request and its answer in one call.

use crate::{Headers, LocalReply, Outcome, Result, Root, Stream, Verdict, Vm};
use std::borrow::Cow;

/// Into which pieces a body falls on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Chunks {
    /// One piece.
    #[default]
    Whole,
    /// Pieces of this size; the last may be smaller. 0 counts as 1.
    Every(usize),
    /// Pieces of these sizes, then the rest if any. An empty piece is possible.
    Sizes(Vec<usize>),
}

impl Chunks {
    fn split<'a>(&'a self, body: &'a [u8]) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        match self {
            Self::Whole => Box::new(std::iter::once(body).filter(|body| !body.is_empty())),
            Self::Every(size) => Box::new(body.chunks((*size).max(1))),
            Self::Sizes(sizes) => {
                let mut rest = body;
                let pieces = sizes.iter().map(Some).chain([None]);
                Box::new(pieces.filter_map(move |size| {
                    let (piece, left) = match size {
                        Some(size) => rest.split_at((*size).min(rest.len())),
                        None if rest.is_empty() => return None,
                        None => (rest, [].as_slice()),
                    };
                    rest = left;
                    Some(piece)
                }))
            }
        }
    }
}

/// How a message ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// With its last piece, or with the headers when the body is empty.
    #[default]
    WithLast,
    /// With an empty piece after the last, as HTTP/1.1 does in Envoy, chunked or not.
    EmptyPiece,
    /// With trailers.
    Trailers(Headers),
}

#[derive(Clone, Debug, Default)]
struct Message<'a> {
    headers: Headers,
    body: Cow<'a, [u8]>,
    chunks: Chunks,
    end: End,
}

/// A request, ready to be sent any number of times.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    message: Message<'a>,
    properties: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Request<'a> {
    /// A request with the pseudo headers that Envoy always has, and no body.
    pub fn new(method: &str, path: &str) -> Self {
        let headers = Headers::from([
            (":authority", "gateway.example"),
            (":path", path),
            (":method", method),
            (":scheme", "http"),
            ("x-request-id", "00000000-0000-4000-8000-000000000000"),
        ]);
        Self { message: Message { headers, ..Message::default() }, properties: Vec::new() }
    }

    /// A POST of a JSON body, with content type and length.
    pub fn json(path: &str, body: impl Into<Cow<'a, [u8]>>) -> Self {
        let body = body.into();
        Self::new("POST", path)
            .header("content-type", "application/json")
            .header("content-length", body.len().to_string())
            .body(body)
    }

    /// Sets one header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.message.headers.set(name, value);
        self
    }

    /// Drops a header, for instance `content-length` for a chunked upload.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.message.headers.remove(name);
        self
    }

    /// Adds one value to a header.
    #[must_use]
    pub fn add_header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.message.headers.add(name, value);
        self
    }

    /// Sets the body and nothing else.
    #[must_use]
    pub fn body(mut self, body: impl Into<Cow<'a, [u8]>>) -> Self {
        self.message.body = body.into();
        self
    }

    /// Into which pieces the body falls.
    #[must_use]
    pub fn chunks(mut self, chunks: Chunks) -> Self {
        self.message.chunks = chunks;
        self
    }

    /// How the request ends.
    #[must_use]
    pub fn end(mut self, end: End) -> Self {
        self.message.end = end;
        self
    }

    /// Sets what `get_property` finds, see [`Stream::set_property`].
    #[must_use]
    pub fn property(mut self, path: &[&str], value: impl Into<Vec<u8>>) -> Self {
        self.properties.push((path.join("\0").into_bytes(), value.into()));
        self
    }

    /// Opens a stream and sends the request, up to its end or to a local reply.
    pub fn send(self, vm: &Vm, root: Root) -> Result<Exchange> {
        let stream = vm.open(root)?;
        for (path, value) in self.properties {
            stream.put_property(path, value)?;
        }
        let Message { headers, body, chunks, end } = self.message;
        let ends_now = body.is_empty() && chunks == Chunks::Whole && end == End::WithLast;
        stream.request_headers(headers, ends_now)?;
        let answered = || Ok(stream.verdict()? == Verdict::Replied);
        if !ends_now {
            let mut pieces = chunks.split(&body).peekable();
            while let Some(piece) = pieces.next() {
                if answered()? {
                    break;
                }
                let last = pieces.peek().is_none() && end == End::WithLast;
                stream.request_body(piece, last)?;
            }
            if !answered()? {
                match end {
                    End::WithLast => {}
                    End::EmptyPiece => {
                        stream.request_body(&[], true)?;
                    }
                    End::Trailers(trailers) => {
                        stream.request_trailers(trailers)?;
                    }
                }
            }
        }
        Ok(Exchange { stream })
    }
}

/// An upstream's answer.
#[derive(Clone, Debug, Default)]
pub struct Response<'a> {
    message: Message<'a>,
}

impl<'a> Response<'a> {
    /// An answer with this status and no body.
    pub fn new(status: u32) -> Self {
        let headers = Headers::from([(":status", status.to_string())]);
        Self { message: Message { headers, ..Message::default() } }
    }

    /// An answer with a JSON body.
    pub fn json(status: u32, body: impl Into<Cow<'a, [u8]>>) -> Self {
        let body = body.into();
        Self::new(status)
            .header("content-type", "application/json")
            .header("content-length", body.len().to_string())
            .body(body)
    }

    /// A stream of server-sent events.
    pub fn events(body: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::new(200).header("content-type", "text/event-stream").body(body)
    }

    /// Sets one header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.message.headers.set(name, value);
        self
    }

    /// Sets the body and nothing else.
    #[must_use]
    pub fn body(mut self, body: impl Into<Cow<'a, [u8]>>) -> Self {
        self.message.body = body.into();
        self
    }

    /// Into which pieces the body falls.
    #[must_use]
    pub fn chunks(mut self, chunks: Chunks) -> Self {
        self.message.chunks = chunks;
        self
    }

    /// How the response ends.
    #[must_use]
    pub fn end(mut self, end: End) -> Self {
        self.message.end = end;
        self
    }

    fn feed(&self, stream: &Stream) -> Result<()> {
        let Message { headers, body, chunks, end } = &self.message;
        let ends_now = body.is_empty() && *chunks == Chunks::Whole && *end == End::WithLast;
        stream.response_headers(headers.clone(), ends_now)?;
        if ends_now {
            return Ok(());
        }
        let mut pieces = chunks.split(body).peekable();
        while let Some(piece) = pieces.next() {
            let last = pieces.peek().is_none() && *end == End::WithLast;
            stream.response_body(piece, last)?;
        }
        match end {
            End::WithLast => {}
            End::EmptyPiece => {
                stream.response_body(&[], true)?;
            }
            End::Trailers(trailers) => {
                stream.response_trailers(trailers.clone())?;
            }
        }
        Ok(())
    }
}

/// A request that has been sent and waits for its answer. Any number may wait at once.
#[derive(Debug)]
#[must_use = "the stream stays open until it is answered or aborted"]
pub struct Exchange {
    stream: Stream,
}

impl Exchange {
    /// The stream, to look at or to drive further by hand.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Gives the upstream's answer and finishes the stream. A request that was answered locally
    /// gets that reply instead; one that is still held is finished as it is.
    pub fn answer(self, response: &Response) -> Result<Outcome> {
        match self.stream.verdict()? {
            Verdict::Forwarded => response.feed(&self.stream)?,
            Verdict::Replied => self.stream.deliver_local_reply()?,
            Verdict::Held => {}
        }
        self.stream.finish()
    }

    /// Envoy answers by itself, then the stream is finished.
    pub fn answer_locally(self, reply: LocalReply) -> Result<Outcome> {
        self.stream.envoy_replies(reply)?;
        self.stream.finish()
    }

    /// The client goes away.
    pub fn abort(self) -> Result<Outcome> {
        self.stream.abort()
    }
}

/// Sends the request, gives the answer, finishes the stream.
pub fn exchange(vm: &Vm, root: Root, request: Request, response: &Response) -> Result<Outcome> {
    request.send(vm, root)?.answer(response)
}
