use super::flows::FLOWS_MAX;
use super::*;
use crate::tenant::Law;
use proptest::prelude::*;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn capacity() -> Capacity {
    Capacity {
        name: "pool".into(),
        limits: Limits { tokens_in_flight: Some(1000), requests: Some(4), ..Limits::default() },
        kept: (200, 1),
        credit: 500,
        spill: None,
        load: None,
    }
}

fn who(key: u64, class: TenantClass) -> Contender {
    Contender { key, class, weight: 1 }
}

const ELASTIC: TenantClass = TenantClass::Elastic;
const SPOT: TenantClass = TenantClass::Spot;
const GUARANTEED: TenantClass = TenantClass::Guaranteed;

#[test]
fn others_get_what_is_not_kept() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let mut ask = |class, tokens| pool.admit(&capacity, at(0), 1, who(class as u64, class), tokens);
    assert!(ask(ELASTIC, 800).is_ok());
    assert_eq!(ask(ELASTIC, 1), Err(Span::default()));
    // A promise is kept, whatever is open, and more than what was kept counts.
    let first = ask(GUARANTEED, 150).unwrap();
    assert_eq!(ask(ELASTIC, 1), Err(Span::default()));
    let second = ask(GUARANTEED, 150).unwrap();
    assert!(ask(GUARANTEED, 9999).is_ok());
    for taken in [first, second] {
        pool.settle(&capacity, at(0), &taken, 150);
    }
    assert_eq!(pool.open(), (10_799, 2));
}

#[test]
fn what_is_larger_than_all_that_is_left_passes_alone() {
    let (mut capacity, mut pool) = (capacity(), PoolAccount::default());
    capacity.limits.laws[0] = Some(Law::per_second(100, 300, 300));
    let small = pool.admit(&capacity, at(0), 1, who(1, ELASTIC), 10).unwrap();
    assert!(pool.admit(&capacity, at(0), 1, who(2, ELASTIC), 900).is_err());
    pool.settle(&capacity, at(0), &small, 10);
    // The rate lets it through once its bucket is full.
    assert_eq!(pool.admit(&capacity, at(0), 1, who(2, ELASTIC), 900), Err(Span::from_millis(100)));
    assert!(pool.admit(&capacity, at(100), 1, who(2, ELASTIC), 900).is_ok());
    assert!(pool.level(&capacity, at(100)).unwrap() <= -300);
    assert!(pool.admit(&capacity, at(60_000), 1, who(2, ELASTIC), 900).is_err());
}

#[test]
fn another_worker_s_first_request_counts_when_it_has_waited_and_only_while_it_looks() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let (a, b) = (who(1, ELASTIC), who(2, ELASTIC));
    // The second one had less than the first; then worker 1 holds a request of it.
    for (who, tokens) in [(b, 10), (a, 100)] {
        let taken = pool.admit(&capacity, at(0), 1, who, tokens).unwrap();
        pool.settle(&capacity, at(0), &taken, tokens);
    }
    assert!(pool.publish(at(10), 1, &[b]));
    assert!(!pool.publish(at(20), 1, &[b]), "nothing new");
    let mut asks = |millis, worker, who| {
        let taken = pool.admit(&capacity, at(millis), worker, who, 1);
        taken.is_ok_and(|taken| {
            pool.settle(&capacity, at(millis), &taken, 0);
            true
        })
    };
    // It comes first, to its own worker at once, to others after two ticks.
    assert!(!asks(20, 1, a) && asks(30, 2, a) && !asks(31, 2, a));
    // It stands in nobody's way who comes before it, nor in its own.
    assert!(asks(31, 2, b));
    // Its worker died.
    assert!(!asks(260, 2, a) && asks(261, 2, a));
    assert!(pool.publish(at(300), 1, &[b]) && pool.publish(at(300), 1, &[]));
    assert!(!pool.publish(at(300), 1, &[]));
}

/// Fills the pool but for so many tokens, for a tenant nobody else asks for.
fn fill(pool: &mut PoolAccount, capacity: &Capacity, left: u64) -> Taken {
    pool.admit(capacity, at(0), 1, who(9, SPOT), 800 - left).unwrap()
}

#[test]
fn room_for_one_request_of_who_is_expected_back_is_kept_from_those_behind() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let all = fill(&mut pool, &capacity, 0);
    assert!(pool.admit(&capacity, at(0), 1, who(1, ELASTIC), 100).is_err());
    pool.want(at(0), 1, 100, Some(Span::from_secs(1)));
    pool.settle(&capacity, at(0), &all, 800);
    let mut asks = |millis, key, class, tokens| {
        let taken = pool.admit(&capacity, at(millis), 1, who(key, class), tokens);
        taken.is_ok_and(|taken| {
            pool.settle(&capacity, at(millis), &taken, 0);
            true
        })
    };
    assert!(!asks(1499, 9, SPOT, 701) && asks(1499, 9, SPOT, 700));
    // Itself it has all, and when it does not come nobody waits for it.
    assert!(asks(1499, 1, ELASTIC, 800));
    assert!(asks(1500, 9, SPOT, 800));
    // However much it wanted, and whenever it was told to come: a quarter, 2.5 s.
    pool.want(at(0), 1, 800, Some(Span::from_secs(600)));
    let mut asks = |millis, tokens| {
        let taken = pool.admit(&capacity, at(millis), 1, who(9, SPOT), tokens);
        taken.is_ok_and(|taken| {
            pool.settle(&capacity, at(millis), &taken, 0);
            true
        })
    };
    assert!(!asks(2499, 551) && asks(2499, 550) && asks(2500, 800));
}

#[test]
fn who_comes_before_who_is_expected_back_need_not_make_room() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let (a, b) = (who(1, ELASTIC), who(2, ELASTIC));
    for (who, tokens) in [(b, 10), (a, 100)] {
        let taken = pool.admit(&capacity, at(0), 1, who, tokens).unwrap();
        pool.settle(&capacity, at(0), &taken, tokens);
    }
    pool.want(at(0), b.key, 100, Some(Span::from_secs(1)));
    assert!(pool.admit(&capacity, at(1), 1, a, 701).is_err());
    pool.want(at(1), a.key, 100, Some(Span::from_secs(1)));
    assert!(pool.admit(&capacity, at(1), 1, b, 701).is_ok());
}

/// A long open stream, or one who was there a moment ago, keeps nobody's place.
#[test]
fn a_newcomer_starts_level_with_those_who_want_the_pool() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let old = pool.admit(&capacity, at(0), 1, who(7, ELASTIC), 10).unwrap();
    for millis in 0..1000 {
        let taken = pool.admit(&capacity, at(millis), 1, who(1, ELASTIC), 100).unwrap();
        pool.settle(&capacity, at(millis), &taken, 100);
    }
    let newcomer = pool.order(&capacity, at(1000), who(2, ELASTIC));
    assert_eq!(newcomer, pool.order(&capacity, at(1000), who(1, ELASTIC)));
    pool.want(at(1000), 1, 100, None);
    assert_eq!(newcomer, pool.order(&capacity, at(1000), who(2, ELASTIC)));
    pool.settle(&capacity, at(1000), &old, 10);
}

/// Who stopped wanting keeps what it was behind by then, up to the credit, and
/// nothing of what others had since.
#[test]
fn who_was_short_and_left_comes_back_with_its_credit() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let (a, b) = (who(1, ELASTIC), who(2, ELASTIC));
    let had = |pool: &mut PoolAccount, who, tokens| {
        let taken = pool.admit(&capacity, at(0), 1, who, tokens).unwrap();
        pool.settle(&capacity, at(0), &taken, tokens);
    };
    had(&mut pool, b, 10);
    let fill = fill(&mut pool, &capacity, 0);
    // Refused while the other gets 300 more.
    let refused = |pool: &mut PoolAccount| {
        assert!(pool.admit(&capacity, at(0), 1, b, 100).is_err());
        pool.want(at(0), b.key, 100, Some(Span::from_secs(1)));
    };
    refused(&mut pool);
    pool.settle(&capacity, at(0), &fill, 800);
    had(&mut pool, a, 300);
    let again = pool.admit(&capacity, at(0), 1, who(8, GUARANTEED), 950).unwrap();
    refused(&mut pool);
    pool.settle(&capacity, at(0), &again, 950);
    let behind = |pool: &PoolAccount, millis| {
        pool.order(&capacity, at(millis), a).1 - pool.order(&capacity, at(millis), b).1
    };
    assert_eq!(behind(&pool, 0), 300_000);
    // It does not want any more; the other goes on.
    for _ in 0..9 {
        let taken = pool.admit(&capacity, at(9000), 1, a, 100).unwrap();
        pool.settle(&capacity, at(9000), &taken, 100);
    }
    assert_eq!(behind(&pool, 9000), 300_000);
}

#[test]
fn what_is_open_counts_as_far_as_it_is_used_and_no_longer_than_its_worker_lives() {
    let (mut capacity, mut pool) = (capacity(), PoolAccount::default());
    (capacity.limits, capacity.credit) = (Limits::default(), 0);
    let one = who(1, ELASTIC);
    // It uses an eighth of what it reserves.
    for _ in 0..80 {
        let taken = pool.admit(&capacity, at(0), 1, one, 800).unwrap();
        pool.settle(&capacity, at(0), &taken, 100);
    }
    let before = pool.order(&capacity, at(0), one).1;
    assert_eq!(before, 8_000_000);
    let _lost = pool.admit(&capacity, at(0), 1, one, 800).unwrap();
    let open = pool.order(&capacity, at(0), one).1 - before;
    assert!((100_000..=102_000).contains(&open), "{open}");
    let promised = pool.admit(&capacity, at(0), 2, who(5, GUARANTEED), 10).unwrap();
    assert_eq!(pool.expire(at(31_000), |worker| worker == 2), 1);
    assert_eq!((pool.open(), pool.kept.open()), ((10, 1), (10, 1)));
    assert_eq!(pool.expire(at(62_000), |_| false), 1);
    assert_eq!((pool.open(), pool.kept.open()), ((0, 0), (0, 0)));
    pool.settle(&capacity, at(62_000), &promised, 10);
    assert_eq!(pool.flows.of(1).unwrap().open, 0);
}

#[test]
fn the_rate_counts_what_is_used_however_long_and_over_reserved_requests_are() {
    let (mut capacity, mut pool) = (capacity(), PoolAccount::default());
    capacity.limits = Limits {
        laws: [Some(Law::per_second(1000, 2000, 2000)), None, None, None],
        ..Limits::default()
    };
    // Reserves 800, uses 100, takes 20 s; as many as may.
    let mut open = std::collections::VecDeque::new();
    let mut used = 0;
    for millis in (0..200_000).step_by(10) {
        while open.front().is_some_and(|(end, _)| *end <= millis) {
            let (_, taken) = open.pop_front().unwrap();
            pool.settle(&capacity, at(millis), &taken, 100);
            used += if millis >= 100_000 { 100 } else { 0 };
        }
        while let Ok(taken) = pool.admit(&capacity, at(millis), 1, who(1, ELASTIC), 800) {
            open.push_back((millis + 20_000, taken));
        }
    }
    assert!((97_000..=103_000).contains(&used), "{used} of 100000");
}

#[test]
fn tenants_that_nobody_saw_for_longest_make_room() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    for key in 0..=FLOWS_MAX as u64 {
        let taken = pool.admit(&capacity, at(key), 1, who(key, ELASTIC), 10).unwrap();
        pool.settle(&capacity, at(key), &taken, 7);
    }
    assert_eq!((pool.flows.all.len(), pool.served(0), pool.served(1)), (FLOWS_MAX, 0, 7));
}

#[test]
fn what_is_lowered_and_settled_counts_as_what_it_is() {
    let (mut capacity, mut pool) = (capacity(), PoolAccount::default());
    capacity.limits.laws[0] = Some(Law::per_second(1, 1000, 1000));
    let a = who(1, ELASTIC);
    let stands = |pool: &mut PoolAccount| {
        (pool.order(&capacity, at(0), a).1, pool.level(&capacity, at(0)).unwrap())
    };
    let mut taken = pool.admit(&capacity, at(0), 1, a, 700).unwrap();
    assert_eq!(stands(&mut pool), (700 * SCALE, 300));
    pool.lower(at(0), &mut taken, 400);
    assert_eq!(stands(&mut pool), (400 * SCALE, 600));
    pool.settle(&capacity, at(0), &taken, 100);
    assert_eq!(stands(&mut pool), (100 * SCALE, 900));
}

/// A tenant that was forgotten and comes back is not settled for what it took
/// before; whoever has nothing open is forgotten first.
#[test]
fn what_a_forgotten_tenant_took_is_not_the_new_one_s() {
    let (mut capacity, mut pool) = (capacity(), PoolAccount::default());
    capacity.limits = Limits::default();
    let open = |pool: &mut PoolAccount, millis, key, tokens| {
        pool.admit(&capacity, at(millis), 1, who(key, ELASTIC), tokens).unwrap()
    };
    let old = open(&mut pool, 0, 0, 100);
    let idle = open(&mut pool, 1, 1, 10);
    pool.settle(&capacity, at(2), &idle, 10);
    for key in 2..=FLOWS_MAX as u64 {
        open(&mut pool, 1 + key, key, 10);
    }
    assert!(pool.flows.of(0).is_some() && pool.flows.of(1).is_none());
    open(&mut pool, 90, 9, 10);
    assert!(pool.flows.of(0).is_none(), "all have something open");
    open(&mut pool, 91, 0, 50);
    let before = *pool.flows.of(0).unwrap();
    pool.settle(&capacity, at(92), &old, 1);
    assert_eq!(*pool.flows.of(0).unwrap(), before);
}

proptest! {
    /// What is open is what was taken and not settled; others never have more
    /// than what is left of the capacity, unless alone; and all survives its
    /// encoding.
    #[test]
    fn room_is_conserved(
        steps in prop::collection::vec((0_u8..3, 0_u64..900, 0_u64..3, 0_u64..900), 1..60),
    ) {
        let (capacity, mut pool) = (capacity(), PoolAccount::default());
        let (mut open, mut now) = (Vec::<Taken>::new(), 0);
        for (kind, tokens, class, millis) in steps {
            now += millis;
            if kind == 0 && !open.is_empty() {
                let mut taken = open.remove(tokens as usize % open.len());
                pool.lower(at(now), &mut taken, tokens / 2);
                prop_assert!(taken.tokens <= tokens / 2);
                if millis % 2 == 0 {
                    pool.settle(&capacity, at(now), &taken, tokens);
                } else {
                    open.push(taken);
                }
            } else {
                let class = [GUARANTEED, ELASTIC, SPOT][class as usize];
                if let Ok(taken) = pool.admit(&capacity, at(now), 1, who(class as u64, class), tokens)
                {
                    open.push(taken);
                    let sum = |guaranteed| open.iter()
                        .filter(|one| (one.who.class == GUARANTEED) == guaranteed)
                        .fold((0, 0), |(tokens, n), one| (tokens + one.tokens, n + 1));
                    let ((kept, kept_n), (others, others_n)) = (sum(true), sum(false));
                    if class != GUARANTEED {
                        prop_assert!(others <= 1000_u64.saturating_sub(kept.max(200)) || others_n == 1);
                        prop_assert!(others_n + kept_n.max(1) <= 4);
                    }
                } else {
                    prop_assert_ne!(class, GUARANTEED);
                    let back = (kind == 1).then_some(Span::from_secs(1));
                    pool.want(at(now), class as u64, tokens, back);
                    pool.publish(at(now), 7, &[who(class as u64, class)]);
                }
            }
            let tokens: u64 = open.iter().map(|taken| taken.tokens).sum();
            prop_assert_eq!(pool.open(), (tokens, open.len() as u64));
            // Weights are 1, so virtual time is tokens.
            let of_flows: u64 = pool.flows.all.iter().map(|flow| flow.open).sum();
            prop_assert_eq!(of_flows, tokens * SCALE);
            let kept = open.iter().filter(|taken| taken.kept.is_some()).count() as u64;
            prop_assert_eq!(pool.kept.open().1, kept);
            prop_assert_eq!(PoolAccount::decode(7, &pool.encode(7)), Some(pool.clone()));
            prop_assert_eq!(PoolAccount::decode(8, &pool.encode(7)), None);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), cut in 0_usize..900) {
        let _ = PoolAccount::decode(0, &bytes);
        let mut pool = PoolAccount::default();
        pool.admit(&capacity(), at(0), 1, who(1, ELASTIC), 9).unwrap();
        pool.publish(at(0), 1, &[who(1, ELASTIC)]);
        let mut whole = pool.encode(0);
        whole.truncate(cut);
        whole.extend(&bytes);
        let _ = PoolAccount::decode(0, &whole);
    }
}

#[test]
fn a_report_only_adds_pressure_and_only_while_it_is_young() {
    let mut capacity = capacity();
    let dwell = Span::default();
    capacity.spill = Some(SpillLaw { enter: 900, leave: 600, dwell });
    capacity.load = Some(LoadSources { replicas: 2, scrape: None, orca: true });
    let mut pool = PoolAccount::default();
    let taken = pool.admit(&capacity, at(0), 1, who(1, ELASTIC), 100).unwrap();
    let load = |pool: &PoolAccount, millis| {
        let load = pool.load(&capacity, at(millis), 100);
        (load.pressure, load.adds, load.spills)
    };
    let report = |kv_use| Reading { kv_use: Some(kv_use), ..Reading::default() };
    pool.report(&capacity, at(1), Source::Answer, report(200));
    assert_eq!(load(&pool, 1), (250, 250, false), "one of four requests is open");
    pool.settle(&capacity, at(2), &taken, 100);
    assert_eq!(load(&pool, 2), (200, 250, false));
    for _ in 0..40 {
        pool.report(&capacity, at(3), Source::Answer, report(1000));
    }
    assert_eq!(load(&pool, 3), (993, 250, true));
    assert_eq!(PoolAccount::decode(7, &pool.encode(7)), Some(pool.clone()));
    assert_eq!(load(&pool, 10_004), (0, 250, false));
}
