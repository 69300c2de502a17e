//! The queue by which other threads reach the cluster's thread.

mod calls;
mod disconnected;
mod view;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use simurgh_cluster::{Answer, CallNumber, ENVELOPE_BYTES_MAX, LogCommand, NodeId};
use simurgh_core::{Broadcast, ToCluster};
use tokio::sync::{Notify, oneshot};

pub use calls::{CallReply, Calling, Service};
pub use disconnected::{Disconnected, NodeName};
pub use view::{KeptView, NodeView, View};

/// Bytes of an envelope besides topic, event and payload, with room to spare.
const AROUND_BYTES: usize = 256;
/// Most bytes of queued broadcasts; more are dropped and counted, as the thread does not keep up.
const BYTES_MAX: usize = 8 << 20;

/// Receives the outcome of an order; `None` if too many are pending.
pub type DisconnectReply = oneshot::Sender<Option<Disconnected>>;

pub enum Mail {
    Core(ToCluster),
    /// Have an order carried out on all other nodes, and report the outcome.
    Order(Vec<u8>, DisconnectReply),
    /// This node has carried out another node's order of this number, which concerned so many
    /// sockets or channels.
    OrderDone(NodeId, u64, u64),
    /// Subscribe to a topic before its member is let in, which waits for it.
    AwaitTopic(Box<str>, oneshot::Sender<()>),
    /// A broadcast for the members of its topic on one other node.
    Direct(NodeId, Arc<Broadcast>),
    /// A call of another node's service, with these bytes.
    Call(NodeId, CallNumber, Service, Vec<u8>, CallReply),
    /// A call is not waited for any more.
    HangUp(CallNumber),
    /// The answer to another node's call of a service here.
    Answer(NodeId, u64, Answer),
    /// Share cached answers of applications with all other nodes.
    Grants(Vec<u8>),
    /// A request to the log of notices.
    Log(LogCommand),
    /// Other settings that all nodes must share: their names and hashes.
    Settings(Vec<(Box<str>, u64)>),
    Drain,
    /// Say good-bye to the other nodes; then the thread ends.
    Bye,
}

/// The cluster thread's queue, and the state that the thread publishes.
#[derive(Default)]
pub struct ClusterInbox {
    queue: Mutex<Vec<Mail>>,
    bytes: AtomicUsize,
    dropped: AtomicU64,
    notify: Notify,
    is_closed: AtomicBool,
    calls: AtomicU64,
    view: Mutex<View>,
}

impl ClusterInbox {
    fn queue(&self) -> MutexGuard<'_, Vec<Mail>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn post(&self, mail: Mail) {
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

    /// Takes all mail and leaves `empty` in its place.
    pub fn take(&self, empty: Vec<Mail>) -> Vec<Mail> {
        let mail = std::mem::replace(&mut *self.queue(), empty);
        self.bytes.store(0, Relaxed);
        mail
    }

    pub async fn has_mail(&self) {
        self.notify.notified().await;
    }

    /// Drops queued mail, and refuses further mail.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.queue().clear();
    }

    pub fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Has an order carried out on all other nodes; the receiver gets the outcome, or nothing if
    /// the server ends or too many are pending.
    pub fn order(&self, order: Vec<u8>) -> oneshot::Receiver<Option<Disconnected>> {
        let (reply, told) = oneshot::channel();
        self.post(Mail::Order(order, reply));
        told
    }

    /// Waits until this node is subscribed to a topic, or the cluster has ended.
    pub async fn await_topic(&self, topic: Box<str>) {
        let (reply, told) = oneshot::channel();
        self.post(Mail::AwaitTopic(topic, reply));
        // If the thread has ended there are no other nodes.
        let _ = told.await;
    }

    pub fn call(self: &Arc<Self>, node: NodeId, service: Service, body: Vec<u8>) -> Calling {
        let number = CallNumber(self.calls.fetch_add(1, Relaxed) + 1);
        let (reply, answered) = oneshot::channel();
        self.post(Mail::Call(node, number, service, body, reply));
        Calling { inbox: Arc::clone(self), number, answered: Some(answered) }
    }
}

impl simurgh_core::Cluster for ClusterInbox {
    fn send(&self, what: ToCluster) {
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
