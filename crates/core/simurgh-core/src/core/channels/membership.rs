//! The identity of a membership, and what its beginning and end change outside of the registry.

use simurgh_channel::{
    Effect, Node, PresenceCall, Publication, Publisher, Reason, RenewFn, ShardChannel,
};
use simurgh_notices::Reason as Why;

use super::Channels;
use super::sightings::why_ended;
use crate::registry::{HAS_RELAYS, HOLDS, Holds, Left, RELAY, Subscriber, TRACKS};
use crate::socket::{Own, Speaker};
use crate::sockets::Sockets;
use crate::wire::Wire;
use simurgh_data::prelude::*;

impl<N: Node> Channels<N> {
    pub(crate) fn speaker(&self, out: &impl Sockets, membership: u32) -> Option<Speaker> {
        let it = self.registry.member(membership)?;
        Some(Speaker {
            conn: it.conn,
            wire: out.socket(it.conn).map_or(Wire::V2, |socket| socket.wire),
            topic: Rc::clone(&self.registry.topic(it.topic)?.name),
            join_ref: it.join_ref.clone(),
            is_given: it.has_given_join_ref(),
            id: self.registry.id_of(membership, it.generation),
            client: self.registry.client(membership),
        })
    }

    /// The function that renews the token of a socket, if it is not for the channel of this topic.
    #[cold]
    pub(crate) fn renewal(
        &self,
        out: &impl Sockets,
        membership: u32,
        topic: &str,
    ) -> Option<RenewFn> {
        let key = self.registry.member(membership)?.conn;
        let user_socket = self.node.user_socket(out.socket(key)?.user_socket)?;
        user_socket.route(topic)?.renew.clone()
    }

    /// Takes a channel and its subscriptions to further topics out of all tables and lets it clean
    /// up. Returns its effects.
    pub(crate) fn take_out(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        reason: Reason,
    ) -> Vec<Effect> {
        let membership = speaker.id.membership;
        self.histories.note_left(&self.registry, speaker, out.now());
        let is = |flag| self.registry.member(membership).is_some_and(|it| it.is(flag));
        let (has_relays, holds, tracks) = (is(HAS_RELAYS), is(HOLDS), is(TRACKS));
        let Some(socket) = out.socket_mut(speaker.conn) else { return Vec::new() };
        let mut channel = None;
        if let Some(left) = self.registry.leave(&mut socket.list, membership) {
            channel = self.has_left(left);
            self.report(socket.state(), speaker, Some(why_ended(reason)));
        }
        if has_relays {
            let all = self.registry.of(socket.list);
            let own = all.filter(|(_, it)| it.relay_for() == Some(membership));
            let relays: Vec<u32> = own.map(|(id, _)| id).collect();
            for relay in relays {
                if let Some(left) = self.registry.leave(&mut socket.list, relay) {
                    self.has_left(left);
                }
            }
        }
        let last_words = self.application.terminate(socket.state(), speaker, channel, reason);
        // A broadcast that it intercepted before may have it wait: that is over now.
        let effects = match self.barriers.has(speaker.id) {
            false => last_words,
            true => {
                let mut effects = self.barriers.take_effects(speaker.id);
                effects.extend(last_words);
                self.barriers.resume_reading(out, speaker.conn);
                self.read_again(out, speaker.conn);
                effects
            }
        };
        if holds {
            self.proceed(out, speaker.conn, speaker.id);
        }
        if tracks {
            let (registry, fanout) = (&mut self.registry, &mut self.fanout);
            self.presences.post(registry, fanout, out, speaker, PresenceCall::End);
        }
        effects
    }

    /// Does what follows when a membership has left. Returns its channel.
    pub(crate) fn has_left(&mut self, left: Left) -> Option<Box<dyn ShardChannel>> {
        if let Some(topic) = &left.counted {
            self.node.member_left(topic);
        }
        if left.has_positions {
            self.histories.left(left.membership);
        }
        self.barriers.left(left.membership);
        self.fanout.left(&mut self.registry, &left);
        left.channel
    }

    pub(crate) fn relay(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        topic: &str,
        is_wanted: bool,
    ) {
        let Some(channel) = self.registry.live(speaker.id) else { return };
        let Some(socket) = out.socket_mut(speaker.conn) else { return };
        match self.registry.relay(socket.list, channel, topic) {
            None if is_wanted => {
                self.registry.mark(channel, HAS_RELAYS, true);
                let relay = Subscriber::through(Holds::Relay(channel), RELAY);
                // Without memory it gets no broadcasts of that topic.
                let relay = self.registry.subscribe(&mut socket.list, speaker.conn, topic, relay);
                if let Ok(relay) = relay {
                    let wants = |topic: &str| self.histories.retention(topic);
                    self.fanout.member_added(&mut self.registry, relay, wants);
                }
            }
            Some(relay) if !is_wanted => {
                if let Some(left) = self.registry.leave(&mut socket.list, relay) {
                    self.has_left(left);
                }
            }
            Some(_) | None => {}
        }
    }

    /// Broadcasts for a channel. Returns whether what it does next has to wait.
    pub(crate) fn broadcast(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        made: Publication,
    ) -> bool {
        if self.node.keeps(&made.broadcast.topic) {
            return self.keep(out, speaker, made);
        }
        self.fanout.publish(&mut self.registry, out, speaker.conn, made.broadcast);
        false
    }

    /// The session of a socket is over.
    pub(crate) fn socket_ended(&mut self, own: Option<&Own>, why: Why) {
        self.report_session(own.map(|own| &own.state), Some(why));
        self.metrics.sockets.set(self.metrics.sockets.value().saturating_sub(1));
        self.node.release_connection();
    }
}

#[cfg(test)]
mod tests;
