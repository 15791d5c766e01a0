//! Looking on while a fleet runs, and ending it when enough is known.

use tidegate::pool::Budget;

/// How one request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The how-manieth request it was, from 1, in order of their coming.
    pub nth: u64,
    /// Who answered it, as a place among the document's pools by name; nothing
    /// if it was not answered whole.
    pub pool: Option<usize>,
    /// From its first asking to its first token. Nanoseconds, as below. 0 if it
    /// was not answered whole.
    pub first_token: u64,
    /// Between its tokens, on average; nothing for an answer of one token.
    pub per_token: Option<u64>,
    /// The window cut its answer short.
    pub truncated: bool,
    /// A smaller pool had refused it for its length.
    pub retried: bool,
}

/// Is told of every request that goes to a pool, and that ends.
pub trait Watch {
    /// The `nth` request has gone to a pool, taken for so much.
    fn placed(&mut self, _nth: u64, _budget: &Budget) {}

    /// A request has ended. Says whether the simulation goes on.
    fn ended(&mut self, fate: &Fate) -> bool;
}
