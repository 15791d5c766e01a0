//! One source of requests: when the next one comes, and how long it is.

use super::scenario::{Arrivals, LengthSource, Source};
use super::session::{NAME_TOKENS, Prefix, Session, row_names, session_names};
use crate::rng::Pcg;
use crate::texts::Kind;
use crate::workload::{ScaledRows, TraceRequest, mean_rate};
use crate::{MILLISECOND, SECOND};

// Streams of the seed, for each source: a change in one draw leaves the others
// alone.
const STREAMS: u64 = 8;
const ARRIVALS: u64 = 1;
const LENGTHS: u64 = 2;
const CAPS: u64 = 3;
const TEXTS: u64 = 4;
const MODELS: u64 = 5;
const SESSIONS: u64 = 6;
const TAILS: u64 = 7;
/// The streams that choose workers, and how long clients wait before they try
/// again; below those of the sources.
pub(super) const WORKERS: u64 = 0;
pub(super) const BACKOFF: u64 = 1;

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
    /// Its place among the source's models.
    pub(super) model: u16,
    pub(super) prefix: Prefix,
}

#[derive(Debug)]
pub(super) struct Stream {
    source: Source,
    nth: u64,
    end: u64,
    /// Of the open arrivals: when the last one came, as a float so that
    /// rounding does not add up.
    at: f64,
    /// Requests of the trace so far, and arrivals of it.
    row: usize,
    arrived: usize,
    /// The same of a trace at another rate.
    copies: Option<(ScaledRows, ScaledRows)>,
    /// Sessions so far, and numbers that they were given.
    begun: usize,
    numbers: u64,
    arrivals: Pcg,
    lengths: Pcg,
    caps: Pcg,
    pub(super) texts: Pcg,
    models: Pcg,
    sessions: Pcg,
    tails: Pcg,
}

/// One of several by their weights, as its place; 0 where all are 0.
fn weighted<T>(of: &[(T, u32)], rng: &mut Pcg) -> usize {
    let mut rest = rng.below(of.iter().map(|(_, weight)| weight).sum());
    let found = of.iter().position(|(_, weight)| {
        let found = rest < *weight;
        rest = rest.saturating_sub(*weight);
        found
    });
    found.unwrap_or(0)
}

impl Stream {
    /// The `nth` source of a scenario that ends at `end`.
    pub(super) fn new(source: &Source, nth: usize, end: u64, seed: u64) -> Self {
        let rng = |stream| Pcg::new(seed, STREAMS * (nth as u64 + 1) + stream);
        let rows = if let LengthSource::Trace(rows) = &source.lengths { &**rows } else { &[] };
        let first = rows.partition_point(|row| row.arrival < source.trace_from);
        let mut arrivals = rng(ARRIVALS);
        let copies = match source.arrivals {
            Arrivals::Scaled { rate } => mean_rate(rows).map(|own| {
                let copies = ScaledRows::new(rate / own, arrivals.unit(), first);
                (copies.clone(), copies)
            }),
            _ => None,
        };
        Self {
            source: source.clone(),
            nth: nth as u64,
            end: source.stop.min(end),
            at: source.start as f64,
            row: first,
            arrived: first,
            copies,
            begun: 0,
            numbers: 0,
            arrivals,
            lengths: rng(LENGTHS),
            caps: rng(CAPS),
            texts: rng(TEXTS),
            models: rng(MODELS),
            sessions: rng(SESSIONS),
            tails: rng(TAILS),
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    fn rows(&self) -> &[TraceRequest] {
        if let LengthSource::Trace(rows) = &self.source.lengths { rows } else { &[] }
    }

    /// The name of a request's model.
    pub(super) fn model(&self, ask: &Ask) -> &str {
        self.source.models.get(usize::from(ask.model)).map_or("", |(name, _)| name)
    }

    /// The names of a prompt's beginning. Says whether they name its answer, too,
    /// of `output` tokens.
    pub(super) fn names(&self, ask: &Ask, output: u32, names: &mut Vec<u64>) -> bool {
        match ask.prefix {
            Prefix::None => false,
            Prefix::Row { row, pass } => {
                let row = self.rows().get(row).map_or(&[][..], |row| &row.names);
                row_names(self.nth, pass, row, names);
                false
            }
            Prefix::Session { number, shared, answer } => {
                let tokens = ask.input.saturating_add(if answer { output } else { 0 });
                session_names(self.nth, (number, shared), tokens, names);
                answer
            }
        }
    }

    fn gap(&mut self, cv: f64) -> f64 {
        if cv == 1.0 {
            self.arrivals.exponential(1.0)
        } else {
            self.arrivals.gamma(1.0 / (cv * cv))
        }
    }

    /// When the next request comes by itself; nothing if no more does.
    pub(super) fn next_arrival(&mut self) -> Option<u64> {
        let at = match &self.source.arrivals {
            &Arrivals::Open { rate, cv } => {
                self.at += self.gap(cv) * SECOND as f64 / rate;
                self.at as u64
            }
            Arrivals::Varying { rates, cv } => {
                let (rates, cv) = (std::sync::Arc::clone(rates), *cv);
                let gap = self.gap(cv);
                self.at = rates.after(self.at / SECOND as f64, gap)? * SECOND as f64;
                self.at as u64
            }
            &Arrivals::Trace { speed } => {
                let arrival = self.rows().get(self.arrived)?.arrival;
                self.arrived += 1;
                let after = (arrival - self.source.trace_from) as f64 / speed;
                self.source.start.saturating_add(after as u64)
            }
            Arrivals::Scaled { .. } => {
                let LengthSource::Trace(rows) = &self.source.lengths else { return None };
                let (copies, _) = self.copies.as_mut()?;
                let arrival = copies.next_of(rows.len())?.arrival(rows);
                let after = arrival.saturating_sub(self.source.trace_from);
                self.source.start.saturating_add(after)
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

    /// The next request of one's own, not of a session.
    pub(super) fn ask(&mut self) -> Ask {
        let (input, output, prefix) = self.draw();
        let (model, kind) = self.voice();
        self.with_cap(Ask { input, output, cap: None, kind, model, prefix })
    }

    /// Its lengths as such: prompt, output, and what the prompt begins with.
    fn draw(&mut self) -> (u32, u32, Prefix) {
        let (mut input, mut output, mut prefix) = match &self.source.lengths {
            LengthSource::Drawn(lengths) => {
                let (input, output) = lengths.draw(&mut self.lengths);
                (input, output, Prefix::None)
            }
            LengthSource::Fixed(input, output) => (*input, *output, Prefix::None),
            LengthSource::Trace(rows) => {
                let all = rows.len().max(1);
                let next = self.copies.as_mut().and_then(|(_, asks)| asks.next_of(all));
                let (row, pass) = match next {
                    Some(copy) => (copy.content(all), copy.copy),
                    None => (self.row % all, (self.row / all) as u64),
                };
                self.row += 1;
                let found = rows.get(row).map(|row| (row.input_tokens, row.output_tokens));
                let (input, output) = found.unwrap_or((1, 1));
                (input, output, Prefix::Row { row, pass })
            }
            LengthSource::Sessions(_) => (1, 1, Prefix::None),
        };
        output = output.max(1);
        if let Some(tail) = self.source.tail
            && self.tails.chance(tail.share)
        {
            let (from, to) = tail.tokens;
            let all = from + self.tails.below((to - from).saturating_add(1));
            input = all.saturating_sub(output);
            prefix = Prefix::None;
        }
        (input.max(TEMPLATE + 1), output, prefix)
    }

    /// The model that is asked, and the kind of text.
    fn voice(&mut self) -> (u16, Kind) {
        let kind = weighted(&self.source.texts, &mut self.texts);
        let kind = self.source.texts.get(kind).map_or(Kind::English, |(kind, _)| *kind);
        let model = match &*self.source.models {
            [_] => 0,
            models => weighted(models, &mut self.models) as u16,
        };
        (model, kind)
    }

    fn with_cap(&mut self, ask: Ask) -> Ask {
        Ask { cap: self.source.caps.draw(ask.output, &mut self.caps), ..ask }
    }

    /// A new session, if the source has sessions. Its first turn comes at once.
    pub(super) fn begin(&mut self) -> Option<Session> {
        let (rest, context) = match (&self.source.lengths, self.source.sessions) {
            (LengthSource::Sessions(all), _) => (self.begun % all.len().max(1), 0),
            (_, Some(sessions)) => {
                // Each turn is the last one with the same probability.
                let (last, most) = (1.0 / sessions.turns, 1_000_000);
                let mut rest = 0;
                while rest < most && !self.sessions.chance(last) {
                    rest += 1;
                }
                (rest, sessions.shared)
            }
            _ => return None,
        };
        let (model, kind) = self.voice();
        self.begun += 1;
        self.numbers += 1;
        Some(Session { number: self.numbers, kind, model, turns: 0, rest, context })
    }

    /// The next turn of a session.
    pub(super) fn turn(&mut self, session: &mut Session) -> Ask {
        let Session { kind, model, context, .. } = *session;
        let shared = self.source.sessions.map_or(0, |sessions| sessions.shared);
        let (input, output) = if let Some((_, input, output)) = self.recorded(session) {
            if input < context {
                // Something was taken out: what there was is of no use.
                self.numbers += 1;
                session.number = self.numbers;
            }
            (input.max(TEMPLATE + 1), output.max(1))
        } else {
            let (input, output, _) = self.draw();
            session.rest = session.rest.saturating_sub(usize::from(session.turns > 0));
            (context.saturating_add(input), output)
        };
        session.turns += 1;
        session.context = input;
        let answer = match &self.source.lengths {
            // What is shorter than both does not have the answer in it: a client may
            // leave out what a model thought.
            LengthSource::Sessions(_) => self
                .recorded(session)
                .is_some_and(|(_, next, _)| next >= input.saturating_add(output)),
            _ => session.rest > 0,
        };
        let (number, shared) = (session.number, shared / NAME_TOKENS);
        let prefix = Prefix::Session { number, shared, answer };
        self.with_cap(Ask { input, output, cap: None, kind, model, prefix })
    }

    /// The turn of a recorded session that comes next: thinking, prompt, output.
    fn recorded(&self, session: &Session) -> Option<(u64, u32, u32)> {
        let LengthSource::Sessions(all) = &self.source.lengths else { return None };
        let turn = all.get(session.rest)?.get(session.turns)?;
        Some((turn.think, turn.input_tokens, turn.output_tokens))
    }

    /// When the client of a session that got so many tokens at `now` takes its
    /// next turn, be it after the source's end; nothing if that was the last one.
    pub(super) fn next_turn(&mut self, session: &mut Session, got: u32, now: u64) -> Option<u64> {
        let think = if let LengthSource::Sessions(_) = self.source.lengths {
            self.recorded(session)?.0
        } else {
            let sessions = self.source.sessions.filter(|_| session.rest > 0)?;
            session.context = session.context.saturating_add(got);
            self.sessions.exponential(sessions.think as f64) as u64
        };
        Some(now.saturating_add(think.max(MILLISECOND)))
    }

    /// Whether clients still send at this time.
    pub(super) fn sends(&self, at: u64) -> bool {
        at < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::scenario::Tail;
    use crate::workload::{CapPolicy, Rates};

    fn stream(arrivals: Arrivals) -> Stream {
        let source = Source {
            texts: vec![(Kind::English, 1), (Kind::Json, 3)],
            models: vec![("a".into(), 1), ("b".into(), 1)],
            caps: CapPolicy::Actual,
            start: 5 * SECOND,
            stop: 1_000 * SECOND,
            tail: Some(Tail { share: 0.02, tokens: (3_000, 4_000) }),
            ..Source::new(LengthSource::Fixed(1, 9), arrivals)
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
    fn a_day_is_busy_in_the_middle() {
        let rates = Rates::day(20.0, 1.8, 1_000.0).unwrap();
        let mut stream = stream(Arrivals::Varying { rates: rates.into(), cv: 2.0 });
        let times: Vec<u64> = std::iter::from_fn(|| stream.next_arrival()).collect();
        let within = |from: u64, to: u64| {
            let (from, to) = (from * SECOND, to * SECOND);
            times.iter().filter(|at| (from..to).contains(at)).count() as f64
        };
        // Area under the sine: 20 (1 ± 0.8 sin(0.2 π) / (0.2 π)) for the middle
        // fifth and for the first and last tenths, which `start` cuts by 5 s.
        let (busy, quiet) =
            (within(400, 600) / 200.0, (within(0, 100) + within(900, 1_000)) / 195.0);
        assert!(
            (busy / 34.97 - 1.0).abs() < 0.1 && (quiet / 5.03 - 1.0).abs() < 0.2,
            "{busy} {quiet}"
        );
        assert!((times.len() as f64 / 20_000.0 - 1.0).abs() < 0.05, "{}", times.len());
        assert!(times[0] >= 5 * SECOND);
    }

    #[test]
    fn kinds_come_by_their_weights_and_prompts_have_a_template() {
        let mut stream = stream(Arrivals::Closed { clients: 1, think: 0 });
        let asks: Vec<Ask> = (0..4_000).map(|_| stream.ask()).collect();
        let json = asks.iter().filter(|ask| ask.kind == Kind::Json).count();
        assert!((2_800..3_200).contains(&json), "{json}");
        let (tail, short): (Vec<&Ask>, Vec<&Ask>) = asks.iter().partition(|ask| ask.input > 100);
        assert!(short.iter().all(|ask| (ask.input, ask.output) == (TEMPLATE + 1, 9)));
        assert!((50..110).contains(&tail.len()), "{}", tail.len());
        assert!(tail.iter().all(|ask| (3_000..=4_000).contains(&(ask.input + ask.output))));
        let of_b = asks.iter().filter(|ask| stream.model(ask) == "b").count();
        assert!((1_850..2_150).contains(&of_b), "{of_b}");
        assert_eq!(stream.after_think(0), Some(5 * SECOND + MILLISECOND));
        assert_eq!(stream.after_think(1_000 * SECOND), None);
    }
}
