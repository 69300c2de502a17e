//! Joins, their answers and what follows from them.

use simurgh_core::Wire;

use super::calls::{Act, Call, CallEnd, Called};
use super::{JOINER, Life};
use crate::kit::NONE;
use crate::kit::delivery::{Delivery, DeliveryKind};
use crate::kit::payload::{JOIN_CRASHED, JOIN_TIMED_OUT};
use crate::world::ledger::Ledger;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    pub(crate) conn: u32,
    pub(crate) topic: u8,
    /// 0 for a missing one.
    pub(crate) join_ref: u32,
    pub(crate) msg_ref: u32,
}

/// What the application decides about a join.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// `waits` until the interest in its topic is in force.
    Ok {
        chan: u32,
        reply: u32,
        intercept_panics: bool,
        waits: bool,
    },
    Released,
    Error(u32),
    Later,
    Panic,
}

impl Ledger {
    /// A join function is called; returns the join that it decides about.
    pub(crate) fn asked(&mut self, id: u32) -> Option<Joining> {
        let due = super::Due::Join { id };
        if self.sessions.now.due != Some(due) {
            self.take_due(due);
        }
        let joining = self.sessions.now.joining?;
        self.sessions.now.due = None;
        if self.sessions.joined(joining.conn, joining.topic).is_some() {
            self.fail("join", format!("{joining:?} while the old channel lives"));
        }
        Some(joining)
    }

    pub(crate) fn answer(&mut self, joining: Joining, answer: Answer, acts: Vec<Act>) {
        let conn = joining.conn;
        let is_open = self.sessions.conn(conn).is_some_and(|conn| conn.is_open);
        let is_closing = !is_open || self.sessions.is_closing(conn);
        self.note(|| format!("{joining:?} is answered: {answer:?}"));
        match answer {
            Answer::Ok { intercept_panics: true, .. } => {
                self.refused(joining, JOIN_CRASHED);
                self.counts.count("panics", 1);
                self.acts_without_channel(conn, acts);
            }
            // The end of the replaced channel has closed the socket.
            Answer::Ok { .. } if is_closing => {}
            // It becomes a member once its client's position is known, or its node's interest.
            Answer::Ok { chan, reply, waits, .. } if waits || self.is_kept(joining.topic) => {
                self.sessions.conns[conn as usize].admitted = Some((joining, chan, reply));
                if waits {
                    self.await_decision(joining);
                }
                self.acts_without_channel(conn, acts);
            }
            Answer::Ok { chan, reply, .. } => self.let_in(joining, chan, reply, acts),
            Answer::Released => {}
            Answer::Error(reply) => {
                self.refused(joining, reply);
                self.acts_without_channel(conn, acts);
            }
            Answer::Later => {
                if !is_closing {
                    self.await_decision(joining);
                }
                self.acts_without_channel(conn, acts);
            }
            Answer::Panic => {
                self.counts.count("panics", 1);
                self.acts_without_channel(conn, acts);
                self.refused(joining, JOIN_CRASHED);
            }
        }
    }

    fn await_decision(&mut self, joining: Joining) {
        let since = self.sessions.now.tick;
        if let Some(it) = self.sessions.conn_mut(joining.conn) {
            it.awaiting = Some((joining, None, since));
            self.sessions.waiting.push(joining.conn);
            self.counts.count("joins decided later", 1);
        }
    }

    /// A callback of a channel that is no member yet: its join has waited for something.
    pub(super) fn enters(&mut self, chan: u32) {
        let conn = self.sessions.chan(chan).map_or(NONE, |chan| chan.conn);
        let admitted = self.sessions.conn_mut(conn).map(|conn| &mut conn.admitted);
        let admitted = admitted.and_then(|it| it.take_if(|it| it.1 == chan));
        if let Some((joining, chan, reply)) = admitted {
            self.let_in(joining, chan, reply, Vec::new());
        }
    }

    fn let_in(&mut self, joining: Joining, chan: u32, reply: u32, acts: Vec<Act>) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        let shard = self.sessions.shard_of(conn);
        let from = self.line(shard, topic).len();
        let it = &mut self.sessions.chans[chan as usize];
        (it.life, it.owes_after_join, it.from, it.out_cursor) = (Life::Live, true, from, from);
        (it.is_given, it.join_ref) =
            (join_ref != 0, if join_ref != 0 { join_ref } else { msg_ref });
        self.sessions.conns[conn as usize].channels.push((topic, chan));
        self.sessions.shards[shard].channels += 1;
        self.sessions.now.joined.push(chan);
        self.counts.count("joins", 1);
        for act in &acts {
            if let Act::Broadcast(id) = act
                && let Some(made) = self.broadcasts.get_mut(*id as usize)
                && made.except == JOINER
            {
                made.except = chan;
            }
        }
        let line = Delivery::reply(join_ref, msg_ref, b'o', reply);
        if self.is_plain(conn) {
            let stream = &mut self.sessions.conns[conn as usize].streams[usize::from(topic)];
            (stream.chan, stream.cursor) = (chan, from);
        } else {
            self.promise_own(conn, topic, line, 0, (chan, false));
        }
        self.close_replaced(conn);
        let (call, end, msg_ref, place) = (Call::Join, CallEnd::Nothing, 0, 0);
        self.end(Called { chan, conn, call, acts, end, msg_ref, place });
    }

    pub(super) fn is_plain(&self, conn: u32) -> bool {
        self.sessions.conn(conn).is_some_and(|conn| conn.wire == Wire::Plain)
    }

    /// The effects of a join without a channel: those on others, or on the socket.
    fn acts_without_channel(&mut self, conn: u32, mut acts: Vec<Act>) {
        acts.retain(|act| {
            matches!(act, Act::Broadcast(_) | Act::Close(_) | Act::Assign(_) | Act::Expire(_))
        });
        let (call, end, msg_ref, place) = (Call::Join, CallEnd::Nothing, 0, 0);
        self.end(Called { chan: NONE, conn, call, acts, end, msg_ref, place });
    }

    pub(super) fn refused(&mut self, joining: Joining, response: u32) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        self.refuses(conn);
        if !self.is_plain(conn) {
            self.promise(conn, topic, Delivery::reply(join_ref, msg_ref, b'e', response), 0);
        }
        self.close_replaced(conn);
        if self.is_plain(conn) {
            self.sessions.must_close(conn, 1008);
        }
    }

    pub(in crate::world::ledger) fn close_replaced(&mut self, conn: u32) {
        let replaced = self.sessions.conn_mut(conn).and_then(|conn| conn.replaced.take());
        let Some((chan, pushes)) = replaced else { return };
        self.counts.count("rejoins", 1);
        let is_refused = self.sessions.joined(conn, self.sessions.chans[chan as usize].topic);
        self.notify(chan, DeliveryKind::Close, 0, is_refused.is_none());
        let topic = self.sessions.chans[chan as usize].topic;
        pushes.into_iter().for_each(|line| self.promise(conn, topic, line, 0));
    }

    /// The core waits for the decision about a join.
    pub(crate) fn decides(&mut self, ticket: u32) -> u32 {
        let conn = self.sessions.now.joining.map_or(NONE, |joining| joining.conn);
        let awaiting = self.sessions.conn_mut(conn).and_then(|conn| conn.awaiting.as_mut());
        match awaiting.filter(|awaiting| awaiting.1.is_none()) {
            Some(awaiting) => awaiting.1 = Some(ticket),
            None => self.fail("join", format!("socket {conn} waits for nothing new")),
        }
        conn
    }

    /// A decision reaches its shard, which may not wait for it any more.
    pub(crate) fn decided(&mut self, conn: u32, ticket: u32, answer: Answer) {
        let it = self.sessions.conn_mut(conn).filter(|conn| conn.is_open);
        let awaiting = it
            .and_then(|awaiting| awaiting.awaiting.take_if(|awaiting| awaiting.1 == Some(ticket)));
        let Some((joining, ..)) = awaiting else {
            self.counts.count("decided too late", 1);
            return;
        };
        self.sessions.waiting.retain(|waits| *waits != conn);
        self.sessions.now.joining = Some(joining);
        self.answer(joining, answer, Vec::new());
    }

    pub(super) fn timed_out(&mut self, conn: u32, is_late: bool) {
        self.sessions.waiting.retain(|waits| *waits != conn);
        let awaiting = self.sessions.conn_mut(conn).and_then(|conn| conn.awaiting.take());
        let Some((joining, ..)) = awaiting else { return };
        if !is_late {
            self.fail("join", format!("socket {conn}: its join timed out early"));
        }
        self.counts.count("join timeouts", 1);
        self.refused(joining, JOIN_TIMED_OUT);
    }
}
