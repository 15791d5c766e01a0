//! Conversations that grow turn by turn, and what makes prompts begin alike.

use crate::texts::Kind;
use crate::workload::mix;

/// Tokens of a prompt that one name stands for, as in Mooncake's traces. Engines
/// find what they have of it by their own blocks.
pub const NAME_TOKENS: u32 = 512;

/// What a prompt begins with, as far as others may, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// It is unlike all others.
    None,
    /// As the names of this row of the trace say, among those of one pass.
    Row { row: usize, pass: u64 },
    /// All of it is a session's, from its beginning on, after so many names that
    /// the source's sessions share. `answer`: the next prompt has its answer in it.
    Session { number: u64, shared: u32, answer: bool },
}

/// A session that goes on after the turn that is open, or is thought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// No other one of its source has it; it grows with each new beginning.
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// Its model's place among the source's.
    pub(super) model: u16,
    /// Turns that came.
    pub(super) turns: usize,
    /// Turns that are still to come after those; of a recorded one, its place in
    /// the list.
    pub(super) rest: usize,
    /// Tokens that the next prompt begins with.
    pub(super) context: u32,
}

/// Names of a session's first so many tokens, prompt or answer, all of them its own
/// but the first, shared ones. `source`: names of one are none of another.
pub(super) fn session_names(
    source: u64,
    (number, shared): (u64, u32),
    tokens: u32,
    names: &mut Vec<u64>,
) {
    let (ours, own) = (mix(source), mix(mix(source) ^ number));
    for nth in 0..tokens.div_ceil(NAME_TOKENS) {
        // Two chains, so that no shared name is a session's.
        let chain = if nth < shared { ours } else { own.rotate_left(1) };
        names.push(mix(chain ^ u64::from(nth)));
    }
}

/// Names of a trace's row, in one pass through it.
pub(super) fn row_names(source: u64, pass: u64, row: &[u64], names: &mut Vec<u64>) {
    let salt = mix(mix(source).rotate_left(2) ^ pass);
    names.extend(row.iter().map(|name| mix(salt ^ name)));
}
