//! Several nodes as one server, without sockets, clocks, threads or randomness: what nodes say to
//! each other, and what each of them remembers for it. An engine carries it ([`Adapter`]).
#![forbid(unsafe_code)]

pub mod adapter;
mod beat;
mod calls;
mod chance;
mod cluster;
pub mod contract;
mod disconnects;
mod durations;
mod envelope;
mod interests;
mod keeping;
pub mod loopback;
mod message;
mod node_id;
mod outbox;
mod peers;
mod presence;
mod seen;
mod subject;
mod table;
mod time;
mod wire;

pub use adapter::{
    Adapter, Event, Fetched, Full, Generation, Measures, Received, Session, Ticket, Wanted,
};
pub use beat::{Beat, Hello};
pub use calls::{
    Answer, CALL_BYTES_MAX, CALL_PIECE_BYTES, CALLS_MAX, CallError, CallNumber, Piece,
};
pub use cluster::{Cluster, ClusterConfig, Counts, Local, Notice, State};
pub use disconnects::{
    DisconnectNumber, DisconnectSend, Disconnects, DisconnectsConfig, Outcome, TooMany,
};
pub use durations::{DURATION_BOUNDS_NS, Durations};
pub use envelope::{
    Draft, ENVELOPE_BYTES_MAX, ENVELOPE_VERSION, EncodeError, Envelope, EnvelopeError, Except,
    Flags, Header, Item, ItemPayload, Items, Kind, is_reserved, resent, stamped,
};
pub use interests::{InterestCounts, Interests, InterestsConfig, Shards, Step};
pub use keeping::{
    KeepCounts, KeepNotice, KeepsConfig, Kept, KeptAt, KeptItem, NotKept, Store, StoredAt, Wants,
};
pub use message::{Message, NAME_BYTES_MAX, SETTINGS_MAX, VERSION_BYTES_MAX};
pub use node_id::{NodeId, NotANodeId};
pub use outbox::{Class, Dropped, OUTBOX_ENTRY_BYTES, Outbox, OutboxConfig, Refused};
pub use peers::{Peer, PeerCounts, PeerEvent, Peers, PeersConfig, Why};
pub use presence::{
    PART_BYTES, PARTS_MAX, Part, PresenceParts, Told, UNFINISHED_MAX, ask_drafts, delta_drafts,
    state_drafts,
};
pub use seen::Seen;
pub use subject::{
    BUCKETS, Bucket, Interest, PREFIX_BYTES_MAX, Prefix, PrefixError, Space, Subject,
    TOKEN_BYTES_MAX, TOPIC_BYTES_MAX,
};
pub use time::Time;
