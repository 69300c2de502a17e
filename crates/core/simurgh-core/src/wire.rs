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
    /// As [`V1`](Self::V1), with permessage-deflate.
    V1Deflate,
    /// As [`V2`](Self::V2), with permessage-deflate.
    V2Deflate,
    /// As [`Plain`](Self::Plain), with permessage-deflate.
    PlainDeflate,
    /// Channels as values, without a serializer, for a socket within this process.
    Values,
}

/// The form of a broadcast for a member: its wire, and whether it receives positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) wire: Wire,
    pub(crate) has_positions: bool,
}

pub(crate) const WIRES: usize = 6;
/// Forms: those of all wires, then the same with positions.
pub(crate) const FORMS: usize = 2 * WIRES;
/// Of these the first: those without positions and compression.
pub(crate) const COMMON_FORMS: usize = 3;

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
            Self::V1 | Self::V1Deflate => Some(Serializer::V1),
            Self::V2 | Self::V2Deflate => Some(Serializer::V2),
            Self::Plain | Self::PlainDeflate | Self::Values => None,
        }
    }

    /// Whether it has bare messages without Channels.
    #[inline]
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::PlainDeflate)
    }

    /// Whether its messages may be compressed.
    #[inline]
    pub fn has_deflate(self) -> bool {
        matches!(self, Self::V1Deflate | Self::V2Deflate | Self::PlainDeflate)
    }

    /// The same with permessage-deflate.
    pub fn with_deflate(self) -> Self {
        match self {
            Self::V1 => Self::V1Deflate,
            Self::V2 => Self::V2Deflate,
            Self::Plain => Self::PlainDeflate,
            other => other,
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
