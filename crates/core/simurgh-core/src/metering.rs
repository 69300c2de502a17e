//! Checks what a client sends, or has a channel do, against the limits of its user socket.

use simurgh_channel::{
    Callback, ChannelLimits, Effect, Limit, LimitPolicy, Outcome, PresenceCall, SizeLimit,
    UserSocket,
};
use simurgh_data::Key;
use simurgh_proto::message::Message;
use simurgh_proto::session::server::MessageKind;

use crate::meters::{Charge, Exceeded, Meters, Scope};
use crate::socket::Speaker;
use crate::wire::Wire;
use simurgh_data::prelude::*;

impl Meters {
    /// Charges a message to its socket, and to the channel of its topic if it is a push for that.
    /// Returns the limit that it exceeds.
    pub(crate) fn charge_message(
        &mut self,
        user_socket: &UserSocket,
        key: Key,
        message: &Metered<'_>,
        now_ns: u64,
    ) -> Option<Exceeded> {
        let one = |limit, by, cost| Charge { limit, by, cost };
        let Metered { kind, topic, is_for, payload, bytes } = *message;
        let limits = &user_socket.limits;
        let charges = [
            one(Limit::Joins, limits.joins.filter(|_| kind == MessageKind::Join), 1),
            one(Limit::Messages, limits.messages, 1),
            one(Limit::Bytes, limits.bytes, bytes),
        ];
        if let Err(exceeded) = self.take(key, Scope::Socket, &charges, now_ns) {
            return Some(exceeded);
        }
        if !is_for && kind != MessageKind::Join {
            return None;
        }
        let limits = limits_of(user_socket, topic)?;
        if let Some(SizeLimit { bytes_max, policy }) = limits.payload_bytes
            && payload > bytes_max
        {
            return Some(Exceeded { limit: Limit::PayloadBytes, policy, wait: None });
        }
        let charges =
            [one(Limit::Messages, limits.messages, 1), one(Limit::Bytes, limits.bytes, bytes)];
        is_for.then(|| self.take(key, Scope::Topic(topic), &charges, now_ns).err())?
    }

    /// Drops changes of presence that exceed a limit, and replaces the callback's outcome
    /// accordingly.
    #[inline(never)]
    pub(crate) fn within_limits(
        &mut self,
        user_socket: Option<&UserSocket>,
        speaker: &Speaker,
        callback: Callback,
        outcome: Option<Outcome>,
        mut effects: Vec<Effect>,
        now_ns: u64,
    ) -> (Option<Outcome>, Vec<Effect>) {
        // Joins have their own limit; their effects are not counted twice.
        let is_counted = matches!(callback, Callback::HandleIn | Callback::HandleInfo);
        let Some(user_socket) = user_socket.filter(|_| is_counted) else {
            return (outcome, effects);
        };
        let before = effects.len();
        let exceeded = self.charge_presences(user_socket, speaker, &mut effects, now_ns);
        let Some(exceeded) = exceeded else { return (outcome, effects) };
        for _ in effects.len()..before {
            self.note(speaker.conn, exceeded.limit, now_ns);
        }
        match (exceeded.policy, outcome) {
            (LimitPolicy::Close, outcome) => {
                effects.push(Effect::Exceed(exceeded.limit));
                (outcome, effects)
            }
            // A plain client would get the answer as an ordinary message.
            (LimitPolicy::Reply, Some(Outcome::NoReply | Outcome::Reply(_)))
                if !speaker.wire.is_plain() =>
            {
                (Some(Outcome::error(exceeded.response())), effects)
            }
            (LimitPolicy::Reply | LimitPolicy::Drop, outcome) => (outcome, effects),
        }
    }

    /// Keeps the effects within the limits. Returns the last limit that was exceeded.
    fn charge_presences(
        &mut self,
        user_socket: &UserSocket,
        speaker: &Speaker,
        effects: &mut Vec<Effect>,
        now_ns: u64,
    ) -> Option<Exceeded> {
        if !effects.iter().any(is_limited) {
            return None;
        }
        let one = |by| [Charge { limit: Limit::PresenceCalls, by, cost: 1 }];
        let of_socket = one(user_socket.limits.presence_calls);
        let of_channel =
            one(limits_of(user_socket, &speaker.topic).and_then(|it| it.presence_calls));
        let (key, topic, mut last) = (speaker.conn, Scope::Topic(&speaker.topic), None);
        effects.retain(|effect| {
            if !is_limited(effect) {
                return true;
            }
            let taken = self.take(key, Scope::Socket, &of_socket, now_ns);
            let taken = taken.and_then(|()| self.take(key, topic, &of_channel, now_ns));
            taken.map_err(|exceeded| last = Some(exceeded)).is_ok()
        });
        last
    }
}

/// What counts of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metered<'a> {
    pub(crate) kind: MessageKind,
    pub(crate) topic: &'a str,
    /// It is a push for the channel that the client has in the topic.
    pub(crate) is_for: bool,
    payload: usize,
    /// Without what its serializer adds.
    bytes: u64,
}

impl<'a> Metered<'a> {
    /// A plain message has no refs, topic or event: those are the core's own.
    pub(crate) fn new(
        message: &'a Message<'_>,
        taken_bytes: usize,
        kind: MessageKind,
        is_for: bool,
        wire: Wire,
    ) -> Self {
        let Message { join_ref, msg_ref, topic, event, payload } = message;
        let payload = payload.len().saturating_add(taken_bytes);
        let names = join_ref.raw().len() + msg_ref.raw().len() + topic.len() + event.len();
        let names = if wire.is_plain() { 0 } else { names };
        Self { kind, topic, is_for, payload, bytes: names.saturating_add(payload) as u64 }
    }
}

fn limits_of<'m>(user_socket: &'m UserSocket, topic: &str) -> Option<&'m ChannelLimits> {
    Some(&user_socket.route(topic)?.limits)
}

/// Whether a change of presence counts: removals do not.
fn is_limited(effect: &Effect) -> bool {
    use PresenceCall::{PushState, Track, Update};
    matches!(effect, Effect::Presence(Track(..) | Update(..) | PushState))
}
