//! The dual-pool papers' setting (arXiv 2604.08075, 2604.09613): slots by the window
//! (16 at 65,536, 128 at 8,192) and their simulator's iteration time. Closed form,
//! fluid and simulation side by side.
//!
//! `TIDEGATE_PROVE=1 cargo test --release -p tidegate-sim --test papers -- --nocapture`
//! prints the table of `docs/fleet.md`; without the variable one workload is
//! simulated, smaller.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at once")]

use std::sync::Arc;

use tidegate::config::Config;
use tidegate_sim::SECOND;
use tidegate_sim::engine::{self, Linear};
use tidegate_sim::fleet::{
    self, Arrivals, Dispatch, Fate, Gateways, LengthSource, Pool, Scenario, Source, Watch,
};
use tidegate_sim::policy::Policy;
use tidegate_sim::rng::Pcg;
use tidegate_sim::table::with_heads;
use tidegate_sim::texts::Kind;
use tidegate_sim::workload::{
    AGENT_HEAVY, AZURE_2023, CapPolicy, LMSYS_CHAT_1M, Lengths, TraceRequest,
};

/// fleet-sim's A100: 8 ms a step, and 0.65 ms for each sequence of 8,192 tokens.
const STEP_NS: u64 = 8_000_000;
const TOKEN_NS: u64 = 650_000 / 8_192;
/// Prompt tokens of a sequence in one step.
const CHUNK: u32 = 512;
/// KV blocks of 16 tokens.
const BLOCKS: u32 = 65_536;
const WINDOW: u32 = 65_536;
const SHORT: u32 = 8_192;
/// The papers' promise: p99 of the first token and of the time between tokens.
const TTFT: u64 = 2 * SECOND;
const TPOT: u64 = 80_000_000;

/// The papers' table: slots of a window.
fn slots(window: u32) -> u32 {
    128 * SHORT / window
}

/// Requests a second of a replica with so many sequences of such requests:
/// `slots / E[S]`, `S = (⌈prompt / chunk⌉ + output) · (8 ms + 0.65 ms · slots · mean length / 8,192)`.
fn rate(rows: &[(u32, u32)], slots: u32) -> f64 {
    let mean = |of: &dyn Fn(u32, u32) -> u32| {
        rows.iter().map(|(i, o)| f64::from(of(*i, *o))).sum::<f64>() / rows.len() as f64
    };
    let steps = mean(&|input, output| input.div_ceil(CHUNK) + output);
    // Who stays longer is met more often.
    let time = |input: u32, output: u32| f64::from(input.div_ceil(CHUNK) + output);
    let weighed: f64 =
        rows.iter().map(|(i, o)| time(*i, *o) * (f64::from(*i) + f64::from(*o) / 2.0)).sum();
    let length = weighed / (steps * rows.len() as f64);
    let step = STEP_NS as f64 + TOKEN_NS as f64 * length * f64::from(slots);
    f64::from(slots) / (steps * step / SECOND as f64)
}

struct Case {
    name: &'static str,
    rows: Vec<(u32, u32)>,
    /// Requests a second.
    rate: f64,
    /// Requests that are not counted, and that are.
    warm: u64,
    counted: u64,
}

/// One pool, or a short one before it.
#[derive(Clone, Copy)]
struct Fleet {
    /// Sequences of each replica of the large window.
    seats: u32,
    split: bool,
    policy: Policy,
}

/// Counts misses; ends a run that cannot hold.
struct Judge<'a> {
    case: &'a Case,
    ended: u64,
    missed: [u64; 2],
}

impl Watch for Judge<'_> {
    fn ended(&mut self, fate: &Fate) -> bool {
        let Case { warm, counted, .. } = self.case;
        if fate.nth <= *warm || fate.nth > warm + counted {
            return true;
        }
        self.ended += 1;
        let lost = fate.pool.is_none() || fate.truncated;
        self.missed[0] += u64::from(lost || fate.first_token > TTFT);
        self.missed[1] += u64::from(lost || fate.per_token.is_some_and(|time| time > TPOT));
        self.ended < *counted && self.missed.iter().all(|missed| missed * 100 <= *counted)
    }
}

fn pool(name: &str, window: u32, seats: u32, replicas: u32) -> Pool {
    let engine = engine::Config {
        max_num_seqs: seats,
        max_num_batched_tokens: seats * CHUNK,
        long_prefill_token_threshold: CHUNK,
        num_gpu_blocks: BLOCKS + 1,
        max_model_len: window,
        enable_prefix_caching: false,
        async_scheduling: false,
        ..engine::Config::default()
    };
    let time = Linear {
        step_ns: STEP_NS,
        prefill_token_ns: 0,
        decode_sequence_ns: 0,
        context_token_ns: TOKEN_NS,
    };
    Pool {
        name: name.into(),
        replicas,
        dispatch: Dispatch::LeastLoaded,
        engine,
        ranks: 1,
        time: Box::new(time),
        faults: Vec::new(),
    }
}

/// Whether 99 of 100 of the counted requests get what is promised.
fn holds(case: &Case, fleet: Fleet, short: u32, long: u32) -> bool {
    let one = |name: &str, window: u32| {
        format!(r#"{{"name": "{name}", "cluster": "{name}", "max_model_len": {window}}}"#)
    };
    let mut pools = vec![pool("long", WINDOW, fleet.seats, long)];
    let mut named = one("long", WINDOW);
    if fleet.split {
        pools.push(pool("short", SHORT, slots(SHORT), short));
        named = format!("{}, {named}", one("short", SHORT));
    }
    let document = format!(r#"{{"version": 1, "models": [{{"match": "*", "pools": [{named}]}}]}}"#);
    let request = |(input_tokens, output_tokens): (u32, u32)| TraceRequest {
        input_tokens,
        output_tokens,
        ..TraceRequest::default()
    };
    let rows: Arc<[TraceRequest]> = case.rows.iter().copied().map(request).collect();
    let caps = if fleet.policy == Policy::Oracle { CapPolicy::Actual } else { CapPolicy::Ladder };
    let scenario = Scenario {
        config: Arc::new(Config::parse(document.as_bytes()).unwrap()),
        gateways: Gateways { count: 1, workers: 2, retry_too_long: true },
        policy: fleet.policy,
        pools,
        sources: vec![Source {
            texts: vec![(Kind::English, 1), (Kind::Python, 1)],
            caps,
            retries: 0,
            ..Source::new(LengthSource::Trace(rows), Arrivals::Open { rate: case.rate, cv: 1.0 })
        }],
        end: u64::MAX / 4,
        drain: 0,
        warm_up: 0,
    };
    let mut judge = Judge { case, ended: 0, missed: [0; 2] };
    fleet::watch(&scenario, 1, &mut judge).unwrap();
    judge.ended == case.counted && judge.missed.iter().all(|missed| missed * 100 <= case.counted)
}

/// The smallest count that holds, from a guess on; nothing if ten times the guess
/// does not.
fn smallest(guess: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (0, guess.max(1));
    while !holds(high) {
        (low, high) = (high, high + high.div_ceil(4));
        if high > 10 * guess.max(2) {
            return None;
        }
    }
    while high - low > 1 + high / 100 {
        let middle = u32::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// What a workload needs, in replicas.
struct Found {
    alpha: f64,
    /// Of one pool, a short one, a long one.
    rates: [f64; 3],
    one: Option<u32>,
    /// One pool with as many sequences as the short one has.
    paged: Option<u32>,
    known: Option<(u32, u32)>,
    gate: Option<(u32, u32)>,
}

impl Found {
    fn new(case: &Case) -> Self {
        let (alpha, rates) = Self::rates(case);
        let guess = |share: f64, of: f64| (share * case.rate / of).ceil() as u32;
        let single = |seats| {
            let fleet = Fleet { seats, split: false, policy: Policy::Oracle };
            let of = rate(&case.rows, seats);
            smallest(guess(1.0, of), |count| holds(case, fleet, 0, count))
        };
        let split = |policy| {
            let fleet = Fleet { seats: slots(WINDOW), split: true, policy };
            // Where requests go does not depend on counts: one pool after the other,
            // with plenty of the other, then both.
            let (short, long) = (guess(alpha, rates[1]), guess(1.0 - alpha, rates[2]));
            let plenty = guess(1.0, rates[0]) * 4;
            let long = smallest(long.max(1), |count| holds(case, fleet, plenty, count))?;
            let short = smallest(short, |count| holds(case, fleet, count, long))?;
            Some((short, long))
        };
        Self {
            alpha,
            rates,
            one: single(slots(WINDOW)),
            paged: single(slots(SHORT)),
            known: split(Policy::Oracle),
            gate: split(Policy::Tidegate),
        }
    }

    /// The share of the short ones, and the rates.
    fn rates(case: &Case) -> (f64, [f64; 3]) {
        let short: Vec<(u32, u32)> =
            case.rows.iter().copied().filter(|(i, o)| i + o <= SHORT).collect();
        let long: Vec<(u32, u32)> =
            case.rows.iter().copied().filter(|(i, o)| i + o > SHORT).collect();
        let alpha = short.len() as f64 / case.rows.len() as f64;
        let rates = [
            rate(&case.rows, slots(WINDOW)),
            rate(&short, slots(SHORT)),
            if long.is_empty() { f64::INFINITY } else { rate(&long, slots(WINDOW)) },
        ];
        (alpha, rates)
    }

    fn formulas(&self) -> [f64; 3] {
        formulas(self.alpha, self.rates)
    }
}

/// Savings: the papers' closed form with its own rates (4 : 1), with these rates,
/// and with the long pool's rate.
fn formulas(alpha: f64, [one, short, long]: [f64; 3]) -> [f64; 3] {
    [
        alpha * (1.0 - 1.0 / 4.0),
        alpha * (1.0 - one / short),
        1.0 - one * (alpha / short + (1.0 - alpha) / long),
    ]
}

fn sum(pools: Option<(u32, u32)>) -> Option<u32> {
    pools.map(|(short, long)| short + long)
}

/// What is saved, of the first.
fn saved(one: Option<u32>, other: Option<u32>) -> Option<f64> {
    Some(1.0 - f64::from(other?) / f64::from(one?))
}

fn case(name: &'static str, lengths: &Lengths, rate: f64, warm: f64, seconds: f64) -> Case {
    let (warm, counted) = ((warm * rate) as u64, (seconds * rate) as u64);
    let mut rng = Pcg::new(1, 1);
    let rows = (0..warm + counted).map(|_| lengths.draw(&mut rng)).collect();
    Case { name, rows, rate, warm, counted }
}

fn table(all: &[(Case, Found)]) -> String {
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "never".into(), |share| format!("{:.0} %", share * 100.0))
    };
    let count = |count: Option<u32>| count.map_or_else(|| "never".into(), |n| n.to_string());
    let both = |pools: Option<(u32, u32)>| {
        pools.map_or_else(|| "never".into(), |(short, long)| format!("{short} + {long}"))
    };
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(case, found)| {
            let [papers, own, fluid] = found.formulas();
            vec![
                case.name.into(),
                format!("{}", case.rate),
                format!("{:.1} %", found.alpha * 100.0),
                found.rates.map(|rate| format!("{rate:.2}")).join(" / "),
                percent(Some(papers)),
                percent(Some(own)),
                percent(Some(fluid)),
                count(found.one),
                both(found.known),
                percent(saved(found.one, sum(found.known))),
                both(found.gate),
                percent(saved(found.one, sum(found.gate))),
                count(found.paged),
                percent(saved(found.paged, sum(found.known))),
            ]
        })
        .collect();
    let heads = [
        "lengths",
        "req/s",
        "short",
        "req/s of one / short / long",
        "4 : 1",
        "closed form",
        "fluid",
        "one pool",
        "known lengths",
        "saves",
        "the gate",
        "saves",
        "one of 128",
        "saves",
    ];
    with_heads(&heads, &rows)
}

#[test]
fn the_papers_setting_has_their_direction_and_its_reasons_are_told_apart() {
    let full = std::env::var_os("TIDEGATE_PROVE").is_some();
    let cases = if full {
        vec![
            case("azure", &AZURE_2023, 600.0, 30.0, 60.0),
            case("lmsys", &LMSYS_CHAT_1M, 800.0, 30.0, 60.0),
            case("agent", &AGENT_HEAVY, 48.0, 90.0, 120.0),
        ]
    } else {
        vec![case("lmsys", &LMSYS_CHAT_1M, 150.0, 12.0, 12.0)]
    };
    let all: Vec<(Case, Found)> =
        cases.into_iter().map(|case| (Found::new(&case), case)).map(|(f, c)| (c, f)).collect();
    println!("{}", table(&all));
    for (case, found) in &all {
        let [_, closed, fluid] = found.formulas();
        let simulated = saved(found.one, sum(found.known)).unwrap();
        // Their direction, and about what the fluid says: the closed form is above.
        assert!(simulated > 0.0 && closed >= fluid, "{}: {simulated} {closed} {fluid}", case.name);
        assert!((simulated - fluid).abs() < 0.12, "{}: {simulated} {fluid}", case.name);
        // It is all in the sixteen slots: with 128 one pool needs no more than two.
        assert!(found.paged <= sum(found.known).map(|two| two + 1), "{}", case.name);
        // Who does not know lengths needs no less.
        assert!(sum(found.gate) >= sum(found.known), "{}", case.name);
    }
}

#[test]
fn where_much_is_long_the_closed_form_promises_what_is_not_there() {
    let of = |lengths| {
        let case = case("", lengths, 1_000.0, 0.0, 20.0);
        Found::rates(&case)
    };
    let [agent, lmsys] = [&AGENT_HEAVY, &LMSYS_CHAT_1M].map(|lengths| {
        let (alpha, rates) = of(lengths);
        formulas(alpha, rates)
    });
    assert!(agent[1] > 0.6 && agent[2] < 0.15, "{agent:?}");
    assert!(lmsys[1] - lmsys[2] < 0.05 && lmsys[2] > 0.7, "{lmsys:?}");
    // At 8K and 64K by the papers' table; their own 4 : 1 is one length's.
    assert_eq!([SHORT, WINDOW].map(slots), [128, 16]);
    let theirs = [(1_600, 400)];
    let ratio = rate(&theirs, slots(SHORT)) / rate(&theirs, slots(WINDOW));
    assert!((2.5..4.0).contains(&ratio), "{ratio}");
}
