//! Server-sent events, framed as the WHATWG standard says
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): lines
//! end in LF, CR or CRLF; `data` lines of one event join with a newline; a
//! blank line ends the event. Unlike a browser we also take a last event that
//! lacks its blank line: it was paid for.

use super::reader::Reader;
use super::total::Total;
use crate::json;
use crate::request::Api;

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
/// The event with which many formats end a stream.
const DONE: &[u8] = b"[DONE]";
/// Bytes of data in one event. No memory is saved by a bound, for nothing is
/// kept; but what does not end is no event of any format, so what it says is
/// not believed, and no time is spent on it, until a blank line ends it.
const EVENT_MAX: usize = 1 << 20;

/// Follows a stream event by event; the JSON of an event is scanned as it
/// comes.
#[derive(Clone, Debug)]
pub(super) struct Events {
    api: Api,
    state: State,
    /// The last byte was CR: an LF right after it ends no second line.
    after_cr: bool,
    /// The event has a `data` line.
    has_data: bool,
    /// Bytes of data of the event, and how many of them are [`DONE`].
    size: usize,
    done: usize,
    json: json::Scanner,
    reader: Reader,
    ended: bool,
    /// Events with data.
    count: u64,
}

impl Events {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            state: State::Bom(0),
            after_cr: false,
            has_data: false,
            size: 0,
            done: 0,
            json: json::Scanner::new(),
            reader: Reader::new(api, true),
            ended: false,
            count: 0,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.silent(rest).unwrap_or_else(|| self.step(rest));
        }
    }

    fn step<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some((&byte, after)) = rest.split_first() else { return rest };
        if core::mem::take(&mut self.after_cr) && byte == b'\n' {
            return after;
        }
        match (self.state, byte) {
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
        }
    }

    /// The sum of what was stated, whether the stream said that it ended, and
    /// its events.
    pub(super) fn finish(mut self) -> (Total, bool, u64) {
        self.dispatch();
        (self.reader.total, self.ended, self.count)
    }

    /// Passes over an event that lies whole in the bytes, is one line of data,
    /// and cannot state anything: most events of most streams.
    fn silent<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let fresh = self.state == State::Name(0) && !self.has_data && !self.after_cr;
        let value = bytes.strip_prefix(b"data:").filter(|_| fresh && self.api.is_sparse())?;
        let end = memchr::memchr2(b'\n', b'\r', value)?;
        let (value, rest) = value.split_at_checked(end)?;
        let rest = rest.strip_prefix(b"\n\n").or_else(|| rest.strip_prefix(b"\r\n\r\n"))?;
        if may_state(value) {
            return None;
        }
        self.count += 1;
        Some(rest)
    }

    /// Reads the value of a line up to its end.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        let (value, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        if self.state == State::Data {
            self.data(value);
        }
        let Some((&end, rest)) = rest.split_first() else { return rest };
        self.end_line(end);
        rest
    }

    fn data(&mut self, bytes: &[u8]) {
        let expected = DONE.get(self.size..).unwrap_or_default();
        let same = bytes.iter().zip(expected).take_while(|(byte, other)| byte == other).count();
        self.done += same;
        self.size = self.size.saturating_add(bytes.len());
        if self.size <= EVENT_MAX {
            self.json.feed(bytes, &mut self.reader);
        }
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
            self.data(b"\n");
        }
        self.has_data = true;
    }

    #[inline(never)]
    fn dispatch(&mut self) {
        if !core::mem::take(&mut self.has_data) {
            return;
        }
        self.count += 1;
        self.ended |= self.size == DONE.len() && self.done == DONE.len();
        let valid = self.json.finish(&mut self.reader).is_ok() && self.size <= EVENT_MAX;
        self.reader.end_document(valid);
        self.json = json::Scanner::new();
        self.size = 0;
        self.done = 0;
    }
}

impl Api {
    /// Whether most events of a stream state nothing.
    fn is_sparse(self) -> bool {
        !matches!(self, Self::Gemini | Self::Generate)
    }
}

/// Whether the JSON may name a number of tokens or a limit of them. Every such
/// key and word has one of these in it, unless a `\u` escape hides it.
fn may_state(json: &[u8]) -> bool {
    memchr::memchr3_iter(b'_', b'\\', b'g', json).any(|at| {
        let after = json.get(at..).unwrap_or_default();
        after.starts_with(b"_tokens")
            || after.starts_with(b"_TOKENS")
            || after.starts_with(b"_context_window")
            || after.starts_with(b"\\u")
            // The end of `length`.
            || after.starts_with(b"gth\"")
    })
}
