//! Callbacks: which may run when, and the consequences of their effects.

use crate::kit::delivery::{Delivery, DeliveryKind};
use crate::kit::{NONE, payload};
use simurgh_core::{Reason, Stop, Wire};

use super::accept::event_letter;
use super::presence::PresenceAction;
use super::{Frame, Joining, Life, Model, Relay, Replaced, code_bit, notice_of};
use crate::limits::Limited;
use crate::model::steps::{Due, Input};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Join,
    AfterJoin,
    HandleIn(u32),
    ShardHandleInfo(u32),
    /// The end of a waiting handler, by its task.
    Done(u32),
    HandleOut(u32),
    HandleBroadcast(u32, Option<u8>),
    Terminate(Reason),
    Hibernate,
}

/// An effect of a callback, by the numbers of payloads and topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Push(u32),
    Broadcast(u32),
    Subscribe(u8),
    Unsubscribe(u8),
    Close(u16),
    Reply(u32, u32),
    Assign(u32),
    Link(u32),
    Hold,
    Proceed,
    Present(PresenceAction),
    /// A lifetime of its socket, as this word encodes it.
    Expire(u32),
    Exceed(Limited),
    /// An event of presence for a channel: its letter, the number of its payload, and its record.
    Say {
        chan: u32,
        word: u8,
        said: u32,
        record: u32,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum CallbackEnd {
    Nothing,
    Reply(u8, u32),
    Stop(Stop),
    ReplyAndStop(u8, u32, Stop),
    Panic,
    /// The join is refused for its panic once its effects have taken place.
    JoinCrashed(Joining),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Ok { chan: u32, reply: u32, intercept_panics: bool },
    Error(u32),
    Later,
    Panic,
}

#[derive(Debug)]
pub(crate) struct CallbackRecord {
    pub(crate) chan: u32,
    pub(crate) conn: u32,
    pub(crate) call: Call,
    pub(crate) effects: Vec<Action>,
    pub(crate) out: CallbackEnd,
    pub(crate) msg_ref: u32,
    pub(crate) seq: u64,
}

impl CallbackRecord {
    pub(super) fn new(
        (chan, conn): (u32, u32),
        call: Call,
        effects: Vec<Action>,
        out: CallbackEnd,
    ) -> Self {
        Self { chan, conn, call, effects, out, msg_ref: 0, seq: 0 }
    }
}

impl Model {
    /// Begins a callback; returns the ref of its message and the sequence number of its broadcast.
    pub(crate) fn begin(&mut self, chan: u32, call: Call) -> (u32, u64) {
        self.counts.count("callbacks", 1);
        let Some(it) = self.chan_mut(chan) else { return (0, 0) };
        if it.life != Life::Live {
            let text = format!("{call:?} of channel {chan}, which is {:?}", it.life);
            self.fail("callback", text);
            return (0, 0);
        }
        if call != Call::Hibernate {
            it.hibernates = false;
        }
        match call {
            Call::Join => {}
            Call::AfterJoin => {
                if !std::mem::take(&mut it.owes_after_join) {
                    self.fail("callback", format!("channel {chan}: after_join again"));
                }
            }
            Call::HandleIn(id) => {
                let msg_ref = self.take_due(Due::HandleIn { chan, id });
                self.came(chan, id);
                return (msg_ref, 0);
            }
            Call::Done(task) => {
                self.take_due(Due::Done { chan, task });
                self.is_done(chan, task);
            }
            Call::ShardHandleInfo(id) => {
                return (self.take_due(Due::ShardHandleInfo { chan, id }), 0);
            }
            Call::HandleOut(id) => return (0, self.intercepted(chan, id)),
            Call::HandleBroadcast(id, topic) => self.relayed(chan, topic, id),
            Call::Terminate(reason) => self.terminated(chan, reason),
            Call::Hibernate => {
                if std::mem::replace(&mut it.hibernates, true) {
                    self.fail("callback", format!("channel {chan} hibernates twice"));
                }
                self.counts.count("hibernations", 1);
            }
        }
        (0, 0)
    }

    fn intercepted(&mut self, chan: u32, id: u32) -> u64 {
        self.counts.count("interceptions", 1);
        let pending = self.chan_mut(chan).and_then(|it| it.pending.pop_front());
        match pending {
            Some((seq, next)) if next == id => seq,
            _ => {
                let text = format!("channel {chan} intercepts {id} where {pending:?} is next");
                self.fail("interception", text);
                0
            }
        }
    }

    fn relayed(&mut self, chan: u32, topic: Option<u8>, id: u32) {
        self.counts.count("relayed", 1);
        let relays = self.chan_mut(chan).map(|it| &mut it.relays);
        let relay = relays.into_iter().flatten().find(|it| Some(it.topic) == topic);
        let Some(relay) = relay else {
            return self.fail("relay", format!("channel {chan} hears {id}: not subscribed"));
        };
        let next = relay.pending.pop_front();
        if next != Some(id) {
            self.fail("relay", format!("channel {chan} hears {id} where {next:?} is next"));
        }
    }

    fn terminated(&mut self, chan: u32, reason: Reason) {
        let step_seq = self.now.seq;
        let Some(it) = self.chan(chan) else { return };
        let (conn, topic, must_end, ended_in) = (it.conn, it.topic, it.must_end, it.ended_in);
        let left_out = it.pending.front().is_some_and(|(seq, _)| *seq < step_seq);
        let wire = self.conn(conn).map_or(Wire::V2, |it| it.wire);
        let mut leave_ref = None;
        if ended_in.is_none() && reason != Reason::Closed {
            self.forgo(chan);
        }
        if reason == Reason::Stopped(Stop::Expired) {
            self.expires(chan, true);
        }
        match reason {
            Reason::Closed => self.now.closed.push(chan),
            Reason::Left => leave_ref = Some(self.take_due(Due::Leave { chan })),
            Reason::Rejoined => {
                if !self.is_rejoin(conn, topic) {
                    self.fail("reason", format!("channel {chan} ends by {reason:?}"));
                }
            }
            _ if must_end == Some(reason) => {}
            Reason::Crashed if self.is_overdue(chan, conn) => {}
            _ => {
                let text = format!("channel {chan} ends by {reason:?}, not by {must_end:?}");
                self.fail("reason", text);
            }
        }
        if reason != Reason::Closed && left_out && ended_in.is_none() {
            self.fail("interception", format!("channel {chan} ends before it saw all it had to"));
        }
        match ended_in {
            Some(seq) if reason != Reason::Closed => self.cut_short(chan, seq),
            _ => {}
        }
        // A leave is answered once its interceptor has seen what was accepted before. Broadcasts
        // that the interceptor makes meanwhile reach the channel after that, and may still end it.
        let is_late = reason == Reason::Closed || ended_in.is_some_and(|seq| seq >= step_seq);
        if is_late && self.input == Input::Message(Some(Due::Leave { chan })) {
            leave_ref = Some(self.take_due(Due::Leave { chan }));
        }
        if let Some(msg_ref) = leave_ref {
            let join_ref = self.chan(chan).map_or(0, |it| it.join_ref);
            let line = Delivery::reply(join_ref, msg_ref, b'o', payload::EMPTY);
            self.say_behind(chan, line, step_seq);
        }
        match notice_of(reason) {
            Some(sort) if wire == Wire::Plain => {
                let code = if sort == DeliveryKind::Close { 1000 } else { 1011 };
                self.may_close(conn, code);
                self.now.closing.push(conn);
            }
            Some(sort) => self.notify(chan, sort),
            None => {}
        }
        if reason == Reason::Rejoined
            && let Some(it) = self.conn_mut(conn)
        {
            it.replaced = Some(Replaced { chan, pushes: Vec::new() });
        }
        self.take_out(chan);
    }

    pub(crate) fn notify(&mut self, chan: u32, kind: DeliveryKind) {
        let Some(it) = self.chan(chan) else { return };
        let join_ref = if it.is_given { it.join_ref } else { 0 };
        let id = match kind {
            DeliveryKind::Close => payload::EMPTY,
            _ => payload::CHANNEL_CRASH,
        };
        self.say(chan, Delivery { kind, word: 0, join_ref, msg_ref: join_ref, id });
    }

    /// An interceptor has ended its own channel, which receives nothing more.
    fn cut_short(&mut self, chan: u32, seq: u64) {
        let Some(it) = self.chan(chan) else { return };
        let (conn, topic) = (it.conn, usize::from(it.topic));
        let queue = self.conn_mut(conn).and_then(|it| it.queues.get_mut(topic));
        if let Some(queue) = queue {
            queue.out.retain(|it| it.horizon <= seq);
        }
    }

    /// A channel may miss what others broadcast while its interceptor catches up for its end.
    fn forgo(&mut self, chan: u32) {
        let step = self.step;
        let Some(it) = self.chan(chan).filter(|it| it.intercepts > 0) else { return };
        let (conn, topic) = (it.conn, usize::from(it.topic));
        let queue = self.conn_mut(conn).and_then(|it| it.queues.get_mut(topic));
        for expected in queue.into_iter().flat_map(|it| &mut it.out) {
            expected.is_optional |= expected.step == step && expected.passes;
        }
    }

    /// A channel sends a message, after what was broadcast by now.
    pub(crate) fn say(&mut self, chan: u32, line: Delivery) {
        self.say_behind(chan, line, self.seq);
    }

    /// A channel sends a message, after what was accepted before `horizon`.
    pub(super) fn say_behind(&mut self, chan: u32, line: Delivery, horizon: u64) {
        let Some(it) = self.chan(chan) else { return };
        let (conn, topic) = (it.conn, it.topic);
        let horizon = it.ended_in.map_or(horizon, |it| horizon.min(it + 1));
        self.expect(conn, topic, line, false);
        let queue = self.conn_mut(conn).and_then(|it| it.queues.get_mut(usize::from(topic)));
        if let Some(last) = queue.and_then(|it| it.own.back_mut()) {
            last.horizon = last.horizon.min(horizon);
        }
    }

    fn take_out(&mut self, chan: u32) {
        let Some(it) = self.chan_mut(chan) else { return };
        (it.life, it.owes_after_join) = (Life::Ended, false);
        self.presence.all.channel_ended(chan);
        let Some(it) = self.chan_mut(chan) else { return };
        let (conn, topic) = (it.conn, usize::from(it.topic));
        it.pending.clear();
        let relays: Vec<Relay> = std::mem::take(&mut it.relays);
        self.work_ends(chan, conn);
        let Some(it) = self.conn_mut(conn) else { return };
        it.channels.retain(|(_, it)| *it != chan);
        let shard = it.shard;
        let Some(shard) = self.shards.get_mut(shard) else { return };
        shard.channels -= 1;
        let forget = |list: Option<&mut Vec<u32>>| {
            if let Some(list) = list {
                list.retain(|it| *it != chan);
            }
        };
        forget(shard.members.get_mut(topic));
        for relay in &relays {
            forget(shard.relays.get_mut(usize::from(relay.topic)));
        }
    }

    pub(crate) fn end(&mut self, mut did: CallbackRecord) {
        self.within_limits(&mut did);
        self.answers_refused(&mut did);
        self.note(|| {
            let CallbackRecord { chan, conn, call, effects, out, .. } = &did;
            let who = if *chan == NONE { String::new() } else { format!("channel {chan}, ") };
            format!("{who}#{conn}: {call:?} does {effects:?}, {out:?}")
        });
        let in_closing = self.now.closing.contains(&did.conn);
        self.frames.push(Frame { did, at: 0, horizon: None, in_closing });
        self.advance();
    }

    /// A message whose broadcast cannot be sent is answered with an error.
    fn answers_refused(&mut self, did: &mut CallbackRecord) {
        let is_refused = |it: &Action| match it {
            Action::Broadcast(id) => self.made(*id).is_some_and(|it| it.weight == 0),
            _ => false,
        };
        if !matches!(did.call, Call::HandleIn(_)) || !did.effects.iter().any(is_refused) {
            return;
        }
        let wants_none = did.msg_ref == 0;
        did.out = match did.out {
            CallbackEnd::Nothing if !wants_none => CallbackEnd::Reply(b'e', payload::REFUSED),
            CallbackEnd::Reply(..) => CallbackEnd::Reply(b'e', payload::REFUSED),
            CallbackEnd::Stop(how) if !wants_none => {
                CallbackEnd::ReplyAndStop(b'e', payload::REFUSED, how)
            }
            CallbackEnd::ReplyAndStop(.., how) => {
                CallbackEnd::ReplyAndStop(b'e', payload::REFUSED, how)
            }
            _ => return,
        };
    }

    /// Carries out effects until a broadcast is accepted, or an interceptor catches up, first.
    pub(crate) fn advance(&mut self) {
        loop {
            if self.is_blocked() {
                return;
            }
            let Some(top) = self.frames.last_mut() else { return };
            let horizon = top.horizon.take();
            let Some(effect) = top.did.effects.get(top.at).copied() else {
                let Some(done) = self.frames.pop() else { return };
                self.outcome(done.did, horizon);
                continue;
            };
            if effect == Action::Present(PresenceAction::Ask) {
                let (chan, at) = (top.did.chan, top.at);
                if let Some(says) = self.answers_to(chan) {
                    let Some(top) = self.frames.last_mut() else { return };
                    top.did.effects.splice(at..=at, says);
                    continue;
                }
            }
            if let Action::Broadcast(id) = effect
                && self.made(id).is_some_and(|it| it.weight != 0)
            {
                return;
            }
            let Some(top) = self.frames.last_mut() else { return };
            top.at += 1;
            let (did, in_closing) = (&top.did, top.in_closing);
            let (chan, conn, call, seq) = (did.chan, did.conn, did.call, did.seq);
            match effect {
                Action::Push(id) => self.pushed(chan, call, horizon.unwrap_or(seq), id),
                Action::Subscribe(topic) => self.subscribed(chan, topic),
                Action::Unsubscribe(topic) => self.unsubscribed(chan, topic),
                Action::Close(code) => {
                    if call != Call::Terminate(Reason::Closed) {
                        self.counts.count("closes by the application", 1);
                        self.may_close(conn, code);
                        self.now.closing.push(conn);
                    }
                }
                Action::Reply(msg_ref, id) => {
                    self.replies(chan, horizon.unwrap_or(seq), msg_ref, id);
                }
                // It is too large to be broadcast.
                Action::Broadcast(_) => {}
                Action::Exceed(what) => self.closes_for(conn, what),
                Action::Expire(word) => self.expires_in(conn, call, in_closing, word),
                Action::Assign(value) => self.assigns(conn, call, in_closing, value),
                Action::Present(does) => self.presents(chan, conn, call, does, in_closing),
                Action::Say { .. } => self.says_presence(call, effect, horizon.unwrap_or(seq)),
                other => self.reached(chan, conn, call, other),
            }
        }
    }

    fn replies(&mut self, chan: u32, seq: u64, msg_ref: u32, id: u32) {
        let Some(it) = self.chan(chan).filter(|it| it.life == Life::Live) else { return };
        if !self.now.closing.contains(&it.conn) {
            self.say_behind(chan, Delivery::reply(it.join_ref, msg_ref, b'o', id), seq);
        }
    }

    /// Whether an interceptor sends something next, but must see earlier broadcasts before.
    fn is_blocked(&mut self) -> bool {
        let Some(top) = self.frames.last_mut() else { return false };
        let mut chan = top.did.chan;
        let is_said = match (top.did.effects.get(top.at), top.did.call) {
            (_, Call::HandleOut(_) | Call::Terminate(_)) => return false,
            (Some(Action::Say { chan: to, .. }), _) => {
                chan = *to;
                true
            }
            (Some(Action::Push(_) | Action::Reply(..)), _) => true,
            (None, Call::HandleIn(_)) => {
                matches!(top.did.out, CallbackEnd::Reply(..) | CallbackEnd::ReplyAndStop(..))
            }
            _ => false,
        };
        if !is_said {
            return false;
        }
        let horizon = *top.horizon.get_or_insert(self.seq);
        if chan != top.did.chan && self.are_ending(chan) {
            return true;
        }
        let Some(it) = self.chan(chan).filter(|it| it.life == Life::Live) else { return false };
        // A broadcast that it sees may end it: then this is sent first, and it sees no more.
        it.must_end.is_none() && it.pending.front().is_some_and(|(seq, _)| *seq < horizon)
    }

    pub(crate) fn may_close(&mut self, conn: u32, code: u16) {
        self.conns[conn as usize].codes |= code_bit(code);
    }

    /// A push; `seq` numbers the broadcast that it is made of, or that it follows.
    fn pushed(&mut self, chan: u32, call: Call, seq: u64, id: u32) {
        let Some(it) = self.chan(chan) else { return };
        let (conn, topic) = (it.conn, it.topic);
        let word = self.made(id).map_or(0, |it| event_letter(it.event));
        let line = Delivery::event(word, it.join_ref, id);
        match call {
            Call::Terminate(Reason::Closed) => {}
            Call::Terminate(Reason::Rejoined) => {
                let replaced = self.conn_mut(conn).and_then(|it| it.replaced.as_mut());
                if let Some(replaced) = replaced.filter(|it| it.chan == chan) {
                    replaced.pushes.push(id);
                }
            }
            Call::HandleOut(_) => self.expect_out(conn, topic, line, seq, false),
            Call::Terminate(_) => self.say(chan, line),
            // Nothing is sent after the end of its socket.
            _ if self.now.closing.contains(&conn) => {}
            _ => self.say_behind(chan, line, seq),
        }
    }

    fn subscribed(&mut self, chan: u32, topic: u8) {
        let Some(it) = self.chan_mut(chan).filter(|it| it.life == Life::Live) else { return };
        if it.relays.iter().any(|it| it.topic == topic) {
            return;
        }
        it.relays.push(Relay { topic, pending: Default::default() });
        let Some(shard) = self.shard_of(chan) else { return };
        shard.relays[usize::from(topic)].push(chan);
    }

    fn unsubscribed(&mut self, chan: u32, topic: u8) {
        let Some(it) = self.chan_mut(chan).filter(|it| it.life == Life::Live) else { return };
        it.relays.retain(|it| it.topic != topic);
        let Some(shard) = self.shard_of(chan) else { return };
        shard.relays[usize::from(topic)].retain(|it| *it != chan);
    }

    fn shard_of(&mut self, chan: u32) -> Option<&mut super::Shard> {
        let conn = self.chan(chan)?.conn;
        let shard = self.conn(conn)?.shard;
        self.shards.get_mut(shard)
    }

    fn outcome(&mut self, did: CallbackRecord, horizon: Option<u64>) {
        let CallbackRecord { chan, conn: did_conn, out, msg_ref, seq, call, mut effects } = did;
        effects.clear();
        self.spare.push(effects);
        if let CallbackEnd::JoinCrashed(joining) = out {
            return self.refused(joining, payload::JOIN_CRASHED);
        }
        if chan == NONE || !self.is_live(chan) {
            return;
        }
        let (reply, end) = match out {
            CallbackEnd::Nothing | CallbackEnd::JoinCrashed(_) => (None, None),
            CallbackEnd::Reply(word, id) => (Some((word, id)), None),
            CallbackEnd::Stop(how) => (None, Some(Reason::Stopped(how))),
            CallbackEnd::ReplyAndStop(word, id, how) => {
                (Some((word, id)), Some(Reason::Stopped(how)))
            }
            CallbackEnd::Panic => (None, Some(Reason::Crashed)),
        };
        let is_closed = self.now.closing.contains(&did_conn);
        if let (Some((word, id)), Call::HandleIn(_), false) = (reply, call, is_closed) {
            let join_ref = self.chan(chan).map_or(0, |it| it.join_ref);
            let horizon = horizon.unwrap_or(self.seq);
            self.say_behind(chan, Delivery::reply(join_ref, msg_ref, word, id), horizon);
        }
        if let Some(reason) = end {
            let is_out = matches!(call, Call::HandleOut(_));
            self.must_end(chan, reason, is_out.then_some(seq));
        }
    }

    pub(crate) fn must_end(&mut self, chan: u32, reason: Reason, ended_in: Option<u64>) {
        match reason {
            Reason::Crashed => self.counts.count("panics", 1),
            _ => self.counts.count("stops", 1),
        }
        if reason == Reason::Stopped(Stop::Expired) {
            self.expires(chan, false);
        }
        self.now.ending.push(chan);
        if let Some(it) = self.chan_mut(chan) {
            // Its effects while it intercepts come first.
            if it.ended_in.is_none() {
                (it.must_end, it.ended_in) = (Some(reason), ended_in);
            }
        }
    }

    /// The running shard charges itself for a broadcast, which means that it accepts it now.
    pub(crate) fn own_charge(&mut self, shard: usize, bytes: usize) {
        loop {
            let Some(top) = self.frames.last_mut() else {
                return self.fail("broadcast", format!("{bytes} bytes that nobody broadcasts"));
            };
            let next = top.did.effects.get(top.at).copied();
            if let Some(Action::Broadcast(id)) = next
                && self.made.get(id as usize).is_some_and(|it| it.weight as usize == bytes)
            {
                top.at += 1;
                self.now.publishers.push(top.did.conn);
                self.accept(shard, id);
                return self.advance();
            }
            // A failed join has no effects.
            if matches!(top.did.call, Call::Join) {
                self.frames.pop();
                continue;
            }
            return self.fail("broadcast", format!("{bytes} bytes where {next:?} is next"));
        }
    }

    pub(crate) fn dropped(&mut self, chan: u32) {
        self.alive -= 1;
        if self.is_live(chan) {
            self.fail("callback", format!("channel {chan} is dropped and was not told"));
        }
    }
}
