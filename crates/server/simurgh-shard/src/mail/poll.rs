//! Commands of long-poll requests for a shard.

use std::net::SocketAddr;

use serde_json::Value;
use simurgh_core::{Received, Wire};
use simurgh_reactor::Key;
use tokio::sync::oneshot;

/// Bytes that tell a session from others in the same place.
pub type Nonce = [u8; 16];

/// A request's command for a shard.
pub enum PollCommand {
    Open(Opening),
    Poll {
        key: Key,
        nonce: Nonce,
        /// The number of the last answer that the client has received.
        heard: u32,
        /// It came by way of another node: an answer may be lost on its way.
        is_elsewhere: bool,
        answer: oneshot::Sender<PollAnswer>,
    },
    Post {
        key: Key,
        nonce: Nonce,
        post: Post,
    },
}

/// A session to be opened.
pub struct Opening {
    /// The head of the request, for the application's connect.
    pub head: Box<[u8]>,
    pub user_socket: u8,
    pub wire: Wire,
    pub params: Value,
    pub auth_token: Option<String>,
    pub peer: SocketAddr,
    pub opener: Opener,
}

/// The shard's answer to a poll.
pub enum PollAnswer {
    /// There is no such session.
    Gone,
    /// The answer before it was lost, so the session has ended and its client begins anew.
    Lost,
    /// What had waited for it.
    Messages(Batch),
    /// Nothing yet.
    Waits(oneshot::Receiver<Delivery>),
}

/// What a waiting poll receives. A dropped sender means that the session has ended.
#[derive(Debug)]
pub enum Delivery {
    Messages(Batch),
    /// A newer poll of the same session has taken its place.
    Newer,
}

/// The messages of one answer.
#[derive(Debug)]
pub struct Batch {
    /// The number of this answer: 0 where they are not counted.
    pub number: u32,
    pub messages: Messages,
}

/// Frames, each a complete text.
pub type Messages = Vec<Box<str>>;

/// The messages of one POST.
pub struct Post {
    pub lines: std::vec::IntoIter<Line>,
    /// Bytes of its messages.
    pub bytes: usize,
    /// Receives the HTTP status.
    pub answer: oneshot::Sender<u16>,
}

/// A message of a client, as it was read.
pub enum Line {
    Message(Box<Received<'static>>),
    Malformed,
    TooBig,
}

/// Waits for a session to be opened.
pub struct Opener {
    pub nonce: Nonce,
    /// Receives its key, or the HTTP status of the refusal.
    pub answer: oneshot::Sender<Result<Key, u16>>,
}

impl Opener {
    pub fn refuse(self, status: u16) {
        // Who asked may have gone.
        let _ = self.answer.send(Err(status));
    }
}
