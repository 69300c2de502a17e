//! Sessions of sockets, from their beginning to their end, and their messages (PROTOCOL §5–§7).

mod decided;
mod join;
mod joining;
mod limited;

use alloc::boxed::Box;
use alloc::vec;
use simurgh_channel::{
    Callback, ChannelId, ChannelMessage, Effect, NO_MEMBERSHIP, Node, Reason, SharedPush,
    SocketState, ToChannel,
};
use simurgh_data::Key;
use simurgh_proto::message::{Message, Payload, Ref};
use simurgh_proto::serializer::Frame;
use simurgh_proto::session::server::{self as session, MessageKind};
use simurgh_proto::ws::CloseCode;

use crate::core::{Core, Received};
use crate::effects::CurrentMessage;
use crate::frames::{close_reason, send, send_close};
use crate::registry::{Holds, SOCKET_ID, Subscriber};
use crate::socket::{Phase, Socket};
use crate::sockets::Sockets;
use crate::wire::Wire;

impl<N: Node> Core<N> {
    /// A socket was admitted, and its session begins: its record has the user socket and the wire.
    pub fn opened(&mut self, out: &mut impl Sockets, key: Key, state: SocketState) {
        let now = out.now();
        let Some(socket) = out.socket_mut(key) else {
            return self.application.drop_guarded(state);
        };
        socket.enter(Phase::Open, now.tick);
        let (wire, user_socket, id) = (socket.wire, socket.user_socket, state.id.clone());
        if !state.is_empty() {
            let own = socket.own.get_or_insert_default();
            own.expires = state.lifetime.map(|it| self.deadlines.note(it, now));
            own.state = state;
        }
        self.metrics.upgrades.add(1);
        self.metrics.sockets.set(self.metrics.sockets.value() + 1);
        if let Some(id) = id {
            let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
            // Without memory it gets no `disconnect`.
            let _ = self.registry.subscribe(&mut socket.list, key, &id, itself);
        }
        if wire == Wire::Plain {
            self.join_plain(out, key, user_socket);
        }
    }

    /// A Channels message of a client.
    pub fn message(&mut self, out: &mut impl Sockets, key: Key, received: Received<'_>) {
        let message = &received.message;
        let kind = session::classify(message);
        // The most frequent message has no channel: nothing is looked up.
        if kind == MessageKind::Heartbeat {
            if self.meters.is_some() && self.is_limited(out, key, kind, None, &received) {
                return;
            }
            self.metrics.heartbeats.add(1);
            return send(out, &self.metrics, key, session::heartbeat(&message.msg_ref));
        }
        let Some(list) = out.socket(key).map(|socket| socket.list) else { return };
        let topic = self.registry.find(&message.topic);
        let joined = topic.and_then(|topic| self.registry.joined_in(key, list, topic));
        if self.meters.is_some() && self.is_limited(out, key, kind, joined, &received) {
            return;
        }
        if kind == MessageKind::Join {
            return self.join_topic(out, key, joined, received);
        }
        let Some((membership, it)) = joined.and_then(|id| Some((id, self.registry.member(id)?)))
        else {
            return self.unjoined(out, key, kind, message);
        };
        if session::is_stale(message, &it.join_ref.as_ref()) {
            return;
        }
        match kind == MessageKind::Leave {
            true => self.leave_topic(out, key, membership, message),
            false => self.push_in(out, membership, received),
        }
    }

    fn unjoined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        kind: MessageKind,
        message: &Message<'_>,
    ) {
        let Message { join_ref, msg_ref, topic, .. } = message;
        if kind == MessageKind::Leave {
            return send(
                out,
                &self.metrics,
                key,
                session::reply(join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT),
            );
        }
        self.metrics.errors_unmatched_topic.add(1);
        send(out, &self.metrics, key, session::unmatched(msg_ref, topic));
    }

    /// A message of a client without Channels, for its one channel.
    pub fn plain_message(&mut self, out: &mut impl Sockets, key: Key, frame: Frame<'_>) {
        let Some(list) = out.socket(key).map(|socket| socket.list) else { return };
        let joined = self.registry.of(list).find(|(_, it)| it.is_joined());
        let Some(membership) = joined.map(|(id, _)| id) else { return };
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
        let received = Received::from(message);
        let joined = Some(membership);
        if self.meters.is_some() && self.is_limited(out, key, MessageKind::Push, joined, &received)
        {
            return;
        }
        self.push_in(out, membership, received);
    }

    fn push_in(&mut self, out: &mut impl Sockets, membership: u32, received: Received<'_>) {
        let Received { message: Message { msg_ref, event, payload, .. }, prepared, .. } = received;
        let current = CurrentMessage { message: Some(msg_ref), prepared, position: None };
        self.call(out, membership, Callback::HandleIn, current, |channel, ctx| {
            channel.handle_in(ctx, &event, payload)
        });
    }

    fn leave_topic(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        membership: u32,
        message: &Message<'_>,
    ) {
        let Some(id) = self.registry.channel_id(membership) else { return };
        self.bring_up_to_date(out, membership);
        let Message { join_ref, msg_ref, topic, .. } = message;
        let Some(membership) = self.registry.live(id) else {
            // A broadcast that it intercepted meanwhile has ended it.
            let answer = session::reply(join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT);
            return send(out, &self.metrics, key, answer);
        };
        if let Some(it) = self.registry.member(membership) {
            let join_ref = it.join_ref.as_ref();
            let answer = session::reply(&join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT);
            send(out, &self.metrics, key, answer);
        }
        // Broadcasts of its interceptor meanwhile follow its end, and are not for it.
        self.end_now(out, membership, Reason::Left);
    }

    pub(crate) fn handle_sent(
        &mut self,
        out: &mut impl Sockets,
        channel: ChannelId,
        what: ToChannel,
    ) {
        if let charged @ 1.. = what.weight() {
            self.node.discharge(usize::from(self.shard), charged);
        }
        let Some(membership) = self.registry.live(channel) else {
            return self.drop_sent(channel, what);
        };
        let effect = match what {
            ToChannel::Message(message) => {
                let Ok(message) = message.downcast::<ChannelMessage>() else { return };
                let current = CurrentMessage::default();
                self.call(out, membership, Callback::HandleInfo, current, |channel, ctx| {
                    message.deliver(channel, ctx)
                });
                None
            }
            ToChannel::Stop(how) => {
                self.end_channel(out, membership, Reason::Stopped(how));
                None
            }
            ToChannel::Reply(to, reply) => Some(Effect::Reply(to, reply)),
            ToChannel::Push(event, payload) => Some(Effect::Push(event, payload)),
            ToChannel::Broadcast(event, payload, audience) => {
                Some(Effect::Broadcast(None, event, payload, audience))
            }
        };
        if let Some(effect) = effect
            && let Some(speaker) = self.speaker(out, membership)
        {
            self.apply(out, &speaker, vec![effect]);
        }
        self.end_if_stopped(out, channel);
    }

    pub(crate) fn push_all(&mut self, out: &mut impl Sockets, push: SharedPush) {
        self.node.discharge(usize::from(self.shard), push.weight());
        for channel in push.channels {
            let speaker =
                self.registry.live(channel).and_then(|membership| self.speaker(out, membership));
            let Some(speaker) = speaker else { continue };
            for (event, json) in &*push.events {
                self.push_to(out, &speaker, event, Payload::from_json(&**json));
            }
            self.end_if_stopped(out, channel);
        }
    }

    /// Drops what a handle sent to a channel that has ended, or to one whose join is not decided.
    fn drop_sent(&self, channel: ChannelId, what: ToChannel) {
        if channel.membership == NO_MEMBERSHIP {
            self.metrics.errors_before_join.add(1);
            tracing::warn!(
                ?what,
                "dropped a message to a handle of a join function, because its channel does not \
                 exist yet: create the handle in after_join"
            );
        }
        match what {
            // An asynchronous handler may have sent something whose drop takes long.
            ToChannel::Message(message) => self.node.spawn(Box::pin(async move { drop(message) })),
            what => self.application.drop_guarded(what),
        }
    }

    /// The client closes, with this code, or answers our close.
    pub fn peer_closed(&mut self, out: &mut impl Sockets, key: Key, code: Option<CloseCode>) {
        if out.socket(key).is_some_and(Socket::is_open) {
            self.end_channels(out, key);
            send_close(out, key, code, "");
        }
        out.close(key);
    }

    /// Closes a socket whose peer broke the protocol: what else it sends is ignored.
    pub fn fail(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        let Some(phase) = out.socket(key).map(Socket::phase) else { return };
        match phase {
            Phase::Head | Phase::Full | Phase::Connecting => return out.close(key),
            Phase::Open | Phase::Waiting => {
                self.end_channels(out, key);
                send_close(out, key, Some(code), close_reason(code));
            }
            // Our close frame has been sent, and nothing may follow it (RFC 6455, 5.5.1).
            Phase::Closing => {}
            Phase::Ending => return,
        }
        let tick = out.now().tick;
        if let Some(socket) = out.socket_mut(key) {
            socket.enter(Phase::Ending, tick);
        }
        out.shutdown_write(key);
        out.release(key);
    }

    /// The connection is gone, and this was its record.
    pub fn closed(&mut self, out: &mut impl Sockets, key: Key, mut socket: Socket) {
        self.fanout.forget(key);
        self.histories.forget(key);
        if socket.is_open() {
            self.socket_ended();
        }
        let (list, own) = (core::mem::take(&mut socket.list), socket.own.take());
        self.end_memberships(out, list, own);
    }
}

#[cfg(test)]
mod tests;
