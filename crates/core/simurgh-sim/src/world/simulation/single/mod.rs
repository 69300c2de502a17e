//! Operations on one node without histories, from outside of it.

mod checks;
mod clients;
mod readings;
mod rest;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use simurgh_core::{
    Broadcast, Lifetime, Listener, Mail, Mailboxes, NETWORK, Phase, PresenceList, Publisher, Reply,
    SocketState, Stop, Wire,
};
use simurgh_data::Key;
use simurgh_proto::message::Payload;
use simurgh_proto::ws::{CloseCode, Decoder};

pub(super) use self::readings::Reading;
use super::{Shard, Simulation};
use crate::kit::EVENTS;
use crate::kit::client::Connection;
use crate::kit::delivery::RequestKind;
use crate::kit::fault::Fault;
use crate::kit::topics::IDS;
use crate::kit::transport::POLLED;
use crate::limits::lifetime;
use crate::world::Op;
use crate::world::client::Session;
use crate::world::ledger::BroadcastInfo;
use crate::world::ledger::sessions::{DISCONNECT, Input, Life, ListenerGuard, code_bit, number_of};
use crate::world::plan::Kind;
use crate::world::single::{Actor, SinglePlan, first_assigned, speech};

/// The user socket of clients, and that of clients without a serializer.
const CHANNELS: u8 = 0;
const PLAIN: u8 = 1;

impl Simulation {
    pub(crate) fn single(&self) -> &SinglePlan {
        self.shared.plan.single.as_ref().unwrap_or_else(|| unreachable!("it has a plan"))
    }

    /// Carries out an operation of one node without histories.
    pub(super) fn run_single(&mut self, op: Op) {
        let Op { kind, a, b, c } = op;
        let client = usize::from(a) % self.clients.len();
        let (topic, shard) = (self.some_topic(b), usize::from(a) % self.shared.plan.nodes[0]);
        let is_binary = self.single().binary > 0 && c % 8 == 3;
        match kind {
            Kind::Connect => self.connect_single(client, c),
            Kind::Join => self.send_asked(client, RequestKind::Join, topic, c, is_binary),
            Kind::Push => self.send_asked(client, RequestKind::Event, topic, c, is_binary),
            Kind::Leave => self.send_asked(client, RequestKind::Leave, topic, c, false),
            Kind::Heartbeat => self.heartbeat(client),
            Kind::Odd => self.send_oddly(client, topic, c),
            Kind::Read => _ = self.read(client, usize::from(b % 4) + 1),
            Kind::Take => self.take_some(client, c),
            Kind::Vanish => self.vanish(client),
            Kind::Close => self.send_close(client, c.is_multiple_of(2).then_some(1000)),
            Kind::HalfClose => self.half_close(client),
            Kind::Fail => self.fail_bytes(client, c),
            Kind::Kick => self.kick(client),
            Kind::Mail => (0..=b % 4).for_each(|_| _ = self.take_mail(0, shard)),
            Kind::Turn => _ = self.turn_single(shard),
            Kind::Decide => _ = self.node(0).map(|node| node.decide_next(usize::from(a))),
            Kind::Publish => self.publish_single(topic, c),
            Kind::Handle => self.use_handle(c),
            Kind::Speak => self.speak(c),
            Kind::Proceed => self.proceed(c),
            Kind::Finish => self.shared.ledger().finish_task(usize::from(a)),
            Kind::Disconnect => self.disconnect_single(usize::from(b)),
            Kind::Wait => self.wait_single(c),
            Kind::Drain => self.drain_single(a, c),
            Kind::Restart => self.restart_single(c),
            Kind::Reading => _ = self.was_read(usize::from(a)),
            Kind::Listen if b % 7 < 4 => self.begin_listening(topic, c),
            Kind::Listen => self.unlisten_some(c),
            Kind::Who => self.ask_who(topic),
            Kind::Burst => self.burst(client, topic, c),
            Kind::Rest => self.rest_single(),
            _ => {}
        }
    }

    fn some_topic(&self, b: u16) -> u8 {
        let topics = &self.shared.setup.topics;
        let room = (usize::from(b / 32) % topics.rooms) as u8;
        match b % 32 {
            31 => topics.unmatched(),
            29 | 30 => topics.over.unwrap_or(room),
            _ => room,
        }
    }

    fn connect_single(&mut self, client: usize, c: u32) {
        let shard = (c >> 8) as usize % self.shared.plan.nodes[0];
        if self.clients[client].connection.is_some() {
            return;
        }
        let window = self.shared.plan.window;
        let (reaches, expires) = (self.single().reaches, self.single().expires);
        let server = self.shard(0, shard);
        if server.is_none_or(|server| server.has_ended || server.net.is_deaf) {
            return;
        }
        let (wire, user_socket) = match c % 16 {
            0..5 => (Wire::V1, CHANNELS),
            5..12 => (Wire::V2, CHANNELS),
            12..14 => (Wire::Values, CHANNELS),
            _ => (Wire::Plain, PLAIN),
        };
        let shared = Arc::clone(&self.shared);
        let mut ledger = shared.ledger();
        let topics = &shared.setup.topics;
        let id = (c >> 4 & 7 < 2).then(|| topics.id((c >> 20) as usize % IDS));
        let name = id.map(|id| topics.name(id).into());
        let number = ledger.sessions.open(shard, wire, id);
        ledger.counts.count("sockets", 1);
        let has_assigns = reaches && c >> 28 & 1 == 0;
        let assigned = has_assigns.then(|| ledger.sessions.next_assigned());
        ledger.sessions.conns[number as usize].assigned = assigned;
        drop(ledger);
        let assigns = assigned.map(|value| first_assigned(&shared, value));
        let is_polled = wire.serializer().is_some() && c >> 25 & 7 == 0;
        let polled_ns = is_polled.then_some(self.clock_ns);
        let window = if is_polled { usize::MAX } else { window };
        let Some(running) = self.nodes[0].as_mut() else { return };
        running.node.seats.fetch_add(1, Relaxed);
        let Shard { net, .. } = &mut running.shards[shard];
        let key = net.open(number, wire, user_socket, window);
        if let Some(peer) = net.peer_mut(key).filter(|_| is_polled) {
            peer.socket.transport = POLLED;
        }
        let it = &mut self.clients[client];
        let joins = vec![0; shared.setup.topics.names.len()];
        (it.wire, it.refs, it.session) = (wire, 0, Session { joins, odd: 0, polled_ns });
        let decoder = Decoder::new();
        it.connection = Some(Connection { slot: 0, start: 0, shard, key, number, decoder });
        shared.note(|| format!("client {client} connects as #{number}, {wire:?}, id {name:?}"));
        let has_time = expires && c >> 29 & 1 == 0;
        let time = if has_time { lifetime(c.rotate_left(13)) } else { None };
        self.step(0, shard, Input::Other, |core, net| {
            let mut ledger = shared.ledger();
            if wire == Wire::Plain {
                ledger.joins_plain(number);
            }
            if time.is_some() {
                ledger.lives_for(number, time);
            }
            drop(ledger);
            let time = time.filter(|_| !shared.setup.faults.happens(Fault::Outstay));
            let lifetime = time.map(Lifetime::from);
            core.opened(net, key, SocketState { id: name, assigns, lifetime });
        });
    }

    /// The number of a client's connection, its shard and its key.
    fn line(&self, client: usize) -> Option<(u32, usize, Key)> {
        let line = self.clients.get(client)?.connection.as_ref()?;
        Some((line.number, line.shard, line.key))
    }

    fn publish_single(&mut self, topic: u8, c: u32) {
        let (long, pad, reaches, has_binary) = {
            let plan = self.single();
            (plan.long, plan.pad, plan.reaches, plan.binary > 0)
        };
        let Some(node) = self.node(0).cloned() else { return };
        let mut ledger = self.shared.ledger();
        let event = EVENTS[c as usize % EVENTS.len()];
        let is_binary = has_binary && c >> 8 & 7 == 0;
        let pad = if long > 0 && c >> 12 & 3 == 0 { pad } else { 0 };
        let made = BroadcastInfo {
            event,
            is_binary,
            depth: 1,
            ..BroadcastInfo::new(usize::from(topic), 0)
        };
        let (id, payload) = ledger.payload(made, c, pad);
        let left_out =
            if reaches && c >> 20 & 3 == 0 { ledger.leave_out(id, c >> 22) } else { None };
        drop(ledger);
        let name = self.shared.setup.topics.name(topic).to_owned();
        let expected = node.may_broadcast_bytes(&name, payload.len());
        let mut broadcast = Broadcast::new(&*name, event, payload);
        if let Some(left_out) = left_out {
            broadcast = broadcast.but_for(left_out);
        }
        let done = node.broadcast(broadcast);
        if done != expected {
            self.shared.ledger().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.shared.note(|| format!("#{id} is published on {name:.20}: {done:?}"));
        if done.is_err() {
            self.shared.ledger().counts.count("broadcasts turned away", 1);
        }
    }

    fn disconnect_single(&mut self, which: usize) {
        let topics = &self.shared.setup.topics;
        let name = topics.name(topics.id(which)).to_owned();
        let Some(node) = self.node(0) else { return };
        let done = node.broadcast(Broadcast::new(&*name, DISCONNECT, Payload::EMPTY_OBJECT));
        self.shared.note(|| format!("disconnect of {name}: {done:?}"));
    }

    /// A channel whose handle is kept; that of an ended channel is used once more: too late.
    fn some_handle(&self, c: u32) -> Option<(u32, simurgh_core::ChannelHandle<Actor>)> {
        let mut ledger = self.shared.ledger();
        let chans = ledger.sessions.chans.len();
        let chan = chans.checked_sub(1 + c as usize % chans.clamp(1, 16))? as u32;
        let handle = ledger.sessions.handles.get(&chan).cloned()?;
        if ledger.sessions.chan(chan).is_some_and(|it| it.life == Life::Ended) {
            drop(ledger.sessions.handles.remove(&chan));
        }
        Some((chan, handle))
    }

    fn use_handle(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let expires = self.single().expires;
        let mut ledger = self.shared.ledger();
        let it = &mut ledger.sessions.chans[chan as usize];
        let (topic, answers) = (it.topic, if c >> 8 & 1 == 0 { it.refs.pop() } else { None });
        let (id, payload) = ledger.payload(BroadcastInfo::new(usize::from(topic), 0), c, 0);
        let what = c >> 9 & 7;
        match (&answers, what) {
            (Some((_, msg_ref)), _) => ledger.tells(chan, *msg_ref),
            (None, 5..) => ledger.tells(chan, id),
            _ => {}
        }
        ledger.note(|| format!("the handle of channel {chan}: {what}, {answers:?}, #{id}"));
        drop(ledger);
        match (answers, what) {
            (Some((to, _)), _) => handle.reply(to, Reply::ok(payload)),
            (None, 0) => handle.stop(Stop::Normal),
            (None, 1) if expires && c >> 12 & 1 == 0 => handle.stop(Stop::Expired),
            (None, 1) => handle.stop(Stop::Abnormal),
            (None, 2..5) => handle.push("p", payload),
            (None, _) => handle.send(id),
        }
    }

    fn speak(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let Some(node) = self.node(0).cloned() else { return };
        let word = c.rotate_right(8);
        let mut ledger = self.shared.ledger();
        let (id, payload) = speech(&self.shared, &mut ledger, chan, 1, word);
        let made = ledger.broadcasts[id as usize];
        drop(ledger);
        let expected = node.may_broadcast_bytes("", payload.len());
        let done = match made.except == chan {
            true => handle.broadcast_from(made.event, payload),
            false => handle.broadcast(made.event, payload),
        };
        if done != expected {
            self.shared.ledger().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.shared.note(|| format!("the handle of channel {chan} broadcasts #{id}: {done:?}"));
    }

    fn proceed(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let mut ledger = self.shared.ledger();
        let id = ledger.add(BroadcastInfo::new(0, 0));
        ledger.tells(chan, id);
        drop(ledger);
        handle.visit(move |actor: &mut Actor, ctx| actor.proceed(ctx, id, c));
    }

    fn wait_single(&mut self, c: u32) {
        let size = u64::from(c >> 8);
        let ns = match c % 64 {
            0..32 => size % 1_000_000,
            32..52 => size % 20_000_000,
            52..62 => size * 60,
            _ => size * 5_000,
        };
        self.shared.note(|| format!("{:?} pass", Duration::from_nanos(ns)));
        self.clock_ns += ns;
    }

    fn drain_single(&mut self, a: u16, c: u32) {
        let over = Duration::from_millis(u64::from(c % 3_000));
        let Some(node) = self.node(0) else { return };
        for shard in 0..node.shards() {
            if c >> 16 & 1 == 0 || usize::from(a) % node.shards() == shard {
                node.post(shard, Mail::Drain(over));
            }
        }
        self.shared.note(|| format!("a drain over {over:?}"));
    }

    /// New cores start once all have drained and ended, as a new process does. Clients that had
    /// channels reconnect to any shard, and join them again.
    fn restart_single(&mut self, c: u32) {
        let Some(running) = self.nodes[0].as_mut() else { return };
        if !running.shards.iter().all(|shard| shard.has_ended) {
            return;
        }
        self.shared.note(|| "new cores start".to_owned());
        running.node.restart();
        let (node, seed) = (Arc::clone(&running.node), self.shared.plan.seed);
        let mut frames = 0;
        for (number, place) in running.shards.iter_mut().enumerate() {
            let fresh = Shard::new(&node, number, Arc::default(), seed);
            let Shard { core, net, metrics, .. } = std::mem::replace(place, fresh);
            drop(core);
            frames += net.frames.get().unsigned_abs();
            let left = [&metrics.sockets, &metrics.channels, &metrics.subscriptions];
            frames += left.iter().map(|gauge| gauge.value()).sum::<u64>();
            place.net = net.again();
        }
        self.readings.clear();
        let mut ledger = self.shared.ledger();
        let handles = std::mem::take(&mut ledger.sessions.handles);
        ledger.restart_shards();
        if frames > 0 {
            ledger.fail("left", format!("{frames} frames and gauges are left of the old shards"));
        }
        drop(ledger);
        drop(handles);
        self.check_left();
        for client in 0..self.clients.len() {
            let c = c.wrapping_mul(0x9e37_79b1).wrapping_add(client as u32 * 0x9_1d3);
            self.come_back(client, c);
        }
    }

    fn come_back(&mut self, client: usize, c: u32) {
        let joins = std::mem::take(&mut self.clients[client].session.joins);
        self.connect_single(client, c);
        for (topic, _) in joins.iter().enumerate().filter(|(_, join_ref)| **join_ref > 0) {
            self.shared.ledger().counts.count("channels joined again after one", 1);
            self.send_asked(client, RequestKind::Join, topic as u8, c >> 3, false);
        }
    }

    fn begin_listening(&mut self, topic: u8, c: u32) {
        let shard = (c >> 8) as usize % self.shared.plan.nodes[0];
        let Some(node) = self.node(0).cloned() else { return };
        let topics = &self.shared.setup.topics;
        let topic = if c & 7 == 0 { topics.id((c >> 3) as usize) } else { topic };
        let name = topics.name(topic).to_owned();
        if node.state().ended[shard] {
            return;
        }
        let number = self.shared.ledger().new_listener(shard, topic);
        self.shared.note(|| format!("listener {number} subscribes to {topic} on shard {shard}"));
        let heard = ListenerGuard { number, shared: Arc::clone(&self.shared) };
        let on_broadcast = Box::new(move |it: &Arc<Broadcast>| heard.hear(number_of(it)));
        let listener = Listener { name: Listener::id(shard as u16, number), on_broadcast };
        node.post(shard, Mail::Listen(name.into(), listener));
    }

    fn unlisten_some(&mut self, c: u32) {
        let count = self.shared.ledger().listeners();
        if let Some(number) = count.checked_sub(1 + c as usize % count.clamp(1, 8)) {
            self.end_listening(number);
        }
    }

    fn end_listening(&mut self, number: usize) {
        let ended = self.shared.ledger().end_listener(number);
        let Some((shard, topic, name)) = ended else { return };
        let topic = self.shared.setup.topics.name(topic).to_owned();
        if let Some(node) = self.node(0) {
            node.post(shard, Mail::Unlisten(topic.into(), name));
        }
    }

    fn ask_who(&mut self, topic: u8) {
        let Some(node) = self.node(0).cloned() else { return };
        let shared = Arc::clone(&self.shared);
        let name = shared.setup.topics.name(topic).to_owned();
        let answer = move |list: PresenceList| {
            shared.ledger().presence_answers(topic, &list.json);
        };
        node.request_presences(&name, Box::new(answer));
    }

    fn kick(&mut self, client: usize) {
        let Some((number, shard, key)) = self.line(client) else { return };
        let mut ledger = self.shared.ledger();
        let was_open = ledger.sessions.conn(number).is_some_and(|conn| conn.is_open);
        ledger.sessions.may_close(number, 1001);
        ledger.counts.count("kicked", u64::from(was_open));
        drop(ledger);
        self.step(0, shard, Input::Other, |core, net| {
            core.close(net, key, CloseCode::GOING_AWAY);
        });
        if was_open {
            self.must_be_over(shard, key, "it is closed from outside");
        }
    }

    fn fail_bytes(&mut self, client: usize, c: u32) {
        let Some((_, shard, key)) = self.line(client) else { return };
        let codes = [CloseCode::PROTOCOL, CloseCode::INVALID_DATA, CloseCode::INTERNAL];
        let peer = self.peer(0, shard, key);
        let may_fail =
            peer.is_some_and(|peer| peer.socket.is_open() || peer.socket.phase() == Phase::Closing);
        if may_fail {
            self.fail_socket(shard, key, codes[c as usize % 3]);
        }
    }

    /// The transport rejects a client's bytes, or there are too many.
    fn fail_socket(&mut self, shard: usize, key: Key, code: CloseCode) {
        let peer = self.peer(0, shard, key);
        let Some(number) = peer.map(|peer| peer.conn) else { return };
        if let Some(conn) = self.shared.ledger().sessions.conn_mut(number) {
            conn.codes |= code_bit(code.0);
            conn.is_cut = true;
        }
        self.step(0, shard, Input::Other, |core, net| core.fail(net, key, code));
        self.must_be_over(shard, key, "its bytes are wrong");
    }

    /// Checks that a socket that had to be closed has no session, and is read if it may answer.
    fn must_be_over(&mut self, shard: usize, key: Key, why: &str) {
        let peer = self.peer(0, shard, key);
        let Some(peer) = peer else { return };
        let phase = peer.socket.phase();
        let is_unheard = peer.is_held && peer.socket.transport == NETWORK;
        let is_over = matches!(phase, Phase::Closing | Phase::Ending);
        if !is_over || is_unheard || peer.socket.channels() > 0 {
            let text = format!("socket {} is {phase:?} (held: {}): {why}", peer.conn, peer.is_held);
            self.shared.ledger().fail("close", text);
        }
    }
}
