//! A topic's presences between the nodes of a cluster: each sends its own entries.

use simurgh_channel::{PresenceCallback, PresenceConfig, PresenceList};
use simurgh_presence::{Applied, Owner};

use super::output::Output;
use super::topic::{NOBODY, Topic, encoded};
use simurgh_data::prelude::*;
use simurgh_presence::{FromPeers, ToPeers};

impl Topic {
    /// Channels of this node begin to use the topic's presences, or code outside of channels wants
    /// the list: the other nodes are to be asked.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if let Some(peers) = &mut self.peers {
            peers.ask(now_ns);
            peers.outbox.push(ToPeers::Begin);
        }
    }

    pub(super) fn peers_message(&mut self, what: FromPeers, now_ns: u64) {
        let Some(peers) = &mut self.peers else { return };
        let applied = match what {
            FromPeers::Requested(nodes) => return peers.asked(&nodes),
            FromPeers::RequestedAgain(nodes) => return peers.expects(&nodes, now_ns),
            FromPeers::Delta(delta) => self.table.learn(delta),
            FromPeers::State(state) => {
                peers.answers(state.owner);
                self.table.answer(state)
            }
            FromPeers::StateWanted(node) => {
                // Otherwise the receiver of the snapshot would have to ask again at the next delta.
                if let Some(delta) = self.table.take_delta() {
                    // It may be lost, as any other.
                    peers.note_change(now_ns);
                    peers.outbox.push(ToPeers::Delta(delta));
                }
                peers.outbox.push(ToPeers::State(node, self.table.snapshot()));
                return;
            }
        };
        if let Applied::Missing { owner, .. } = applied {
            peers.outbox.push(ToPeers::RequestState(owner));
        }
    }

    pub(super) fn forget(&mut self, node: Owner) {
        self.table.node_down(node);
        if let Some(peers) = &mut self.peers {
            peers.answers(node);
        }
    }

    /// Sends what is due to other nodes. Returns whether members are due, too.
    pub(super) fn update_peers(&mut self, config: &PresenceConfig, now_ns: u64) -> bool {
        let is_for_members = self.next_diff_ns(config).is_some_and(|due_ns| due_ns <= now_ns);
        let Some(peers) = &mut self.peers else { return is_for_members };
        peers.ask_again(now_ns);
        if let Some(delta) = self.table.take_delta() {
            peers.note_change(now_ns);
            peers.outbox.push(ToPeers::Delta(delta));
            self.told_ns = Some(now_ns);
        } else if peers.repeats(now_ns) {
            peers.outbox.push(ToPeers::Delta(self.table.repeat_delta()));
        }
        peers.has_answers(now_ns) && is_for_members
    }

    /// The farewell to members when no channel here uses the topic's presences any more, and
    /// entries of other nodes are dropped: a member without a list keeps diffs until it gets one,
    /// and would never learn that those entries have left.
    pub(super) fn farewell(&mut self, bytes_max: usize) -> Option<Output> {
        self.table.peers_down();
        let json = encoded(&self.rest()?);
        match self.is_summary() || json.len() > bytes_max {
            // They get an empty list in place of diffs.
            true => Some(Output::All("presence_state", NOBODY.into())),
            false => Some(Output::All("presence_diff", json)),
        }
    }

    pub(super) fn answers(
        &mut self,
        config: &PresenceConfig,
        now_ns: u64,
    ) -> Vec<(PresenceCallback, PresenceList)> {
        let Some(peers) = self.peers.as_mut().filter(|it| !it.lists.is_empty()) else {
            return Vec::new();
        };
        if !peers.has_answers(now_ns) {
            return Vec::new();
        }
        let lists = core::mem::take(&mut peers.lists);
        lists.into_iter().map(|answer| (answer, self.show(config, now_ns))).collect()
    }

    /// The current list, without noting that it was seen: otherwise members would receive all
    /// changes since.
    pub(super) fn show(&self, config: &PresenceConfig, seed: u64) -> PresenceList {
        let (entries, keys) = (self.table.len(), self.table.keys());
        if entries == 0 {
            return PresenceList { json: NOBODY.into(), ..PresenceList::default() };
        }
        let json = if entries > config.list_max {
            self.sample(config, seed)
        } else {
            self.keys(keys, usize::MAX, seed)
        };
        PresenceList { entries, keys, json }
    }
}
