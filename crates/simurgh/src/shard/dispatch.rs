//! What a message is, by PROTOCOL §5–§7, and what is done with it.

use std::sync::Arc;

use simurgh_proto::message::{Message, OwnedRef, Payload, Ref};
use simurgh_proto::serializer::Frame;
use simurgh_proto::session::server::{self as session, Inbound};
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::Key;

use super::callback::{Notice, Speaker, guarded};
use super::conn::{Awaited, Conn, Joining, NO_MEMBERSHIP, Phase, Wire};
use super::decision::{Decided, Received};
use super::members::{COUNTED, Holds, Membership, Subscriber, WITHOUT_JOIN_REF};
use super::topics::{Member, TopicId};
use super::{ChannelId, Io, Shard, ToChannel};
use crate::channel::{Join, JoinKind, Outcome, Reason, Reply, Stop};
use crate::context::Effect;
use crate::socket::{Kind, Prepared};
use crate::watchdog::Callback;

/// Longest topic that can be joined. The protocol sets no limit, but a membership keeps its topic:
/// without one, a socket could pin a whole message for each of its channels.
const TOPIC_BYTES_MAX: usize = 16 << 10;
/// Longest join_ref, or ref of a join, of which a membership keeps one too.
const REF_BYTES_MAX: usize = 1 << 10;

impl Shard {
    /// One message of a client.
    pub(super) fn message(&mut self, io: &mut Io, key: Key, frame: Frame<'_>) {
        self.count_message(key);
        let Some(conn) = io.conn_ref(key) else { return };
        match conn.wire.serializer() {
            Some(serializer) => {
                self.received(io, key, serializer.decode(frame).ok().map(Received::from));
            }
            None => self.plain_message(io, key, frame),
        }
    }

    /// Does what a message asks for; closes the socket if it is none.
    pub(super) fn received(&mut self, io: &mut Io, key: Key, received: Option<Received<'_>>) {
        match received {
            Some(received) => self.act(io, key, received),
            None => {
                self.metrics.errors_bad_message.add(1);
                self.fail(io, key, CloseCode::INTERNAL);
            }
        }
    }

    /// Counts a message of a client; whose it was only while somebody looks.
    pub(super) fn count_message(&mut self, key: Key) {
        self.metrics.messages_in.add(1);
        if let Some(observed) = &mut self.observed {
            observed.heard(key);
        }
    }

    /// Does what a Channels message asks for.
    pub(super) fn act(&mut self, io: &mut Io, key: Key, received: Received<'_>) {
        let Received { message, prepared } = received;
        let Some(conn) = io.conn_ref(key) else { return };
        let joined =
            self.topics.find(&message.topic).and_then(|topic| self.joined_in(key, conn, topic));
        let join_ref = joined
            .and_then(|membership| self.members.get(membership))
            .map(|membership| membership.join_ref.as_ref());
        match (session::classify(&message, join_ref.as_ref()), joined) {
            (Inbound::Heartbeat, _) => {
                self.metrics.heartbeats.add(1);
                self.say(io, key, session::heartbeat(&message.msg_ref));
            }
            (Inbound::Push, Some(membership)) => self.push_in(io, membership, message, prepared),
            (Inbound::Join, _) => self.join(io, key, joined, message, prepared),
            (Inbound::Leave, Some(membership)) => self.leave(io, key, membership, &message),
            (Inbound::LeaveUnjoined, _) => {
                let Message { join_ref, msg_ref, topic, .. } = &message;
                self.say(io, key, session::leave_unjoined(join_ref, msg_ref, topic));
            }
            (Inbound::Stale, _) => {}
            (Inbound::Unmatched | Inbound::Push | Inbound::Leave, _) => {
                self.metrics.errors_unmatched_topic.add(1);
                self.say(io, key, session::unmatched(&message.msg_ref, &message.topic));
            }
        }
    }

    /// A socket's channel in a topic: looked for where fewer are, among the socket's memberships or
    /// among the topic's members, since a socket may have ten thousand of them.
    pub(super) fn joined_in(&self, key: Key, conn: &Conn, topic: TopicId) -> Option<u32> {
        let members = &self.topics.get(topic)?.members;
        if members.len() >= usize::from(conn.channels) {
            return self.joined(conn.memberships, |it| it.topic == topic);
        }
        let mut all = (0..members.len()).filter_map(|at| members.get(at));
        let is_it = |member: &&Member| {
            let membership = || self.members.get(member.membership());
            member.conn == key && membership().is_some_and(Membership::is_joined)
        };
        all.find(is_it).map(|member| member.membership())
    }

    /// The first channel among a socket's memberships, of which `first` is the head, that `is_it`.
    pub(super) fn joined(&self, first: u32, is_it: impl Fn(&Membership) -> bool) -> Option<u32> {
        let mut next = first;
        loop {
            // There is none behind the last: `NO_MEMBERSHIP` is no slot.
            let membership = self.members.get(next)?;
            if membership.is_joined() && is_it(membership) {
                return Some(next);
            }
            next = membership.next;
        }
    }

    fn plain_message(&mut self, io: &mut Io, key: Key, frame: Frame<'_>) {
        let Some(first) = io.conn_ref(key).map(|conn| conn.memberships) else { return };
        // The one channel of a plain socket; it may have subscribed to further topics.
        let Some(membership) = self.joined(first, |_| true) else { return };
        let (event, payload) = match frame {
            Frame::Text(text) => ("text", Payload::Json(text.into())),
            Frame::Binary(data) => ("binary", Payload::Binary(data.into())),
        };
        let message = Message {
            join_ref: Ref::Null,
            msg_ref: Ref::Null,
            topic: "".into(),
            event: event.into(),
            payload,
        };
        self.push_in(io, membership, message, None);
    }

    fn push_in(
        &mut self,
        io: &mut Io,
        membership: u32,
        message: Message<'_>,
        prepared: Option<Prepared>,
    ) {
        let Message { msg_ref, event, payload, .. } = message;
        self.call(io, membership, Callback::HandleIn, Some(msg_ref), |channel, ctx| {
            ctx.prepared = prepared;
            channel.handle_in(ctx, &event, payload)
        });
    }

    fn leave(&mut self, io: &mut Io, key: Key, membership: u32, message: &Message<'_>) {
        self.catch_up(io, membership);
        let Some(join_ref) = self.members.get(membership).map(|it| it.join_ref.clone()) else {
            return;
        };
        let Message { msg_ref, topic, .. } = message;
        self.say(io, key, session::leave_joined(&join_ref.as_ref(), msg_ref, topic));
        self.end_channel(io, membership, Reason::Left, Notice::Close);
    }

    fn join(
        &mut self,
        io: &mut Io,
        key: Key,
        joined: Option<u32>,
        message: Message<'_>,
        prepared: Option<Prepared>,
    ) {
        let Some(conn) = io.conn(key) else { return };
        let hub = Arc::clone(&self.hub);
        let Some(mount) = hub.mounts.get(usize::from(conn.mount)) else { return };
        let Some(route) = mount.route(&message.topic) else {
            self.metrics.errors_unmatched_topic.add(1);
            return self.say(io, key, session::unmatched(&message.msg_ref, &message.topic));
        };
        if joined.is_none() && conn.channels >= mount.channels_max {
            self.metrics.joins_refused.add(1);
            let Message { join_ref, msg_ref, topic, .. } = &message;
            return self.say(io, key, session::too_many_channels(join_ref, msg_ref, topic));
        }
        let refs = [&message.join_ref, &message.msg_ref];
        if message.topic.len() > TOPIC_BYTES_MAX
            || refs.iter().any(|it| it.raw().len() > REF_BYTES_MAX)
        {
            self.metrics.joins_refused.add(1);
            let Message { join_ref, msg_ref, topic, .. } = &message;
            let reason = Payload::Json(r#"{"reason":"topic or join_ref too long"}"#.into());
            let refusal = session::reply_join(join_ref, msg_ref, topic, "error", reason);
            return self.say(io, key, refusal);
        }
        let replaced = joined.and_then(|old| self.replace(io, old));
        let joining = Joining {
            topic: &message.topic,
            join_ref: OwnedRef::from(&message.join_ref),
            message: OwnedRef::from(&message.msg_ref),
            replaced,
        };
        let answer = self.run_join(io, key, &message.topic, message.payload, prepared, &route.join);
        self.answer_join(io, key, joining, answer);
    }

    /// Asks a plain mount's join function, right after the upgrade.
    pub(super) fn join_plain(&mut self, io: &mut Io, key: Key, mount: u8) {
        let hub = Arc::clone(&self.hub);
        let Some(Kind::Plain { topic, join }) =
            hub.mounts.get(usize::from(mount)).map(|it| &it.kind)
        else {
            return;
        };
        let joining = Joining {
            topic,
            join_ref: OwnedRef::default(),
            message: OwnedRef::default(),
            replaced: None,
        };
        let answer = self.run_join(io, key, topic, Payload::EMPTY_OBJECT, None, join);
        self.answer_join(io, key, joining, answer);
    }

    /// Carries out what a join function said; `None` when it panicked.
    pub(super) fn answer_join(
        &mut self,
        io: &mut Io,
        key: Key,
        joining: Joining<'_>,
        answer: Option<(Join, Vec<Effect>)>,
    ) {
        let Some((join, effects)) = answer else { return self.join_crashed(io, key, joining) };
        match join.0 {
            JoinKind::Ok { channel, reply } => {
                // Which events it wants to see is the application's to say, and may panic too.
                let Some(intercepts) = guarded(|| !channel.intercept().is_empty()) else {
                    self.metrics.errors_callback_panic.add(1);
                    self.drop_guarded(channel);
                    return self.join_crashed(io, key, joining);
                };
                let membership = self.subscribe_channel(io, key, &joining, channel, intercepts);
                let Some(membership) = membership else { return };
                self.metrics.joins.add(1);
                self.reply_join(io, key, &joining, "ok", reply);
                self.close_replaced(io, joining.replaced);
                let Some(speaker) = self.speaker(io, membership) else { return };
                self.apply(io, &speaker, effects);
                self.call(io, membership, Callback::AfterJoin, None, |channel, ctx| {
                    channel.after_join(ctx);
                    Outcome::NoReply
                });
            }
            JoinKind::Error(response) => {
                self.metrics.joins_refused.add(1);
                let topic = joining.topic;
                self.refuse_join(io, key, joining, response);
                self.apply_unjoined(io, key, topic, effects);
            }
            JoinKind::Later(work) => {
                let topic = joining.topic;
                let Joining { join_ref, message, replaced, .. } = joining;
                let what = Awaited::Join { topic: topic.into(), join_ref, message, replaced };
                self.await_decision(io, key, what, &[], work, Decided::Join);
                self.apply_unjoined(io, key, topic, effects);
            }
        }
    }

    fn join_crashed(&mut self, io: &mut Io, key: Key, joining: Joining<'_>) {
        self.metrics.joins_refused.add(1);
        let response = Payload::Json(r#"{"reason":"join crashed"}"#.into());
        self.refuse_join(io, key, joining, response);
    }

    pub(super) fn refuse_join(
        &mut self,
        io: &mut Io,
        key: Key,
        joining: Joining<'_>,
        response: Payload<'_>,
    ) {
        self.reply_join(io, key, &joining, "error", response);
        self.close_replaced(io, joining.replaced);
        if io.conn(key).is_some_and(|conn| conn.wire == Wire::Plain) {
            self.close_socket(io, key, CloseCode::POLICY);
        }
    }

    fn reply_join(
        &mut self,
        io: &mut Io,
        key: Key,
        joining: &Joining<'_>,
        status: &str,
        response: Payload<'_>,
    ) {
        if io.conn_ref(key).is_none_or(|conn| conn.wire == Wire::Plain) {
            return;
        }
        let (join_ref, message) = (joining.join_ref.as_ref(), joining.message.as_ref());
        let reply = session::reply_join(&join_ref, &message, joining.topic, status, response);
        self.say(io, key, reply);
    }

    /// Makes the membership and subscribes it, before anything is answered (PROTOCOL §5.5).
    fn subscribe_channel(
        &mut self,
        io: &mut Io,
        key: Key,
        joining: &Joining<'_>,
        channel: Box<dyn crate::Channel>,
        intercepts: bool,
    ) -> Option<u32> {
        let open = |conn: &&Conn| matches!(conn.phase, Phase::Open | Phase::Pending);
        let Some(mount) = io.conn_ref(key).filter(open).map(|conn| conn.mount) else {
            // The channel that this join replaced has closed the socket with its last breath.
            self.drop_guarded(channel);
            return None;
        };
        let counted = self.hub.mounts.get(usize::from(mount)).is_some_and(|it| it.count_members);
        let without_join_ref = joining.join_ref.is_null();
        let (given, message) = (joining.join_ref.as_ref(), joining.message.as_ref());
        let join_ref = OwnedRef::from(session::push_join_ref(&given, &message));
        let mut flags = 0;
        if without_join_ref {
            flags |= WITHOUT_JOIN_REF;
        }
        if counted {
            flags |= COUNTED;
            self.hub.census.add(joining.topic);
        }
        let holds = Holds::Channel(channel);
        let subscriber = Subscriber { holds, join_ref, through_channel: intercepts, flags };
        let membership = self.subscribe(io, key, joining.topic, subscriber)?;
        if let Some(conn) = io.conn(key) {
            conn.channels += 1;
        }
        self.metrics.channels.set(self.metrics.channels.value() + 1);
        Some(membership)
    }

    /// Enters a membership into its topic's table and its socket's list.
    pub(super) fn subscribe(
        &mut self,
        io: &mut Io,
        key: Key,
        topic: &str,
        subscriber: Subscriber,
    ) -> Option<u32> {
        let Subscriber { holds, join_ref, through_channel, flags } = subscriber;
        let conn = io.conn(key)?;
        let topic_id = self.topics.open(topic);
        let topic = self.topics.get_mut(topic_id)?;
        let id = self.members.insert(Membership {
            holds,
            join_ref,
            conn: key,
            topic: topic_id,
            at: topic.members.len() as u32,
            next: NO_MEMBERSHIP,
            previous: NO_MEMBERSHIP,
            generation: 0,
            flags,
        })?;
        if topic.members.push(Member::new(key, id, through_channel, topic.log.head())).is_err() {
            // No memory is left.
            let channel = self.members.get_mut(id).and_then(Membership::take_channel);
            self.members.remove(id);
            self.topics.close_if_empty(topic_id);
            if let Some(channel) = channel {
                self.drop_guarded(channel);
            }
            return None;
        }
        self.members.link(id, &mut conn.memberships);
        self.metrics.subscriptions.add(1);
        self.metrics.topics.set(self.topics.len() as u64);
        Some(id)
    }

    /// Something a handle sent to a channel.
    pub(super) fn channel_mail(&mut self, io: &mut Io, channel: ChannelId, what: ToChannel) {
        let Some(membership) = self.live(channel) else { return self.drop_guarded(what) };
        match what {
            ToChannel::Info(info) => {
                self.call(io, membership, Callback::HandleInfo, None, |channel, ctx| {
                    channel.handle_info(ctx, info)
                });
            }
            ToChannel::Reply(to, reply) => {
                self.reply(io, membership, Some(to.0.as_ref()), reply);
            }
            ToChannel::Push(event, payload) => {
                let Some(speaker) = self.speaker(io, membership) else { return };
                self.apply(io, &speaker, vec![Effect::Push { event, payload }]);
            }
            ToChannel::Stop(how) => self.stop_channel(io, membership, how),
        }
    }

    /// The slot of a channel, if it still is that channel.
    pub(super) fn live(&self, channel: ChannelId) -> Option<u32> {
        let membership = self.members.get(channel.membership)?;
        (membership.generation == channel.generation && channel.shard == self.index)
            .then_some(channel.membership)
    }

    /// Answers a message of a member, after all broadcasts that were made before.
    pub(super) fn reply(
        &mut self,
        io: &mut Io,
        membership: u32,
        to: Option<Ref<'_>>,
        reply: Reply,
    ) {
        let Some(to) = to else {
            return tracing::debug!("a reply where no message of the client is in hand: dropped");
        };
        self.catch_up(io, membership);
        let Some(Speaker { conn, topic, join_ref, .. }) = self.speaker(io, membership) else {
            return;
        };
        let Reply { status, response } = reply;
        let (join_ref, topic) = (join_ref.as_ref(), &*topic);
        self.say(io, conn, session::reply_push(&join_ref, &to, topic, &status, response));
    }

    pub(super) fn stop_channel(&mut self, io: &mut Io, membership: u32, how: Stop) {
        let notice = match how {
            Stop::Normal | Stop::Shutdown => Notice::Close,
            Stop::Abnormal => {
                self.metrics.errors_abnormal_stop.add(1);
                Notice::Error
            }
        };
        self.end_channel(io, membership, Reason::Stopped(how), notice);
    }
}
