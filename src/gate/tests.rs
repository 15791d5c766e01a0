mod loads;
mod tenants;

use super::*;
use crate::config::Config;
use crate::estimate::{Class, Learned, Tally};
use crate::request::Cap;
use crate::share::NoSlots;
use crate::usage::Usage;

const CONFIG: &[u8] = br#"{"version": 1, "models": [{"match": "m*", "pools": [
    {"name": "short", "cluster": "s", "max_model_len": 8192, "threshold": 4000},
    {"name": "long", "cluster": "l", "max_model_len": 65536}]}], "default_pool": "short",
    "estimator": {"kind": "ema"}}"#;

fn gate() -> Gate {
    Gate::new("tidegate", 1)
}

fn settings(edit: impl Fn(String) -> String) -> Arc<Settings> {
    let document = edit(String::from_utf8(CONFIG.to_vec()).unwrap());
    Arc::clone(Config::parse(document.as_bytes()).unwrap().base())
}

fn chat(bytes: u64, cap: Cap) -> RequestFacts {
    RequestFacts::chat("m", Tally::of(Class::Tools, bytes), 1, cap)
}

fn open(gate: &mut Gate, body: Body) -> (Ticket, Decision) {
    gate.open(&settings(|document| document), body)
}

fn used(input: u64, output: u64) -> Answer<'static> {
    let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
    Answer { status: Some(200), usage: Some(Ok(usage)), complete: true, ..Answer::default() }
}

fn refused() -> Answer<'static> {
    Answer { status: Some(400), overflow: Some(Overflow::default()), ..Answer::default() }
}

/// The estimate of a prompt of 8,000 bytes.
fn input(gate: &mut Gate) -> u64 {
    open(gate, Body::Whole(chat(8000, Cap::Absent))).1.budget.unwrap().input
}

fn close(gate: &mut Gate, body: Body, answer: &Answer<'_>) -> Settlement {
    let (ticket, _) = open(gate, body);
    gate.close(Instant::default(), &mut NoSlots, ticket, answer)
}

#[test]
fn each_way_to_decide_has_its_reason() {
    let mut gate = gate();
    let small = || chat(400, Cap::Tokens(100));
    let large = || chat(40_000, Cap::Tokens(100));
    let cut = |facts, known: bool| Body::Cut { facts, unread: known.then_some(0), early: false };
    let other = RequestFacts::chat("x", Tally::default(), 1, Cap::Absent);
    let cases = [
        (Body::Whole(small()), "short", Reason::Threshold),
        (Body::Whole(large()), "long", Reason::Largest),
        (Body::Whole(chat(400, Cap::Tokens(70_000))), "long", Reason::TooLarge),
        (cut(small(), true), "short", Reason::InspectLimit),
        (cut(large(), true), "long", Reason::InspectLimit),
        (cut(small(), false), "long", Reason::InspectLimit),
        (cut(chat(400_000, Cap::Absent), true), "long", Reason::TooLarge),
        (cut(RequestFacts::new(Api::Chat), true), "short", Reason::InspectLimit),
        (Body::Unparsed(None), "short", Reason::Unparsed),
        (Body::NotInspected(None), "short", Reason::NotInspected),
        (Body::Whole(other), "short", Reason::UnknownModel),
    ];
    for (body, pool, reason) in cases {
        let (_, decision) = open(&mut gate, body.clone());
        assert_eq!((decision.pool.name.as_str(), decision.reason), (pool, reason), "{body:?}");
    }
}

#[test]
fn a_quota_counts_what_was_stated_or_seen_and_estimates_the_rest() {
    let mut gate = gate();
    let body = || Body::Whole(chat(8000, Cap::Tokens(100)));
    let budget = open(&mut gate, body()).1.budget.unwrap();
    assert!(budget.input > 0);
    let mut tokens = |body, input, output| {
        let usage = Usage { input, output, ..Usage::default() };
        let told = if usage == Usage::default() { Err(Missing::Aborted) } else { Ok(usage) };
        let answer =
            Answer { status: Some(200), usage: Some(told), output_seen: 30, ..Answer::default() };
        close(&mut gate, body, &answer).tokens
    };
    assert_eq!(tokens(body(), None, None), Some(budget.input + 30));
    assert_eq!(tokens(body(), None, Some(50)), Some(budget.input + 50));
    assert_eq!(tokens(body(), Some(70), None), Some(100));
    assert_eq!(tokens(body(), Some(70), Some(50)), Some(120));
    assert_eq!(tokens(body(), Some(70), Some(2)), Some(100), "the beginning");
    assert_eq!(tokens(Body::Unparsed(Some(9)), Some(70), None), Some(100));
    assert_eq!(tokens(Body::Unparsed(Some(9)), None, None), Some(39));
    // The engine was at work for a client that left.
    let left = Answer { aborted: true, ..Answer::default() };
    let input = input(&mut gate);
    assert_eq!(close(&mut gate, body(), &left).tokens, Some(input));
    // Embeddings have no output to state, and a document without text no tokens.
    let stated = Ok(Usage { input: Some(70), ..Usage::default() });
    let embedding = Answer { usage: Some(stated), output_seen: 30, ..used(0, 0) };
    assert_eq!(close(&mut gate, body(), &embedding).tokens, Some(70));
    let empty = Answer { usage: None, ..used(0, 0) };
    assert_eq!(close(&mut gate, Body::Unparsed(Some(0)), &empty).tokens, None);
    // Nothing was served.
    for status in [None, Some(400), Some(500)] {
        let answer = Answer { status, ..used(70, 2) };
        assert_eq!(close(&mut gate, body(), &answer).tokens, None, "{status:?}");
    }
}

#[test]
fn a_length_alone_decides_in_headers_mode() {
    let (mut gate, settings) = (gate(), settings(|document| document.replace("m*", "*")));
    let mut pool = |length| {
        let (_, decision) = gate.open(&settings, Body::Length(Api::Chat, length));
        (decision.pool.name.clone(), decision.reason, decision.budget.is_some())
    };
    assert_eq!(pool(Some(2000)), ("short".to_owned(), Reason::ContentLength, true));
    assert_eq!(pool(Some(50_000)), ("long".to_owned(), Reason::ContentLength, true));
    assert_eq!(pool(None), ("long".to_owned(), Reason::NoLength, false));
}

#[test]
fn answers_teach_and_are_judged() {
    let mut gate = gate();
    let body = || Body::Whole(chat(8000, Cap::Tokens(100)));
    let first = close(&mut gate, body(), &used(4007, 50));
    // 8,000 bytes at the start ratio are 2,000 tokens, with a template of 7.
    assert_eq!(first.error_permille, Some(499));
    assert!(first.learned && !first.under_route);
    for _ in 0..50 {
        close(&mut gate, body(), &used(4007, 50));
    }
    let last = close(&mut gate, body(), &used(4007, 50));
    assert!(last.error_permille.unwrap() < 5, "{last:?}");
}

#[test]
fn the_band_below_a_threshold_shrinks_as_answers_come() {
    // Of 2,017 tokens, and of a few more.
    let body = || Body::Whole(chat(8000, Cap::Tokens(10)));
    let pool = |gate: &mut Gate, threshold: u64| {
        let threshold = format!(r#""threshold": {threshold}"#);
        let settings = settings(|document| document.replace(r#""threshold": 4000"#, &threshold));
        gate.open(&settings, body()).1.pool.name.clone()
    };
    let mut gate = gate();
    assert_eq!((pool(&mut gate, 2_200), pool(&mut gate, 4_000)), ("long".into(), "short".into()));
    for n in 0..200 {
        close(&mut gate, body(), &used(if n % 2 == 0 { 1_907 } else { 2_107 }, 50));
    }
    assert_eq!((pool(&mut gate, 1_950), pool(&mut gate, 2_200)), ("long".into(), "short".into()));
}

#[test]
fn misroutes_are_counted_both_ways() {
    let mut gate = gate();
    let mut case = |bytes, cap, input, output, served_by: Option<&'static [u8]>| {
        let answer = Answer { served_by, ..used(input, output) };
        let end = close(&mut gate, Body::Whole(chat(bytes, cap)), &answer);
        gate.learner_mut().adopt(Learned::default());
        (end.under_route, end.over_route, end.truncated, end.spilled)
    };
    let (ok, under) = ((false, false, false, false), (true, false, false, false));
    let over = (false, true, false, false);
    assert_eq!(case(400, Cap::Tokens(100), 107, 100, None), ok);
    // Larger than the short window, yet answered: by the long pool on a retry.
    assert_eq!(case(400, Cap::Tokens(100), 8100, 50, Some(b"long")), under);
    // Uncapped, it ran into the window's end.
    assert_eq!(case(400, Cap::Absent, 5000, 3192, Some(b"short")), (true, false, true, false));
    // In the largest pool that is a truncation, but no misroute.
    assert_eq!(case(200_000, Cap::Absent, 60_000, 5536, None), (false, false, true, false));
    // Stopped at its own cap, which ends at the window.
    assert_eq!(case(400, Cap::Tokens(100), 8092, 100, None), ok);
    // Went long, but took no more than the short threshold; 4,001 did.
    assert_eq!(case(40_000, Cap::Tokens(100), 3990, 10, None), over);
    assert_eq!(case(40_000, Cap::Tokens(100), 3990, 11, None), ok);
    // The short engine would have refused it for its cap.
    assert_eq!(case(40_000, Cap::Tokens(4202), 3990, 10, None), over);
    assert_eq!(case(40_000, Cap::Tokens(4203), 3990, 10, None), ok);
    assert_eq!(case(40_000, Cap::Absent, 3900, 10, None), over);
    // It fitted, but the other pool answered: the short one was down.
    assert_eq!(case(400, Cap::Tokens(100), 107, 10, Some(b"long")), (false, false, false, true));
}

#[test]
fn a_refusal_for_length_is_an_under_route_unless_nothing_is_larger() {
    let mut gate = gate();
    assert!(close(&mut gate, Body::Whole(chat(400, Cap::Absent)), &refused()).under_route);
    assert!(!close(&mut gate, Body::Whole(chat(400_000, Cap::Absent)), &refused()).under_route);
    let other = Answer { status: Some(400), ..Answer::default() };
    assert!(!close(&mut gate, Body::Whole(chat(400, Cap::Absent)), &other).under_route);
}

#[test]
fn only_successes_with_usage_teach() {
    let mut gate = gate();
    let body = || Body::Whole(chat(8000, Cap::Absent));
    let with = |status, usage| Answer { status, usage, ..Answer::default() };
    let usage = used(4000, 1).usage;
    for answer in [
        with(None, usage),
        with(Some(500), usage),
        with(Some(429), usage),
        with(Some(200), None),
        with(Some(200), Some(Err(Missing::Encoded))),
        with(Some(200), Some(Ok(Usage { output: Some(5), ..Usage::default() }))),
    ] {
        let end = close(&mut gate, body(), &answer);
        assert!(!end.learned && end.error_permille.is_none(), "{answer:?}");
    }
    let mut image = chat(8000, Cap::Absent);
    image.media.images = 1;
    assert!(!close(&mut gate, Body::Whole(image), &used(4000, 1)).learned);
    let facts = chat(8000, Cap::Absent);
    let cut = Body::Cut { facts, unread: Some(0), early: false };
    assert!(!close(&mut gate, cut, &used(4000, 1)).learned);
    assert_eq!(input(&mut gate), 2007, "nothing was learned");
}

#[test]
fn a_stream_that_was_not_asked_for_usage_is_told_apart() {
    let mut gate = gate();
    let mut facts = chat(800, Cap::Absent);
    facts.stream = true;
    let answer =
        Answer { status: Some(200), usage: Some(Err(Missing::Absent)), ..Answer::default() };
    let missing = |facts: &RequestFacts, gate: &mut Gate| {
        close(gate, Body::Whole(facts.clone()), &answer).missing
    };
    assert_eq!(missing(&facts, &mut gate), Some(Missing::NotAsked));
    let (mut ticket, _) = open(&mut gate, Body::Whole(facts.clone()));
    ticket.asked();
    assert_eq!(
        gate.close(Instant::default(), &mut NoSlots, ticket, &answer).missing,
        Some(Missing::Absent)
    );
    facts.include_usage = Some(true);
    assert_eq!(missing(&facts, &mut gate), Some(Missing::Absent));
}

#[test]
fn a_dry_run_judges_only_what_it_would_have_done() {
    let mut gate = gate();
    let dry = settings(|document| document.replace("\"default", "\"dry_run\": true, \"default"));
    let mut end = |bytes, answer: &Answer<'_>| {
        let (ticket, _) = gate.open(&dry, Body::Whole(chat(bytes, Cap::Absent)));
        gate.close(Instant::default(), &mut NoSlots, ticket, answer)
    };
    // It would have gone short, and long answered because we left it alone.
    let long = |answer| Answer { served_by: Some(b"long"), ..answer };
    let ok = end(400, &long(used(107, 10)));
    assert!(!ok.spilled && !ok.under_route && !ok.truncated && ok.learned, "{ok:?}");
    assert!(!end(400, &long(refused())).under_route);
    assert!(!end(400, &long(used(5000, 3192))).truncated);
    assert!(end(400, &long(used(9000, 10))).under_route);
    assert!(end(40_000, &long(used(3000, 10))).over_route);
}

#[test]
fn a_retry_that_tells_no_usage_is_not_called_a_spill() {
    let mut gate = gate();
    let mut end = |retried, usage| {
        let served_by = Some(&b"long"[..]);
        let answer = Answer {
            status: Some(200),
            usage,
            served_by,
            retried,
            complete: true,
            ..Answer::default()
        };
        let end = close(&mut gate, Body::Whole(chat(400, Cap::Absent)), &answer);
        (end.spilled, end.spill_unclear, end.under_route)
    };
    let none = Some(Err(Missing::Absent));
    assert_eq!(end(false, none), (true, false, false));
    assert_eq!(end(true, none), (false, true, false));
    assert_eq!(end(true, used(9000, 5).usage), (false, false, true));
    assert_eq!(end(true, used(100, 5).usage), (true, false, false));
}

#[test]
fn what_was_not_read_is_no_proof() {
    let mut gate = gate();
    let mut over = |cap, complete| {
        let answer = Answer { complete, ..used(3000, 10) };
        close(&mut gate, Body::Whole(chat(40_000, cap)), &answer).over_route
    };
    assert!(over(Cap::Absent, true));
    assert!(!over(Cap::Absent, false), "the answer broke off");
    assert!(!over(Cap::Unseen, true), "a cap may stand in the rest of the body");
    // A text completion whose cap was not read may want more than 16 tokens.
    let settings = settings(|document| document.replace("m*", "*"));
    let (_, decision) =
        Gate::new("tidegate", 1).open(&settings, Body::Length(Api::Completions, Some(12_400)));
    assert_eq!((decision.pool.name.as_str(), decision.budget.unwrap().fit), ("long", 4134 + 1024));
}

#[test]
fn a_refusal_for_length_teaches_its_numbers() {
    let mut gate = gate();
    let body = || Body::Whole(chat(8000, Cap::Absent));
    assert!(!close(&mut gate, body(), &refused()).learned);
    // What would have fitted was not refused for its length.
    let fits = Some(Overflow { input: Some(8000), at_least: false });
    let end = close(&mut gate, body(), &Answer { overflow: fits, ..refused() });
    assert!(!end.learned && !end.under_route);
    let overflow = Some(Overflow { input: Some(9000), at_least: false });
    let first = close(&mut gate, body(), &Answer { overflow, ..refused() });
    assert!(first.learned && first.under_route);
    assert!(input(&mut gate) > 3000, "{}", input(&mut gate));
    // A bound below the estimate is no news.
    let learned = |input| {
        let mut gate = self::gate();
        let overflow = Some(Overflow { input: Some(input), at_least: true });
        let body = Body::Whole(chat(400_000, Cap::Absent));
        close(&mut gate, body, &Answer { overflow, ..refused() }).learned
    };
    assert!(!learned(66_000) && learned(200_000));
}

#[test]
fn the_reserve_follows_what_answers_need_and_the_cap_still_decides_the_fit() {
    let settings = settings(|document| {
        document.replace("\"default", "\"output_reserve\": \"learned\", \"default")
    });
    let mut gate = gate();
    let budget = |gate: &mut Gate, cap| {
        let (_, decision) = gate.open(&settings, Body::Whole(chat(400, cap)));
        decision.budget.unwrap()
    };
    let first = budget(&mut gate, Cap::Absent);
    assert_eq!(first.fit - 141, 1024, "{first:?}");
    for _ in 0..100 {
        let (ticket, _) = gate.open(&settings, Body::Whole(chat(400, Cap::Tokens(4000))));
        let end = gate.close(Instant::default(), &mut NoSlots, ticket, &used(107, 100));
        assert_eq!(end.cap_use_permille, Some(25));
    }
    let (open, capped) = (budget(&mut gate, Cap::Absent), budget(&mut gate, Cap::Tokens(3000)));
    assert!((100..130).contains(&(open.reserve - open.input)), "{open:?}");
    assert_eq!(capped.reserve, open.reserve);
    assert!(capped.fit > 3100, "{capped:?}");
    // Other classes of tenants are none the wiser.
    let mut spot = (*settings).clone();
    spot.tenant_class = crate::config::TenantClass::Spot;
    let (_, decision) = gate.open(&Arc::new(spot), Body::Whole(chat(400, Cap::Absent)));
    let spot = decision.budget.unwrap();
    assert_eq!(spot.reserve - spot.input, 1024);
}

#[test]
fn an_uncapped_answer_that_met_the_window_is_truncated_and_raises_the_reserve() {
    let settings = settings(|document| {
        document.replace("\"default", "\"output_reserve\": \"learned\", \"default")
    });
    let mut gate = gate();
    let mut end = |cap, answer: Answer<'_>| {
        let (ticket, decision) = gate.open(&settings, Body::Whole(chat(400, cap)));
        assert_eq!(decision.pool.name, "short");
        let end = gate.close(Instant::default(), &mut NoSlots, ticket, &answer);
        let (_, next) = gate.open(&settings, Body::Whole(chat(400, Cap::Absent)));
        (end.truncated, end.under_route, next.budget.unwrap().fit)
    };
    let length = |output| Answer { stopped_by_length: true, ..used(107, output) };
    // At its own cap a client got what it asked for.
    assert!(!end(Cap::Tokens(50), length(50)).0);
    // Nor did one that met some other limit of its engine, far from the window.
    assert!(!end(Cap::Absent, length(2048)).0);
    let (truncated, under_route, fit) = end(Cap::Absent, length(8000));
    assert!(truncated && under_route);
    assert!(fit > 2000, "the next one goes where there is room: {fit}");
}

#[test]
fn sources_that_disagree_are_told() {
    let mut gate = gate();
    let answer = Answer { disagreed: true, ..used(107, 10) };
    let body = || Body::Whole(chat(400, Cap::Absent));
    assert!(close(&mut gate, body(), &answer).disagreed);
    assert!(!close(&mut gate, body(), &used(107, 10)).disagreed);
}

#[test]
fn bytes_of_an_unknown_path_are_counted() {
    let settings = settings(|document| document.replace("m*", "*"));
    let open =
        |bytes| Gate::new("tidegate", 1).open(&settings, Body::Length(Api::Unknown, Some(bytes))).1;
    assert_eq!((open(400).pool.name.as_str(), open(400).reason), ("short", Reason::UnknownPath));
    assert_eq!(open(40_000).pool.name, "long");
}

mod early {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// At every prefix that is enough for an early decision the whole body
        /// goes to the largest pool, whatever was learned.
        #[test]
        fn an_early_decision_implies_the_late_pool(
            messages in prop::collection::vec("[a-z ]{0,40}|[а-я ]{0,40}|\\PC{0,20}", 1..6),
            repeat in 200_usize..1200,
            answers in prop::collection::vec((0_u64..40_000, 1_u64..40_000), 0..40),
            step in 500_usize..9000,
        ) {
            let settings = settings(|document| document);
            let mut gate = Gate::new("tidegate", 1);
            let content = |text: &String| format!("{{\"content\":{:?}}}", text.repeat(repeat));
            let content: Vec<String> = messages.iter().map(content).collect();
            let body = format!(r#"{{"model":"m","messages":[{}]}}"#, content.join(","));
            prop_assume!(serde_json::from_str::<serde_json::Value>(&body).is_ok());
            let scan = |bytes: &[u8]| {
                let mut scanner = Scanner::new(Api::Chat, b"");
                scanner.feed(bytes);
                scanner
            };
            // Learn from the same text, at absurd ratios.
            for (bytes, tokens) in answers {
                let mut facts = scan(body.as_bytes()).finish().unwrap();
                facts.text.extend(bytes);
                close(&mut gate, Body::Whole(facts), &used(tokens, 1));
            }
            let (_, late) = open(&mut gate, Body::Whole(scan(body.as_bytes()).finish().unwrap()));
            let mut early = false;
            for end in (0..body.len()).step_by(step) {
                early |= surely_largest(&settings, &scan(&body.as_bytes()[..end]));
            }
            if early {
                prop_assert_eq!(late.pool.name.as_str(), "long");
            }
            // Enough text at the ratio's ceiling is always noticed.
            let text = scan(body.as_bytes()).finish().unwrap().text.total();
            prop_assert_eq!(surely_largest(&settings, &scan(body.as_bytes())), text > 16 * 4000);
        }
    }
}
