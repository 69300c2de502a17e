//! What a node reports to the coordinator of a partition: which keys have memberships there.
//!
//! ```text
//! u8 version = 1; u8 partition; u64 from; u64 to; and for each change:
//! u8 kind; u16 length, topic; u16 length, user; u64 began; u8 reason, 0: present; [u64 age]
//! ```
//! A report and its answer are the two ways of a call between nodes.

use simurgh_data::prelude::*;

use crate::codec::{Malformed, Reader, put_key, put_u64};
use crate::key::{Key, PARTITIONS, Reason};

const VERSION: u8 = 1;

/// The state of a key on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Key,
    /// When its first membership there began, in milliseconds since 1970.
    pub began_ms: u64,
    /// How many milliseconds ago its last membership there ended, and why; `None`: it has one.
    pub ended: Option<(u64, Reason)>,
}

/// The keys of a partition that have changed on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The partition.
    pub partition: u8,
    /// The version that a receiver must have at least; 0: this is the whole state, and keys that
    /// are not in it have no membership there.
    pub from: u64,
    /// The version that it then has.
    pub to: u64,
    /// Each key once, in the order of their first changes.
    pub changes: Vec<Change>,
}

/// The answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u16)]
pub enum Verdict {
    /// The coordinator has it.
    Taken = 200,
    /// The coordinator needs the whole state.
    StateWanted = 409,
    /// This node is not the coordinator, as far as it knows.
    NotCoordinator = 421,
}

impl Report {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(18 + 64 * self.changes.len());
        out.extend_from_slice(&[VERSION, self.partition]);
        put_u64(&mut out, self.from);
        put_u64(&mut out, self.to);
        for Change { key, began_ms, ended } in &self.changes {
            put_key(&mut out, key);
            put_u64(&mut out, *began_ms);
            out.push(ended.map_or(0, |(_, reason)| reason as u8));
            if let Some((age_ms, _)) = ended {
                put_u64(&mut out, *age_ms);
            }
        }
        out
    }

    /// Reads a report.
    ///
    /// # Errors
    /// It is malformed, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let (version, partition) = (reader.u8()?, reader.u8()?);
        if version != VERSION || partition >= PARTITIONS {
            return Err(Malformed);
        }
        let (from, to) = (reader.u64()?, reader.u64()?);
        let mut changes = Vec::new();
        while !reader.0.is_empty() {
            let (key, began_ms) = (reader.key()?, reader.u64()?);
            let ended = match reader.u8()? {
                0 => None,
                reason => Some((reader.u64()?, Reason::from_repr(reason).ok_or(Malformed)?)),
            };
            if key.partition() != partition {
                return Err(Malformed);
            }
            changes.push(Change { key, began_ms, ended });
        }
        Ok(Self { partition, from, to, changes })
    }
}
