//! Data-parallel engines that share nothing but their front end.
//!
//! Ranks whose experts are shared step together, as one [`Replica`]. Those of a
//! dense model do not: vLLM runs each at its own pace (PR 30739).
//!
//! [`Replica`]: crate::engine::Replica

use crate::engine::{Counts, Ended, Engine, Event, Finished, Job, JobId, Load, Sink, TooLong};

/// Engines behind one front end.
pub(super) struct Ranks<E> {
    engines: Vec<E>,
}

/// Adds what the other engines are busy with.
struct Together<'a> {
    sink: &'a mut dyn Sink,
    others: Load,
}

impl Sink for Together<'_> {
    fn event(&mut self, event: Event) {
        self.sink.event(event);
    }

    fn finished(&mut self, finished: &Finished) {
        self.sink.finished(finished);
    }

    fn step(&mut self, step: &Ended) {
        self.sink.step(&Ended { load: step.load.plus(self.others), ..*step });
    }
}

impl<E: Engine> Ranks<E> {
    /// At least one engine.
    pub(super) fn new(engines: Vec<E>) -> Self {
        Self { engines }
    }

    /// The engine whose event is next.
    fn first(&self) -> Option<(usize, u64)> {
        let events = self.engines.iter().enumerate();
        let events = events.filter_map(|(index, engine)| Some((index, engine.next_event()?)));
        events.min_by_key(|(_, at)| *at)
    }
}

impl<E: Engine> Engine for Ranks<E> {
    /// To the engine with the least of running and four times waiting, as vLLM's
    /// front end has it.
    fn submit(&mut self, now: u64, job: &Job<'_>) -> Result<JobId, TooLong> {
        let count = self.engines.len() as u64;
        let busy = |engine: &E| {
            let load = engine.load();
            load.waiting * 4 + load.running
        };
        let least = self.engines.iter_mut().enumerate().min_by_key(|(_, engine)| busy(engine));
        match least {
            Some((index, engine)) => Ok(engine.submit(now, job)? * count + index as u64),
            None => Ok(0),
        }
    }

    fn abort(&mut self, now: u64, job: JobId) -> bool {
        let count = self.engines.len().max(1) as u64;
        let engine = self.engines.get_mut((job % count) as usize);
        engine.is_some_and(|engine| engine.abort(now, job / count))
    }

    fn next_event(&self) -> Option<u64> {
        self.first().map(|(_, at)| at)
    }

    fn advance(&mut self, now: u64, sink: &mut dyn Sink) {
        while let Some((index, at)) = self.first().filter(|(_, at)| *at <= now) {
            let others = self.engines.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.map(|(_, engine)| engine.load()).fold(Load::default(), Load::plus);
            if let Some(engine) = self.engines.get_mut(index) {
                engine.advance(at, &mut Together { sink, others });
            }
        }
    }

    fn load(&self) -> Load {
        self.engines.iter().map(Engine::load).fold(Load::default(), Load::plus)
    }

    fn counts(&self) -> Counts {
        self.engines.iter().map(Engine::counts).fold(Counts::default(), Counts::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{Ask, Client, replay};
    use super::*;
    use crate::engine::{Config, Linear, Replica};

    #[test]
    fn engines_run_at_their_own_pace_and_share_the_work() {
        let time = Linear {
            step_ns: 1_000_000,
            prefill_token_ns: 1_000,
            decode_sequence_ns: 0,
            context_token_ns: 0,
        };
        let engine = || Replica::new(Config::default(), time).unwrap();
        let ask = |at, input| Ask { at, input, output: 11, blocks: &[] };
        let alone = replay(&mut engine(), Client::default(), &[ask(0, 100)], &[]);
        let mut ranks = Ranks::new(vec![engine(), engine()]);
        // The second goes to the idle engine, so the long prompt does not delay it.
        let asks = [ask(0, 8_000), ask(0, 100)];
        let both = replay(&mut ranks, Client::default(), &asks, &[5_000_000]);
        assert_eq!(both.outcomes[1], alone.outcomes[0]);
        assert!(both.outcomes[0].unwrap().first_token > 8_000_000);
        // What is exported is the sum of both.
        assert_eq!(both.series[0].running, 2);
        assert_eq!(ranks.counts().output_tokens, 22);
    }
}
