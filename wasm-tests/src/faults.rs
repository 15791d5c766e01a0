//! Host calls that fail on purpose, and how often each was made.

use crate::{HostCall, Status};

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
#[derive(Debug)]
pub(crate) struct Faults {
    pending: Vec<Fault>,
    calls: [u64; HostCall::ALL.len()],
}

impl Default for Faults {
    fn default() -> Self {
        Self { pending: Vec::new(), calls: [0; HostCall::ALL.len()] }
    }
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

    pub(crate) fn calls(&self, call: HostCall) -> u64 {
        self.calls[call as usize]
    }

    /// Counts a call. Faults of one function take effect one after the other.
    pub(crate) fn enter(&mut self, call: HostCall) -> Option<Instead> {
        self.calls[call as usize] += 1;
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
