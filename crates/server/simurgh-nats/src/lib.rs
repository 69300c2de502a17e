//! NATS as the broker of a cluster: [`NatsAdapter`] is the
//! [`Adapter`](simurgh_cluster::Adapter) for it.
//!
//! It implements NATS's text protocol itself instead of using async-nats. An adapter needs to know
//! what the broker has received, which that client does not expose (0.51.0):
//! - Its `flush` waits for the socket and not for an answer to PING.
//! - Its `drain` forgets a subscription before the server does.
//! - Its reconnect sends the rest of its queue before earlier envelopes can be sent again.
//! - Each subscription has its own queue, which loses the order of messages across two of them. A
//!   request without a responder could replace the PING, but gets no reply as soon as any client
//!   subscribes to `>`. Here one stream of operations is read in the order in which the server
//!   wrote it, and a message costs a fraction (`simurgh-bench cluster`).
//!
//! ```text
//! owner ─► publish, interest ─► Outbox, Interests ─► bytes to write ─┐
//!                                                                    ├─ poll_event ─► server
//! owner ◄─ events ◄─ Interests::accept, PINGs' numbers ◄─ wire::Decoder ┘
//! ```
//!
//! Stores go to JetStream ([`StreamsConfig`]) in the same stream of operations: requests with an
//! inbox for their answers. The streams are checked over each link, created or changed where that
//! is allowed, and not used if they do not fit.
//!
//! The adapter reads from the broker only when the owner polls it: data waits in the sockets, and
//! the broker ends a link that does not keep up. So nothing is lost unless a link breaks.
//!
//! The feature `fuzz`, which is off by default, opens the decoder to this project's fuzz targets.
#![forbid(unsafe_code)]

mod adapter;
mod backoff;
mod config;
mod connect;
mod interests;
mod jetstream;
mod link;
mod nkey;
mod outbox;
mod permissions;
mod streams;
mod timer;
mod timestamp;
mod tls;
mod wire;

pub use adapter::{NatsAdapter, Statistics};
pub use config::{Config, Credentials, Identity, Secret, Server, ServerError, Tls};
pub use permissions::Permissions;
pub use streams::{Replicas, Storage, StreamCount, StreamsConfig};
#[cfg(feature = "fuzz")]
pub use wire::fuzz::run as fuzz_wire;
