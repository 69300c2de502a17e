//! Sessions of sockets, from their beginning to their end, and their messages (PROTOCOL §5–§7).

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{
    Callback, ChannelId, ChannelMessage, Effect, Node, Reason, SharedPush, SocketState, ToChannel,
};
use simurgh_data::Key;
use simurgh_notices::Reason as Why;
use simurgh_proto::message::{Message, Payload, Ref, events};
use simurgh_proto::serializer::Frame;
use simurgh_proto::session::server::{self as session, MessageKind};
use simurgh_proto::ws::CloseCode;

use super::channels::CurrentMessage;
use crate::core::{Core, Received};
use crate::frames::{close_reason, send, send_close};
use crate::registry::{Holds, SOCKET_ID, Subscriber};
use crate::socket::{Phase, Socket};
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

impl<N: Node> Core<N> {
    /// A socket was admitted, and its session begins: its record has the user socket and the wire.
    pub fn opened(&mut self, out: &mut impl Sockets, key: Key, state: SocketState) {
        let now = out.now();
        let Some(socket) = out.socket_mut(key) else {
            return self.channels.application.drop_guarded(state);
        };
        socket.enter(Phase::Open, now.tick);
        let (wire, user_socket, id) = (socket.wire, socket.user_socket, state.id.clone());
        if !state.is_empty() {
            let own = socket.own.get_or_insert_default();
            own.expires = state.lifetime.map(|it| self.channels.expiry.note(it, now));
            own.state = state;
        }
        self.metrics.upgrades.add(1);
        self.metrics.sockets.set(self.metrics.sockets.value() + 1);
        if let Some(id) = id {
            let itself = Subscriber::through(Holds::NOTHING, SOCKET_ID);
            // Without memory it gets no `disconnect`.
            let _ = self.channels.registry.subscribe(&mut socket.list, key, &id, itself);
        }
        self.channels.report_session(socket.state(), None);
        if wire.is_plain() {
            self.join_plain(out, key, user_socket);
        }
    }

    /// A Channels message of a client.
    pub fn message(&mut self, out: &mut impl Sockets, key: Key, received: Received<'_>) {
        let message = &received.message;
        let kind = session::classify(message);
        // The most frequent message has no channel: nothing is looked up.
        if kind == MessageKind::Heartbeat {
            if self.channels.meters.is_some() && self.is_limited(out, key, kind, None, &received) {
                return;
            }
            self.metrics.heartbeats.add(1);
            return send(out, &self.metrics, key, session::heartbeat(&message.msg_ref));
        }
        let Some(list) = out.socket(key).map(|socket| socket.list) else { return };
        let topic = self.channels.registry.find(&message.topic);
        let joined = topic.and_then(|topic| self.channels.registry.joined_in(key, list, topic));
        if self.channels.meters.is_some() && self.is_limited(out, key, kind, joined, &received) {
            return;
        }
        if kind == MessageKind::Join {
            return self.join_topic(out, key, joined, received);
        }
        let Some((membership, it)) =
            joined.and_then(|id| Some((id, self.channels.registry.member(id)?)))
        else {
            return answer_unjoined(out, &self.metrics, key, kind, message);
        };
        if session::is_stale(message, &it.join_ref.as_ref()) {
            return;
        }
        match kind == MessageKind::Leave {
            true => self.leave_topic(out, key, membership, message),
            false => self.push_in(out, membership, received),
        }
    }

    /// A message of a client without Channels, for its one channel.
    pub fn plain_message(&mut self, out: &mut impl Sockets, key: Key, frame: Frame<'_>) {
        let Some(list) = out.socket(key).map(|socket| socket.list) else { return };
        let joined = self.channels.registry.of(list).find(|(_, it)| it.is_joined());
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
        if self.channels.meters.is_some()
            && self.is_limited(out, key, MessageKind::Push, joined, &received)
        {
            return;
        }
        self.push_in(out, membership, received);
    }

    fn push_in(&mut self, out: &mut impl Sockets, membership: u32, received: Received<'_>) {
        let Received { message, prepared, .. } = received;
        let Message { msg_ref, topic, event, payload, .. } = message;
        let renew = (event == events::ACCESS_TOKEN)
            .then(|| self.channels.renewal(out, membership, &topic))
            .flatten();
        let current = CurrentMessage { message: Some(msg_ref), prepared, position: None };
        self.channels.call(
            out,
            membership,
            Callback::HandleIn,
            current,
            |channel, ctx| match renew {
                Some(renew) => renew(ctx, &payload),
                None => channel.handle_in(ctx, &event, payload),
            },
        );
    }

    fn leave_topic(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        membership: u32,
        message: &Message<'_>,
    ) {
        let Some(id) = self.channels.registry.channel_id(membership) else { return };
        self.channels.bring_up_to_date(out, membership);
        let Message { join_ref, msg_ref, topic, .. } = message;
        let live = self.channels.registry.live(id);
        // A broadcast that it intercepted meanwhile may have ended it.
        let member = live.and_then(|membership| self.channels.registry.member(membership));
        let join_ref = member.map_or(join_ref.borrow(), |it| it.join_ref.as_ref());
        let answer = session::reply(&join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT);
        send(out, &self.metrics, key, answer);
        // Broadcasts of its interceptor meanwhile follow its end, and are not for it.
        if let Some(membership) = live {
            self.channels.end_now(out, membership, Reason::Left);
        }
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
        let Some(membership) = self.channels.registry.live(channel) else {
            return self.channels.application.drop_sent(channel, what);
        };
        let effects = match what {
            ToChannel::Message(message) => {
                let Ok(message) = message.downcast::<ChannelMessage>() else { return };
                self.channels.call(
                    out,
                    membership,
                    Callback::HandleInfo,
                    CurrentMessage::default(),
                    |channel, ctx| message.deliver(channel, ctx),
                );
                Vec::new()
            }
            ToChannel::Stop(how) => {
                self.channels.end_channel(out, membership, Reason::Stopped(how));
                Vec::new()
            }
            ToChannel::Reply(to, reply) => vec![Effect::Reply(to, reply)],
            ToChannel::Push(event, payload) => vec![Effect::Push(event, payload)],
            ToChannel::Broadcast(event, payload, audience) => {
                vec![Effect::Broadcast(None, event, payload, audience)]
            }
            ToChannel::Publish(all) => all.into_iter().map(Effect::Publish).collect(),
        };
        if !effects.is_empty()
            && let Some(speaker) = self.channels.speaker(out, membership)
        {
            self.channels.apply(out, &speaker, effects);
        }
        self.channels.end_if_stopped(out, channel);
    }

    pub(crate) fn push_all(&mut self, out: &mut impl Sockets, push: SharedPush) {
        self.node.discharge(usize::from(self.shard), push.weight());
        for channel in push.channels {
            let speaker = self
                .channels
                .registry
                .live(channel)
                .and_then(|membership| self.channels.speaker(out, membership));
            let Some(speaker) = speaker else { continue };
            for (event, json) in &*push.events {
                let push = speaker.push(event, Payload::from_json(&**json));
                self.channels.push(out, &speaker, [push]);
            }
            self.channels.end_if_stopped(out, channel);
        }
    }

    /// The client closes, with this code, or answers our close.
    pub fn peer_closed(&mut self, out: &mut impl Sockets, key: Key, code: Option<CloseCode>) {
        if out.socket(key).is_some_and(Socket::is_open) {
            self.channels.end_channels(out, key, Why::Closed);
            send_close(out, key, code, "");
        }
        out.close(key);
    }

    /// Closes a socket from our side and waits a while for the peer's answer.
    pub fn close(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        self.channels.close(out, key, code);
    }

    /// The same with 1001, because its user was blocked or its token revoked.
    pub fn block(&mut self, out: &mut impl Sockets, key: Key) {
        let code = CloseCode::GOING_AWAY;
        self.channels.close_because(out, key, code, close_reason(code), Why::Blocked);
    }

    /// A socket stops waiting; it is read again, unless it is held for what it published.
    pub fn resume(&mut self, out: &mut impl Sockets, key: Key) {
        self.channels.resume(out, key);
    }

    /// Closes a socket whose peer broke the protocol: what else it sends is ignored.
    pub fn fail(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        let Some(phase) = out.socket(key).map(Socket::phase) else { return };
        match phase {
            Phase::Head | Phase::Full | Phase::Relay | Phase::Connecting => return out.close(key),
            Phase::Open | Phase::Waiting => {
                self.channels.end_channels(out, key, Why::Closed);
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
        self.channels.fanout.forget(key);
        self.channels.histories.forget(key);
        let (list, own) = (core::mem::take(&mut socket.list), socket.own.take());
        if socket.is_open() {
            self.channels.socket_ended(own.as_deref(), Why::Closed);
        }
        self.channels.end_memberships(out, list, own, Why::Closed);
    }
}

/// Answers a message for a topic that its client has not joined.
fn answer_unjoined(
    out: &mut impl Sockets,
    metrics: &ShardMetrics,
    key: Key,
    kind: MessageKind,
    message: &Message<'_>,
) {
    let Message { join_ref, msg_ref, topic, .. } = message;
    let answer = match kind {
        MessageKind::Leave => session::reply(join_ref, msg_ref, topic, "ok", Payload::EMPTY_OBJECT),
        _ => {
            metrics.errors_unmatched_topic.add(1);
            session::unmatched(msg_ref, topic)
        }
    };
    send(out, metrics, key, answer);
}

#[cfg(test)]
mod tests;
