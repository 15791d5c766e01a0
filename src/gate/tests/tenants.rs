//! What a request is charged, however it ends.

use super::*;
use crate::config::TenantClass;
use crate::share::LocalSlots;
use crate::tenant::{Entitlement, Law, ReserveOutput};

/// Memory in which the tenant has its account.
fn memory(gate: &Gate, tenant: &Entitlement) -> LocalSlots {
    let mut memory = LocalSlots::default();
    gate.ledger().open(&mut memory, &[Arc::new(tenant.clone())], &[]);
    memory
}

fn acme() -> Arc<Entitlement> {
    let law = Law::per_second(1, 10_000, 10_000);
    let mut acme = Entitlement::of("acme", TenantClass::Elastic, Some(law));
    (acme.limits.tokens_in_flight, acme.limits.requests) = (Some(10_000), Some(9));
    Arc::new(acme)
}

fn config() -> Config {
    let document = String::from_utf8(CONFIG.to_vec()).unwrap().replace(
        r#""estimator""#,
        r#""tenants": {"default": "acme", "entitlements": [
           {"name": "acme", "tokens_per_second": 1}]}, "estimator""#,
    );
    Config::parse(document.as_bytes()).unwrap()
}

/// Admits, and never holds.
fn admit(
    gate: &mut Gate,
    memory: &mut LocalSlots,
    tenant: &Arc<Entitlement>,
    ticket: &mut Ticket,
) -> Admission<u64> {
    gate.admit(Instant::default(), memory, &config(), tenant, ticket, None)
}

/// What a request that ends so is charged. It reserves 107 prompt tokens
/// and a cap of 1,000.
fn charged(answer: &Answer<'_>) -> u64 {
    let (mut gate, tenant) = (gate(), acme());
    let mut memory = memory(&gate, &tenant);
    let (mut ticket, _) = open(&mut gate, Body::Whole(chat(400, Cap::Tokens(1000))));
    let now = Instant::default();
    let admission = admit(&mut gate, &mut memory, &tenant, &mut ticket);
    assert!(matches!(admission, Admission::Admitted(..)), "{admission:?}");
    let status = gate.ledger().status(&mut memory, now, &tenant);
    assert_eq!((status.tokens, status.requests), (1107, 1));
    let charged = gate.close(now, &mut memory, ticket, answer).charged.unwrap();
    let status = gate.ledger().status(&mut memory, now, &tenant);
    assert_eq!((status.tokens, status.requests), (0, 0), "{answer:?}");
    assert_eq!(charged.reserved, 1107);
    // The account took just that.
    let mut next = open(&mut gate, Body::Unparsed(Some(0))).0;
    let admission = admit(&mut gate, &mut memory, &tenant, &mut next);
    let Admission::Admitted(_, standing) = admission else { panic!() };
    assert_eq!(standing.tokens.unwrap().remaining, 10_000 - charged.actual, "{answer:?}");
    charged.actual
}

#[test]
fn every_end_settles() {
    let stated = used(100, 50);
    let silent =
        |output_seen| Answer { usage: Some(Err(Missing::Absent)), output_seen, ..used(0, 0) };
    let status = |status| Answer { status, ..Answer::default() };
    for (what, answer, expected) in [
        ("usage", stated.clone(), 150),
        ("more than was reserved", used(100, 5000), 5100),
        ("no usage: the estimate and what passed", silent(70), 107 + 70),
        ("no usage, bounded by the reserve", silent(99_999), 1107),
        ("an upstream 4xx", status(Some(404)), 0),
        ("an upstream 5xx", status(Some(503)), 0),
        ("a reset, a timeout, a local reply: no answer", status(None), 0),
        ("the client left before the answer", Answer { aborted: true, ..status(None) }, 107),
        (
            "the client left within the stream",
            Answer { aborted: true, complete: false, ..silent(30) },
            107 + 30,
        ),
        (
            "the stream broke off after usage that is not the last",
            Answer {
                complete: false,
                usage: Some(Ok(Usage { input: Some(100), ..Usage::default() })),
                ..silent(30)
            },
            100 + 30,
        ),
        (
            "the client left after the last usage",
            Answer { aborted: true, complete: false, ..stated.clone() },
            150,
        ),
        (
            "the client left after usage that stated the beginning only",
            Answer { aborted: true, complete: false, output_seen: 400, ..stated },
            500,
        ),
    ] {
        assert_eq!(charged(&answer), expected, "{what}");
    }
}

#[test]
fn what_nobody_stated_is_never_charged_above_the_reserve() {
    let mut gate = gate();
    let learned =
        Entitlement { reserve_output: ReserveOutput::Learned, ..Entitlement::clone(&acme()) };
    let learned = Arc::new(learned);
    let mut memory = memory(&gate, &learned);
    let (mut ticket, _) = open(&mut gate, Body::Whole(chat(400, Cap::Tokens(5000))));
    let admission = admit(&mut gate, &mut memory, &learned, &mut ticket);
    assert!(matches!(admission, Admission::Admitted(reserved, _) if reserved < 2000));
    let answer = Answer { usage: Some(Err(Missing::Absent)), output_seen: 4000, ..used(0, 0) };
    let charged = gate.close(Instant::default(), &mut memory, ticket, &answer).charged.unwrap();
    assert_eq!(charged.actual, charged.reserved);
}

#[test]
fn what_was_not_read_reserves_its_bytes_up_to_the_window() {
    let (mut gate, tenant) = (gate(), acme());
    let settings = settings(|document| document.replace("m*", "*"));
    let mut need = |body| {
        let (mut ticket, _) = gate.open(&settings, body);
        let mut memory = memory(&gate, &tenant);
        match admit(&mut gate, &mut memory, &tenant, &mut ticket) {
            Admission::Admitted(reserved, _) => reserved,
            Admission::Refused(refusal) => refusal.need,
            Admission::Uncharged | Admission::Held => unreachable!(),
        }
    };
    assert_eq!(need(Body::NotInspected(Some(0))), 0);
    assert_eq!(need(Body::Unparsed(Some(0))), 0);
    assert_eq!(need(Body::Length(Api::Chat, None)), 65_536);
    assert_eq!(need(Body::NotInspected(Some(5000))), 5000);
    assert_eq!(need(Body::Unparsed(Some(5000))), 5000);
    assert_eq!(need(Body::Unparsed(None)), 65_536);
    // Blanks before the text do not make it cheap.
    let facts = RequestFacts::chat("m", Tally::default(), 0, Cap::Tokens(10));
    let cut = |unread| Body::Cut { facts: facts.clone(), unread, early: false };
    assert_eq!(need(cut(Some(20_000))), 20_000);
    assert_eq!(need(cut(None)), 65_536);
    // Nor does a model that nobody knows.
    let named = super::settings(|document| document);
    let mut ticket = gate
        .open(
            &named,
            Body::Whole(RequestFacts::chat("x", Tally::of(Class::Tools, 3000), 1, Cap::Absent)),
        )
        .0;
    let mut memory = memory(&gate, &tenant);
    let admission = admit(&mut gate, &mut memory, &tenant, &mut ticket);
    assert!(matches!(admission, Admission::Admitted(3000, _)), "{admission:?}");
}
