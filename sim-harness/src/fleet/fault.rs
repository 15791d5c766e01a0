//! Replicas that go down, come back, or are slow, and what gateways know of it.

use tidegate::gate::{Answer, Missing, Ticket};

use super::book::Outcome;
use super::pool::Replicas;
use super::scenario::FleetError;
use super::sim::{Event, Simulation, Stage, broken};
use crate::SECOND;

/// Gateways look at every replica so often: the health check of
/// `envoy/envoy.yaml`. Two checks that fail in a row, and nothing is sent there;
/// one that does not, and it is in use again.
const CHECK: u64 = 5 * SECOND;

/// Envoy takes a pool for whole as long as so many times its healthy share is 1,
/// and else sends that part of its requests there: `overprovisioning_factor`.
const SPARE: f64 = 1.4;

impl Simulation<'_> {
    /// Makes an event of each beginning and end.
    pub(super) fn plan_faults(&mut self) {
        let scenario = self.scenario;
        for (at, name) in scenario.config.pool_names.iter().enumerate() {
            let pool = scenario.pools.iter().find(|pool| pool.name == *name);
            for (nth, fault) in pool.iter().flat_map(|pool| &pool.faults).enumerate() {
                let event = Event::Fault { pool: at as u32, nth: nth as u32 };
                self.at(fault.during.0, event);
                self.at(fault.during.1, event);
            }
        }
    }

    /// A fault begins or is over.
    pub(super) fn fault(&mut self, pool: u32, nth: u32) -> Result<(), FleetError> {
        let now = self.now;
        let Some(replicas) = self.pools.get_mut(pool as usize) else { return Ok(()) };
        let Some(replica) = replicas.of_fault(nth) else { return Ok(()) };
        let mut lost = Vec::new();
        if replicas.goes_down(now, replica) {
            for (place, live) in self.live.iter_mut().enumerate() {
                let Some(live) = live else { continue };
                let here = |stage: &Stage| match stage {
                    Stage::Up(up) => up.pool == pool as usize && up.replica == replica,
                    _ => false,
                };
                if here(&live.stage)
                    && let Stage::Up(up) = std::mem::replace(&mut live.stage, Stage::Away)
                {
                    lost.push((place as u32, replicas.told(replica, up.job), up));
                }
            }
        }
        replicas.refresh(now, replica)?;
        if replicas.begin_checks() {
            self.at((now / CHECK + 1) * CHECK, Event::Check(pool));
        }
        for (place, seen, up) in lost {
            // Headers come with the first token; what has begun breaks off.
            let answer = Answer {
                status: (seen > 0).then_some(200),
                usage: Some(Err(Missing::Aborted)),
                output_seen: seen.into(),
                retried: up.retried,
                ..Answer::default()
            };
            let settlement = self.close(up.worker, up.ticket, &answer);
            self.settle(place, up.chosen, &settlement);
            self.pool(up.pool, |book| book.lost += 1);
            self.failed(place, Outcome::Failed)?;
        }
        Ok(())
    }

    /// Gateways look at a pool, as long as anything is amiss.
    pub(super) fn check(&mut self, pool: u32) {
        let amiss = self.pools.get_mut(pool as usize).is_some_and(Replicas::check);
        if amiss {
            self.at(self.now + CHECK, Event::Check(pool));
        }
    }

    /// Whether a request stays in the pool that was chosen for it: so many of its
    /// replicas are down that a part goes on to the next one.
    pub(super) fn takes_its_own(&mut self, pool: usize) -> bool {
        let share = self.pools.get(pool).map_or(1.0, |pool| pool.healthy() * SPARE);
        share >= 1.0 || self.picks.chance(share)
    }

    /// No replica could be reached: the gateway answers 503 by itself.
    pub(super) fn unreachable(
        &mut self,
        place: u32,
        worker: u32,
        chosen: usize,
        ticket: Ticket,
        retried: bool,
    ) -> Result<(), FleetError> {
        if self.at_place(place).is_none() {
            return Err(broken("nobody is there to be told"));
        }
        let answer = Answer { complete: true, retried, ..Answer::default() };
        let settlement = self.close(worker, ticket, &answer);
        self.settle(place, chosen, &settlement);
        self.failed(place, Outcome::Failed)
    }
}
