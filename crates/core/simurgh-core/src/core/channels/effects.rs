//! Carrying out what callbacks did, and the callbacks that follow from it.
//!
//! A callback leaves a list of effects. Carrying one out may need other callbacks: a push to a
//! member that intercepts broadcasts follows those it has not seen, the end of a channel calls
//! `terminate`. All such chains are in this module. They end: a member that is being brought up to
//! date is not brought up to date again (`DELIVERING`), a socket that closes does not close again,
//! a channel that is out of the tables is not found any more.
//!
//! A channel may stop itself while it is brought up to date for one of its messages. Nothing except
//! what it pushes in `terminate` may follow the notice of its end (PROTOCOL §6), so it ends after
//! that message ([`Channels::end_if_stopped`]).

use simurgh_channel::{
    Broadcast, Callback, Effect, NOBODY_PLAIN, Node, Outcome, Prepared, Publication, Reason, Reply,
    ShardChannel, ShardContext, at_position,
};
use simurgh_data::Key;
use simurgh_history::Position;
use simurgh_notices::Reason as Why;
use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::session::server as session;
use simurgh_proto::ws::CloseCode;

use super::Channels;
use super::refused::without_refused;
use super::waiting::expire_in;
use crate::application::Subject;
use crate::barrier::Queued;
use crate::fanout::ChannelDelivery;
use crate::frames::{kept, send};
use crate::registry::{CATCHING_UP, DELIVERING, POSITIONS, RELAY, SOCKET_ID};
use crate::socket::Speaker;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

#[derive(Default)]
pub(crate) struct CurrentMessage<'a> {
    pub(crate) message: Option<Ref<'a>>,
    pub(crate) prepared: Option<Prepared>,
    /// The position of the intercepted broadcast, if its member receives positions.
    pub(crate) position: Option<Position>,
}

impl<N: Node> Channels<N> {
    /// Runs one callback of a channel, carries out its effects, and acts on its outcome.
    #[inline]
    pub(crate) fn call(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        callback: Callback,
        current: CurrentMessage<'_>,
        f: impl FnOnce(&mut dyn ShardChannel, &mut ShardContext<'_>) -> Outcome,
    ) {
        let Some(speaker) = self.speaker(out, membership) else { return };
        if self.barriers.ends(speaker.id) {
            return;
        }
        let Some(mut channel) = self.registry.wake(membership) else { return };
        let CurrentMessage { message, prepared, position } = current;
        let about = Subject {
            socket: out.socket(speaker.conn).and_then(|socket| socket.state()),
            topic: &speaker.topic,
            channel: speaker.id,
            message: message.clone(),
            prepared,
            resume: None,
        };
        let (result, effects) = self.application.run(about, callback, |ctx| f(&mut *channel, ctx));
        self.registry.put_back(membership, channel);
        let (result, effects) = match &mut self.meters {
            None => (result, effects),
            Some(meters) => {
                let socket = out.socket(speaker.conn);
                let user_socket = socket.and_then(|it| self.node.user_socket(it.user_socket));
                let now_ns = out.now().ns;
                meters.within_limits(user_socket, &speaker, callback, result, effects, now_ns)
            }
        };
        let (result, effects) = match &message {
            Some(message) => {
                let (node, metrics) = (&*self.node, &*self.metrics);
                without_refused(node, metrics, &speaker, message, result, effects)
            }
            None => (result, effects),
        };
        let effects = match position {
            None => effects,
            Some(position) => at_position(effects, position),
        };
        let outer = self.barriers.enter(None);
        self.act_on(out, &speaker, callback, message, effects, result);
        self.barriers.leave(outer);
    }

    /// Carries out the effects of a callback, and answers as it has decided.
    #[inline(always)]
    fn act_on(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        callback: Callback,
        message: Option<Ref<'_>>,
        mut effects: Vec<Effect>,
        result: Option<Outcome>,
    ) {
        let waited = self.barriers.has(speaker.id);
        if waited && callback == Callback::HandleOut {
            // What an interceptor pushes in place of a broadcast must not wait for others to be
            // kept, or broadcasts without interception would overtake it.
            let is_push = |it: &mut Effect| matches!(it, Effect::Push(..) | Effect::At(..));
            let pushes = effects.extract_if(.., is_push).collect();
            self.carry_out(out, speaker, pushes, false);
        }
        self.carry_out(out, speaker, effects, waited);
        let (reply, end) = match result {
            Some(Outcome::NoReply) => (None, None),
            Some(Outcome::Reply(reply)) => (Some(reply), None),
            Some(Outcome::Stop(how)) => (None, Some(Reason::Stopped(how))),
            Some(Outcome::ReplyAndStop(reply, how)) => (Some(reply), Some(Reason::Stopped(how))),
            None => (None, Some(Reason::Crashed)),
        };
        if self.barriers.has(speaker.id) {
            return self.barriers.answer_later(speaker.id, message, reply, end);
        }
        // The effects, or broadcasts intercepted before the reply, may have closed the socket.
        if let (Some(reply), Some(membership)) = (reply, self.registry.live(speaker.id)) {
            self.reply_to(out, membership, message, reply);
        }
        if let (Some(reason), Some(membership)) = (end, self.registry.live(speaker.id)) {
            self.end_channel(out, membership, reason);
        }
        // A channel that intercepts ends after the message for which it was brought up to date.
        if callback != Callback::HandleOut {
            self.end_if_stopped(out, speaker.id);
        }
    }

    pub(crate) fn apply(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        effects: Vec<Effect>,
    ) {
        let waits = self.barriers.has(speaker.id);
        self.carry_out(out, speaker, effects, waits);
    }

    /// `waits`: the channel waits, and its effects do.
    #[inline]
    fn carry_out(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        effects: Vec<Effect>,
        waits: bool,
    ) {
        match effects.is_empty() {
            true => self.application.keep(effects),
            false => self.carry_out_all(out, speaker, effects, waits),
        }
    }

    fn carry_out_all(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        mut effects: Vec<Effect>,
        mut waits: bool,
    ) {
        for effect in effects.drain(..) {
            match effect {
                effect if waits => drop(self.barriers.admit(speaker.id, Queued::Effect(effect))),
                Effect::Push(event, payload) => {
                    self.push(out, speaker, [speaker.push(&event, payload)]);
                }
                Effect::Broadcast(topic, event, payload, audience) => {
                    let topic = topic.unwrap_or_else(|| (&*speaker.topic).into());
                    let made = Publication::by(speaker.id, audience, topic, event, payload);
                    waits = self.broadcast(out, speaker, made);
                }
                Effect::Publish(made) => waits = self.broadcast(out, speaker, made),
                Effect::At(position, push) => {
                    self.push(out, speaker, kept::pushed(speaker, position, &push))
                }
                Effect::Subscribe(topic) => self.relay(out, speaker, &topic, true),
                Effect::Unsubscribe(topic) => self.relay(out, speaker, &topic, false),
                Effect::Reply(to, reply) => {
                    if let Some(membership) = self.registry.live(speaker.id) {
                        self.reply_to(out, membership, Some(to.0.as_ref()), reply);
                    }
                }
                Effect::Assign(value) => self.assign(out, speaker.conn, value),
                Effect::Presence(call) => {
                    let (registry, fanout) = (&mut self.registry, &mut self.fanout);
                    let told = self.presences.call(registry, fanout, out, speaker, call);
                    for (event, json) in told.iter().flat_map(|told| told.iter()) {
                        let push = speaker.push(event, Payload::from_json(&**json));
                        self.push(out, speaker, [push]);
                    }
                }
                Effect::Link(work) => match self.registry.live(speaker.id) {
                    Some(membership) => self.application.link(membership, work),
                    None => self.application.drop_guarded(work),
                },
                // A channel that has ended cannot hold its socket: nothing would ever release it.
                Effect::Hold if self.registry.live(speaker.id).is_none() => {}
                Effect::Hold => self.hold_for(out, speaker.conn, speaker.id),
                Effect::Proceed => self.proceed(out, speaker.conn, speaker.id),
                Effect::Expire(lifetime) => {
                    expire_in(out, &mut self.expiry, speaker.conn, lifetime);
                }
                Effect::Close(code) => self.close(out, speaker.conn, code),
                Effect::Exceed(limit) => {
                    let reason = limit.close_reason();
                    let (code, why) = (CloseCode::POLICY, Why::Closed);
                    self.close_because(out, speaker.conn, code, reason, why);
                }
            }
        }
        self.application.keep(effects);
    }

    /// Sends a member's pushes, after all broadcasts that were made before.
    pub(crate) fn push<'m>(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        messages: impl IntoIterator<Item = ServerMessage<'m>>,
    ) {
        if let Some(membership) = self.registry.live(speaker.id) {
            self.catch_up(out, membership);
        }
        for message in messages {
            send(out, &self.metrics, speaker.conn, message);
        }
    }

    /// A broadcast is not for a member: if it receives positions, it gets a notice.
    pub(crate) fn pass_over(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        broadcast: &Broadcast,
    ) {
        let is_told = self.registry.member(membership).is_some_and(|it| it.is(POSITIONS));
        if let Some(position) = broadcast.position().filter(|_| is_told)
            && let Some(speaker) = self.speaker(out, membership)
        {
            self.histories.has_seen(&self.registry, membership, broadcast);
            let word = || (broadcast.event.clone(), broadcast.payload.clone());
            let word = broadcast.is_notice().then(word);
            self.push(out, &speaker, kept::pushed(&speaker, position, &word));
        }
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
            return tracing::debug!(
                "dropped a reply: there is no message of the client to reply to"
            );
        };
        self.catch_up(out, membership);
        let Some(Speaker { conn, topic, join_ref, .. }) = self.speaker(out, membership) else {
            return;
        };
        let Reply { status, response } = reply;
        let join_ref = join_ref.as_ref();
        let reply = session::reply(&join_ref, &to, &topic, &status, response);
        send(out, &self.metrics, conn, reply);
    }

    /// Sends a message of the session, after all broadcasts to the member that were made before.
    pub(crate) fn send_behind(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        membership: Option<u32>,
        message: ServerMessage<'_>,
    ) {
        let id = membership.and_then(|it| self.registry.channel_id(it));
        if let Some(id) = id {
            self.catch_up(out, id.membership);
        }
        send(out, &self.metrics, key, message);
        if let Some(id) = id {
            self.end_if_stopped(out, id);
        }
    }

    /// Brings a member up to date before something else is written to it. If it stops itself
    /// meanwhile, it ends after that message ([`end_if_stopped`](Self::end_if_stopped)).
    pub(crate) fn catch_up(&mut self, out: &mut impl Sockets, membership: u32) {
        if let Some(through) = self.fanout.catch_up(&mut self.registry, out, membership) {
            self.pass_through(out, through);
        }
    }

    /// Brings a member up to date without a message behind that, which may end it.
    pub(crate) fn bring_up_to_date(&mut self, out: &mut impl Sockets, membership: u32) {
        let Some(id) = self.registry.channel_id(membership) else { return };
        self.catch_up(out, membership);
        self.end_if_stopped(out, id);
    }

    /// Delivers broadcasts to application code, or to a socket within the process.
    pub(crate) fn pass_through(&mut self, out: &mut impl Sockets, through: ChannelDelivery) {
        let ChannelDelivery { membership, generation, conn, pending } = through;
        let id = self.registry.id_of(membership, generation);
        if self.registry.member(membership).is_some_and(|it| it.is(CATCHING_UP)) {
            if self.barriers.deliver_later(id, pending) {
                self.close(out, conn, CloseCode::TRY_AGAIN);
            }
            return;
        }
        self.registry.mark(membership, DELIVERING, true);
        for broadcast in pending {
            // A member that has stopped gets nothing more and keeps its mark, so it is not brought
            // up to date again. A callback may also have closed the socket.
            let it = self.registry.member(membership).filter(|it| it.generation == generation);
            let Some(it) = it.filter(|_| !self.barriers.is_ending(id)) else { return };
            if it.is(SOCKET_ID) {
                if broadcast.event() == events::DISCONNECT {
                    self.close(out, conn, CloseCode::GOING_AWAY);
                }
                continue;
            }
            let Some(channel) = it.relay_for().or((!it.is(RELAY)).then_some(membership)) else {
                continue;
            };
            let is_relay = it.is(RELAY);
            let is_left_out = |it| it == NOBODY_PLAIN || self.registry.live(it) == Some(channel);
            if broadcast.except.is_some_and(is_left_out)
                || (!is_relay && self.registry.is_of_client(channel, &broadcast))
            {
                // Positions of a further topic are not for this channel.
                if !(is_relay && broadcast.is_notice()) {
                    self.pass_over(out, channel, &broadcast);
                }
                continue;
            }
            if is_relay {
                let current = CurrentMessage::default();
                self.call(out, channel, Callback::HandleBroadcast, current, |it, ctx| {
                    it.handle_broadcast(ctx, &broadcast)
                });
            } else {
                self.deliver_intercepted(out, channel, conn, &broadcast);
            }
        }
        if self.registry.live(id).is_some() && !self.barriers.is_ending(id) {
            self.registry.mark(membership, DELIVERING, false);
        }
    }

    pub(crate) fn deliver_intercepted(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
        conn: Key,
        broadcast: &Arc<Broadcast>,
    ) {
        let Some(it) = self.registry.member(membership) else { return };
        let has_positions = it.is(POSITIONS);
        self.histories.has_seen(&self.registry, membership, broadcast);
        let Some(channel) = self.registry.member(membership).and_then(|it| it.channel()) else {
            return;
        };
        let (event, payload) = (broadcast.event(), broadcast.payload());
        let position = broadcast.position().filter(|_| has_positions);
        match self.application.ask(|| channel.intercept().contains(&event)) {
            None => self.end_channel(out, membership, Reason::Crashed),
            Some(false) => self.fanout.deliver_one(out, conn, broadcast, position.is_some()),
            Some(true) => {
                // The channel's pushes are counted as messages.
                self.metrics.deliveries.add(1);
                let current = CurrentMessage { position, ..CurrentMessage::default() };
                self.call(out, membership, Callback::HandleOut, current, |it, ctx| {
                    it.handle_out(ctx, event, payload)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
