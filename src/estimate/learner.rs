//! The facade of the estimators: estimates from what this worker and its
//! peers learned, and learns.

use super::features::Tally;
use super::output::Outputs;
use super::regress::{self, Evidence, Model, Sources};
use super::{Estimate, Given, Key, KeyHasher, Kind, Learned, Settings, ema};
use crate::config::TenantClass;
use crate::time::Instant;
use hashbrown::HashMap;
use std::sync::Arc;

/// Estimates from what it and its peers learned, and learns.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    /// What this one learned.
    own: Learned,
    /// The sum of what the others learned, as of the last exchange.
    peers: Learned,
    /// What follows from both, for each model of which there is evidence.
    models: HashMap<Key, Model, KeyHasher>,
    /// What the configuration gave.
    given: Arc<Given>,
}

impl Learner {
    /// What this learner was taught; others may take it as a peer's.
    pub fn own(&self) -> &Learned {
        &self.own
    }

    /// Starts models that have not answered from what a configuration gives.
    pub fn give(&mut self, given: Arc<Given>) {
        if *given != *self.given {
            self.given = given;
            self.models.clear();
            self.hear();
        }
    }

    /// Continues from what another learner left behind.
    pub fn adopt(&mut self, own: Learned) {
        self.own = own;
        self.models.clear();
        self.hear();
    }

    /// Takes the blend of what the other learners learned.
    pub fn set_peers(&mut self, peers: Learned) {
        self.peers = peers;
        self.hear();
    }

    /// Brings the models up to date with all evidence.
    fn hear(&mut self) {
        let (own, peers) = (&self.own.evidence, &self.peers.evidence);
        self.models.retain(|key, _| own.get(*key).is_some() || peers.get(*key).is_some());
        for (key, _) in own.sorted().into_iter().chain(peers.sorted()) {
            let model = self.models.entry(key).or_insert_with(|| Model::new(self.given.prior(key)));
            model.hear(Sources { own: own.get(key), peers: peers.get(key) });
        }
    }

    pub(super) fn given(&self) -> &Given {
        &self.given
    }

    /// The models that have answered, in order.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.models.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// A model that has answered, and what taught it.
    pub(super) fn learned_of(&self, key: Key) -> Option<(&Model, Sources<'_>)> {
        let model = self.models.get(&key)?;
        Some((
            model,
            Sources { own: self.own.evidence.get(key), peers: self.peers.evidence.get(key) },
        ))
    }

    /// Output tokens that 95 of 100 answers of this model and class of tenants
    /// do not exceed; about `first` as long as little is known.
    pub fn output_high(&self, model: Key, class: TenantClass, first: u64) -> u64 {
        let key = model.tenant(class);
        Outputs::high([&self.own.outputs, &self.peers.outputs], key, first)
    }

    /// Learns that an answer took so many tokens.
    pub fn learn_output(&mut self, now: Instant, model: Key, class: TenantClass, tokens: u64) {
        self.own.outputs.learn(now, model.tenant(class), tokens);
    }

    /// Tokens of a prompt: its text and the template of so many messages.
    /// Token ids are not counted. Nothing for a prompt without either;
    /// otherwise at least as many as `ratio_max` bytes to a token make, and
    /// at most as many as `ratio_min` does, the template aside.
    pub fn estimate(
        &mut self,
        settings: &Settings,
        model: Key,
        text: &Tally,
        messages: u64,
    ) -> Estimate {
        if text.total() == 0 && messages == 0 {
            return Estimate { mean: 0.0, mean_high: 0.0, high: 0.0 };
        }
        let estimate = match settings.kind {
            Kind::Ema => ema::estimate(
                settings,
                [&self.own.ratios, &self.peers.ratios],
                model,
                text,
                messages,
            ),
            Kind::Regress => {
                let x = text.regressors(messages);
                let (own, peers) = (self.own.evidence.get(model), self.peers.evidence.get(model));
                if let Some(known) = self.models.get_mut(&model) {
                    known.estimate(Sources { own, peers }, &x)
                } else {
                    let prior = self.given.prior(model);
                    regress::estimate(&prior.belief, prior.margin, &x)
                }
            }
        };
        let bounds = Bounds::new(settings, text, messages);
        let mean = bounds.clamp(estimate.mean);
        let mean_high = bounds.clamp(estimate.mean_high).max(mean);
        Estimate { mean, mean_high, high: bounds.clamp(estimate.high).max(mean_high) }
    }

    /// Learns that a prompt took so many tokens, token ids not counted.
    /// Returns whether it taught anything.
    pub fn learn(
        &mut self,
        now: Instant,
        settings: &Settings,
        model: Key,
        text: &Tally,
        messages: u64,
        tokens: u64,
    ) -> bool {
        let bytes = text.total();
        if tokens < TOKENS_MIN || bytes < TOKENS_MIN {
            return false;
        }
        // Of a body that was not read nobody knows whether it holds images:
        // what no text can reach teaches nothing.
        if text.unseen() > 0 && bytes as f64 > tokens as f64 * settings.ratio_max {
            return false;
        }
        match settings.kind {
            Kind::Ema => {
                let tables = (&mut self.own.ratios, &self.peers.ratios);
                let tokens = tokens.saturating_sub(settings.template_tokens(messages));
                if tokens < TOKENS_MIN {
                    return false;
                }
                ema::learn(now, settings, tables, model, text, tokens);
            }
            Kind::Regress => {
                let prior = self.given.prior(model);
                let tokens = Bounds::new(settings, text, messages).clamp(tokens as f64);
                if let Some(oldest) = self.own.evidence.make_place(model)
                    && self.peers.evidence.get(oldest).is_none()
                {
                    self.models.remove(&oldest);
                }
                let own = self.own.evidence.open(model, || Evidence::none(now));
                own.taught = now;
                let peers = self.peers.evidence.get(model);
                let fitted = self.models.entry(model).or_insert_with(|| Model::new(prior));
                fitted.learn(own, peers, &text.regressors(messages), tokens);
            }
        }
        true
    }
}

/// An answer with fewer tokens, or to fewer bytes, teaches nothing.
const TOKENS_MIN: u64 = 16;

/// Tokens that a prompt can have.
struct Bounds {
    low: f64,
    high: f64,
}

impl Bounds {
    fn new(settings: &Settings, text: &Tally, messages: u64) -> Self {
        let bytes = text.total() as f64;
        let low = (bytes / settings.ratio_max).max(1.0);
        Self {
            low,
            high: (bytes / settings.ratio_min + (messages as f64 + 1.0) * TEMPLATE_MAX).max(low),
        }
    }

    /// The nearest of them; the least for what is no number.
    fn clamp(&self, tokens: f64) -> f64 {
        if tokens > self.low { tokens.min(self.high) } else { self.low }
    }
}

/// Template tokens that a message can cost.
const TEMPLATE_MAX: f64 = 64.0;
