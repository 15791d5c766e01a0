//! JSON for the properties: known documents, changed at random.

use proptest::prelude::*;
use serde_json::Value;
use std::fmt::Write as _;

/// JSON with repeated members.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Raw(String),
    Text(String),
    List(Vec<Node>),
    Members(Vec<(String, Node)>),
}

/// What to do to the node of this number.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Replace(Node),
    Remove,
    Rename(&'static str),
    /// The same member or item once more, with another value.
    Repeat(Node),
    Wrap,
}

/// Up to four changes that know these keys and texts.
pub(crate) fn changes(
    keys: &[&'static str],
    texts: &[&'static str],
) -> impl Strategy<Value = Vec<(usize, Change)>> + use<> {
    let raw = [
        "null",
        "true",
        "false",
        "0",
        "1",
        "16",
        "-3",
        "1e3",
        "1024.0",
        "2.5",
        "1e999",
        "x",
        "",
        "123456789012345678901234567890",
        "[]",
        "{}",
        "[1,[2]]",
        "[\"a\",{\"text\":\"b\"}]",
    ];
    let node = prop_oneof![
        prop::sample::select(raw.to_vec()).prop_map(|raw| Node::Raw(raw.to_owned())),
        prop::sample::select(texts.to_vec()).prop_map(|text| Node::Text(text.to_owned())),
        "\\PC{0,80}".prop_map(Node::Text),
        "[a-z ]{0,700}".prop_map(Node::Text),
    ];
    let change = prop_oneof![
        3 => node.clone().prop_map(Change::Replace),
        1 => Just(Change::Remove),
        2 => prop::sample::select(keys.to_vec()).prop_map(Change::Rename),
        3 => node.prop_map(Change::Repeat),
        1 => Just(Change::Wrap),
    ];
    prop::collection::vec((0_usize..200, change), 0..5)
}

impl Node {
    pub(crate) fn parse(json: &str) -> Self {
        let json = json.trim_start_matches('\u{feff}');
        Self::from(serde_json::from_str(json).unwrap_or(Value::Null))
    }

    /// Makes the changes, but repeats and renames nothing below members that
    /// are `plain`.
    pub(crate) fn change(&mut self, changes: &[(usize, Change)], plain: &[&str]) {
        for (at, change) in changes {
            let mut left = at % self.size();
            self.change_at(&mut left, change, plain, false);
        }
    }

    /// Whether an object repeats a member.
    pub(crate) fn repeats(&self) -> bool {
        match self {
            Self::Raw(_) | Self::Text(_) => false,
            Self::List(items) => items.iter().any(Self::repeats),
            Self::Members(members) => members.iter().enumerate().any(|(at, (key, node))| {
                node.repeats() || members[..at].iter().any(|(earlier, _)| earlier == key)
            }),
        }
    }

    fn size(&self) -> usize {
        1 + match self {
            Self::Raw(_) | Self::Text(_) => 0,
            Self::List(items) => items.iter().map(Self::size).sum(),
            Self::Members(members) => members.iter().map(|(_, node)| node.size()).sum(),
        }
    }

    /// Counts down to the node that is meant, in the order of the text.
    fn change_at(
        &mut self,
        left: &mut usize,
        change: &Change,
        plain: &[&str],
        below: bool,
    ) -> bool {
        if *left == 0 {
            if let Change::Replace(node) = change {
                *self = node.clone();
            } else if let Change::Wrap = change {
                *self = Self::List(vec![self.clone(), self.clone()]);
            }
            return true;
        }
        *left -= 1;
        let mut at = 0;
        match self {
            Self::Raw(_) | Self::Text(_) => {}
            Self::List(items) => {
                while at < items.len() {
                    let here = *left == 0;
                    if items[at].change_at(left, change, plain, below) {
                        match change {
                            Change::Remove if here => _ = items.remove(at),
                            Change::Repeat(node) if here => items.insert(at, node.clone()),
                            _ => {}
                        }
                        return true;
                    }
                    at += 1;
                }
            }
            Self::Members(members) => {
                while at < members.len() {
                    let here = *left == 0;
                    let inner = below || plain.contains(&members[at].0.as_str());
                    if members[at].1.change_at(left, change, plain, inner) {
                        match change {
                            Change::Remove if here => _ = members.remove(at),
                            Change::Repeat(node) if here && !below => {
                                let key = members[at].0.clone();
                                members.insert(at + at % 2, (key, node.clone()));
                            }
                            Change::Rename(key) if here && !below && !plain.contains(key) => {
                                members[at].0 = (*key).to_owned();
                            }
                            _ => {}
                        }
                        return true;
                    }
                    at += 1;
                }
            }
        }
        false
    }

    pub(crate) fn text(&self, bom: bool) -> String {
        let mut out = String::from(if bom { "\u{feff}" } else { "" });
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Raw(raw) => out.push_str(raw),
            Self::Text(text) => quote(text, out),
            Self::List(items) => {
                out.push_str("[ ");
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { ",\n" } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Members(members) => {
                out.push('{');
                for (at, (key, value)) in members.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    quote(key, out);
                    out.push_str(" :\t");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Members(members.into_iter().map(|(k, v)| (k, Self::from(v))).collect())
            }
            other => Self::Raw(other.to_string()),
        }
    }
}

/// Escapes some characters that need it and some that do not.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for (at, character) in text.chars().enumerate() {
        if character < ' ' || matches!(character, '"' | '\\') || (at + text.len()).is_multiple_of(7)
        {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").unwrap();
            }
        } else {
            out.push(character);
        }
    }
    out.push('"');
}
