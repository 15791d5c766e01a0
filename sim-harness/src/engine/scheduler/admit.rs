//! Who enters the batch.

use super::{Composed, Event, Handoff, NONE, Scheduler, Sink, Stage, What};

impl Scheduler {
    /// Lets waiting sequences enter.
    pub(super) fn admit(
        &mut self,
        now: u64,
        mut left: u32,
        step: &mut Composed,
        sink: &mut dyn Sink,
    ) {
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
                sequence.findable = self.found.named;
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
            // What was fetched is no hit.
            if self.config.enable_prefix_caching && sequence.preemptions == 0 && held == 0 {
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
    pub(super) fn end_fetches(&mut self, now: u64) {
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
                self.write(place, written);
            }
            self.waiting.insert(self.sequences.at(place).rank, place);
            self.stuck = None;
        }
    }

    /// Frees the blocks that were fetched for the last in the queue but `spared`;
    /// its prompt will be computed here. Says whether there was one. vLLM 0.19
    /// has no such thing: when all that is free has been fetched for others, it
    /// stands still.
    pub(super) fn reclaim(&mut self, spared: Option<u32>) -> bool {
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
}
