//! One HTTP stream: callbacks become gate calls, decisions become effects.
//!
//! The request is held from its headers until the decision, which is taken in
//! the headers callback, at the end of the body, or at `inspect_bytes_max`; and
//! on, if it must wait for its tenant's limits or its turn ([`held`]). The answer is only watched, never paused.

use crate::answer::Watched;
use crate::decode;
use crate::held::{self, Held};
use crate::host::{self, RequestHead, SharedData};
use crate::tenant;
use crate::worker::Instance;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tidegate::config::{Inspect, Pool, Settings, StreamUsage};
use tidegate::gate::{Answer, Body, Decision, Reason, Settlement, Ticket, surely_largest};
use tidegate::pool::{ORCA_FORMAT, ORCA_HEADER, read_orca};
use tidegate::request::{self, Api, Edit, RequestFacts};
use tidegate::tenant::{Admission, Standing};

/// The most that one read brings: Envoy's default `per_connection_buffer_limit_bytes`
/// and what it may overshoot.
const READ_MAX: u64 = (1 << 20) + (64 << 10);
/// The longest body that is changed: to change one byte the VM needs a copy of
/// all of it, and VM memory never shrinks.
const EDIT_MAX: usize = 1 << 20;
/// All of the body is there.
const WHOLE: bool = true;
/// Envoy says so of an answer that came from upstream, and something else of
/// every local reply.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// Where `envoy.yaml` names the pool of an endpoint.
const SERVED_BY: [&str; 5] =
    ["xds", "upstream_host_metadata", "filter_metadata", "tidegate", "pool"];
const CODE_DETAILS: [&str; 2] = ["response", "code_details"];
const ATTEMPTS: [&str; 2] = ["upstream", "request_attempt_count"];

pub(crate) struct Stream {
    context: u32,
    /// `None` if the plugin has no valid configuration.
    instance: Option<Instance>,
    request: Option<Reading>,
    /// What went up before its end and is read on, since a tenant pays for it.
    rest: Option<request::Scanner>,
    /// Of a held request [`Held`] has it as well.
    open: Rc<RefCell<Option<Open>>>,
    answer: Watched,
}

/// What became of a request that was decided.
enum Opened {
    /// It goes up, to this pool.
    Passes(Arc<Pool>),
    /// It is to go to this pool, and waits.
    Waits(Arc<Pool>),
    /// It was answered in place of an upstream.
    Refused,
    /// There is no valid configuration.
    Unconfigured,
}

impl Opened {
    /// What the callback that decided tells the host.
    fn action(&self) -> Action {
        match self {
            Self::Refused | Self::Waits(_) => Action::Pause,
            Self::Passes(_) | Self::Unconfigured => Action::Continue,
        }
    }
}

/// A request that was decided.
pub(crate) struct Open {
    pub(crate) ticket: Ticket,
    pool: Arc<Pool>,
    api: Api,
    /// The client is not to see the usage that was asked for.
    hide: bool,
    /// The replica was asked how busy it is.
    orca: bool,
    /// Where its tenant stands, if the client is to know.
    pub(crate) standing: Option<Standing>,
}

/// A request whose body is being read.
struct Reading {
    head: RequestHead,
    settings: Arc<Settings>,
    api: Api,
    scanner: request::Scanner,
    /// Bytes of the body that were read.
    cursor: usize,
    content_length: Option<u64>,
    /// It may go up before its end. Where a tenant pays for it, only if its length
    /// is known: what was not read counts by its bytes, until it is.
    may_be_early: bool,
}

impl Reading {
    /// Bytes to read at the most: those of the setting, and more, as Envoy's
    /// buffer allows, while the model is not known but matters.
    fn limit(&self) -> usize {
        let settings = &self.settings;
        let known = !settings.names_models() || self.scanner.knows_model();
        let limit = if known { settings.inspect_bytes_max } else { settings.buffer_bytes };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// Whether the next read surely fits Envoy's buffer. Envoy adds it to what
    /// is held before it asks us, and answers 413 if the sum is too much.
    fn may_hold(&self, size: u64) -> bool {
        let buffer = self.settings.buffer_bytes;
        self.content_length.is_some_and(|length| length <= buffer) || size + READ_MAX <= buffer
    }
}

impl Stream {
    pub(crate) fn new(context: u32, instance: Option<Instance>) -> Self {
        let (open, answer) = (Rc::default(), Watched::default());
        Self { context, instance, request: None, rest: None, open, answer }
    }

    /// Decides a request that was read, and lets it go. `size` is that of the body
    /// if all of it can be changed; `whole` if all of it is there.
    fn decide(
        &mut self,
        reading: Reading,
        size: Option<usize>,
        whole: bool,
        body: impl FnOnce(request::Scanner) -> Body,
    ) -> Action {
        let Reading { head, settings, api, scanner, .. } = reading;
        let bytes = whole.then(|| scanner.bytes());
        let body = body(scanner);
        let ask = Ask::of(&body);
        let opened = self.open(&head, &settings, api, body, bytes);
        if let (Some(ask), Opened::Passes(pool) | Opened::Waits(pool)) = (ask, &opened) {
            self.ask(&ask, &head, &settings, pool, size);
        }
        opened.action()
    }

    /// Decides a request. `whole` is how many bytes its body has if all of it is
    /// there: only then may it wait.
    fn open(
        &mut self,
        head: &RequestHead,
        settings: &Arc<Settings>,
        api: Api,
        body: Body,
        whole: Option<u64>,
    ) -> Opened {
        let Some(instance) = &self.instance else { return Opened::Unconfigured };
        let Instance { config, metrics, worker, .. } = instance;
        let (now, slots) = (host::now, &mut SharedData);
        let (mut ticket, mut decision) = worker.borrow_mut().gate.open(settings, body);
        if config.uses_load {
            worker.borrow().gate.place(now(), slots, config, &mut ticket, &mut decision);
        }
        let pool = Arc::clone(&decision.pool);
        let orca = pool.load.as_ref().is_some_and(|load| load.orca) && !settings.dry_run;
        let (hide, standing) = (false, None);
        let mut open = Open { ticket, pool: Arc::clone(&pool), api, hide, orca, standing };
        let mut waits = None;
        if let Some(tenants) = &config.tenants {
            let tenant = tenant::resolve(tenants, settings, head);
            let hold = whole.filter(|_| !settings.dry_run);
            let hold = hold.map(|bytes| (u64::from(self.context), bytes));
            let gate = &mut worker.borrow_mut().gate;
            let admission = gate.admit(now(), slots, config, &tenant, &mut open.ticket, hold);
            metrics.tenants.decided(&tenant.name, &admission);
            host::publish("tidegate_tenant", tenant.name.as_bytes());
            match admission {
                Admission::Refused(refusal) if settings.dry_run => {
                    host::publish("tidegate_refused", refusal.cause.word().as_bytes());
                }
                Admission::Refused(refusal) => {
                    publish(&decision);
                    tenant::refuse(&refusal, api, &tenant.name, tenants.headers);
                    return Opened::Refused;
                }
                Admission::Admitted(_, known) => open.standing = tenants.headers.then_some(known),
                Admission::Held => waits = Some(tenant.name.clone()),
                Admission::Uncharged => {}
            }
        } else if !config.capacities.is_empty() {
            worker.borrow().gate.occupy(now(), slots, config, &mut open.ticket);
        }
        if !settings.dry_run {
            head.set(&config.pool_header, decision.pool.cluster.as_bytes());
            if orca {
                head.set(ORCA_FORMAT, b"TEXT");
            }
            head.clear_route_cache();
        }
        publish(&decision);
        // Answers to what was not looked at are not looked at either, unless a
        // tenant pays for them, or a pool counts them.
        let counts = config.tenants.is_some() || !config.capacities.is_empty();
        if decision.reason != Reason::NotInspected || counts {
            *self.open.borrow_mut() = Some(open);
        }
        let Some(tenant) = waits else {
            metrics.opened(&decision);
            return Opened::Passes(pool);
        };
        let (instance, open) = (instance.clone(), Rc::clone(&self.open));
        instance.hurry();
        let held = Held { instance, open, decision, tenant, api };
        worker.borrow_mut().held.insert(u64::from(self.context), held);
        Opened::Waits(pool)
    }

    /// Reads on in a body that has gone up, from `from` to `to` of this callback's
    /// piece. At its end its tenant gets back what it does not need.
    fn read_on(&mut self, from: usize, to: usize, end_of_stream: bool) {
        let Some(mut scanner) = self.rest.take() else { return };
        host::read_request_body(from, to, |bytes| scanner.feed(bytes));
        if !end_of_stream {
            self.rest = Some(scanner);
            return;
        }
        let mut open = self.open.borrow_mut();
        let (Some(open), Some(Instance { metrics, worker, .. }), Ok(facts)) =
            (&mut *open, &self.instance, scanner.finish())
        else {
            return;
        };
        let gate = &mut worker.borrow_mut().gate;
        let lowered = gate.read_on(host::now(), &mut SharedData, &mut open.ticket, facts);
        if let Some(settled) = lowered {
            metrics.tenants.lowered(&settled);
        }
    }

    /// Makes a stream state its usage, if its pool's setting says so.
    fn ask(
        &mut self,
        ask: &Ask,
        head: &RequestHead,
        settings: &Settings,
        pool: &Pool,
        size: Option<usize>,
    ) {
        let mut open = self.open.borrow_mut();
        let (Some(open), Some(Instance { metrics, .. })) = (&mut *open, &self.instance) else {
            return;
        };
        let hide = match pool.stream_usage {
            StreamUsage::Add if !ask.refused => false,
            StreamUsage::AddAndHide => true,
            StreamUsage::Add | StreamUsage::Off => return,
        };
        if settings.dry_run {
            return;
        }
        let room = usize::try_from(settings.buffer_bytes).unwrap_or(usize::MAX);
        let fits = |size: &usize| *size <= EDIT_MAX && size + Edit::INSERT_MAX <= room;
        let asked = size.filter(fits).is_some_and(|size| ask_in_body(head, size, hide));
        metrics.stream_usage.asked(asked);
        if asked {
            open.ticket.asked();
            open.hide = hide;
        }
    }

    /// Closes the request, once.
    fn close(&mut self) -> Option<Settlement> {
        let Open { ticket, pool, .. } = self.open.take()?;
        let Instance { config, metrics, worker, .. } = self.instance.as_ref()?;
        let context = u64::from(self.context);
        if worker.borrow_mut().held.remove(&context).is_some() {
            // Its client did not wait for its turn.
            worker.borrow_mut().gate.leave(context);
            metrics.tenants.left();
            return None;
        }
        let watched = core::mem::take(&mut self.answer);
        let (status, complete, report) = (watched.status, watched.complete, watched.report);
        // The details tell who ended the stream, if it did not end by itself.
        let details = if complete { None } else { host::property(&CODE_DETAILS) };
        let told = watched.finish(&config.usage_sources);
        metrics.stream_usage.ended(told.hidden, told.passed);
        let served_by = status.and_then(|_| host::property(&SERVED_BY));
        let elsewhere = served_by.as_ref().is_some_and(|name| *name != pool.name.as_bytes());
        let attempts = if elsewhere { host::property(&ATTEMPTS) } else { None };
        let answer = Answer {
            status,
            usage: told.usage,
            stopped_by_length: told.stopped_by_length,
            disagreed: told.disagreed,
            overflow: told.overflow,
            complete,
            aborted: details.is_some_and(|details| left_by_client(&details)),
            output_seen: told.output_seen,
            report,
            served_by: served_by.as_deref(),
            retried: attempts.as_deref().and_then(little_endian).is_some_and(|count| count > 1),
        };
        let settlement =
            worker.borrow_mut().gate.close(host::now(), &mut SharedData, ticket, &answer);
        metrics.closed(&settlement);
        Some(settlement)
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        // `on_log` came first in every Envoy seen; this is for hosts without.
        // The stream's filter state is out of reach now.
        self.close();
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let Some(Instance { config, worker, .. }) = self.instance.clone() else {
            return Action::Continue;
        };
        worker.borrow_mut().serve();
        let head = RequestHead::held();
        // Never a client's: Envoy strips it earlier, but not every setup does.
        head.remove(&config.pool_header);
        let path = head.get(":path").unwrap_or_default();
        let host = if config.wants_host() { head.get(":authority") } else { None };
        let host = host.unwrap_or_default();
        let route_name =
            config.wants_route_name().then(|| host::property(&["xds", "route_name"])).flatten();
        let settings = Arc::clone(config.settings(&path, &host, route_name.as_deref()));
        let Some(api) = inspected(&head, &path, settings.api) else {
            // Who has limits is charged for what nobody looks at as well.
            let length = head.get("content-length").as_deref().and_then(decimal);
            let length = if end_of_stream || changes_protocol(&head) { Some(0) } else { length };
            let body = Body::NotInspected(length);
            return self.open(&head, &settings, Api::Unknown, body, None).action();
        };
        if config.narrow_accept_encoding && !settings.dry_run {
            let accepted = head.get("accept-encoding");
            if let Some(narrower) = accepted.as_deref().and_then(decode::narrow) {
                head.set("accept-encoding", &narrower);
            }
        }
        let content_length = head.get("content-length").as_deref().and_then(decimal);
        if settings.inspect == Inspect::Headers {
            let length = if end_of_stream { Some(0) } else { content_length };
            return self.open(&head, &settings, api, Body::Length(api, length), None).action();
        }
        if end_of_stream {
            return self.open(&head, &settings, api, Body::Unparsed(Some(0)), Some(0)).action();
        }
        let scanner = request::Scanner::new(api, &path);
        let may_be_early = config.tenants.is_none() || content_length.is_some();
        let cursor = 0;
        let reading =
            Reading { head, settings, api, scanner, cursor, content_length, may_be_early };
        self.request = Some(reading);
        Action::Pause
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let Some(mut reading) = self.request.take() else {
            self.read_on(0, size, end_of_stream);
            return Action::Continue;
        };
        // While the request is held, `size` is all that came so far.
        let limit = reading.limit();
        let end = size.min(limit);
        host::read_request_body(reading.cursor, end, |bytes| reading.scanner.feed(bytes));
        reading.cursor = reading.cursor.max(end);
        let length = if end_of_stream { Some(size as u64) } else { reading.content_length };
        if end_of_stream && size <= limit {
            return self.decide(reading, Some(size), WHOLE, whole);
        }
        let early = reading.may_be_early && surely_largest(&reading.settings, &reading.scanner);
        if !early && size < limit && reading.may_hold(size as u64) {
            self.request = Some(reading);
            Action::Pause
        } else if size <= limit && reading.scanner.complete() {
            self.decide(reading, Some(size), !WHOLE, whole)
        } else {
            let pays = self.instance.as_ref().is_some_and(|one| one.config.tenants.is_some());
            let rest = pays.then(|| reading.scanner.clone());
            let action = self.decide(reading, None, !WHOLE, |scanner| cut(scanner, length, early));
            if action == Action::Continue && !end_of_stream {
                // What the buffer holds beyond what was read goes up now as well.
                self.rest = rest;
                self.read_on(end, size, false);
            }
            action
        }
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        // The body is out of reach here.
        if let Some(reading) = self.request.take() {
            return self.decide(reading, None, WHOLE, whole);
        }
        self.read_on(0, 0, true);
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let open = self.open.borrow();
        let (Some(open), Some(Instance { config, metrics, .. })) = (&*open, &self.instance) else {
            return Action::Continue;
        };
        // Local replies pass here too. An abort later on changes the details.
        if host::property(&CODE_DETAILS).as_deref() != Some(VIA_UPSTREAM) {
            return Action::Continue;
        }
        for (name, value) in open.standing.iter().flat_map(tenant::headers) {
            host::set_response_header(name, value.as_bytes());
        }
        if open.orca
            && let Some(report) = host::response_header(ORCA_HEADER)
        {
            // We asked, not the client.
            host::remove_response_header(ORCA_HEADER);
            self.answer.report = read_orca(&report);
            metrics.pools.orca(self.answer.report.is_some());
        }
        let status = host::response_header(":status").as_deref().and_then(decimal).unwrap_or(0);
        self.answer.complete = end_of_stream;
        self.answer.begin(config, open.api, status, open.hide);
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.answer.read(size, end_of_stream);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.answer.complete = true;
        Action::Continue
    }

    fn on_log(&mut self) {
        if let Some(settlement) = self.close() {
            publish_number("tidegate_actual_input", settlement.usage.input);
            publish_number("tidegate_actual_output", settlement.usage.output);
            publish_number("tidegate_tokens", settlement.tokens);
        }
        // What it gave back may be another's.
        if let Some(Instance { worker, .. }) = &self.instance
            && !worker.borrow().held.is_empty()
        {
            held::release(worker, self.context);
        }
    }
}

/// A stream that was not asked for its usage.
struct Ask {
    /// The client said that it does not want it.
    refused: bool,
}

impl Ask {
    fn of(body: &Body) -> Option<Self> {
        let (Body::Whole(facts) | Body::Cut { facts, .. }) = body else { return None };
        let RequestFacts { include_usage, .. } = facts;
        facts.silent().then_some(Self { refused: *include_usage == Some(false) })
    }
}

/// Changes a body of so many bytes, all of which Envoy holds, so that it asks
/// for the usage; and its length, if the headers state that.
fn ask_in_body(head: &RequestHead, size: usize, over_false: bool) -> bool {
    let stated = head.get("content-length");
    let length = stated.as_deref().and_then(decimal);
    if stated.is_some() && length.is_none() {
        return false;
    }
    let mut body = host::request_body(size);
    let Some(edit) = Edit::asking(&body, over_false) else { return false };
    edit.apply(&mut body);
    host::replace_request_body(size, &body);
    if let Some(length) = length {
        let length = length.saturating_add(body.len() as u64).saturating_sub(size as u64);
        head.set("content-length", length.to_string().as_bytes());
    }
    true
}

/// The format of a request that is looked at: a POST of JSON that does not
/// change the protocol.
fn inspected(head: &RequestHead, path: &[u8], pinned: Option<Api>) -> Option<Api> {
    let api = pinned.unwrap_or_else(|| Api::of_path(path));
    let post = head.get(":method").as_deref() == Some(b"POST");
    let json = head.get("content-type").is_some_and(|value| is_json(&value));
    (post && json && !changes_protocol(head)).then_some(api)
}

/// An upgrade, or a tunnel: what follows is no body.
fn changes_protocol(head: &RequestHead) -> bool {
    head.get("upgrade").is_some() || head.get(":method").as_deref() == Some(b"CONNECT")
}

fn is_json(content_type: &[u8]) -> bool {
    let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    media.eq_ignore_ascii_case(b"application/json")
}

/// A body that was read to its end.
fn whole(scanner: request::Scanner) -> Body {
    let bytes = scanner.bytes();
    scanner.finish().map_or(Body::Unparsed(Some(bytes)), Body::Whole)
}

/// A body that was read up to the limit. `length` is that of all of it, if known.
fn cut(scanner: request::Scanner, length: Option<u64>, early: bool) -> Body {
    let unread = length.map(|length| length.saturating_sub(scanner.bytes()));
    match scanner.cut(unread.unwrap_or(0)) {
        Ok(facts) => Body::Cut { facts, unread, early },
        Err(_) => Body::Unparsed(length),
    }
}

/// Envoy's words for a stream that the client ended.
fn left_by_client(details: &[u8]) -> bool {
    let resets = [&b"http2.remote_reset"[..], b"http3.remote_reset"];
    details.starts_with(b"downstream") || resets.contains(&details)
}

fn little_endian(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

fn decimal(bytes: &[u8]) -> Option<u64> {
    core::str::from_utf8(bytes).ok()?.parse().ok()
}

fn publish(decision: &Decision) {
    host::publish("tidegate_pool", decision.pool.name.as_bytes());
    host::publish("tidegate_reason", decision.reason.word().as_bytes());
    let budget = decision.budget;
    publish_number("tidegate_estimate", budget.map(|budget| budget.input));
    publish_number("tidegate_fit", budget.map(|budget| budget.fit));
    publish_number("tidegate_reserve", budget.map(|budget| budget.reserve));
}

fn publish_number(name: &str, value: Option<u64>) {
    if let Some(value) = value {
        host::publish(name, value.to_string().as_bytes());
    }
}
