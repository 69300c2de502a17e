//! Long messages in transit to be read away from their shard, and back.

use crate::kit::delivery::Request;
use crate::kit::peer::{ClientMessage, Content};
use simurgh_core::{Kind, Node, Phase, Received, guarded};
use simurgh_data::Key;
use simurgh_proto::message::Message;
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::CloseCode;

use super::NodeSimulation;
use super::client::{join_ref, size};
use crate::app::ready::Ready;
use crate::model::{Input, code_bit};
use crate::node::CHANNELS;

#[derive(Debug)]
pub(crate) struct Reading {
    conn: u32,
    shard: usize,
    key: Key,
    ticket: u32,
    serializer: Serializer,
    sent: ClientMessage,
}

impl NodeSimulation {
    /// Reads a long text away from its shard, which does not read its socket meanwhile.
    pub(crate) fn read_elsewhere(&mut self, shard: usize, key: Key, sent: ClientMessage) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let tick = simurgh_data::Now::from_ns(server.turn_ns(self.clock_ns)).tick;
        self.tickets += 1;
        let ticket = self.tickets;
        let Some(peer) = server.net.peer_mut(key) else { return };
        let Some(serializer) = peer.socket.wire().serializer() else { return };
        peer.socket.enter(Phase::Waiting, tick);
        (peer.is_held, peer.reading) = (true, ticket);
        let conn = peer.conn;
        self.readings.push_back(Reading { conn, shard, key, ticket, serializer, sent });
        let mut model = self.shared.model();
        model.counts.count("messages read elsewhere", 1);
        model.conns[conn as usize].waits.is_reading = true;
    }

    /// Hands in a long text that was read, if its socket still waits for it.
    pub(crate) fn was_read(&mut self, which: usize) -> bool {
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
        self.tell(|| format!("a long message of #{conn} has been read"));
        let message = serializer.decode_owned(text).ok();
        let size = message.as_ref().map(size).unwrap_or_default();
        let received = message.and_then(|it| self.prepared(it));
        let net = self.servers.get_mut(shard).map(|it| &mut it.net);
        let peer = net.and_then(|it| it.peer_mut(key));
        // What came in before the socket was closed is dropped.
        let waits = peer.is_some_and(|peer| {
            let is_it = peer.reading == ticket && peer.socket.phase() == Phase::Waiting;
            peer.reading = 0;
            is_it
        });
        if !waits {
            return true;
        }
        self.shared.model().conns[conn as usize].waits.is_reading = false;
        match received {
            Some((received, id)) => {
                self.step(shard, Input::Other, 1, |core, net, shared| {
                    core.resume(net, key);
                    let mut model = shared.model();
                    let asked = Request { join_ref: join_ref(&received.message), ..asked };
                    model.message(conn, asked, size);
                    model.prepared = id;
                    drop(model);
                    core.message(net, key, received);
                });
                self.feed(shard, key);
            }
            None => {
                if let Some(it) = self.shared.model().conn_mut(conn) {
                    it.codes |= code_bit(CloseCode::INTERNAL.0);
                    it.is_cut = true;
                }
                self.step(shard, Input::Other, 1, |core, net, _| {
                    core.resume(net, key);
                    core.fail(net, key, CloseCode::INTERNAL);
                });
            }
        }
        true
    }

    /// Prepares a message; returns the number of the prepared value, if any; `None` after a panic.
    fn prepared(&self, mut message: Message<'static>) -> Option<(Received<'static>, Option<u32>)> {
        let user_socket = self.node.user_socket(CHANNELS)?;
        let Kind::Channels(_) = &user_socket.kind else { return None };
        let route = user_socket.route(&message.topic);
        let Some(prepare) = route.and_then(|it| it.prepare.as_ref()) else {
            return Some((message.into(), None));
        };
        let bytes = message.payload.len();
        let prepared = guarded(|| prepare(&mut message))?;
        let taken_bytes = bytes.saturating_sub(message.payload.len());
        let id = prepared.downcast_ref::<Ready>().map(|it| it.id);
        Some((Received { message, prepared: Some(prepared), taken_bytes }, id))
    }
}
