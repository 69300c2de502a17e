//! The simulation: nodes, clients and the network between them, and the operations.

mod faults;
mod histories;
mod rest;
mod single;
mod steps;
mod turns;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::kit::client::Connection;
use crate::kit::delivery::{Request, RequestKind};
use crate::kit::findings::Findings;
use crate::kit::setup::locked;
use crate::kit::{NONE, payload};
use crate::world::Op;
use fastrand::Rng;
use simurgh_core::{Broadcast, ChannelId, Listener, Mail, Mailboxes, Publisher, SocketState, Wire};
use simurgh_loopback::Network;
use simurgh_proto::message::{Payload, events};
use simurgh_proto::ws::Decoder;

use self::faults::Faults;
use self::single::Reading;
pub(crate) use self::steps::Shard;
use crate::world::Shared;
use crate::world::client::{Client, Joined};
use crate::world::ledger::sessions::Input;
use crate::world::ledger::{Disconnect, JoinRequest};
use crate::world::plan::{Kind, MILLISECOND, Plan};
use crate::world::running::RunningNode;
use crate::world::thread::Command;

pub(crate) struct Listening {
    pub(crate) start: usize,
    pub(crate) shard: usize,
    pub(crate) topic: usize,
    name: ChannelId,
}

pub(crate) struct Simulation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Option<RunningNode>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) listening: Vec<Listening>,
    pub(crate) clock_ns: u64,
    pub(crate) quantum_ns: u64,
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
    connections: u32,
    listeners: u32,
    /// Long messages that are read away from their shards.
    readings: VecDeque<Reading>,
    tickets: u32,
}

impl Simulation {
    pub(crate) fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(plan));
        let network = Network::new(plan.seed, plan.network.clone());
        let count = plan.nodes.len();
        let mut simulation = Self {
            nodes: (0..count).map(|slot| RunningNode::start(&shared, &network, slot, 0)).collect(),
            clients: (0..plan.clients).map(|it| Client::new(plan, it as u32)).collect(),
            shared,
            network,
            listening: Vec::new(),
            clock_ns: 0,
            quantum_ns: plan.quantum_ns,
            faults: Faults { groups: vec![0; count], is_any: true, ..Faults::default() },
            rng: Rng::with_seed(plan.seed ^ 0x52_55_4e),
            connections: 0,
            listeners: 0,
            readings: VecDeque::new(),
            tickets: 0,
        };
        match plan.alone {
            Some(_) => simulation.listen_everywhere(),
            None => simulation.read_log(),
        }
        if plan.single.is_some() {
            simulation.clock_ns = crate::world::plan::SECOND;
        }
        simulation
    }

    /// Carries out an operation, if that is possible now.
    pub(crate) fn run(&mut self, op: Op) {
        if self.is_single() {
            return self.run_single(op);
        }
        let Op { kind, a, b, c } = op;
        let plan = &self.shared.plan;
        let client = usize::from(a) % plan.clients;
        let slot = usize::from(b) % plan.nodes.len();
        let [other, topic] = [a, b].map(|it| usize::from(it) % plan.topics.len());
        let shard = c as usize % plan.nodes[slot];
        let id = usize::from(a) % plan.ids;
        self.shared.ledger().step += 1;
        match kind {
            Kind::Connect => self.connect(client, slot, c),
            Kind::Join => self.join(client, topic, c),
            Kind::Push => self.push(client, topic, RequestKind::Event, c),
            Kind::Leave => self.push(client, topic, RequestKind::Leave, c),
            Kind::Vanish => self.vanish(client),
            Kind::Read => _ = self.read(client, 1 + usize::from(b % 4)),
            Kind::Mail => (0..=c >> 8 & 3).for_each(|_| _ = self.take_mail(slot, shard)),
            Kind::Turn => self.complete_turn(slot, shard),
            Kind::Thread => self.run_thread(slot),
            Kind::Publish => self.publish(slot, other, c),
            Kind::Speak => self.broadcast_by_handle(c),
            Kind::Listen => self.listen(slot, other, c),
            Kind::Disconnect => self.disconnect(slot, id, c),
            Kind::Wait => match &plan.alone {
                Some(alone) => {
                    let is_long = alone.waits_long && c >> 24 & 3 == 0;
                    self.clock_ns +=
                        u64::from(c % if is_long { 12_000 } else { 400 }) * MILLISECOND;
                }
                None => self.pass(u64::from(c % 300) * MILLISECOND),
            },
            Kind::Take => {
                let most = if c & 3 == 0 { c as usize >> 8 & 255 } else { usize::MAX };
                self.receive(client, most);
            }
            Kind::Decide => _ = self.nodes[slot].as_ref().map(|it| it.node.decide_next(0)),
            Kind::Restart => self.restart(c & 7 == 0),
            Kind::Long => self.pass(u64::from(c % 12_000) * MILLISECOND),
            Kind::Rest => self.rest(),
            Kind::Keep => self.keep(slot, other, c),
            Kind::Purge => self.purge(slot, topic),
            Kind::LookUp => self.look_up(slot, other, c),
            _ => self.break_something(op, slot),
        }
    }

    /// Ends the run: all clients leave, and nothing must be left.
    pub(crate) fn end(&mut self) {
        match self.is_single() {
            true => self.end_single(),
            false => self.end_all(),
        }
        // The handles and their nodes refer to each other.
        self.shared.ledger().handles.clear();
    }

    pub(crate) fn findings<T>(&self, with: impl FnOnce(&mut Findings) -> T) -> T {
        with(&mut self.shared.ledger())
    }

    pub(crate) fn running(&mut self, slot: usize) -> Option<&mut RunningNode> {
        self.nodes.get_mut(slot)?.as_mut()
    }

    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = &RunningNode> {
        self.nodes.iter().flatten()
    }

    fn connect(&mut self, client: usize, slot: usize, c: u32) {
        let it = &mut self.clients[client];
        if it.connection.is_some() {
            return;
        }
        let Some(node) = self.nodes[slot].as_mut().filter(|it| it.is_open()) else { return };
        let (start, shard) = (node.start, c as usize % node.shards.len());
        let now_ns = node.local_ns(self.clock_ns);
        self.connections += 1;
        node.node.seats.fetch_add(1, Relaxed);
        let (number, net) = (self.connections, &mut node.shards[shard].net);
        let is_v1 = self.shared.plan.alone.is_some() && c >> 16 & 3 == 0;
        it.wire = if is_v1 { Wire::V1 } else { Wire::V2 };
        net.at(now_ns, u64::from(number));
        let key = net.open(number, it.wire, 0, self.shared.plan.window);
        it.connection =
            Some(Connection { slot, start, shard, key, number, decoder: Decoder::new() });
        let id = it.id.map(|it| format!("user:{it}").into());
        self.shared
            .note(|| format!("client {client} connects to shard {shard} of start {start}: {id:?}"));
        let state = SocketState { id, ..SocketState::default() };
        self.step(slot, shard, Input::Other, |core, net| core.opened(net, key, state));
    }

    fn join(&mut self, client: usize, topic: usize, c: u32) {
        let it = &mut self.clients[client];
        let Some(line) = it.connection.as_ref().filter(|_| it.may_join(topic)) else { return };
        let (node, shard) = (line.start, line.shard);
        let request = JoinRequest { topic, node, shard, client: client as u32, from: None };
        let mut ledger = self.shared.ledger();
        ledger.joins.push(request);
        let chan = ledger.joins.len() as u32 - 1;
        it.refs += 1;
        let join_ref = it.refs;
        it.channels[topic] = Some(Joined::new(join_ref, chan));
        let resume = it.resume_member(&ledger, topic, c);
        drop(ledger);
        let word = if self.shared.plan.alone.is_some() { c >> 4 } else { c };
        let payload = Payload::from_json(format!(r#"{{"i":{chan},"s":{word}{resume}}}"#));
        let (kind, topic) = (RequestKind::Join, topic as u8);
        let request = Request { kind, topic, join_ref, msg_ref: join_ref, id: chan };
        self.send_request(client, request, payload);
    }

    fn push(&mut self, client: usize, topic: usize, kind: RequestKind, word: u32) {
        let it = &mut self.clients[client];
        let Some(join_ref) = it.channels[topic].as_ref().map(|it| it.join_ref) else { return };
        if kind == RequestKind::Leave {
            // A client waits for the answer to its resume.
            if !it.is_resumed(topic) {
                return;
            }
            it.channels[topic] = None;
        }
        it.refs += 1;
        let request = Request { kind, topic: topic as u8, join_ref, msg_ref: it.refs, id: 0 };
        self.send_request(client, request, payload::make(0, word, 0, false));
    }

    pub(crate) fn vanish(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let Some(line) = it.connection.take() else { return };
        it.disconnected();
        if self.is_single() {
            let mut ledger = self.shared.ledger();
            ledger.sessions.conns[line.number as usize].is_lost = true;
            ledger.counts.count("vanished", 1);
        }
        self.shared.note(|| format!("client {client} is gone"));
        if let Some(shard) = self.shard(line.slot, line.shard) {
            shard.net.removals.push(line.key);
            shard.next_ns = 0;
        }
    }

    pub(crate) fn topic(&self, number: usize) -> String {
        self.shared.plan.topics[number].clone()
    }

    fn publish(&mut self, slot: usize, topic: usize, c: u32) {
        let Some(running) = &self.nodes[slot] else { return };
        let (node, start) = (Arc::clone(&running.node), running.start);
        let id = self.shared.ledger().new_broadcast(topic, start, NONE);
        let pad = if c & 7 == 0 { self.shared.plan.pad } else { 0 };
        let is_binary = c >> 8 & 7 == 0;
        let payload = payload::make(id, 0, pad, is_binary);
        self.shared.ledger().broadcasts[id as usize].is_binary = is_binary;
        let name = self.topic(topic);
        let done = node.broadcast(Broadcast::new(name, "c", payload));
        self.shared.ledger().broadcasts[id as usize].is_optional = done.is_err();
        self.shared.note(|| format!("#{id} is published on start {start}: {done:?}"));
    }

    fn broadcast_by_handle(&mut self, c: u32) {
        let mut ledger = self.shared.ledger();
        let Some(at) = (c as usize).checked_rem(ledger.handles.len()) else { return };
        let (chan, handle) = ledger.handles[at].clone();
        let request = ledger.joins[chan as usize];
        let is_from = c >> 20 & 1 == 0;
        let id =
            ledger.new_broadcast(request.topic, request.node, if is_from { chan } else { NONE });
        // Its channel may have ended before this reaches it.
        let made = &mut ledger.broadcasts[id as usize];
        (made.is_optional, made.event) = (true, "b");
        drop(ledger);
        handle(is_from, id);
        self.shared.note(|| format!("a handle of channel {chan} broadcasts #{id}"));
    }

    fn listen(&mut self, slot: usize, topic: usize, c: u32) {
        if c & 1 == 0 && !self.listening.is_empty() {
            let it = self.listening.swap_remove((c as usize >> 1) & (3 % self.listening.len()));
            return self.unlisten(&it);
        }
        let Some(running) = &self.nodes[slot] else { return };
        let (start, shard) = (running.start, c as usize >> 4 & 3);
        if shard >= running.shards.len() || running.is_draining {
            return;
        }
        self.listeners += 1;
        let name = Listener::id(shard as u16, self.listeners);
        let shared = Arc::clone(&self.shared);
        let heard = Mutex::new(None::<usize>);
        let hear = Box::new(move |it: &Arc<Broadcast>| {
            let id = payload::parse(it.payload()).0;
            if it.event().starts_with("presence_") {
                return;
            }
            let mut ledger = shared.ledger();
            if let Some(at) = it.position() {
                let entry = ledger.log.at(at, topic);
                if entry.is_none_or(|entry| entry.id != id) {
                    let text = format!("a listener hears #{id} at {at}, where {entry:?} is");
                    ledger.fail("listener", text);
                }
                return;
            }
            let accepted = ledger.accepted_entries(start, shard, topic);
            let mut heard = locked(&heard);
            let at = heard.unwrap_or(accepted.len().saturating_sub(1));
            *heard = Some(at + 1);
            if accepted.get(at).is_none_or(|entry| entry.id != id) {
                let text = format!("a listener on shard {shard} of start {start} hears #{id}");
                ledger.fail("listener", text);
            }
        });
        let topic_name = self.topic(topic);
        running
            .node
            .post(shard, Mail::Listen(topic_name.into(), Listener { name, on_broadcast: hear }));
        self.listening.push(Listening { start, shard, topic, name });
        self.shared
            .note(|| format!("somebody listens to {topic} on shard {shard} of start {start}"));
    }

    pub(crate) fn unlisten(&mut self, it: &Listening) {
        let name = self.topic(it.topic);
        if let Some(running) = self.running_nodes().find(|running| running.start == it.start) {
            running.node.post(it.shard, Mail::Unlisten(name.into(), it.name));
        }
    }

    fn disconnect(&mut self, slot: usize, id: usize, c: u32) {
        let Some(running) = &self.nodes[slot] else { return };
        let (node, mailbox) = (Arc::clone(&running.node), Arc::clone(&running.mailbox));
        let by = running.start;
        if running.is_draining {
            return;
        }
        let is_told = c & 1 == 0;
        let name = format!("user:{id}");
        let mut ledger = self.shared.ledger();
        let mut alive = ledger.alive();
        alive.remove(&by);
        let peers = running.thread.node.cluster.peers();
        let known = peers.iter().filter_map(|it| ledger.start_of(it.id())).collect();
        let of_id = self.clients.iter().filter(|it| it.id == Some(id));
        let sockets = of_id.filter_map(|it| it.connection.as_ref()).map(|it| (it.start, it.number));
        let disconnect = Disconnect {
            id,
            by,
            at_ns: self.clock_ns,
            alive,
            known,
            sockets: sockets.collect(),
            done: [by].into(),
            waits: is_told,
        };
        ledger.disconnects.push(disconnect);
        let number = ledger.disconnects.len() - 1;
        ledger.note(|| format!("start {by} is asked for disconnect {number}, of {name}"));
        drop(ledger);
        let disconnect = || Broadcast::new(&*name, events::DISCONNECT, Payload::EMPTY_OBJECT);
        let done = match is_told {
            true => node.broadcast_local(disconnect()),
            false => node.broadcast(disconnect()),
        };
        if let Err(error) = done {
            return self.shared.ledger().fail("disconnect", error.to_string());
        }
        if is_told {
            mailbox.post(Command::Disconnect(name.into(), number));
        }
    }
}
