//! Gateways and their workers: what `envoy/src` does in Envoy, in virtual time.

use std::sync::Arc;

use tidegate::config::{Config, Inspect, Pool, Settings, Tenants};
use tidegate::estimate::Tally;
use tidegate::gate::{Answer, Body, Gate, Reason, Settlement, Ticket};
use tidegate::pool::Budget;
use tidegate::request::{Api, Cap, RequestFacts};
use tidegate::share::{Exchange, LocalSlots};
use tidegate::tenant::Released;
use tidegate::time::{Instant, Span};

use super::admission::{self, Admitted};
use super::pool::Replicas;
use super::scenario::Gateways;
use super::scrape::Scraper;
use super::source::Ask;
use crate::policy::{Known, Policy};

/// Bytes of a chat request's body beside its text.
const BODY_AROUND: u64 = 120;

#[derive(Debug)]
struct Worker {
    gate: Gate,
    exchange: Exchange,
    serving: bool,
    gateway: usize,
    /// It does what one worker does for all.
    leads: bool,
    scraper: Scraper,
}

/// All gateways. Workers are numbered through.
#[derive(Debug)]
pub(super) struct Fleet {
    config: Arc<Config>,
    policy: Policy,
    workers: Vec<Worker>,
    /// What the workers of each share. An update takes no virtual time.
    memories: Vec<LocalSlots>,
    /// For a worker's number that is none.
    lost: LocalSlots,
}

/// What a gateway does with a request.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) ticket: Ticket,
    /// Where it goes.
    pub(super) pool: Arc<Pool>,
    /// The largest pool of its model.
    pub(super) largest: Arc<Pool>,
    /// What the gate takes it for, if it was read.
    pub(super) budget: Option<Budget>,
    /// It went there since its own pool is under pressure, or crowded.
    pub(super) moved: bool,
    /// Nothing where there are no tenants.
    pub(super) admitted: Option<Admitted>,
    /// It goes up whatever was decided, and where it would go without a filter:
    /// to the default pool.
    pub(super) dry_run: bool,
}

impl Opened {
    /// The answer is to carry what its replica says of itself.
    pub(super) fn asks_report(&self) -> bool {
        self.pool.load.as_ref().is_some_and(|load| load.orca) && !self.dry_run
    }
}

impl Fleet {
    pub(super) fn new(config: &Arc<Config>, gateways: Gateways, policy: Policy) -> Self {
        let mut memories: Vec<LocalSlots> = Vec::new();
        memories.resize_with(gateways.count as usize, LocalSlots::default);
        let mut workers = Vec::new();
        for (gateway, memory) in memories.iter_mut().enumerate() {
            for _ in 0..gateways.workers {
                let incarnation = workers.len() as u64 + 1;
                let mut gate = Gate::new(&config.name, incarnation);
                gate.learner_mut().give(Arc::clone(&config.base().estimator.learned));
                let tenants = config.tenants.as_ref().map_or(&[][..], Tenants::all);
                gate.ledger().open(memory, tenants, &config.capacities);
                let exchange = Exchange::new(&config.name, incarnation);
                let (serving, leads, scraper) = (false, false, Scraper::default());
                workers.push(Worker { gate, exchange, serving, gateway, leads, scraper });
            }
        }
        let lost = LocalSlots::default();
        Self { config: Arc::clone(config), policy, workers, memories, lost }
    }

    /// Who chooses pools.
    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    pub(super) fn workers(&self) -> u32 {
        self.workers.len() as u32
    }

    fn at(&mut self, worker: u32) -> Option<(&mut Worker, &mut LocalSlots)> {
        let worker = self.workers.get_mut(worker as usize)?;
        let memory = self.memories.get_mut(worker.gateway).unwrap_or(&mut self.lost);
        Some((worker, memory))
    }

    /// A request comes to a worker: its body has been read, and it is decided.
    /// `name` is one that no other open request of the worker has. Without a text
    /// its prompt is given in tokens. `crowd` tells how many requests a pool has for
    /// each of its replicas.
    pub(super) fn open(
        &mut self,
        now: u64,
        (worker, name): (u32, u64),
        (tenant, model, path): (&str, &str, &str),
        ask: &Ask,
        text: Option<Tally>,
        crowd: &dyn Fn(&Pool) -> f64,
    ) -> Option<Opened> {
        let (config, policy) = (Arc::clone(&self.config), self.policy);
        let settings = config.settings(path.as_bytes(), b"", None);
        let dry_run = settings.dry_run;
        let bytes = text.as_ref().map_or(0, Tally::total);
        let Read { body, whole, rest } = read(settings, model, ask, text);
        let now = Instant::from_nanos(now);
        let (Worker { gate, serving, .. }, memory) = self.at(worker)?;
        *serving = true;
        let (mut ticket, mut decision) = gate.open(settings, body);
        let known = settings.model(Some(model.as_bytes())).zip(decision.budget);
        let choice = known.and_then(|(model, budget)| {
            let truth = (ask.input.into(), ask.output.into());
            let known = Known { model, budget, bytes, cap: ask.cap.map(u64::from), truth };
            policy.choose(&known, crowd)
        });
        if let Some(choice) = &choice {
            ticket.overrule(&choice.pool, choice.budget, choice.moved);
        } else if config.uses_load {
            gate.place(now, memory, &config, &mut ticket, &mut decision);
        }
        if config.tenants.is_none() {
            gate.occupy(now, memory, &config, &mut ticket);
        }
        let admitted = config.tenants.as_ref().map(|tenants| {
            let of_route = settings.tenant.as_deref().unwrap_or(tenant);
            let who = tenants.named(of_route.as_bytes()).unwrap_or_else(|| tenants.default());
            let hold = whole.filter(|_| !dry_run).map(|bytes| (name, bytes));
            let admitted = admission::admit(gate, now, memory, (&config, who), &mut ticket, hold);
            if let Some(facts) = rest
                && (admitted == Admitted::Passes || dry_run)
            {
                // It has gone up, and was read to its end as it passed.
                gate.read_on(now, memory, &mut ticket, facts);
                if let Some(choice) = &choice {
                    ticket.overrule(&choice.pool, choice.budget, choice.moved);
                }
            }
            admitted
        });
        let largest = settings.model(Some(model.as_bytes())).and_then(|model| model.pools.last());
        let largest = Arc::clone(largest.unwrap_or(&settings.default_pool));
        let (pool, moved) = match choice {
            _ if dry_run => (Arc::clone(&settings.default_pool), false),
            Some(choice) => (choice.pool, choice.moved),
            None => (decision.pool, decision.reason == Reason::Spill),
        };
        let budget = decision.budget;
        Some(Opened { ticket, pool, largest, budget, moved, admitted, dry_run })
    }

    /// A request has ended.
    pub(super) fn close(
        &mut self,
        now: u64,
        worker: u32,
        ticket: Ticket,
        answer: &Answer<'_>,
    ) -> Settlement {
        let Some((worker, memory)) = self.at(worker) else { return Settlement::default() };
        worker.gate.close(Instant::from_nanos(now), memory, ticket, answer)
    }

    /// Requests that a worker held and that are decided now.
    pub(super) fn poll(&mut self, now: u64, worker: u32) -> Vec<Released> {
        let Some((worker, memory)) = self.at(worker) else { return Vec::new() };
        admission::poll(&mut worker.gate, Instant::from_nanos(now), memory)
    }

    /// How soon to poll a worker again, in nanoseconds; nothing while it holds
    /// nothing.
    pub(super) fn next_poll(&self, worker: u32) -> Option<u64> {
        let gate = &self.workers.get(worker as usize)?.gate;
        admission::next_poll(gate).map(Span::as_nanos)
    }

    /// The client of a held request has left.
    pub(super) fn leave(&mut self, worker: u32, name: u64) {
        if let Some((worker, _)) = self.at(worker) {
            worker.gate.leave(name);
        }
    }

    /// A worker's tick, once a second.
    pub(super) fn tick(&mut self, now: u64, worker: u32) {
        let (config, now) = (Arc::clone(&self.config), Instant::from_nanos(now));
        let Some((worker, memory)) = self.at(worker) else { return };
        let Worker { gate, exchange, serving, leads, .. } = worker;
        let decay = config.base().estimator.decay;
        exchange.tick(now, memory, gate.learner_mut(), decay, *serving);
        let alive = |incarnation| exchange.alive(now, incarnation);
        let tenants = config.tenants.as_ref().map_or(&[][..], Tenants::all);
        gate.ledger_mut().tick(memory, now, tenants, &config.capacities, alive);
        *leads = exchange.is_first(now);
        if *leads {
            gate.ledger().watch(memory, now, &config.capacities, config.neighbours());
        }
    }

    /// A worker asks engines how busy they are, where that is due, if it is the
    /// one that does. `replicas` has those of a pool.
    pub(super) fn scrape<'r, 'p: 'r>(
        &mut self,
        now: u64,
        worker: u32,
        replicas: &dyn Fn(&str) -> Option<&'r Replicas<'p>>,
    ) {
        let (config, now) = (Arc::clone(&self.config), Instant::from_nanos(now));
        let Some((Worker { gate, leads, scraper, .. }, memory)) = self.at(worker) else { return };
        if *leads {
            scraper.rounds(now, &config.capacities, replicas, |capacity, mean| {
                gate.ledger().report(memory, now, capacity, mean);
            });
        }
    }

    /// How often a pool began or ended to send elsewhere what it can, as each
    /// gateway saw it.
    pub(super) fn spill_changes(&mut self, now: u64, pool: &str) -> u64 {
        let (config, now) = (Arc::clone(&self.config), Instant::from_nanos(now));
        let Some(capacity) = config.capacity(pool) else { return 0 };
        let mut sum = 0;
        for (gateway, memory) in self.memories.iter_mut().enumerate() {
            let worker = self.workers.iter().find(|one| one.gateway == gateway);
            let load = worker.and_then(|one| one.gate.ledger().load(memory, now, capacity, 0));
            sum += load.map_or(0, |load| load.changes);
        }
        sum
    }

    /// Tokens and requests that are still reserved anywhere, of tenants and in
    /// pools.
    pub(super) fn open_reservations(&mut self, now: u64) -> (u64, u64) {
        let (config, now) = (Arc::clone(&self.config), Instant::from_nanos(now));
        let mut sum = (0, 0);
        for (gateway, memory) in self.memories.iter_mut().enumerate() {
            let Some(worker) = self.workers.iter().find(|one| one.gateway == gateway) else {
                continue;
            };
            for tenant in config.tenants.iter().flat_map(Tenants::all) {
                let status = worker.gate.ledger().status(memory, now, tenant);
                sum = (sum.0 + status.tokens, sum.1 + status.requests);
            }
            let all = config.tenants.as_ref().map_or(&[][..], Tenants::all);
            for pool in &config.capacities {
                let (status, _) = worker.gate.ledger().pool_status(memory, now, pool, all);
                sum = (sum.0 + status.tokens, sum.1 + status.requests);
            }
        }
        sum
    }
}

/// What a gateway reads of a request.
struct Read {
    body: Body,
    /// Bytes of the body, if all of it is there before it goes up.
    whole: Option<u64>,
    /// What is read of it when it has gone up before its end.
    rest: Option<RequestFacts>,
}

fn read(settings: &Settings, model: &str, ask: &Ask, text: Option<Tally>) -> Read {
    let cap = ask.cap.map_or(Cap::Absent, |cap| Cap::Tokens(cap.into()));
    let Some(text) = text else {
        let tokens = u64::from(ask.input);
        let mut facts = RequestFacts::chat(model, Tally::default(), 0, cap);
        (facts.token_ids, facts.largest_token_ids) = (tokens, tokens);
        return Read { body: Body::Whole(facts), whole: Some(tokens), rest: None };
    };
    let bytes = text.total() + BODY_AROUND + model.len() as u64;
    if settings.inspect == Inspect::Headers {
        return Read { body: Body::Length(Api::Chat, Some(bytes)), whole: None, rest: None };
    }
    let mut facts = RequestFacts::chat(model, text, 1, cap);
    (facts.stream, facts.include_usage) = (true, Some(true));
    if bytes <= settings.inspect_bytes_max {
        return Read { body: Body::Whole(facts), whole: Some(bytes), rest: None };
    }
    // Clients put the cap before the messages as often as after them; here it
    // comes before them, so it was read, if there is one. The rest counts as more
    // of the same.
    let rest = Some(facts.clone());
    if facts.cap == Cap::Absent {
        facts.cap = Cap::Unseen;
    }
    let unread = Some(bytes - settings.inspect_bytes_max);
    Read { body: Body::Cut { facts, unread, early: false }, whole: None, rest }
}
