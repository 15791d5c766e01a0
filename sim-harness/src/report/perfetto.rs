//! A replica's steps as a trace that ui.perfetto.dev and chrome://tracing open:
//! the JSON of the "Trace Event Format".
//!
//! Steps are slices of one track; what they hold, who waits and the KV cache are
//! counters; each request is an asynchronous slice with one each for its time in
//! the queue, its prompt and its answer within.

use serde_json::{Value, json};

use crate::engine::Ended;
use crate::fleet::{ReplicaTrace, RequestLife};

/// Processes of the trace: one with the steps, one with the requests.
const STEPS: u32 = 1;
const REQUESTS: u32 = 2;

/// The document. Times in it are microseconds to the nanosecond.
pub fn perfetto(trace: &ReplicaTrace) -> String {
    let name = format!("{}/{}", trace.follow.pool, trace.follow.replica);
    let mut events = Events::default();
    for (pid, what) in [(STEPS, "steps"), (REQUESTS, "requests")] {
        events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 1,
                           "args": {"name": format!("{name}: {what}")}}));
        events.push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": 1,
                           "args": {"name": what}}));
    }
    let mut starts = trace.steps.iter().map(|step| step.start).skip(1);
    for step in &trace.steps {
        events.step(step, starts.next());
    }
    trace.lives.iter().for_each(|life| events.life(life));
    let full = if trace.full { "there was more: it is cut off" } else { "whole" };
    let other = json!({"replica": name, "trace": full});
    format!(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[\n{}\n]}}\n",
        events.0
    )
}

#[derive(Default)]
struct Events(String);

impl Events {
    fn push(&mut self, event: Value) {
        if !self.0.is_empty() {
            self.0.push_str(",\n");
        }
        self.0.push_str(&event.to_string());
    }

    /// An event at a time: a number that a float does not round.
    fn at(&mut self, nanos: u64, mut event: Value, duration: Option<u64>) {
        let micros = |nanos: u64| {
            let text = format!("{}.{:03}", nanos / 1_000, nanos % 1_000);
            text.parse::<f64>().ok().map_or(Value::Null, Value::from)
        };
        if let Some(event) = event.as_object_mut() {
            event.insert("ts".into(), micros(nanos));
            if let Some(duration) = duration {
                event.insert("dur".into(), micros(duration));
            }
        }
        self.push(event);
    }

    fn counter(&mut self, nanos: u64, name: &str, args: Value) {
        let event = json!({"ph": "C", "pid": STEPS, "tid": 1, "name": name, "args": args});
        self.at(nanos, event, None);
    }

    fn step(&mut self, step: &Ended, next: Option<u64>) {
        let Ended { start, end, prefill_tokens, decode, load } = *step;
        let name = match (prefill_tokens, decode) {
            (0, _) => "decode",
            (_, 0) => "prefill",
            _ => "prefill + decode",
        };
        let args = json!({
            "prefill_tokens": prefill_tokens,
            "decode_sequences": decode,
            "running_after": load.running,
            "waiting_after": load.waiting,
            "kv_blocks_after": load.kv_used,
        });
        let slice = json!({"ph": "X", "pid": STEPS, "tid": 1, "name": name, "args": args});
        self.at(start, slice, Some(end - start));
        let tokens = |prefill: u32, decode: u32| json!({"prefill": prefill, "decode": decode});
        self.counter(start, "tokens of the step", tokens(prefill_tokens, decode));
        self.counter(end, "requests", json!({"running": load.running, "waiting": load.waiting}));
        self.counter(end, "KV cache, %", json!({"used": load.kv_usage() * 100.0}));
        // It stands still.
        if next.is_none_or(|next| next > end) {
            self.counter(end, "tokens of the step", tokens(0, 0));
        }
    }

    fn life(&mut self, life: &RequestLife) {
        let mut mark = |nanos: u64, phase: &str, name: &str, args: Option<Value>| {
            let mut event = json!({"ph": phase, "cat": "request", "id": life.job, "name": name,
                                   "pid": REQUESTS, "tid": 1});
            if let (Some(event), Some(args)) = (event.as_object_mut(), args) {
                event.insert("args".into(), args);
            }
            self.at(nanos, event, None);
        };
        let args = json!({
            "prompt_tokens": life.prompt_tokens,
            "output_tokens": life.output_tokens,
            "preemptions": life.preempted.len(),
            "client_left": life.left,
        });
        mark(life.arrival, "b", "request", Some(args));
        let stages = [
            ("queued", Some(life.arrival), life.scheduled),
            ("prefill", life.scheduled, life.first_token),
            ("decode", life.first_token, None),
        ];
        for (name, start, next) in stages {
            let Some(start) = start else { continue };
            mark(start, "b", name, None);
            if name == "decode" || next.is_none() {
                life.preempted.iter().for_each(|at| mark(*at, "n", "preempted", None));
            }
            if let Some(end) = next.or(life.end) {
                mark(end, "e", name, None);
            }
            if next.is_none() {
                break;
            }
        }
        if let Some(end) = life.end {
            mark(end, "e", "request", None);
        }
    }
}
