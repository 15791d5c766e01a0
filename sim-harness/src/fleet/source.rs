//! One source of requests: when the next one comes, and how long it is.

use std::sync::Arc;

use super::scenario::{Arrivals, LengthSource, Source};
use crate::rng::Pcg;
use crate::texts::Kind;
use crate::{MILLISECOND, SECOND};

// Streams of the seed, for each source: a change in one draw leaves the others
// alone.
const STREAMS: u64 = 8;
const ARRIVALS: u64 = 1;
const LENGTHS: u64 = 2;
const CAPS: u64 = 3;
const TEXTS: u64 = 4;
/// The stream that chooses workers; below those of the sources.
pub(super) const WORKERS: u64 = 0;

/// Tokens of a chat's prompt that are the template's. A prompt has one more at
/// the least: traces of other kinds of requests may have less.
pub(super) const TEMPLATE: u32 = 7;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// Tokens of the prompt, the template included.
    pub(super) input: u32,
    /// Tokens that the model wants to produce.
    pub(super) output: u32,
    pub(super) cap: Option<u32>,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) struct Stream {
    source: Source,
    end: u64,
    /// Of the open arrivals: when the last one came, as a float so that
    /// rounding does not add up.
    at: f64,
    /// Requests of the trace so far, and arrivals of it.
    row: usize,
    arrived: usize,
    arrivals: Pcg,
    lengths: Pcg,
    caps: Pcg,
    pub(super) texts: Pcg,
    weights: u32,
}

impl Stream {
    /// The `nth` source of a scenario that ends at `end`.
    pub(super) fn new(source: &Source, nth: usize, end: u64, seed: u64) -> Self {
        let rng = |stream| Pcg::new(seed, STREAMS * (nth as u64 + 1) + stream);
        Self {
            source: source.clone(),
            end: source.stop.min(end),
            at: source.start as f64,
            row: 0,
            arrived: 0,
            arrivals: rng(ARRIVALS),
            lengths: rng(LENGTHS),
            caps: rng(CAPS),
            texts: rng(TEXTS),
            weights: source.texts.iter().map(|(_, weight)| weight).sum(),
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// When the next request comes by itself; nothing if no more does.
    pub(super) fn next_arrival(&mut self) -> Option<u64> {
        let at = match self.source.arrivals {
            Arrivals::Open { rate, cv } => {
                let shape = 1.0 / (cv * cv);
                let gap = if cv == 1.0 {
                    self.arrivals.exponential(1.0)
                } else {
                    self.arrivals.gamma(shape)
                };
                self.at += gap * SECOND as f64 / rate;
                self.at as u64
            }
            Arrivals::Trace { speed } => {
                let LengthSource::Trace(rows) = &self.source.lengths else { return None };
                let arrival = rows.get(self.arrived)?.arrival;
                self.arrived += 1;
                self.source.start + (arrival as f64 / speed) as u64
            }
            Arrivals::Closed { .. } => return None,
        };
        (at < self.end).then_some(at)
    }

    /// When a client that is done at `now` asks again; nothing if never.
    pub(super) fn after_think(&mut self, now: u64) -> Option<u64> {
        let Arrivals::Closed { think, .. } = self.source.arrivals else { return None };
        // A round trip at the least: who is refused at once would ask for ever.
        let pause = (self.arrivals.exponential(think as f64) as u64).max(MILLISECOND);
        Some(now.max(self.source.start) + pause).filter(|at| *at < self.end)
    }

    /// The next request.
    pub(super) fn ask(&mut self) -> Ask {
        let (input, output) = match &self.source.lengths {
            LengthSource::Drawn(lengths) => lengths.draw(&mut self.lengths),
            LengthSource::Fixed(input, output) => (*input, *output),
            LengthSource::Trace(rows) => {
                let rows = Arc::clone(rows);
                let row = rows.get(self.row % rows.len().max(1));
                self.row += 1;
                row.map_or((1, 1), |row| (row.input_tokens, row.output_tokens))
            }
        };
        let (input, output) = (input.max(TEMPLATE + 1), output.max(1));
        let cap = self.source.caps.draw(output, &mut self.caps);
        let mut rest = self.texts.below(self.weights);
        let kind = self.source.texts.iter().find_map(|&(kind, weight)| {
            let found = rest < weight;
            rest = rest.saturating_sub(weight);
            found.then_some(kind)
        });
        Ask { input, output, cap, kind: kind.unwrap_or(Kind::English) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::CapPolicy;

    fn stream(arrivals: Arrivals) -> Stream {
        let source = Source {
            tenant: String::new(),
            model: String::new(),
            path: String::new(),
            texts: vec![(Kind::English, 1), (Kind::Json, 3)],
            lengths: LengthSource::Fixed(1, 9),
            arrivals,
            caps: CapPolicy::Actual,
            start: 5 * SECOND,
            stop: 1_000 * SECOND,
            timeout: None,
            retries: 0,
        };
        Stream::new(&source, 0, u64::MAX, 1)
    }

    #[test]
    fn gaps_vary_as_much_as_was_asked_for() {
        for cv in [0.5, 1.0, 2.0] {
            let mut stream = stream(Arrivals::Open { rate: 20.0, cv });
            let times: Vec<u64> = std::iter::from_fn(|| stream.next_arrival()).collect();
            let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>();
            let found = (square / gaps.len() as f64).sqrt() / mean;
            assert!((found / cv - 1.0).abs() < 0.08, "{cv}: {found}");
            assert!(times[0] >= 5 * SECOND && *times.last().unwrap() < 1_000 * SECOND);
            assert!((times.len() as f64 / (995.0 * 20.0) - 1.0).abs() < 0.05, "{}", times.len());
        }
    }

    #[test]
    fn kinds_come_by_their_weights_and_prompts_have_a_template() {
        let mut stream = stream(Arrivals::Closed { clients: 1, think: 0 });
        let asks: Vec<Ask> = (0..4_000).map(|_| stream.ask()).collect();
        let json = asks.iter().filter(|ask| ask.kind == Kind::Json).count();
        assert!((2_800..3_200).contains(&json), "{json}");
        assert!(asks.iter().all(|ask| (ask.input, ask.output) == (TEMPLATE + 1, 9)));
        assert_eq!(stream.after_think(0), Some(5 * SECOND + MILLISECOND));
        assert_eq!(stream.after_think(1_000 * SECOND), None);
    }
}
