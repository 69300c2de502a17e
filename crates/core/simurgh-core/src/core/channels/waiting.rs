//! Sockets that are not read: messages wait there, so that they are handled in order (PROTOCOL
//! §5.4).

use simurgh_channel::{Assigns, ChannelId, Lifetime, Node};
use simurgh_data::Key;

use super::Channels;
use crate::core::Core;
use crate::deadlines::Expiry;
use crate::registry::HOLDS;
use crate::socket::{Phase, Socket};
use crate::sockets::Sockets;

impl<N: Node> Channels<N> {
    /// A channel wants no more messages of its client for now. Only while it handles one: at other
    /// times its socket may wait for something else.
    pub(crate) fn hold_for(&mut self, out: &mut impl Sockets, key: Key, channel: ChannelId) {
        let tick = out.now().tick;
        let is_open = |socket: &&mut Socket| socket.phase == Phase::Open;
        let Some(socket) = out.socket_mut(key).filter(is_open) else { return };
        socket.enter(Phase::Waiting, tick);
        socket.own.get_or_insert_default().full = Some(channel);
        self.registry.mark(channel.membership, HOLDS, true);
        out.hold(key);
    }

    /// A channel wants messages again, or has ended.
    pub(crate) fn proceed(&mut self, out: &mut impl Sockets, key: Key, channel: ChannelId) {
        let own = out.socket_mut(key).and_then(|socket| socket.own.as_mut());
        if own.and_then(|own| own.full.take_if(|it| *it == channel)).is_some() {
            self.registry.mark(channel.membership, HOLDS, false);
            self.resume(out, key);
        }
    }

    /// A socket stops waiting; it is read again, unless it is held for what it published.
    pub(crate) fn resume(&mut self, out: &mut impl Sockets, key: Key) {
        let tick = out.now().tick;
        let waits = |socket: &&mut Socket| socket.phase == Phase::Waiting;
        let Some(socket) = out.socket_mut(key).filter(waits) else { return };
        // For what its channels broadcast now.
        if self.barriers.holds_socket(key) {
            return socket.enter(Phase::Waiting, tick);
        }
        socket.enter(Phase::Open, tick);
        self.read_again(out, key);
    }

    /// Reads a socket again unless something else is awaited or it has published too much.
    pub(crate) fn read_again(&mut self, out: &mut impl Sockets, key: Key) {
        let is_open = |socket: &&mut Socket| socket.phase == Phase::Open;
        let Some(socket) = out.socket_mut(key).filter(is_open) else { return };
        // A socket without a state of its own needs no memory for it.
        socket.own.take_if(|own| own.is_empty());
        if !self.fanout.holds_back(key) {
            out.release(key);
        }
    }
}

impl<N: Node> Core<N> {
    /// Keeps a socket open for this time, and sets its application's value if there is one.
    pub fn keep(&mut self, out: &mut impl Sockets, key: Key, new: Option<Assigns>, time: Lifetime) {
        if let Some(value) = new {
            self.channels.assign(out, key, value);
        }
        expire_in(out, &mut self.channels.expiry, key, Some(time));
    }
}

pub(super) fn expire_in(
    out: &mut impl Sockets,
    expiry: &mut Expiry,
    key: Key,
    lifetime: Option<Lifetime>,
) {
    let now = out.now();
    let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else { return };
    let expires = lifetime.map(|lifetime| expiry.note(lifetime, now));
    if expires.is_some() || socket.own.is_some() {
        socket.own.get_or_insert_default().expires = expires;
    }
}

#[cfg(test)]
mod tests;
