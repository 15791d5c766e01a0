use super::*;
use crate::config::Config;
use crate::time::{Instant, Span};
use proptest::prelude::*;

fn at(second: u64) -> Instant {
    Instant::default() + Span::from_secs(second)
}

fn settings(kind: Kind) -> Settings {
    Settings { kind, ..Settings::default() }
}

const MODEL: Key = Key(7);

/// Some text of a few kinds, and its tokens under a tokenizer that takes so
/// many bytes of each.
fn sample(n: u64, bytes_per_token: [f64; 3]) -> (Tally, u64) {
    let kinds = ["the weather of the north ", "Поезд отправляется ", "1,204;17 "];
    let mut text = Tally::default();
    let mut tokens = 0.0;
    for (at, (kind, ratio)) in kinds.iter().zip(bytes_per_token).enumerate() {
        let part = kind.repeat(((n * 7 + at as u64 * 11) % 23) as usize + 2);
        tokens += part.len() as f64 / ratio;
        text.merge(&Tally::read(part.as_bytes()));
    }
    (text, tokens as u64 + 7)
}

const A: [f64; 3] = [5.0, 8.0, 2.0];
const B: [f64; 3] = [3.0, 2.5, 1.2];

fn teach(learner: &mut Learner, answers: core::ops::Range<u64>, ratios: [f64; 3]) {
    for n in answers {
        let (text, tokens) = sample(n, ratios);
        assert!(learner.learn(at(n), &settings(Kind::Regress), MODEL, &text, 1, tokens));
    }
}

/// The mean relative error on samples that were not taught.
fn error(learner: &mut Learner, ratios: [f64; 3]) -> f64 {
    let errors = (1000..1020).map(|n| {
        let (text, tokens) = sample(n, ratios);
        let estimate = learner.estimate(&settings(Kind::Regress), MODEL, &text, 1);
        (estimate.mean / tokens as f64 - 1.0).abs()
    });
    errors.sum::<f64>() / 20.0
}

fn margin(learner: &mut Learner) -> f64 {
    let (text, _) = sample(1000, A);
    let estimate = learner.estimate(&settings(Kind::Regress), MODEL, &text, 1);
    estimate.high / estimate.mean - 1.0
}

#[test]
fn a_tokenizer_is_learned_from_mixes() {
    let mut learner = Learner::default();
    let cold = (error(&mut learner, A), margin(&mut learner));
    teach(&mut learner, 0..15, A);
    let warm = (error(&mut learner, A), margin(&mut learner));
    teach(&mut learner, 15..50, A);
    assert!(cold.0 > 0.2 && error(&mut learner, A) < 0.02, "{cold:?}: {}", error(&mut learner, A));
    assert!(cold.1 > warm.1 && warm.1 > margin(&mut learner), "{cold:?} {warm:?}");
}

#[test]
fn what_workers_learn_adds_up() {
    let (mut a, mut b, mut c) = (Learner::default(), Learner::default(), Learner::default());
    let mut all = Learner::default();
    teach(&mut a, 0..6, A);
    teach(&mut b, 6..12, A);
    teach(&mut all, 0..12, A);
    c.set_peers(Learned::blend([a.own(), b.own()].into_iter(), 0.95));
    let apart = error(&mut a, A);
    assert!(error(&mut c, A) < apart && (error(&mut c, A) - error(&mut all, A)).abs() < 0.02);
    // A worker's own answers and those of the others count alike.
    a.set_peers(b.own().clone());
    assert!((error(&mut a, A) - error(&mut c, A)).abs() < 0.01);
    // So does what is left behind by one that died.
    let mut heir = Learner::default();
    heir.adopt(Learned::blend([a.own(), b.own()].into_iter(), 0.95));
    assert!((error(&mut heir, A) - error(&mut c, A)).abs() < 0.01);
}

#[test]
fn one_absurd_answer_does_little() {
    let mut learner = Learner::default();
    teach(&mut learner, 0..50, A);
    let (text, tokens) = sample(51, A);
    learner.learn(at(51), &settings(Kind::Regress), MODEL, &text, 1, tokens * 1000);
    assert!(error(&mut learner, A) < 0.08, "{}", error(&mut learner, A));
    assert!(!learner.learn(at(52), &settings(Kind::Regress), MODEL, &text, 1, 3), "too small");
}

#[test]
fn another_tokenizer_under_the_same_name_is_learned_anew() {
    let mut learner = Learner::default();
    teach(&mut learner, 0..300, A);
    teach(&mut learner, 300..350, B);
    assert!(error(&mut learner, B) < 0.08, "{}", error(&mut learner, B));
}

/// What a worker that is dead or idle was taught before the change stays as it
/// is; nobody believes it any more.
#[test]
fn another_tokenizer_is_learned_although_others_remember_the_old_one() {
    let mut dead = Learner::default();
    teach(&mut dead, 0..500, A);
    let mut learner = Learner::default();
    learner.set_peers(Learned::blend([dead.own()].into_iter(), 0.95));
    teach(&mut learner, 500..560, A);
    teach(&mut learner, 1000..1200, B);
    assert!(error(&mut learner, B) < 0.03, "{}", error(&mut learner, B));
    // Nor is it believed by a worker that hears both.
    let mut third = Learner::default();
    let old = at(1200 + 4 * 3600);
    let (text, tokens) = sample(1, B);
    learner.learn(old, &settings(Kind::Regress), MODEL, &text, 1, tokens);
    third.set_peers(Learned::blend([dead.own(), learner.own()].into_iter(), 0.95));
    assert!(error(&mut third, B) < error(&mut third, A) / 3.0, "{}", error(&mut third, B));
}

/// A load test with one prompt: rounding errors of sums that are all alike add
/// up, and must not make the evidence contradict itself.
#[test]
fn many_like_prompts_over_many_workers_still_teach() {
    for lines in [300, 500, 900] {
        let line =
            |n: usize| format!("    let Some(x{n}) = self.of(&key, {n}) else {{ return }};\n");
        let text: String = (0..lines).map(line).collect();
        let mean = taught_by_many(&Tally::read(text.as_bytes()));
        assert!((mean - 9000.0).abs() < 200.0, "{lines} lines: {mean}");
    }
}

/// The estimate of a worker that has the evidence of four, who all were told
/// 9,000 tokens for this text a thousand times.
fn taught_by_many(text: &Tally) -> f64 {
    let mut workers = Vec::new();
    for _ in 0..4 {
        let mut worker = Learner::default();
        for n in 0..1020 {
            worker.learn(at(n), &settings(Kind::Regress), MODEL, text, 1, 9000);
        }
        workers.push(worker);
    }
    let mut new = Learner::default();
    new.set_peers(Learned::blend(workers.iter().map(Learner::own), 0.95));
    new.estimate(&settings(Kind::Regress), MODEL, text, 1).mean
}

#[test]
fn bodies_that_were_not_read_have_their_own_coefficient() {
    let (mut learner, settings) = (Learner::default(), settings(Kind::Regress));
    let unseen = |bytes| Tally::of(Class::Unseen, bytes);
    let before = error(&mut learner, A);
    for second in 0..40 {
        // A picture of half a megabyte.
        assert!(!learner.learn(at(second), &settings, MODEL, &unseen(500_000), 0, 1500));
        assert!(learner.learn(at(second), &settings, MODEL, &unseen(6000), 0, 1000));
    }
    let estimate = learner.estimate(&settings, MODEL, &unseen(12_000), 0);
    assert!((estimate.mean / 2000.0 - 1.0).abs() < 0.05, "{estimate:?}");
    assert!((error(&mut learner, A) - before).abs() < 0.05);
}

#[test]
fn the_least_recently_taught_model_makes_place() {
    let (mut learner, settings) = (Learner::default(), settings(Kind::Regress));
    let (text, tokens) = sample(0, B);
    let models = MODELS_MAX as u64 * 2 + 2;
    for n in 0..models {
        learner.learn(at(n), &settings, Key(n), &text, 1, tokens);
    }
    let mut mean = |key| learner.estimate(&settings, Key(key), &text, 1).mean;
    assert_eq!(mean(0), mean(models + 1), "forgotten");
    assert_ne!(mean(models - 1), mean(models + 1));
}

#[test]
fn what_was_exported_can_be_given() {
    let mut learner = Learner::default();
    teach(&mut learner, 0..60, A);
    let exported = learner.export();
    assert!(exported.len() < 2500, "{}", exported.len());
    let document = format!(
        r#"{{"version": 1, "models": [{{"match": "*", "pools": [{{"name": "p", "cluster": "c",
            "max_model_len": 8192}}]}}], "estimator": {{"learned": {exported}}}}}"#
    );
    let config = Config::parse(document.as_bytes()).unwrap();
    let mut other = Learner::default();
    other.give(config.base().estimator.learned.clone());
    assert!(error(&mut other, A) < 0.03, "{}", error(&mut other, A));
    assert!(margin(&mut other) < margin(&mut Learner::default()));
    // What it learns comes on top, and is exported with it.
    teach(&mut other, 60..120, B);
    assert!(error(&mut other, B) < 0.08, "{}", error(&mut other, B));
}

#[test]
fn what_the_mean_may_be_off_shrinks_with_answers_and_what_texts_differ_stays() {
    for kind in [Kind::Regress, Kind::Ema] {
        let (settings, mut learner) = (settings(kind), Learner::default());
        let (text, _) = sample(3, A);
        let off = |learner: &mut Learner| {
            let Estimate { mean, mean_high, high } = learner.estimate(&settings, MODEL, &text, 1);
            (mean_high / mean - 1.0, high / mean - 1.0)
        };
        let mut all = vec![off(&mut learner)];
        for (from, to) in [(0, 4), (4, 40), (40, 400)] {
            for n in from..to {
                // A twentieth more or less, whatever the text.
                let (text, tokens) = sample(n, A);
                let tokens = if n % 2 == 0 { tokens * 19 / 20 } else { tokens * 21 / 20 };
                learner.learn(at(n), &settings, MODEL, &text, 1, tokens);
            }
            all.push(off(&mut learner));
        }
        assert!(all.is_sorted_by(|a, b| a.0 > b.0 - 1e-4), "{kind:?}: {all:?}");
        println!("{kind:?}, after 0, 4, 40, 400 answers: {all:.3?}");
        let last = all.last().unwrap();
        assert!(last.0 < 0.02 && last.1 > 2.0 * last.0, "{kind:?}: {all:?}");
    }
}

#[test]
fn a_prompt_without_text_costs_nothing() {
    let estimate = |messages| {
        Learner::default().estimate(&settings(Kind::Regress), MODEL, &Tally::default(), messages)
    };
    assert_eq!(estimate(0), Estimate { mean: 0.0, mean_high: 0.0, high: 0.0 });
    assert!(estimate(1).mean > 1.0);
}

#[test]
fn ema_is_an_average_of_each_category() {
    let (mut learner, settings) = (Learner::default(), settings(Kind::Ema));
    let text = |word: &str| Tally::read(word.repeat(400).as_bytes());
    let (latin, greek, digits) = (text("words "), text("καλό "), text("12345 "));
    let mean =
        |learner: &mut Learner, text: &Tally| learner.estimate(&settings, MODEL, text, 0).mean;
    assert_eq!(mean(&mut learner, &latin), 600.0, "the start ratio");
    for n in 0..200 {
        learner.learn(at(n), &settings, MODEL, &latin, 0, 480);
        learner.learn(at(n), &settings, MODEL, &greek, 0, 1800);
    }
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    assert!(close(mean(&mut learner, &latin), 480.0) && close(mean(&mut learner, &greek), 1800.0));
    // A category that was not seen has the model's ratio, between the two.
    assert!((480.0..1440.0).contains(&mean(&mut learner, &digits)));
    // One answer moves the average by the twentieth part.
    learner.learn(at(201), &settings, MODEL, &latin, 0, 960);
    assert!(close(mean(&mut learner, &latin), 2400.0 / (5.0 - 0.05 * 2.5)));
}

proptest! {
    #[test]
    fn estimates_stay_in_their_bounds(
        answers in prop::collection::vec(
            ("\\PC{0,60}", 1_u64..1 << 34, 0_u64..40, 0_u64..1 << 40, any::<bool>()), 1..20),
    ) {
        for kind in [Kind::Regress, Kind::Ema] {
            let (settings, mut learner) = (settings(kind), Learner::default());
            for (second, (text, more, messages, tokens, tools)) in answers.iter().enumerate() {
                let mut text = Tally::read(text.as_bytes());
                if *tools { text.add(Class::Tools, *more) } else { text.extend(*more) }
                learner.learn(at(second as u64), &settings, MODEL, &text, *messages, *tokens);
                let estimate = learner.estimate(&settings, MODEL, &text, *messages);
                let Estimate { mean, mean_high, high } = estimate;
                prop_assert!(mean > 0.0 && mean_high >= mean && high >= mean_high);
                prop_assert!(estimate.high.is_finite());
                prop_assert!(estimate.high >= text.total() as f64 / settings.ratio_max);
                let encoded = { let mut bytes = Vec::new(); learner.own().encode(&mut bytes); bytes };
                prop_assert!(Learned::decode(&encoded).is_some());
            }
        }
    }
}
