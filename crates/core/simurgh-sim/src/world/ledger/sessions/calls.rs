//! Callbacks: which may run when, and what follows from their effects.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Join,
    AfterJoin,
    HandleIn(u32),
    HandleInfo(u32),
    HandleOut(u32),
    HandleBroadcast(u32, Option<u8>),
    Terminate(Reason),
    Hibernate,
}

/// An effect of a callback, by the numbers of payloads and topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Push(u32),
    /// An event of presence that an interceptor passes on, by its letter.
    Pass(u8, u32),
    Broadcast(u32),
    Subscribe(u8),
    Unsubscribe(u8),
    Close(u16),
    Assign(u32),
    Link(u32),
    Hold,
    Proceed,
    Track(u32),
    Update(u32),
    Untrack(u8),
    AskState,
    /// A lifetime of its socket, as this word encodes it.
    Expire(u32),
    Exceed(Limited),
}

/// How a callback ends: its reply's letter and number, and why its channel ends with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallEnd {
    pub(crate) reply: Option<(u8, u32)>,
    pub(crate) reason: Option<Reason>,
}

/// A callback, with what its message asked.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    pub(crate) chan: u32,
    pub(crate) conn: u32,
    pub(crate) call: Call,
    pub(crate) acts: Vec<Act>,
    pub(crate) end: CallEnd,
    /// The ref of its message, or the place of its broadcast.
    pub(crate) msg_ref: u32,
    pub(crate) place: usize,
}

impl Called {
    /// A join, which has no channel yet if it is `NONE`.
    pub(crate) fn join(chan: u32, conn: u32) -> Self {
        let (call, acts, end) = (Call::Join, Vec::new(), CallEnd::default());
        Self { chan, conn, call, acts, end, msg_ref: 0, place: 0 }
    }
}

impl Ledger {
    pub(crate) fn begin(&mut self, chan: u32, call: Call) -> Called {
        let conn = self.sessions.chan(chan).map_or(NONE, |it| it.conn);
        let acts = self.spare.take().unwrap_or_default();
        let mut called = Called { call, acts, ..Called::join(chan, conn) };
        // It was no member yet if its join has waited for something.
        let admitted = self.sessions.conn_mut(conn).map(|conn| &mut conn.admitted);
        let admitted = admitted.and_then(|it| it.take_if(|it| it.1 == chan));
        if let Some((joining, chan, reply)) = admitted {
            self.let_in(joining, chan, reply, Vec::new());
        }
        let Some(it) = self.sessions.chans.get_mut(chan as usize) else { return called };
        if it.life != Life::Live {
            self.fail("callback", format!("{call:?} of channel {chan}, which does not live"));
            return called;
        }
        let slept = std::mem::replace(&mut it.hibernates, call == Call::Hibernate);
        match call {
            Call::Join => {}
            Call::AfterJoin => {
                if !std::mem::take(&mut it.owes_after_join) {
                    self.fail("callback", format!("channel {chan}: after_join again"));
                }
            }
            Call::HandleIn(_) | Call::HandleInfo(_) => called.msg_ref = self.take_due((chan, call)),
            Call::HandleOut(id) => called.place = self.intercepted(chan, id),
            Call::HandleBroadcast(id, topic) => self.relayed(chan, topic, id),
            Call::Terminate(reason) => self.terminated(chan, reason),
            Call::Hibernate if slept => {
                self.fail("callback", format!("channel {chan} hibernates twice"));
            }
            Call::Hibernate => {}
        }
        called
    }

    /// The next broadcast that a channel is to intercept: its place, number and step.
    pub(super) fn next_intercept(&self, chan: u32) -> Option<(usize, u32, u32)> {
        let it = self.sessions.chan(chan).filter(|it| it.intercepts > 0)?;
        let line = self.line(self.sessions.shard_of(it.conn), it.topic);
        let mut entries = line.iter().enumerate().skip(it.out_cursor.max(it.from));
        let found = entries.find(|(_, entry)| entry.except != chan && it.takes(entry));
        found.map(|(at, entry)| (at, entry.id, entry.step))
    }

    fn intercepted(&mut self, chan: u32, id: u32) -> usize {
        if self.sessions.chan(chan).is_some_and(|chan| self.is_kept(chan.topic)) {
            return 0;
        }
        let next = self.next_intercept(chan);
        let Some((at, ..)) = next.filter(|next| next.1 == id) else {
            self.fail("interception", format!("{chan} intercepts {id}: next is {next:?}"));
            return 0;
        };
        self.sessions.chans[chan as usize].out_cursor = at + 1;
        at
    }

    /// The next broadcast of a further topic that a channel is to receive, or this one. Those of
    /// the step in which it subscribed may have come before that, and it may have ended.
    pub(super) fn next_relay(&self, chan: u32, topic: u8, id: Option<u32>) -> Option<(usize, u32)> {
        let it = self.sessions.chan(chan)?;
        let relay = *it.relays.iter().find(|relay| relay.topic == topic)?;
        let line = self.line(self.sessions.shard_of(it.conn), topic);
        let mut entries = line.iter().enumerate().skip(relay.from);
        let is_next = |(_, entry): &(usize, &LineEntry)| {
            let is_due = entry.step != relay.since && !relay.is_unsure;
            entry.except != chan && (is_due || Some(entry.id) == id)
        };
        entries.find(is_next).map(|(at, entry)| (at, entry.id))
    }

    fn relayed(&mut self, chan: u32, topic: Option<u8>, id: u32) {
        self.count("relayed", 1);
        let next = topic.and_then(|topic| self.next_relay(chan, topic, Some(id)));
        let Some((at, _)) = next.filter(|next| next.1 == id) else {
            return self.fail("relay", format!("channel {chan} receives {id}: next is {next:?}"));
        };
        let relays = &mut self.sessions.chans[chan as usize].relays;
        for relay in relays.iter_mut().filter(|relay| Some(relay.topic) == topic) {
            (relay.from, relay.is_unsure) = (at + 1, false);
        }
    }

    fn terminated(&mut self, chan: u32, reason: Reason) {
        let step = self.step;
        let it = &self.sessions.chans[chan as usize];
        let (conn, topic, join_ref) = (it.conn, it.topic, it.join_ref);
        let (shard, has_ended_itself) = (self.sessions.shard_of(conn), it.has_ended_itself);
        let is_expected = it.must_end.contains(&reason);
        // How much its shard had accepted before this step.
        let line = self.line(shard, topic);
        let new = line.iter().rev().take_while(|entry| entry.step == step).count();
        let (from, end) = (line.len() - new, line.len());
        let Now { joining, due, .. } = &self.sessions.now;
        let is_replaced = joining.is_some_and(|it| (it.conn, it.topic) == (conn, topic))
            && matches!(due, Some((_, Call::Join)));
        let mut leave_ref = None;
        match reason {
            Reason::Closed => self.sessions.now.closed.push(chan),
            Reason::Left => leave_ref = Some(self.take_due((chan, Call::Terminate(reason)))),
            Reason::Rejoined if is_replaced => {}
            _ if is_expected => {}
            Reason::Crashed if self.is_overdue(chan, conn) => {}
            _ => self.fail("reason", format!("channel {chan} ends by {reason:?}")),
        }
        let unseen = self.next_intercept(chan).filter(|(_, _, accepted)| *accepted < step);
        if unseen.is_some() && reason != Reason::Closed && !has_ended_itself {
            self.fail("interception", format!("channel {chan} ends before it saw {unseen:?}"));
        }
        self.sessions.shards[shard].expired.0 +=
            u64::from(reason == Reason::Stopped(Stop::Expired));
        let it = &mut self.sessions.chans[chan as usize];
        it.end = Some(if has_ended_itself { it.out_cursor } else { end });
        it.ended_step = step;
        if let Some(msg_ref) = leave_ref {
            let line = Delivery::reply(join_ref, msg_ref, b'o', EMPTY);
            self.promise(conn, topic, line, from);
        }
        let wire = self.sessions.conn(conn).map_or(Wire::V2, |conn| conn.wire);
        match notice_of(reason) {
            Some(kind) if wire == Wire::Plain => {
                let code = if kind == DeliveryKind::Close { 1000 } else { 1011 };
                self.sessions.must_close(conn, code);
            }
            Some(kind) => self.notify(chan, kind, from, true),
            None if reason == Reason::Rejoined => {
                self.another_join(conn);
                self.sessions.conns[conn as usize].replaced = Some((chan, Vec::new()));
            }
            None => {}
        }
        self.presences.channel_ended(chan);
        let it = &mut self.sessions.chans[chan as usize];
        (it.life, it.owes_after_join) = (Life::Ended, false);
        it.relays.clear();
        self.sessions.now.unlinked.append(&mut it.tasks);
        self.proceeds(chan, conn);
        self.sessions.conns[conn as usize].channels.retain(|(_, joined)| *joined != chan);
    }

    pub(super) fn notify(&mut self, chan: u32, kind: DeliveryKind, from: usize, ends: bool) {
        let it = &self.sessions.chans[chan as usize];
        let (conn, topic) = (it.conn, it.topic);
        let join_ref = if it.is_given { it.join_ref } else { 0 };
        let is_close = kind == DeliveryKind::Close;
        let id = if is_close { EMPTY } else { payload::reason("channel_crash") };
        let line = Delivery { kind, word: 0, join_ref, msg_ref: join_ref, id };
        self.promise_own(conn, topic, line, from, ends.then_some(NONE));
    }

    /// A callback has returned: its effects are carried out after it.
    pub(crate) fn end(&mut self, mut called: Called) {
        self.within_limits(&mut called);
        self.answers_refused(&mut called);
        self.note(|| format!("{called:?}"));
        let Called { chan, conn, call, mut acts, end, msg_ref, place } = called;
        let topic = self.sessions.chan(chan).map_or(0, |chan| chan.topic);
        let shard = self.sessions.shard_of(conn);
        let has_order = chan != NONE && !matches!(call, Call::Terminate(_));
        let mut from = if has_order { self.line(shard, topic).len() } else { 0 };
        self.sessions.now.pending.push((conn, VecDeque::new()));
        // A client may first be sent what it has missed.
        self.sessions.now.is_late = call == Call::AfterJoin && self.is_kept(topic);
        for act in acts.drain(..) {
            self.act((chan, conn, call), act, from, place);
            // What it sends after its own broadcast follows that.
            if let Act::Broadcast(id) = act
                && has_order
            {
                let made = &self.broadcasts[id as usize];
                from += usize::from(made.weight > 0 && made.topic == usize::from(topic));
                self.sessions.now.is_late |= self.is_kept(made.topic as u8);
            }
        }
        let CallEnd { reply, reason } = end;
        if let (Some((word, id)), Call::HandleIn(_), false) = (reply, call, msg_ref == NONE) {
            self.replies(chan, msg_ref, word, id, from);
        }
        if let Some(reason) = reason.filter(|_| self.sessions.is_live(chan)) {
            self.must_end(chan, reason, matches!(call, Call::HandleOut(_)));
        }
        self.sessions.now.is_late = false;
        self.spare = Some(acts);
    }

    fn act(&mut self, (chan, conn, call): (u32, u32, Call), act: Act, from: usize, place: usize) {
        let is_gone = call == Call::Terminate(Reason::Closed);
        match act {
            Act::Push(id) => {
                let word = self.broadcasts.get(id as usize).map_or("p", |made| made.event);
                self.pushes(chan, call, letter(word), id, from, place);
            }
            Act::Pass(word, id) => self.pushes(chan, call, word, id, from, place),
            // It is too large to be broadcast.
            Act::Broadcast(id) if self.broadcasts[id as usize].weight == 0 => {}
            Act::Broadcast(id) if self.is_kept(self.broadcasts[id as usize].topic as u8) => {}
            Act::Broadcast(id) => {
                let last = self.sessions.now.pending.last_mut();
                last.into_iter().for_each(|(_, ids)| ids.push_back(id));
            }
            Act::Subscribe(topic) | Act::Unsubscribe(topic) => {
                self.relays(chan, topic, act);
                if call == Call::Join {
                    // Its effects come before all others.
                    self.sessions.now.relays.pop();
                }
            }
            _ if is_gone && !matches!(act, Act::Link(_)) => {}
            Act::Close(code) => self.sessions.must_close(conn, code),
            Act::Exceed(what) => self.closes_for(conn, what),
            Act::Expire(word) => self.lives_for(conn, app::lifetime(word)),
            Act::Assign(value) => self.assigns(conn, value),
            Act::Link(task) => self.links(chan, conn, task),
            Act::Hold => self.holds(chan, conn),
            Act::Proceed => {
                self.sessions.now.holds.push((chan, conn));
                self.proceeds(chan, conn);
            }
            _ if !self.sessions.is_live(chan) => {}
            Act::Track(_) | Act::Update(_) | Act::Untrack(_) => {
                self.sessions.now.calls.push((chan, act));
            }
            Act::AskState => self.sessions.chans[chan as usize].has_asked = true,
        }
    }

    fn pushes(&mut self, chan: u32, call: Call, word: u8, id: u32, from: usize, place: usize) {
        let Some(it) = self.sessions.chan(chan) else { return };
        let (conn, topic) = (it.conn, it.topic);
        let line = Delivery::event(word, it.join_ref, id);
        match call {
            Call::Terminate(Reason::Closed) => {}
            Call::Terminate(Reason::Rejoined) => {
                let replaced = &mut self.sessions.conns[conn as usize].replaced;
                replaced.iter_mut().for_each(|replaced| replaced.1.push(line));
            }
            Call::HandleOut(_) if self.is_kept(topic) => self.promise(conn, topic, line, from),
            Call::HandleOut(_) => {
                let wire = self.sessions.conns[conn as usize].wire;
                if self.has_form(wire, topic, &line) {
                    self.sessions.chans[chan as usize].outs.push_back((place, line));
                }
            }
            _ => self.promise(conn, topic, line, from),
        }
    }

    pub(super) fn replies(&mut self, chan: u32, msg_ref: u32, word: u8, id: u32, from: usize) {
        let Some(it) = self.sessions.chan(chan).filter(|chan| chan.life == Life::Live) else {
            return;
        };
        let line = Delivery::reply(it.join_ref, msg_ref, word, id);
        self.promise(it.conn, it.topic, line, from);
    }

    /// A callback subscribes its channel to a further topic, or ends that. If another callback of
    /// this step did the opposite, the effects of the two may be carried out in either order.
    fn relays(&mut self, chan: u32, topic: u8, act: Act) {
        let Some(it) = self.sessions.chan(chan).filter(|chan| chan.life == Life::Live) else {
            return;
        };
        let from = self.line(self.sessions.shard_of(it.conn), topic).len();
        let (since, now) = (self.step, &mut self.sessions.now);
        let (subscribes, callback) = (act == Act::Subscribe(topic), now.pending.len());
        let opposite = if subscribes { Act::Unsubscribe(topic) } else { Act::Subscribe(topic) };
        let mut others = now.relays.iter().filter(|(.., by)| *by != callback);
        let is_unsure = others.any(|(by, other, _)| (*by, *other) == (chan, opposite));
        now.relays.push((chan, act, callback));
        let relays = &mut self.sessions.chans[chan as usize].relays;
        let known = relays.iter_mut().find(|relay| relay.topic == topic);
        if let Some(known) = known.filter(|_| subscribes) {
            known.is_unsure |= is_unsure;
            return;
        }
        relays.retain(|relay| relay.topic != topic);
        if subscribes || is_unsure {
            relays.push(Relay { topic, from, since, is_unsure });
        }
    }

    fn assigns(&mut self, conn: u32, value: u32) {
        self.count("values kept with sockets", 1);
        let step = self.step;
        let Some(it) = self.sessions.conn_mut(conn) else { return };
        if std::mem::replace(&mut it.assigned_step, step) != step {
            it.assigned_before.clear();
        }
        it.assigned_before.push(it.assigned.replace(value));
    }

    /// A message whose broadcast cannot be sent is answered with an error.
    fn answers_refused(&mut self, called: &mut Called) {
        let is_refused = |act: &Act| match act {
            Act::Broadcast(id) => self.broadcasts[*id as usize].weight == 0,
            _ => false,
        };
        if !matches!(called.call, Call::HandleIn(_)) || !called.acts.iter().any(is_refused) {
            return;
        }
        let CallEnd { reply, reason } = &mut called.end;
        let wants_none = called.msg_ref == 0 && reply.is_none();
        if *reason != Some(Reason::Crashed) && !wants_none {
            *reply = Some((b'e', payload::REFUSED));
        }
    }

    pub(crate) fn must_end(&mut self, chan: u32, reason: Reason, has_ended_itself: bool) {
        if !self.sessions.now.is_late {
            self.sessions.now.ending.push(chan);
        }
        let it = &mut self.sessions.chans[chan as usize];
        it.must_end.push(reason);
        it.has_ended_itself |= has_ended_itself;
        let conn = it.conn;
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].expired.1 +=
            u64::from(reason == Reason::Stopped(Stop::Expired));
    }

    /// Something that was due has come; returns the ref of its message.
    pub(super) fn take_due(&mut self, what: Due) -> u32 {
        let now = &mut self.sessions.now;
        if now.due.take_if(|due| *due == what).is_none() {
            let found = format!("{what:?} within {:?}, {:?}", now.input, now.due);
            self.findings.fail("callback", found);
            return 0;
        }
        now.joining.map_or(0, |joining| joining.msg_ref)
    }

    pub(crate) fn dropped(&mut self, chan: u32) {
        if self.sessions.is_live(chan) {
            self.fail("callback", format!("channel {chan} is dropped and was not told"));
        }
    }

    fn is_overdue(&mut self, chan: u32, conn: u32) -> bool {
        let (now, config) = (&self.sessions.now, &self.plan.config);
        let Some(it) = self.sessions.conn(conn) else { return false };
        let longest = it.patience(config);
        // A broadcast that it intercepted may have made it proceed: too late.
        let mut all = it.full.iter().chain(&now.proceeded);
        let is_late =
            all.any(|(holds, since)| *holds == chan && now.tick.wrapping_sub(*since) > longest);
        let is_overdue = is_late && now.input == Input::Tick;
        self.count("of them overdue", u64::from(is_overdue));
        is_overdue
    }
}

/// The notice to the client that a channel ended for this reason, if there is one.
fn notice_of(reason: Reason) -> Option<DeliveryKind> {
    match reason {
        Reason::Left | Reason::Stopped(Stop::Normal | Stop::Shutdown) => Some(DeliveryKind::Close),
        Reason::Stopped(Stop::Abnormal | Stop::Expired | Stop::Kicked) | Reason::Crashed => {
            Some(DeliveryKind::Error)
        }
        Reason::Rejoined | Reason::Closed => None,
    }
}
