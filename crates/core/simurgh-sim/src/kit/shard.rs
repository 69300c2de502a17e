//! Shards with their transport, and their turns: what is read, handled, sent and taken.

use std::mem;
use std::sync::Arc;

use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{Core, Mail, Phase, Received};
use simurgh_data::{Next, Now};
use simurgh_proto::serializer::{Frame, Kind as FrameKind, Serializer, ServerMessage};

use crate::kit::client::{self, Client, Read};
use crate::kit::node::SimNode;
use crate::kit::peer::{ClientMessage, Content};
use crate::kit::setup::{Ledger, Shared};
use crate::kit::transport::Transport;

pub(crate) struct Shard<L: Ledger, P: Send + Sync + 'static> {
    pub(crate) core: Core<SimNode<L, P>>,
    pub(crate) net: Transport,
    pub(crate) metrics: Arc<ShardMetrics>,
    /// Whether it is within a turn, in which time does not move.
    pub(crate) is_in_turn: bool,
    pub(crate) has_ended: bool,
    /// The latest time of its next turn, by its node's clock.
    pub(crate) next_ns: u64,
}

impl<L: Ledger, P: Send + Sync + 'static> Shard<L, P> {
    /// A shard of a node; `metrics` may have the counters of an earlier core.
    pub(crate) fn new(
        node: &Arc<SimNode<L, P>>,
        shard: usize,
        metrics: Arc<ShardMetrics>,
        seed: u64,
    ) -> Self {
        let core = Core::new(Arc::clone(node), shard as u16, Arc::clone(&metrics), seed);
        let net = Transport::new(Arc::clone(&node.shared.setup));
        Self { core, net, metrics, is_in_turn: false, has_ended: false, next_ns: 0 }
    }
}

/// A simulation of nodes, each in its slot, with their shards and clients.
pub(crate) trait Turns {
    type Ledger: Ledger;
    type Plan: Send + Sync + 'static;
    type Client: Client;

    fn shared(&self) -> &Arc<Shared<Self::Ledger, Self::Plan>>;

    /// The node of a slot, if it runs.
    fn node(&self, slot: usize) -> Option<&Arc<SimNode<Self::Ledger, Self::Plan>>>;

    fn shard(&mut self, slot: usize, shard: usize) -> Option<&mut Shard<Self::Ledger, Self::Plan>>;

    /// The time on the clock of a slot.
    fn local_ns(&self, slot: usize) -> u64;

    /// Whether it is frozen: it has no turns.
    fn is_frozen(&self, _slot: usize) -> bool {
        false
    }

    fn clients(&mut self) -> &mut Vec<Self::Client>;

    /// Called before a core gets an input; returns the seed of its clock's steps.
    fn begin_step(&mut self, slot: usize, shard: usize, now_ns: u64) -> u64;

    /// Called when a core has returned.
    fn end_step(&mut self) {}

    /// Called before a shard takes a mail.
    fn notice_mail(&mut self, slot: usize, shard: usize, mail: &Mail);

    /// Called at the end of a turn, before connections that end with it are removed.
    fn end_turn(&mut self, slot: usize, shard: usize, nexts: [Next; 3]);

    /// Called when a client reads a message.
    fn hear(&mut self, client: usize, message: &ServerMessage<'_>);

    /// Called when a client reads a close frame.
    fn hear_close(&mut self, _client: usize) {}

    fn step(
        &mut self,
        slot: usize,
        shard: usize,
        act: impl FnOnce(&mut Core<SimNode<Self::Ledger, Self::Plan>>, &mut Transport),
    ) {
        let local_ns = self.local_ns(slot);
        let Some(it) = self.shard(slot, shard).filter(|it| !it.has_ended) else { return };
        let now_ns = if it.is_in_turn { it.net.now.ns } else { local_ns };
        (it.is_in_turn, it.next_ns) = (true, 0);
        let jumps = self.begin_step(slot, shard, now_ns);
        let Some(it) = self.shard(slot, shard) else { return };
        it.net.at(now_ns, jumps);
        act(&mut it.core, &mut it.net);
        it.net.touched.clear();
        it.net.holds.clear();
        self.end_step();
        while let Some(key) = self.shard(slot, shard).and_then(|it| it.net.released.pop()) {
            self.feed(slot, shard, key);
        }
    }

    /// A shard takes a mail; returns whether there was one.
    fn take_mail(&mut self, slot: usize, shard: usize) -> bool {
        let node = self.node(slot).filter(|_| !self.is_frozen(slot));
        let Some(mail) = node.and_then(|it| it.take(shard)) else { return false };
        self.notice_mail(slot, shard, &mail);
        self.step(slot, shard, |core, net| core.mail(net, mail));
        true
    }

    /// Ends a shard's turn; returns whether it has more to fan out.
    fn finish_turn(&mut self, slot: usize, shard: usize) -> bool {
        let is_frozen = self.is_frozen(slot);
        let it = self.shard(slot, shard).filter(|it| !it.has_ended && !is_frozen);
        let Some(it) = it else { return false };
        it.net.judge();
        it.net.flush();
        self.remove_connections(slot, shard);
        let mut nexts = [Next::Idle; 3];
        self.step(slot, shard, |core, net| nexts[0] = core.tick(net));
        self.step(slot, shard, |core, net| nexts[1] = core.fan_out(net));
        self.step(slot, shard, |core, net| nexts[2] = core.settle(net));
        let Some(it) = self.shard(slot, shard) else { return false };
        it.net.flush();
        it.is_in_turn = false;
        self.end_turn(slot, shard, nexts);
        self.remove_connections(slot, shard);
        nexts[1] == Next::Now
    }

    /// Removes connections that are over. Their clients have received all that was sent.
    fn remove_connections(&mut self, slot: usize, shard: usize) {
        loop {
            let Some(it) = self.shard(slot, shard) else { return };
            it.net.cut.clear();
            let Some(key) = it.net.removals.pop() else { return };
            let Some(peer) = it.net.remove(key) else { continue };
            let mut peer = *peer;
            let client = self.clients().iter_mut().position(|it| {
                let line = it.connection().as_ref().filter(|it| it.number == peer.conn);
                line.is_some_and(|it| (it.slot, it.shard, it.key) == (slot, shard, key))
            });
            if let Some(client) = client {
                self.read_bytes(client, &mut peer.pipe);
                self.shared().note(|| format!("client {client}'s connection is over"));
                self.clients()[client].disconnected();
            }
            self.step(slot, shard, |core, net| core.closed(net, key, peer.socket));
            if let Some(it) = self.shard(slot, shard) {
                it.net.flush();
            }
        }
    }

    /// Hands in what was read of a socket, until it waits for something.
    fn feed(&mut self, slot: usize, shard: usize, key: simurgh_data::Key) {
        loop {
            let tick = Now::from_ns(self.local_ns(slot)).tick;
            let it = self.shard(slot, shard).filter(|it| !it.has_ended);
            let Some(peer) = it.and_then(|it| it.net.peer_mut(key)) else { return };
            match peer.socket.phase() {
                Phase::Open => {}
                Phase::Waiting => return,
                _ => return peer.stash.clear(),
            }
            let Some(sent) = peer.stash.pop_front() else { return };
            peer.socket.heard(tick);
            let serializer = peer.socket.wire().serializer().unwrap_or(Serializer::V2);
            let text = String::from_utf8_lossy(&sent.bytes);
            self.shared().note(|| format!("shard {shard} of node {slot} reads {text}"));
            let Ok(message) = serializer.decode(Frame::Text(&text)) else { return };
            self.step(slot, shard, |core, net| {
                core.message(net, key, Received::from(message));
            });
        }
    }

    /// The slot, shard and key of a client's connection.
    fn place_of(&mut self, client: usize) -> Option<(usize, usize, simurgh_data::Key)> {
        let line = self.clients().get_mut(client)?.connection().as_ref();
        line.map(|it| (it.slot, it.shard, it.key))
    }

    /// A shard reads some messages of a client; returns whether there were any.
    fn read(&mut self, client: usize, most: usize) -> bool {
        let Some((slot, shard, key)) = self.place_of(client) else { return false };
        let is_frozen = self.is_frozen(slot);
        let it = self.shard(slot, shard).filter(|_| !is_frozen);
        let peer = it.and_then(|it| it.net.peer_mut(key));
        let Some(peer) = peer.filter(|it| !it.is_held && !it.inbound.is_empty()) else {
            return false;
        };
        let count = most.min(peer.inbound.len());
        peer.stash.extend(peer.inbound.drain(..count));
        self.feed(slot, shard, key);
        true
    }

    /// A client takes at most this many bytes, and more is written; returns whether there were any.
    fn receive(&mut self, client: usize, most: usize) -> bool {
        let Some((slot, shard, key)) = self.place_of(client) else { return false };
        let Some(it) = self.shard(slot, shard) else { return false };
        it.net.write_more(key);
        let Some(peer) = it.net.peer_mut(key) else { return false };
        let most = most.min(peer.pipe.len());
        let mut bytes: Vec<u8> = peer.pipe.drain(..most).collect();
        self.read_bytes(client, &mut bytes);
        while let Some(key) = self.shard(slot, shard).and_then(|it| it.net.drained.pop()) {
            self.step(slot, shard, |core, net| core.drained(net, key));
        }
        !bytes.is_empty()
    }

    fn read_bytes(&mut self, client: usize, bytes: &mut [u8]) {
        let it = &mut self.clients()[client];
        let (wire, line) = (it.wire(), it.connection().as_mut());
        let Some(mut decoder) = line.map(|it| mem::take(&mut it.decoder)) else { return };
        let mut is_closed = false;
        client::read(&mut decoder, wire, bytes, |read| match read {
            Read::Message(message) => self.hear(client, &message),
            Read::Close(_) => is_closed = true,
            // All clients here have a serializer.
            Read::Plain(_) => {}
            Read::Wrong(wrong) => self.shared().ledger().fail("frame", wrong),
        });
        if let Some(line) = self.clients()[client].connection() {
            line.decoder = decoder;
        }
        if is_closed {
            self.hear_close(client);
        }
    }

    /// A client sends a message, whose payload is JSON.
    fn send(&mut self, client: usize, refs: [u32; 2], topic: &str, event: &str, payload: &str) {
        let Some((slot, shard, key)) = self.place_of(client) else { return };
        let text = client::text(self.clients()[client].wire(), refs, topic, event, payload);
        let peer = self.shard(slot, shard).and_then(|it| it.net.peer_mut(key));
        if let Some(peer) = peer {
            let (kind, content) = (FrameKind::Text, Content::Plain(0));
            peer.inbound.push_back(ClientMessage { kind, bytes: text.into_bytes(), content });
        }
    }
}
