//! Long polling (PROTOCOL §9): Channels for clients that get no WebSocket through.
//!
//! A long-poll session is a socket of a shard like any other: a local connection of the reactor
//! with a serializer, whose peer is the client that sends its token. What differs is where its
//! frames go.
//!
//! ```text
//!        tokio (`request`, `http::waiting_poll`)         shard (`shard::polled`)
//!  GET  ─► Origin, vsn, params ──────── Open ─────────► connect, a local connection
//!       ◄─ 410, token ◄──────────────── its key ◄─────┘
//!  GET  ─► token ────────────────────── Poll ─────────► what waits, at once; or the poll waits
//!       ◄─ 200, messages; 204 ◄──────── Delivery ◄──── frames of the turn, by the end of it
//!  POST ─► token, lines, messages ───── Post ─────────► `Core::message`, one after the other
//!       ◄─ 200, 408, 410 ◄───────────── status ◄──────┘
//! ```
//!
//! Requests are parsed, tokens are checked and messages are decoded on tokio; the application runs
//! on the shard alone. A request that reaches another node of a cluster than the one that has its
//! session is passed on ([`other_node`]). A poll that waits owns no parser: its connection is taken
//! from hyper (`http::waiting_poll`).

mod answer;
mod frames;
pub(crate) mod other_node;
mod request;
mod session_request;
mod token;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use simurgh_shard::server::Server;
use simurgh_socket::{LongPoll, UserSocket};

pub(crate) use answer::{HEADERS, Reply};
pub(crate) use request::{Served, serve};
pub(crate) use token::Signer;
pub(crate) use waiting::Waiting;

/// Long polls of a server: what they share.
pub(crate) struct LongPolls {
    pub(crate) server: Arc<Server>,
    signer: Signer,
    /// Polls that wait now.
    pub(crate) waiting: AtomicUsize,
    /// Requests for a session that were refused before a shard had them.
    pub(crate) refused: AtomicU64,
    /// Requests that were passed on to the node that has their session.
    pub(crate) elsewhere: AtomicU64,
    next_shard: AtomicUsize,
}

impl LongPolls {
    pub(crate) fn new(server: Arc<Server>, signer: Signer) -> Self {
        Self {
            server,
            signer,
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
        }
    }

    /// Where the next session lives: all shards in turn.
    fn next_shard(&self) -> u16 {
        let shards = self.server.mailboxes.len().max(1);
        (self.next_shard.fetch_add(1, Relaxed) % shards) as u16
    }

    /// The user socket that a path polls, if there is one.
    pub(crate) fn user_socket_at(&self, path: &str) -> Option<(u8, LongPoll)> {
        let polled = |(at, user_socket): (usize, &UserSocket)| {
            Some((at as u8, user_socket.polled_at(path)?))
        };
        self.server.user_sockets.iter().enumerate().find_map(polled)
    }
}
