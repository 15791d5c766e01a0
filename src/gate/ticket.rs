//! An open request: what it may need, what it used, and whether it went to the
//! right pool.

use super::{Answer, Settlement};
use crate::config::{Pool, Settings};
use crate::estimate::{Key, Tally};
use crate::pool::Budget;
use crate::request::Api;
use crate::tenant::{Admission, Entitlement, Need, Reservation};
use crate::usage::Usage;
use std::sync::Arc;

/// An open request. Give it back to [`Gate::close`].
#[derive(Debug)]
pub struct Ticket {
    pub(super) pool: Arc<Pool>,
    pub(super) estimated: Option<Estimated>,
    /// Bytes of a body that nobody read; `None` if not even that is known.
    pub(super) unread: Option<u64>,
    /// A byte of them is no more of a token than one by this.
    pub(super) ratio_min: f64,
    /// The largest window that it may get to.
    pub(super) window: u64,
    /// It went to another pool than by the thresholds.
    pub(super) moved: bool,
    /// Boxed: a ticket is moved several times, and most have none.
    pub(super) reservation: Option<Box<Reservation>>,
}

impl Ticket {
    /// The driver asked for the usage of a stream that did not.
    pub fn asked(&mut self) {
        if let Some(estimated) = &mut self.estimated {
            estimated.silent = false;
        }
    }

    /// A driver that has a rule of its own sends it to this pool of its settings,
    /// and takes it to need so much: it is judged by that. With `moved` for another
    /// reason than its length, which is then no over-route. To be called before
    /// [`Gate::admit`] or [`Gate::occupy`].
    ///
    /// [`Gate::admit`]: super::Gate::admit
    /// [`Gate::occupy`]: super::Gate::occupy
    pub fn overrule(&mut self, pool: &Arc<Pool>, budget: Budget, moved: bool) {
        self.pool = Arc::clone(pool);
        self.moved = moved;
        if let Some(estimated) = &mut self.estimated {
            estimated.budget = budget;
        }
    }

    /// Takes what was decided about it: an admission's reservation, until it is
    /// closed. Tells how much that is.
    pub fn enter(&mut self, admission: Admission) -> Admission<u64> {
        admission.map(|reservation| self.reservation.insert(Box::new(reservation)).reserved())
    }
}

/// What was made of a request that was estimated.
#[derive(Debug)]
pub(super) struct Estimated {
    pub(super) settings: Arc<Settings>,
    pub(super) model: Option<Vec<u8>>,
    pub(super) key: Key,
    pub(super) api: Api,
    pub(super) budget: Budget,
    /// Boxed, as a ticket is moved several times.
    pub(super) text: Box<Tally>,
    pub(super) messages: u64,
    /// Prompt tokens that were given as ids.
    pub(super) token_ids: u64,
    /// The text is known whole, so its tokens can teach.
    pub(super) teachable: bool,
    pub(super) cap: Option<u64>,
    /// The same, if the client set it.
    pub(super) asked_cap: Option<u64>,
    /// A cap may stand in what was not read.
    pub(super) uncertain_cap: bool,
    pub(super) prompts: u64,
    /// Sequences whose tokens the answer's usage adds up.
    pub(super) answers: u64,
    pub(super) silent: bool,
}

impl Ticket {
    /// Prompt tokens that stand in what was not read, at the most: a byte may be
    /// one, unless the estimator is told better, and no engine takes more than its
    /// window.
    fn unread_tokens(&self) -> u64 {
        let tokens = |bytes: u64| (bytes as f64 / self.ratio_min.max(1.0)).ceil() as u64;
        self.unread.map_or(self.window, |bytes| tokens(bytes).min(self.window))
    }

    /// Tokens that it may need, of a request that is nobody's.
    pub(super) fn tokens(&self) -> u64 {
        let known = self.estimated.as_ref().map_or(0, |estimated| estimated.budget.reserve);
        known.max(self.unread_tokens())
    }

    /// What the request may need.
    pub(super) fn need(&self, tenant: &Entitlement) -> Need {
        let unread = self.unread_tokens();
        let weights = &tenant.weights;
        match &self.estimated {
            Some(estimated) if unread == 0 => tenant.need(&estimated.budget),
            Some(estimated) => {
                let known = tenant.need(&estimated.budget);
                let unread = weights.most(unread, 0);
                Need {
                    charge: known.charge.max(unread),
                    tokens: known.tokens.max(self.unread_tokens()),
                }
            }
            None => Need { charge: weights.most(unread, 0), tokens: unread },
        }
    }

    /// What the request used, as far as its answer came; `None` if nothing was
    /// at work for it.
    pub(super) fn used(&self, answer: &Answer<'_>) -> Option<Used> {
        let stated = match answer.status {
            Some(200..300) => answer.usage.and_then(Result::ok).unwrap_or_default(),
            // The engine was at work for a client that did not wait.
            None if answer.aborted => Usage::default(),
            // It failed, refused, or was never reached.
            _ => return None,
        };
        let budget = self.estimated.as_ref().map(|estimated| &estimated.budget);
        let input = stated
            .input
            .unwrap_or_else(|| budget.map_or_else(|| self.unread_tokens(), |budget| budget.input));
        let output = match stated.output {
            Some(output) if answer.complete => output,
            // One that broke off may have stated only the beginning.
            Some(output) => output.max(answer.output_seen),
            // Embeddings and rerankings have no output to state.
            None if stated.input.is_some() && answer.complete => 0,
            None => answer.output_seen.min(budget.map_or(u64::MAX, |budget| budget.output_cap)),
        };
        let is_stated = stated.input.is_some() && (stated.output.is_some() || answer.complete);
        let usage = Usage { input: Some(input), output: Some(output), ..stated };
        Some(Used { input, output, stated: is_stated.then_some(usage) })
    }
}

/// Prompt and output tokens that a request used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    input: u64,
    output: u64,
    /// All that the answer stated; `None` if a part is from the estimate and
    /// from what passed.
    stated: Option<Usage>,
}

impl Used {
    /// Prompt and output together; `None` if there are none.
    pub(super) fn tokens(&self) -> Option<u64> {
        Some(self.input.saturating_add(self.output)).filter(|tokens| *tokens > 0)
    }

    /// What a tenant is charged. What nobody stated is never more than was
    /// reserved.
    pub(super) fn charge(&self, reservation: &Reservation) -> u64 {
        let Some(tenant) = reservation.tenant() else { return 0 };
        let weights = &tenant.weights;
        let stated = self.stated.and_then(|usage| weights.of(&usage));
        stated.unwrap_or_else(|| weights.most(self.input, self.output).min(reservation.reserved()))
    }
}

impl Estimated {
    fn pools(&self) -> &[Arc<Pool>] {
        self.settings.model(self.model.as_deref()).map_or(&[], |model| &model.pools)
    }

    pub(super) fn is_largest(&self, pool: &Pool) -> bool {
        self.pools().last().is_some_and(|largest| largest.name == pool.name)
    }

    /// In a dry run the request went where it would have gone without us.
    pub(super) fn dry_run(&self) -> bool {
        self.settings.dry_run
    }

    /// Compares where the request went with what it turned out to need.
    pub(super) fn judge(&self, chosen: &Pool, answer: &Answer<'_>, settlement: &mut Settlement) {
        let elsewhere = answer.served_by.is_some_and(|name| name != chosen.name.as_bytes());
        let elsewhere = elsewhere && !self.dry_run();
        let usage = settlement.usage;
        // Several prompts share one usage: none of them can be judged alone.
        let (Some(input), 1) = (usage.input.filter(|input| *input > 0), self.prompts) else {
            settlement.spilled = elsewhere && !answer.retried;
            settlement.spill_unclear = elsewhere && answer.retried;
            return;
        };
        let output = usage.output.unwrap_or(0).div_ceil(self.answers);
        let used = input.saturating_add(output);
        let needed = input.saturating_add(self.cap.unwrap_or(output));
        // An engine that stops at its window stops there exactly.
        let by_window = used == chosen.max_model_len && self.cap.is_none_or(|cap| output < cap);
        // One that says so may count a little less than it held.
        let near = used >= chosen.max_model_len - chosen.max_model_len / 32;
        let uncapped = self.cap.is_none() && !self.uncertain_cap;
        let says_so = answer.stopped_by_length && uncapped && near;
        settlement.truncated = !elsewhere && !self.dry_run() && (by_window || says_so);
        settlement.under_route =
            !self.is_largest(chosen) && (settlement.truncated || needed > chosen.max_model_len);
        settlement.spilled = elsewhere && !settlement.under_route;
        // A part of an answer, or a cap that nobody read, is no proof that less
        // would have done.
        if answer.complete && !self.uncertain_cap {
            let mut smaller = self.pools().iter().take_while(|pool| pool.name != chosen.name);
            let takes = |pool: &Arc<Pool>| needed <= pool.max_model_len && used <= pool.threshold;
            settlement.over_route = smaller.any(takes);
        }
    }
}
