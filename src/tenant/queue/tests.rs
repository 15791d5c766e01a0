//! What becomes of requests that wait.

mod days;
mod world;

use super::*;
use crate::config::TenantClass;
use crate::tenant::{Actual, Entitlement, Law};
use world::{World, at, client, two_to_one};

#[test]
fn a_request_that_waits_too_long_is_refused_and_says_when_to_come_back() {
    let patient = |one: &mut Entitlement| one.ttft_target = Span::from_millis(300);
    let clients = two_to_one().into_iter().map(|client| client.edit(patient)).collect();
    let mut world = World::new(1, clients, |capacity| capacity.limits.requests = Some(1));
    world.clients[1].outstanding = 0;
    world.clients[0].tokens = (1000, 0);
    world.clients[0].outstanding = 2;
    world.step();
    assert_eq!((world.running.len(), world.waiting[0].len()), (1, 1));
    world.clients[0].outstanding = 1;
    let mut ledger = Ledger::new("tidegate", 1);
    for now in [150, 299] {
        assert!(world.workers[0].1.poll(&mut world.memory, &mut ledger, at(now)).is_empty());
    }
    let released = world.workers[0].1.poll(&mut world.memory, &mut ledger, at(300));
    let [Released { waited, admission: Admission::Refused(refusal), .. }] = &*released else {
        panic!("{released:?}")
    };
    assert_eq!(*waited, Span::from_millis(300));
    assert_eq!((refusal.cause, refusal.retry_after), (Cause::Capacity, Some(1)));
    // The next look withdraws its head.
    assert!(world.workers[0].1.poll(&mut world.memory, &mut ledger, at(310)).is_empty());
    assert!(world.workers[0].1.is_empty());
}

/// Who was refused in the end has a place kept for it when it comes back.
#[test]
fn who_waited_in_vain_is_expected_back() {
    let patient = |one: &mut Entitlement| one.ttft_target = Span::from_millis(300);
    let elastic = client("e", TenantClass::Elastic, 1).edit(patient);
    let clients = vec![client("s", TenantClass::Spot, 1), elastic];
    let mut world = World::new(1, clients, |capacity| capacity.limits.requests = Some(1));
    let asks = [0, 1].map(|client| world.ask(client, 100));
    let limits = HoldLimits { requests: 9, bytes: 9 };
    let (ledger, queue) = &mut world.workers[0];
    let memory = &mut world.memory;
    let [spot, elastic] = asks;
    let Admission::Admitted(open, _) = ledger.admit(memory, at(0), &spot, false) else { panic!() };
    let hold = Some(Hold { id: 1, bytes: 1, limits });
    assert!(matches!(queue.admit(memory, ledger, at(0), elastic, hold), Admission::Held));
    assert_eq!(queue.poll(memory, ledger, at(300)).len(), 1);
    assert!(queue.poll(memory, ledger, at(310)).is_empty() && queue.is_empty());
    ledger
        .settle(memory, at(310), open, Actual { charge: 100, tokens: 100, report: None })
        .unwrap();
    let mut passes =
        |millis| matches!(ledger.admit(memory, at(millis), &spot, false), Admission::Admitted(..));
    assert!(!passes(1799) && passes(1801));
}

#[test]
fn a_client_that_leaves_makes_way() {
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.run(30);
    let (id, _) = world.waiting[0].remove(0);
    let before = world.workers.iter().map(|(_, queue)| queue.waiting.len()).sum::<usize>();
    for (_, queue) in &mut world.workers {
        queue.leave(id);
        queue.leave(id);
    }
    let after = world.workers.iter().map(|(_, queue)| queue.waiting.len()).sum::<usize>();
    assert_eq!(after, before - 1);
    // A worker that waits for nothing stands in nobody's way.
    for (id, _) in world.waiting.iter_mut().flat_map(|waiting| waiting.drain(..)) {
        for (_, queue) in &mut world.workers {
            queue.leave(id);
        }
    }
    for client in &mut world.clients {
        client.outstanding = 0;
    }
    world.drain();
}

/// A request of its tenant's that waits for its own limits, until that is told.
#[test]
fn who_waits_for_its_own_limits_goes_in_turn_and_hears_why_it_did_not() {
    let slow = |one: &mut Entitlement| {
        one.limits.laws[0] = Some(Law::per_second(100, 500, 500));
        one.ttft_target = Span::from_secs(2);
    };
    let clients = two_to_one().into_iter().map(|client| client.edit(slow)).collect();
    let mut world = World::new(1, clients, |_| {});
    let asks = [400, 300, 50].map(|tokens| world.ask(0, tokens));
    let (ledger, queue) = &mut world.workers[0];
    let memory = &mut world.memory;
    let limits = HoldLimits { requests: 10, bytes: 10 };
    let admissions: Vec<Admission> = (0..)
        .zip(asks)
        .map(|(id, ask)| {
            let hold = Some(Hold { id, bytes: 1, limits });
            queue.admit(memory, ledger, at(0), ask, hold)
        })
        .collect();
    // The small one would be covered, but came last.
    assert!(matches!(&*admissions, [Admission::Admitted(..), Admission::Held, Admission::Held]));
    assert!(queue.poll(memory, ledger, at(1990)).is_empty());
    let released = queue.poll(memory, ledger, at(2000));
    let [
        Released { id: 1, admission: Admission::Admitted(..), .. },
        Released { id: 2, admission: Admission::Refused(refusal), .. },
    ] = &*released
    else {
        panic!("{released:?}")
    };
    assert_eq!(refusal.cause, Cause::Tokens);
    assert!(queue.is_empty());
}

#[test]
fn busy_memory_keeps_a_request_waiting() {
    let mut world = World::new(1, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.run(1);
    let waiting = world.workers[0].1.waiting.len();
    let slots = core::mem::take(&mut world.memory);
    let (ledger, queue) = &mut world.workers[0];
    // All slots are gone.
    assert!(queue.poll(&mut world.memory, ledger, at(1)).is_empty());
    assert_eq!(queue.waiting.len(), waiting);
    world.memory = slots;
    world.drain();
}

#[test]
fn a_worker_that_waits_no_more_stands_in_nobody_s_way() {
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    world.clients[0].outstanding = 0;
    world.clients[1].outstanding = 1;
    world.run(25);
    let ask = world.ask(0, 100);
    let hold = Some(Hold { id: 7, bytes: 1, limits: HoldLimits { requests: 9, bytes: 9 } });
    let (ledger, queue) = &mut world.workers[1];
    assert!(matches!(queue.admit(&mut world.memory, ledger, at(25), ask, hold), Admission::Held));
    assert!(queue.poll(&mut world.memory, ledger, at(30)).is_empty());
    queue.leave(7);
    // Something is left to be said, and then nothing.
    assert!(!queue.is_empty());
    assert!(queue.poll(&mut world.memory, ledger, at(60)).is_empty());
    assert!(queue.is_empty());
    let running = world.running.pop().unwrap();
    let (ledger, _) = &mut world.workers[0];
    let used = Actual { charge: 5000, tokens: 5000, report: None };
    ledger.settle(&mut world.memory, at(60), running.reservation, used).unwrap();
    // The other tenant has had more, and passes.
    let ask = world.ask(1, 100);
    let (ledger, _) = &mut world.workers[0];
    assert!(matches!(
        ledger.admit(&mut world.memory, at(60), &ask, false),
        Admission::Admitted(..)
    ));
}

#[test]
fn the_queue_is_bounded_by_count_and_by_bytes() {
    let mut world = World::new(1, two_to_one(), |capacity| capacity.limits.requests = Some(1));
    let ask = world.ask(0, 100);
    let (ledger, queue) = &mut world.workers[0];
    let mut admit = |queue: &mut Queue, id, bytes| {
        let limits = HoldLimits { requests: 5, bytes: 100 };
        let hold = Some(Hold { id, bytes, limits });
        match queue.admit(&mut world.memory, ledger, at(0), ask.clone(), hold) {
            Admission::Admitted(..) => "admitted",
            Admission::Held => "held",
            Admission::Refused(_) => "refused",
            Admission::Uncharged => "uncharged",
        }
    };
    assert_eq!(admit(queue, 0, 1), "admitted");
    assert_eq!(admit(queue, 1, 60), "held");
    assert_eq!(admit(queue, 2, 41), "refused");
    assert_eq!(admit(queue, 3, 40), "held");
    queue.leave(1);
    assert_eq!(admit(queue, 4, 30), "held");
    assert_eq!(admit(queue, 5, 30), "held");
    assert_eq!(admit(queue, 6, 0), "refused");
}
