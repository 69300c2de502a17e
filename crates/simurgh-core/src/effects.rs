//! Carrying out what callbacks did, and the callbacks that follow from it.
//!
//! A callback leaves a list of effects. To carry one out may need other callbacks: a push to a
//! member who intercepts broadcasts is preceded by those it has not seen, the end of a channel by
//! its last words. All such chains are in this file and nowhere else. They end: a member that is
//! being brought up to date is not brought up to date again (`DELIVERING`), a socket that closes
//! does not close again, a channel that has been taken out of the tables is not found any more.

use std::sync::Arc;

use simurgh_proto::message::{OwnedRef, Payload, Ref, events};
use simurgh_proto::session::server as session;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::Key;

use crate::application::About;
use crate::broadcast::Broadcast;
use crate::channel::Channel;
use crate::context::{Context, Effect, Prepared, SocketState};
use crate::core::Core;
use crate::fanout::Through;
use crate::frames::{say, say_close};
use crate::node::{Callback, Node};
use crate::outcome::{Outcome, Reason, Reply, Stop};
use crate::registry::{DELIVERING, List, RELAY, SOCKET_ID};
use crate::socket::{Own, Phase, Speaker};
use crate::sockets::{Abandoned, Sockets};
use crate::wire::Wire;

/// What the client is told when a channel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// `phx_close`.
    Close,
    /// `phx_error`.
    Error,
}

/// A message of a client that is in a channel's hand.
#[derive(Default)]
pub(crate) struct InHand<'a> {
    pub(crate) message: Option<Ref<'a>>,
    pub(crate) prepared: Option<Prepared>,
}

impl<N: Node> Core<N> {
    /// Runs one callback of a channel, carries out its effects, and acts on its outcome.
    pub(crate) fn call(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        callback: Callback,
        in_hand: InHand<'_>,
        f: impl FnOnce(&mut dyn Channel, &mut Context<'_>) -> Outcome,
    ) {
        let Some(speaker) = self.speaker(out, membership) else { return };
        let Some(mut channel) = self.registry.wake(membership) else { return };
        let InHand { message, prepared } = in_hand;
        let about = About {
            socket: out.socket(speaker.conn).and_then(|socket| socket.state()),
            topic: &speaker.topic,
            channel: speaker.id,
            message: message.clone(),
            prepared,
        };
        let (result, effects) = self.application.run(about, callback, |ctx| f(&mut *channel, ctx));
        self.registry.put_back(membership, channel);
        self.apply(out, &speaker, effects);
        // The effects may have closed the socket, and the channel with it.
        let Some(membership) = self.live(speaker.id) else { return };
        match result {
            Some(Outcome::NoReply) => {}
            Some(Outcome::Reply(reply)) => self.reply_to(out, membership, message, reply),
            Some(Outcome::Stop(how)) => self.stop_channel(out, membership, how),
            Some(Outcome::ReplyAndStop(reply, how)) => {
                self.reply_to(out, membership, message, reply);
                // What an interceptor saw before the reply may have ended it.
                if let Some(membership) = self.live(speaker.id) {
                    self.stop_channel(out, membership, how);
                }
            }
            None => self.end_channel(out, membership, Reason::Crashed, Notice::Error),
        }
    }

    /// Carries out what a callback did.
    pub(crate) fn apply(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        mut effects: Vec<Effect>,
    ) {
        if effects.is_empty() {
            return self.application.keep(effects);
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Push { event, payload } => self.push_to(out, speaker, &event, payload),
                Effect::Broadcast { topic, event, payload, others } => {
                    let broadcast = Broadcast {
                        topic: topic.unwrap_or_else(|| (&*speaker.topic).into()),
                        event,
                        payload,
                        except: others.then_some(speaker.id),
                    };
                    self.fanout.publish(&mut self.registry, out, speaker.conn, broadcast);
                }
                Effect::Subscribe(topic) => self.subscribe_relay(out, speaker, &topic),
                Effect::Unsubscribe(topic) => self.unsubscribe_relay(out, speaker, &topic),
                Effect::Close(code) => self.close_with(out, speaker.conn, code),
            }
        }
        self.application.keep(effects);
    }

    /// A push to one member, after all broadcasts made before it.
    pub(crate) fn push_to(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        event: &str,
        payload: Payload<'_>,
    ) {
        if let Some(membership) = self.live(speaker.id) {
            self.bring_up_to_date(out, membership);
        }
        let join_ref = speaker.join_ref.as_ref();
        let push = session::push(&join_ref, &speaker.topic, event, payload);
        say(out, &self.metrics, speaker.conn, push);
    }

    /// Answers a message of a member, after all broadcasts that were made before.
    pub(crate) fn reply_to(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        to: Option<Ref<'_>>,
        reply: Reply,
    ) {
        let Some(to) = to else {
            return tracing::debug!("a reply where no message of the client is in hand: dropped");
        };
        self.bring_up_to_date(out, membership);
        let Some(Speaker { conn, topic, join_ref, .. }) = self.speaker(out, membership) else {
            return;
        };
        let Reply { status, response } = reply;
        let join_ref = join_ref.as_ref();
        let reply = session::reply_push(&join_ref, &to, &topic, &status, response);
        say(out, &self.metrics, conn, reply);
    }

    /// Brings a member up to date before something else is written to it.
    pub(crate) fn bring_up_to_date(&mut self, out: &mut impl Sockets, membership: u32) {
        if let Some(through) = self.fanout.catch_up(&mut self.registry, out, membership) {
            self.deliver_through(out, through);
        }
    }

    /// Deliveries that pass application code, or the socket itself.
    pub(crate) fn deliver_through(&mut self, out: &mut impl Sockets, through: Through) {
        let Through { membership, generation, conn, pending } = through;
        self.registry.mark(membership, DELIVERING, true);
        for broadcast in pending {
            // A callback of the one before may have ended this membership.
            let Some(it) =
                self.registry.member(membership).filter(|it| it.generation == generation)
            else {
                return;
            };
            if it.is(SOCKET_ID) {
                if broadcast.event() == events::DISCONNECT {
                    self.close_with(out, conn, CloseCode::GOING_AWAY);
                }
                continue;
            }
            let Some(channel) = it.relay_for().or((!it.is(RELAY)).then_some(membership)) else {
                continue;
            };
            let is_relay = it.is(RELAY);
            if broadcast.except.is_some_and(|it| self.live(it) == Some(channel)) {
                continue;
            }
            if is_relay {
                self.call(out, channel, Callback::HandleBroadcast, InHand::default(), |it, ctx| {
                    it.handle_broadcast(ctx, &broadcast)
                });
            } else {
                self.deliver_intercepted(out, channel, conn, &broadcast);
            }
        }
        if self.registry.member(membership).is_some_and(|it| it.generation == generation) {
            self.registry.mark(membership, DELIVERING, false);
        }
    }

    fn deliver_intercepted(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        conn: Key,
        broadcast: &Arc<Broadcast>,
    ) {
        let Some(channel) = self.registry.member(membership).and_then(|it| it.channel()) else {
            return;
        };
        let (event, payload) = (broadcast.event(), broadcast.payload());
        match self.application.ask(|| channel.intercept().contains(&event)) {
            None => self.end_channel(out, membership, Reason::Crashed, Notice::Error),
            Some(false) => self.fanout.deliver_one(out, conn, broadcast),
            Some(true) => {
                // What the channel makes of it counts as a message of its own.
                self.metrics.deliveries.add(1);
                self.call(out, membership, Callback::HandleOut, InHand::default(), |it, ctx| {
                    it.handle_out(ctx, event, payload)
                });
            }
        }
    }

    /// Ends a channel that wants it.
    pub(crate) fn stop_channel(&mut self, out: &mut impl Sockets, membership: u32, how: Stop) {
        let notice = match how {
            Stop::Normal | Stop::Shutdown => Notice::Close,
            Stop::Abnormal => {
                self.metrics.errors_abnormal_stop.add(1);
                Notice::Error
            }
        };
        self.end_channel(out, membership, Reason::Stopped(how), notice);
    }

    /// Ends a channel: tells the client, takes it out of every table, lets it clean up.
    pub(crate) fn end_channel(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        reason: Reason,
        notice: Notice,
    ) {
        let Some(id) = self.name_of(membership) else { return };
        self.bring_up_to_date(out, membership);
        // Bringing it up to date may have ended it.
        let Some(speaker) = self.live(id).and_then(|it| self.speaker(out, it)) else { return };
        // What tells a plain client is the end of its socket, which ends the channel too: that
        // comes last, for the channel to hear its own reason.
        let is_plain = speaker.wire == Wire::Plain;
        if !is_plain {
            self.notify(out, &speaker, notice);
        }
        let effects = self.take_out(out, &speaker, reason);
        self.apply(out, &speaker, effects);
        if is_plain {
            self.notify(out, &speaker, notice);
        }
    }

    /// Tells a client that its channel has ended.
    pub(crate) fn notify(&mut self, out: &mut impl Sockets, speaker: &Speaker, notice: Notice) {
        if speaker.wire == Wire::Plain {
            let code = match notice {
                Notice::Close => CloseCode::NORMAL,
                Notice::Error => CloseCode::INTERNAL,
            };
            return self.close_with(out, speaker.conn, code);
        }
        // These bear it as the client gave it.
        let join_ref = if speaker.is_given { speaker.join_ref.as_ref() } else { Ref::Null };
        let notice = match notice {
            Notice::Close => session::closed(&join_ref, &speaker.topic),
            Notice::Error => session::crashed(&join_ref, &speaker.topic),
        };
        say(out, &self.metrics, speaker.conn, notice);
    }

    /// Closes a socket from our side and waits a while for the peer's answer.
    pub(crate) fn close_with(&mut self, out: &mut impl Sockets, key: Key, code: CloseCode) {
        let Some(socket) = out.socket(key) else { return };
        match socket.phase {
            Phase::Connecting => return out.abandon(key, Abandoned::Drain),
            Phase::Open | Phase::Waiting if self.closing != Some(key) => {}
            _ => return,
        }
        // An interceptor that is brought up to date may want to close this socket, too, or end one
        // of its channels.
        self.closing = Some(key);
        for channel in self.channels_of(socket) {
            if let Some(membership) = self.live(channel) {
                self.bring_up_to_date(out, membership);
            }
        }
        self.closing = None;
        self.end_channels(out, key);
        let tick = out.now().tick;
        let Some(socket) = out.socket_mut(key) else { return };
        socket.enter(Phase::Closing, tick);
        let is_driven = socket.is_driven();
        say_close(out, key, Some(code), close_reason(code));
        // A held socket has to hear the answer; a driven one answers by having heard it.
        match is_driven {
            true => out.close(key),
            false => out.release(key),
        }
    }

    /// Ends all channels of a socket that is about to close; nothing is said to the client any
    /// more.
    pub(crate) fn end_channels(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else { return };
        socket.phase = Phase::Ending;
        let (list, own) = (std::mem::take(&mut socket.list), socket.own.take());
        self.socket_ended();
        self.end_memberships(out, list, own);
    }

    /// Ends what a socket leaves behind. Of its channels' last words only what others hear is
    /// carried out.
    pub(crate) fn end_memberships(
        &mut self,
        out: &mut impl Sockets,
        mut list: List,
        own: Option<Box<Own>>,
    ) {
        let state: Option<&SocketState> = own.as_ref().map(|own| &own.state);
        while let Some(it) = self.registry.member(list.first()) {
            let (current, is_joined) = (list.first(), it.is_joined());
            let speaker = if is_joined { self.speaker(out, current) } else { None };
            let Some(left) = self.registry.leave(&mut list, current) else { break };
            let channel = self.has_left(left);
            if let Some(speaker) = speaker {
                let mut effects =
                    self.application.terminate(state, &speaker, channel, Reason::Closed);
                effects.retain(|effect| matches!(effect, Effect::Broadcast { .. }));
                self.apply(out, &speaker, effects);
            }
        }
        if let Some(own) = own {
            self.application.drop_guarded(own);
        }
    }

    /// Speaks for a join that has made no channel (yet): carries out all that concerns others, or
    /// the socket.
    pub(crate) fn apply_unjoined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        topic: &str,
        mut effects: Vec<Effect>,
    ) {
        effects.retain(|it| matches!(it, Effect::Broadcast { .. } | Effect::Close(_)));
        if effects.is_empty() {
            return self.application.keep(effects);
        }
        let nobody = Speaker {
            conn: key,
            wire: out.socket(key).map_or(Wire::V2, |socket| socket.wire),
            topic: topic.into(),
            join_ref: OwnedRef::NULL,
            is_given: false,
            id: self.application.nobody(),
        };
        self.apply(out, &nobody, effects);
    }
}

/// What a close frame says beside its code.
pub(crate) fn close_reason(code: CloseCode) -> &'static str {
    match code {
        CloseCode::GOING_AWAY => "disconnected",
        CloseCode::TRY_AGAIN => "too much unfinished",
        CloseCode::RESTART => "server restarts",
        CloseCode::PROTOCOL => "protocol error or idle",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
