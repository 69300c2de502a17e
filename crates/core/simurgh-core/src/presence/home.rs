//! The topics whose home this shard is, their deadlines, and the answers that the shard gives to
//! members by itself.

use crate::seeded_state::{HashMap, SeededState};
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use simurgh_data::prelude::*;

use simurgh_channel::{
    ChannelId, Charge, PresenceCall, PresenceCallback, PresenceConfig, PresenceList, SharedEvent,
};
use simurgh_presence::{FromPeers, Owner, PhxRefs, Snapshot, ToPeers};

use super::output::Output;
use super::topic::{NOBODY, Topic};
use crate::name_table::NameMap;

/// Topics of which a gone node is removed in one turn.
const FORGOTTEN_PER_TURN: usize = 256;

pub(super) struct Home {
    pub(super) owner: Owner,
    /// Secret: it keys the tables.
    seed: u64,
    /// One source, so that refs never repeat.
    refs: PhxRefs,
    pub(super) topics: NameMap<Topic>,
    /// When topics are due; some were handled meanwhile.
    due: BinaryHeap<Reverse<(u64, Rc<str>)>>,
    pub(super) entries: usize,
    /// Bytes of leaves that wait for their delay, and the topics of those, the first due first.
    pub(super) leaving_bytes: usize,
    pub(super) leaving: VecDeque<(u64, Rc<str>)>,
    peering: Option<Box<Peering>>,
    /// Answers for members of topics that are too large for a list, whichever shard is their home.
    answers: HashMap<Box<str>, Arc<[SharedEvent]>, SeededState>,
}

/// State for other nodes, in addition to that of each topic; `None` without a cluster.
#[derive(Default)]
struct Peering {
    /// The highest version of topics that were closed: a new table of such a topic continues from
    /// there, above all versions that other nodes know.
    version: u64,
    outbox: Vec<(Rc<str>, ToPeers)>,
    gone: VecDeque<(Rc<str>, Owner)>,
    remote: usize,
}

/// A member's call, with its charge in the flow of the topic.
pub(super) struct MemberCall {
    pub(super) channel: ChannelId,
    pub(super) call: PresenceCall,
    pub(super) charge: Option<Arc<Charge>>,
}

#[cfg(test)]
impl MemberCall {
    pub(super) fn uncharged(channel: ChannelId, call: PresenceCall) -> Self {
        Self { channel, call, charge: None }
    }
}

impl Home {
    pub(super) fn new(node: Owner, shard: u16, is_clustered: bool, seed: u64) -> Self {
        let (topics, due) = (NameMap::new(seed), BinaryHeap::new());
        let refs = PhxRefs::new(Owner(node.0.wrapping_add(u64::from(shard))));
        let peering = is_clustered.then(Box::default);
        let answers = HashMap::with_hasher(SeededState::new(seed));
        let (leaving, leaving_bytes) = (VecDeque::new(), 0);
        let owner = node;
        Self {
            owner,
            seed,
            refs,
            topics,
            due,
            entries: 0,
            leaving_bytes,
            leaving,
            peering,
            answers,
        }
    }

    pub(super) fn open(&mut self, name: &str, now_ns: u64) -> &mut Topic {
        self.topics.get_or_insert_with(name, || {
            let mut topic = match &self.peering {
                None => Topic::alone(self.owner, self.seed),
                Some(peering) => Topic::shared(self.owner, self.seed, peering.version),
            };
            topic.begin(now_ns);
            topic
        })
    }

    /// Whether there are no presences, and nothing is to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Bytes of calls that members have not been sent the changes of, in their flows.
    pub(super) fn charged_bytes(&self) -> usize {
        self.topics.iter().map(|(_, topic)| topic.charged_bytes()).sum()
    }

    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// The answer to a member that requests the list, if this shard has it.
    pub(super) fn answer(&self, name: &str) -> Option<Arc<[SharedEvent]>> {
        self.answers.get(name).map(Arc::clone)
    }

    pub(super) fn keep(&mut self, name: &str, events: Option<Arc<[SharedEvent]>>) {
        match events {
            Some(events) => drop(self.answers.insert(name.into(), events)),
            None => drop(self.answers.remove(name)),
        }
        if self.answers.is_empty() {
            self.answers.shrink_to_fit();
        }
    }

    /// Returns `false` if there are too many entries, or it is already tracked, or not tracked.
    pub(super) fn call(
        &mut self,
        name: &str,
        call: MemberCall,
        config: &PresenceConfig,
        now_ns: u64,
    ) -> bool {
        let MemberCall { channel, call, charge } = call;
        if self.topics.get(name).is_none() {
            match call {
                PresenceCall::End => return true,
                // Nothing changes.
                PresenceCall::Untrack(_) | PresenceCall::Update(..) => return false,
                PresenceCall::Track(..) | PresenceCall::PushState => {}
            }
            self.open(name, now_ns);
        }
        let Some(topic) = self.topics.get_mut(name) else { return false };
        let refs = &mut self.refs;
        let is_end = matches!(call, PresenceCall::End);
        let is_taken = count_change(topic, &mut self.entries, None, |topic| {
            topic.call(channel, call, config, || refs.next(now_ns / 1000))
        });
        if let Some(peers) = topic.peers.as_mut().filter(|_| is_end) {
            peers.channels = peers.channels.saturating_sub(1);
        }
        topic.keep_charge(charge);
        self.schedule(name, config, now_ns);
        is_taken
    }

    /// Answers a request for the list, now or once other nodes have sent theirs. Returns what is
    /// answered now.
    pub(super) fn list(
        &mut self,
        name: &str,
        answer: PresenceCallback,
        config: &PresenceConfig,
        now_ns: u64,
    ) -> Option<(PresenceCallback, PresenceList)> {
        if self.peering.is_some() {
            self.open(name, now_ns);
            self.collect_outbox(name);
        }
        let Some(topic) = self.topics.get_mut(name) else {
            return Some((answer, PresenceList { json: NOBODY.into(), ..PresenceList::default() }));
        };
        if let Some(peers) = &mut topic.peers
            && !peers.has_answers(now_ns)
        {
            peers.lists.push(answer);
            self.schedule(name, config, now_ns);
            return None;
        }
        Some((answer, topic.show(config, now_ns)))
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

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

    /// The messages for members of a due topic; payloads up to so many bytes.
    pub(super) fn tell(
        &mut self,
        name: &str,
        config: &PresenceConfig,
        bytes_max: usize,
        now_ns: u64,
    ) -> Vec<Output> {
        let mut output = Vec::new();
        let leaving_bytes = self.leaving_bytes_of(name);
        let Some(topic) = self.topics.get_mut(name) else { return output };
        if topic.next_ns(config).is_some_and(|next_ns| next_ns <= now_ns) {
            topic.tell(config, bytes_max, now_ns, &mut output);
        }
        topic.next_portion(config, &mut output);
        let answers = topic.answers(config, now_ns).into_iter();
        output.extend(answers.map(|(answer, list)| Output::Answer(answer, list)));
        self.collect_outbox(name);
        if let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.is_done()) {
            let peering = self.peering.as_deref_mut();
            let farewell = |topic: &mut Topic| topic.farewell(bytes_max);
            output.extend(count_change(topic, &mut self.entries, peering, farewell));
            self.close(name);
            if self.topics.is_empty() {
                // Memory that a crowd needed is freed.
                (self.due, self.leaving) = (BinaryHeap::new(), VecDeque::new());
            }
        } else {
            self.schedule(name, config, now_ns);
        }
        self.count_leaving(name, leaving_bytes);
        self.note_leaving(name, config, now_ns);
        output
    }

    pub(super) fn postpone(&mut self, name: Rc<str>, until_ns: u64) {
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.due_ns = Some(until_ns);
            self.due.push(Reverse((until_ns, name)));
        }
    }

    pub(super) fn schedule(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        let Some((name, topic)) = self.topics.entry(name) else { return };
        let next_ns = match topic.getting.is_empty() {
            true => topic.next_ns(config),
            // In the next turn.
            false => Some(now_ns + 1),
        };
        let Some(next_ns) = next_ns else { return };
        if topic.due_ns.is_none_or(|due_ns| next_ns < due_ns) {
            let name = Rc::clone(name);
            self.postpone(name, next_ns);
        }
    }
}

/// The part for other nodes.
impl Home {
    pub(super) fn begin(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        if self.peering.is_none() {
            return;
        }
        if let Some(peers) = &mut self.open(name, now_ns).peers {
            peers.channels += 1;
        }
        self.collect_outbox(name);
        self.schedule(name, config, now_ns);
    }

    pub(super) fn peers_message(
        &mut self,
        name: &str,
        what: FromPeers,
        config: &PresenceConfig,
        now_ns: u64,
    ) {
        let Some(peering) = &mut self.peering else { return };
        let Some(topic) = self.topics.get_mut(name) else {
            if let FromPeers::StateWanted(node) = what {
                let (owner, version) = (self.owner, peering.version);
                let nobody = Snapshot { owner, version, entries: Vec::new() };
                peering.outbox.push((name.into(), ToPeers::State(node, nobody)));
            }
            return;
        };
        count_change(topic, &mut self.entries, Some(peering), |topic| {
            topic.peers_message(what, now_ns)
        });
        self.collect_outbox(name);
        self.schedule(name, config, now_ns);
    }

    /// A node is gone: it is removed from all topics, some in each turn.
    pub(super) fn forget(&mut self, node: Owner) {
        let Some(peering) = &mut self.peering else { return };
        let mut names: Vec<Rc<str>> = self.topics.iter().map(|(name, _)| Rc::clone(name)).collect();
        // The order of the table differs from process to process.
        names.sort_unstable();
        peering.gone.extend(names.into_iter().map(|name| (name, node)));
    }

    pub(super) fn remote(&self) -> usize {
        self.peering.as_ref().map_or(0, |it| it.remote)
    }

    pub(super) fn is_forgetting(&self) -> bool {
        self.peering.as_ref().is_some_and(|it| !it.gone.is_empty())
    }

    pub(super) fn go_on_forgetting(&mut self, config: &PresenceConfig, now_ns: u64) {
        for _ in 0..FORGOTTEN_PER_TURN {
            let Some(peering) = &mut self.peering else { return };
            let Some((name, node)) = peering.gone.pop_front() else { return };
            if let Some(topic) = self.topics.get_mut(&name) {
                count_change(topic, &mut self.entries, Some(peering), |topic| topic.forget(node));
                self.collect_outbox(&name);
                self.schedule(&name, config, now_ns);
            }
        }
    }

    pub(super) fn collect_outbox(&mut self, name: &str) {
        let Some(peering) = &mut self.peering else { return };
        let Some((name, topic)) = self.topics.entry(name) else { return };
        // The mutable look-up has no key to share.
        let name = Rc::clone(name);
        if topic.peers.as_ref().is_some_and(|peers| !peers.outbox.is_empty())
            && let Some(peers) = self.topics.get_mut(&name).and_then(|it| it.peers.as_mut())
        {
            let output = peers.outbox.drain(..);
            peering.outbox.extend(output.map(|what| (Rc::clone(&name), what)));
        }
    }

    pub(super) fn close(&mut self, name: &str) {
        let Some(topic) = self.topics.remove(name) else { return };
        self.entries = self.entries.saturating_sub(topic.table.len());
        if let Some(peering) = &mut self.peering {
            peering.remote = peering.remote.saturating_sub(topic.table.remote());
            peering.version = peering.version.max(topic.table.version());
            peering.outbox.push((name.into(), ToPeers::End));
        }
    }

    pub(super) fn take_outbox(&mut self) -> Vec<(Rc<str>, ToPeers)> {
        self.peering.as_mut().map(|it| core::mem::take(&mut it.outbox)).unwrap_or_default()
    }
}

/// Counts the entries that a change of a topic adds or removes.
fn count_change<R>(
    topic: &mut Topic,
    entries: &mut usize,
    peering: Option<&mut Peering>,
    change: impl FnOnce(&mut Topic) -> R,
) -> R {
    let (before, remote) = (topic.table.len(), topic.table.remote());
    let result = change(topic);
    *entries = *entries + topic.table.len() - before;
    if let Some(peering) = peering {
        peering.remote = peering.remote + topic.table.remote() - remote;
    }
    result
}
