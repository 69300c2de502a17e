//! One end of a connection: what is on its way from and to its client.

use std::collections::VecDeque;

use simurgh_core::Socket;
use simurgh_proto::serializer::Kind;
use simurgh_reactor::Key;

use crate::delivery::{Delivery, Request};

/// What one shard's members publish on one topic. It is one for as long as something of it is under
/// way, whoever comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The shard.
    pub shard: usize,
    /// The topic.
    pub topic: u8,
    /// How often its topic has got its first member on that shard, or lost its last: with that goes
    /// what the shard had accepted and not sent.
    pub epoch: u32,
}

/// A message of a client on its way.
#[derive(Debug)]
pub struct ClientMessage {
    pub kind: Kind,
    pub bytes: Vec<u8>,
    pub content: Content,
}

/// What it is.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    Request(Request),
    /// Of a client without serializer.
    Plain(u32),
    /// A close frame, with its code.
    Close(Option<u16>),
}

/// Content a socket that speaks in values has heard.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Delivery(Option<u8>, Delivery, u32),
    Close(Option<u16>),
}

/// One connection.
#[derive(Debug)]
pub struct Peer {
    pub key: Key,
    pub socket: Socket,
    pub conn: u32,
    pub span: Vec<u8>,
    pub queue: Vec<u8>,
    pub pipe: Vec<u8>,
    /// Bytes that the pipe has room for.
    pub window: usize,
    pub inbound: VecDeque<ClientMessage>,
    /// Content was read and not handed in.
    pub stash: VecDeque<ClientMessage>,
    pub heard: Vec<Value>,
    pub is_held: bool,
    /// For which flow it is held, if that is certain.
    pub held_for: Option<Flow>,
    /// The ticket of the message that is being read away from the shard; 0 for none.
    pub reading: u32,
    pub is_closing: bool,
    /// Nothing more is said.
    pub is_mute: bool,
    pub is_listed: bool,
    /// The client has closed its sending half.
    pub has_shut: bool,
    /// When it last said something.
    pub heard_tick: u32,
    /// Since when nothing of the queue has moved.
    pub stands_since_ns: u64,
    pub ends_ns: Option<u64>,
    /// Content a fault holds back.
    pub held_back: Vec<u8>,
}

impl Peer {
    pub fn write(&mut self, bytes: &[u8], now_ns: u64) {
        let room = match self.queue.is_empty() {
            true => self.window.saturating_sub(self.pipe.len()).min(bytes.len()),
            false => 0,
        };
        let (now, later) = bytes.split_at(room);
        self.pipe.extend_from_slice(now);
        if self.queue.is_empty() {
            self.stands_since_ns = now_ns;
        }
        self.queue.extend_from_slice(later);
    }

    /// Bytes that wait for room.
    pub fn waits(&self) -> usize {
        self.queue.len()
    }
}
