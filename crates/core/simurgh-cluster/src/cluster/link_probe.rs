//! Checks the link before other nodes are taken for silent.
//!
//! A dead link is noticed only after some seconds, and a live link may be silent for as long. Until
//! then all other nodes seem to be gone, so before any of them is taken for silent the broker is
//! probed with an empty change of interests, which it confirms like any other.

use super::{Cluster, Time};
use crate::adapter::{Adapter, Generation};

/// A later answer shows nothing about other nodes: their messages were held up as well, and may
/// follow it.
const ANSWER_MAX_NS: u64 = 1_000_000_000;

/// A probe that the broker has not answered.
pub(super) struct LinkProbe {
    generation: Generation,
    since_ns: u64,
}

impl<A: Adapter + ?Sized> Cluster<A> {
    /// Lets other nodes become silent or gone; probes the broker before that.
    pub(super) fn age_peers(&mut self, time: Time) {
        if !self.peers.is_due(time.ns) {
            self.peers.tick(time.ns);
        } else if self.link_probe.is_none() {
            let generation = self.adapter.interest(&[]);
            self.link_probe = Some(LinkProbe { generation, since_ns: time.ns });
        }
    }

    pub(super) fn link_probe_answered(&mut self, generation: Generation, time: Time) {
        let answered = self.link_probe.take_if(|it| it.generation <= generation);
        let Some(LinkProbe { since_ns, .. }) = answered else { return };
        if time.ns.saturating_sub(since_ns) > ANSWER_MAX_NS {
            self.peers.note_link_pause(since_ns, time.ns);
        } else {
            self.peers.tick(time.ns);
        }
    }
}
