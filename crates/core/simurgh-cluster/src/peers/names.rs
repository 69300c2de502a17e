//! Nodes with the same name: one that was started again, or two at once.

use super::peer::Successor;
use super::{PeerEvent, Peers};
use crate::node_id::NodeId;

impl Peers {
    /// A node has joined: others with its name may have ended.
    pub(super) fn succeed(&mut self, id: NodeId, is_hello: bool, now_ns: u64) {
        let since_aged_ns = self.clock.shows_ns(now_ns);
        let Some(name) = self.peers.get(&id).map(|it| it.beat.name.clone()) else { return };
        let by = |id| Some(Successor { id, since_ns: now_ns, since_aged_ns });
        for (other, peer) in &mut self.peers {
            if *other != id && peer.beat.name == name {
                peer.successor = by(Some(id));
            }
        }
        self.departed.succeed(&name);
        if name != self.name {
            return;
        }
        if is_hello {
            // It has a link now, and so does this node.
            self.conflict(id, None);
        } else if let Some(peer) = self.peers.get_mut(&id) {
            // It may be this node's previous start, which has just ended.
            peer.successor = by(None);
        }
    }

    /// A beat was received of a node that another may have replaced.
    pub(super) fn find_conflict(&mut self, id: NodeId, now_ns: u64) {
        let Some(peer) = self.peers.get(&id) else { return };
        let Some(successor) = peer.successor else { return };
        let half_ns = self.config.replaced_ns / 2;
        if now_ns.saturating_sub(successor.since_ns) < half_ns || peer.beat.is_draining {
            return;
        }
        match successor.id.map(|it| self.peers.get(&it)) {
            None => self.conflict(id, None),
            Some(Some(other)) => {
                let lived_ns = other.heard_ns.saturating_sub(other.joined_ns);
                if lived_ns >= self.config.beat_ns / 2 && !other.beat.is_draining {
                    let other = other.id();
                    self.conflict(id, Some(other));
                }
            }
            Some(None) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.successor = None;
                }
            }
        }
    }

    /// Two living nodes have one name; without `other`, this node is the second.
    fn conflict(&mut self, id: NodeId, other: Option<NodeId>) {
        for id in [Some(id), other].into_iter().flatten() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.has_namesake = true;
                peer.successor = None;
            }
        }
        if let Some(peer) = self.peers.get(&id) {
            let name = peer.beat.name.clone();
            let nodes = [id, other.unwrap_or(self.me)];
            self.events.push_back(PeerEvent::NameConflict { name, nodes });
        }
    }

    pub(super) fn free_name(&mut self, name: &str) {
        let is_mine = usize::from(*self.name == *name);
        let bearers = self.peers.values().filter(|it| *it.beat.name == *name).count();
        if bearers + is_mine > 1 {
            return;
        }
        for peer in self.peers.values_mut().filter(|it| *it.beat.name == *name) {
            peer.has_namesake = false;
        }
    }
}
