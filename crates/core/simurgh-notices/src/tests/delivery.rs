//! Batches, refusals, dead letters.

use super::*;
use crate::delivery::Delivery;

/// One partition's notices on their way to its hooks.
struct Way {
    delivery: Delivery,
    log: Vec<(u64, Arc<Notice>)>,
    n: u64,
    ms: u64,
}

impl Way {
    fn new(settings: Settings) -> Self {
        let mut delivery = Delivery::new(Arc::new(settings));
        for hook in ["app", "away"] {
            delivery.read_record(Record::Delivered { hook: hook.into(), n: 0 }, 0);
        }
        delivery.activate(0);
        Self { delivery, log: Vec::new(), n: 0, ms: 0 }
    }

    fn notice(&mut self, count: u64) {
        for _ in 0..count {
            self.n += 1;
            let key = Key::member("rooms:7", &self.n.to_string());
            let id = simurgh_presence::PhxRef::from_bytes([self.n as u8; 12]);
            let stay = Stay { id, key, since_ms: at(self.ms).unix_ms };
            let notice = Arc::new(Notice { n: self.n, stay, node: "n1".into(), end: None });
            self.delivery.read(&notice, self.n, at(self.ms).ns);
            self.delivery.trim();
            self.log.push((self.n, notice));
        }
    }

    fn next(&mut self) -> Option<Arc<Batch>> {
        self.next_of(0)
    }

    fn next_of(&mut self, hook: usize) -> Option<Arc<Batch>> {
        self.delivery.next_batch(hook, (Epoch::from_seed(3), 3), at(self.ms))
    }

    fn finish(&mut self, batch: &Arc<Batch>, outcome: Outcome) {
        self.finish_of(0, batch, outcome);
    }

    fn finish_of(&mut self, hook: usize, batch: &Arc<Batch>, outcome: Outcome) {
        self.delivery.finished(hook, batch, &outcome, at(self.ms));
        self.delivery.trim();
    }

    /// A hook accepts everything until nothing is left, of the log, too. Returns the last number.
    fn accept_all(&mut self, hook: usize) -> u64 {
        let mut last = 0;
        loop {
            while let Some(batch) = self.next_of(hook) {
                assert!(batch.notices.iter().all(|notice| notice.n > last));
                last = batch.n;
                self.finish_of(hook, &batch, Outcome::Accepted);
            }
            let Some(behind) = self.delivery.next_read_again() else { return last };
            let left = self.log.iter().filter(|(at, _)| *at > behind);
            let some: Vec<_> = left.take(7).cloned().collect();
            let to = some.last().map_or(0, |(at, _)| *at);
            self.delivery.read_again(&some, to, to == self.n);
        }
    }
}

fn of_hook(hook: HookRule) -> Settings {
    Settings { hooks: vec![hook], ..settings() }
}

fn refused() -> Outcome {
    Outcome::Refused(422, "no".into())
}

fn failed() -> Outcome {
    Outcome::Failed(503, "".into())
}

#[test]
fn b53_one_batch_of_a_partition_is_in_flight_in_order() {
    let mut way = Way::new(settings());
    way.notice(250);
    let numbers = |batch: &Batch| (batch.notices[0].n, batch.n);
    let first = way.next().unwrap();
    assert_eq!((numbers(&first), way.next()), ((1, 100), None));
    way.finish(&first, Outcome::Accepted);
    let second = way.next().unwrap();
    assert_eq!(numbers(&second), (101, 200));
    way.finish(&second, Outcome::Accepted);
    assert_eq!(way.next(), None, "the batch is not full, and its time is not over");
    assert_eq!(way.delivery.next_ns(0), Some(at(200).ns));
    way.ms = 200;
    assert_eq!(numbers(&way.next().unwrap()), (201, 250));
}

#[test]
fn b54_batch_is_repeated_unchanged() {
    let mut way = Way::new(settings());
    way.notice(2);
    way.ms = 200;
    let batch = way.next().unwrap();
    assert_eq!(&*batch.id, "b-a00003-3-1-2");
    way.finish(&batch, failed());
    way.notice(10);
    way.ms = 500;
    assert_eq!(way.next(), Some(Arc::clone(&batch)));
    way.finish(&batch, Outcome::Accepted);
    let mut one = Way::new(of_hook(HookRule { batch: 1, ..HookRule::new("app", ALL) }));
    one.notice(1);
    let single = one.next().unwrap();
    assert_eq!(*single.id, *single.notices[0].to_string());
}

#[test]
fn b55_refused_batch_is_split_and_a_notice_refused_ten_times_is_dead() {
    let mut way = Way::new(settings());
    way.notice(3);
    way.ms = 200;
    let batch = way.next().unwrap();
    way.finish(&batch, refused());
    let one = way.next().unwrap();
    assert_eq!((one.notices.len(), one.n), (1, 1));
    way.finish(&one, Outcome::Accepted);
    for attempt in 0..10 {
        let two = way.next().unwrap();
        assert_eq!(two.n, 2, "attempt {attempt}");
        way.finish(&two, refused());
        way.ms += 1_000;
    }
    let three = way.next().unwrap();
    assert_eq!(three.n, 3);
    way.finish(&three, Outcome::Accepted);
    let Some(Record::Dead { letter, .. }) = way.delivery.records.front().cloned() else { panic!() };
    assert_eq!((letter.notice.n, letter.status, &*letter.body), (2, 422, "no"));
}

#[test]
fn b55_notice_that_fails_for_too_long_is_dead() {
    let mut way = Way::new(of_hook(HookRule { retry_for_ms: 60_000, ..HookRule::new("app", ALL) }));
    way.notice(2);
    way.ms = 30_000;
    way.notice(1);
    way.ms = 59_000;
    let batch = way.next().unwrap();
    way.finish(&batch, failed());
    assert!(way.delivery.records.is_empty());
    way.ms = 61_000;
    let again = way.next().unwrap();
    way.finish(&again, failed());
    assert_eq!(way.delivery.records.len(), 2);
    assert_eq!(way.next().unwrap().notices[0].n, 3, "the younger one goes on");
}

#[test]
fn b56_dead_letters_are_bounded_replayed_and_deleted() {
    let mut way = Way::new(Settings { dead_max: 2, ..settings() });
    for n in 1..=3_u64 {
        let id = simurgh_presence::PhxRef::from_bytes([n as u8; 12]);
        let stay = Stay { id, key: Key::member("a", "b"), since_ms: 0 };
        let notice = Arc::new(Notice { n, stay, node: "n1".into(), end: None });
        let letter = DeadLetter { notice, status: 500, body: "".into() };
        way.delivery.read_record(Record::Dead { hook: "app".into(), letter }, n);
    }
    let ids: Vec<String> =
        way.delivery.queues[0].dead.iter().map(|it| it.1.notice.to_string()).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(way.delivery.take_dead(0, &[&ids[0], "unknown"], true), 1);
    assert_eq!(way.delivery.take_dead(0, &[&ids[1]], false), 1);
    let batch = way.next().unwrap();
    assert_eq!(*batch.id, *ids[0]);
    way.finish(&batch, Outcome::Accepted);
    for record in std::mem::take(&mut way.delivery.records) {
        way.delivery.read_record(record, 9);
    }
    assert!(way.delivery.queues[0].dead.is_empty());
}

#[test]
fn b50_without_a_durable_log_the_oldest_notices_are_dropped_and_the_hook_is_reset() {
    let mut way = Way::new(Settings { is_durable: false, window_bytes: 2_000, ..settings() });
    way.notice(50);
    way.delivery.trim();
    assert!(way.delivery.waiting() < 20);
    let reset = way.next().unwrap();
    assert_eq!((reset.reset, reset.notices.len()), (Some(Reset::Overflow), 0));
    way.finish(&reset, Outcome::Accepted);
    way.ms = 300;
    assert!(way.next().unwrap().notices[0].n > 1);
}

fn two_hooks(is_durable: bool) -> Settings {
    let hooks = ["app", "away"].map(|name| HookRule { batch: 5, ..HookRule::new(name, ALL) });
    Settings { hooks: hooks.into(), window_bytes: 4_000, is_durable, ..settings() }
}

#[test]
fn b57_hook_that_accepts_nothing_delays_no_other_and_gets_all_later() {
    let mut way = Way::new(two_hooks(true));
    way.notice(1_000);
    let held = way.next_of(1).unwrap();
    way.finish_of(1, &held, failed());
    way.ms = 300;
    assert_eq!(way.accept_all(0), 1_000);
    way.notice(500);
    way.ms = 600;
    assert_eq!(way.accept_all(0), 1_500);
    assert!(way.delivery.waiting() < 20, "{} in memory", way.delivery.waiting());
    assert_eq!(way.delivery.first_at(), Some(1), "so that the log keeps what it waits for");
    let again = way.next_of(1).unwrap();
    assert_eq!(again, held, "B54");
    way.finish_of(1, &again, Outcome::Accepted);
    assert_eq!(way.accept_all(1), 1_500);
    assert_eq!(way.delivery.first_at(), None);
}

#[test]
fn b50_only_the_hook_that_accepts_nothing_is_reset() {
    let mut way = Way::new(two_hooks(false));
    way.notice(5);
    let held = way.next_of(1).unwrap();
    for _ in 0..100 {
        way.notice(5);
        let batch = way.next().unwrap();
        assert_eq!((batch.reset, batch.notices.len()), (None, 5));
        way.finish(&batch, Outcome::Accepted);
    }
    assert_eq!(way.next_of(1), None, "B53: a batch is in flight");
    way.finish_of(1, &held, failed());
    let reset = way.next_of(1).unwrap();
    assert_eq!(reset.reset, Some(Reset::Overflow));
}

#[test]
fn b56_replay_that_is_refused_again_delays_nothing() {
    let mut way = Way::new(settings());
    way.notice(1);
    way.ms = 200;
    for _ in 0..10 {
        let batch = way.next().unwrap();
        way.finish(&batch, refused());
        way.ms += 1_000;
    }
    for record in std::mem::take(&mut way.delivery.records) {
        way.delivery.read_record(record, 9);
    }
    let id = way.delivery.queues[0].dead[0].1.notice.to_string();
    assert_eq!(way.delivery.take_dead(0, &[&id], true), 1);
    way.notice(1);
    way.ms += 200;
    let replay = way.next().unwrap();
    way.finish(&replay, refused());
    assert_eq!(way.next().map(|batch| batch.n), Some(2));
    assert_eq!(way.delivery.queues[0].dead.len(), 1, "it is a dead letter still");
}

#[test]
fn hook_gets_the_types_and_topics_that_it_wants() {
    let mut rule = HookRule::new("app", HookRule::bit(Kind::Member, false));
    rule.topics = vec![simurgh_proto::topic::Pattern::parse("rooms:*").unwrap()];
    let id = simurgh_presence::PhxRef::from_bytes([1; 12]);
    let notice = |key, end| {
        let stay = Stay { id, key, since_ms: 0 };
        Notice { n: 1, stay, node: "n1".into(), end }
    };
    assert!(rule.wants(&notice(Key::member("rooms:7", "zoe"), None)));
    assert!(!rule.wants(&notice(Key::member("rooms:7", "zoe"), Some((1, Reason::Left)))));
    assert!(!rule.wants(&notice(Key::member("halls:7", "zoe"), None)));
    assert!(!rule.wants(&notice(Key::member("rooms:7", ""), None)), "hidden");
    assert!(!rule.wants(&notice(Key::user_of("zoe"), None)));
}
