//! An observer's queries to a shard, and the shard's answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use simurgh_reactor::Key;
use tokio::sync::oneshot;

use crate::view::{ConnectionOrder, ConnectionRow, Kept, TopicOrder};

pub type Answer<T> = oneshot::Sender<T>;

pub enum ShardQuery {
    /// Its first topics in an order, of those whose name contains `search`.
    Topics { by: TopicOrder, search: Box<str>, most: usize, answer: Answer<Surveyed<TopicCount>> },
    /// Its counts for these topics, in the same order.
    Counts { topics: Arc<[Box<str>]>, answer: Answer<Vec<TopicCount>> },
    /// Some of a topic's members, their number, and the history kept here.
    Members { topic: Box<str>, most: usize, answer: Answer<MembersHere> },
    /// Its first connections in an order, of those from `peer`.
    Connections {
        by: ConnectionOrder,
        peer: Option<Peer>,
        most: usize,
        answer: Answer<Surveyed<ConnectionRow>>,
    },
    /// The row of one connection.
    Connection { key: Key, answer: Answer<Option<ConnectionRow>> },
    /// Closes a connection; answers whether it existed.
    Disconnect { key: Key, answer: Answer<bool> },
}

/// Hashes in a sample: up to this many topics are counted exactly, more to a few percent.
pub const SAMPLE: usize = 4096;

/// An address, and a port if one was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub address: IpAddr,
    pub port: Option<u16>,
}

/// The result of a walk over a shard's records.
#[derive(Debug)]
pub struct Surveyed<T> {
    pub rows: Vec<T>,
    /// How many rows there were to choose from.
    pub total: u64,
    /// The greatest hashes of the names of topics with members, at most [`SAMPLE`]: to count topics
    /// with members on several shards once.
    pub sample: Vec<u64>,
    /// CPU time that the walk took of the shard.
    pub busy: Duration,
}

#[derive(Debug, Default)]
pub struct MembersHere {
    pub total: u64,
    pub rows: Vec<ConnectionRow>,
    pub kept: Option<Kept>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopicCount {
    pub topic: Box<str>,
    pub members: u64,
    /// `None` until two requests are far enough apart.
    pub deliveries_per_s: Option<f64>,
    /// As its home shard has it.
    pub kept: Option<Kept>,
}
