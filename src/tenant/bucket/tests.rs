use super::*;
use proptest::prelude::*;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// Admits if the law allows.
fn admit(bucket: &mut Bucket, law: &Law, now: Instant, tokens: u64) -> Result<Charge, Short> {
    bucket.check(law, now, tokens)?;
    Ok(bucket.charge(law, now, tokens))
}

#[test]
fn a_refund_is_not_due_twice() {
    let law = Law::per_second(100, 1000, 0);
    let mut bucket = Bucket::default();
    let first = admit(&mut bucket, &law, at(0), 1000).unwrap();
    assert_eq!(bucket.check(&law, at(0), 1), Err(Short::Until(Span::from_nanos(10_000_000))));
    // Full again after 10 s; then all of it goes to others.
    admit(&mut bucket, &law, at(10_000), 1000).unwrap();
    let corrected = bucket.correct(at(10_000), first, 0);
    assert_eq!(corrected.clamped, 1000);
    assert_eq!(bucket.level(&law, at(10_000)), 0);
}

#[test]
fn a_refund_that_is_due_comes_back_in_full() {
    let law = Law::per_second(100, 1000, 0);
    let mut bucket = Bucket::default();
    let big = admit(&mut bucket, &law, at(0), 900).unwrap();
    let _small = admit(&mut bucket, &law, at(100), 100).unwrap();
    assert_eq!(bucket.level(&law, at(1000)), 100);
    assert_eq!(bucket.correct(at(1000), big, 100), Corrected::default());
    // 200 were used in the last second, in which 100 flowed in.
    assert_eq!(bucket.level(&law, at(1000)), 900);
}

#[test]
fn debt_is_paid_back_down_to_the_floor() {
    let law = Law::per_second(100, 1000, 500);
    let mut bucket = Bucket::default();
    let charge = admit(&mut bucket, &law, at(0), 1000).unwrap();
    let corrected = bucket.correct(at(0), charge, 3000);
    assert_eq!(corrected, Corrected { clamped: 0, forgiven: 1500 });
    assert_eq!(bucket.level(&law, at(0)), -500);
    assert_eq!(bucket.check(&law, at(0), 1), Err(Short::Until(Span::from_nanos(5_010_000_000))));
    assert_eq!(bucket.check(&law, at(5010), 1), Ok(()));
}

#[test]
fn what_a_charge_was_forgiven_is_not_given_back() {
    let law = Law::per_second(1, 300, 300);
    let mut bucket = Bucket::default();
    bucket.charge(&law, at(0), 100);
    let large = bucket.charge(&law, at(0), 4400);
    assert_eq!((bucket.level(&law, at(0)), large.tokens), (-300, 500));
    bucket.correct(at(0), large, 0);
    assert_eq!(bucket.level(&law, at(0)), 200);
}

#[test]
fn an_excess_counts_in_full_after_its_start_was_joined() {
    let law = Law::per_second(100, 1000, 500);
    let mut bucket = Bucket::default();
    let tiny = admit(&mut bucket, &law, at(0), 1).unwrap();
    for _ in 0..STARTS_MAX {
        admit(&mut bucket, &law, at(0), 100).unwrap();
    }
    assert!(bucket.starts.iter().all(|start| start.id != tiny.id), "{bucket:?}");
    let level = bucket.level(&law, at(0));
    bucket.correct(at(0), tiny, 301);
    assert_eq!(bucket.level(&law, at(0)), level - 300);
}

#[test]
fn time_that_has_passed_counts_by_the_law_of_that_time() {
    let (slow, fast) = (Law::per_second(1, 10_000, 0), Law::per_second(1000, 10_000, 0));
    let mut bucket = Bucket::default();
    admit(&mut bucket, &slow, at(0), 10_000).unwrap();
    assert_eq!(bucket.level(&fast, at(100_000)), 100);
    // And what an old request settles does not bring the old law back.
    let charge = admit(&mut bucket, &fast, at(100_000), 100).unwrap();
    bucket.level(&slow, at(100_000));
    bucket.correct(at(120_000), charge, 100);
    assert_eq!(bucket.level(&slow, at(120_000)), 20);
    // A larger burst is there for what an old request exceeds by.
    let small = Law::per_second(0, 1000, 0);
    let mut bucket = Bucket::default();
    let charge = admit(&mut bucket, &small, at(0), 500).unwrap();
    let large = Law { burst: 10_000, ..small };
    assert_eq!(bucket.level(&large, at(0)), 9500);
    assert_eq!(bucket.correct(at(0), charge, 2000), Corrected::default());
    assert_eq!(bucket.level(&large, at(0)), 8000);
}

#[test]
fn what_can_never_pass_is_told() {
    let law = Law::per_second(100, 1000, 0);
    let mut bucket = Bucket::default();
    assert_eq!(bucket.check(&law, at(0), 1001), Err(Short::Never));
    let closed = Law::per_second(0, 1000, 0);
    admit(&mut bucket, &closed, at(0), 1000).unwrap();
    assert_eq!(bucket.check(&closed, at(1 << 40), 1), Err(Short::Never));
}

#[test]
fn a_look_costs_no_refill() {
    // A unit flows in each second; we look twice as often.
    let period = Span::from_nanos(1_000_000_000_000_000_000);
    let law = Law { tokens: 1, period, burst: 1, floor: 0 };
    let mut bucket = Bucket::default();
    admit(&mut bucket, &law, at(0), 1).unwrap();
    let mut wait = |millis| match bucket.check(&law, at(millis), 1) {
        Err(Short::Until(span)) => span.as_nanos(),
        other => panic!("{other:?}"),
    };
    let first = wait(0);
    for half in 1..20 {
        wait(half * 500);
    }
    assert_eq!(wait(10_000), first - 10_000_000_000);
}

/// One step of a schedule.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Admit(u64),
    /// Ends the open request at this place, with so many thousandths of
    /// what it reserved.
    End(usize, u64),
}

fn schedule(most: u64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0_u64..4000).prop_map(Step::Wait),
        2 => (0_u64..100).prop_map(Step::Wait),
        2 => (1_u64..=1000).prop_map(Step::Admit),
        2 => (1_u64..=50).prop_map(Step::Admit),
        4 => (0_usize..8, 0_u64..=most).prop_map(|(place, share)| Step::End(place, share)),
    ];
    prop::collection::vec(step, 1..200)
}

/// What was charged, when, and what it was corrected to.
#[derive(Debug)]
struct Entry {
    at: u64,
    charge: Charge,
    reserved: u64,
    now: u64,
    open: bool,
}

/// The most that the law is exceeded by, in units, over all windows that
/// end now; and what the excesses of ended requests in them excuse.
fn excess(law: &Law, entries: &[Entry], now: u64, more: u64) -> i128 {
    let units = |tokens: u64| i128::from(tokens) * i128::from(UNIT);
    let (mut charged, mut excused, mut worst) = (units(more), 0, i128::MIN);
    for entry in entries.iter().rev() {
        charged += units(entry.now);
        excused += units(entry.now.saturating_sub(entry.reserved));
        let refill = i128::from(law.refill(at(now).since(at(entry.at))));
        worst = worst.max(charged - excused - units(law.burst) - refill);
    }
    worst.max(units(more) - units(law.burst))
}

fn run(law: &Law, steps: &[Step], exact: bool) -> Result<(), TestCaseError> {
    let (mut bucket, mut entries, mut now, mut joined) =
        (Bucket::default(), Vec::<Entry>::new(), 0, false);
    for step in steps {
        match *step {
            Step::Wait(millis) => now += millis,
            Step::Admit(tokens) => {
                let admitted = admit(&mut bucket, law, at(now), tokens);
                if let Ok(charge) = admitted {
                    prop_assert!(excess(law, &entries, now, tokens) <= 0, "{entries:?} {tokens}");
                    entries.push(Entry {
                        at: now,
                        charge,
                        reserved: tokens,
                        now: tokens,
                        open: true,
                    });
                } else if exact && !joined {
                    // Rounding may cost a unit for each refill.
                    let lacks = excess(law, &entries, now, tokens);
                    prop_assert!(lacks > -200, "refused in vain by {lacks}: {entries:?}");
                }
            }
            Step::End(place, share) => {
                let mut open = entries.iter_mut().filter(|entry| entry.open);
                if let Some(entry) = open.nth(place) {
                    entry.open = false;
                    entry.now = entry.reserved * share / 1000;
                    bucket.correct(at(now), entry.charge, entry.now);
                }
            }
        }
        joined |= bucket.starts.len() == STARTS_MAX;
        prop_assert!(bucket.starts.len() <= STARTS_MAX);
        prop_assert!(bucket.starts.windows(2).all(|p| p[0].charged > p[1].charged));
        let level = bucket.level(law, at(now));
        prop_assert!(level <= law.burst.cast_signed() && level >= -law.floor.cast_signed());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Promise A: with exact reserves or refunds the law holds for every
    /// window at every admission, and nothing is refused that it allows.
    #[test]
    fn the_law_holds_and_refuses_nothing_in_vain(
        steps in schedule(1000), rate in 1_u64..400, burst in 500_u64..3000,
    ) {
        run(&Law::per_second(rate, burst, 0), &steps, true)?;
    }

    /// Who stays 1 % under the rate is never refused, whatever the sizes, if
    /// each request is within the burst and comes when the rate has made up
    /// for the one before.
    #[test]
    fn a_steady_load_below_the_rate_is_never_refused(
        sizes in prop::collection::vec(1_u64..1000, 1..200), rate in 1_u64..5000,
        late in prop::collection::vec(0_u64..3, 200), more in 0_u64..2000,
    ) {
        let law = Law::per_second(rate, 1000 + more, 0);
        let (mut bucket, mut now, mut open) = (Bucket::default(), 0, Vec::new());
        for (size, late) in sizes.iter().zip(late) {
            let charge = admit(&mut bucket, &law, Instant::from_nanos(now), *size);
            prop_assert!(charge.is_ok(), "{charge:?} at {now}");
            open.push((charge.unwrap(), *size));
            // A hundredth more time than the rate takes, and some later.
            now += (size * 1_010_000_000).div_ceil(rate) + late * 1_000_000;
            if let (true, Some((charge, size))) = (size % 3 == 0, open.pop()) {
                bucket.correct(Instant::from_nanos(now), charge, size);
            }
        }
    }

    /// Promise B: requests that use more than they reserved exceed the law
    /// by that at the most.
    #[test]
    fn excesses_are_all_that_exceeds_the_law(
        steps in schedule(2500), rate in 1_u64..400, burst in 500_u64..3000,
        floor in 0_u64..3000,
    ) {
        run(&Law::per_second(rate, burst, floor), &steps, false)?;
    }
}
