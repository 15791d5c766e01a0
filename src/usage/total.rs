//! What the documents of an answer state together: the last word on each thing.

use super::reader::{Counter, Reading};
use super::{Usage, anthropic, gemini, openai, sglang};
use crate::request::Api;

/// Prompts of one stream whose numbers are kept apart.
const PROMPTS_MAX: usize = 256;

/// The sum of an answer's documents.
#[derive(Clone, Debug)]
pub(super) struct Total {
    api: Api,
    /// The last reading of each prompt of a stream; of a list their sum.
    last: Vec<Reading>,
    /// There were more prompts than are kept apart.
    lost: bool,
    /// The documents said which prompt they are about.
    indexed: bool,
    stopped: bool,
}

impl Total {
    pub(super) fn new(api: Api) -> Self {
        Self { api, last: Vec::new(), lost: false, indexed: false, stopped: false }
    }

    /// A document: what it states itself, and in the answer that it carries.
    #[inline(never)]
    pub(super) fn add(&mut self, stated: &[Reading; 2]) {
        let index = stated.first().and_then(|outer| outer.get(Counter::Index));
        self.indexed |= index.is_some();
        let at = index.map_or(0, |index| usize::try_from(index).unwrap_or(usize::MAX));
        self.add_at(at, stated);
    }

    /// A document of a list, which in SGLang's format are about one prompt each.
    #[inline(never)]
    pub(super) fn add_item(&mut self, stated: &[Reading; 2]) {
        if self.api != Api::Generate {
            return self.add_at(0, stated);
        }
        let [item, _] = stated;
        self.stopped |= item.stopped();
        match self.last.first_mut() {
            Some(sum) => sum.add(item),
            None => self.last.push(item.clone()),
        }
    }

    fn add_at(&mut self, at: usize, [outer, carried]: &[Reading; 2]) {
        self.stopped |= outer.stopped() || carried.stopped();
        let states = |reading: &Reading| self.one(reading) != Usage::default();
        let Some(reading) = [carried, outer].into_iter().find(|one| states(one)) else { return };
        if at >= PROMPTS_MAX {
            self.lost = true;
            return;
        }
        while self.last.len() <= at {
            self.last.push(Reading::default());
        }
        if let Some(last) = self.last.get_mut(at) {
            if self.api == Api::Messages {
                anthropic::merge(last, reading.clone());
            } else {
                *last = reading.clone();
            }
        }
    }

    fn one(&self, reading: &Reading) -> Usage {
        match self.api {
            Api::Messages => anthropic::usage(reading),
            Api::Gemini => gemini::usage(reading),
            Api::Generate => sglang::usage(reading),
            api => openai::usage(api, reading),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// The usage over all prompts. A number that is not stated for each of
    /// them is not known; nor is any, if the answer broke off (`!ended`) and
    /// may be about more prompts.
    #[inline(never)]
    pub(super) fn usage(&self, ended: bool) -> Option<Usage> {
        if self.lost || (self.indexed && !ended) {
            return None;
        }
        let sum = |of: fn(&Usage) -> Option<u64>| {
            let mut each = self.last.iter().map(|reading| of(&self.one(reading)));
            let first = each.next()?;
            each.fold(first, |sum, one| Some(sum?.saturating_add(one?)))
        };
        let usage = Usage {
            input: sum(|usage| usage.input),
            cached: sum(|usage| usage.cached),
            output: sum(|usage| usage.output),
            reasoning: sum(|usage| usage.reasoning),
        };
        (usage != Usage::default()).then_some(usage)
    }
}
