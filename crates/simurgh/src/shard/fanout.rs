//! Broadcasts: taken into a topic's log, and sent to its members in slices at the end of turns.
//!
//! A hand walks round the topic's table. Whom it visits gets everything from their cursor on, in
//! one write of bytes that were encoded once: a burst of messages costs little more than one. A
//! message that is about to be written to a member first brings that member up to date, so slices
//! never change an order that PROTOCOL §6 promises.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use simurgh_proto::message::events;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};

use super::batch::{Batch, encode, frame};
use super::callback::{Notice, guarded};
use super::conn::{WIRES, Wire};
use super::flow::{FlowsElsewhere, Posted, pace};
use super::log::Log;
use super::members::{BEHIND, DELIVERING, Memberships, RELAY, SOCKET_ID};
use super::parts::LONG_BYTES;
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

/// Bytes after which a slice looks at the clock.
const LOOK_BYTES: usize = 16 << 10;
/// How often it is looked whether withheld bytes may be given back.
const WITHHELD_LOOK: Duration = Duration::from_millis(5);

/// What was done since the last look at the clock.
#[derive(Default)]
struct Stride {
    members: usize,
    bytes: usize,
}

/// Why deliveries of what is ready stopped.
enum Step {
    /// The clock is to be looked at.
    Look,
    /// The hand has been round.
    Round,
    /// The topic is gone.
    Gone,
    /// This member, whose cursor was there, is to get something that is not ready.
    Other(Member, u32),
    /// This member's socket has not taken all of it.
    Behind(Member),
}

/// What came of a delivery.
#[derive(Default)]
struct Delivered {
    bytes: usize,
    /// The socket has not taken all of it.
    waits: bool,
}

/// The topics with something left to send, and the bytes in use.
pub(super) struct Fanout {
    active: VecDeque<TopicId>,
    batches: [Option<Box<Batch>>; WIRES],
    permit: Permit,
    /// Topics of which bytes are withheld.
    withheld: Vec<TopicId>,
    pub(super) elsewhere: FlowsElsewhere,
}

impl Fanout {
    pub(super) fn new() -> Self {
        Self {
            active: VecDeque::new(),
            batches: [const { None }; WIRES],
            permit: Permit::None,
            withheld: Vec::new(),
            elsewhere: FlowsElsewhere::default(),
        }
    }

    /// A topic's broadcasts from `cursor` on for a wire, the same for all who stand there.
    #[inline]
    fn batch(
        &mut self,
        io: &Io,
        topic: &mut Topic,
        cursor: u32,
        wire: Wire,
        errors: &mut u64,
    ) -> Option<&Batch> {
        let place = self.batches.get_mut(wire as usize)?;
        let head = topic.log.head();
        if !place.as_deref().is_some_and(|batch| batch.is_of(&topic.name, cursor, head)) {
            *place = Some(Box::new(Batch::new(io, topic, cursor, wire, errors)));
        }
        place.as_deref()
    }

    /// Lets go of the bytes once nothing is under way.
    fn settle(&mut self) {
        if self.active.is_empty() {
            self.batches = [const { None }; WIRES];
        }
    }
}

/// Whether a broadcast is not for this membership of a shard: it bears the name of its sender, who
/// may have left and be somebody else by now.
#[inline]
fn is_except(members: &Memberships, shard: u16, broadcast: &Broadcast, membership: u32) -> bool {
    broadcast.except.is_some_and(|channel| {
        channel.membership == membership
            && channel.shard == shard
            && members.get(membership).is_some_and(|it| it.generation == channel.generation)
    })
}

/// What a log has from `cursor` on that is for this member of a shard.
#[inline]
fn pending_for<'a>(
    log: &'a Log,
    cursor: u32,
    members: &'a Memberships,
    shard: u16,
    member: Member,
) -> impl Iterator<Item = &'a Arc<Broadcast>> {
    let is_for = move |it: &&Arc<Broadcast>| !is_except(members, shard, it, member.membership());
    log.pending(cursor).filter(is_for)
}

impl Shard {
    /// Takes a broadcast, whose weight is charged to this shard's mailbox, into its topic's log.
    pub(super) fn enqueue(&mut self, posted: Posted) {
        self.metrics.broadcasts.add(1);
        let found = self.topics.find(posted.broadcast().topic());
        let Some((id, topic)) = found.and_then(|id| Some((id, self.topics.get_mut(id)?))) else {
            return self.delivered(posted.broadcast().weight());
        };
        topic.log.push(posted);
        topic.deliveries = topic.deliveries.saturating_add(topic.members.len() as u32);
        if !topic.in_fanout {
            topic.in_fanout = true;
            topic.hand = 0;
            topic.lap_head = topic.log.head();
            topic.lagging = false;
            self.fanout.active.push_back(id);
            self.metrics.fanout_topics.set(self.fanout.active.len() as u64);
        }
    }

    /// Gives bytes of broadcasts back that everybody here has got.
    fn delivered(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
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
        let mut stride = Stride::default();
        loop {
            match self.send_ready(io, id, &mut stride) {
                Step::Gone => return true,
                Step::Round => {
                    if self.lap_is_over(io, id) {
                        return true;
                    }
                }
                Step::Look => {
                    stride = Stride::default();
                    if Instant::now() >= deadline {
                        return false;
                    }
                }
                Step::Other(member, cursor) => {
                    let delivered = self.deliver(io, id, member, cursor, false);
                    stride.bytes += delivered.bytes;
                    if delivered.waits {
                        self.is_behind(io, id, member);
                    }
                }
                Step::Behind(member) => self.is_behind(io, id, member),
            }
        }
    }

    /// Sends to the members at the hand what is ready, until something else is to be done: what
    /// most deliveries are, so nothing is looked up in it twice.
    fn send_ready(&mut self, io: &mut Io, id: TopicId, stride: &mut Stride) -> Step {
        let Some(topic) = self.topics.get_mut(id) else { return Step::Gone };
        let (head, batches) = (topic.log.head(), &self.fanout.batches);
        let (members, shard) = (&self.members, self.index);
        let mut sent = 0;
        let step = loop {
            if stride.members == STRIDE || stride.bytes >= LOOK_BYTES {
                break Step::Look;
            }
            let Some(member) = topic.members.get_mut(topic.hand) else { break Step::Round };
            stride.members += 1;
            topic.hand += 1;
            if member.cursor == head {
                continue;
            }
            let cursor = std::mem::replace(&mut member.cursor, head);
            let member = *member;
            if member.through_channel() {
                break Step::Other(member, cursor);
            }
            let mut driver = None;
            let waits = io.send_chosen(member.conn, |conn| {
                driver = (conn.wire == Wire::Values).then_some(conn.driver);
                let batch = batches.get(conn.wire as usize)?.as_deref()?;
                let (run, whole) =
                    batch.for_all().filter(|_| batch.is_of(&topic.name, cursor, head))?;
                sent += u64::from(batch.count);
                stride.bytes += whole.len();
                Some((whole, || run.clone()))
            });
            match (waits, driver, &mut self.driven) {
                (Some(false), ..) => {}
                (Some(true), ..) => break Step::Behind(member),
                (None, Some(driver), Some(driven)) => {
                    let heard = pending_for(&topic.log, cursor, members, shard, member);
                    sent += driven.hear_broadcasts(driver, member.conn, heard);
                }
                (None, ..) => break Step::Other(member, cursor),
            }
        };
        if sent > 0 {
            self.count_deliveries(sent);
        }
        step
    }

    /// The hand has been round; whether nothing is left to send.
    fn lap_is_over(&mut self, io: &Io, id: TopicId) -> bool {
        let Some(topic) = self.topics.get_mut(id) else { return true };
        let has_withheld = topic.withheld.is_some();
        let freed = topic.finish_lap(io.now().ns);
        if topic.withheld.is_some() && !has_withheld {
            self.fanout.withheld.push(id);
        }
        let is_done = topic.log.is_empty();
        topic.in_fanout = !is_done;
        self.delivered(freed);
        self.relieve(id);
        if is_done {
            self.topics.close_if_empty(id);
            self.metrics.topics.set(self.topics.len() as u64);
        }
        is_done
    }

    /// A member's socket has not taken all that it was just sent.
    #[cold]
    fn is_behind(&mut self, io: &Io, id: TopicId, member: Member) {
        let Some(topic) = self.topics.get_mut(id) else { return };
        // It may have ended by what it was sent.
        let Some(it) = self.members.get_mut(member.membership()).filter(|it| it.topic == id) else {
            return;
        };
        if !it.is(BEHIND) {
            it.flags |= BEHIND;
            topic.behind += 1;
        }
        topic.lagging |= io.queued(member.conn) > self.hub.config.outbound_bytes_max / 4;
    }

    /// A socket has taken all it was sent.
    pub(super) fn caught_up(&mut self, io: &Io, key: Key) {
        let Some(conn) = io.conn_ref(key) else { return };
        let mut next = conn.memberships;
        while let Some(it) = self.members.get_mut(next) {
            next = it.next;
            if it.is(BEHIND) {
                it.flags &= !BEHIND;
                let id = it.topic;
                if let Some(topic) = self.topics.get_mut(id) {
                    topic.one_less_behind();
                }
                self.relieve(id);
            }
        }
    }

    /// Gives back what was withheld of a topic, if it is not awaited any more.
    pub(super) fn relieve(&mut self, id: TopicId) {
        let Some(topic) = self.topics.get_mut(id).filter(|topic| !topic.is_awaited()) else {
            return;
        };
        let Some(mut withheld) = topic.withheld.take() else { return };
        self.fanout.withheld.retain(|it| *it != id);
        self.delivered(withheld.give_all());
        self.topics.close_if_empty(id);
    }

    /// Gives back what may be given back by now although it is awaited.
    pub(super) fn give_back_withheld(&mut self, io: &Io) -> Next {
        if self.fanout.withheld.is_empty() {
            return Next::Idle;
        }
        let config = &self.hub.config;
        let pace = pace(config.outbound_bytes_max, config.slow_after);
        let mut left = std::mem::take(&mut self.fanout.withheld);
        left.retain(|&id| {
            let Some(topic) = self.topics.get_mut(id) else { return false };
            let Some(withheld) = &mut topic.withheld else { return false };
            let given = withheld.give(io.now().ns, pace);
            let is_left = !withheld.is_empty();
            if !is_left {
                topic.withheld = None;
                self.topics.close_if_empty(id);
            }
            self.delivered(given);
            is_left
        });
        self.fanout.withheld = left;
        if self.fanout.withheld.is_empty() { Next::Idle } else { Next::After(WITHHELD_LOOK) }
    }

    /// Brings a member up to date before something else is written to it. What an interceptor
    /// writes while it is being brought up to date is no reason to begin anew: what is broadcast
    /// meanwhile follows the rest, as it would in Phoenix' mailbox, and nothing nests.
    pub(super) fn catch_up(&mut self, io: &mut Io, membership: u32) {
        let Some(it) = self.members.get(membership).filter(|it| !it.is(DELIVERING)) else { return };
        let (id, at) = (it.topic, it.at as usize);
        let Some(topic) = self.topics.get_mut(id) else { return };
        let Some(member) = topic.members.get_mut(at) else { return };
        let head = topic.log.head();
        if member.cursor == head {
            return;
        }
        let cursor = std::mem::replace(&mut member.cursor, head);
        let member = *member;
        self.deliver(io, id, member, cursor, true);
    }

    /// Sends one member the broadcasts from `cursor` on; with `later`, together with what else
    /// this turn has for it.
    #[inline]
    fn deliver(
        &mut self,
        io: &mut Io,
        id: TopicId,
        member: Member,
        cursor: u32,
        later: bool,
    ) -> Delivered {
        if member.through_channel() {
            self.deliver_through(io, id, member, cursor);
            return Delivered { bytes: 0, waits: io.queued(member.conn) > 0 };
        }
        let (Some(topic), Some(conn)) = (self.topics.get_mut(id), io.conn_ref(member.conn)) else {
            return Delivered::default();
        };
        let wire = conn.wire;
        if wire == Wire::Values {
            self.deliver_values(id, conn.driver, member, cursor);
            return Delivered::default();
        }
        let mut errors = 0;
        let batch = self.fanout.batch(io, topic, cursor, wire, &mut errors);
        if errors > 0 {
            self.metrics.errors_encode.add(errors);
        }
        let Some(batch) = batch else { return Delivered::default() };
        if !batch.except.is_empty() && batch.except.contains(&member.membership()) {
            self.deliver_others(io, id, member, cursor);
            return Delivered { bytes: 0, waits: io.queued(member.conn) > 0 };
        }
        let Some((run, whole)) = batch.output() else { return Delivered::default() };
        let count = u64::from(batch.count);
        let waits = if later {
            io.send_run_later(member.conn, run.clone());
            false
        } else {
            io.send_run(member.conn, run, whole)
        };
        let bytes = run.len();
        self.count_deliveries(count);
        Delivered { bytes, waits }
    }

    /// For a driven socket: what was broadcast, as it is.
    fn deliver_values(&mut self, id: TopicId, driver: u8, member: Member, cursor: u32) {
        let (Some(topic), Some(driven)) = (self.topics.get(id), &mut self.driven) else { return };
        let (members, shard) = (&self.members, self.index);
        let heard = pending_for(&topic.log, cursor, members, shard, member);
        let heard = driven.hear_broadcasts(driver, member.conn, heard);
        self.count_deliveries(heard);
    }

    /// For the sender of a `broadcast_from`: all but its own.
    fn deliver_others(&mut self, io: &mut Io, id: TopicId, member: Member, cursor: u32) {
        let Some(wire) = io.conn_ref(member.conn).map(|conn| conn.wire) else { return };
        let (members, shard) = (&self.members, self.index);
        let is_own = |it: &Broadcast| is_except(members, shard, it, member.membership());
        let Some(topic) = self.topics.get_mut(id) else { return };
        let (mut runs, mut sent) = (Vec::new(), 0);
        // An encoding error was counted when the batch was made.
        let encode = |it: &Arc<Broadcast>| frame(io, it, wire, &mut 0);
        topic.log.runs(
            cursor,
            wire,
            |it| !is_own(it),
            encode,
            |run, count| {
                runs.push(run.clone());
                sent += u64::from(count);
            },
        );
        for run in runs {
            io.send_run_later(member.conn, run);
        }
        self.count_deliveries(sent);
    }

    fn count_deliveries(&self, count: u64) {
        self.metrics.deliveries.add(count);
        self.metrics.messages_out.add(count);
    }

    /// Deliveries that pass application code, or the socket itself.
    fn deliver_through(&mut self, io: &mut Io, id: TopicId, member: Member, cursor: u32) {
        let Some(topic) = self.topics.get(id) else { return };
        let pending: Vec<_> = topic.log.pending(cursor).map(Arc::clone).collect();
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
                let Some(channel) = it.relay_for() else { continue };
                if is_except(&self.members, self.index, &broadcast, channel) {
                    continue;
                }
                self.call(io, channel, Callback::HandleBroadcast, None, |channel, ctx| {
                    channel.handle_broadcast(ctx, &broadcast)
                });
            } else if !is_except(&self.members, self.index, &broadcast, membership) {
                self.deliver_intercepted(io, membership, &broadcast);
            }
        }
        if let Some(it) = self.members.get_mut(membership).filter(|it| it.generation == generation)
        {
            it.flags &= !DELIVERING;
        }
    }

    fn deliver_intercepted(&mut self, io: &mut Io, membership: u32, broadcast: &Arc<Broadcast>) {
        let Some(channel) = self.members.get(membership).and_then(|it| it.channel()) else {
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
                driven.hear_broadcasts(driver, conn, std::iter::once(broadcast));
            }
            return;
        }
        if payload.len() > LONG_BYTES {
            let mut errors = 0;
            if let Some(frame) = frame(io, broadcast, wire, &mut errors) {
                io.send_shared_later(conn, &frame);
            }
            return self.metrics.errors_encode.add(errors);
        }
        let metrics = &self.metrics;
        io.send_with(conn, |out| {
            if encode(out, broadcast, wire).is_err() {
                metrics.errors_encode.add(1);
            }
        });
    }
}
