//! Begins and ends of memberships and of users' sessions, as hooks want to know them.
//!
//! A member's user is read from its socket at both times, so nothing is stored for it. A socket
//! that gets another user ends all its memberships with the old one, and begins them with the new.

use core::mem;

use simurgh_channel::{Assigns, Node, Reason, SightingSink, SocketState, Stop};
use simurgh_data::Key;
use simurgh_notices::{Key as StayKey, Reason as Why, Sighting, Wanted};
use simurgh_proto::ws::CloseCode;

use super::Channels;
use crate::socket::{Own, Socket, Speaker};
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// Begins and ends of this turn.
pub(crate) struct Sightings {
    sink: SightingSink,
    seen: Vec<Sighting>,
}

impl Sightings {
    /// `None` if no hook wants any.
    pub(super) fn new<N: Node>(node: &N) -> Option<Box<Self>> {
        Some(Box::new(Self { sink: node.sighting_sink()?, seen: Vec::new() }))
    }
}

/// Why the members of a socket leave that the server closes with this code.
pub(crate) fn why_closed(code: CloseCode) -> Why {
    match code {
        CloseCode::UNAUTHORIZED => Why::Expired,
        CloseCode::GOING_AWAY => Why::Kicked,
        _ => Why::Closed,
    }
}

pub(super) fn why_ended(reason: Reason) -> Why {
    match reason {
        Reason::Left | Reason::Rejoined => Why::Left,
        Reason::Stopped(Stop::Expired) => Why::Expired,
        Reason::Stopped(_) => Why::Kicked,
        Reason::Crashed | Reason::Closed => Why::Closed,
    }
}

impl<N: Node> Channels<N> {
    /// Sets the application's value of a socket, which may name another user.
    pub(crate) fn assign(&mut self, out: &mut impl Sockets, key: Key, value: Assigns) {
        let Some(socket) = out.socket(key) else { return self.application.drop_guarded(value) };
        let is_renamed = self.sightings.is_some()
            && socket.is_open()
            && self.user_of(socket.state()) != self.node.user_of(&value);
        if is_renamed {
            self.report_socket(out, key, Some(Why::Closed));
        }
        if let Some(socket) = out.socket_mut(key) {
            let old = socket.own.get_or_insert_default().state.assigns.replace(value);
            self.application.drop_guarded(old);
        }
        if is_renamed {
            self.report_socket(out, key, None);
        }
    }

    fn user_of<'s>(&self, state: Option<&'s SocketState>) -> Option<&'s str> {
        self.node.user_of(state?.assigns.as_ref()?)
    }

    fn report_socket(&mut self, out: &impl Sockets, key: Key, ended: Option<Why>) {
        let Some(socket) = out.socket(key) else { return };
        self.report_session(socket.own.as_deref(), ended);
        for channel in self.registry.channels_of(socket.list) {
            self.report_member(out, channel.membership, ended);
        }
    }

    /// A membership begins; or it ends in another way than by its channel's end.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_member(
        &mut self,
        out: &impl Sockets,
        membership: u32,
        ended: Option<Why>,
    ) {
        let Some(speaker) = self.speaker(out, membership) else { return };
        let state = out.socket(speaker.conn).and_then(Socket::state);
        self.report(state, &speaker, ended);
    }

    /// A membership of a socket with this state begins or ends.
    #[inline]
    pub(super) fn report(
        &mut self,
        state: Option<&SocketState>,
        speaker: &Speaker,
        ended: Option<Why>,
    ) {
        let Some(sightings) = &self.sightings else { return };
        let Speaker { topic, conn, client, id, .. } = speaker;
        let key = match (sightings.sink.settings.wanted(topic), self.user_of(state)) {
            (Wanted::Nothing, _) => return,
            (Wanted::Topic, _) => StayKey::member(topic, ""),
            (Wanted::Members, Some(user)) => StayKey::member(topic, user),
            (Wanted::Members, None) if *client != 0 => {
                StayKey::member(topic, &format!("{client:016x}"))
            }
            (Wanted::Members, None) => {
                StayKey::member(topic, &self.node.connection_id(id.shard, *conn))
            }
        };
        self.note(Sighting { key, ended });
    }

    /// The session of a socket begins or ends, with what it has beside its record.
    #[inline]
    pub(crate) fn report_session(&mut self, own: Option<&Own>, ended: Option<Why>) {
        let Some(sightings) = &self.sightings else { return };
        if sightings.sink.settings.wants_users()
            && let Some(user) = self.user_of(own.map(|own| &own.state))
        {
            let key = StayKey::user_of(user);
            self.note(Sighting { key, ended });
        }
    }

    /// The turn ends.
    #[inline]
    pub(crate) fn hand_over_sightings(&mut self) {
        if let Some(sightings) = &mut self.sightings
            && !sightings.seen.is_empty()
        {
            (sightings.sink.take)(mem::take(&mut sightings.seen));
        }
    }

    fn note(&mut self, sighting: Sighting) {
        if let Some(sightings) = &mut self.sightings {
            sightings.seen.push(sighting);
        }
    }
}

#[cfg(test)]
mod tests;
