//! Carries out operations.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::kit::delivery::RequestKind;
use crate::kit::fault::Fault;
use crate::kit::setup::locked;
use crate::kit::topics::IDS;
use crate::kit::transport::POLLED;
use crate::kit::{EVENTS, payload};
use simurgh_core::{
    Broadcast, Lifetime, Mail, NETWORK, Phase, Publisher, Reply, SocketState, Stop, Wire, guarded,
    nanoseconds,
};
use simurgh_proto::message::Payload;
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::{CloseCode, Decoder};

use super::NodeSimulation;
use super::client::Link;
use crate::app::handlers::first_assigned;
use crate::app::shared::ticks;
use crate::limits::lifetime;
use crate::model::{Answer, Due, Input, Intent, Joining, Life, Model, PayloadInfo};
use crate::node::{CHANNELS, Decision, MailTag, PLAIN, TaggedMail};
use crate::op::{Kind, Op};

impl NodeSimulation {
    pub(crate) fn carry_out(&mut self, op: Op) {
        let Op { kind, a, b, c } = op;
        let (conn, topic) = (self.link_of(a), self.some_topic(b));
        let is_binary = self.shared.profile.binary > 0 && c % 8 == 3;
        let reaches = self.shared.profile.features.reaches;
        match (kind, conn) {
            (Kind::Connect, None) => self.connect(a, c),
            (Kind::Join, Some(conn)) => self.say(conn, RequestKind::Join, topic, c, is_binary),
            (Kind::Push, Some(conn)) => self.say(conn, RequestKind::Event, topic, c, is_binary),
            (Kind::Leave, Some(conn)) => self.say(conn, RequestKind::Leave, topic, c, false),
            (Kind::Heartbeat, Some(conn)) => {
                let topic = self.shared.model().topics.phoenix();
                self.say(conn, RequestKind::Heartbeat, topic, 0, false);
            }
            (Kind::Odd, Some(conn)) => self.say_oddly(conn, topic, c),
            (Kind::Read, Some(conn)) => self.read_some(conn, usize::from(b % 4) + 1),
            (Kind::Take, Some(conn)) => self.take_some(conn, c),
            (Kind::Write, Some(conn)) => self.write(conn),
            (Kind::Stall, Some(conn)) => {
                self.links[conn as usize].is_stalled = c.is_multiple_of(2);
            }
            (Kind::Vanish | Kind::Close | Kind::HalfClose | Kind::Fail, Some(conn)) => {
                self.part(conn, kind, c);
            }
            (Kind::Mail, _) => {
                if let Some(shard) = self.shard(a) {
                    (0..=b % 4).for_each(|_| _ = self.take_mail(shard));
                }
            }
            (Kind::Turn, _) => {
                if let Some(shard) = self.shard(a) {
                    self.tell(|| format!("core {shard} ends its turn"));
                    self.end_turn(shard, u64::from(c));
                }
            }
            (Kind::Decide, _) => self.decide(usize::from(a)),
            (Kind::Publish, _) => self.publish(topic, c),
            (Kind::Handle, _) => self.handle(c),
            (Kind::Disconnect, _) => self.disconnect(usize::from(b)),
            (Kind::Wait, _) => self.wait(c),
            (Kind::Drain, _) => self.drain(a, c),
            (Kind::Restart, _) => self.restart(c),
            (Kind::Reading, _) => _ = self.was_read(usize::from(a)),
            (Kind::Kick, Some(conn)) => self.kick(conn),
            (Kind::Rest, _) => {
                self.tell(|| "all comes to rest".to_owned());
                self.rest();
            }
            (Kind::Done, _) => self.done(usize::from(a), c),
            (Kind::Finish, _) if reaches => self.end_work(usize::from(a)),
            (Kind::Speak, _) if reaches => self.speak(c),
            (Kind::Listen, _) if reaches => self.begin_listening(topic, c),
            (Kind::Unlisten, _) => self.unlisten(c),
            (Kind::Burst, Some(conn)) => self.burst(conn, topic, c),
            (Kind::Who, _) => self.ask_who(topic),
            _ => {}
        }
    }

    fn some_topic(&self, b: u16) -> u8 {
        let topics = &self.shared.model().topics;
        match b % 32 {
            31 => topics.unmatched(),
            29 | 30 => topics.over.unwrap_or((usize::from(b / 32) % topics.rooms) as u8),
            _ => (usize::from(b / 32) % topics.rooms) as u8,
        }
    }

    pub(crate) fn connect(&mut self, client: u16, c: u32) {
        let client = usize::from(client) % self.current.len();
        let Some(shard) = self.shard((c >> 8) as u16) else { return };
        let Some(server) = self.servers.get_mut(shard).filter(|it| !it.net.is_deaf) else { return };
        let (wire, user_socket) = match c % 16 {
            0..5 => (Wire::V1, CHANNELS),
            5..12 => (Wire::V2, CHANNELS),
            12..14 => (Wire::Values, CHANNELS),
            _ => (Wire::Plain, PLAIN),
        };
        let mut model = self.shared.model();
        let id = (c >> 4 & 7 < 2).then(|| model.topics.id((c >> 20) as usize % IDS));
        let name = id.map(|id| model.topics.name(id).into());
        let conn = model.open(shard, wire, id);
        model.counts.count("sockets", 1);
        let (topic, plain) = (model.topics.plain(), wire == Wire::Plain);
        let has_assigns = self.shared.profile.features.reaches && c >> 28 & 1 == 0;
        let assigned = has_assigns.then(|| model.next_assigned());
        model.conns[conn as usize].assigned = assigned;
        drop(model);
        let assigns = assigned.map(|it| first_assigned(&self.shared, it));
        let is_polled = wire.serializer().is_some() && c >> 25 & 7 == 0;
        let window = if is_polled { usize::MAX } else { self.shared.profile.window };
        let key = server.net.open(conn, wire, user_socket, window);
        if let Some(peer) = server.net.peer_mut(key).filter(|_| is_polled) {
            peer.socket.transport = POLLED;
        }
        let serializer = wire.serializer().unwrap_or(simurgh_proto::serializer::Serializer::V2);
        let link = Link {
            client,
            shard,
            key,
            wire,
            session: Client::new(serializer),
            decoder: Decoder::new(),
            pipe: Vec::new(),
            heard: Vec::new(),
            is_over: false,
            is_lost: false,
            is_stalled: false,
            polled_ns: is_polled.then_some(self.clock_ns),
            odd: 0,
        };
        let who = link.name();
        self.tell(|| format!("{who} connects as #{conn}, id {name:?}"));
        self.links.push(link);
        self.current[client] = Some(conn);
        let has_time = self.shared.profile.features.expires && c >> 29 & 1 == 0;
        let time = if has_time { lifetime(c.rotate_left(13)) } else { None };
        let due = Due::Join { id: payload::EMPTY };
        let input = if plain { Input::Message(Some(due)) } else { Input::Other };
        self.step(shard, input, 1, |core, net, shared| {
            if plain {
                let joining = Joining { conn, topic, join_ref: 0, msg_ref: 0 };
                shared.model().joining = Some(joining);
            }
            let mut model = shared.model();
            if let Some(time) = time {
                model.lives_for(conn, Some(nanoseconds(time)));
            }
            drop(model);
            let time = time.filter(|_| !shared.is_faulty(Fault::Outstay));
            let lifetime = time.map(Lifetime::from);
            core.opened(net, key, SocketState { id: name, assigns, lifetime });
        });
    }

    fn read_some(&mut self, conn: u32, messages: usize) {
        if self.read(conn, messages) {
            let who = self.links.get(conn as usize).map(Link::name).unwrap_or_default();
            self.tell(|| format!("up to {messages} messages of {who} are read"));
        }
    }

    fn take_some(&mut self, conn: u32, c: u32) {
        let Some(link) = self.links.get(conn as usize) else { return };
        if link.is_stalled && !link.is_lost && !link.is_over {
            return;
        }
        let (who, is_polled) = (link.name(), link.polled_ns.is_some());
        if is_polled {
            return self.poll(conn, c >> 8);
        }
        let most = if c.is_multiple_of(4) { (c >> 8) as usize % 400 } else { usize::MAX };
        if self.take(conn, most) {
            self.tell(|| format!("{who} takes what has come"));
        }
    }

    /// Writes what there is room for, and notifies the core of sockets that have caught up.
    pub(crate) fn write(&mut self, conn: u32) {
        let Some(link) = self.links.get(conn as usize) else { return };
        let (shard, key, who) = (link.shard, link.key, link.client);
        let Some(server) = self.servers.get_mut(shard).filter(|it| !it.has_ended) else { return };
        if !server.net.write_more(key) {
            return;
        }
        self.tell(|| format!("more is written to client {who}"));
        loop {
            let next = self.servers.get_mut(shard).and_then(|it| it.net.drained.pop());
            let Some(key) = next else { return };
            self.shared.model().counts.count("caught up", 1);
            self.step(shard, Input::Other, 1, |core, net, _| core.drained(net, key));
        }
    }

    fn part(&mut self, conn: u32, kind: Kind, c: u32) {
        let Some(link) = self.links.get_mut(conn as usize) else { return };
        let (shard, key, who) = (link.shard, link.key, link.name());
        if kind == Kind::Vanish {
            link.is_lost = true;
        }
        let Some(is_open) = self.peer(conn).map(|it| it.socket.is_open()) else { return };
        self.tell(|| format!("{who}: {kind:?}"));
        match kind {
            Kind::Vanish => {
                self.shared.model().counts.count("vanished", 1);
                self.servers[shard].net.removals.push(key);
                self.remove_connections(shard);
            }
            Kind::Close => self.send_close(conn, c.is_multiple_of(2).then_some(1000)),
            // Its requests end by themselves.
            Kind::HalfClose if self.links[conn as usize].polled_ns.is_some() => {}
            Kind::HalfClose => {
                if let Some(peer) = self.peer_mut(conn) {
                    peer.has_shut = true;
                }
                self.shared.model().conns[conn as usize].waits.has_shut = true;
            }
            _ => {
                let codes = [CloseCode::PROTOCOL, CloseCode::INVALID_DATA, CloseCode::INTERNAL];
                let code = codes.get(c as usize % 3).copied().unwrap_or(CloseCode::PROTOCOL);
                let closes = self.peer(conn).is_some_and(|it| it.socket.phase() == Phase::Closing);
                if is_open || (closes) {
                    self.fail_socket(conn, code);
                }
            }
        }
    }

    fn decide(&mut self, which: usize) {
        let mut state = self.node.state();
        let count = state.deciding.len();
        let Some(decision) = state.deciding.remove(which.checked_rem(count).unwrap_or(0)) else {
            return;
        };
        drop(state);
        let Decision { conn, shard, key, ticket, mut work } = decision;
        let mut context = Context::from_waker(Waker::noop());
        let polled = guarded(|| Pin::new(&mut work).poll(&mut context));
        let answer = locked(&self.shared.answer).take().unwrap_or(Answer::Panic);
        self.tell(|| format!("a join of #{conn} is decided: {answer:?}"));
        let joined = match polled {
            Some(Poll::Ready(join)) => Some(join),
            Some(Poll::Pending) => return,
            None => None,
        };
        let mail = Mail::Joined(key, ticket, joined);
        self.node.put(shard, TaggedMail::new(mail, MailTag::Joined(conn, ticket, answer)));
    }

    fn publish(&mut self, topic: u8, c: u32) {
        let mut model = self.shared.model();
        let event = (c % EVENTS.len() as u32) as u8;
        let is_binary = self.shared.profile.binary > 0 && c >> 8 & 7 == 0;
        let is_long = self.shared.profile.long > 0 && c >> 12 & 3 == 0;
        let pad = if is_long { self.shared.profile.pad } else { 0 };
        let made = PayloadInfo { event, is_binary, ..PayloadInfo::plain(topic, 1) };
        let (id, payload) = model.payload(made, c, pad);
        let name = model.topics.name(topic).to_owned();
        drop(model);
        let expected = self.node.may_broadcast_bytes(&name, payload.len());
        let mut broadcast = Broadcast::new(&*name, EVENTS[usize::from(event)], payload);
        if self.shared.profile.features.reaches && c >> 20 & 3 == 0 {
            broadcast = self.but_for(broadcast, id, c >> 22);
        }
        let done = self.node.broadcast(broadcast);
        if done != expected {
            self.shared.model().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.tell(|| format!("somebody broadcasts #{id} on {name}: {done:?}"));
        if done.is_err() {
            self.shared.model().counts.count("broadcasts turned away", 1);
        }
    }

    fn disconnect(&mut self, which: usize) {
        let topic = self.shared.model().topics.id(which);
        let name = self.shared.model().topics.name(topic).to_owned();
        let empty = Payload::EMPTY_OBJECT;
        let done = self.node.broadcast(Broadcast::new(&*name, "disconnect", empty));
        self.tell(|| format!("somebody disconnects {name}: {done:?}"));
    }

    fn handle(&mut self, c: u32) {
        let mut model = self.shared.model();
        let chans = model.chans.len();
        let Some(chan) = chans.checked_sub(1 + c as usize % chans.clamp(1, 16)) else { return };
        let Some(it) = model.chans.get_mut(chan) else { return };
        let Some(handle) = self.shared.handle(chan as u32) else { return };
        let answers = if c >> 8 & 1 == 0 { it.refs.pop() } else { None };
        // The handle of an ended channel is used once more: too late.
        if it.life == Life::Ended {
            self.shared.forget(chan as u32);
        }
        let topic = it.topic;
        let (id, payload) = model.payload(PayloadInfo::plain(topic, 0), c, 0);
        drop(model);
        let expires = self.shared.profile.features.expires;
        let intent = match (&answers, c >> 9 & 7) {
            (Some((_, msg_ref)), _) => Intent::Reply(*msg_ref, id),
            (None, 0) => Intent::Stop(Stop::Normal),
            (None, 1) if expires && c >> 12 & 1 == 0 => Intent::Stop(Stop::Expired),
            (None, 1) => Intent::Stop(Stop::Abnormal),
            (None, 2..5) => Intent::Push(id),
            (None, _) => Intent::Info(id),
        };
        self.tell(|| format!("the handle of channel {chan}: {intent:?}"));
        *locked(&self.shared.intent) = Some((chan as u32, intent));
        match (intent, answers) {
            (Intent::Reply(..), Some((to, _))) => handle.reply(to, Reply::ok(payload)),
            (Intent::Stop(how), _) => handle.stop(how),
            (Intent::Push(_), _) => handle.push("p", payload),
            _ => handle.send(id),
        }
    }

    fn wait(&mut self, c: u32) {
        let size = u64::from(c >> 8);
        let ns = match c % 64 {
            0..32 => size % 1_000_000,
            32..52 => size % 20_000_000,
            52..62 => size * 60,
            _ => size * 5_000,
        };
        self.tell(|| format!("{:?} pass", Duration::from_nanos(ns)));
        self.clock_ns += ns;
    }

    fn drain(&mut self, a: u16, c: u32) {
        let over = Duration::from_millis(u64::from(c % 3_000));
        let shards = self.servers.len();
        for shard in 0..shards {
            if c >> 16 & 1 == 0 || usize::from(a) % shards == shard {
                let tagged = TaggedMail::new(Mail::Drain(over), MailTag::Nothing);
                self.node.put(shard, tagged);
            }
        }
        self.tell(|| format!("a drain over {over:?}"));
    }

    /// Delivers everything, and checks that all clients have received what was due.
    pub(crate) fn rest(&mut self) {
        const ROUNDS_MAX: usize = 4_000;
        self.shared.model().counts.count("rests", 1);
        for link in &mut self.links {
            link.is_stalled = false;
        }
        for round in 0..ROUNDS_MAX {
            let mut is_busy = false;
            for shard in 0..self.servers.len() {
                while self.take_mail(shard) {
                    is_busy = true;
                }
            }
            while self.was_read(0) {
                is_busy = true;
            }
            for conn in self.open_links() {
                is_busy |= self.read(conn, usize::MAX);
                while self.take(conn, usize::MAX) {
                    is_busy = true;
                    self.write(conn);
                }
                self.write(conn);
            }
            for shard in 0..self.servers.len() {
                is_busy |= self.end_turn(shard, round as u64) == simurgh_data::Next::Now;
            }
            self.clock_ns += 5_000_000;
            if self.has_failed() {
                return;
            }
            if !is_busy && self.unrest().is_none() {
                self.check_rest();
                return;
            }
            // Only events of presence are still to come.
            if !is_busy && self.presence_unrest().is_some() {
                self.clock_ns += 60_000_000;
            }
        }
        let text = self.unrest().unwrap_or_default();
        self.shared.model().fail("rest", format!("it does not come to rest: {text}"));
    }

    fn open_links(&self) -> Vec<u32> {
        self.current.iter().flatten().copied().collect()
    }

    fn unrest(&self) -> Option<String> {
        let state = self.node.state();
        for (shard, server) in self.servers.iter().enumerate().filter(|(_, it)| !it.has_ended) {
            if state.charged.get(shard).is_some_and(|it| *it > 0) {
                return Some(format!("bytes under way in shard {shard}: {:?}", state.charged));
            }
            if server.metrics.fanout_topics.value() > 0 {
                return Some(format!("shard {shard} fans out"));
            }
        }
        drop(state);
        for conn in self.open_links() {
            let Some(peer) = self.peer(conn) else { continue };
            let waits = peer.socket.phase() == Phase::Waiting;
            let is_lost = self.links.get(conn as usize).is_none_or(|it| it.is_lost);
            if peer.is_held && !waits {
                return Some(format!("socket {conn} is held"));
            }
            let has_all = peer.queue.is_empty() && peer.pipe.is_empty() && peer.heard.is_empty();
            if !has_all && !is_lost {
                return Some(format!("socket {conn} has not taken all"));
            }
        }
        self.presence_unrest()
    }

    fn check_rest(&mut self) {
        let mut model = self.shared.model();
        model.at_rest();
        let state = self.node.state();
        if self.shared.profile.counts_members {
            let mut counts = vec![0_i64; state.member_counts.len()];
            for chan in model.chans.iter().filter(|it| it.life == Life::Live) {
                counts[usize::from(chan.topic)] += 1;
            }
            if counts != state.member_counts {
                let text =
                    format!("the census says {:?}, there are {counts:?}", state.member_counts);
                model.fail("census", text);
            }
        }
    }

    pub(crate) fn end_all(&mut self) {
        if !self.has_failed() {
            self.rest();
        }
        if self.shared.profile.seed.is_multiple_of(4) {
            self.fall_silent();
        }
        for conn in self.open_links() {
            if let Some(link) = self.links.get(conn as usize).filter(|it| !it.is_over) {
                let (shard, key) = (link.shard, link.key);
                self.servers[shard].net.removals.push(key);
                self.remove_connections(shard);
            }
        }
        self.current.fill(None);
        let deciding = std::mem::take(&mut self.node.state().deciding);
        drop(deciding);
        self.unlisten_all();
        if !self.has_failed() {
            self.rest();
        }
        if !self.has_failed() {
            self.check_end();
        }
        self.shared.forget_all();
    }

    /// All clients fall silent: undecided joins time out, and sockets may close for their silence.
    fn fall_silent(&mut self) {
        let config = self.shared.profile.config.clone();
        let longest = config.decision_timeout + config.idle_timeout.unwrap_or_default();
        let slack = Duration::from_secs(20);
        let until_ns = self.clock_ns + (longest + slack).as_nanos() as u64;
        while self.clock_ns < until_ns && !self.has_failed() {
            for shard in 0..self.servers.len() {
                self.end_turn(shard, 1);
            }
            while self.was_read(0) {}
            for conn in self.open_links() {
                while self.take(conn, usize::MAX) {
                    self.write(conn);
                }
            }
            self.clock_ns += 500_000_000;
        }
        if let Some(conn) = self.open_links().into_iter().find(|conn| self.is_forgotten(*conn)) {
            let text = format!("socket {conn} is open after {longest:?} of silence");
            self.shared.model().fail("silence", text);
        }
    }

    /// Whether a socket's time was over long ago.
    fn is_forgotten(&self, conn: u32) -> bool {
        const SLACK: u32 = 100;
        let config = &self.shared.profile.config;
        let Some(peer) = self.peer(conn) else { return false };
        let tick = simurgh_data::Now::from_ns(self.clock_ns).tick;
        let silent = tick.saturating_sub(peer.socket.last_heard());
        let limit = match peer.socket.phase() {
            Phase::Waiting => Some(config.decision_timeout),
            Phase::Open if peer.socket.transport == NETWORK && peer.inbound.is_empty() => {
                config.idle_timeout
            }
            _ => None,
        };
        limit.is_some_and(|limit| silent > ticks(limit) + SLACK)
    }

    pub(crate) fn check_end(&mut self) {
        let mut found = Vec::new();
        // Homes that end notify no shard: answers that others keep end with the server.
        let is_whole = self.servers.iter().all(|it| !it.has_ended);
        for (shard, server) in self.servers.iter().enumerate() {
            let it = &server.metrics;
            let gauges = [
                it.sockets.value(),
                it.channels.value(),
                it.subscriptions.value(),
                it.topics.value(),
                it.fanout_topics.value(),
                it.channels_hibernating.value(),
                it.presences.value() + u64::from(server.core.presences().topics > 0),
                server.core.presences().answers as u64 * u64::from(is_whole),
            ];
            // What is in transit in a shard that ends is lost with it.
            let (gauges, frames) = match server.has_ended {
                true => ([0; 8], 0),
                false => (gauges, server.net.frames.get()),
            };
            if gauges != [0; 8] || frames != 0 {
                found.push(format!("shard {shard}: gauges {gauges:?}, {frames} frames"));
            }
        }
        let state = self.node.state();
        let mut model = self.shared.model();
        for (shard, charged) in state.charged.iter().enumerate() {
            if *charged > 0 && !state.ended.get(shard).copied().unwrap_or(false) {
                found.push(format!("{charged} bytes are under way in shard {shard}"));
            }
        }
        if state.member_counts.iter().any(|it| *it != 0) && self.shared.profile.counts_members {
            found.push(format!("census {:?}", state.member_counts));
        }
        let ready = self.shared.ready.load(Ordering::Relaxed);
        let assigned = self.shared.assigned.load(Ordering::Relaxed);
        let listeners = model.listeners_left(|it| state.ended.get(it).copied().unwrap_or(true));
        let (tasks, Model { alive, seats, .. }) = (model.untold(), &*model);
        if (*alive, *seats, ready, assigned, listeners, tasks) != (0, 0, 0, 0, 0, 0) {
            found.push(format!(
                "{alive} channels, {seats} seats, {ready} prepared, {assigned} assigned, \
                 {listeners} listeners, {tasks} linked works"
            ));
        }
        if !found.is_empty() {
            model.fail("left", found.join("; "));
        }
    }
}
