//! What a step holds: vLLM's v1 scheduler.
//!
//! One budget of tokens a step. First the running sequences in the order in
//! which they entered: one token each, or the next chunk of a prompt. One whose
//! blocks do not fit makes others give theirs up, the policy says whose. Then, if
//! none did, the waiting ones in the policy's order, while seats, budget and
//! blocks last; the first that does not fit holds up those behind it.
//!
//! Source: vLLM's `v1/core/sched/scheduler.py` and `v1/core/kv_cache_manager.py`.

mod admit;
mod plan;
mod seal;

use std::collections::BTreeMap;

use super::config::Config;
use super::decoders::Decoders;
use super::kv::{Found, Kv};
use super::policy::{Policy, Rank, Ticket};
use super::sequence::{Handoff, Sequence, Stage};
use super::step::{Chunk, Work};
use super::table::{NONE, Table};
use super::transfer::Transfer;
use super::{Counts, Event, Finished, Job, JobId, Load, Sink, What};

/// Bits of a job's number that name its place.
const PLACE_BITS: u32 = 28;

/// A token that a step brings.
#[derive(Clone, Copy, Debug)]
struct Out {
    seat: u64,
    place: u32,
    job: JobId,
    nth: u32,
    last: bool,
}

/// A step as composed; reused from one to the next.
#[derive(Debug, Default)]
pub(super) struct Composed {
    chunks: Vec<Chunk>,
    tokens: Vec<Out>,
    decode: u32,
    decode_context: u64,
    decode_context_max: u32,
    sampled: u32,
    admitted: u32,
    /// A sequence made room for others.
    pub(super) room_made: bool,
}

impl Composed {
    pub(super) fn work(&self) -> Work<'_> {
        Work {
            prefill: &self.chunks,
            decode: self.decode,
            decode_context: self.decode_context,
            decode_context_max: self.decode_context_max,
            sampled: self.sampled,
            admitted: self.admitted,
        }
    }

    pub(super) fn prefill_tokens(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.new).sum()
    }

    fn clear(&mut self) {
        self.chunks.clear();
        self.tokens.clear();
        (self.decode, self.decode_context, self.decode_context_max) = (0, 0, 0);
        (self.sampled, self.admitted, self.room_made) = (0, 0, false);
    }
}

/// The scheduler of one replica or rank.
#[derive(Debug)]
pub(super) struct Scheduler {
    config: Config,
    policy: Box<dyn Policy>,
    kv: Kv,
    sequences: Table<Sequence>,
    waiting: BTreeMap<Rank, u32>,
    /// In the order of entry, by seat.
    running: Vec<(u64, u32)>,
    /// The running ones that prefill, in the same order.
    prefilling: Vec<u32>,
    decoders: Decoders,
    /// What fetches blocks from elsewhere, when the last fetch that was asked
    /// for will be done, and what is being fetched until when.
    transfer: Option<Transfer>,
    fetched: u64,
    fetching: Vec<(u64, u32)>,
    /// The waiting job that did not fit; nothing has changed for it since.
    stuck: Option<JobId>,
    serial: u64,
    seats: u64,
    room_made: u64,
    counts: Counts,
    /// This rank's number, of how many: they make up jobs' names.
    rank: (u64, u64),
    // Scratch.
    found: Found,
    planned: Vec<(u32, u32)>,
    parked: Vec<u32>,
}

impl Scheduler {
    /// The configuration has been checked.
    pub(super) fn new(config: Config, policy: Box<dyn Policy>, rank: u64, ranks: u64) -> Self {
        Self {
            kv: Kv::new(config.num_gpu_blocks - 1, config.prefix_id_tokens / config.block_size),
            decoders: Decoders::new(config.block_size),
            config,
            policy,
            sequences: Table::default(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            prefilling: Vec::new(),
            transfer: None,
            fetched: 0,
            fetching: Vec::new(),
            stuck: None,
            serial: 0,
            seats: 0,
            room_made: 0,
            counts: Counts::default(),
            rank: (rank, ranks),
            found: Found::default(),
            planned: Vec::new(),
            parked: Vec::new(),
        }
    }

    /// Lets jobs fetch their prompts' blocks.
    pub(super) fn set_transfer(&mut self, transfer: Transfer) {
        self.transfer = Some(transfer);
    }

    pub(super) fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len() + self.fetching.len(),
            kv_used: self.kv.used().into(),
            kv_capacity: self.kv.capacity().into(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.fetching.is_empty()
    }

    /// When the next blocks will have been fetched.
    pub(super) fn next_fetched(&self) -> Option<u64> {
        self.fetching.iter().map(|&(ready, _)| ready).min()
    }

    pub(super) fn submit(&mut self, now: u64, job: &Job<'_>, handoff: Handoff) -> JobId {
        let place = self.sequences.reuse();
        let id = (self.serial << PLACE_BITS | u64::from(place)) * self.rank.1 + self.rank.0;
        let sequence = self.sequences.at_mut(place);
        // The vectors keep their memory.
        let mut names = std::mem::take(&mut sequence.names);
        let holdings = std::mem::take(&mut sequence.holdings);
        names.clear();
        *sequence = Sequence {
            job: id,
            tag: job.tag,
            serial: self.serial,
            stage: Stage::Waiting,
            handoff,
            prompt: job.prompt_tokens.max(1),
            output: job.output_tokens.max(1),
            priority: job.priority,
            arrival: now,
            names,
            holdings,
            ..Sequence::default()
        };
        if self.config.enable_prefix_caching && !job.prefix.is_empty() {
            sequence.names.extend_from_slice(job.prefix);
            let per_name = self.config.prefix_id_tokens / self.config.block_size;
            let named = job.prefix.len() as u64 * u64::from(per_name);
            let known = if job.names_answer { sequence.total() } else { sequence.prompt };
            let full = known / self.config.block_size;
            sequence.named = named.min(full.into()) as u32;
        }
        self.serial += 1;
        let rank = self.policy.arrived(&self.ticket(place));
        self.sequences.at_mut(place).rank = rank;
        self.waiting.insert(rank, place);
        id
    }

    pub(super) fn abort(&mut self, job: JobId) -> bool {
        let place = (job / self.rank.1) & ((1 << PLACE_BITS) - 1);
        let place = place as u32;
        if self.sequences.get(place).is_none_or(|s| s.job != job || s.stage == Stage::Gone) {
            return false;
        }
        self.end(place);
        true
    }

    /// Tokens of a job that have come out while `composed` steps are still under
    /// way; 0 for a job that is gone.
    pub(super) fn told(&self, job: JobId, composed: usize) -> u32 {
        let place = ((job / self.rank.1) & ((1 << PLACE_BITS) - 1)) as u32;
        let Some(sequence) = self.sequences.get(place).filter(|s| s.job == job) else { return 0 };
        if sequence.stage == Stage::Gone || sequence.first_token == 0 {
            return 0;
        }
        // Each of those steps brings one more token, none of them the first.
        self.ticket(place).produced.saturating_sub(composed as u32).max(1)
    }

    fn ticket(&self, place: u32) -> Ticket {
        let sequence = self.sequences.at(place);
        Ticket {
            priority: sequence.priority,
            arrival: sequence.arrival,
            serial: sequence.serial,
            prompt_tokens: sequence.prompt,
            produced: match sequence.stage {
                Stage::Decode => sequence.nth(self.decoders.computed(sequence.base)),
                _ => sequence.produced,
            },
        }
    }

    /// Composes the next step. Says whether it holds anything.
    pub(super) fn compose(&mut self, now: u64, step: &mut Composed, sink: &mut dyn Sink) -> bool {
        step.clear();
        self.planned.clear();
        self.parked.clear();
        if !self.fetching.is_empty() {
            self.end_fetches(now);
        }
        let budget = self.config.max_num_batched_tokens;
        let (left, room_made) = match self.plan_all(budget) {
            Some(left) => {
                let need = self.decoders.need();
                self.kv.allocate(need);
                for at in 0..self.planned.len() {
                    let Some(&(place, new)) = self.planned.get(at) else { break };
                    self.extend(place, new);
                }
                (left, false)
            }
            None => self.walk(now, budget, sink),
        };
        step.room_made = room_made;
        if !room_made {
            self.admit(now, left, step, sink);
        }
        self.seal(step);
        step.decode > 0 || !step.chunks.is_empty()
    }

    /// Takes a sequence out of the batch; it keeps its blocks.
    fn unseat(&mut self, place: u32, planned: bool) {
        if self.sequences.at(place).stage == Stage::Decode {
            self.leave_decoding(place, planned);
        }
        let seat = self.sequences.at(place).seat;
        if let Ok(at) = self.running.binary_search_by_key(&seat, |&(seat, _)| seat) {
            self.running.remove(at);
        }
        self.prefilling.retain(|&other| other != place);
        // A seat is free.
        self.stuck = None;
    }

    /// Lets a sequence's blocks up to `written` be found, by others where they have
    /// names.
    fn write(&mut self, place: u32, written: u32) {
        let sequence = self.sequences.at_mut(place);
        sequence.written = written;
        let named = written.min(sequence.named);
        if sequence.findable < named {
            self.kv.write(&sequence.names, sequence.findable, named, &mut sequence.holdings);
            sequence.findable = named;
            self.stuck = None;
        }
    }

    /// Frees a sequence's blocks. `keep`: it may look them up again.
    fn free_blocks(&mut self, place: u32, keep: bool) {
        // What it filled while nobody looked.
        self.write(place, self.sequences.at(place).written);
        let sequence = self.sequences.at_mut(place);
        let found = sequence.findable;
        if keep && self.config.enable_prefix_caching {
            self.kv.free_nameless(sequence.blocks - sequence.written);
            sequence.own = self.kv.keep_own(sequence.job, sequence.written - found);
        } else {
            self.kv.free_nameless(sequence.blocks - found);
        }
        self.kv.free_named(&mut sequence.holdings);
        (sequence.computed, sequence.blocks) = (0, 0);
        (sequence.written, sequence.findable) = (0, 0);
        self.stuck = None;
    }

    /// Takes a sequence out, wherever it is.
    fn end(&mut self, place: u32) {
        let sequence = self.sequences.at(place);
        match sequence.stage {
            Stage::Waiting => {
                self.waiting.remove(&sequence.rank);
                if sequence.own != NONE {
                    self.kv.forget_own(sequence.own, sequence.job);
                }
            }
            Stage::Fetching => self.fetching.retain(|&(_, other)| other != place),
            Stage::Prefill | Stage::Decode | Stage::Ending => self.unseat(place, false),
            Stage::Gone | Stage::Kept => {}
        }
        self.free_blocks(place, false);
        let sequence = self.sequences.at_mut(place);
        sequence.stage = Stage::Gone;
        sequence.job = JobId::MAX;
        self.sequences.release(place);
    }

    /// A step has ended: its tokens come out, and what is done leaves.
    pub(super) fn finish(&mut self, at: u64, step: &Composed, sink: &mut dyn Sink) {
        self.counts.steps += 1;
        self.counts.output_tokens += u64::from(step.sampled);
        for &Out { place, job, nth, last, .. } in &step.tokens {
            let sequence = self.sequences.at_mut(place);
            // Aborted while the step ran.
            if sequence.job != job {
                continue;
            }
            sink.event(Event { at, job, what: What::Token { nth, last } });
            if nth == 1 {
                sequence.first_token = at;
            }
            if last {
                let finished = Finished {
                    job,
                    tag: sequence.tag,
                    arrival: sequence.arrival,
                    scheduled: sequence.scheduled.unwrap_or(at),
                    first_token: sequence.first_token,
                    at,
                    prompt_tokens: sequence.prompt,
                    output_tokens: sequence.output,
                    cached_tokens: sequence.cached,
                    preemptions: sequence.preemptions,
                };
                if sequence.stage == Stage::Ending && self.config.enable_prefix_caching {
                    // All that was computed is known now, also with a step under
                    // way; the last token was not.
                    sequence.written = sequence.computed / self.config.block_size;
                }
                if sequence.handoff == Handoff::Give && sequence.stage == Stage::Ending {
                    self.unseat(place, false);
                    self.sequences.at_mut(place).stage = Stage::Kept;
                } else {
                    self.end(place);
                }
                sink.finished(&finished);
            }
        }
    }
}
