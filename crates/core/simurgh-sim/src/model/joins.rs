//! Joins, their answers and their consequences.

use crate::kit::NONE;
use crate::kit::delivery::{Delivery, DeliveryKind};
use crate::kit::payload::{EMPTY, JOIN_CRASHED, JOIN_TIMED_OUT};
use simurgh_core::Wire;

use super::{Action, Answer, Awaiting, Call, CallbackEnd, CallbackRecord, Life, Model, SPEAKER};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    pub(crate) conn: u32,
    pub(crate) topic: u8,
    /// 0 for a missing one.
    pub(crate) join_ref: u32,
    pub(crate) msg_ref: u32,
}

impl Model {
    pub(crate) fn answer(&mut self, joining: Joining, answer: Answer, effects: Vec<Action>) {
        let conn = joining.conn;
        let is_open = self.conn(conn).is_some_and(|it| it.is_open);
        let is_closing = !is_open || self.now.closing.contains(&conn);
        match answer {
            Answer::Ok { intercept_panics: true, .. } => {
                self.refused(joining, JOIN_CRASHED);
                self.counts.count("panics", 1);
                self.spoken(joining, effects, CallbackEnd::Nothing);
            }
            // The end of the replaced channel has closed the socket.
            Answer::Ok { .. } if is_closing => {}
            Answer::Ok { chan, reply, .. } => self.let_in(joining, chan, reply, effects),
            Answer::Error(reply) => {
                self.refused(joining, reply);
                self.spoken(joining, effects, CallbackEnd::Nothing);
            }
            Answer::Later => {
                let since_tick = self.now.tick;
                if let Some(it) = self.conn_mut(conn).filter(|_| !is_closing) {
                    let replaced = it.replaced.take();
                    it.awaiting = Some(Awaiting { joining, replaced, ticket: None, since_tick });
                    self.waiting.push(conn);
                    self.counts.count("joins decided later", 1);
                }
                self.spoken(joining, effects, CallbackEnd::Nothing);
            }
            Answer::Panic => {
                self.counts.count("panics", 1);
                self.spoken(joining, effects, CallbackEnd::JoinCrashed(joining));
            }
        }
    }

    fn let_in(&mut self, joining: Joining, chan: u32, reply: u32, effects: Vec<Action>) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        let Some(it) = self.chan_mut(chan) else { return };
        (it.life, it.owes_after_join) = (Life::Live, true);
        (it.is_given, it.join_ref) =
            (join_ref != 0, if join_ref != 0 { join_ref } else { msg_ref });
        let Some(it) = self.conn_mut(conn) else { return };
        it.channels.push((topic, chan));
        let shard = it.shard;
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.channels += 1;
            shard.members[usize::from(topic)].push(chan);
        }
        for effect in &effects {
            if let Action::Broadcast(id) = effect
                && let Some(made) = self.made.get_mut(*id as usize)
                && made.except == SPEAKER
            {
                made.except = chan;
            }
        }
        self.counts.count("joins", 1);
        self.now.joined.push(chan);
        self.replied(joining, b'o', reply);
        self.close_replaced(conn);
        let (call, out) = (Call::Join, CallbackEnd::Nothing);
        self.end(CallbackRecord::new((chan, conn), call, effects, out));
    }

    /// The effects of a join without a channel: those on others, or on the socket.
    fn spoken(&mut self, joining: Joining, mut effects: Vec<Action>, out: CallbackEnd) {
        use Action::{Assign, Broadcast, Close, Expire};
        effects.retain(|it| matches!(it, Broadcast(_) | Close(_) | Assign(_) | Expire(_)));
        let call = Call::Join;
        self.end(CallbackRecord::new((NONE, joining.conn), call, effects, out));
    }

    pub(crate) fn refused(&mut self, joining: Joining, response: u32) {
        self.refuses(joining.conn);
        self.replied(joining, b'e', response);
        self.close_replaced(joining.conn);
        if self.conn(joining.conn).is_some_and(|it| it.wire == Wire::Plain) {
            self.may_close(joining.conn, 1008);
            self.now.closing.push(joining.conn);
        }
    }

    fn replied(&mut self, joining: Joining, word: u8, response: u32) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        let is_closed = self.now.closing.contains(&conn);
        if !is_closed && self.conn(conn).is_some_and(|it| it.wire != Wire::Plain) {
            self.expect(conn, topic, Delivery::reply(join_ref, msg_ref, word, response), false);
        }
    }

    fn close_replaced(&mut self, conn: u32) {
        let Some(replaced) = self.conn_mut(conn).and_then(|it| it.replaced.take()) else { return };
        self.counts.count("rejoins", 1);
        let chan = replaced.chan;
        self.notify(chan, DeliveryKind::Close);
        let join_ref = self.chan(chan).map_or(0, |it| it.join_ref);
        for said in replaced.pushes {
            let line = Delivery::event(b'p', join_ref, said);
            self.say(chan, line);
        }
    }

    pub(crate) fn decides(&mut self, conn: u32, ticket: u32) {
        let awaiting = self.conn_mut(conn).and_then(|it| it.awaiting.as_mut());
        match awaiting.filter(|it| it.ticket.is_none()) {
            Some(awaiting) => awaiting.ticket = Some(ticket),
            None => self.fail("join", format!("socket {conn} waits for nothing new")),
        }
    }

    /// A decision reaches its shard, which may not wait for it any more.
    pub(crate) fn decided(&mut self, conn: u32, ticket: u32, answer: Answer) {
        let awaiting = self.conn_mut(conn).filter(|it| it.is_open).map(|it| &mut it.awaiting);
        let awaiting = awaiting.and_then(|it| it.take_if(|it| it.ticket == Some(ticket)));
        let Some(Awaiting { joining, replaced, .. }) = awaiting else {
            self.counts.count("decided too late", 1);
            return;
        };
        self.waiting.retain(|it| *it != conn);
        self.conns[conn as usize].replaced = replaced;
        self.joining = Some(joining);
        self.answer(joining, answer, Vec::new());
    }

    pub(crate) fn timed_out(&mut self, conn: u32, waited_ticks: u32, limit_ticks: u32) {
        self.waiting.retain(|it| *it != conn);
        let awaiting = self.conn_mut(conn).and_then(|it| it.awaiting.take());
        let Some(Awaiting { joining, replaced, .. }) = awaiting else { return };
        if waited_ticks <= limit_ticks {
            self.fail("join", format!("socket {conn}: timed out after {waited_ticks} ticks"));
        }
        self.conns[conn as usize].replaced = replaced;
        self.counts.count("join timeouts", 1);
        // The reply came before the socket is closed in the same step.
        let closing = std::mem::take(&mut self.now.closing);
        self.refused(joining, JOIN_TIMED_OUT);
        self.now.closing.extend(closing);
    }

    pub(crate) fn left_unjoined(&mut self, conn: u32, topic: u8, join_ref: u32, msg_ref: u32) {
        self.expect(conn, topic, Delivery::reply(join_ref, msg_ref, b'o', EMPTY), false);
    }
}
