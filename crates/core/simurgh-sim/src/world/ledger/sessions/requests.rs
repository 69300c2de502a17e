//! Messages of clients and of handles, and what must come of them.

use std::collections::VecDeque;

use simurgh_core::{Audience, ChannelId, Mail, Reason, ToChannel};

use super::joins::Joining;
use super::limits::Size;
use super::{Life, Sessions};
use crate::kit::delivery::{Delivery, Request, RequestKind, letter};
use crate::kit::payload::{self, BAD_RESUME, EMPTY, TOO_LONG, TOO_MANY, UNMATCHED};
use crate::kit::refs;
use crate::world::ledger::{Ledger, LineEntry};

/// A callback or an end that a step must lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    HandleIn { chan: u32, id: u32 },
    HandleInfo { chan: u32, id: u32 },
    Leave { chan: u32 },
    Join { id: u32 },
}

impl Ledger {
    /// A shard is handed a message of a client.
    pub(crate) fn hand_in(&mut self, conn: u32, asked: Request, size: Size) {
        self.counts.count("messages", 1);
        if self.sessions.waits(conn) {
            self.fail("held", format!("socket {conn} is read while it waits"));
        }
        if self.is_over_a_limit(conn, asked, size) {
            return;
        }
        let Request { kind, topic, join_ref, msg_ref, id } = asked;
        let joined = self.sessions.joined(conn, topic);
        let current = joined.and_then(|chan| self.sessions.chan(chan)).map(|chan| chan.join_ref);
        let is_meant = join_ref == 0 || current == Some(join_ref);
        let joining = Joining { conn, topic, join_ref, msg_ref };
        let due = match (kind, joined) {
            (RequestKind::Heartbeat, _) => {
                let line = Delivery::reply(0, msg_ref, b'o', EMPTY);
                return self.promise(conn, topic, line, 0);
            }
            (RequestKind::Join, _) => match self.refusal(conn, asked) {
                Some(line) => {
                    let from = self.line(self.sessions.shard_of(conn), topic).len();
                    return self.promise(conn, topic, line, from);
                }
                None => Due::Join { id },
            },
            (RequestKind::Leave, None) => return self.leaves_unjoined(joining),
            (RequestKind::Event, None) => {
                self.unmatched(conn);
                let line = Delivery::reply(0, msg_ref, b'e', UNMATCHED);
                return self.promise(conn, topic, line, 0);
            }
            (_, Some(_)) if !is_meant => return self.counts.count("stale messages", 1),
            (RequestKind::Leave, Some(chan)) => {
                self.counts.count("leaves", 1);
                Due::Leave { chan }
            }
            (RequestKind::Event, Some(chan)) => Due::HandleIn { chan, id },
        };
        (self.sessions.now.joining, self.sessions.now.due) = (Some(joining), Some(due));
    }

    /// A plain socket joins as it opens.
    pub(crate) fn joins_plain(&mut self, conn: u32) {
        let topic = self.plan.topics.plain();
        let joining = Joining { conn, topic, join_ref: 0, msg_ref: 0 };
        self.sessions.now.joining = Some(joining);
        self.sessions.now.due = Some(Due::Join { id: EMPTY });
    }

    /// The answer to a join that is refused before the application is asked.
    fn refusal(&mut self, conn: u32, asked: Request) -> Option<Delivery> {
        let Request { topic, join_ref, msg_ref, .. } = asked;
        if topic == self.plan.topics.unmatched() {
            self.unmatched(conn);
            return Some(Delivery::reply(0, msg_ref, b'e', UNMATCHED));
        }
        let channels = self.sessions.conn(conn).map_or(0, |conn| conn.channels.len());
        let channels_max = self.plan.app.channels_max;
        let is_bad = self.broadcasts.get(asked.id as usize).is_some_and(|made| made.is_bad);
        let is_long = [join_ref, msg_ref].into_iter().any(refs::is_too_long);
        let response = match () {
            () if self.sessions.joined(conn, topic).is_none()
                && channels >= usize::from(channels_max) =>
            {
                TOO_MANY
            }
            () if is_long || self.plan.topics.over == Some(topic) => {
                self.counts.count("joins with something too long", 1);
                TOO_LONG
            }
            () if is_bad => BAD_RESUME,
            () => return None,
        };
        self.refuses(conn);
        Some(Delivery::reply(join_ref, msg_ref, b'e', response))
    }

    pub(super) fn refuses(&mut self, conn: u32) {
        self.counts.count("refused joins", 1);
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].refused += 1;
    }

    fn unmatched(&mut self, conn: u32) {
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].unmatched += 1;
    }

    pub(super) fn leaves_unjoined(&mut self, joining: Joining) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        self.promise(conn, topic, Delivery::reply(join_ref, msg_ref, b'o', EMPTY), 0);
    }

    /// A shard takes a mail.
    pub(crate) fn take_mail(&mut self, shard: usize, mail: &Mail) {
        match mail {
            Mail::ToChannel(name, what) => self.told((self.sessions.start_of(shard), *name), what),
            Mail::Listen(_, listener) => self.listens(listener.name),
            Mail::Unlisten(_, name) => self.unlistens(*name),
            Mail::Drain(_) => {
                self.sessions.shards[shard].drains = true;
                self.counts.count("drains", 1);
            }
            _ => {}
        }
    }

    fn told(&mut self, name: (usize, ChannelId), what: &ToChannel) {
        let Some(chan) = self.sessions.names.get(&name).copied() else { return };
        let next = match what {
            ToChannel::Message(_) | ToChannel::Reply(..) => {
                self.sessions.chans[chan as usize].infos.pop_front()
            }
            _ => None,
        };
        let Some(it) = self.sessions.chan(chan).filter(|chan| chan.life == Life::Live) else {
            return;
        };
        let (conn, topic, join_ref) = (it.conn, it.topic, it.join_ref);
        self.counts.count("handles used", 1);
        let from = self.line(self.sessions.shard_of(conn), topic).len();
        match what {
            ToChannel::Message(_) => {
                self.sessions.now.due = next.map(|id| Due::HandleInfo { chan, id });
            }
            ToChannel::Push(event, payload) => {
                let line = Delivery::event(letter(event), join_ref, payload::parse(payload).0);
                self.promise(conn, topic, line, from);
            }
            ToChannel::Reply(_, reply) => {
                let id = payload::parse(&reply.response).0;
                self.replies(chan, next.unwrap_or_default(), b'o', id, from);
            }
            ToChannel::Stop(how) => self.must_end(chan, Reason::Stopped(*how), false),
            ToChannel::Broadcast(_, payload, audience) => {
                self.counts.count("broadcasts by handles", 1);
                let id = payload::parse(payload).0;
                debug_assert_eq!(
                    self.broadcasts.get(id as usize).map(|made| made.except == chan),
                    Some(*audience == Audience::Others)
                );
                if !self.is_kept(topic) {
                    self.sessions.now.pending.push((conn, [id].into()));
                }
            }
        }
    }

    /// A message for a channel is on its way, or the answer to this ref.
    pub(crate) fn tells(&mut self, chan: u32, id: u32) {
        if let Some(chan) = self.sessions.chan_mut(chan) {
            chan.infos.push_back(id);
        }
    }

    /// The running shard charges itself for a broadcast, which means that it accepts it now.
    pub(crate) fn charges(&mut self, shard: usize, bytes: usize) {
        if self.plan.history.is_some() {
            return;
        }
        // The lengths of broadcasts of one step differ mostly.
        let is_it = |(_, ids): &&mut (u32, VecDeque<u32>)| {
            let weight = |id: &u32| self.broadcasts[*id as usize].weight as usize;
            ids.front().map(weight) == Some(bytes)
        };
        let Sessions { now, .. } = &mut self.sessions;
        let Some((conn, ids)) = now.pending.iter_mut().rev().find(is_it) else {
            return self.fail("broadcast", format!("{bytes} bytes that nobody broadcasts"));
        };
        let (conn, Some(id)) = (*conn, ids.pop_front()) else { return };
        self.sessions.now.publishers.push(conn);
        self.accepts(shard, id);
    }

    /// A shard accepts a broadcast of this number.
    pub(crate) fn accepts(&mut self, shard: usize, id: u32) {
        let Some(made) = self.broadcasts.get(id as usize) else { return };
        let (topic, except, node) = (made.topic as u8, made.except, made.node);
        let is_disconnect = made.event == super::DISCONNECT;
        let word = letter(made.event);
        self.note(|| format!("shard {shard} accepts #{id} on {topic}"));
        self.counts.count("broadcasts accepted", 1);
        self.sessions.shards[shard].accepted += 1;
        if !is_disconnect {
            self.broadcasts[id as usize].accepted +=
                u8::from(self.sessions.start_of(shard) == node);
            if !self.plan.is_one_node() {
                self.check_place(shard, id);
            }
        }
        self.append(shard, topic, LineEntry { id, step: self.step, except, word });
        if is_disconnect {
            for conn in self.sessions.shards[shard].sockets.clone() {
                let it = &mut self.sessions.conns[conn as usize];
                if it.is_open && it.id == Some(topic) {
                    it.is_disconnected = true;
                    self.sessions.may_close(conn, 1001);
                    self.counts.count("sockets disconnected", 1);
                }
            }
        }
    }

    /// A shard accepts an event of presence, by the number of its payload.
    pub(crate) fn accepts_presence(&mut self, shard: usize, topic: u8, word: u8, id: u32) {
        self.sessions.shards[shard].accepted += 1;
        let (step, except) = (self.step, crate::kit::NONE);
        self.append(shard, topic, LineEntry { id, step, except, word });
    }
}
