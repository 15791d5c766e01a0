//! A replica whose answers the test writes.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::http::{Request, chunk};

/// What a [`Backend`] says to one request.
#[derive(Debug, Clone)]
pub struct Answer {
    head: String,
    parts: Vec<Vec<u8>>,
    pause: Duration,
    then: Then,
}

/// So long after one byte the next is a packet of its own.
const TRICKLE: Duration = Duration::from_micros(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The connection stays open for the next request.
    Keep,
    Close,
    /// Everything that comes goes back.
    Echo,
}

impl Answer {
    /// A JSON body with its length.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::whole(status, "application/json", body.into())
    }

    /// Server-sent events that are all there, with their length.
    pub fn events(body: impl Into<Vec<u8>>) -> Self {
        Self::whole(200, "text/event-stream", body.into())
    }

    fn whole(status: u16, media: &str, body: Vec<u8>) -> Self {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n");
        Self { head, parts: vec![body], pause: Duration::ZERO, then: Then::Keep }
    }

    /// A stream of server-sent events: each part goes out as one chunk.
    pub fn stream(parts: &[impl AsRef<[u8]>]) -> Self {
        let head = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n";
        let mut parts: Vec<Vec<u8>> = parts.iter().map(|part| chunk(part.as_ref())).collect();
        parts.push(b"0\r\n\r\n".to_vec());
        Self { head: head.into(), parts, pause: Duration::ZERO, then: Then::Keep }
    }

    /// Accepts an upgrade and sends back every byte from then on.
    pub fn echo(protocol: &str) -> Self {
        let head = format!("HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n");
        Self { head, parts: Vec::new(), pause: Duration::ZERO, then: Then::Echo }
    }

    /// Closes the connection without a word.
    pub fn nothing() -> Self {
        Self { head: String::new(), parts: Vec::new(), pause: Duration::ZERO, then: Then::Close }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.head = format!("{}{name}: {value}\r\n", self.head);
        self
    }

    /// Waits this long before the headers and before each part.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Writes one byte at a time, each of which Envoy gets alone.
    #[must_use]
    pub fn trickled(mut self) -> Self {
        self.parts = self.parts.concat().into_iter().map(|byte| vec![byte]).collect();
        self.pause(TRICKLE)
    }

    /// Breaks off before the last part (of a stream: before its end).
    #[must_use]
    pub fn broken(mut self) -> Self {
        self.parts.pop();
        self.then = Then::Close;
        self
    }

    fn write(&self, mut to: &TcpStream) -> std::io::Result<()> {
        thread::sleep(self.pause);
        if !self.head.is_empty() {
            to.write_all(format!("{}\r\n", self.head).as_bytes())?;
        }
        for part in &self.parts {
            thread::sleep(self.pause);
            to.write_all(part)?;
        }
        Ok(())
    }
}

/// A server on a port of its own that answers `/health` by itself and
/// everything else as the test says. Dropping it closes its connections and its
/// port, as the death of a replica does; [`Backend::start_on`] revives it.
#[derive(Debug)]
pub struct Backend {
    port: u16,
    state: Arc<State>,
    acceptor: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: AtomicBool,
    sick: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
    requests: Mutex<Vec<Request>>,
}

impl Backend {
    /// Starts on a free port.
    pub fn start(
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Result<Self, String> {
        Self::start_on(0, answer)
    }

    /// Starts on this port.
    pub fn start_on(
        port: u16,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let text = |e| format!("a backend on port {port}: {e}");
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        let state = Arc::new(State::default());
        let (shared, answer) = (Arc::clone(&state), Arc::new(answer));
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared, answer) =
                    (stream, Arc::clone(&shared), Arc::clone(&answer))
                else {
                    continue;
                };
                if let Ok(copy) = stream.try_clone() {
                    lock(&shared.connections).push(copy);
                }
                thread::spawn(move || serve(&stream, &shared, &*answer));
            }
        });
        Ok(Self { port, state, acceptor: Some(acceptor) })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The requests so far, in the order in which they were complete. Health
    /// checks are not among them.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.state.requests).clone()
    }

    /// What `/health` says from now on: 200 or 503.
    pub fn set_healthy(&self, healthy: bool) {
        self.state.sick.store(!healthy, Ordering::SeqCst);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees that it is over.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
        for connection in lock(&self.state.connections).drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

/// A thread that panicked while it held the lock has only missed to push.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(stream: &TcpStream, state: &State, answer: &dyn Fn(&Request) -> Answer) {
    // Small parts must not wait for each other.
    drop(stream.set_nodelay(true));
    let mut reader = BufReader::new(stream);
    while let Ok(Some(request)) = Request::read(&mut reader) {
        let answer = if request.path == "/health" {
            let sick = state.sick.load(Ordering::SeqCst);
            Answer::json(if sick { 503 } else { 200 }, "")
        } else {
            let answer = answer(&request);
            lock(&state.requests).push(request);
            answer
        };
        if answer.write(stream).is_err() {
            break;
        }
        match answer.then {
            Then::Keep => {}
            Then::Close => break,
            Then::Echo => echo(&mut reader, stream),
        }
    }
    // The copy in `connections` would keep it open.
    drop(stream.shutdown(Shutdown::Both));
}

fn echo(from: &mut impl Read, mut to: &TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(bytes.get(..count).unwrap_or_default()).is_err() {
            return;
        }
    }
}
