//! The topics of a shard whose presences other nodes have a part in.

use std::collections::VecDeque;
use std::rc::Rc;

use simurgh_channel::PresenceConfig;
use simurgh_presence::{Owner, Snapshot};

use super::home::Home;
use simurgh_presence::{FromPeers, ToPeers};

/// Topics of which a gone node is removed in one turn.
const FORGOTTEN_PER_TURN: usize = 256;

/// What a home keeps for other nodes, beside the state of each topic.
#[derive(Default)]
pub(super) struct Abroad {
    /// No entries of a topic that is not here had a version above this: what other nodes know of
    /// one that was here before is older than all that is said of it again.
    pub(super) version: u64,
    /// Messages to other nodes, by topic.
    outbox: Vec<(Rc<str>, ToPeers)>,
    /// Topics from which a gone node is still to be removed.
    gone: VecDeque<(Rc<str>, Owner)>,
    pub(super) remote: usize,
}

impl Home {
    /// A channel of this node begins to use the presences of a topic.
    pub(super) fn begin(&mut self, name: &str, config: &PresenceConfig, now_ns: u64) {
        if self.abroad.is_none() {
            return;
        }
        if let Some(peers) = self.open(name, now_ns).and_then(|topic| topic.peers.as_mut()) {
            peers.channels += 1;
        }
        self.gather(name);
        self.look_soon(name, config, now_ns);
    }

    /// A message of other nodes.
    pub(super) fn hear(
        &mut self,
        name: &str,
        what: FromPeers,
        config: &PresenceConfig,
        now_ns: u64,
    ) {
        let Some(abroad) = &mut self.abroad else { return };
        let Some(topic) = self.topics.get_mut(name) else {
            if let FromPeers::StateWanted(node) = what {
                let (owner, version) = (self.owner, abroad.version);
                let nobody = Snapshot { owner, version, entries: Vec::new() };
                abroad.outbox.push((name.into(), ToPeers::State(node, nobody)));
            }
            return;
        };
        let (before, remote) = (topic.table.len(), topic.table.remote());
        topic.hear(what, now_ns);
        self.entries = self.entries + topic.table.len() - before;
        abroad.remote = abroad.remote + topic.table.remote() - remote;
        self.gather(name);
        self.look_soon(name, config, now_ns);
    }

    /// A node is gone: it is removed from all topics, some in each turn.
    pub(super) fn forget(&mut self, node: Owner) {
        let Some(abroad) = &mut self.abroad else { return };
        let mut names: Vec<Rc<str>> = self.topics.keys().map(Rc::clone).collect();
        // The order of the table is another in each process.
        names.sort_unstable();
        abroad.gone.extend(names.into_iter().map(|name| (name, node)));
    }

    pub(super) fn remote(&self) -> usize {
        self.abroad.as_ref().map_or(0, |it| it.remote)
    }

    /// Whether a gone node is still to be removed from topics.
    pub(super) fn is_forgetting(&self) -> bool {
        self.abroad.as_ref().is_some_and(|it| !it.gone.is_empty())
    }

    /// Removes it from some.
    pub(super) fn go_on_forgetting(&mut self, config: &PresenceConfig, now_ns: u64) {
        for _ in 0..FORGOTTEN_PER_TURN {
            let Some(abroad) = &mut self.abroad else { return };
            let Some((name, node)) = abroad.gone.pop_front() else { return };
            if let Some(topic) = self.topics.get_mut(&name) {
                let (before, remote) = (topic.table.len(), topic.table.remote());
                topic.forget(node);
                self.entries = self.entries + topic.table.len() - before;
                abroad.remote = abroad.remote + topic.table.remote() - remote;
                self.gather(&name);
                self.look_soon(&name, config, now_ns);
            }
        }
    }

    /// Collects a topic's messages to other nodes.
    pub(super) fn gather(&mut self, name: &str) {
        let Some(abroad) = &mut self.abroad else { return };
        let Some((name, topic)) = self.topics.get_key_value(name) else { return };
        // It is looked at again through the mutable way, which has no key to be shared.
        let name = Rc::clone(name);
        if topic.peers.as_ref().is_some_and(|peers| !peers.outbox.is_empty())
            && let Some(peers) = self.topics.get_mut(&name).and_then(|it| it.peers.as_mut())
        {
            let said = peers.outbox.drain(..);
            abroad.outbox.extend(said.map(|what| (Rc::clone(&name), what)));
        }
    }

    pub(super) fn close(&mut self, name: &str) {
        let Some(topic) = self.topics.remove(name) else { return };
        self.entries = self.entries.saturating_sub(topic.table.len());
        if let Some(abroad) = &mut self.abroad {
            abroad.remote = abroad.remote.saturating_sub(topic.table.remote());
            abroad.version = abroad.version.max(topic.table.version());
            abroad.outbox.push((name.into(), ToPeers::End));
        }
    }

    pub(super) fn take_outbox(&mut self) -> Vec<(Rc<str>, ToPeers)> {
        self.abroad.as_mut().map(|it| std::mem::take(&mut it.outbox)).unwrap_or_default()
    }
}
