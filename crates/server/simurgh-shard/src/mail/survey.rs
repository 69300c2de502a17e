//! What a shard is asked by somebody who looks, and what it answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use simurgh_reactor::Key;
use tokio::sync::oneshot;

use crate::view::{ConnectionOrder, ConnectionRow, Kept, TopicOrder};

/// Where an answer goes; whoever asked may be gone.
pub type Answer<T> = oneshot::Sender<T>;

/// A question to one shard.
pub enum ShardQuery {
    /// Its first topics in an order, of those whose name holds `search`.
    Topics { by: TopicOrder, search: Box<str>, most: usize, answer: Answer<Surveyed<TopicCount>> },
    /// What it has of these topics, in the same order.
    Counts { topics: Arc<[Box<str>]>, answer: Answer<Vec<TopicCount>> },
    /// Some of a topic's members, how many there are, and what is kept of it here.
    Members { topic: Box<str>, most: usize, answer: Answer<MembersHere> },
    /// Its first connections in an order, of those from `peer`.
    Connections {
        by: ConnectionOrder,
        peer: Option<Peer>,
        most: usize,
        answer: Answer<Surveyed<ConnectionRow>>,
    },
    /// One connection.
    Connection { key: Key, answer: Answer<Option<ConnectionRow>> },
    /// Closes one; whether it was there to be closed.
    Disconnect { key: Key, answer: Answer<bool> },
}

/// An address, and a port if one was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub address: IpAddr,
    pub port: Option<u16>,
}

/// What a walk over a shard's records found.
#[derive(Debug)]
pub struct Surveyed<T> {
    pub rows: Vec<T>,
    /// How many there were to choose from.
    pub total: u64,
    /// What the walk took of the shard's time.
    pub busy: Duration,
}

/// Members of a topic on one shard.
#[derive(Debug, Default)]
pub struct MembersHere {
    pub total: u64,
    pub rows: Vec<ConnectionRow>,
    pub kept: Option<Kept>,
}

/// A topic on one shard.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopicCount {
    pub topic: Box<str>,
    pub members: u64,
    /// `None` until two looks are apart.
    pub deliveries_per_s: Option<f64>,
    /// What its home shard says.
    pub kept: Option<Kept>,
}
