//! One replica: an engine on the real clock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_sim::engine::{Engine, Event, Job, JobId, Load, What};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::clock::Clock;
use super::fault::Fault;
use super::metrics::{Finish, Life, Metrics};
use super::pools::Pool;

/// The pool's engine, its open sequences and its counters.
pub(super) struct Replica {
    pub(super) pool: Arc<Pool>,
    state: Mutex<State>,
    /// The engine's next event may have moved.
    wake: Notify,
}

struct State {
    clock: Clock,
    fault: Option<Fault>,
    engine: Box<dyn Engine + Send>,
    open: BTreeMap<JobId, Open>,
    metrics: Metrics,
    events: Vec<Event>,
}

struct Open {
    to: UnboundedSender<Output>,
    choice: usize,
    life: Life,
}

/// One token of one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) choice: usize,
    /// Which of the choice's tokens, from 1.
    pub(super) token: u32,
    /// Set on the choice's last token.
    pub(super) finish: Option<Finish>,
}

/// One sequence to produce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// Names of the prompt's full KV blocks. Those of its answer have none: when it
    /// is sent back, the template has one token more before it (its role), so that
    /// no block of it would be the same.
    pub(super) blocks: &'a [u64],
    /// The lower, the sooner.
    pub(super) priority: i32,
    pub(super) finish: Finish,
}

impl<'a> Wanted<'a> {
    /// What the engine is given.
    pub(super) fn job(&self) -> Job<'a> {
        Job {
            prefix: self.blocks,
            priority: self.priority,
            ..Job::new(self.prompt_tokens, self.output_tokens)
        }
    }
}

/// The tokens of one request's choices, as they come. Dropping it aborts what
/// has not ended: that is how a client's disconnect reaches the engine.
pub(super) struct Outputs {
    pub(super) receiver: UnboundedReceiver<Output>,
    replica: Arc<Replica>,
    jobs: Vec<JobId>,
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.replica.abort(&self.jobs);
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("pool", &self.pool.name).finish_non_exhaustive()
    }
}

impl Replica {
    pub(super) fn new(pool: Arc<Pool>) -> Result<Arc<Self>, String> {
        let state = State {
            clock: Clock::new(Instant::now(), pool.speed),
            fault: None,
            engine: Box::new(pool.replica()?),
            open: BTreeMap::new(),
            metrics: Metrics::new(),
            events: Vec::new(),
        };
        Ok(Arc::new(Self { pool, state: Mutex::new(state), wake: Notify::new() }))
    }

    /// Sets what is wrong with it from now on.
    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        // What is due is done first, at the old pace.
        let (_, mut state) = self.current();
        let rate = self.pool.speed * fault.map_or(1.0, Fault::rate);
        state.clock.set_rate(Instant::now(), rate);
        state.fault = fault;
        drop(state);
        self.wake.notify_one();
    }

    /// What is wrong with it.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.current().1.fault
    }

    /// The state with everything done that is due; and what time that is.
    fn current(&self) -> (u64, MutexGuard<'_, State>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: the engine's time must not go back.
        let now = state.clock.at(Instant::now());
        state.advance(now);
        (now, state)
    }

    /// Moves the engine along until the task is dropped.
    pub(super) async fn run(&self) {
        loop {
            let next = {
                let (_, state) = self.current();
                state.engine.next_event().and_then(|at| state.clock.when(at))
            };
            let woken = self.wake.notified();
            match next {
                None => woken.await,
                // Whichever comes first: another job may end sooner.
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), woken).await;
                }
            }
        }
    }

    /// Takes a request's sequences; their index is the choice.
    pub(super) fn submit(self: &Arc<Self>, wanted: &[Wanted<'_>]) -> Outputs {
        let (to, receiver) = unbounded_channel();
        let (now, mut state) = self.current();
        let mut jobs = Vec::with_capacity(wanted.len());
        for (choice, wanted) in wanted.iter().enumerate() {
            // The request was checked against the window: nothing is too long.
            let Ok(id) = state.engine.submit(now, &wanted.job()) else { continue };
            let life = Life {
                prompt_tokens: wanted.prompt_tokens,
                produced: 0,
                submitted: now,
                last: now,
                finish: wanted.finish,
            };
            state.open.insert(id, Open { to: to.clone(), choice, life });
            jobs.push(id);
        }
        drop(state);
        self.wake.notify_one();
        Outputs { receiver, replica: Arc::clone(self), jobs }
    }

    fn abort(&self, jobs: &[JobId]) {
        let (now, mut state) = self.current();
        for &id in jobs {
            if let Some(mut open) = state.open.remove(&id) {
                state.engine.abort(now, id);
                open.life.finish = Finish::Abort;
                state.metrics.ended(&open.life, now);
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    /// What it is busy with.
    pub(super) fn load(&self) -> Load {
        self.current().1.engine.load()
    }

    pub(super) fn metrics_text(&self) -> String {
        let (_, state) = self.current();
        state.metrics.text(&self.pool, state.engine.load(), state.engine.counts())
    }
}

impl State {
    fn advance(&mut self, now: u64) {
        let mut events = std::mem::take(&mut self.events);
        self.engine.advance(now, &mut events);
        for event in events.drain(..) {
            self.pass_on(event);
        }
        self.events = events;
    }

    fn pass_on(&mut self, event: Event) {
        let What::Token { nth, last } = event.what else { return };
        let Some(open) = self.open.get_mut(&event.job) else { return };
        self.metrics.token(&open.life, event.at);
        open.life.produced = nth;
        open.life.last = event.at;
        let finish = last.then_some(open.life.finish);
        // A receiver that is gone aborts by itself.
        let _ = open.to.send(Output { choice: open.choice, token: nth, finish });
        if last {
            self.metrics.ended(&open.life, event.at);
            self.open.remove(&event.job);
        }
    }
}
