//! A resumable byte scanner for JSON: any chunking, no tree, bounded memory.
//!
//! [`Scanner::feed`] takes the next bytes of a document, cut anywhere, and
//! calls a [`Visitor`] with what it sees. [`Scanner::finish`] says whether the
//! bytes were one JSON document (RFC 8259). What counts as valid is what
//! `serde_json::from_slice::<Value>` accepts, with four stated differences:
//!
//! - one leading byte order mark is skipped;
//! - below depth [`DEPTH_MAX`] only brackets are counted and strings skipped,
//!   so a mismatched bracket or a bad number down there goes unseen
//!   (serde_json refuses all documents deeper than 128);
//! - a number literal longer than [`NUMBER_MAX`] bytes is not checked for
//!   range, and the visitor gets [`Event::LongNumber`];
//! - keys are cut to [`KEY_MAX`] bytes; compare them with shorter names only.

/// Bytes of a key that the visitor sees.
pub const KEY_MAX: usize = 48;
/// Bytes of a number literal that are kept.
pub const NUMBER_MAX: usize = 64;
/// Levels of nesting whose structure is followed.
pub const DEPTH_MAX: u32 = 64;

/// The two kinds of container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
}

/// What the scanner saw. Every value is one `Begin … End`, one
/// `StringBegin Text* StringEnd`, one number or one word. In an object each
/// value follows its `Key`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A container opens.
    Begin(Container),
    /// The innermost container closes.
    End,
    /// A member's key, unescaped, cut to [`KEY_MAX`] bytes.
    Key(&'a [u8]),
    /// A string value opens.
    StringBegin,
    /// The next unescaped bytes of the string; pieces may split a character.
    Text(&'a [u8]),
    /// The string value closes.
    StringEnd,
    /// A number's literal, at most [`NUMBER_MAX`] bytes.
    Number(&'a [u8]),
    /// A number whose literal is longer than [`NUMBER_MAX`] bytes.
    LongNumber,
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
}

/// Receives the events of one document in order.
pub trait Visitor {
    /// One event. Events already given stand even if the document later turns
    /// out to be invalid: ask [`Scanner::finish`] before using what was seen.
    fn event(&mut self, event: Event<'_>);
}

/// The bytes are not one JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("not one valid JSON document")
    }
}

impl core::error::Error for Invalid {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first byte, where a byte order mark may stand.
    Start,
    /// Inside the byte order mark; how many of its bytes were seen.
    Bom(usize),
    /// A value must follow.
    Value,
    /// After `[`: a value or `]`.
    FirstItem,
    /// After `{`: a key or `}`.
    FirstKey,
    /// After `,` in an object.
    NextKey,
    Colon,
    AfterValue,
    Text,
    Escape,
    /// Inside `\uXXXX`: digits seen, value so far.
    Hex(u8, u16),
    /// After a leading surrogate: `\` must follow, then `u`.
    PairBackslash,
    PairU,
    Number(Number),
    /// Inside `true`, `false` or `null`; the word and how many bytes matched.
    Word(&'static [u8], usize),
    /// Below [`DEPTH_MAX`]: open brackets there.
    Deep(u64),
    DeepText(u64),
    DeepEscape(u64),
    /// The document is complete; only white space may follow.
    Done,
    Failed,
}

/// Where in a number's grammar the scanner stands, by the last byte read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}

/// The scanner's whole memory: about 160 bytes, whatever the document.
#[derive(Clone, Debug)]
pub struct Scanner {
    state: State,
    /// One bit a level, the innermost lowest: 1 is an object.
    objects: u64,
    depth: u32,
    /// The string being read is a key.
    in_key: bool,
    /// The leading surrogate that waits for its pair, or 0.
    lead: u16,
    utf8: Utf8,
    /// The key or the number literal being read.
    kept: Kept,
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

impl Scanner {
    /// A scanner at the start of a document.
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            objects: 0,
            depth: 0,
            in_key: false,
            lead: 0,
            utf8: Utf8::new(),
            kept: Kept::new(),
        }
    }

    /// Whether the bytes so far cannot be the start of a JSON document.
    pub fn failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Whether the document is complete; only white space may follow.
    pub fn complete(&self) -> bool {
        self.state == State::Done
    }

    /// Reads the next bytes of the document.
    #[inline(never)] // one for each visitor, not one for each call
    pub fn feed(&mut self, bytes: &[u8], visitor: &mut impl Visitor) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.state {
                State::Text => self.text(rest, visitor),
                State::Deep(_) | State::DeepText(_) => self.deep(rest, visitor),
                State::Failed => return,
                State::Number(at) => {
                    if let Some(next) = at.next(byte) {
                        self.kept.push(byte, NUMBER_MAX);
                        self.state = State::Number(next);
                        after
                    } else {
                        // The byte that ends a number belongs to what follows.
                        self.end_number(at, visitor);
                        rest
                    }
                }
                _ => {
                    self.step(byte, visitor);
                    after
                }
            };
        }
    }

    /// Ends the document.
    pub fn finish(&mut self, visitor: &mut impl Visitor) -> Result<(), Invalid> {
        if let State::Number(at) = self.state {
            self.end_number(at, visitor);
        }
        if self.state == State::Done { Ok(()) } else { Err(Invalid) }
    }

    fn step(&mut self, byte: u8, visitor: &mut impl Visitor) {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match self.state {
            State::Start if byte == 0xEF => State::Bom(1),
            State::Bom(seen) => match BOM.get(seen) {
                Some(&expected) if expected == byte && seen + 1 == BOM.len() => State::Value,
                Some(&expected) if expected == byte => State::Bom(seen + 1),
                _ => State::Failed,
            },
            State::Start if space => State::Value,
            state @ (State::Value
            | State::FirstItem
            | State::FirstKey
            | State::NextKey
            | State::Colon
            | State::AfterValue
            | State::Done)
                if space =>
            {
                state
            }
            State::FirstItem if byte == b']' => return self.close(Container::Array, visitor),
            State::Start | State::Value | State::FirstItem => return self.value(byte, visitor),
            State::FirstKey if byte == b'}' => return self.close(Container::Object, visitor),
            State::FirstKey | State::NextKey if byte == b'"' => {
                self.kept.clear();
                self.in_key = true;
                State::Text
            }
            State::Colon if byte == b':' => State::Value,
            State::AfterValue => match (byte, self.container()) {
                (b',', Container::Object) => State::NextKey,
                (b',', Container::Array) => State::Value,
                (b'}', Container::Object) => return self.close(Container::Object, visitor),
                (b']', Container::Array) => return self.close(Container::Array, visitor),
                _ => State::Failed,
            },
            State::Escape => return self.escape(byte, visitor),
            State::Hex(seen, value) => return self.hex(byte, seen, value, visitor),
            State::PairBackslash if byte == b'\\' => State::PairU,
            State::PairU if byte == b'u' => State::Hex(0, 0),
            State::Word(word, seen) if word.get(seen) == Some(&byte) => {
                if seen + 1 < word.len() {
                    State::Word(word, seen + 1)
                } else {
                    visitor.event(match word {
                        b"true" => Event::Bool(true),
                        b"false" => Event::Bool(false),
                        _ => Event::Null,
                    });
                    self.after_value()
                }
            }
            State::DeepEscape(open) => State::DeepText(open),
            _ => State::Failed,
        };
    }

    fn value(&mut self, byte: u8, visitor: &mut impl Visitor) {
        self.state = match byte {
            b'{' => return self.open(Container::Object, visitor),
            b'[' => return self.open(Container::Array, visitor),
            b'"' => {
                visitor.event(Event::StringBegin);
                State::Text
            }
            b't' => State::Word(b"true", 1),
            b'f' => State::Word(b"false", 1),
            b'n' => State::Word(b"null", 1),
            b'-' | b'0'..=b'9' => {
                self.kept.clear();
                self.kept.push(byte, NUMBER_MAX);
                State::Number(match byte {
                    b'-' => Number::Minus,
                    b'0' => Number::Zero,
                    _ => Number::Integer,
                })
            }
            _ => State::Failed,
        };
    }

    fn open(&mut self, kind: Container, visitor: &mut impl Visitor) {
        visitor.event(Event::Begin(kind));
        if self.depth == DEPTH_MAX {
            self.state = State::Deep(1);
            return;
        }
        self.depth += 1;
        self.objects = (self.objects << 1) | u64::from(kind == Container::Object);
        self.state = match kind {
            Container::Object => State::FirstKey,
            Container::Array => State::FirstItem,
        };
    }

    fn close(&mut self, kind: Container, visitor: &mut impl Visitor) {
        if self.depth == 0 || self.container() != kind {
            self.state = State::Failed;
            return;
        }
        visitor.event(Event::End);
        self.depth -= 1;
        self.objects >>= 1;
        self.state = self.after_value();
    }

    fn container(&self) -> Container {
        if self.objects & 1 == 1 { Container::Object } else { Container::Array }
    }

    fn after_value(&self) -> State {
        if self.depth == 0 { State::Done } else { State::AfterValue }
    }

    fn end_number(&mut self, at: Number, visitor: &mut impl Visitor) {
        self.state = State::Failed;
        if !at.may_end() {
            return;
        }
        match self.kept.get(NUMBER_MAX) {
            None => visitor.event(Event::LongNumber),
            // Only three or more digits of exponent can leave f64's range
            // within the kept length.
            Some(literal) if at == Number::ExponentDigits && !in_range(literal) => return,
            Some(literal) => visitor.event(Event::Number(literal)),
        }
        self.state = self.after_value();
    }

    /// Reads string bytes up to the next quote or backslash, a vector at a time.
    fn text<'a>(&mut self, bytes: &'a [u8], visitor: &mut impl Visitor) -> &'a [u8] {
        let end = memchr::memchr2(b'"', b'\\', bytes);
        let (plain, rest) =
            bytes.split_at_checked(end.unwrap_or(bytes.len())).unwrap_or((bytes, &[]));
        // A fold, not `any`: without the early exit it compiles to vector code.
        let control = plain.iter().fold(false, |seen, byte| seen | (*byte < 0x20));
        if control || !self.utf8.feed(plain) {
            self.state = State::Failed;
            return rest;
        }
        self.emit(plain, visitor);
        let Some((&special, rest)) = rest.split_first() else { return rest };
        if !self.utf8.complete() {
            self.state = State::Failed;
        } else if special == b'\\' {
            self.state = State::Escape;
        } else if self.in_key {
            self.in_key = false;
            visitor.event(Event::Key(self.kept.cut(KEY_MAX)));
            self.state = State::Colon;
        } else {
            visitor.event(Event::StringEnd);
            self.state = self.after_value();
        }
        rest
    }

    fn emit(&mut self, bytes: &[u8], visitor: &mut impl Visitor) {
        if self.in_key {
            for &byte in bytes.iter().take(KEY_MAX) {
                self.kept.push(byte, KEY_MAX);
            }
        } else if !bytes.is_empty() {
            visitor.event(Event::Text(bytes));
        }
    }

    fn escape(&mut self, byte: u8, visitor: &mut impl Visitor) {
        let unescaped = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = State::Hex(0, 0);
                return;
            }
            _ => {
                self.state = State::Failed;
                return;
            }
        };
        self.emit(&[unescaped], visitor);
        self.state = State::Text;
    }

    fn hex(&mut self, byte: u8, seen: u8, value: u16, visitor: &mut impl Visitor) {
        let Some(digit) = (byte as char).to_digit(16) else {
            self.state = State::Failed;
            return;
        };
        let value = (value << 4) | digit as u16;
        if seen < 3 {
            self.state = State::Hex(seen + 1, value);
            return;
        }
        let lead = core::mem::take(&mut self.lead);
        let code = match (lead, value) {
            (0, 0xD800..=0xDBFF) => {
                self.lead = value;
                self.state = State::PairBackslash;
                return;
            }
            (0, _) => u32::from(value),
            (_, 0xDC00..=0xDFFF) => {
                0x1_0000 + ((u32::from(lead) & 0x3FF) << 10) + (u32::from(value) & 0x3FF)
            }
            // A lead without its trail.
            _ => 0xD800,
        };
        // `from_u32` refuses lone surrogates, as serde_json does.
        let Some(character) = char::from_u32(code) else {
            self.state = State::Failed;
            return;
        };
        let mut buffer = [0; 4];
        self.emit(character.encode_utf8(&mut buffer).as_bytes(), visitor);
        self.state = State::Text;
    }

    fn deep<'a>(&mut self, bytes: &'a [u8], visitor: &mut impl Visitor) -> &'a [u8] {
        let mut rest = bytes;
        if let State::DeepText(open) = self.state {
            let Some(at) = memchr::memchr2(b'"', b'\\', bytes) else { return &[] };
            let escape = bytes.get(at) == Some(&b'\\');
            self.state = if escape { State::DeepEscape(open) } else { State::Deep(open) };
            return bytes.get(at + 1..).unwrap_or(&[]);
        }
        let State::Deep(mut open) = self.state else { return rest };
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'"' => {
                    self.state = State::DeepText(open);
                    return rest;
                }
                b'{' | b'[' => open = open.saturating_add(1),
                b'}' | b']' if open == 1 => {
                    visitor.event(Event::End);
                    self.state = self.after_value();
                    return rest;
                }
                b'}' | b']' => open -= 1,
                _ => {}
            }
        }
        self.state = State::Deep(open);
        rest
    }
}

fn in_range(literal: &[u8]) -> bool {
    core::str::from_utf8(literal)
        .ok()
        .and_then(|text| text.parse::<f64>().ok())
        .is_some_and(f64::is_finite)
}

/// A short run of bytes that remembers whether more were pushed than it holds.
#[derive(Clone, Debug)]
struct Kept {
    bytes: [u8; NUMBER_MAX],
    len: usize,
    overflow: bool,
}

impl Kept {
    const fn new() -> Self {
        Self { bytes: [0; NUMBER_MAX], len: 0, overflow: false }
    }

    fn clear(&mut self) {
        self.len = 0;
        self.overflow = false;
    }

    fn push(&mut self, byte: u8, max: usize) {
        match self.bytes.get_mut(self.len) {
            Some(slot) if self.len < max => {
                *slot = byte;
                self.len += 1;
            }
            _ => self.overflow = true,
        }
    }

    fn cut(&self, max: usize) -> &[u8] {
        self.bytes.get(..self.len.min(max)).unwrap_or(&[])
    }

    fn get(&self, max: usize) -> Option<&[u8]> {
        (!self.overflow).then(|| self.cut(max))
    }
}

/// Checks UTF-8 across chunks; holds at most the bytes of one character.
#[derive(Clone, Debug)]
struct Utf8 {
    held: [u8; 4],
    len: usize,
}

impl Utf8 {
    const fn new() -> Self {
        Self { held: [0; 4], len: 0 }
    }

    fn complete(&self) -> bool {
        self.len == 0
    }

    /// Whether the bytes so far are UTF-8, the last character perhaps cut.
    fn feed(&mut self, mut bytes: &[u8]) -> bool {
        while self.len > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return true };
            let Some(slot) = self.held.get_mut(self.len) else { return false };
            *slot = byte;
            self.len += 1;
            bytes = rest;
            match core::str::from_utf8(self.held.get(..self.len).unwrap_or(&[])) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        if bytes.is_ascii() {
            return true;
        }
        let Err(error) = core::str::from_utf8(bytes) else { return true };
        if error.error_len().is_some() {
            return false;
        }
        for &byte in bytes.get(error.valid_up_to()..).unwrap_or(&[]) {
            let Some(slot) = self.held.get_mut(self.len) else { return false };
            *slot = byte;
            self.len += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Rebuilds a comparable trace of the document, pieces of text joined.
    #[derive(Default, Debug, PartialEq, Clone)]
    struct Trace(Vec<String>, Vec<u8>);

    impl Visitor for Trace {
        fn event(&mut self, event: Event<'_>) {
            match event {
                Event::StringBegin => self.1.clear(),
                Event::Text(bytes) => self.1.extend_from_slice(bytes),
                Event::StringEnd => {
                    self.0.push(format!("s {}", String::from_utf8(self.1.clone()).unwrap()));
                }
                Event::Key(key) => self.0.push(format!("k {}", String::from_utf8_lossy(key))),
                Event::Number(n) => self.0.push(format!("n {}", String::from_utf8_lossy(n))),
                other => self.0.push(format!("{other:?}")),
            }
        }
    }

    fn scan(bytes: &[u8], cuts: &[usize]) -> Result<Vec<String>, Invalid> {
        let (mut scanner, mut trace) = (Scanner::new(), Trace::default());
        let mut from = 0;
        for &cut in cuts {
            let cut = cut.clamp(from, bytes.len());
            scanner.feed(&bytes[from..cut], &mut trace);
            from = cut;
        }
        scanner.feed(&bytes[from..], &mut trace);
        scanner.finish(&mut trace)?;
        Ok(trace.0)
    }

    fn valid(bytes: &[u8]) -> bool {
        serde_json::from_slice::<Value>(bytes.strip_prefix(BOM).unwrap_or(bytes)).is_ok()
    }

    #[test]
    fn a_document_becomes_events() {
        let seen = scan(br#" {"a\u0062":[1e3,"\ud83d\ude00\n",null],"c":{}} "#, &[]).unwrap();
        let expected = [
            "Begin(Object)",
            "k ab",
            "Begin(Array)",
            "n 1e3",
            "s 😀\n",
            "Null",
            "End",
            "k c",
            "Begin(Object)",
            "End",
            "End",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_serde_json_refuses_is_refused() {
        let cases: &[&[u8]] = &[
            b"",
            b" ",
            b"{",
            b"[1,]",
            b"{\"a\":1,}",
            b"01",
            b"-",
            b"1.",
            b"1e",
            b"1e999",
            b"tru",
            b"nulll",
            b"[1 2]",
            b"{\"a\" 1}",
            b"{1:2}",
            b"\"\\x\"",
            b"\"\\ud800\"",
            b"\"\\udc00\"",
            b"\"\\ud800\\u0041\"",
            b"\"\xff\"",
            b"\"\xe2\x82\"",
            b"\"a\nb\"",
            b"{}{}",
            b"[}",
            b"\xef\xbb",
            b"\"\xc3\\n\xa9\"",
            b"]",
            b",",
            b"\"abc",
        ];
        for case in cases {
            assert!(!valid(case), "serde_json takes {:?}", String::from_utf8_lossy(case));
            assert!(scan(case, &[]).is_err(), "we take {:?}", String::from_utf8_lossy(case));
        }
        for case in [&b"\xef\xbb\xbf{}"[..], b"0", b"-0.5E+2", b"0e999", b" [ ] ", b"\"\xc3\xa9\""]
        {
            assert!(valid(case) && scan(case, &[]).is_ok(), "{:?}", String::from_utf8_lossy(case));
        }
    }

    #[test]
    fn nesting_below_the_limit_is_counted_not_followed() {
        let mut deep = "[".repeat(200) + r#"{"a\"]":"}"}"# + &"]".repeat(200);
        assert!(scan(deep.as_bytes(), &[]).is_ok());
        deep.pop();
        assert!(scan(deep.as_bytes(), &[]).is_err());
    }

    /// Bytes that often are JSON, and often nearly.
    fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"\\n\"", "\\", "\\u00e9", "\\ud83d",
            "\\ude00", "null", "true", "false", "0", "-1", "1.5e3", "e", ".", " ", "\n", "é", "漢",
            "\u{1}", "1e400",
        ]);
        let loose = prop::collection::vec(piece, 0..24).prop_map(|v| v.concat().into_bytes());
        prop_oneof![loose, tree().prop_map(|v| v.to_string().into_bytes()), any::<Vec<u8>>()]
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".{0,8}", inner), 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn valid_exactly_when_serde_json_says_so(bytes in nearly_json()) {
            prop_assert_eq!(scan(&bytes, &[]).is_ok(), valid(&bytes));
        }

        #[test]
        fn any_chunking_gives_the_same_events(
            bytes in nearly_json(),
            mut cuts in prop::collection::vec(0_usize..200, 0..8),
        ) {
            cuts.sort_unstable();
            prop_assert_eq!(scan(&bytes, &cuts), scan(&bytes, &[]));
            let every: Vec<usize> = (0..bytes.len()).collect();
            prop_assert_eq!(scan(&bytes, &every), scan(&bytes, &[]));
        }
    }
}
