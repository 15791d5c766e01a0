//! Server-sent events, framed as the WHATWG standard says
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): lines
//! end in LF, CR or CRLF; `data` lines of one event join with a newline; a
//! blank line ends the event. Unlike a browser we also take a last event that
//! lacks its blank line: it was paid for.

use super::{Usage, openai};
use crate::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Inside a byte order mark at the start of the stream.
    Bom(usize),
    /// So many bytes of the line are `data`.
    Name(usize),
    /// After `data:`, where one blank may stand.
    Colon,
    /// Inside the value of a `data` line.
    Data,
    /// Inside a line that does not matter.
    Other,
}

const NAME: &[u8] = b"data";
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Follows a stream event by event; the JSON of an event is scanned as it
/// comes, so an event of any length costs no memory.
#[derive(Clone, Debug)]
pub(super) struct Events {
    state: State,
    /// The last byte was CR: an LF right after it ends no second line.
    after_cr: bool,
    /// The event has a `data` line.
    has_data: bool,
    json: json::Scanner,
    reader: openai::Reader,
    last: Option<Usage>,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            state: State::Bom(0),
            after_cr: false,
            has_data: false,
            json: json::Scanner::new(),
            reader: openai::Reader::default(),
            last: None,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if core::mem::take(&mut self.after_cr) && byte == b'\n' {
                rest = after;
                continue;
            }
            rest = match (self.state, byte) {
                (State::Bom(seen), _) if BOM.get(seen) == Some(&byte) => {
                    self.state = State::Bom(seen + 1);
                    after
                }
                (State::Bom(_), _) => {
                    self.state = State::Name(0);
                    rest
                }
                (State::Data | State::Other, _) => self.line(rest),
                (_, b'\n' | b'\r') => {
                    self.end_line(byte);
                    after
                }
                (State::Name(seen), b':') if seen == NAME.len() => {
                    self.begin_data();
                    self.state = State::Colon;
                    after
                }
                (State::Name(seen), _) if NAME.get(seen) == Some(&byte) => {
                    self.state = State::Name(seen + 1);
                    after
                }
                (State::Colon, _) => {
                    self.state = State::Data;
                    if byte == b' ' { after } else { rest }
                }
                (State::Name(_), _) => {
                    self.state = State::Other;
                    after
                }
            };
        }
    }

    pub(super) fn finish(mut self) -> Option<Usage> {
        self.dispatch();
        self.last
    }

    /// Reads the value of a line up to its end.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        let (value, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        if self.state == State::Data {
            self.json.feed(value, &mut self.reader);
        }
        let Some((&end, rest)) = rest.split_first() else { return rest };
        self.end_line(end);
        rest
    }

    fn end_line(&mut self, end: u8) {
        match self.state {
            State::Name(0) => self.dispatch(),
            // A line `data` without a colon is an empty data line.
            State::Name(seen) if seen == NAME.len() => self.begin_data(),
            _ => {}
        }
        self.state = State::Name(0);
        self.after_cr = end == b'\r';
    }

    fn begin_data(&mut self) {
        if self.has_data {
            self.json.feed(b"\n", &mut self.reader);
        }
        self.has_data = true;
    }

    fn dispatch(&mut self) {
        if core::mem::take(&mut self.has_data) && self.json.finish(&mut self.reader).is_ok() {
            self.last = self.reader.usage().or(self.last);
        }
        self.json = json::Scanner::new();
        self.reader = openai::Reader::default();
    }
}
