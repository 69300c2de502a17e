//! Messages of clients and of handles, joins and their answers, and what must come of them.

use super::*;

/// A callback that a step must lead to, and its channel; for a join the number of its payload.
pub(crate) type Due = (u32, Call);

impl Ledger {
    /// A shard is handed a message of a client.
    pub(crate) fn hand_in(&mut self, conn: u32, asked: Request, size: Size) {
        self.count("messages", 1);
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
                None => (id, Call::Join),
            },
            (RequestKind::Leave, None) => return self.replies_to(joining, b'o', EMPTY),
            (RequestKind::Event, None) => {
                let line = self.unmatched(conn, msg_ref);
                return self.promise(conn, topic, line, 0);
            }
            (_, Some(_)) if !is_meant => return,
            (RequestKind::Leave, Some(chan)) => (chan, Call::Terminate(Reason::Left)),
            (RequestKind::Event, Some(chan)) => (chan, Call::HandleIn(id)),
        };
        (self.sessions.now.joining, self.sessions.now.due) = (Some(joining), Some(due));
    }

    pub(crate) fn joins_plain(&mut self, conn: u32) {
        let topic = self.plan.topics.plain;
        self.sessions.now.joining = Some(Joining { conn, topic, join_ref: 0, msg_ref: 0 });
        self.sessions.now.due = Some((EMPTY, Call::Join));
    }

    /// The answer to a join that is refused before the application is asked.
    fn refusal(&mut self, conn: u32, asked: Request) -> Option<Delivery> {
        let Request { topic, join_ref, msg_ref, .. } = asked;
        if topic == self.plan.topics.unmatched {
            return Some(self.unmatched(conn, msg_ref));
        }
        let channels = self.sessions.conn(conn).map_or(0, |conn| conn.channels.len());
        let channels_max = self.plan.app.channels_max;
        let is_bad = self.broadcasts.get(asked.id as usize).is_some_and(|made| made.is_bad);
        let is_long = [join_ref, msg_ref].into_iter().any(wire::is_too_long);
        let is_one_more = self.sessions.joined(conn, topic).is_none();
        let response = match () {
            () if is_one_more && channels >= usize::from(channels_max) => {
                "too many channels joined"
            }
            () if is_long || self.plan.topics.over == Some(topic) => "topic or join_ref too long",
            () if is_bad => "bad resume",
            () => return None,
        };
        self.refuses(conn);
        Some(Delivery::reply(join_ref, msg_ref, b'e', payload::reason(response)))
    }

    pub(super) fn refuses(&mut self, conn: u32) {
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].refused += 1;
    }

    /// The answer to a message on a topic that is not there.
    fn unmatched(&mut self, conn: u32, msg_ref: u32) -> Delivery {
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].unmatched += 1;
        Delivery::reply(0, msg_ref, b'e', payload::reason("unmatched topic"))
    }

    /// The reply to a join or a leave that no channel gives.
    pub(super) fn replies_to(&mut self, joining: Joining, word: u8, id: u32) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        self.promise(conn, topic, Delivery::reply(join_ref, msg_ref, word, id), 0);
    }

    pub(crate) fn take_mail(&mut self, shard: usize, mail: &Mail) {
        match mail {
            // That of a topic with a history has a position.
            Mail::Broadcast(posted) if posted.broadcast().position().is_some() => {}
            Mail::Broadcast(posted) => {
                let (it, id) = (posted.broadcast(), number_of(posted.broadcast()));
                let Some(word) = letter_of(it.event()) else { return self.accepts(shard, id) };
                self.sessions.shards[shard].accepted += 1;
                let topic = self.plan.topics.number(it.topic()).unwrap_or_default();
                self.append(shard, topic, LineEntry { id, step: self.step, except: NONE, word });
            }
            Mail::ToChannel(name, what) => self.told((self.sessions.start_of(shard), *name), what),
            Mail::Listen(_, listener) => self.listens(listener.name, true),
            Mail::Unlisten(_, name) => self.listens(*name, false),
            Mail::Joined(_, ticket, _) => self.decided(shard, *ticket),
            Mail::Drain(_) => self.sessions.shards[shard].drains = true,
            _ => {}
        }
    }

    fn told(&mut self, name: (usize, ChannelId), what: &ToChannel) {
        let Some(chan) = self.sessions.names.get(&name).copied() else { return };
        let it = &mut self.sessions.chans[chan as usize];
        let is_awaited = matches!(what, ToChannel::Message(_) | ToChannel::Reply(..));
        let next = if is_awaited { it.infos.pop_front() } else { None };
        if it.life != Life::Live {
            return;
        }
        let (conn, topic, join_ref) = (it.conn, it.topic, it.join_ref);
        let from = self.line(self.sessions.shard_of(conn), topic).len();
        match what {
            ToChannel::Message(_) => {
                self.sessions.now.due = next.map(|id| (chan, Call::HandleInfo(id)));
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
            // Only channels that ask a back end do this.
            ToChannel::Publish(_) => {}
            ToChannel::Broadcast(_, payload, audience) => {
                self.count("broadcasts by handles", 1);
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
        let Some((conn, ids)) = self.sessions.now.pending.iter_mut().rev().find(is_it) else {
            return self.fail("broadcast", format!("{bytes} bytes that nobody broadcasts"));
        };
        let (conn, Some(id)) = (*conn, ids.pop_front()) else { return };
        self.sessions.now.publishers.push(conn);
        self.accepts(shard, id);
    }

    fn accepts(&mut self, shard: usize, id: u32) {
        let Some(made) = self.broadcasts.get(id as usize) else { return };
        let (topic, except, node) = (made.topic as u8, made.except, made.node);
        let (is_disconnect, word) = (made.event == DISCONNECT, letter(made.event));
        self.note(|| format!("shard {shard} accepts #{id} on {topic}"));
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
                    (it.is_disconnected, it.codes) = (true, it.codes | code_bit(1001));
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    pub(crate) conn: u32,
    pub(crate) topic: u8,
    /// 0 for a missing one.
    pub(crate) join_ref: u32,
    pub(crate) msg_ref: u32,
}

/// A join that is not decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaiting {
    pub(super) joining: Joining,
    ticket: Option<u32>,
    pub(super) since: u32,
    /// The decision, on its way to the shard.
    answer: Option<Answer>,
}

/// What the application decides about a join.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// `waits` until the interest in its topic is in force.
    Ok {
        chan: u32,
        reply: u32,
        waits: bool,
    },
    Released,
    /// It is refused, or panics.
    Error(u32),
    Later,
}

impl Answer {
    pub(crate) fn panic() -> Self {
        Self::Error(payload::reason("join crashed"))
    }
}

impl Ledger {
    /// A join function is called; returns the join that it decides about.
    pub(crate) fn asked(&mut self, id: u32) -> Option<Joining> {
        self.take_due((id, Call::Join));
        let joining = self.sessions.now.joining?;
        self.another_join(joining.conn);
        if self.sessions.joined(joining.conn, joining.topic).is_some() {
            self.fail("join", format!("{joining:?} while the old channel lives"));
        }
        Some(joining)
    }

    /// A join is handled: one that was admitted and has no channel by now has timed out.
    pub(super) fn another_join(&mut self, conn: u32) {
        let Some(conn) = self.sessions.conn_mut(conn) else { return };
        if let Some((joining, ..)) = conn.admitted.take() {
            conn.timed_out.push((joining.msg_ref, conn.replaced.take()));
        }
    }

    pub(crate) fn answer(&mut self, joining: Joining, answer: Answer, mut acts: Vec<Act>) {
        let conn = joining.conn;
        let is_open = self.sessions.conn(conn).is_some_and(|conn| conn.is_open);
        let is_closing = !is_open || self.sessions.is_closing(conn);
        self.note(|| format!("{joining:?} is answered: {answer:?}"));
        match answer {
            // The end of the replaced channel has closed the socket.
            Answer::Ok { .. } if is_closing => return,
            Answer::Ok { chan, reply, waits: false } if !self.is_kept(joining.topic) => {
                return self.let_in(joining, chan, reply, acts);
            }
            // It becomes a member once its client's position is known, or its node's interest.
            Answer::Ok { chan, reply, waits } => {
                self.sessions.conns[conn as usize].admitted = Some((joining, chan, reply));
                if waits {
                    self.await_decision(joining);
                }
            }
            Answer::Error(reply) => self.refused(joining, reply),
            Answer::Later if !is_closing => self.await_decision(joining),
            Answer::Later | Answer::Released => {}
        }
        // Without a channel: those on others, or on the socket.
        acts.retain(|act| {
            matches!(act, Act::Broadcast(_) | Act::Close(_) | Act::Assign(_) | Act::Expire(_))
        });
        self.end(Called { acts, ..Called::join(NONE, conn) });
    }

    fn await_decision(&mut self, joining: Joining) {
        let since = self.sessions.now.tick;
        let awaiting = Awaiting { joining, ticket: None, since, answer: None };
        self.sessions.conns[joining.conn as usize].awaiting = Some(awaiting);
    }

    pub(super) fn let_in(&mut self, joining: Joining, chan: u32, reply: u32, acts: Vec<Act>) {
        let Joining { conn, topic, join_ref, msg_ref } = joining;
        let shard = self.sessions.shard_of(conn);
        let from = self.line(shard, topic).len();
        let it = &mut self.sessions.chans[chan as usize];
        (it.life, it.owes_after_join, it.from, it.out_cursor) = (Life::Live, true, from, from);
        (it.is_given, it.join_ref) =
            (join_ref != 0, if join_ref != 0 { join_ref } else { msg_ref });
        self.sessions.conns[conn as usize].channels.push((topic, chan));
        self.sessions.now.joined.push(chan);
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
            (stream.chan, stream.cursor) = (Some(chan), from);
        } else {
            self.promise_own(conn, topic, line, 0, Some(chan));
        }
        self.close_replaced(conn);
        self.end(Called { acts, ..Called::join(chan, conn) });
    }

    pub(super) fn is_plain(&self, conn: u32) -> bool {
        self.sessions.conn(conn).is_some_and(|conn| conn.wire == Wire::Plain)
    }

    pub(super) fn refused(&mut self, joining: Joining, response: u32) {
        let conn = joining.conn;
        self.refuses(conn);
        if !self.is_plain(conn) {
            self.replies_to(joining, b'e', response);
        }
        self.close_replaced(conn);
        if self.is_plain(conn) {
            self.sessions.must_close(conn, 1008);
        }
    }

    pub(in crate::world::ledger) fn close_replaced(&mut self, conn: u32) {
        let replaced = self.sessions.conn_mut(conn).and_then(|conn| conn.replaced.take());
        let Some((chan, pushes)) = replaced else { return };
        let is_refused = self.sessions.joined(conn, self.sessions.chans[chan as usize].topic);
        self.notify(chan, DeliveryKind::Close, 0, is_refused.is_none());
        let topic = self.sessions.chans[chan as usize].topic;
        pushes.into_iter().for_each(|line| self.promise(conn, topic, line, 0));
    }

    /// The core waits for the decision about a join.
    pub(crate) fn decides(&mut self, ticket: u32) {
        let conn = self.sessions.now.joining.map_or(NONE, |joining| joining.conn);
        let awaiting = self.sessions.conn_mut(conn).and_then(|conn| conn.awaiting.as_mut());
        match awaiting.filter(|awaiting| awaiting.ticket.is_none()) {
            Some(awaiting) => awaiting.ticket = Some(ticket),
            None => self.fail("join", format!("socket {conn} waits for nothing new")),
        }
    }

    /// The socket on a shard that waits for this decision.
    fn awaiting(&mut self, shard: usize, ticket: u32) -> Option<&mut Option<Awaiting>> {
        let Sessions { conns, shards, .. } = &mut self.sessions;
        let sockets = &shards[shard].sockets;
        let waits = |conn: &&u32| {
            conns[**conn as usize].awaiting.is_some_and(|it| it.ticket == Some(ticket))
        };
        let conn = *sockets.iter().find(waits)?;
        Some(&mut conns[conn as usize].awaiting)
    }

    /// The application has decided, unless it has panicked.
    pub(crate) fn has_decided(&mut self, shard: usize, ticket: u32) {
        let answer = self.decided.take().unwrap_or_else(Answer::panic);
        let awaiting = self.awaiting(shard, ticket).and_then(Option::as_mut);
        awaiting.into_iter().for_each(|it| it.answer = Some(answer));
    }

    /// A decision reaches its shard, which may not wait for it any more.
    fn decided(&mut self, shard: usize, ticket: u32) {
        let awaiting = self.awaiting(shard, ticket).and_then(Option::take);
        let Some(Awaiting { joining, answer: Some(answer), .. }) = awaiting else { return };
        self.sessions.now.joining = Some(joining);
        self.answer(joining, answer, Vec::new());
    }
}
