//! One end of a connection: what is on its way from and to its client.

use std::collections::VecDeque;

use simurgh_core::Socket;
use simurgh_proto::message::events;
use simurgh_proto::serializer::{Kind, ServerMessage};
use simurgh_reactor::Key;

use crate::bounds::Flow;
use crate::model::presence::letter_of;
use crate::model::{Asked, Line, Sort, Topics};
use crate::payload;
use crate::refs;

/// A message of a client on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) what: What,
}

/// What it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Asked(Asked),
    /// Of a client without serializer.
    Plain(u32),
    /// A close frame, with its code.
    Close(Option<u16>),
}

/// What a socket that speaks in values has heard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    Line(Option<u8>, Line, u32),
    Close(Option<u16>),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) key: Key,
    pub(crate) socket: Socket,
    pub(crate) conn: u32,
    pub(crate) span: Vec<u8>,
    pub(crate) queue: Vec<u8>,
    pub(crate) pipe: Vec<u8>,
    /// Bytes that the pipe has room for.
    pub(crate) window: usize,
    pub(crate) inbound: VecDeque<Sent>,
    /// What was read and not handed in.
    pub(crate) stash: VecDeque<Sent>,
    pub(crate) heard: Vec<Heard>,
    pub(crate) is_held: bool,
    /// For which flow it is held, if that is certain.
    pub(crate) held_for: Option<Flow>,
    /// The ticket of the message that is being read away from the shard; 0 for none.
    pub(crate) reading: u32,
    pub(crate) is_closing: bool,
    /// Nothing more is said.
    pub(crate) is_mute: bool,
    pub(crate) is_listed: bool,
    /// The client has closed its sending half.
    pub(crate) has_shut: bool,
    /// When it last said something.
    pub(crate) heard_tick: u32,
    /// Since when nothing of the queue has moved.
    pub(crate) stands_since_ns: u64,
    pub(crate) ends_ns: Option<u64>,
    /// What a fault holds back.
    pub(crate) held_back: Vec<u8>,
}

impl Peer {
    pub(crate) fn write(&mut self, bytes: &[u8], now_ns: u64) {
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
    pub(crate) fn waits(&self) -> usize {
        self.queue.len()
    }
}

/// A running hash: eight bytes at a time.
pub(crate) fn hashed(hash: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    mix(hash, rest ^ bytes.len() as u64)
}

/// What a message of a server says, and on which topic; with the sum of its payload.
pub(crate) fn line_of(topics: &Topics, message: &ServerMessage<'_>) -> (Option<u8>, Line, u32) {
    let letter = |word: &str| match letter_of(word) {
        Some(letter) => letter,
        None => word.as_bytes().first().copied().unwrap_or_default(),
    };
    match message {
        ServerMessage::Reply { join_ref, msg_ref, topic, status, response } => {
            let is_binary = response.binary().is_some();
            let [one, two] = [join_ref, msg_ref].map(|it| refs::number(it.raw(), is_binary));
            let line = Line::reply(one, two, letter(status), payload::parse(response).0);
            (topics.number(topic), line, payload::sum(response))
        }
        ServerMessage::Event(it) => {
            let (sort, word) = match &*it.event {
                events::CLOSE => (Sort::Close, 0),
                events::ERROR => (Sort::Error, 0),
                other => (Sort::Event, letter(other)),
            };
            let is_binary = it.payload.binary().is_some();
            let [join_ref, msg_ref] =
                [&it.join_ref, &it.msg_ref].map(|it| refs::number(it.raw(), is_binary));
            let said = payload::parse(&it.payload).0;
            let line = Line { sort, word, join_ref, msg_ref, said };
            (topics.number(&it.topic), line, payload::sum(&it.payload))
        }
    }
}
