//! Begins and ends of memberships and of users' sessions, as hooks want to know them.
//!
//! A member's user is read from its socket at both times, so nothing is stored for it. A socket
//! that gets another user ends all its memberships with the old one, and begins them with the new.

use alloc::borrow::Cow;
use core::mem;

use simurgh_channel::{Assigns, Node, Reason, SightingSink, SocketState, Stop};
use simurgh_data::Key;
use simurgh_notices::{Key as StayKey, Kind, Reason as Why, Sighting};
use simurgh_proto::ws::CloseCode;

use super::Channels;
use crate::socket::{Socket, Speaker};
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// Begins and ends of this turn.
pub(crate) struct Sightings {
    pub(super) sink: SightingSink,
    pub(super) seen: Vec<Sighting>,
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
            && user_of(&*self.node, socket.state()) != self.node.user_of(&value);
        if is_renamed {
            self.report_socket(out, key, Some(Why::Closed));
        }
        let own = out.socket_mut(key).map(|socket| socket.own.get_or_insert_default());
        self.application.drop_guarded(own.map(|own| own.state.assigns.replace(value)));
        if is_renamed {
            self.report_socket(out, key, None);
        }
    }

    fn report_socket(&mut self, out: &impl Sockets, key: Key, ended: Option<Why>) {
        let Some(socket) = out.socket(key) else { return };
        self.report_session(socket.state(), ended);
        for channel in self.registry.channels_of(socket.list) {
            self.report_member(out, channel.membership, ended);
        }
    }

    #[cold]
    pub(crate) fn report_member(&mut self, out: &impl Sockets, member: u32, ended: Option<Why>) {
        if let Some(speaker) = self.speaker(out, member) {
            self.report(out.socket(speaker.conn).and_then(Socket::state), &speaker, ended);
        }
    }

    /// A membership of a socket with this state begins or ends.
    pub(super) fn report(&mut self, of: Option<&SocketState>, by: &Speaker, ended: Option<Why>) {
        let Some(Sightings { sink, seen }) = self.sightings.as_deref_mut() else { return };
        let Speaker { topic, conn, client, id, .. } = by;
        let user = match user_of(&*self.node, of) {
            _ if !sink.settings.wants(Kind::Member, topic) => "".into(),
            Some(user) => Cow::Borrowed(user),
            None if *client != 0 => format!("{client:016x}").into(),
            None => self.node.connection_id(id.shard, *conn).into(),
        };
        if !user.is_empty() || sink.settings.wants(Kind::Topic, topic) {
            seen.push(Sighting { key: StayKey::member(topic, &user), ended });
        }
    }

    /// The session of a socket with this state begins or ends.
    pub(crate) fn report_session(&mut self, of: Option<&SocketState>, ended: Option<Why>) {
        if let Some(Sightings { sink, seen }) = self.sightings.as_deref_mut()
            && sink.settings.wants(Kind::User, "")
            && let Some(user) = user_of(&*self.node, of)
        {
            seen.push(Sighting { key: StayKey::user_of(user), ended });
        }
    }

    /// The turn ends.
    pub(crate) fn hand_over_sightings(&mut self) {
        if let Some(Sightings { sink, seen }) = self.sightings.as_deref_mut()
            && !seen.is_empty()
        {
            (sink.take)(mem::take(seen));
        }
    }
}

fn user_of<'s>(node: &impl Node, state: Option<&'s SocketState>) -> Option<&'s str> {
    node.user_of(state?.assigns.as_ref()?)
}

#[cfg(test)]
mod tests;
