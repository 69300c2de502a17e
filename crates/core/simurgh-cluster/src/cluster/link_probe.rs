//! Nobody is missed over a link that is silent itself.
//!
//! A link is known to be dead some seconds after it died, and may be silent for as long without
//! being dead. Until then it looks as if all other nodes were gone, so the engine is asked before
//! somebody is missed: what changes nothing of the interests is answered like all that does.

use super::{Cluster, Time};
use crate::adapter::{Adapter, Generation};

/// An answer that takes longer says nothing of other nodes: what they said waited as it did, and
/// may come behind it.
const ANSWER_MAX_NS: u64 = 1_000_000_000;

/// A question whether the engine is there.
pub(super) struct LinkProbe {
    generation: Generation,
    since_ns: u64,
}

impl<A: Adapter> Cluster<A> {
    /// Does what time does to other nodes; presence_requests the engine first if it may do something.
    pub(super) fn age_peers(&mut self, time: Time) {
        if !self.peers.is_due(time.ns) {
            self.peers.tick(time.ns);
        } else if self.link_probe.is_none() {
            let generation = self.adapter.interest(&[]);
            self.link_probe = Some(LinkProbe { generation, since_ns: time.ns });
        }
    }

    /// The engine has answered everything up to this.
    pub(super) fn link_probe_answered(&mut self, generation: Generation, time: Time) {
        let answered = self.link_probe.take_if(|it| it.generation <= generation);
        let Some(LinkProbe { since_ns, .. }) = answered else { return };
        if time.ns.saturating_sub(since_ns) > ANSWER_MAX_NS {
            self.peers.link_stood_still(since_ns, time.ns);
        } else {
            self.peers.tick(time.ns);
        }
    }

    /// When there is something to do for other nodes; not what waits for the engine's answer.
    pub(super) fn peers_next_ns(&self) -> Option<u64> {
        match self.link_probe {
            Some(_) => self.peers.next_beat_ns(),
            None => self.peers.next_ns(),
        }
    }
}
