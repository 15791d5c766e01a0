//! A trace read line by line, in flat memory.
//!
//! The same formats and the same requests as [`super::parse_trace`], and the
//! block names of Mooncake's traces. What has to be looked at together is kept:
//! requests of one tick, which are spread over it, and a window of lines within
//! which times may be out of order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::trace::{
    AZURE_HEADER, MOONCAKE_TICK, TraceError, azure_line, mooncake_line, start, strip_mark,
};

/// A request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceRequest {
    /// When it is sent: nanoseconds from the trace's first request.
    pub arrival: u64,
    /// Tokens of the prompt. At least 1.
    pub input_tokens: u32,
    /// Tokens to produce. At least 1.
    pub output_tokens: u32,
    /// Names of the prompt's leading blocks: Mooncake's `hash_ids`.
    pub names: Vec<u64>,
}

/// Lines by which a request may come too late.
const WINDOW: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Azure,
    Mooncake,
}

/// Lines in, requests out.
#[derive(Debug, Default)]
pub struct TraceReader {
    format: Option<Format>,
    lines: usize,
    /// Within the window: by time, then by line.
    heap: BinaryHeap<Reverse<(u64, usize, TraceRequest)>>,
    /// Requests of the current tick.
    tick: Vec<TraceRequest>,
    ready: VecDeque<TraceRequest>,
    first: Option<u64>,
    last: u64,
    spare: Vec<Vec<u64>>,
}

impl TraceReader {
    /// Takes the next line, without or with its end.
    pub fn line(&mut self, line: &[u8]) -> Result<(), TraceError> {
        self.lines += 1;
        let line = if self.lines == 1 { strip_mark(line) } else { line };
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        let mut request =
            TraceRequest { names: self.spare.pop().unwrap_or_default(), ..<_>::default() };
        request.names.clear();
        match self.format {
            None if line == AZURE_HEADER.as_bytes() => {
                self.format = Some(Format::Azure);
                return Ok(());
            }
            None if line.starts_with(b"TIMESTAMP") => {
                return Err(TraceError::Header(String::from_utf8_lossy(line).into_owned()));
            }
            None if line.starts_with(b"{") => {
                self.format = Some(Format::Mooncake);
                mooncake_line(line, self.lines, &mut request)?;
            }
            None => return Err(TraceError::UnknownFormat(start(line))),
            Some(Format::Azure) => azure_line(line, self.lines, &mut request)?,
            Some(Format::Mooncake) => mooncake_line(line, self.lines, &mut request)?,
        }
        self.heap.push(Reverse((request.arrival, self.lines, request)));
        if self.heap.len() > WINDOW {
            self.pop()?;
        }
        Ok(())
    }

    /// There are no more lines. The reader may then be used again.
    pub fn end(&mut self) -> Result<(), TraceError> {
        while !self.heap.is_empty() {
            self.pop()?;
        }
        self.spread(None);
        if self.first.is_none() {
            return Err(TraceError::Empty);
        }
        Ok(())
    }

    /// The next request, in order of time, once enough lines are known.
    pub fn next_request(&mut self) -> Option<TraceRequest> {
        self.ready.pop_front()
    }

    /// Takes a request back whose memory is no longer needed.
    pub fn recycle(&mut self, request: TraceRequest) {
        self.spare.push(request.names);
    }

    fn pop(&mut self) -> Result<(), TraceError> {
        let Some(Reverse((at, line, mut request))) = self.heap.pop() else { return Ok(()) };
        let first = *self.first.get_or_insert(at);
        if at < self.last {
            let why = format!("it came {WINDOW} lines after one with a later time; allowed: fewer");
            return Err(TraceError::Line { line, why });
        }
        self.last = at;
        request.arrival = at - first;
        if self.format == Some(Format::Azure) {
            self.ready.push_back(request);
            return Ok(());
        }
        if self.tick.first().is_some_and(|other| other.arrival != request.arrival) {
            self.spread(Some(request.arrival));
        }
        self.tick.push(request);
        Ok(())
    }

    /// Spreads the requests of a tick evenly up to the next one.
    fn spread(&mut self, next: Option<u64>) {
        let count = self.tick.len() as u64;
        let tick = self.tick.first().map_or(0, |request| request.arrival);
        let width = next.map_or(MOONCAKE_TICK, |next| (next - tick).min(MOONCAKE_TICK));
        for (nth, mut request) in self.tick.drain(..).enumerate() {
            request.arrival = tick + width * nth as u64 / count;
            self.ready.push_back(request);
        }
    }
}

/// Reads a whole trace, with the names of its blocks.
pub fn parse_rows(bytes: &[u8]) -> Result<Vec<TraceRequest>, TraceError> {
    let mut reader = TraceReader::default();
    for line in bytes.split(|&b| b == b'\n') {
        reader.line(line)?;
    }
    reader.end()?;
    Ok(reader.ready.into())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::workload::{Trace, parse_trace};

    fn read(text: &str) -> Result<Vec<TraceRequest>, TraceError> {
        let mut reader = TraceReader::default();
        let mut requests = Vec::new();
        for line in text.split_inclusive('\n') {
            reader.line(line.as_bytes())?;
            requests.extend(reader.next_request());
        }
        reader.end()?;
        while let Some(request) = reader.next_request() {
            requests.push(request);
        }
        Ok(requests)
    }

    fn same_as_whole(text: &str) {
        let Ok(Trace::Timed(whole)) = parse_trace(text.as_bytes()) else { panic!("{text}") };
        let streamed = read(text).unwrap();
        assert_eq!(streamed.len(), whole.len());
        for (one, two) in streamed.iter().zip(&whole) {
            let one = (one.arrival, one.input_tokens, one.output_tokens);
            assert_eq!(one, (two.arrival, two.input_tokens, two.output_tokens), "{text}");
        }
    }

    proptest! {
        #[test]
        fn streamed_is_as_read_whole(rows in prop::collection::vec((0u64..9, 1u32..99), 1..40)) {
            let (mut csv, mut lines) = (format!("{AZURE_HEADER}\r\n"), String::new());
            for (at, tokens) in rows {
                let _ = writeln!(csv, "2023-11-16 18:15:{at:02}.5,{tokens},{}", tokens + 1);
                let _ = writeln!(
                    lines,
                    "{{\"timestamp\": {}, \"input_length\": {tokens}, \"output_length\": 3}}",
                    at * 3_000
                );
            }
            same_as_whole(&csv);
            same_as_whole(&lines);
        }
    }

    #[test]
    fn names_are_read_and_oddities_are_too() {
        let plain =
            r#"{"timestamp": 0, "input_length": 9, "output_length": 7, "hash_ids": [3, 4]}"#;
        let odd = r#"{"x": {"y": "[\"input_length\": 1"}, "hash_ids":[ 3,4 ],"input_length":9,
"timestamp":0,"output_length":7}"#
            .replace('\n', "");
        let escaped = r#"{"timestamp":0,"input_lengt\u0068":9,"output_length":7,"hash_ids":[3,4]}"#;
        for line in [plain, &odd, escaped] {
            let expected =
                TraceRequest { arrival: 0, input_tokens: 9, output_tokens: 7, names: vec![3, 4] };
            assert_eq!(read(line).unwrap(), [expected], "{line}");
        }
        for (line, part) in [
            (r#"{"timestamp": 0, "input_length": 9}"#, "output_length"),
            (r#"{"timestamp": 0, "input_length": -9, "output_length": 7}"#, "-9"),
            (r#"{"timestamp": 0, "input_length": 9, "output_length": 7"#, "not JSON"),
            (r#"{"timestamp":0,"input_length":9,"output_length":7,"hash_ids":["a"]}"#, "hash_ids"),
            ("[1, 2]", "Mooncake"),
            ("TIMESTAMP,a", "header"),
            ("", "no requests"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
