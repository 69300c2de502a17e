//! One shard of a channels server as a pure machine: its sessions, channels, topics and fan-out,
//! without sockets, threads, clocks or randomness.
//!
//! A transport (the server's reactor with its WebSockets, the driver of sockets within the process,
//! the simulator) reports what happened. The core acts on its peers through the trait [`Sockets`],
//! and on other shards through [`Node`]. Time and seed are arguments, so the same inputs give the
//! same outputs, bit by bit.
//!
//! # The kinds of methods, and their order
//!
//! All are methods of [`Core`]; none may be called while another runs.
//!
//! 1. *Input*, as it happens: [`opened`](Core::opened) once for each admitted socket;
//!    [`message`](Core::message) or [`plain_message`](Core::plain_message) for each message, one at
//!    a time, and none while its socket is held ([`Sockets::hold`]); [`drained`](Core::drained)
//!    when a peer has taken all output that waited for it; [`peer_closed`](Core::peer_closed) for
//!    its close frame; [`closed`](Core::closed) once, with the record, when the connection is gone;
//!    [`mail`](Core::mail) for mail of other threads.
//! 2. *Commands* of the transport: [`close`](Core::close), [`fail`](Core::fail),
//!    [`resume`](Core::resume).
//! 3. *Time*, at the end of each turn and in this order: [`tick`](Core::tick) (timeouts),
//!    [`fan_out`](Core::fan_out) (a slice of the broadcasts), [`settle`](Core::settle). Each
//!    returns when it must be called again at the latest.
//! 4. *Getters*: the state of the shard for display.
//!
//! # Components
//!
//! [`Core`] routes between components, each of which owns its state and returns what the core has
//! to do next: `registry` (topics and memberships), `fanout`, `application` (callbacks under their
//! guard), `history`, `barrier` (channels that wait), `presence`, `meters`, `deadlines`. A callback
//! leaves a list of effects, which `core::channels` carries out. docs/ARCHITECTURE.md has a picture
//! and the way of some messages.
//!
//! # Features
//!
//! None is on by default. `std` brings `guarded`, which shards need. `fuzz` opens the model of the
//! registry to this project's fuzz targets.

#![cfg_attr(not(any(test, feature = "fuzz")), no_std)]

extern crate alloc;

mod application;
mod barrier;
mod core;
mod deadlines;
mod fanout;
mod flow;
mod frames;
mod history;
mod metering;
mod meters;
mod name_table;
mod presence;
mod registry;
mod seeded_state;
mod socket;
mod sockets;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use self::core::{Core, Received, SUBSCRIPTION_BYTES, TOPIC_BYTES, TopicView};
pub use deadlines::DRAIN_GRACE;
pub use history::{HandedOver, HandedOverNumbers, KeptTopics, KeptView, SavedHistory};
pub use presence::PresenceCounts;
pub use registry::TopicId;
#[cfg(feature = "fuzz")]
pub use registry::model::run as fuzz_registry;
pub use simurgh_channel::*;
pub use simurgh_history::{
    GapReason, Ids, Place, Position, ReplayLimits, Resume, Retention, SaveError, Since, StoredAt,
};
pub use simurgh_presence::{FromPeers, ToPeers};
pub use socket::{NETWORK, Phase, Socket};
pub use sockets::{AbandonReason, Sockets};
pub use wire::{Wire, op_code};
