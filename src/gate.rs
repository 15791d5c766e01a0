//! The one facade: a request opens, its answer closes it.
//!
//! A driver calls [`Gate::open`] once for each request and [`Gate::close`] once
//! for the [`Ticket`] that it got; the type makes a second close impossible. A
//! ticket that is dropped teaches nothing and costs nothing.

use crate::config::{Model, Pool, Settings};
use crate::estimate::{Key, Learner, Tally};
use crate::pool::{self, Budget, Fit, Output};
use crate::request::{Api, Cap, Media, RequestFacts, Scanner};
use crate::share::Slots;
use crate::tenant::{
    Admission, Entitlement, Ledger, Need, Refusal, Reservation, Settled, Standing,
};
use crate::time::Instant;
use crate::usage::{Overflow, Usage};
use std::sync::Arc;

/// What a driver knows of a request when it must decide.
#[derive(Clone, Debug)]
pub enum Body {
    /// The facts of the whole body.
    Whole(RequestFacts),
    /// The facts of a body that was not read to its end. `known_length` says
    /// whether the unread rest is counted in.
    Cut {
        /// From [`crate::request::Scanner::cut`].
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

words! {
    /// Why a successful answer taught nothing.
    Missing {
        /// A stream that was not asked for its usage, and gave none.
        NotAsked => "not_asked",
        /// The answer carries none.
        Absent => "absent",
        /// The answer's bytes are not valid JSON.
        Unreadable => "unreadable",
        /// The answer's `content-encoding` is not one that is read.
        Encoded => "encoded",
        /// Decoding the answer would take too much memory.
        EncodedLarge => "encoded_large",
        /// The answer is neither JSON nor server-sent events.
        ContentType => "content_type",
        /// The answer broke off, or the client left, before usage came.
        Aborted => "aborted",
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

/// An open request. Give it back to [`Gate::close`].
#[derive(Debug)]
pub struct Ticket {
    pool: Arc<Pool>,
    estimated: Option<Estimated>,
    /// Bytes of a body that nobody read; `None` if not even that is known.
    unread: Option<u64>,
    /// The largest window that it may get to.
    window: u64,
    reservation: Option<Reservation>,
}

impl Ticket {
    /// The driver asked for the usage of a stream that did not.
    pub fn asked(&mut self) {
        if let Some(estimated) = &mut self.estimated {
            estimated.silent = false;
        }
    }
}

#[derive(Debug)]
struct Estimated {
    settings: Arc<Settings>,
    model: Option<Vec<u8>>,
    key: Key,
    api: Api,
    budget: Budget,
    text: Tally,
    messages: u64,
    /// Prompt tokens that were given as ids.
    token_ids: u64,
    /// The text is known whole, so its tokens can teach.
    teachable: bool,
    cap: Option<u64>,
    /// The same, if the client set it.
    asked_cap: Option<u64>,
    /// A cap may stand in what was not read.
    uncertain_cap: bool,
    prompts: u64,
    /// Sequences whose tokens the answer's usage adds up.
    answers: u64,
    silent: bool,
}

/// How a request ended.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The status of an answer that came from upstream; `None` if none came
    /// or if it was a local reply.
    pub status: Option<u16>,
    /// What the answer stated, or why that is not known.
    pub usage: Option<Result<Usage, Missing>>,
    /// A sequence ended at its limit of tokens.
    pub stopped_by_length: bool,
    /// Two sources of usage told different numbers.
    pub disagreed: bool,
    /// The answer refuses the request for its length.
    pub overflow: Option<Overflow>,
    /// The name of the pool that answered, if the driver can tell.
    pub served_by: Option<&'a [u8]>,
    /// It was not the first attempt that was answered.
    pub retried: bool,
    /// The answer ended; `false` if it broke off.
    pub complete: bool,
    /// The client left before the answer ended.
    pub aborted: bool,
    /// Output tokens that passed, as far as events or bytes tell.
    pub output_seen: u64,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Prompt and output tokens, as far as the answer stated them.
    pub usage: Usage,
    /// |estimated − actual| prompt tokens, in thousandths of the actual.
    pub error_permille: Option<u64>,
    /// Why a successful answer has no usage.
    pub missing: Option<Missing>,
    /// Two sources of usage told different numbers.
    pub disagreed: bool,
    /// Output tokens in thousandths of the client's cap.
    pub cap_use_permille: Option<u64>,
    /// It was sent to a pool that it did not fit.
    pub under_route: bool,
    /// It was sent to a larger pool than it needed.
    pub over_route: bool,
    /// The window of its pool cut its output short.
    pub truncated: bool,
    /// Another pool answered although it fitted: its own was down.
    pub spilled: bool,
    /// Another pool answered a later attempt, and the answer does not tell
    /// whether for the request's length or because its own was down.
    pub spill_unclear: bool,
    /// The estimator learned from it.
    pub learned: bool,
    /// Prompt and output tokens of a success: what the answer stated, and the
    /// estimate for what it did not; `None` if neither is there. What a quota
    /// counts.
    pub tokens: Option<u64>,
    /// What its tenant was charged in the end, in place of what it reserved.
    pub charged: Option<Charged>,
}

/// Whether a request may go up.
#[derive(Debug)]
pub enum Entry {
    /// Its tenant was charged so much.
    Charged {
        /// What it reserved.
        reserved: u64,
        /// Where the tenant stands.
        standing: Standing,
    },
    /// It may, uncharged: the tenant's account is busy.
    Uncharged,
    /// It may not. Nothing was charged.
    Refused(Refusal),
}

/// What a tenant was charged for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Whose request it was.
    pub tenant: Arc<Entitlement>,
    /// What it reserved.
    pub reserved: u64,
    /// What it used, by the tenant's weights.
    pub actual: u64,
    /// How the account took it; `None` if that has to wait for a tick.
    pub settled: Option<Settled>,
}

/// Output tokens that a model is taken to need before anything is learned.
const FIRST_OUTPUT: u64 = 1024;

/// Decides and learns for one instance. What it learned outlives any
/// configuration: settings come with each request.
#[derive(Debug)]
pub struct Gate {
    learner: Learner,
    ledger: Ledger,
}

impl Gate {
    /// A gate that knows nothing yet, of the instance of this name.
    /// `incarnation` must differ between all workers of a process, dead ones
    /// included.
    pub fn new(instance: &str, incarnation: u64) -> Self {
        Self { learner: Learner::default(), ledger: Ledger::new(instance, incarnation) }
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
    pub fn open(&self, settings: &Arc<Settings>, body: Body) -> (Ticket, Decision) {
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
        if cut && facts.model.is_none() && settings.names_models() {
            let unread = seen.unread().map(|unread| unread.saturating_add(facts.text.total()));
            return plain(settings, Reason::InspectLimit, unread);
        }
        // Of a model that nobody serves as far as we know: all its bytes count.
        let known_bytes = seen.unread().map(|unread| unread.saturating_add(facts.weight()));
        let found = settings.model(facts.model.as_deref()).and_then(|model| {
            let estimated = self.estimate(settings, model, facts, seen);
            let (pool, fit) = match seen {
                Seen::Nothing | Seen::CutBlind { .. } => (model.pools.last()?, Fit::Largest),
                _ => pool::choose(model, estimated.0.budget.fit)?,
            };
            Some((Arc::clone(pool), fit, estimated))
        });
        let Some((pool, fit, (estimated, unreadable))) = found else {
            return plain(settings, Reason::UnknownModel, known_bytes);
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
            window: settings.largest_window(),
            reservation: None,
        };
        (ticket, Decision { pool, reason, budget, unreadable })
    }

    fn estimate(
        &self,
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
        let tokens = |text| self.learner.estimate(estimator, key, text, facts.messages);
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
            text: facts.text,
        };
        (estimated, facts.unreadable > 0)
    }

    /// Charges an open request to its tenant, if all of the tenant's limits
    /// cover it. A request that asks for no tokens counts as one request.
    pub fn admit(
        &self,
        now: Instant,
        slots: &mut impl Slots,
        tenant: &Arc<Entitlement>,
        ticket: &mut Ticket,
    ) -> Entry {
        let need = ticket.need(tenant);
        let admission = self.ledger.admit(slots, now, tenant, need);
        match admission {
            Admission::Admitted(reservation, standing) => {
                let reserved = reservation.reserved();
                ticket.reservation = Some(reservation);
                Entry::Charged { reserved, standing }
            }
            Admission::Uncharged => Entry::Uncharged,
            Admission::Refused(refusal) => Entry::Refused(refusal),
        }
    }

    /// Closes a request: judges the decision by the answer, learns from it if
    /// it is a success from upstream that states its usage, and settles what
    /// its tenant is charged.
    pub fn close(
        &mut self,
        now: Instant,
        slots: &mut impl Slots,
        mut ticket: Ticket,
        answer: &Answer<'_>,
    ) -> Settlement {
        let reservation = ticket.reservation.take();
        let mut settlement = self.judge(now, &ticket, answer);
        settlement.charged = reservation.map(|reservation| {
            let actual = used(&reservation, &ticket, answer, &settlement);
            let (tenant, reserved) = (Arc::clone(reservation.tenant()), reservation.reserved());
            let settled = self.ledger.settle(slots, now, reservation, actual);
            Charged { tenant, reserved, actual, settled }
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
        if success {
            let budget = ticket.estimated.as_ref().map(|estimated| estimated.budget);
            settlement.tokens = tokens(&so_far(settlement.usage, answer), budget);
        }
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

impl Ticket {
    /// Prompt tokens that stand in what was not read, at the most: a byte may be
    /// one, and no engine takes more than its window.
    fn unread_tokens(&self) -> u64 {
        self.unread.map_or(self.window, |bytes| bytes.min(self.window))
    }

    /// What the request may need.
    fn need(&self, tenant: &Entitlement) -> Need {
        let unread = self.unread_tokens();
        let weights = &tenant.weights;
        match &self.estimated {
            Some(estimated) if unread == 0 => tenant.need(&estimated.budget),
            Some(estimated) => {
                let known = tenant.need(&estimated.budget);
                let unread = weights.most(unread, 0);
                Need {
                    charge: known.charge.max(unread),
                    tokens: known.tokens.max(self.unread_tokens()),
                }
            }
            None => Need { charge: weights.most(unread, 0), tokens: unread },
        }
    }
}

/// What an ended request is charged.
fn used(
    reservation: &Reservation,
    ticket: &Ticket,
    answer: &Answer<'_>,
    settlement: &Settlement,
) -> u64 {
    let estimated = ticket.estimated.as_ref();
    let input = estimated.map_or_else(|| ticket.unread_tokens(), |one| one.budget.input);
    let weights = &reservation.tenant().weights;
    // What nobody stated is taken from the estimate and from what passed, and
    // is never more than was reserved.
    let guess = |output| weights.most(input, output).min(reservation.reserved());
    match answer.status {
        Some(200..300) => {
            let usage = so_far(settlement.usage, answer);
            let whole = usage.output.is_some() || answer.complete;
            let stated = weights.of(&usage).filter(|_| whole);
            stated.unwrap_or_else(|| guess(answer.output_seen))
        }
        // The engine was at work for a client that did not wait.
        None if answer.aborted => guess(0),
        // It failed, refused, or was never reached.
        _ => 0,
    }
}

/// What an answer used as far as it came: one that broke off may have stated
/// no more than the beginning of its output.
fn so_far(usage: Usage, answer: &Answer<'_>) -> Usage {
    let seen = |output: u64| if answer.complete { output } else { output.max(answer.output_seen) };
    Usage { output: usage.output.map(seen), ..usage }
}

fn tokens(usage: &Usage, budget: Option<Budget>) -> Option<u64> {
    let input = usage.input.or(budget.map(|budget| budget.input));
    let output = usage.output.or(budget.map(|budget| budget.reserve.saturating_sub(budget.input)));
    let known = input.is_some() || output.is_some();
    known.then(|| input.unwrap_or(0).saturating_add(output.unwrap_or(0)))
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
        window: settings.largest_window(),
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

impl Estimated {
    fn pools(&self) -> &[Arc<Pool>] {
        self.settings.model(self.model.as_deref()).map_or(&[], |model| &model.pools)
    }

    fn is_largest(&self, pool: &Pool) -> bool {
        self.pools().last().is_some_and(|largest| largest.name == pool.name)
    }

    /// In a dry run the request went where it would have gone without us.
    fn dry_run(&self) -> bool {
        self.settings.dry_run
    }

    /// Compares where the request went with what it turned out to need.
    fn judge(&self, chosen: &Pool, answer: &Answer<'_>, settlement: &mut Settlement) {
        let elsewhere = answer.served_by.is_some_and(|name| name != chosen.name.as_bytes());
        let elsewhere = elsewhere && !self.dry_run();
        let usage = settlement.usage;
        // Several prompts share one usage: none of them can be judged alone.
        let (Some(input), 1) = (usage.input.filter(|input| *input > 0), self.prompts) else {
            settlement.spilled = elsewhere && !answer.retried;
            settlement.spill_unclear = elsewhere && answer.retried;
            return;
        };
        let output = usage.output.unwrap_or(0).div_ceil(self.answers);
        let used = input.saturating_add(output);
        let needed = input.saturating_add(self.cap.unwrap_or(output));
        // An engine that stops at its window stops there exactly.
        let by_window = used == chosen.max_model_len && self.cap.is_none_or(|cap| output < cap);
        // One that says so may count a little less than it held.
        let near = used >= chosen.max_model_len - chosen.max_model_len / 32;
        let uncapped = self.cap.is_none() && !self.uncertain_cap;
        let says_so = answer.stopped_by_length && uncapped && near;
        settlement.truncated = !elsewhere && !self.dry_run() && (by_window || says_so);
        settlement.under_route =
            !self.is_largest(chosen) && (settlement.truncated || needed > chosen.max_model_len);
        settlement.spilled = elsewhere && !settlement.under_route;
        // A part of an answer, or a cap that nobody read, is no proof that less
        // would have done.
        if answer.complete && !self.uncertain_cap {
            let mut smaller = self.pools().iter().take_while(|pool| pool.name != chosen.name);
            settlement.over_route = smaller.any(|pool| needed <= pool.threshold);
        }
    }
}

#[cfg(test)]
mod tests;
