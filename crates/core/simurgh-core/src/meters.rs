//! Meters of sockets and their channels.
//!
//! Only sockets that sent something recently have meters. Meters have two generations: each that is
//! used moves to the young one, and the old one is dropped as a whole after a time in which every
//! bucket fills up, which is equivalent to no meter. So nothing is swept, and the end of a channel
//! or a socket needs no work.

use crate::seeded_state::HashMap;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use simurgh_data::prelude::*;
use siphasher::sip::SipHasher13 as DefaultHasher;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Bucket, Limit, LimitPolicy, Rate, RateLimit, TooFewTokens, nanoseconds};
use simurgh_data::Key;

use simurgh_proto::message::Payload;

/// The least time for which a socket that exceeded a limit is remembered.
const KEPT_LEAST: Duration = Duration::from_secs(10);
/// Each generation has so many tables, so that none of them takes long to grow.
const TABLES: usize = 64;
const RATES: usize = 4;

/// A socket, with 0, or the hash of one of its topics.
type Whose = (Key, u64);

/// Clients do not choose keys, and topics are hashed with a seed.
type Table = HashMap<Whose, Meter>;

pub(crate) struct Meters {
    metrics: Arc<ShardMetrics>,
    young: Box<[Table]>,
    old: Box<[Table]>,
    seed: u64,
    changed_ns: u64,
    /// After so long every bucket is full.
    kept_ns: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Meter {
    buckets: [Bucket; RATES],
    /// How often it has exceeded a limit lately, which one last, and when.
    refused: u32,
    last: Option<Limit>,
    last_ns: u64,
}

impl Meter {
    fn is_lately(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) < nanoseconds(KEPT_LEAST)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) limit: Limit,
    pub(crate) policy: LimitPolicy,
    /// The time after which the same would pass; `None`: never.
    pub(crate) wait: Option<Duration>,
}

impl Exceeded {
    pub(crate) fn response(&self) -> Payload<'static> {
        let limit = self.limit.name();
        Payload::from_json(match (self.limit, self.wait) {
            (Limit::PayloadBytes, _) => r#"{"reason":"payload_too_large"}"#.to_owned(),
            (_, None) => format!(r#"{{"reason":"rate_limited","limit":"{limit}"}}"#),
            (_, Some(wait)) => {
                let ms = wait.as_nanos().div_ceil(1_000_000);
                format!(r#"{{"reason":"rate_limited","limit":"{limit}","retry_after_ms":{ms}}}"#)
            }
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge {
    pub(crate) limit: Limit,
    pub(crate) by: Option<RateLimit>,
    pub(crate) cost: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    Socket,
    Topic(&'a str),
}

impl Meters {
    /// For these rates; `seed` is secret.
    pub(crate) fn new(
        metrics: Arc<ShardMetrics>,
        rates: impl Iterator<Item = Rate>,
        seed: u64,
    ) -> Self {
        let longest = rates.map(|rate| rate.fill_time()).max().unwrap_or_default();
        Self {
            metrics,
            young: tables(),
            old: tables(),
            seed,
            changed_ns: 0,
            kept_ns: nanoseconds(longest.max(KEPT_LEAST)),
        }
    }

    pub(crate) fn take(
        &mut self,
        key: Key,
        scope: Scope<'_>,
        charges: &[Charge],
        now_ns: u64,
    ) -> Result<(), Exceeded> {
        if charges.iter().all(|it| it.by.is_none()) {
            return Ok(());
        }
        let Some(meter) = self.meter(key, scope, now_ns) else { return Ok(()) };
        let mut buckets = meter.buckets;
        for Charge { limit, by, cost } in charges {
            let (Some(by), Some(at)) = (by, place(*limit)) else { continue };
            let Some(bucket) = buckets.get_mut(at) else { continue };
            match bucket.less(&by.rate, *cost, now_ns) {
                Ok(less) => *bucket = less,
                Err(TooFewTokens { wait }) => {
                    return Err(Exceeded { limit: *limit, policy: by.policy, wait });
                }
            }
        }
        meter.buckets = buckets;
        Ok(())
    }

    /// Counts that a socket has exceeded a limit.
    pub(crate) fn note(&mut self, key: Key, limit: Limit, now_ns: u64) {
        limit.counter(&self.metrics).add(1);
        let Some(meter) = self.meter(key, Scope::Socket, now_ns) else { return };
        let before = if meter.is_lately(now_ns) { meter.refused } else { 0 };
        meter.refused = before.saturating_add(1);
        (meter.last, meter.last_ns) = (Some(limit), now_ns);
    }

    /// The limit that a socket has exceeded last, and how often, if that was lately.
    pub(crate) fn noted(&self, key: Key, now_ns: u64) -> Option<(Limit, u32)> {
        let (whose, at) = ((key, 0), at(key));
        let find = |tables: &[Table]| tables.get(at)?.get(&whose).copied();
        let meter = find(&self.young).or_else(|| find(&self.old))?;
        Some((meter.last.filter(|_| meter.is_lately(now_ns))?, meter.refused))
    }

    pub(crate) fn age(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.changed_ns) >= self.kept_ns {
            self.changed_ns = now_ns;
            let empty = self.young.iter().all(|it| it.capacity() == 0);
            if empty && self.old.iter().all(|it| it.capacity() == 0) {
                return;
            }
            self.old = core::mem::replace(&mut self.young, tables());
        }
    }

    pub(crate) fn clear(&mut self) {
        for table in self.young.iter_mut().chain(&mut self.old) {
            *table = Table::default();
        }
    }

    fn meter(&mut self, key: Key, scope: Scope<'_>, now_ns: u64) -> Option<&mut Meter> {
        self.age(now_ns);
        let (whose, at) = ((key, self.number(scope)), at(key));
        let kept = self.old.get_mut(at).and_then(|old| old.remove(&whose));
        let table = self.young.get_mut(at)?;
        Some(table.entry(whose).or_insert_with(|| kept.unwrap_or_default()))
    }

    /// 0 is the socket's.
    fn number(&self, scope: Scope<'_>) -> u64 {
        let Scope::Topic(topic) = scope else { return 0 };
        let mut hasher = DefaultHasher::new();
        self.seed.hash(&mut hasher);
        topic.hash(&mut hasher);
        hasher.finish() | 1
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.iter().chain(&self.old).map(HashMap::len).sum()
    }
}

fn tables() -> Box<[Table]> {
    (0..TABLES).map(|_| Table::default()).collect()
}

fn at(key: Key) -> usize {
    key.slot as usize % TABLES
}

/// `None` if it is not a rate.
fn place(limit: Limit) -> Option<usize> {
    match limit {
        Limit::Joins => Some(0),
        Limit::Messages => Some(1),
        Limit::Bytes => Some(2),
        Limit::PresenceCalls => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn key(slot: u32) -> Key {
        Key { slot, generation: 1 }
    }

    fn messages(rate: Rate) -> Charge {
        Charge { limit: Limit::Messages, by: Some(rate.into()), cost: 1 }
    }

    fn one_per_second() -> (Rate, Meters) {
        let rate = Rate::per_second(1).unwrap();
        (rate, Meters::new(Arc::default(), [rate].into_iter(), 7))
    }

    #[test]
    fn each_socket_and_topic_has_its_own_meter() {
        let (rate, mut meters) = one_per_second();
        let whose = [
            (key(1), Scope::Socket),
            (key(1), Scope::Topic("a")),
            (key(1), Scope::Topic("b")),
            (key(2), Scope::Topic("a")),
            (Key { slot: 1, generation: 2 }, Scope::Topic("a")),
            (key(1 + TABLES as u32), Scope::Socket),
        ];
        for (key, scope) in whose {
            assert_eq!(meters.take(key, scope, &[messages(rate)], 5), Ok(()));
        }
        for (key, scope) in whose {
            let exceeded = meters.take(key, scope, &[messages(rate)], 5).unwrap_err();
            assert_eq!((exceeded.limit, exceeded.policy), (Limit::Messages, LimitPolicy::Reply));
            assert_eq!(exceeded.wait, Some(Duration::from_secs(1)));
        }
    }

    #[test]
    fn charges_are_taken_all_or_not_at_all() {
        let (few, many) = (Rate::per_second(1).unwrap(), Rate::per_second(2).unwrap());
        let mut meters = Meters::new(Arc::default(), [few, many].into_iter(), 7);
        let bytes = Charge { limit: Limit::Bytes, by: Some(few.into()), cost: 1 };
        let both = [messages(many), bytes];
        assert_eq!(meters.take(key(1), Scope::Socket, &both, 0), Ok(()));
        for _ in 0..5 {
            let exceeded = meters.take(key(1), Scope::Socket, &both, 0).unwrap_err();
            assert_eq!(exceeded.limit, Limit::Bytes);
        }
        assert_eq!(meters.take(key(1), Scope::Socket, &[messages(many)], 0), Ok(()));
    }

    #[test]
    fn meter_is_removed_only_when_its_buckets_are_full() {
        let rate = Rate::every(1, Duration::from_secs(60)).unwrap();
        let mut meters = Meters::new(Arc::default(), [rate].into_iter(), 7);
        // Others change the generations at any time between.
        for (slot, at) in (1_u32..).zip([0, 30, 59, 61, 119, 240]) {
            let now = 10_000 * SECOND * u64::from(slot) + at * SECOND;
            meters.age(now - at * SECOND);
            assert_eq!(meters.take(key(slot), Scope::Socket, &[messages(rate)], now), Ok(()));
            for later in [1, 20, 59] {
                let now = now + later * SECOND;
                meters.age(now);
                let again = meters.take(key(slot), Scope::Socket, &[messages(rate)], now);
                assert!(again.is_err(), "{at} s, and {later} s later");
            }
            let over = now + 60 * SECOND;
            assert_eq!(meters.take(key(slot), Scope::Socket, &[messages(rate)], over), Ok(()));
            meters.age(over + 60 * SECOND);
            meters.age(over + 120 * SECOND);
            assert_eq!(meters.len(), 0);
        }
    }

    #[test]
    fn limited_client_is_marked_for_a_while() {
        let (rate, mut meters) = one_per_second();
        let noted = |meters: &Meters, at| meters.noted(key(1), at * SECOND);
        assert_eq!(noted(&meters, 0), None);
        assert_eq!(meters.take(key(1), Scope::Socket, &[messages(rate)], SECOND), Ok(()));
        assert_eq!(noted(&meters, 1), None, "it has said something, and that was fine");
        meters.note(key(1), Limit::Joins, 5 * SECOND);
        meters.note(key(1), Limit::Bytes, 9 * SECOND);
        assert_eq!(noted(&meters, 9), Some((Limit::Bytes, 2)));
        meters.age(18 * SECOND);
        assert_eq!(noted(&meters, 18), Some((Limit::Bytes, 2)));
        assert_eq!(noted(&meters, 19), None);
        // Also if it keeps sending, which keeps its meter.
        for at in 20..60 {
            assert_eq!(meters.take(key(1), Scope::Socket, &[messages(rate)], at * SECOND), Ok(()));
            assert_eq!(noted(&meters, at), None);
        }
        meters.note(key(1), Limit::Joins, 60 * SECOND);
        assert_eq!(noted(&meters, 60), Some((Limit::Joins, 1)));
        meters.clear();
        assert_eq!((noted(&meters, 60), meters.len()), (None, 0));
    }

    #[test]
    fn clients_that_send_once_leave_no_meters() {
        let (rate, mut meters) = one_per_second();
        for slot in 0..100_000 {
            // A millisecond each: ten seconds hold ten thousand.
            let now = u64::from(slot) * SECOND / 1_000;
            assert_eq!(meters.take(key(slot), Scope::Socket, &[messages(rate)], now), Ok(()));
            assert!(meters.len() <= 20_001, "{}", meters.len());
        }
    }
}
