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

pub struct EventQueue {
    /// Bytes of events that the driver has not taken yet.
    queued: AtomicUsize,
    pub queue_bytes_max: usize,
    pub counts_only: bool,
    tallies: Vec<Tally>,
}

#[derive(Default)]
#[repr(align(128))]
struct Tally {
    kinds: [Counter; KINDS],
    lost: AtomicU64,
}

const KINDS: usize = 6;

/// Counts of the events of driven sockets.
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
    pub channels_crashed: u64,
    pub closed: u64,
    /// Events of all these kinds that were dropped because the driver did not take those before
    /// them.
    pub lost: u64,
}

impl EventQueue {
    pub fn new(shards: usize, queue_bytes_max: usize, counts_only: bool) -> Self {
        let tallies = (0..shards).map(|_| Tally::default()).collect();
        Self { queued: AtomicUsize::new(0), queue_bytes_max, counts_only, tallies }
    }

    /// Subtracts bytes of events that the driver has taken.
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

enum Item {
    One(Key, What),
    /// A broadcast that all these sockets received.
    Many(Arc<Broadcast>, Vec<Key>),
}

/// A shard's end of a driver's event queue.
pub struct EventSender {
    queue: Arc<EventQueue>,
    sender: Sender<Batch>,
    shard: u16,
    items: Vec<Item>,
    /// Bytes of `items` that are not yet counted as queued.
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

    /// A socket received something; `what` makes the event if the driver wants it.
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

    /// Charges this many bytes if there is room; else counts one lost event.
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

    pub fn send(&mut self) {
        if self.items.is_empty() {
            return;
        }
        let items = std::mem::take(&mut self.items);
        self.queue.queued.fetch_add(std::mem::take(&mut self.weight), Relaxed);
        // The driver may be gone.
        let _ = self.sender.send(Batch { shard: self.shard, items: items.into_iter(), many: None });
    }
}

/// Events of a shard, each with the bytes that it was counted with.
#[derive(Default)]
pub struct Batch {
    shard: u16,
    items: std::vec::IntoIter<Item>,
    /// A broadcast and the remaining sockets that received it.
    many: Option<(Arc<Broadcast>, std::vec::IntoIter<Key>)>,
}

impl Iterator for Batch {
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
    /// To be answered when all earlier commands are done and their events sent.
    Settle(Answer),
    /// The driver is gone; its sockets are closed.
    Detach,
}

pub struct Connect {
    /// The request that each of them makes, for this user socket.
    pub head: Box<[u8]>,
    pub user_socket: u8,
    /// Whether the sockets receive values where their user socket uses Channels.
    pub values: bool,
    pub count: usize,
    pub answer: Answer,
}

/// Receives the outcome of each socket that was to be opened.
pub type Answer = Sender<Vec<Result<SocketId, DriverError>>>;

/// A message of clients, shared by all sockets that send it.
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
