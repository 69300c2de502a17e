//! Commands of long-poll requests for a shard.

use std::net::SocketAddr;

use serde_json::Value;
use simurgh_core::{Received, Wire};
use simurgh_reactor::Key;
use tokio::sync::oneshot;

/// Random bytes that distinguish a session from others in the same slot.
pub type Nonce = [u8; 16];

pub enum PollCommand {
    Open(Opening),
    Poll {
        key: Key,
        nonce: Nonce,
        /// The number of the last answer that the client has received.
        heard: u32,
        /// It came through another node: an answer may be lost on its way.
        is_elsewhere: bool,
        answer: oneshot::Sender<PollAnswer>,
    },
    Post {
        key: Key,
        nonce: Nonce,
        post: Post,
    },
}

pub struct Opening {
    pub head: Box<[u8]>,
    pub user_socket: u8,
    pub wire: Wire,
    pub params: Value,
    pub auth_token: Option<String>,
    pub peer: SocketAddr,
    pub opener: Opener,
}

pub enum PollAnswer {
    Gone,
    /// The answer before it was lost, so the session has ended and its client begins anew.
    Lost,
    Messages(Batch),
    Waits(oneshot::Receiver<Delivery>),
}

/// The answer to a waiting poll. A dropped sender means that the session has ended.
#[derive(Debug)]
pub enum Delivery {
    Messages(Batch),
    Newer,
}

#[derive(Debug)]
pub struct Batch {
    /// The number of this answer: 0 where answers are not numbered.
    pub number: u32,
    pub messages: Messages,
}

pub type Messages = Vec<Box<str>>;

pub struct Post {
    pub lines: std::vec::IntoIter<Line>,
    pub bytes: usize,
    pub answer: oneshot::Sender<u16>,
}

pub enum Line {
    Message(Box<Received<'static>>),
    Malformed,
    TooBig,
}

pub struct Opener {
    pub nonce: Nonce,
    pub answer: oneshot::Sender<Result<Key, u16>>,
}

impl Opener {
    pub fn refuse(self, status: u16) {
        // The request may have been dropped.
        let _ = self.answer.send(Err(status));
    }
}
