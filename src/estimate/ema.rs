//! `ema`: the estimator of the dual-pool paper (arXiv 2604.08075, algorithm
//! 1), which keeps an exponential average of bytes per token, and of its
//! deviation, for each category of texts; here for each model's.

use super::features::{Feature, Tally};
use super::table::{Table, Taught};
use super::{Estimate, Key, Settings};
use crate::time::{Instant, Span};

/// Ratios that one table holds.
pub(super) const RATIOS_MAX: usize = 256;
/// Of these, places that ratios of single categories cannot take.
const PLACES_FOR_MODELS: usize = 32;
/// A full table replaces a ratio that nobody has taught for so long.
const STALE: Span = Span::from_secs(3600);
/// A ratio is first trusted to a quarter of its value.
const FIRST_DEVIATION: f64 = 0.25;
/// Two values of a ratio that are so far apart in time weigh 1 : 2.
const HALF_TRUST: Span = Span::from_secs(600);

/// A learned ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// Bytes per token, an exponential average.
    pub(super) mean: f64,
    /// The average distance of a single answer from `mean`.
    pub(super) deviation: f64,
    /// Answers seen.
    pub(super) samples: f64,
    /// When it was last taught.
    pub(super) taught: Instant,
}

/// A table of ratios: what one worker learned, or a blend of several.
pub(super) type Ratios = Table<Ratio, RATIOS_MAX>;

impl Taught for Ratio {
    fn taught(&self) -> Instant {
        self.taught
    }
}

impl Ratios {
    /// Sets a ratio of a table that holds at most `max`. A full table refuses a
    /// new key unless it holds a stale one.
    fn set_within(&mut self, key: Key, ratio: Ratio, max: usize) {
        if !self.has_place(key, max) {
            match self.oldest() {
                Some((taught, old)) if ratio.taught.since(taught) >= STALE => self.remove(old),
                _ => return,
            }
        }
        self.set(key, ratio);
    }

    /// Blends tables. Each value weighs by its answers (as many as the average
    /// remembers at the most) and less the longer it went untaught next to
    /// the freshest. The result depends on the order of `tables` in the last
    /// bits only; give them in a fixed order.
    pub(super) fn blend<'a>(tables: impl Iterator<Item = &'a Self> + Clone, decay: f64) -> Self {
        let mut keys: Vec<Key> =
            tables.clone().flat_map(Self::sorted).map(|(key, _)| key).collect();
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
        let mut blend = Self::default();
        for (key, ratio) in all {
            blend.set(key, ratio);
        }
        blend
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

/// Kinds of Latin text: the first is meant of which a text has more than the
/// share, counted for each byte.
const KINDS: [(&[Feature], f64); 13] = [
    (&[Feature::Digit], 0.5),
    (&[Feature::Digit], 0.25),
    (&[Feature::SpaceRun], 0.5),
    (&[Feature::SpaceRun], 0.125),
    (&[Feature::Punctuation], 0.25),
    (&[Feature::Punctuation], 0.125),
    (&[Feature::Digit], 0.125),
    (&[Feature::LatinStacked], 0.03),
    (&ACCENTS, 0.06),
    (&ACCENTS, 0.03),
    (&ACCENTS, 0.01),
    (&[Feature::Punctuation], 0.06),
    (&[Feature::Kwz], 0.03),
];
const ACCENTS: [Feature; 3] = [Feature::LatinOne, Feature::LatinTwo, Feature::LatinOther];

/// The category of a text: the script that most of it is in, or for Latin
/// text its kind.
fn category(text: &Tally) -> u8 {
    let bytes = text.total() as f64;
    let share = |feature: Feature| text.get(feature) / bytes;
    let scripts = Feature::ALL.into_iter().skip(Feature::Symbol as usize);
    let scripts = scripts.take_while(|feature| *feature != Feature::Bytes);
    let most = scripts.max_by(|a, b| share(*a).total_cmp(&share(*b)));
    // Characters of these take two to four bytes.
    if let Some(script) = most.filter(|script| share(*script) > 0.125) {
        return script as u8;
    }
    for (feature, code) in [(Feature::Unseen, 255), (Feature::Tools, 254)] {
        if share(feature) > 0.5 {
            return code;
        }
    }
    if share(Feature::Space) + share(Feature::Control) < 1.0 / 64.0 {
        return 253;
    }
    let kinds = (128..).zip(KINDS);
    let of = |features: &[Feature]| features.iter().map(|feature| share(*feature)).sum::<f64>();
    let kind = kinds.into_iter().find(|(_, (features, least))| of(features) > *least);
    kind.map_or(252, |(code, _)| code)
}

/// The ratio to use for a category of a model's texts.
fn ratio(settings: &Settings, tables: [&Ratios; 2], model: Key, category: u8) -> Ratio {
    [model.category(category), model, Key::GLOBAL]
        .into_iter()
        .filter_map(|key| known(tables, key, settings.decay))
        .find(|ratio| ratio.samples >= settings.min_samples)
        .unwrap_or_else(|| first(settings.start_ratio, Instant::default()))
}

fn known([own, peers]: [&Ratios; 2], key: Key, decay: f64) -> Option<Ratio> {
    match (own.get(key), peers.get(key)) {
        (Some(own), Some(peers)) => Some(blend_two(*own, *peers, decay)),
        (own, peers) => own.or(peers).copied(),
    }
}

/// Tokens of a prompt, from what this worker and the others learned.
pub(super) fn estimate(
    settings: &Settings,
    tables: [&Ratios; 2],
    model: Key,
    text: &Tally,
    messages: u64,
) -> Estimate {
    let ratio = ratio(settings, tables, model, category(text));
    let (bytes, template) = (text.total() as f64, settings.template_tokens(messages) as f64);
    let tokens = |deviation: f64| {
        bytes / (ratio.mean - settings.margin * deviation).max(ratio.mean / 2.0) + template
    };
    Estimate {
        mean: tokens(0.0),
        // A mean errs by less, the more it is of.
        mean_high: tokens(ratio.deviation / (ratio.samples + 1.0).sqrt()),
        high: tokens(ratio.deviation),
    }
}

/// Learns that a text took so many tokens, those of the template not counted.
pub(super) fn learn(
    now: Instant,
    settings: &Settings,
    (own, peers): (&mut Ratios, &Ratios),
    model: Key,
    text: &Tally,
    tokens: u64,
) {
    let observed = text.total() as f64 / tokens as f64;
    let max = RATIOS_MAX - PLACES_FOR_MODELS;
    teach(now, settings, (own, peers), model.category(category(text)), observed, max);
    // The ratio of a body that was not read is its own.
    if text.unseen() == 0 {
        teach(now, settings, (own, peers), model, observed, RATIOS_MAX);
        teach(now, settings, (own, peers), Key::GLOBAL, observed, RATIOS_MAX);
    }
}

fn teach(
    now: Instant,
    settings: &Settings,
    (own, peers): (&mut Ratios, &Ratios),
    key: Key,
    observed: f64,
    max: usize,
) {
    let mut ratio = own.get(key).copied().unwrap_or_else(|| {
        // Start from what the others know, but with no answers of our own.
        let known = known([own, peers], key, settings.decay);
        let mean = known.map_or(settings.start_ratio, |ratio| ratio.mean);
        let deviation = known.map_or(mean * FIRST_DEVIATION, |ratio| ratio.deviation);
        Ratio { mean, deviation, samples: 0.0, taught: now }
    });
    let observed = observed.clamp(settings.ratio_min, settings.ratio_max);
    // The first answers weigh alike, so that the start value fades at once.
    let step = |known: f64| (1.0 - settings.decay).max(1.0 / (known + 1.0));
    // The first deviation counts as one answer, or one answer that happens
    // to fit would end all caution.
    let distance = (observed - ratio.mean).abs();
    ratio.deviation += step(ratio.samples + 1.0) * (distance - ratio.deviation);
    let step = step(ratio.samples);
    let mean = ratio.mean + step * (observed - ratio.mean);
    ratio.mean = mean.clamp(settings.ratio_min, settings.ratio_max);
    ratio.samples += 1.0;
    ratio.taught = now;
    own.set_within(key, ratio, max);
}

fn first(mean: f64, taught: Instant) -> Ratio {
    Ratio { mean, deviation: mean * FIRST_DEVIATION, samples: 0.0, taught }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_a_new_ratio_only_for_a_stale_one() {
        let at = |second| Instant::default() + Span::from_secs(second);
        let ratio = |taught| Ratio { mean: 4.0, deviation: 0.0, samples: 1.0, taught };
        let mut ratios = Ratios::default();
        for key in 0..3 {
            ratios.set_within(Key(key), ratio(at(key)), 3);
        }
        ratios.set_within(Key(9), ratio(at(3599)), 3);
        assert!(ratios.get(Key(9)).is_none());
        ratios.set_within(Key(9), ratio(at(3600)), 3);
        assert!(ratios.get(Key(9)).is_some() && ratios.get(Key(0)).is_none());
    }
}
