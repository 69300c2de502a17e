//! Broadcasts: taken into a topic's log, and sent to its members in slices at the end of turns.
//!
//! A hand walks round the topic's table. Whom it visits gets everything from their cursor on, in
//! one write of bytes that were encoded once: a burst of messages costs little more than one. A
//! message that is about to be written to a member first brings that member up to date, so slices
//! never change an order that PROTOCOL §6 promises.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use simurgh_proto::message::events;
use simurgh_proto::serializer::EncodeError;
use simurgh_proto::ws::{self, CloseCode};
use simurgh_reactor::{Key, Next, Shared};

use super::callback::{Notice, guarded, op_code, plain_message};
use super::conn::{WIRES, Wire};
use super::members::{DELIVERING, RELAY, SOCKET_ID};
use super::permits::Permit;
use super::topics::{Member, Topic, TopicId};
use super::{Io, Mail, Shard};
use crate::channel::{Broadcast, Reason};
use crate::watchdog::Callback;

/// Longest slice. With the events of a turn it stays well under the 2 ms a turn may take.
const SLICE: Duration = Duration::from_micros(400);
/// Members between two looks at the clock.
const STRIDE: usize = 16;
/// Members that a topic may have here to be served without a permit: what they take is less than
/// what they would wait behind a broadcast to everybody.
const FEW: usize = 32;

/// How often held publishers are looked at while nothing else happens.
const HELD_LOOK: Duration = Duration::from_millis(100);

/// What of a topic's log was last encoded for one wire.
struct Batch {
    /// Which topic: this very name, not one that reads the same and not the slot, which another
    /// topic may have by now. It cannot be freed and taken anew while it is held here.
    topic: Rc<str>,
    from: u32,
    to: u32,
    bytes: Shared,
    /// How many broadcasts that is, for the counters.
    count: u32,
    /// Memberships that one of these broadcasts is not for.
    except: Vec<u32>,
}

/// The topics with something left to send, and the bytes in use.
pub(super) struct Fanout {
    active: VecDeque<TopicId>,
    batches: [Option<Batch>; WIRES],
    scratch: Vec<u8>,
    permit: Permit,
}

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            active: VecDeque::new(),
            batches: [const { None }; WIRES],
            scratch: Vec::new(),
            permit: Permit::None,
        }
    }

    /// The bytes of a topic's broadcasts from `cursor` on, encoded once for all who stand there.
    fn batch(&mut self, topic: &Topic, cursor: u32, wire: Wire, errors: &mut u64) -> &Batch {
        let place = &mut self.batches[wire as usize];
        let is_it = |batch: &Batch| {
            Rc::ptr_eq(&batch.topic, &topic.name) && batch.from == cursor && batch.to == topic.head
        };
        if !place.as_ref().is_some_and(is_it) {
            self.scratch.clear();
            let (mut except, mut count) = (Vec::new(), 0);
            for broadcast in topic.pending(cursor) {
                match encode(&mut self.scratch, broadcast, wire) {
                    Ok(()) => count += 1,
                    Err(error) => {
                        *errors += 1;
                        tracing::debug!(topic = &*topic.name, %error, "broadcast not encodable");
                    }
                }
                except.extend(broadcast.except.map(|channel| channel.membership));
            }
            *place = None;
            // One large broadcast must not leave its size behind for ever.
            let bytes = Shared::new(Box::<[u8]>::from(self.scratch.as_slice()));
            self.scratch.shrink_to(64 << 10);
            return place.insert(Batch {
                topic: Rc::clone(&topic.name),
                from: cursor,
                to: topic.head,
                bytes,
                count,
                except,
            });
        }
        place.get_or_insert_with(|| unreachable_batch(&topic.name))
    }

    /// Lets go of the bytes once nothing is under way.
    fn settle(&mut self) {
        if self.active.is_empty() {
            self.batches = [const { None }; WIRES];
        }
    }
}

/// Never stored: `batch` has just seen that the place is taken.
fn unreachable_batch(topic: &Rc<str>) -> Batch {
    let topic = Rc::clone(topic);
    Batch { topic, from: 0, to: 0, bytes: Shared::new([]), count: 0, except: Vec::new() }
}

fn encode(out: &mut Vec<u8>, broadcast: &Broadcast, wire: Wire) -> Result<(), EncodeError> {
    let Broadcast { topic, event, payload, .. } = broadcast;
    ws::encode_with(out, |out| match wire.serializer() {
        Some(serializer) => serializer.broadcast(out, topic, event, payload).map(op_code),
        None => Ok(op_code(plain_message(out, payload))),
    })
}

impl Shard {
    /// A broadcast made on this shard by `publisher`: here at once, elsewhere by mail.
    pub(super) fn publish(&mut self, io: &mut Io, publisher: Key, broadcast: Broadcast) {
        let broadcast = Arc::new(broadcast);
        let weight = broadcast.weight();
        for (shard, mailbox) in self.hub.mailboxes.iter().enumerate() {
            mailbox.charge(weight);
            if shard != usize::from(self.index)
                && !mailbox.post_anyway(Mail::Broadcast(Arc::clone(&broadcast)))
            {
                mailbox.done(weight);
            }
        }
        self.enqueue(broadcast);
        // Once: what a held socket's channels go on to publish holds it no more than before.
        if self.hub.is_congested() && io.conn_ref(publisher).is_some() && !io.is_held(publisher) {
            self.metrics.publishers_held.add(1);
            io.hold(publisher);
            self.held.push(publisher);
        }
    }

    /// Publishers read again once enough of what was under way has left.
    pub(super) fn release_held(&mut self, io: &mut Io) {
        if self.held.is_empty() || !self.hub.is_relieved() {
            return;
        }
        for key in std::mem::take(&mut self.held) {
            // A socket that waits for a decision of the application stays held for that.
            if io.conn_ref(key).is_some_and(|conn| conn.phase != super::conn::Phase::Pending) {
                io.release(key);
            }
        }
    }

    /// When held publishers are looked at again.
    pub(super) fn held_due(&self) -> Next {
        if self.held.is_empty() { Next::Idle } else { Next::After(HELD_LOOK) }
    }

    /// Takes a broadcast, whose weight is charged to this shard's mailbox, into its topic's log.
    pub(super) fn enqueue(&mut self, broadcast: Arc<Broadcast>) {
        self.metrics.broadcasts.add(1);
        let found = self.topics.find(&broadcast.topic);
        let Some((id, topic)) = found.and_then(|id| Some((id, self.topics.get_mut(id)?))) else {
            return self.delivered(broadcast.weight());
        };
        topic.log.push_back(broadcast);
        topic.head = topic.head.wrapping_add(1);
        topic.deliveries = topic.deliveries.saturating_add(topic.members.len() as u32);
        if !topic.in_fanout {
            topic.in_fanout = true;
            topic.hand = 0;
            topic.lap_head = topic.head;
            self.fanout.active.push_back(id);
            self.metrics.fanout_topics.set(self.fanout.active.len() as u64);
        }
    }

    /// Gives bytes of broadcasts back that everybody here has got.
    fn delivered(&self, bytes: usize) {
        if let Some(mailbox) = self.hub.mailboxes.get(usize::from(self.index)) {
            mailbox.done(bytes);
            self.metrics.fanout_bytes.set(mailbox.bytes() as u64);
        }
    }

    /// Sends what is to be sent, for at most one slice.
    pub(super) fn fan_out(&mut self, io: &mut Io) -> Next {
        if self.fanout.active.is_empty() {
            return Next::Idle;
        }
        let now = Instant::now();
        let deadline = now + SLICE;
        let shard = usize::from(self.index);
        if self.fanout.permit == Permit::None {
            self.fanout.permit = self.hub.permits.take(shard, now);
        }
        let Permit::Held(since) = self.fanout.permit else {
            // The permit comes by mail.
            let is_served = self.serve_few(io, deadline);
            self.metrics.fanout_topics.set(self.fanout.active.len() as u64);
            return if is_served { Next::Idle } else { Next::Now };
        };
        while let Some(id) = self.fanout.active.pop_front() {
            let is_done = self.slice(io, id, deadline);
            if !is_done {
                self.fanout.active.push_back(id);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        self.fanout.settle();
        self.metrics.fanout_topics.set(self.fanout.active.len() as u64);
        if self.fanout.active.is_empty() {
            self.put_permit_back();
            return Next::Idle;
        }
        if self.hub.permits.is_to_pass(since, Instant::now()) {
            self.put_permit_back();
        }
        // Without a permit now, it takes a place in the line.
        Next::Now
    }

    /// Sends to topics with few members, for which no permit is needed; whether all have got all.
    fn serve_few(&mut self, io: &mut Io, deadline: Instant) -> bool {
        for _ in 0..self.fanout.active.len() {
            let Some(id) = self.fanout.active.pop_front() else { break };
            let is_small = self.topics.get(id).is_none_or(|topic| topic.members.len() <= FEW);
            if !is_small || !self.slice(io, id, deadline) {
                self.fanout.active.push_back(id);
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
        true
    }

    /// The permit this shard stood in line for.
    pub(super) fn permit_came(&mut self) {
        self.fanout.permit = Permit::Held(Instant::now());
        if self.fanout.active.is_empty() {
            self.put_permit_back();
        }
    }

    /// Puts the permit back that is held, or leaves the line.
    pub(super) fn put_permit_back(&mut self) {
        let shard = usize::from(self.index);
        let hub = &self.hub;
        let is_held = match std::mem::replace(&mut self.fanout.permit, Permit::None) {
            Permit::None => false,
            Permit::Waits => !hub.permits.leave(shard),
            Permit::Held(_) => true,
        };
        if is_held {
            let hand = |next: usize| {
                hub.mailboxes.get(next).is_some_and(|mailbox| mailbox.post_anyway(Mail::Permit))
            };
            hub.permits.put_back(shard, hand);
        }
    }

    /// Moves a topic's hand on until the deadline; whether all is sent.
    fn slice(&mut self, io: &mut Io, id: TopicId, deadline: Instant) -> bool {
        let mut since_look = 0;
        loop {
            let Some(topic) = self.topics.get_mut(id) else { return true };
            let Some(member) = topic.members.get_mut(topic.hand) else {
                let freed = topic.finish_lap();
                let is_done = topic.log.is_empty();
                topic.in_fanout = !is_done;
                self.delivered(freed);
                if is_done {
                    self.topics.close_if_empty(id);
                    self.metrics.topics.set(self.topics.len() as u64);
                    return true;
                }
                continue;
            };
            topic.hand += 1;
            if member.cursor != topic.head {
                let (cursor, head) = (member.cursor, topic.head);
                member.cursor = head;
                let member = *member;
                self.deliver(io, id, member, cursor, |io, key, bytes| io.send_shared(key, bytes));
            }
            since_look += 1;
            if since_look == STRIDE {
                since_look = 0;
                if Instant::now() >= deadline {
                    return false;
                }
            }
        }
    }

    /// Brings a member up to date before something else is written to it. What an interceptor
    /// writes while it is being brought up to date is no reason to begin anew: what is broadcast
    /// meanwhile follows the rest, as it would in Phoenix' mailbox, and nothing nests.
    pub(super) fn catch_up(&mut self, io: &mut Io, membership: u32) {
        let Some(it) = self.members.get(membership).filter(|it| !it.is(DELIVERING)) else { return };
        let (id, at) = (it.topic, it.at as usize);
        let Some(topic) = self.topics.get_mut(id) else { return };
        let Some(member) = topic.members.get_mut(at) else { return };
        if member.cursor == topic.head {
            return;
        }
        let cursor = member.cursor;
        member.cursor = topic.head;
        let member = *member;
        self.deliver(io, id, member, cursor, |io, key, bytes| io.send_shared_later(key, bytes));
    }

    /// Sends one member the broadcasts from `cursor` on.
    fn deliver(
        &mut self,
        io: &mut Io,
        id: TopicId,
        member: Member,
        cursor: u32,
        send: impl Fn(&mut Io, Key, &Shared),
    ) {
        if member.through_channel() {
            return self.deliver_through(io, id, member, cursor);
        }
        let (Some(topic), Some(conn)) = (self.topics.get(id), io.conn_ref(member.conn)) else {
            return;
        };
        let wire = conn.wire;
        if wire == Wire::Values {
            return self.deliver_values(id, conn.driver, member, cursor);
        }
        let mut errors = 0;
        let batch = self.fanout.batch(topic, cursor, wire, &mut errors);
        if errors > 0 {
            self.metrics.errors_encode.add(errors);
        }
        if !batch.except.is_empty() && batch.except.contains(&member.membership()) {
            return self.deliver_singly(io, id, member, cursor);
        }
        if batch.count > 0 {
            let count = u64::from(batch.count);
            send(io, member.conn, &batch.bytes);
            self.count_deliveries(count);
        }
    }

    /// For a driven socket: what was broadcast, as it is.
    fn deliver_values(&mut self, id: TopicId, driver: u8, member: Member, cursor: u32) {
        let Some(topic) = self.topics.get(id) else { return };
        let mut count = 0;
        for broadcast in topic.pending(cursor) {
            if self.is_except(broadcast, member.membership()) {
                continue;
            }
            count += 1;
            if let Some(driven) = &mut self.driven {
                driven.hear_broadcast(driver, member.conn, broadcast);
            }
        }
        self.count_deliveries(count);
    }

    /// For the sender of a `broadcast_from`: all but its own.
    fn deliver_singly(&mut self, io: &mut Io, id: TopicId, member: Member, cursor: u32) {
        let (Some(topic), Some(conn)) = (self.topics.get(id), io.conn_ref(member.conn)) else {
            return;
        };
        let wire = conn.wire;
        for broadcast in topic.pending(cursor) {
            if self.is_except(broadcast, member.membership()) {
                continue;
            }
            self.count_deliveries(1);
            // An encoding error was counted when the batch was made.
            io.send_with(member.conn, |out| encode(out, broadcast, wire).unwrap_or_default());
        }
    }

    fn count_deliveries(&self, count: u64) {
        self.metrics.deliveries.add(count);
        self.metrics.messages_out.add(count);
    }

    /// Whether a broadcast is not for this membership.
    fn is_except(&self, broadcast: &Broadcast, membership: u32) -> bool {
        broadcast
            .except
            .is_some_and(|channel| channel.membership == membership && self.live(channel).is_some())
    }

    /// Deliveries that pass application code, or the socket itself.
    fn deliver_through(&mut self, io: &mut Io, id: TopicId, member: Member, cursor: u32) {
        let Some(topic) = self.topics.get(id) else { return };
        let pending: Vec<_> = topic.pending(cursor).map(Arc::clone).collect();
        let membership = member.membership();
        let Some(it) = self.members.get_mut(membership) else { return };
        let generation = it.generation;
        it.flags |= DELIVERING;
        for broadcast in pending {
            // A callback of the one before may have ended this membership.
            let Some(it) = self.members.get(membership) else { return };
            if it.generation != generation {
                return;
            }
            if it.is(SOCKET_ID) {
                if &*broadcast.event == events::DISCONNECT {
                    self.close_socket(io, member.conn, CloseCode::GOING_AWAY);
                }
            } else if it.is(RELAY) {
                let channel = it.relay_for;
                if self.is_except(&broadcast, channel) {
                    continue;
                }
                self.call(io, channel, Callback::HandleBroadcast, None, |channel, ctx| {
                    channel.handle_broadcast(ctx, &broadcast)
                });
            } else if !self.is_except(&broadcast, membership) {
                self.deliver_intercepted(io, membership, &broadcast);
            }
        }
        if let Some(it) = self.members.get_mut(membership).filter(|it| it.generation == generation)
        {
            it.flags &= !DELIVERING;
        }
    }

    fn deliver_intercepted(&mut self, io: &mut Io, membership: u32, broadcast: &Arc<Broadcast>) {
        let Some(channel) = self.members.get(membership).and_then(|it| it.channel.as_deref())
        else {
            return;
        };
        let Broadcast { event, payload, .. } = &**broadcast;
        let Some(intercepts) = guarded(|| channel.intercept().contains(&&**event)) else {
            self.metrics.errors_callback_panic.add(1);
            return self.end_channel(io, membership, Reason::Crashed, Notice::Error);
        };
        if intercepts {
            // What the channel makes of it counts as a message of its own.
            self.metrics.deliveries.add(1);
            self.call(io, membership, Callback::HandleOut, None, |channel, ctx| {
                channel.handle_out(ctx, event, payload)
            });
            return;
        }
        let Some(conn) = self.members.get(membership).map(|it| it.conn) else { return };
        let at = io.conn_ref(conn).map(|conn| (conn.wire, conn.driver));
        let Some((wire, driver)) = at else { return };
        self.count_deliveries(1);
        if wire == Wire::Values {
            if let Some(driven) = &mut self.driven {
                driven.hear_broadcast(driver, conn, broadcast);
            }
            return;
        }
        let metrics = &self.metrics;
        io.send_with(conn, |out| {
            if encode(out, broadcast, wire).is_err() {
                metrics.errors_encode.add(1);
            }
        });
    }
}
