//! What other threads ask of the cluster's thread: the one door.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use simurgh_cluster::ENVELOPE_BYTES_MAX;
use simurgh_core::ToCluster;
use tokio::sync::{Notify, oneshot};

use super::{Disconnected, View};

/// What an envelope has beside topic, event and payload, with room to spare.
const AROUND_BYTES: usize = 256;
/// Bytes of broadcasts that wait at the door; more are dropped, and counted: the thread is not
/// served.
const BYTES_MAX: usize = 8 << 20;

/// Where it is told what has become of a disconnect; nothing, if too many are asked for.
pub(super) type Tell = oneshot::Sender<Option<Disconnected>>;

/// All that the cluster's thread is asked.
pub(super) enum Mail {
    Core(ToCluster),
    /// Have all sockets with an id closed on all other nodes, and tell what has become of it.
    Disconnect(Box<str>, Tell),
    /// This node closes its sockets.
    Drain,
    /// And this is the last that it says: then the thread ends.
    Bye,
}

/// See the module.
pub(crate) struct Door {
    queue: Mutex<Vec<Mail>>,
    bytes: AtomicUsize,
    dropped: AtomicU64,
    notify: Notify,
    is_closed: AtomicBool,
    view: Mutex<View>,
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            notify: Notify::new(),
            is_closed: AtomicBool::new(false),
            view: Mutex::new(View::new(Instant::now())),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Vec<Mail>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, mail: Mail) {
        if self.is_closed.load(Relaxed) {
            return;
        }
        let was_empty = {
            let mut queue = self.queue();
            queue.push(mail);
            queue.len() == 1
        };
        if was_empty {
            self.notify.notify_one();
        }
    }

    /// All that waits; `empty` takes its place.
    pub(super) fn take(&self, empty: Vec<Mail>) -> Vec<Mail> {
        let mail = std::mem::replace(&mut *self.queue(), empty);
        self.bytes.store(0, Relaxed);
        mail
    }

    /// Until there is mail.
    pub(super) async fn has_mail(&self) {
        self.notify.notified().await;
    }

    /// Nobody comes for what is posted any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.queue().clear();
    }

    /// How it stood a moment ago.
    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Broadcasts that were dropped here.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Asks for a disconnect; what is returned hears what has become of it, or nothing, if the
    /// server ends, or too many are asked for.
    pub(crate) fn disconnect(&self, socket_id: &str) -> oneshot::Receiver<Option<Disconnected>> {
        let (tell, told) = oneshot::channel();
        self.post(Mail::Disconnect(socket_id.into(), tell));
        told
    }

    /// The node begins to close its sockets.
    pub(crate) fn drain(&self) {
        self.post(Mail::Drain);
    }

    /// The node has closed all its sockets.
    pub(crate) fn bye(&self) {
        self.post(Mail::Bye);
    }
}

impl simurgh_core::Cluster for Door {
    fn tell(&self, what: ToCluster) {
        if let ToCluster::Broadcast(broadcast) = &what {
            // A disconnect is never dropped.
            let is_full = self.bytes.load(Relaxed) > BYTES_MAX;
            if is_full && broadcast.event() != simurgh_proto::message::events::DISCONNECT {
                self.dropped.fetch_add(1, Relaxed);
                return;
            }
            self.bytes.fetch_add(broadcast.weight(), Relaxed);
        }
        self.post(Mail::Core(what));
    }

    fn broadcast_bytes_max(&self) -> usize {
        ENVELOPE_BYTES_MAX - AROUND_BYTES
    }
}
