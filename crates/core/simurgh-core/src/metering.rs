//! Checks what a client sends, or has a channel do, against the limits of its user socket.

use alloc::sync::Arc;
use alloc::vec::Vec;

use simurgh_channel::{
    Callback, ChannelLimits, Effect, Limit, LimitPolicy, Node, Outcome, PresenceCall, SizeLimit,
    UserSocket,
};
use simurgh_data::Key;
use simurgh_proto::message::{Message, Ref};
use simurgh_proto::session::server::{self as session, MessageKind};

use crate::core::{Core, Received};
use crate::meters::{Charge, Exceeded, Scope};
use crate::socket::Speaker;
use crate::sockets::Sockets;
use crate::wire::Wire;

impl<N: Node> Core<N> {
    /// Charges a message to its socket, and to the channel `joined` if it is for that. Returns the
    /// limit that it exceeds.
    pub(crate) fn charge_message(
        &mut self,
        out: &impl Sockets,
        key: Key,
        kind: MessageKind,
        joined: Option<u32>,
        received: &Received<'_>,
    ) -> Option<Exceeded> {
        let (node, now_ns) = (Arc::clone(&self.node), out.now().ns);
        let socket = out.socket(key)?;
        let user_socket = node.user_socket(socket.user_socket)?;
        let message = &received.message;
        let is_for =
            joined.filter(|channel| kind == MessageKind::Push && !self.is_stale(*channel, message));
        let payload = message.payload.len().saturating_add(received.taken_bytes);
        // A plain message has no refs, topic or event: those are the core's own.
        let bytes = if socket.wire == Wire::Plain { payload as u64 } else { bytes(received) };
        let one = |limit, by, cost| Charge { limit, by, cost };
        let limits = &user_socket.limits;
        let charges = [
            one(Limit::Joins, limits.joins.filter(|_| kind == MessageKind::Join), 1),
            one(Limit::Messages, limits.messages, 1),
            one(Limit::Bytes, limits.bytes, bytes),
        ];
        let meters = self.meters.as_deref_mut()?;
        if let Err(exceeded) = meters.take(key, Scope::Socket, &charges, now_ns) {
            return Some(exceeded);
        }
        let topic = &*message.topic;
        if is_for.is_none() && kind != MessageKind::Join {
            return None;
        }
        let limits = limits_of(user_socket, topic)?;
        if let Some(SizeLimit { bytes_max, policy }) = limits.payload_bytes
            && payload > bytes_max
        {
            return Some(Exceeded { limit: Limit::PayloadBytes, policy, wait: None });
        }
        is_for?;
        let charges =
            [one(Limit::Messages, limits.messages, 1), one(Limit::Bytes, limits.bytes, bytes)];
        meters.take(key, Scope::Topic(topic), &charges, now_ns).err()
    }

    /// Drops changes of presence that exceed a limit, and replaces the callback's outcome
    /// accordingly.
    #[inline(never)]
    pub(crate) fn within_limits(
        &mut self,
        out: &impl Sockets,
        speaker: &Speaker,
        callback: Callback,
        outcome: Option<Outcome>,
        mut effects: Vec<Effect>,
    ) -> (Option<Outcome>, Vec<Effect>) {
        // Joins have their own limit; their effects are not counted twice.
        let is_counted = matches!(callback, Callback::HandleIn | Callback::HandleInfo);
        if !is_counted || !effects.iter().any(is_limited) {
            return (outcome, effects);
        }
        let (before, key) = (effects.len(), speaker.conn);
        let Some(exceeded) = self.charge_presences(out, speaker, &mut effects) else {
            return (outcome, effects);
        };
        for _ in effects.len()..before {
            self.note_exceeded(out, key, exceeded.limit);
        }
        match (exceeded.policy, outcome) {
            (LimitPolicy::Close, outcome) => {
                effects.push(Effect::Exceed(exceeded.limit));
                (outcome, effects)
            }
            // A plain client would get the answer as an ordinary message.
            (LimitPolicy::Reply, Some(Outcome::NoReply | Outcome::Reply(_)))
                if speaker.wire != Wire::Plain =>
            {
                (Some(Outcome::error(exceeded.response())), effects)
            }
            (LimitPolicy::Reply | LimitPolicy::Drop, outcome) => (outcome, effects),
        }
    }

    /// Keeps the effects within the limits. Returns the last limit that was exceeded.
    fn charge_presences(
        &mut self,
        out: &impl Sockets,
        speaker: &Speaker,
        effects: &mut Vec<Effect>,
    ) -> Option<Exceeded> {
        let (node, now_ns, key) = (Arc::clone(&self.node), out.now().ns, speaker.conn);
        let user_socket = node.user_socket(out.socket(key)?.user_socket)?;
        let meters = self.meters.as_deref_mut()?;
        let one = |by| [Charge { limit: Limit::PresenceCalls, by, cost: 1 }];
        let of_socket = one(user_socket.limits.presence_calls);
        let of_channel =
            one(limits_of(user_socket, &speaker.topic).and_then(|it| it.presence_calls));
        let (topic, mut last) = (Scope::Topic(&speaker.topic), None);
        effects.retain(|effect| {
            if !is_limited(effect) {
                return true;
            }
            let taken = meters.take(key, Scope::Socket, &of_socket, now_ns);
            let taken = taken.and_then(|()| meters.take(key, topic, &of_channel, now_ns));
            taken.map_err(|exceeded| last = Some(exceeded)).is_ok()
        });
        last
    }

    pub(crate) fn note_exceeded(&mut self, out: &impl Sockets, key: Key, limit: Limit) {
        limit.counter(&self.metrics).add(1);
        if let Some(meters) = &mut self.meters {
            meters.note(key, limit, out.now().ns);
        }
    }

    pub(crate) fn is_stale(&self, channel: u32, message: &Message<'_>) -> bool {
        let joined = self.registry.member(channel);
        joined.is_none_or(|it| session::is_stale(message, &it.join_ref.as_ref()))
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

/// Bytes of a message, without those of its serializer.
fn bytes(received: &Received<'_>) -> u64 {
    let Message { join_ref, msg_ref, topic, event, payload } = &received.message;
    let refs = [join_ref, msg_ref].map(Ref::raw).map(str::len);
    let others = [topic.len(), event.len(), payload.len(), received.taken_bytes];
    refs.into_iter().chain(others).fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
}
