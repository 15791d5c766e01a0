//! The learned ratios: one for each model and class, one for each model, one
//! for all.

use super::output::Outputs;
use super::{Class, Estimate, Learned, Settings, Tally};
use crate::config::TenantClass;
use crate::time::{Instant, Span};
use hashbrown::HashMap;
use std::hash::{BuildHasher, Hasher};

/// Ratios that one table holds.
pub const RATIOS_MAX: usize = 256;
/// Of these, places that ratios of single classes cannot take.
const PLACES_FOR_MODELS: usize = 32;
/// A full table replaces a ratio that nobody has taught for so long.
const STALE: Span = Span::from_secs(3600);
/// An answer with fewer text tokens than this teaches nothing: template and
/// rounding weigh too much in it.
const TOKENS_MIN: u64 = 16;
/// One answer moves a ratio as if it were off by this factor at the most.
const CORRECTION_MAX: f64 = 4.0;
/// A ratio is first trusted to a quarter of its value.
const FIRST_DEVIATION: f64 = 0.25;
/// Two values of a ratio that are so far apart in time weigh 1 : 2.
const HALF_TRUST: Span = Span::from_secs(600);

/// What a ratio is for: a hash of model and class, the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

impl Key {
    /// Of all models together.
    pub const GLOBAL: Self = Self(0);

    /// Of one model, all classes together.
    pub fn model(model: &[u8]) -> Self {
        Self(fnv(FNV_OFFSET, model).max(1))
    }

    /// Of one model's texts of one class.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self(fnv(self.0, &[0xFF, class as u8]).max(1))
    }

    /// Of one model's answers to tenants of one class.
    #[must_use]
    pub fn tenant(self, class: TenantClass) -> Self {
        Self(fnv(self.0, &[0xFE, class as u8]).max(1))
    }
}

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;

/// FNV-1a, 64 bits: <https://www.rfc-editor.org/rfc/rfc9923.html>.
pub(crate) fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// The hash of a byte string, the same in every process and version.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    fnv(FNV_OFFSET, bytes)
}

/// A hasher for keys that are hashes already; fixed, so that every run and
/// every platform iterates alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = fnv(self.0, bytes);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl BuildHasher for KeyHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

/// A learned ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Bytes per token, an exponential average.
    pub mean: f64,
    /// The average distance of a single answer from `mean`.
    pub deviation: f64,
    /// Answers seen, each counted by its share of the text.
    pub samples: f64,
    /// When it was last taught.
    pub taught: Instant,
}

/// A table of ratios: what one worker learned, or a blend of several.
#[derive(Clone, Debug, Default)]
pub struct Ratios(HashMap<Key, Ratio, KeyHasher>);

impl Ratios {
    /// The ratio of this key.
    pub fn get(&self, key: Key) -> Option<&Ratio> {
        self.0.get(&key)
    }

    /// Sets a ratio of a table that holds at most `max`. A full table refuses a
    /// new key unless it holds a stale one.
    pub fn set(&mut self, key: Key, ratio: Ratio, max: usize) {
        if self.0.len() >= max && !self.0.contains_key(&key) {
            let oldest = self.0.iter().map(|(key, old)| (old.taught, *key)).min();
            match oldest {
                Some((taught, old)) if ratio.taught.since(taught) >= STALE => self.0.remove(&old),
                _ => return,
            };
        }
        self.0.insert(key, ratio);
    }

    /// All ratios in the order of their keys.
    pub fn sorted(&self) -> Vec<(Key, Ratio)> {
        let mut all: Vec<_> = self.0.iter().map(|(key, ratio)| (*key, *ratio)).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// How many ratios it holds.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Blends tables. Each value weighs by its answers (as many as the average
    /// remembers at the most) and less the longer it went untaught next to
    /// the freshest. The result depends on the order of `tables` in the last
    /// bits only; give them in a fixed order.
    pub fn blend<'a>(tables: impl Iterator<Item = &'a Self> + Clone, decay: f64) -> Self {
        let mut keys: Vec<Key> = tables.clone().flat_map(|table| table.0.keys().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut all: Vec<(Key, Ratio)> = Vec::with_capacity(keys.len());
        for key in keys {
            let mut values = tables.clone().filter_map(|table| table.get(key)).copied();
            if let Some(first) = values.next() {
                all.push((key, values.fold(first, |a, b| blend_two(a, b, decay))));
            }
        }
        // If there are more than one table holds, the freshest stay.
        all.sort_by_key(|(key, ratio)| (core::cmp::Reverse(ratio.taught), *key));
        Self(all.into_iter().take(RATIOS_MAX).collect())
    }
}

fn blend_two(a: Ratio, b: Ratio, decay: f64) -> Ratio {
    let memory = 1.0 / (1.0 - decay);
    let newest = a.taught.max(b.taught);
    let weight = |ratio: &Ratio| {
        let age = newest.since(ratio.taught).as_secs_f64() / HALF_TRUST.as_secs_f64();
        ratio.samples.min(memory) / (1.0 + age)
    };
    let (wa, wb) = (weight(&a), weight(&b));
    let sum = wa + wb;
    if sum <= 0.0 {
        return a;
    }
    let mean = (wa * a.mean + wb * b.mean) / sum;
    let spread = |ratio: &Ratio| ratio.deviation + (ratio.mean - mean).abs();
    Ratio {
        mean,
        deviation: (wa * spread(&a) + wb * spread(&b)) / sum,
        samples: a.samples + b.samples,
        taught: newest,
    }
}

/// Estimates from what it and its peers learned, and learns.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    /// What this one learned.
    own: Learned,
    /// The blend of what the others learned, as of the last exchange.
    peers: Learned,
}

impl Learner {
    /// What this learner was taught; others may take it as a peer's.
    pub fn own(&self) -> &Learned {
        &self.own
    }

    /// Continues from what another learner left behind.
    pub fn adopt(&mut self, own: Learned) {
        self.own = own;
    }

    /// Takes the blend of what the other learners learned.
    pub fn set_peers(&mut self, peers: Learned) {
        self.peers = peers;
    }

    /// The ratio to use for a class of a model's texts.
    pub fn ratio(&self, settings: &Settings, model: Key, class: Class) -> Ratio {
        [model.class(class), model, Key::GLOBAL]
            .into_iter()
            .filter_map(|key| self.known(key, settings.decay))
            .find(|ratio| ratio.samples >= settings.min_samples)
            .unwrap_or_else(|| first(settings.start_ratio, Instant::default()))
    }

    fn known(&self, key: Key, decay: f64) -> Option<Ratio> {
        match (self.own.ratios.get(key), self.peers.ratios.get(key)) {
            (Some(own), Some(peers)) => Some(blend_two(*own, *peers, decay)),
            (own, peers) => own.or(peers).copied(),
        }
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
    /// Token ids are not counted.
    pub fn estimate(
        &self,
        settings: &Settings,
        model: Key,
        text: &Tally,
        messages: u64,
    ) -> Estimate {
        let text = self.estimate_text(settings, model, text);
        let template = settings.template_tokens(messages) as f64;
        Estimate { mean: text.mean + template, high: text.high + template }
    }

    fn estimate_text(&self, settings: &Settings, model: Key, text: &Tally) -> Estimate {
        let mut estimate = Estimate { mean: 0.0, high: 0.0 };
        for (class, bytes) in text.parts() {
            let ratio = self.ratio(settings, model, class);
            let low = (ratio.mean - settings.margin * ratio.deviation).max(ratio.mean / 2.0);
            estimate.mean += bytes as f64 / ratio.mean;
            estimate.high += bytes as f64 / low;
        }
        estimate
    }

    /// Learns that a prompt took so many tokens, token ids not counted. Each
    /// class is corrected by the factor that makes the whole
    /// estimate right, as far as its share of the estimate goes. For a text of
    /// one class this is the paper's exponential average. Returns whether the
    /// answer was large enough to teach.
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
        let tokens = tokens.saturating_sub(settings.template_tokens(messages));
        let predicted = self.estimate_text(settings, model, text).mean;
        if tokens < TOKENS_MIN || bytes < TOKENS_MIN || predicted <= 0.0 {
            return false;
        }
        let observed = bytes as f64 / tokens as f64;
        // Of a body that was not read nobody knows whether it holds images.
        // Its ratio is its own, and what no text can reach teaches nothing.
        let unseen = text.parts().any(|(class, _)| class == Class::Unseen);
        if unseen && observed > settings.ratio_max {
            return false;
        }
        let correction = (predicted / tokens as f64).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
        let ratios: Vec<_> =
            text.parts().map(|(class, n)| (class, n, self.ratio(settings, model, class))).collect();
        for (class, bytes, ratio) in ratios {
            let share = bytes as f64 / ratio.mean / predicted;
            let observed = ratio.mean * correction;
            let max = RATIOS_MAX - PLACES_FOR_MODELS;
            self.teach(now, settings, model.class(class), observed, share, max);
        }
        if !unseen {
            self.teach(now, settings, model, observed, 1.0, RATIOS_MAX);
            self.teach(now, settings, Key::GLOBAL, observed, 1.0, RATIOS_MAX);
        }
        true
    }

    fn teach(
        &mut self,
        now: Instant,
        settings: &Settings,
        key: Key,
        observed: f64,
        share: f64,
        max: usize,
    ) {
        let known = self.known(key, settings.decay);
        let mut ratio = self.own.ratios.get(key).copied().unwrap_or_else(|| {
            // Start from what the others know, but with no answers of our own.
            let mean = known.map_or(settings.start_ratio, |ratio| ratio.mean);
            let deviation = known.map_or(mean * FIRST_DEVIATION, |ratio| ratio.deviation);
            Ratio { mean, deviation, samples: 0.0, taught: now }
        });
        let observed = observed.clamp(settings.ratio_min, settings.ratio_max);
        // The first answers weigh alike, so that the start value fades at once.
        let step = |known: f64| share * (1.0 - settings.decay).max(1.0 / (known + 1.0));
        // The first deviation counts as one answer, or one answer that happens
        // to fit would end all caution.
        let distance = (observed - ratio.mean).abs();
        ratio.deviation += step(ratio.samples + 1.0) * (distance - ratio.deviation);
        let step = step(ratio.samples);
        let mean = ratio.mean + step * (observed - ratio.mean);
        ratio.mean = mean.clamp(settings.ratio_min, settings.ratio_max);
        ratio.samples += share;
        ratio.taught = now;
        self.own.ratios.set(key, ratio, max);
    }
}

fn first(mean: f64, taught: Instant) -> Ratio {
    Ratio { mean, deviation: mean * FIRST_DEVIATION, samples: 0.0, taught }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: u64) -> Instant {
        Instant::default() + Span::from_secs(second)
    }

    fn taught(learner: &mut Learner, class: Class, ratio: f64, answers: u64) {
        let model = Key::model(b"m");
        for second in 0..answers {
            let text = Tally::of(class, 10_000);
            let tokens = (10_000.0 / ratio) as u64;
            assert!(learner.learn(at(second), &Settings::default(), model, &text, 0, tokens));
        }
    }

    #[test]
    fn each_class_converges_to_its_own_ratio() {
        let (settings, model) = (Settings::default(), Key::model(b"m"));
        let mut learner = Learner::default();
        for second in 0..1000 {
            // 3 : 1 and 1 : 3 mixes of two classes at 2 and 5 bytes a token.
            let (han, english) = if second % 2 == 0 { (3000, 1000) } else { (1000, 3000) };
            let mut text = Tally::of(Class::Han, han);
            text.add(Class::English, english);
            learner.learn(at(second), &settings, model, &text, 0, han / 2 + english / 5);
        }
        let ratio = |class| learner.ratio(&settings, model, class).mean;
        assert!((ratio(Class::Han) - 2.0).abs() < 0.05, "{}", ratio(Class::Han));
        assert!((ratio(Class::English) - 5.0).abs() < 0.2, "{}", ratio(Class::English));
    }

    #[test]
    fn an_unknown_class_falls_back_to_its_model_then_to_all() {
        let settings = Settings::default();
        let mut learner = Learner::default();
        let (m, other) = (Key::model(b"m"), Key::model(b"other"));
        assert_eq!(learner.ratio(&settings, m, Class::Han).mean, 4.0);
        taught(&mut learner, Class::Thai, 8.0, 30);
        assert!((learner.ratio(&settings, m, Class::Han).mean - 8.0).abs() < 0.1);
        assert!((learner.ratio(&settings, other, Class::Han).mean - 8.0).abs() < 0.1);
    }

    #[test]
    fn the_margin_shrinks_as_the_ratio_is_learned() {
        let (settings, model) = (Settings::default(), Key::model(b"m"));
        let mut learner = Learner::default();
        let text = Tally::of(Class::Plain, 4000);
        let cold = learner.estimate(&settings, model, &text, 0);
        assert_eq!((cold.mean, cold.high.round()), (1000.0, 1333.0));
        let mut margin = cold.high - cold.mean;
        for answers in [1, 2, 20, 77] {
            taught(&mut learner, Class::Plain, 4.0, answers);
            let warm = learner.estimate(&settings, model, &text, 0);
            let narrower = warm.high - warm.mean;
            assert!(narrower < margin && (narrower > 50.0 || answers > 2), "{answers}: {warm:?}");
            margin = narrower;
        }
        assert!(margin < 10.0, "{margin}");
    }

    #[test]
    fn one_absurd_answer_does_little() {
        let (settings, model) = (Settings::default(), Key::model(b"m"));
        let mut learner = Learner::default();
        taught(&mut learner, Class::Plain, 4.0, 100);
        learner.learn(at(100), &settings, model, &Tally::of(Class::Plain, 100), 0, 1_000_000);
        assert!(learner.ratio(&settings, model, Class::Plain).mean > 3.8);
        assert!(!learner.learn(at(101), &settings, model, &Tally::of(Class::Plain, 100), 0, 3));
    }

    #[test]
    fn a_full_table_keeps_what_is_fresh() {
        let mut table = Ratios::default();
        let ratio = |second| Ratio { mean: 4.0, deviation: 0.0, samples: 1.0, taught: at(second) };
        for key in 0..RATIOS_MAX as u64 {
            table.set(Key(key), ratio(key), RATIOS_MAX);
        }
        table.set(Key(1000), ratio(300), RATIOS_MAX);
        assert!(table.get(Key(1000)).is_none() && table.len() == RATIOS_MAX);
        table.set(Key(1000), ratio(3600), RATIOS_MAX);
        assert!(table.get(Key(1000)).is_some() && table.get(Key(0)).is_none());
        assert_eq!(table.len(), RATIOS_MAX);
    }

    #[test]
    fn bodies_that_were_not_read_teach_only_their_own_ratio() {
        let (settings, model) = (Settings::default(), Key::model(b""));
        let mut learner = Learner::default();
        let unseen = |bytes| Tally::of(Class::Unseen, bytes);
        for second in 0..60 {
            // A picture of half a megabyte.
            assert!(!learner.learn(at(second), &settings, model, &unseen(500_000), 0, 1500));
            assert!(learner.learn(at(second), &settings, model, &unseen(6000), 0, 1000));
        }
        assert!((learner.ratio(&settings, model, Class::Unseen).mean - 6.0).abs() < 0.1);
        assert_eq!(learner.ratio(&settings, model, Class::English).mean, 4.0);
    }

    #[test]
    fn many_models_leave_no_model_without_a_ratio() {
        let (settings, mut learner) = (Settings::default(), Learner::default());
        for name in 0..30_u8 {
            for class in &Class::ALL[..20] {
                let text = Tally::of(*class, 8000);
                learner.learn(at(0), &settings, Key::model(&[name]), &text, 0, 2000);
            }
        }
        for name in 0..30_u8 {
            assert!(learner.own().ratios.get(Key::model(&[name])).is_some(), "{name}");
        }
    }

    #[test]
    fn peers_teach_a_cold_learner() {
        let (settings, model) = (Settings::default(), Key::model(b"m"));
        let (mut a, mut b) = (Learner::default(), Learner::default());
        taught(&mut a, Class::Han, 2.0, 50);
        b.set_peers(Learned::blend([a.own()].into_iter(), settings.decay));
        assert!((b.ratio(&settings, model, Class::Han).mean - 2.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn ratios_stay_in_their_bounds(
            answers in prop::collection::vec((0_usize..super::super::CLASSES, 1_u64..1 << 40, 0_u64..1 << 40), 1..60),
        ) {
            let (settings, model) = (Settings::default(), Key::model(b"m"));
            let mut learner = Learner::default();
            for (second, (class, bytes, tokens)) in answers.into_iter().enumerate() {
                let text = Tally::of(Class::ALL[class], bytes);
                learner.learn(at(second as u64), &settings, model, &text, 0, tokens);
                let estimate = learner.estimate(&settings, model, &text, 0);
                prop_assert!(estimate.mean.is_finite() && estimate.high >= estimate.mean);
                for (_, ratio) in learner.own().ratios.sorted() {
                    prop_assert!(ratio.mean >= settings.ratio_min && ratio.mean <= settings.ratio_max);
                    prop_assert!(ratio.deviation >= 0.0);
                }
            }
        }
    }
}
