//! Tests of shards with real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod allocations;
mod closing;
mod connect;
mod connections;
mod handoff;
mod local;
mod mailbox;
mod one_server_a_port;
mod output;
mod support;
mod tables;
mod timing;
mod tls;
