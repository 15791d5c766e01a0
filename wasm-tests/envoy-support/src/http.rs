//! As much HTTP/1.1 as tests need: it sends what it is told, and checks that
//! what comes back is framed rightly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// No answer of a test takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

type Headers = Vec<(String, String)>;

/// A request: what a client sends, and what a [`Backend`](crate::Backend) saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Names in lower case; bytes that are no UTF-8 come out as U+FFFD.
    pub headers: Headers,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Request {
    /// A GET.
    pub fn get(path: &str) -> Self {
        let (method, path) = ("GET".into(), path.into());
        Self { method, path, headers: Vec::new(), body: Vec::new() }
    }

    /// A POST of JSON.
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let request = Self { method: "POST".into(), body: body.into(), ..Self::get(path) };
        request.with("content-type", "application/json")
    }

    /// Adds a header. `transfer-encoding: chunked` sends the body in chunks,
    /// everything else with its length.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The request as bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let chunked = self.header("transfer-encoding") == Some("chunked");
        let mut head = vec![format!("{} {} HTTP/1.1", self.method, self.path)];
        head.push("host: tidegate.test".into());
        head.extend(self.headers.iter().map(|(name, value)| format!("{name}: {value}")));
        if !chunked && (self.method == "POST" || !self.body.is_empty()) {
            head.push(format!("content-length: {}", self.body.len()));
        }
        let mut out = format!("{}\r\n\r\n", head.join("\r\n")).into_bytes();
        if chunked {
            for part in self.body.chunks(8192) {
                out.extend(chunk(part));
            }
            out.extend(b"0\r\n\r\n");
        } else {
            out.extend(&self.body);
        }
        out
    }

    /// Sends the request to a port of this machine on a connection of its own.
    pub fn send(&self, port: u16) -> Result<Response, String> {
        let mut connection = Connection::open(port)?;
        // Envoy may answer and close before it has read all; the answer tells.
        let sent = connection.write(&self.bytes());
        connection.response().map_err(|e| sent.err().unwrap_or(e))
    }

    pub(crate) fn read(reader: &mut impl BufRead) -> Result<Option<Self>, String> {
        let Some((first, headers)) = head(reader)? else { return Ok(None) };
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let body = body(reader, &headers, 0)?;
        Ok(Some(Self { method: method.into(), path: path.into(), headers, body }))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case; bytes that are no UTF-8 come out as U+FFFD.
    pub headers: Headers,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection whose bytes the test writes itself: several requests on it, raw
/// headers, a body that stops half way, an upgrade. Dropping it is the client's
/// abort.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects to a port of this machine.
    pub fn open(port: u16) -> Result<Self, String> {
        let text = |e| format!("port {port}: {e}");
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Writes these bytes at once.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.0.get_mut().write_all(bytes).map_err(|e| format!("writing: {e}"))
    }

    /// Reads exactly this many bytes, as after an upgrade.
    pub fn read(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).map_err(|e| format!("reading: {e}"))?;
        Ok(bytes)
    }

    /// Reads one whole answer.
    pub fn response(&mut self) -> Result<Response, String> {
        let mut response = self.head()?;
        response.body = self.body(&response)?;
        Ok(response)
    }

    /// Reads an answer up to its headers; the body is still empty.
    pub fn head(&mut self) -> Result<Response, String> {
        loop {
            let (first, headers) =
                head(&mut self.0)?.ok_or("the connection was closed without an answer")?;
            let status = first
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .ok_or_else(|| format!("no status line: {first}"))?;
            if status != 100 {
                return Ok(Response { status, headers, body: Vec::new() });
            }
        }
    }

    /// Reads the body that belongs to this head.
    pub fn body(&mut self, head: &Response) -> Result<Vec<u8>, String> {
        match head.status {
            101 | 204 | 304 => Ok(Vec::new()),
            _ => body(&mut self.0, &head.headers, u64::MAX),
        }
    }
}

/// One chunk of a chunked body.
pub(crate) fn chunk(part: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat()
}

fn find<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

fn line(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    match reader.read_until(b'\n', &mut bytes) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_string())),
        Err(e) => Err(format!("reading: {e}")),
    }
}

fn head(reader: &mut impl BufRead) -> Result<Option<(String, Headers)>, String> {
    let Some(first) = line(reader)? else { return Ok(None) };
    let mut headers = Vec::new();
    loop {
        let next = line(reader)?.ok_or("the connection was closed within the headers")?;
        if next.is_empty() {
            return Ok(Some((first, headers)));
        }
        let (name, value) = next.split_once(':').ok_or_else(|| format!("no header: {next}"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
}

/// Reads a body; one without any framing has at most `unframed` bytes.
fn body(reader: &mut impl BufRead, headers: &Headers, unframed: u64) -> Result<Vec<u8>, String> {
    let cut = |e| format!("the body was cut off: {e}");
    let mut bytes = Vec::new();
    if find(headers, "transfer-encoding") == Some("chunked") {
        loop {
            let size = line(reader)?.ok_or("the body was cut off between chunks")?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| format!("no chunk: {size}"))?;
            let mut part = vec![0; size + 2];
            reader.read_exact(&mut part).map_err(cut)?;
            part.truncate(size);
            bytes.extend(part);
            if size == 0 {
                return Ok(bytes);
            }
        }
    }
    if let Some(length) = find(headers, "content-length") {
        let length = length.parse().map_err(|_| format!("no length: {length}"))?;
        bytes.resize(length, 0);
        reader.read_exact(&mut bytes).map_err(cut)?;
    } else {
        reader.take(unframed).read_to_end(&mut bytes).map_err(cut)?;
    }
    Ok(bytes)
}
