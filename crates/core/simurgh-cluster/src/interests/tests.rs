//! Interests against a model that remembers everything and counts anew each time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

const LINGER: u64 = 20 * SECOND;
/// Lingering has certainly ended after `LINGER_MAX`, and has not before `LINGER_MIN`.
const LINGER_MAX: u64 = LINGER / 4 * 5 + TICK_NS;
const LINGER_MIN: u64 = LINGER / 4 * 3;

/// Names that share buckets: eight in each of five.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut names = BTreeMap::<Bucket, Vec<String>>::new();
    for number in 0.. {
        let name = format!("room:{number}");
        let bucket = Bucket::of(&name);
        if bucket.number().is_multiple_of(819) && bucket.number() > 0 {
            let all = names.entry(bucket).or_default();
            if all.len() < 8 {
                all.push(name);
            }
        }
        if names.len() == 5 && names.values().all(|it| it.len() == 8) {
            break;
        }
    }
    names.into_values().flatten().collect()
});

#[derive(Default)]
struct Subscribed(BTreeSet<Interest>);

impl Subscribed {
    /// Applies a step, each change of which must change something.
    fn fold(&mut self, step: &InterestChanges) {
        assert!(!step.is_empty(), "a step without a change");
        for (interest, wanted) in step {
            let is_change = match wanted {
                Wanted::Yes => self.0.insert(interest.clone()),
                Wanted::No => self.0.remove(interest),
            };
            assert!(is_change, "{interest:?} {wanted:?} was so before");
        }
    }

    fn bringing(&self, space: Space, topic: &str) -> usize {
        let exact = Interest::Exact(space, topic.into());
        let whole = Interest::Whole(space, Bucket::of(topic));
        [exact, whole].iter().filter(|it| self.0.contains(it)).count()
    }
}

#[derive(Clone, Debug)]
enum Call {
    Begin(usize, u16),
    End(usize, u16),
    Expect(usize),
    BeginPresence(usize),
    EndPresence(usize),
    Wait(u64),
    Take,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let shard = || prop_oneof![4 => 0..3_u16, 1 => 60..70_u16];
    let call = prop_oneof![
        6 => (0..40_usize, shard()).prop_map(|(topic, shard)| Call::Begin(topic, shard)),
        5 => (0..40_usize, shard()).prop_map(|(topic, shard)| Call::End(topic, shard)),
        2 => (0..40_usize).prop_map(Call::Expect),
        2 => (0..40_usize).prop_map(Call::BeginPresence),
        2 => (0..40_usize).prop_map(Call::EndPresence),
        3 => (0..30 * SECOND).prop_map(Call::Wait),
        3 => Just(Call::Take),
    ];
    prop::collection::vec(call, 0..120)
}

#[derive(Clone, Default)]
struct Topic {
    shards: BTreeSet<u16>,
    has_presence: bool,
    idle_ns: [Option<u64>; 2],
}

impl Topic {
    fn is_needed(&self, space: usize) -> bool {
        [!self.shards.is_empty(), self.has_presence][space]
    }

    /// Whether it must be subscribed to, and whether it must not.
    fn must(&self, space: usize, now_ns: u64) -> (bool, bool) {
        match self.idle_ns[space] {
            _ if self.is_needed(space) => (true, false),
            None => (false, true),
            Some(since) => (now_ns < since + LINGER_MIN, now_ns >= since + LINGER_MAX),
        }
    }
}

#[derive(Default)]
struct Model(BTreeMap<usize, Topic>);

impl Model {
    fn call(&mut self, call: &Call, now_ns: u64) {
        let at = match call {
            Call::Begin(topic, _) | Call::End(topic, _) => *topic,
            Call::BeginPresence(topic) | Call::EndPresence(topic) | Call::Expect(topic) => *topic,
            Call::Wait(_) | Call::Take => return,
        };
        let topic = self.0.entry(at).or_default();
        let before = [0, 1].map(|space| topic.is_needed(space));
        match call {
            Call::Begin(_, shard) => _ = topic.shards.insert(*shard),
            Call::End(_, shard) => _ = topic.shards.remove(shard),
            Call::BeginPresence(_) => topic.has_presence = true,
            Call::EndPresence(_) => topic.has_presence = false,
            // As if a member had just left.
            Call::Expect(_) => topic.idle_ns[BROADCAST] = Some(now_ns),
            Call::Wait(_) | Call::Take => {}
        }
        for (space, was_needed) in before.into_iter().enumerate() {
            if was_needed && !topic.is_needed(space) {
                topic.idle_ns[space] = Some(now_ns);
            }
        }
    }
}

fn check(interests: &Interests, model: &Model, now_ns: u64, exact_max: usize) {
    let wanted = Subscribed(interests.wanted().collect());
    let none = Topic::default();
    for (at, name) in NAMES.iter().enumerate() {
        let topic = model.0.get(&at).unwrap_or(&none);
        for (place, space) in SPACES.into_iter().enumerate() {
            let (must, must_not) = topic.must(place, now_ns);
            let covering = interests.covering(space, name);
            assert!(covering.is_some() || !must, "{name} is not heard in {space:?}");
            assert!(covering.is_none() || !must_not, "{name} is still heard in {space:?}");
            if let Some(covering) = covering {
                assert_eq!(wanted.bringing(space, name), 1);
                assert!(wanted.0.contains(&covering));
                assert!(interests.topics_of(&covering).any(|it| it == name));
            } else {
                let exact = Interest::Exact(space, name.as_str().into());
                assert!(!wanted.0.contains(&exact));
            }
        }
        let shards = interests.shards(name).map(Iterator::collect::<Vec<u16>>);
        let modelled: Vec<u16> = topic.shards.iter().copied().collect();
        assert_eq!(shards.unwrap_or_default(), modelled);
    }
    let is_exact = |it: &&Interest| matches!(it, Interest::Exact(..));
    let exact = wanted.0.iter().filter(is_exact).count();
    assert!(exact <= exact_max, "{exact} single topics");
    let counts = interests.counts();
    assert_eq!((counts.exact, counts.whole), (exact, wanted.0.len() - exact));
    // Each whole bucket has a topic that is subscribed to.
    let whole = wanted.0.iter().filter(|it| !is_exact(it));
    assert!(whole.into_iter().all(|it| interests.topics_of(it).next().is_some()));
}

fn run(calls: &[Call], config: &InterestsConfig, seed: u64) {
    let mut interests = Interests::new(config, seed);
    let mut model = Model::default();
    let mut told = Subscribed::default();
    let mut now_ns = 0;
    let take = |interests: &mut Interests, told: &mut Subscribed| {
        let before = told.0.len();
        let steps = interests.take_changes();
        let after = interests.wanted().count();
        for step in &steps {
            told.fold(step);
            assert!(told.0.len() <= before.max(after), "more than before and after");
        }
        assert_eq!(told.0, interests.wanted().collect());
        assert!(interests.take_changes().is_empty());
    };
    for call in calls {
        model.call(call, now_ns);
        match call {
            Call::Begin(topic, shard) => interests.begin(&NAMES[*topic], *shard, now_ns),
            Call::End(topic, shard) => interests.end(&NAMES[*topic], *shard, now_ns),
            Call::BeginPresence(topic) => interests.begin_presence(&NAMES[*topic], now_ns),
            Call::EndPresence(topic) => interests.end_presence(&NAMES[*topic], now_ns),
            Call::Expect(topic) => interests.expect(&NAMES[*topic], now_ns),
            Call::Wait(more) => {
                now_ns += more;
                interests.tick(now_ns);
                assert!(interests.next_ns().is_none_or(|it| it > now_ns));
            }
            Call::Take => take(&mut interests, &mut told),
        }
        interests.tick(now_ns);
        check(&interests, &model, now_ns, config.exact_max);
    }
    for name in NAMES.iter() {
        (0..70).for_each(|shard| interests.end(name, shard, now_ns));
        interests.end_presence(name, now_ns);
    }
    now_ns += LINGER_MAX;
    interests.tick(now_ns);
    take(&mut interests, &mut told);
    assert!(told.0.is_empty());
    assert_eq!(interests.counts(), InterestCounts::default());
    assert_eq!(interests.next_ns(), None);
}

proptest! {
    #[test]
    fn only_topics_with_members_are_received_and_exactly_once(
        calls in calls(),
        exact_max in 0..25_usize,
        whole_for in prop::sample::select(vec![0, 5 * SECOND, 60 * SECOND]),
        seed: u64,
    ) {
        let config = InterestsConfig { exact_max, linger_ns: LINGER, whole_for_ns: whole_for };
        run(&calls, &config, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]

    #[test]
    fn hundred_thousand_topics_need_at_most_8192_subscriptions(
        seed: u64,
        presence_percent in prop::sample::select(vec![0, 10, 100_u64]),
        taken_each in prop::sample::select(vec![1_000, 33_333, 100_000]),
    ) {
        let mut chance = SplitMix64::new(seed);
        let mut interests = Interests::new(&InterestsConfig::default(), seed);
        let mut told = Subscribed::default();
        for number in 0..100_000_u64 {
            let topic = format!("topic:{seed}:{number}");
            interests.begin(&topic, (number % 8) as u16, number);
            if chance.within(&(0..=99)) < presence_percent {
                interests.begin_presence(&topic, number);
            }
            let counts = interests.counts();
            prop_assert!(counts.exact <= 4096 && counts.exact + counts.whole <= 8192);
            if (number + 1).is_multiple_of(taken_each) || number == 99_999 {
                for step in interests.take_changes() {
                    told.fold(&step);
                    prop_assert!(told.0.len() <= 8192, "{}", told.0.len());
                }
            }
        }
        prop_assert_eq!(&told.0, &interests.wanted().collect::<BTreeSet<_>>());
        for number in 0..100_000_u64 {
            let topic = format!("topic:{seed}:{number}");
            prop_assert_eq!(told.bringing(Space::Broadcast, &topic), 1);
            interests.end(&topic, (number % 8) as u16, 0);
            interests.end_presence(&topic, 0);
        }
        let mut ticks = 0;
        while let Some(at) = interests.next_ns() {
            interests.tick(at);
            ticks += 1;
            prop_assert!(at <= LINGER_MAX && ticks < 1000, "{} ticks, at {}", ticks, at);
        }
        interests.take_changes().iter().for_each(|step| told.fold(step));
        prop_assert!(told.0.is_empty());
    }
}

fn small(exact_max: usize) -> Interests {
    let config = InterestsConfig { exact_max, linger_ns: LINGER, whole_for_ns: 60 * SECOND };
    Interests::new(&config, 1)
}

fn exact(topic: &str) -> Interest {
    Interest::Exact(Space::Broadcast, topic.into())
}

fn changes_at(interests: &mut Interests, now_ns: u64) -> Vec<InterestChanges> {
    interests.tick(now_ns);
    interests.take_changes()
}

#[test]
fn page_reload_changes_no_subscription() {
    let mut interests = small(100);
    interests.begin("room:1", 3, 0);
    assert_eq!(interests.take_changes(), [[(exact("room:1"), Wanted::Yes)]]);
    interests.end("room:1", 3, SECOND);
    assert!(interests.shards("room:1").is_none());
    interests.tick(10 * SECOND);
    interests.begin("room:1", 2, 10 * SECOND);
    assert!(changes_at(&mut interests, 100 * SECOND).is_empty());
    assert!(interests.shards("room:1").unwrap().eq([2]));
    interests.end("room:1", 2, 100 * SECOND);
    interests.tick(100 * SECOND + LINGER_MAX);
    assert_eq!(interests.take_changes(), [[(exact("room:1"), Wanted::No)]]);
}

#[test]
fn topic_that_ends_before_being_subscribed_causes_no_change() {
    let mut interests = small(100);
    interests.begin("room:1", 0, 0);
    interests.end("room:1", 0, 0);
    assert!(changes_at(&mut interests, LINGER_MAX).is_empty());
    assert_eq!(interests.counts().topics, 0);
}

#[test]
fn bucket_becomes_whole_in_one_step_and_back_in_one_step() {
    let mut interests = small(4);
    let names: Vec<&str> = [0, 1, 2, 8, 16].map(|at| NAMES[at].as_str()).to_vec();
    for name in &names[..4] {
        interests.begin(name, 0, 0);
    }
    assert_eq!(interests.take_changes().len(), 1);
    interests.begin(names[4], 0, 0);
    let whole = Interest::Whole(Space::Broadcast, Bucket::of(names[0]));
    let mut steps = interests.take_changes();
    steps[0].sort_by_key(|(interest, _)| interest.clone());
    let mut turned: InterestChanges = names[..3].iter().map(|it| (exact(it), Wanted::No)).collect();
    turned.push((whole.clone(), Wanted::Yes));
    turned.sort_by_key(|(interest, _)| interest.clone());
    assert_eq!(steps, [turned, vec![(exact(names[4]), Wanted::Yes)]]);
    assert_eq!(interests.covering(Space::Broadcast, names[1]), Some(whole.clone()));
    assert_eq!(interests.covering(Space::Presence, names[1]), None);

    for name in [names[1], names[2], names[3]] {
        interests.end(name, 0, SECOND);
    }
    interests.tick(SECOND + LINGER_MAX);
    assert_eq!(interests.take_changes(), [vec![(exact(names[3]), Wanted::No)]]);
    let due = interests.next_ns().unwrap();
    assert_eq!(due, SECOND + LINGER_MAX + 60 * SECOND);
    assert!(changes_at(&mut interests, due - 1).is_empty());
    interests.tick(due);
    let back = vec![(whole, Wanted::No), (exact(names[0]), Wanted::Yes)];
    assert_eq!(interests.take_changes(), [back]);
}

#[test]
fn steps_that_reduce_subscriptions_come_first() {
    let mut interests = small(10);
    let begin = |interests: &mut Interests, all: std::ops::Range<usize>| {
        all.for_each(|at| interests.begin(&NAMES[at], 0, 0));
    };
    begin(&mut interests, 8..12);
    interests.take_changes();
    // The third bucket becomes whole first; of the second the adapter has four topics.
    begin(&mut interests, 16..23);
    begin(&mut interests, 0..3);
    begin(&mut interests, 24..27);
    begin(&mut interests, 32..33);
    (0..3).chain(24..33).for_each(|at| interests.end(&NAMES[at], 0, 0));
    interests.tick(LINGER_MAX);
    let steps = interests.take_changes();
    assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [5, 1]);
    let third = Interest::Whole(Space::Broadcast, Bucket::of(&NAMES[16]));
    assert_eq!(steps[1], [(third, Wanted::Yes)]);
}

#[test]
fn bucket_stays_whole_while_half_of_the_exact_limit_is_used() {
    let mut interests = small(4);
    for at in [0, 1, 2, 8, 16] {
        interests.begin(&NAMES[at], 0, 0);
    }
    interests.end(&NAMES[0], 0, 0);
    interests.end(&NAMES[1], 0, 0);
    interests.tick(LINGER_MAX);
    assert_eq!((interests.counts().exact, interests.counts().whole), (2, 1));
    assert_eq!(interests.next_ns(), None);
    interests.tick(1000 * SECOND);
    assert_eq!(interests.counts().whole, 1);
    interests.end(&NAMES[8], 0, 1000 * SECOND);
    interests.tick(1000 * SECOND + LINGER_MAX);
    let due = interests.next_ns().unwrap();
    assert_eq!(due, 1060 * SECOND + LINGER_MAX);
    interests.tick(due);
    assert_eq!((interests.counts().exact, interests.counts().whole), (2, 0));
}

#[test]
fn whole_bucket_covers_presence_only_while_presence_is_used() {
    let mut interests = small(2);
    for at in 0..4 {
        interests.begin(&NAMES[at], 0, 0);
    }
    assert_eq!(interests.counts().whole, 1);
    interests.take_changes();
    interests.begin_presence(&NAMES[1], 0);
    let whole = Interest::Whole(Space::Presence, Bucket::of(&NAMES[1]));
    assert_eq!(interests.take_changes(), [[(whole.clone(), Wanted::Yes)]]);
    assert!(interests.topics_of(&whole).eq([NAMES[1].as_str()]));
    interests.end_presence(&NAMES[1], 0);
    assert_eq!(changes_at(&mut interests, LINGER_MAX), [[(whole, Wanted::No)]]);
}

#[test]
fn all_topics_in_one_bucket_are_one_subscription() {
    let mut interests = Interests::new(&InterestsConfig::default(), 1);
    let same = Bucket::of("0");
    let names: Vec<String> =
        (0..).map(|it: u32| it.to_string()).filter(|it| Bucket::of(it) == same).take(600).collect();
    let mut interests_small = small(500);
    for name in &names {
        interests.begin(name, 0, 0);
        interests_small.begin(name, 0, 0);
    }
    assert_eq!((interests.counts().exact, interests.counts().whole), (600, 0));
    let counts = interests_small.counts();
    assert_eq!((counts.exact, counts.whole, counts.topics), (0, 1, 600));
    let whole = Interest::Whole(Space::Broadcast, same);
    assert_eq!(interests_small.take_changes(), [[(whole, Wanted::Yes)]]);
}

#[test]
fn ends_of_linger_periods_are_spread_over_time() {
    let mut interests = Interests::new(&InterestsConfig::default(), 9);
    for number in 0..1000_u32 {
        interests.begin(&number.to_string(), 0, 0);
    }
    (0..1000_u32).for_each(|number| interests.end(&number.to_string(), 0, 0));
    let mut by_second = [0; 30];
    while let Some(at) = interests.next_ns() {
        let before = interests.counts().topics;
        interests.tick(at);
        interests.take_changes();
        by_second[(at / SECOND) as usize] += before - interests.counts().topics;
    }
    assert_eq!(by_second[15..=25].iter().sum::<usize>(), 1000);
    assert!(by_second[15..25].iter().all(|it| (50..200).contains(it)), "{by_second:?}");
}

#[test]
fn topic_with_too_long_a_name_is_not_subscribed() {
    let mut interests = small(10);
    let name = "a".repeat(TOPIC_BYTES_MAX + 1);
    interests.begin(&name, 0, 0);
    interests.begin_presence(&name, 0);
    assert_eq!(interests.counts(), InterestCounts::default());
    assert!(interests.shards(&name).is_none());
    interests.begin(&name[1..], 0, 0);
    assert_eq!(interests.counts().topics, 1);
}

#[test]
fn ten_worst_buckets_are_reported() {
    let mut interests = small(10);
    assert!(interests.worst_buckets().is_empty());
    let of = |number: usize| {
        (0..).map(|it: u32| it.to_string()).find(|it| Bucket::of(it).number() == number).unwrap()
    };
    for bucket in 1..=12 {
        let topic = of(bucket * 7);
        (0..bucket).for_each(|_| interests.count_unwanted(&topic));
    }
    let worst = interests.worst_buckets();
    let expected: Vec<_> = (3..=12).rev().map(|it| (Bucket::new(it * 7), u64::from(it))).collect();
    assert_eq!(worst, expected);
    assert_eq!(interests.unwanted(), (1..=12).sum::<u64>());
}
