//! Host calls that fail on purpose, and how often each was made.

use crate::{Callback, HostCall, Status};
use std::collections::BTreeMap;

/// What happens instead of the host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// It returns this status and does nothing.
    Return(Status),
    /// It traps, as when the host tears the VM down.
    Trap,
}

#[derive(Debug)]
struct Fault {
    call: HostCall,
    skip: u64,
    times: u64,
    instead: Instead,
}

/// The pending faults and the call counts.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pending: Vec<Fault>,
    calls: BTreeMap<(Callback, &'static str), u64>,
}

impl Faults {
    pub(crate) fn add(&mut self, call: HostCall, skip: u64, times: u64, instead: Instead) {
        self.pending.push(Fault { call, skip, times, instead });
    }

    pub(crate) fn clear(&mut self) {
        self.pending.clear();
    }

    /// How many calls still have to fail.
    pub(crate) fn left(&self, call: HostCall) -> u64 {
        let ours = self.pending.iter().filter(|fault| fault.call == call);
        ours.fold(0, |sum, fault| sum.saturating_add(fault.times))
    }

    pub(crate) fn calls(&self) -> &BTreeMap<(Callback, &'static str), u64> {
        &self.calls
    }

    /// Counts a call that the guest made in this callback.
    pub(crate) fn count(&mut self, callback: Callback, name: &'static str) {
        *self.calls.entry((callback, name)).or_default() += 1;
    }

    /// What happens to a call. Faults of one function take effect one after the other.
    pub(crate) fn enter(&mut self, call: HostCall) -> Option<Instead> {
        let at = self.pending.iter().position(|fault| fault.call == call)?;
        let fault = &mut self.pending[at];
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        let instead = fault.instead;
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            self.pending.remove(at);
        }
        Some(instead)
    }
}
