//! Several nodes as one server, without sockets, clocks, threads or randomness: the messages
//! between nodes, and the state that each of them keeps. A broker carries the messages
//! ([`Adapter`]).
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adapter;
mod beat;
mod calls;

mod cluster;

mod disconnects;
mod duplicate_filter;
mod durations;
mod envelope;
mod history;
mod interests;
mod log;

mod message;
mod node_id;
mod outbox;
mod peers;
mod presence;
mod split_mix;
mod subject;
mod table;
mod thread;
mod time;
mod wire;

pub use adapter::{
    Adapter, Event, Fetched, Generation, Measures, QueueFull, Received, Session, Ticket, Wanted,
};
pub use beat::{Beat, Hello};
pub use calls::{
    Answer, CALL_BYTES_MAX, CALL_PIECE_BYTES, CALLS_MAX, CallError, CallNumber, Piece,
};
pub use cluster::{Cluster, ClusterConfig, ClusterCounts, LinkState, LocalNode, Notice};
pub use disconnects::{
    DisconnectNumber, DisconnectOutcome, DisconnectSend, Disconnects, DisconnectsConfig,
    TooManyDisconnects,
};
pub use duplicate_filter::DuplicateFilter;
pub use durations::Durations;
pub use envelope::{
    Draft, ENVELOPE_BYTES_MAX, ENVELOPE_VERSION, EncodeError, Envelope, EnvelopeError, Flags,
    Header, Item, ItemPayload, Items, Kind, resent, stamped,
};
pub use history::{
    HistoryConfig, HistoryCounts, HistoryEvent, HistoryItem, HistoryNotice, StoreItem,
};
pub use interests::{InterestChanges, InterestCounts, Interests, InterestsConfig, Shards};
pub use log::{LogCommand, LogEvent};
pub use message::{Message, NAME_BYTES_MAX, SETTINGS_MAX, VERSION_BYTES_MAX};
pub use node_id::{NodeId, NodeIdError};
pub use outbox::{Class, Dropped, OUTBOX_ENTRY_BYTES, Outbox, OutboxConfig, OutboxError};
pub use peers::{GoneReason, NOTICES, Peer, PeerCounts, PeerEvent, Peers, PeersConfig};
pub use presence::{
    PART_BYTES, PARTS_MAX, Part, PresenceParts, PresenceUpdate, UNFINISHED_MAX, ask_drafts,
    delta_drafts, state_drafts,
};
pub use simurgh_history::{NotKept, Retention, StoredAt};
pub use split_mix::SplitMix64;
pub use subject::{
    BUCKETS, Bucket, Interest, PREFIX_BYTES_MAX, Prefix, PrefixError, Space, Subject,
    TOKEN_BYTES_MAX, TOPIC_BYTES_MAX,
};
pub use thread::{DisconnectReply, FLUSH_NS, NodeThread, TURN_INTERVAL_NS, ThreadNode};
pub use time::Time;
