//! Rows of the contract on one node and on several, and random runs with faults.

mod back_end;
mod delivery;
mod parts;
mod random;
mod world;

use std::string::ToString;

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::key::MILLISECOND;
use crate::*;

pub(super) const ALL: u8 = 0b11_1111;

pub(super) fn at(ms: u64) -> Time {
    Time { ns: ms * MILLISECOND + 1, unix_ms: 1_000_000 + ms }
}

pub(super) fn settings() -> Settings {
    Settings { hooks: vec![HookRule::new("app", ALL)], is_durable: true, ..Settings::default() }
}

/// One node, whose log is in memory and whose hook accepts everything at once.
pub(super) struct Single {
    pub(super) node: Notices,
    pub(super) ms: u64,
    pub(super) log: Vec<(u8, u64, Entry)>,
    /// Type, key and reason of each accepted notice, in order.
    pub(super) accepted: Vec<(&'static str, String, Option<Reason>)>,
    pub(super) resets: usize,
    pub(super) is_broker_up: bool,
}

impl Single {
    pub(super) fn new(settings: Settings) -> Self {
        Self::restarted(settings, Vec::new(), 0)
    }

    /// A node with the log of an earlier one.
    pub(super) fn restarted(settings: Settings, log: Vec<(u8, u64, Entry)>, ms: u64) -> Self {
        let node = Notices::new((1, "n1"), settings, true, 7);
        let accepted = Vec::new();
        let mut one = Self { node, ms, log, accepted, resets: 0, is_broker_up: true };
        one.run(0);
        one
    }

    fn time(&self) -> Time {
        at(self.ms)
    }

    pub(super) fn begin(&mut self, key: Key) {
        self.node.begin(key, self.time());
        self.run(0);
    }

    pub(super) fn end(&mut self, key: &Key, reason: Reason) {
        self.node.end(key, reason, self.time());
        self.run(0);
    }

    /// Lets milliseconds pass, in steps of a tenth of a second.
    pub(super) fn run(&mut self, ms: u64) {
        let until = self.ms + ms;
        loop {
            let time = self.time();
            while let Some(output) = self.node.poll(time) {
                self.act(output, time);
            }
            if self.ms >= until {
                return;
            }
            self.ms = until.min(self.ms + 100);
        }
    }

    fn act(&mut self, output: Output, time: Time) {
        match output {
            Output::Follow(partition) => {
                let of_it = self.log.iter().filter(|it| it.0 == partition);
                let records = of_it.map(|(_, at, entry)| (*at, entry.clone())).collect();
                self.node.coordinator_mut(partition).unwrap().begun(
                    Epoch::from_seed(3),
                    records,
                    time,
                );
            }
            Output::Append(partition, _) if !self.is_broker_up => {
                self.node.coordinator_mut(partition).unwrap().append_failed(time);
            }
            Output::Append(partition, entries) => {
                for entry in entries {
                    let mut bytes = Vec::new();
                    entry.encode(&mut bytes);
                    assert_eq!(Entry::decode(&bytes), Ok(entry.clone()));
                    let at = self.log.last().map_or(0, |it| it.1) + 1;
                    self.log.push((partition, at, entry.clone()));
                    self.node.coordinator_mut(partition).unwrap().read(at, entry, time);
                }
            }
            Output::Purge(partition, before) => {
                self.log.retain(|it| it.0 != partition || it.1 >= before);
            }
            Output::ReadAgain(partition, behind) => {
                let left = self.log.iter().filter(|it| it.0 == partition && it.1 > behind);
                let records: Vec<_> = left.map(|(_, at, entry)| (*at, entry.clone())).collect();
                let some: Vec<_> = records.iter().take(5).cloned().collect();
                let is_all = some.len() == records.len();
                self.node.coordinator_mut(partition).unwrap().read_again(some, is_all);
            }
            Output::Deliver(partition, hook, batch) => {
                self.resets += usize::from(batch.reset.is_some());
                for notice in &batch.notices {
                    let key = &notice.stay.key;
                    let name = [key.topic(), key.user()].join("|");
                    self.accepted.push((notice.name(), name, notice.end.map(|end| end.1)));
                }
                self.node.finished((partition, hook, &batch), &Outcome::Accepted, None, 0, time);
            }
            Output::Report(..) | Output::Leave(_) => unreachable!("there is no other node"),
        }
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.accepted.iter().map(|it| it.0).collect()
    }
}

#[test]
fn b40_stay_of_a_user_with_two_tabs_starts_and_ends_once() {
    let (mut one, zoe) = (Single::new(settings()), Key::member("rooms:7", "zoe"));
    one.begin(zoe.clone());
    one.begin(zoe.clone());
    one.run(1_000);
    assert_eq!(one.names(), ["topic.occupied", "member.joined"]);
    one.end(&zoe, Reason::Left);
    one.run(20_000);
    assert_eq!(one.names().len(), 2);
    one.end(&zoe, Reason::Closed);
    one.run(4_900);
    assert_eq!(one.names().len(), 2, "B44: the grace is not over");
    one.run(1_000);
    assert_eq!(one.names()[2..], ["member.left", "topic.vacated"]);
    assert_eq!(one.accepted[2].2, Some(Reason::Closed));
    let user = Key::user_of("zoe");
    one.begin(user.clone());
    one.end(&user, Reason::Kicked);
    one.run(10_000);
    assert_eq!(one.names()[4..], ["user.connected", "user.disconnected"]);
}

#[test]
fn b41_start_and_end_have_the_id_of_their_stay() {
    let mut one = Single::new(settings());
    one.begin(Key::member("rooms:7", "zoe"));
    one.end(&Key::member("rooms:7", "zoe"), Reason::Left);
    one.run(10_000);
    let notices = one.log.iter().filter_map(|(_, _, entry)| match &entry.record {
        Record::Notice(notice) => Some(notice),
        _ => None,
    });
    let ids: Vec<(String, String)> =
        notices.map(|it| (it.to_string(), it.stay.id.to_string())).collect();
    let [occupied, joined, left, vacated] = &ids[..] else { panic!("{ids:?}") };
    assert_eq!(joined.0, [&joined.1, "-1"].concat());
    assert_eq!(left.0, [&joined.1, "-2"].concat());
    assert_eq!(occupied.0, ["t", &occupied.1, "-1"].concat());
    assert_eq!(vacated.0, ["t", &occupied.1, "-2"].concat());
    assert_eq!(joined.1.len(), 16);
}

#[test]
fn b44_reconnect_within_the_grace_is_not_reported() {
    let (mut one, zoe) = (Single::new(settings()), Key::member("rooms:7", "zoe"));
    one.begin(zoe.clone());
    for _ in 0..10 {
        one.end(&zoe, Reason::Closed);
        one.run(4_900);
        one.begin(zoe.clone());
        one.run(300);
    }
    assert_eq!(one.names(), ["topic.occupied", "member.joined"]);
}

#[test]
fn b44_vacated_follows_every_left_of_its_stay() {
    let mut one = Single::new(settings());
    let users: Vec<Key> = (0..50).map(|n| Key::member("rooms:7", &n.to_string())).collect();
    users.iter().for_each(|key| one.begin(key.clone()));
    users.iter().for_each(|key| one.end(key, Reason::Left));
    one.run(10_000);
    let names = one.names();
    assert_eq!((names.len(), names[0], names[101]), (102, "topic.occupied", "topic.vacated"));
    assert_eq!(names.iter().filter(|name| **name == "member.left").count(), 50);
}

#[test]
fn b45_hook_for_topics_alone_needs_no_users() {
    let types = HookRule::bit(Kind::Topic, false) | HookRule::bit(Kind::Topic, true);
    let hooks = vec![HookRule::new("app", types)];
    let mut one = Single::new(Settings { hooks, ..settings() });
    let hidden = Key::member("rooms:7", "");
    one.begin(hidden.clone());
    one.begin(hidden.clone());
    one.end(&hidden, Reason::Left);
    one.run(10_000);
    assert_eq!(one.names(), ["topic.occupied"]);
    one.end(&hidden, Reason::Left);
    one.run(10_000);
    assert_eq!(one.names(), ["topic.occupied", "topic.vacated"]);
}

#[test]
fn b48_log_is_compacted_and_says_the_same() {
    let mut one = Single::new(settings());
    let stay = Key::member("rooms:7", "who stays");
    one.begin(stay.clone());
    for _ in 0..3_000 {
        let key = Key::member("rooms:7", "who goes");
        one.begin(key.clone());
        one.end(&key, Reason::Left);
        one.run(5_200);
    }
    let partition = stay.partition();
    let of_it = one.log.iter().filter(|it| it.0 == partition).count();
    assert!(of_it < 3_500, "{of_it} records");
    let ids: Vec<_> = one.accepted.iter().filter(|it| it.0 == "member.joined").collect();
    assert_eq!(ids.len(), 3_001);
    let mut next = Single::restarted(settings(), one.log, one.ms);
    next.begin(stay);
    next.run(30_000);
    assert_eq!((next.names(), next.resets), (vec![], 0));
}

#[test]
fn b51_new_hook_and_new_log_get_a_reset() {
    let mut one = Single::new(settings());
    assert_eq!(one.resets, 16);
    one.begin(Key::member("rooms:7", "zoe"));
    one.run(2_000);
    assert_eq!(one.resets, 16);
    let hooks = vec![HookRule::new("app", ALL), HookRule::new("new", ALL)];
    let mut next = Single::restarted(Settings { hooks, ..settings() }, one.log, one.ms);
    next.begin(Key::member("rooms:7", "zoe"));
    next.run(30_000);
    assert_eq!((next.resets, next.names()), (16, vec![]), "the new hook reads the stays");
    let partition = Key::topic_of("rooms:7").partition();
    let (_, n, stays) = next.node.coordinator(partition).unwrap().stays().unwrap();
    assert_eq!((n, stays.count()), (2, 2), "B79");
}

#[test]
fn b52_stays_of_clients_that_return_go_on_after_a_restart() {
    let mut one = Single::new(settings());
    let [zoe, max] = ["zoe", "max"].map(|user| Key::member("rooms:7", user));
    one.begin(zoe.clone());
    one.begin(max.clone());
    one.run(2_000);
    let mut next = Single::restarted(settings(), one.log, one.ms);
    next.run(14_000);
    next.begin(zoe);
    next.run(30_000);
    assert_eq!(next.accepted, [("member.left", "rooms:7|max".into(), Some(Reason::Restart))]);
}

#[test]
fn b57_stays_shorter_than_an_outage_of_the_log_are_netted_out() {
    let mut one = Single::new(settings());
    let [zoe, max] = ["zoe", "max"].map(|user| Key::member("rooms:7", user));
    one.begin(zoe.clone());
    one.run(1_000);
    one.is_broker_up = false;
    one.end(&zoe, Reason::Left);
    one.begin(max.clone());
    one.run(20_000);
    one.end(&max, Reason::Left);
    one.begin(zoe.clone());
    one.run(20_000);
    one.is_broker_up = true;
    one.run(20_000);
    assert_eq!(one.names(), ["topic.occupied", "member.joined"]);
}

#[test]
fn b57_notices_beyond_the_window_are_read_again() {
    let mut one = Single::new(Settings { window_bytes: 2_000, ..settings() });
    let partition = Key::topic_of("rooms:7").partition();
    one.run(1_000);
    // The hook is away: its batches have no outcome.
    for n in 0..50_u64 {
        one.node.begin(Key::member("rooms:7", &n.to_string()), at(one.ms));
    }
    let time = at(one.ms);
    let mut held = None;
    while let Some(output) = one.node.poll(time) {
        match output {
            Output::Deliver(_, _, batch) => held = Some(batch),
            other => one.act(other, time),
        }
    }
    one.ms += 300;
    while let Some(output) = one.node.poll(at(one.ms)) {
        match output {
            Output::Deliver(_, _, batch) => held = Some(batch),
            other => one.act(other, at(one.ms)),
        }
    }
    let (_, waiting, _) = one.node.coordinator(partition).unwrap().counts();
    assert!(waiting < 20, "{waiting} notices in memory");
    let batch = held.unwrap();
    let outcome = Outcome::Accepted;
    one.node.finished((partition, 0, &batch), &outcome, None, 0, at(one.ms));
    one.run(10_000);
    assert_eq!(batch.notices.len() + one.accepted.len(), 51);
}

#[test]
fn b57_log_is_read_again_behind_notices_that_no_hook_wants() {
    let types = HookRule::bit(Kind::Topic, false) | HookRule::bit(Kind::Topic, true);
    let hooks = vec![HookRule::new("app", types)];
    let mut one = Single::new(Settings { hooks, window_bytes: 2_000, ..settings() });
    let users: Vec<Key> = (0..50).map(|n| Key::member("rooms:7", &n.to_string())).collect();
    users.iter().for_each(|key| one.begin(key.clone()));
    users.iter().for_each(|key| one.end(key, Reason::Left));
    one.run(10_000);
    assert_eq!(one.names(), ["topic.occupied", "topic.vacated"]);
}
