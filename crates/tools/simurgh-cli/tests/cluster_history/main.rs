//! `simurgh serve` on several nodes whose topics have histories, on a real engine that keeps them,
//! and what goes wrong there: engines that are killed, set back, emptied and full, nodes that die,
//! messages that are lost on the way, and engines that do not do.
//!
//! They need a nats-server (`SIMURGH_NATS_SERVER`, see `cargo xtask engine`), and some of them
//! root; without that they say so and test nothing. After each fault the same holds: what was
//! answered `ok` is kept on every node, what was not is there once at most, and whoever hears a
//! topic hears all of it once and in the one order, or is told that something is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "clients outside of all descriptor tables")]

mod api;
mod back_end;
#[path = "../support/cluster/mod.rs"]
mod cluster;
mod confirmed;
mod disk;
mod epochs;
mod lost;
mod member;
mod node_faults;
mod operator;
mod permissions;
mod refusals;

pub(crate) use cluster::engine::{WAIT, until, within};
pub(crate) use cluster::{engine, hosts, listener, node};
