//! Servers whose topics are kept, clients, and the network between them.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{
    Broadcast, Core, HistoryRequest, Listener, Mail, Node, Phase, Position, Received, SocketState,
    Wire, guarded,
};
use simurgh_proto::serializer::{Frame, Kind as FrameKind, Serializer};
use simurgh_proto::ws::{Decoder, Event, Limits, Role};
use simurgh_reactor::{Key, Next, Now};

use super::account::{Asked, Made};
use super::client::{Client, Current, Line, Proof, Said};
use super::node::{Decision, KeptNode, Shared};
use super::{Op, Plan, What};
use crate::model::NONE;
use crate::net::Net;
use crate::payload;
use crate::peer::{Sent, What as Sends};
use crate::profile::EVENTS;

/// What clients say of what they have heard that cannot be read.
const BAD: [&str; 8] = [
    "7",
    "[]",
    "\"a00000.1\"",
    r#"{"since":7}"#,
    r#"{"since":[]}"#,
    r#"{"id":"short","since":null}"#,
    r#"{"since":null,"partial":1}"#,
    r#"{"since":null,"seen":7}"#,
];

pub(super) struct Server {
    pub(super) core: Core<KeptNode>,
    pub(super) net: Net,
    pub(super) metrics: Arc<ShardMetrics>,
    is_in_turn: bool,
}

impl Server {
    /// A shard; its counters go on where those of an earlier start were.
    pub(super) fn new(node: &Arc<KeptNode>, shard: usize, metrics: Arc<ShardMetrics>) -> Self {
        let core = Core::new(Arc::clone(node), shard as u16, Arc::clone(&metrics), node.id());
        let net = Net::new(Arc::clone(&node.shared.stage));
        Self { core, net, metrics, is_in_turn: false }
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    pub(super) node: Arc<KeptNode>,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
    /// Sockets whose clients are gone, which their shards do not know yet.
    gone: Vec<(usize, Key)>,
    pub(super) clock_ns: u64,
    conns: u32,
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(plan));
        let node = Arc::new(KeptNode::new(Arc::clone(&shared)));
        let servers = (0..plan.shards).map(|it| Server::new(&node, it, Arc::default())).collect();
        let clients = (0..plan.clients).map(|it| Client::new(plan, it as u32)).collect();
        let clock_ns = 1_000_000_000;
        let mut it = Self { servers, clients, gone: Vec::new(), clock_ns, conns: 0, node, shared };
        it.listen();
        it
    }

    /// Somebody outside of channels hears each topic on each shard, to know the order.
    pub(super) fn listen(&mut self) {
        let plan = self.shared.plan.clone();
        for (shard, topic) in (0..plan.shards).flat_map(|it| (0..plan.topics).map(move |t| (it, t)))
        {
            let shared = Arc::clone(&self.shared);
            let hear = Box::new(move |it: &Arc<Broadcast>| {
                let (id, bytes) = (payload::parse(it.payload()).0, it.payload().len() + 96);
                shared.account().heard(shard, topic, id, bytes, it.position());
            });
            let listener =
                Listener { name: Listener::id(shard as u16, topic as u32), on_broadcast: hear };
            self.node.post(shard, Mail::Listen(plan.topic(topic as u8).into(), listener));
            self.takes_mail(shard);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.shared.account().failure.is_some()
    }

    fn note(&self, text: impl FnOnce() -> String) {
        self.shared.account().note(text);
    }

    fn step(&mut self, shard: usize, act: impl FnOnce(&mut Core<KeptNode>, &mut Net)) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let now_ns = if server.is_in_turn { server.net.now.ns } else { self.clock_ns };
        server.is_in_turn = true;
        server.net.at(now_ns, now_ns ^ u64::from(self.conns));
        self.shared.account().begins(now_ns / 1_000_000);
        act(&mut server.core, &mut server.net);
        server.net.touched.clear();
        server.net.holds.clear();
        loop {
            let released = self.servers.get_mut(shard).and_then(|it| it.net.released.pop());
            let Some(key) = released else { break };
            self.feed(shard, key);
        }
    }

    pub(super) fn takes_mail(&mut self, shard: usize) -> bool {
        let Some(mail) = self.node.take(shard) else { return false };
        self.note(|| {
            let mail = format!("{mail:?}");
            format!("shard {shard} takes {mail:.100}")
        });
        self.step(shard, |core, net| core.mail(net, mail));
        true
    }

    /// A shard comes to the end of its turn.
    pub(super) fn ends_turn(&mut self, shard: usize) -> bool {
        if let Some(server) = self.servers.get_mut(shard) {
            server.net.judge();
            server.net.flush();
        }
        self.bury(shard);
        let mut next = Next::Idle;
        self.step(shard, |core, net| {
            core.tick(net);
        });
        self.step(shard, |core, net| next = core.fan_out(net));
        self.step(shard, |core, net| {
            core.settle(net);
        });
        let Some(server) = self.servers.get_mut(shard) else { return false };
        server.net.flush();
        server.is_in_turn = false;
        self.clock_ns = self.clock_ns.max(server.net.clock.get());
        self.bury(shard);
        next == Next::Now
    }

    /// Connections that are over.
    fn bury(&mut self, shard: usize) {
        loop {
            let Some(server) = self.servers.get_mut(shard) else { return };
            server.net.cut.clear();
            let Some(key) = server.net.doomed.pop() else { return };
            let Some(peer) = server.net.remove(key) else { continue };
            let peer = *peer;
            let is_its = |it: &Line| (it.shard, it.key) == (shard, key);
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
            self.step(shard, |core, net| core.closed(net, key, socket));
            if let Some(server) = self.servers.get_mut(shard) {
                server.net.flush();
            }
        }
    }

    fn feed(&mut self, shard: usize, key: Key) {
        loop {
            let Some(server) = self.servers.get_mut(shard) else { return };
            let tick = Now::from_ns(self.clock_ns).tick;
            let Some(peer) = server.net.peer_mut(key) else { return };
            match peer.socket.phase() {
                Phase::Open => {}
                Phase::Waiting => return,
                _ => return peer.stash.clear(),
            }
            let Some(sent) = peer.stash.pop_front() else { return };
            peer.socket.heard(tick);
            let serializer = peer.socket.wire().serializer().unwrap_or(Serializer::V2);
            let text = String::from_utf8_lossy(&sent.bytes);
            self.note(|| format!("shard {shard} reads {text}"));
            let Ok(message) = serializer.decode(Frame::Text(&text)) else { return };
            self.step(shard, |core, net| core.message(net, key, Received::from(message)));
        }
    }

    /// Some messages of a client are read.
    pub(super) fn reads(&mut self, client: usize, most: usize) -> bool {
        let line = self.clients.get(client).and_then(|it| it.line.as_ref());
        let Some((shard, key)) = line.map(|it| (it.shard, it.key)) else { return false };
        let peer = self.servers.get_mut(shard).and_then(|it| it.net.peer_mut(key));
        let Some(peer) = peer.filter(|it| !it.is_held && !it.inbound.is_empty()) else {
            return false;
        };
        let count = most.min(peer.inbound.len());
        let read: Vec<Sent> = peer.inbound.drain(..count).collect();
        peer.stash.extend(read);
        self.feed(shard, key);
        true
    }

    /// A client takes what has come, and more is written.
    pub(super) fn takes(&mut self, client: usize, most: usize) -> bool {
        let line = self.clients.get(client).and_then(|it| it.line.as_ref());
        let Some((shard, key)) = line.map(|it| (it.shard, it.key)) else { return false };
        let Some(net) = self.servers.get_mut(shard).map(|it| &mut it.net) else { return false };
        net.write_more(key);
        let Some(peer) = net.peer_mut(key) else { return false };
        let most = most.min(peer.pipe.len());
        let mut bytes: Vec<u8> = peer.pipe.drain(..most).collect();
        self.hears(client, &mut bytes);
        while let Some(key) = self.servers.get_mut(shard).and_then(|it| it.net.drained.pop()) {
            self.step(shard, |core, net| core.drained(net, key));
        }
        !bytes.is_empty()
    }

    fn hears(&mut self, client: usize, mut rest: &mut [u8]) {
        let (plan, mut account) = (&self.shared.plan, self.shared.account());
        let Some(it) = self.clients.get_mut(client) else { return };
        let serializer = if it.wire == Wire::V1 { Serializer::V1 } else { Serializer::V2 };
        let Some(mut line) = it.line.take() else { return };
        loop {
            let event = line.decoder.next(Role::Client, &Limits::default(), &mut rest);
            let message = match &event {
                Ok(Some(Event::Text(text))) => serializer.decode_server(Frame::Text(text)),
                Ok(Some(Event::Binary(data))) => serializer.decode_server(Frame::Binary(data)),
                Ok(Some(_)) => continue,
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
        it.line = Some(line);
    }

    fn says(&mut self, client: usize, topic: usize, event: &str, payload: &str, join_ref: u32) {
        let name = self.shared.plan.topic(topic as u8);
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(line) = &it.line else { return };
        let msg_ref = it.refs;
        let text = match it.wire {
            Wire::V1 => {
                let refs = format!(r#""ref":"{msg_ref}","join_ref":"{join_ref}""#);
                format!(r#"{{"topic":"{name}","event":"{event}","payload":{payload},{refs}}}"#)
            }
            _ => format!(r#"["{join_ref}","{msg_ref}","{name}","{event}",{payload}]"#),
        };
        let peer =
            self.servers.get_mut(line.shard).and_then(|server| server.net.peer_mut(line.key));
        if let Some(peer) = peer {
            let (kind, what) = (FrameKind::Text, Sends::Plain(0));
            peer.inbound.push_back(Sent { kind, bytes: text.into_bytes(), what });
        }
    }

    fn connects(&mut self, client: usize, c: u32) {
        let shard = c as usize % self.servers.len().max(1);
        let window = self.shared.plan.window;
        let (Some(server), Some(it)) = (self.servers.get_mut(shard), self.clients.get_mut(client))
        else {
            return;
        };
        if it.line.is_some() {
            return;
        }
        it.wire = if c >> 16 & 3 == 0 { Wire::V1 } else { Wire::V2 };
        self.conns += 1;
        let key = server.net.open(self.conns, it.wire, 0, window);
        it.line = Some(Line { shard, key, decoder: Decoder::new() });
        let wire = it.wire;
        self.note(|| format!("client {client} connects to shard {shard}, {wire:?}"));
        self.step(shard, |core, net| core.opened(net, key, SocketState::default()));
    }

    fn joins(&mut self, client: usize, topic: usize, c: u32) {
        let plan = self.shared.plan.clone();
        let stored = self.shared.account().topics.get(topic).map_or(0, |it| it.stored.len());
        let Some(it) = self.clients.get_mut(client).filter(|it| it.line.is_some()) else { return };
        let (Some(ear), wire) = (it.ears.get(topic), it.wire) else { return };
        // As phoenix.js does: who waits for a reply does not ask again before that is overdue.
        if ear.current.is_some_and(|it| !it.is_joined || it.must_wait(plan.is_calm, wire)) {
            return;
        }
        let said = match (ear.position, c >> 8 & 31) {
            _ if !it.opts_in => Said::Nothing,
            (_, 0) => Said::Null,
            // Who does not wait for what it is told has said the truth.
            (_, 1) if plan.is_calm => Said::Odd,
            (_, 3 | 4) if plan.says_bad => Said::Bad,
            (None, _) => Said::Null,
            (Some(mut at), 2) if plan.is_calm => {
                at.place.seq = at.place.seq.saturating_sub(u64::from(c >> 20 & 7) + 1);
                Said::Older(at)
            }
            (Some(at), _) => Said::Honest(at),
        };
        let seen = ear.arrived.filter(|_| plan.says_seen && matches!(said, Said::Honest(_)));
        it.refs += 1;
        let (id, intercepts, join_ref) = (it.id, it.intercepts, it.refs);
        let asked = Asked { topic: topic as u8, id, client: client as u32, intercepts };
        let mut account = self.shared.account();
        account.joins.push(asked);
        let number = account.joins.len() as u32 - 1;
        drop(account);
        let mut current = Current::new(join_ref, said);
        (current.says_seen, current.stored) = (seen.is_some(), stored);
        current.is_partial = c >> 13 & 7 != 0;
        let (proof, key) = proof(ear.key.as_ref(), if plan.forges { c >> 16 & 15 } else { 15 });
        current.proof = proof;
        let since = match said {
            Said::Nothing | Said::Bad => None,
            Said::Null => Some("null".to_owned()),
            Said::Honest(at) | Said::Older(at) => Some(format!("\"{at}\"")),
            Said::Odd => Some(if c & 1 == 0 { "\"what\"" } else { "\"zzzzzz.9\"" }.to_owned()),
        };
        let mut words = since.map_or(String::new(), |since| {
            let id = if id == NONE { String::new() } else { format!(r#""id":"client-{id:04}","#) };
            let seen = seen.map_or(String::new(), |it| format!(r#","seen":"{it}""#));
            let partial = if current.is_partial { "" } else { r#","partial":false"# };
            format!(r#","simurgh":{{{id}"since":{since}{seen}{partial}{key}}}"#)
        });
        if said == Said::Bad {
            let bad = BAD.get(c as usize & 7).copied().unwrap_or("7");
            words = format!(r#","simurgh":{bad}"#);
        }
        if let Some(ear) = it.ears.get_mut(topic) {
            ear.is_untold |= ear.current.is_some_and(|it| !it.is_resumed);
            ear.current = Some(current);
        }
        let payload = format!(r#"{{"i":{number},"s":{}{words}}}"#, c >> 4);
        self.says(client, topic, "phx_join", &payload, join_ref);
    }

    fn pushes(&mut self, client: usize, topic: usize, event: &str, word: u32) {
        let Some(it) = self.clients.get_mut(client) else { return };
        it.refs += 1;
        let Some(current) = it.ears.get(topic).and_then(|it| it.current) else { return };
        if event == "phx_leave" {
            if current.must_wait(self.shared.plan.is_calm, it.wire) {
                return;
            }
            if let Some(ear) = it.ears.get_mut(topic) {
                (ear.current, ear.is_untold) = (None, ear.is_untold || !current.is_resumed);
            }
        }
        self.says(client, topic, event, &format!(r#"{{"i":0,"s":{word}}}"#), current.join_ref);
    }

    pub(super) fn decides(&mut self) -> bool {
        let Some(it) = self.node.state().deciding.pop_front() else { return false };
        let Decision { shard, key, ticket, mut work } = it;
        let mut cx = TaskContext::from_waker(Waker::noop());
        let answer = guarded(|| work.as_mut().poll(&mut cx)).and_then(|poll| match poll {
            Poll::Ready(join) => Some(join),
            Poll::Pending => None,
        });
        self.node.post(shard, Mail::Joined(key, ticket, answer));
        true
    }

    /// A client is gone; its shard hears of that later.
    pub(super) fn vanishes(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(line) = it.line.take() else { return };
        it.disconnected();
        self.gone.push((line.shard, line.key));
        self.note(|| format!("client {client} is gone"));
    }

    pub(super) fn notices(&mut self) -> bool {
        let Some((shard, key)) = self.gone.pop() else { return false };
        if let Some(server) = self.servers.get_mut(shard) {
            server.net.doom(key);
        }
        self.bury(shard);
        true
    }

    fn publishes(&mut self, topic: usize, c: u32) {
        let (event, plan) = (c % EVENTS.len() as u32, &self.shared.plan);
        let is_binary = plan.has_binary && c >> 8 & 7 == 0;
        let made = Made { event: event as u8, is_binary, ..Made::new(topic as u8) };
        let mut account = self.shared.account();
        let id = account.make(made);
        drop(account);
        let pad = if c >> 12 & 15 == 0 { plan.pad } else { 0 };
        let event = EVENTS.get(event as usize).copied().unwrap_or_default();
        let payload = payload::make(id, 0, pad, is_binary);
        let done = self.node.broadcast(Broadcast::new(plan.topic(topic as u8), event, payload));
        if let Some(made) = self.shared.account().made.get_mut(id as usize) {
            made.is_optional = done.is_err();
        }
        self.note(|| format!("#{id} is published: {done:?}"));
    }

    /// A handle of a channel broadcasts.
    fn speaks(&mut self, c: u32) {
        let mut account = self.shared.account();
        let Some(at) = (c as usize).checked_rem(account.handles.len()) else { return };
        let Some((chan, handle)) = account.handles.get(at).cloned() else { return };
        let Some(asked) = account.joins.get(chan as usize).copied() else { return };
        let is_from = c >> 20 & 1 == 0;
        let made = Made { event: 1, is_optional: true, ..Made::new(asked.topic) };
        let id = account.make(match is_from {
            true => Made { except: chan, sender: asked.id, ..made },
            false => made,
        });
        drop(account);
        let payload = payload::make(id, 0, 0, false);
        let _ = match is_from {
            true => handle.broadcast_from("b", payload),
            false => handle.broadcast("b", payload),
        };
        self.note(|| format!("a handle of channel {chan} broadcasts #{id}"));
    }

    fn purges(&mut self, topic: usize) {
        if let Some(it) = self.shared.account().topics.get_mut(topic) {
            it.is_purged = true;
        }
        let name = self.shared.plan.topic(topic as u8);
        self.node.ask_history(HistoryRequest::Forget(name.into(), Box::new(|_| {})));
    }

    pub(crate) fn run(&mut self, op: Op) {
        let Op { what, a, b, c } = op;
        let plan = &self.shared.plan;
        let waits_ms = if plan.waits_long && c >> 24 & 3 == 0 { 12_000 } else { 400 };
        let client = usize::from(a) % plan.clients.max(1);
        let (shard, topic) =
            (usize::from(a) % plan.shards.max(1), usize::from(b) % plan.topics.max(1));
        self.shared.account().step += 1;
        match what {
            What::Connect => self.connects(client, c),
            What::Join => self.joins(client, topic, c),
            What::Push => self.pushes(client, topic, "x", c),
            What::Leave => self.pushes(client, topic, "phx_leave", c),
            What::Read => {
                self.reads(client, 1 + usize::from(b % 4));
            }
            What::Take => {
                let most = if c & 3 == 0 { c as usize >> 8 & 255 } else { usize::MAX };
                self.takes(client, most);
            }
            What::Mail => {
                for _ in 0..=c % 3 {
                    self.takes_mail(shard);
                }
            }
            What::Turn => {
                self.ends_turn(shard);
            }
            What::Decide => {
                self.decides();
            }
            What::Vanish => self.vanishes(client),
            What::Notice => {
                self.notices();
            }
            What::Publish => self.publishes(topic, c),
            What::Speak => self.speaks(c),
            What::Purge => self.purges(topic),
            What::Wait => self.clock_ns += u64::from(c % waits_ms) * 1_000_000,
            What::Rest => self.rests(),
            What::Restart => self.restarts(c & 7 == 0),
        }
    }
}

/// What a client proves its first join with, by what it was told; and how it says that.
fn proof(key: Option<&(String, Position)>, word: u32) -> (Proof, String) {
    let Some((key, first)) = key else { return (Proof::None, String::new()) };
    let (proof, key) = match word {
        0 => return (Proof::None, String::new()),
        1 if first.place.seq > 0 => {
            let mut older = *first;
            older.place.seq -= 1;
            (Proof::Forged, key.replacen(&first.to_string(), &older.to_string(), 1))
        }
        _ => (Proof::Key, key.clone()),
    };
    (proof, format!(r#","key":"{key}""#))
}
