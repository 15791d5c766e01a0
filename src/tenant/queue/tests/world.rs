//! A pool in virtual time: workers with queues of their own over shared slots,
//! requests that run for as long as their tokens take.

use crate::config::TenantClass;
use crate::estimate::hash;
use crate::share::LocalSlots;
use crate::tenant::{
    Actual, Admission, Ask, Capacity, Entitlement, Hold, HoldLimits, Ledger, Limits, Need, Queue,
    Reservation,
};
use crate::time::{Instant, Span};
use std::sync::Arc;

pub(super) fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// A tenant and what it asks for.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) tenant: Arc<Entitlement>,
    /// Requests that it always has waiting or open.
    pub(super) outstanding: usize,
    /// They come over as many connections, each of which keeps to its worker.
    pub(super) pinned: bool,
    /// Tokens of a request; of each second one so many more.
    pub(super) tokens: (u64, u64),
    /// What a request reserves, in multiples of what it uses.
    pub(super) over: u64,
    /// From when to when it asks, in milliseconds.
    pub(super) from_to: (u64, u64),
}

pub(super) fn client(name: &str, class: TenantClass, weight: u64) -> Client {
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
    pub(super) fn edit(mut self, edit: impl FnOnce(&mut Entitlement)) -> Self {
        edit(Arc::make_mut(&mut self.tenant));
        self
    }
}

pub(super) struct Running {
    pub(super) client: usize,
    pub(super) worker: usize,
    pub(super) ends: u64,
    pub(super) tokens: u64,
    pub(super) reservation: Reservation,
}

/// A pool, its workers and its clients. A request runs a millisecond for each
/// of its tokens.
pub(super) struct World {
    pub(super) memory: LocalSlots,
    pub(super) workers: Vec<(Ledger, Queue)>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) clients: Vec<Client>,
    pub(super) running: Vec<Running>,
    /// Of each client: requests that wait, refused ones until when, how many it
    /// ever made.
    pub(super) waiting: Vec<Vec<(u64, u64)>>,
    pub(super) back: Vec<Vec<u64>>,
    /// The workers of those that wait or run.
    pub(super) places: Vec<Vec<usize>>,
    pub(super) made: Vec<u64>,
    /// Tokens of ended requests.
    pub(super) served: Vec<u64>,
    /// The longest wait of each.
    pub(super) longest: Vec<u64>,
    pub(super) now: u64,
}

pub(super) const SLOTS: u64 = 16;

impl World {
    pub(super) fn new(
        workers: u64,
        clients: Vec<Client>,
        edit: impl FnOnce(&mut Capacity),
    ) -> Self {
        let mut capacity = Capacity {
            name: "pool".into(),
            limits: Limits { requests: Some(SLOTS), ..Limits::default() },
            kept: (0, 0),
            credit: 10_000,
            spill: None,
            load: None,
        };
        edit(&mut capacity);
        let capacity = Arc::new(capacity);
        let mut memory = LocalSlots::default();
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

    pub(super) fn ask(&self, client: usize, tokens: u64) -> Ask {
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

    pub(super) fn arrive(&mut self, client: usize) {
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

    pub(super) fn leaves(&mut self, client: usize, worker: usize) {
        let at = self.places[client].iter().position(|at| *at == worker).unwrap();
        self.places[client].swap_remove(at);
    }

    pub(super) fn start(
        &mut self,
        client: usize,
        worker: usize,
        tokens: u64,
        reservation: Reservation,
    ) {
        let ends = self.now + tokens;
        self.running.push(Running { client, worker, ends, tokens, reservation });
    }

    pub(super) fn poll(&mut self, worker: usize) {
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

    pub(super) fn step(&mut self) {
        while let Some(at_) = self.running.iter().position(|one| one.ends <= self.now) {
            let Running { client, worker, tokens, reservation, .. } = self.running.remove(at_);
            self.served[client] += tokens;
            self.leaves(client, worker);
            let used = Actual { charge: tokens, tokens, report: None };
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

    pub(super) fn demand(&self, client: usize) -> usize {
        let running = self.running.iter().filter(|one| one.client == client).count();
        running + self.waiting[client].len() + self.back[client].len()
    }

    /// Tokens that each client gets in so many milliseconds.
    pub(super) fn run(&mut self, millis: u64) -> Vec<u64> {
        let before = self.served.clone();
        for _ in 0..millis {
            self.step();
        }
        self.served.iter().zip(before).map(|(after, before)| after - before).collect()
    }

    /// Lets all end; nothing is left open.
    pub(super) fn drain(&mut self) {
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

pub(super) fn two_to_one() -> Vec<Client> {
    vec![client("a", TenantClass::Elastic, 2), client("b", TenantClass::Elastic, 1)]
}
