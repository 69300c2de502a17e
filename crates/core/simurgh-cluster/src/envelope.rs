//! The envelopes that nodes send each other. All numbers are little endian.
//!
//! ```text
//!  0  u8 version = 1     1  u8 kind     2  u16 flags     4  u64 origin     12  u64 n
//! 20  u16 length, topic; u16 items; and for each item:
//!     u8 flags: 1 binary, 2 has except, 4 has exclusion, 8 user broadcast
//!     u8 length, event
//!     [u16 shard, u32 membership, u32 generation]     if it has except
//!     [u64 exclusion]                                 if it has exclusion
//!     u32 length, payload
//! ```
//! Broadcasts have one item or more, a bye and a forget have none; every other kind has one binary
//! item without an event. Only kinds about a topic name one (see [`Message`](crate::Message)).
//!
//! Any client of the broker can publish any bytes, so an envelope is not trusted:
//! [`Envelope::decode`] checks every byte, JSON included, or refuses the whole. [`Header::read`]
//! reads the beginning alone, for envelopes that are dropped anyway.

mod draft;
mod item;
#[cfg(test)]
mod tests;

use crate::node_id::NodeId;
use crate::wire::Reader;

pub use draft::{Draft, EncodeError, resent, stamped};
pub use item::{Item, ItemPayload};

pub use crate::wire::{ENVELOPE_BYTES_MAX, ENVELOPE_VERSION, EnvelopeError};

const HEADER_BYTES: usize = 20;
const FLAGS_AT: usize = 2;
const N_AT: usize = 12;

/// The kind of an envelope.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    strum::FromRepr,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Kind {
    /// Broadcasts on a topic.
    Broadcast = 1,
    /// Changes of the origin's presences in a topic.
    Presence = 2,
    /// The topics whose presences the origin asks for.
    AskState = 3,
    /// All of the origin's presences in a topic.
    State = 4,
    /// The origin is alive.
    Beat = 5,
    /// The origin has a new link; carries what others need once.
    Hello = 6,
    /// The origin is about to end.
    Bye = 7,
    /// Sockets with an id are to be closed.
    Disconnect = 8,
    /// A disconnect has been done.
    Answer = 9,
    /// A call of a service on the receiver, or a piece of it.
    Call = 10,
    /// The answer to a call, or a piece of it.
    Return = 11,
    /// The origin does not wait for its call any more.
    HangUp = 12,
    /// Everything stored of a topic before this envelope is to be forgotten. It is stored among the
    /// messages it ends, so that all nodes see it at the same place.
    Forget = 13,
    /// Answers of applications that every node may use, and which of them are void.
    Grants = 14,
}

impl Kind {
    /// All kinds, in the order of their numbers from 1.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it names a topic or the id of sockets.
    const fn names_topic(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Presence | Self::State | Self::Disconnect | Self::Forget
        )
    }
}

/// Flags of an envelope. Unknown flags are ignored: a change of the layout raises the version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// It is from before the publisher's link, and others may have received it already: the broker
    /// had not confirmed it when the last link broke. Presences that waited for the link have the
    /// flag, too. Duplicates are recognized by numbers
    /// ([`DuplicateFilter`](crate::DuplicateFilter)); the flag tells that something is not new.
    pub const RESENT: Self = Self(1);

    /// Whether [`RESENT`](Self::RESENT) is among them.
    pub const fn is_resent(self) -> bool {
        self.0 & Self::RESENT.0 != 0
    }
}

/// The beginning of every envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its kind.
    pub kind: Kind,
    /// Its flags.
    pub flags: Flags,
    /// The node that made it.
    pub origin: NodeId,
    /// The origin's number for it: 1 for the first that it published.
    pub n: u64,
}

impl Header {
    /// Reads the header alone.
    ///
    /// # Errors
    /// It is too short or too long, has no number, or an unknown version or kind.
    pub fn read(envelope: &[u8]) -> Result<Self, EnvelopeError> {
        Self::take(&mut Reader::new(envelope))
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, EnvelopeError> {
        if reader.left().len() > ENVELOPE_BYTES_MAX {
            return Err(EnvelopeError::TooLarge(reader.left().len()));
        }
        let version = reader.u8()?;
        if version != ENVELOPE_VERSION {
            return Err(EnvelopeError::UnknownVersion(version));
        }
        let kind = reader.u8()?;
        let kind = Kind::from_repr(kind).ok_or(EnvelopeError::UnknownKind(kind))?;
        let flags = Flags(reader.u16()?);
        let (origin, n) = (NodeId(reader.u64()?), reader.u64()?);
        if n == 0 {
            return Err(EnvelopeError::Malformed("it has no number"));
        }
        Ok(Self { kind, flags, origin, n })
    }
}

/// A received envelope that was checked. It borrows from the received bytes.
#[derive(Clone, Debug)]
pub struct Envelope<'a> {
    /// Its header.
    pub header: Header,
    /// The topic, or the id of sockets; empty for kinds that have none.
    pub topic: &'a str,
    items: Items<'a>,
}

impl<'a> Envelope<'a> {
    /// Reads and checks all of it.
    ///
    /// The payload that [`Message`](crate::Message) reads is checked there, but payloads of
    /// broadcasts are checked here: they must be JSON as frames may contain it.
    ///
    /// # Errors
    /// It is malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, EnvelopeError> {
        let mut reader = Reader::new(bytes);
        let header = Header::take(&mut reader)?;
        let topic = reader.text16()?;
        let count = reader.u16()?;
        if usize::from(count) * item::BYTES_LEAST > reader.left().len() {
            return Err(EnvelopeError::Cut);
        }
        let mut items = Items { left: count, first: None, rest: reader };
        for at in 0..count {
            let item = Item::read(&mut reader)?;
            match header.kind {
                Kind::Broadcast => item.check()?,
                _ if item.is_bare() => {}
                _ => return Err(EnvelopeError::Shape),
            }
            if at == 0 {
                items.first = Some(item);
                items.rest = reader;
            }
        }
        if !reader.left().is_empty() {
            return Err(EnvelopeError::Trailing(reader.left().len()));
        }
        let has_its_items = match header.kind {
            Kind::Broadcast => count > 0,
            Kind::Bye | Kind::Forget => count == 0,
            _ => count == 1,
        };
        if !has_its_items || !(topic.is_empty() || header.kind.names_topic()) {
            return Err(EnvelopeError::Shape);
        }
        Ok(Self { header, topic, items })
    }

    /// Reads the topic alone.
    ///
    /// # Errors
    /// Its beginning is malformed.
    pub fn topic_of(bytes: &'a [u8]) -> Result<&'a str, EnvelopeError> {
        let mut reader = Reader::new(bytes);
        Header::take(&mut reader)?;
        reader.text16()
    }

    /// Its items, in order.
    pub fn items(&self) -> Items<'a> {
        self.items.clone()
    }

    /// The payload of a kind that has one item; otherwise empty.
    pub(crate) fn payload(&self) -> &'a [u8] {
        match self.items.first {
            Some(Item { payload: ItemPayload::Binary(bytes), .. }) => bytes,
            _ => &[],
        }
    }
}

/// The items of an envelope. Most envelopes have one item, so the first is kept as it was checked
/// and not read again.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    left: u16,
    first: Option<Item<'a>>,
    rest: Reader<'a>,
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        self.left = self.left.checked_sub(1)?;
        match self.first.take() {
            Some(first) => Some(first),
            // It was read once before, so it can be read.
            None => Item::read(&mut self.rest).ok(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Items<'_> {}
