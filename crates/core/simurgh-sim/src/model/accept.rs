//! Broadcasts that shards accept.

use crate::kit::delivery::Delivery;
use crate::kit::{EVENTS, NONE};

use super::presence::does_intercept;
use super::{Model, code_bit};

impl Model {
    pub(crate) fn accept(&mut self, shard: usize, id: u32) {
        self.seq += 1;
        self.counts.count("broadcasts accepted", 1);
        self.note(|| format!("shard {shard} accepts broadcast #{id}"));
        let seq = self.seq - 1;
        let Some(made) = self.made(id).copied() else { return };
        // Events of presence are identified by their payloads.
        let (said, word) = match self.presence.said(made.record) {
            Some((said, word)) => (said, word),
            None => (id, event_letter(made.event)),
        };
        let Some(it) = self.shards.get_mut(shard) else { return };
        it.accepted += 1;
        self.expect_listeners(shard, made.topic, said, made.except);
        let Some(it) = self.shards.get_mut(shard) else { return };
        let topic = usize::from(made.topic);
        if made.event == DISCONNECT {
            let sockets = it.sockets.clone();
            return sockets.into_iter().for_each(|conn| self.disconnected(conn, made.topic));
        }
        let members = it.members.get_mut(topic).map(std::mem::take).unwrap_or_default();
        let line = Delivery::event(word, 0, said);
        for &chan in members.iter().filter(|chan| **chan != made.except) {
            self.presence.heard = Some((chan, made.record)).filter(|_| made.record != NONE);
            let Some(it) = self.chan_mut(chan) else { continue };
            let conn = it.conn;
            match it.intercepts {
                0 => self.expect(conn, made.topic, line, true),
                some if does_intercept(some, made.event) => it.pending.push_back((seq, said)),
                _ => self.expect_out(conn, made.topic, line, seq, true),
            }
        }
        self.presence.heard = None;
        let Some(it) = self.shards.get_mut(shard) else { return };
        it.members[topic] = members;
        let relays = it.relays.get(topic).cloned().unwrap_or_default();
        for chan in relays.into_iter().filter(|chan| *chan != made.except) {
            let relays = self.chan_mut(chan).map(|it| &mut it.relays);
            let relay = relays.into_iter().flatten().find(|it| it.topic == made.topic);
            if let Some(relay) = relay {
                relay.pending.push_back(said);
            }
        }
    }

    fn disconnected(&mut self, conn: u32, id: u8) {
        if let Some(it) = self.conn_mut(conn).filter(|it| it.is_open && it.id == Some(id)) {
            it.is_disconnected = true;
            it.codes |= code_bit(1001);
            self.counts.count("sockets disconnected", 1);
        }
    }
}

pub(crate) const DISCONNECT: u8 = 200;
pub(crate) const PUSHED: u8 = 100;

pub(crate) fn event_letter(event: u8) -> u8 {
    let name = EVENTS.get(usize::from(event)).map(|it| it.as_bytes());
    name.and_then(|it| it.first()).copied().unwrap_or(b'p')
}
