//! One end of a connection, with what is in transit from and to its client.

use std::collections::VecDeque;

use simurgh_core::Socket;
use simurgh_data::Key;
use simurgh_proto::serializer::Kind;

use crate::kit::delivery::{Delivery, Request};

/// A client's message in transit.
#[derive(Debug)]
pub(crate) struct ClientMessage {
    /// Text or binary.
    pub(crate) kind: Kind,
    /// Of its frame, without a header.
    pub(crate) bytes: Vec<u8>,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// A message of a client with a serializer.
    Request(Request),
    /// A message of a client without a serializer.
    Plain(u32),
    /// A close frame, with its code.
    Close(Option<u16>),
}

/// What a socket that takes values was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A message: its topic, its content, and the sum of its payload.
    Delivery(Option<u8>, Delivery, u32),
    /// The end of the socket, with its code.
    Close(Option<u16>),
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) key: Key,
    pub(crate) socket: Socket,
    /// Its number among all connections.
    pub(crate) conn: u32,
    pub(crate) span: Vec<u8>,
    /// Bytes that wait for room in `pipe`.
    pub(crate) queue: Vec<u8>,
    /// Bytes that its client may take.
    pub(crate) pipe: Vec<u8>,
    /// Bytes that the pipe has room for.
    pub(crate) window: usize,
    /// Messages that its client has sent and the shard has not read.
    pub(crate) inbound: VecDeque<ClientMessage>,
    /// Messages that were read and not handed in.
    pub(crate) stash: VecDeque<ClientMessage>,
    /// Values sent to a socket that takes values.
    pub(crate) heard: Vec<Value>,
    /// Whether the shard does not read it.
    pub(crate) is_held: bool,
    /// The ticket of the message that is being read away from the shard; 0 for none.
    pub(crate) reading: u32,
    /// Whether it is removed once `queue` is empty.
    pub(crate) is_closing: bool,
    /// Whether nothing more is sent.
    pub(crate) is_mute: bool,
    /// Whether it has sent something in this turn.
    pub(crate) is_listed: bool,
    /// Whether the client has closed its sending half.
    pub(crate) has_shut: bool,
    /// When it last sent something.
    pub(crate) heard_tick: u32,
    /// Since when nothing of the queue has moved.
    pub(crate) stands_since_ns: u64,
    /// The latest time of its removal.
    pub(crate) ends_ns: Option<u64>,
    /// Bytes that a planted fault holds back.
    pub(crate) held_back: Vec<u8>,
}

impl Peer {
    /// Whether nothing more is sent to it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_mute || self.is_closing
    }

    /// Writes what the current turn has sent; returns how many bytes now wait for room.
    pub(crate) fn flush(&mut self, now_ns: u64) -> usize {
        let span = std::mem::take(&mut self.span);
        let mut room = 0;
        if self.queue.is_empty() {
            room = self.window.saturating_sub(self.pipe.len()).min(span.len());
            self.stands_since_ns = now_ns;
        }
        let (now, later) = span.split_at(room);
        self.pipe.extend_from_slice(now);
        self.queue.extend_from_slice(later);
        self.queue.len()
    }
}
