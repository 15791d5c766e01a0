//! What becomes of one request, from its client's asking to its end.

use tidegate::estimate::Tally;
use tidegate::gate::{Answer, Settlement, Ticket};
use tidegate::tenant::{Cause, Released};
use tidegate::usage::{Overflow, Usage};

use super::admission::{self, Admitted};
use super::book::{Outcome, TenantBook};
use super::gateway::Opened;
use super::scenario::FleetError;
use super::scrape;
use super::session::Session;
use super::sim::{Event, Live, Simulation, Stage, Up, broken};
use super::source::{Ask, Stream, TEMPLATE};
use super::watch::Fate;
use crate::SECOND;
use crate::engine::{Finished, Job, JobId};
use crate::policy::Policy;
use crate::rng::Pcg;

/// How long a client waits before its next attempt, after so many of them:
/// nanoseconds. That of OpenAI's clients: half a second, twice as long each time,
/// 8 s at the most, and up to a quarter less by chance.
fn backoff(attempts: u32, rng: &mut Pcg) -> u64 {
    let seconds = f64::from(1_u32 << attempts.min(4)) / 2.0;
    (seconds * (1.0 - 0.25 * rng.unit()) * SECOND as f64) as u64
}

impl Simulation<'_> {
    /// A client of a source asks.
    pub(super) fn ask(&mut self, source: u32) -> Result<(), FleetError> {
        let stream = self.streams.get_mut(source as usize);
        let session = stream.and_then(Stream::begin);
        self.take_turn(source, session)
    }

    /// A client asks the next thing of a session, or the only one.
    pub(super) fn take_turn(
        &mut self,
        source: u32,
        mut session: Option<Session>,
    ) -> Result<(), FleetError> {
        let Some(stream) = self.streams.get_mut(source as usize) else { return Ok(()) };
        let ask = match &mut session {
            Some(session) => stream.turn(session),
            None => stream.ask(),
        };
        // Each text is made by a generator of its own, so that it can be made
        // again.
        let seed = u64::from(stream.texts.next_u32()) << 32 | u64::from(stream.texts.next_u32());
        self.serials += 1;
        let live = Live {
            serial: self.serials,
            source,
            ask,
            text: Pcg::new(seed, 0),
            asked: self.now,
            attempt: 0,
            session,
            got: 0,
            stage: Stage::Away,
        };
        self.open += 1;
        if let Some(book) = self.book(source) {
            book.asked += 1;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.live.push(None);
            self.live.len() as u32 - 1
        });
        if let Some(slot) = self.live.get_mut(place as usize) {
            *slot = Some(live);
        }
        self.send(place)
    }

    /// The request of this place comes to a gateway.
    pub(super) fn send(&mut self, place: u32) -> Result<(), FleetError> {
        let now = self.now;
        let worker = self.picks.below(self.fleet.workers());
        let Some(live) = self.live.get(place as usize).and_then(Option::as_ref) else {
            return Err(broken("nobody is there to send"));
        };
        let (serial, source, attempt, ask) = (live.serial, live.source, live.attempt, live.ask);
        let text = if self.fleet.policy() == Policy::Oracle {
            None
        } else {
            let tokens = ask.input.saturating_sub(TEMPLATE);
            let Some(texts) = self.texts.get(&ask.kind) else {
                return Err(broken("a kind of text was not prepared"));
            };
            Some(texts.prompt(tokens, &mut live.text.clone()))
        };
        let bytes = text.as_ref().map(Tally::total);
        let Some(stream) = self.streams.get(source as usize) else { return Ok(()) };
        let from = stream.source();
        let timeout = from.timeout;
        let who = (from.tenant.as_str(), stream.model(&ask), from.path.as_str());
        let (pools, names) = (&self.pools, &self.scenario.config.pool_names);
        let crowd = |pool: &tidegate::config::Pool| {
            let place = names.iter().position(|name| *name == pool.name);
            let replicas = place.and_then(|place| pools.get(place));
            replicas.map_or(0.0, |pool| pool.jobs() as f64 / f64::from(pool.len()))
        };
        let name = (worker, place.into());
        let Some(opened) = self.fleet.open(now, name, who, &ask, text, &crowd) else {
            return Err(broken("a worker is lost"));
        };
        self.note(|record, _| record.opened(&ask, bytes, &opened));
        let admitted = opened.admitted.filter(|_| !opened.dry_run);
        if let Some(Admitted::Refused { cause, retry_after }) = admitted {
            return self.refused(place, cause, retry_after);
        }
        if let Some(timeout) = timeout {
            self.at(now.saturating_add(timeout), Event::Timeout { place, serial, attempt });
        }
        if admitted != Some(Admitted::Held) {
            return self.go_up(place, worker, &ask, opened);
        }
        if let Some(Some(live)) = self.live.get_mut(place as usize) {
            live.stage = Stage::Held { worker, opened };
        }
        if let Some(book) = self.book(source) {
            book.held += 1;
        }
        self.hurry(worker);
        Ok(())
    }

    /// A client is sent away, and comes back if it is told when and still wants.
    fn refused(
        &mut self,
        place: u32,
        cause: Cause,
        retry_after: Option<u64>,
    ) -> Result<(), FleetError> {
        let Some(Some(live)) = self.live.get_mut(place as usize) else {
            return Err(broken("nobody is there to be refused"));
        };
        let (serial, source) = (live.serial, live.source);
        let retries = self.scenario.sources.get(source as usize).map_or(0, |from| from.retries);
        let comes_back = retry_after.filter(|_| live.attempt < retries);
        // The time-out of this attempt no longer counts.
        live.attempt += u32::from(comes_back.is_some());
        if let Some(book) = self.book(source) {
            book.sent_away += u64::from(retry_after.is_some());
            book.retries += u64::from(comes_back.is_some());
        }
        let Some(seconds) = comes_back else {
            return self.end(place, Outcome::Refused(cause));
        };
        let at = self.now.saturating_add(seconds.saturating_mul(SECOND));
        self.at(at, Event::Return { place, serial });
        Ok(())
    }

    /// A worker looks again soon, as long as it holds anything.
    fn hurry(&mut self, worker: u32) {
        let Some(pause) = self.fleet.next_poll(worker) else { return };
        let hurried = self.hurried.get_mut(worker as usize);
        if hurried.is_some_and(|hurried| !std::mem::replace(hurried, true)) {
            self.at(self.now + pause, Event::Poll(worker));
        }
    }

    /// A worker lets go what it holds and may, and refuses what waited too long.
    pub(super) fn release(&mut self, worker: u32) -> Result<(), FleetError> {
        for Released { id, waited, admission } in self.fleet.poll(self.now, worker) {
            let place = id as u32;
            let Some(Some(live)) = self.live.get_mut(place as usize) else {
                return Err(broken("nobody waits for what is let go"));
            };
            let (source, ask) = (live.source, live.ask);
            let Stage::Held { mut opened, .. } = std::mem::replace(&mut live.stage, Stage::Away)
            else {
                return Err(broken("what is let go was not held"));
            };
            if let Some(book) = self.book(source) {
                book.waited.add(waited.as_nanos());
            }
            match admission::enter(&mut opened.ticket, admission) {
                Admitted::Passes => self.go_up(place, worker, &ask, opened)?,
                Admitted::Refused { cause, retry_after } => {
                    self.refused(place, cause, retry_after)?;
                }
                Admitted::Held => return Err(broken("what is let go is held")),
            }
        }
        self.hurry(worker);
        Ok(())
    }

    /// A request goes to its pool; or to the largest, if that one refuses it.
    fn go_up(
        &mut self,
        place: u32,
        worker: u32,
        ask: &Ask,
        opened: Opened,
    ) -> Result<(), FleetError> {
        let place_of = |name: &str| {
            let names = &self.scenario.config.pool_names;
            names.iter().position(|one| one == name).ok_or_else(|| broken("a pool is lost"))
        };
        let chosen = place_of(&opened.pool.name)?;
        let largest = place_of(&opened.largest.name)?;
        if let (Some(budget), Some(live)) = (&opened.budget, self.at_place(place)) {
            let nth = live.serial;
            self.tell_placed(nth, budget);
        }
        let reports = opened.asks_report();
        let ticket = opened.ticket;
        self.pool(chosen, |book| {
            book.sent += 1;
            book.moved += u64::from(opened.moved);
        });
        self.note(|record, now| record.sent(now, chosen, ask));
        let stands_in = |pool: usize| self.scenario.gateways.retry_too_long && largest != pool;
        let (mut pool, mut retried, mut but) = (chosen, false, None);
        if stands_in(pool) && !self.takes_its_own(pool) {
            self.pool(pool, |book| book.unreachable += 1);
            pool = largest;
            self.pool(pool, |book| book.taken_over += 1);
        }
        loop {
            let Some(replicas) = self.pools.get_mut(pool) else { return Err(broken("no pool")) };
            let picked = replicas.pick(but);
            let there = picked.filter(|replica| replicas.is_up(*replica));
            if let Some(replica) = there
                && self.fits(pool, ask)
            {
                let job = self.submit(place, pool, replica, ask)?;
                if let Some(Some(live)) = self.live.get_mut(place as usize) {
                    let up = Up { ticket, worker, chosen, pool, replica, job, retried, reports };
                    live.stage = Stage::Up(up);
                }
                self.wake(pool as u32, replica);
                return Ok(());
            }
            self.pool(pool, |book| match there {
                Some(_) => book.refused += 1,
                None => book.unreachable += 1,
            });
            if there.is_some() {
                self.note(|record, now| record.refused(now, pool));
            }
            if let Some(replica) = picked.filter(|_| there.is_none())
                && let Some(replicas) = self.pools.get_mut(pool)
            {
                replicas.pass(replica);
                but = picked;
            }
            // Once more: in the largest pool, or, where a connection failed, at
            // another replica.
            if !retried && stands_in(pool) {
                (pool, but) = (largest, None);
            } else if retried || there.is_some() || picked.is_none() {
                if there.is_some() {
                    return self.too_long(place, worker, (chosen, pool), ask, ticket, retried);
                }
                return self.unreachable(place, worker, chosen, ticket, retried);
            }
            retried = true;
            self.pool(pool, |book| book.taken_over += 1);
        }
    }

    /// A replica takes a job.
    fn submit(
        &mut self,
        place: u32,
        pool: usize,
        replica: u32,
        ask: &Ask,
    ) -> Result<JobId, FleetError> {
        let source = self.at_place(place).map_or(0, |live| live.source);
        let mut names = std::mem::take(&mut self.names);
        names.clear();
        let Some(replicas) = self.pools.get_mut(pool) else { return Err(broken("no pool")) };
        let output = ask.output.min(ask.cap.unwrap_or(u32::MAX).max(1));
        let output = output.min(replicas.window - ask.input);
        let stream = self.streams.get(source as usize);
        let names_answer = stream.is_some_and(|stream| stream.names(ask, output, &mut names));
        let (tag, prefix) = (place.into(), &*names);
        let job = Job { prefix, names_answer, tag, ..Job::new(ask.input, output) };
        let job = replicas.submit(self.now, replica, &job);
        self.names = names;
        job.ok_or_else(|| broken("a replica refuses what fits"))
    }

    /// Whether an engine takes it: by its prompt and its cap, as vLLM decides.
    fn fits(&self, pool: usize, ask: &Ask) -> bool {
        let window = self.pools.get(pool).map_or(0, |pool| pool.window);
        let least = u64::from(ask.input) + u64::from(ask.cap.unwrap_or(1).max(1));
        least <= u64::from(window)
    }

    fn too_long(
        &mut self,
        place: u32,
        worker: u32,
        (chosen, pool): (usize, usize),
        ask: &Ask,
        ticket: Ticket,
        retried: bool,
    ) -> Result<(), FleetError> {
        let config = &self.scenario.config;
        let answer = Answer {
            status: Some(400),
            overflow: Some(Overflow { input: Some(ask.input.into()), at_least: false }),
            served_by: config.pool_names.get(pool).map(String::as_bytes),
            retried,
            complete: true,
            ..Answer::default()
        };
        let settlement = self.close(worker, ticket, &answer);
        self.settle(place, chosen, &settlement);
        self.end(place, Outcome::TooLong)
    }

    /// A replica's next event becomes one of the loop.
    fn wake(&mut self, pool: u32, replica: u32) {
        let next = self.pools.get_mut(pool as usize).and_then(|pool| pool.wake(replica));
        if let Some(at) = next {
            self.at(at, Event::Replica { pool, replica });
        }
    }

    /// A replica runs on, and who is done goes.
    pub(super) fn run_replica(&mut self, pool: u32, replica: u32) -> Result<(), FleetError> {
        let until = self.next_time();
        let mut done = std::mem::take(&mut self.done);
        if let Some(pool) = self.pools.get_mut(pool as usize) {
            pool.run(replica, self.now, until, &mut done);
        }
        for finished in done.drain(..) {
            self.now = finished.at;
            self.answered(&finished)?;
        }
        self.done = done;
        self.wake(pool, replica);
        Ok(())
    }

    /// A replica has given the last token of an answer.
    fn answered(&mut self, done: &Finished) -> Result<(), FleetError> {
        let place = done.tag as u32;
        let live = self.live.get_mut(place as usize).and_then(Option::as_mut);
        let Some(live) = live else { return Err(broken("an answer for nobody")) };
        let (source, asked, ask, nth) = (live.source, live.asked, live.ask, live.serial);
        live.got = done.output_tokens;
        let Stage::Up(up) = std::mem::replace(&mut live.stage, Stage::Away) else {
            return Err(broken("an answer to what was not sent"));
        };
        if up.job != done.job {
            return Err(broken("another's answer"));
        }
        let config = &self.scenario.config;
        let usage = Usage {
            input: Some(done.prompt_tokens.into()),
            cached: Some(done.cached_tokens.into()),
            output: Some(done.output_tokens.into()),
            reasoning: None,
        };
        let by_cap = ask.cap == Some(done.output_tokens);
        let replicas = self.pools.get(up.pool).filter(|_| up.reports);
        let report = replicas.and_then(|pool| pool.reading(up.replica)).map(scrape::in_answer);
        let answer = Answer {
            status: Some(200),
            usage: Some(Ok(usage)),
            stopped_by_length: by_cap || done.output_tokens < ask.output,
            served_by: config.pool_names.get(up.pool).map(String::as_bytes),
            retried: up.retried,
            complete: true,
            output_seen: done.output_tokens.into(),
            report,
            ..Answer::default()
        };
        let settlement = self.close(up.worker, up.ticket, &answer);
        self.settle(place, up.chosen, &settlement);
        self.pool(up.pool, |book| book.served(done));
        self.note(|record, _| record.served(up.pool, done));
        let gaps = u64::from(done.output_tokens.saturating_sub(1));
        self.tell(&Fate {
            nth,
            pool: Some(up.pool),
            first_token: done.first_token - asked,
            per_token: (done.at - done.first_token).checked_div(gaps),
            truncated: !by_cap && done.output_tokens < ask.output,
            retried: up.retried,
        });
        if let Some(book) = self.book(source) {
            book.first_token.add(done.first_token - asked);
            book.whole.add(done.at - asked);
        }
        self.end(place, Outcome::Answered)
    }

    /// A client leaves before its answer has ended.
    pub(super) fn leave(&mut self, place: u32, why: Outcome) -> Result<(), FleetError> {
        self.let_go(place)?;
        self.end(place, why)
    }

    /// A client has waited long enough.
    pub(super) fn time_out(&mut self, place: u32) -> Result<(), FleetError> {
        self.let_go(place)?;
        let source = self.at_place(place).map_or(0, |live| live.source);
        let again = self.scenario.sources.get(source as usize).is_some_and(|s| s.retry_timeouts);
        if again {
            self.failed(place, Outcome::TimedOut)
        } else {
            self.end(place, Outcome::TimedOut)
        }
    }

    /// An attempt came to nothing: its client tries again, or this is its end.
    pub(super) fn failed(&mut self, place: u32, outcome: Outcome) -> Result<(), FleetError> {
        let live = self.live.get_mut(place as usize).and_then(Option::as_mut);
        let Some(live) = live else { return Err(broken("nobody is there to fail")) };
        let (serial, source, attempt) = (live.serial, live.source, live.attempt);
        let retries = self.scenario.sources.get(source as usize).map_or(0, |from| from.retries);
        // The time-out of this attempt no longer counts.
        live.attempt += 1;
        if attempt >= retries {
            return self.end(place, outcome);
        }
        if let Some(book) = self.book(source) {
            book.retries += 1;
        }
        let at = self.now.saturating_add(backoff(attempt, &mut self.backoff));
        self.at(at, Event::Return { place, serial });
        Ok(())
    }

    /// Nobody waits for a request any longer, wherever it is.
    fn let_go(&mut self, place: u32) -> Result<(), FleetError> {
        let live = self.live.get_mut(place as usize).and_then(Option::as_mut);
        let Some(live) = live else { return Err(broken("nobody is there to leave")) };
        let stage = std::mem::replace(&mut live.stage, Stage::Away);
        if let Stage::Held { worker, .. } = stage {
            self.fleet.leave(worker, place.into());
        } else if let Stage::Up(up) = stage {
            let replicas = self.pools.get_mut(up.pool);
            let seen = replicas.map_or(0, |pool| pool.abort(self.now, up.replica, up.job));
            let answer = Answer {
                // Headers come with the first token.
                status: (seen > 0).then_some(200),
                aborted: true,
                output_seen: seen.into(),
                retried: up.retried,
                ..Answer::default()
            };
            let settlement = self.close(up.worker, up.ticket, &answer);
            self.settle(place, up.chosen, &settlement);
            self.pool(up.pool, |book| book.left += 1);
            self.note(|record, now| record.left(now, up.pool));
            self.wake(up.pool as u32, up.replica);
        }
        Ok(())
    }

    /// What is given back may be another's.
    pub(super) fn close(&mut self, worker: u32, ticket: Ticket, answer: &Answer<'_>) -> Settlement {
        if self.fleet.next_poll(worker).is_some() {
            self.polls.push(worker);
        }
        self.fleet.close(self.now, worker, ticket, answer)
    }

    pub(super) fn settle(&mut self, place: u32, chosen: usize, settlement: &Settlement) {
        self.pool(chosen, |book| book.judged(settlement));
        self.note(|record, now| record.judged(now, chosen, settlement));
        let counts = self.now >= self.scenario.warm_up;
        if let Some(error) = settlement.error_permille.filter(|_| counts) {
            self.errors.add(error);
        }
        let Some(source) = self.at_place(place).map(|live| live.source) else { return };
        let counts = counts && self.now < self.scenario.end;
        let charged = settlement.charged.as_ref();
        let tokens = charged.map(|charged| charged.actual).or(settlement.tokens).unwrap_or(0);
        if let Some(book) = self.book(source) {
            book.settled += tokens;
            book.counted += if counts { tokens } else { 0 };
            book.refunded += charged
                .and_then(|charged| charged.settled)
                .map_or(0, |settled| settled.refunded - settled.clamped);
        }
    }

    /// A request has ended, once and for all.
    fn end(&mut self, place: u32, outcome: Outcome) -> Result<(), FleetError> {
        let live = self.live.get_mut(place as usize).and_then(Option::take);
        let Some(live) = live else { return Err(broken("a request ends twice")) };
        if !matches!(live.stage, Stage::Away) {
            return Err(broken("a request ends while somebody has it"));
        }
        self.free.push(place);
        self.open -= 1;
        if let Some(book) = self.book(live.source) {
            book.ended(outcome);
        }
        if outcome != Outcome::Answered {
            let nth = live.serial;
            self.tell(&Fate {
                nth,
                pool: None,
                first_token: 0,
                per_token: None,
                truncated: false,
                retried: false,
            });
        }
        let stream = self.streams.get_mut(live.source as usize);
        let session = live.session.filter(|_| outcome == Outcome::Answered);
        if let Some((stream, mut session)) = stream.zip(session)
            && let Some(at) = stream.next_turn(&mut session, live.got, self.now)
        {
            if stream.sends(at) {
                self.coming += 1;
                self.sessions.insert(live.serial, session);
                self.at(at, Event::Turn { source: live.source, session: live.serial });
            }
        } else {
            self.think(live.source, self.now);
        }
        Ok(())
    }

    pub(super) fn pool(&mut self, pool: usize, change: impl FnOnce(&mut super::book::PoolBook)) {
        if let Some(book) = self.pool_books.get_mut(pool) {
            change(book);
        }
    }

    fn book(&mut self, source: u32) -> Option<&mut TenantBook> {
        let place = self.tenants.get(source as usize)?;
        self.tenant_books.get_mut(*place)
    }
}
