//! What the streams of one instance share in one VM.

use crate::held::{self, Held};
use crate::host::{self, Counter, Histogram, SharedData};
use crate::metrics::Metrics;
use crate::scrape::{self, Scraper};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::config::{Config, Tenants};
use tidegate::gate::Gate;
use tidegate::share::{Exchange, Slots, Updated};
use tidegate::tenant::{Entitlement, HOLD_TICK};
use tidegate::time::Span;

/// How often workers exchange what they learned.
const TICK: Duration = Duration::from_secs(1);
/// Instances that one VM remembers; those without streams go first.
const WORKERS_MAX: usize = 16;

/// What one configuration of an instance has in one VM.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) config: Arc<Config>,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) worker: Rc<RefCell<Worker>>,
    pub(crate) scraper: Rc<Scraper>,
    ticks: Rc<Ticks>,
}

/// When this configuration ticks.
struct Ticks {
    /// While nothing is held.
    calm: Duration,
    period: Cell<Duration>,
    /// When workers last exchanged what they learned.
    exchanged: Cell<tidegate::time::Instant>,
    /// Whether this worker does what one is to do for all.
    leads: Cell<bool>,
}

/// What all configurations of an instance share: root contexts die at each
/// configuration, and what was learned must not.
pub(crate) struct Worker {
    name: String,
    pub(crate) gate: Gate,
    /// Requests that the gate holds, by their contexts.
    pub(crate) held: BTreeMap<u64, Held>,
    /// VMs that serve no request take no part in the exchange.
    serving: bool,
    exchange: Exchange,
    /// When what was learned was last logged.
    exported: tidegate::time::Instant,
}

thread_local! {
    static WORKERS: RefCell<Vec<Rc<RefCell<Worker>>>> = const { RefCell::new(Vec::new()) };
}

impl Instance {
    pub(crate) fn new(config: Config) -> Self {
        let metrics = Rc::new(Metrics::define(&config, Counter::define, Histogram::define));
        let interval = config.scrape_interval().map(|span| Duration::from_nanos(span.as_nanos()));
        let ticks = Ticks {
            calm: interval.map_or(TICK, |interval| interval.min(TICK)),
            period: Cell::new(Duration::ZERO),
            exchanged: Cell::default(),
            leads: Cell::default(),
        };
        let (worker, config) = (worker(&config.name), Arc::new(config));
        let (scraper, ticks) = (Rc::default(), Rc::new(ticks));
        let instance = Self { config, metrics, worker, scraper, ticks };
        instance.give();
        instance.worker.borrow().gate.ledger().open(
            &mut SharedData,
            instance.tenants(),
            &instance.config.capacities,
        );
        // A VM that comes after a trap continues with what the others know.
        instance.exchange();
        instance.tick_every(instance.ticks.calm);
        instance
    }

    fn tenants(&self) -> &[Arc<Entitlement>] {
        self.config.tenants.as_ref().map_or(&[], Tenants::all)
    }

    /// Whether answers tell where their tenant stands.
    pub(crate) fn headers(&self) -> bool {
        self.config.tenants.as_ref().is_some_and(|tenants| tenants.headers)
    }

    /// Something is held: looks more often whether it may go.
    pub(crate) fn hurry(&self) {
        self.tick_every(Duration::from_nanos(HOLD_TICK.as_nanos()));
    }

    fn tick_every(&self, period: Duration) {
        if self.ticks.period.replace(period) != period {
            host::tick_every(period);
        }
    }

    /// A tick, of the root context of this configuration.
    pub(crate) fn tick(&self, context: u32) {
        held::release(&self.worker, context);
        let hurried = self.ticks.period.get() < TICK;
        if self.worker.borrow().gate.next_wake().is_none() {
            self.tick_every(self.ticks.calm);
        }
        let now = host::now();
        let since = now.since(self.ticks.exchanged.get());
        if !hurried || u128::from(since.as_nanos()) >= TICK.as_nanos() {
            self.exchange();
        }
        if self.ticks.leads.get() {
            scrape::begin(self, now);
        }
    }

    /// Starts models that have not answered from what the configuration gives.
    fn give(&self) {
        let learned = Arc::clone(&self.config.base().estimator.learned);
        self.worker.borrow_mut().gate.learner_mut().give(learned);
    }

    /// Exchanges what was learned with the other workers, and looks after the
    /// accounts.
    fn exchange(&self) {
        let decay = self.config.base().estimator.decay;
        let mut worker = self.worker.borrow_mut();
        let Worker { gate, serving, exchange, exported, .. } = &mut *worker;
        let now = host::now();
        self.ticks.exchanged.set(now);
        exchange.tick(now, &mut SharedData, gate.learner_mut(), decay, *serving);
        let alive = |incarnation| exchange.alive(now, incarnation);
        let (tenants, pools) = (self.tenants(), &*self.config.capacities);
        let ticked = gate.ledger_mut().tick(&mut SharedData, now, tenants, pools, alive);
        self.metrics.tenants.ticked(&ticked, host::conflicts());
        // One worker speaks for all: gauges are not added up, and one log line
        // tells what all of them learned.
        self.ticks.leads.set(exchange.is_first(now));
        if self.ticks.leads.get() {
            let period = Span::from_secs(self.config.base().estimator.export_seconds);
            if period > Span::default() && now.since(*exported) >= period {
                *exported = now;
                log::info!("tidegate: {}: learned {}", self.config.name, gate.learner().export());
            }
            for (at, tenant) in tenants.iter().enumerate() {
                let status = gate.ledger().status(&mut SharedData, now, tenant);
                self.metrics.tenants.set(at, &status);
            }
            let mut all = vec![0_u64; tenants.len()];
            let ledger = gate.ledger();
            ledger.watch(&mut SharedData, now, pools, self.config.neighbours());
            for (at, capacity) in pools.iter().enumerate() {
                let load = ledger.load(&mut SharedData, now, capacity, 0).unwrap_or_default();
                let (status, served) = ledger.pool_status(&mut SharedData, now, capacity, tenants);
                self.metrics.pools.set(at, &status, &load);
                self.metrics.pools.reported(at, &load);
                for (all, served) in all.iter_mut().zip(served) {
                    *all = all.saturating_add(served);
                }
            }
            if !pools.is_empty() {
                self.metrics.tenants.set_shares(all);
            }
        }
    }
}

impl Worker {
    /// Says that this VM serves requests.
    pub(crate) fn serve(&mut self) {
        self.serving = true;
    }
}

/// The VM's worker of this name.
fn worker(name: &str) -> Rc<RefCell<Worker>> {
    let known = WORKERS
        .with_borrow(|workers| workers.iter().find(|one| one.borrow().name == name).cloned());
    if let Some(worker) = known {
        return worker;
    }
    let incarnation = incarnation();
    let worker = Worker {
        name: name.to_owned(),
        gate: Gate::new(name, incarnation),
        held: BTreeMap::new(),
        serving: false,
        exchange: Exchange::new(name, incarnation),
        exported: host::now(),
    };
    let worker = Rc::new(RefCell::new(worker));
    WORKERS.with_borrow_mut(|workers| {
        if workers.len() >= WORKERS_MAX {
            workers.retain(|worker| Rc::strong_count(worker) > 1);
        }
        workers.push(Rc::clone(&worker));
    });
    worker
}

/// A number that no other VM of this process has or had.
fn incarnation() -> u64 {
    let mut count = 0;
    let updated = SharedData.update("tidegate.1.incarnations", &mut |bytes| {
        let known = bytes.and_then(|bytes| bytes.first_chunk().copied());
        count = known.map_or(0, u64::from_le_bytes).wrapping_add(1);
        Some(count.to_le_bytes().to_vec())
    });
    match updated {
        Updated::Done => count,
        // The clock's nanoseconds with the highest bit are as good as unique.
        Updated::Busy | Updated::Failed => host::now().as_nanos() | 1 << 63,
    }
}
