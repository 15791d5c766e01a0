//! One instance of the module: how the guest is entered, and how the filter chain moves.

use crate::abi::Direction;
use crate::error::Trap;
use crate::guest::{Context, Guest, RootState};
use crate::http::{LocalReply, Phase, Step, StreamState};
use crate::{Action, Callback, Error, Headers, Host, Module, Plugin, Result, VmOptions, imports};
use std::rc::Rc;
use wasmi::{Func, Instance, Linker, Store, TrapCode, TypedFunc, WasmParams, WasmResults};

/// Fuel for one callback. A guest that loops for ever stops here, after about a minute.
pub(crate) const DEFAULT_FUEL_LIMIT: u64 = 10_000_000_000;

type HttpCallback = Option<TypedFunc<(u32, u32, u32), u32>>;
type CallResponse = Option<TypedFunc<(u32, u32, u32, u32, u32), ()>>;

/// What the module exports. Envoy skips a callback that is not there, and so do we.
#[derive(Debug)]
struct Exports {
    initialize: Option<TypedFunc<(), ()>>,
    context_create: Option<TypedFunc<(u32, u32), ()>>,
    vm_start: Option<TypedFunc<(u32, u32), u32>>,
    configure: Option<TypedFunc<(u32, u32), u32>>,
    tick: Option<TypedFunc<u32, ()>>,
    http_call_response: CallResponse,
    headers: [HttpCallback; 2],
    body: [HttpCallback; 2],
    trailers: [Option<TypedFunc<(u32, u32), u32>>; 2],
    log: Option<TypedFunc<u32, ()>>,
    done: Option<TypedFunc<u32, u32>>,
    delete: Option<TypedFunc<u32, ()>>,
}

/// A running instance.
#[derive(Debug)]
pub(crate) struct Machine {
    store: Store<Guest>,
    exports: Exports,
    next_id: u32,
    trap: Option<Trap>,
    /// The next call of this callback gets only that much fuel.
    pub(crate) starve: Option<(Callback, u64)>,
    pub(crate) fuel_limit: u64,
    pub(crate) fuel_used: u64,
    pub(crate) last_fuel: u64,
}

fn load_error(error: impl std::fmt::Display) -> Error {
    Error::Module(error.to_string())
}

impl Machine {
    pub(crate) fn start(
        host: &Host,
        module: &Module,
        name: Rc<str>,
        options: VmOptions,
    ) -> Result<Self> {
        if module.code.get_export("proxy_abi_version_0_2_1").is_none() {
            let text = "it does not export proxy_abi_version_0_2_1, so Envoy would refuse it";
            return Err(Error::Module(text.to_string()));
        }
        imports::check(&module.code)?;
        let engine = module.code.engine();
        let mut store = Store::new(engine, Guest::new(host, name, options));
        store.set_fuel(DEFAULT_FUEL_LIMIT).map_err(load_error)?;
        let mut linker = Linker::new(engine);
        imports::link(&mut linker).map_err(load_error)?;
        let instance =
            linker.instantiate_and_start(&mut store, &module.code).map_err(load_error)?;
        let exports = Exports::find(&instance, &store)?;
        let memory = instance.get_memory(&store, "memory");
        let allocate = match export(&instance, &store, "malloc")? {
            Some(allocate) => Some(allocate),
            None => export(&instance, &store, "proxy_on_memory_allocate")?,
        };
        if memory.is_none() || allocate.is_none() {
            return Err(Error::Module("it exports no memory or no allocation function".into()));
        }
        let guest = store.data_mut();
        guest.memory = memory;
        guest.allocate = allocate;
        let mut machine = Self {
            store,
            exports,
            next_id: 1,
            trap: None,
            starve: None,
            fuel_limit: DEFAULT_FUEL_LIMIT,
            fuel_used: 0,
            last_fuel: 0,
        };
        machine.call(Callback::Initialize, 0, machine.exports.initialize, ())?;
        Ok(machine)
    }

    pub(crate) fn guest(&mut self) -> &mut Guest {
        self.store.data_mut()
    }

    pub(crate) fn memory_pages(&self) -> u64 {
        self.store.data().memory.map_or(0, |memory| memory.size(&self.store))
    }

    pub(crate) fn trap(&self) -> Option<&Trap> {
        self.trap.as_ref()
    }

    /// Enters the guest. `None` when the module does not export the callback.
    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        callback: Callback,
        context: u32,
        function: Option<TypedFunc<P, R>>,
        params: P,
    ) -> Result<Option<R>> {
        if let Some(trap) = &self.trap {
            return Err(Error::Failed(Box::new(trap.clone())));
        }
        let Some(function) = function else { return Ok(None) };
        let fuel = match self.starve {
            Some((starved, fuel)) if starved == callback => {
                self.starve = None;
                fuel
            }
            _ => self.fuel_limit,
        };
        self.store.set_fuel(fuel).map_err(load_error)?;
        let guest = self.store.data_mut();
        (guest.callback, guest.current, guest.effective) = (callback, context, 0);
        let logged = guest.process().log.len();
        let result = function.call(&mut self.store, params);
        self.last_fuel = fuel - self.store.get_fuel().map_err(load_error)?;
        self.fuel_used += self.last_fuel;
        let fuel = self.last_fuel;
        if let Some(stream) = self.guest().stream_of(context) {
            stream.fuel += fuel;
        }
        result.map(Some).map_err(|error| {
            let log = &self.store.data().process().log[logged..];
            let trap = Trap {
                callback,
                cause: error.to_string(),
                out_of_fuel: error.as_trap_code() == Some(TrapCode::OutOfFuel),
                log: log.iter().map(ToString::to_string).collect(),
            };
            self.trap = Some(trap.clone());
            Error::Trap(Box::new(trap))
        })
    }
}

/// Root contexts.
impl Machine {
    pub(crate) fn create_root(&mut self, plugin: Plugin) -> Result<u32> {
        let root = RootState { plugin, tick_period: None, closing: false, done: false };
        self.create(Context::Root(root), 0)
    }

    fn create(&mut self, context: Context, parent: u32) -> Result<u32> {
        let id = self.next_id;
        self.next_id += 1;
        self.guest().contexts.insert(id, context);
        self.call(Callback::ContextCreate, id, self.exports.context_create, (id, parent))?;
        self.settle()?;
        Ok(id)
    }

    pub(crate) fn vm_start(&mut self, root: u32) -> Result<bool> {
        let size = self.guest().options.vm_configuration.len() as u32;
        let answer = self.call(Callback::VmStart, root, self.exports.vm_start, (root, size))?;
        self.settle()?;
        Ok(answer != Some(0))
    }

    pub(crate) fn configure(&mut self, root: u32) -> Result<bool> {
        let size = self.root(root)?.plugin.configuration.len() as u32;
        let answer = self.call(Callback::Configure, root, self.exports.configure, (root, size))?;
        self.settle()?;
        Ok(answer != Some(0))
    }

    pub(crate) fn tick(&mut self, root: u32) -> Result<()> {
        self.root(root)?;
        self.call(Callback::Tick, root, self.exports.tick, root)?;
        self.settle()
    }

    /// Ends a call: with headers and a body, or without if it failed.
    pub(crate) fn answer_call(
        &mut self,
        token: u32,
        answer: Option<(Headers, Vec<u8>)>,
    ) -> Result<()> {
        let guest = self.guest();
        let at = guest.calls.iter().position(|call| call.token == token);
        let call = guest.calls.remove(at.ok_or_else(|| Error::misuse("this call is over"))?);
        let sizes = answer.as_ref().map_or((0, 0), |(headers, body)| (headers.len(), body.len()));
        guest.called = answer;
        let params = (call.context, token, sizes.0 as u32, sizes.1 as u32, 0);
        let function = self.exports.http_call_response;
        let result = self.call(Callback::HttpCallResponse, call.context, function, params);
        self.guest().called = None;
        result?;
        self.settle()
    }

    /// `false`: the guest wants to finish something first and will call `proxy_done`.
    pub(crate) fn close_root(&mut self, root: u32) -> Result<bool> {
        self.root(root)?.closing = true;
        let answer = self.call(Callback::Done, root, self.exports.done, root)?;
        if answer != Some(0) {
            self.root(root)?.done = true;
        }
        self.guest().resumed = true;
        self.settle()?;
        Ok(answer != Some(0))
    }

    pub(crate) fn root(&mut self, id: u32) -> Result<&mut RootState> {
        match self.guest().contexts.get_mut(&id) {
            Some(Context::Root(root)) => Ok(root),
            _ => Err(Error::misuse("this root context is gone")),
        }
    }
}

/// Streams.
impl Machine {
    pub(crate) fn open(&mut self, root: u32) -> Result<u32> {
        self.root(root)?;
        let stream = StreamState { root, ..StreamState::default() };
        self.create(Context::Stream(Box::new(stream)), root)
    }

    pub(crate) fn stream(&mut self, id: u32) -> Result<&mut StreamState> {
        self.guest().stream_of(id).ok_or_else(|| Error::misuse("this stream is over"))
    }

    pub(crate) fn headers(
        &mut self,
        id: u32,
        direction: Direction,
        headers: Headers,
        end: bool,
    ) -> Result<Action> {
        let callback = match direction {
            Direction::Request => Callback::RequestHeaders,
            Direction::Response => Callback::ResponseHeaders,
        };
        let stream = self.stream(id)?;
        stream.check(direction, callback)?;
        let root = stream.root;
        let half = stream.half(direction);
        let size = headers.len();
        (half.headers, half.headers_phase, half.ended) = (headers, Phase::Open, end);
        let params = (id, size as u32, end.into());
        let answer = self.call(callback, id, self.exports.headers[direction as usize], params)?;
        let action = self.note(id, Step { callback, size, end, action: action(answer) })?;
        let may_stop = self.root(root)?.plugin.allow_on_headers_stop_iteration;
        let half = self.stream(id)?.half(direction);
        match action {
            Action::Continue => half.release(),
            Action::Pause => (half.pinned, half.stop_all) = (true, !may_stop),
        }
        self.settle()?;
        Ok(action)
    }

    pub(crate) fn body(
        &mut self,
        id: u32,
        direction: Direction,
        chunk: &[u8],
        end: bool,
    ) -> Result<Action> {
        let callback = match direction {
            Direction::Request => Callback::RequestBody,
            Direction::Response => Callback::ResponseBody,
        };
        let limit = self.guest().process().buffer_limit;
        let stream = self.stream(id)?;
        stream.check(direction, callback)?;
        let half = stream.half(direction);
        half.ended = end;
        half.buffer.extend_from_slice(chunk);
        if half.stop_all {
            half.withheld = true;
            return Ok(Action::Pause);
        }
        if half.buffer_open && half.buffer.len() > limit {
            stream.overflow(direction);
            return Ok(Action::Pause);
        }
        half.buffer_open = true;
        let size = half.buffer.len();
        let params = (id, size as u32, end.into());
        let answer = self.call(callback, id, self.exports.body[direction as usize], params)?;
        let action = self.note(id, Step { callback, size, end, action: action(answer) })?;
        let stream = self.stream(id)?;
        let half = stream.half(direction);
        match action {
            Action::Continue => half.release(),
            Action::Pause if half.buffer.len() > limit => stream.overflow(direction),
            Action::Pause => {}
        }
        self.settle()?;
        Ok(action)
    }

    pub(crate) fn trailers(
        &mut self,
        id: u32,
        direction: Direction,
        trailers: Headers,
    ) -> Result<Action> {
        let callback = match direction {
            Direction::Request => Callback::RequestTrailers,
            Direction::Response => Callback::ResponseTrailers,
        };
        let stream = self.stream(id)?;
        stream.check(direction, callback)?;
        let half = stream.half(direction);
        let size = trailers.len();
        half.ended = true;
        half.trailers = trailers;
        if half.stop_all {
            half.withheld = true;
            return Ok(Action::Pause);
        }
        half.trailers_phase = Phase::Open;
        let function = self.exports.trailers[direction as usize];
        let answer = self.call(callback, id, function, (id, size as u32))?;
        let action = self.note(id, Step { callback, size, end: true, action: action(answer) })?;
        if action == Action::Continue {
            self.stream(id)?.half(direction).release();
        }
        self.settle()?;
        Ok(action)
    }

    /// Runs a reply that did not come from the upstream through the response callbacks.
    pub(crate) fn reply(&mut self, id: u32) -> Result<()> {
        let stream = self.stream(id)?;
        let Some(reply) = stream.local_reply.clone() else {
            return Err(Error::misuse("there is no local reply to deliver"));
        };
        stream.replying = true;
        let end = reply.body.is_empty();
        self.headers(id, Direction::Response, reply.response_headers(), end)?;
        if !end {
            self.body(id, Direction::Response, &reply.body, true)?;
        }
        Ok(())
    }

    pub(crate) fn log(&mut self, id: u32) -> Result<()> {
        self.stream(id)?.logging = true;
        self.call(Callback::Log, id, self.exports.log, id)?;
        self.stream(id)?.logging = false;
        self.settle()
    }

    pub(crate) fn done(&mut self, id: u32) -> Result<()> {
        self.stream(id)?;
        // Envoy goes on to delete a stream whatever the answer is.
        self.call(Callback::Done, id, self.exports.done, id)?;
        self.settle()
    }

    /// A context that is deleted. Its calls are cancelled: no answer comes.
    fn forget(&mut self, id: u32) -> Option<Context> {
        let guest = self.guest();
        guest.calls.retain(|call| call.context != id);
        guest.contexts.remove(&id)
    }

    pub(crate) fn delete(&mut self, id: u32) -> Result<StreamState> {
        self.stream(id)?;
        self.call(Callback::Delete, id, self.exports.delete, id)?;
        match self.forget(id) {
            Some(Context::Stream(stream)) => Ok(*stream),
            _ => Err(Error::misuse("this stream is over")),
        }
    }

    /// Writes the step down, as Envoy understood the answer: after a local reply the stream
    /// stops, whatever the filter returned.
    fn note(&mut self, id: u32, mut step: Step) -> Result<Action> {
        let stream = self.stream(id)?;
        if stream.local_reply.is_some() && !stream.replying {
            step.action = Action::Pause;
        }
        stream.trace.push(step);
        Ok(step.action)
    }

    /// Does what the guest asked for but Envoy does only after the callback.
    fn settle(&mut self) -> Result<()> {
        while std::mem::take(&mut self.guest().resumed) {
            let ids: Vec<u32> = self.guest().contexts.keys().copied().collect();
            for id in ids {
                match self.guest().contexts.get_mut(&id) {
                    Some(Context::Stream(stream)) => {
                        let request = std::mem::take(&mut stream.resume_request);
                        let response = std::mem::take(&mut stream.resume_response);
                        if request {
                            self.resume(id, Direction::Request)?;
                        }
                        if response {
                            self.resume(id, Direction::Response)?;
                        }
                    }
                    Some(Context::Root(root)) if root.done => {
                        self.call(Callback::Delete, id, self.exports.delete, id)?;
                        self.forget(id);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn resume(&mut self, id: u32, direction: Direction) -> Result<()> {
        let half = self.stream(id)?.half(direction);
        if !std::mem::take(&mut half.withheld) {
            half.release();
            return Ok(());
        }
        // The body came while its callbacks were off: they run now.
        let (body, trailers) =
            (std::mem::take(&mut half.buffer), std::mem::take(&mut half.trailers));
        let ended = std::mem::take(&mut half.ended);
        half.release();
        let has_trailers = !trailers.is_empty();
        if !body.is_empty() || !has_trailers {
            self.body(id, direction, &body, ended && !has_trailers)?;
        }
        if has_trailers {
            self.trailers(id, direction, trailers)?;
        }
        Ok(())
    }
}

/// A missing callback lets everything pass; any number but 0 is a pause.
fn action(answer: Option<u32>) -> Action {
    if answer.unwrap_or(0) == 0 { Action::Continue } else { Action::Pause }
}

fn export<P: WasmParams, R: WasmResults>(
    instance: &Instance,
    store: &Store<Guest>,
    name: &str,
) -> Result<Option<TypedFunc<P, R>>> {
    let typed = |function: Func| {
        function.typed(store).map_err(|error| Error::Module(format!("export {name}: {error}")))
    };
    instance.get_func(store, name).map(typed).transpose()
}

impl Exports {
    fn find(instance: &Instance, store: &Store<Guest>) -> Result<Self> {
        Ok(Self {
            initialize: export(instance, store, "_initialize")?,
            context_create: export(instance, store, "proxy_on_context_create")?,
            vm_start: export(instance, store, "proxy_on_vm_start")?,
            configure: export(instance, store, "proxy_on_configure")?,
            tick: export(instance, store, "proxy_on_tick")?,
            http_call_response: export(instance, store, "proxy_on_http_call_response")?,
            headers: [
                export(instance, store, "proxy_on_request_headers")?,
                export(instance, store, "proxy_on_response_headers")?,
            ],
            body: [
                export(instance, store, "proxy_on_request_body")?,
                export(instance, store, "proxy_on_response_body")?,
            ],
            trailers: [
                export(instance, store, "proxy_on_request_trailers")?,
                export(instance, store, "proxy_on_response_trailers")?,
            ],
            log: export(instance, store, "proxy_on_log")?,
            done: export(instance, store, "proxy_on_done")?,
            delete: export(instance, store, "proxy_on_delete")?,
        })
    }
}

impl StreamState {
    /// More bytes waited than Envoy holds.
    fn overflow(&mut self, direction: Direction) {
        let (status, details, body) = match direction {
            Direction::Request => (413, "request_payload_too_large", "Payload Too Large"),
            Direction::Response => (500, "response_payload_too_large", "Internal Server Error"),
        };
        let reply = LocalReply::by_envoy(status, details);
        // A filter that answered in this very callback was first.
        self.local_reply.get_or_insert(LocalReply { body: body.into(), ..reply });
        self.half(direction).drop_buffer();
    }
}
