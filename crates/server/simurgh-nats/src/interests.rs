//! The node's interests, and the subscriptions for them.
//!
//! A whole bucket is one subscription, without subscriptions to its topics: overlapping
//! subscriptions get every message twice. When a bucket changes between single topics and the
//! whole, old and new subscriptions overlap for a while, for three reasons:
//! - The broker's other servers must learn of the new one first.
//! - A server that is about to deliver to the old one does not look up the new one again.
//! - Answers to PINGs may come between the two deliveries of one message. The first delivery of a
//!   message is accepted. A message with a lower number of the same publisher is dropped, since the
//!   broker delivers the messages of one publisher on one subject in order, for any subscription.
//!
//! ```text
//! SUB new, PING k ─► PONG k: in force ─► 250 ms later: UNSUB old, PING m ─► PONG m: only the new
//! are left ─► 250 ms later: PING n ─► PONG n: the numbers are forgotten
//! ```

use std::hash::BuildHasher as _;

use bytes::BytesMut;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use simurgh_cluster::{Bucket, Interest, Prefix, Space, Wanted};

use crate::wire::{self, Message};

/// How long old and new subscriptions overlap once the new ones are in force, and how long numbers
/// are kept after that: longer than a server needs for one message.
pub(crate) const OVERLAP_MS: u64 = 250;
/// The most publishers and subjects whose numbers one overlap stores; messages of others are
/// accepted from the old subscriptions only.
const NUMBERS_MAX: usize = 4_096;

/// The first byte of an envelope.
const VERSION: u8 = 1;

type Map<K, V> = HashMap<K, V, RandomState>;
type Key = (Space, Bucket);

pub(crate) type PingNumber = u64;

/// The interests, with their subscriptions if there is a link.
#[derive(Debug)]
pub(crate) struct Interests {
    prefix: Prefix,
    by_sid: Map<u64, Purpose>,
    /// [`Interest::Nodes`] and [`Interest::Node`].
    nodes: Map<Interest, Option<u64>>,
    groups: Map<Key, Group>,
    overlapping: Vec<Key>,
    /// When [`tick`](Self::tick) has something to do.
    pub(crate) next_tick_ms: Option<u64>,
    next_sid: u64,
    is_linked: bool,
}

#[derive(Clone, Debug)]
enum Purpose {
    Nodes(Interest),
    Exact(Key, Box<str>),
    Whole(Key),
}

/// The interests of a bucket in a space, with their subscriptions.
#[derive(Debug, Default)]
struct Group {
    exact: Map<Box<str>, Option<u64>>,
    is_whole: bool,
    whole: Option<u64>,
    overlap: Option<Box<Overlap>>,
}

impl Group {
    fn is_empty(&self) -> bool {
        !self.is_whole && self.exact.is_empty()
    }
}

#[derive(Debug)]
struct Overlap {
    old: Vec<u64>,
    phase: Phase,
    /// The subjects of the wanted topics, if an old subscription is for the whole bucket.
    subjects: HashSet<Box<[u8]>, RandomState>,
    /// The number of the last accepted envelope by hash of publisher and subject.
    highest: Map<(u64, u64), u64>,
    /// The number of the last accepted stored message: a bucket is in one stream.
    highest_stored: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The new ones are in force when this PING is answered.
    New(PingNumber),
    /// Both overlap until this time.
    Both { until_ms: u64 },
    /// The old ones are gone when this PING is answered.
    Ending(PingNumber),
    /// They are gone. Until this time a server may deliver a message again to the new ones.
    Over { until_ms: u64 },
    /// All that was delivered until then has been read when this PING is answered.
    Forgetting(PingNumber),
}

impl Interests {
    pub(crate) fn new(prefix: Prefix) -> Self {
        Self {
            prefix,
            by_sid: Map::default(),
            nodes: Map::default(),
            groups: Map::default(),
            overlapping: Vec::new(),
            next_tick_ms: None,
            next_sid: 1,
            is_linked: false,
        }
    }

    /// Makes the changes of one step. Operations for the broker go to `out`; they are in force when
    /// PING number `ping` is answered, the next one to be sent.
    pub(crate) fn change(
        &mut self,
        changes: &[(Interest, Wanted)],
        ping: PingNumber,
        out: &mut BytesMut,
    ) {
        let mut last: Map<&Interest, Wanted> = Map::default();
        last.extend(changes.iter().map(|(interest, wanted)| (interest, *wanted)));
        // Subscriptions that are not wanted any more, by group.
        let mut touched: Map<Key, Vec<u64>> = Map::default();
        for (interest, wanted) in last {
            let (key, topic) = match interest {
                Interest::Exact(space, topic) => ((*space, Bucket::of(topic)), Some(topic)),
                Interest::Whole(space, bucket) => ((*space, *bucket), None),
                Interest::Nodes | Interest::Node(_) => {
                    self.change_nodes(interest, wanted, out);
                    continue;
                }
            };
            let gone = touched.entry(key).or_default();
            let group = self.groups.entry(key).or_default();
            match (topic, wanted) {
                (None, wanted) => group.is_whole = wanted == Wanted::Yes,
                (Some(topic), Wanted::Yes) => {
                    group.exact.entry(topic.clone()).or_insert(None);
                }
                (Some(topic), Wanted::No) => gone.extend(group.exact.remove(topic).flatten()),
            }
        }
        for (key, gone) in touched {
            self.settle(key, gone, ping, out);
        }
    }

    fn change_nodes(&mut self, interest: &Interest, wanted: Wanted, out: &mut BytesMut) {
        match wanted {
            Wanted::Yes if !self.nodes.contains_key(interest) => {
                let purpose = Purpose::Nodes(interest.clone());
                let sid = self.is_linked.then(|| self.subscribe(interest, purpose, out));
                self.nodes.insert(interest.clone(), sid);
            }
            Wanted::Yes => {}
            Wanted::No => {
                if let Some(Some(sid)) = self.nodes.remove(interest) {
                    self.unsubscribe(sid, out);
                }
            }
        }
    }

    /// Makes the subscriptions of a group match its interests. `gone` are subscriptions to single
    /// topics that are not wanted any more.
    fn settle(&mut self, key: Key, gone: Vec<u64>, ping: PingNumber, out: &mut BytesMut) {
        let Some(mut group) = self.groups.remove(&key) else { return };
        if !self.is_linked {
            if !group.is_empty() {
                self.groups.insert(key, group);
            }
            return;
        }
        let mut old = Vec::new();
        if group.is_empty() {
            let overlap = group.overlap.take();
            self.overlapping.retain(|it| overlap.is_none() || *it != key);
            let overlapped = overlap.into_iter().flat_map(|it| it.old);
            gone.into_iter()
                .chain(group.whole)
                .chain(overlapped)
                .for_each(|sid| self.unsubscribe(sid, out));
            return;
        }
        if group.is_whole {
            if group.whole.is_none() {
                let interest = Interest::Whole(key.0, key.1);
                group.whole = Some(self.subscribe(&interest, Purpose::Whole(key), out));
            }
            old = gone;
            old.extend(group.exact.values_mut().filter_map(Option::take));
        } else {
            for (topic, sid) in group.exact.iter_mut().filter(|(_, sid)| sid.is_none()) {
                let interest = Interest::Exact(key.0, topic.clone());
                let purpose = Purpose::Exact(key, topic.clone());
                *sid = Some(self.subscribe(&interest, purpose, out));
            }
            gone.into_iter().for_each(|sid| self.unsubscribe(sid, out));
            old.extend(group.whole.take());
        }
        self.overlap(key, &mut group, old, ping);
        self.groups.insert(key, group);
    }

    fn overlap(&mut self, key: Key, group: &mut Group, old: Vec<u64>, ping: PingNumber) {
        if !old.is_empty() {
            let overlap = group.overlap.get_or_insert_with(|| {
                self.overlapping.push(key);
                Box::new(Overlap {
                    old: Vec::new(),
                    phase: Phase::New(ping),
                    subjects: HashSet::default(),
                    highest: Map::default(),
                    highest_stored: 0,
                })
            });
            overlap.old.extend(old);
            overlap.phase = Phase::New(ping);
        }
        let Some(overlap) = &mut group.overlap else { return };
        overlap.subjects.clear();
        let is_whole = |sid| matches!(self.by_sid.get(sid), Some(Purpose::Whole(_)));
        if overlap.old.iter().any(is_whole) {
            let subjects = group.exact.keys().map(|topic| self.prefix.topic(key.0, topic));
            overlap.subjects.extend(subjects.map(|it| it.as_str().as_bytes().into()));
        }
    }

    fn subscribe(&mut self, interest: &Interest, purpose: Purpose, out: &mut BytesMut) -> u64 {
        let sid = self.next_sid;
        self.next_sid += 1;
        wire::put_subscribe(out, self.prefix.filter(interest).as_str(), sid);
        self.by_sid.insert(sid, purpose);
        sid
    }

    fn unsubscribe(&mut self, sid: u64, out: &mut BytesMut) {
        if self.by_sid.remove(&sid).is_some() {
            wire::put_unsubscribe(out, sid);
        }
    }

    /// A new link: subscribes to everything.
    pub(crate) fn link(&mut self, out: &mut BytesMut) {
        self.is_linked = true;
        let nodes: Vec<Interest> = self.nodes.keys().cloned().collect();
        for interest in nodes {
            let sid = self.subscribe(&interest, Purpose::Nodes(interest.clone()), out);
            self.nodes.insert(interest, Some(sid));
        }
        let keys: Vec<Key> = self.groups.keys().copied().collect();
        for key in keys {
            // There are no old subscriptions, so nothing waits for a PING.
            self.settle(key, Vec::new(), 0, out);
        }
    }

    /// The link is gone, with all subscriptions.
    pub(crate) fn unlink(&mut self) {
        self.is_linked = false;
        self.by_sid.clear();
        self.overlapping.clear();
        self.next_tick_ms = None;
        self.nodes.values_mut().for_each(|sid| *sid = None);
        for group in self.groups.values_mut() {
            group.exact.values_mut().for_each(|sid| *sid = None);
            (group.whole, group.overlap) = (None, None);
        }
    }

    pub(crate) fn pong(&mut self, ping: PingNumber, now_ms: u64) {
        let until_ms = now_ms + OVERLAP_MS;
        let Self { groups, by_sid, next_tick_ms, .. } = self;
        self.overlapping.retain(|key| {
            let Some(group) = groups.get_mut(key) else { return false };
            let Some(overlap) = &mut group.overlap else { return false };
            match overlap.phase {
                Phase::New(of) if of <= ping => overlap.phase = Phase::Both { until_ms },
                Phase::Ending(of) if of <= ping => {
                    for sid in overlap.old.drain(..) {
                        by_sid.remove(&sid);
                    }
                    overlap.phase = Phase::Over { until_ms };
                }
                Phase::Forgetting(of) if of <= ping => {
                    group.overlap = None;
                    return false;
                }
                _ => return true,
            }
            *next_tick_ms = Some(next_tick_ms.unwrap_or(until_ms).min(until_ms));
            true
        });
    }

    /// Ends overlaps whose time is over. Returns whether PING number `ping` must be sent.
    pub(crate) fn tick(&mut self, now_ms: u64, ping: PingNumber, out: &mut BytesMut) -> bool {
        if self.next_tick_ms.is_none_or(|at| at > now_ms) {
            return false;
        }
        let (groups, mut needs_ping, mut next) = (&mut self.groups, false, None);
        self.overlapping.retain(|key| {
            let Some(group) = groups.get_mut(key) else { return false };
            let Some(overlap) = &mut group.overlap else { return false };
            match overlap.phase {
                Phase::Both { until_ms } if until_ms <= now_ms => {
                    overlap.phase = Phase::Ending(ping);
                    overlap.old.iter().for_each(|sid| wire::put_unsubscribe(out, *sid));
                    needs_ping = true;
                }
                Phase::Over { until_ms } if until_ms <= now_ms => {
                    overlap.phase = Phase::Forgetting(ping);
                    needs_ping = true;
                }
                Phase::Both { until_ms } | Phase::Over { until_ms } => {
                    next = Some(next.unwrap_or(until_ms).min(until_ms));
                }
                Phase::New(_) | Phase::Ending(_) | Phase::Forgetting(_) => {}
            }
            true
        });
        self.next_tick_ms = next;
        needs_ping
    }

    /// Returns the space of a message's subject if it is wanted and not a duplicate; `None` if it
    /// must be dropped.
    pub(crate) fn accept(&mut self, message: &Message) -> Option<Option<Space>> {
        let key = match self.by_sid.get(&message.sid)? {
            Purpose::Nodes(_) => return Some(None),
            Purpose::Exact(key, _) | Purpose::Whole(key) => *key,
        };
        if self.overlapping.is_empty() {
            return Some(Some(key.0));
        }
        let group = self.groups.get_mut(&key)?;
        let Some(overlap) = &mut group.overlap else { return Some(Some(key.0)) };
        let is_wanted = group.is_whole
            || match self.by_sid.get(&message.sid)? {
                Purpose::Exact(_, topic) => group.exact.contains_key(topic),
                _ => overlap.subjects.contains(message.subject()),
            };
        (is_wanted && overlap.takes(message)).then_some(Some(key.0))
    }

    pub(crate) fn interest(&self, sid: u64) -> Option<Interest> {
        Some(match self.by_sid.get(&sid)? {
            Purpose::Nodes(interest) => interest.clone(),
            Purpose::Exact((space, _), topic) => Interest::Exact(*space, topic.clone()),
            Purpose::Whole((space, bucket)) => Interest::Whole(*space, *bucket),
        })
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.by_sid.len()
    }
}

impl Overlap {
    fn takes(&mut self, message: &Message) -> bool {
        if let Some(number) = message.stored() {
            let is_new = number.seq > self.highest_stored;
            self.highest_stored = self.highest_stored.max(number.seq);
            return is_new;
        }
        let envelope = message.payload();
        let field = |at: usize| {
            let bytes = envelope.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?)).filter(|_| envelope[0] == VERSION)
        };
        // The origin and the number in the envelope's header.
        if let Some((origin, n)) = field(4).zip(field(12)) {
            let key = (origin, self.highest.hasher().hash_one(message.subject()));
            if let Some(highest) = self.highest.get_mut(&key) {
                let is_new = n > *highest;
                *highest = n.max(*highest);
                return is_new;
            }
            if self.highest.len() < NUMBERS_MAX {
                self.highest.insert(key, n);
                return true;
            }
        }
        self.old.is_empty() || self.old.contains(&message.sid)
    }
}

#[cfg(test)]
mod tests;
