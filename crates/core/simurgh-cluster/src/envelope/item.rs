//! The items of envelopes.

use alloc::borrow::Cow;

use simurgh_channel::{Broadcast, ChannelId};
use simurgh_proto::message::{Message, Payload, events, events::is_reserved};
use simurgh_proto::serializer::{Frame, Serializer, ServerMessage, json};

use super::EnvelopeError;
use crate::wire::{self, Reader};
use simurgh_data::prelude::*;

/// Bytes that every item has: its flags, and two lengths.
pub(super) const BYTES_LEAST: usize = 6;

const BINARY: u8 = 1;
const EXCEPT: u8 = 2;
const EXCLUSION: u8 = 4;
const USER: u8 = 8;

/// One broadcast, or the content of an envelope of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// At most 255 bytes; empty for other kinds than broadcasts.
    pub event: &'a str,
    /// The payload.
    pub payload: ItemPayload<'a>,
    /// A member of the origin that does not get it; only the origin can read this.
    pub except: Option<ChannelId>,
    /// The hash of the resume id of a client that does not get it, on any node.
    pub exclusion: Option<u64>,
}

/// The payload of a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemPayload<'a> {
    /// One JSON value as text without whitespace between its tokens: it is copied into frames
    /// unchanged.
    Json(&'a str),
    /// Raw bytes.
    Binary(&'a [u8]),
    /// A broadcast of Supabase's clients (PROTOCOL §11), as the frame that members with V2 get, but
    /// without a topic.
    User(&'a [u8]),
}

impl<'a> ItemPayload<'a> {
    /// The payload of an application's broadcast; `frame` is the buffer for what must be encoded.
    pub fn of(payload: &'a Payload<'_>, frame: &'a mut Vec<u8>) -> Self {
        match payload {
            Payload::Json(text) => Self::Json(text),
            Payload::Binary(bytes) => Self::Binary(bytes),
            Payload::User(_) => {
                frame.clear();
                // No field can be too long: the topic is empty, and the others were checked.
                let _ = Serializer::V2.broadcast(frame, "", events::BROADCAST, payload);
                Self::User(frame)
            }
        }
    }

    /// The payload as the rest of the program has it, borrowed; null for a [`User`](Self::User)
    /// that cannot be read.
    pub fn to_payload(self) -> Payload<'a> {
        match self {
            Self::Json(text) => Payload::Json(Cow::Borrowed(text)),
            Self::Binary(bytes) => Payload::Binary(Cow::Borrowed(bytes)),
            Self::User(frame) => user(frame).unwrap_or(Payload::NULL),
        }
    }

    /// Its bytes in the envelope.
    pub fn data(self) -> &'a [u8] {
        match self {
            Self::Json(text) => text.as_bytes(),
            Self::Binary(bytes) | Self::User(bytes) => bytes,
        }
    }

    const fn flag(self) -> u8 {
        match self {
            Self::Json(_) => 0,
            Self::Binary(_) => BINARY,
            Self::User(_) => USER,
        }
    }

    fn check(self) -> Result<(), EnvelopeError> {
        match self {
            Self::Json(text) => match json::validated(text).map_err(EnvelopeError::Json)? {
                Cow::Borrowed(compact) if compact.len() == text.len() => Ok(()),
                _ => Err(EnvelopeError::NotCompact),
            },
            Self::Binary(_) => Ok(()),
            Self::User(frame) => user(frame).map(|_| ()),
        }
    }
}

fn user(frame: &[u8]) -> Result<Payload<'_>, EnvelopeError> {
    let frame = Frame::Binary(frame);
    match Serializer::V2.decode_server(frame).map_err(EnvelopeError::User)? {
        ServerMessage::Event(Message { topic, payload: it @ Payload::User(_), .. })
            if topic.is_empty() =>
        {
            Ok(it)
        }
        _ => Err(EnvelopeError::Malformed("a user broadcast is another frame")),
    }
}

impl<'a> Item<'a> {
    /// A broadcast to all members.
    pub const fn new(event: &'a str, payload: ItemPayload<'a>) -> Self {
        Self { event, payload, except: None, exclusion: None }
    }

    /// Its length in an envelope, in bytes.
    pub const fn encoded_bytes(&self) -> usize {
        let payload = match self.payload {
            ItemPayload::Json(text) => text.len(),
            ItemPayload::Binary(bytes) | ItemPayload::User(bytes) => bytes.len(),
        };
        let except = if self.except.is_some() { 10 } else { 0 };
        let exclusion = if self.exclusion.is_some() { 8 } else { 0 };
        BYTES_LEAST + self.event.len() + except + exclusion + payload
    }

    /// Appends it. Returns `false` and leaves half an item if its event or payload is too long.
    /// The broadcast on its topic, for all members.
    pub fn to_broadcast(&self, topic: &str) -> Broadcast {
        Broadcast::new(topic, self.event, self.payload.to_payload().into_owned())
    }

    #[must_use]
    pub(super) fn put(&self, out: &mut Vec<u8>) -> bool {
        let except = if self.except.is_some() { EXCEPT } else { 0 };
        let exclusion = if self.exclusion.is_some() { EXCLUSION } else { 0 };
        out.push(self.payload.flag() | except | exclusion);
        if !wire::put_text8(out, self.event, u8::MAX) {
            return false;
        }
        if let Some(ChannelId { shard, membership, generation }) = self.except {
            out.extend_from_slice(&shard.to_le_bytes());
            out.extend_from_slice(&membership.to_le_bytes());
            out.extend_from_slice(&generation.to_le_bytes());
        }
        if let Some(exclusion) = self.exclusion {
            out.extend_from_slice(&exclusion.to_le_bytes());
        }
        wire::put_bytes32(out, self.payload.data())
    }

    /// Reads it without checking JSON and user broadcasts.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, EnvelopeError> {
        let flags = reader.u8()?;
        let event = reader.text8()?;
        let except = match flags & EXCEPT {
            0 => None,
            _ => {
                let (shard, membership) = (reader.u16()?, reader.u32()?);
                Some(ChannelId { shard, membership, generation: reader.u32()? })
            }
        };
        let exclusion = if flags & EXCLUSION == 0 { None } else { Some(reader.u64()?) };
        let bytes = reader.bytes32()?;
        let payload = match flags & !(EXCEPT | EXCLUSION) {
            0 => ItemPayload::Json(wire::text(bytes)?),
            BINARY => ItemPayload::Binary(bytes),
            USER => ItemPayload::User(bytes),
            _ => return Err(EnvelopeError::ItemFlags(flags)),
        };
        Ok(Self { event, payload, except, exclusion })
    }

    pub(super) fn check(&self) -> Result<(), EnvelopeError> {
        if is_reserved(self.event) {
            return Err(EnvelopeError::Reserved);
        }
        self.payload.check()
    }

    /// Whether it has only bytes, as the items of all kinds except broadcasts.
    pub(super) fn is_bare(&self) -> bool {
        let is_plain = self.except.is_none() && self.exclusion.is_none();
        is_plain && self.event.is_empty() && matches!(self.payload, ItemPayload::Binary(_))
    }
}
