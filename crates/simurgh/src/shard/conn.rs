//! The record of a connection: what it owns while idle, and what it owns only in passing.

use std::net::SocketAddr;

use simurgh_proto::message::OwnedRef;
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::Decoder;

use super::callback::Speaker;
use crate::context::Effect;
use crate::driver::Answer;
use crate::socket::SocketState;

/// No membership.
pub(crate) const NO_MEMBERSHIP: u32 = u32::MAX;

/// One connection. With the reactor's part it fills a cache line; all pointers are empty while it
/// idles.
pub(crate) struct Conn {
    /// Owns memory only while a message is incomplete.
    pub(crate) decoder: Decoder,
    /// What only a connection in passing has.
    pub(crate) passing: Option<Box<Passing>>,
    /// What the application's connect gave the socket; `None` if it gave nothing.
    pub(crate) socket: Option<Box<SocketState>>,
    /// When it last said something, in ticks of the coarse clock; the deadline while it is not
    /// open.
    pub(crate) last_heard: u32,
    /// First of its memberships.
    pub(crate) memberships: u32,
    pub(crate) channels: u16,
    pub(crate) mount: u16,
    pub(crate) wire: Wire,
    pub(crate) phase: Phase,
    /// The driver of the socket, by its number on this shard, or [`NOBODY`]: it has a network.
    pub(crate) driver: u16,
}

/// No driver.
pub(crate) const NOBODY: u16 = u16::MAX;

const _: () = assert!(size_of::<Conn>() <= 40, "a connection's record is budgeted at 40 bytes");

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wire {
    V1,
    V2,
    /// No Channels: bare messages.
    Plain,
    /// Channels without any serializer: values, for a driven socket.
    Values,
}

/// Number of wires with frames, for tables by wire.
pub(crate) const WIRES: usize = 3;

impl Wire {
    pub(crate) fn serializer(self) -> Option<Serializer> {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The upgrade request is not whole yet.
    Head,
    /// Accepted beyond the shard's capacity: its request is answered with 503.
    Full,
    /// The application decides about the connect, or about a join.
    Pending,
    Open,
    /// A close frame was sent, its answer is awaited; nothing else is listened to.
    Closing,
    /// An HTTP answer or our close frame is on its way out; what still comes in is thrown away.
    Ending,
}

/// What a connection owns in passing.
pub(crate) enum Passing {
    /// Bytes of an upgrade request, and who sends it if a PROXY header said so.
    Head { bytes: Vec<u8>, peer: Option<SocketAddr> },
    /// A connect is being decided; the rest is what the answer needs, and what came behind it.
    Connect(PendingConnect),
    /// A join is being decided.
    Join(PendingJoin),
}

pub(crate) struct PendingConnect {
    /// The 101 response, sent if the application agrees.
    pub(crate) response: Vec<u8>,
    pub(crate) stash: Vec<u8>,
    /// Where a driver waits for the answer.
    pub(crate) answer: Option<Answer>,
}

pub(crate) struct PendingJoin {
    pub(crate) topic: Box<str>,
    pub(crate) join_ref: OwnedRef,
    pub(crate) message: OwnedRef,
    pub(crate) replaced: Option<Box<Replaced>>,
    pub(crate) stash: Vec<u8>,
}

impl Passing {
    /// Heap bytes, for the shard's budget.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Head { bytes, .. } => bytes.capacity(),
            Self::Connect(pending) => pending.stash.capacity() + pending.response.capacity(),
            Self::Join(pending) => pending.stash.capacity() + pending.topic.len(),
        }
    }
}

impl Conn {
    pub(crate) fn new(phase: Phase, now: u32) -> Self {
        Self {
            decoder: Decoder::new(),
            passing: None,
            socket: None,
            last_heard: now,
            memberships: NO_MEMBERSHIP,
            channels: 0,
            mount: 0,
            wire: Wire::V1,
            phase,
            driver: NOBODY,
        }
    }

    /// Heap bytes of what it has received but not handled.
    pub(crate) fn inbound_bytes(&self) -> usize {
        self.decoder.buffered() + self.passing.as_ref().map_or(0, |passing| passing.bytes())
    }
}

/// A join on its way through the application, with what its reply will need.
pub(crate) struct Joining<'a> {
    pub(crate) topic: &'a str,
    pub(crate) join_ref: OwnedRef,
    pub(crate) message: OwnedRef,
    pub(crate) replaced: Option<Box<Replaced>>,
}

/// The channel that a second join of its topic has ended: its `phx_close`, and what it pushed while
/// it terminated, follow the reply to the new join (PROTOCOL §5).
pub(crate) struct Replaced {
    pub(crate) speaker: Speaker,
    pub(crate) pushes: Vec<Effect>,
}
