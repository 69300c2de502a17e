//! What the threads of a server share, and the shards.
//!
//! ```text
//! shard ─► server ─┬─► mail ─► view
//!                  ├─► connections, peer_limits ─► config
//!                  └─► cluster_inbox, member_counts, saved, callback_watch
//! ```
//!
//! A [`Shard`](shard::Shard) is `simurgh-core`'s shard on the event loop of `simurgh-reactor`: the
//! WebSocket transport, sockets that are driven or polled, what an observer is shown. It owns what
//! it has; the [`Server`](server::Server) is what all threads have, [`Mail`](mail::Mail) what they
//! send. `simurgh` starts both, and is the one to use: it shows the [`Config`](config::Config),
//! what drivers receive and what the observer shows as its own.

#![allow(
    missing_docs,
    reason = "shown to nobody but simurgh; many fields say by their names what they are"
)]

pub mod callback_watch;
pub mod cluster_inbox;
pub mod config;
pub mod connections;
pub mod mail;
pub mod member_counts;
pub mod peer_limits;
pub mod proxies;
pub mod saved;
pub mod server;
pub mod shard;
pub mod view;
