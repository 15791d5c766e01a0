//! The same requests as over HTTP, on virtual time: what a replica would do if
//! nothing but its engine took time.

use std::fmt;

use tidegate_sim::engine::{Finished, Job, Sink};

use super::ask::{Api, read};
use super::http::wanted;
use super::pools::Pool;

/// A chat to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Offline<'a> {
    /// When it arrives. Nanoseconds; in order.
    pub arrival: u64,
    /// The request's body.
    pub body: &'a str,
    /// Its true output length, before it is cut at the cap and at the window. At
    /// least 1.
    pub output_tokens: u32,
}

/// A request that a replica would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its place, from 0.
    pub index: usize,
    /// The body of the refusal.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.index, self.why)
    }
}

impl std::error::Error for Refused {}

#[derive(Default)]
struct Ended(Vec<Finished>);

impl Sink for Ended {
    fn finished(&mut self, finished: &Finished) {
        self.0.push(*finished);
    }
}

/// Runs chats through one replica of the pool. One result for each choice, in
/// order of request; [`Finished::tag`] is the request's place. The pool's speed
/// does not count: times are the replica's own.
pub fn simulate(pool: &Pool, requests: &[Offline<'_>]) -> Result<Vec<Finished>, Refused> {
    let refused = |index: usize, why: String| Refused { index, why };
    let mut replica = pool.replica().map_err(|error| refused(0, error))?;
    let mut ended = Ended::default();
    for (index, request) in requests.iter().enumerate() {
        let ask = read(Api::Chat, request.body.as_bytes(), pool)
            .map_err(|refusal| refused(index, refusal.body()))?;
        replica.advance(request.arrival, &mut ended);
        for wanted in wanted(&ask, Some(request.output_tokens)) {
            let job = Job { tag: index as u64, ..wanted.job() };
            replica
                .submit(request.arrival, &job)
                .map_err(|error| refused(index, error.to_string()))?;
        }
    }
    while let Some(at) = replica.next_event() {
        replica.advance(at, &mut ended);
    }
    ended.0.sort_by_key(|finished| (finished.tag, finished.job));
    Ok(ended.0)
}
