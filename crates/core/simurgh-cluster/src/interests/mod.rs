//! The topics that this node has members of, and what it subscribes to for them.
//!
//! A topic is subscribed to from its first member on until some seconds after its last member has
//! left (it *lingers*), so that reloading a page costs no subscription. A bucket of topics is
//! subscribed to topic by topic (*exact*) or by one subscription for each space (*whole*). Exact
//! subscriptions receive only what is wanted; whole ones bound the number of a node's
//! subscriptions, whatever its topics:
//!
//! - While there are more than [`InterestsConfig::exact_max`] exact subscriptions, over both
//!   spaces, the bucket with most of them becomes whole, in both spaces.
//! - The same while all subscriptions together are more than twice as many, or more than 8,192 if
//!   that is more: every bucket may be whole, in two spaces.
//! - A whole bucket is subscribed to in a space only while some topic of it is wanted there.
//! - A bucket becomes exact again when that would cost no more (at most one topic in each space)
//!   and less than half of `exact_max` is used, both for [`InterestsConfig::whole_for_ns`]; and at
//!   once when its last topic ends.
//!
//! What is wanted changes at once; [`take_changes`](Interests::take_changes) has the changes for
//! the adapter, after any number of other calls.

mod buckets;
mod changes;
mod shards;
#[cfg(test)]
mod tests;
mod topics;
mod unwanted;

use alloc::collections::BTreeSet;

pub use self::shards::Shards;

use self::buckets::Buckets;
use self::topics::{Topics, Want};
use self::unwanted::Unwanted;
use crate::adapter::Wanted;
use crate::split_mix::SplitMix64;
use crate::subject::{Bucket, Interest, Space, TOPIC_BYTES_MAX};
use crate::time::SECOND;
use simurgh_data::prelude::*;

/// Changes for one call of [`Adapter::interest`](crate::Adapter::interest).
pub type InterestChanges = Vec<(Interest, Wanted)>;

/// The spaces that nodes subscribe to, and their places in arrays.
const SPACES: [Space; 2] = [Space::Broadcast, Space::Presence];
const BROADCAST: usize = 0;
const PRESENCE: usize = 1;
/// Ends of lingering are stored in units of 67 ms, in four bytes: enough for nine years.
const TICK_NS: u64 = 1 << 26;
/// The most topics that end in one tick.
const ENDS: usize = 1024;
/// The most buckets that become exact in one tick.
const NARROWED: usize = 64;
/// The least time for which an expected topic is subscribed to, however short topics linger: the
/// joining member may wait for the broker's history.
const EXPECTED_NS_MIN: u64 = 10 * SECOND;
/// How far ends of lingering are spread, in percent each way.
const JITTER: u64 = 25;

/// Settings of interests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterestsConfig {
    /// The most subscriptions to single topics, over both spaces. Each costs about 5 kB here and 1
    /// kB in the broker.
    pub exact_max: usize,
    /// How long a topic without members is still subscribed to, in nanoseconds, ± 25 %.
    pub linger_ns: u64,
    /// How long a bucket stays whole that need not be, in nanoseconds.
    pub whole_for_ns: u64,
}

impl Default for InterestsConfig {
    /// 4,096; 20 s; 60 s.
    fn default() -> Self {
        Self { exact_max: 4096, linger_ns: 20 * SECOND, whole_for_ns: 60 * SECOND }
    }
}

/// Numbers of interests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterestCounts {
    /// Subscriptions to one topic in one space.
    pub exact: usize,
    /// Subscriptions to a bucket in one space.
    pub whole: usize,
    /// Buckets that are whole.
    pub whole_buckets: usize,
    /// Topics that have members or linger.
    pub topics: usize,
}

/// The topics of a node, and what it subscribes to for them.
#[derive(Debug)]
pub struct Interests {
    topics: Topics,
    buckets: Buckets,
    lingering: BTreeSet<(u32, u32)>,
    /// Topics that may differ from the adapter's subscriptions.
    dirty: Vec<u32>,
    /// Topics with a history that are not subscribed to any more and were not polled.
    ended: Vec<Box<str>>,
    unwanted: Unwanted,
    linger_ns: u64,
    chance: SplitMix64,
}

impl Interests {
    /// For a node without topics. The seed keys hashes of names, so clients that choose names
    /// should not know it.
    pub fn new(config: &InterestsConfig, seed: u64) -> Self {
        Self {
            topics: Topics::new(seed),
            buckets: Buckets::new(config),
            lingering: BTreeSet::new(),
            dirty: Vec::new(),
            ended: Vec::new(),
            unwanted: Unwanted::default(),
            linger_ns: config.linger_ns,
            chance: SplitMix64::new(seed),
        }
    }

    /// A topic has its first member on a shard. A name of over [`TOPIC_BYTES_MAX`] bytes is
    /// ignored: no other node can publish to it.
    pub fn begin(&mut self, topic: &str, shard: u16, now_ns: u64) {
        let Some(at) = self.find_or_insert(topic) else { return };
        if let Some(it) = self.topics.get_mut(at) {
            it.shards.insert(shard);
        }
        self.want(at, BROADCAST, Want::Yes, now_ns);
    }

    /// The last member of a topic on a shard has left it.
    pub fn end(&mut self, topic: &str, shard: u16, now_ns: u64) {
        let Some(at) = self.topics.find(topic) else { return };
        let Some(it) = self.topics.get_mut(at) else { return };
        it.shards.remove(shard);
        if it.shards.is_empty() && it.want[BROADCAST] == Want::Yes {
            self.linger(at, BROADCAST, self.linger_ns, now_ns);
        }
    }

    /// Subscribes to a topic for a member that is about to join: as long as topics linger, or for
    /// 10 s if that is longer. The topic has no member yet: no shard is returned for it.
    pub fn expect(&mut self, topic: &str, now_ns: u64) {
        let Some(at) = self.find_or_insert(topic) else { return };
        let linger_ns = self.linger_ns.max(EXPECTED_NS_MIN);
        match self.topics.get(at).map(|it| it.want[BROADCAST]) {
            Some(Want::Yes) => {}
            // The full time, not the rest of it.
            Some(Want::Lingers) => {
                self.want(at, BROADCAST, Want::Yes, now_ns);
                self.linger(at, BROADCAST, linger_ns, now_ns);
            }
            _ => self.linger(at, BROADCAST, linger_ns, now_ns),
        }
    }

    /// Has [`poll_ended`](Self::poll_ended) report when this topic is not subscribed to any more.
    /// Returns whether it is subscribed to now.
    pub fn keep(&mut self, topic: &str) -> bool {
        let at = self.topics.find(topic);
        let heard = at.and_then(|at| self.topics.get_mut(at));
        let Some(it) = heard.filter(|it| it.want[BROADCAST] != Want::No) else { return false };
        it.is_kept = true;
        true
    }

    /// A topic for which [`keep`](Self::keep) was called, and that is not subscribed to any more.
    pub fn poll_ended(&mut self) -> Option<Box<str>> {
        self.ended.pop()
    }

    /// Subscribes to a topic's presences.
    pub fn begin_presence(&mut self, topic: &str, now_ns: u64) {
        let Some(at) = self.find_or_insert(topic) else { return };
        self.want(at, PRESENCE, Want::Yes, now_ns);
    }

    /// A topic's presences are not wanted any more.
    pub fn end_presence(&mut self, topic: &str, now_ns: u64) {
        let Some(at) = self.topics.find(topic) else { return };
        if self.topics.get(at).is_some_and(|it| it.want[PRESENCE] == Want::Yes) {
            self.linger(at, PRESENCE, self.linger_ns, now_ns);
        }
    }

    /// The shards that have members of a topic; `None` if it has no members.
    #[inline]
    pub fn shards(&self, topic: &str) -> Option<Shards<'_>> {
        let it = self.topics.get(self.topics.find(topic)?)?;
        (!it.shards.is_empty()).then(|| it.shards.iter())
    }

    /// The interest that covers a topic in a space; `None` if it is not wanted. Stored messages are
    /// received as broadcasts.
    pub fn covering(&self, space: Space, topic: &str) -> Option<Interest> {
        let at = SPACES.iter().position(|it| *it == space)?;
        let it = self.topics.get(self.topics.find(topic)?)?;
        let bucket = it.bucket();
        match it.want[at] {
            Want::No => None,
            _ if self.buckets.get(bucket).is_whole => Some(Interest::Whole(space, bucket)),
            _ => Some(Interest::Exact(space, it.name.clone())),
        }
    }

    /// The wanted topics that an interest covers, to request again after
    /// [`Event::Lost`](crate::Event::Lost).
    pub fn topics_of<'a>(&'a self, interest: &Interest) -> impl Iterator<Item = &'a str> + use<'a> {
        let (space, one, first) = match interest {
            Interest::Exact(space, topic) => (*space, self.topics.find(topic), topics::NIL),
            Interest::Whole(space, bucket) => (*space, None, self.buckets.get(*bucket).first),
            Interest::Nodes | Interest::Node(_) => (Space::Broadcast, None, topics::NIL),
        };
        let at = SPACES.iter().position(|it| *it == space);
        let one = one.and_then(|it| self.topics.get(it));
        let all = one.into_iter().chain(self.topics.of_bucket(first));
        let is_wanted = move |it: &&topics::Topic| at.is_some_and(|at| it.want[at] != Want::No);
        all.filter(is_wanted).map(|it| &*it.name)
    }

    /// Ends what is due; at most 1,024 topics and 64 buckets in one call, so more may be due at
    /// once ([`next_ns`](Self::next_ns)).
    pub fn tick(&mut self, now_ns: u64) {
        for _ in 0..ENDS {
            let Some(&(due, at)) = self.lingering.first() else { break };
            if u64::from(due) * TICK_NS > now_ns {
                break;
            }
            for space in [BROADCAST, PRESENCE] {
                if self.topics.get(at).is_some_and(|it| it.due(space) == Some(due)) {
                    self.want(at, space, Want::No, now_ns);
                }
            }
        }
        for _ in 0..NARROWED {
            if !self.buckets.narrow(now_ns) {
                break;
            }
        }
    }

    /// When [`tick`](Self::tick) has something to do next; may be in the past.
    pub fn next_ns(&self) -> Option<u64> {
        let ends_ns = self.lingering.first().map(|(due, _)| u64::from(*due) * TICK_NS);
        ends_ns.into_iter().chain(self.buckets.narrow_ns()).min()
    }

    /// Counts a message of a topic that has no members here.
    pub fn count_unwanted(&mut self, topic: &str) {
        self.unwanted.count(Bucket::of(topic));
    }

    /// How many messages were received of topics without members here.
    pub fn unwanted(&self) -> u64 {
        self.unwanted.all()
    }

    /// The ten buckets with most of them and their counts, the worst first.
    pub fn worst_buckets(&self) -> Vec<(Bucket, u64)> {
        self.unwanted.worst()
    }

    /// The numbers of interests.
    pub fn counts(&self) -> InterestCounts {
        let (exact, whole) = self.buckets.held();
        let whole_buckets = self.buckets.whole_buckets();
        InterestCounts { exact, whole, whole_buckets, topics: self.topics.len() }
    }

    fn find_or_insert(&mut self, topic: &str) -> Option<u32> {
        if topic.len() > TOPIC_BYTES_MAX {
            return None;
        }
        self.topics.find(topic).or_else(|| {
            let bucket = Bucket::of(topic);
            let part = self.buckets.get_mut(bucket);
            part.first = self.topics.add(topic, bucket, part.first);
            Some(part.first)
        })
    }

    fn linger(&mut self, at: u32, space: usize, linger_ns: u64, now_ns: u64) {
        let Some(topic) = self.topics.get_mut(at).filter(|it| it.want[space] != Want::Lingers)
        else {
            return;
        };
        let due = now_ns.saturating_add(self.chance.around(linger_ns, JITTER)).div_ceil(TICK_NS);
        topic.due[space] = u32::try_from(due).unwrap_or(u32::MAX);
        self.want(at, space, Want::Lingers, now_ns);
    }

    /// Makes a topic wanted in a space, or not. Only a topic that lingers ends.
    fn want(&mut self, at: u32, space: usize, want: Want, now_ns: u64) {
        let Some(topic) = self.topics.get_mut(at) else { return };
        let was = topic.want[space];
        if was == want {
            return;
        }
        let due_before = topic.first_due();
        topic.want[space] = want;
        if (space, want) == (BROADCAST, Want::No) && core::mem::take(&mut topic.is_kept) {
            self.ended.push(topic.name.clone());
        }
        let due = topic.first_due();
        if due != due_before {
            due_before.map(|it| self.lingering.remove(&(it, at)));
            self.lingering.extend(due.map(|it| (it, at)));
        }
        let bucket = topic.bucket();
        match (was, want) {
            (Want::No, _) => self.buckets.add(bucket, space, now_ns),
            (_, Want::No) => self.buckets.remove(bucket, space, now_ns),
            _ => return,
        }
        self.note(at, space);
    }

    /// Records that a topic may differ from the adapter's subscriptions, or forgets the topic.
    fn note(&mut self, at: u32, space: usize) {
        let Some(topic) = self.topics.get_mut(at) else { return };
        let is_whole = self.buckets.get(topic.bucket()).is_whole;
        let is_wanted = !is_whole && topic.want[space] != Want::No;
        if is_wanted != topic.is_subscribed[space] && !topic.is_dirty {
            topic.is_dirty = true;
            self.dirty.push(at);
        }
        self.forget_if_over(at);
    }

    fn forget_if_over(&mut self, at: u32) {
        if let Some(topic) = self.topics.get(at)
            && topic.is_over()
        {
            let part = self.buckets.get_mut(topic.bucket());
            self.topics.take(at, &mut part.first);
        }
    }
}
