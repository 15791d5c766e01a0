//! The one facade: a request opens, its answer closes it.
//!
//! A driver calls [`Gate::open`] once for each request and [`Gate::close`] once
//! for the [`Ticket`] that it got; the type makes a second close impossible. A
//! ticket that is dropped teaches nothing and costs nothing.

mod answer;
mod ticket;

use crate::config::{Config, Model, Pool, Settings};
use crate::estimate::{Key, Learner, hash};
use crate::pool::{self, Budget, Fit, Load, Output};
use crate::request::{Api, Cap, Media, RequestFacts, Scanner};
use crate::share::Slots;
use crate::tenant::{
    Actual, Admission, Ask, Entitlement, HOLD_TICK, Hold, Ledger, Need, Queue, Released, Settled,
};
use crate::time::{Instant, Span};
use crate::usage::Overflow;
pub use answer::{Answer, Charged, Missing, Settlement};
use std::sync::Arc;
use ticket::Estimated;
pub use ticket::Ticket;

/// What a driver knows of a request when it must decide.
#[derive(Clone, Debug)]
pub enum Body {
    /// The facts of the whole body.
    Whole(RequestFacts),
    /// A body that was not read to its end.
    Cut {
        /// From [`crate::request::Scanner::cut`]; the unread rest is counted in
        /// if its length is known.
        facts: RequestFacts,
        /// Bytes that were not read; `None` if the length is not known.
        unread: Option<u64>,
        /// It was not read on because [`surely_largest`] said so.
        early: bool,
    },
    /// Nothing but the length, if that: the body is not looked at.
    Length(Api, Option<u64>),
    /// The body, of so many bytes if that is known, is not the JSON that its
    /// path promises.
    Unparsed(Option<u64>),
    /// Not a request that is looked at. Its body has so many bytes, if that is
    /// known.
    NotInspected(Option<u64>),
}

words! {
    /// Why a request goes where it goes.
    Reason {
        /// The smallest pool whose threshold holds it.
        Threshold => "threshold",
        /// Only the largest pool holds it.
        Largest => "largest",
        /// No pool holds it; the largest gets it.
        TooLarge => "too_large",
        /// Its own pool is under pressure, and this one has room for it.
        Spill => "spill",
        /// Decided before the body's end: what was read is too much for every
        /// pool but the largest.
        Early => "early",
        /// Decided before the body's end.
        InspectLimit => "inspect_limit",
        /// No known path: the body's bytes were counted.
        UnknownPath => "unknown_path",
        /// Decided from the length alone.
        ContentLength => "content_length",
        /// The length is not known: the largest pool.
        NoLength => "no_length",
        /// The body is not JSON: the default pool.
        Unparsed => "unparsed",
        /// No model of the configuration matches: the default pool.
        UnknownModel => "unknown_model",
        /// Not a request that is looked at: the default pool.
        NotInspected => "not_inspected",
    }
}

/// Where a request goes. `pool` is a pool of the settings it was opened with.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Why.
    pub reason: Reason,
    /// What it is taken to need; `None` if it was not estimated.
    pub budget: Option<Budget>,
    /// A cap, `n` or `best_of` was there but unreadable.
    pub unreadable: bool,
}

/// Output tokens that a model is taken to need before anything is learned.
const FIRST_OUTPUT: u64 = 1024;

/// Decides and learns for one instance. What it learned outlives any
/// configuration: settings come with each request.
#[derive(Debug)]
pub struct Gate {
    learner: Learner,
    ledger: Ledger,
    queue: Queue,
}

impl Gate {
    /// A gate that knows nothing yet, of the instance of this name.
    /// `incarnation` must differ between all workers of a process, dead ones
    /// included.
    pub fn new(instance: &str, incarnation: u64) -> Self {
        Self {
            learner: Learner::default(),
            ledger: Ledger::new(instance, incarnation),
            queue: Queue::default(),
        }
    }

    /// The tenants' accounts.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The same, to settle what waits and take back what the dead hold.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// What was learned, to be exchanged with other workers.
    pub fn learner(&self) -> &Learner {
        &self.learner
    }

    /// The same, to take what other workers learned.
    pub fn learner_mut(&mut self) -> &mut Learner {
        &mut self.learner
    }

    /// Opens a request under the settings that [`Config::settings`] gave for it.
    ///
    /// [`Config::settings`]: crate::config::Config::settings
    pub fn open(&mut self, settings: &Arc<Settings>, body: Body) -> (Ticket, Decision) {
        let (facts, seen) = match body {
            Body::Whole(facts) => (facts, Seen::Whole),
            Body::Cut { facts, unread: Some(unread), early } => {
                (facts, Seen::Cut { unread, early })
            }
            Body::Cut { facts, unread: None, early } => (facts, Seen::CutBlind { early }),
            Body::Length(api, Some(bytes)) => (RequestFacts::unseen(api, bytes), Seen::Length),
            Body::Length(api, None) => (RequestFacts::unseen(api, 0), Seen::Nothing),
            Body::Unparsed(bytes) => return plain(settings, Reason::Unparsed, bytes),
            Body::NotInspected(bytes) => return plain(settings, Reason::NotInspected, bytes),
        };
        // A body that was cut before its model's name may be of any model.
        let cut = matches!(seen, Seen::Cut { .. } | Seen::CutBlind { .. });
        let api = facts.api;
        // Of a model that nobody serves as far as we know all bytes count.
        let weight = seen.unread().map(|unread| unread.saturating_add(facts.weight()));
        if cut && facts.model.is_none() && settings.names_models() {
            return plain(settings, Reason::InspectLimit, weight);
        }
        let found = settings.model(facts.model.as_deref()).and_then(|model| {
            let estimated = self.estimate(settings, model, facts, seen);
            let (pool, fit) = match seen {
                Seen::Nothing | Seen::CutBlind { .. } => (model.pools.last()?, Fit::Largest),
                _ => pool::choose(model, estimated.0.budget)?,
            };
            Some((Arc::clone(pool), fit, estimated))
        });
        let Some((pool, fit, (estimated, unreadable))) = found else {
            return plain(settings, Reason::UnknownModel, weight);
        };
        let reason = match (seen, fit) {
            _ if api == Api::Unknown => Reason::UnknownPath,
            (Seen::Cut { early: true, .. } | Seen::CutBlind { early: true }, _) => Reason::Early,
            (Seen::CutBlind { .. }, _) => Reason::InspectLimit,
            (Seen::Nothing, _) => Reason::NoLength,
            (_, Fit::TooLarge) => Reason::TooLarge,
            (Seen::Cut { .. }, _) => Reason::InspectLimit,
            (Seen::Length, _) => Reason::ContentLength,
            (Seen::Whole, Fit::Threshold) => Reason::Threshold,
            (Seen::Whole, Fit::Largest) => Reason::Largest,
        };
        // Where the length is not known there is no estimate to judge.
        let known = !matches!(seen, Seen::Nothing | Seen::CutBlind { .. });
        let estimated = known.then_some(estimated);
        let budget = estimated.as_ref().map(|estimated| estimated.budget);
        let ticket = Ticket {
            pool: Arc::clone(&pool),
            estimated,
            unread: seen.unread(),
            ratio_min: settings.estimator.ratio_min,
            window: settings.largest_window(),
            moved: false,
            reservation: None,
        };
        (ticket, Decision { pool, reason, budget, unreadable })
    }

    fn estimate(
        &mut self,
        settings: &Arc<Settings>,
        model: &Model,
        facts: RequestFacts,
        seen: Seen,
    ) -> (Estimated, bool) {
        let estimator = &settings.estimator;
        let name = facts.model.as_deref().unwrap_or_default();
        // A model of the configuration's `*` may be any text of a client; its
        // key is a hash in a bounded table.
        let key = Key::model(name);
        let mut tokens = |text| self.learner.estimate(estimator, key, text, facts.messages);
        let all = tokens(&facts.text);
        let largest = facts.largest.as_ref().map_or(all, tokens);
        let output = Output {
            reserve: settings.output_reserve,
            learned: self.learner.output_high(key, settings.tenant_class, FIRST_OUTPUT),
            window: model.pools.last().map_or(0, |pool| pool.max_model_len),
        };
        let media = settings.media_tokens.of(facts.media);
        let budget = Budget::new(&facts, all, largest, media, output);
        let estimated = Estimated {
            settings: Arc::clone(settings),
            key,
            api: facts.api,
            budget,
            messages: facts.messages,
            token_ids: facts.token_ids,
            teachable: matches!(seen, Seen::Whole | Seen::Length)
                && facts.media == Media::default(),
            cap: facts.output_cap(),
            asked_cap: facts.cap.tokens(),
            prompts: facts.prompts,
            uncertain_cap: facts.cap == Cap::Unseen,
            answers: facts.n.max(1),
            silent: facts.silent(),
            model: facts.model,
            text: Box::new(facts.text),
        };
        (estimated, facts.unreadable > 0)
    }

    /// Looks at the pools' loads: a request whose pool is under pressure goes to
    /// another that holds it and has room, and thresholds may have moved. To be
    /// called between [`open`](Self::open) and [`admit`](Self::admit), if
    /// [`Config::uses_load`].
    pub fn place(
        &self,
        now: Instant,
        slots: &mut dyn Slots,
        config: &Config,
        ticket: &mut Ticket,
        decision: &mut Decision,
    ) {
        let fits = matches!(
            decision.reason,
            Reason::Threshold | Reason::Largest | Reason::InspectLimit | Reason::ContentLength
        );
        let Some(estimated) = ticket.estimated.as_ref().filter(|_| fits) else { return };
        let Some(model) = estimated.settings.model(estimated.model.as_deref()) else { return };
        let tokens = ticket.tokens();
        let load = |pool: &Arc<Pool>| {
            let capacity = config.capacity(&pool.name)?;
            self.ledger.load(slots, now, capacity, tokens)
        };
        let loads: Vec<Option<Load>> = model.pools.iter().map(load).collect();
        let Some((pool, moved)) = pool::place(model, &loads, estimated.budget) else { return };
        let pool = Arc::clone(pool);
        if moved {
            decision.reason = Reason::Spill;
        } else if pool.name != decision.pool.name && decision.reason != Reason::InspectLimit {
            let largest = model.pools.last().is_some_and(|one| one.name == pool.name);
            decision.reason = if largest { Reason::Largest } else { Reason::Threshold };
        }
        ticket.moved = pool.name != decision.pool.name;
        ticket.pool = Arc::clone(&pool);
        decision.pool = pool;
    }

    /// Counts an open request among those of its pool, where nothing is limited.
    pub fn occupy(
        &self,
        now: Instant,
        slots: &mut dyn Slots,
        config: &Config,
        ticket: &mut Ticket,
    ) {
        let tokens = ticket.tokens();
        let capacity = config.capacity(&ticket.pool.name).filter(|_| tokens > 0);
        ticket.reservation = capacity
            .and_then(|capacity| self.ledger.occupy(slots, now, capacity, tokens).map(Box::new));
    }

    /// Charges an open request to its tenant and its pool, if all limits cover
    /// it and it is its turn, and tells how much it reserved. A request that asks
    /// for no tokens counts as one request.
    ///
    /// With `hold` (the driver's name for the request and the bytes of its body,
    /// all of which is there) it may be [`Admission::Held`]: then it goes on when
    /// [`poll`](Self::poll) says so.
    pub fn admit(
        &mut self,
        now: Instant,
        slots: &mut dyn Slots,
        config: &Config,
        tenant: &Arc<Entitlement>,
        ticket: &mut Ticket,
        hold: Option<(u64, u64)>,
    ) -> Admission<u64> {
        let need = ticket.need(tenant);
        // What asks for no tokens keeps no GPU busy.
        let ask = Ask {
            tenant: Arc::clone(tenant),
            who: tenant.who(),
            pool: hash(ticket.pool.name.as_bytes()),
            capacity: config.capacity(&ticket.pool.name).filter(|_| need.tokens > 0).cloned(),
            need,
        };
        let hold = hold.and_then(|(id, bytes)| {
            Some(Hold { id, bytes, limits: config.tenants.as_ref()?.hold })
        });
        ticket.enter(self.queue.admit(slots, &mut self.ledger, now, ask, hold))
    }

    /// The body of a request that went up before its end has ended: its tenant
    /// is reserved what all of it needs, if that is less. The request stays where
    /// it is. Tells what was given back.
    pub fn read_on(
        &mut self,
        now: Instant,
        slots: &mut dyn Slots,
        ticket: &mut Ticket,
        facts: RequestFacts,
    ) -> Option<Settled> {
        let cut = ticket.estimated.as_ref()?;
        let settings = Arc::clone(&cut.settings);
        let model = settings.model(facts.model.as_deref())?;
        let (mut estimated, _) = self.estimate(&settings, model, facts, Seen::Whole);
        // It may have been made to ask for its usage.
        estimated.silent = cut.silent;
        ticket.estimated = Some(estimated);
        ticket.unread = Some(0);
        let need = match ticket.reservation.as_ref()?.tenant().cloned() {
            Some(tenant) => ticket.need(&tenant),
            None => Need { charge: 0, tokens: ticket.tokens() },
        };
        self.ledger.lower(slots, now, ticket.reservation.as_mut()?, need)
    }

    /// Held requests that are decided now. To be called after each
    /// [`close`](Self::close), and again after [`next_wake`](Self::next_wake).
    /// Each admission belongs into its ticket: [`Ticket::enter`].
    pub fn poll(&mut self, now: Instant, slots: &mut dyn Slots) -> Vec<Released> {
        self.queue.poll(slots, &mut self.ledger, now)
    }

    /// How soon to [`poll`](Self::poll) again; `None` if nothing is held.
    pub fn next_wake(&self) -> Option<Span> {
        (!self.queue.is_empty()).then_some(HOLD_TICK)
    }

    /// The client of a held request has left. Its ticket is to be dropped.
    pub fn leave(&mut self, id: u64) {
        self.queue.leave(id);
    }

    /// Closes a request: judges the decision by the answer, learns from it if
    /// it is a success from upstream that states its usage, and settles what
    /// its tenant is charged.
    pub fn close(
        &mut self,
        now: Instant,
        slots: &mut dyn Slots,
        mut ticket: Ticket,
        answer: &Answer<'_>,
    ) -> Settlement {
        let reservation = ticket.reservation.take();
        let mut settlement = self.judge(now, &ticket, answer);
        let used = ticket.used(answer);
        settlement.tokens = used.and_then(|used| used.tokens());
        settlement.charged = reservation.and_then(|reservation| {
            let charge = used.map_or(0, |used| used.charge(&reservation));
            let (tenant, reserved) = (reservation.tenant().cloned(), reservation.reserved());
            // Another pool's replica says nothing of this one.
            let own = answer.served_by.is_none_or(|name| name == ticket.pool.name.as_bytes());
            let report = answer.report.filter(|_| own);
            let actual = Actual { charge, tokens: settlement.tokens.unwrap_or(0), report };
            let settled = self.ledger.settle(slots, now, *reservation, actual);
            Some(Charged { tenant: tenant?, reserved, actual: charge, settled })
        });
        settlement
    }

    fn judge(&mut self, now: Instant, ticket: &Ticket, answer: &Answer<'_>) -> Settlement {
        let mut settlement = Settlement::default();
        let Some(status) = answer.status else { return settlement };
        let success = (200..300).contains(&status);
        match answer.usage {
            Some(Ok(usage)) if success => settlement.usage = usage,
            _ => {}
        }
        settlement.disagreed = answer.disagreed;
        let Some(estimated) = &ticket.estimated else { return settlement };
        if !success {
            // A count that would have fitted is none: an error may repeat the
            // client's words.
            let exceeds = |overflow: &Overflow| {
                let needed = |input: u64| input.saturating_add(estimated.cap.unwrap_or(0));
                overflow.input.is_none_or(|input| needed(input) > ticket.pool.max_model_len)
            };
            let Some(overflow) = answer.overflow.filter(exceeds) else { return settlement };
            settlement.under_route = !estimated.is_largest(&ticket.pool) && !estimated.dry_run();
            // Whichever prompt of several it was, the refusal does not tell. A
            // bound says something only to an estimate below it.
            let news = !overflow.at_least || overflow.input > Some(estimated.budget.input);
            if let (Some(input), 1, true) = (overflow.input, estimated.prompts, news) {
                self.learn(now, estimated, input, &mut settlement);
            }
            return settlement;
        }
        settlement.missing = match answer.usage {
            Some(Ok(_)) => None,
            Some(Err(Missing::Absent)) if estimated.silent => Some(Missing::NotAsked),
            Some(Err(missing)) => Some(missing),
            None => Some(Missing::Absent),
        };
        estimated.judge(&ticket.pool, answer, &mut settlement);
        // That a smaller pool would have done was known.
        settlement.over_route &= !ticket.moved;
        self.learn_output(now, estimated, answer, &mut settlement);
        if let Some(input) = settlement.usage.input {
            self.learn(now, estimated, input, &mut settlement);
        }
        settlement
    }

    /// Learns that the prompt took so many tokens.
    fn learn(
        &mut self,
        now: Instant,
        estimated: &Estimated,
        input: u64,
        settlement: &mut Settlement,
    ) {
        let error = estimated.budget.input.abs_diff(input).saturating_mul(1000);
        settlement.error_permille = error.checked_div(input);
        if estimated.teachable && input > 0 {
            settlement.learned = self.learner.learn(
                now,
                &estimated.settings.estimator,
                estimated.key,
                &estimated.text,
                estimated.messages,
                input.saturating_sub(estimated.token_ids),
            );
        }
    }

    /// Learns how long the answer got, if it is the answer of one sequence.
    fn learn_output(
        &mut self,
        now: Instant,
        estimated: &Estimated,
        answer: &Answer<'_>,
        settlement: &mut Settlement,
    ) {
        let single = estimated.prompts == 1 && estimated.answers == 1;
        let generates = !matches!(estimated.api, Api::Embeddings | Api::Rerank);
        let Some(output) = settlement.usage.output.filter(|_| single && generates) else { return };
        if !answer.complete {
            return;
        }
        let cap = estimated.asked_cap.filter(|cap| *cap > 0);
        settlement.cap_use_permille = cap.map(|cap| output.saturating_mul(1000) / cap);
        // What the client's own cap cut short tells no length.
        if estimated.cap.is_none() || !answer.stopped_by_length {
            // How long a truncated answer would have been nobody knows: at
            // least longer.
            let needed = if settlement.truncated { output.saturating_mul(2) } else { output };
            let class = estimated.settings.tenant_class;
            self.learner.learn_output(now, estimated.key, class, needed);
        }
    }
}

/// Whether a body that is still being read surely goes to the largest pool:
/// the text so far is too much for any other at the most bytes per token that
/// can be learned. Nothing that follows can change that, unless a member is
/// repeated.
pub fn surely_largest(settings: &Settings, scanner: &Scanner) -> bool {
    if settings.names_models() && !scanner.knows_model() {
        return false;
    }
    let model = settings.model(scanner.model());
    let Some((_, smaller)) = model.and_then(|model| model.pools.split_last()) else { return false };
    let Some(most) = smaller.iter().map(|pool| pool.threshold).max() else { return false };
    scanner.text_bytes() as f64 / settings.estimator.ratio_max > most as f64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Whole,
    Cut { unread: u64, early: bool },
    CutBlind { early: bool },
    Length,
    Nothing,
}

fn plain(settings: &Arc<Settings>, reason: Reason, unread: Option<u64>) -> (Ticket, Decision) {
    let pool = Arc::clone(&settings.default_pool);
    let ticket = Ticket {
        pool: Arc::clone(&pool),
        estimated: None,
        unread,
        ratio_min: settings.estimator.ratio_min,
        window: settings.largest_window(),
        moved: false,
        reservation: None,
    };
    (ticket, Decision { pool, reason, budget: None, unreadable: false })
}

impl Seen {
    /// Bytes of the body that were not read; `None` if that is not known.
    fn unread(self) -> Option<u64> {
        match self {
            Self::Whole | Self::Length => Some(0),
            Self::Cut { unread, .. } => Some(unread),
            Self::CutBlind { .. } | Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests;
