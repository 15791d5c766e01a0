//! The end of a composition: what is in the step, and what it leaves.

use super::{Chunk, Composed, Out, Scheduler, Sequence, Stage};

impl Scheduler {
    /// Ends the composition: counts what is in the step and moves every sequence
    /// to where the step leaves it.
    pub(super) fn seal(&mut self, step: &mut Composed) {
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
}
