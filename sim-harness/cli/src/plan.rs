//! The planner's simulations on several threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_sim::plan::{Outcome, PlanError, Runner, StepTimes, Trial};

type Done = (usize, Result<Outcome, PlanError>);

/// Hands trials to threads that live as long as the plan is made: each keeps its
/// own step times.
struct Threads {
    work: Sender<(usize, Trial)>,
    done: Receiver<Done>,
}

impl Runner for Threads {
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        for (nth, trial) in trials.iter().enumerate() {
            self.work.send((nth, trial.clone())).map_err(|_| PlanError::Stopped)?;
        }
        let mut all: Vec<Option<Result<Outcome, PlanError>>> = Vec::new();
        all.resize_with(trials.len(), || None);
        for _ in trials {
            let (nth, outcome) = self.done.recv().map_err(|_| PlanError::Stopped)?;
            if let Some(slot) = all.get_mut(nth) {
                *slot = Some(outcome);
            }
        }
        // In their order, so that the first error is the same each time.
        all.into_iter().map(|outcome| outcome.unwrap_or(Err(PlanError::Stopped))).collect()
    }
}

/// Calls `plan` with a runner of so many threads; 0: one a core.
pub fn with_threads<T>(threads: usize, plan: impl FnOnce(&mut dyn Runner) -> T) -> T {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores() } else { threads };
    let (work, trials) = channel::<(usize, Trial)>();
    let (outcomes, done) = channel::<Done>();
    let trials = Arc::new(Mutex::new(trials));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (trials, outcomes) = (Arc::clone(&trials), outcomes.clone());
            scope.spawn(move || {
                let mut bench = StepTimes::default();
                loop {
                    let next = trials.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    // The plan is made: nobody sends any more.
                    let Ok((nth, trial)) = next else { return };
                    if outcomes.send((nth, trial.run(&mut bench))).is_err() {
                        return;
                    }
                }
            });
        }
        // Only the threads hold it now: if all have died, nobody waits for them.
        drop(outcomes);
        let mut runner = Threads { work, done };
        plan(&mut runner)
    })
}
