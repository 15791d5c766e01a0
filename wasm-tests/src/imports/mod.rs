//! Everything the guest can import: the host functions that the SDK declares, and the few WASI
//! functions that the standard library needs.

mod http;
mod process;
mod wasi;

use crate::faults::Instead;
use crate::guest::Guest;
use crate::{Callback, Error, HostCall, Result, Status};
use wasmi::{Caller, Linker};

/// Why a host function did not do its work.
pub(crate) enum Fail {
    /// The guest gets a status.
    Status(Status),
    /// The guest traps.
    Trap(wasmi::Error),
}

impl From<Status> for Fail {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

type Reply = Result<(), Fail>;

/// The guest's memory and our data for it, side by side.
fn split<'a>(caller: &'a mut Caller<'_, Guest>) -> Result<(&'a mut [u8], &'a mut Guest), Fail> {
    let memory = caller.data().memory.ok_or(Status::InternalFailure)?;
    Ok(memory.data_and_store_mut(caller))
}

fn range(at: u32, len: u32) -> std::ops::Range<usize> {
    at as usize..at as usize + len as usize
}

fn slice(memory: &[u8], at: u32, len: u32) -> Result<&[u8], Status> {
    memory.get(range(at, len)).ok_or(Status::InvalidMemoryAccess)
}

fn put(memory: &mut [u8], at: u32, bytes: &[u8]) -> Result<(), Status> {
    let target = memory.get_mut(range(at, bytes.len() as u32));
    target.ok_or(Status::InvalidMemoryAccess)?.copy_from_slice(bytes);
    Ok(())
}

fn put_u32(memory: &mut [u8], at: u32, value: u32) -> Result<(), Status> {
    put(memory, at, &value.to_le_bytes())
}

/// Asks the guest for room.
fn allocate(caller: &mut Caller<'_, Guest>, len: u32) -> Result<u32, Fail> {
    let allocate = caller.data().allocate.ok_or(Status::InternalFailure)?;
    match allocate.call(&mut *caller, len).map_err(Fail::Trap)? {
        0 => Err(Status::InvalidMemoryAccess.into()),
        at => Ok(at),
    }
}

/// Hands bytes to the guest in memory that it then owns. No bytes are a null pointer.
fn give(caller: &mut Caller<'_, Guest>, bytes: &[u8], at_out: u32, len_out: u32) -> Reply {
    let at = if bytes.is_empty() { 0 } else { allocate(caller, bytes.len() as u32)? };
    let (memory, _) = split(caller)?;
    put(memory, at, bytes)?;
    put_u32(memory, at_out, at)?;
    put_u32(memory, len_out, bytes.len() as u32)?;
    Ok(())
}

/// Counts the call, and fails it when the test wants that.
fn enter(caller: &mut Caller<'_, Guest>, call: HostCall) -> Result<Option<Status>, wasmi::Error> {
    let guest = caller.data();
    if guest.callback == Callback::Initialize && call != HostCall::Log {
        let name = call.name();
        return Err(wasmi::Error::new(format!("{name} is not allowed during _initialize")));
    }
    let mut process = guest.process();
    process.faults.count(guest.callback, call.name());
    match process.faults.enter(call) {
        None => Ok(None),
        Some(Instead::Return(status)) => Ok(Some(status)),
        Some(Instead::Trap) => {
            Err(wasmi::Error::new(format!("the test asked for a trap in {}", call.name())))
        }
    }
}

fn finish(reply: Reply) -> Result<u32, wasmi::Error> {
    match reply {
        Ok(()) => Ok(Status::Ok as u32),
        Err(Fail::Status(status)) => Ok(status as u32),
        Err(Fail::Trap(error)) => Err(error),
    }
}

macro_rules! host_functions {
    ($linker:ident; $($call:ident($($arg:ident: $ty:ty),*) => $run:path;)*) => {$(
        $linker.func_wrap("env", HostCall::$call.name(),
            |mut caller: Caller<'_, Guest>, $($arg: $ty),*| -> Result<u32, wasmi::Error> {
                if let Some(status) = enter(&mut caller, HostCall::$call)? {
                    return Ok(status as u32);
                }
                finish($run(&mut caller, $($arg),*))
            })?;
    )*};
}

/// Binds every import that this host knows.
pub(crate) fn link(linker: &mut Linker<Guest>) -> Result<(), wasmi::errors::LinkerError> {
    host_functions! { linker;
        Log(level: u32, text: u32, len: u32) => process::log;
        GetLogLevel(out: u32) => process::get_log_level;
        GetCurrentTime(out: u32) => process::get_current_time;
        SetTickPeriod(milliseconds: u32) => process::set_tick_period;
        GetProperty(path: u32, path_len: u32, out: u32, len_out: u32) => process::get_property;
        SetProperty(path: u32, path_len: u32, value: u32, len: u32) => process::set_property;
        GetSharedData(key: u32, key_len: u32, out: u32, len_out: u32, cas_out: u32)
            => process::get_shared_data;
        SetSharedData(key: u32, key_len: u32, value: u32, len: u32, cas: u32)
            => process::set_shared_data;
        RegisterQueue(name: u32, len: u32, out: u32) => process::register_queue;
        ResolveQueue(vm: u32, vm_len: u32, name: u32, len: u32, out: u32)
            => process::resolve_queue;
        Dequeue(token: u32, out: u32, len_out: u32) => process::dequeue;
        Enqueue(token: u32, value: u32, len: u32) => process::enqueue;
        DefineMetric(kind: u32, name: u32, len: u32, out: u32) => process::define_metric;
        GetMetric(id: u32, out: u32) => process::get_metric;
        RecordMetric(id: u32, value: u64) => process::record_metric;
        IncrementMetric(id: u32, offset: i64) => process::increment_metric;
        SetEffectiveContext(id: u32) => process::set_effective_context;
        CallForeignFunction(name: u32, name_len: u32, args: u32, args_len: u32, out: u32,
            len_out: u32) => process::call_foreign_function;
        Done() => process::done;
        GetBuffer(kind: u32, start: u32, len: u32, out: u32, len_out: u32) => http::get_buffer;
        SetBuffer(kind: u32, start: u32, len: u32, value: u32, value_len: u32)
            => http::set_buffer;
        GetHeaderPairs(map: u32, out: u32, len_out: u32) => http::get_header_pairs;
        SetHeaderPairs(map: u32, value: u32, len: u32) => http::set_header_pairs;
        GetHeader(map: u32, name: u32, name_len: u32, out: u32, len_out: u32)
            => http::get_header;
        ReplaceHeader(map: u32, name: u32, name_len: u32, value: u32, len: u32)
            => http::replace_header;
        RemoveHeader(map: u32, name: u32, name_len: u32) => http::remove_header;
        AddHeader(map: u32, name: u32, name_len: u32, value: u32, len: u32)
            => http::add_header;
        ContinueStream(direction: u32) => http::continue_stream;
        CloseStream(direction: u32) => http::close_stream;
        SendLocalResponse(status: u32, details: u32, details_len: u32, body: u32, body_len: u32,
            headers: u32, headers_len: u32, grpc_status: i32) => http::send_local_response;
        HttpCall(cluster: u32, cluster_len: u32, headers: u32, headers_len: u32, body: u32,
            body_len: u32, trailers: u32, trailers_len: u32, timeout: u32, out: u32)
            => http::http_call;
        GrpcCall(cluster: u32, cluster_len: u32, service: u32, service_len: u32, method: u32,
            method_len: u32, metadata: u32, metadata_len: u32, message: u32, message_len: u32,
            timeout: u32, out: u32) => http::grpc_call;
        GrpcStream(cluster: u32, cluster_len: u32, service: u32, service_len: u32, method: u32,
            method_len: u32, metadata: u32, metadata_len: u32, out: u32) => http::grpc_stream;
        GrpcSend(token: u32, message: u32, len: u32, end: u32) => http::grpc_send;
        GrpcCancel(token: u32) => http::grpc_close;
        GrpcClose(token: u32) => http::grpc_close;
        GetStatus(code_out: u32, out: u32, len_out: u32) => http::get_status;
    }
    wasi::link(linker)
}

/// Finds the first import of a module that [`link`] does not bind.
pub(crate) fn check(module: &wasmi::Module) -> Result<()> {
    for import in module.imports() {
        let known = match import.module() {
            "env" => HostCall::ALL.iter().any(|call| call.name() == import.name()),
            wasi::MODULE => wasi::NAMES.contains(&import.name()),
            _ => false,
        };
        if !known {
            return Err(Error::UnknownImport {
                module: import.module().to_string(),
                name: import.name().to_string(),
                signature: crate::module::signature(import.ty()),
            });
        }
    }
    Ok(())
}
