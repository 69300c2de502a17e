//! Clients: what they send, and how they read what they are sent.

use crate::kit::client::{self, Read};
use crate::kit::delivery::{Delivery, Request, RequestKind};
use crate::kit::fault::Fault;
use crate::kit::peer::{ClientMessage, Content, Value};
use crate::kit::{NONE, payload, refs};
use simurgh_core::{Phase, Received, Wire};
use simurgh_data::Key;
use simurgh_proto::message::{Message, Payload, events};
use simurgh_proto::serializer::{Frame, Kind, Serializer};
use simurgh_proto::session::client::{Client, Topic};
use simurgh_proto::ws::{CloseCode, Decoder};

use crate::model::limits::Size;
use crate::model::{Input, PayloadInfo, code_bit};

use super::NodeSimulation;

pub(crate) struct Link {
    pub(crate) client: usize,
    pub(crate) shard: usize,
    pub(crate) key: Key,
    pub(crate) wire: Wire,
    pub(crate) session: Client,
    pub(crate) decoder: Decoder,
    /// Bytes that its socket left behind.
    pub(crate) pipe: Vec<u8>,
    pub(crate) heard: Vec<Value>,
    pub(crate) is_over: bool,
    pub(crate) is_lost: bool,
    pub(crate) is_stalled: bool,
    /// When a long-poll session was last polled; `None` for other connections.
    pub(crate) polled_ns: Option<u64>,
    /// How many messages with refs outside its session it has sent.
    pub(crate) odd: u32,
}

impl Link {
    pub(crate) fn name(&self) -> String {
        let how = if self.polled_ns.is_some() { "polls" } else { "is connected" };
        format!("client {} ({:?}, {how}, shard {})", self.client, self.wire, self.shard)
    }
}

const ODD_REFS: u32 = 1_000_000;

impl NodeSimulation {
    pub(crate) fn link_of(&self, client: u16) -> Option<u32> {
        let client = usize::from(client) % self.current.len().max(1);
        self.current.get(client).copied().flatten()
    }

    fn pad(&self, kind: RequestKind, word: u32) -> usize {
        let above = self.shared.profile.features.prepare_above as usize;
        match word >> 20 & 7 {
            0..2 if above > 0 && matches!(kind, RequestKind::Join | RequestKind::Event) => above,
            2 if above > 0 => above / 2,
            _ => 0,
        }
    }

    pub(crate) fn say(
        &mut self,
        conn: u32,
        kind: RequestKind,
        topic: u8,
        word: u32,
        is_binary: bool,
    ) {
        let Some(wire) = self.links.get(conn as usize).map(|it| it.wire) else { return };
        let is_binary = is_binary && wire != Wire::V1;
        let (pad, made) =
            (self.pad(kind, word), PayloadInfo { is_binary, ..PayloadInfo::plain(topic, 0) });
        let mut model = self.shared.model();
        let (id, payload) = model.payload(made, word, pad);
        let name = model.topics.name(topic).to_owned();
        drop(model);
        if wire == Wire::Plain {
            return self.say_plain(conn, kind, id, &payload);
        }
        let Some(link) = self.links.get_mut(conn as usize) else { return };
        let mut bytes = Vec::with_capacity(96);
        let sent = match kind {
            RequestKind::Heartbeat => link.session.heartbeat(&mut bytes),
            RequestKind::Join => link.session.join(&mut bytes, &Topic::from(&*name), &payload),
            RequestKind::Leave => link.session.leave(&mut bytes, &name),
            RequestKind::Event => link.session.push(&mut bytes, &name, "x", &payload),
        };
        let Ok(sent) = sent else { return };
        let what = match kind {
            RequestKind::Heartbeat => "sends a heartbeat".to_owned(),
            RequestKind::Join => format!("joins {name}"),
            RequestKind::Leave => format!("leaves {name}"),
            RequestKind::Event => format!("pushes #{id} to {name}"),
        };
        let who = link.name();
        self.tell(|| format!("{who} {what} (ref {})", sent.msg_ref));
        let asked = Request { kind, topic, join_ref: 0, msg_ref: sent.msg_ref, id };
        self.send(conn, ClientMessage { kind: sent.kind, bytes, content: Content::Request(asked) });
    }

    fn say_plain(&mut self, conn: u32, kind: RequestKind, id: u32, payload: &Payload<'_>) {
        if kind != RequestKind::Event {
            return;
        }
        let bytes = payload.data().to_vec();
        let kind = if payload.binary().is_some() { Kind::Binary } else { Kind::Text };
        let who = self.links.get(conn as usize).map(Link::name).unwrap_or_default();
        self.tell(|| format!("{who} sends #{id}"));
        self.send(conn, ClientMessage { kind, bytes, content: Content::Plain(id) });
    }

    /// Sends a message with refs outside of the session: none, or those of an old join.
    pub(crate) fn say_oddly(&mut self, conn: u32, topic: u8, word: u32) {
        let Some(link) = self.links.get_mut(conn as usize) else { return };
        let mut model = self.shared.model();
        let (id, payload) = model.payload(PayloadInfo::plain(topic, 0), word, 0);
        let name = model.topics.name(topic).to_owned();
        drop(model);
        if link.wire == Wire::Plain {
            return;
        }
        link.odd += 1;
        let msg_ref = ODD_REFS + link.odd;
        let join_ref = match word >> 8 & 7 {
            0..4 => 0,
            4 => ODD_REFS + (word >> 12) % link.odd.max(1),
            _ => (word >> 12) % 24 + 1,
        };
        let (asks, event) = match word & 7 {
            0 | 1 => (RequestKind::Join, events::JOIN),
            2 => (RequestKind::Leave, events::LEAVE),
            _ => (RequestKind::Event, "x"),
        };
        let join_ref =
            if asks == RequestKind::Join { join_ref.min(ODD_REFS - 1) } else { join_ref };
        // Refs of every form. The join_ref of a join is used later, or never.
        let (join_ref, msg_ref) = match self.shared.profile.features.has_odd_refs {
            true if join_ref == 0 => (0, refs::in_form(msg_ref, word >> 17)),
            true if asks == RequestKind::Join => {
                let form = word >> 20;
                (refs::in_form(join_ref, form), refs::in_form(msg_ref, word >> 17 & 3))
            }
            true => (refs::in_form(join_ref, word >> 20), refs::in_form(msg_ref, word >> 17)),
            false => (join_ref, msg_ref),
        };
        let message = Message {
            join_ref: refs::of(join_ref),
            msg_ref: refs::of(msg_ref),
            topic: (&*name).into(),
            event: event.into(),
            payload,
        };
        let mut bytes = Vec::with_capacity(96);
        let Ok(kind) =
            link.wire.serializer().unwrap_or(Serializer::V2).message(&mut bytes, &message)
        else {
            return;
        };
        let who = link.name();
        self.tell(|| format!("{who} sends {event} #{id} to {name} (refs {join_ref}, {msg_ref})"));
        let asked = Request { kind: asks, topic, join_ref, msg_ref, id };
        self.send(conn, ClientMessage { kind, bytes, content: Content::Request(asked) });
    }

    fn send(&mut self, conn: u32, sent: ClientMessage) {
        let is_lost = self.links.get(conn as usize).is_none_or(|it| it.is_lost);
        if let Some(peer) = self.peer_mut(conn).filter(|it| !is_lost && !it.has_shut) {
            peer.inbound.push_back(sent);
        }
    }

    pub(crate) fn send_close(&mut self, conn: u32, code: Option<u16>) {
        self.send(
            conn,
            ClientMessage { kind: Kind::Binary, bytes: Vec::new(), content: Content::Close(code) },
        );
    }

    pub(crate) fn read(&mut self, conn: u32, messages: usize) -> bool {
        let Some(link) = self.links.get(conn as usize) else { return false };
        let (shard, key) = (link.shard, link.key);
        let Some(peer) = self.peer_mut(conn).filter(|it| !it.is_held) else { return false };
        let count = messages.min(peer.inbound.len());
        if count == 0 {
            if peer.has_shut && peer.inbound.is_empty() && peer.stash.is_empty() {
                self.servers[shard].net.removals.push(key);
                self.remove_connections(shard);
                return true;
            }
            return false;
        }
        let read: Vec<ClientMessage> = peer.inbound.drain(..count).collect();
        peer.stash.extend(read);
        self.feed(shard, key);
        true
    }

    /// Hands in what was read, until the socket waits for something.
    pub(crate) fn feed(&mut self, shard: usize, key: Key) {
        loop {
            let Some(peer) = self.servers.get(shard).and_then(|it| it.net.peer(key)) else {
                return;
            };
            let waits = peer.socket.phase() == Phase::Waiting && !peer.stash.is_empty();
            let hastes = waits && self.shared.is_faulty(Fault::Hasten);
            let server = self.servers.get_mut(shard);
            let Some(peer) = server.and_then(|it| it.net.peer_mut(key)) else { return };
            match peer.socket.phase() {
                Phase::Open | Phase::Closing => {}
                Phase::Waiting if !hastes => {
                    let left = peer.stash.len() as u64;
                    self.shared.model().counts.count("messages stashed", left);
                    return;
                }
                Phase::Waiting => {}
                _ => return peer.stash.clear(),
            }
            let Some(sent) = peer.stash.pop_front() else { return };
            self.hand_in(shard, key, sent);
        }
    }

    fn hand_in(&mut self, shard: usize, key: Key, sent: ClientMessage) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let tick = simurgh_data::Now::from_ns(server.turn_ns(self.clock_ns)).tick;
        let Some(peer) = server.net.peer_mut(key) else { return };
        let is_open = peer.socket.is_open();
        let conn = peer.conn;
        if let Content::Close(code) = sent.content {
            self.shared.model().conns[conn as usize].codes |= code.map_or(0, code_bit);
            self.step(shard, Input::Ended(conn), 1, |core, net, _| {
                core.peer_closed(net, key, code.map(CloseCode));
            });
            return;
        }
        if !is_open {
            return;
        }
        peer.socket.heard(tick);
        peer.heard_tick = tick;
        // A message that cannot be passed on is refused.
        if sent.bytes.len() > self.shared.profile.config.broadcast_bytes_max() {
            self.shared.model().counts.count("messages too big", 1);
            return self.fail_socket(conn, CloseCode::TOO_BIG);
        }
        let above = self.shared.profile.features.prepare_above as usize;
        let has_serializer = peer.socket.wire().serializer().is_some();
        if above > 0 && has_serializer && sent.kind == Kind::Text && sent.bytes.len() > above {
            return self.read_elsewhere(shard, key, sent);
        }
        let text;
        let frame = match sent.kind {
            Kind::Text => {
                text = String::from_utf8_lossy(&sent.bytes);
                Frame::Text(&text)
            }
            Kind::Binary => Frame::Binary(&sent.bytes),
        };
        let id = match sent.content {
            Content::Plain(id) => id,
            Content::Request(_) | Content::Close(_) => {
                return self.hand_in_asked(shard, key, sent.content, frame);
            }
        };
        let length = sent.bytes.len();
        self.step(shard, Input::Other, 1, |core, net, shared| {
            let mut model = shared.model();
            let topic = model.topics.plain();
            if model.joined(conn, topic).is_some() {
                let kind = RequestKind::Event;
                // It has no refs, topic or event.
                let size = Size { bytes: length as u64, payload: length };
                model.message(conn, Request { kind, topic, join_ref: 0, msg_ref: 0, id }, size);
            }
            drop(model);
            core.plain_message(net, key, frame);
        });
    }

    fn hand_in_asked(&mut self, shard: usize, key: Key, content: Content, frame: Frame<'_>) {
        let Content::Request(asked) = content else { return };
        let Some(peer) = self.servers.get(shard).and_then(|it| it.net.peer(key)) else { return };
        let conn = peer.conn;
        let serializer = peer.socket.wire().serializer().unwrap_or(Serializer::V2);
        let Ok(message) = serializer.decode(frame) else { return };
        let (join_ref, size) = (join_ref(&message), size(&message));
        self.step(shard, Input::Other, 1, |core, net, shared| {
            shared.model().message(conn, Request { join_ref, ..asked }, size);
            if shared.is_faulty(Fault::Repeat) {
                core.message(net, key, Received::from(message.clone()));
            }
            core.message(net, key, Received::from(message));
        });
    }

    /// A client takes what has come, up to this many bytes of it.
    pub(crate) fn take(&mut self, conn: u32, most: usize) -> bool {
        let Some(link) = self.links.get_mut(conn as usize) else { return false };
        link.polled_ns = link.polled_ns.map(|_| self.clock_ns);
        if link.is_lost {
            return self.let_go(conn);
        }
        let key = link.key;
        let is_values = link.wire == Wire::Values;
        let net = self.servers.get_mut(link.shard).map(|it| &mut it.net);
        let peer = net.and_then(|it| it.peer_mut(key));
        let (pipe, heard) = match peer {
            Some(peer) => (&mut peer.pipe, &mut peer.heard),
            None => (&mut link.pipe, &mut link.heard),
        };
        if is_values {
            let heard = std::mem::take(heard);
            let is_some = !heard.is_empty();
            self.listen(conn, heard);
            return self.let_go(conn) || is_some;
        }
        if pipe.is_empty() {
            return self.let_go(conn);
        }
        let mut bytes: Vec<u8> = match pipe.len() <= most {
            true => std::mem::take(pipe),
            false => pipe.drain(..most).collect(),
        };
        self.take_bytes(conn, &mut bytes);
        true
    }

    fn take_bytes(&mut self, conn: u32, bytes: &mut [u8]) {
        let Some(link) = self.links.get_mut(conn as usize) else { return };
        let Link { decoder, session, wire, .. } = link;
        let mut model = self.shared.model();
        let mut answers = None;
        client::read(decoder, *wire, bytes, |read| match read {
            Read::Message(message) => {
                let (topic, line, sum) = Delivery::of(&model.topics, &message);
                model.seen(conn, topic, line, sum);
                session.handle(&message);
            }
            Read::Plain(payload) => {
                let (topic, line) =
                    (model.topics.plain(), Delivery::raw(payload::parse(&payload).0));
                model.seen(conn, Some(topic), line, payload::sum(&payload));
            }
            Read::Close(frame) => {
                let code = frame.as_ref().map(|it| it.code.0);
                model.seen_close(conn, code);
                model.seen_reason(conn, &frame.map(|it| it.reason).unwrap_or_default());
                answers = Some(code);
            }
            Read::Wrong(error) => model.fail("frame", format!("socket {conn}: {error}")),
        });
        drop(model);
        if let Some(code) = answers {
            self.send_close(conn, code);
        }
    }

    fn listen(&mut self, conn: u32, heard: Vec<Value>) {
        let mut model = self.shared.model();
        for it in heard {
            match it {
                Value::Delivery(topic, line, sum) => model.seen(conn, topic, line, sum),
                Value::Close(code) => model.seen_close(conn, code),
            }
        }
    }

    /// Forgets the connection of a client once it is over and everything was taken.
    fn let_go(&mut self, conn: u32) -> bool {
        let Some(link) = self.links.get(conn as usize) else { return false };
        let client = link.client;
        let has_left = link.is_lost || (link.pipe.is_empty() && link.heard.is_empty());
        let is_over = link.is_over && has_left;
        match self.current.get_mut(client) {
            Some(place) if is_over && *place == Some(conn) => {
                *place = None;
                true
            }
            _ => false,
        }
    }
}

/// The size of a message, as PROTOCOL §6.7 counts.
pub(crate) fn size(message: &Message<'_>) -> Size {
    let Message { join_ref, msg_ref, topic, event, payload } = message;
    let texts = [join_ref.raw(), msg_ref.raw(), topic, event];
    let bytes = texts.iter().map(|it| it.len()).sum::<usize>() + payload.len();
    Size { bytes: bytes as u64, payload: payload.len() }
}

/// The number of a message's join_ref. Binary frames have an empty string for null.
pub(crate) fn join_ref(message: &Message<'_>) -> u32 {
    match message.join_ref.raw() {
        "\"\"" => NONE,
        raw => refs::number(raw, false),
    }
}
