//! The scheduler again, as plainly as can be: every block has a number, every
//! sequence is visited in every step, every free block is moved by itself.
//! Written from vLLM's behaviour, not from the engine's code.

use std::collections::{BTreeMap, VecDeque};

use tidegate_sim::engine::{
    Chunk, Config, Counts, Ended, Event, Finished, Job, JobId, Load, Sink, StepTime, What, Work,
};

type Hash = (u64, u64, u32);

/// Of a block that only its job may find.
fn own(id: JobId, block: usize) -> Hash {
    (1, id, block as u32)
}

#[derive(Clone, Debug, Default)]
struct Block {
    hash: Option<Hash>,
    users: u32,
}

#[derive(Clone, Debug)]
struct Sequence {
    id: JobId,
    serial: u64,
    tag: u64,
    prompt: u32,
    output: u32,
    priority: i32,
    arrival: u64,
    names: Vec<u64>,
    names_answer: bool,
    /// vLLM's num_tokens, num_computed_tokens and num_output_placeholders.
    tokens: u32,
    computed: u32,
    placeholders: u32,
    /// A token has come out since it last entered the batch.
    decoding: bool,
    blocks: Vec<usize>,
    cached_blocks: usize,
    scheduled: Option<u64>,
    first_token: u64,
    cached: u32,
    preemptions: u32,
}

#[derive(Clone, Debug, Default)]
struct Step {
    /// Job, new tokens, context before, whether a token comes out.
    parts: Vec<(JobId, u32, u32, bool)>,
    decode: u32,
    prefill: u32,
    duration: u64,
}

/// The engine's double.
pub struct Naive<T> {
    config: Config,
    by_priority: bool,
    time: T,
    blocks: Vec<Block>,
    free: VecDeque<usize>,
    cached: BTreeMap<Hash, Vec<usize>>,
    sequences: BTreeMap<JobId, Sequence>,
    waiting: Vec<JobId>,
    running: Vec<JobId>,
    steps: VecDeque<Step>,
    start: u64,
    due: Option<u64>,
    serial: u64,
    counts: Counts,
}

impl<T: StepTime> Naive<T> {
    pub fn new(config: Config, by_priority: bool, time: T) -> Self {
        let blocks = config.num_gpu_blocks as usize - 1;
        Self {
            by_priority,
            time,
            blocks: vec![Block::default(); blocks],
            free: (0..blocks).collect(),
            cached: BTreeMap::new(),
            sequences: BTreeMap::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            steps: VecDeque::new(),
            start: 0,
            due: None,
            serial: 0,
            counts: Counts::default(),
            config,
        }
    }

    fn sort_waiting(&mut self) {
        if self.by_priority {
            let key = |id: &JobId| {
                let s = &self.sequences[id];
                (s.priority, s.arrival, s.serial)
            };
            self.waiting.sort_by_key(key);
        }
    }

    /// `id`: the name that the engine gave the job.
    pub fn submit(&mut self, now: u64, job: &Job<'_>, id: JobId) {
        let sequence = Sequence {
            id,
            serial: self.serial,
            tag: job.tag,
            prompt: job.prompt_tokens,
            output: job.output_tokens,
            priority: job.priority,
            arrival: now,
            names: if self.config.enable_prefix_caching { job.prefix.to_vec() } else { vec![] },
            names_answer: job.names_answer,
            tokens: job.prompt_tokens,
            computed: 0,
            placeholders: 0,
            decoding: false,
            blocks: Vec::new(),
            cached_blocks: 0,
            scheduled: None,
            first_token: 0,
            cached: 0,
            preemptions: 0,
        };
        self.serial += 1;
        self.sequences.insert(id, sequence);
        self.waiting.push(id);
        self.sort_waiting();
        self.wake(now);
    }

    pub fn abort(&mut self, now: u64, id: JobId) -> bool {
        let there = self.sequences.contains_key(&id);
        if there {
            self.remove(id);
        }
        self.wake(now);
        there
    }

    fn wake(&mut self, now: u64) {
        if self.steps.is_empty() && self.due.is_none() {
            self.due = Some(now);
        }
    }

    fn remove(&mut self, id: JobId) {
        self.free_blocks(id);
        self.running.retain(|&other| other != id);
        self.waiting.retain(|&other| other != id);
        self.sequences.remove(&id);
    }

    fn end(&self) -> Option<u64> {
        self.steps.front().map(|step| self.start + step.duration)
    }

    pub fn next_event(&self) -> Option<u64> {
        self.due.map(|due| due + 1).into_iter().chain(self.end()).min()
    }

    pub fn advance(&mut self, now: u64, sink: &mut dyn Sink) {
        loop {
            if self.due.is_some_and(|due| due < now) {
                self.compose(self.due.unwrap(), sink);
            } else if self.end().is_some_and(|end| end <= now) {
                self.finish(self.end().unwrap(), sink);
            } else {
                return;
            }
        }
    }

    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_used: (self.blocks.len() - self.free.len()) as u64,
            kv_capacity: self.blocks.len() as u64,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn hash(&self, id: JobId, block: usize) -> Hash {
        let sequence = &self.sequences[&id];
        let per_name = (self.config.prefix_id_tokens / self.config.block_size) as usize;
        // Names are for prompts, unless the job says otherwise.
        let in_prompt = sequence.names_answer
            || (block + 1) * self.config.block_size as usize <= sequence.prompt as usize;
        match sequence.names.get(block / per_name) {
            Some(&name) if in_prompt => (0, name, (block % per_name) as u32),
            _ => own(id, block),
        }
    }

    /// What was filled by decoding gets its name.
    fn publish(&mut self, id: JobId) {
        for at in 0..self.sequences[&id].cached_blocks {
            let (block, hash) = (self.sequences[&id].blocks[at], self.hash(id, at));
            if self.blocks[block].hash != Some(hash) {
                self.forget(block);
                self.blocks[block].hash = Some(hash);
                self.cached.entry(hash).or_default().push(block);
            }
        }
    }

    fn forget(&mut self, block: usize) {
        if let Some(hash) = self.blocks[block].hash.take() {
            let same = self.cached.get_mut(&hash).unwrap();
            same.retain(|&other| other != block);
            if same.is_empty() {
                self.cached.remove(&hash);
            }
        }
    }

    fn free_blocks(&mut self, id: JobId) {
        self.publish(id);
        let sequence = self.sequences.get_mut(&id).unwrap();
        let blocks = std::mem::take(&mut sequence.blocks);
        sequence.cached_blocks = 0;
        for &block in blocks.iter().rev() {
            self.blocks[block].users -= 1;
            if self.blocks[block].users == 0 {
                self.free.push_back(block);
            }
        }
    }

    /// `hits`: cached blocks to take along. `computed` includes them.
    fn allocate(&mut self, id: JobId, computed: u32, new: u32, hits: &[usize]) -> bool {
        let need = (computed + new).div_ceil(self.config.block_size) as usize;
        let held = self.sequences[&id].blocks.len() + hits.len();
        let fresh = need.saturating_sub(held);
        let idle = hits.iter().filter(|&&block| self.blocks[block].users == 0).count();
        if fresh + idle > self.free.len() {
            return false;
        }
        for &block in hits {
            if self.blocks[block].users == 0 {
                self.free.retain(|&other| other != block);
            }
            self.blocks[block].users += 1;
        }
        let mut taken: Vec<usize> = hits.to_vec();
        for _ in 0..fresh {
            let block = self.free.pop_front().unwrap();
            self.forget(block);
            self.blocks[block].users = 1;
            taken.push(block);
        }
        let sequence = self.sequences.get_mut(&id).unwrap();
        sequence.blocks.extend(taken);
        sequence.cached_blocks += hits.len();
        let tokens = (computed + new).min(sequence.tokens);
        self.cache(id, tokens);
        true
    }

    fn cache(&mut self, id: JobId, tokens: u32) {
        if !self.config.enable_prefix_caching {
            return;
        }
        let full = (tokens / self.config.block_size) as usize;
        for at in self.sequences[&id].cached_blocks..full {
            // The one thing that is not vLLM's: what decoding fills has its name
            // only once it is freed.
            let decoding = self.sequences[&id].decoding;
            let hash = if decoding { own(id, at) } else { self.hash(id, at) };
            let block = self.sequences[&id].blocks[at];
            self.blocks[block].hash = Some(hash);
            self.cached.entry(hash).or_default().push(block);
        }
        let sequence = self.sequences.get_mut(&id).unwrap();
        sequence.cached_blocks = sequence.cached_blocks.max(full);
    }

    fn look_up(&self, id: JobId) -> Vec<usize> {
        if !self.config.enable_prefix_caching {
            return Vec::new();
        }
        let most = (self.sequences[&id].tokens - 1) / self.config.block_size;
        let blocks = (0..most as usize).map(|at| self.cached.get(&self.hash(id, at)));
        blocks.map_while(|same| Some(same?[0])).collect()
    }

    fn cap(&self, tokens: u32) -> u32 {
        let threshold = self.config.long_prefill_token_threshold;
        if threshold > 0 { tokens.min(threshold) } else { tokens }
    }

    #[allow(clippy::too_many_lines, reason = "as plain as can be: one loop after the other")]
    fn compose(&mut self, now: u64, sink: &mut dyn Sink) {
        self.due = None;
        let mut budget = self.config.max_num_batched_tokens;
        let mut parts: Vec<(JobId, u32)> = Vec::new();
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && budget > 0 {
            let id = self.running[at];
            let s = &self.sequences[&id];
            if s.placeholders > 0 && s.computed + 2 - s.placeholders >= s.prompt + s.output {
                at += 1;
                continue;
            }
            let (computed, wanted) = (s.computed, s.tokens + s.placeholders - s.computed);
            let new = self.cap(wanted).min(budget);
            if new == 0 {
                at += 1;
                continue;
            }
            let mut fits = true;
            while !self.allocate(id, computed, new, &[]) {
                preempted = true;
                let place = if self.by_priority {
                    let key = |id: &JobId| {
                        let s = &self.sequences[id];
                        (s.priority, s.arrival, s.serial)
                    };
                    let most = self.running.iter().map(key).max().unwrap();
                    self.running.iter().position(|id| key(id) == most).unwrap()
                } else {
                    self.running.len() - 1
                };
                let victim = self.running.remove(place);
                if let Some(part) = parts.iter().position(|&(id, _)| id == victim) {
                    budget += parts.remove(part).1;
                }
                if place < at {
                    at -= 1;
                }
                self.free_blocks(victim);
                let s = self.sequences.get_mut(&victim).unwrap();
                s.computed = 0;
                s.decoding = false;
                s.preemptions += 1;
                self.counts.preemptions += 1;
                self.waiting.insert(0, victim);
                self.sort_waiting();
                sink.event(Event { at: now, job: victim, what: What::Preempted });
                if victim == id {
                    fits = false;
                    break;
                }
            }
            if !fits {
                break;
            }
            parts.push((id, new));
            budget -= new;
            at += 1;
        }
        let decoders: Vec<JobId> =
            parts.iter().map(|&(id, _)| id).filter(|id| self.sequences[id].decoding).collect();
        let mut admitted = 0;
        while !preempted && budget > 0 && self.running.len() < self.config.max_num_seqs as usize {
            let Some(&id) = self.waiting.first() else { break };
            let hits = self.look_up(id);
            let computed = hits.len() as u32 * self.config.block_size;
            let tokens = self.sequences[&id].tokens;
            let new = self.cap(tokens - computed);
            let most = self.config.max_num_batched_tokens;
            if !self.config.enable_chunked_prefill && new > budget && new <= most {
                break;
            }
            let new = new.min(budget);
            if self.config.scheduler_reserve_full_isl {
                let need = tokens.div_ceil(self.config.block_size) as usize - hits.len();
                let idle = hits.iter().filter(|&&block| self.blocks[block].users == 0).count();
                if need + idle > self.free.len() {
                    break;
                }
            }
            if !self.allocate(id, computed, new, &hits) {
                break;
            }
            self.waiting.remove(0);
            self.running.push(id);
            let s = self.sequences.get_mut(&id).unwrap();
            s.computed = computed;
            if s.scheduled.is_none() {
                s.scheduled = Some(now);
                s.cached = computed;
            }
            if self.config.enable_prefix_caching && s.preemptions == 0 {
                self.counts.prefix_queries += u64::from(tokens);
                self.counts.prefix_hits += u64::from(computed);
            }
            sink.event(Event { at: now, job: id, what: What::Scheduled { cached: computed } });
            parts.push((id, new));
            admitted += 1;
            budget -= new;
        }
        if parts.is_empty() {
            if preempted && self.steps.is_empty() {
                self.due = Some(now);
            }
            return;
        }
        let (mut step, mut chunks) = (Step::default(), Vec::new());
        let mut work = Work { admitted, ..Work::default() };
        for (id, new) in parts {
            let s = self.sequences.get_mut(&id).unwrap();
            let context = s.computed;
            s.computed += new;
            let sampled = s.computed == s.tokens + s.placeholders;
            if sampled && self.config.async_scheduling {
                s.placeholders += 1;
            }
            s.decoding |= sampled;
            work.sampled += u32::from(sampled);
            if decoders.contains(&id) {
                work.decode += 1;
                work.decode_context += u64::from(context);
                work.decode_context_max = work.decode_context_max.max(context);
            } else {
                chunks.push(Chunk { new, context });
                self.counts.prefill_tokens += u64::from(new);
                step.prefill += new;
            }
            step.parts.push((id, new, context, sampled));
        }
        work.prefill = &chunks;
        step.decode = work.decode;
        step.duration = self.time.step(&work);
        if self.steps.is_empty() {
            self.start = now;
        }
        self.steps.push_back(step);
        if self.steps.len() < if self.config.async_scheduling { 2 } else { 1 } {
            self.due = Some(now);
        }
    }

    fn finish(&mut self, at: u64, sink: &mut dyn Sink) {
        let step = self.steps.pop_front().unwrap();
        self.counts.steps += 1;
        for &(id, _, _, sampled) in &step.parts {
            self.counts.output_tokens += u64::from(sampled);
            if !sampled || !self.sequences.contains_key(&id) {
                continue;
            }
            let running = self.running.contains(&id);
            let s = self.sequences.get_mut(&id).unwrap();
            s.tokens += 1;
            s.placeholders = s.placeholders.saturating_sub(1);
            let nth = s.tokens - s.prompt;
            if nth == 1 {
                s.first_token = at;
            }
            let (last, known) = (nth == s.output, s.computed - s.placeholders.min(s.computed));
            sink.event(Event { at, job: id, what: What::Token { nth, last } });
            if running && self.config.async_scheduling {
                self.cache(id, known);
            }
            if last {
                let s = self.sequences[&id].clone();
                self.remove(id);
                sink.finished(&Finished {
                    job: s.id,
                    tag: s.tag,
                    arrival: s.arrival,
                    scheduled: s.scheduled.unwrap(),
                    first_token: s.first_token,
                    at,
                    prompt_tokens: s.prompt,
                    output_tokens: s.output,
                    cached_tokens: s.cached,
                    preemptions: s.preemptions,
                });
            }
        }
        let (start, load) = (self.start, self.load());
        let Step { prefill: prefill_tokens, decode, .. } = step;
        sink.step(&Ended { start, end: at, prefill_tokens, decode, load });
        self.start = at;
        self.due = Some(at);
    }
}
