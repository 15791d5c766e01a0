use super::*;
use crate::config::TenantClass;
use crate::share::Change;
use crate::tenant::Law;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Memory in which every write meets so many others that came first.
#[derive(Default)]
struct Memory {
    slots: BTreeMap<String, Vec<u8>>,
    busy: u32,
}

impl Slots for Memory {
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
        // A run whose result is thrown away, as after a lost race.
        change(self.slots.get(name).map(Vec::as_slice));
        if self.busy > 0 {
            self.busy -= 1;
            return Updated::Busy;
        }
        if let Some(bytes) = change(self.slots.get(name).map(Vec::as_slice)) {
            self.slots.insert(name.to_owned(), bytes);
        }
        Updated::Done
    }
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn tenant(name: &str, law: Law) -> Arc<Entitlement> {
    let mut one = Entitlement::of(name, TenantClass::Elastic, Some(law));
    one.limits.requests = Some(4);
    Arc::new(one)
}

fn ask(tenant: &Arc<Entitlement>, charge: u64) -> Ask {
    let need = Need { charge, tokens: charge };
    Ask { tenant: Arc::clone(tenant), pool: 0, capacity: None, need }
}

fn used(tokens: u64) -> Used {
    Used { charge: tokens, tokens }
}

fn in_flight(ledger: &Ledger, memory: &mut Memory, tenant: &Entitlement) -> (u64, u64) {
    let status = ledger.status(memory, at(0), tenant);
    (status.tokens, status.requests)
}

fn admitted(admission: Admission) -> Reservation {
    match admission {
        Admission::Admitted(reservation, _) => reservation,
        other => panic!("{other:?}"),
    }
}

fn refused(admission: Admission) -> Refusal {
    match admission {
        Admission::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn workers_share_one_account_and_tenants_do_not() {
    let (mut memory, law) = (Memory::default(), Law::per_second(100, 1000, 0));
    let (acme, other) = (tenant("acme", law), tenant("other", law));
    let (mut a, b) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
    a.open(&mut memory, &[Arc::clone(&acme)], &[]);
    a.open(&mut memory, &[Arc::clone(&other)], &[]);
    let reservation = admitted(a.admit(&mut memory, at(0), &ask(&acme, 900)));
    let refusal = refused(b.admit(&mut memory, at(0), &ask(&acme, 350)));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Tokens, Some(3)));
    assert_eq!(refusal.standing.tokens.unwrap().remaining, 100);
    admitted(b.admit(&mut memory, at(0), &ask(&other, 900)));
    // Another instance has its own accounts.
    let x = Ledger::new("x", 3);
    x.open(&mut memory, &[Arc::clone(&acme)], &[]);
    admitted(x.admit(&mut memory, at(0), &ask(&acme, 900)));
    let settled = a.settle(&mut memory, at(0), reservation, used(100)).unwrap();
    assert_eq!(settled.refunded, 800);
    admitted(b.admit(&mut memory, at(0), &ask(&acme, 350)));
    // Opening again, as a new configuration does, fills nothing.
    a.open(&mut memory, &[Arc::clone(&acme)], &[]);
    assert_eq!(refused(b.admit(&mut memory, at(0), &ask(&acme, 600))).cause, Cause::Tokens);
}

#[test]
fn a_settlement_that_meets_busy_memory_is_made_later() {
    let mut memory = Memory::default();
    let acme = tenant("acme", Law::per_second(100, 1000, 0));
    let mut ledger = Ledger::new("tidegate", 1);
    ledger.open(&mut memory, &[Arc::clone(&acme)], &[]);
    let reservation = admitted(ledger.admit(&mut memory, at(0), &ask(&acme, 900)));
    memory.busy = 2;
    assert_eq!(ledger.settle(&mut memory, at(0), reservation, used(100)), None);
    assert_eq!(refused(ledger.admit(&mut memory, at(0), &ask(&acme, 1))).cause, Cause::Busy);
    ledger.tick(&mut memory, at(0), &[Arc::clone(&acme)], &[], |_| false);
    assert_eq!(in_flight(&ledger, &mut memory, &acme), (0, 0));
    admitted(ledger.admit(&mut memory, at(0), &ask(&acme, 900)));
    // It can also be told to let requests pass, uncharged.
    let lenient = Arc::new(Entitlement { admit_on_busy: true, ..(*acme).clone() });
    memory.busy = 1;
    let admission = ledger.admit(&mut memory, at(0), &ask(&lenient, 1));
    assert!(matches!(admission, Admission::Uncharged), "{admission:?}");
}

#[test]
fn what_a_dead_worker_held_comes_back() {
    let mut memory = Memory::default();
    let acme = tenant("acme", Law::per_second(100, 1000, 0));
    let (dead, mut alive) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
    alive.open(&mut memory, &[Arc::clone(&acme)], &[]);
    admitted(dead.admit(&mut memory, at(0), &ask(&acme, 10)));
    admitted(alive.admit(&mut memory, at(0), &ask(&acme, 20)));
    let mut tick =
        |millis| alive.tick(&mut memory, at(millis), &[Arc::clone(&acme)], &[], |_| false).expired;
    for second in 0..=30 {
        assert_eq!(tick(second * 1000), 0);
    }
    assert_eq!((tick(30_001), tick(30_002)), (1, 0));
    // All slept, and the other lives: it has time to show itself.
    admitted(dead.admit(&mut memory, at(31_000), &ask(&acme, 10)));
    let mut tick =
        |millis| alive.tick(&mut memory, at(millis), &[Arc::clone(&acme)], &[], |_| false).expired;
    assert_eq!((tick(90_000), tick(91_000), tick(94_999), tick(95_000)), (0, 0, 0, 1));
    assert_eq!(in_flight(&alive, &mut memory, &acme), (20, 1));
}

#[test]
fn a_suspended_tenant_is_refused_whatever_it_asks() {
    let mut memory = Memory::default();
    let none = tenant("none", Law::per_second(0, 80_000, 0));
    let ledger = Ledger::new("tidegate", 1);
    let refusal = refused(ledger.admit(&mut memory, at(0), &ask(&none, 0)));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Suspended, None));
    let small = tenant("small", Law::per_second(1, 10, 0));
    // An account that is not there is not one that is full.
    let lost = refused(ledger.admit(&mut memory, at(0), &ask(&small, 1)));
    assert_eq!((lost.cause, memory.slots.len()), (Cause::Busy, 0));
    ledger.open(&mut memory, &[Arc::clone(&small)], &[]);
    assert_eq!(refused(ledger.admit(&mut memory, at(0), &ask(&small, 11))).cause, Cause::TooLarge);
}

proptest! {
    /// `Retry-After` is true: whoever has no other traffic and comes back
    /// then is admitted, and a second earlier is not.
    #[test]
    fn retry_after_is_true(
        rate in 1_u64..500, burst in 1_u64..5000, first in 1_u64..5000, then in 1_u64..5000,
        millis in 0_u64..5000,
    ) {
        let (mut memory, acme) =
            (Memory::default(), tenant("acme", Law::per_second(rate, burst, 0)));
        let ledger = Ledger::new("tidegate", 1);
        ledger.open(&mut memory, &[Arc::clone(&acme)], &[]);
        let _ = ledger.admit(&mut memory, at(0), &ask(&acme, first));
        let probe = |memory: &Memory, millis| {
            let mut copy = Memory { slots: memory.slots.clone(), busy: 0 };
            ledger.admit(&mut copy, at(millis), &ask(&acme, then))
        };
        if let Admission::Refused(refusal) = probe(&memory, millis) {
            match refusal.retry_after {
                None => prop_assert!(then > burst),
                Some(secs) => {
                    let later = probe(&memory, millis + secs * 1000);
                    prop_assert!(matches!(later, Admission::Admitted(..)));
                    let earlier = probe(&memory, millis + (secs - 1) * 1000);
                    prop_assert!(matches!(earlier, Admission::Refused(_)));
                }
            }
        }
    }
}
