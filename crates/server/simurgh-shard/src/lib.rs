//! The shared state of a server's threads, and the shards.
//!
//! ```text
//! shard ─► server ─┬─► mail ─► view
//!                  ├─► connections, peer_limits, certificates ─► config
//!                  └─► access_list, cluster_inbox, connection_id, member_counts, state_dir,
//!                      saved, callback_watch, api_requests
//! ```
//!
//! A [`Shard`](shard::Shard) is `simurgh-core`'s shard on the event loop of `simurgh-reactor`: the
//! WebSocket transport, driven and polled sockets, and the observer's queries. A shard owns its
//! state; all threads share the [`Server`](server::Server) and send [`Mail`](mail::Mail). Use the
//! crate `simurgh`, which starts both and exports the [`Config`](config::Config), the events of
//! drivers and the views of the observer.

#![allow(
    missing_docs,
    reason = "shown to nobody but simurgh; many fields say by their names what they are"
)]

pub mod access_list;
pub mod api_requests;
pub mod callback_watch;
pub mod certificates;
pub mod cluster_inbox;
pub mod config;
pub mod connection_id;
pub mod connections;
pub mod mail;
pub mod member_counts;
pub mod peer_limits;
pub mod proxies;
pub mod saved;
pub mod server;
pub mod shard;
pub mod state_dir;
pub mod takeover;
pub mod view;
