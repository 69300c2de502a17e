//! The messages in envelopes, by kind.
//!
//! ```text
//! kind          topic          payload of its one item
//! broadcast     the topic      (items of their own)
//! presence      the topic      a part of a delta: see presence.rs
//! ask state     -              u16 count, and for each: u16 length, topic
//! state         the topic      a part of a snapshot: see presence.rs
//! beat          -              a beat
//! hello         -              a beat; u16 count, and for each: u8 length, pattern; u64 hash
//! bye           -              (no item)
//! disconnect    id of sockets  u64 number, which the answer repeats
//!               -              u64 number; an order, at least one byte
//! answer        -              u64 number; for an order: u64 count
//! call, return  -              a piece of a body: see calls.rs
//! hang up       -              u64 number
//! forget        the topic      (no item)
//! grants        -              bytes that only the nodes' hooks know
//! a beat is     u8 length, name; u8 length, version; u8 oldest, u8 newest envelope;
//!               u64 sockets; u8 draining, 0 or 1; u64 milliseconds since 1970
//! ```
//! The sender is the envelope's origin, which no payload repeats.

#[cfg(test)]
mod tests;

use crate::beat::{Beat, Hello};
use crate::calls::Piece;
use crate::envelope::{Draft, EncodeError, Envelope, EnvelopeError, Items, Kind};
use crate::node_id::NodeId;
use crate::presence::{Part, asked};
use crate::wire::{self, Reader};
use simurgh_data::prelude::*;

/// The longest name of a node, and the longest pattern among its settings, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest version of a program.
pub const VERSION_BYTES_MAX: usize = 64;
/// The most settings that are compared.
pub const SETTINGS_MAX: usize = 1000;

/// The least bytes of a pattern and its hash.
const SETTING_BYTES_LEAST: usize = 9;

/// The message of an envelope.
#[derive(Clone, Debug)]
pub enum Message<'a> {
    /// Broadcasts on the envelope's topic, in order; at least one.
    Broadcasts(Items<'a>),
    /// A change or a snapshot of the origin's presences, or a part of one, for
    /// [`PresenceParts`](crate::PresenceParts).
    Presence(Part<'a>),
    /// The topics whose presences the origin requests from the receiver.
    AskState(Vec<&'a str>),
    /// The origin is alive.
    Beat(Beat),
    /// The origin has a new link.
    Hello(Hello),
    /// The origin is about to end.
    Bye,
    /// Sockets whose id is the envelope's topic are to be closed.
    Disconnect {
        /// The number to repeat in the answer.
        number: u64,
    },
    /// The receiver is to carry out an order, whose bytes only applications know.
    Order {
        /// The number to repeat in the answer.
        number: u64,
        /// At least one byte.
        order: &'a [u8],
    },
    /// The origin has done the receiver's disconnect of this number.
    Answer {
        /// The number that the receiver gave it.
        number: u64,
    },
    /// The origin has carried out the receiver's order of this number.
    Done {
        /// The number that the receiver gave it.
        number: u64,
        /// How many sockets or channels the order concerned there.
        count: u64,
    },
    /// The origin calls a service of the receiver.
    Call(Piece<'a>),
    /// The origin answers a call of the receiver.
    Return(Piece<'a>),
    /// The origin does not wait for its call any more.
    HangUp {
        /// The number that the origin gave it.
        number: u64,
    },
    /// Everything stored of the envelope's topic before this is to be forgotten.
    Forget,
    /// Cached answers of applications, in the form of the nodes' hooks.
    Grants(&'a [u8]),
}

impl<'a> Envelope<'a> {
    /// Reads its message.
    ///
    /// # Errors
    /// It is not a message of its kind.
    pub fn message(&self) -> Result<Message<'a>, EnvelopeError> {
        let mut payload = Reader::new(self.payload());
        let message = match self.header.kind {
            Kind::Broadcast => return Ok(Message::Broadcasts(self.items())),
            Kind::Presence | Kind::State => return Part::of(self).map(Message::Presence),
            Kind::AskState => Message::AskState(asked(&mut payload)?),
            Kind::Beat => Message::Beat(beat(self.header.origin, &mut payload)?),
            Kind::Hello => Message::Hello(hello(self.header.origin, &mut payload)?),
            Kind::Bye => Message::Bye,
            Kind::Disconnect => {
                let number = payload.u64()?;
                match payload.left() {
                    order if !order.is_empty() && self.topic.is_empty() => {
                        return Ok(Message::Order { number, order });
                    }
                    _ => Message::Disconnect { number },
                }
            }
            Kind::Answer => {
                let number = payload.u64()?;
                match payload.left().len() {
                    0..8 => Message::Answer { number },
                    _ => Message::Done { number, count: payload.u64()? },
                }
            }
            Kind::Call => Message::Call(Piece::read(&mut payload)?),
            Kind::Return => Message::Return(Piece::read(&mut payload)?),
            Kind::HangUp => Message::HangUp { number: payload.u64()? },
            Kind::Forget => Message::Forget,
            Kind::Grants => return Ok(Message::Grants(payload.left())),
        };
        match payload.left().len() {
            0 => Ok(message),
            left => Err(EnvelopeError::Trailing(left)),
        }
    }
}

impl Beat {
    /// The envelope for all nodes.
    ///
    /// # Errors
    /// The name has more bytes than [`NAME_BYTES_MAX`], or the version more than
    /// [`VERSION_BYTES_MAX`].
    pub fn draft(&self) -> Result<Draft, EncodeError> {
        let mut payload = Vec::with_capacity(40 + self.name.len() + self.version.len());
        put_beat(&mut payload, self)?;
        Draft::with_payload(Kind::Beat, self.id, "", Some(&payload))
    }
}

impl Hello {
    /// The envelope for all nodes.
    ///
    /// # Errors
    /// As [`Beat::draft`], or there are more settings than [`SETTINGS_MAX`], or the pattern of one
    /// is too long.
    pub fn draft(&self) -> Result<Draft, EncodeError> {
        let mut payload = Vec::new();
        put_beat(&mut payload, &self.beat)?;
        let count = u16::try_from(self.settings.len()).ok();
        let count = count.filter(|count| usize::from(*count) <= SETTINGS_MAX);
        let count = count.ok_or(EncodeError::OfItself("more than 1,000 patterns of topics"))?;
        payload.extend_from_slice(&count.to_le_bytes());
        for (pattern, hash) in &self.settings {
            if !wire::put_text8(&mut payload, pattern, NAME_BYTES_MAX as u8) {
                return Err(EncodeError::OfItself("a pattern of more than 255 bytes"));
            }
            payload.extend_from_slice(&hash.to_le_bytes());
        }
        Draft::with_payload(Kind::Hello, self.beat.id, "", Some(&payload))
    }
}

impl Draft {
    /// Informs all nodes that this one is about to end.
    ///
    /// # Errors
    /// None.
    pub fn bye(origin: NodeId) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::Bye, origin, "", None)
    }

    /// Asks all nodes to close the sockets with this id, and to [`answer`](Self::answer) with this
    /// number.
    ///
    /// # Errors
    /// The id is too long: no envelope can name it.
    pub fn disconnect(origin: NodeId, socket_id: &str, number: u64) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::Disconnect, origin, socket_id, Some(&number.to_le_bytes()))
    }

    /// Asks a node, or all nodes, to carry out an order and answer under this number.
    ///
    /// # Errors
    /// The order is too long for an envelope.
    pub fn order(origin: NodeId, number: u64, order: &[u8]) -> Result<Self, EncodeError> {
        let payload = [&number.to_le_bytes(), order].concat();
        Self::with_payload(Kind::Disconnect, origin, "", Some(&payload))
    }

    /// Informs the requesting node that its order is carried out.
    ///
    /// # Errors
    /// None.
    pub fn done(origin: NodeId, number: u64, count: u64) -> Result<Self, EncodeError> {
        let payload = [number.to_le_bytes(), count.to_le_bytes()].concat();
        Self::with_payload(Kind::Answer, origin, "", Some(&payload))
    }

    /// Informs the requesting node that the request with this number is done.
    ///
    /// # Errors
    /// None.
    pub fn answer(origin: NodeId, number: u64) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::Answer, origin, "", Some(&number.to_le_bytes()))
    }

    /// The marker that is stored among a topic's broadcasts to have everything before it forgotten.
    ///
    /// # Errors
    /// The topic is too long.
    pub fn forget(origin: NodeId, topic: &str) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::Forget, origin, topic, None)
    }

    /// Shares cached answers of applications with all nodes.
    ///
    /// # Errors
    /// They are too long for an envelope.
    pub fn grants(origin: NodeId, grants: &[u8]) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::Grants, origin, "", Some(grants))
    }

    /// Informs the called node that the caller does not wait for this call any more.
    ///
    /// # Errors
    /// None.
    pub fn hang_up(origin: NodeId, number: u64) -> Result<Self, EncodeError> {
        Self::with_payload(Kind::HangUp, origin, "", Some(&number.to_le_bytes()))
    }
}

fn put_beat(out: &mut Vec<u8>, beat: &Beat) -> Result<(), EncodeError> {
    if !wire::put_text8(out, &beat.name, NAME_BYTES_MAX as u8) {
        return Err(EncodeError::OfItself("a node's name of more than 255 bytes"));
    }
    if !wire::put_text8(out, &beat.version, VERSION_BYTES_MAX as u8) {
        return Err(EncodeError::OfItself("a program's version of more than 64 bytes"));
    }
    out.extend_from_slice(&[beat.envelopes.0, beat.envelopes.1]);
    out.extend_from_slice(&beat.sockets.to_le_bytes());
    out.push(beat.is_draining.into());
    out.extend_from_slice(&beat.unix_ms.to_le_bytes());
    Ok(())
}

fn beat(id: NodeId, payload: &mut Reader<'_>) -> Result<Beat, EnvelopeError> {
    let (name, version) = (payload.text8()?, payload.text8()?);
    if version.len() > VERSION_BYTES_MAX {
        return Err(EnvelopeError::Malformed("the version of a program is too long"));
    }
    let envelopes = (payload.u8()?, payload.u8()?);
    if envelopes.0 > envelopes.1 {
        return Err(EnvelopeError::Malformed("the range of versions is empty"));
    }
    let sockets = payload.u64()?;
    let is_draining = match payload.u8()? {
        0 => false,
        1 => true,
        _ => return Err(EnvelopeError::Malformed("the draining flag is not 0 or 1")),
    };
    let (name, version) = (name.into(), version.into());
    Ok(Beat { id, name, version, envelopes, sockets, is_draining, unix_ms: payload.u64()? })
}

fn hello(id: NodeId, payload: &mut Reader<'_>) -> Result<Hello, EnvelopeError> {
    let beat = beat(id, payload)?;
    let count = usize::from(payload.u16()?);
    if count > SETTINGS_MAX {
        return Err(EnvelopeError::Malformed("more than 1,000 patterns of topics"));
    }
    if count * SETTING_BYTES_LEAST > payload.left().len() {
        return Err(EnvelopeError::Cut);
    }
    let settings = (0..count).map(|_| Ok((payload.text8()?.into(), payload.u64()?)));
    Ok(Hello { beat, settings: settings.collect::<Result<_, EnvelopeError>>()? })
}
