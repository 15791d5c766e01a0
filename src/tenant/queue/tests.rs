//! Whole days of a pool, in virtual time: workers with queues of their own over
//! shared slots, requests that run for as long as their tokens take.

use super::*;
use crate::config::TenantClass;
use crate::estimate::hash;
use crate::share::{Change, Updated};
use crate::tenant::{Entitlement, Law, Limits, Need, Reservation, Used};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Default)]
struct Memory(BTreeMap<String, Vec<u8>>);

impl Slots for Memory {
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
        if let Some(bytes) = change(self.0.get(name).map(Vec::as_slice)) {
            self.0.insert(name.to_owned(), bytes);
        }
        Updated::Done
    }
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// A tenant and what it asks for.
#[derive(Clone)]
struct Client {
    tenant: Arc<Entitlement>,
    /// Requests that it always has waiting or open.
    outstanding: usize,
    /// They come over as many connections, each of which keeps to its worker.
    pinned: bool,
    /// Tokens of a request; of each second one so many more.
    tokens: (u64, u64),
    /// What a request reserves, in multiples of what it uses.
    over: u64,
    /// From when to when it asks, in milliseconds.
    from_to: (u64, u64),
}

fn client(name: &str, class: TenantClass, weight: u64) -> Client {
    let tenant = Entitlement { weight, hold: true, ..Entitlement::of(name, class, None) };
    Client {
        tenant: Arc::new(Entitlement { ttft_target: Span::from_secs(1000), ..tenant }),
        outstanding: 40,
        pinned: false,
        tokens: (93, 314),
        over: 1,
        from_to: (0, u64::MAX),
    }
}

impl Client {
    fn edit(mut self, edit: impl FnOnce(&mut Entitlement)) -> Self {
        edit(Arc::make_mut(&mut self.tenant));
        self
    }
}

struct Running {
    client: usize,
    worker: usize,
    ends: u64,
    tokens: u64,
    reservation: Reservation,
}

/// A pool, its workers and its clients. A request runs a millisecond for each
/// of its tokens.
struct World {
    memory: Memory,
    workers: Vec<(Ledger, Queue)>,
    capacity: Arc<Capacity>,
    clients: Vec<Client>,
    running: Vec<Running>,
    /// Of each client: requests that wait, refused ones until when, how many it
    /// ever made.
    waiting: Vec<Vec<(u64, u64)>>,
    back: Vec<Vec<u64>>,
    /// The workers of those that wait or run.
    places: Vec<Vec<usize>>,
    made: Vec<u64>,
    /// Tokens of ended requests.
    served: Vec<u64>,
    /// The longest wait of each.
    longest: Vec<u64>,
    now: u64,
}

const SLOTS: u64 = 16;

impl World {
    fn new(workers: u64, clients: Vec<Client>, edit: impl FnOnce(&mut Capacity)) -> Self {
        let mut capacity = Capacity {
            name: "pool".into(),
            limits: Limits { requests: Some(SLOTS), ..Limits::default() },
            kept: (0, 0),
            credit: 10_000,
            spill: None,
        };
        edit(&mut capacity);
        let capacity = Arc::new(capacity);
        let mut memory = Memory::default();
        let tenants: Vec<_> = clients.iter().map(|client| Arc::clone(&client.tenant)).collect();
        let workers: Vec<_> = (1..=workers)
            .map(|incarnation| (Ledger::new("tidegate", incarnation), Queue::default()))
            .collect();
        workers[0].0.open(&mut memory, &tenants, &[Arc::clone(&capacity)]);
        let count = clients.len();
        Self {
            memory,
            workers,
            capacity,
            clients,
            running: Vec::new(),
            waiting: vec![Vec::new(); count],
            back: vec![Vec::new(); count],
            places: vec![Vec::new(); count],
            made: vec![0; count],
            served: vec![0; count],
            longest: vec![0; count],
            now: 0,
        }
    }

    fn ask(&self, client: usize, tokens: u64) -> Ask {
        let client = &self.clients[client];
        let tokens = tokens * client.over;
        Ask {
            tenant: Arc::clone(&client.tenant),
            who: client.tenant.who(),
            pool: hash(b"pool"),
            capacity: Some(Arc::clone(&self.capacity)),
            need: Need { charge: tokens, tokens },
        }
    }

    fn arrive(&mut self, client: usize) {
        let id = self.made[client] * 100 + client as u64;
        let (tokens, more) = self.clients[client].tokens;
        // Each worker gets short and long ones in turn.
        let round = self.made[client] / self.workers.len() as u64;
        let tokens = tokens + more * (round % 2);
        let worker = if self.clients[client].pinned {
            let at = |worker: &usize| self.places[client].iter().filter(|at| *at == worker).count();
            (0..self.workers.len()).min_by_key(at).unwrap()
        } else {
            self.made[client] as usize % self.workers.len()
        };
        self.made[client] += 1;
        self.places[client].push(worker);
        let ask = self.ask(client, tokens);
        let limits = HoldLimits { requests: 10_000, bytes: 1 << 20 };
        let (ledger, queue) = &mut self.workers[worker];
        let hold = Some(Hold { id, bytes: 1, limits });
        match queue.admit(&mut self.memory, ledger, at(self.now), ask, hold) {
            Admission::Held => self.waiting[client].push((id, tokens)),
            Admission::Refused(refusal) => {
                let seconds = refusal.retry_after.expect("it can pass later");
                self.back[client].push(self.now + seconds * 1000);
                self.leaves(client, worker);
            }
            Admission::Admitted(reservation, _) => self.start(client, worker, tokens, reservation),
            Admission::Uncharged => unreachable!(),
        }
    }

    fn leaves(&mut self, client: usize, worker: usize) {
        let at = self.places[client].iter().position(|at| *at == worker).unwrap();
        self.places[client].swap_remove(at);
    }

    fn start(&mut self, client: usize, worker: usize, tokens: u64, reservation: Reservation) {
        let ends = self.now + tokens;
        self.running.push(Running { client, worker, ends, tokens, reservation });
    }

    fn poll(&mut self, worker: usize) {
        let (ledger, queue) = &mut self.workers[worker];
        for released in queue.poll(&mut self.memory, ledger, at(self.now)) {
            let client = (released.id % 100) as usize;
            let at = self.waiting[client].iter().position(|(id, _)| *id == released.id).unwrap();
            let (_, tokens) = self.waiting[client].remove(at);
            let waited = released.waited.as_nanos() / 1_000_000;
            self.longest[client] = self.longest[client].max(waited);
            match released.admission {
                Admission::Admitted(reservation, _) => {
                    self.start(client, worker, tokens, reservation);
                }
                _ => self.leaves(client, worker),
            }
        }
    }

    fn step(&mut self) {
        while let Some(at_) = self.running.iter().position(|one| one.ends <= self.now) {
            let Running { client, worker, tokens, reservation, .. } = self.running.remove(at_);
            self.served[client] += tokens;
            self.leaves(client, worker);
            let used = Used { charge: tokens, tokens };
            let (memory, now) = (&mut self.memory, at(self.now));
            self.workers[worker].0.settle(memory, now, reservation, used).unwrap();
            self.poll(worker);
        }
        if self.now.is_multiple_of(10) {
            for worker in 0..self.workers.len() {
                self.poll(worker);
            }
        }
        for client in 0..self.clients.len() {
            let now = self.now;
            self.back[client].retain(|until| *until > now);
            let (from, to) = self.clients[client].from_to;
            while (from..to).contains(&now)
                && self.demand(client) < self.clients[client].outstanding
            {
                self.arrive(client);
            }
        }
        self.now += 1;
    }

    fn demand(&self, client: usize) -> usize {
        let running = self.running.iter().filter(|one| one.client == client).count();
        running + self.waiting[client].len() + self.back[client].len()
    }

    /// Tokens that each client gets in so many milliseconds.
    fn run(&mut self, millis: u64) -> Vec<u64> {
        let before = self.served.clone();
        for _ in 0..millis {
            self.step();
        }
        self.served.iter().zip(before).map(|(after, before)| after - before).collect()
    }

    /// Lets all end; nothing is left open.
    fn drain(&mut self) {
        for client in &mut self.clients {
            client.from_to = (0, 0);
        }
        while self.clients.iter().enumerate().any(|(at, _)| self.demand(at) > 0) {
            self.step();
        }
        let ledger = &self.workers[0].0;
        let (status, _) = ledger.pool_status(&mut self.memory, at(self.now), &self.capacity, &[]);
        assert_eq!((status.tokens, status.requests), (0, 0));
        for client in &self.clients {
            let status = ledger.status(&mut self.memory, at(self.now), &client.tenant);
            assert_eq!((status.tokens, status.requests), (0, 0));
        }
    }
}

/// The first one's share of the first two, in thousandths.
fn share(got: &[u64]) -> u64 {
    got[0] * 1000 / (got[0] + got[1])
}

fn two_to_one() -> Vec<Client> {
    vec![client("a", TenantClass::Elastic, 2), client("b", TenantClass::Elastic, 1)]
}

const ALL_OF: u64 = SLOTS * 1000;

#[test]
fn elastic_tenants_that_want_more_get_shares_by_weight() {
    for workers in [1, 2, 4] {
        let mut world = World::new(workers, two_to_one(), |_| {});
        world.run(5000);
        let got = world.run(60_000);
        let share = share(&got);
        assert!((660..=673).contains(&share), "{workers} workers: {share} of 1000");
        // Nothing stays idle: but for the ticks, all slots are always in use.
        let all: u64 = got.iter().sum();
        assert!(all >= 60 * ALL_OF * 97 / 100, "{all}");
        world.drain();
    }
}

/// Few requests on each of many workers: whose last one has gone waits on others.
#[test]
fn shares_hold_over_many_workers() {
    let mut clients = two_to_one();
    for client in &mut clients {
        (client.outstanding, client.pinned, client.tokens) = (16, true, (200, 0));
    }
    let mut world = World::new(8, clients, |capacity| capacity.limits.requests = Some(4));
    world.run(5000);
    let share = share(&world.run(40_000));
    assert!((660..=673).contains(&share), "{share} of 1000");
}

#[test]
fn shares_hold_whatever_requests_reserve_and_however_long_they_are() {
    let mut clients = two_to_one();
    // The heavier one reserves eight times what it uses; the other sends long ones.
    clients[0].over = 8;
    clients[1].tokens = (2000, 0);
    let mut world = World::new(2, clients, |_| {});
    world.run(20_000);
    let share = share(&world.run(200_000));
    assert!((650..=685).contains(&share), "{share} of 1000");
}

#[test]
fn what_one_leaves_the_others_get() {
    // Of several workers each knows the others' first requests a little later.
    for (workers, of_100) in [(1, 80), (2, 60)] {
        let mut clients = two_to_one();
        // It wants a sixteenth of the pool only, and gets it: each request waits
        // for the next slot at the most.
        clients[0].outstanding = 1;
        clients[0].tokens = (200, 0);
        let mut world = World::new(workers, clients, |_| {});
        world.run(5000);
        let got = world.run(20_000);
        let all: u64 = got.iter().sum();
        assert!(all >= 20 * ALL_OF * 97 / 100, "{got:?}");
        assert!(got[0] >= 20_000 * of_100 / 100, "{got:?}");
    }
}

#[test]
fn who_was_idle_earned_nothing_and_who_was_short_comes_first_for_a_while() {
    let mut clients = two_to_one();
    clients[0].from_to = (100_000, u64::MAX);
    let mut world = World::new(2, clients, |_| {});
    world.run(100_000);
    // After an hour's idling as after none: its share and no more.
    world.run(2000);
    let got = share(&world.run(10_000));
    assert!((645..=690).contains(&got), "{got} of 1000");

    // Spot requests are in the way of both; one gets next to nothing of what is
    // left, since it asks too seldom to. Then it asks for more: no more than the
    // credit is made up for.
    let mut world = World::new(1, two_to_one(), |capacity| capacity.credit = 4000);
    for client in &mut world.clients {
        client.outstanding = 16;
    }
    world.run(10_000);
    // Room for the second one's only: long requests hold all slots.
    world.clients[1].tokens = (20_000, 0);
    world.clients[0].from_to = (0, 0);
    world.run(3000);
    world.clients[0].from_to = (0, u64::MAX);
    world.run(17_000);
    world.clients[1].tokens = (100, 300);
    world.run(10_000);
    let got = share(&world.run(20_000));
    assert!((655..=680).contains(&got), "{got} of 1000");
}

#[test]
fn guaranteed_tenants_never_wait_for_the_pool_and_spot_ones_yield() {
    let promised = |one: &mut Entitlement| {
        one.limits = Limits { requests: Some(4), ..Limits::default() };
    };
    let mut guaranteed = client("g", TenantClass::Guaranteed, 1).edit(promised);
    guaranteed.outstanding = 4;
    guaranteed.from_to = (10_000, 40_000);
    let mut elastic = client("e", TenantClass::Elastic, 1);
    elastic.from_to = (20_000, 30_000);
    let clients = vec![guaranteed, elastic, client("s", TenantClass::Spot, 1)];
    let mut world = World::new(2, clients, |capacity| capacity.kept = (0, 4));
    world.run(5000);
    // What is kept for the guaranteed one is not given away.
    assert_eq!(world.running.len() as u64, SLOTS - 4);
    world.run(6000);
    // It has all that it asks for, from the first moment on.
    assert_eq!(world.longest[0], 0);
    world.run(10_000);
    let got = world.run(8000);
    assert_eq!(got[2], 0, "spot yields: {got:?}");
    assert!(got[1] >= 8 * (ALL_OF * 12 / 16) * 9 / 10, "{got:?}");
    assert_eq!(world.longest[0], 0);
    world.run(15_000);
    let got = world.run(10_000);
    assert!(got[0] == 0 && got[2] >= 10 * (ALL_OF * 12 / 16) * 9 / 10, "{got:?}");
    world.drain();
}

#[test]
fn a_request_that_waits_too_long_is_refused_and_says_when_to_come_back() {
    let patient = |one: &mut Entitlement| one.ttft_target = Span::from_millis(300);
    let clients = two_to_one().into_iter().map(|client| client.edit(patient)).collect();
    let mut world = World::new(1, clients, |capacity| capacity.limits.requests = Some(1));
    world.clients[1].outstanding = 0;
    world.clients[0].tokens = (1000, 0);
    world.clients[0].outstanding = 2;
    world.step();
    assert_eq!((world.running.len(), world.waiting[0].len()), (1, 1));
    world.clients[0].outstanding = 1;
    let mut ledger = Ledger::new("tidegate", 1);
    for now in [150, 299] {
        assert!(world.workers[0].1.poll(&mut world.memory, &mut ledger, at(now)).is_empty());
    }
    let released = world.workers[0].1.poll(&mut world.memory, &mut ledger, at(300));
    let [Released { waited, admission: Admission::Refused(refusal), .. }] = &*released else {
        panic!("{released:?}")
    };
    assert_eq!(*waited, Span::from_millis(300));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Capacity, Some(1)));
    // The next look withdraws its head.
    assert!(world.workers[0].1.poll(&mut world.memory, &mut ledger, at(310)).is_empty());
    assert!(world.workers[0].1.is_empty());
}

/// Who was refused in the end has a place kept for it when it comes back.
#[test]
fn who_waited_in_vain_is_expected_back() {
    let patient = |one: &mut Entitlement| one.ttft_target = Span::from_millis(300);
    let elastic = client("e", TenantClass::Elastic, 1).edit(patient);
    let clients = vec![client("s", TenantClass::Spot, 1), elastic];
    let mut world = World::new(1, clients, |capacity| capacity.limits.requests = Some(1));
    let asks = [0, 1].map(|client| world.ask(client, 100));
    let limits = HoldLimits { requests: 9, bytes: 9 };
    let (ledger, queue) = &mut world.workers[0];
    let memory = &mut world.memory;
    let [spot, elastic] = asks;
    let Admission::Admitted(open, _) = ledger.admit(memory, at(0), &spot, false) else { panic!() };
    let hold = Some(Hold { id: 1, bytes: 1, limits });
    assert!(matches!(queue.admit(memory, ledger, at(0), elastic, hold), Admission::Held));
    assert_eq!(queue.poll(memory, ledger, at(300)).len(), 1);
    assert!(queue.poll(memory, ledger, at(310)).is_empty() && queue.is_empty());
    ledger.settle(memory, at(310), open, Used { charge: 100, tokens: 100 }).unwrap();
    let mut passes =
        |millis| matches!(ledger.admit(memory, at(millis), &spot, false), Admission::Admitted(..));
    assert!(!passes(1799) && passes(1801));
}

#[test]
fn a_client_that_leaves_makes_way() {
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.run(30);
    let (id, _) = world.waiting[0].remove(0);
    let before = world.workers.iter().map(|(_, queue)| queue.waiting.len()).sum::<usize>();
    for (_, queue) in &mut world.workers {
        queue.leave(id);
        queue.leave(id);
    }
    let after = world.workers.iter().map(|(_, queue)| queue.waiting.len()).sum::<usize>();
    assert_eq!(after, before - 1);
    // A worker that waits for nothing stands in nobody's way.
    for (id, _) in world.waiting.iter_mut().flat_map(|waiting| waiting.drain(..)) {
        for (_, queue) in &mut world.workers {
            queue.leave(id);
        }
    }
    for client in &mut world.clients {
        client.outstanding = 0;
    }
    world.drain();
}

/// A request of its tenant's that waits for its own limits, until that is told.
#[test]
fn who_waits_for_its_own_limits_goes_in_turn_and_hears_why_it_did_not() {
    let slow = |one: &mut Entitlement| {
        one.limits.laws[0] = Some(Law::per_second(100, 500, 500));
        one.ttft_target = Span::from_secs(2);
    };
    let clients = two_to_one().into_iter().map(|client| client.edit(slow)).collect();
    let mut world = World::new(1, clients, |_| {});
    let asks = [400, 300, 50].map(|tokens| world.ask(0, tokens));
    let (ledger, queue) = &mut world.workers[0];
    let memory = &mut world.memory;
    let limits = HoldLimits { requests: 10, bytes: 10 };
    let admissions: Vec<Admission> = (0..)
        .zip(asks)
        .map(|(id, ask)| {
            let hold = Some(Hold { id, bytes: 1, limits });
            queue.admit(memory, ledger, at(0), ask, hold)
        })
        .collect();
    // The small one would be covered, but came last.
    assert!(matches!(&*admissions, [Admission::Admitted(..), Admission::Held, Admission::Held]));
    assert!(queue.poll(memory, ledger, at(1990)).is_empty());
    let released = queue.poll(memory, ledger, at(2000));
    let [
        Released { id: 1, admission: Admission::Admitted(..), .. },
        Released { id: 2, admission: Admission::Refused(refusal), .. },
    ] = &*released
    else {
        panic!("{released:?}")
    };
    assert_eq!(refusal.cause, Cause::Tokens);
    assert!(queue.is_empty());
}

#[test]
fn busy_memory_keeps_a_request_waiting() {
    let mut world = World::new(1, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.run(1);
    let waiting = world.workers[0].1.waiting.len();
    let slots = core::mem::take(&mut world.memory);
    let (ledger, queue) = &mut world.workers[0];
    // All slots are gone.
    assert!(queue.poll(&mut world.memory, ledger, at(1)).is_empty());
    assert_eq!(queue.waiting.len(), waiting);
    world.memory = slots;
    world.drain();
}

#[test]
fn a_worker_that_waits_no_more_stands_in_nobody_s_way() {
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.clients[0].outstanding = 0;
    world.clients[1].outstanding = 1;
    world.run(25);
    let ask = world.ask(0, 100);
    let hold = Some(Hold { id: 7, bytes: 1, limits: HoldLimits { requests: 9, bytes: 9 } });
    let (ledger, queue) = &mut world.workers[1];
    assert!(matches!(queue.admit(&mut world.memory, ledger, at(25), ask, hold), Admission::Held));
    assert!(queue.poll(&mut world.memory, ledger, at(30)).is_empty());
    queue.leave(7);
    // Something is left to be said, and then nothing.
    assert!(!queue.is_empty());
    assert!(queue.poll(&mut world.memory, ledger, at(60)).is_empty());
    assert!(queue.is_empty());
    let running = world.running.pop().unwrap();
    let (ledger, _) = &mut world.workers[0];
    let used = Used { charge: 5000, tokens: 5000 };
    ledger.settle(&mut world.memory, at(60), running.reservation, used).unwrap();
    // The other tenant has had more, and passes.
    let ask = world.ask(1, 100);
    let (ledger, _) = &mut world.workers[0];
    assert!(matches!(
        ledger.admit(&mut world.memory, at(60), &ask, false),
        Admission::Admitted(..)
    ));
}

#[test]
fn the_queue_is_bounded_by_count_and_by_bytes() {
    let mut world = World::new(1, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    let ask = world.ask(0, 100);
    let (ledger, queue) = &mut world.workers[0];
    let mut admit = |queue: &mut Queue, id, bytes| {
        let limits = HoldLimits { requests: 5, bytes: 100 };
        let hold = Some(Hold { id, bytes, limits });
        match queue.admit(&mut world.memory, ledger, at(0), ask.clone(), hold) {
            Admission::Admitted(..) => "admitted",
            Admission::Held => "held",
            Admission::Refused(_) => "refused",
            Admission::Uncharged => "uncharged",
        }
    };
    assert_eq!(admit(queue, 0, 1), "admitted");
    assert_eq!(admit(queue, 1, 60), "held");
    assert_eq!(admit(queue, 2, 41), "refused");
    assert_eq!(admit(queue, 3, 40), "held");
    queue.leave(1);
    assert_eq!(admit(queue, 4, 30), "held");
    assert_eq!(admit(queue, 5, 30), "held");
    assert_eq!(admit(queue, 6, 0), "refused");
}

#[test]
fn who_is_refused_and_comes_back_gets_its_share_too() {
    let refused = |one: &mut Entitlement| one.hold = false;
    let mut clients: Vec<Client> =
        two_to_one().into_iter().map(|client| client.edit(refused)).collect();
    // The second one asks far more often.
    clients[1].outstanding = 200;
    let mut world = World::new(2, clients, |capacity| capacity.credit = 4000);
    world.run(20_000);
    let got = world.run(120_000);
    let share = share(&got);
    assert!((645..=690).contains(&share), "{share} of 1000");
    let all: u64 = got.iter().sum();
    assert!(all >= 120 * ALL_OF * 9 / 10, "{all} of {}", 120 * ALL_OF);
}

#[test]
fn a_tenant_s_own_limit_keeps_nobody_else_waiting() {
    let slow = |one: &mut Entitlement| {
        one.limits.laws[0] = Some(Law::per_second(100, 450, 450));
    };
    let mut clients = two_to_one();
    clients[0] = clients[0].clone().edit(slow);
    let mut world = World::new(2, clients, |_| {});
    world.run(10_000);
    let got = world.run(20_000);
    assert!((1800..=2400).contains(&got[0]), "{got:?}");
    assert!(got[1] >= 20 * ALL_OF * 95 / 100 - got[0], "{got:?}");
}

#[test]
fn the_pool_s_rate_is_kept_by_those_who_are_not_guaranteed() {
    let rate = Law::per_second(2000, 4000, 4000);
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.laws[0] = Some(rate));
    world.run(10_000);
    let got = world.run(20_000);
    let all: u64 = got.iter().sum();
    assert!((38_000..=41_000).contains(&all), "{got:?}");
    assert!((655..=678).contains(&share(&got)), "{got:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Shares by weight, whatever the weights, the lengths and the workers; and
    /// all that was held leaves once.
    #[test]
    fn any_two_tenants_share_by_weight(
        weights in (1_u64..8, 1_u64..8),
        lengths in ((200_u64..500, 0_u64..500), (200_u64..500, 0_u64..500)),
        over in 1_u64..9, workers in 1_u64..5, in_flight in any::<bool>(),
    ) {
        let mut clients = vec![
            client("a", TenantClass::Elastic, weights.0),
            client("b", TenantClass::Elastic, weights.1),
        ];
        (clients[0].tokens, clients[1].tokens) = lengths;
        clients[0].over = over;
        for client in &mut clients {
            client.outstanding = 100;
        }
        // Either is too little for one of them alone.
        let mut world = World::new(workers, clients, |capacity| if in_flight {
            capacity.limits = Limits { tokens_in_flight: Some(16_000), ..Limits::default() };
        });
        world.run(10_000);
        let got = share(&world.run(20_000));
        let ideal = weights.0 * 1000 / (weights.0 + weights.1);
        prop_assert!(got.abs_diff(ideal) <= 40, "{got} for {ideal}");
        world.drain();
    }
}
