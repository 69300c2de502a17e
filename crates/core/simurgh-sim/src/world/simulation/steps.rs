//! Shards with their transport, and their turns: what is read, handled, sent and taken.

use simurgh_proto::ws::{Event, FrameLimits, Inflater, Role};

use super::*;

pub(crate) struct Shard {
    pub(crate) core: Core<SimNode>,
    pub(crate) net: Transport,
    pub(crate) metrics: Arc<ShardMetrics>,
    pub(crate) seen: Seen,
    /// Whether it is within a turn, in which time does not move.
    pub(crate) is_in_turn: bool,
    pub(crate) has_ended: bool,
    /// The latest time of its next turn, by its node's clock.
    pub(crate) next_ns: u64,
}

impl Shard {
    /// A shard of a node; `metrics` may have the counters of an earlier core.
    pub(crate) fn new(
        node: &Arc<SimNode>,
        shard: usize,
        metrics: Arc<ShardMetrics>,
        seed: u64,
    ) -> Self {
        let core = Core::new(Arc::clone(node), shard as u16, Arc::clone(&metrics), seed);
        let net = Transport::new(Arc::clone(&node.shared));
        let seen = mem::take(&mut node.state().seen);
        Self { core, net, metrics, seen, is_in_turn: false, has_ended: false, next_ns: 0 }
    }
}

impl Simulation {
    pub(crate) fn node(&self, slot: usize) -> Option<&Arc<SimNode>> {
        Some(&self.nodes[slot].as_ref()?.node)
    }

    pub(crate) fn shard(&mut self, slot: usize, shard: usize) -> Option<&mut Shard> {
        self.nodes[slot].as_mut()?.shards.get_mut(shard)
    }

    pub(crate) fn peer(&mut self, slot: usize, shard: usize, key: Key) -> Option<&mut Peer> {
        self.shard(slot, shard)?.net.peer_mut(key)
    }

    /// The time on the clock of a slot.
    pub(crate) fn local_ns(&self, slot: usize) -> u64 {
        self.nodes[slot].as_ref().map_or(0, |server| server.local_ns(self.clock_ns))
    }

    /// The time of a shard: a turn has one time.
    pub(crate) fn now_ns(&self, slot: usize, shard: usize) -> u64 {
        let shard = self.nodes[slot].as_ref().and_then(|running| running.shards.get(shard));
        let in_turn = shard.filter(|shard| shard.is_in_turn).map(|shard| shard.net.now.ns);
        in_turn.unwrap_or_else(|| self.local_ns(slot))
    }

    /// Whether it is frozen: it has no turns.
    pub(crate) fn is_frozen(&self, slot: usize) -> bool {
        self.nodes[slot].as_ref().is_some_and(|server| server.is_frozen)
    }

    /// A core gets an input.
    pub(crate) fn step(
        &mut self,
        slot: usize,
        shard: usize,
        input: Input,
        act: impl FnOnce(&mut Core<SimNode>, &mut Transport),
    ) {
        let now_ns = self.now_ns(slot, shard);
        let Some(running) = self.nodes[slot].as_mut() else { return };
        let it = running.shards.get_mut(shard).filter(|it| !it.has_ended);
        let Some(it) = it else { return };
        (it.is_in_turn, it.next_ns) = (true, 0);
        running.node.state().has_spoken = false;
        let mut ledger = self.shared.ledger();
        ledger.running = Some(running.node.first + shard);
        ledger.now_ns = now_ns;
        ledger.clock_ns = ledger.clock_ns.max(self.clock_ns).max(now_ns);
        ledger.begin_step(input, Now::from_ns(now_ns).tick);
        let step = u64::from(ledger.step);
        drop(ledger);
        it.net.at(now_ns, self.shared.plan.seed ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        act(&mut it.core, &mut it.net);
        self.check_step(slot, shard, input);
        if let Some(it) = self.shard(slot, shard) {
            it.net.holds.clear();
        }
        while let Some(key) = self.shard(slot, shard).and_then(|it| it.net.released.pop()) {
            self.feed(slot, shard, key);
        }
    }

    /// A shard takes a mail; returns whether there was one.
    pub(crate) fn take_mail(&mut self, slot: usize, shard: usize) -> bool {
        let node = self.node(slot).filter(|_| !self.is_frozen(slot)).cloned();
        let Some(node) = node else { return false };
        let Some(mail) = node.take(shard) else { return false };
        let number = node.first + shard;
        let shared = Arc::clone(&self.shared);
        self.step(slot, shard, Input::Other, |core, net| {
            shared.note(|| format!("core {shard} takes {mail:.100?}"));
            shared.ledger().take_mail(number, &mail);
            core.mail(net, mail);
        });
        true
    }

    /// Removes connections that are over. Their clients have received all that was sent.
    pub(crate) fn remove_connections(&mut self, slot: usize, shard: usize) {
        loop {
            let Some(it) = self.shard(slot, shard) else { return };
            let (cut, key) = (mem::take(&mut it.net.cut), it.net.removals.pop());
            for number in cut {
                self.shared.ledger().sessions.conns[number as usize].is_lost = true;
            }
            let Some(key) = key else { return };
            self.end_connection(slot, shard, key);
        }
    }

    pub(crate) fn end_connection(&mut self, slot: usize, shard: usize, key: Key) {
        let it = self.shard(slot, shard);
        let Some(mut peer) = it.and_then(|it| it.net.remove(key)) else { return };
        let is_it = |it: &Connection| it.number == peer.conn;
        let client = self.clients.iter().position(|it| it.as_ref().is_some_and(is_it));
        if let Some(client) = client {
            self.read_bytes(client, &mut peer.pipe);
            self.receive_values(client, mem::take(&mut peer.heard));
            self.shared.note(|| format!("client {client}'s connection is over"));
            self.clients[client] = None;
            self.shared.ledger().disconnected(client as u32);
        }
        let (socket, input) = (peer.socket, Input::Ended(peer.conn));
        self.step(slot, shard, input, |core, net| core.closed(net, key, socket));
        // Its turn may be over already: what this produced is still to be sent.
        if let Some(it) = self.shard(slot, shard) {
            it.net.flush();
        }
    }

    /// A shard reads some messages of a client; returns whether there were any.
    pub(crate) fn read(&mut self, client: usize, most: usize) -> bool {
        let Some((_, slot, shard, key)) = self.line(client) else { return false };
        let is_frozen = self.is_frozen(slot);
        let it = self.shard(slot, shard).filter(|_| !is_frozen);
        let Some(peer) = it.and_then(|it| it.net.peer_mut(key)).filter(|it| !it.is_held) else {
            return false;
        };
        if peer.inbound.is_empty() {
            let is_over = peer.has_shut && peer.stash.is_empty();
            if is_over && let Some(it) = self.shard(slot, shard) {
                it.net.removals.push(key);
                self.remove_connections(slot, shard);
            }
            return is_over;
        }
        let count = most.min(peer.inbound.len());
        peer.stash.extend(peer.inbound.drain(..count));
        self.feed(slot, shard, key);
        true
    }

    /// A client takes at most this many bytes, and more is written; returns whether there were any.
    pub(crate) fn receive(&mut self, client: usize, most: usize) -> bool {
        let Some((_, slot, shard, key)) = self.line(client) else { return false };
        let Some(it) = self.shard(slot, shard) else { return false };
        it.net.write_more(key);
        let Some(peer) = it.net.peer_mut(key) else { return false };
        let most = most.min(peer.pipe.len());
        let mut bytes: Vec<u8> = peer.pipe.drain(..most).collect();
        let heard = mem::take(&mut peer.heard);
        let is_some = !bytes.is_empty() || !heard.is_empty();
        self.read_bytes(client, &mut bytes);
        self.receive_values(client, heard);
        while let Some(key) = self.shard(slot, shard).and_then(|it| it.net.drained.pop()) {
            self.step(slot, shard, Input::Other, |core, net| core.drained(net, key));
        }
        is_some
    }

    fn read_bytes(&mut self, client: usize, mut bytes: &mut [u8]) {
        let Some(line) = &mut self.clients[client] else { return };
        let (number, mut closed) = (line.number, None);
        loop {
            let limits = FrameLimits::default();
            let event = line.decoder.next_with_deflate(Role::Client, &limits, true, &mut bytes);
            let event = match event {
                Ok(Some(Event::Compressed(message))) => {
                    message.inflate(&mut Inflater::default(), limits.message_bytes_max).map(Some)
                }
                event => event,
            };
            let mut ledger = self.shared.ledger();
            match event {
                Ok(Some(Event::Text(text))) => ledger.receive_frame(number, Frame::Text(&text)),
                Ok(Some(Event::Binary(data))) => ledger.receive_frame(number, Frame::Binary(&data)),
                Ok(Some(Event::Close(frame))) => {
                    let code = frame.as_ref().map(|frame| frame.code.0);
                    closed = Some(code);
                    let reason = frame.map(|frame| frame.reason).unwrap_or_default();
                    ledger.receive_close(number, code, &reason);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    ledger.fail("frame", format!("{error:?}"));
                    break;
                }
            }
        }
        match closed {
            // As a browser does.
            Some(_) if self.shared.plan.has_broker => self.vanish(client),
            Some(code) => self.send_message(client, ClientMessage::Close(code)),
            None => {}
        }
    }

    pub(crate) fn send_message(&mut self, client: usize, sent: ClientMessage) {
        let Some((_, slot, shard, key)) = self.line(client) else { return };
        let peer = self.peer(slot, shard, key);
        if let Some(peer) = peer.filter(|peer| !peer.has_shut) {
            peer.inbound.push_back(sent);
        }
    }
}
