//! What a step holds: vLLM's v1 scheduler.
//!
//! One budget of tokens a step. First the running sequences in the order in
//! which they entered: one token each, or the next chunk of a prompt. One whose
//! blocks do not fit makes others give theirs up, the policy says whose. Then, if
//! none did, the waiting ones in the policy's order, while seats, budget and
//! blocks last; the first that does not fit holds up those behind it.
//!
//! Source: vLLM's `v1/core/sched/scheduler.py` and `v1/core/kv_cache_manager.py`.

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
            let full = sequence.prompt / self.config.block_size;
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

    /// Plans the running sequences' part of a step, without a visit to those
    /// that decode, if all of them are in it and all blocks fit. Gives what is
    /// left of the budget.
    fn plan_all(&mut self, budget: u32) -> Option<u32> {
        let mut left = budget.checked_sub(self.decoders.count())?;
        let mut blocks = self.decoders.need();
        let mut cut = false;
        for &place in &self.prefilling {
            let sequence = self.sequences.at(place);
            let wanted = self.cap(sequence.known() - sequence.computed);
            let new = wanted.min(left);
            cut |= new < wanted;
            left -= new;
            if new > 0 {
                let all = (sequence.computed + new).div_ceil(self.config.block_size);
                blocks += all.saturating_sub(sequence.blocks);
                self.planned.push((place, new));
            }
        }
        if blocks > self.kv.free() || (cut && !self.prefills_come_last()) {
            self.planned.clear();
            return None;
        }
        Some(left)
    }

    /// No sequence that decodes entered after one that prefills: what the budget
    /// cuts is prompts.
    fn prefills_come_last(&self) -> bool {
        let tail = self.running.iter().rev();
        let tail = tail.take_while(|&&(_, place)| self.sequences.at(place).stage != Stage::Decode);
        let prefills = tail.filter(|&&(_, place)| self.sequences.at(place).stage == Stage::Prefill);
        prefills.count() == self.prefilling.len()
    }

    /// A prompt's tokens in one step, at most.
    fn cap(&self, tokens: u32) -> u32 {
        match self.config.long_prefill_token_threshold {
            0 => tokens,
            threshold => tokens.min(threshold),
        }
    }

    /// Plans the running sequences one by one; makes room where blocks do not
    /// fit. Gives what is left of the budget, and whether room was made.
    fn walk(&mut self, now: u64, mut budget: u32, sink: &mut dyn Sink) -> (u32, bool) {
        let (mut at, mut room_made) = (0, false);
        'sequences: while budget > 0
            && let Some(&(_, place)) = self.running.get(at)
        {
            let sequence = self.sequences.at(place);
            let (new, need) = match sequence.stage {
                Stage::Decode => {
                    let computed = self.decoders.computed(sequence.base);
                    (1, u32::from(computed.is_multiple_of(self.config.block_size)))
                }
                Stage::Prefill => {
                    let new = self.cap(sequence.known() - sequence.computed).min(budget);
                    let all = (sequence.computed + new).div_ceil(self.config.block_size);
                    (new, all.saturating_sub(sequence.blocks))
                }
                // All its tokens are on their way.
                _ => (0, 0),
            };
            if new == 0 {
                at += 1;
                continue;
            }
            while need > self.kv.free() {
                let victim = {
                    let mut tickets = self.running.iter().map(|&(_, place)| self.ticket(place));
                    self.policy.victim(&mut tickets).min(self.running.len() - 1)
                };
                let Some(&(_, gives)) = self.running.get(victim) else { break };
                if gives == place && self.reclaim(None) {
                    continue;
                }
                let planned = victim < at;
                if planned {
                    // It was in this step: no more.
                    at -= 1;
                    budget += self.unplan(gives);
                }
                room_made = true;
                self.make_room(now, gives, planned, sink);
                if gives == place {
                    break 'sequences;
                }
            }
            if self.sequences.at(place).stage == Stage::Decode {
                self.kv.allocate(need);
            } else {
                self.extend(place, new);
                self.planned.push((place, new));
            }
            budget -= new;
            at += 1;
        }
        // What was not reached stays as it is while the others go on.
        for at in at..self.running.len() {
            let Some(&(_, place)) = self.running.get(at) else { break };
            if self.sequences.at(place).stage == Stage::Decode {
                self.leave_decoding(place, false);
                self.parked.push(place);
            }
        }
        (budget, room_made)
    }

    /// Takes a sequence out of the step's plan; gives its tokens there.
    fn unplan(&mut self, place: u32) -> u32 {
        match self.planned.iter().position(|&(planned, _)| planned == place) {
            Some(at) => self.planned.remove(at).1,
            None => u32::from(self.sequences.at(place).stage == Stage::Decode),
        }
    }

    /// Allocates blocks for a sequence's next `new` tokens and lets full ones be
    /// found at once, as vLLM does: before they are computed.
    fn extend(&mut self, place: u32, new: u32) {
        let size = self.config.block_size;
        let sequence = self.sequences.at_mut(place);
        let computed = sequence.computed + new;
        let blocks = computed.div_ceil(size).max(sequence.blocks);
        self.kv.allocate(blocks - sequence.blocks);
        sequence.blocks = blocks;
        if self.config.enable_prefix_caching {
            let written = computed / size;
            let named = written.min(sequence.named);
            if sequence.written < named {
                self.kv.write(&sequence.names, sequence.written, named, &mut sequence.holdings);
                self.stuck = None;
            }
            sequence.written = written;
        }
    }

    /// Lets waiting sequences enter.
    fn admit(&mut self, now: u64, mut left: u32, step: &mut Composed, sink: &mut dyn Sink) {
        let size = self.config.block_size;
        while left > 0 && self.running.len() < self.config.max_num_seqs as usize {
            let Some((&rank, &place)) = self.waiting.first_key_value() else { break };
            let sequence = self.sequences.at_mut(place);
            if self.stuck == Some(sequence.job) {
                break;
            }
            let known = sequence.known();
            let own = (sequence.own != NONE).then_some((sequence.own, sequence.job));
            // Blocks that were fetched for it.
            let held = sequence.blocks;
            // The last token is always computed: it yields the next one.
            let most = if self.config.enable_prefix_caching { (known - 1) / size } else { 0 };
            let most = if held > 0 { 0 } else { most };
            self.kv.look_up(&sequence.names, sequence.named, own, most, &mut self.found);
            let cached = self.found.blocks();
            let computed = if held > 0 { sequence.computed } else { cached * size };
            let fetch = sequence.handoff == Handoff::Fetch && self.transfer.is_some();
            let mut new = known - computed;
            if !fetch {
                let threshold = self.config.long_prefill_token_threshold;
                if threshold > 0 {
                    new = new.min(threshold);
                }
                let whole = !self.config.enable_chunked_prefill;
                if whole && new > left && new <= self.config.max_num_batched_tokens {
                    break;
                }
                new = new.min(left);
            }
            let (free, idle) = (self.kv.free(), self.found.idle);
            let fits =
                |tokens: u32| tokens.div_ceil(size).saturating_sub(held + cached) + idle <= free;
            if !fits(computed + new) || (self.config.scheduler_reserve_full_isl && !fits(known)) {
                let job = sequence.job;
                if self.running.is_empty() && self.reclaim(Some(place)) {
                    continue;
                }
                self.stuck = Some(job);
                break;
            }
            if held == 0 {
                self.kv.take(&self.found, own, &mut sequence.holdings);
                sequence.own = NONE;
                sequence.computed = computed;
                (sequence.blocks, sequence.written) = (cached, cached);
            }
            self.waiting.remove(&rank);
            if fetch {
                self.fetch(now, place, sink);
                continue;
            }
            sequence.stage = Stage::Prefill;
            sequence.seat = self.seats;
            if sequence.scheduled.is_none() {
                sequence.scheduled = Some(now);
                sequence.cached = computed;
            }
            if self.config.enable_prefix_caching {
                self.counts.prefix_queries += u64::from(known);
                self.counts.prefix_hits += u64::from(computed);
            }
            let what = What::Scheduled { cached: computed };
            sink.event(Event { at: now, job: sequence.job, what });
            self.running.push((self.seats, place));
            self.seats += 1;
            self.prefilling.push(place);
            self.extend(place, new);
            self.planned.push((place, new));
            step.admitted += 1;
            left -= new;
        }
    }

    /// Allocates blocks for a whole prompt and has those that are not cached
    /// fetched, one job after the other. They can be found once they are there.
    fn fetch(&mut self, now: u64, place: u32, sink: &mut dyn Sink) {
        let sequence = self.sequences.at_mut(place);
        let blocks = sequence.known().div_ceil(self.config.block_size);
        self.kv.allocate(blocks - sequence.blocks);
        sequence.blocks = blocks;
        let tokens = sequence.known() - sequence.computed;
        let time = self.transfer.map_or(0, |transfer| transfer.time(tokens));
        self.fetched = self.fetched.max(now).saturating_add(time);
        sequence.stage = Stage::Fetching;
        sequence.handoff = Handoff::None;
        self.fetching.push((self.fetched, place));
        let what = What::Fetching { until: self.fetched };
        sink.event(Event { at: now, job: sequence.job, what });
    }

    /// What has been fetched by now goes back to its place in the queue. Its last
    /// token is left to be computed: it yields the first one.
    fn end_fetches(&mut self, now: u64) {
        for at in (0..self.fetching.len()).rev() {
            let Some(&(ready, place)) = self.fetching.get(at) else { continue };
            if ready > now {
                continue;
            }
            self.fetching.remove(at);
            let sequence = self.sequences.at_mut(place);
            sequence.stage = Stage::Waiting;
            sequence.computed = sequence.known() - 1;
            if self.config.enable_prefix_caching {
                let written = sequence.known() / self.config.block_size;
                let named = written.min(sequence.named);
                self.kv.write(&sequence.names, sequence.written, named, &mut sequence.holdings);
                sequence.written = written;
            }
            self.waiting.insert(sequence.rank, place);
            self.stuck = None;
        }
    }

    /// Frees the blocks that were fetched for the last in the queue but `spared`;
    /// its prompt will be computed here. Says whether there was one. vLLM 0.19
    /// has no such thing: when all that is free has been fetched for others, it
    /// stands still.
    fn reclaim(&mut self, spared: Option<u32>) -> bool {
        if self.transfer.is_none() {
            return false;
        }
        let holds = |place: u32| Some(place) != spared && self.sequences.at(place).blocks > 0;
        let last = self.waiting.values().rev().copied().find(|&place| holds(place));
        if let Some(place) = last {
            self.free_blocks(place, false);
        }
        last.is_some()
    }

    /// Ends the composition: counts what is in the step and moves every sequence
    /// to where the step leaves it.
    fn seal(&mut self, step: &mut Composed) {
        if self.decoders.least_is_lost() {
            let bases = self.running.iter().filter_map(|&(_, place)| {
                let sequence = self.sequences.at(place);
                let decodes = sequence.stage == Stage::Decode && !self.parked.contains(&place);
                decodes.then_some(sequence.base)
            });
            let least = bases.min();
            self.decoders.set_least(least);
        }
        step.decode = self.decoders.count();
        step.decode_context = self.decoders.context();
        step.decode_context_max = self.decoders.longest();
        step.sampled = step.decode;
        if step.decode > 0 {
            self.decoders.step();
            if self.config.every_token {
                self.tell_decoding(step);
            }
        }
        while let Some(place) = {
            let sequences = &self.sequences;
            self.decoders.pop_ended(|place, job| {
                let sequence = sequences.at(place);
                let decodes = sequence.job == job && sequence.stage == Stage::Decode;
                decodes.then(|| sequence.base + u64::from(sequence.total()))
            })
        } {
            self.leave_decoding(place, false);
            let sequence = self.sequences.at_mut(place);
            sequence.stage = Stage::Ending;
            sequence.produced = sequence.output;
            if !self.config.every_token {
                let Sequence { seat, job, output: nth, .. } = *sequence;
                step.tokens.push(Out { seat, place, job, nth, last: true });
            }
        }
        for at in 0..self.planned.len() {
            let Some(&(place, new)) = self.planned.get(at) else { break };
            let sequence = self.sequences.at_mut(place);
            step.chunks.push(Chunk { new, context: sequence.computed });
            self.counts.prefill_tokens += u64::from(new);
            sequence.computed += new;
            if sequence.computed < sequence.known() {
                continue;
            }
            step.sampled += 1;
            let nth = sequence.produced + 1;
            let last = nth == sequence.output;
            let Sequence { seat, job, .. } = *sequence;
            if self.config.every_token || nth == 1 || last {
                step.tokens.push(Out { seat, place, job, nth, last });
            }
            if last {
                sequence.stage = Stage::Ending;
                sequence.produced = nth;
            } else {
                sequence.stage = Stage::Decode;
                let (computed, total) = (sequence.computed, sequence.total());
                sequence.entered = computed;
                sequence.base = self.decoders.add(computed, total, place, job);
            }
            self.prefilling.retain(|&other| other != place);
        }
        for at in 0..self.parked.len() {
            let Some(&place) = self.parked.get(at) else { break };
            let sequence = self.sequences.at_mut(place);
            let (computed, total) = (sequence.computed, sequence.total());
            sequence.entered = computed;
            sequence.base = self.decoders.add(computed, total, place, sequence.job);
            sequence.stage = Stage::Decode;
        }
        // As vLLM goes through its step: in the order of entry.
        step.tokens.sort_unstable_by_key(|out| out.seat);
    }

    /// Adds the tokens of all that decode, the step counted.
    fn tell_decoding(&self, step: &mut Composed) {
        for &(seat, place) in &self.running {
            let sequence = self.sequences.at(place);
            if sequence.stage == Stage::Decode && !self.parked.contains(&place) {
                let nth = sequence.nth(self.decoders.computed(sequence.base));
                let (job, last) = (sequence.job, nth == sequence.output);
                step.tokens.push(Out { seat, place, job, nth, last });
            }
        }
    }

    /// Takes a sequence out of the count of those that decode and writes down
    /// what the count knew of it. `planned`: it already has a block for the step
    /// that is being composed.
    fn leave_decoding(&mut self, place: u32, planned: bool) {
        let size = self.config.block_size;
        let sequence = self.sequences.at_mut(place);
        let computed = self.decoders.computed(sequence.base);
        self.decoders.remove(sequence.base);
        let slots = computed + u32::from(planned);
        sequence.blocks = slots.div_ceil(size);
        if self.config.enable_prefix_caching {
            // With a step under way its token is not yet known, and what ends
            // with it not yet findable.
            let decoded = computed > sequence.entered;
            let unknown = u32::from(self.config.async_scheduling && decoded);
            sequence.written = (slots - unknown) / size;
        }
        sequence.computed = computed;
        sequence.produced = sequence.nth(computed);
        sequence.stage = Stage::Prefill;
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

    /// Frees a sequence's blocks. `keep`: it may look them up again.
    fn free_blocks(&mut self, place: u32, keep: bool) {
        let sequence = self.sequences.at_mut(place);
        let found = sequence.written.min(sequence.named);
        if keep && self.config.enable_prefix_caching {
            self.kv.free_nameless(sequence.blocks - sequence.written);
            sequence.own = self.kv.keep_own(sequence.job, sequence.written - found);
        } else {
            self.kv.free_nameless(sequence.blocks - found);
        }
        self.kv.free_named(&mut sequence.holdings);
        (sequence.computed, sequence.blocks, sequence.written) = (0, 0, 0);
        self.stuck = None;
    }

    /// A running sequence makes room for another and waits again.
    fn make_room(&mut self, now: u64, place: u32, planned: bool, sink: &mut dyn Sink) {
        self.unseat(place, planned);
        self.free_blocks(place, true);
        self.sequences.at_mut(place).stage = Stage::Waiting;
        let rank = self.policy.preempted(&self.ticket(place), self.room_made);
        self.room_made += 1;
        self.counts.preemptions += 1;
        self.waiting.insert(rank, place);
        let sequence = self.sequences.at_mut(place);
        sequence.rank = rank;
        sequence.preemptions += 1;
        sink.event(Event { at: now, job: sequence.job, what: What::Preempted });
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
