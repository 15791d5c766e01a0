//! Host functions on what the process keeps: log, clock, properties, shared data, metrics.

use super::{Fail, Reply, give, put, put_u32, slice, split};
use crate::guest::{Context, Guest};
use crate::{Level, Status};
use std::time::Duration;
use wasmi::Caller;

type Ctx<'a, 'b> = &'a mut Caller<'b, Guest>;

pub(super) fn log(caller: Ctx, level: u32, text: u32, len: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let level = Level::from_wire(level).ok_or(Status::BadArgument)?;
    guest.log(level, slice(memory, text, len)?);
    Ok(())
}

pub(super) fn get_log_level(caller: Ctx, out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let level = guest.process().level;
    Ok(put_u32(memory, out, level as u32)?)
}

pub(super) fn get_current_time(caller: Ctx, out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let wall = guest.process().wall;
    Ok(put(memory, out, &wall.to_le_bytes())?)
}

pub(super) fn set_tick_period(caller: Ctx, milliseconds: u32) -> Reply {
    let root = caller.data_mut().root().ok_or(Status::BadArgument)?;
    let period = Duration::from_millis(milliseconds.into());
    root.tick_period = Some(period).filter(|period| !period.is_zero());
    Ok(())
}

pub(super) fn get_property(caller: Ctx, path: u32, path_len: u32, out: u32, len_out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let value = guest.property(slice(memory, path, path_len)?).ok_or(Status::NotFound)?;
    give(caller, &value, out, len_out)
}

pub(super) fn set_property(caller: Ctx, path: u32, path_len: u32, value: u32, len: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let (path, value) = (slice(memory, path, path_len)?, slice(memory, value, len)?);
    // Filter state lives in a stream; root contexts have none.
    let stream = guest.stream().ok_or(Status::NotFound)?;
    let path = String::from_utf8_lossy(path).into_owned();
    stream.filter_state.insert(path, value.to_vec());
    Ok(())
}

pub(super) fn get_shared_data(
    caller: Ctx,
    key: u32,
    key_len: u32,
    out: u32,
    len_out: u32,
    cas_out: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let key = slice(memory, key, key_len)?;
    let (value, cas) = match guest.process().data.get(&guest.options.vm_id, key) {
        Some((value, cas)) => (value.to_vec(), cas),
        None => return Err(Status::NotFound.into()),
    };
    give(caller, &value, out, len_out)?;
    Ok(put_u32(split(caller)?.0, cas_out, cas)?)
}

pub(super) fn set_shared_data(
    caller: Ctx,
    key: u32,
    key_len: u32,
    value: u32,
    len: u32,
    cas: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let (key, value) = (slice(memory, key, key_len)?, slice(memory, value, len)?);
    Ok(guest.process().data.set(&guest.options.vm_id, key, value, cas)?)
}

pub(super) fn register_queue(caller: Ctx, name: u32, len: u32, out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let name = slice(memory, name, len)?;
    let token = guest.process().queues.register(&guest.options.vm_id, name);
    Ok(put_u32(memory, out, token)?)
}

pub(super) fn resolve_queue(
    caller: Ctx,
    vm: u32,
    vm_len: u32,
    name: u32,
    len: u32,
    out: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let (vm, name) = (slice(memory, vm, vm_len)?, slice(memory, name, len)?);
    let vm = std::str::from_utf8(vm).map_err(|_| Status::NotFound)?;
    let vm = if vm.is_empty() { guest.options.vm_id.as_str() } else { vm };
    let token = guest.process().queues.resolve(vm, name)?;
    Ok(put_u32(memory, out, token)?)
}

pub(super) fn dequeue(caller: Ctx, token: u32, out: u32, len_out: u32) -> Reply {
    let item = caller.data().process().queues.dequeue(token)?;
    give(caller, &item, out, len_out)
}

pub(super) fn enqueue(caller: Ctx, token: u32, value: u32, len: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let value = slice(memory, value, len)?;
    Ok(guest.process().queues.enqueue(token, value)?)
}

pub(super) fn define_metric(caller: Ctx, kind: u32, name: u32, len: u32, out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let name = slice(memory, name, len)?;
    let id = guest.process().metrics.define(kind, name, guest.callback)?;
    guest.metrics.insert(id);
    Ok(put_u32(memory, out, id)?)
}

fn own_metric(guest: &Guest, id: u32) -> Result<(), Fail> {
    if guest.metrics.contains(&id) { Ok(()) } else { Err(Status::NotFound.into()) }
}

pub(super) fn get_metric(caller: Ctx, id: u32, out: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    own_metric(guest, id)?;
    let value = guest.process().metrics.get(id)?;
    Ok(put(memory, out, &value.to_le_bytes())?)
}

pub(super) fn record_metric(caller: Ctx, id: u32, value: u64) -> Reply {
    own_metric(caller.data(), id)?;
    Ok(caller.data().process().metrics.record(id, value)?)
}

pub(super) fn increment_metric(caller: Ctx, id: u32, offset: i64) -> Reply {
    own_metric(caller.data(), id)?;
    Ok(caller.data().process().metrics.increment(id, offset)?)
}

pub(super) fn set_effective_context(caller: Ctx, id: u32) -> Reply {
    let guest = caller.data_mut();
    if !guest.contexts.contains_key(&id) {
        return Err(Status::BadArgument.into());
    }
    guest.effective = id;
    Ok(())
}

/// Knows `clear_route_cache` only; whatever else Envoy has is `NotFound` here.
pub(super) fn call_foreign_function(
    caller: Ctx,
    name: u32,
    name_len: u32,
    _args: u32,
    _args_len: u32,
    out: u32,
    len_out: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let exists = guest.process().has_clear_route_cache;
    if !exists || slice(memory, name, name_len)? != b"clear_route_cache" {
        return Err(Status::NotFound.into());
    }
    guest.process().route_clears += 1;
    if let Some(stream) = guest.stream() {
        stream.route_clears += 1;
    }
    put_u32(memory, out, 0)?;
    Ok(put_u32(memory, len_out, 0)?)
}

/// Means something only after `on_done` answered false.
pub(super) fn done(caller: Ctx) -> Reply {
    let guest = caller.data_mut();
    let id = guest.context_id();
    match guest.contexts.get_mut(&id) {
        Some(Context::Root(root)) if root.closing => {
            root.done = true;
            guest.resumed = true;
            Ok(())
        }
        _ => Err(Status::NotFound.into()),
    }
}
