//! The wires: what is spoken on a socket.

use simurgh_proto::serializer::{Kind, Serializer};
use simurgh_proto::ws::OpCode;

/// The wire of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wire {
    /// Channels, in the older of their serializers.
    V1,
    /// Channels, in the newer.
    #[default]
    V2,
    /// Bare messages without Channels.
    Plain,
    /// Channels as values, without a serializer, for a socket within this process.
    Values,
}

/// The form of a broadcast for a member: its wire, and whether it receives positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) wire: Wire,
    pub(crate) has_positions: bool,
}

pub(crate) const WIRES: usize = 3;
/// Forms: those of all wires, then V1 and V2 with positions.
pub(crate) const FORMS: usize = 5;

impl Form {
    #[cfg(test)]
    pub(crate) const fn plain(wire: Wire) -> Self {
        Self { wire, has_positions: false }
    }

    /// Its place in a table; [`Wire::Values`] has no frames, and no place.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.wire as usize + WIRES * usize::from(self.has_positions)
    }
}

impl Wire {
    /// The serializer of its messages, if any.
    pub fn serializer(self) -> Option<Serializer> {
        match self {
            Self::V1 => Some(Serializer::V1),
            Self::V2 => Some(Serializer::V2),
            Self::Plain | Self::Values => None,
        }
    }
}

impl From<Serializer> for Wire {
    fn from(serializer: Serializer) -> Self {
        match serializer {
            Serializer::V1 => Self::V1,
            Serializer::V2 => Self::V2,
        }
    }
}

/// The frames of a kind of message.
pub fn op_code(kind: Kind) -> OpCode {
    match kind {
        Kind::Text => OpCode::Text,
        Kind::Binary => OpCode::Binary,
    }
}
