//! The running sequences' part of a step.

use super::{Event, Scheduler, Sink, Stage, What};

impl Scheduler {
    /// Plans the running sequences' part of a step, without a visit to those
    /// that decode, if all of them are in it and all blocks fit. Gives what is
    /// left of the budget.
    pub(super) fn plan_all(&mut self, budget: u32) -> Option<u32> {
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
    pub(super) fn walk(&mut self, now: u64, mut budget: u32, sink: &mut dyn Sink) -> (u32, bool) {
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
    pub(super) fn extend(&mut self, place: u32, new: u32) {
        let size = self.config.block_size;
        let sequence = self.sequences.at_mut(place);
        let computed = sequence.computed + new;
        let blocks = computed.div_ceil(size).max(sequence.blocks);
        self.kv.allocate(blocks - sequence.blocks);
        sequence.blocks = blocks;
        if self.config.enable_prefix_caching {
            self.write(place, computed / size);
        }
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

    /// Takes a sequence out of the count of those that decode and writes down
    /// what the count knew of it. `planned`: it already has a block for the step
    /// that is being composed.
    pub(super) fn leave_decoding(&mut self, place: u32, planned: bool) {
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
}
