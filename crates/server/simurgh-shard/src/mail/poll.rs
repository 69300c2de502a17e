//! Commands of long-poll requests for a shard.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
    pub opener: Opener,
}

pub enum PollAnswer {
    Gone,
    /// The answer before it was lost, so the session has ended and its client begins anew.
    Lost,
    Messages(Box<Batch>),
    Waits(oneshot::Receiver<Delivery>),
}

/// The answer to a waiting poll, small while it waits. A dropped sender means that the session has
/// ended.
#[derive(Debug)]
pub enum Delivery {
    Messages(Box<Batch>),
    Newer,
}

/// Counts as under way until it is dropped, when the answer is made.
#[derive(Debug)]
pub struct Batch {
    /// The number of this answer: 0 where answers are not numbered.
    pub number: u32,
    pub messages: Messages,
    pub(crate) bytes: usize,
    underway: Arc<AtomicUsize>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.underway.fetch_sub(self.bytes, Relaxed);
    }
}

/// Bytes of a shard's batches that no answer is made of yet: the threads of requests may be slower
/// than the shard.
#[derive(Debug, Default)]
pub(crate) struct Underway(Arc<AtomicUsize>);

impl Underway {
    /// Beyond this, messages wait in their sessions, where they are limited.
    const BYTES_MAX: usize = 4 << 20;

    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Relaxed) >= Self::BYTES_MAX
    }

    pub(crate) fn batch(&self, number: u32, messages: Messages, bytes: usize) -> Box<Batch> {
        self.0.fetch_add(bytes, Relaxed);
        Box::new(Batch { number, messages, bytes, underway: Arc::clone(&self.0) })
    }
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
    pub peer: SocketAddr,
    pub answer: oneshot::Sender<Result<Key, u16>>,
}

impl Opener {
    pub fn refuse(self, status: u16) {
        // The request may have been dropped.
        let _ = self.answer.send(Err(status));
    }
}
