//! The event loop: one heap, ordered by time and then by the order in which
//! events were made. At one instant replicas come first: a replica has to have
//! run to an instant before it is given something then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate::config::Tenants;
use tidegate::gate::Ticket;
use tidegate::pool::Budget;

use super::book::{Outcome, PoolBook, TenantBook};
use super::gateway::{Fleet, Opened};
use super::pool::Replicas;
use super::record::Recorder;
use super::report::Report;
use super::scenario::{Arrivals, FleetError, Scenario};
use super::scrape;
use super::session::Session;
use super::source::{Ask, BACKOFF, Stream, WORKERS};
use super::texts::Prepared;
use super::watch::{Fate, Watch};
use crate::SECOND;
use crate::engine::{Finished, JobId};
use crate::histogram::Histogram;
use crate::rng::Pcg;
use crate::texts::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A source's next request comes.
    Arrive(u32),
    /// A client of a source asks anew.
    Client(u32),
    /// A client that was sent away comes back.
    Return { place: u32, serial: u64 },
    /// A client has waited long enough.
    Timeout { place: u32, serial: u64, attempt: u32 },
    /// Something happens in a replica.
    Replica { pool: u32, replica: u32 },
    /// A worker's tick.
    Tick(u32),
    /// A worker looks whether engines are to be asked how busy they are.
    Scrape(u32),
    /// A worker that holds requests looks again whether they may go.
    Poll(u32),
    /// A session's client takes its next turn.
    Turn { source: u32, session: u64 },
    /// Something begins to happen to a replica, or is over.
    Fault { pool: u32, nth: u32 },
    /// A gateway looks which replicas of a pool answer.
    Check(u32),
    /// Nobody waits any longer.
    Cut,
}

/// When; whether it is not a replica's; the how-manieth it is that was made.
type Entry = (u64, bool, u64, Event);

/// A request whose client waits.
#[derive(Debug)]
pub(super) struct Live {
    /// Never used twice, unlike its place.
    pub(super) serial: u64,
    pub(super) source: u32,
    pub(super) ask: Ask,
    /// Makes the text again if the client has to come back.
    pub(super) text: Pcg,
    /// When its client first asked.
    pub(super) asked: u64,
    /// Times that its client came back.
    pub(super) attempt: u32,
    /// It is a turn of this session, and its answer had so many tokens.
    pub(super) session: Option<Session>,
    pub(super) got: u32,
    pub(super) stage: Stage,
}

/// Where a request is.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its client waits to come back, or it is on its way.
    Away,
    /// A worker holds it.
    Held {
        /// Which one.
        worker: u32,
        /// What was decided but for its admission.
        opened: Opened,
    },
    /// A replica has it.
    Up(Up),
}

/// A request that a gateway let through.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) ticket: Ticket,
    pub(super) worker: u32,
    /// The pool that the gate chose, and the one that serves.
    pub(super) chosen: usize,
    pub(super) pool: usize,
    pub(super) replica: u32,
    pub(super) job: JobId,
    /// A smaller pool has refused it for its length.
    pub(super) retried: bool,
    /// Its answer carries what its replica says of itself.
    pub(super) reports: bool,
}

pub(super) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) events: BinaryHeap<Reverse<Entry>>,
    pub(super) made: u64,
    pub(super) now: u64,
    pub(super) fleet: Fleet,
    pub(super) pools: Vec<Replicas<'a>>,
    pub(super) streams: Vec<Stream>,
    /// Of each source, the place of its tenant's book.
    pub(super) tenants: Vec<usize>,
    pub(super) texts: BTreeMap<Kind, Prepared>,
    pub(super) picks: Pcg,
    /// Draws how long clients wait before they try again.
    pub(super) backoff: Pcg,
    /// Sessions whose clients think, by the serial of the turn before.
    pub(super) sessions: BTreeMap<u64, Session>,
    /// Names of a prompt's blocks, while it is submitted.
    pub(super) names: Vec<u64>,
    pub(super) live: Vec<Option<Live>>,
    pub(super) free: Vec<u32>,
    pub(super) open: usize,
    pub(super) serials: u64,
    /// Arrivals that are still to come.
    pub(super) coming: usize,
    pub(super) done: Vec<Finished>,
    /// Workers that may let go what they hold: something has ended there.
    pub(super) polls: Vec<u32>,
    /// Of each worker, whether it will look again by itself.
    pub(super) hurried: Vec<bool>,
    pub(super) pool_books: Vec<PoolBook>,
    pub(super) tenant_books: Vec<TenantBook>,
    pub(super) tenant_names: Vec<String>,
    pub(super) errors: Histogram,
    /// How often workers look whether engines are to be asked; nothing if none is.
    scrapes: Option<u64>,
    /// Nothing unless the run is to be looked at over time.
    pub(super) recorder: Option<Box<Recorder>>,
    watch: Option<&'a mut dyn Watch>,
    enough: bool,
}

pub(super) fn broken(what: impl Into<String>) -> FleetError {
    FleetError::Broken(what.into())
}

impl<'a> Simulation<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Result<Self, FleetError> {
        scenario.check()?;
        let config = &scenario.config;
        let fleet = Fleet::new(config, scenario.gateways, scenario.policy);
        // In the order of the document's names.
        let mut pools = Vec::new();
        for name in &config.pool_names {
            let pool = scenario.pools.iter().find(|pool| pool.name == *name);
            pools.push(Replicas::new(pool.ok_or_else(|| broken("a pool is lost"))?)?);
        }
        let mut tenant_names: Vec<String> = match &config.tenants {
            Some(tenants) => tenants.all().iter().map(|one| one.name.clone()).collect(),
            None => scenario.sources.iter().map(|source| source.tenant.clone()).collect(),
        };
        tenant_names.sort();
        tenant_names.dedup();
        let place_of = |name: &str| {
            let known =
                config.tenants.as_ref().and_then(|all: &Tenants| all.named(name.as_bytes()));
            let name = known.map_or(name, |tenant| &tenant.name);
            tenant_names.iter().position(|one| one == name).unwrap_or(0)
        };
        let mut texts = BTreeMap::new();
        for &(kind, _) in scenario.sources.iter().flat_map(|source| &source.texts) {
            texts.entry(kind).or_insert_with(|| Prepared::new(kind));
        }
        let streams = scenario.sources.iter().enumerate();
        let mut simulation = Self {
            scenario,
            events: BinaryHeap::new(),
            made: 0,
            now: 0,
            tenants: scenario.sources.iter().map(|source| place_of(&source.tenant)).collect(),
            streams: streams.map(|(nth, s)| Stream::new(s, nth, scenario.end, seed)).collect(),
            pool_books: vec![PoolBook::default(); pools.len()],
            polls: Vec::new(),
            hurried: vec![false; fleet.workers() as usize],
            fleet,
            pools,
            texts,
            picks: Pcg::new(seed, WORKERS),
            backoff: Pcg::new(seed, BACKOFF),
            sessions: BTreeMap::new(),
            names: Vec::new(),
            live: Vec::new(),
            free: Vec::new(),
            open: 0,
            serials: 0,
            coming: 0,
            done: Vec::new(),
            tenant_books: vec![TenantBook::default(); tenant_names.len()],
            tenant_names,
            errors: Histogram::default(),
            scrapes: scrape::period(config),
            recorder: None,
            watch: None,
            enough: false,
        };
        simulation.start();
        Ok(simulation)
    }

    /// Tells `watch` of every request that ends.
    pub(super) fn watched(mut self, watch: &'a mut dyn Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    pub(super) fn tell(&mut self, fate: &Fate) {
        if let Some(watch) = &mut self.watch {
            self.enough |= !watch.ended(fate);
        }
    }

    pub(super) fn tell_placed(&mut self, nth: u64, budget: &Budget) {
        if let Some(watch) = &mut self.watch {
            watch.placed(nth, budget);
        }
    }

    fn start(&mut self) {
        let workers = self.fleet.workers();
        for worker in 0..workers {
            // Spread over the second, as those of a real process are.
            let at = SECOND * u64::from(worker + 1) / u64::from(workers);
            self.at(at, Event::Tick(worker));
            if self.scrapes.is_some() {
                // After the tick of the same instant, here and from then on.
                self.at(at, Event::Scrape(worker));
            }
        }
        for source in 0..self.streams.len() as u32 {
            let clients = match self.scenario.sources.get(source as usize).map(|s| &s.arrivals) {
                Some(Arrivals::Closed { clients, .. }) => *clients,
                _ => 0,
            };
            for _ in 0..clients {
                self.think(source, 0);
            }
            self.arrive_next(source);
        }
        self.plan_faults();
        self.at(self.scenario.end.saturating_add(self.scenario.drain), Event::Cut);
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        let later = !matches!(event, Event::Replica { .. });
        self.events.push(Reverse((time, later, self.made, event)));
    }

    fn arrive_next(&mut self, source: u32) {
        let next = self.streams.get_mut(source as usize).and_then(Stream::next_arrival);
        if let Some(at) = next {
            self.coming += 1;
            self.at(at, Event::Arrive(source));
        }
    }

    pub(super) fn think(&mut self, source: u32, now: u64) {
        let next = self.streams.get_mut(source as usize).and_then(|s| s.after_think(now));
        if let Some(at) = next {
            self.coming += 1;
            self.at(at, Event::Client(source));
        }
    }

    pub(super) fn run(mut self) -> Result<Report, FleetError> {
        while self.coming > 0 || self.open > 0 {
            let Some(Reverse((at, _, _, event))) = self.events.pop() else {
                return Err(broken(format!("{} requests never end", self.open)));
            };
            self.now = at;
            match event {
                Event::Arrive(source) => {
                    self.coming -= 1;
                    self.arrive_next(source);
                    self.ask(source)?;
                }
                Event::Client(source) => {
                    self.coming -= 1;
                    self.ask(source)?;
                }
                Event::Return { place, serial } => {
                    if self.is(place, serial) {
                        self.send(place)?;
                    }
                }
                Event::Timeout { place, serial, attempt } => {
                    let same = |live: &Live| live.serial == serial && live.attempt == attempt;
                    if self.at_place(place).is_some_and(same) {
                        self.time_out(place)?;
                    }
                }
                Event::Replica { pool, replica } => self.run_replica(pool, replica)?,
                Event::Poll(worker) => {
                    if let Some(hurried) = self.hurried.get_mut(worker as usize) {
                        *hurried = false;
                    }
                    self.polls.push(worker);
                }
                Event::Tick(worker) => {
                    self.fleet.tick(at, worker);
                    self.at(at + SECOND, Event::Tick(worker));
                }
                Event::Scrape(worker) => self.scrape(worker),
                Event::Turn { source, session } => {
                    self.coming -= 1;
                    let session = self.sessions.remove(&session);
                    self.take_turn(source, session)?;
                }
                Event::Fault { pool, nth } => self.fault(pool, nth)?,
                Event::Check(pool) => self.check(pool),
                Event::Cut => {
                    for place in 0..self.live.len() as u32 {
                        if self.at_place(place).is_some() {
                            self.leave(place, Outcome::Cut)?;
                        }
                    }
                }
            }
            // Whoever is let go may end at once, and let the next one go.
            while let Some(worker) = self.polls.pop() {
                self.release(worker)?;
            }
            if self.enough {
                return Ok(Report::new(&self));
            }
        }
        self.finish()
    }

    /// A worker may ask engines how busy they are. They have run to this instant:
    /// at one instant replicas come first.
    fn scrape(&mut self, worker: u32) {
        let (pools, names) = (&self.pools, &self.scenario.config.pool_names);
        self.fleet.scrape(self.now, worker, &|pool| {
            names.iter().position(|name| name == pool).and_then(|place| pools.get(place))
        });
        if let Some(period) = self.scrapes {
            self.at(self.now + period, Event::Scrape(worker));
        }
    }

    /// When the next event is.
    pub(super) fn next_time(&self) -> u64 {
        self.events.peek().map_or(u64::MAX, |Reverse((at, ..))| *at)
    }

    pub(super) fn at_place(&self, place: u32) -> Option<&Live> {
        self.live.get(place as usize).and_then(Option::as_ref)
    }

    fn is(&self, place: u32, serial: u64) -> bool {
        self.at_place(place).is_some_and(|live| live.serial == serial)
    }

    /// All have ended: nothing may be left.
    fn finish(mut self) -> Result<Report, FleetError> {
        for (name, book) in self.tenant_names.iter().zip(&self.tenant_books) {
            if book.asked != book.all_ended() {
                let (asked, ended) = (book.asked, book.all_ended());
                return Err(broken(format!("{asked} requests of {name} began, {ended} ended")));
            }
        }
        let jobs: usize = self.pools.iter().map(Replicas::jobs).sum();
        if jobs > 0 {
            return Err(broken(format!("{jobs} jobs are left in replicas")));
        }
        let (tokens, requests) = self.fleet.open_reservations(self.now);
        if (tokens, requests) != (0, 0) {
            return Err(broken(format!("{requests} requests hold {tokens} tokens at the end")));
        }
        for (book, name) in self.pool_books.iter_mut().zip(&self.scenario.config.pool_names) {
            book.spill_changes = self.fleet.spill_changes(self.now, name);
        }
        let record = self.take_record();
        Ok(Report { record, ..Report::new(&self) })
    }
}
