//! Long polling (PROTOCOL §9): Channels for clients that get no WebSocket through.
//!
//! A long-poll session is a socket of a shard like any other: a local connection of the reactor
//! with a serializer, whose peer is whoever bears its token. What differs is where its frames go.
//!
//! ```text
//!        tokio (`request`, `http::parked`)               shard (`session`)
//!  GET  ─► Origin, vsn, params ──────── Open ─────────► connect, a local connection
//!       ◄─ 410, token ◄──────────────── its key ◄─────┘
//!  GET  ─► token ────────────────────── Poll ─────────► what waits, at once; or the poll waits
//!       ◄─ 200, messages; 204 ◄──────── Heard ◄─────── frames of the turn, by the end of it
//!  POST ─► token, lines, messages ───── Say ──────────► `Core::message`, one after the other
//!       ◄─ 200, 408, 410 ◄───────────── status ◄──────┘
//! ```
//!
//! Requests are parsed, tokens are checked and messages are decoded on tokio; the application runs
//! on the shard alone. A request that reaches another node of a cluster than the one that has its
//! session is passed on ([`elsewhere`]). A poll that waits owns no parser: its connection is taken
//! from hyper and parked (`http::parked`).

mod answer;
pub(crate) mod elsewhere;
mod frames;
mod request;
mod session;
mod session_request;
mod token;
mod waiting;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde_json::Value;
use simurgh_core::{NETWORK, Received, Wire};
use simurgh_reactor::Key;
use simurgh_socket::{LongPoll, UserSocket};
use tokio::sync::oneshot;

use crate::server::Server;

pub(crate) use answer::{HEADERS, Reply};
pub(crate) use request::{Served, serve};
pub(crate) use session::{Opener, Polled};
pub(crate) use token::{Nonce, Signer};
pub(crate) use waiting::Waiting;

/// What the record of a long-poll session says of its transport.
pub(crate) const POLLED: u8 = NETWORK - 1;

/// State that all long polls of a server share.
pub(crate) struct LongPolls {
    pub(crate) signer: Signer,
    /// Polls that wait now.
    pub(crate) waiting: AtomicUsize,
    /// Requests for a session that were refused before a shard had them.
    pub(crate) refused: AtomicU64,
    /// Requests that were passed on to the node that has their session.
    pub(crate) elsewhere: AtomicU64,
    next_shard: AtomicUsize,
}

impl LongPolls {
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn new(secret_key_base: Option<&str>) -> io::Result<Self> {
        Ok(Self {
            signer: Signer::new(secret_key_base)?,
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
        })
    }

    /// Where the next session lives: all shards in turn.
    fn next_shard(&self, shards: usize) -> u16 {
        (self.next_shard.fetch_add(1, Relaxed) % shards.max(1)) as u16
    }
}

/// A request's command for a shard.
pub(crate) enum PollCommand {
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
    Say {
        key: Key,
        nonce: Nonce,
        post: Post,
    },
}

/// A session to be opened.
pub(crate) struct Opening {
    /// The head of the request, for the application's connect.
    head: Box<[u8]>,
    user_socket: u8,
    wire: Wire,
    params: Value,
    auth_token: Option<String>,
    peer: SocketAddr,
    opener: Opener,
}

/// The shard's answer to a poll.
pub(crate) enum PollAnswer {
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
pub(crate) enum Delivery {
    Messages(Batch),
    /// A newer poll of the same session has taken its place.
    Newer,
}

/// The messages of one answer.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The number of this answer: 0 where they are not counted.
    number: u32,
    messages: Messages,
}

/// Frames, each a complete text.
pub(crate) type Messages = Vec<Box<str>>;

/// The messages of one POST.
pub(crate) struct Post {
    lines: std::vec::IntoIter<Line>,
    /// Bytes of its messages.
    bytes: usize,
    /// Receives the HTTP status.
    answer: oneshot::Sender<u16>,
}

/// A message of a client, as it was read.
pub(crate) enum Line {
    Message(Box<Received<'static>>),
    Malformed,
    TooBig,
}

/// The user socket that a path polls, if there is one.
pub(crate) fn user_socket_at(server: &Server, path: &str) -> Option<(u8, LongPoll)> {
    let polled =
        |(at, user_socket): (usize, &UserSocket)| Some((at as u8, user_socket.polled_at(path)?));
    server.user_sockets.iter().enumerate().find_map(polled)
}
