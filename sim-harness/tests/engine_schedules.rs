//! Small schedules, each worked out by hand from vLLM's rules.
//!
//! Jobs are named A, B, C by their submission. `A 10/20` is a chunk of 10 tokens
//! behind 20 computed ones; `2 decode over 29` are two sequences whose contexts
//! sum to 29. A step lasts 10 ns unless said otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use std::cell::RefCell;
use std::fmt::Write as _;

use tidegate_sim::engine::{
    Config, Disaggregated, Engine, Event, Fcfs, Job, JobId, Linear, Policy, Priority, Replica,
    Sink, StepTime, Transfer, What, Work,
};

/// Writes down every step, as its time is asked for.
struct Log {
    text: RefCell<String>,
    /// Nanoseconds of a step with so many tokens.
    time: fn(u64) -> u64,
}

impl StepTime for Log {
    fn step(&self, work: &Work<'_>) -> u64 {
        let mut parts: Vec<String> =
            work.prefill.iter().map(|c| format!("{}/{}", c.new, c.context)).collect();
        if work.decode > 0 {
            parts.push(format!("{} decode over {}", work.decode, work.decode_context));
        }
        writeln!(self.text.borrow_mut(), "  {}", parts.join(", ")).unwrap();
        (self.time)(work.tokens())
    }
}

/// Writes down what happens to jobs.
struct Names<'a> {
    log: &'a Log,
    jobs: Vec<JobId>,
}

impl Sink for Names<'_> {
    fn event(&mut self, event: Event) {
        let place = self.jobs.iter().position(|&job| job == event.job).unwrap();
        let name = char::from(b'A' + place as u8);
        let what = match event.what {
            What::Scheduled { cached: 0 } => format!("{name} enters"),
            What::Scheduled { cached } => format!("{name} enters, {cached} cached"),
            What::Fetching { until } => format!("{name} is fetched until {until}"),
            What::Preempted => format!("{name} makes room"),
            What::Token { nth, last } => format!("{name}{nth}{}", if last { "!" } else { "" }),
        };
        writeln!(self.log.text.borrow_mut(), "@{} {what}", event.at).unwrap();
    }
}

/// A job: when, prompt, output, names, priority.
type Row = (u64, u32, u32, &'static [u64], i32);

fn schedule(config: Config, jobs: &[Row]) -> String {
    run(config, 1, |_| 10, || Box::new(Fcfs), jobs)
}

fn run(
    config: Config,
    ranks: u32,
    time: fn(u64) -> u64,
    policy: fn() -> Box<dyn Policy>,
    jobs: &[Row],
) -> String {
    let log = Log { text: RefCell::default(), time };
    let config = Config { every_token: true, ..config };
    let mut replica = Replica::with_policy(config, &log, ranks, policy).unwrap();
    let mut names = Names { log: &log, jobs: Vec::new() };
    for &(at, prompt_tokens, output_tokens, prefix, priority) in jobs {
        replica.advance(at, &mut names);
        let job = Job { prefix, priority, ..Job::new(prompt_tokens, output_tokens) };
        names.jobs.push(replica.submit(at, &job).unwrap());
    }
    replica.advance(1_000_000, &mut names);
    assert_eq!(replica.next_event(), None);
    log.text.into_inner()
}

/// Blocks of 4 tokens, `blocks` of them, no cache of past ones.
fn small(blocks: u32) -> Config {
    Config {
        max_num_seqs: 8,
        max_num_batched_tokens: 100,
        block_size: 4,
        num_gpu_blocks: blocks + 1,
        max_model_len: blocks * 4,
        enable_prefix_caching: false,
        prefix_id_tokens: 4,
        async_scheduling: false,
        ..Config::default()
    }
}

/// The budget of 10 goes to A's prompt until it ends; what is left of that step
/// goes to B. Then both decode: A has 25 tokens of context, B 4.
#[test]
fn a_long_prompt_is_cut_to_the_budget() {
    let config = Config { max_num_batched_tokens: 10, ..small(20) };
    let found = schedule(config, &[(0, 25, 2, &[], 0), (0, 4, 3, &[], 0)]);
    let expected = "\
@0 A enters
  10/0
  10/10
@20 B enters
  5/20, 4/0
@30 A1
@30 B1
  2 decode over 29
@40 A2!
@40 B2
  1 decode over 5
@50 B3!
";
    assert_eq!(found, expected);
}

/// As above with a cap of 6 prompt tokens a sequence and step: B enters beside
/// A, and from the second step on A's chunks and B's tokens go side by side.
#[test]
fn a_cap_on_long_prompts_lets_others_in() {
    let config =
        Config { max_num_batched_tokens: 10, long_prefill_token_threshold: 6, ..small(20) };
    let found = schedule(config, &[(0, 14, 1, &[], 0), (0, 4, 3, &[], 0)]);
    let expected = "\
@0 A enters
@0 B enters
  6/0, 4/0
@10 B1
  6/6, 1 decode over 4
@20 B2
  2/12, 1 decode over 5
@30 A1!
@30 B3!
";
    assert_eq!(found, expected);
}

/// Six blocks; A, B and C take two each for 7 prompt tokens. At 8 computed
/// tokens (20) each needs a third: A drives out C, the last in, and takes one of
/// its two, B the other. At 12 (60) A drives out B, whose three free blocks are
/// more than C's 9 known tokens need; but no one enters a step in which room was
/// made, and from then on B stands before C and needs 4 for its 13 tokens. A
/// ends with 16 computed (100): B enters with 4 of 6, C waits for 3 until B ends.
#[test]
fn the_last_in_makes_room_and_is_the_first_back() {
    let found = schedule(
        Config { max_num_seqs: 3, ..small(6) },
        &[(0, 7, 10, &[], 0), (0, 7, 10, &[], 0), (0, 7, 4, &[], 0)],
    );
    let expected = "\
@0 A enters
@0 B enters
@0 C enters
  7/0, 7/0, 7/0
@10 A1
@10 B1
@10 C1
  3 decode over 21
@20 A2
@20 B2
@20 C2
@20 C makes room
  2 decode over 16
@30 A3
@30 B3
  2 decode over 18
@40 A4
@40 B4
  2 decode over 20
@50 A5
@50 B5
  2 decode over 22
@60 A6
@60 B6
@60 B makes room
  1 decode over 12
@70 A7
  1 decode over 13
@80 A8
  1 decode over 14
@90 A9
  1 decode over 15
@100 A10!
@100 B enters
  13/0
@110 B7
  1 decode over 13
@120 B8
  1 decode over 14
@130 B9
  1 decode over 15
@140 B10!
@140 C enters
  9/0
@150 C3
  1 decode over 9
@160 C4!
";
    assert_eq!(found, expected);
}

/// Without the check of the whole input, A is let in for its first chunk and B
/// for its own; then they drive each other out. With it, B waits for A's end.
/// Five blocks, budget 8: A has 12 + 1 tokens (3 blocks, 4 from its first
/// decode on), B 9.
#[test]
fn a_whole_input_has_to_fit_since_0_19() {
    let jobs: &[Row] = &[(0, 12, 2, &[], 0), (0, 9, 1, &[], 0)];
    let config = Config { max_num_batched_tokens: 8, ..small(5) };
    let found = schedule(config.clone(), jobs);
    let with = "\
@0 A enters
  8/0
  4/8
@20 A1
  1 decode over 12
@30 A2!
@30 B enters
  8/0
  1/8
@50 B1!
";
    assert_eq!(found, with);
    // B's first 4 tokens fit beside A's 12 at 10. At 20 A takes the last block,
    // its fourth, and B, whose next 5 tokens need two more, makes room for
    // itself: it is the last. At 30 A is gone.
    let found = schedule(Config { scheduler_reserve_full_isl: false, ..config }, jobs);
    let without = "\
@0 A enters
  8/0
@10 B enters
  4/8, 4/0
@20 A1
@20 B makes room
  1 decode over 12
@30 A2!
@30 B enters
  8/0
  1/8
@50 B1!
";
    assert_eq!(found, without);
}

/// B's prompt is A's: two blocks are found, the third is computed, for its last
/// token must be. C shares two. A's blocks can be found in the very step that
/// computes them. D comes when all are gone and finds three of its four.
#[test]
fn shared_prefixes_are_computed_once() {
    let config = Config { enable_prefix_caching: true, ..small(20) };
    let found = schedule(
        config,
        &[
            (0, 12, 2, &[1, 2, 3], 0),
            (0, 12, 1, &[1, 2, 3], 0),
            (0, 12, 1, &[1, 2, 9], 0),
            (100, 16, 1, &[1, 2, 3, 4], 0),
        ],
    );
    let expected = "\
@0 A enters
@0 B enters, 8 cached
@0 C enters, 8 cached
  12/0, 4/8, 4/8
@10 A1
@10 B1!
@10 C1!
  1 decode over 12
@20 A2!
@100 D enters, 12 cached
  4/12
@110 D1!
";
    assert_eq!(found, expected);
}

/// Five blocks, six tokens of a prompt a step: at 0 A takes two and B, of whose
/// five it finds one, needs four of three. At 10 A takes one more and fills two:
/// B finds three and needs two of two.
#[test]
fn a_job_enters_once_others_have_written_what_it_shares() {
    let config =
        Config { enable_prefix_caching: true, long_prefill_token_threshold: 6, ..small(5) };
    let found = schedule(config, &[(0, 16, 1, &[1, 2, 3, 4], 0), (0, 18, 1, &[1, 2, 3, 5], 0)]);
    let expected = "\
@0 A enters
  6/0
@10 B enters, 12 cached
  6/6, 6/12
@20 B1!
  4/12
@30 A1!
";
    assert_eq!(found, expected);
}

/// Tokens that a job of 60 finds of one before with these lengths and the same
/// names, when that one has ended.
fn found_of(config: &Config, prompt: u32, output: u32, names_answer: bool) -> u32 {
    let mut replica = Replica::new(config.clone(), Linear::default()).unwrap();
    let prefix: Vec<u64> = (1..=15).collect();
    let first = Job { prefix: &prefix, names_answer, ..Job::new(prompt, output) };
    let second = Job { prefix: &prefix, ..Job::new(60, 1) };
    let mut events: Vec<Event> = Vec::new();
    for job in [first, second] {
        let now = replica.next_event().unwrap_or(1_000_000_000_000);
        replica.submit(now, &job).unwrap();
        while let Some(at) = replica.next_event() {
            replica.advance(at, &mut events);
        }
    }
    let cached = events.iter().rev().find_map(|event| match event.what {
        What::Scheduled { cached } => Some(cached),
        _ => None,
    });
    cached.unwrap()
}

/// All that was computed, in full blocks: the prompt and the answer, but not its
/// last token. Without names for the answer, the prompt alone.
#[test]
fn a_second_turn_finds_the_prompt_and_the_answer_before() {
    for (async_scheduling, prefix_id_tokens) in [(false, 4), (true, 4), (false, 12), (true, 12)] {
        let config = Config {
            enable_prefix_caching: true,
            async_scheduling,
            prefix_id_tokens,
            max_num_batched_tokens: 7,
            ..small(20)
        };
        for (prompt, output) in (1..14).flat_map(|prompt| (1..14).map(move |out| (prompt, out))) {
            let found = found_of(&config, prompt, output, true);
            assert_eq!(found, (prompt + output - 1) / 4 * 4, "{prompt} {output} {config:?}");
            assert_eq!(found_of(&config, prompt, output, false), prompt / 4 * 4);
        }
        let none = Config { enable_prefix_caching: false, ..config };
        assert_eq!(found_of(&none, 10, 10, true), 0);
    }
}

/// As below, where B's blocks have names, of which the third holds the last three
/// tokens of its prompt and its first one. Again it finds 8 of its 13 tokens, now by
/// their names, and ends with 14 computed. C, whose prompt goes on from there, finds
/// its three full blocks. D leaves after its third token, with 11 computed as the
/// running step ends, and E finds two of its blocks.
#[test]
fn an_answer_has_its_names_whoever_made_room_or_left() {
    let config = Config { enable_prefix_caching: true, every_token: true, ..small(5) };
    let log = Log { text: RefCell::default(), time: |_| 10 };
    let mut replica = Replica::new(config, &log).unwrap();
    let mut names = Names { log: &log, jobs: Vec::new() };
    let jobs: [(u64, u32, u32, &[u64]); 5] = [
        (0, 7, 3, &[]),
        (0, 11, 4, &[1, 2, 3, 4]),
        (100, 18, 1, &[1, 2, 3, 4, 5]),
        (200, 8, 9, &[6, 7, 8, 9]),
        (300, 18, 1, &[6, 7, 8, 9]),
    ];
    for (at, prompt, output, prefix) in jobs {
        replica.advance(at, &mut names);
        let job = Job { prefix, names_answer: true, ..Job::new(prompt, output) };
        names.jobs.push(replica.submit(at, &job).unwrap());
        if at == 200 {
            replica.advance(235, &mut names);
            assert!(replica.abort(235, names.jobs[3]));
        }
    }
    replica.advance(1_000, &mut names);
    assert_eq!((replica.next_event(), replica.load().kv_used), (None, 0));
    let text = log.text.into_inner();
    let hits: Vec<&str> = text.lines().filter(|line| line.contains("cached")).collect();
    let expected =
        ["@30 B enters, 8 cached", "@100 C enters, 12 cached", "@300 E enters, 8 cached"];
    assert_eq!(hits, expected, "{text}");
}

/// Five blocks: A has two, B three, all full at 20. A's next token drives out B
/// and takes B's last block, the first to be reused. B's other two are still
/// what they were when A ends: of its 13 tokens, 8 are found again.
#[test]
fn who_made_room_finds_its_own_blocks_again() {
    let config = Config { enable_prefix_caching: true, ..small(5) };
    let found = schedule(config, &[(0, 7, 3, &[], 0), (0, 11, 4, &[], 0)]);
    let expected = "\
@0 A enters
@0 B enters
  7/0, 11/0
@10 A1
@10 B1
  2 decode over 18
@20 A2
@20 B2
@20 B makes room
  1 decode over 8
@30 A3!
@30 B enters, 8 cached
  5/8
@40 B3
  1 decode over 13
@50 B4!
";
    assert_eq!(found, expected);
}

/// C is the most urgent and enters first. When A needs a
/// block (20), the least urgent makes room: B, though C is the last in.
#[test]
fn the_least_urgent_makes_room() {
    let jobs: &[Row] = &[(0, 7, 3, &[], 1), (0, 7, 3, &[], 2), (0, 7, 3, &[], 0)];
    let found = run(small(6), 1, |_| 10, || Box::new(Priority), jobs);
    let expected = "\
@0 C enters
@0 A enters
@0 B enters
  7/0, 7/0, 7/0
@10 C1
@10 A1
@10 B1
  3 decode over 21
@20 C2
@20 A2
@20 B2
@20 B makes room
  2 decode over 16
@30 C3!
@30 A3!
@30 B enters
  9/0
@40 B3!
";
    assert_eq!(found, expected);
}

/// B comes at 5, while the first step runs. The second step was composed at 0,
/// too, so B enters the third, composed at 10, which runs from 20 on. A's end at
/// 30 is known when the fourth is composed, at 20.
#[test]
fn asynchronous_steps_are_composed_one_ahead() {
    let jobs: &[Row] = &[(0, 5, 3, &[], 0), (5, 6, 2, &[], 0)];
    let found = schedule(Config { async_scheduling: true, ..small(20) }, jobs);
    let expected = "\
@0 A enters
  5/0
  1 decode over 5
@10 A1
@10 B enters
  6/0, 1 decode over 6
@20 A2
  1 decode over 6
@30 A3!
@30 B1
@40 B2!
";
    assert_eq!(found, expected);
    let expected = "\
@0 A enters
  5/0
@10 A1
@10 B enters
  6/0, 1 decode over 5
@20 A2
@20 B1
  2 decode over 12
@30 A3!
@30 B2!
";
    assert_eq!(schedule(small(20), jobs), expected);
}

/// Two ranks, a step as long as its tokens: A on the first, B on the second, C
/// on the first, which is as busy as the other. B's short step waits for the
/// other rank's.
#[test]
fn ranks_step_together() {
    let jobs: &[Row] = &[(0, 30, 2, &[], 0), (0, 6, 2, &[], 0), (0, 10, 1, &[], 0)];
    let found = run(small(20), 2, |tokens| tokens, || Box::new(Fcfs), jobs);
    let expected = "\
@0 A enters
@0 C enters
@0 B enters
  30/0, 10/0
  6/0
@40 A1
@40 C1!
@40 B1
  1 decode over 30
  1 decode over 6
@41 A2!
@41 B2!
";
    assert_eq!(found, expected);
}

/// A is computed at 0 by one replica and fetched by the other: 5 ns and one for
/// each of 8 tokens. Until then both hold its two blocks. Its last token is
/// computed again there. Of B, the same prompt, the first replica has one block
/// and so has the second: 4 tokens are fetched. C asks for one token.
#[test]
fn prompts_are_fetched_from_the_replica_that_computed_them() {
    let log = Log { text: RefCell::default(), time: |_| 10 };
    let config = Config { enable_prefix_caching: true, every_token: true, ..small(20) };
    let transfer = Transfer { latency_ns: 5, bytes_per_token: 1, bytes_per_second: 1_000_000_000 };
    let one = || vec![(config.clone(), &log)];
    let mut pair = Disaggregated::new(one(), one(), transfer).unwrap();
    let mut names = Names { log: &log, jobs: Vec::new() };
    let mut used = Vec::new();
    for (at, output, prefix) in [(0, 3, [1, 2]), (100, 2, [1, 2]), (200, 1, [3, 4])] {
        let job = Job { prefix: &prefix, ..Job::new(8, output) };
        pair.advance(at, &mut names);
        names.jobs.push(pair.submit(at, &job).unwrap());
        for later in [15, 25] {
            pair.advance(at + later, &mut names);
            used.push(pair.load().kv_used);
        }
    }
    // Gone before its blocks were fetched.
    let gone = pair.submit(300, &Job::new(8, 2)).unwrap();
    names.jobs.push(gone);
    pair.advance(312, &mut names);
    assert!(pair.abort(312, gone) && !pair.abort(312, gone));
    pair.advance(1_000, &mut names);
    assert_eq!((pair.load().kv_used, pair.next_event()), (0, None));
    assert_eq!(used, [4, 2, 4, 2, 4, 2]);
    // Replicas run on to the next instant before anything is told.
    let expected = "  8/0
@0 A enters
@10 A is fetched until 23
  1/7
@23 A enters, 7 cached
@33 A1
  1 decode over 8
@43 A2
  1 decode over 9
@53 A3!
  4/4
@100 B enters, 4 cached
@110 B is fetched until 119
  1/7
@119 B enters, 7 cached
@129 B1
  1 decode over 8
@139 B2!
  8/0
@200 C enters
@210 C is fetched until 223
  1/7
@223 C enters, 7 cached
@233 C1!
  8/0
@300 D enters
@310 D is fetched until 323
";
    assert_eq!(log.text.into_inner(), expected);
}

/// What has come out for a client that leaves is what its events said.
#[test]
fn told_is_what_the_events_told() {
    for async_scheduling in [false, true] {
        let config = Config { async_scheduling, every_token: true, ..Config::default() };
        let mut replica = Replica::new(config, Linear::default()).unwrap();
        let mut seen = std::collections::BTreeMap::new();
        for nth in 0..12_u32 {
            let job = Job::new(1 + nth * 900, 1 + nth * 3);
            seen.insert(replica.submit(0, &job).unwrap(), (0, job.output_tokens));
        }
        while let Some(at) = replica.next_event() {
            let mut events: Vec<Event> = Vec::new();
            replica.advance(at, &mut events);
            for event in events {
                if let What::Token { nth, .. } = event.what {
                    seen.get_mut(&event.job).unwrap().0 = nth;
                }
            }
            for (job, (told, output)) in &seen {
                let expected = if told == output { 0 } else { *told };
                let found = replica.told(*job);
                // With its last token under way, one may be missing.
                let last = async_scheduling && expected + 1 == *output && found + 1 == expected;
                assert!(found == expected || last, "{job}: {found}, {told} of {output}");
            }
        }
    }
}
