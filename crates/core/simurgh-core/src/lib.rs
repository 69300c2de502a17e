//! One shard of a channels server as a pure machine: its sessions, channels, topics and fan-out,
//! without sockets, threads, clocks or randomness.
//!
//! A transport (the server's reactor with its WebSockets, the driver of sockets within the process,
//! the simulator) says what happened; what is to be done with its peers it is told by the trait
//! [`Sockets`], and what is to be done on other shards by [`Node`]. Time and seed are arguments, so
//! the same inputs give the same outputs, bit by bit.
//!
//! ```text
//!                 opened, message, peer_closed, drained, closed          mail
//!    transport ─────────────────────────┐           ┌──────────────────────────── other threads
//!                                       ▼           ▼
//!        ┌────────────────────────────────  Core  ────────────────────────────────────┐
//!        │  session ──► effects ──► application   the application's callbacks         │
//!        │  deadlines ──┘  │  │                                                       │
//!        │                 │  └───► membership                                        │
//!        │                 └──► fanout ──► registry   topics, memberships, lists      │
//!        └──────┬──────────────────┬───────────────────────────┬──────────────────────┘
//!               ▼                  ▼                           ▼
//!    Sockets: send_with, send_run, hold, release, close …      Node: post, charge, decide …
//! ```
//!
//! # The kinds of methods, and their order
//!
//! All are methods of [`Core`]; none is called from within another.
//!
//! 1. *Input*, as it happens: [`opened`](Core::opened) once for each socket, when it is let in;
//!    [`message`](Core::message) or [`plain_message`](Core::plain_message) for each message, one at
//!    a time, and none while its socket is held ([`Sockets::hold`]); [`drained`](Core::drained)
//!    when a peer that had output waiting has taken all of it;
//!    [`peer_closed`](Core::peer_closed) for its close frame; [`closed`](Core::closed) once, with
//!    the record, when the connection is gone; [`mail`](Core::mail) for what other threads posted.
//! 2. *Commands*, when the transport wants something: [`close`](Core::close),
//!    [`fail`](Core::fail), [`resume`](Core::resume).
//! 3. *Time*, at the end of each turn and in this order: [`tick`](Core::tick) (whose time is up),
//!    [`fan_out`](Core::fan_out) (a slice of what is broadcast), [`settle`](Core::settle). Each
//!    says when it wants to be called again at the latest.
//! 4. *Getters*: what a shard shows of itself.
//!
//! # Rooms
//!
//! Each uses only what stands below it; what a callback wants done is a list of effects that the
//! caller carries out. From the bottom: the words (`id`, `outcome`, `broadcast`, `mail`,
//! `user_socket` …) and the traits; `registry`, the one owner of topics, memberships and each
//! socket's list; `frames`, what is said on a wire; `fanout`; `application`, callbacks under their
//! guard; `time`, the clockworks; `core`, the state of a shard; `membership` and `effects`,
//! carrying out; `presence`, who is there; `session`, what a message means; `deadlines`, whose time
//! is up; `input`, the methods above.
//!
//! # Features
//!
//! None is on by default. `fuzz` opens the model of the registry to this project's fuzz targets.

mod application;
mod barrier;
mod broadcast;
mod channel;
mod clock;
mod cluster;
mod config;
mod context;
mod core;
mod deadlines;
mod effects;
mod fanout;
mod flow;
mod frames;
mod handle;
mod history;
mod id;
mod input;
mod limit;
mod listeners;
mod mail;
mod membership;
mod metering;
pub mod metrics;
mod node;
mod node_handle;
mod outcome;
mod permits;
mod presence;
mod registry;
mod seeded;
mod session;
mod socket;
mod sockets;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod time;
mod user_socket;
mod view;
mod waiting;
mod wire;

pub use application::guarded;
pub use broadcast::{Broadcast, BroadcastError};
pub use channel::{Channel, HandleInfo, Join, JoinFn};
pub use clock::{Lifetime, TICK, nanoseconds, until};
pub use cluster::call::{Cluster, ToCluster};
pub use config::Config;
pub use context::{Assigns, Context, Effect, Prepared, SocketState};
pub use core::{Core, Received};
pub use flow::Posted;
pub use handle::ChannelHandle;
pub use history::call::{
    HistoryMail, HistoryPage, HistoryRequest, HistoryTopic, HistoryTopics, Keep, KeptAt,
    KeptCallback, KeptMessage, PageCallback, Range,
};
pub use history::engine::{FromEngine, KeptItem, NotKept, Retention, StoreRequest, StoredAt};
pub use history::rule::{HistoryConfig, HistoryRule};
pub use history::save::SavedHistory;
pub use history::show::KeptView;
pub use id::ChannelId;
pub use limit::{
    Bucket, ChannelLimits, Limit, LimitPolicy, Rate, RateError, RateLimit, SizeLimit, SocketLimits,
    TooFewTokens,
};
pub use listeners::{Listener, OnBroadcast};
pub use mail::Mail;
pub use node::{Callback, JoinDecision, Node};
pub use node_handle::{Audience, LinkedWork, NodeHandle, ToChannel, Work};
pub use outcome::{Outcome, Reason, Reply, ReplyRef, Stop};
pub use permits::FanoutPermits;
pub use presence::call::{
    PresenceCall, PresenceCallback, PresenceConfig, PresenceError, PresenceList, PresenceMail,
    SharedPush,
};
pub use presence::handle::{Effects, Presences};
pub use registry::TopicId;
#[cfg(feature = "fuzz")]
pub use registry::model::run as fuzz_registry;
pub use simurgh_history::ReplayLimits;
pub use simurgh_history::{GapReason, Ids, Position, Resume, Since};
pub use simurgh_presence::{FromPeers, ToPeers};
pub use socket::{NETWORK, Phase, Socket};
pub use sockets::{AbandonReason, Sockets};
pub use time::DRAIN_GRACE;
pub use user_socket::{Kind, PrepareFn, Route, UserSocket};
pub use view::{SUBSCRIPTION_BYTES, TOPIC_BYTES, TopicView};
pub use wire::{Wire, op_code};
