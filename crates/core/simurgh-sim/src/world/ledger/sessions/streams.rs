//! Compares what clients receive with what they are to be sent. Messages of topics that have a
//! history have positions; replies and pushes wait until the broadcasts before them are stored.

use super::*;

impl Ledger {
    pub(crate) fn line(&self, shard: usize, topic: u8) -> &[LineEntry] {
        let lines = self.lines.get(shard);
        lines.and_then(|lines| lines.get(usize::from(topic))).map_or(&[], |line| &line.entries)
    }

    /// A client is to be sent something behind what was accepted before this place.
    pub(super) fn promise(&mut self, conn: u32, topic: u8, line: Delivery, from: usize) {
        self.promise_own(conn, topic, line, from, None);
    }

    /// The same; a channel begins with it, or the current one ends.
    pub(super) fn promise_own(
        &mut self,
        conn: u32,
        topic: u8,
        line: Delivery,
        from: usize,
        chan: Option<u32>,
    ) {
        let (step, is_late) = (self.step, self.sessions.now.is_late);
        let Some(wire) = self.sessions.conn(conn).filter(|conn| conn.is_open).map(|conn| conn.wire)
        else {
            return;
        };
        if self.has_form(wire, topic, &line) {
            let line = line.on(wire);
            let stream = &mut self.sessions.conns[conn as usize].streams[usize::from(topic)];
            stream.own.push_back(Own { line, step, from, chan, is_late });
        }
    }

    /// Whether a socket's serializer can encode a message.
    pub(super) fn has_form(&self, wire: Wire, topic: u8, line: &Delivery) -> bool {
        let made = self.broadcasts.get(line.id as usize);
        if !made.is_some_and(|made| made.is_binary) {
            return true;
        }
        match wire {
            Wire::V1 | Wire::V1Deflate => false,
            Wire::V2 | Wire::V2Deflate => {
                let [join_ref, msg_ref] = [line.join_ref, line.msg_ref].map(wire::field_bytes);
                self.plan.topics.name(topic).len().max(join_ref).max(msg_ref) <= FIELD_BYTES_MAX
            }
            Wire::Plain | Wire::PlainDeflate | Wire::Values => true,
        }
    }

    /// The next broadcast that a client is to receive on a topic, and its place.
    fn next_item(&self, conn: u32, topic: u8) -> Option<(usize, Delivery)> {
        let it = self.sessions.conn(conn)?;
        let stream = it.streams.get(usize::from(topic))?;
        let chan = self.sessions.chan(stream.chan?)?;
        let line = self.line(it.shard, topic);
        let end = chan.end.unwrap_or(line.len()).min(line.len());
        for (at, entry) in line.iter().enumerate().take(end).skip(stream.cursor) {
            if let Some((_, sent)) = chan.outs.front().filter(|(place, _)| *place == at) {
                return Some((at, sent.on(it.wire)));
            }
            if Some(entry.except) == stream.chan {
                continue;
            }
            if chan.takes(entry) {
                // Its channel sees it first.
                if at >= chan.out_cursor {
                    return None;
                }
                continue;
            }
            let sent = Delivery::event(entry.word, 0, entry.id);
            if self.has_form(it.wire, topic, &sent) {
                return Some((at, sent.on(it.wire)));
            }
        }
        None
    }

    /// A client receives a message; `sum` is that of its payload.
    pub(crate) fn receive(&mut self, conn: u32, topic: Option<u8>, line: Delivery, sum: u32) {
        let made = self.broadcasts.get(line.id as usize);
        if made.is_some_and(|made| made.sum != 0 && made.sum != sum) {
            return self.fail("payload", format!("socket {conn} receives {line:?} in other bytes"));
        }
        let Some(it) = self.sessions.conn(conn) else { return };
        if it.has_received_close {
            return self.fail("after close", format!("socket {conn} receives {line:?}"));
        }
        let Some(topic) = topic.filter(|topic| usize::from(*topic) < it.streams.len()) else {
            let text = format!("socket {conn} receives {line:?}: no such topic");
            return self.fail("unexpected", text);
        };
        let taken = self.take_promised(conn, topic, line)
            || self.take_item(conn, topic, line)
            || self.is_answer_of_presence(conn, topic, line)
            || self.is_excuse(conn, topic, line);
        if !taken {
            let name = self.plan.topics.name(topic).to_owned();
            let item = self.next_item(conn, topic);
            let stream = &self.sessions.conns[conn as usize].streams[usize::from(topic)];
            let later = stream.own.iter().any(|own| own.line == line);
            let next = stream.own.front();
            let text = format!(
                "socket {conn} receives on {name:.20}: {line:?}\n  next is {next:?}\n  or {item:?} \
                 {stream:.300?}"
            );
            return self.fail(if later { "order" } else { "unexpected" }, text);
        }
        self.note(|| format!("#{conn} receives {line:?}"));
    }

    /// Takes a reply or a push, if it may come now.
    fn take_promised(&mut self, conn: u32, topic: u8, line: Delivery) -> bool {
        let it = &self.sessions.conns[conn as usize];
        let stream = &it.streams[usize::from(topic)];
        let may_be_missing = |own: &&Own| own.is_late || own.step >= it.closed_step;
        let skipped = stream.own.iter().take_while(may_be_missing).count();
        let Some(at) = stream.own.iter().take(skipped + 1).position(|own| own.line == line) else {
            return false;
        };
        let own = stream.own[at];
        let entries = self.line(it.shard, topic);
        let last = stream.cursor.checked_sub(1).and_then(|at| entries.get(at));
        let is_late = last.is_some_and(|entry| entry.step > own.step);
        // A channel that ends itself as it intercepts gets no more.
        let is_kept = self.is_kept(topic);
        let is_early = || self.next_item(conn, topic).is_some_and(|(at, _)| at < own.from);
        if !is_kept && (is_late || is_early()) {
            return false;
        }
        if is_kept {
            self.check_stored_before(line);
        }
        if own.chan.is_some() {
            self.check_complete(conn, topic);
        }
        let begun = own.chan.and_then(|chan| self.sessions.chan(chan));
        let from = begun.map_or(0, |chan| chan.from);
        let stream = &mut self.sessions.conns[conn as usize].streams[usize::from(topic)];
        stream.own.drain(..=at);
        if let Some(chan) = own.chan {
            stream.chan = Some(chan);
            stream.cursor = stream.cursor.max(from);
        }
        if line.kind == DeliveryKind::Event {
            self.see_presence(conn, topic, line);
        }
        true
    }

    /// Takes a broadcast, or what an interceptor made of it, if it comes next.
    fn take_item(&mut self, conn: u32, topic: u8, line: Delivery) -> bool {
        let Some((at, _)) = self.next_item(conn, topic).filter(|item| item.1 == line) else {
            return false;
        };
        let it = &mut self.sessions.conns[conn as usize];
        let step = self.lines[it.shard][usize::from(topic)].entries.get(at).map(|it| it.step);
        let is_kept = self.plan.history.is_some();
        let stream = &mut it.streams[usize::from(topic)];
        // What was sent before must have come before.
        let own = stream.own.front().filter(|own| own.step < it.closed_step && !is_kept);
        if own.is_some_and(|own| Some(own.step) < step) {
            return false;
        }
        stream.cursor = at + 1;
        let chan = &mut self.sessions.chans[stream.chan.unwrap_or(NONE) as usize];
        if chan.outs.front().is_some_and(|(place, _)| *place == at) {
            chan.outs.pop_front();
            if chan.outs.front().is_some_and(|(place, _)| *place == at) {
                stream.cursor = at;
            }
        }
        self.see_presence(conn, topic, line);
        true
    }

    /// Whether a list or a number of presences answers a channel that has requested it.
    fn is_answer_of_presence(&mut self, conn: u32, topic: u8, line: Delivery) -> bool {
        let stream = &self.sessions.conns[conn as usize].streams[usize::from(topic)];
        let has_asked =
            stream.chan.is_some_and(|chan| self.sessions.chan(chan).is_some_and(|it| it.has_asked));
        let is_list = self.sessions.events.get(&line.id).is_some_and(|event| {
            matches!(**event, PresenceEvent::State(_) | PresenceEvent::Summary { .. })
        });
        let is_answer = has_asked && is_list && line.kind != DeliveryKind::Reply;
        if is_answer {
            self.see_presence(conn, topic, line);
        }
        is_answer
    }

    fn see_presence(&mut self, conn: u32, topic: u8, line: Delivery) {
        let Some(event) = self.sessions.events.get(&line.id).cloned() else { return };
        let stream = &self.sessions.conns[conn as usize].streams[usize::from(topic)];
        let chan = stream.chan.unwrap_or(NONE);
        let Some(it) = self.sessions.chan(chan) else { return };
        let (is_blind, has_list) = (it.is_blind(), it.view.has_state);
        // Where nobody has the list, those who are on other nodes may leave.
        if let PresenceEvent::Diff { leaves, .. } = &*event
            && has_list
            && self.is_any_present(self.sessions.start_of(self.sessions.shard_of(conn)), leaves)
        {
            return self.fail("diff", format!("channel {chan} receives {event:?}: some are there"));
        }
        let view = &mut self.sessions.chans[chan as usize].view;
        if !is_blind && view.contradicts(&event) {
            let text = format!("channel {chan} knows {view:?}, and receives {event:?}");
            return self.fail("presence", text);
        }
        view.receive(&event);
    }

    /// The current channel of a topic ends for its client: it must have received all of it.
    fn check_complete(&self, conn: u32, topic: u8) {
        let it = &self.sessions.conns[conn as usize];
        let chan = it.streams[usize::from(topic)].chan;
        let Some(chan) = chan.and_then(|chan| self.sessions.chan(chan)) else { return };
        let before = chan.ended_step.min(it.closed_step);
        if chan.life == super::Life::Live || self.is_kept(topic) {
            return;
        }
        if let Some((at, line)) = self.next_item(conn, topic)
            && self.line(it.shard, topic).get(at).is_some_and(|entry| entry.step < before)
        {
            self.fail("lost", format!("socket {conn} has not received {line:?} on {topic}, {at}"));
        }
    }

    pub(crate) fn receive_close(&mut self, conn: u32, code: Option<u16>, reason: &str) {
        let Some(it) = self.sessions.conn_mut(conn) else { return };
        if std::mem::replace(&mut it.has_received_close, true) {
            return self.fail("after close", format!("socket {conn} is closed twice"));
        }
        if it.is_open {
            return self.fail("close", format!("socket {conn} is open and hears {code:?}"));
        }
        if let Some(code) = code.filter(|code| it.codes & code_bit(*code) == 0) {
            let codes = it.codes;
            return self.fail("close code", format!("socket {conn}: {code} ({codes:b} may be)"));
        }
        let over = it.over;
        self.check_close_reason(conn, over, reason);
        self.check_missing(conn);
    }

    /// Checks that a client has received everything that it must have.
    pub(super) fn check_missing(&self, conn: u32) {
        let Some(it) = self.sessions.conn(conn).filter(|conn| !conn.is_lost) else { return };
        let mut topics = 0..it.streams.len() as u8;
        if let Some(text) = topics.find_map(|topic| self.missing_on(it, conn, topic)) {
            self.fail("lost", format!("socket {conn} has not received {text}"));
        }
    }

    fn missing_on(&self, it: &Conn, conn: u32, topic: u8) -> Option<String> {
        let stream = &it.streams[usize::from(topic)];
        let own = stream.own.iter().find(|own| !own.is_late && own.step < it.closed_step);
        if own.is_some() {
            return Some(format!("on topic {topic}: {own:?}"));
        }
        let chan = self.sessions.chan(stream.chan?)?;
        if it.is_cut || (!it.is_open && chan.intercepts > 0) {
            return None;
        }
        let (at, line) = self.next_item(conn, topic)?;
        let entry = self.line(it.shard, topic).get(at)?;
        let is_over = chan.life == super::Life::Ended;
        let before = if is_over { it.closed_step.min(chan.ended_step) } else { it.closed_step };
        (entry.step < before).then(|| format!("on topic {topic}: {line:?}, {at}"))
    }
}

impl Sessions {
    /// Presences as the clients of a topic's live channels know them.
    pub(crate) fn views(&self) -> impl Iterator<Item = (u32, &super::Chan)> {
        let chans = self.chans.iter().enumerate().map(|(number, chan)| (number as u32, chan));
        chans.filter(|(_, chan)| {
            let conn = self.conn(chan.conn);
            let is_there = conn.is_some_and(|conn| conn.is_open && !conn.is_lost);
            chan.life == super::Life::Live && is_there && !chan.is_blind()
        })
    }
}

impl Ledger {
    /// What a client knows of a topic, if that has a history.
    pub(crate) fn view(&self, client: u32, topic: u8) -> Option<RefMut<'_, TopicView>> {
        let at = client as usize * self.plan.topics.rooms + usize::from(topic);
        self.views.get(at).filter(|_| self.is_kept(topic)).map(RefCell::borrow_mut)
    }

    /// A connection of a client is over.
    pub(crate) fn disconnected(&self, client: u32) {
        let topics = 0..self.plan.topics.rooms as u8;
        topics.filter_map(|topic| self.view(client, topic)).for_each(|mut it| it.disconnected());
    }

    /// A client receives an event with a history; returns whether it is one.
    fn receive_kept(&self, conn: u32, topic: u8, it: &Message<'_>) -> bool {
        let (event, payload) = (&*it.event, &it.payload);
        let is_plain = event == "p" || event.starts_with("presence_");
        let is_here_only = EVENTS.contains(&event) && self.is_here_only(payload::parse(payload).0);
        let Some(of) = self.sessions.conn(conn) else { return true };
        let (client, joined) = (of.client, of.joins[usize::from(topic)]);
        if is_plain || is_here_only {
            return false;
        }
        let at = Position::parse(it.msg_ref.raw().trim_matches('"'));
        let is_stale =
            !it.join_ref.is_null() && wire::ref_number(it.join_ref.raw(), false) != joined;
        self.note(|| {
            let text = String::from_utf8_lossy(payload.data());
            let heard = if is_stale || joined == 0 { "drops" } else { "hears" };
            format!("client {client} {heard} {event} at {at:?} on {topic}: {text:.80}")
        });
        let Some(mut view) = self.view(client, topic) else { return true };
        let is_of_none = at.is_none() && !(view.habits.opts_in && payload.binary().is_some());
        if joined > 0 || !is_of_none {
            view.receive(self, (event, payload, at), joined == 0 || is_stale);
        }
        true
    }

    /// A reply or a push comes once the broadcasts before it are stored.
    fn check_stored_before(&self, line: Delivery) {
        if line.word == b'o' || line.kind == DeliveryKind::Event {
            let mut ids = self.log.before.get(&line.id).into_iter().flatten().copied();
            let missing = ids.find(|id| !self.log.has(*id) && !self.is_here_only(*id));
            self.count("replies", 1);
            if let Some(id) = missing {
                self.fail("barrier", format!("{line:?} is sent before #{id} is stored"));
            }
        }
    }

    pub(crate) fn check_views(&self) {
        for it in self.sessions.conns.iter().filter(|it| it.is_open && !it.is_lost) {
            for (topic, _) in (0..).zip(&it.joins).filter(|(_, joined)| **joined > 0) {
                self.view(it.client, topic).into_iter().for_each(|view| view.check_rest(self));
            }
        }
    }

    /// Whether an error answers a message that is not stored, or a join that knows too little.
    pub(super) fn is_excuse(&mut self, conn: u32, topic: u8, line: Delivery) -> bool {
        let excuses = ["unconfirmed", "not stored", "join timed out"].map(payload::reason);
        if !excuses.contains(&line.id) || line.kind != DeliveryKind::Reply || !self.is_kept(topic) {
            return false;
        }
        self.count("unconfirmed", u64::from(line.id == excuses[0]));
        let at = (conn as usize, usize::from(topic));
        if self.sessions.conns[at.0].admitted.is_some_and(|it| it.0.msg_ref == line.msg_ref) {
            self.another_join(conn);
        }
        let it = &mut self.sessions.conns[at.0];
        if let Some(timed_out) = it.timed_out.iter().position(|it| it.0 == line.msg_ref) {
            let replaced = it.timed_out.remove(timed_out).1;
            let later = std::mem::replace(&mut it.replaced, replaced);
            // What follows was sent before the answers to later messages.
            let before = it.streams[at.1].own.len();
            self.close_replaced(conn);
            let it = &mut self.sessions.conns[at.0];
            it.replaced = later;
            let own = &mut it.streams[at.1].own;
            own.rotate_right(own.len() - before);
        }
        true
    }

    pub(crate) fn receive_frame(&mut self, conn: u32, frame: Frame<'_>) {
        let wire = self.sessions.conn(conn).map_or(Wire::V2, |conn| conn.wire);
        let payload = match (wire.serializer(), frame) {
            (Some(serializer), frame) => match serializer.decode_server(frame) {
                Ok(message) => return self.receive_message(conn, &message),
                Err(error) => return self.fail("frame", format!("{error:?}")),
            },
            (None, Frame::Text(text)) => Payload::Json(text.into()),
            (None, Frame::Binary(data)) => Payload::Binary(data.into()),
        };
        let (topic, line) = (self.plan.topics.plain, Delivery::raw(payload::parse(&payload).0));
        self.receive(conn, Some(topic), line, payload::sum(&payload));
    }

    fn receive_message(&mut self, conn: u32, message: &ServerMessage<'_>) {
        let (topic, line, sum) = Delivery::of(&self.plan.topics, message);
        if let Some(topic) = topic.filter(|topic| self.is_kept(*topic)) {
            if let ServerMessage::Event(it) = message
                && line.kind == DeliveryKind::Event
                && self.receive_kept(conn, topic, it)
            {
                return;
            }
            self.note_joined(conn, topic, line);
        }
        self.receive(conn, topic, line, sum);
    }

    /// A client receives the answer to its join, or the end of its channel.
    fn note_joined(&mut self, conn: u32, topic: u8, line: Delivery) {
        let Some(it) = self.sessions.conn_mut(conn) else { return };
        let (client, joined) = (it.client, &mut it.joins[usize::from(topic)]);
        match line.kind {
            _ if line.msg_ref != *joined || *joined == 0 => {}
            DeliveryKind::Reply if line.word == b'o' => {
                self.view(client, topic).into_iter().for_each(|mut view| view.joined());
            }
            DeliveryKind::Reply | DeliveryKind::Close | DeliveryKind::Error => {
                *joined = 0;
                self.count("refused", u64::from(line.id == payload::reason("bad resume")));
            }
            DeliveryKind::Event | DeliveryKind::Raw => {}
        }
    }
}

/// The payload of a join, with what its client says about the messages that it has.
pub(crate) fn join_payload(id: u32, word: u32, resume: &str) -> Payload<'static> {
    Payload::from_json(format!(r#"{{"i":{id},"s":{word}{resume}}}"#))
}
