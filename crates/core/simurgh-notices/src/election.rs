//! Which node is the coordinator of which partition, as one node sees it.
//!
//! The node with the highest hash is best. A coordinator that is gone, silent or draining is
//! replaced at once. One that another node outranks stays for [`OUTRANKED_NS`]: a node that has
//! just been started may end soon. Two nodes may have different opinions for a while: the terms of
//! the log decide then.

use simurgh_data::prelude::*;

use crate::key::{PARTITIONS, SECOND};

/// How long a coordinator stays that another node outranks. So long a new node waits for others.
pub const OUTRANKED_NS: u64 = 5 * SECOND;

/// The coordinators.
#[derive(Debug)]
pub struct Election {
    candidates: Vec<u64>,
    leaders: [Option<u64>; PARTITIONS as usize],
    /// Since when another node has been better.
    outranked_ns: [Option<u64>; PARTITIONS as usize],
}

impl Election {
    /// Without candidates.
    pub const fn new() -> Self {
        let (leaders, outranked_ns) = ([None; PARTITIONS as usize], [None; PARTITIONS as usize]);
        Self { candidates: Vec::new(), leaders, outranked_ns }
    }

    /// A node without a cluster.
    pub fn alone(me: u64) -> Self {
        Self { leaders: [Some(me); PARTITIONS as usize], ..Self::new() }
    }

    /// The nodes, with this one, that are neither gone nor silent nor draining.
    pub fn set_candidates(&mut self, candidates: &[u64]) {
        self.candidates = candidates.to_vec();
    }

    /// Decides what is due. Returns the partitions that have another coordinator now.
    pub fn tick(&mut self, now_ns: u64) -> Vec<u8> {
        let mut changed = Vec::new();
        for partition in 0..PARTITIONS {
            let at = usize::from(partition);
            let best = self.candidates.iter().copied().max_by_key(|node| rank(partition, *node));
            let (Some(leader), Some(outranked_ns)) =
                (self.leaders.get_mut(at), self.outranked_ns.get_mut(at))
            else {
                continue;
            };
            if best == *leader || best.is_none() {
                *outranked_ns = None;
                continue;
            }
            let since_ns = *outranked_ns.get_or_insert(now_ns);
            let is_lost = leader.is_some_and(|leader| !self.candidates.contains(&leader));
            if is_lost || now_ns.saturating_sub(since_ns) >= OUTRANKED_NS {
                (*leader, *outranked_ns) = (best, None);
                changed.push(partition);
            }
        }
        changed
    }

    /// The coordinator of a partition.
    pub fn leader(&self, partition: u8) -> Option<u64> {
        self.leaders.get(usize::from(partition)).copied().flatten()
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_ns(&self) -> Option<u64> {
        let since = self.outranked_ns.iter().flatten().min();
        since.map(|since_ns| since_ns.saturating_add(OUTRANKED_NS))
    }
}

impl Default for Election {
    fn default() -> Self {
        Self::new()
    }
}

/// Spreads partitions over nodes; equal on all nodes.
fn rank(partition: u8, node: u64) -> (u64, u64) {
    let z = node ^ u64::from(partition).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31), node)
}
