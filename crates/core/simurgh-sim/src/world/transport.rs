//! The simulated transport of one shard: sockets with a pipe to their peers, which take as much as
//! they like.
//!
//! As in the reactor, what a turn sends is gathered (`span`). At the end of the turn it moves to
//! the peer as far as there is room (`pipe`); the rest waits (`queue`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use simurgh_core::{AbandonReason, Broadcast, NETWORK, Phase, Socket, Sockets, Wire};
use simurgh_data::{Key, Now, Run, Shared, Slab};
use simurgh_proto::serializer::{Kind, ServerMessage};
use simurgh_proto::ws::{CloseCode, Deflater};

use crate::findings::Fault;
use crate::payload::{self, hashed};
use crate::wire::{Delivery, DeliveryKind, Request, letter};
use crate::world;

/// The number of the transport of long-poll sessions, as sockets have it.
pub(crate) const POLLED: u8 = 1;
/// The longest slice of a step's work.
const SLICE_NS: u64 = 400_000;

/// The simulated transport of one shard.
#[derive(Default)]
pub(crate) struct Transport {
    world: Arc<world::Shared>,
    /// When the current turn began.
    pub(crate) now: Now,
    /// The last reading of its clock, in nanoseconds.
    pub(crate) clock: Cell<u64>,
    jumps: Cell<u64>,
    /// The first reading of the clock in this step.
    slice_ns: Cell<u64>,
    /// Whether the clock stands still in this step.
    is_frozen: Cell<bool>,
    /// What was sent in this step when its slice was over.
    pub(crate) sent_late: Cell<u32>,
    peers: Slab<Box<Peer>>,
    /// How many sockets were opened: the generations of their keys.
    opened: u32,
    /// Each frame that is not dropped has a clone.
    frames: Rc<()>,
    deflater: Option<Box<Deflater>>,
    pub(crate) hash: u64,
    dirty: Vec<Key>,
    pub(crate) removals: Vec<Key>,
    /// Sockets that are read again.
    pub(crate) released: Vec<Key>,
    /// Sockets whose session may be over.
    pub(crate) touched: Vec<Key>,
    closing: Vec<Key>,
    /// Sockets whose output has caught up.
    pub(crate) drained: Vec<Key>,
    /// Sockets that were held in the current step.
    pub(crate) holds: Vec<Key>,
    /// Connections that were cut because they read too slowly.
    pub(crate) cut: Vec<u32>,
    pub(crate) stops: bool,
    pub(crate) is_deaf: bool,
}

/// A frame that is counted until it is dropped.
struct Counted<B> {
    bytes: B,
    _count: Rc<()>,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Counted<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Transport {
    pub(crate) fn new(world: Arc<world::Shared>) -> Self {
        Self { world, jumps: Cell::new(1), ..Self::default() }
    }

    /// A turn begins or continues at this time; `jumps` seeds the steps of the clock.
    pub(crate) fn at(&mut self, now_ns: u64, jumps: u64) {
        self.now = Now::from_ns(now_ns);
        self.clock.set(self.clock.get().max(now_ns));
        self.jumps.set(jumps | 1);
        self.slice_ns.set(u64::MAX);
        self.is_frozen.set(false);
        self.sent_late.set(0);
    }

    fn count_sent(&self) {
        if self.clock.get() > self.slice_ns.get().saturating_add(SLICE_NS) {
            self.sent_late.set(self.sent_late.get() + 1);
        }
    }

    /// Opens a socket, whose client takes this many bytes at once.
    pub(crate) fn open(&mut self, conn: u32, wire: Wire, user_socket: u8, window: usize) -> Key {
        let transport = if wire == Wire::Values { 0 } else { NETWORK };
        let mut socket = Socket::new(Phase::Head, self.now.tick, transport);
        // Every second client has permessage-deflate.
        let wire = if conn.is_multiple_of(2) { wire } else { wire.with_deflate() };
        socket.lead_to(user_socket, wire);
        let peer = Peer { socket, conn, window, heard_tick: self.now.tick, ..Peer::default() };
        let slot = self.peers.insert(Box::new(peer));
        self.opened += 1;
        let key = Key { slot, generation: self.opened };
        self.peers.get_mut(slot).into_iter().for_each(|peer| peer.key = key);
        key
    }

    /// How many frames are left.
    pub(crate) fn frames(&self) -> u64 {
        Rc::strong_count(&self.frames) as u64 - 1
    }

    pub(crate) fn peer(&self, key: Key) -> Option<&Peer> {
        self.peers.get(key.slot).map(|it| &**it).filter(|it| it.key == key)
    }

    pub(crate) fn peer_mut(&mut self, key: Key) -> Option<&mut Peer> {
        self.peers.get_mut(key.slot).map(|it| &mut **it).filter(|it| it.key == key)
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().map(|(_, it)| &**it)
    }

    /// The phase of a connection's socket.
    pub(crate) fn phase(&self, conn: u32) -> Option<Phase> {
        Some(self.peers().find(|peer| peer.conn == conn)?.socket.phase())
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Box<Peer>> {
        self.peer(key)?;
        self.peers.remove(key.slot)
    }

    /// Writes what this turn has sent, cuts slow peers, and removes those that are to end.
    pub(crate) fn flush(&mut self) {
        let now_ns = self.now.ns;
        let max = self.world.plan.config.outbound_bytes_max;
        for key in std::mem::take(&mut self.dirty) {
            let Some(peer) = self.peer_mut(key) else { continue };
            if peer.flush(now_ns) > max {
                self.slow(key);
            }
        }
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain(|&key| {
            let Some(peer) = self.peer_mut(key) else { return false };
            let is_over = peer.queue.is_empty() || peer.ends_ns.is_some_and(|it| it <= now_ns);
            peer.ends_ns.get_or_insert(now_ns + 2_000_000_000);
            if is_over {
                self.removals.push(key);
            }
            !is_over
        });
        self.closing = closing;
    }

    /// Finds peers whose output does not move.
    pub(crate) fn judge(&mut self) {
        let after_ns = self.world.plan.config.slow_after.as_nanos() as u64;
        let now_ns = self.now.ns;
        let stands = |it: &Peer| !it.queue.is_empty() && it.stands_since_ns + after_ns < now_ns;
        let slow = self.peers().filter(|it| stands(it) && !it.is_mute).map(|it| it.key);
        let slow: Vec<Key> = slow.collect();
        slow.into_iter().for_each(|key| self.slow(key));
    }

    /// A peer reads too slowly: its queue is dropped, and it has some time to take a farewell.
    fn slow(&mut self, key: Key) {
        let ends_ns = self.now.ns + 2_000_000_000;
        let Some(peer) = self.peer_mut(key).filter(|it| !it.is_mute) else { return };
        (peer.is_mute, peer.is_closing, peer.ends_ns) = (true, true, Some(ends_ns));
        // It never takes the farewell: the rest of a frame that has begun blocks it.
        let conn = peer.conn;
        self.cut.push(conn);
        self.closing.push(key);
    }

    /// Moves what there is room for to the peer.
    pub(crate) fn write_more(&mut self, key: Key) {
        let now_ns = self.now.ns;
        let Some(peer) = self.peer_mut(key).filter(|it| !it.is_mute) else { return };
        let room = peer.window.saturating_sub(peer.pipe.len()).min(peer.queue.len());
        if room == 0 {
            return;
        }
        peer.pipe.extend(peer.queue.drain(..room));
        peer.stands_since_ns = now_ns;
        if peer.queue.is_empty() {
            self.drained.push(key);
        }
    }

    fn put(&mut self, key: Key, bytes: &[u8]) {
        self.hash = hashed(self.hash, bytes);
        self.count_sent();
        let world = Arc::clone(&self.world);
        let Some(peer) = self.peer_mut(key) else { return };
        if world.faults.happens(Fault::Lose) {
            return;
        }
        if world.faults.happens(Fault::Swap) && peer.held_back.is_empty() {
            peer.held_back = bytes.to_vec();
            return;
        }
        let was_empty = peer.span.is_empty();
        peer.span.extend_from_slice(bytes);
        if world.faults.happens(Fault::Garble) {
            garble(&mut peer.span);
        }
        if world.faults.happens(Fault::Double) {
            peer.span.extend_from_slice(bytes);
        }
        if !peer.held_back.is_empty() {
            let late = std::mem::take(&mut peer.held_back);
            peer.span.extend_from_slice(&late);
        }
        if was_empty {
            self.dirty.push(key);
        }
    }

    /// Sends now, if nothing is before it; returns whether something waits.
    fn put_now(&mut self, key: Key, bytes: &[u8]) -> bool {
        let (now_ns, max) = (self.now.ns, self.world.plan.config.outbound_bytes_max);
        let Some(peer) = self.peer(key) else { return false };
        if peer.is_over() {
            return !peer.queue.is_empty();
        }
        let is_behind = !peer.span.is_empty() || !peer.queue.is_empty();
        self.put(key, bytes);
        let Some(peer) = self.peer_mut(key) else { return false };
        let waits = if is_behind { peer.queue.len() } else { peer.flush(now_ns) };
        if waits > max && !is_behind {
            self.slow(key);
        }
        waits > 0
    }

    fn hear_line(&mut self, key: Key, topic: Option<u8>, line: Delivery, sum: u32) {
        let word = [line.word, line.kind as u8, topic.unwrap_or(255)];
        let refs = u64::from(line.id) << 32 | u64::from(line.msg_ref ^ line.join_ref << 16);
        self.hash = hashed(hashed(self.hash, &word), &refs.to_le_bytes());
        let world = Arc::clone(&self.world);
        if world.faults.happens(Fault::Lose) {
            return;
        }
        let mut line = line;
        if line.kind == DeliveryKind::Reply && world.faults.happens(Fault::Misref) {
            line.msg_ref += 1;
        }
        let Some(peer) = self.peer_mut(key) else { return };
        let again =
            world.faults.happens(Fault::Double).then_some(Value::Delivery(topic, line, sum));
        peer.heard.extend([Value::Delivery(topic, line, sum)].into_iter().chain(again));
    }
}

fn bytes_of(run: &Run) -> Vec<u8> {
    run.frames().flat_map(|it| it.as_bytes().iter().copied()).collect()
}

impl Sockets for Transport {
    fn now(&self) -> Now {
        self.now
    }

    fn clock_ns(&self) -> u64 {
        // xorshift: no two readings are equal, and the seed decides where slices are cut.
        let mut bits = self.jumps.get();
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        self.jumps.set(bits);
        let most = u64::from(self.world.plan.jump_ns).max(1);
        let clock = self.clock.get() + 1 + bits % most;
        self.clock.set(clock);
        self.slice_ns.set(self.slice_ns.get().min(clock));
        if self.world.faults.happens(Fault::Freeze) {
            self.is_frozen.set(true);
        }
        if self.is_frozen.get() { self.slice_ns.get() } else { clock }
    }

    fn socket(&self, key: Key) -> Option<&Socket> {
        self.peer(key).map(|it| &it.socket)
    }

    fn socket_mut(&mut self, key: Key) -> Option<&mut Socket> {
        self.peer_mut(key).map(|it| &mut it.socket)
    }

    fn count(&self) -> usize {
        self.peers.len()
    }

    fn sweep(
        &mut self,
        cursor: &mut u32,
        records: usize,
        mut visit: impl FnMut(Key, &mut Socket) -> bool,
        found: &mut Vec<Key>,
    ) {
        let first = *cursor as usize;
        let end = first.saturating_add(records).min(self.peers.slots());
        for slot in first..end {
            if let Some(peer) = self.peers.get_mut(slot as u32)
                && visit(peer.key, &mut peer.socket)
            {
                found.push(peer.key);
            }
        }
        *cursor = if end >= self.peers.slots() { 0 } else { end as u32 };
    }

    fn queued(&self, key: Key) -> usize {
        self.peer(key).map_or(0, |it| it.queue.len())
    }

    fn has_input(&self, key: Key) -> bool {
        self.peer(key).is_some_and(|it| !it.inbound.is_empty())
    }

    fn peer_has_shut(&self, key: Key) -> bool {
        self.peer(key).is_some_and(|it| it.has_shut)
    }

    fn share(&self, bytes: impl AsRef<[u8]> + 'static) -> Shared {
        Shared::new(Counted { bytes, _count: Rc::clone(&self.frames) })
    }

    fn compress(&mut self, _topic: &str, frames: &mut Vec<u8>) {
        self.deflater.get_or_insert_default().compress(frames, true);
    }

    fn send_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.peer(key).is_none_or(Peer::is_over) {
            return false;
        }
        let mut bytes = Vec::with_capacity(128);
        write(&mut bytes);
        self.put(key, &bytes);
        true
    }

    fn send_later(&mut self, key: Key, run: Run) {
        self.send_with(key, |out| out.extend(bytes_of(&run)));
    }

    fn send_run(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool {
        if whole.is_empty() { self.put_now(key, &bytes_of(run)) } else { self.put_now(key, whole) }
    }

    fn send_chosen<'r, R: FnOnce() -> Run>(
        &mut self,
        key: Key,
        choose: impl FnOnce(&Socket) -> Option<(&'r [u8], R)>,
    ) -> Option<bool> {
        let (bytes, run) = choose(&self.peer(key)?.socket)?;
        if cfg!(debug_assertions) {
            let run = run();
            debug_assert_eq!(run.len(), bytes.len(), "the bytes are those of the run");
        }
        Some(self.put_now(key, bytes))
    }

    fn deliver(&mut self, key: Key, message: &ServerMessage<'_>) {
        self.count_sent();
        let (topic, line, sum) = Delivery::of(&self.world.plan.topics, message);
        self.hear_line(key, topic, line, sum);
    }

    fn deliver_broadcasts<'a>(
        &mut self,
        key: Key,
        _transport: u8,
        broadcasts: impl Iterator<Item = &'a Arc<Broadcast>>,
    ) -> u64 {
        let mut heard = 0;
        for broadcast in broadcasts {
            let id = payload::parse(broadcast.payload()).0;
            let line = Delivery::event(letter(broadcast.event()), 0, id);
            let topic = self.world.plan.topics.number(broadcast.topic());
            self.hear_line(key, topic, line, payload::sum(broadcast.payload()));
            heard += 1;
        }
        heard
    }

    fn deliver_close(&mut self, key: Key, code: Option<CloseCode>) {
        let recodes = self.world.faults.happens(Fault::Recode);
        let code = code.map(|code| if recodes { 4_000 } else { code.0 });
        self.peer_mut(key).into_iter().for_each(|it| it.heard.push(Value::Close(code)));
    }

    fn hold(&mut self, key: Key) {
        let Some(peer) = self.peer_mut(key) else { return };
        if !std::mem::replace(&mut peer.is_held, true) {
            self.holds.push(key);
        }
    }

    fn release(&mut self, key: Key) {
        if let Some(peer) = self.peer_mut(key) {
            peer.is_held = false;
            self.released.push(key);
            self.touched.push(key);
        }
    }

    fn close(&mut self, key: Key) {
        if let Some(peer) = self.peer_mut(key)
            && !peer.is_closing
        {
            peer.is_closing = true;
            self.closing.push(key);
        }
        self.touched.push(key);
    }

    fn shutdown_write(&mut self, key: Key) {
        self.touched.push(key);
    }

    fn abort(&mut self, key: Key) {
        if let Some(peer) = self.peer_mut(key) {
            peer.is_mute = true;
            let conn = peer.conn;
            self.cut.push(conn);
            self.removals.push(key);
        }
        self.touched.push(key);
    }

    fn abandon(&mut self, key: Key, _why: AbandonReason) {
        self.removals.push(key);
    }

    fn stop_listening(&mut self) {
        self.is_deaf = true;
    }

    fn stop(&mut self) {
        self.stops = true;
    }
}

fn garble(bytes: &mut [u8]) {
    let at = bytes.windows(4).rposition(|it| it == b"\"s\":");
    if let Some(digit) = at.and_then(|at| bytes.get_mut(at + 4)) {
        *digit ^= 1;
    }
}

/// A client's message in transit.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    /// A text or binary frame without its header, and what it asks for.
    Message { kind: Kind, bytes: Vec<u8>, asked: Request },
    /// A close frame, with its code.
    Close(Option<u16>),
}

/// What a socket that takes values was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A message: its topic, its content, and the sum of its payload.
    Delivery(Option<u8>, Delivery, u32),
    /// The end of the socket, with its code.
    Close(Option<u16>),
}

#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) key: Key,
    pub(crate) socket: Socket,
    /// Its number among all connections.
    pub(crate) conn: u32,
    pub(crate) span: Vec<u8>,
    /// Bytes that wait for room in `pipe`.
    pub(crate) queue: Vec<u8>,
    /// Bytes that its client may take.
    pub(crate) pipe: Vec<u8>,
    /// Bytes that the pipe has room for.
    pub(crate) window: usize,
    /// Messages that its client has sent and the shard has not read.
    pub(crate) inbound: VecDeque<ClientMessage>,
    /// Messages that were read and not handed in.
    pub(crate) stash: VecDeque<ClientMessage>,
    /// Values sent to a socket that takes values.
    pub(crate) heard: Vec<Value>,
    /// Whether the shard does not read it.
    pub(crate) is_held: bool,
    /// Whether it is removed once `queue` is empty.
    pub(crate) is_closing: bool,
    /// Whether nothing more is sent.
    pub(crate) is_mute: bool,
    /// Whether the client has closed its sending half.
    pub(crate) has_shut: bool,
    /// When it last sent something.
    pub(crate) heard_tick: u32,
    /// Since when nothing of the queue has moved.
    pub(crate) stands_since_ns: u64,
    /// The latest time of its removal.
    pub(crate) ends_ns: Option<u64>,
    /// Bytes that a planted fault holds back.
    pub(crate) held_back: Vec<u8>,
}

impl Peer {
    /// Whether nothing more is sent to it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_mute || self.is_closing
    }

    /// Writes what the current turn has sent; returns how many bytes now wait for room.
    pub(crate) fn flush(&mut self, now_ns: u64) -> usize {
        let span = std::mem::take(&mut self.span);
        let mut room = 0;
        if self.queue.is_empty() {
            room = self.window.saturating_sub(self.pipe.len()).min(span.len());
            self.stands_since_ns = now_ns;
        }
        let (now, later) = span.split_at(room);
        self.pipe.extend_from_slice(now);
        self.queue.extend_from_slice(later);
        self.queue.len()
    }
}
