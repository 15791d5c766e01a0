use super::*;
use crate::config::Config;
use crate::estimate::{Class, Ratios};
use crate::request::Cap;

const CONFIG: &[u8] = br#"{"version": 1, "models": [{"match": "m*", "pools": [
    {"name": "short", "cluster": "s", "max_model_len": 8192, "threshold": 4000},
    {"name": "long", "cluster": "l", "max_model_len": 65536}]}], "default_pool": "short"}"#;

fn gate() -> Gate {
    Gate::new()
}

fn settings(edit: impl Fn(String) -> String) -> Arc<Settings> {
    let document = edit(String::from_utf8(CONFIG.to_vec()).unwrap());
    Arc::clone(Config::parse(document.as_bytes()).unwrap().base())
}

fn chat(bytes: u64, cap: Cap) -> RequestFacts {
    RequestFacts::chat("m", Tally::of(Class::Plain, bytes), 1, cap)
}

fn open(gate: &Gate, body: Body) -> (Ticket, Decision) {
    gate.open(&settings(|document| document), body)
}

fn used(input: u64, output: u64) -> Answer<'static> {
    let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
    Answer { status: Some(200), usage: Some(Ok(usage)), complete: true, ..Answer::default() }
}

fn close(gate: &mut Gate, body: Body, answer: &Answer<'_>) -> Settlement {
    let (ticket, _) = open(gate, body);
    gate.close(Instant::default(), ticket, answer)
}

#[test]
fn each_way_to_decide_has_its_reason() {
    let gate = gate();
    let small = || chat(400, Cap::Tokens(100));
    let large = || chat(40_000, Cap::Tokens(100));
    let cut = |facts, known_length| Body::Cut { facts, known_length };
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
        (Body::Unparsed, "short", Reason::Unparsed),
        (Body::NotInspected, "short", Reason::NotInspected),
        (Body::Whole(other), "short", Reason::UnknownModel),
    ];
    for (body, pool, reason) in cases {
        let (_, decision) = open(&gate, body.clone());
        assert_eq!((decision.pool.name.as_str(), decision.reason), (pool, reason), "{body:?}");
    }
}

#[test]
fn a_length_alone_decides_in_headers_mode() {
    let (gate, settings) = (gate(), settings(|document| document.replace("m*", "*")));
    let pool = |length| {
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
fn misroutes_are_counted_both_ways() {
    let mut gate = gate();
    let mut case = |bytes, cap, input, output, served_by: Option<&'static [u8]>| {
        let answer = Answer { served_by, ..used(input, output) };
        let end = close(&mut gate, Body::Whole(chat(bytes, cap)), &answer);
        gate.learner_mut().adopt(Ratios::default());
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
    // Went long, but fitted the short threshold; 4,001 did not.
    assert_eq!(case(40_000, Cap::Tokens(100), 3900, 10, None), over);
    assert_eq!(case(40_000, Cap::Tokens(101), 3900, 10, None), ok);
    assert_eq!(case(40_000, Cap::Absent, 3900, 10, None), over);
    // It fitted, but the other pool answered: the short one was down.
    assert_eq!(case(400, Cap::Tokens(100), 107, 10, Some(b"long")), (false, false, false, true));
}

#[test]
fn a_refusal_for_length_is_an_under_route_unless_nothing_is_larger() {
    let mut gate = gate();
    let refused = Answer { status: Some(400), overflow: true, ..Answer::default() };
    assert!(close(&mut gate, Body::Whole(chat(400, Cap::Absent)), &refused).under_route);
    assert!(!close(&mut gate, Body::Whole(chat(400_000, Cap::Absent)), &refused).under_route);
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
    image.opaque = 1;
    assert!(!close(&mut gate, Body::Whole(image), &used(4000, 1)).learned);
    let cut = Body::Cut { facts: chat(8000, Cap::Absent), known_length: true };
    assert!(!close(&mut gate, cut, &used(4000, 1)).learned);
    assert!(gate.learner().own().is_empty());
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
    facts.include_usage = true;
    assert_eq!(missing(&facts, &mut gate), Some(Missing::Absent));
}

#[test]
fn a_dry_run_judges_only_what_it_would_have_done() {
    let mut gate = gate();
    let dry = settings(|document| document.replace("\"default", "\"dry_run\": true, \"default"));
    let mut end = |bytes, answer: &Answer<'_>| {
        let (ticket, _) = gate.open(&dry, Body::Whole(chat(bytes, Cap::Absent)));
        gate.close(Instant::default(), ticket, answer)
    };
    // It would have gone short, and long answered because we left it alone.
    let long = |answer| Answer { served_by: Some(b"long"), ..answer };
    let ok = end(400, &long(used(107, 10)));
    assert!(!ok.spilled && !ok.under_route && !ok.truncated && ok.learned, "{ok:?}");
    let refused = Answer { status: Some(400), overflow: true, ..Answer::default() };
    assert!(!end(400, &long(refused)).under_route);
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
            overflow: false,
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
    let (_, decision) = Gate::new().open(&settings, Body::Length(Api::Completions, Some(12_400)));
    assert_eq!((decision.pool.name.as_str(), decision.budget.unwrap().fit), ("long", 4134 + 1024));
}
