//! Whole days of a pool: who gets how much of it.

use super::world::{Client, SLOTS, World, client, two_to_one};
use crate::config::TenantClass;
use crate::tenant::{Entitlement, Law, Limits};
use proptest::prelude::*;

/// The first one's share of the first two, in thousandths.
fn share(got: &[u64]) -> u64 {
    got[0] * 1000 / (got[0] + got[1])
}

const ALL_OF: u64 = SLOTS * 1000;

#[test]
fn elastic_tenants_that_want_more_get_shares_by_weight() {
    for workers in [1, 2, 4] {
        let mut world = World::new(workers, two_to_one(), |_| {});
        world.run(5000);
        let got = world.run(60_000);
        let share = share(&got);
        assert!((660..=673).contains(&share), "{workers} workers: {share} of 1000");
        // Nothing stays idle: but for the ticks, all slots are always in use.
        let all: u64 = got.iter().sum();
        assert!(all >= 60 * ALL_OF * 97 / 100, "{all}");
        world.drain();
    }
}

/// Few requests on each of many workers: whose last one has gone waits on others.
#[test]
fn shares_hold_over_many_workers() {
    let mut clients = two_to_one();
    for client in &mut clients {
        (client.outstanding, client.pinned, client.tokens) = (16, true, (200, 0));
    }
    let mut world = World::new(8, clients, |capacity| capacity.limits.requests = Some(4));
    world.run(5000);
    let share = share(&world.run(40_000));
    assert!((660..=673).contains(&share), "{share} of 1000");
}

#[test]
fn shares_hold_whatever_requests_reserve_and_however_long_they_are() {
    let mut clients = two_to_one();
    // The heavier one reserves eight times what it uses; the other sends long ones.
    clients[0].over = 8;
    clients[1].tokens = (2000, 0);
    let mut world = World::new(2, clients, |_| {});
    world.run(20_000);
    let share = share(&world.run(200_000));
    assert!((650..=685).contains(&share), "{share} of 1000");
}

#[test]
fn what_one_leaves_the_others_get() {
    // Of several workers each knows the others' first requests a little later.
    for (workers, of_100) in [(1, 80), (2, 60)] {
        let mut clients = two_to_one();
        // It wants a sixteenth of the pool only, and gets it: each request waits
        // for the next slot at the most.
        clients[0].outstanding = 1;
        clients[0].tokens = (200, 0);
        let mut world = World::new(workers, clients, |_| {});
        world.run(5000);
        let got = world.run(20_000);
        let all: u64 = got.iter().sum();
        assert!(all >= 20 * ALL_OF * 97 / 100, "{got:?}");
        assert!(got[0] >= 20_000 * of_100 / 100, "{got:?}");
    }
}

#[test]
fn who_was_idle_earned_nothing_and_who_was_short_comes_first_for_a_while() {
    let mut clients = two_to_one();
    clients[0].from_to = (100_000, u64::MAX);
    let mut world = World::new(2, clients, |_| {});
    world.run(100_000);
    // After an hour's idling as after none: its share and no more.
    world.run(2000);
    let got = share(&world.run(10_000));
    assert!((645..=690).contains(&got), "{got} of 1000");

    // Spot requests are in the way of both; one gets next to nothing of what is
    // left, since it asks too seldom to. Then it asks for more: no more than the
    // credit is made up for.
    let mut world = World::new(1, two_to_one(), |capacity| capacity.credit = 4000);
    for client in &mut world.clients {
        client.outstanding = 16;
    }
    world.run(10_000);
    // Room for the second one's only: long requests hold all slots.
    world.clients[1].tokens = (20_000, 0);
    world.clients[0].from_to = (0, 0);
    world.run(3000);
    world.clients[0].from_to = (0, u64::MAX);
    world.run(17_000);
    world.clients[1].tokens = (100, 300);
    world.run(10_000);
    let got = share(&world.run(20_000));
    assert!((655..=680).contains(&got), "{got} of 1000");
}

#[test]
fn guaranteed_tenants_never_wait_for_the_pool_and_spot_ones_yield() {
    let promised = |one: &mut Entitlement| {
        one.limits = Limits { requests: Some(4), ..Limits::default() };
    };
    let mut guaranteed = client("g", TenantClass::Guaranteed, 1).edit(promised);
    guaranteed.outstanding = 4;
    guaranteed.from_to = (10_000, 40_000);
    let mut elastic = client("e", TenantClass::Elastic, 1);
    elastic.from_to = (20_000, 30_000);
    let clients = vec![guaranteed, elastic, client("s", TenantClass::Spot, 1)];
    let mut world = World::new(2, clients, |capacity| capacity.kept = (0, 4));
    world.run(5000);
    // What is kept for the guaranteed one is not given away.
    assert_eq!(world.running.len() as u64, SLOTS - 4);
    world.run(6000);
    // It has all that it asks for, from the first moment on.
    assert_eq!(world.longest[0], 0);
    world.run(10_000);
    let got = world.run(8000);
    assert_eq!(got[2], 0, "spot yields: {got:?}");
    assert!(got[1] >= 8 * (ALL_OF * 12 / 16) * 9 / 10, "{got:?}");
    assert_eq!(world.longest[0], 0);
    world.run(15_000);
    let got = world.run(10_000);
    assert!(got[0] == 0 && got[2] >= 10 * (ALL_OF * 12 / 16) * 9 / 10, "{got:?}");
    world.drain();
}

#[test]
fn who_is_refused_and_comes_back_gets_its_share_too() {
    let refused = |one: &mut Entitlement| one.hold = false;
    let mut clients: Vec<Client> =
        two_to_one().into_iter().map(|client| client.edit(refused)).collect();
    // The second one asks far more often.
    clients[1].outstanding = 200;
    let mut world = World::new(2, clients, |capacity| capacity.credit = 4000);
    world.run(20_000);
    let got = world.run(120_000);
    let share = share(&got);
    assert!((645..=690).contains(&share), "{share} of 1000");
    let all: u64 = got.iter().sum();
    assert!(all >= 120 * ALL_OF * 9 / 10, "{all} of {}", 120 * ALL_OF);
}

#[test]
fn a_tenant_s_own_limit_keeps_nobody_else_waiting() {
    let slow = |one: &mut Entitlement| {
        one.limits.laws[0] = Some(Law::per_second(100, 450, 450));
    };
    let mut clients = two_to_one();
    clients[0] = clients[0].clone().edit(slow);
    let mut world = World::new(2, clients, |_| {});
    world.run(10_000);
    let got = world.run(20_000);
    assert!((1800..=2400).contains(&got[0]), "{got:?}");
    assert!(got[1] >= 20 * ALL_OF * 95 / 100 - got[0], "{got:?}");
}

#[test]
fn the_pool_s_rate_is_kept_by_those_who_are_not_guaranteed() {
    let rate = Law::per_second(2000, 4000, 4000);
    let mut world = World::new(2, two_to_one(), |capacity| capacity.limits.laws[0] = Some(rate));
    world.run(10_000);
    let got = world.run(20_000);
    let all: u64 = got.iter().sum();
    assert!((38_000..=41_000).contains(&all), "{got:?}");
    assert!((655..=678).contains(&share(&got)), "{got:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Shares by weight, whatever the weights, the lengths and the workers; and
    /// all that was held leaves once.
    #[test]
    fn any_two_tenants_share_by_weight(
        weights in (1_u64..8, 1_u64..8),
        lengths in ((200_u64..500, 0_u64..500), (200_u64..500, 0_u64..500)),
        over in 1_u64..9, workers in 1_u64..5, in_flight in any::<bool>(),
    ) {
        let mut clients = vec![
            client("a", TenantClass::Elastic, weights.0),
            client("b", TenantClass::Elastic, weights.1),
        ];
        (clients[0].tokens, clients[1].tokens) = lengths;
        clients[0].over = over;
        for client in &mut clients {
            client.outstanding = 100;
        }
        // Either is too little for one of them alone.
        let mut world = World::new(workers, clients, |capacity| if in_flight {
            capacity.limits = Limits { tokens_in_flight: Some(16_000), ..Limits::default() };
        });
        world.run(10_000);
        let got = share(&world.run(20_000));
        let ideal = weights.0 * 1000 / (weights.0 + weights.1);
        // A pool that holds few requests of a tenant shares in large steps.
        let wide = in_flight && over * (lengths.0.0 + lengths.0.1) > 16_000 / 8;
        let most = if wide { 250 } else { 40 };
        prop_assert!(got.abs_diff(ideal) <= most, "{got} for {ideal}");
        world.drain();
    }
}
