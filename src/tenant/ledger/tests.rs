use super::*;
use crate::config::TenantClass;
use crate::share::{Change, LocalSlots};
use crate::tenant::Law;
use proptest::prelude::*;

/// Memory in which every write meets so many others that came first.
#[derive(Default)]
struct Memory {
    slots: LocalSlots,
    busy: u32,
    /// Slots whose name has this in it are always busy.
    stuck: Option<&'static str>,
}

impl Slots for Memory {
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
        // A run whose result is thrown away, as after a lost race.
        change(self.slots.0.get(name).map(Vec::as_slice));
        if self.stuck.is_some_and(|part| name.contains(part)) {
            return Updated::Busy;
        }
        if self.busy > 0 {
            self.busy -= 1;
            return Updated::Busy;
        }
        self.slots.update(name, change)
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
    Ask { tenant: Arc::clone(tenant), who: tenant.who(), pool: 0, capacity: None, need }
}

fn used(tokens: u64) -> Actual {
    Actual { charge: tokens, tokens, report: None }
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
    let (mut a, mut b) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
    a.open(&mut memory, &[Arc::clone(&acme)], &[]);
    a.open(&mut memory, &[Arc::clone(&other)], &[]);
    let reservation = admitted(a.admit(&mut memory, at(0), &ask(&acme, 900), false));
    let refusal = refused(b.admit(&mut memory, at(0), &ask(&acme, 350), false));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Tokens, Some(3)));
    assert_eq!(refusal.standing.tokens.unwrap().remaining, 100);
    admitted(b.admit(&mut memory, at(0), &ask(&other, 900), false));
    // Another instance has its own accounts.
    let mut x = Ledger::new("x", 3);
    x.open(&mut memory, &[Arc::clone(&acme)], &[]);
    admitted(x.admit(&mut memory, at(0), &ask(&acme, 900), false));
    let settled = a.settle(&mut memory, at(0), reservation, used(100)).unwrap();
    assert_eq!(settled.refunded, 800);
    admitted(b.admit(&mut memory, at(0), &ask(&acme, 350), false));
    // Opening again, as a new configuration does, fills nothing.
    a.open(&mut memory, &[Arc::clone(&acme)], &[]);
    assert_eq!(refused(b.admit(&mut memory, at(0), &ask(&acme, 600), false)).cause, Cause::Tokens);
}

#[test]
fn a_settlement_that_meets_busy_memory_is_made_later() {
    let mut memory = Memory::default();
    let acme = tenant("acme", Law::per_second(100, 1000, 0));
    let mut ledger = Ledger::new("tidegate", 1);
    ledger.open(&mut memory, &[Arc::clone(&acme)], &[]);
    let reservation = admitted(ledger.admit(&mut memory, at(0), &ask(&acme, 900), false));
    memory.busy = 2;
    assert_eq!(ledger.settle(&mut memory, at(0), reservation, used(100)), None);
    assert_eq!(refused(ledger.admit(&mut memory, at(0), &ask(&acme, 1), false)).cause, Cause::Busy);
    ledger.tick(&mut memory, at(0), &[Arc::clone(&acme)], &[], |_| false);
    assert_eq!(in_flight(&ledger, &mut memory, &acme), (0, 0));
    admitted(ledger.admit(&mut memory, at(0), &ask(&acme, 900), false));
    // It can also be told to let requests pass, uncharged.
    let lenient = Arc::new(Entitlement { admit_on_busy: true, ..(*acme).clone() });
    memory.busy = 1;
    let admission = ledger.admit(&mut memory, at(0), &ask(&lenient, 1), false);
    assert!(matches!(admission, Admission::Uncharged), "{admission:?}");
}

#[test]
fn what_a_dead_worker_held_comes_back() {
    let mut memory = Memory::default();
    let acme = tenant("acme", Law::per_second(100, 1000, 0));
    let (mut dead, mut alive) = (Ledger::new("tidegate", 1), Ledger::new("tidegate", 2));
    alive.open(&mut memory, &[Arc::clone(&acme)], &[]);
    admitted(dead.admit(&mut memory, at(0), &ask(&acme, 10), false));
    admitted(alive.admit(&mut memory, at(0), &ask(&acme, 20), false));
    let mut tick =
        |millis| alive.tick(&mut memory, at(millis), &[Arc::clone(&acme)], &[], |_| false).expired;
    for second in 0..=30 {
        assert_eq!(tick(second * 1000), 0);
    }
    assert_eq!((tick(30_001), tick(30_002)), (1, 0));
    // All slept, and the other lives: it has time to show itself.
    admitted(dead.admit(&mut memory, at(31_000), &ask(&acme, 10), false));
    let mut tick =
        |millis| alive.tick(&mut memory, at(millis), &[Arc::clone(&acme)], &[], |_| false).expired;
    assert_eq!((tick(90_000), tick(91_000), tick(94_999), tick(95_000)), (0, 0, 0, 1));
    assert_eq!(in_flight(&alive, &mut memory, &acme), (20, 1));
}

#[test]
fn a_suspended_tenant_is_refused_whatever_it_asks() {
    let mut memory = Memory::default();
    let none = tenant("none", Law::per_second(0, 80_000, 0));
    let mut ledger = Ledger::new("tidegate", 1);
    let refusal = refused(ledger.admit(&mut memory, at(0), &ask(&none, 0), false));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Suspended, None));
    let small = tenant("small", Law::per_second(1, 10, 0));
    // An account that is not there is not one that is full.
    let lost = refused(ledger.admit(&mut memory, at(0), &ask(&small, 1), false));
    assert_eq!((lost.cause, memory.slots.0.len()), (Cause::Busy, 0));
    ledger.open(&mut memory, &[Arc::clone(&small)], &[]);
    assert_eq!(
        refused(ledger.admit(&mut memory, at(0), &ask(&small, 11), false)).cause,
        Cause::TooLarge
    );
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
        let mut ledger = Ledger::new("tidegate", 1);
        ledger.open(&mut memory, &[Arc::clone(&acme)], &[]);
        let _ = ledger.admit(&mut memory, at(0), &ask(&acme, first), false);
        let mut probe = |memory: &Memory, millis| {
            let mut copy = Memory { slots: memory.slots.clone(), ..Memory::default() };
            ledger.admit(&mut copy, at(millis), &ask(&acme, then), false)
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

mod pools {
    use super::*;
    use crate::tenant::Limits;

    /// Two requests at a time.
    fn capacity() -> Arc<Capacity> {
        let limits = Limits { requests: Some(2), ..Limits::default() };
        let name = "pool".into();
        Arc::new(Capacity { name, limits, kept: (0, 0), credit: 1000, spill: None, load: None })
    }

    fn tenant(name: &str, class: TenantClass) -> Arc<Entitlement> {
        Arc::new(Entitlement::of(name, class, Some(Law::per_second(100, 1000, 0))))
    }

    struct World {
        memory: Memory,
        ledger: Ledger,
        capacity: Arc<Capacity>,
    }

    fn world(tenants: &[&Arc<Entitlement>]) -> World {
        let (mut memory, ledger) = (Memory::default(), Ledger::new("tidegate", 1));
        let capacity = capacity();
        let tenants: Vec<_> = tenants.iter().map(|one| Arc::clone(one)).collect();
        ledger.open(&mut memory, &tenants, &[Arc::clone(&capacity)]);
        World { memory, ledger, capacity }
    }

    impl World {
        fn ask(&self, tenant: &Arc<Entitlement>, tokens: u64) -> Ask {
            let mut ask = ask(tenant, tokens);
            (ask.pool, ask.capacity) = (self.capacity.key(), Some(Arc::clone(&self.capacity)));
            ask
        }

        fn admit(&mut self, tenant: &Arc<Entitlement>, tokens: u64, holds: bool) -> Admission {
            let ask = self.ask(tenant, tokens);
            self.ledger.admit(&mut self.memory, at(0), &ask, holds)
        }

        fn open(&mut self) -> (u64, u64) {
            let (memory, capacity) = (&mut self.memory, &self.capacity);
            let (status, _) = self.ledger.pool_status(memory, at(0), capacity, &[]);
            (status.tokens, status.requests)
        }

        fn tick(&mut self, millis: u64) -> Ticked {
            let pools = [Arc::clone(&self.capacity)];
            self.ledger.tick(&mut self.memory, at(millis), &[], &pools, |_| false)
        }
    }

    #[test]
    fn a_pool_is_charged_tokens_and_a_tenant_by_its_weights() {
        let acme = tenant("acme", TenantClass::Elastic);
        let mut world = world(&[&acme]);
        let mut reservation = admitted(world.admit(&acme, 100, false));
        assert_eq!(world.open(), (100, 1));
        let less = Need { charge: 60, tokens: 40 };
        world.ledger.lower(&mut world.memory, at(0), &mut reservation, less).unwrap();
        assert_eq!((world.open(), reservation.reserved()), ((40, 1), 60));
        let used = Actual { charge: 5, tokens: 30, report: None };
        world.ledger.settle(&mut world.memory, at(0), reservation, used).unwrap();
        assert_eq!(world.open(), (0, 0));
        let (_, served) = world.ledger.pool_status(
            &mut world.memory,
            at(0),
            &world.capacity,
            std::slice::from_ref(&acme),
        );
        assert_eq!(served, [30]);
        assert_eq!(world.ledger.status(&mut world.memory, at(0), &acme).left, 995);
    }

    #[test]
    fn a_guaranteed_request_counts_in_a_full_pool() {
        let (gold, acme) =
            (tenant("gold", TenantClass::Guaranteed), tenant("acme", TenantClass::Elastic));
        let mut world = world(&[&gold, &acme]);
        let open: Vec<Reservation> =
            (0..3).map(|_| admitted(world.admit(&gold, 10, false))).collect();
        assert_eq!(world.open(), (30, 3));
        assert_eq!(refused(world.admit(&acme, 10, false)).cause, Cause::Capacity);
        // Its own limits hold.
        assert_eq!(refused(world.admit(&gold, 999, false)).cause, Cause::Tokens);
        for reservation in open {
            world.ledger.settle(&mut world.memory, at(0), reservation, used(10)).unwrap();
        }
        admitted(world.admit(&acme, 10, false));
    }

    /// Whatever is busy, nothing stays taken.
    #[test]
    fn what_a_pool_gave_comes_back_if_the_tenant_s_account_is_busy() {
        let acme = tenant("acme", TenantClass::Elastic);
        let mut world = world(&[&acme]);
        // The look at the tenant's account passes, its change does not.
        world.memory.stuck = Some("tenant");
        let refusal = refused(world.admit(&acme, 10, false));
        world.memory.stuck = None;
        assert_eq!((refusal.cause, world.open()), (Cause::Busy, (0, 0)));
        // Then the pool's is busy as well.
        let taken = admitted(world.admit(&acme, 10, false)).pool;
        world.memory.stuck = Some("pool");
        world.ledger.give_back(&mut world.memory, at(0), taken);
        world.memory.stuck = None;
        assert_eq!(world.open(), (10, 1));
        world.tick(1000);
        assert_eq!(world.open(), (0, 0));
    }

    /// Another worker uses up the tenant's limit between the look at it and its
    /// change.
    struct Race<'a> {
        memory: &'a mut Memory,
        other: Ledger,
        ask: Ask,
    }

    impl Slots for Race<'_> {
        fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
            let updated = self.memory.update(name, change);
            if name.contains(".pool.") {
                let _won = self.other.admit(self.memory, at(0), &self.ask, false);
            }
            updated
        }
    }

    #[test]
    fn what_a_pool_gave_comes_back_if_another_worker_was_faster() {
        let acme = tenant("acme", TenantClass::Elastic);
        let mut world = world(&[&acme]);
        let other = ask(&acme, 995);
        let ask = world.ask(&acme, 10);
        let mut race =
            Race { memory: &mut world.memory, other: Ledger::new("tidegate", 2), ask: other };
        let refusal = refused(world.ledger.admit(&mut race, at(0), &ask, false));
        assert_eq!((refusal.cause, world.open()), (Cause::Tokens, (0, 0)));
    }

    #[test]
    fn a_settlement_that_finds_the_pool_busy_is_made_later() {
        let acme = tenant("acme", TenantClass::Elastic);
        let mut world = world(&[&acme]);
        for _ in 0..2 {
            let reservation = admitted(world.admit(&acme, 10, false));
            world.memory.stuck = Some("pool");
            let settled = world.ledger.settle(&mut world.memory, at(0), reservation, used(10));
            assert!(settled.is_some(), "the tenant's part is done");
            world.memory.stuck = None;
        }
        assert_eq!(world.open(), (20, 2));
        assert_eq!(world.tick(0), Ticked::default());
        assert_eq!(world.open(), (0, 0));
        // Only so many can wait.
        let open: Vec<Reservation> = (0..2)
            .chain(3..7)
            .map(|_| {
                let lenient = Entitlement::of("acme", TenantClass::Guaranteed, None);
                admitted(world.admit(&Arc::new(lenient), 1, false))
            })
            .collect();
        world.memory.stuck = Some("pool");
        for reservation in open {
            world.ledger.settle(&mut world.memory, at(0), reservation, used(1));
        }
        assert_eq!(world.tick(1).lost, 2);
    }

    #[test]
    fn a_busy_pool_lets_pass_whom_its_setting_lets_pass() {
        let strict = tenant("strict", TenantClass::Elastic);
        let mut lenient = Entitlement::of("lenient", TenantClass::Elastic, None);
        lenient.admit_on_busy = true;
        let lenient = Arc::new(lenient);
        let mut world = world(&[&strict, &lenient]);
        world.memory.stuck = Some("pool");
        assert_eq!(refused(world.admit(&strict, 10, false)).cause, Cause::Busy);
        // It is charged to its tenant, and to no pool.
        let reservation = admitted(world.admit(&lenient, 10, false));
        assert!(reservation.pool.is_none() && reservation.reserved() == 10);
    }

    #[test]
    fn what_a_dead_worker_took_of_a_pool_comes_back() {
        let acme = tenant("acme", TenantClass::Elastic);
        let mut world = world(&[&acme]);
        let mut dead = Ledger::new("tidegate", 2);
        let ask = world.ask(&acme, 10);
        let _lost = admitted(dead.admit(&mut world.memory, at(0), &ask, false));
        for second in 0..=30 {
            world.tick(second * 1000);
        }
        assert_eq!(world.open(), (10, 1));
        world.tick(30_001);
        assert_eq!(world.open(), (0, 0));
    }

    #[test]
    fn who_is_refused_is_expected_back_and_who_is_held_is_not() {
        let acme = tenant("acme", TenantClass::Elastic);
        let spot = tenant("spot", TenantClass::Spot);
        for (holds, expected) in [(false, 1), (true, 2)] {
            let mut world = world(&[&acme, &spot]);
            let open = [(); 2].map(|()| admitted(world.admit(&spot, 10, false)));
            refused(world.admit(&acme, 10, holds));
            for reservation in open {
                world.ledger.settle(&mut world.memory, at(0), reservation, used(10)).unwrap();
            }
            // A place is kept free for it.
            let passed =
                (0..2).filter(|_| matches!(world.admit(&spot, 10, false), Admission::Admitted(..)));
            assert_eq!(passed.count(), expected, "{holds}");
        }
    }
}
