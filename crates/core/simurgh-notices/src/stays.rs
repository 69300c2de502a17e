//! The stays of a partition: which nodes have memberships, and what the log says is open.
//!
//! Nothing is decided when something changes. A key whose two sides differ is *ready*, and
//! [`Stays::decide`] compares them when a record can be appended. So whatever happens while the log
//! cannot be written is netted out, and a record that fails is decided again.

use core::cmp::Reverse;

use alloc::collections::{BTreeSet, BinaryHeap};

use simurgh_data::prelude::*;
use simurgh_presence::PhxRef;

use crate::key::{Key, Kind, Reason, Time};
use crate::keyed::{HasKey, Keyed};
use crate::record::{Notice, Stay};

const NEVER: u64 = u64::MAX;

/// An open stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) id: PhxRef,
    pub(crate) since_ms: u64,
    pub(crate) n: u64,
    /// The place of its start in the log.
    pub(crate) at: u64,
}

/// The end of a node's last membership of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
    /// When the stay ends.
    pub(crate) due_ns: u64,
    pub(crate) reason: Reason,
    pub(crate) now_ns: u64,
}

/// A key with memberships, or with an open stay.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: Key,
    /// Nodes with memberships.
    nodes: Vec<u64>,
    pub(crate) open: Option<Open>,
    /// Of the last membership that began or ended.
    pub(crate) node: Arc<str>,
    began_ms: u64,
    ended_ms: u64,
    /// When it ends, without memberships.
    due_ns: u64,
    /// Members of a topic that are held.
    members: u32,
    reason: Reason,
    is_ready: bool,
    /// A record of it is being appended.
    is_pending: bool,
}

// Budget: 250 bytes for an open stay, with its key, its nodes and its place in the index.
const _: () = assert!(simurgh_data::Slab::<Held>::SLOT_BYTES <= 160);

impl HasKey for Held {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Held {
    fn start(&mut self, time: Time, (n, id): (u64, PhxRef)) -> Notice {
        self.is_pending = true;
        let is_topic = self.key.kind() == Kind::Topic;
        let since_ms = if is_topic { time.unix_ms } else { self.began_ms };
        let stay = Stay { id, key: self.key.clone(), since_ms };
        Notice { n, stay, node: Arc::clone(&self.node), end: None }
    }

    fn finish(&mut self, open: &Open, n: u64) -> Notice {
        self.is_pending = true;
        let Open { id, since_ms, .. } = *open;
        let stay = Stay { id, key: self.key.clone(), since_ms };
        let end = Some((self.ended_ms.max(since_ms), self.reason));
        Notice { n, stay, node: Arc::clone(&self.node), end }
    }

    fn is_live(&self) -> bool {
        !self.nodes.is_empty() || self.members > 0
    }
}

#[derive(Debug)]
pub(crate) struct Stays {
    held: Keyed<Held>,
    ready: VecDeque<u32>,
    /// Decided when no member is ready: those may be netted out.
    ready_topics: VecDeque<u32>,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    open: usize,
}

impl Stays {
    pub(crate) fn new(seed: u64) -> Self {
        let (ready, ready_topics) = (VecDeque::new(), VecDeque::new());
        Self { held: Keyed::new(seed), ready, ready_topics, due: BinaryHeap::new(), open: 0 }
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().map(|(_, held)| held)
    }

    /// A node has memberships of a key.
    pub(crate) fn begin(&mut self, key: &Key, node: (u64, &Arc<str>), began_ms: u64) {
        let at = self.find_or_hold(key);
        let Some(held) = self.held.get_mut(at) else { return };
        if held.nodes.is_empty() {
            (held.began_ms, held.node) = (began_ms, Arc::clone(node.1));
        }
        if !held.nodes.contains(&node.0) {
            held.nodes.reserve_exact(1);
            held.nodes.push(node.0);
        }
        held.due_ns = NEVER;
        self.make_ready(at);
    }

    /// A node has no memberships of a key any more. A key that is not held began and ended between
    /// two reports: it has a stay if its grace is not over.
    pub(crate) fn end(&mut self, key: &Key, (node, name): (u64, &Arc<str>), end: &End) {
        let End { began_ms, ended_ms, due_ns, reason, now_ns } = *end;
        let found = self.held.find(key);
        if found.is_none() && due_ns <= now_ns {
            return;
        }
        let at = found.unwrap_or_else(|| self.find_or_hold(key));
        let Some(held) = self.held.get_mut(at) else { return };
        if found.is_none() {
            held.began_ms = began_ms;
        }
        held.nodes.retain(|it| *it != node);
        // The last end of all counts, and a state repeats ends.
        if held.nodes.is_empty() && (held.due_ns == NEVER || held.due_ns < due_ns) {
            (held.node, held.reason) = (Arc::clone(name), reason);
            (held.ended_ms, held.due_ns) = (ended_ms, due_ns);
            self.make_ready(at);
        }
    }

    /// A node has no memberships except those of these keys.
    pub(crate) fn end_others(&mut self, node: (u64, &Arc<str>), but: &BTreeSet<&Key>, end: &End) {
        let is_ended = |held: &&Held| held.nodes.contains(&node.0) && !but.contains(&held.key);
        let ended: Vec<Key> = self.iter().filter(is_ended).map(|held| held.key.clone()).collect();
        for key in &ended {
            self.end(key, node, end);
        }
    }

    /// All nodes have reported: open stays without memberships end. Those whose node is unknown
    /// ended as this says.
    pub(crate) fn end_orphans(&mut self, end: &End) {
        self.each(|held| {
            if held.open.is_some() && held.nodes.is_empty() && held.due_ns == NEVER {
                (held.ended_ms, held.due_ns, held.reason) = (end.ended_ms, end.due_ns, end.reason);
            }
        });
    }

    /// Changes all, and makes them ready.
    fn each(&mut self, change: impl Fn(&mut Held)) {
        let all: Vec<u32> = self.held.iter().map(|(at, _)| at).collect();
        for at in all {
            if let Some(held) = self.held.get_mut(at) {
                change(held);
            }
            self.make_ready(at);
        }
    }

    /// The log has the start of a stay, perhaps again.
    pub(crate) fn started(&mut self, notice: &Notice, at: u64) {
        let slot = self.find_or_hold(&notice.stay.key);
        let Some(held) = self.held.get_mut(slot) else { return };
        let Stay { id, since_ms, .. } = notice.stay;
        held.is_pending = false;
        if let Some(open) = &mut held.open {
            // The log was compacted.
            if open.id == id {
                open.at = at;
            }
            return;
        }
        held.open = Some(Open { id, since_ms, n: notice.n, at });
        if held.node.is_empty() {
            held.node = Arc::clone(&notice.node);
        }
        self.open += 1;
        self.make_ready(slot);
    }

    /// The log has the end of a stay.
    pub(crate) fn ended(&mut self, stay: &Stay) {
        let Some(slot) = self.held.find(&stay.key) else { return };
        let Some(held) = self.held.get_mut(slot) else { return };
        held.is_pending = false;
        if held.open.is_some_and(|open| open.id == stay.id) {
            (held.open, held.due_ns) = (None, if held.is_live() { held.due_ns } else { 0 });
            self.open -= 1;
        }
        self.make_ready(slot);
    }

    /// Records that were being appended are not in the log, or do not count.
    pub(crate) fn append_failed(&mut self) {
        self.each(|held| held.is_pending = false);
    }

    /// No stay is open: the log was lost.
    pub(crate) fn close_all(&mut self) {
        self.each(|held| {
            held.open = None;
            if !held.is_live() && held.due_ns == NEVER {
                // Only the log had it.
                held.due_ns = 0;
            }
        });
        self.open = 0;
    }

    /// Makes stays ready whose grace is over.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        while let Some(Reverse((due_ns, at))) = self.due.peek().copied()
            && due_ns <= now_ns
        {
            self.due.pop();
            if self.held.get(at).is_some_and(|held| held.due_ns == due_ns) {
                self.make_ready(at);
            }
        }
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.ready_topics.is_empty()
    }

    /// The next start or end, if there is one to decide. `may_end`: whether all nodes that may have
    /// memberships have reported them. `new` gives a number and an id.
    pub(crate) fn decide(
        &mut self,
        time: Time,
        may_end: bool,
        mut new: impl FnMut() -> (u64, PhxRef),
    ) -> Option<Notice> {
        while let Some(at) = self.ready.pop_front().or_else(|| self.ready_topics.pop_front()) {
            let Some(held) = self.held.get_mut(at) else { continue };
            held.is_ready = false;
            let is_over = held.key.kind() == Kind::Topic || held.due_ns <= time.ns;
            match (held.open, held.is_live()) {
                _ if held.is_pending => {}
                (Some(_), true) => {}
                (None, false) if is_over => self.drop(at),
                (None, _) => {
                    let first = self.start_before(at);
                    if first != at {
                        self.ready.push_front(at);
                    }
                    return self.held.get_mut(first).map(|held| held.start(time, new()));
                }
                // Orphans, until all nodes have reported.
                (Some(_), false) if !may_end || held.due_ns == NEVER && !is_over => {}
                (Some(open), false) if is_over => return Some(held.finish(&open, new().0)),
                (Some(_), false) => self.due.push(Reverse((held.due_ns, at))),
            }
        }
        None
    }

    /// The key that starts before another one: a member's topic, unless it is open.
    fn start_before(&self, at: u32) -> u32 {
        let member = self.held.get(at).filter(|held| held.key.kind() == Kind::Member);
        let topic = member.and_then(|held| self.held.find(&Key::topic_of(held.key.topic())));
        let is_closed = |at: &u32| {
            self.held.get(*at).is_some_and(|topic| topic.open.is_none() && !topic.is_pending)
        };
        topic.filter(is_closed).unwrap_or(at)
    }

    fn find_or_hold(&mut self, key: &Key) -> u32 {
        if let Some(at) = self.held.find(key) {
            return at;
        }
        let at = self.held.insert(Held {
            key: key.clone(),
            nodes: Vec::new(),
            open: None,
            node: Arc::default(),
            began_ms: 0,
            ended_ms: 0,
            due_ns: NEVER,
            members: 0,
            reason: Reason::Closed,
            is_ready: false,
            is_pending: false,
        });
        if key.kind() == Kind::Member {
            let topic_at = self.find_or_hold(&Key::topic_of(key.topic()));
            if let Some(topic) = self.held.get_mut(topic_at) {
                topic.members += 1;
            }
            self.make_ready(topic_at);
        }
        at
    }

    fn drop(&mut self, at: u32) {
        let Some(held) = self.held.remove(at).filter(|it| it.key.kind() == Kind::Member) else {
            return;
        };
        let Some(topic_at) = self.held.find(&Key::topic_of(held.key.topic())) else { return };
        if let Some(topic) = self.held.get_mut(topic_at) {
            topic.members = topic.members.saturating_sub(1);
            (topic.ended_ms, topic.reason) = (held.ended_ms, held.reason);
        }
        self.make_ready(topic_at);
    }

    fn make_ready(&mut self, at: u32) {
        let Some(held) = self.held.get_mut(at) else { return };
        if !core::mem::replace(&mut held.is_ready, true) {
            let is_topic = held.key.kind() == Kind::Topic;
            let ready = if is_topic { &mut self.ready_topics } else { &mut self.ready };
            ready.push_back(at);
        }
    }
}
