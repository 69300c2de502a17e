//! What is spoken on a socket.

use simurgh_proto::serializer::Serializer;

/// What is spoken on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Wire {
    /// Channels, in the older of their serializers.
    V1,
    /// Channels, in the newer.
    V2,
    /// No Channels: bare messages.
    Plain,
    /// Channels without any serializer: values, for a socket within this process.
    Values,
}

/// Number of wires with frames, for tables by wire.
pub(crate) const WIRES: usize = 3;

impl Wire {
    /// What writes its messages, if anything does.
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
