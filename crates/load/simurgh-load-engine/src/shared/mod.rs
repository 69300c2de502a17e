//! State shared by all workers of a host. It is small, and not used for every message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

mod presences;
mod sent;

pub(crate) use presences::Presences;
pub(crate) use sent::{SentMessages, StreamId};

#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Rows handed out, by file.
    rows: Vec<AtomicU64>,
    /// This host's number and the number of hosts, so that each host takes different rows.
    hosts: (u64, u64),
    /// When each interaction was last sent, by the shard's clock.
    interactions: Mutex<HashMap<String, u64>>,
    pub(crate) presences: Presences,
    pub(crate) sent: SentMessages,
}

impl Shared {
    pub(crate) fn new(files: usize, host: u64, hosts: u64) -> Self {
        Self {
            rows: (0..files).map(|_| AtomicU64::new(0)).collect(),
            hosts: (host, hosts.max(1)),
            ..Self::default()
        }
    }

    /// The next row of a file; over all hosts no row is used twice before all have been used.
    pub(crate) fn next_row(&self, file: u16) -> u64 {
        let Some(row) = self.rows.get(usize::from(file)) else { return 0 };
        row.fetch_add(1, Ordering::Relaxed) * self.hosts.1 + self.hosts.0
    }

    pub(crate) fn interaction_sent(&self, id: &str, now_ns: u64) {
        let mut sent = self.interactions.lock().unwrap_or_else(PoisonError::into_inner);
        sent.insert(id.to_owned(), now_ns);
    }

    pub(crate) fn interaction(&self, id: &str) -> Option<u64> {
        self.interactions.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied()
    }
}
