//! The meaning of the scanner, fixed by what `serde_json::Value` says.

use super::*;
use crate::estimate::Sampler;
use proptest::prelude::*;
use serde_json::{Map, Value};
use std::fmt::Write as _;

fn scan(api: Api, body: &[u8], cuts: &[usize]) -> Result<RequestFacts, Invalid> {
    let mut scanner = Scanner::new(api, b"");
    let mut from = 0;
    for &cut in cuts {
        let cut = cut.clamp(from, body.len());
        scanner.feed(&body[from..cut]);
        from = cut;
    }
    scanner.feed(&body[from..]);
    scanner.finish()
}

fn chat(body: &str) -> RequestFacts {
    scan(Api::Chat, body.as_bytes(), &[]).unwrap()
}

/// The same facts read from a parsed tree.
fn oracle(api: Api, body: &[u8]) -> Result<RequestFacts, Invalid> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let value: Value = serde_json::from_slice(body).map_err(|_| Invalid)?;
    let root = value.as_object().ok_or(Invalid)?;
    let mut facts = RequestFacts::new(api);
    facts.model = root
        .get("model")
        .and_then(Value::as_str)
        .map(|name| name.as_bytes()[..name.len().min(MODEL_MAX)].to_vec());
    let number = |key: &str| integer(root.get(key));
    let new_cap = if api == Api::Chat { number("max_completion_tokens") } else { Cap::Absent };
    let cap = number("max_tokens");
    facts.cap = if new_cap == Cap::Absent { cap } else { new_cap };
    facts.n = number("n").tokens().unwrap_or(1);
    facts.best_of = number("best_of").tokens().unwrap_or(1);
    let read = [new_cap, cap, number("n"), number("best_of")];
    facts.unreadable = read.iter().filter(|one| **one == Cap::Unreadable).count() as u64;
    facts.stream = root.get("stream") == Some(&Value::Bool(true));
    let include_usage = root.get("stream_options").and_then(|options| options.get("include_usage"));
    facts.include_usage = include_usage.and_then(Value::as_bool);
    if api == Api::Chat {
        messages(root, &mut facts);
    } else {
        prompts(root.get("prompt"), &mut facts);
    }
    Ok(facts)
}

fn integer(value: Option<&Value>) -> Cap {
    Cap::from(match value {
        None | Some(Value::Null) => return Cap::Absent,
        Some(Value::String(text)) => {
            lax_integer(text.as_bytes(), true).filter(|_| text.len() <= 64)
        }
        Some(Value::Number(n)) => n.as_u64().or_else(|| {
            let value = n.as_f64().unwrap();
            (value == value.trunc()).then_some(value as u64)
        }),
        Some(_) => None,
    })
}

fn text(value: &str, tally: &mut Tally) {
    let mut sampler = Sampler::default();
    sampler.feed(value.as_bytes(), tally);
    sampler.finish(tally);
}

fn messages(root: &Map<String, Value>, facts: &mut RequestFacts) {
    let mut tools = 0;
    for message in root.get("messages").and_then(Value::as_array).into_iter().flatten() {
        let Some(message) = message.as_object() else { continue };
        facts.messages += 1;
        match message.get("content") {
            Some(Value::String(content)) => text(content, &mut facts.text),
            Some(Value::Array(parts)) => {
                for part in parts {
                    if let Some(plain) = part.as_str() {
                        text(plain, &mut facts.text);
                    } else if let Some(part) = part.as_object() {
                        let part = part.get("text").and_then(Value::as_str).unwrap_or("");
                        facts.media.files += u64::from(part.is_empty());
                        text(part, &mut facts.text);
                    }
                }
            }
            _ => {}
        }
        tools += message.get("tool_calls").map_or(0, container_weight);
    }
    tools += root.get("tools").map_or(0, container_weight);
    facts.text.add(Class::Tools, tools);
}

fn container_weight(value: &Value) -> u64 {
    if value.is_array() || value.is_object() { weight(value) - 1 } else { 0 }
}

/// Text, quotes and brackets, and one byte of separator for each value.
fn weight(value: &Value) -> u64 {
    1 + match value {
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => 2 + items.iter().map(weight).sum::<u64>(),
        Value::Object(members) => {
            2 + members.iter().map(|(key, value)| key.len() as u64 + 3 + weight(value)).sum::<u64>()
        }
        _ => 4,
    }
}

fn prompts(prompt: Option<&Value>, facts: &mut RequestFacts) {
    let (mut texts, mut ids, mut loose) = (Vec::new(), Vec::new(), 0);
    match prompt {
        Some(Value::String(one)) => texts.push(one.as_str()),
        Some(Value::Array(items)) => {
            for item in items {
                match item {
                    Value::String(one) => texts.push(one),
                    Value::Array(tokens) => {
                        ids.push(tokens.iter().filter(|token| token.is_number()).count() as u64);
                    }
                    Value::Number(_) => loose += 1,
                    _ => {}
                }
            }
        }
        _ => {}
    }
    if loose > 0 {
        ids.push(loose);
    }
    let tallies: Vec<Tally> = texts
        .iter()
        .map(|one| {
            let mut tally = Tally::default();
            text(one, &mut tally);
            tally
        })
        .collect();
    let count = (tallies.len() + ids.len()) as u64;
    for tally in &tallies {
        facts.text.merge(tally);
    }
    let mut largest = Tally::default();
    for tally in tallies {
        if tally.total() > largest.total() {
            largest = tally;
        }
    }
    facts.prompts = count.max(1);
    facts.largest = (count > 1).then_some(largest);
    facts.token_ids = ids.iter().sum();
    facts.largest_token_ids = ids.into_iter().max().unwrap_or(0);
}

#[test]
fn a_chat_request_is_read() {
    let facts = chat(
        r#"{"model":"llama","messages":[{"role":"system","content":"Be the best."},
           {"role":"user","content":[{"type":"text","text":"Привет"},
             {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],
           "max_tokens":"1024","max_completion_tokens":256,"n":2,"stream":true,
           "stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(facts.model.as_deref(), Some(&b"llama"[..]));
    assert_eq!(facts.text.total(), 12 + 12, "the image's bytes are no text");
    assert_eq!((facts.messages, facts.media.files), (2, 1));
    assert_eq!(facts.cap, Cap::Tokens(256), "the newer cap wins");
    assert_eq!((facts.n, facts.stream, facts.include_usage), (2, true, Some(true)));
}

#[test]
fn words_inside_strings_and_at_other_paths_are_no_members() {
    let facts = chat(
        r#"{"messages":[{"content":"\"max_tokens\": 5, \"model\": \"x\""}],
           "metadata":{"max_tokens":7,"stream":true,"messages":[{"content":"no"}]}}"#,
    );
    assert_eq!((facts.cap, facts.model, facts.stream), (Cap::Absent, None, false));
    assert_eq!((facts.messages, facts.text.total()), (1, 29));
}

#[test]
fn the_last_duplicate_wins_at_each_level() {
    let facts = chat(
        r#"{"messages":[{"content":"first first"}],"model":"a","mod\u0065l":"b",
           "messages":[{"content":"xx","content":[{"text":"yyyy","text":"z"}]}],
           "max_tokens":9,"max_tokens":null}"#,
    );
    assert_eq!(facts.model.as_deref(), Some(&b"b"[..]));
    assert_eq!((facts.messages, facts.text.total(), facts.cap), (1, 1, Cap::Absent));
}

#[test]
fn prompts_of_a_completion_are_told_apart() {
    let read = |body: &str| scan(Api::Completions, body.as_bytes(), &[]).unwrap();
    let facts = read(r#"{"prompt":["aaaa","bb"],"n":3,"best_of":5}"#);
    assert_eq!((facts.prompts, facts.text.total(), facts.sequences()), (2, 6, 10));
    assert_eq!(facts.largest.unwrap().total(), 4);
    let facts = read(r#"{"prompt":[[1,2,3],[4]]}"#);
    assert_eq!((facts.prompts, facts.token_ids, facts.largest_token_ids), (2, 4, 3));
    let facts = read(r#"{"prompt":[1,2,3]}"#);
    assert_eq!((facts.prompts, facts.token_ids, facts.largest_token_ids), (1, 3, 3));
}

#[test]
fn a_body_cut_short_goes_on_as_it_began() {
    let cut = |api, body: &str, unread| {
        let mut scanner = Scanner::new(api, b"");
        scanner.feed(body.as_bytes());
        scanner.cut(unread)
    };
    // Of 89 bytes 42 are text: of 890 more, 420.
    let body = r#"{"model":"m","messages":[{"pad":"x","content":"the cat and the dog and the bird and the o"#;
    assert_eq!(body.len(), 89);
    let facts = cut(Api::Chat, body, 890).unwrap();
    assert_eq!(facts.text, Tally::of(Class::English, 42 + 420));
    assert_eq!((facts.model.as_deref(), facts.messages), (Some(&b"m"[..]), 1));
    assert_eq!((facts.cap, facts.output_cap()), (Cap::Unseen, None));
    // Inside an image nothing is text.
    let image =
        format!(r#"{{"messages":[{{"content":[{{"image_url":{{"url":"data:{}"#, "A".repeat(900));
    assert_eq!(cut(Api::Chat, &image, 100_000).unwrap().text.total(), 0);
    // Token ids go on as ids, and an unread cap is not the default of 16.
    let facts = cut(Api::Completions, r#"{"prompt":[1,2,3,4,"#, 1000).unwrap();
    assert_eq!((facts.largest_token_ids, facts.text.total()), (504, 0));
    assert_eq!(facts.output_cap(), None);
    assert!(cut(Api::Chat, "--boundary", 10).is_err());
}

#[test]
fn known_paths() {
    assert_eq!(Api::of_path(b"/v1/chat/completions?x=1"), Api::Chat);
    assert_eq!(Api::of_path(b"/team/v1/completions"), Api::Completions);
    assert_eq!(Api::of_path(b"/v1/chat/completions/abc"), Api::Unknown);
    assert_eq!(Api::of_path(b"/v1/models"), Api::Unknown);
}

/// A body as text, with duplicate keys, escapes and blanks as they come.
#[derive(Clone, Debug)]
enum Node {
    Raw(String),
    Text(String),
    List(Vec<Node>),
    Members(Vec<(&'static str, Node)>),
    Tree(Value),
}

const KEYS: [&str; 18] = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "stream",
    "stream_options",
    "include_usage",
    "tools",
    "tool_calls",
    "content",
    "text",
    "role",
    "type",
    "metadata",
    "image_url",
];

fn node() -> impl Strategy<Value = Node> {
    let raw = prop::sample::select(vec![
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
    ]);
    let leaf = prop_oneof![
        raw.prop_map(|raw| Node::Raw(raw.to_owned())),
        prop::sample::select(vec!["1024", " 7 ", "1_0", "x", "16.0"])
            .prop_map(|text| Node::Text(text.to_owned())),
        "\\PC{0,80}".prop_map(Node::Text),
        "[a-z ]{0,700}".prop_map(Node::Text),
    ];
    leaf.prop_recursive(6, 60, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Node::List),
            members(inner),
        ]
    })
}

fn members(inner: impl Strategy<Value = Node>) -> impl Strategy<Value = Node> {
    prop::collection::vec((prop::sample::select(KEYS.to_vec()), inner), 0..6).prop_map(|members| {
        // Inside tools duplicates are weighed twice, so there give none.
        let weighed = |key: &str| key == "tools" || key == "tool_calls";
        let tree = |node: &Node| {
            let mut text = String::new();
            node.write(&mut text);
            Node::Tree(serde_json::from_str(&text).unwrap_or(Value::Null))
        };
        Node::Members(
            members
                .into_iter()
                .map(|(key, node)| if weighed(key) { (key, tree(&node)) } else { (key, node) })
                .collect(),
        )
    })
}

fn body() -> impl Strategy<Value = Node> {
    // Mostly the right shapes, so that the interesting paths are reached.
    let part = members(node());
    let content = prop_oneof![node(), prop::collection::vec(part, 0..3).prop_map(Node::List)];
    let message = prop_oneof![
        members(node()),
        prop::collection::vec(content, 1..3)
            .prop_map(|all| Node::Members(all.into_iter().map(|one| ("content", one)).collect())),
    ];
    let messages = prop::collection::vec(message, 0..4).prop_map(Node::List);
    (members(node()), prop::collection::vec(messages, 0..3), 0_usize..4).prop_map(
        |(root, lists, at)| {
            let Node::Members(mut root) = root else { return root };
            for list in lists {
                root.insert(at.min(root.len()), ("messages", list));
            }
            Node::Members(root)
        },
    )
}

impl Node {
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
            Self::Tree(value) => write!(out, "{value}").unwrap(),
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn facts_equal_those_of_a_parsed_tree(node in body(), bom in any::<bool>()) {
        let mut text = String::from(if bom { "\u{feff}" } else { "" });
        node.write(&mut text);
        for api in [Api::Chat, Api::Completions] {
            prop_assert_eq!(
                scan(api, text.as_bytes(), &[]), oracle(api, text.as_bytes()), "{}", &text
            );
        }
    }

    #[test]
    fn any_chunking_gives_the_same_facts(
        node in body(),
        mut cuts in prop::collection::vec(0_usize..4000, 0..9),
    ) {
        let mut text = String::new();
        node.write(&mut text);
        cuts.sort_unstable();
        for api in [Api::Chat, Api::Completions] {
            let whole = scan(api, text.as_bytes(), &[]);
            prop_assert_eq!(&scan(api, text.as_bytes(), &cuts), &whole);
            let every: Vec<usize> = (0..text.len()).collect();
            prop_assert_eq!(&scan(api, text.as_bytes(), &every), &whole);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in any::<u64>()) {
        for api in [Api::Chat, Api::Completions] {
            prop_assert_eq!(scan(api, &bytes, &[]), oracle(api, &bytes));
            let mut scanner = Scanner::new(api, b"");
            scanner.feed(&bytes);
            let _ = scanner.cut(cut);
        }
    }
}
