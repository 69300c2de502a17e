//! Nodes that are gone, which are remembered for a while.

use super::GoneReason;
use crate::node_id::NodeId;
use simurgh_data::prelude::*;

/// The most remembered nodes; the oldest are forgotten for newer ones.
const DEPARTED_MAX: usize = 1024;
pub(super) const REMEMBERED_NS: u64 = 600 * 1_000_000_000;

#[derive(Debug)]
struct Departed {
    id: NodeId,
    name: Box<str>,
    why: GoneReason,
    since_ns: u64,
    /// When a beat of it was first received again.
    heard_ns: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Departures {
    all: VecDeque<Departed>,
}

impl Departures {
    pub(super) fn push(&mut self, id: NodeId, name: Box<str>, why: GoneReason, now_ns: u64) {
        self.all.retain(|it| it.id != id);
        if self.all.len() >= DEPARTED_MAX {
            self.all.pop_front();
        }
        self.all.push_back(Departed { id, name, why, since_ns: now_ns, heard_ns: None });
    }

    /// Whether a beat of a node that is not a peer makes it one, [as documented](super).
    pub(super) fn may_return(&mut self, id: NodeId, apart_ns: u64, now_ns: u64) -> bool {
        let Some(at) = self.all.iter().position(|it| it.id == id) else { return true };
        let Some(it) = self.all.get_mut(at) else { return true };
        let may = match it.why {
            GoneReason::Bye => false,
            GoneReason::Silent => true,
            GoneReason::Replaced => {
                let first_ns = *it.heard_ns.get_or_insert(now_ns);
                now_ns.saturating_sub(first_ns) >= apart_ns
            }
        };
        if may {
            self.all.remove(at);
        }
        may
    }

    /// A node was started under this name, so those before it have ended.
    pub(super) fn succeed(&mut self, name: &str) {
        for it in self.all.iter_mut().filter(|it| it.why == GoneReason::Silent && *it.name == *name)
        {
            it.why = GoneReason::Replaced;
        }
    }

    pub(super) fn forget(&mut self, now_ns: u64) {
        let is_old = |it: &mut Departed| now_ns.saturating_sub(it.since_ns) >= REMEMBERED_NS;
        while self.all.pop_front_if(is_old).is_some() {}
    }

    pub(super) fn name(&self, id: NodeId) -> Option<&str> {
        Some(&*self.all.iter().find(|it| it.id == id)?.name)
    }

    pub(super) fn unaccounted(&self) -> impl Iterator<Item = NodeId> {
        self.all.iter().filter(|it| it.why == GoneReason::Silent).map(|it| it.id)
    }
}
