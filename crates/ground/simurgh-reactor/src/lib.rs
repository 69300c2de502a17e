//! One event loop per thread: the shard a protocol lives on.
//!
//! A *shard* is an OS thread with its own poll set, listening sockets, descriptor table and
//! connections. Nothing of it is shared but its [`Mailbox`], the one door for other threads, and
//! its counters. A protocol implements [`Handler`]; what it may do with connections is [`Io`].
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
//! What a handler can rely on:
//!
//! - All calls come from the shard's thread, one at a time, and never from within [`Io`].
//! - A [`Key`] names one connection; when that is gone the key finds nothing, even if its slot is
//!   used again.
//! - All that one turn sends to a connection with [`Io::send`] leaves in one write, in order.
//!   [`Io::send_shared`] keeps that order too, but writes at once when nothing is pending.
//! - Each record that [`Handler::accepted`] or [`Handler::adopted`] made, or that [`Io::connect`]
//!   was given, comes back exactly once: by [`Handler::closed`], [`Io::take`], [`Io::hand_off`],
//!   or with the error of [`Io::connect`].
//! - An idle connection costs its record and 24 bytes; a buffer exists only for a slow peer, and
//!   what waits for many of them is there once ([`Shared`], [`Run`]).
//! - A *local* connection ([`Io::open_local`]) is one like any other, but without a descriptor:
//!   what is sent to it comes to [`Handler::local`], and its input is up to the handler.
//!
//! What a handler must do: never block, never start a thread from the shard (it would share the
//! shard's descriptor table; tokio's `spawn_blocking` may do so), never use a descriptor of
//! another thread. A slice of [`Handler::turn_end`] should stay below 1 ms.
//!
//! Starting: [`ShardSet::prepare`], [`ShardSet::bind`] unless the shards only connect, then
//! [`ShardSet::spawn`] for each shard. What the process has open by then is closed in the shards'
//! tables; what it opens later never gets there. See `examples/echo.rs`.
//!
//! On Linux each shard has its own descriptor table. Elsewhere tables are shared and connections
//! are not spread over shards by the kernel; it builds and is not tested.
//!
//! # Features
//!
//! None is on by default. `mimalloc` is for binaries whose allocator that is: see
//! [`give_back_memory`].

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
mod local;
mod mailbox;
mod memory;
mod names;
mod net;
mod outbound;
mod page;
mod pool;
mod queue;
mod shared;
mod slab;
mod slot_allocator;
mod slow;
mod spawn;
mod stage;
mod stamps;
mod stats;
mod syscalls;
mod tables;
mod timer;
mod turn;
mod wake;

pub use affinity::pin_thread;
pub use clock::Now;
pub use config::Config;
pub use connection::{Closed, Key};
pub use handler::{Accepted, Handler, Next, Slow};
pub use handoff::{HandOffEnd, HandOffError, READ_AHEAD_BYTES_MAX};
pub use io::Io;
pub use mailbox::{Full, Mailbox};
pub use memory::{give_back_memory, give_back_memory_soon};
pub use names::use_built_in_name_services;
pub use net::{ConnectOptions, ListenError};
pub use outbound::LocalOutput;
pub use page::Page;
pub use pool::free_memory;
pub use shared::{Run, Shared};
pub use slot_allocator::{PAGE_SLOTS, SlotAllocator};
pub use spawn::{Shard, ShardHandle, ShardSet, StartError, connections_for, shards_for};
pub use stats::{Counts, ReactorStats, TURN_BUCKETS_NS};
pub use tables::{Descriptor, Tables, raise_descriptor_limit};
