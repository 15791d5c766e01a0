//! Host functions on the stream: buffers, header maps, flow, replies, calls out.

use super::{Reply, allocate, give, put_u32, range, slice, split};
use crate::abi::{Direction, decode_pairs, encode_pairs};
use crate::guest::{Guest, HttpCall};
use crate::http::{LocalReply, Phase, StreamState};
use crate::{Headers, Status};
use std::time::Duration;
use wasmi::Caller;

type Ctx<'a, 'b> = &'a mut Caller<'b, Guest>;

pub(super) fn get_buffer(
    caller: Ctx,
    kind: u32,
    start: u32,
    len: u32,
    out: u32,
    len_out: u32,
) -> Reply {
    let size = caller.data_mut().buffer(kind)?.len() as u32;
    let end = start.saturating_add(len).min(size);
    if end <= start {
        // Envoy leaves the guest's pointers alone here.
        return Ok(());
    }
    let at = allocate(caller, end - start)?;
    let (memory, guest) = split(caller)?;
    let bytes = &guest.buffer(kind)?[start as usize..end as usize];
    let target = memory.get_mut(range(at, end - start)).ok_or(Status::InvalidMemoryAccess)?;
    target.copy_from_slice(bytes);
    put_u32(memory, out, at)?;
    Ok(put_u32(memory, len_out, end - start)?)
}

pub(super) fn set_buffer(
    caller: Ctx,
    kind: u32,
    start: u32,
    len: u32,
    value: u32,
    value_len: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let value = slice(memory, value, value_len)?;
    let direction = match kind {
        0 => Direction::Request,
        1 => Direction::Response,
        2..=8 => return Err(Status::NotFound.into()),
        _ => return Err(Status::BadArgument.into()),
    };
    let half = guest.stream().ok_or(Status::BadArgument)?.half(direction);
    Ok(half.write_buffer(start as usize, len as usize, value)?)
}

fn stream(guest: &mut Guest, map: u32) -> Result<&mut StreamState, Status> {
    if map > 7 {
        return Err(Status::BadArgument);
    }
    guest.stream().ok_or(Status::BadArgument)
}

/// A map that cannot be read now is empty: Envoy does not call that an error.
pub(super) fn get_header_pairs(caller: Ctx, map: u32, out: u32, len_out: u32) -> Reply {
    if map > 7 {
        return Err(Status::BadArgument.into());
    }
    let headers = caller.data_mut().stream().and_then(|stream| stream.readable(map).ok());
    let bytes = match headers {
        Some(headers) if !headers.is_empty() => encode_pairs(headers),
        _ => Vec::new(),
    };
    give(caller, &bytes, out, len_out)
}

pub(super) fn set_header_pairs(caller: Ctx, map: u32, value: u32, len: u32) -> Reply {
    let (memory, guest) = split(caller)?;
    let pairs = decode_pairs(slice(memory, value, len)?).ok_or(Status::BadArgument)?;
    *stream(guest, map)?.writable(map)? = pairs;
    Ok(())
}

pub(super) fn get_header(
    caller: Ctx,
    map: u32,
    name: u32,
    name_len: u32,
    out: u32,
    len_out: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let name = slice(memory, name, name_len)?;
    let headers = match (map, &guest.called) {
        (6, Some((headers, _))) => headers,
        _ => stream(guest, map)?.readable(map)?,
    };
    let value = headers.get(name).ok_or(Status::NotFound)?.to_vec();
    give(caller, &value, out, len_out)
}

fn change(
    caller: Ctx,
    map: u32,
    name: (u32, u32),
    edit: impl FnOnce(&mut Headers, &[u8], &[u8]) -> Reply,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let name = slice(memory, name.0, name.1)?;
    edit(stream(guest, map)?.writable(map)?, name, memory)
}

pub(super) fn replace_header(
    caller: Ctx,
    map: u32,
    name: u32,
    name_len: u32,
    value: u32,
    len: u32,
) -> Reply {
    change(caller, map, (name, name_len), |headers, name, memory| {
        headers.set(name, slice(memory, value, len)?);
        Ok(())
    })
}

pub(super) fn remove_header(caller: Ctx, map: u32, name: u32, name_len: u32) -> Reply {
    change(caller, map, (name, name_len), |headers, name, _| {
        headers.remove(name);
        Ok(())
    })
}

pub(super) fn add_header(
    caller: Ctx,
    map: u32,
    name: u32,
    name_len: u32,
    value: u32,
    len: u32,
) -> Reply {
    change(caller, map, (name, name_len), |headers, name, memory| {
        headers.add(name, slice(memory, value, len)?);
        Ok(())
    })
}

/// Takes effect after the callback; the header map is taken away at once.
pub(super) fn continue_stream(caller: Ctx, direction: u32) -> Reply {
    let guest = caller.data_mut();
    match direction {
        0 | 1 => {}
        2 => return Ok(()),
        3 => return Err(Status::Unimplemented.into()),
        _ => return Err(Status::BadArgument.into()),
    }
    guest.resumed = true;
    let Some(stream) = guest.stream() else { return Ok(()) };
    let half = if direction == 0 {
        stream.resume_request = true;
        &mut stream.request
    } else {
        stream.resume_response = true;
        &mut stream.response
    };
    half.pinned = false;
    if half.headers_phase == Phase::Open {
        half.headers_phase = Phase::Sent;
    }
    Ok(())
}

pub(super) fn close_stream(caller: Ctx, direction: u32) -> Reply {
    if direction > 3 {
        return Err(Status::BadArgument.into());
    }
    if let Some(stream) = caller.data_mut().stream() {
        stream.reset |= direction < 2;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the ABI has that many")]
pub(super) fn send_local_response(
    caller: Ctx,
    status: u32,
    details: u32,
    details_len: u32,
    body: u32,
    body_len: u32,
    headers: u32,
    headers_len: u32,
    grpc_status: i32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let details = String::from_utf8_lossy(slice(memory, details, details_len)?);
    let reply = LocalReply {
        status,
        details: details.split_whitespace().collect::<Vec<_>>().join("_"),
        headers: decode_pairs(slice(memory, headers, headers_len)?).ok_or(Status::BadArgument)?,
        body: slice(memory, body, body_len)?.to_vec(),
        grpc_status: Some(grpc_status).filter(|status| (0..=16).contains(status)),
        by_filter: true,
    };
    if let Some(stream) = guest.stream() {
        // The first reply is the one that the client gets.
        stream.local_reply.get_or_insert(reply);
    }
    Ok(())
}

/// Notes the call, if there is such a cluster; the test answers it.
#[expect(clippy::too_many_arguments, reason = "the ABI has that many")]
pub(super) fn http_call(
    caller: Ctx,
    cluster: u32,
    cluster_len: u32,
    headers: u32,
    headers_len: u32,
    _body: u32,
    _body_len: u32,
    _trailers: u32,
    _trailers_len: u32,
    timeout: u32,
    out: u32,
) -> Reply {
    let (memory, guest) = split(caller)?;
    let cluster = String::from_utf8_lossy(slice(memory, cluster, cluster_len)?).into_owned();
    let headers = decode_pairs(slice(memory, headers, headers_len)?).ok_or(Status::BadArgument)?;
    let complete =
        [":path", ":method", ":authority"].iter().all(|name| headers.get(name).is_some());
    if !complete || !guest.process().clusters.contains(&cluster) {
        return Err(Status::BadArgument.into());
    }
    guest.last_call += 1;
    let (token, context) = (guest.last_call, guest.context_id());
    let timeout = Duration::from_millis(timeout.into());
    guest.calls.push(HttpCall { token, context, cluster, headers, timeout });
    Ok(put_u32(memory, out, token)?)
}

/// There is no cluster to call in this host.
#[expect(clippy::too_many_arguments, reason = "the ABI has that many")]
pub(super) fn grpc_call(
    _: Ctx,
    _cluster: u32,
    _cluster_len: u32,
    _service: u32,
    _service_len: u32,
    _method: u32,
    _method_len: u32,
    _metadata: u32,
    _metadata_len: u32,
    _message: u32,
    _message_len: u32,
    _timeout: u32,
    _out: u32,
) -> Reply {
    Err(Status::ParseFailure.into())
}

/// There is no cluster to call in this host.
#[expect(clippy::too_many_arguments, reason = "the ABI has that many")]
pub(super) fn grpc_stream(
    _: Ctx,
    _cluster: u32,
    _cluster_len: u32,
    _service: u32,
    _service_len: u32,
    _method: u32,
    _method_len: u32,
    _metadata: u32,
    _metadata_len: u32,
    _out: u32,
) -> Reply {
    Err(Status::ParseFailure.into())
}

pub(super) fn grpc_send(_: Ctx, _token: u32, _message: u32, _len: u32, _end: u32) -> Reply {
    Err(Status::NotFound.into())
}

pub(super) fn grpc_close(_: Ctx, _token: u32) -> Reply {
    Err(Status::NotFound.into())
}

/// No call was made, so none failed.
pub(super) fn get_status(caller: Ctx, code_out: u32, out: u32, len_out: u32) -> Reply {
    put_u32(split(caller)?.0, code_out, 0)?;
    give(caller, &[], out, len_out)
}
