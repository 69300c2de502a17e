//! A server's listening sockets, and its link to a second process: to the one that takes over from
//! it, or to the one from which it takes over.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::time::Duration;

use simurgh_core::{
    Broadcast, ChannelId, Cluster, KeptAt, NotKept, OtherProcess, Position, ToCluster,
};
use simurgh_reactor::Listening;
use tokio::sync::Semaphore;

/// Broadcasts without a history that wait for the other process; more are dropped, as in a cluster.
const BYTES_MAX: usize = 8 << 20;

pub struct TakeOver {
    /// Read first: without a link nothing else is looked at.
    is_linked: AtomicBool,
    link: RwLock<Option<Arc<ProcessLink>>>,
    /// Copies of all listening sockets.
    pub listening: Mutex<Listening>,
    /// Closed when the HTTP side stops accepting connections.
    pub accepting: Semaphore,
    /// Another process has this one's histories and cached answers, and saves them.
    pub is_handed_over: AtomicBool,
    /// By shard, in a drain: 1 if it has no sockets left, 2 once it knows that none has any.
    empty: Vec<AtomicU8>,
    /// In place of `secret_key_base`, if that is not set.
    pub secret: Box<str>,
}

impl TakeOver {
    pub fn new(shards: usize, secret: Box<str>) -> Self {
        Self {
            is_linked: AtomicBool::new(false),
            link: RwLock::default(),
            listening: Mutex::default(),
            accepting: Semaphore::new(0),
            is_handed_over: AtomicBool::new(false),
            empty: (0..shards).map(|_| AtomicU8::new(0)).collect(),
            secret,
        }
    }

    /// The link to the other process, while there is one.
    #[inline]
    pub fn link(&self) -> Option<Arc<ProcessLink>> {
        if !self.is_linked.load(Relaxed) {
            return None;
        }
        self.link.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_link(&self, link: Option<Arc<ProcessLink>>) {
        let is_linked = link.is_some();
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = link;
        self.is_linked.store(is_linked, Relaxed);
    }

    /// Closes the listening sockets of the process's own table. A shard, which has another one,
    /// gets them for another thread to close.
    pub fn stop_accepting(&self) -> Option<Listening> {
        self.accepting.close();
        std::mem::take(&mut *lock(&self.listening)).close().err()
    }

    /// A shard has no sockets left. Whether all have none, and it has had a turn since it learned
    /// that: then it has handled all mail that they caused.
    pub fn is_empty(&self, shard: usize) -> bool {
        let Some(own) = self.empty.get(shard) else { return true };
        if own.load(Acquire) == 2 {
            return true;
        }
        own.store(1, Release);
        if self.empty.iter().all(|empty| empty.load(Acquire) > 0) {
            own.store(2, Release);
        }
        false
    }
}

/// For the thread that writes to the other process.
#[derive(Debug)]
pub enum ToOther {
    Core(ToCluster),
    Kept(Arc<Broadcast>, Option<u64>),
    Answer(u64, Result<KeptAt, NotKept>),
    /// An [`Order`](crate::mail::order::Order) as JSON.
    Order(Vec<u8>),
    /// A topic was purged, by the request with this number.
    Purged(Box<str>, u64, Position),
    /// The later process serves.
    Ready,
    /// The earlier process drains.
    Draining,
    /// This process ends. The answer comes when everything before is written.
    End(mpsc::SyncSender<()>),
}

/// The queue of what is sent to the other process.
#[derive(Debug)]
pub struct ProcessLink {
    /// The other one takes over.
    is_to_successor: bool,
    queue: mpsc::Sender<ToOther>,
    bytes: AtomicUsize,
    /// The members that do not get a broadcast that is being kept, by the request's number.
    excepted: Mutex<HashMap<u64, ChannelId>>,
}

impl ProcessLink {
    pub fn new(is_to_successor: bool) -> (Arc<Self>, mpsc::Receiver<ToOther>) {
        let (queue, waiting) = mpsc::channel();
        let (bytes, excepted) = Default::default();
        (Arc::new(Self { is_to_successor, queue, bytes, excepted }), waiting)
    }

    /// Never waits. Drops messages that the other process cannot get any more.
    pub fn post(&self, what: ToOther) {
        let _ = self.queue.send(what);
    }

    /// Waits until everything is written, at most this long.
    pub fn finish(&self, timeout: Duration) {
        let (written, told) = mpsc::sync_channel(1);
        self.post(ToOther::End(written));
        // An error means that the other process has ended.
        let _ = told.recv_timeout(timeout);
    }

    /// The other process has ended: so does the writing thread.
    pub fn end(&self) {
        self.finish(Duration::ZERO);
    }

    /// The writing thread has taken it out of the queue.
    pub fn taken(&self, what: &ToOther) {
        if let ToOther::Core(ToCluster::Broadcast(broadcast)) = what {
            self.bytes.fetch_sub(broadcast.weight(), Relaxed);
        }
    }

    /// The member that does not get the broadcast with this number, once.
    pub fn take_excepted(&self, number: u64) -> Option<ChannelId> {
        lock(&self.excepted).remove(&number)
    }
}

impl Cluster for ProcessLink {
    fn send(&self, what: ToCluster) {
        match &what {
            ToCluster::Broadcast(_) if self.bytes.load(Relaxed) > BYTES_MAX => {
                return tracing::debug!(
                    "a broadcast was dropped: too many wait for the other process"
                );
            }
            ToCluster::Broadcast(broadcast) => {
                self.bytes.fetch_add(broadcast.weight(), Relaxed);
            }
            ToCluster::Store(request) => {
                if let Some(except) = request.broadcast.except() {
                    lock(&self.excepted).insert(request.number, except);
                }
            }
            _ => {}
        }
        self.post(ToOther::Core(what));
    }

    fn broadcast_bytes_max(&self) -> usize {
        usize::MAX
    }
}

impl OtherProcess for ProcessLink {
    fn kept(&self, broadcast: &Arc<Broadcast>, number: Option<u64>) {
        // Broadcasts stored before the hand-over are part of the histories.
        if !self.is_to_successor {
            self.post(ToOther::Kept(Arc::clone(broadcast), number));
        }
    }

    fn answer(&self, number: u64, outcome: Result<KeptAt, NotKept>) {
        self.post(ToOther::Answer(number, outcome));
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}
