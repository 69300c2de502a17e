//! A bucket against a model that counts tokens one by one, and at the ends of the clock.

use proptest::prelude::*;

use super::*;

fn second() -> u64 {
    1_000_000_000
}

/// Takes one token at a time, `tries` times. Returns how many it got.
fn taken(bucket: &mut Bucket, rate: &Rate, at_ns: u64, tries: u32) -> u32 {
    let mut count = 0;
    for _ in 0..tries {
        if let Ok(less) = bucket.less(rate, 1, at_ns) {
            (*bucket, count) = (less, count + 1);
        }
    }
    count
}

#[test]
fn burst_allows_exactly_the_configured_count() {
    for count in [1, 3, 7, 10, 999] {
        let rate = Rate::per_second(count).unwrap();
        let mut bucket = Bucket::default();
        assert_eq!(taken(&mut bucket, &rate, 5 * second(), 3_000), count as u32, "{count}/s");
        let rate = rate.with_burst(2 * count).unwrap();
        let mut bucket = Bucket::default();
        assert_eq!(taken(&mut bucket, &rate, 0, 3_000), 2 * count as u32, "{count}/s");
    }
}

#[test]
fn caller_is_admitted_exactly_after_the_returned_wait() {
    let rate = Rate::every(3, Duration::from_secs(7)).unwrap().with_burst(5).unwrap();
    let mut bucket = Bucket::default();
    let mut now = 11;
    for cost in [4, 2, 5, 1, 1, 3] {
        if let Err(TooFewTokens { wait }) = bucket.less(&rate, cost, now) {
            let wait = nanoseconds(wait.expect("less than a burst"));
            assert!(bucket.less(&rate, cost, now + wait - 1).is_err());
            now += wait;
        }
        bucket = bucket.less(&rate, cost, now).expect("it has waited");
    }
    assert_eq!(bucket.less(&rate, 6, u64::MAX), Err(TooFewTokens { wait: None }));
}

#[test]
fn rate_limit_works_at_both_ends_of_the_clock_range() {
    let hour = Duration::from_secs(3600);
    let (least, most) = (Duration::from_millis(1), COUNT_MAX);
    for rate in [
        Rate::every(1, least),
        Rate::every(most, least),
        Rate::every(1, hour),
        Rate::every(most, hour),
    ] {
        let rate = rate.unwrap();
        for now in [0, 1, u64::MAX - 1, u64::MAX] {
            let empty = Bucket::default().less(&rate, rate.burst(), now).expect("it is full");
            assert!(empty.less(&rate, 1, now).is_err());
            assert!(empty.less(&rate, u64::MAX, now).is_err());
            // A clock that runs backwards adds no tokens, and removes none for good.
            assert!(empty.less(&rate, 1, 0).is_err());
            let later = now.saturating_add(nanoseconds(rate.fill_time()));
            let is_full = later > now && later < u64::MAX;
            assert_eq!(empty.less(&rate, rate.burst(), later).is_ok(), is_full);
        }
    }
}

#[test]
fn invalid_rates_are_rejected() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    assert_eq!(Rate::per_second(0), Err(RateError::Count));
    assert_eq!(Rate::per_second(COUNT_MAX + 1), Err(RateError::Count));
    for period in [Duration::ZERO, Duration::from_nanos(1), hour + second, Duration::MAX] {
        assert_eq!(Rate::every(1, period), Err(RateError::Period), "{period:?}");
    }
    let rate = Rate::every(1, second).unwrap();
    assert_eq!(rate.with_burst(0), Err(RateError::Count));
    assert_eq!(rate.with_burst(u64::MAX), Err(RateError::Count));
    assert_eq!(rate.with_burst(3601), Err(RateError::Fill));
    assert_eq!(rate.with_burst(3600).unwrap().fill_time(), hour);
}

fn any_rate() -> impl Strategy<Value = Rate> {
    let counts = prop_oneof![1_u64..20, 1_u64..1_000_000];
    (counts, 1_u64..120_000, 1_u64..2_000).prop_filter_map("an hour", |(count, ms, burst)| {
        Rate::every(count, Duration::from_millis(ms)).ok()?.with_burst(burst).ok()
    })
}

/// Steps of time in nanoseconds, and wanted tokens.
fn any_course() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![Just(0), 1_u64..1_000, 1_u64..2_000_000_000];
    prop::collection::vec((step, 0_u64..40), 1..200)
}

proptest! {
    /// The model keeps its tokens as an exact fraction.
    #[test]
    fn bucket_matches_a_model_with_exact_fractions(rate in any_rate(), start in 0_u64..u64::MAX / 2,
                                 course in any_course()) {
        let (period, full) = (u128::from(rate.period_ns), rate.capacity());
        let (mut bucket, mut level, mut now) = (Bucket::default(), full, start);
        for (step, cost) in course {
            now += step;
            level = full.min(level + u128::from(step) * u128::from(rate.count));
            let wanted = u128::from(cost) * period;
            let answer = bucket.less(&rate, cost, now);
            prop_assert_eq!(answer.is_ok(), wanted <= level, "{} at {}", cost, now);
            if let Ok(less) = answer {
                (bucket, level) = (less, level - wanted);
            }
        }
    }
}
