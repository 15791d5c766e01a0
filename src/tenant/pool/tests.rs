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
    }
}

fn who(key: u64, class: TenantClass) -> Who {
    Who { key, class, weight: 1 }
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

#[test]
fn who_was_refused_is_expected_back_and_lower_classes_stay_out() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    let all = pool.admit(&capacity, at(0), 1, who(9, SPOT), 800).unwrap();
    assert!(pool.admit(&capacity, at(0), 1, who(1, ELASTIC), 1).is_err());
    pool.want(at(0), 1, Some(Span::from_secs(1)));
    pool.settle(&capacity, at(0), &all, 800);
    assert!(pool.admit(&capacity, at(1499), 1, who(9, SPOT), 1).is_err());
    assert!(pool.admit(&capacity, at(1499), 1, who(3, ELASTIC), 1).is_ok());
    assert!(pool.admit(&capacity, at(1500), 1, who(9, SPOT), 1).is_ok());
    // One of its own class stays out when it is ahead by more than the credit.
    assert!(pool.admit(&capacity, at(1500), 1, who(1, ELASTIC), 900).is_err());
    pool.want(at(1500), 1, Some(Span::from_secs(1)));
    let more = pool.admit(&capacity, at(1500), 1, who(3, ELASTIC), 502).unwrap();
    pool.settle(&capacity, at(1500), &more, 502);
    assert!(pool.admit(&capacity, at(1500), 1, who(3, ELASTIC), 1).is_err());
    assert!(pool.admit(&capacity, at(3001), 1, who(3, ELASTIC), 1).is_ok());
}

#[test]
fn tenants_that_nobody_saw_for_longest_make_room() {
    let (capacity, mut pool) = (capacity(), PoolAccount::default());
    for key in 0..=FLOWS_MAX as u64 {
        let taken = pool.admit(&capacity, at(key), 1, who(key, ELASTIC), 10).unwrap();
        pool.settle(&capacity, at(key), &taken, 7);
    }
    assert_eq!((pool.flows.len(), pool.served(0), pool.served(1)), (FLOWS_MAX, 0, 7));
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
                        prop_assert!(others + kept.max(200) <= 1000 || others_n == 1);
                        prop_assert!(others_n + kept_n.max(1) <= 4);
                    }
                } else {
                    prop_assert_ne!(class, GUARANTEED);
                    pool.want(at(now), class as u64, (kind == 1).then_some(Span::from_secs(1)));
                    pool.publish(at(now), 7, &[who(class as u64, class)]);
                }
            }
            let tokens: u64 = open.iter().map(|taken| taken.tokens).sum();
            prop_assert_eq!(pool.open(), (tokens, open.len() as u64));
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
