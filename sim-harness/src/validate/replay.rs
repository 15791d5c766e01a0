//! Drives an engine with the requests of a measured run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::{Ended, Engine, Finished, Job, Load, Sink};

/// One request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// When it is there to be sent. Nanoseconds.
    pub at: u64,
    /// Prompt tokens.
    pub input: u32,
    /// Tokens to produce.
    pub output: u32,
    /// Names of the prompt's leading blocks.
    pub blocks: &'a [u64],
}

/// What lies between a client and the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Requests in flight, at most; a request that finds no place is sent when
    /// one ends.
    pub in_flight: Option<usize>,
    /// Nanoseconds from sending until the engine has the request.
    pub before: u64,
    /// Nanoseconds from a token's step until the client has the token.
    pub after: u64,
}

impl Client {
    /// A client of an API server on the same network. What the way costs:
    /// `docs/validation.md`.
    pub fn api() -> Self {
        Self { in_flight: None, before: 15_000_000, after: 1_000_000 }
    }
}

/// What became of one request, as its client saw it. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sent.
    pub sent: u64,
    /// Entered the batch for the first time.
    pub scheduled: u64,
    /// The first token arrived.
    pub first_token: u64,
    /// The last token arrived.
    pub last_token: u64,
    /// Tokens produced.
    pub output: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
}

impl Outcome {
    /// Seconds to the first token.
    pub fn ttft(&self) -> f64 {
        (self.first_token - self.sent) as f64 / 1e9
    }

    /// Seconds of each token after the first; 0 when there is only one.
    pub fn tpot(&self) -> f64 {
        let later = f64::from(self.output.max(2) - 1);
        (self.last_token - self.first_token) as f64 / 1e9 / later
    }

    /// Seconds from sending to the last token.
    pub fn e2e(&self) -> f64 {
        (self.last_token - self.sent) as f64 / 1e9
    }
}

/// A run, replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// In the order of the requests; nothing for one that cannot run.
    pub outcomes: Vec<Option<Outcome>>,
    /// What the engine was busy with at each asked instant.
    pub series: Vec<Load>,
}

impl Replayed {
    /// Seconds from the first sending to the last token.
    pub fn makespan(&self) -> f64 {
        let ended = self.outcomes.iter().flatten();
        let first = ended.clone().map(|o| o.sent).min().unwrap_or(0);
        let last = ended.map(|o| o.last_token).max().unwrap_or(0);
        (last - first) as f64 / 1e9
    }
}

struct Listener<'a> {
    ended: Vec<Finished>,
    instants: &'a [u64],
    series: Vec<Load>,
    load: Load,
}

impl Sink for Listener<'_> {
    fn finished(&mut self, finished: &Finished) {
        self.ended.push(*finished);
    }

    fn step(&mut self, step: &Ended) {
        self.keep_until(step.end);
        self.load = step.load;
    }
}

impl Listener<'_> {
    /// What was told last holds at all instants before this one.
    fn keep_until(&mut self, end: u64) {
        while self.instants.get(self.series.len()).is_some_and(|instant| *instant < end) {
            self.series.push(self.load);
        }
    }
}

/// Sends all requests, in order, and follows them to their ends. `instants`: when
/// to look at the engine's load, in order.
pub fn replay(
    engine: &mut dyn Engine,
    client: Client,
    asks: &[Ask<'_>],
    instants: &[u64],
) -> Replayed {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; asks.len()];
    let mut sent_at: Vec<u64> = vec![0; asks.len()];
    let mut listener =
        Listener { ended: Vec::new(), instants, series: Vec::new(), load: Load::default() };
    // On their way to the engine: when they get there, and which.
    let mut on_way: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let places = client.in_flight.unwrap_or(usize::MAX).max(1);
    let (mut next, mut in_flight) = (0, 0_usize);
    // When the place of a request that has ended is free again.
    let mut freed: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    loop {
        // The next sending: a request that is there, and a place for it.
        let ready = asks.get(next).and_then(|ask| {
            if in_flight < places { Some(ask.at) } else { freed.peek().map(|f| ask.at.max(f.0)) }
        });
        let arrival = on_way.peek().map(|Reverse((at, _))| *at);
        let event = engine.next_event();
        let Some(now) = [ready, arrival, event].into_iter().flatten().min() else { break };
        if ready == Some(now) {
            if in_flight >= places {
                freed.pop();
                in_flight -= 1;
            }
            in_flight += 1;
            if let Some(slot) = sent_at.get_mut(next) {
                *slot = now;
            }
            on_way.push(Reverse((now + client.before, next)));
            next += 1;
        } else if arrival == Some(now) {
            if let Some(Reverse((at, index))) = on_way.pop()
                && let Some(ask) = asks.get(index)
            {
                let job = Job {
                    prefix: ask.blocks,
                    tag: index as u64,
                    ..Job::new(ask.input, ask.output)
                };
                if engine.submit(at, &job).is_err() {
                    freed.push(Reverse(at));
                }
            }
        } else {
            engine.advance(now, &mut listener);
            for ended in listener.ended.drain(..) {
                let index = ended.tag as usize;
                let sent = sent_at.get(index).copied().unwrap_or(0);
                if let Some(slot) = outcomes.get_mut(index) {
                    *slot = Some(Outcome {
                        sent,
                        scheduled: ended.scheduled,
                        first_token: ended.first_token + client.after,
                        last_token: ended.at + client.after,
                        output: ended.output_tokens,
                        cached: ended.cached_tokens,
                    });
                }
                freed.push(Reverse(ended.at + client.after));
            }
        }
    }
    listener.keep_until(u64::MAX);
    Replayed { outcomes, series: listener.series }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Config, Linear, Replica};

    fn asks(n: u64, every: u64) -> Vec<Ask<'static>> {
        (0..n).map(|i| Ask { at: i * every, input: 100, output: 11, blocks: &[] }).collect()
    }

    fn engine() -> Replica<Linear> {
        let time = Linear {
            step_ns: 1_000_000,
            prefill_token_ns: 0,
            decode_sequence_ns: 0,
            context_token_ns: 0,
        };
        Replica::new(Config::default(), time).unwrap()
    }

    #[test]
    fn a_lone_request_takes_its_steps_and_the_way_there_and_back() {
        let client = Client { in_flight: None, before: 300, after: 20 };
        let run = replay(&mut engine(), client, &asks(1, 0), &[0, 5_000_000, 50_000_000]);
        let outcome = run.outcomes[0].unwrap();
        assert_eq!(outcome.first_token, 300 + 1_000_000 + 20);
        assert_eq!(outcome.last_token, 300 + 11_000_000 + 20);
        assert!((outcome.tpot() - 0.001).abs() < 1e-12);
        assert!((run.makespan() - outcome.e2e()).abs() < 1e-12);
        let running: Vec<usize> = run.series.iter().map(|load| load.running).collect();
        assert_eq!(running, [0, 1, 0]);
    }

    #[test]
    fn no_more_are_in_flight_than_the_client_allows() {
        let client = Client { in_flight: Some(3), ..Client::default() };
        let run = replay(&mut engine(), client, &asks(30, 0), &[]);
        let outcomes: Vec<Outcome> = run.outcomes.into_iter().flatten().collect();
        assert_eq!(outcomes.len(), 30);
        for outcome in &outcomes {
            let overlapping = outcomes
                .iter()
                .filter(|o| o.sent <= outcome.sent && o.last_token > outcome.sent)
                .count();
            assert!(overlapping <= 3, "{outcome:?}");
        }
        // A client without a bound sends all at once.
        let run = replay(&mut engine(), Client::default(), &asks(30, 0), &[]);
        assert!(run.outcomes.iter().flatten().all(|o| o.sent == 0));
    }
}
