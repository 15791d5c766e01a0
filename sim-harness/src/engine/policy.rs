//! Who enters the batch first, and who makes room.

use std::fmt;

/// A place in the waiting queue: the least one enters first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(pub i64, pub u64, pub u64);

/// What a policy knows of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The job's priority; lower is sooner.
    pub priority: i32,
    /// When it was submitted. Nanoseconds.
    pub arrival: u64,
    /// How many were submitted before it.
    pub serial: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that it has produced.
    pub produced: u32,
}

/// The order of the waiting queue, and the choice of who makes room.
pub trait Policy: fmt::Debug + Send {
    /// The place of a new job. Two jobs never have the same.
    fn arrived(&self, ticket: &Ticket) -> Rank;

    /// The place of one that made room; `nth` counts such events.
    fn preempted(&self, ticket: &Ticket, nth: u64) -> Rank;

    /// Which of the running jobs makes room: a place in the list, which is in
    /// the order of entry and not empty. Past its end stands for its last.
    fn victim(&self, running: &mut dyn Iterator<Item = Ticket>) -> usize;
}

/// vLLM's `fcfs`: first come, first served; the last to enter makes room and
/// goes to the front of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl Policy for Fcfs {
    fn arrived(&self, ticket: &Ticket) -> Rank {
        Rank(0, ticket.serial, 0)
    }

    fn preempted(&self, ticket: &Ticket, nth: u64) -> Rank {
        Rank(-1, u64::MAX - nth, ticket.serial)
    }

    fn victim(&self, _: &mut dyn Iterator<Item = Ticket>) -> usize {
        usize::MAX
    }
}

/// vLLM's `priority`: by priority, then by arrival, in the queue; the reverse
/// for who makes room.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority;

impl Policy for Priority {
    fn arrived(&self, ticket: &Ticket) -> Rank {
        Rank(ticket.priority.into(), ticket.arrival, ticket.serial)
    }

    fn preempted(&self, ticket: &Ticket, _: u64) -> Rank {
        self.arrived(ticket)
    }

    fn victim(&self, running: &mut dyn Iterator<Item = Ticket>) -> usize {
        // The serial number splits ties, which vLLM's clock does not know: by
        // entry they would let two jobs drive each other out for ever.
        let key = |ticket: &Ticket| (ticket.priority, ticket.arrival, ticket.serial);
        let worst = running.enumerate().max_by_key(|(_, ticket)| key(ticket));
        worst.map_or(usize::MAX, |(place, _)| place)
    }
}
