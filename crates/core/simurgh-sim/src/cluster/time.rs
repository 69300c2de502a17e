//! How time goes on: who runs, what is read and taken, and in which order.

use simurgh_core::{Core, Mail, Phase, Received};
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_proto::ws::{Event, Limits, Role};
use simurgh_reactor::{Key, Next, Now};

use super::node::SimNode;
use super::world::World;
use crate::net::Net;
use crate::payload;
use crate::peer::Sent;

impl World {
    /// Something is done with a core of a node that runs.
    pub(super) fn step(
        &mut self,
        slot: usize,
        shard: usize,
        act: impl FnOnce(&mut Core<SimNode>, &mut Net),
    ) {
        let clock_ns = self.clock_ns;
        let Some(live) = self.nodes.get_mut(slot).and_then(Option::as_mut) else { return };
        let (start, local_ns) = (live.start, live.local_ns(clock_ns));
        let Some(server) = live.servers.get_mut(shard).filter(|it| !it.has_ended) else { return };
        let now_ns = if server.is_in_turn { server.net.now.ns } else { local_ns };
        server.is_in_turn = true;
        server.next_ns = 0;
        server.net.at(now_ns, now_ns ^ clock_ns);
        self.shared.account().running = Some((start, shard));
        act(&mut server.core, &mut server.net);
        self.shared.account().running = None;
        server.net.touched.clear();
        server.net.holds.clear();
        loop {
            let server = self.live(slot).and_then(|it| it.servers.get_mut(shard));
            let Some(key) = server.and_then(|it| it.net.released.pop()) else { break };
            self.feed(slot, shard, key);
        }
    }

    pub(super) fn takes_mail(&mut self, slot: usize, shard: usize) -> bool {
        let Some(live) = self.live(slot).filter(|it| !it.is_frozen) else { return false };
        let start = live.start;
        let Some(mail) = live.node.take(shard) else { return false };
        if let Mail::Broadcast(posted) = &mail {
            let it = posted.broadcast();
            let topic = self.shared.plan.topic_of(it.topic());
            let is_plain = !it.event().starts_with("presence_") && it.position().is_none();
            if let Some(topic) = topic.filter(|_| is_plain) {
                let id = payload::parse(it.payload()).0;
                self.shared.account().accepts(start, shard, topic, id);
            }
        }
        self.step(slot, shard, |core, net| core.mail(net, mail));
        true
    }

    /// A shard comes to the end of its turn.
    pub(super) fn ends_turn(&mut self, slot: usize, shard: usize) {
        let clock_ns = self.clock_ns;
        let Some(live) = self.live(slot).filter(|it| !it.is_frozen) else { return };
        let now_ns = live.local_ns(clock_ns);
        let Some(server) = live.servers.get_mut(shard).filter(|it| !it.has_ended) else { return };
        server.net.judge();
        server.net.flush();
        self.bury(slot, shard);
        let mut nexts = [Next::Idle; 3];
        self.step(slot, shard, |core, net| nexts[0] = core.tick(net));
        self.step(slot, shard, |core, net| nexts[1] = core.fan_out(net));
        self.step(slot, shard, |core, net| nexts[2] = core.settle(net));
        let Some(server) = self.live(slot).and_then(|it| it.servers.get_mut(shard)) else { return };
        server.net.flush();
        server.is_in_turn = false;
        server.next_ns = u64::MAX;
        nexts.into_iter().for_each(|it| server.after(it, now_ns));
        self.bury(slot, shard);
        self.ends_shard(slot, shard);
    }

    /// A shard that has drained ends; with the last of a node that node says good-bye.
    fn ends_shard(&mut self, slot: usize, shard: usize) {
        let Some(live) = self.live(slot) else { return };
        let start = live.start;
        let Some(server) = live.servers.get_mut(shard) else { return };
        if !server.net.stops || server.has_ended {
            return;
        }
        server.has_ended = true;
        server.core.retire();
        live.node.end(shard);
        if live.servers.iter().all(|it| it.has_ended) {
            live.node.door.post(super::machine::Ask::Bye);
            let mut account = self.shared.account();
            if let Some(it) = account.starts.get_mut(start) {
                it.says_bye = true;
            }
        }
    }

    /// Connections that are over.
    fn bury(&mut self, slot: usize, shard: usize) {
        loop {
            let Some(server) = self.live(slot).and_then(|it| it.servers.get_mut(shard)) else {
                return;
            };
            server.net.cut.clear();
            let Some(key) = server.net.doomed.pop() else { return };
            let Some(peer) = server.net.remove(key) else { continue };
            let peer = *peer;
            let is_its = |it: &super::client::Line| {
                (it.slot, it.shard, it.key) == (slot, shard, key) && it.conn == peer.conn
            };
            let client = self.clients.iter().position(|it| it.line.as_ref().is_some_and(is_its));
            if let Some(client) = client {
                let mut bytes = peer.pipe;
                self.hears(client, &mut bytes);
                self.note(|| format!("client {client}'s connection is over"));
                if let Some(it) = self.clients.get_mut(client) {
                    it.disconnected();
                }
            }
            let socket = peer.socket;
            self.step(slot, shard, |core, net| core.closed(net, key, socket));
            if let Some(server) = self.live(slot).and_then(|it| it.servers.get_mut(shard)) {
                server.net.flush();
            }
        }
    }

    fn feed(&mut self, slot: usize, shard: usize, key: Key) {
        loop {
            let clock_ns = self.clock_ns;
            let Some(live) = self.live(slot) else { return };
            let tick = Now::from_ns(live.local_ns(clock_ns)).tick;
            let server = live.servers.get_mut(shard).filter(|it| !it.has_ended);
            let Some(peer) = server.and_then(|it| it.net.peer_mut(key)) else { return };
            match peer.socket.phase() {
                Phase::Open => {}
                Phase::Waiting => return,
                _ => return peer.stash.clear(),
            }
            let Some(sent) = peer.stash.pop_front() else { return };
            peer.socket.heard(tick);
            let text = String::from_utf8_lossy(&sent.bytes);
            self.note(|| format!("shard {shard} of node {slot} reads {text}"));
            let Ok(message) = Serializer::V2.decode(Frame::Text(&text)) else { return };
            self.step(slot, shard, |core, net| core.message(net, key, Received::from(message)));
        }
    }

    /// Some messages of a client are read.
    pub(super) fn reads(&mut self, client: usize, most: usize) -> bool {
        let line = self.clients.get(client).and_then(|it| it.line.as_ref());
        let Some((slot, shard, key)) = line.map(|it| (it.slot, it.shard, it.key)) else {
            return false;
        };
        if self.live(slot).is_none_or(|it| it.is_frozen) {
            return false;
        }
        let Some(inbound) = self.inbound(client).filter(|it| !it.is_empty()) else { return false };
        let count = most.min(inbound.len());
        let read: Vec<Sent> = inbound.drain(..count).collect();
        let server = self.live(slot).and_then(|it| it.servers.get_mut(shard));
        if let Some(peer) = server.and_then(|it| it.net.peer_mut(key)) {
            peer.stash.extend(read);
        }
        self.feed(slot, shard, key);
        true
    }

    /// A client takes what has come, and more is written.
    pub(super) fn takes(&mut self, client: usize) -> bool {
        let line = self.clients.get(client).and_then(|it| it.line.as_ref());
        let Some((slot, shard, key)) = line.map(|it| (it.slot, it.shard, it.key)) else {
            return false;
        };
        let Some(server) = self.live(slot).and_then(|it| it.servers.get_mut(shard)) else {
            return false;
        };
        server.net.write_more(key);
        let Some(peer) = server.net.peer_mut(key).filter(|it| !it.pipe.is_empty()) else {
            return false;
        };
        let mut bytes = std::mem::take(&mut peer.pipe);
        self.hears(client, &mut bytes);
        loop {
            let server = self.live(slot).and_then(|it| it.servers.get_mut(shard));
            let Some(key) = server.and_then(|it| it.net.drained.pop()) else { return true };
            self.step(slot, shard, |core, net| core.drained(net, key));
        }
    }

    fn hears(&mut self, client: usize, mut rest: &mut [u8]) {
        let (plan, mut account) = (&self.shared.plan, self.shared.account());
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(mut decoder) = it.line.as_mut().map(|it| std::mem::take(&mut it.decoder)) else {
            return;
        };
        let mut is_closed = false;
        loop {
            let event = decoder.next(Role::Client, &Limits::default(), &mut rest);
            let message = match &event {
                Ok(Some(Event::Text(text))) => Serializer::V2.decode_server(Frame::Text(text)),
                Ok(Some(Event::Binary(data))) => Serializer::V2.decode_server(Frame::Binary(data)),
                Ok(Some(other)) => {
                    is_closed |= matches!(other, Event::Close(..));
                    continue;
                }
                Ok(None) => break,
                Err(error) => {
                    account.fail("frame", format!("{error:?}"));
                    break;
                }
            };
            match message {
                Ok(message) => it.hears(plan, &mut account, &message),
                Err(error) => account.fail("frame", format!("{error:?}")),
            }
        }
        if let Some(line) = &mut it.line {
            line.decoder = decoder;
        }
        drop(account);
        if is_closed {
            // As a browser does.
            self.vanishes(client);
        }
    }

    /// The cluster's thread of a node has its turn.
    pub(super) fn runs_machine(&mut self, slot: usize) {
        let clock_ns = self.clock_ns;
        let Some(live) = self.live(slot).filter(|it| !it.is_frozen) else { return };
        let sockets = live.servers.iter().map(|it| it.metrics.sockets.value()).sum();
        let time = live.time(clock_ns);
        let has_ended = live.machine.turn(time, sockets);
        let published = std::mem::take(&mut live.machine.published);
        let gone = std::mem::take(&mut live.machine.gone);
        self.awaits(slot, published);
        gone.into_iter().for_each(|(node, why)| self.is_gone(slot, node, why));
        self.looks_at_bounds(slot);
        if has_ended {
            self.ends_node(slot);
        }
    }

    /// What a node has published is on its way to others.
    fn awaits(&mut self, slot: usize, published: Vec<(u32, u64)>) {
        for (id, dropped) in published {
            let topic = self.shared.account().made.get(id as usize).map(|it| it.topic);
            let name = topic.and_then(|it| self.shared.plan.topics.get(it));
            let Some(name) = name else { continue };
            let topic = topic.unwrap_or_default();
            let others = self.lives().filter(|it| it.slot != slot);
            for live in others.filter(|it| it.machine.is_heard(name)) {
                let mut account = self.shared.account();
                let mut shards = live.machine.shards(name);
                // Who is a member before another node speaks hears that, too.
                shards.extend(account.members(live.start, topic));
                shards.iter().for_each(|it| account.awaits(id, dropped, live.start, *it));
            }
        }
    }

    /// Everything that has something to do now runs once, in an order of the seed.
    fn runs_all(&mut self) {
        let count = self.nodes.len();
        let first = self.rng.usize(..count);
        for slot in (0..count).map(|it| (first + it) % count) {
            let clock_ns = self.clock_ns;
            let Some(live) = self.live(slot).filter(|it| !it.is_frozen) else { continue };
            let (local_ns, shards) = (live.local_ns(clock_ns), live.servers.len());
            let is_machine_first = clock_ns.is_multiple_of(2);
            if is_machine_first && live.machine.is_due(local_ns) {
                self.runs_machine(slot);
            }
            if let Some(live) = self.live(slot) {
                live.node.decides();
            }
            for shard in 0..shards {
                let mut has_run = false;
                while self.takes_mail(slot, shard) {
                    has_run = true;
                }
                let is_due = |it: &super::live::Server| it.next_ns <= local_ns;
                let server = self.live(slot).and_then(|it| it.servers.get(shard));
                if has_run || server.is_some_and(is_due) {
                    self.ends_turn(slot, shard);
                }
            }
            if self.live(slot).is_some_and(|it| it.machine.is_due(local_ns)) {
                self.runs_machine(slot);
            }
        }
        for client in 0..self.clients.len() {
            self.reads(client, usize::MAX);
            self.takes(client);
        }
    }

    /// Time passes.
    pub(super) fn passes(&mut self, span_ns: u64) {
        let end_ns = self.clock_ns + span_ns;
        loop {
            self.runs_all();
            self.looks_at_links();
            if self.clock_ns >= end_ns || self.has_failed() {
                return;
            }
            let next_ns = self.lives().filter_map(super::live::Live::next_ns).min();
            let next_ns = next_ns.into_iter().chain(self.network.next_at_ns()).min();
            let soon_ns = self.clock_ns + self.quantum_ns;
            self.clock_ns = next_ns.unwrap_or(end_ns).max(soon_ns).min(end_ns);
            self.shared.account().clock_ns = self.clock_ns;
            self.network.advance(self.clock_ns);
            self.reads_log();
        }
    }
}
