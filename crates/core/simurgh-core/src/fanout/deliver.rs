//! Deliveries to one member at a time from its topic's log.

use simurgh_channel::{Broadcast, NOBODY_PLAIN, Node};
use simurgh_data::{Key, Run};
use simurgh_history::AT;
use simurgh_proto::message::Ref;

use super::batch::Batch;
use super::delivery::{Delivery, Registry};
use super::log::Log;
use super::state::Fanout;
use crate::frames::{LONG_BYTES, broadcast_frame, encode_broadcast, kept};
use crate::registry::{DELIVERING, Member, Members, Topic, TopicId};
use crate::sockets::Sockets;
use crate::wire::{Form, Wire};
use simurgh_data::prelude::*;

const STRIDE: usize = 16;
const CLOCK_CHECK_BYTES: usize = 16 << 10;

#[derive(Default)]
pub(super) struct Stride {
    members: usize,
    pub(super) bytes: usize,
}

/// Why deliveries of ready frames stopped.
pub(super) enum Step {
    CheckClock,
    PassOver,
    Gone,
    NotReady(Member),
    /// The same, and the next members are probably of its kind: with positions, or without.
    OtherKind(Member),
    Behind(Member),
}

pub(super) enum Delivered {
    Sent { bytes: usize, waits: bool },
    Channel(ChannelDelivery),
}

impl Delivered {
    const NOTHING: Self = Self::Sent { bytes: 0, waits: false };
}

pub(crate) struct ChannelDelivery {
    pub(crate) membership: u32,
    pub(crate) generation: u32,
    pub(crate) conn: Key,
    pub(crate) pending: Vec<Arc<Broadcast>>,
}

#[inline]
fn pending_for<'a>(
    log: &'a Log,
    members: Members<'a>,
    member: Member,
) -> impl Iterator<Item = &'a Arc<Broadcast>> {
    let membership = member.membership();
    let is_for = move |it: &&Arc<Broadcast>| {
        let is_left_out = |except| except == NOBODY_PLAIN || members.is_excluded(it, membership);
        !it.except.is_some_and(is_left_out)
    };
    log.pending(member.cursor).filter(is_for)
}

impl<N: Node> Fanout<N> {
    /// Sends ready frames to the next members until other work is due. Most deliveries happen here,
    /// so nothing is looked up twice. It is a separate function so that the loop's values have
    /// registers, and for members of one kind, with or without positions, whose frames are in one
    /// table.
    #[inline(never)]
    pub(super) fn send_ready<const PLACED: bool>(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        id: TopicId,
        stride: &mut Stride,
    ) -> Step {
        let Some((topic, members)) = registry.topic_and_members(id) else { return Step::Gone };
        let head = topic.deliveries.log.head();
        let batches = if PLACED { &self.placed[..] } else { &self.batches[..] };
        let Stride { members: mut visited, mut bytes } = *stride;
        let mut sent = 0;
        let step = loop {
            if visited == STRIDE || bytes >= CLOCK_CHECK_BYTES {
                break Step::CheckClock;
            }
            let Some(member) = topic.visit(head) else { break Step::PassOver };
            visited += 1;
            if member.cursor == head {
                continue;
            }
            if !member.is_plain(PLACED) {
                break if member.is_apart() {
                    Step::NotReady(member)
                } else {
                    Step::OtherKind(member)
                };
            }
            let mut values = None;
            let waits = out.send_chosen(member.conn, |socket| {
                values = (socket.wire == Wire::Values).then_some(socket.transport);
                let batch = batches.get(socket.wire as usize)?.as_deref()?;
                if !batch.is_of(&topic.name, member.cursor, head) {
                    return None;
                }
                let (run, whole) = batch.for_all()?;
                sent += u64::from(batch.count);
                bytes += whole.len();
                Some((whole, || run.clone()))
            });
            match (waits, values) {
                (Some(false), _) => {}
                (Some(true), _) => break Step::Behind(member),
                (None, Some(transport)) => {
                    let pending = pending_for(&topic.deliveries.log, members, member);
                    sent += out.deliver_broadcasts(member.conn, transport, pending);
                }
                (None, None) => break Step::NotReady(member),
            }
        };
        *stride = Stride { members: visited, bytes };
        if sent > 0 {
            self.count_deliveries(sent);
        }
        step
    }

    /// Brings a member up to date before something else is written to it; the caller delivers what
    /// goes to application code. What an interceptor broadcasts meanwhile follows the rest, as it
    /// would in Phoenix' mailbox: nothing is nested.
    pub(crate) fn catch_up(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        membership: u32,
    ) -> Option<ChannelDelivery> {
        let it = registry.member(membership).filter(|it| !it.is(DELIVERING))?;
        let (id, at) = (it.topic, it.at as usize);
        let topic = registry.topic_mut(id)?;
        let head = topic.deliveries.log.head();
        let member = *topic.member_at(at)?;
        if member.cursor == head {
            return None;
        }
        *topic.cursor_at(at)? = head;
        match self.deliver(registry, out, id, member, true) {
            Delivered::Channel(through) => Some(through),
            Delivered::Sent { .. } => None,
        }
    }

    #[inline]
    pub(super) fn deliver(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        id: TopicId,
        member: Member,
        later: bool,
    ) -> Delivered {
        if member.is_plain(false) {
            self.deliver_as::<false>(registry, out, id, member, later)
        } else if member.is_apart() {
            through(registry, id, member).map_or(Delivered::NOTHING, Delivered::Channel)
        } else {
            self.deliver_as::<true>(registry, out, id, member, later)
        }
    }

    fn deliver_as<const PLACED: bool>(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        id: TopicId,
        member: Member,
        later: bool,
    ) -> Delivered {
        let Some((wire, transport)) = out.socket(member.conn).map(|it| (it.wire, it.transport))
        else {
            return Delivered::NOTHING;
        };
        let Some((topic, members)) = registry.topic_and_members(id) else {
            return Delivered::NOTHING;
        };
        if wire == Wire::Values {
            let pending = pending_for(&topic.deliveries.log, members, member);
            let delivered = out.deliver_broadcasts(member.conn, transport, pending);
            self.count_deliveries(delivered);
            return Delivered::NOTHING;
        }
        let mut errors = 0;
        let form = Form { wire, has_positions: PLACED };
        let batch = self.batch(out, topic, members, member.cursor, form, &mut errors);
        let Some(batch) = batch else { return Delivered::NOTHING };
        let count = u64::from(batch.count);
        let is_for_some = !batch.except.is_empty() && batch.except.contains(&member.membership());
        let delivered = match batch.output() {
            _ if is_for_some => None,
            None => Some(Delivered::NOTHING),
            Some((run, _)) if later => {
                out.send_later(member.conn, run.clone());
                Some(Delivered::Sent { bytes: run.len(), waits: false })
            }
            Some((run, whole)) => {
                let waits = out.send_run(member.conn, run, whole);
                Some(Delivered::Sent { bytes: run.len(), waits })
            }
        };
        if errors > 0 {
            self.metrics.errors_encode.add(errors);
        }
        match delivered {
            Some(delivered) => {
                self.count_deliveries(count);
                delivered
            }
            None => {
                self.deliver_others(registry, out, id, member, form);
                Delivered::Sent { bytes: 0, waits: out.queued(member.conn) > 0 }
            }
        }
    }

    #[inline(always)]
    fn batch(
        &mut self,
        out: &mut impl Sockets,
        topic: &mut Topic<Delivery>,
        members: Members<'_>,
        cursor: u32,
        form: Form,
        errors: &mut u64,
    ) -> Option<&Batch> {
        let place = match form.has_positions {
            false => self.batches.get_mut(form.wire as usize)?,
            true => self.placed.get_mut(form.wire as usize)?,
        };
        let head = topic.deliveries.log.head();
        if !place.as_deref().is_some_and(|batch| batch.is_of(&topic.name, cursor, head)) {
            *place = Some(Box::new(Batch::new(out, topic, cursor, form, members, errors)));
        }
        place.as_deref()
    }

    /// For the sender of a `broadcast_from`: all except its own broadcasts.
    #[inline(never)]
    fn deliver_others(
        &mut self,
        registry: &mut Registry,
        out: &mut impl Sockets,
        id: TopicId,
        member: Member,
        form: Form,
    ) {
        let Some((topic, members)) = registry.topic_and_members(id) else { return };
        let membership = member.membership();
        let client = members.client(membership);
        let is_own = |it: &Broadcast| {
            members.is_excluded(it, membership)
                || (client != 0 && it.kept.as_ref().is_some_and(|mark| mark.sender == client))
        };
        let (mut runs, mut sent): (Vec<Run>, u64) = (Vec::new(), 0);
        // An encoding error was counted when the batch was made.
        let encode = |it: &Arc<Broadcast>| broadcast_frame(out, it, form, &mut 0);
        topic.deliveries.log.runs(
            member.cursor,
            form,
            |it| !is_own(it),
            encode,
            |run, count| {
                runs.push(run.clone());
                sent += u64::from(count);
            },
        );
        for run in runs {
            out.send_later(member.conn, run);
        }
        // The client's own broadcast advances its position, too.
        let kept = topic.deliveries.log.pending(member.cursor).filter(|it| it.kept.is_some());
        if let Some(last) = kept.last().filter(|it| form.has_positions && is_own(it))
            && let (Some(position), Some(serializer)) = (last.position(), form.wire.serializer())
        {
            out.send_with(member.conn, |out| {
                // A notice is text, which has a form in every serializer.
                let _ = kept::notice(out, serializer, &Ref::Null, &topic.name, AT, position);
            });
        }
        self.count_deliveries(sent);
    }

    pub(crate) fn deliver_one(
        &self,
        out: &mut impl Sockets,
        conn: Key,
        broadcast: &Arc<Broadcast>,
        has_positions: bool,
    ) {
        let Some((wire, transport)) = out.socket(conn).map(|it| (it.wire, it.transport)) else {
            return;
        };
        if wire == Wire::Values {
            let delivered = out.deliver_broadcasts(conn, transport, core::iter::once(broadcast));
            return self.count_deliveries(delivered);
        }
        let (form, mut errors) = (Form { wire, has_positions }, 0);
        if broadcast.payload().len() > LONG_BYTES || wire.has_deflate() {
            if let Some(frame) = broadcast_frame(out, broadcast, form, &mut errors) {
                out.send_later(conn, Run::of(&frame));
            }
        } else {
            out.send_with(conn, |out| {
                errors += u64::from(encode_broadcast(out, broadcast, form).is_err());
            });
        }
        match errors {
            0 => self.count_deliveries(1),
            _ => self.metrics.errors_encode.add(errors),
        }
    }
}

fn through(registry: &Registry, id: TopicId, member: Member) -> Option<ChannelDelivery> {
    let generation = registry.member(member.membership())?.generation;
    let pending = registry.topic(id)?.deliveries.log.pending(member.cursor);
    Some(ChannelDelivery {
        membership: member.membership(),
        generation,
        conn: member.conn,
        pending: pending.map(Arc::clone).collect(),
    })
}
