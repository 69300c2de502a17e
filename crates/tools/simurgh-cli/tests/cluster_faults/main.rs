//! Faults of three `simurgh serve` on a real engine: engines and nodes that are killed, frozen and
//! restarted, wrong clocks, other clusters on the same engine, hostile envelopes, and networks that
//! are cut.
//!
//! They need a nats-server (`SIMURGH_NATS_SERVER`, see `cargo xtask engine`), and some of them
//! root; without that they print so and test nothing. After each fault the same must hold: messages
//! of a publisher are received in order and none twice, missing ones are counted as lost, and all
//! members have the same presences.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "clients outside of all descriptor tables")]

mod client;
mod clocks;
#[path = "../support/cluster/mod.rs"]
mod cluster;
mod engine_faults;
mod hostile;
mod neighbours;
mod network;
mod node_faults;
mod room;

pub(crate) use cluster::engine::{until, within};
pub(crate) use cluster::{engine, hosts, listener, node};
