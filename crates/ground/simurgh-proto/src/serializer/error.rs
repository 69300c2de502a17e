//! Why frames cannot be read or written.
use thiserror::Error;

use crate::json;

/// The `vsn` of a client is not a version, or not a served one: HTTP 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown vsn: use 1.0.x or 2.0.x")]
pub struct UnknownVsn;

/// A frame that is not a Channels message. Always an error of the peer, and always the end of the
/// socket, with close code 1011 and no `phx_error` (PROTOCOL §7, rows 75–77, 84).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON.
    #[error("not JSON at byte {at}")]
    Syntax {
        /// Offset in bytes from the start of the frame.
        at: usize,
    },
    /// JSON that nests deeper than [`json::DEPTH_MAX`].
    #[error("JSON nests too deep")]
    TooDeep,
    /// JSON, but not the object of V1 or the array of at least five of V2, or with a topic, event
    /// or status that is not a string.
    #[error("not a Channels message")]
    Shape,
    /// Text or header fields in a binary frame that are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// A binary frame of a kind that is not sent in this direction, such as kind 3 unless
    /// [`Serializer::decode_supabase`](super::Serializer::decode_supabase) reads it.
    #[error("unknown binary kind {0}")]
    UnknownKind(u8),
    /// A binary frame that ends within its header.
    #[error("binary header is incomplete")]
    Truncated,
}

impl From<json::JsonError> for DecodeError {
    fn from(error: json::JsonError) -> Self {
        match error {
            json::JsonError::Syntax { at } => DecodeError::Syntax { at },
            json::JsonError::TooDeep => DecodeError::TooDeep,
        }
    }
}

/// A message that this serializer cannot encode. Always an error of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// V1 has no binary frames.
    #[error("a binary payload needs serializer V2")]
    BinaryNeedsV2,
    /// A [`UserBroadcast`](crate::message::UserBroadcast) is a broadcast or a push.
    #[error("a member's broadcast cannot be a reply")]
    UserBroadcastIsNoReply,
    /// A field of a binary frame's header is over 255 bytes.
    #[error("a field of a binary frame exceeds 255 bytes")]
    FieldTooLong,
}
