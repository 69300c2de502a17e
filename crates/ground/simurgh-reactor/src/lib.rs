//! One event loop per thread: the shard that a protocol runs on.
//!
//! A *shard* is an OS thread with its own poll set, listening sockets, descriptor table and
//! connections. It shares only its [`Mailbox`], through which other threads reach it, and its
//! counters. A protocol implements [`Handler`]; its operations on connections are in [`Io`].
//!
//! ```text
//!            other threads ── Mailbox::post ──┐         HandOffEnd (HTTP side)
//!                                             ▼              ▲ │ SCM_RIGHTS
//!  listener ─ accept ─► Handler::accepted   mail             │ ▼
//!  Io::connect ───────► Handler::connected ─┐
//!  socket ─── recv ───► Handler::readable ──┼─► Io::send ──► outbox ─ flush ─► one write each
//!  timer, every turn ─► Handler::turn_end ──┴─► Io::send_shared ─────────────► send at once
//! ```
//!
//! Guarantees for a handler:
//!
//! - All calls come from the shard's thread, one at a time, and never from within [`Io`].
//! - A [`Key`] identifies one connection; when that is gone the key finds nothing, even if its slot
//!   is reused.
//! - All that one turn sends to a connection with [`Io::send`] leaves in one write, in order.
//!   [`Io::send_shared`] keeps that order too, but writes at once when nothing is pending.
//! - Each record that [`Handler::accepted`] or [`Handler::adopted`] made, or that [`Io::connect`]
//!   was given, is returned exactly once: by [`Handler::closed`], [`Io::hand_off`],
//!   or with the error of [`Io::connect`].
//! - An idle connection costs its record and 24 bytes; only a slow peer has a buffer, and what
//!   waits for many of them is stored once ([`Shared`], [`Run`]).
//! - A *local* connection ([`Io::open_local`]) is like any other, but without a descriptor: its
//!   output goes to [`Handler::local`], and its input is up to the handler.
//!
//! A handler must never block, never start a thread from the shard (it would share the shard's
//! descriptor table; tokio's `spawn_blocking` may do so), and never use a descriptor of another
//! thread. A slice of [`Handler::turn_end`] should stay below 1 ms.
//!
//! Starting: [`ShardSet::prepare`], [`ShardSet::bind`] unless the shards only connect, then
//! [`ShardSet::spawn`] for each shard. Descriptors that the process has open by then are closed in
//! the shards' tables; those that it opens later are never in them. See `examples/echo.rs`.
//!
//! On Linux each shard has its own descriptor table. Elsewhere tables are shared and the kernel
//! does not spread connections over shards; that builds and is not tested.
//!
//! # Features
//!
//! None is on by default. `mimalloc` is for binaries with that allocator: see [`give_back_memory`].

mod accept;
mod affinity;
mod clock;
mod config;
mod connect;
mod connection;
mod ending;
mod handler;
mod handoff;
mod io;
mod listening;
mod local;
mod mailbox;
mod memory;
mod names;
mod net;
mod outbound;
mod page;
mod pool;
mod queue;
mod shake;
mod slab;
mod slow;
mod spawn;
mod stage;
mod stamps;
mod stats;
mod syscalls;
mod tables;
mod timer;
mod tls;
mod tun;
mod turn;
mod wake;

pub use affinity::pin_thread;
pub use config::{Config, TUN_PACKET_BYTES_MAX, TunConfig};
pub use connection::Closed;
pub use handler::{Accepted, Handler, Slow};
pub use handoff::{HandOffEnd, HandOffError, READ_AHEAD_BYTES_MAX};
pub use io::{Io, Slice};
pub use listening::{Listening, activated, receive_listening};
pub use mailbox::{Full, Mailbox};
pub use memory::{give_back_memory, give_back_memory_soon, purge_by_call, purge_memory};
pub use names::use_built_in_name_services;
pub use net::{ConnectOptions, ListenError, listening_address};
pub use outbound::LocalOutput;
pub use page::Page;
pub use pool::free_memory;
pub use simurgh_data::{Key, Next, Now, PAGE_SLOTS, Run, Shared, SlotAllocator};
pub use simurgh_tls::HandshakeError;
pub use spawn::{Shard, ShardHandle, ShardSet, StartError, connections_for, shards_for};
pub use stats::{Counts, ReactorStats, TURN_BUCKETS_NS};
pub use tables::{Tables, raise_descriptor_limit};
