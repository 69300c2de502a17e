//! Three `simurgh serve` on a real engine, and what goes wrong between them: engines and nodes that
//! are killed, frozen and started again, clocks that are wrong, neighbours that are too near,
//! envelopes nobody of us made, and networks that are cut.
//!
//! They need a nats-server (`SIMURGH_NATS_SERVER`, see `cargo xtask engine`), and some of them
//! root; without that they say so and test nothing. After each fault the same holds: whoever hears
//! a publisher hears it in order and nothing of it twice, what is missing is known to have been
//! lost, and all members have the same presences.
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

pub(crate) use cluster::engine::{WAIT, until, within};
pub(crate) use cluster::{engine, hosts, listener, node};
