//! Names of connections that are unique over all nodes.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use simurgh_reactor::Key;

/// Node, shard, slot and generation.
const BYTES: usize = 8 + 2 + 4 + 4;
const CHARS: usize = BYTES / 3 * 4;

/// Names one connection or long-poll session for its lifetime, and no other one of any node. It is
/// shown as 24 characters of base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The id of this start of the node.
    pub node: u64,
    pub shard: u16,
    pub key: Key,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.node.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.shard.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.key.slot.to_be_bytes());
        bytes[14..].copy_from_slice(&self.key.generation.to_be_bytes());
        let mut chars = [b'A'; CHARS];
        // The length always fits.
        let _ = URL_SAFE_NO_PAD.encode_slice(bytes, &mut chars);
        f.pad(str::from_utf8(&chars).unwrap_or_default())
    }
}

/// A text that is not the id of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a connection must have {CHARS} characters of base64url")]
pub struct ConnectionIdError;

impl FromStr for ConnectionId {
    type Err = ConnectionIdError;

    fn from_str(text: &str) -> Result<Self, ConnectionIdError> {
        if text.len() != CHARS {
            return Err(ConnectionIdError);
        }
        let mut bytes = [0; BYTES];
        URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| ConnectionIdError)?;
        let (node, bytes) = bytes.split_first_chunk().ok_or(ConnectionIdError)?;
        let (shard, bytes) = bytes.split_first_chunk().ok_or(ConnectionIdError)?;
        let (slot, bytes) = bytes.split_first_chunk().ok_or(ConnectionIdError)?;
        let (generation, _) = bytes.split_first_chunk().ok_or(ConnectionIdError)?;
        let (slot, generation) = (u32::from_be_bytes(*slot), u32::from_be_bytes(*generation));
        Ok(Self {
            node: u64::from_be_bytes(*node),
            shard: u16::from_be_bytes(*shard),
            key: Key { slot, generation },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_connection_has_24_characters_and_is_parsed_back() {
        let key = Key { slot: 70_000, generation: 3 };
        for (node, shard) in [(0, 0), (u64::MAX, u16::MAX), (0x0123_4567_89ab_cdef, 2)] {
            let id = ConnectionId { node, shard, key };
            let text = id.to_string();
            assert_eq!(text.len(), CHARS, "{text}");
            assert_eq!(text.parse(), Ok(id));
        }
        let long = "A".repeat(25);
        for wrong in ["", "0.17.2", "AAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAA.", &long] {
            assert_eq!(wrong.parse::<ConnectionId>(), Err(ConnectionIdError), "{wrong}");
        }
    }
}
