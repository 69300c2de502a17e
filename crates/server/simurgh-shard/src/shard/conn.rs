//! The record of a connection: permanent state, and temporary state (`passing`).

use std::any::Any;

use simurgh_core::{Phase, Socket};
use simurgh_proto::ws::Decoder;
use simurgh_reactor::Key;

use crate::mail::{Answer, Opener};
use crate::proxies::Named;

/// User sockets that an endpoint may have.
pub const USER_SOCKETS_MAX: usize = 1 << u8::BITS;

/// One connection. With the reactor's part it fills a cache line; all pointers are null while it is
/// idle.
pub struct Conn {
    /// Owns memory only while a message is incomplete.
    pub(crate) decoder: Decoder,
    /// None while the connection is idle.
    pub(crate) passing: Option<Box<Passing>>,
    /// The session's part; `transport` is the index of its driver, if any.
    pub(crate) socket: Socket,
}

const _: () = assert!(size_of::<Conn>() <= 40, "a connection's record is budgeted at 40 bytes");

pub(crate) enum Passing {
    /// Bytes of an upgrade request, and the client's address if a PROXY header named one.
    Head { bytes: Vec<u8>, peer: Option<Named> },
    Connecting {
        /// The 101 response, sent if the application accepts.
        response: Vec<u8>,
        /// Receives the outcome, unless that is this connection's peer.
        requester: Option<Requester>,
        waiting: Waiting,
        /// Dropped if the connection ends: its question need not be asked.
        waits: Option<Box<dyn Any + Send>>,
    },
    /// A message of this many bytes, too long for one turn, is decoded outside the shard.
    Reading { bytes: usize, waiting: Waiting },
    /// Bytes that came after a join that is being decided.
    Backlog(Vec<u8>),
    /// The connection to which its bytes go, and which it gets them from.
    Relay(Key),
}

/// A part of this process that asked for a socket.
pub(crate) enum Requester {
    Driver(Answer),
    Poll(Opener),
}

pub(crate) struct Waiting {
    /// Distinguishes the answer from a late one to an earlier wait.
    pub(crate) ticket: u32,
    /// Bytes that came after what is awaited.
    pub(crate) behind: Vec<u8>,
}

impl Passing {
    /// Heap bytes, for the shard's budget.
    fn bytes(&self) -> usize {
        match self {
            Self::Head { bytes, .. } | Self::Backlog(bytes) => bytes.capacity(),
            Self::Connecting { response, waiting, .. } => {
                response.capacity() + waiting.behind.capacity()
            }
            Self::Reading { bytes, waiting } => bytes + waiting.behind.capacity(),
            Self::Relay(_) => 0,
        }
    }

    /// The ticket of the wait, unique in its shard.
    pub(crate) fn ticket(&self) -> Option<u32> {
        match self {
            Self::Connecting { waiting, .. } | Self::Reading { waiting, .. } => {
                Some(waiting.ticket)
            }
            Self::Head { .. } | Self::Backlog(_) | Self::Relay(_) => None,
        }
    }

    pub(crate) fn stash(&mut self, data: &[u8]) {
        match self {
            Self::Head { .. } | Self::Relay(_) => {}
            Self::Backlog(behind) => behind.extend_from_slice(data),
            Self::Connecting { waiting, .. } | Self::Reading { waiting, .. } => {
                waiting.behind.extend_from_slice(data);
            }
        }
    }
}

impl Conn {
    /// A connection in a phase before its session; `driver` is [`NETWORK`](simurgh_core::NETWORK)
    /// without a driver.
    pub(crate) fn new(phase: Phase, tick: u32, driver: u8) -> Self {
        let socket = Socket::new(phase, tick, driver);
        Self { decoder: Decoder::new(), passing: None, socket }
    }

    /// Heap bytes of received, unhandled input.
    pub(crate) fn inbound_bytes(&self) -> usize {
        self.decoder.buffered() + self.passing.as_ref().map_or(0, |passing| passing.bytes())
    }
}
