//! Long messages in transit to be read away from their shard, and back.

use std::sync::Arc;

use simurgh_core::{Kind, Node, Phase, Received, guarded};
use simurgh_data::{Key, Now};
use simurgh_proto::message::Message;
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::CloseCode;

use super::Simulation;
use super::clients::{join_ref, size};
use super::operations::CHANNELS;
use crate::kit::delivery::Request;
use crate::kit::peer::{ClientMessage, Content};
use crate::world::app::ready::Ready;
use crate::world::ledger::sessions::{Input, code_bit};

#[derive(Debug)]
pub(crate) struct Reading {
    conn: u32,
    shard: usize,
    key: Key,
    ticket: u32,
    serializer: Serializer,
    sent: ClientMessage,
}

impl Simulation {
    /// Reads a long text away from its shard, which does not read its socket meanwhile.
    pub(super) fn read_elsewhere(&mut self, shard: usize, key: Key, sent: ClientMessage) {
        self.tickets += 1;
        let (ticket, now_ns) = (self.tickets, self.now_ns(0, shard));
        let Some(it) = self.shard(0, shard) else { return };
        let Some(peer) = it.net.peer_mut(key) else { return };
        let Some(serializer) = peer.socket.wire().serializer() else { return };
        peer.socket.enter(Phase::Waiting, Now::from_ns(now_ns).tick);
        (peer.is_held, peer.reading) = (true, ticket);
        let conn = peer.conn;
        self.readings.push_back(Reading { conn, shard, key, ticket, serializer, sent });
        let mut ledger = self.shared.ledger();
        ledger.counts.count("messages read elsewhere", 1);
        ledger.sessions.conns[conn as usize].is_reading = true;
    }

    /// Hands in a long text that was read, if its socket still waits for it.
    pub(super) fn was_read(&mut self, which: usize) -> bool {
        let which = which.checked_rem(self.readings.len()).unwrap_or(0);
        let Some(Reading { conn, shard, key, ticket, serializer, sent }) =
            self.readings.remove(which)
        else {
            return false;
        };
        let (Content::Request(asked), Ok(text)) = (sent.content, String::from_utf8(sent.bytes))
        else {
            return true;
        };
        let message = serializer.decode_owned(text).ok();
        let size = message.as_ref().map(size).unwrap_or_default();
        let received = message.and_then(|message| self.prepared(message));
        let peer = self.peer(0, shard, key);
        // What came in before the socket was closed is dropped.
        let waits = peer.is_some_and(|peer| {
            let is_it = peer.reading == ticket && peer.socket.phase() == Phase::Waiting;
            peer.reading = 0;
            is_it
        });
        if !waits {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        shared.ledger().sessions.conns[conn as usize].is_reading = false;
        let Some((received, id)) = received else {
            let mut ledger = shared.ledger();
            let it = &mut ledger.sessions.conns[conn as usize];
            (it.codes, it.is_cut) = (it.codes | code_bit(CloseCode::INTERNAL.0), true);
            drop(ledger);
            self.step(0, shard, Input::Other, |core, net| {
                core.resume(net, key);
                core.fail(net, key, CloseCode::INTERNAL);
            });
            return true;
        };
        self.step(0, shard, Input::Other, |core, net| {
            core.resume(net, key);
            let mut ledger = shared.ledger();
            let asked = Request { join_ref: join_ref(&received.message), ..asked };
            ledger.hand_in(conn, asked, size);
            ledger.sessions.prepared = id;
            drop(ledger);
            core.message(net, key, received);
            shared.ledger().sessions.prepared = None;
        });
        self.feed(0, shard, key);
        true
    }

    /// Prepares a message; returns the number of the prepared value, if any; `None` after a panic.
    fn prepared(&self, mut message: Message<'static>) -> Option<(Received<'static>, Option<u32>)> {
        let user_socket = self.node(0)?.user_socket(CHANNELS)?;
        let Kind::Channels(_) = &user_socket.kind else { return None };
        let route = user_socket.route(&message.topic);
        let Some(prepare) = route.and_then(|it| it.prepare.as_ref()) else {
            return Some((message.into(), None));
        };
        let bytes = message.payload.len();
        let prepared = guarded(|| prepare(&mut message))?;
        let taken_bytes = bytes.saturating_sub(message.payload.len());
        let id = prepared.downcast_ref::<Ready>().map(|ready| ready.id);
        Some((Received { message, prepared: Some(prepared), taken_bytes }, id))
    }
}
