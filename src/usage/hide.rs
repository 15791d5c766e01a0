//! Takes the event that only states the usage out of a stream of server-sent
//! events, for clients that did not ask for it.
//!
//! The event is the one that OpenAI and vLLM send last: `choices` is an empty
//! array and `usage` an object
//! (<https://platform.openai.com/docs/api-reference/chat/create>,
//! `stream_options`). It goes with its blank line; every other byte passes.

use crate::json::{self, Container, Event, Visitor};

/// Bytes of an undecided event that wait; a longer event passes.
const HELD_MAX: usize = 16 << 10;

const NAME: &[u8] = b"data";
const BOM: &[u8] = b"\xEF\xBB\xBF";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Inside a byte order mark at the start of the stream.
    Bom(usize),
    /// So many bytes of the line are `data`.
    Name(usize),
    /// After `data:`.
    Data,
    /// Inside a line that does not matter.
    Other,
}

/// Passes a stream on, all but the event that states the usage.
#[derive(Clone, Debug)]
pub struct Filter {
    state: State,
    /// The last byte was CR: an LF right after it belongs to it.
    after_cr: bool,
    /// Where the last byte went.
    last: Last,
    event: Lines,
    held: Vec<u8>,
    hidden: u64,
    given_up: u64,
}

/// What is known of the event.
#[derive(Clone, Debug, Default)]
struct Lines {
    json: json::Scanner,
    reader: Reader,
    /// It passes, whatever comes.
    passes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Into an event that goes on.
    Inside,
    /// It ended an event that passed.
    Passed,
    /// It ended an event that was taken out.
    Hidden,
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

impl Filter {
    /// At the start of a stream.
    pub fn new() -> Self {
        Self {
            state: State::Bom(0),
            after_cr: false,
            last: Last::Passed,
            event: Lines::default(),
            held: Vec::new(),
            hidden: 0,
            given_up: 0,
        }
    }

    /// Reads the next bytes and appends to `out` those that pass now.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if core::mem::take(&mut self.after_cr) && byte == b'\n' {
                match self.last {
                    Last::Inside => self.pass_or_hold(b"\n", out),
                    Last::Passed => out.push(b'\n'),
                    Last::Hidden => {}
                }
                rest = after;
                continue;
            }
            if let State::Bom(seen) = self.state {
                if BOM.get(seen) == Some(&byte) {
                    out.push(byte);
                    self.state = State::Bom(seen + 1);
                    rest = after;
                } else {
                    self.state = State::Name(0);
                }
                continue;
            }
            rest = match self.state {
                _ if matches!(byte, b'\n' | b'\r') => {
                    self.end_line(byte, out);
                    after
                }
                State::Name(seen) => {
                    self.pass_or_hold(&[byte], out);
                    self.state = match (byte, NAME.get(seen)) {
                        (b':', None) => {
                            // Lines of one event join with a newline; to JSON
                            // one more of them, in front, is nothing.
                            self.event.json.feed(b"\n", &mut self.event.reader);
                            State::Data
                        }
                        (_, Some(&expected)) if byte == expected => State::Name(seen + 1),
                        _ => State::Other,
                    };
                    after
                }
                _ => self.line(rest, out),
            };
        }
    }

    /// Ends the stream and appends to `out` what still waited. A last event
    /// that lacks its blank line is taken out like any other.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.end_event(out);
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Events that were taken out.
    pub fn hidden(&self) -> u64 {
        self.hidden
    }

    /// Events that passed because they were too long to wait for their end.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Reads the rest of a line, up to its end.
    fn line<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
        let (piece, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        if self.state == State::Data && !self.event.passes {
            self.event.json.feed(piece, &mut self.event.reader);
            if self.event.json.failed() || self.event.reader.ruled_out {
                self.event.passes = true;
                out.append(&mut self.held);
            }
        }
        self.pass_or_hold(piece, out);
        rest
    }

    fn pass_or_hold(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.last = Last::Inside;
        if !self.event.passes && self.held.len().saturating_add(bytes.len()) > HELD_MAX {
            self.event.passes = true;
            self.given_up += 1;
            out.append(&mut self.held);
        }
        if self.event.passes {
            out.extend_from_slice(bytes);
        } else {
            self.held.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self, end: u8, out: &mut Vec<u8>) {
        self.pass_or_hold(&[end], out);
        self.after_cr = end == b'\r';
        if self.state == State::Name(0) {
            self.end_event(out);
        }
        self.state = State::Name(0);
    }

    fn end_event(&mut self, out: &mut Vec<u8>) {
        let event = core::mem::take(&mut self.event);
        if event.states_usage() {
            self.hidden += 1;
            self.held.clear();
            self.last = Last::Hidden;
        } else {
            out.append(&mut self.held);
            self.last = Last::Passed;
        }
    }
}

impl Lines {
    fn states_usage(mut self) -> bool {
        !self.passes && self.json.finish(&mut self.reader).is_ok() && self.reader.states_usage()
    }
}

/// Reads the JSON of one event as far as needed.
#[derive(Clone, Debug, Default)]
struct Reader {
    depth: u64,
    field: Field,
    /// `choices` is an array, so far without an element.
    choices: bool,
    /// `usage` is an object.
    usage: bool,
    ruled_out: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    Choices,
    Usage,
    #[default]
    Other,
}

impl Reader {
    fn states_usage(&self) -> bool {
        self.choices && self.usage && !self.ruled_out
    }

    fn value(&mut self, opens: Option<Container>) {
        match (self.depth, self.field, opens) {
            (0, _, Some(Container::Object)) => {}
            (1, Field::Choices, Some(Container::Array)) if !self.choices => self.choices = true,
            (1, Field::Usage, Some(Container::Object)) if !self.usage => self.usage = true,
            (1, Field::Other, _) => {}
            (0 | 1, ..) | (2, Field::Choices, _) => self.ruled_out = true,
            _ => {}
        }
    }
}

impl Visitor for Reader {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Key(key) if self.depth == 1 => {
                self.field = match key {
                    b"choices" => Field::Choices,
                    b"usage" => Field::Usage,
                    _ => Field::Other,
                };
                self.ruled_out |= key == b"error";
            }
            Event::Begin(kind) => {
                self.value(Some(kind));
                self.depth += 1;
            }
            Event::End => self.depth = self.depth.saturating_sub(1),
            Event::StringBegin
            | Event::Number(_)
            | Event::LongNumber
            | Event::Bool(_)
            | Event::Null => self.value(None),
            Event::Key(_) | Event::Text(_) | Event::StringEnd => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn pass(stream: &[u8], cuts: &[usize]) -> (Vec<u8>, Filter) {
        let (mut filter, mut out, mut from) = (Filter::new(), Vec::new(), 0);
        for cut in cuts.iter().chain([&stream.len()]) {
            let cut = (*cut).clamp(from, stream.len());
            filter.feed(&stream[from..cut], &mut out);
            from = cut;
        }
        filter.finish(&mut out);
        (out, filter)
    }

    const TOKEN: &str = r#"{"choices":[{"delta":{"content":"a \"choices\":[]"}}],"usage":null}"#;
    const USAGE: &str =
        r#"{"id":"c","choices":[ ],"created":1,"usage":{"prompt_tokens":7,"d":{"choices":[1]}}}"#;

    #[test]
    fn only_the_event_of_the_usage_is_taken_out() {
        let stream = format!("data: {TOKEN}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n");
        let rest = format!("data: {TOKEN}\n\ndata: [DONE]\n\n");
        let every: Vec<usize> = (0..stream.len()).collect();
        let (out, filter) = pass(stream.as_bytes(), &every);
        assert_eq!((out, filter.hidden()), (rest.into_bytes(), 1));
        let unlike = [
            r#"{"choices":[],"usage":null}"#,
            r#"{"choices":[null],"usage":{}}"#,
            r#"{"choices":{},"usage":{}}"#,
            r#"{"choices":[],"usage":[]}"#,
            r#"{"usage":{}}"#,
            r#"{"choices":[]}"#,
            r#"[{"choices":[],"usage":{}}]"#,
            r#"{"a":{"choices":[],"usage":{}}}"#,
            r#"{"choices":[],"usage":{},"choices":[]}"#,
            r#"{"choices":[],"usage":{},"error":{}}"#,
            r#"{"choices":[],"usage":{}"#,
            r#"{"choices":[],"usage":{}}x"#,
            // A number that two lines would make one, did they join with nothing.
            "{\"choices\":[],\"usage\":{\"n\":1\ndata:2}}",
            "",
        ];
        for json in unlike {
            let stream = format!("event: x\ndata: {json}\n\n");
            assert_eq!(pass(stream.as_bytes(), &[]).0, stream.as_bytes(), "{json}");
        }
    }

    /// What is known to pass does not wait.
    #[test]
    fn an_event_waits_only_while_it_is_undecided() {
        let (mut filter, mut out) = (Filter::new(), Vec::new());
        let mut passed = |bytes: &str| {
            let before = out.len();
            filter.feed(bytes.as_bytes(), &mut out);
            String::from_utf8(out[before..].to_vec()).unwrap()
        };
        assert_eq!(passed("data: {\"id\":1,\"choices\":["), "");
        assert_eq!(passed("{"), "data: {\"id\":1,\"choices\":[{");
        assert_eq!(passed("\"x\":"), "\"x\":");
        assert_eq!(passed("1}]}\n\n"), "1}]}\n\n");
        assert_eq!(passed("data: [D"), "data: [D");
        assert_eq!(passed("ONE]\n\n: ping\n\n"), "ONE]\n\n: ping\n\n");
    }

    #[test]
    fn a_long_event_passes() {
        let event =
            |pad: usize| format!("data: {{\"pad\":\"{}\",{}\n\n", "x".repeat(pad), &USAGE[1..]);
        let bare = event(0).len();
        for (pad, hidden) in [(HELD_MAX - bare, 1), (HELD_MAX - bare + 1, 0)] {
            let stream = event(pad);
            for cuts in [vec![], vec![9000], (0..stream.len()).collect()] {
                let (out, filter) = pass(stream.as_bytes(), &cuts);
                assert_eq!((filter.hidden(), filter.given_up()), (hidden, 1 - hidden));
                assert_eq!(out.len(), if hidden == 1 { 0 } else { stream.len() });
            }
        }
    }

    /// The stream without its usage events, found by other means: whole, with
    /// a regular line splitter and a parsed tree.
    fn oracle(stream: &str) -> String {
        let (bom, text) =
            stream.strip_prefix('\u{feff}').map_or(("", stream), |text| ("\u{feff}", text));
        let mut lines = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest
                .find(['\r', '\n'])
                .map_or(rest.len(), |at| at + if rest[at..].starts_with("\r\n") { 2 } else { 1 });
            let (line, after) = rest.split_at(end);
            lines.push(line);
            rest = after;
        }
        let mut kept = bom.to_owned();
        for event in lines.split_inclusive(|line| line.trim_end_matches(['\r', '\n']).is_empty()) {
            let data: Vec<&str> = event
                .iter()
                .map(|line| line.trim_end_matches(['\r', '\n']))
                .filter_map(|line| line.strip_prefix("data:").or((line == "data").then_some("")))
                .collect();
            let json: Option<Value> = serde_json::from_str(&data.join("\n")).ok();
            let hide = json.is_some_and(|json| {
                json.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty)
                    && json.get("usage").is_some_and(Value::is_object)
            });
            if !hide {
                kept.extend(event.iter().copied());
            }
        }
        kept
    }

    fn stream() -> impl Strategy<Value = String> {
        let line = prop::sample::select(vec![
            format!("data: {USAGE}"),
            format!("data:{TOKEN}"),
            "data: {\"choices\":[],".to_owned(),
            "data: \"usage\":{}}".to_owned(),
            "data: {\"choices\":[],\"usage\":{}}".to_owned(),
            "data: {\"choices\":[],\"usage\":null}".to_owned(),
            "data: [DONE]".to_owned(),
            "data".to_owned(),
            "datum: {}".to_owned(),
            "event: message".to_owned(),
            "id: 7".to_owned(),
            ": ping".to_owned(),
            String::new(),
            String::new(),
        ]);
        let end = prop::sample::select(vec!["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"]);
        let bom = prop::bool::weighted(0.2).prop_map(|bom| if bom { "\u{feff}" } else { "" });
        (bom, prop::collection::vec((line, end), 0..12), prop::bool::ANY).prop_map(
            |(bom, lines, cut)| {
                let mut text: String = lines.into_iter().map(|(line, end)| line + end).collect();
                if cut {
                    text.pop();
                }
                bom.to_owned() + &text
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn everything_else_passes_whatever_the_chunks(
            stream in stream(),
            mut cuts in prop::collection::vec(0_usize..600, 0..8),
        ) {
            cuts.sort_unstable();
            let expected = oracle(&stream);
            let (whole, _) = pass(stream.as_bytes(), &[]);
            prop_assert_eq!(String::from_utf8(whole).unwrap(), expected.clone(), "{:?}", stream);
            let (out, _) = pass(stream.as_bytes(), &cuts);
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected.clone());
            let every: Vec<usize> = (0..stream.len()).collect();
            prop_assert_eq!(String::from_utf8(pass(stream.as_bytes(), &every).0).unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_get_lost(bytes in any::<Vec<u8>>(), cut in 0_usize..100) {
            // Random bytes hold no event of usage.
            prop_assert_eq!(pass(&bytes, &[cut]).0, bytes);
        }
    }
}
