//! What the shards, the HTTP side and the handles of an application share: mailboxes, counters,
//! settings.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use simurgh_proto::origin::CheckOrigin;
use simurgh_reactor::{Full, Mailbox};

use crate::census::Census;
use crate::channel::Broadcast;
use crate::config::Config;
use crate::http::Guests;
use crate::metrics::ShardMetrics;
use crate::observe::Observer;
use crate::shard::{Mail, Permits, Posted};
use crate::socket::Mount;
use crate::watchdog::Watch;

/// The doors into all shards. Nothing here is written after start but counters.
pub(crate) struct Hub {
    pub(crate) config: Config,
    /// In force where a mount has none of its own.
    pub(crate) origin_policy: CheckOrigin,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) mailboxes: Vec<Mailbox<Mail>>,
    /// Which shards have ended, as in a drain some do before others: what their mailboxes were
    /// charged is never given back, and nobody waits for it.
    pub(crate) ended: Vec<AtomicBool>,
    pub(crate) metrics: Vec<Arc<ShardMetrics>>,
    pub(crate) census: Census,
    pub(crate) permits: Permits,
    pub(crate) seats: Seats,
    /// Plain HTTP connections, and those to the admin address.
    pub(crate) guests: Arc<Guests>,
    pub(crate) admin_guests: Arc<Guests>,
    /// When a drain began.
    pub(crate) drain_began: OnceLock<Instant>,
    pub(crate) watches: Vec<Watch>,
    pub(crate) observer: Observer,
    /// Long messages that are read off the shards at once.
    pub(crate) readers: tokio::sync::Semaphore,
    pub(crate) runtime: OnceLock<tokio::runtime::Handle>,
}

impl Hub {
    /// Control mail and answers: never refused.
    pub(crate) fn post(&self, shard: u16, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(shard)) {
            mailbox.post_anyway(mail);
        }
    }

    /// From any thread: to all shards, or to none when one of them has too much under way.
    pub(crate) fn broadcast(&self, broadcast: Broadcast) -> Result<(), BroadcastError> {
        let (bytes, bytes_max) = (broadcast.payload.len(), self.broadcast_bytes_max());
        if bytes > bytes_max {
            return Err(BroadcastError::TooLarge { bytes, bytes_max });
        }
        if self.is_congested() {
            return Err(BroadcastError::Congested);
        }
        let broadcast = Arc::new(broadcast);
        for mailbox in &self.mailboxes {
            let weight = broadcast.weight();
            // Just seen below its limit: what is posted meanwhile by others may pass it by a
            // little, which bounds the queue all the same and keeps all shards of one
            // mind.
            let posted = Posted::new(Arc::clone(&broadcast), None);
            if let Err(Full(mail)) = mailbox.post(Mail::Broadcast(posted), weight) {
                mailbox.charge(weight);
                if !mailbox.post_anyway(mail) {
                    mailbox.done(weight);
                }
            }
        }
        Ok(())
    }

    /// Whether publishers have to wait.
    pub(crate) fn is_congested(&self) -> bool {
        self.mailbox_bytes().any(|bytes| bytes > self.config.mailbox_bytes_max)
    }

    /// Largest payload that is broadcast: what waits for a reader can hold two of them.
    pub(crate) fn broadcast_bytes_max(&self) -> usize {
        self.config.outbound_bytes_max / 2
    }

    /// Bytes that one topic's publishers on one shard may have under way: so little of the whole
    /// that one topic is no reason to hold the others back.
    pub(crate) fn flow_bytes_max(&self) -> usize {
        self.config.mailbox_bytes_max / 8
    }

    /// Whether even those wait who publish where nothing is under way.
    pub(crate) fn is_jammed(&self) -> bool {
        self.mailbox_bytes().any(|bytes| bytes > self.config.mailbox_bytes_max.saturating_mul(4))
    }

    /// Whether held publishers may go on: half the limit, so that they do not flutter.
    pub(crate) fn is_relieved(&self) -> bool {
        self.mailbox_bytes().all(|bytes| bytes <= self.config.mailbox_bytes_max / 2)
    }

    /// Bytes under way in each shard that still takes them.
    fn mailbox_bytes(&self) -> impl Iterator<Item = usize> {
        self.mailboxes
            .iter()
            .zip(&self.ended)
            .filter(|(_, ended)| !ended.load(Relaxed))
            .map(|(mailbox, _)| mailbox.bytes())
    }

    /// Runs work on tokio.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(work);
        }
    }
}

/// What the server holds, where it holds so many at most.
pub(crate) struct Seats {
    most: Option<usize>,
    taken: AtomicUsize,
}

impl Seats {
    pub(crate) fn new(most: Option<usize>) -> Self {
        Self { most, taken: AtomicUsize::new(0) }
    }

    /// Whether nobody more is let in; the answer may be old by the time it is used.
    pub(crate) fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.taken.load(Relaxed) >= most)
    }

    /// Takes one, if one is left.
    pub(crate) fn take(&self) -> bool {
        let Some(most) = self.most else { return true };
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    /// Gives one back that was taken.
    pub(crate) fn give_back(&self) {
        if self.most.is_some() {
            self.taken.fetch_sub(1, Relaxed);
        }
    }
}
