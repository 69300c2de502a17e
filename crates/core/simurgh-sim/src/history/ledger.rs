//! What is broadcast on topics with a history, and in which order it is stored: known from the
//! applications' callbacks, and from listeners outside of channels on every shard. The first
//! listener that gets a broadcast is at its topic's home, which passes it on; all others must get
//! the same.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use crate::kit::findings::Findings;
use crate::kit::handle::Handle;
use crate::kit::{NONE, payload};
use simurgh_core::Position;

use super::plan::Plan;
use crate::limits::Quota;

/// Of this many intercepted broadcasts one is swallowed.
pub(crate) const SWALLOWED: u32 = 3;

#[derive(Debug, Clone)]
pub(crate) struct BroadcastInfo {
    pub(crate) topic: u8,
    /// Which of [`EVENTS`](crate::kit::EVENTS) it is broadcast as.
    pub(crate) event: u8,
    pub(crate) is_binary: bool,
    /// The channel that is left out, and the id of its client.
    pub(crate) except: u32,
    pub(crate) sender: u32,
    /// The channel whose callback made it, or [`NONE`].
    pub(crate) chan: u32,
    /// Broadcasts that were made before it in the same callback.
    pub(crate) behind: Vec<u32>,
    pub(crate) is_stored: bool,
    /// It may get lost: its sender got an error, or may be gone.
    pub(crate) is_optional: bool,
}

impl BroadcastInfo {
    pub(crate) fn new(topic: u8) -> Self {
        Self {
            topic,
            event: 0,
            is_binary: false,
            except: NONE,
            sender: NONE,
            chan: NONE,
            behind: Vec::new(),
            is_stored: false,
            is_optional: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) seq: u64,
    pub(crate) id: u32,
    pub(crate) at_ms: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Topic {
    pub(crate) stored: Vec<Stored>,
    /// How many of them each shard has received.
    pub(crate) heard: Vec<usize>,
    pub(crate) home: Option<usize>,
    /// The first position, whose epoch all others have.
    epoch: Option<Position>,
    pub(crate) is_purged: bool,
}

impl Topic {
    /// The first place after a number.
    pub(crate) fn after(&self, seq: u64) -> usize {
        self.stored.partition_point(|it| it.seq <= seq)
    }

    pub(crate) fn last(&self) -> u64 {
        self.stored.last().map_or(0, |it| it.seq)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinRequest {
    pub(crate) topic: u8,
    /// The client's id, if it has one and opts in.
    pub(crate) id: u32,
    pub(crate) client: u32,
    pub(crate) intercepts: bool,
}

pub(crate) struct Ledger {
    findings: Findings,
    pub(crate) plan: Plan,
    /// The time of the shard of this step, and the latest of any shard: a turn has one time.
    now_ms: u64,
    pub(crate) latest_ms: u64,
    pub(crate) topics: Vec<Topic>,
    pub(crate) broadcasts: Vec<BroadcastInfo>,
    pub(crate) joins: Vec<JoinRequest>,
    pub(crate) handles: Vec<(u32, Handle)>,
    /// How many messages each limited channel has handled, and since when.
    handled: BTreeMap<u32, (u64, u64)>,
}

impl Deref for Ledger {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        &self.findings
    }
}

impl DerefMut for Ledger {
    fn deref_mut(&mut self) -> &mut Findings {
        &mut self.findings
    }
}

impl Ledger {
    pub(crate) fn new(plan: &Plan) -> Self {
        let topic = || Topic { heard: vec![0; plan.shards], ..Topic::default() };
        Self {
            findings: Findings::default(),
            plan: plan.clone(),
            now_ms: 0,
            latest_ms: 0,
            topics: (0..plan.topics).map(|_| topic()).collect(),
            broadcasts: Vec::new(),
            joins: Vec::new(),
            handles: Vec::new(),
            handled: BTreeMap::new(),
        }
    }

    pub(crate) fn restart(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.handles.clear();
        self.counts.count("restarts", 1);
        for (number, topic) in self.topics.iter_mut().enumerate() {
            if !is_kept(number) {
                let heard = vec![0; topic.heard.len()];
                *topic = Topic { heard, ..Topic::default() };
            }
        }
    }

    pub(crate) fn begin_step(&mut self, now_ms: u64) {
        (self.now_ms, self.latest_ms) = (now_ms, self.latest_ms.max(now_ms));
    }

    pub(crate) fn new_broadcast(&mut self, made: BroadcastInfo) -> u32 {
        self.broadcasts.push(made);
        self.broadcasts.len() as u32 - 1
    }

    /// A channel handles a message: not more of them than its limit admits.
    pub(crate) fn check_quota(&mut self, chan: u32) {
        let Some(Quota { count, period_ms, burst, .. }) = self.plan.quota else { return };
        let (handled, since_ms) = self.handled.entry(chan).or_insert((0, self.now_ms));
        *handled += 1;
        let (handled, passed_ms) = (*handled, self.now_ms - *since_ms);
        if handled > burst + count * passed_ms / period_ms + 1 {
            let text = format!("channel {chan} handles {handled} messages in {passed_ms} ms");
            self.fail("limit", text);
        }
    }

    pub(crate) fn note_heard(
        &mut self,
        shard: usize,
        topic: usize,
        id: u32,
        bytes: usize,
        position: Option<Position>,
    ) {
        let Some(position) = position else {
            return self.fail("stored", format!("#{id} comes to shard {shard} without a place"));
        };
        let seq = position.place.seq;
        self.note(|| format!("shard {shard} hears #{id} at {seq} of topic {topic}"));
        let now_ms = self.now_ms;
        let Some(it) = self.topics.get_mut(topic) else { return };
        let Some(at) = it.heard.get_mut(shard) else { return };
        let known = it.stored.get(*at).copied();
        *at += 1;
        if let Some(known) = known {
            if (known.seq, known.id) != (seq, id) {
                let text = format!("shard {shard} hears #{id} at {seq}, where {known:?} is next");
                self.fail("stored", text);
            }
            return;
        }
        let epoch = *it.epoch.get_or_insert(position);
        if epoch.epoch != position.epoch {
            return self.fail("stored", format!("#{id} at {position}, behind {epoch}"));
        }
        let last = it.last();
        it.stored.push(Stored { seq, id, at_ms: now_ms, bytes: bytes as u64 });
        let home = *it.home.get_or_insert(shard);
        self.counts.count("stored", 1);
        if home != shard || seq <= last {
            let text = format!("#{id} is stored by shard {shard} ({home}) at {seq} behind {last}");
            self.fail("stored", text);
        }
        let Some(made) = self.broadcasts.get_mut(id as usize) else {
            return self.fail("stored", format!("nobody made #{id}"));
        };
        let is_right = usize::from(made.topic) == topic && !made.is_stored;
        made.is_stored = true;
        let (chan, is_optional) = (made.chan, made.is_optional);
        if !is_right {
            return self.fail("stored", format!("#{id} is stored twice, or elsewhere"));
        }
        if chan != NONE && !is_optional {
            self.check_order(id, chan, topic);
        }
    }

    /// Broadcasts of a channel's callbacks are stored in the order in which they were made.
    fn check_order(&mut self, id: u32, chan: u32, topic: usize) {
        let Some(it) = self.topics.get(topic) else { return };
        let made = |id: u32| self.broadcasts.get(id as usize);
        let earlier = it.stored.iter().rev().skip(1).take(40);
        let mut same =
            earlier.filter(|it| made(it.id).is_some_and(|it| it.chan == chan && !it.is_optional));
        if let Some(before) = same.next().filter(|it| it.id > id) {
            let text = format!("channel {chan}: #{id} is stored behind #{}", before.id);
            self.fail("order", text);
        }
    }

    /// A client receives what its channel sent after broadcasts: those are stored.
    pub(crate) fn check_reply(&mut self, id: u32) {
        if id == payload::EMPTY {
            return;
        }
        let Some(made) = self.broadcasts.get(id as usize) else {
            return self.fail("payload", format!("nobody made #{id}"));
        };
        let is_stored =
            |id: &&u32| self.broadcasts.get(**id as usize).is_some_and(|it| it.is_stored);
        let behind = made.behind.len() as u64;
        let missing = made.behind.iter().find(|it| !is_stored(it)).copied();
        self.counts.count("said behind", behind);
        if let Some(other) = missing {
            self.fail("barrier", format!("#{id} is said before #{other} is stored"));
        }
    }
}
