//! What the streams of one instance share in one VM.

use crate::host::{self, Counter, Histogram, SharedData};
use crate::metrics::Metrics;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::config::{Config, Tenants};
use tidegate::gate::Gate;
use tidegate::share::{Exchange, Slots, Updated};
use tidegate::time::Span;

/// Instances that one VM remembers; those without streams go first.
const WORKERS_MAX: usize = 16;

/// What one configuration of an instance has in one VM.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) config: Arc<Config>,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) worker: Rc<RefCell<Worker>>,
}

/// What all configurations of an instance share: root contexts die at each
/// configuration, and what was learned must not.
pub(crate) struct Worker {
    name: String,
    pub(crate) gate: Gate,
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
        let instance = Self { worker: worker(&config.name), config: Arc::new(config), metrics };
        instance.give();
        if let Some(tenants) = &instance.config.tenants {
            for tenant in tenants.all() {
                instance.worker.borrow().gate.ledger().open(&mut SharedData, tenant);
            }
        }
        // A VM that comes after a trap continues with what the others know.
        instance.tick();
        instance
    }

    /// Starts models that have not answered from what the configuration gives.
    fn give(&self) {
        let learned = Arc::clone(&self.config.base().estimator.learned);
        self.worker.borrow_mut().gate.learner_mut().give(learned);
    }

    /// Exchanges what was learned with the other workers.
    pub(crate) fn tick(&self) {
        let decay = self.config.base().estimator.decay;
        let mut worker = self.worker.borrow_mut();
        let Worker { gate, serving, exchange, exported, .. } = &mut *worker;
        let now = host::now();
        exchange.tick(now, &mut SharedData, gate.learner_mut(), decay, *serving);
        let alive = |incarnation| exchange.alive(now, incarnation);
        let tenants = self.config.tenants.as_ref().map_or(&[][..], Tenants::all);
        let expired = gate.ledger_mut().tick(&mut SharedData, now, tenants.iter(), alive);
        self.metrics.tenants.expired(expired);
        // One worker speaks for all: gauges are not added up, and one log line
        // tells what all of them learned.
        if exchange.is_first(now) {
            let period = Span::from_secs(self.config.base().estimator.export_seconds);
            if period > Span::default() && now.since(*exported) >= period {
                *exported = now;
                log::info!("tidegate: {}: learned {}", self.config.name, gate.learner().export());
            }
            for (at, tenant) in tenants.iter().enumerate() {
                let status = gate.ledger().status(&mut SharedData, now, tenant);
                self.metrics.tenants.set(at, &status);
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
