//! Several nodes as one server, without sockets, clocks, threads or randomness: what nodes say to
//! each other, and what each of them remembers for it. An engine carries it ([`Adapter`]).
#![forbid(unsafe_code)]

pub mod adapter;
mod beat;
mod chance;
mod disconnects;
mod interests;
mod node_id;
mod outbox;
mod peers;
mod subject;

pub use adapter::{Adapter, Event, Full, Generation, Received, Session, Ticket, Wanted};
pub use beat::{Beat, Hello};
pub use disconnects::{
    DisconnectNumber, DisconnectSend, Disconnects, DisconnectsConfig, Outcome, TooMany,
};
pub use interests::{InterestCounts, Interests, InterestsConfig, Shards, Step};
pub use node_id::{NodeId, NotANodeId};
pub use outbox::{Class, Dropped, OUTBOX_ENTRY_BYTES, Outbox, OutboxConfig, Refused};
pub use peers::{Peer, PeerCounts, PeerEvent, Peers, PeersConfig, Why};
pub use subject::{
    BUCKETS, Bucket, Interest, PREFIX_BYTES_MAX, Prefix, PrefixError, Space, Subject,
    TOKEN_BYTES_MAX, TOPIC_BYTES_MAX,
};
