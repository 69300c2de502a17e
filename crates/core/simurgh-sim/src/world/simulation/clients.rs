//! What clients of one node send, and how they take what they are sent.

use simurgh_proto::serializer::Kind as FrameKind;

use super::*;

/// A session that is not polled for this long ends.
const UNPOLLED_NS: u64 = 15_000_000_000;
/// Of this many answers to polls one is lost.
const LOST: u32 = 64;
const ODD_REFS: u32 = 1_000_000;

impl Simulation {
    pub(super) fn heartbeat(&mut self, client: usize) {
        let topic = self.shared.plan.topics.phoenix;
        self.send_asked(client, RequestKind::Heartbeat, topic, 0, false);
    }

    /// A client sends a message of its session.
    pub(super) fn send_asked(
        &mut self,
        client: usize,
        kind: RequestKind,
        topic: u8,
        word: u32,
        is_binary: bool,
    ) {
        // Some messages are so long that they are read away from their shard.
        let above = self.shared.plan.app.prepare_above as usize;
        let pad = match word >> 20 & 7 {
            0..2 if matches!(kind, RequestKind::Join | RequestKind::Event) => above,
            2 => above / 2,
            _ => 0,
        };
        let Some(it) = &mut self.clients[client] else { return };
        if it.wire == Wire::Plain && kind != RequestKind::Event {
            return;
        }
        let mut ledger = self.shared.ledger();
        let conn = &ledger.sessions.conns[it.number as usize];
        let joined = conn.joins[usize::from(topic)];
        let may = ledger.view(client as u32, topic).is_none_or(|view| match kind {
            RequestKind::Heartbeat => true,
            RequestKind::Join => view.may_join(it.wire, joined > 0),
            RequestKind::Leave => joined > 0 && view.may_leave(),
            RequestKind::Event => joined > 0,
        });
        if !may {
            return;
        }
        it.refs += 1;
        let msg_ref = it.refs;
        let (join_ref, joins) = match kind {
            RequestKind::Heartbeat => (0, joined),
            RequestKind::Join => (msg_ref, msg_ref),
            RequestKind::Leave => (joined, 0),
            RequestKind::Event => (joined, joined),
        };
        ledger.sessions.conns[it.number as usize].joins[usize::from(topic)] = joins;
        let is_binary = is_binary && it.wire != Wire::V1;
        let made = BroadcastInfo { is_binary, ..BroadcastInfo::new(usize::from(topic), 0) };
        let is_v1 = it.wire == Wire::V1;
        let view = ledger.view(client as u32, topic).filter(|_| kind == RequestKind::Join);
        let resume = view.map(|mut view| {
            let resume = view.resume_member(&ledger, is_v1, word);
            (resume, view.resume == Resume::Bad)
        });
        let (id, payload) = match resume {
            Some((resume, is_bad)) => {
                let id = ledger.add(BroadcastInfo { is_bad, ..made });
                (id, join_payload(id, word, &resume))
            }
            None => ledger.payload(made, word, pad),
        };
        drop(ledger);
        let asked = Request { kind, topic, join_ref, msg_ref, id };
        self.send_request(client, asked, payload);
    }

    fn send_request(&mut self, client: usize, asked: Request, payload: Payload<'static>) {
        let Request { kind, topic, join_ref, msg_ref, id } = asked;
        let Some(wire) = self.clients[client].as_ref().map(|it| it.wire) else { return };
        let name = self.shared.plan.topics.name(topic).to_owned();
        self.shared.note(|| format!("client {client} sends {asked:?}"));
        let of_values = (wire == Wire::Values).then_some(Serializer::V2);
        let Some(serializer) = wire.serializer().or(of_values) else {
            let kind = if payload.binary().is_some() { FrameKind::Binary } else { FrameKind::Text };
            let (topic, bytes) = (self.shared.plan.topics.plain, payload.data().to_vec());
            let asked = Request { kind: RequestKind::Event, topic, join_ref: 0, msg_ref: 0, id };
            return self.send_message(client, ClientMessage::Message { kind, bytes, asked });
        };
        let event = match kind {
            RequestKind::Heartbeat => events::HEARTBEAT,
            RequestKind::Join => events::JOIN,
            RequestKind::Leave => events::LEAVE,
            RequestKind::Event => "x",
        };
        let message = Message {
            join_ref: wire::ref_of(join_ref),
            msg_ref: wire::ref_of(msg_ref),
            topic: (&*name).into(),
            event: event.into(),
            payload,
        };
        let mut bytes = Vec::with_capacity(96);
        if let Ok(kind) = serializer.message(&mut bytes, &message) {
            self.send_message(client, ClientMessage::Message { kind, bytes, asked });
        }
    }

    /// Sends a message with refs outside of the session: none, or those of an old join.
    pub(super) fn send_oddly(&mut self, client: usize, topic: u8, word: u32) {
        let has_odd_refs = self.shared.plan.app.has_odd_refs;
        let it = self.clients[client].as_mut().filter(|it| it.wire != Wire::Plain);
        let Some(it) = it else { return };
        it.odd += 1;
        let odd = it.odd;
        let kind = match word & 7 {
            0 | 1 => RequestKind::Join,
            2 => RequestKind::Leave,
            _ => RequestKind::Event,
        };
        let msg_ref = ODD_REFS + odd;
        let join_ref = match word >> 8 & 7 {
            0..4 => 0,
            4 if kind != RequestKind::Join => ODD_REFS + (word >> 12) % odd,
            _ => (word >> 12) % 24 + 1,
        };
        // Refs of every form. The join_ref of a join is used later, or never.
        let is_join = kind == RequestKind::Join;
        let forms = if is_join && join_ref > 0 { word >> 17 & 3 } else { word >> 17 };
        let (join_ref, msg_ref) = match has_odd_refs {
            true if join_ref == 0 => (0, wire::in_form(msg_ref, forms)),
            true => (wire::in_form(join_ref, word >> 20), wire::in_form(msg_ref, forms)),
            false => (join_ref, msg_ref),
        };
        let made = BroadcastInfo::new(usize::from(topic), 0);
        let (id, payload) = self.shared.ledger().payload(made, word, 0);
        self.send_request(client, Request { kind, topic, join_ref, msg_ref, id }, payload);
    }

    /// A client sends the same message several times, and all are read.
    pub(super) fn burst(&mut self, client: usize, topic: u8, c: u32) {
        let kind = match c % 16 {
            0..3 => RequestKind::Join,
            3 => return (0..2 + c / 16 % 9).for_each(|_| self.heartbeat(client)),
            4 => RequestKind::Leave,
            _ => RequestKind::Event,
        };
        for n in 0..2 + c / 16 % 9 {
            self.send_asked(client, kind, topic, c.rotate_left(n), false);
        }
        self.read(client, usize::MAX);
    }

    pub(super) fn half_close(&mut self, client: usize) {
        // The requests of a long-poll session end by themselves.
        let line = self.line(client).filter(|_| self.polled_ns(client).is_none());
        let Some((number, _, shard, key)) = line else { return };
        self.peer(0, shard, key).into_iter().for_each(|peer| peer.has_shut = true);
        self.shared.ledger().sessions.conns[number as usize].has_shut = true;
    }

    /// Hands in what was read of a socket, until it waits for something.
    pub(crate) fn feed(&mut self, slot: usize, shard: usize, key: Key) {
        while let Some(sent) = self.next_stashed(slot, shard, key) {
            self.hand_in(slot, shard, key, sent);
        }
    }

    /// A message that its shard hands in next, if its socket does not wait for something.
    fn next_stashed(&mut self, slot: usize, shard: usize, key: Key) -> Option<ClientMessage> {
        let it = self.nodes[slot].as_mut()?.shards.get_mut(shard).filter(|it| !it.has_ended)?;
        let peer = it.net.peer_mut(key)?;
        let hastens = || self.shared.faults.happens(Fault::Hasten);
        match peer.socket.phase() {
            Phase::Open | Phase::Closing => peer.stash.pop_front(),
            Phase::Waiting if !peer.stash.is_empty() && hastens() => peer.stash.pop_front(),
            Phase::Waiting => None,
            _ => {
                peer.stash.clear();
                None
            }
        }
    }

    fn hand_in(&mut self, slot: usize, shard: usize, key: Key, sent: ClientMessage) {
        let tick = Now::from_ns(self.now_ns(slot, shard)).tick;
        let shared = Arc::clone(&self.shared);
        let Some(peer) = self.peer(slot, shard, key) else { return };
        let number = peer.conn;
        let (kind, bytes, asked) = match sent {
            ClientMessage::Message { kind, bytes, asked } => (kind, bytes, asked),
            ClientMessage::Close(code) => {
                shared.ledger().sessions.conns[number as usize].codes |= code.map_or(0, code_bit);
                return self.step(slot, shard, Input::Ended(number), |core, net| {
                    core.peer_closed(net, key, code.map(CloseCode));
                });
            }
        };
        if !peer.socket.is_open() {
            return;
        }
        peer.socket.heard(tick);
        peer.heard_tick = tick;
        // A message that cannot be passed on is refused.
        if bytes.len() > shared.plan.config.broadcast_bytes_max() {
            return self.fail_socket(shard, key, CloseCode::TOO_BIG);
        }
        let (wire, is_text) = (peer.socket.wire(), kind == FrameKind::Text);
        let above = shared.plan.app.prepare_above as usize;
        // A long text is read away from its shard, which does not read its socket meanwhile.
        if let Some(serializer) = wire.serializer().filter(|_| above > 0 && is_text)
            && bytes.len() > above
        {
            peer.socket.enter(Phase::Waiting, tick);
            peer.is_held = true;
            shared.ledger().sessions.conns[number as usize].is_reading = true;
            let reading = Reading { conn: number, shard, key, serializer, bytes, asked };
            return self.readings.push_back(reading);
        }
        let text = String::from_utf8_lossy(&bytes);
        let frame = if is_text { Frame::Text(&text) } else { Frame::Binary(&bytes) };
        if wire.is_plain() {
            // It has no refs, topic or event.
            let size = Size { bytes: bytes.len() as u64, payload: bytes.len() };
            return self.step(0, shard, Input::Other, |core, net| {
                if shared.ledger().sessions.joined(number, asked.topic).is_some() {
                    shared.ledger().hand_in(number, asked, size);
                }
                core.plain_message(net, key, frame);
            });
        }
        let serializer = wire.serializer().unwrap_or(Serializer::V2);
        let Ok(message) = serializer.decode(frame) else { return };
        let (join_ref, size) = (join_ref(&message), size(&message));
        self.step(slot, shard, Input::Other, |core, net| {
            shared.ledger().hand_in(number, Request { join_ref, ..asked }, size);
            if shared.faults.happens(Fault::Repeat) {
                core.message(net, key, Received::from(message.clone()));
            }
            core.message(net, key, Received::from(message));
        });
    }

    /// A client takes some bytes of what has come. One that polls gets all, or nothing.
    pub(super) fn take_some(&mut self, client: usize, c: u32) {
        if self.polled_ns(client).is_none() {
            let most = if c.is_multiple_of(4) { (c >> 8) as usize % 400 } else { usize::MAX };
            self.receive(client, most);
            return;
        }
        let Some((number, slot, shard, key)) = self.line(client) else { return };
        self.polls(client);
        let peer = self.peer(slot, shard, key).filter(|_| (c >> 8).is_multiple_of(LOST));
        let Some(peer) = peer.filter(|it| !it.pipe.is_empty() && it.socket.is_open()) else {
            let has_come = self.receive(client, usize::MAX);
            return self.shared.ledger().count("polls", u64::from(has_come));
        };
        // Its next poll names an earlier answer than the server's last, which ends the session.
        peer.pipe.clear();
        let mut ledger = self.shared.ledger();
        ledger.note(|| format!("an answer to client {client} is lost"));
        ledger.count("answers to polls lost", 1);
        ledger.sessions.conns[number as usize].is_lost = true;
        drop(ledger);
        self.clients[client] = None;
        self.step(slot, shard, Input::Ended(number), |core, net| core.peer_closed(net, key, None));
    }

    fn polled_ns(&self, client: usize) -> Option<u64> {
        self.clients[client].as_ref()?.polled_ns
    }

    pub(super) fn polls(&mut self, client: usize) {
        if let Some(it) = &mut self.clients[client] {
            it.polled_ns = it.polled_ns.and(Some(self.clock_ns));
        }
    }

    /// Ends the sessions of a shard that were not polled in time.
    pub(super) fn end_unpolled(&mut self, shard: usize) {
        for client in 0..self.clients.len() {
            let polled_ns = self.polled_ns(client);
            let is_over = polled_ns.is_some_and(|at_ns| at_ns + UNPOLLED_NS <= self.clock_ns);
            if is_over && self.line(client).is_some_and(|line| line.2 == shard) {
                self.shared.note(|| format!("client {client} has not polled for too long"));
                self.shared.ledger().count("sessions not polled", 1);
                self.vanish(client);
            }
        }
    }

    /// A client takes values that its socket was sent.
    pub(crate) fn receive_values(&mut self, client: usize, heard: Vec<Value>) {
        let Some((number, ..)) = self.line(client) else { return };
        let mut ledger = self.shared.ledger();
        for it in heard {
            match it {
                Value::Delivery(topic, it, sum) => ledger.receive(number, topic, it, sum),
                Value::Close(code) => ledger.receive_close(number, code, ""),
            }
        }
    }
}

/// The size of a message, as PROTOCOL §6.7 counts.
pub(super) fn size(message: &Message<'_>) -> Size {
    let Message { join_ref, msg_ref, topic, event, payload } = message;
    let texts = [join_ref.raw(), msg_ref.raw(), topic, event];
    let bytes = texts.iter().map(|text| text.len()).sum::<usize>() + payload.len();
    Size { bytes: bytes as u64, payload: payload.len() }
}

/// The number of a message's join_ref. Binary frames have an empty string for null.
pub(super) fn join_ref(message: &Message<'_>) -> u32 {
    match message.join_ref.raw() {
        "\"\"" => NONE,
        raw => wire::ref_number(raw, false),
    }
}
