//! The queues between a driver and the shards: its commands, and the events of its sockets, in
//! bounded batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;

use simurgh_core::Broadcast;
use simurgh_core::metrics::Counter;
use simurgh_proto::message::{Message, Payload, Ref};
use simurgh_reactor::{Key, Mailbox};

use super::Mail;
use super::driver_event::{DriverError, Event, EventKind, Received, SocketId, What};

/// Most keys of one batch of the same broadcast.
const KEYS_MAX: usize = 16 << 10;

/// The events of a driver that wait to be taken, counted by all shards.
pub struct EventQueue {
    /// Bytes of events that nobody has taken yet.
    queued: AtomicUsize,
    pub queue_bytes_max: usize,
    /// Events are only counted.
    pub counts_only: bool,
    tallies: Vec<Tally>,
}

/// What one shard has counted for a driver.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    kinds: [Counter; KINDS],
    lost: AtomicU64,
}

const KINDS: usize = 6;

/// What driven sockets have received, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Replies with status `ok`.
    pub ok: u64,
    /// Replies with any other status.
    pub not_ok: u64,
    /// Pushes and broadcasts.
    pub messages: u64,
    /// Channels that ended as intended.
    pub channels_closed: u64,
    /// Channels that crashed.
    pub channels_crashed: u64,
    /// Sockets that were closed.
    pub closed: u64,
    /// Events of all these sorts that were dropped because nobody took those before them.
    pub lost: u64,
}

impl EventQueue {
    pub fn new(shards: usize, queue_bytes_max: usize, counts_only: bool) -> Self {
        let tallies = (0..shards).map(|_| Tally::default()).collect();
        Self { queued: AtomicUsize::new(0), queue_bytes_max, counts_only, tallies }
    }

    /// Gives bytes of events back that somebody has taken.
    pub fn taken(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Relaxed);
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for Tally { kinds, lost } in &self.tallies {
            let [ok, not_ok, messages, channels_closed, channels_crashed, closed] = kinds;
            counts.ok += ok.value();
            counts.not_ok += not_ok.value();
            counts.messages += messages.value();
            counts.channels_closed += channels_closed.value();
            counts.channels_crashed += channels_crashed.value();
            counts.closed += closed.value();
            counts.lost += lost.load(Relaxed);
        }
        counts
    }
}

/// The last events, such as closed sockets, must not be lost with the sender.
impl Drop for EventSender {
    fn drop(&mut self) {
        self.send();
    }
}

/// Events of one shard on their way.
pub struct Batch {
    shard: u16,
    items: Vec<Item>,
}

enum Item {
    One(Key, What),
    /// A broadcast that all these sockets heard.
    Many(Arc<Broadcast>, Vec<Key>),
}

/// A shard's end of a driver's event queue.
pub struct EventSender {
    queue: Arc<EventQueue>,
    sender: Sender<Batch>,
    shard: u16,
    items: Vec<Item>,
    /// Bytes of `items`, which are not yet counted among the queued.
    weight: usize,
}

impl EventSender {
    pub fn new(queue: &Arc<EventQueue>, sender: &Sender<Batch>, shard: u16) -> Self {
        let (queue, sender) = (Arc::clone(queue), sender.clone());
        Self { queue, sender, shard, items: Vec::new(), weight: 0 }
    }

    pub fn is_of(&self, queue: &Arc<EventQueue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// A socket received something; `what` makes it, if anybody is to see it.
    pub fn receive(&mut self, key: Key, kind: EventKind, what: impl FnOnce() -> What) {
        self.count(kind, 1);
        if self.queue.counts_only {
            return;
        }
        let what = what();
        let weight = what.weight();
        if self.has_room(weight) {
            self.items.push(Item::One(key, what));
        }
    }

    /// A socket received a broadcast.
    pub fn receive_broadcast(&mut self, key: Key, broadcast: &Arc<Broadcast>) {
        self.count(EventKind::Message, 1);
        if self.queue.counts_only {
            return;
        }
        if let Some(Item::Many(last, keys)) = self.items.last()
            && Arc::ptr_eq(last, broadcast)
            && keys.len() < KEYS_MAX
        {
            if self.has_room(size_of::<Event>())
                && let Some(Item::Many(_, keys)) = self.items.last_mut()
            {
                keys.push(key);
            }
        } else if self.has_room(size_of::<Event>() + broadcast.weight()) {
            self.items.push(Item::Many(Arc::clone(broadcast), vec![key]));
        }
    }

    fn count(&self, kind: EventKind, n: u64) {
        let tally = self.queue.tallies.get(usize::from(self.shard));
        if let Some(counter) = tally.and_then(|tally| tally.kinds.get(kind as usize)) {
            counter.add(n);
        }
    }

    /// Whether there is room for so many bytes, which are then charged; else one event is lost.
    fn has_room(&mut self, weight: usize) -> bool {
        let queued = self.queue.queued.load(Relaxed) + self.weight;
        let has_room = queued.saturating_add(weight) <= self.queue.queue_bytes_max;
        if has_room {
            self.weight += weight;
        } else if let Some(tally) = self.queue.tallies.get(usize::from(self.shard)) {
            tally.lost.fetch_add(1, Relaxed);
        }
        has_room
    }

    /// Sends what was received so far.
    pub fn send(&mut self) {
        if self.items.is_empty() {
            return;
        }
        let items = std::mem::take(&mut self.items);
        self.queue.queued.fetch_add(std::mem::take(&mut self.weight), Relaxed);
        // A driver that is gone receives nothing.
        let _ = self.sender.send(Batch { shard: self.shard, items });
    }
}

/// A batch whose events are being taken.
#[derive(Default)]
pub struct OpenBatch {
    shard: u16,
    items: std::vec::IntoIter<Item>,
    /// A broadcast and who else received it.
    many: Option<(Arc<Broadcast>, std::vec::IntoIter<Key>)>,
}

impl From<Batch> for OpenBatch {
    fn from(batch: Batch) -> Self {
        Self { shard: batch.shard, items: batch.items.into_iter(), many: None }
    }
}

/// Events, each with the bytes that it was counted with.
impl Iterator for OpenBatch {
    type Item = (Event, usize);

    fn next(&mut self) -> Option<(Event, usize)> {
        let shard = self.shard;
        let event = |key, what| Event { socket: SocketId { key, shard }, what };
        loop {
            if let Some((broadcast, keys)) = &mut self.many {
                if let Some(key) = keys.next() {
                    let what = What::Message(Received::shared(broadcast));
                    let of_all = if keys.len() == 0 { broadcast.weight() } else { 0 };
                    return Some((event(key, what), size_of::<Event>() + of_all));
                }
                self.many = None;
            }
            match self.items.next()? {
                Item::One(key, what) => {
                    let weight = what.weight();
                    return Some((event(key, what), weight));
                }
                Item::Many(broadcast, keys) => self.many = Some((broadcast, keys.into_iter())),
            }
        }
    }
}

/// A driver's command for its sockets on one shard.
pub struct DriverCommand {
    pub queue: Arc<EventQueue>,
    pub what: CommandKind,
    pub _charge: Charge,
}

pub enum CommandKind {
    Attach(EventSender),
    Connect(Connect),
    Send(Vec<Key>, Arc<ClientMessage>),
    Close(Vec<Key>),
    /// To be answered when all that was asked before is done, and was heard.
    Settle(Answer),
    /// The driver is gone, and its sockets go with it.
    Detach,
}

/// Sockets to be opened.
pub struct Connect {
    /// The request that each of them makes, and the user socket it is for.
    pub head: Box<[u8]>,
    pub user_socket: u8,
    /// Whether the sockets take values, where their user socket speaks Channels.
    pub values: bool,
    pub count: usize,
    pub answer: Answer,
}

/// Receives the outcome of each socket that was to be opened.
pub type Answer = Sender<Vec<Result<SocketId, DriverError>>>;

/// A message of clients, the same for however many of them.
pub struct ClientMessage {
    pub join_ref: Ref<'static>,
    pub msg_ref: Ref<'static>,
    pub topic: Box<str>,
    pub event: Box<str>,
    pub payload: Payload<'static>,
}

impl ClientMessage {
    pub fn message(&self) -> Message<'_> {
        Message {
            join_ref: self.join_ref.borrow(),
            msg_ref: self.msg_ref.borrow(),
            topic: (&*self.topic).into(),
            event: (&*self.event).into(),
            payload: self.payload.borrow(),
        }
    }

    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.topic.len() + self.event.len() + self.payload.len()
    }
}

/// The bytes of a command, charged to its shard's mailbox until it is dropped.
pub struct Charge {
    mailbox: Mailbox<Mail>,
    bytes: usize,
}

impl Charge {
    pub fn new(mailbox: &Mailbox<Mail>, bytes: usize) -> Self {
        mailbox.charge(bytes);
        Self { mailbox: mailbox.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.mailbox.discharge(self.bytes);
    }
}
