//! What an answer states, read from parsed trees; and answers to read.

use super::super::{NoUsage, Told, Usage};
use crate::nodes::{Change, Node};
use crate::request::{Api, lax_integer};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The documents of an answer: one, or those of a stream's events.
#[derive(Clone, Debug)]
pub(super) struct Answer(Vec<Node>);

pub(super) fn changes() -> impl Strategy<Value = Vec<(usize, Change)>> {
    let keys = [
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "cached_tokens",
        "reasoning_tokens",
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "message",
        "response",
        "delta",
        "stop_reason",
        "choices",
        "finish_reason",
        "usageMetadata",
        "promptTokenCount",
        "thoughtsTokenCount",
        "candidates",
        "finishReason",
        "meta_info",
        "index",
        "incomplete_details",
        "reason",
        "meta",
        "tokens",
        "x",
    ];
    let texts = ["length", "max_tokens", "MAX_TOKENS", "stop", "max_output_tokens", "lengths"];
    crate::nodes::changes(&keys, &texts)
}

impl Answer {
    pub(super) fn parse(text: &str, stream: bool) -> Self {
        if !stream {
            return Self(vec![Node::parse(text)]);
        }
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let data = |event: &str| {
            let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
            lines.map(str::trim).collect::<Vec<_>>().join("\n")
        };
        let events = text.split("\n\n").map(data).filter(|event| !event.is_empty());
        Self(
            events
                .map(|event| match serde_json::from_str::<Value>(&event) {
                    Ok(value) => Node::from(value),
                    Err(_) => Node::Raw(event),
                })
                .collect(),
        )
    }

    pub(super) fn change(&mut self, changes: &[(usize, Change)]) {
        for (at, change) in changes {
            let (count, one) =
                (self.0.len(), std::slice::from_ref(&(at / 7, change.clone())).to_vec());
            self.0[at % count].change(&one, &[]);
        }
    }

    /// The bytes; of a stream with these ends of lines, and perhaps without its
    /// last blank line.
    pub(super) fn text(&self, stream: bool, end: &str, broken: bool) -> String {
        if !stream {
            return self.0[0].text(broken);
        }
        let mut text = String::from(": comment\n\n");
        for (at, document) in self.0.iter().enumerate() {
            for line in document.text(false).split('\n') {
                write!(text, "data:{}{line}{end}", if at % 2 == 0 { " " } else { "" }).unwrap();
            }
            text.push_str(if broken && at + 1 == self.0.len() { "" } else { end });
        }
        text
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Counts {
    input: Option<u64>,
    writes: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
}

pub(super) fn oracle(api: Api, stream: bool, answer: &Answer) -> Told {
    let mut prompts: BTreeMap<u64, Counts> = BTreeMap::new();
    let (mut stopped, mut done, mut indexed) = (false, false, false);
    for document in &answer.0 {
        let text = document.text(false);
        done |= text == "[DONE]";
        let Ok(value) = serde_json::from_str::<Value>(&text) else {
            if stream {
                continue;
            }
            let usage = Err(NoUsage::Unreadable);
            return Told { usage, stopped_by_length: false, events: 0 };
        };
        let list =
            value.as_array().filter(|_| !stream && (api == Api::Gemini || api == Api::Generate));
        let (items, listed) = match list {
            Some(items) => (items.iter().filter(|one| one.is_object()).collect(), true),
            None => (vec![&value], false),
        };
        for (place, one) in items.into_iter().enumerate() {
            stopped |= limit(api, one);
            let index = one.get("index").filter(|_| api == Api::Generate && !listed);
            let index = index.and_then(count);
            indexed |= index.is_some();
            let index =
                if listed && api == Api::Generate { place as u64 } else { index.unwrap_or(0) };
            let found = match counts(api, one) {
                // A prompt of which nothing is known.
                None if listed && api == Api::Generate => Counts::default(),
                None => continue,
                Some(found) => found,
            };
            let old = prompts.entry(index).or_default();
            *old = if api == Api::Messages { merged(*old, found) } else { found };
        }
    }
    let known = prompts.keys().zip(0..).all(|(index, at)| *index == at)
        && (prompts.len() <= 256 || !stream)
        && (!indexed || done || !stream);
    let total = |of: fn(&Counts) -> Option<u64>| {
        let each: Option<Vec<u64>> = prompts.values().map(of).collect();
        each.filter(|each| known && !each.is_empty())
            .map(|each| each.into_iter().fold(0, u64::saturating_add))
    };
    let usage = Usage {
        input: total(if api == Api::Messages { Counts::prompt } else { |one| one.input }),
        cached: total(|one| one.cached),
        output: total(|one| one.output),
        reasoning: total(|one| one.reasoning),
    };
    let usage = if usage == Usage::default() { Err(NoUsage::Absent) } else { Ok(usage) };
    let events = if stream { answer.0.len() as u64 } else { 0 };
    Told { usage, stopped_by_length: stopped, events }
}

impl Counts {
    /// Anthropic counts what the cache holds apart from the input.
    fn prompt(&self) -> Option<u64> {
        let cache = [self.writes, self.cached].map(|one| one.unwrap_or(0));
        Some(cache.into_iter().fold(self.input?, u64::saturating_add))
    }
}

fn count(value: &Value) -> Option<u64> {
    value.is_number().then(|| lax_integer(value.to_string().as_bytes(), false)).flatten()
}

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.as_object()?.get(*key))
}

fn number(value: &Value, path: &[&str]) -> Option<u64> {
    at(value, path).and_then(count)
}

fn counts(api: Api, value: &Value) -> Option<Counts> {
    let read = |input: &[&str], cached: &[&str], output: &[&str], reasoning: &[&str]| Counts {
        input: number(value, input),
        writes: None,
        cached: number(value, cached),
        output: number(value, output),
        reasoning: number(value, reasoning),
    };
    let found = match api {
        Api::Responses => {
            let inner = |path: &[&str]| {
                let path = |rest: &[&str]| {
                    [path, rest].concat().iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()
                };
                let paths = [
                    path(&["input_tokens"]),
                    path(&["input_tokens_details", "cached_tokens"]),
                    path(&["output_tokens"]),
                    path(&["output_tokens_details", "reasoning_tokens"]),
                ];
                let [a, b, c, d] = paths
                    .each_ref()
                    .map(|path| path.iter().map(String::as_str).collect::<Vec<_>>());
                read(&a, &b, &c, &d)
            };
            let carried = inner(&["response", "usage"]);
            if carried == Counts::default() { inner(&["usage"]) } else { carried }
        }
        Api::Messages => {
            let usage = |usage: Option<&Value>| {
                let count = |key| usage.and_then(|usage| number(usage, &[key]));
                Counts {
                    input: count("input_tokens"),
                    writes: count("cache_creation_input_tokens"),
                    cached: count("cache_read_input_tokens"),
                    output: count("output_tokens"),
                    reasoning: None,
                }
            };
            // Writes to the cache alone say nothing of the prompt.
            let says =
                |one: &Counts| one.input.is_some() || one.cached.is_some() || one.output.is_some();
            let both = [usage(at(value, &["message", "usage"])), usage(at(value, &["usage"]))];
            return both.into_iter().find(says);
        }
        Api::Gemini => {
            let count = |key| number(value, &["usageMetadata", key]);
            let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
                (Some(one), Some(other)) => Some(one.saturating_add(other)),
                _ => one.or(other),
            };
            let (input, reasoning) = (count("promptTokenCount"), count("thoughtsTokenCount"));
            Counts {
                input: input.and_then(|_| sum(input, count("toolUsePromptTokenCount"))),
                writes: None,
                cached: count("cachedContentTokenCount"),
                output: sum(count("candidatesTokenCount"), reasoning),
                reasoning,
            }
        }
        Api::Generate => read(
            &["meta_info", "prompt_tokens"],
            &["meta_info", "cached_tokens"],
            &["meta_info", "completion_tokens"],
            &["meta_info", "reasoning_tokens"],
        ),
        _ => {
            let mut found = read(
                &["usage", "prompt_tokens"],
                &["usage", "prompt_tokens_details", "cached_tokens"],
                &["usage", "completion_tokens"],
                &["usage", "completion_tokens_details", "reasoning_tokens"],
            );
            if matches!(api, Api::Embeddings | Api::Rerank) {
                let first = |paths: &[[&str; 3]]| {
                    paths.iter().find_map(|path| {
                        let path: Vec<&str> =
                            path.iter().copied().filter(|key| !key.is_empty()).collect();
                        number(value, &path)
                    })
                };
                found.input = found.input.or_else(|| {
                    first(&[
                        ["usage", "total_tokens", ""],
                        ["meta", "tokens", "input_tokens"],
                        ["meta", "billed_units", "input_tokens"],
                    ])
                });
                found.output = found.output.or_else(|| {
                    first(&[
                        ["meta", "tokens", "output_tokens"],
                        ["meta", "billed_units", "output_tokens"],
                    ])
                });
            }
            found
        }
    };
    (found != Counts::default()).then_some(found)
}

fn merged(old: Counts, new: Counts) -> Counts {
    let some = [new.input, new.writes, new.cached].iter().any(|one| one.unwrap_or(0) > 0);
    let input = |new: Option<u64>, old: Option<u64>| if some { new.or(old) } else { old.or(new) };
    Counts {
        input: input(new.input, old.input),
        writes: input(new.writes, old.writes),
        cached: input(new.cached, old.cached),
        output: new.output.or(old.output),
        reasoning: None,
    }
}

fn limit(api: Api, value: &Value) -> bool {
    let is = |value: Option<&Value>| {
        let words = [
            "length",
            "max_tokens",
            "MAX_TOKENS",
            "max_output_tokens",
            "model_context_window_exceeded",
        ];
        value.and_then(Value::as_str).is_some_and(|word| words.contains(&word))
    };
    let any = |list: &str, key: &str| {
        let list = at(value, &[list]).and_then(Value::as_array);
        list.into_iter().flatten().any(|one| is(at(one, &[key])))
    };
    match api {
        Api::Responses => {
            is(at(value, &["incomplete_details", "reason"]))
                || is(at(value, &["response", "incomplete_details", "reason"]))
        }
        Api::Messages => {
            [&["stop_reason"][..], &["delta", "stop_reason"], &["message", "stop_reason"]]
                .iter()
                .any(|path| is(at(value, path)))
        }
        Api::Gemini => any("candidates", "finishReason"),
        Api::Generate => is(at(value, &["meta_info", "finish_reason", "type"])),
        _ => any("choices", "finish_reason"),
    }
}
