//! The engine against its plain double, on random workloads with tiny caches:
//! the same events, records and counts, to the nanosecond.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

#[path = "common/naive.rs"]
#[allow(unreachable_pub, reason = "shared by test files")]
mod naive;

use proptest::prelude::*;
use tidegate_sim::engine::{
    Config, Disaggregated, Ended, Engine, Event, Fcfs, Finished, Job, JobId, Policy, Priority,
    Replica, Sink, StepTime, Transfer, What, Work,
};

use naive::Naive;

/// A step time that every figure of the work changes.
#[derive(Clone, Copy, Debug)]
struct Odd;

impl StepTime for Odd {
    fn step(&self, work: &Work<'_>) -> u64 {
        let mut sum = 50 + u64::from(work.decode) * 7 + work.decode_context * 3;
        sum += u64::from(work.decode_context_max) * 11 + u64::from(work.sampled) * 13;
        sum += u64::from(work.admitted) * 101;
        for (nth, chunk) in work.prefill.iter().enumerate() {
            sum += (nth as u64 + 2) * u64::from(chunk.new) + u64::from(chunk.context) * 5;
        }
        sum
    }
}

/// Keeps everything that is told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    events: Vec<Event>,
    finished: Vec<Finished>,
    steps: Vec<Ended>,
}

impl Sink for Told {
    fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    fn finished(&mut self, finished: &Finished) {
        self.finished.push(*finished);
    }

    fn step(&mut self, step: &Ended) {
        self.steps.push(*step);
    }
}

#[derive(Clone, Debug)]
struct Op {
    gap: u64,
    prompt: u32,
    output: u32,
    /// Leading names out of few, so that prompts share them.
    names: Vec<u64>,
    names_answer: bool,
    priority: i32,
    /// Abort the job that came this many before.
    abort: Option<usize>,
}

fn op() -> impl Strategy<Value = Op> {
    let gap = prop_oneof![Just(0), 1u64..400, 400u64..6_000];
    let names = (prop::collection::vec(0u64..3, 0..8), any::<bool>());
    (gap, 1u32..60, 1u32..30, names, -1i32..2, prop::option::weighted(0.15, 1usize..6)).prop_map(
        |(gap, prompt, output, (names, names_answer), priority, abort)| {
            // A chain: a name stands for all that comes before it, too.
            let chain = names.iter().scan(0, |chain, name| {
                *chain = *chain * 4 + name + 1;
                Some(*chain)
            });
            let names = chain.collect();
            Op { gap, prompt, output, names, names_answer, priority, abort }
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = (1u32..8, 1u32..40, 1u32..6, 0u32..40, 1u32..4);
    let switches = (any::<[bool; 4]>(), prop_oneof![2 => Just(0u32), 1 => 1u32..12]);
    (sizes, switches).prop_map(|((seqs, budget, size, more, per_name), (switches, threshold))| {
        let [caching, chunked, reserve, asynchronous] = switches;
        Config {
            max_num_seqs: seqs,
            max_num_batched_tokens: budget,
            block_size: size,
            // One job of 90 tokens fits, barely or well.
            num_gpu_blocks: 90u32.div_ceil(size) + 1 + more,
            max_model_len: 90,
            enable_prefix_caching: caching,
            prefix_id_tokens: size * per_name,
            enable_chunked_prefill: chunked,
            long_prefill_token_threshold: threshold,
            scheduler_reserve_full_isl: reserve,
            async_scheduling: asynchronous,
            every_token: true,
        }
    })
}

fn run(config: &Config, by_priority: bool, ops: &[Op]) -> Result<(), TestCaseError> {
    let policy = move || -> Box<dyn Policy> {
        if by_priority { Box::new(Priority) } else { Box::new(Fcfs) }
    };
    let brief = Config { every_token: false, ..config.clone() };
    let mut engine = Replica::with_policy(config.clone(), Odd, 1, policy).unwrap();
    let mut quiet = Replica::with_policy(brief, Odd, 1, policy).unwrap();
    let mut double = Naive::new(config.clone(), by_priority, Odd);
    let (mut told, mut less, mut twice) = (Told::default(), Told::default(), Told::default());
    let (mut now, mut jobs) = (0, Vec::new());
    for (tag, op) in ops.iter().enumerate() {
        now += op.gap;
        engine.advance(now, &mut told);
        quiet.advance(now, &mut less);
        double.advance(now, &mut twice);
        prop_assert_eq!(engine.load(), double.load(), "at {}", now);
        prop_assert_eq!(engine.next_event(), double.next_event(), "at {}", now);
        let job = Job {
            prompt_tokens: op.prompt,
            output_tokens: op.output,
            prefix: &op.names,
            names_answer: op.names_answer,
            priority: op.priority,
            tag: tag as u64,
        };
        let id = engine.submit(now, &job).unwrap();
        prop_assert_eq!(quiet.submit(now, &job).unwrap(), id);
        double.submit(now, &job, id);
        jobs.push(id);
        if let Some(&id) = op.abort.and_then(|back| jobs.iter().rev().nth(back)) {
            let there = double.abort(now, id);
            prop_assert_eq!(engine.abort(now, id), there);
            prop_assert_eq!(quiet.abort(now, id), there);
        }
    }
    // To the end, in one go: the double stops where the engine stops.
    while let Some(at) = engine.next_event() {
        prop_assert!(at < now + 100_000_000, "it does not end");
        engine.advance(at, &mut told);
    }
    quiet.advance(u64::MAX >> 1, &mut less);
    double.advance(u64::MAX >> 1, &mut twice);
    for (one, two) in told.events.iter().zip(&twice.events) {
        prop_assert_eq!(one, two);
    }
    prop_assert_eq!(told.events.len(), twice.events.len());
    prop_assert_eq!(&told.finished, &twice.finished);
    prop_assert_eq!(&told.steps, &twice.steps);
    prop_assert_eq!(engine.counts(), double.counts());
    // Without word of every token: all else is the same.
    let brief = |event: &&Event| match event.what {
        What::Token { nth, last } => nth == 1 || last,
        _ => true,
    };
    let expected: Vec<Event> = told.events.iter().filter(brief).copied().collect();
    prop_assert_eq!(&expected, &less.events);
    prop_assert_eq!((&told.finished, &told.steps), (&less.finished, &less.steps));
    prop_assert_eq!(engine.counts(), quiet.counts());
    // Nothing is left behind.
    let load = engine.load();
    prop_assert_eq!((load.running, load.waiting, load.kv_used), (0, 0, 0));
    Ok(())
}

/// Drives any engine through the workload; every job that is not aborted ends
/// once, with its tokens in order, and leaves nothing behind.
fn ends_once(engine: &mut dyn Engine, seats: u64, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut told, mut now) = (Told::default(), 0);
    let mut jobs: Vec<(JobId, u32, bool)> = Vec::new();
    for (tag, op) in ops.iter().enumerate() {
        now += op.gap;
        engine.advance(now, &mut told);
        let (tag, names_answer) = (tag as u64, op.names_answer);
        let job = Job { prefix: &op.names, names_answer, tag, ..Job::new(op.prompt, op.output) };
        let id = engine.submit(now, &job).unwrap();
        jobs.push((id, op.output, false));
        if let Some(job) = op.abort.and_then(|back| jobs.iter_mut().rev().nth(back)) {
            let ended = told.finished.iter().any(|f| f.job == job.0);
            prop_assert_eq!(engine.abort(now, job.0), !ended && !job.2);
            job.2 |= !ended;
        }
        let load = engine.load();
        prop_assert!(load.running as u64 <= seats && load.kv_used <= load.kv_capacity);
    }
    let latest = now + 10_000_000;
    while let Some(at) = engine.next_event() {
        prop_assert!(at < latest, "it does not end");
        engine.advance(at, &mut told);
        now = at;
    }
    prop_assert_eq!(engine.load().kv_used, 0);
    prop_assert_eq!((engine.load().running, engine.load().waiting), (0, 0));
    prop_assert!(told.events.is_sorted_by_key(|event| event.at));
    prop_assert!(told.steps.is_sorted_by_key(|step| step.end));
    for &(id, output, aborted) in &jobs {
        let of_it = told.events.iter().filter(|event| event.job == id);
        let tokens: Vec<u32> = of_it
            .filter_map(|event| match event.what {
                What::Token { nth, .. } => Some(nth),
                _ => None,
            })
            .collect();
        let count = tokens.len() as u32;
        prop_assert!(tokens.iter().copied().eq(1..=count));
        prop_assert!(aborted || count == output, "{} of {}", count, output);
        let ends = told.finished.iter().filter(|f| f.job == id).count();
        prop_assert_eq!(ends, usize::from(!aborted));
    }
    // Throughput is at most seats over the mean time in a seat: the time spent
    // in seats is at most all there is.
    let mut seated = 0u128;
    let mut since = std::collections::BTreeMap::new();
    for event in &told.events {
        let left = match event.what {
            What::Scheduled { .. } => {
                since.insert(event.job, event.at);
                None
            }
            What::Preempted | What::Token { last: true, .. } => since.remove(&event.job),
            _ => None,
        };
        seated += left.map_or(0, |since| u128::from(event.at - since));
    }
    prop_assert!(seated <= u128::from(seats) * u128::from(now));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        // PROPTEST_CASES asks for more.
        cases: ProptestConfig::default().cases.max(2_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_does_what_its_double_does(
        config in config(),
        by_priority in any::<bool>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        run(&config, by_priority, &ops)?;
    }

    #[test]
    fn ranks_and_pairs_end_every_job_once(
        config in config(),
        ranks in 1u32..4,
        (prefills, decodes) in (1usize..3, 1usize..3),
        transfer in (0u64..3_000, 0u64..100),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let fcfs = || -> Box<dyn Policy> { Box::new(Fcfs) };
        let mut together = Replica::with_policy(config.clone(), Odd, ranks, fcfs).unwrap();
        let seats = u64::from(config.max_num_seqs);
        ends_once(&mut together, seats * u64::from(ranks), &ops)?;
        let (latency_ns, bytes_per_token) = transfer;
        let transfer =
            Transfer { latency_ns, bytes_per_token, bytes_per_second: 1_000_000_000 };
        let some = |count| vec![(config.clone(), Odd); count];
        let mut pair = Disaggregated::new(some(prefills), some(decodes), transfer).unwrap();
        ends_once(&mut pair, seats * (prefills + decodes) as u64, &ops)?;
    }
}
