//! Steps: the inputs of a core, and the results that are due when it returns.

use crate::kit::delivery::{Delivery, Request, RequestKind};
use crate::kit::payload::{EMPTY, TOO_LONG, TOO_MANY, UNMATCHED};
use crate::kit::{NONE, refs};
use simurgh_core::{Reason, Stop};

use super::limits::Size;
use super::{Action, Call, CallbackEnd, CallbackRecord, Joining, Model, Now, code_bit};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Input {
    #[default]
    Nothing,
    /// A message, of which this is due.
    Message(Option<Due>),
    Mail(Option<Due>),
    Tick,
    FanOut,
    Settle,
    /// The connection is gone, or its client closes.
    Ended(u32),
    Other,
}

/// A callback or an end that a step must lead to, with the ref of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    HandleIn { chan: u32, id: u32 },
    ShardHandleInfo { chan: u32, id: u32 },
    Done { chan: u32, task: u32 },
    Leave { chan: u32 },
    Join { id: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Info(u32),
    Push(u32),
    /// To the message with this ref.
    Reply(u32, u32),
    Stop(Stop),
    Broadcast(u32),
    /// Ends the waiting handler of this task.
    Done(u32),
}

impl Model {
    pub(crate) fn begin_step(&mut self, shard: usize, input: Input, tick: u32) {
        self.step += 1;
        self.running = Some(shard);
        self.input = input;
        let Now { ending, closed, closing, joined, publishers, .. } = &mut self.now;
        for list in [ending, closed, closing, joined, publishers] {
            list.clear();
        }
        self.now.waits.clear();
        self.now.proceeded.clear();
        (self.now.seq, self.now.tick) = (self.seq, tick);
    }

    pub(crate) fn message(&mut self, conn: u32, asked: Request, size: Size) {
        self.counts.count("messages", 1);
        self.must_not_wait(conn);
        if self.is_over_a_limit(conn, asked, size) {
            return;
        }
        let Request { kind, topic, join_ref, msg_ref, id } = asked;
        let joined = self.joined(conn, topic);
        let current = joined.and_then(|it| self.chan(it)).map(|it| it.join_ref);
        let is_meant = join_ref == 0 || current == Some(join_ref);
        let due = match (kind, joined) {
            (RequestKind::Heartbeat, _) => {
                self.expect(conn, topic, Delivery::reply(0, msg_ref, b'o', EMPTY), false);
                None
            }
            (RequestKind::Join, _) => self.asks_to_join(conn, asked),
            (RequestKind::Leave, None) => {
                self.left_unjoined(conn, topic, join_ref, msg_ref);
                None
            }
            (RequestKind::Event, None) => {
                self.unmatched(conn);
                self.expect(conn, topic, Delivery::reply(0, msg_ref, b'e', UNMATCHED), false);
                None
            }
            (_, Some(_)) if !is_meant => {
                self.counts.count("stale messages", 1);
                None
            }
            (RequestKind::Leave, Some(chan)) => {
                self.counts.count("leaves", 1);
                self.joining = Some(Joining { conn, topic, join_ref, msg_ref });
                Some(Due::Leave { chan })
            }
            (RequestKind::Event, Some(chan)) => {
                self.joining = Some(Joining { conn, topic, join_ref, msg_ref });
                Some(Due::HandleIn { chan, id })
            }
        };
        self.input = Input::Message(due);
    }

    fn asks_to_join(&mut self, conn: u32, asked: Request) -> Option<Due> {
        let Request { topic, join_ref, msg_ref, id, .. } = asked;
        if topic == self.topics.unmatched() {
            self.unmatched(conn);
            self.expect(conn, topic, Delivery::reply(0, msg_ref, b'e', UNMATCHED), false);
            return None;
        }
        let channels = self.conn(conn).map_or(0, |it| it.channels.len());
        if self.joined(conn, topic).is_none() && channels >= self.channels_max {
            self.refuses(conn);
            self.expect(conn, topic, Delivery::reply(join_ref, msg_ref, b'e', TOO_MANY), false);
            return None;
        }
        let is_long = [join_ref, msg_ref].into_iter().any(refs::is_too_long);
        if is_long || self.topics.over == Some(topic) {
            self.refuses(conn);
            self.counts.count("joins with something too long", 1);
            self.expect(conn, topic, Delivery::reply(join_ref, msg_ref, b'e', TOO_LONG), false);
            return None;
        }
        self.joining = Some(Joining { conn, topic, join_ref, msg_ref });
        Some(Due::Join { id })
    }

    pub(crate) fn refuses(&mut self, conn: u32) {
        self.counts.count("refused joins", 1);
        if let Some(shard) = self.shard_of_conn(conn) {
            shard.refused += 1;
        }
    }

    fn unmatched(&mut self, conn: u32) {
        if let Some(shard) = self.shard_of_conn(conn) {
            shard.unmatched += 1;
        }
    }

    pub(crate) fn told(&mut self, chan: u32, intent: Intent) {
        self.input = Input::Mail(None);
        if !self.is_live(chan) {
            return;
        }
        self.counts.count("handles used", 1);
        match intent {
            Intent::Info(id) => self.input = Input::Mail(Some(Due::ShardHandleInfo { chan, id })),
            Intent::Push(id) => self.told_to(chan, vec![Action::Push(id)], CallbackEnd::Nothing, 0),
            Intent::Reply(msg_ref, id) => {
                self.told_to(chan, Vec::new(), CallbackEnd::Reply(b'o', id), msg_ref);
            }
            Intent::Stop(how) => self.must_end(chan, Reason::Stopped(how), None),
            Intent::Broadcast(id) => {
                self.counts.count("broadcasts by handles", 1);
                self.told_to(chan, vec![Action::Broadcast(id)], CallbackEnd::Nothing, 0);
            }
            Intent::Done(task) => self.input = Input::Mail(Some(Due::Done { chan, task })),
        }
    }

    /// Handles a use of a handle as an effect of a callback.
    fn told_to(&mut self, chan: u32, effects: Vec<Action>, out: CallbackEnd, msg_ref: u32) {
        let conn = self.chan(chan).map_or(NONE, |it| it.conn);
        let record = CallbackRecord::new((chan, conn), Call::HandleIn(NONE), effects, out);
        self.end(CallbackRecord { msg_ref, ..record });
    }

    pub(super) fn replies_to(&mut self, chan: u32, msg_ref: u32, response: u32) {
        self.told_to(chan, Vec::new(), CallbackEnd::Reply(b'e', response), msg_ref);
    }

    pub(super) fn told_some(&mut self, effects: Vec<Action>) {
        self.told_to(NONE, effects, CallbackEnd::Nothing, 0);
    }

    /// What was due has come; returns the ref of its message.
    pub(crate) fn take_due(&mut self, what: Due) -> u32 {
        match &mut self.input {
            Input::Message(due) | Input::Mail(due) if *due == Some(what) => {
                *due = None;
                self.joining.map_or(0, |it| it.msg_ref)
            }
            other => {
                let text = format!("{what:?} within {other:?}");
                self.fail("callback", text);
                0
            }
        }
    }

    pub(crate) fn is_rejoin(&self, conn: u32, topic: u8) -> bool {
        let is_it = self.joining.is_some_and(|it| it.conn == conn && it.topic == topic);
        is_it && matches!(self.input, Input::Message(Some(Due::Join { .. })))
    }

    /// A socket is closed, perhaps because its client has been silent for too long.
    pub(crate) fn over(&mut self, conn: u32, is_silent: bool) {
        let step = self.step;
        let Some(it) = self.conn_mut(conn).filter(|it| it.is_open) else { return };
        (it.is_open, it.closed_step) = (false, step);
        let (shard, is_gone) = (it.shard, self.input == Input::Ended(conn));
        self.waiting.retain(|it| *it != conn);
        let drains = self.shards.get(shard).is_some_and(|it| it.drains);
        let is_tick = self.input == Input::Tick;
        let has_expired = self.has_expired(conn);
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.open -= 1;
            shard.sockets.retain(|it| *it != conn);
        }
        let Some(it) = self.conns.get_mut(conn as usize) else { return };
        (it.awaiting, it.replaced, it.waits) = (None, None, Default::default());
        if is_tick && is_silent {
            it.codes |= code_bit(1002);
        }
        if is_tick && drains {
            it.codes |= code_bit(1012);
        }
        if is_tick && has_expired {
            it.codes |= code_bit(3000);
        }
        it.is_cut |= is_gone;
        let (codes, left) = (it.codes, it.channels.len());
        self.may_have_expired(conn, has_expired, codes == code_bit(3000));
        if codes == 0 && !is_gone {
            self.fail("close", format!("socket {conn} is closed for no reason"));
        }
        if left > 0 {
            self.fail("terminate", format!("socket {conn} is closed, {left} channels are not"));
        }
    }

    pub(crate) fn end_step(&mut self) {
        let shard = self.running.take();
        let input = std::mem::replace(&mut self.input, Input::Nothing);
        if let Input::Message(Some(due)) | Input::Mail(Some(due)) = input {
            self.still_due(due);
        }
        (self.joining, self.prepared) = (None, None);
        while let Some(frame) = self.frames.pop() {
            // A failed join has no effects.
            if !matches!(frame.did.call, Call::Join) {
                self.fail("broadcast", format!("never accepted: {:?}", frame.did));
            }
        }
        self.check_told();
        self.check_listeners();
        if input == Input::Tick {
            self.check_expired(shard);
        }
        let ending = std::mem::take(&mut self.now.ending);
        if let Some(chan) = ending.iter().find(|it| self.is_live(**it)) {
            self.fail("terminate", format!("channel {chan} goes on after its end"));
        }
        self.now.ending = ending;
        let is_open = |it: u32| self.conn(it).is_some_and(|it| it.is_open);
        if let Some(conn) = self.now.closing.iter().find(|it| is_open(**it)) {
            let text = format!("socket {conn} is open although the application closes it");
            return self.fail("close", text);
        }
        let conn_of = |it: u32| self.chan(it).map_or(NONE, |it| it.conn);
        if let Some(chan) = self.now.closed.iter().find(|it| is_open(conn_of(**it))) {
            let text = format!("channel {chan} was told its socket is gone, which is not so");
            return self.fail("reason", text);
        }
        let owes = |it: u32| self.chan(it).is_some_and(|it| it.owes_after_join);
        if let Some(chan) = self.now.joined.iter().find(|it| owes(**it)) {
            self.findings.fail("callback", format!("channel {chan}: no after_join"));
        }
    }

    fn still_due(&mut self, due: Due) {
        let joining = self.joining;
        match (due, joining) {
            // A broadcast that it intercepted meanwhile has ended it, so nothing is left to leave.
            (Due::Leave { chan }, Some(it)) if !self.is_live(chan) => {
                self.left_unjoined(it.conn, it.topic, it.join_ref, it.msg_ref);
            }
            _ => self.fail("callback", format!("{due:?} has not come")),
        }
    }
}
