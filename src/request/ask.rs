//! Asks a streaming request for its usage: the one change to a body that
//! Tidegate can make.

/// The change of a body that makes it ask: `remove` bytes at offset `at` give
/// way to `insert`. All other bytes stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Offset in the body.
    pub at: usize,
    /// Bytes that go.
    pub remove: usize,
    /// Bytes that come.
    pub insert: &'static str,
}

impl Edit {
    /// The longest `insert`.
    pub const INSERT_MAX: usize = "\"stream_options\":{\"include_usage\":true},".len();

    /// The edit that sets `stream_options.include_usage` in a body that is one
    /// valid JSON object, whole. A member that is explicitly `false` is changed
    /// only if `over_false`.
    ///
    /// `None` if the body asks already, or if there is anything odd about it:
    /// a member that is repeated, escaped, or of a type that is not expected.
    pub fn asking(body: &[u8], over_false: bool) -> Option<Self> {
        let root = Object::at(body, value_at(body, 0)?)?;
        let Member { value, first } = match root.find(b"stream_options")? {
            Found::Member(member) => member,
            Found::Nothing { empty } => {
                let insert = if empty {
                    "\"stream_options\":{\"include_usage\":true}"
                } else {
                    "\"stream_options\":{\"include_usage\":true},"
                };
                return Some(Self { at: root.start, remove: 0, insert });
            }
        };
        let options = match first {
            b'{' => Object::at(body, value.0)?,
            b'n' => {
                let remove = value.1.checked_sub(value.0)?;
                return Some(Self { at: value.0, remove, insert: "{\"include_usage\":true}" });
            }
            _ => return None,
        };
        match options.find(b"include_usage")? {
            Found::Nothing { empty: true } => {
                Some(Self { at: options.start, remove: 0, insert: "\"include_usage\":true" })
            }
            Found::Nothing { empty: false } => {
                Some(Self { at: options.start, remove: 0, insert: "\"include_usage\":true," })
            }
            Found::Member(Member { value, first: b'f' }) if over_false => {
                let remove = value.1.checked_sub(value.0)?;
                Some(Self { at: value.0, remove, insert: "true" })
            }
            Found::Member(_) => None,
        }
    }

    /// Changes the body.
    pub fn apply(&self, body: &mut Vec<u8>) {
        let end = self.at.saturating_add(self.remove);
        if end <= body.len() {
            body.splice(self.at..end, self.insert.bytes());
        }
    }
}

/// An object of a body; `start` is the offset after its brace.
struct Object<'a> {
    body: &'a [u8],
    start: usize,
}

enum Found {
    Member(Member),
    Nothing { empty: bool },
}

struct Member {
    /// From the first byte of the value to the one after it.
    value: (usize, usize),
    first: u8,
}

impl<'a> Object<'a> {
    /// The object that begins at this offset.
    fn at(body: &'a [u8], at: usize) -> Option<Self> {
        (body.get(at) == Some(&b'{')).then_some(Self { body, start: at + 1 })
    }

    /// The one member of this name. `None` if that is not clear.
    fn find(&self, name: &[u8]) -> Option<Found> {
        let body = self.body;
        let mut at = value_at(body, self.start)?;
        let empty = body.get(at) == Some(&b'}');
        let mut found = None;
        while body.get(at) != Some(&b'}') {
            let key_end = string_end(body, at)?;
            let key = body.get(at + 1..key_end - 1)?;
            if memchr::memchr(b'\\', key).is_some() {
                return None;
            }
            let colon = value_at(body, key_end)?;
            if body.get(colon) != Some(&b':') {
                return None;
            }
            let start = value_at(body, colon + 1)?;
            let end = value_end(body, start)?;
            if key == name {
                let member = Member { value: (start, end), first: *body.get(start)? };
                if found.replace(member).is_some() {
                    return None;
                }
            }
            at = value_at(body, end)?;
            if body.get(at) == Some(&b',') {
                at = value_at(body, at + 1)?;
            }
        }
        Some(found.map_or(Found::Nothing { empty }, Found::Member))
    }
}

/// The offset of the first byte from `at` that is not white space or, at the
/// start of the body, a byte order mark.
fn value_at(body: &[u8], at: usize) -> Option<usize> {
    let at = if at == 0 && body.starts_with(b"\xEF\xBB\xBF") { 3 } else { at };
    let space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    body.get(at..)?.iter().position(|byte| !space(byte)).map(|skip| at + skip)
}

/// The offset after the string that begins at `at`.
fn string_end(body: &[u8], at: usize) -> Option<usize> {
    if body.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', body.get(at..)?)?;
        if body.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The offset after the value that begins at `at`.
fn value_end(body: &[u8], at: usize) -> Option<usize> {
    match body.get(at)? {
        b'"' => string_end(body, at),
        b'{' | b'[' => {
            let (mut at, mut open) = (at, 0_u64);
            loop {
                match body.get(at)? {
                    b'"' => {
                        at = string_end(body, at)?;
                        continue;
                    }
                    b'{' | b'[' => open += 1,
                    b'}' | b']' => open -= 1,
                    _ => {}
                }
                at += 1;
                if open == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let ends =
                |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            body.get(at..)?.iter().position(ends).map(|length| at + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn asked(body: &str, over_false: bool) -> Option<String> {
        let edit = Edit::asking(body.as_bytes(), over_false)?;
        let mut bytes = body.as_bytes().to_vec();
        edit.apply(&mut bytes);
        assert!(edit.insert.len() <= Edit::INSERT_MAX);
        Some(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_body_asks_for_its_usage() {
        let cases = [
            ("{}", r#"{"stream_options":{"include_usage":true}}"#),
            (
                r#" {"stream":true }"#,
                r#" {"stream_options":{"include_usage":true},"stream":true }"#,
            ),
            (r#"{"stream_options": {} }"#, r#"{"stream_options": {"include_usage":true} }"#),
            (
                r#"{"a":"}","stream_options": {"continuous_usage_stats" : false}}"#,
                r#"{"a":"}","stream_options": {"include_usage":true,"continuous_usage_stats" : false}}"#,
            ),
            (
                r#"{"stream_options":null,"a":1}"#,
                r#"{"stream_options":{"include_usage":true},"a":1}"#,
            ),
            (
                r#"{"m":[{"stream_options":{}}]}"#,
                r#"{"stream_options":{"include_usage":true},"m":[{"stream_options":{}}]}"#,
            ),
            ("\u{feff}{\"a\":1}", "\u{feff}{\"stream_options\":{\"include_usage\":true},\"a\":1}"),
        ];
        for (body, expected) in cases {
            assert_eq!(asked(body, false).as_deref(), Some(expected));
        }
        let refused = r#"{"stream_options":{"include_usage": false }}"#;
        assert_eq!(asked(refused, false), None);
        let flipped = r#"{"stream_options":{"include_usage": true }}"#;
        assert_eq!(asked(refused, true).as_deref(), Some(flipped));
    }

    #[test]
    fn what_is_odd_is_left_alone() {
        for body in [
            r#"{"stream_options":{"include_usage":true}}"#,
            r#"{"stream_options":{"include_usage":null}}"#,
            r#"{"stream_options":{"include_usage":0}}"#,
            r#"{"stream_options":{},"stream_options":{}}"#,
            r#"{"stream_options":{"include_usage":false,"include_usage":false}}"#,
            r#"{"stream\u005foptions":{}}"#,
            r#"{"stream_options":{"include\u005fusage":false}}"#,
            r#"{"stream_options":true}"#,
            r#"{"stream_options":[]}"#,
            "[]",
            "",
        ] {
            assert_eq!(asked(body, true), None, "{body}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(true)),
            Just(json!(-1.5e3)),
            "[a-z\"\\\\{}\\[\\],:é]{0,8}".prop_map(Value::String),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((key(), inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn key() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["a", "stream", "stream_options", "include_usage", "},"])
            .prop_map(str::to_owned)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn only_that_member_differs(
            members in prop::collection::vec((key(), value()), 0..5),
            options in prop::option::of(prop_oneof![
                Just(json!(null)),
                Just(json!({})),
                Just(json!({"include_usage": false})),
                Just(json!({"a": [], "include_usage": false, "b": "}"})),
                Just(json!({"chunk": {"include_usage": false}})),
            ]),
            pretty in any::<bool>(),
            over_false in any::<bool>(),
        ) {
            let mut body: serde_json::Map<String, Value> = members.into_iter().collect();
            if let Some(options) = options {
                body.insert("stream_options".to_owned(), options);
            }
            let mut body = Value::Object(body);
            let text = if pretty {
                serde_json::to_string_pretty(&body).unwrap()
            } else {
                body.to_string()
            };
            let edited = asked(&text, over_false);
            let options = body.get("stream_options").cloned();
            let expected = match options {
                None | Some(Value::Null) => Some(json!({"include_usage": true})),
                Some(Value::Object(mut options)) => match options.get("include_usage") {
                    Some(Value::Bool(false)) if !over_false => None,
                    None | Some(Value::Bool(false)) => {
                        options.insert("include_usage".to_owned(), json!(true));
                        Some(Value::Object(options))
                    }
                    Some(_) => None,
                },
                Some(_) => None,
            };
            prop_assert_eq!(edited.is_some(), expected.is_some(), "{}", text);
            if let (Some(edited), Some(expected)) = (edited, expected) {
                body["stream_options"] = expected;
                prop_assert_eq!(serde_json::from_str::<Value>(&edited).unwrap(), body);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(
                prop::sample::select(b"{}[]\":,\\ sftn\xef".to_vec()), 0..40,
            ),
        ) {
            let mut body = bytes;
            if let Some(edit) = Edit::asking(&body, true) {
                edit.apply(&mut body);
            }
        }
    }
}
