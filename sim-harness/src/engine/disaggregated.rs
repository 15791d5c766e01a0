//! Replicas that compute prompts, and others that compute answers.
//!
//! As vLLM does with a pulling KV connector (NIXL): a request first goes to a
//! prefill replica as a request for one token, which is thrown away; its blocks
//! are kept there. Then it goes to a decode replica, which allocates blocks for
//! its prompt once it is first in the queue and they fit, looks up what it has
//! in its own prefix cache, and fetches the rest while others run. When that is
//! done the prefill replica frees its blocks, and the decode replica computes
//! the prompt's last token, which yields the first one of the answer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::config::{Config, ConfigError};
use super::policy::Fcfs;
use super::replica::Replica;
use super::sequence::Handoff;
use super::step::StepTime;
use super::transfer::Transfer;
use super::{Counts, Ended, Engine, Event, Finished, Job, JobId, Load, Sink, TooLong, What};

/// One request on its way.
#[derive(Debug)]
struct Way {
    names: Vec<u64>,
    names_answer: bool,
    prompt_tokens: u32,
    output_tokens: u32,
    priority: i32,
    tag: u64,
    arrival: u64,
    /// When it first entered a batch, and what was cached then.
    scheduled: u64,
    cached: u32,
    preemptions: u32,
    prefill: (usize, JobId),
    decode: Option<(usize, JobId)>,
}

/// Prefill and decode replicas that work together, seen as one engine.
#[derive(Debug)]
pub struct Disaggregated<T> {
    /// The prefill replicas first.
    replicas: Vec<Replica<T>>,
    prefills: usize,
    ways: BTreeMap<JobId, Way>,
    /// Which request a replica's job belongs to.
    owners: BTreeMap<(usize, JobId), JobId>,
    /// Blocks to be freed: when, by which replica, of which of its jobs.
    releases: BinaryHeap<Reverse<(u64, usize, JobId)>>,
    next: JobId,
    told: Told,
}

/// What the replicas told in one round, with the replica.
#[derive(Debug, Default)]
struct Told {
    at: usize,
    events: Vec<(usize, Event)>,
    finished: Vec<(usize, Finished)>,
    steps: Vec<Ended>,
}

impl Sink for Told {
    fn event(&mut self, event: Event) {
        self.events.push((self.at, event));
    }

    fn finished(&mut self, finished: &Finished) {
        self.finished.push((self.at, *finished));
    }

    fn step(&mut self, step: &Ended) {
        self.steps.push(*step);
    }
}

impl<T: StepTime> Disaggregated<T> {
    /// Idle replicas: a configuration and a step time for each of both kinds. A
    /// request goes to the one of its kind with the least of running plus four
    /// times waiting ones.
    pub fn new(
        prefill: Vec<(Config, T)>,
        decode: Vec<(Config, T)>,
        transfer: Transfer,
    ) -> Result<Self, ConfigError> {
        transfer.check()?;
        let prefills = prefill.len();
        for (field, count) in [("prefill", prefills), ("decode", decode.len())] {
            if count == 0 {
                let allowed = "at least one replica".into();
                return Err(ConfigError { field, value: 0, allowed });
            }
        }
        let mut replicas = Vec::with_capacity(prefills + decode.len());
        for (config, time) in prefill {
            replicas.push(Replica::new(config, time)?);
        }
        for (config, time) in decode {
            let mut replica = Replica::with_policy(config, time, 1, || Box::new(Fcfs))?;
            replica.set_transfer(transfer);
            replicas.push(replica);
        }
        Ok(Self {
            replicas,
            prefills,
            ways: BTreeMap::new(),
            owners: BTreeMap::new(),
            releases: BinaryHeap::new(),
            next: 0,
            told: Told::default(),
        })
    }

    /// Gives a job to the least busy replica of its kind.
    fn hand(
        &mut self,
        now: u64,
        job: &Job<'_>,
        handoff: Handoff,
    ) -> Result<(usize, JobId), TooLong> {
        let prefills = self.prefills;
        let kind = |at: usize| (handoff == Handoff::Give) == (at < prefills);
        let busy = |replica: &Replica<T>| {
            let load = replica.load();
            load.waiting * 4 + load.running
        };
        let each = self.replicas.iter().enumerate().filter(|&(at, _)| kind(at));
        let at = each.min_by_key(|(_, replica)| busy(replica)).map_or(0, |(at, _)| at);
        let Some(replica) = self.replicas.get_mut(at) else { return Ok((at, 0)) };
        Ok((at, replica.hand(now, job, handoff)?))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), TooLong> {
        let limit = |replicas: &[Replica<T>]| {
            replicas.iter().map(Replica::max_model_len).min().unwrap_or(0)
        };
        let (prefill, decode) = self.replicas.split_at(self.prefills.min(self.replicas.len()));
        let (prompt, output) = (job.prompt_tokens.max(1), job.output_tokens.max(1));
        for (tokens, max_model_len) in [(output, limit(decode)), (1, limit(prefill))] {
            if prompt.checked_add(tokens).is_none_or(|sum| sum > max_model_len) {
                return Err(TooLong {
                    prompt_tokens: job.prompt_tokens,
                    output_tokens: tokens,
                    max_model_len,
                });
            }
        }
        Ok(())
    }

    /// Passes on what the replicas told, in order of time.
    fn pass_on(&mut self, now: u64, sink: &mut dyn Sink) {
        let mut told = std::mem::take(&mut self.told);
        told.events.sort_by_key(|(_, event)| event.at);
        for (at, event) in told.events.drain(..) {
            let Some(&job) = self.owners.get(&(at, event.job)) else { continue };
            let gives = at < self.prefills;
            match event.what {
                // The token that prefill yields is thrown away.
                What::Token { .. } if gives => {}
                What::Fetching { until } => {
                    if let Some(way) = self.ways.get(&job) {
                        self.releases.push(Reverse((until, way.prefill.0, way.prefill.1)));
                    }
                    sink.event(Event { job, ..event });
                }
                _ => sink.event(Event { job, ..event }),
            }
        }
        for (at, finished) in told.finished.drain(..) {
            let key = (at, finished.job);
            let Some(&job) = self.owners.get(&key) else { continue };
            if at < self.prefills {
                self.prefilled(now, job, &finished);
            } else if let Some(way) = self.ways.remove(&job) {
                self.owners.remove(&key);
                self.owners.remove(&way.prefill);
                sink.finished(&Finished {
                    job,
                    tag: way.tag,
                    arrival: way.arrival,
                    scheduled: way.scheduled,
                    cached_tokens: way.cached,
                    preemptions: way.preemptions + finished.preemptions,
                    ..finished
                });
            }
        }
        let load = self.load();
        for step in told.steps.drain(..) {
            sink.step(&Ended { load, ..step });
        }
        self.told = told;
    }

    /// A prompt has been computed: on to a decode replica.
    fn prefilled(&mut self, now: u64, job: JobId, finished: &Finished) {
        let Some(mut way) = self.ways.remove(&job) else { return };
        way.scheduled = finished.scheduled;
        way.cached = finished.cached_tokens;
        way.preemptions = finished.preemptions;
        let part = Job {
            prompt_tokens: way.prompt_tokens,
            output_tokens: way.output_tokens,
            prefix: &way.names,
            names_answer: way.names_answer,
            priority: way.priority,
            tag: way.tag,
        };
        // Its length was checked when it came.
        if let Ok(decode) = self.hand(now, &part, Handoff::Fetch) {
            self.owners.insert(decode, job);
            way.decode = Some(decode);
            self.ways.insert(job, way);
        }
    }
}

impl<T: StepTime> Engine for Disaggregated<T> {
    fn submit(&mut self, now: u64, job: &Job<'_>) -> Result<JobId, TooLong> {
        self.check(job)?;
        let prefill = self.hand(now, &Job { output_tokens: 1, ..*job }, Handoff::Give)?;
        let id = self.next;
        self.next += 1;
        self.owners.insert(prefill, id);
        self.ways.insert(
            id,
            Way {
                names: job.prefix.to_vec(),
                names_answer: job.names_answer,
                prompt_tokens: job.prompt_tokens.max(1),
                output_tokens: job.output_tokens.max(1),
                priority: job.priority,
                tag: job.tag,
                arrival: now,
                scheduled: now,
                cached: 0,
                preemptions: 0,
                prefill,
                decode: None,
            },
        );
        Ok(id)
    }

    fn abort(&mut self, now: u64, job: JobId) -> bool {
        let Some(way) = self.ways.remove(&job) else { return false };
        for (at, part) in [Some(way.prefill), way.decode].into_iter().flatten() {
            self.owners.remove(&(at, part));
            if let Some(replica) = self.replicas.get_mut(at) {
                replica.abort(now, part);
            }
        }
        true
    }

    fn next_event(&self) -> Option<u64> {
        let release = self.releases.peek().map(|Reverse((at, ..))| *at);
        self.replicas.iter().filter_map(Replica::next_event).chain(release).min()
    }

    fn advance(&mut self, now: u64, sink: &mut dyn Sink) {
        while let Some(next) = self.next_event()
            && next <= now
        {
            for (at, replica) in self.replicas.iter_mut().enumerate() {
                self.told.at = at;
                replica.advance(next, &mut self.told);
            }
            self.pass_on(next, sink);
            while let Some(&Reverse((at, replica, job))) = self.releases.peek()
                && at <= next
            {
                self.releases.pop();
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.abort(next, job);
                }
            }
        }
    }

    fn load(&self) -> Load {
        self.replicas.iter().map(Replica::load).fold(Load::default(), Load::plus)
    }

    fn counts(&self) -> Counts {
        self.replicas.iter().map(Replica::counts).fold(Counts::default(), Counts::plus)
    }
}
