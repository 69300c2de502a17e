//! The topics whose presences a shard keeps, and when it is their turn; and what the shard tells
//! members by itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use simurgh_channel::{
    ChannelId, PresenceCall, PresenceCallback, PresenceConfig, PresenceList, SharedEvent,
};
use simurgh_presence::{Owner, PhxRefs};

use super::abroad::Abroad;
use super::say::Say;
use super::topic::{NOBODY, Topic};

/// The presences of the topics whose home this shard is.
pub(crate) struct Home {
    pub(super) owner: Owner,
    /// Secret: it keys the tables.
    seed: u64,
    /// One source, so that refs never repeat.
    refs: PhxRefs,
    pub(super) topics: HashMap<Rc<str>, Topic>,
    /// When topics are due; some have been looked at meanwhile.
    due: BinaryHeap<Reverse<(u64, Rc<str>)>>,
    pub(super) entries: usize,
    /// State for other nodes; `None` without a cluster.
    pub(super) abroad: Option<Box<Abroad>>,
    /// Answers for members of topics that are too large for a list, whichever shard is their home.
    answers: HashMap<Box<str>, Arc<[SharedEvent]>>,
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    /// Too many entries, already tracked, or not tracked.
    Refused,
}

impl Home {
    pub(crate) fn new(node: Owner, shard: u16, is_clustered: bool, seed: u64) -> Self {
        let (topics, due) = (HashMap::new(), BinaryHeap::new());
        let refs = PhxRefs::new(Owner(node.0.wrapping_add(u64::from(shard))));
        let abroad = is_clustered.then(Box::default);
        let answers = HashMap::new();
        Self { owner: node, seed, refs, topics, due, entries: 0, abroad, answers }
    }

    pub(super) fn open(&mut self, name: &str, now_ns: u64) -> Option<&mut Topic> {
        if !self.topics.contains_key(name) {
            let mut topic = match &self.abroad {
                None => Topic::alone(self.owner, self.seed),
                Some(abroad) => Topic::shared(self.owner, self.seed, abroad.version),
            };
            topic.begin(now_ns);
            self.topics.insert(name.into(), topic);
        }
        self.topics.get_mut(name)
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Whether there are no presences, and nothing is to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// The answer to a member that requests the list, if this shard has it.
    pub(super) fn answer(&self, name: &str) -> Option<Arc<[SharedEvent]>> {
        self.answers.get(name).map(Arc::clone)
    }

    /// Keeps the answer for members of a topic, or drops it.
    pub(super) fn keep(&mut self, name: &str, events: Option<Arc<[SharedEvent]>>) {
        match events {
            Some(events) => drop(self.answers.insert(name.into(), events)),
            None => drop(self.answers.remove(name)),
        }
        if self.answers.is_empty() {
            self.answers = HashMap::new();
        }
    }

    /// Does what a channel requests.
    pub(super) fn call(
        &mut self,
        name: &str,
        (channel, call): (ChannelId, PresenceCall),
        config: &PresenceConfig,
        now_ns: u64,
    ) -> Taken {
        if !self.topics.contains_key(name) {
            match call {
                PresenceCall::End => return Taken::Yes,
                // There is nothing to be changed.
                PresenceCall::Untrack(_) | PresenceCall::Update(..) => return Taken::Refused,
                PresenceCall::Track(..) | PresenceCall::PushState => {}
            }
            self.open(name, now_ns);
        }
        let Some(topic) = self.topics.get_mut(name) else { return Taken::Refused };
        let before = topic.table.len();
        let refs = &mut self.refs;
        let is_end = matches!(call, PresenceCall::End);
        let is_taken = topic.call(channel, call, config, || refs.next(now_ns / 1000));
        if let Some(peers) = topic.peers.as_mut().filter(|_| is_end) {
            peers.channels = peers.channels.saturating_sub(1);
        }
        self.entries = self.entries + topic.table.len() - before;
        self.look_soon(name, config, now_ns);
        if is_taken { Taken::Yes } else { Taken::Refused }
    }

    /// Answers who is present, now or once other nodes have said who is there; returns what is to
    /// be answered now.
    pub(super) fn list(
        &mut self,
        name: &str,
        answer: PresenceCallback,
        config: &PresenceConfig,
        now_ns: u64,
    ) -> Option<(PresenceCallback, PresenceList)> {
        if self.abroad.is_some() {
            self.open(name, now_ns);
            self.gather(name);
        }
        let Some(topic) = self.topics.get_mut(name) else {
            return Some((answer, PresenceList { json: NOBODY.into(), ..PresenceList::default() }));
        };
        if let Some(peers) = &mut topic.peers
            && !peers.has_answers(now_ns)
        {
            peers.lists.push(answer);
            self.look_soon(name, config, now_ns);
            return None;
        }
        Some((answer, topic.show(config, now_ns)))
    }

    /// When a topic is due next.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// The next topic that is due.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Rc<str>> {
        while self.next_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            let Reverse((due_ns, name)) = self.due.pop()?;
            if let Some(topic) = self.topics.get_mut(&name)
                && topic.due_ns == Some(due_ns)
            {
                topic.due_ns = None;
                return Some(name);
            }
        }
        None
    }

    /// What members of a due topic are sent; payloads up to so many bytes.
    pub(super) fn tell(
        &mut self,
        name: &str,
        config: &PresenceConfig,
        bytes_max: usize,
        now_ns: u64,
    ) -> Vec<Say> {
        let mut said = Vec::new();
        let Some(topic) = self.topics.get_mut(name) else { return said };
        if topic.next_ns(config).is_some_and(|next_ns| next_ns <= now_ns) {
            topic.tell(config, bytes_max, now_ns, &mut said);
        }
        topic.hand_out(config, &mut said);
        let answers = topic.answers(config, now_ns).into_iter();
        said.extend(answers.map(|(answer, list)| Say::Answer(answer, list)));
        self.gather(name);
        if let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.is_done()) {
            let (before, remote) = (topic.table.len(), topic.table.remote());
            said.extend(topic.farewell(bytes_max));
            self.entries = self.entries + topic.table.len() - before;
            if let Some(abroad) = &mut self.abroad {
                abroad.remote = abroad.remote + topic.table.remote() - remote;
            }
            self.close(name);
            if self.topics.is_empty() {
                // What a crowd needed is given back.
                (self.topics, self.due) = (HashMap::new(), BinaryHeap::new());
            }
        } else {
            self.look_soon(name, config, now_ns);
        }
        said
    }

    /// Postpones a due topic.
    pub(super) fn put_off(&mut self, name: Rc<str>, until_ns: u64) {
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.due_ns = Some(until_ns);
            self.due.push(Reverse((until_ns, name)));
        }
    }

    pub(super) fn look_soon(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        let Some((name, topic)) = self.topics.get_key_value(name) else { return };
        let next_ns = match topic.getting.is_empty() {
            true => topic.next_ns(config),
            // In the next turn.
            false => Some(now_ns + 1),
        };
        let Some(next_ns) = next_ns else { return };
        if topic.due_ns.is_none_or(|due_ns| next_ns < due_ns) {
            let name = Rc::clone(name);
            self.put_off(name, next_ns);
        }
    }
}
