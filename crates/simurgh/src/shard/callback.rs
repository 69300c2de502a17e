//! Running the application's code, and carrying out what it did.
//!
//! A callback runs under `catch_unwind` and touches nothing of the shard: it fills a list of
//! effects. The list is carried out in order when the callback has returned, or panicked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Instant;

use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::serializer::{EncodeError, Kind, ServerMessage};
use simurgh_proto::session::server as session;
use simurgh_proto::ws::{self, CloseCode, OpCode};
use simurgh_reactor::Key;

use super::conn::{NO_MEMBERSHIP, Phase, Replaced, Wire};
use super::members::{BEHIND, COUNTED, HAS_RELAYS, Holds, Membership, RELAY, Subscriber};
use super::parts::{LONG_BYTES, frame_around};
use super::{ChannelId, Io, Shard};
use crate::channel::{Broadcast, Channel, Join, JoinFn, Outcome, Reason};
use crate::context::{Context, Effect};
use crate::socket::{Prepared, SocketState};
use crate::watchdog::Callback;

/// What is needed to speak for a channel, also when it is already gone.
#[derive(Clone)]
pub(crate) struct Speaker {
    pub(crate) conn: Key,
    pub(crate) wire: Wire,
    pub(crate) topic: Rc<str>,
    pub(crate) join_ref: OwnedRef,
    /// Whether the client gave that join_ref, or none.
    pub(crate) is_given: bool,
    pub(crate) id: ChannelId,
}

/// What the client is told when a channel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// `phx_close`.
    Close,
    /// `phx_error`.
    Error,
}

impl Shard {
    /// Who speaks for a membership.
    pub(super) fn speaker(&self, io: &Io, membership: u32) -> Option<Speaker> {
        let it = self.members.get(membership)?;
        Some(Speaker {
            conn: it.conn,
            wire: io.conn_ref(it.conn).map_or(Wire::V2, |conn| conn.wire),
            topic: Rc::clone(&self.topics.get(it.topic)?.name),
            join_ref: it.join_ref.clone(),
            is_given: it.has_given_join_ref(),
            id: self.channel_id(membership, it),
        })
    }

    fn channel_id(&self, membership: u32, it: &Membership) -> ChannelId {
        ChannelId { shard: self.index, membership, generation: it.generation }
    }

    /// Runs one callback of a channel, carries out its effects, and acts on its outcome.
    pub(super) fn call(
        &mut self,
        io: &mut Io,
        membership: u32,
        callback: Callback,
        message: Option<Ref<'_>>,
        f: impl FnOnce(&mut dyn Channel, &mut Context<'_>) -> Outcome,
    ) {
        let Some(speaker) = self.speaker(io, membership) else { return };
        let Some(mut channel) = self.members.wake(membership) else { return };
        self.metrics.channels_hibernating.set(self.members.hibernating() as u64);
        let socket = io.conn_ref(speaker.conn).and_then(|conn| conn.socket.as_deref());
        let (result, effects) =
            self.run(socket, &speaker.topic, speaker.id, callback, message.clone(), |ctx| {
                f(&mut *channel, ctx)
            });
        if let Some(it) = self.members.get_mut(membership) {
            it.holds = Holds::Channel(channel);
        }
        self.apply(io, &speaker, effects);
        // The effects may have closed the socket, and the channel with it.
        let Some(membership) = self.live(speaker.id) else { return };
        match result {
            Some(Outcome::NoReply) => {}
            Some(Outcome::Reply(reply)) => self.reply(io, membership, message, reply),
            Some(Outcome::Stop(how)) => self.stop_channel(io, membership, how),
            Some(Outcome::ReplyAndStop(reply, how)) => {
                self.reply(io, membership, message, reply);
                self.stop_channel(io, membership, how);
            }
            None => self.end_channel(io, membership, Reason::Crashed, Notice::Error),
        }
    }

    /// Runs a join function; `None` when it panicked.
    pub(super) fn run_join(
        &mut self,
        io: &mut Io,
        key: Key,
        topic: &str,
        payload: Payload<'_>,
        prepared: Option<Prepared>,
        join: &JoinFn,
    ) -> Option<(Join, Vec<Effect>)> {
        let socket = io.conn_ref(key).and_then(|conn| conn.socket.as_deref());
        let nobody = ChannelId { shard: self.index, membership: NO_MEMBERSHIP, generation: 0 };
        let (answer, effects) = self.run(socket, topic, nobody, Callback::Join, None, |ctx| {
            ctx.prepared = prepared;
            join(ctx, payload)
        });
        match answer {
            Some(join) => Some((join, effects)),
            None => {
                self.apply_unjoined(io, key, topic, effects);
                None
            }
        }
    }

    /// Carries out what a join function did that has made no channel (yet): all that concerns
    /// others, or the socket.
    pub(super) fn apply_unjoined(
        &mut self,
        io: &mut Io,
        key: Key,
        topic: &str,
        mut effects: Vec<Effect>,
    ) {
        effects.retain(|it| matches!(it, Effect::Broadcast { .. } | Effect::Close(_)));
        if effects.is_empty() {
            return;
        }
        let nobody = Speaker {
            conn: key,
            wire: io.conn_ref(key).map_or(Wire::V2, |conn| conn.wire),
            topic: topic.into(),
            join_ref: OwnedRef::default(),
            is_given: false,
            id: ChannelId { shard: self.index, membership: NO_MEMBERSHIP, generation: 0 },
        };
        self.apply(io, &nobody, effects);
    }

    /// Runs application code with a context; `None` when it panicked, with the effects it had by
    /// then.
    fn run<R>(
        &mut self,
        socket: Option<&SocketState>,
        topic: &str,
        channel: ChannelId,
        callback: Callback,
        message: Option<Ref<'_>>,
        f: impl FnOnce(&mut Context<'_>) -> R,
    ) -> (Option<R>, Vec<Effect>) {
        let mut effects = self.spare_effects.pop().unwrap_or_default();
        let hub = &self.hub;
        let effects_in = &mut effects;
        let mut ctx =
            Context { effects: effects_in, hub, socket, topic, channel, message, prepared: None };
        let started = Instant::now();
        let watch = hub.watches.get(usize::from(self.index));
        if let Some(watch) = watch {
            watch.enter(callback, started);
        }
        let result = guarded(|| f(&mut ctx));
        if let Some(watch) = watch {
            watch.leave();
        }
        let took = started.elapsed();
        if took > self.hub.config.callback_warning {
            self.metrics.slow_callbacks.add(1);
            tracing::warn!(
                shard = self.index,
                topic,
                callback = callback.name(),
                took_ms = took.as_millis() as u64,
                "a callback held its shard; move what takes long to Context::spawn or Join::later"
            );
        }
        if result.is_none() {
            self.metrics.errors_callback_panic.add(1);
            tracing::error!(
                shard = self.index,
                topic,
                callback = callback.name(),
                "callback panicked"
            );
        }
        (result, effects)
    }

    /// Carries out what a callback did.
    pub(super) fn apply(&mut self, io: &mut Io, speaker: &Speaker, mut effects: Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Push { event, payload } => self.push_out(io, speaker, &event, payload),
                Effect::Broadcast { topic, event, payload, others } => {
                    let broadcast = Broadcast {
                        topic: topic.unwrap_or_else(|| (&*speaker.topic).into()),
                        event,
                        payload,
                        except: others.then_some(speaker.id),
                    };
                    self.publish(io, speaker.conn, broadcast);
                }
                Effect::Subscribe(topic) => self.subscribe_relay(io, speaker, &topic),
                Effect::Unsubscribe(topic) => self.unsubscribe_relay(io, speaker, &topic),
                Effect::Close(code) => self.close_socket(io, speaker.conn, code),
            }
        }
        // Kept for the next callback, unless it grew beyond what is ordinary.
        if self.spare_effects.len() < 8 && effects.capacity() <= 256 {
            self.spare_effects.push(effects);
        }
    }

    /// A push to one member, after all broadcasts made before it.
    fn push_out(&mut self, io: &mut Io, speaker: &Speaker, event: &str, payload: Payload<'_>) {
        if let Some(membership) = self.live(speaker.id) {
            self.catch_up(io, membership);
        }
        let join_ref = speaker.join_ref.as_ref();
        self.say(io, speaker.conn, session::push(&join_ref, &speaker.topic, event, payload));
    }

    /// Says something to an open socket; it leaves with all else of this turn.
    pub(super) fn say(&mut self, io: &mut Io, key: Key, message: ServerMessage<'_>) {
        let Some(conn) = io.conn_ref(key) else { return };
        if !matches!(conn.phase, Phase::Open | Phase::Pending) {
            return;
        }
        let wire = conn.wire;
        self.metrics.messages_out.add(1);
        if wire == Wire::Values {
            return self.hand_out(conn.driver, key, &message);
        }
        if message.payload().len() > LONG_BYTES {
            return self.say_long(io, key, wire, message);
        }
        io.send_with(key, |out| {
            if let Err(error) = ws::encode_with(out, |out| write(out, wire, &message)) {
                self.not_encodable(error);
            }
        });
    }

    /// Says something of which the payload is not copied; or only if it is borrowed.
    #[cold]
    fn say_long(&self, io: &mut Io, key: Key, wire: Wire, mut message: ServerMessage<'_>) {
        let payload = message.replace_payload(Payload::NULL).into_owned();
        let made = frame_around(io, payload, |out, hole| {
            // What stands for the payload outlives the message no longer than this.
            let mut message = message;
            message.replace_payload(hole.clone().into_owned());
            write(out, wire, &message)
        });
        match made {
            Ok(frame) => io.send_shared_later(key, &frame),
            Err(error) => self.not_encodable(error),
        }
    }

    fn not_encodable(&self, error: EncodeError) {
        self.metrics.errors_encode.add(1);
        tracing::debug!(%error, "a message cannot be encoded for its receiver");
    }

    /// Ends a channel: tells the client, takes it out of every table, lets it clean up.
    pub(super) fn end_channel(
        &mut self,
        io: &mut Io,
        membership: u32,
        reason: Reason,
        notice: Notice,
    ) {
        self.catch_up(io, membership);
        let Some(speaker) = self.speaker(io, membership) else { return };
        // What tells a plain client is the end of its socket, which ends the channel too: that
        // comes last, for the channel to hear its own reason.
        let is_plain = speaker.wire == Wire::Plain;
        if !is_plain {
            self.notify(io, &speaker, notice);
        }
        let channel = self.take_out(io, membership);
        let socket = io.conn_ref(speaker.conn).and_then(|conn| conn.socket.as_deref());
        let effects = self.terminate(socket, &speaker, channel, reason);
        self.apply(io, &speaker, effects);
        if is_plain {
            self.notify(io, &speaker, notice);
        }
    }

    fn notify(&mut self, io: &mut Io, speaker: &Speaker, notice: Notice) {
        if speaker.wire == Wire::Plain {
            let code = match notice {
                Notice::Close => CloseCode::NORMAL,
                Notice::Error => CloseCode::INTERNAL,
            };
            return self.close_socket(io, speaker.conn, code);
        }
        // These bear it as the client gave it.
        let join_ref = if speaker.is_given { speaker.join_ref.as_ref() } else { Ref::Null };
        let notice = match notice {
            Notice::Close => session::closed(&join_ref, &speaker.topic),
            Notice::Error => session::crashed(&join_ref, &speaker.topic),
        };
        self.say(io, speaker.conn, notice);
    }

    /// Lets a channel clean up and drops it, each under its own guard; returns what it did.
    pub(super) fn terminate(
        &mut self,
        socket: Option<&SocketState>,
        speaker: &Speaker,
        channel: Option<Box<dyn Channel>>,
        reason: Reason,
    ) -> Vec<Effect> {
        let Some(mut channel) = channel else { return Vec::new() };
        let (_, effects) =
            self.run(socket, &speaker.topic, speaker.id, Callback::Terminate, None, |ctx| {
                channel.terminate(ctx, &reason);
            });
        self.drop_guarded(channel);
        effects
    }

    /// Drops something of the application's.
    pub(super) fn drop_guarded<T>(&mut self, value: T) {
        if guarded(|| drop(value)).is_none() {
            self.metrics.errors_callback_panic.add(1);
        }
    }

    /// Ends the old channel of a topic that is joined again; its last words wait for the new reply.
    pub(super) fn replace(&mut self, io: &mut Io, membership: u32) -> Option<Box<Replaced>> {
        self.catch_up(io, membership);
        let speaker = self.speaker(io, membership)?;
        let channel = self.take_out(io, membership);
        let socket = io.conn_ref(speaker.conn).and_then(|conn| conn.socket.as_deref());
        let effects = self.terminate(socket, &speaker, channel, Reason::Rejoined);
        let (pushes, others): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::Push { .. }));
        self.apply(io, &speaker, others);
        Some(Box::new(Replaced { speaker, pushes }))
    }

    pub(super) fn close_replaced(&mut self, io: &mut Io, replaced: Option<Box<Replaced>>) {
        if let Some(replaced) = replaced {
            self.notify(io, &replaced.speaker, Notice::Close);
            self.apply(io, &replaced.speaker, replaced.pushes);
        }
    }

    /// Takes a membership, and its subscriptions to further topics, out of all tables.
    fn take_out(&mut self, io: &mut Io, membership: u32) -> Option<Box<dyn Channel>> {
        let it = self.members.get(membership)?;
        let (key, has_relays) = (it.conn, it.is(HAS_RELAYS));
        let conn = io.conn(key)?;
        conn.channels -= 1;
        self.members.unlink(membership, &mut conn.memberships);
        let mut next = conn.memberships;
        while has_relays && let Some(it) = self.members.get(next) {
            let current = next;
            next = it.next;
            if it.relay_for() == Some(membership) {
                self.members.unlink(current, &mut io.conn(key)?.memberships);
                self.forget(current);
            }
        }
        self.forget(membership)
    }

    /// Takes one membership out of its topic and the slab (not out of its socket's list).
    pub(super) fn forget(&mut self, membership: u32) -> Option<Box<dyn Channel>> {
        let it = self.members.get_mut(membership)?;
        let channel = it.take_channel();
        let (topic_id, at) = (it.topic, it.at as usize);
        let (counted, joined, behind) = (it.is(COUNTED), it.is_joined(), it.is(BEHIND));
        if let Some(topic) = self.topics.get_mut(topic_id) {
            if behind {
                topic.one_less_behind();
            }
            if counted {
                self.hub.census.subtract(&topic.name);
            }
            topic.remove(at, |member, to| {
                if let Some(it) = self.members.get_mut(member.membership()) {
                    it.at = to;
                }
            });
        }
        self.relieve(topic_id);
        self.topics.close_if_empty(topic_id);
        if self.members.remove(membership).is_some() {
            let subscriptions = &self.metrics.subscriptions;
            subscriptions.set(subscriptions.value().saturating_sub(1));
        }
        self.lifecycle.left += 1;
        self.metrics.channels_hibernating.set(self.members.hibernating() as u64);
        if joined {
            self.metrics.channels.set(self.metrics.channels.value().saturating_sub(1));
        }
        self.metrics.topics.set(self.topics.len() as u64);
        channel
    }

    fn subscribe_relay(&mut self, io: &mut Io, speaker: &Speaker, topic: &str) {
        let Some(channel) = self.live(speaker.id) else { return };
        if self.relay(io, speaker, topic).is_some() {
            return;
        }
        if let Some(it) = self.members.get_mut(channel) {
            it.flags |= HAS_RELAYS;
        }
        let relay = Subscriber::through(Holds::Relay(channel), RELAY);
        self.subscribe(io, speaker.conn, topic, relay);
    }

    /// A channel's subscription to a further topic.
    fn relay(&self, io: &Io, speaker: &Speaker, topic: &str) -> Option<u32> {
        let topic = self.topics.find(topic)?;
        let mut next = io.conn_ref(speaker.conn)?.memberships;
        while next != NO_MEMBERSHIP {
            let it = self.members.get(next)?;
            if it.topic == topic && it.relay_for() == Some(speaker.id.membership) {
                return Some(next);
            }
            next = it.next;
        }
        None
    }

    fn unsubscribe_relay(&mut self, io: &mut Io, speaker: &Speaker, topic: &str) {
        let Some(relay) = self.relay(io, speaker, topic) else { return };
        let Some(conn) = io.conn(speaker.conn) else { return };
        self.members.unlink(relay, &mut conn.memberships);
        self.forget(relay);
    }
}

/// Runs application code; `None` when it panicked. The panic's own value is the application's too:
/// its drop is guarded as well, and given up if it panics again.
pub(crate) fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(panic) => {
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                std::mem::forget(again);
            }
            None
        }
    }
}

/// A message as a wire has it, without its frame's head.
fn write(
    out: &mut Vec<u8>,
    wire: Wire,
    message: &ServerMessage<'_>,
) -> Result<OpCode, EncodeError> {
    match wire.serializer() {
        Some(serializer) => serializer.server(out, message).map(op_code),
        None => Ok(op_code(plain_message(out, message.payload()))),
    }
}

/// A message without any serializer.
pub(super) fn plain_message(out: &mut Vec<u8>, payload: &Payload<'_>) -> Kind {
    match payload {
        Payload::Json(text) => {
            out.extend_from_slice(text.as_bytes());
            Kind::Text
        }
        Payload::Binary(data) => {
            out.extend_from_slice(data);
            Kind::Binary
        }
    }
}

pub(super) fn op_code(kind: Kind) -> OpCode {
    match kind {
        Kind::Text => OpCode::Text,
        Kind::Binary => OpCode::Binary,
    }
}
