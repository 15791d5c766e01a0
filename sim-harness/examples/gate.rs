//! Opens and closes so many requests, as the simulated gateways do, and prints how
//! long one took. `docs/gate.sh` counts the instructions.
//!
//! As many requests are open at any time as 400 replicas of 32 sequences hold, so
//! that tickets come back cold. Their texts are of Azure's lengths, in three kinds,
//! and were read before the clock starts.

use std::collections::VecDeque;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use tidegate::config::{Config, Tenants};
use tidegate::estimate::Tally;
use tidegate::gate::{Answer, Body, Gate, Ticket};
use tidegate::request::{Cap, RequestFacts};
use tidegate::share::LocalSlots;
use tidegate::time::Instant;
use tidegate::usage::Usage;
use tidegate_sim::rng::Pcg;
use tidegate_sim::texts::{Kind, units};
use tidegate_sim::workload::{AZURE_2023, CapPolicy};

const REPLICAS: usize = 400;
const OPEN: usize = REPLICAS * 32;
/// Texts that were read; taken in turn.
const TEXTS: usize = 4_096;
/// Requests whose facts are made in one go.
const AT_ONCE: usize = 64;
/// Nanoseconds between two requests: 1,000 a second.
const GAP: u64 = 1_000_000;

/// 300 replicas of a short pool, 100 of a long one; `what` of them is used: pressure
/// and spill with capacities, limits and accounts with tenants.
fn document(what: &str) -> String {
    let pool = |name: &str, window: u32, replicas: u32| {
        let capacity = match what {
            "plain" => String::new(),
            _ => format!(
                r#", "spill": {{}}, "capacity": {{"replicas": {replicas}, "requests": 64,
                "tokens_in_flight": 1000000}}"#
            ),
        };
        format!(r#"{{"name": "{name}", "cluster": "{name}", "max_model_len": {window}{capacity}}}"#)
    };
    let pools = [pool("short", 4_096, 300), pool("long", 65_536, 100)].join(", ");
    let tenants = match what {
        "tenants" => {
            r#", "tenants": {"default": "t", "entitlements": [
            {"name": "t", "class": "elastic", "tokens_per_second": 100000000}]}"#
        }
        _ => "",
    };
    format!(r#"{{"version": 1, "models": [{{"match": "*", "pools": [{pools}]}}]{tenants}}}"#)
}

#[derive(Clone)]
struct Request {
    text: Tally,
    words: Vec<u8>,
    cap: Cap,
    input: u64,
    output: u64,
}

fn requests() -> Vec<Request> {
    let mut rng = Pcg::new(1, 0);
    let kinds = [Kind::English, Kind::Python, Kind::Json];
    let all = units(|_, text| text.into_bytes());
    let mut requests = Vec::new();
    while requests.len() < TEXTS {
        let (input, output) = AZURE_2023.draw(&mut rng);
        let kind = rng.pick(&kinds).copied();
        let units = all.iter().find(|(one, _)| Some(*one) == kind).map(|(_, units)| units);
        let mut words = Vec::new();
        // Four bytes a token are near enough.
        while words.len() < 4 * input as usize
            && let Some(unit) = units.and_then(|units| rng.pick(units))
        {
            words.extend_from_slice(unit);
        }
        let text = Tally::read(&words);
        let cap = CapPolicy::Ladder.draw(output, &mut rng);
        let cap = cap.map_or(Cap::Absent, |cap| Cap::Tokens(cap.into()));
        requests.push(Request { text, words, cap, input: input.into(), output: output.into() });
    }
    requests
}

/// What a worker has.
struct Worker {
    config: Config,
    gate: Gate,
    memory: LocalSlots,
}

impl Worker {
    fn new(what: &str) -> Option<Self> {
        let config = Config::parse(document(what).as_bytes());
        let config = config.inspect_err(|error| eprintln!("{error}")).ok()?;
        let (gate, mut memory) = (Gate::new(&config.name, 1), LocalSlots::default());
        let tenants = config.tenants.as_ref().map_or(&[][..], Tenants::all);
        gate.ledger().open(&mut memory, tenants, &config.capacities);
        Some(Self { config, gate, memory })
    }

    /// In the order of `fleet/gateway.rs`.
    fn open(&mut self, now: Instant, facts: RequestFacts) -> Ticket {
        let Self { config, gate, memory } = self;
        let settings = config.settings(b"/v1/chat/completions", b"", None);
        let (mut ticket, mut decision) = gate.open(settings, Body::Whole(facts));
        if config.uses_load {
            gate.place(now, memory, config, &mut ticket, &mut decision);
        }
        if let Some(tenants) = &config.tenants {
            black_box(gate.admit(now, memory, config, tenants.default(), &mut ticket, None));
        } else {
            gate.occupy(now, memory, config, &mut ticket);
        }
        black_box(decision);
        ticket
    }

    fn close(&mut self, now: Instant, ticket: Ticket, request: &Request) {
        let usage =
            Usage { input: Some(request.input), output: Some(request.output), ..Usage::default() };
        let answer = Answer {
            status: Some(200),
            usage: Some(Ok(usage)),
            complete: true,
            ..Answer::default()
        };
        black_box(self.gate.close(now, &mut self.memory, ticket, &answer));
    }
}

fn facts(request: &Request) -> RequestFacts {
    RequestFacts::chat("m", request.text.clone(), 1, request.cap)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, times] = args.as_slice() else {
        eprintln!("usage: gate text|facts|plain|spill|tenants TIMES");
        return ExitCode::FAILURE;
    };
    let times: usize = times.parse().unwrap_or(0);
    let Some(mut worker) = Worker::new(what) else { return ExitCode::FAILURE };
    let requests = requests();
    let turn = |nth: usize| requests.iter().cycle().skip(nth % TEXTS);
    if what == "text" || what == "facts" {
        let start = Clock::now();
        for request in requests.iter().cycle().take(times) {
            if what == "text" {
                black_box(Tally::read(black_box(&request.words)));
            } else {
                black_box(facts(black_box(request)));
            }
        }
        report(what, start.elapsed(), times);
        return ExitCode::SUCCESS;
    }
    let mut now = 0;
    let mut open: VecDeque<Ticket> = VecDeque::with_capacity(OPEN + 1);
    for request in requests.iter().cycle().take(OPEN) {
        now += GAP;
        let ticket = worker.open(Instant::from_nanos(now), facts(request));
        open.push_back(ticket);
    }
    let mut spent = Duration::ZERO;
    // Those that end are the ones that came OPEN requests before.
    let mut turns = requests.iter().cycle().zip(turn(OPEN)).take(times).peekable();
    while turns.peek().is_some() {
        // Their facts are there before the clock starts.
        let some: Vec<_> =
            turns.by_ref().take(AT_ONCE).map(|(old, new)| (old, facts(new))).collect();
        let start = Clock::now();
        for (old, facts) in some {
            now += GAP;
            let ticket = worker.open(Instant::from_nanos(now), facts);
            open.push_back(ticket);
            if let Some(ticket) = open.pop_front() {
                worker.close(Instant::from_nanos(now), ticket, old);
            }
        }
        spent += start.elapsed();
    }
    report(what, spent, times);
    ExitCode::SUCCESS
}

fn report(what: &str, spent: Duration, times: usize) {
    let each = spent.as_nanos() as f64 / times.max(1) as f64;
    println!("{what} {each:.0}");
}
