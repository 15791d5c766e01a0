//! What all streams of one instance share in one VM.

use crate::host::{self, Counter, Histogram, SharedData};
use crate::metrics::Metrics;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::config::Config;
use tidegate::gate::Gate;
use tidegate::share::{Exchange, Slots, Updated};

/// Instances that one VM remembers; those without streams go first.
const WORKERS_MAX: usize = 16;

/// One instance of the filter in one VM.
pub(crate) struct Worker {
    pub(crate) gate: Gate,
    pub(crate) metrics: Metrics,
    /// `None` until the first request: VMs that serve none take no part.
    serving: bool,
    exchange: Exchange,
}

/// A worker, shared by its root context and its streams.
pub(crate) type Shared = Rc<RefCell<Worker>>;

thread_local! {
    /// Root contexts die at each configuration; what was learned must not. By
    /// instance name, since two instances may share the VM.
    static WORKERS: RefCell<Vec<Shared>> = const { RefCell::new(Vec::new()) };
}

impl Worker {
    /// The VM's worker for this instance, with the new configuration.
    pub(crate) fn configured(config: &Arc<Config>) -> Shared {
        let metrics = Metrics::define(config, Counter::define, Histogram::define);
        let known = WORKERS.with_borrow(|workers| {
            let same = |worker: &&Shared| worker.borrow().gate.config().name == config.name;
            workers.iter().find(same).cloned()
        });
        if let Some(worker) = known {
            let mut inner = worker.borrow_mut();
            inner.gate.reconfigure(Arc::clone(config));
            inner.metrics = metrics;
            drop(inner);
            return worker;
        }
        let worker = Rc::new(RefCell::new(Self {
            gate: Gate::new(Arc::clone(config)),
            metrics,
            serving: false,
            exchange: Exchange::new(&config.name, incarnation()),
        }));
        WORKERS.with_borrow_mut(|workers| {
            if workers.len() >= WORKERS_MAX {
                workers.retain(|worker| Rc::strong_count(worker) > 1);
            }
            workers.push(Rc::clone(&worker));
        });
        // A VM that comes after a trap continues with what the others know.
        worker.borrow_mut().tick();
        worker
    }

    /// Says that this VM serves requests.
    pub(crate) fn serve(&mut self) {
        self.serving = true;
    }

    /// Exchanges what was learned with the other workers.
    pub(crate) fn tick(&mut self) {
        let decay = self.gate.config().estimator.decay;
        let learner = self.gate.learner_mut();
        self.exchange.tick(host::now(), &mut SharedData, learner, decay, self.serving);
    }
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
