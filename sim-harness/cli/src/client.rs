//! A small HTTP client for the load generator and the tests.

use std::fmt;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The base URL is not `http://host[:port]`; carries it.
    Url(String),
    /// A header or a path is not allowed in HTTP; carries why.
    Request(String),
    /// No connection, or it broke; carries why.
    Connection(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(found) => {
                write!(f, "gateway: found {found:?}; allowed: http://host or http://host:port")
            }
            Self::Request(why) => write!(f, "cannot build the request: {why}"),
            Self::Connection(why) => write!(f, "connection: {why}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// A pooled HTTP/1.1 client for one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Client {
    /// A client for `http://host[:port]`.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        let trimmed = base.trim_end_matches('/');
        let Ok(uri) = trimmed.parse::<hyper::Uri>() else {
            return Err(ClientError::Url(base.into()));
        };
        let plain = uri.scheme_str() == Some("http") && uri.host().is_some();
        if !plain || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(ClientError::Url(base.into()));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { http, base: trimmed.into() })
    }

    /// Sends a request and returns when the answer's headers are there.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(body.into()))
            .map_err(|error| ClientError::Request(error.to_string()))?;
        self.http.request(request).await.map_err(|error| ClientError::Connection(chain(&error)))
    }

    /// Sends a JSON body.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        self.send("POST", path, &all, body).await
    }
}

/// Reads a body to its end.
pub async fn read_all(body: Incoming) -> Result<Bytes, ClientError> {
    match body.collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) => Err(ClientError::Connection(chain(&error))),
    }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A JSON document.
    Data(Value),
    /// The `[DONE]` mark.
    Done,
    /// Data that is not JSON.
    Unreadable(String),
}

/// Reads server-sent events from a body, in any chunking.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    pending: Vec<u8>,
}

impl Events {
    /// The events of a body.
    pub fn new(body: Incoming) -> Self {
        Self { body, pending: Vec::new() }
    }

    /// The next event; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                if let Some(event) = parse_line(&line) {
                    return Ok(Some(event));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ClientError::Connection(chain(&error))),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.pending.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Event> {
    let data = line.strip_prefix(b"data:")?.trim_ascii();
    if data == b"[DONE]" {
        return Some(Event::Done);
    }
    Some(match serde_json::from_slice(data) {
        Ok(value) => Event::Data(value),
        Err(_) => Event::Unreadable(String::from_utf8_lossy(data).into_owned()),
    })
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_says_what_is_allowed() {
        for wrong in ["", "localhost:80", "https://a", "http://a/v1", "http://a?b", "ftp://a"] {
            let error = Client::new(wrong).unwrap_err().to_string();
            assert!(error.contains("http://host:port"), "{wrong}: {error}");
        }
        assert!(Client::new("http://127.0.0.1:8080/").is_ok());
    }

    #[test]
    fn lines_become_events() {
        assert_eq!(parse_line(b"data: [DONE]\r\n"), Some(Event::Done));
        assert_eq!(
            parse_line(b"data: {\"a\":1}\n"),
            Some(Event::Data(serde_json::json!({"a": 1})))
        );
        assert_eq!(parse_line(b": comment\n"), None);
        assert_eq!(parse_line(b"\n"), None);
        assert_eq!(parse_line(b"data: {\n"), Some(Event::Unreadable("{".into())));
    }
}
