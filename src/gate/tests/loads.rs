//! Pools under pressure.

use super::*;
use crate::share::LocalSlots;

struct World {
    gate: Gate,
    memory: LocalSlots,
    config: Config,
    now: u64,
}

/// A short pool of four requests and a long one of as many; a second of dwell.
fn world() -> World {
    let document = String::from_utf8(CONFIG.to_vec()).unwrap();
    let pool = |extra: &str| {
        format!(
            r#""capacity": {{"replicas": 4, "requests": 1}},
               "spill": {{"enter": 1, "leave": 0.5, "dwell_ms": 1000}}{extra}"#
        )
    };
    // Without a margin: nothing is learned here, and this is about loads.
    let document = document
        .replace(r#""kind": "ema""#, r#""kind": "ema", "margin": 0"#)
        .replace(
            r#""threshold": 4000"#,
            &format!(r#""threshold": 4000, {}"#, pool(r#", "threshold_range": [1000, 8000]"#)),
        )
        .replace(r#""max_model_len": 65536"#, &format!(r#""max_model_len": 65536, {}"#, pool("")));
    let config = Config::parse(document.as_bytes()).unwrap();
    let (gate, mut memory) = (gate(), LocalSlots::default());
    gate.ledger().open(&mut memory, &[], &config.capacities);
    World { gate, memory, config, now: 0 }
}

impl World {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now * 1_000_000)
    }

    /// A request with so long a prompt, placed and counted.
    fn open(&mut self, tokens: u64) -> (Ticket, Decision) {
        // Nothing is learned yet: four bytes to a token.
        let body = Body::Whole(chat(4 * tokens, Cap::Tokens(10)));
        let (mut ticket, mut decision) = self.gate.open(self.config.base(), body);
        let (now, memory) = (self.now(), &mut self.memory);
        self.gate.place(now, memory, &self.config, &mut ticket, &mut decision);
        self.gate.occupy(now, memory, &self.config, &mut ticket);
        (ticket, decision)
    }

    fn close(&mut self, ticket: Ticket) -> Settlement {
        let now = self.now();
        self.gate.close(now, &mut self.memory, ticket, &used(107, 10))
    }

    fn placed(&mut self, tokens: u64) -> (Ticket, String) {
        let (ticket, decision) = self.open(tokens);
        (ticket, format!("{} {}", decision.pool.name, decision.reason.word()))
    }

    fn pressure(&mut self, pool: &str) -> (u64, bool) {
        let capacity = self.config.capacity(pool).unwrap();
        let now = self.now();
        let load = self.gate.ledger().load(&mut self.memory, now, capacity, 0).unwrap();
        (load.pressure, load.spills)
    }
}

#[test]
fn a_full_pool_s_requests_go_where_there_is_room_and_come_back() {
    let mut world = world();
    let mut short: Vec<Ticket> = (0..4)
        .map(|_| {
            let (ticket, placed) = world.placed(100);
            assert_eq!(placed, "short threshold");
            ticket
        })
        .collect();
    assert_eq!(world.pressure("short"), (1000, true));
    let (moved, placed) = world.placed(100);
    assert_eq!(placed, "long spill");
    // What went to a larger pool on purpose is no error.
    let settlement = world.close(moved);
    assert!(settlement.learned && !settlement.over_route && settlement.charged.is_none());
    // Half of it has gone, but it has only just begun to spill.
    for _ in 0..2 {
        world.close(short.pop().unwrap());
    }
    world.now = 999;
    let (other, placed) = world.placed(100);
    assert_eq!(placed, "long spill");
    world.close(other);
    world.now = 1000;
    let (back, placed) = world.placed(100);
    assert_eq!(placed, "short threshold");
    for ticket in short.into_iter().chain([back]) {
        world.close(ticket);
    }
    assert_eq!((world.pressure("short"), world.pressure("long")), ((0, false), (0, false)));
}

#[test]
fn a_full_long_pool_gives_away_only_what_fits() {
    let mut world = world();
    let long: Vec<Ticket> = (0..4)
        .map(|_| {
            let (ticket, placed) = world.placed(30_000);
            assert_eq!(placed, "long largest");
            ticket
        })
        .collect();
    // Above the threshold, but within the window.
    let (down, placed) = world.placed(6000);
    assert_eq!(placed, "short spill");
    assert_eq!(world.placed(30_000).1, "long largest");
    // Both are full: it stays where it belongs.
    let more: Vec<Ticket> = (0..3).map(|_| world.placed(100).0).collect();
    assert_eq!(world.placed(6000).1, "long largest");
    for ticket in long.into_iter().chain(more).chain([down]) {
        world.close(ticket);
    }
}

#[test]
fn a_threshold_follows_the_load_slowly_and_within_its_range() {
    let mut world = world();
    let (_a, _b) = (world.open(100), world.open(100));
    let tick = |world: &mut World, times: usize| {
        for _ in 0..times {
            let (now, config) = (world.now(), world.config.clone());
            let ledger = world.gate.ledger();
            ledger.watch(&mut world.memory, now, &config.capacities, config.neighbours());
        }
    };
    tick(&mut world, 1);
    assert_eq!(world.placed(3800).1, "short threshold");
    // The short pool is the fuller one: less goes there.
    tick(&mut world, 20);
    assert_eq!(world.placed(3800).1, "long largest");
    tick(&mut world, 100);
    let short = world.config.capacity("short").unwrap();
    let now = world.now();
    let load = world.gate.ledger().load(&mut world.memory, now, short, 0).unwrap();
    assert_eq!(load.threshold, Some(1000));
}
