//! A simple model of continuous batching.
//!
//! Work goes in steps. A step decodes one token of every running job and spends
//! the rest of its token budget on prompts, in order of arrival, in chunks. Its
//! duration is linear in what it does ([`Timing`]). A job's KV cache is reserved
//! whole when it enters the batch.
//!
//! Left out, for the engine that follows: paged KV with preemption, prefix
//! caching, attention cost that grows with the prompt, graph padding, and
//! scheduling that overlaps with the step before.

use std::collections::VecDeque;
use std::fmt;

use super::{Engine, Event, Job, JobId, Load};

/// The figures of the model. Defaults: Llama-3-8B in bf16 on one H100 (16 GB of
/// weights, 16 GFLOP and 131 KB of KV cache a token; 3.35 TB/s at 80 %, 989
/// TFLOP/s at 50 %, from the datasheet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Every step: reading the weights, launching. Nanoseconds, at least 1.
    pub step_ns: u64,
    /// Each prompt token in a step. Nanoseconds.
    pub prefill_token_ns: u64,
    /// Each decoding job in a step. Nanoseconds.
    pub decode_job_ns: u64,
    /// Each token of context that a decoding job reads. Nanoseconds.
    pub context_token_ns: u64,
    /// Jobs in one batch, at most. At least 1.
    pub max_jobs: usize,
    /// Prompt and decode tokens in one step, at most. At least `max_jobs`.
    pub max_step_tokens: u32,
    /// Tokens that the KV cache holds. At least 1.
    pub kv_tokens: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            step_ns: 6_000_000,
            prefill_token_ns: 32_000,
            decode_job_ns: 20_000,
            context_token_ns: 49,
            max_jobs: 256,
            max_step_tokens: 8_192,
            kv_tokens: 400_000,
        }
    }
}

/// Which figure is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingError {
    /// The field of [`Timing`].
    pub field: &'static str,
    /// The value found.
    pub value: u64,
    /// What is allowed.
    pub allowed: &'static str,
}

impl fmt::Display for TimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; allowed: {}", self.field, self.value, self.allowed)
    }
}

impl std::error::Error for TimingError {}

/// No step lasts longer than this: far above any real one, and small enough
/// that sums of times cannot overflow within a simulated century.
const LONGEST_NS: u64 = 60_000_000_000;

impl Timing {
    fn check(&self) -> Result<(), TimingError> {
        let wrong = |field, value, allowed| Err(TimingError { field, value, allowed });
        for (field, value, least) in [
            ("step_ns", self.step_ns, 1),
            ("prefill_token_ns", self.prefill_token_ns, 0),
            ("decode_job_ns", self.decode_job_ns, 0),
            ("context_token_ns", self.context_token_ns, 0),
        ] {
            if value < least || value > LONGEST_NS {
                return wrong(field, value, "0 (step_ns: 1) to 60000000000");
            }
        }
        if self.max_jobs == 0 {
            return wrong("max_jobs", 0, "at least 1");
        }
        if (self.max_step_tokens as usize) < self.max_jobs {
            return wrong("max_step_tokens", self.max_step_tokens.into(), "at least max_jobs");
        }
        if self.kv_tokens == 0 {
            return wrong("kv_tokens", 0, "at least 1");
        }
        Ok(())
    }

    fn step(&self, prefill: u64, decode: u64, context: u64) -> u64 {
        self.step_ns
            .saturating_add(self.prefill_token_ns.saturating_mul(prefill))
            .saturating_add(self.decode_job_ns.saturating_mul(decode))
            .saturating_add(self.context_token_ns.saturating_mul(context))
            .min(LONGEST_NS)
    }
}

/// A job in the batch.
#[derive(Debug)]
struct Running {
    id: JobId,
    job: Job,
    prefilled: u32,
    produced: u32,
    /// Prompt tokens that the running step prefills.
    chunk: u32,
    /// The running step decodes a token of it.
    decoding: bool,
}

/// The model. See the module's text for what it leaves out.
#[derive(Debug)]
pub struct Batch {
    timing: Timing,
    waiting: VecDeque<(JobId, Job)>,
    running: Vec<Running>,
    kv_used: u64,
    next_id: JobId,
    step_end: Option<u64>,
}

impl Batch {
    /// An idle replica. Fails when a figure is out of its range.
    pub fn new(timing: Timing) -> Result<Self, TimingError> {
        timing.check()?;
        Ok(Self {
            timing,
            waiting: VecDeque::new(),
            running: Vec::new(),
            kv_used: 0,
            next_id: 0,
            step_end: None,
        })
    }

    fn reserved(job: Job) -> u64 {
        u64::from(job.prompt_tokens) + u64::from(job.output_tokens)
    }

    fn start_step(&mut self, at: u64) {
        let mut budget = self.timing.max_step_tokens;
        let (mut prefill, mut decode, mut context) = (0u64, 0u64, 0u64);
        for job in &mut self.running {
            if job.prefilled == job.job.prompt_tokens {
                job.decoding = true;
                budget = budget.saturating_sub(1);
                decode += 1;
                context += u64::from(job.prefilled) + u64::from(job.produced);
            }
        }
        // Those whose prompts are under way come before those that wait.
        for job in &mut self.running {
            if !job.decoding {
                job.chunk = budget.min(job.job.prompt_tokens - job.prefilled);
                budget -= job.chunk;
                prefill += u64::from(job.chunk);
            }
        }
        while budget > 0 && self.running.len() < self.timing.max_jobs {
            let Some(&(id, job)) = self.waiting.front() else { break };
            let need = Self::reserved(job);
            // A job larger than the whole cache still runs, alone: nothing hangs.
            if self.kv_used + need > self.timing.kv_tokens && !self.running.is_empty() {
                break;
            }
            self.waiting.pop_front();
            self.kv_used += need;
            let chunk = budget.min(job.prompt_tokens);
            budget -= chunk;
            prefill += u64::from(chunk);
            self.running.push(Running {
                id,
                job,
                prefilled: 0,
                produced: 0,
                chunk,
                decoding: false,
            });
        }
        self.step_end = (!self.running.is_empty())
            .then(|| at.saturating_add(self.timing.step(prefill, decode, context)));
    }

    fn finish_step(&mut self, at: u64, events: &mut Vec<Event>) {
        let mut freed = 0;
        self.running.retain_mut(|job| {
            job.prefilled += std::mem::take(&mut job.chunk);
            // The step that ends the prompt also yields the first token. A job
            // that entered while this step ran does neither.
            let first = job.produced == 0 && job.prefilled == job.job.prompt_tokens;
            if std::mem::take(&mut job.decoding) || first {
                job.produced += 1;
                let last = job.produced == job.job.output_tokens;
                events.push(Event { at, job: job.id, token: job.produced, last });
                if last {
                    freed += Self::reserved(job.job);
                    return false;
                }
            }
            true
        });
        self.kv_used -= freed;
    }
}

impl Engine for Batch {
    fn submit(&mut self, now: u64, job: Job) -> JobId {
        let id = self.next_id;
        self.next_id += 1;
        let job = Job {
            prompt_tokens: job.prompt_tokens.max(1),
            output_tokens: job.output_tokens.max(1),
        };
        self.waiting.push_back((id, job));
        if self.step_end.is_none() {
            self.start_step(now);
        }
        id
    }

    fn abort(&mut self, now: u64, id: JobId) -> bool {
        let before = self.running.len() + self.waiting.len();
        self.waiting.retain(|&(waiting, _)| waiting != id);
        let mut freed = 0;
        self.running.retain(|job| {
            let keep = job.id != id;
            if !keep {
                freed += Self::reserved(job.job);
            }
            keep
        });
        self.kv_used -= freed;
        // A running step goes on to its end; an empty one is given up.
        if self.running.is_empty() {
            self.step_end = None;
            if !self.waiting.is_empty() {
                self.start_step(now);
            }
        }
        self.running.len() + self.waiting.len() < before
    }

    fn next_event(&self) -> Option<u64> {
        self.step_end
    }

    fn advance(&mut self, now: u64, events: &mut Vec<Event>) {
        while let Some(end) = self.step_end
            && end <= now
        {
            self.finish_step(end, events);
            self.step_end = None;
            self.start_step(end);
        }
    }

    fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_used: self.kv_used,
            kv_capacity: self.timing.kv_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(prompt_tokens: u32, output_tokens: u32) -> Job {
        Job { prompt_tokens, output_tokens }
    }

    /// Round figures, so that tests can name times.
    fn timing() -> Timing {
        Timing {
            step_ns: 1_000,
            prefill_token_ns: 10,
            decode_job_ns: 100,
            context_token_ns: 1,
            max_jobs: 4,
            max_step_tokens: 50,
            kv_tokens: 1_000,
        }
    }

    fn run(engine: &mut Batch) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(at) = engine.next_event() {
            engine.advance(at, &mut events);
        }
        events
    }

    #[test]
    fn a_lone_job_takes_the_time_that_the_figures_say() {
        let mut engine = Batch::new(timing()).unwrap();
        engine.submit(500, job(20, 3));
        let events = run(&mut engine);
        // 1000 + 20 * 10; then 1000 + 100 + 21; then 1000 + 100 + 22.
        let times: Vec<u64> = events.iter().map(|e| e.at).collect();
        assert_eq!(times, [1_700, 2_821, 3_943]);
        assert_eq!(events.iter().map(|e| e.token).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(events.iter().map(|e| e.last).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(engine.load(), Load { kv_capacity: 1_000, ..Load::default() });
    }

    #[test]
    fn a_long_prompt_goes_in_chunks_and_decoding_goes_on_beside_it() {
        let mut engine = Batch::new(timing()).unwrap();
        let short = engine.submit(0, job(10, 10));
        let long = engine.submit(0, job(120, 1));
        let events = run(&mut engine);
        let first_of_long = events.iter().find(|e| e.job == long).unwrap().at;
        let before: Vec<&Event> =
            events.iter().filter(|e| e.job == short && e.at < first_of_long).collect();
        // Chunks of 50, 49, 21 after a step of 10: four steps, three before.
        assert_eq!(before.len(), 3, "{events:?}");
    }

    #[test]
    fn a_full_cache_makes_others_wait() {
        let mut engine = Batch::new(timing()).unwrap();
        engine.submit(0, job(40, 900));
        engine.submit(0, job(40, 900));
        let mut events = Vec::new();
        engine.advance(3_000, &mut events);
        assert_eq!((engine.load().running, engine.load().waiting), (1, 1));
        assert_eq!(run(&mut engine).iter().filter(|e| e.last).count(), 2);
    }

    #[test]
    fn a_job_larger_than_the_cache_runs_alone() {
        let mut engine = Batch::new(timing()).unwrap();
        engine.submit(0, job(5_000, 2));
        engine.submit(0, job(10, 2));
        assert_eq!(run(&mut engine).iter().filter(|e| e.last).count(), 2);
    }

    #[test]
    fn an_aborted_job_is_heard_of_no_more_and_frees_its_cache() {
        let mut engine = Batch::new(timing()).unwrap();
        let gone = engine.submit(0, job(10, 100));
        let stays = engine.submit(0, job(10, 5));
        let mut events = Vec::new();
        engine.advance(3_000, &mut events);
        assert!(engine.abort(3_000, gone));
        assert!(!engine.abort(3_000, gone));
        assert_eq!(engine.load().kv_used, 15);
        assert!(run(&mut engine).iter().all(|e| e.job == stays));
        assert!(engine.abort(9_999_999, stays) || engine.load().kv_used == 0);
    }

    #[test]
    fn figures_out_of_range_are_named() {
        let error = Batch::new(Timing { step_ns: 0, ..timing() }).unwrap_err().to_string();
        assert!(error.contains("step_ns is 0"), "{error}");
        let error = Batch::new(Timing { max_step_tokens: 3, ..timing() }).unwrap_err().to_string();
        assert!(error.contains("max_step_tokens is 3; allowed: at least max_jobs"), "{error}");
    }

    proptest! {
        /// Every job yields its tokens once, in order, and ends once, whatever
        /// is submitted and aborted when; time never goes back.
        #[test]
        fn every_job_ends_once(
            steps in prop::collection::vec((0u64..5_000, 1u32..200, 1u32..30, any::<bool>()), 1..60),
            max_jobs in 1usize..6,
            kv_tokens in 1u64..600,
        ) {
            let mut engine = Batch::new(Timing { max_jobs, kv_tokens, ..timing() }).unwrap();
            let (mut events, mut now) = (Vec::new(), 0);
            let mut wanted = std::collections::BTreeMap::new();
            for (gap, prompt, output, abort) in steps {
                now += gap;
                engine.advance(now, &mut events);
                let id = engine.submit(now, job(prompt, output));
                wanted.insert(id, output);
                if abort && id > 0 {
                    let ended = events.iter().any(|e| e.job == id / 2 && e.last);
                    let present = wanted.contains_key(&(id / 2)) && !ended;
                    prop_assert_eq!(engine.abort(now, id / 2), present);
                    if present {
                        wanted.remove(&(id / 2));
                    }
                }
                let load = engine.load();
                prop_assert!(load.running <= max_jobs);
                prop_assert!(load.kv_used <= kv_tokens || load.running <= 1);
            }
            events.extend(run(&mut engine));
            prop_assert!(events.is_sorted_by_key(|e| e.at));
            for (id, output) in wanted {
                let tokens: Vec<u32> =
                    events.iter().filter(|e| e.job == id).map(|e| e.token).collect();
                prop_assert_eq!(tokens, (1..=output).collect::<Vec<u32>>());
                prop_assert_eq!(events.iter().filter(|e| e.job == id && e.last).count(), 1);
            }
            prop_assert_eq!(engine.load().kv_used, 0);
        }
    }
}
