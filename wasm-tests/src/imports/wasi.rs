//! The WASI functions that Rust's standard library needs on `wasm32-wasip1`.

use super::{put, put_u32, slice};
use crate::Level;
use crate::guest::Guest;
use wasmi::{Caller, Linker};

pub(super) const MODULE: &str = "wasi_snapshot_preview1";

/// Everything that [`link`] binds.
pub(super) const NAMES: [&str; 6] =
    ["environ_get", "environ_sizes_get", "fd_write", "proc_exit", "clock_time_get", "random_get"];

const SUCCESS: u32 = 0;
const BAD_FILE: u32 = 8;
const FAULT: u32 = 21;
const NOT_SUPPORTED: u32 = 58;

/// A WASI error number, when something went wrong.
type Errno = Result<(), u32>;

pub(super) fn link(linker: &mut Linker<Guest>) -> Result<(), wasmi::errors::LinkerError> {
    let [environ_get, environ_sizes_get, fd_write, proc_exit, clock_time_get, random_get] = NAMES;
    linker.func_wrap(
        MODULE,
        environ_get,
        |mut caller: Caller<'_, Guest>, list: u32, text: u32| {
            note(&caller, environ_get);
            errno(environment(&mut caller, list, text))
        },
    )?;
    linker.func_wrap(
        MODULE,
        environ_sizes_get,
        |mut caller: Caller<'_, Guest>, count_out: u32, size_out: u32| {
            note(&caller, environ_sizes_get);
            errno(environment_sizes(&mut caller, count_out, size_out))
        },
    )?;
    linker.func_wrap(
        MODULE,
        fd_write,
        |mut caller: Caller<'_, Guest>, file: u32, list: u32, count: u32, written_out: u32| {
            note(&caller, fd_write);
            errno(write(&mut caller, file, list, count, written_out))
        },
    )?;
    linker.func_wrap(MODULE, proc_exit, |code: u32| -> Result<(), wasmi::Error> {
        Err(wasmi::Error::new(format!("the guest called proc_exit({code})")))
    })?;
    linker.func_wrap(
        MODULE,
        clock_time_get,
        |mut caller: Caller<'_, Guest>, clock: u32, _precision: u64, out: u32| {
            note(&caller, clock_time_get);
            errno(clock_time(&mut caller, clock, out))
        },
    )?;
    linker.func_wrap(MODULE, random_get, |mut caller: Caller<'_, Guest>, out: u32, len: u32| {
        note(&caller, random_get);
        errno(random(&mut caller, out, len))
    })?;
    Ok(())
}

fn errno(result: Errno) -> u32 {
    result.err().unwrap_or(SUCCESS)
}

/// Counts the call, like those of `env`.
fn note(caller: &Caller<'_, Guest>, name: &'static str) {
    let guest = caller.data();
    guest.process().faults.count(guest.callback, name);
}

fn split<'a>(caller: &'a mut Caller<'_, Guest>) -> Result<(&'a mut [u8], &'a mut Guest), u32> {
    super::split(caller).map_err(|_| FAULT)
}

fn environment(caller: &mut Caller<'_, Guest>, mut list: u32, mut text: u32) -> Errno {
    let (memory, guest) = split(caller)?;
    for (name, value) in &guest.options.environment {
        let entry = format!("{name}={value}\0");
        put_u32(memory, list, text).map_err(|_| FAULT)?;
        put(memory, text, entry.as_bytes()).map_err(|_| FAULT)?;
        list += 4;
        text += entry.len() as u32;
    }
    Ok(())
}

fn environment_sizes(caller: &mut Caller<'_, Guest>, count_out: u32, size_out: u32) -> Errno {
    let (memory, guest) = split(caller)?;
    let variables = &guest.options.environment;
    let size: usize = variables.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    put_u32(memory, count_out, variables.len() as u32).map_err(|_| FAULT)?;
    put_u32(memory, size_out, size as u32).map_err(|_| FAULT)
}

fn write(
    caller: &mut Caller<'_, Guest>,
    file: u32,
    list: u32,
    count: u32,
    written_out: u32,
) -> Errno {
    let level = match file {
        1 => Level::Info,
        2 => Level::Error,
        _ => return Err(BAD_FILE),
    };
    let (memory, guest) = split(caller)?;
    let mut text = Vec::new();
    for entry in slice(memory, list, count.saturating_mul(8)).map_err(|_| FAULT)?.chunks_exact(8) {
        let word = |at: usize| {
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        text.extend_from_slice(slice(memory, word(0), word(4)).map_err(|_| FAULT)?);
    }
    let written = text.len() as u32;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if written > 0 {
        guest.log(level, &text);
    }
    put_u32(memory, written_out, written).map_err(|_| FAULT)
}

fn clock_time(caller: &mut Caller<'_, Guest>, clock: u32, out: u32) -> Errno {
    let (memory, guest) = split(caller)?;
    let time = match clock {
        0 => guest.process().wall,
        1 => guest.process().monotonic,
        _ => return Err(NOT_SUPPORTED),
    };
    put(memory, out, &time.to_le_bytes()).map_err(|_| FAULT)
}

/// The same numbers in every run: SplitMix64 from seed 0.
fn random(caller: &mut Caller<'_, Guest>, out: u32, len: u32) -> Errno {
    let (memory, guest) = split(caller)?;
    let target = memory.get_mut(super::range(out, len)).ok_or(FAULT)?;
    for chunk in target.chunks_mut(8) {
        guest.random = guest.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = guest.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
    }
    Ok(())
}
