//! Long polling (PROTOCOL §9): Channels for clients that cannot use a WebSocket.
//!
//! A long-poll session is a socket of a shard like any other: a local connection of the reactor
//! with a serializer. Its peer is the client that sends its token, and its frames go into answers.
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
//! on the shard only. A request that reaches another node of a cluster than its session's is
//! forwarded ([`other_node`]). A waiting poll has no parser: its connection leaves hyper
//! (`http::waiting_poll`).

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
pub(crate) use request::{Client, Served, serve, write_head};
pub(crate) use token::Signer;
pub(crate) use waiting::Waiting;

#[derive(Clone)]
pub(crate) struct LongPolls {
    pub(crate) server: Arc<Server>,
    signer: Arc<Signer>,
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Requests for a session that were refused before they reached a shard.
    pub(crate) refused: Arc<AtomicU64>,
    /// Requests that were forwarded to the node of their session.
    pub(crate) elsewhere: Arc<AtomicU64>,
    next_shard: Arc<AtomicUsize>,
}

impl LongPolls {
    pub(crate) fn new(server: Arc<Server>, signer: Signer) -> Self {
        Self {
            server,
            signer: Arc::new(signer),
            waiting: Arc::default(),
            refused: Arc::default(),
            elsewhere: Arc::default(),
            next_shard: Arc::default(),
        }
    }

    /// The same sessions, with other settings.
    pub(crate) fn with(&self, server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, ..self.clone() })
    }

    /// The shard of the next session, in rotation.
    fn next_shard(&self) -> u16 {
        let shards = self.server.mailboxes.len().max(1);
        (self.next_shard.fetch_add(1, Relaxed) % shards) as u16
    }

    pub(crate) fn user_socket_at(&self, path: &str) -> Option<(u8, LongPoll)> {
        let polled = |(at, user_socket): (usize, &UserSocket)| {
            Some((at as u8, user_socket.polled_at(path)?))
        };
        self.server.user_sockets.iter().enumerate().find_map(polled)
    }
}
