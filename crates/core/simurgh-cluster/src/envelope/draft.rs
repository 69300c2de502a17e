//! Writing envelopes.

use bytes::{Bytes, BytesMut};
use simurgh_proto::message::events::is_reserved;

use super::item::{Item, ItemPayload};
use super::{ENVELOPE_BYTES_MAX, ENVELOPE_VERSION, FLAGS_AT, Flags, HEADER_BYTES, Kind, N_AT};
use crate::node_id::NodeId;
use crate::subject::TOPIC_BYTES_MAX;
use crate::wire;
use simurgh_data::prelude::*;

/// An envelope that lacks only its number.
///
/// Numbers give the order in which a node publishes, and a waiting envelope may still be dropped.
/// So it is encoded where it is made, and gets its number by [`numbered`](Self::numbered) when it
/// is handed to the broker: eight bytes are written in place.
/// If the link breaks before the broker has confirmed it, [`resent`] marks it, and it is handed
/// over again with the same number.
///
/// ```
/// use simurgh_cluster::{Draft, Envelope, Item, ItemPayload, Kind, NodeId};
///
/// let hello = Item::new("new:msg", ItemPayload::Json(r#"{"body":"hello"}"#));
/// let bytes = Draft::broadcast(NodeId(7), "rooms:lobby", &hello)?.numbered(1);
/// let envelope = Envelope::decode(&bytes)?;
/// assert_eq!((envelope.header.kind, envelope.header.n), (Kind::Broadcast, 1));
/// assert_eq!(envelope.topic, "rooms:lobby");
/// assert!(envelope.items().eq([hello]));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    bytes: Vec<u8>,
    items_at: usize,
    items: u16,
}

impl Draft {
    /// A broadcast on a topic; [`push`](Self::push) adds more.
    ///
    /// # Errors
    /// The topic or the event is too long, the whole is too large, or the event is reserved: it
    /// cannot be published, and members on this node must not get it either.
    pub fn broadcast(
        origin: NodeId,
        topic: &str,
        broadcast: &Item<'_>,
    ) -> Result<Self, EncodeError> {
        let mut draft = Self::new(Kind::Broadcast, origin, topic, broadcast.encoded_bytes())?;
        draft.push(broadcast)?;
        Ok(draft)
    }

    /// Adds a further broadcast.
    ///
    /// JSON text must be valid and compact, as [`Payload`](simurgh_proto::message::Payload)
    /// promises: other nodes refuse the envelope otherwise.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), or it cannot count one more item; the draft is unchanged.
    pub fn push(&mut self, broadcast: &Item<'_>) -> Result<(), EncodeError> {
        if is_reserved(broadcast.event) {
            return Err(EncodeError::Reserved);
        }
        self.add(broadcast)
    }

    /// An envelope of another kind than broadcasts.
    pub(crate) fn with_payload(
        kind: Kind,
        origin: NodeId,
        topic: &str,
        payload: Option<&[u8]>,
    ) -> Result<Self, EncodeError> {
        let item = payload.map(|bytes| Item::new("", ItemPayload::Binary(bytes)));
        let room = item.as_ref().map_or(0, Item::encoded_bytes);
        let mut draft = Self::new(kind, origin, topic, room)?;
        item.map_or(Ok(()), |item| draft.add(&item))?;
        Ok(draft)
    }

    fn new(kind: Kind, origin: NodeId, topic: &str, room: usize) -> Result<Self, EncodeError> {
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(EncodeError::Topic(topic.len()));
        }
        // Exactly: a vector without spare capacity becomes `Bytes` without another allocation.
        let room = room.min(ENVELOPE_BYTES_MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 2 + topic.len() + 2 + room);
        bytes.extend_from_slice(&[ENVELOPE_VERSION, kind as u8]);
        bytes.extend_from_slice(&Flags::NONE.0.to_le_bytes());
        bytes.extend_from_slice(&origin.0.to_le_bytes());
        bytes.extend_from_slice(&0_u64.to_le_bytes());
        if !wire::put_text16(&mut bytes, topic) {
            return Err(EncodeError::Topic(topic.len()));
        }
        let items_at = bytes.len();
        bytes.extend_from_slice(&0_u16.to_le_bytes());
        Ok(Self { bytes, items_at, items: 0 })
    }

    fn add(&mut self, item: &Item<'_>) -> Result<(), EncodeError> {
        let before = self.bytes.len();
        let after = before.saturating_add(item.encoded_bytes());
        let items = self.items.checked_add(1).ok_or(EncodeError::Items)?;
        if item.event.len() > usize::from(u8::MAX) {
            return Err(EncodeError::Event(item.event.len()));
        }
        if after > ENVELOPE_BYTES_MAX || !item.put(&mut self.bytes) {
            self.bytes.truncate(before);
            return Err(EncodeError::TooLarge(after));
        }
        self.items = items;
        write(&mut self.bytes, self.items_at, items.to_le_bytes());
        Ok(())
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it always has a beginning")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// How many items it has.
    pub fn items(&self) -> usize {
        self.items.into()
    }

    /// The envelope with its number, counted from 1: others refuse an envelope with number 0.
    pub fn numbered(mut self, n: u64) -> Bytes {
        write(&mut self.bytes, N_AT, n.to_le_bytes());
        Bytes::from(self.bytes)
    }

    /// The envelope without a number; [`stamped`] gives it one later.
    pub fn unnumbered(self) -> Bytes {
        Bytes::from(self.bytes)
    }
}

/// The same envelope with another number: in place, unless the bytes are shared. Bytes that are too
/// short to be an envelope are returned unchanged.
pub fn stamped(envelope: Bytes, n: u64) -> Bytes {
    changed(envelope, |bytes| write(bytes, N_AT, n.to_le_bytes()))
}

/// The same envelope marked as [`Flags::RESENT`]: in place, unless the bytes are shared. Bytes that
/// are too short to be an envelope are returned unchanged.
pub fn resent(envelope: Bytes) -> Bytes {
    changed(envelope, |bytes| {
        let flags = bytes.get(FLAGS_AT..).and_then(|it| it.first_chunk()).copied();
        let flags = u16::from_le_bytes(flags.unwrap_or_default()) | Flags::RESENT.0;
        write(bytes, FLAGS_AT, flags.to_le_bytes());
    })
}

fn changed(envelope: Bytes, change: impl FnOnce(&mut [u8])) -> Bytes {
    if envelope.len() < HEADER_BYTES {
        return envelope;
    }
    let own = envelope.try_into_mut();
    let mut own = own.unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    change(&mut own);
    own.freeze()
}

/// Overwrites bytes, if there are so many.
fn write<const N: usize>(bytes: &mut [u8], at: usize, what: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = what;
    }
}

/// Why something cannot be sent to other nodes. The sender's fault, and reported to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A topic of so many bytes; [`TOPIC_BYTES_MAX`] is the most.
    #[error("too large for the cluster: a topic of {0} bytes; the maximum is {TOPIC_BYTES_MAX}")]
    Topic(usize),
    /// An event of so many bytes; 255 is the most.
    #[error("too large for the cluster: an event of {0} bytes; the maximum is 255")]
    Event(usize),
    /// An event that is the protocol's own ([`is_reserved`]).
    #[error("the event is reserved")]
    Reserved,
    /// An envelope cannot count one more item.
    #[error("too large for the cluster: more than {} items", u16::MAX)]
    Items,
    /// It would be so many bytes; [`ENVELOPE_BYTES_MAX`] is the most.
    #[error("too large for the cluster: {0} bytes; the maximum is {ENVELOPE_BYTES_MAX}")]
    TooLarge(usize),
    /// Which part of what a node reports of itself is too long or too large.
    #[error("too large for the cluster: {0}")]
    OfItself(&'static str),
}
