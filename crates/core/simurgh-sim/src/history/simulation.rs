//! The simulation: a node, its clients, and the operations.

use std::sync::Arc;

use crate::kit::client::Connection;
use crate::kit::fault::Fault;
use crate::kit::findings::Findings;
use crate::kit::node::SimNode;
use crate::kit::operation::{self, Op};
use crate::kit::run::Simulation;
use crate::kit::shard::{self, Turns};
use crate::kit::{EVENTS, payload, setup};
use simurgh_core::{Broadcast, HistoryRequest, Listener, Mail, Node, SocketState, Wire};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::Decoder;
use simurgh_reactor::{Key, Next};

use super::app;
use super::client::Client;
use super::ledger::{BroadcastInfo, Ledger};
use super::plan::{self, Kind, Plan};
use crate::limits::Limits;

pub(crate) type Shared = setup::Shared<Ledger, Plan>;
pub(super) type Shard = shard::Shard<Ledger, Plan>;

pub(crate) struct HistorySimulation {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<SimNode<Ledger, Plan>>,
    pub(super) shards: Vec<Shard>,
    pub(super) clients: Vec<Client>,
    /// Sockets whose clients are gone, which their shards have not noticed yet.
    gone: Vec<(usize, Key)>,
    pub(super) clock_ns: u64,
    connections: u32,
}

impl Turns for HistorySimulation {
    type Ledger = Ledger;
    type Plan = Plan;
    type Client = Client;

    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn node(&self, _slot: usize) -> Option<&Arc<SimNode<Ledger, Plan>>> {
        Some(&self.node)
    }

    fn shard(&mut self, _slot: usize, shard: usize) -> Option<&mut Shard> {
        self.shards.get_mut(shard)
    }

    fn local_ns(&self, _slot: usize) -> u64 {
        self.clock_ns
    }

    fn clients(&mut self) -> &mut Vec<Client> {
        &mut self.clients
    }

    fn begin_step(&mut self, _slot: usize, _shard: usize, now_ns: u64) -> u64 {
        self.shared.ledger().begin_step(now_ns / 1_000_000);
        now_ns ^ u64::from(self.connections)
    }

    fn notice_mail(&mut self, _slot: usize, shard: usize, mail: &Mail) {
        self.shared.note(|| {
            let mail = format!("{mail:?}");
            format!("shard {shard} takes {mail:.100}")
        });
    }

    fn end_turn(&mut self, _slot: usize, shard: usize, _nexts: [Next; 3]) {
        self.clock_ns = self.clock_ns.max(self.shards[shard].net.clock.get());
    }

    fn hear(&mut self, client: usize, message: &ServerMessage<'_>) {
        self.clients[client].receive(&self.shared.plan, &mut self.shared.ledger(), message);
    }

    fn hear_close(&mut self, client: usize) {
        // As a browser does.
        self.vanish(client);
    }
}

impl Simulation for HistorySimulation {
    type Plan = Plan;
    type Kind = Kind;

    fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(Ledger::new(plan), plan.clone(), plan.setup()));
        let (join, rule) = (app::join(&shared), Some(plan.rule));
        let is_unlimited = shared.setup.faults.happens(Fault::Unlimit);
        let limits = if is_unlimited { Limits::default() } else { plan.channel_limits() };
        let limits = limits.of_channel();
        let node = SimNode::new(&shared, (plan.seed, plan.shards), join, rule, limits, None);
        let node = Arc::new(node);
        let shard = |it| Shard::new(&node, it, Arc::default(), node.id());
        let shards = (0..plan.shards).map(shard).collect();
        let clients = (0..plan.clients).map(|it| Client::new(plan, it as u32)).collect();
        let (gone, clock_ns, connections) = (Vec::new(), 1_000_000_000, 0);
        let mut it = Self { shared, node, shards, clients, gone, clock_ns, connections };
        it.listen();
        it
    }

    fn flags(_plan: &Plan) -> String {
        " --history".to_owned()
    }

    fn operations(plan: &Plan, count: usize) -> Vec<Op<Kind>> {
        let is_on = |kind: Kind| match kind {
            Kind::Leave => plan.leaves,
            Kind::Purge => plan.purges,
            Kind::Restart => plan.restarts,
            _ => true,
        };
        let weights: Vec<_> = plan::WEIGHTS.into_iter().filter(|(kind, _)| is_on(*kind)).collect();
        operation::operations(plan.seed, &weights, count)
    }

    fn run(&mut self, op: Op<Kind>) {
        let Op { kind, a, b, c } = op;
        let plan = &self.shared.plan;
        let waits_ms = if plan.waits_long && c >> 24 & 3 == 0 { 12_000 } else { 400 };
        let client = usize::from(a) % plan.clients;
        let (shard, topic) = (usize::from(a) % plan.shards, usize::from(b) % plan.topics);
        self.shared.ledger().step += 1;
        match kind {
            Kind::Connect => self.connect(client, c),
            Kind::Join => self.join(client, topic, c),
            Kind::Push => self.push(client, topic, c),
            Kind::Leave => self.leave(client, topic, c),
            Kind::Read => _ = self.read(client, 1 + usize::from(b % 4)),
            Kind::Take => {
                let most = if c & 3 == 0 { c as usize >> 8 & 255 } else { usize::MAX };
                self.receive(client, most);
            }
            Kind::Mail => (0..=c % 3).for_each(|_| _ = self.take_mail(0, shard)),
            Kind::Turn => _ = self.finish_turn(0, shard),
            Kind::Decide => _ = self.node.decide_next(),
            Kind::Vanish => self.vanish(client),
            Kind::Notice => _ = self.notice_gone(),
            Kind::Publish => self.publish(topic, c),
            Kind::Speak => self.broadcast_by_handle(c),
            Kind::Purge => self.purge(topic),
            Kind::Wait => self.clock_ns += u64::from(c % waits_ms) * 1_000_000,
            Kind::Rest => self.rest(),
            Kind::Restart => self.restart(c & 7 == 0),
        }
    }

    fn end(&mut self) {
        self.end_all();
    }

    fn findings<T>(&self, with: impl FnOnce(&mut Findings) -> T) -> T {
        with(&mut self.shared.ledger())
    }

    fn clock_ns(&self) -> u64 {
        self.clock_ns
    }
}

impl HistorySimulation {
    /// Listens to each topic on each shard, outside of channels, to learn the order.
    pub(super) fn listen(&mut self) {
        let plan = self.shared.plan.clone();
        for (shard, topic) in (0..plan.shards).flat_map(|it| (0..plan.topics).map(move |t| (it, t)))
        {
            let shared = Arc::clone(&self.shared);
            let hear = Box::new(move |it: &Arc<Broadcast>| {
                let (id, bytes) = (payload::parse(it.payload()).0, it.payload().len() + 96);
                shared.ledger().note_heard(shard, topic, id, bytes, it.position());
            });
            let listener =
                Listener { name: Listener::id(shard as u16, topic as u32), on_broadcast: hear };
            self.node.post(shard, Mail::Listen(plan::topic(topic).into(), listener));
            self.take_mail(0, shard);
        }
    }

    fn connect(&mut self, client: usize, c: u32) {
        let shard = c as usize % self.shards.len();
        let it = &mut self.clients[client];
        if it.connection.is_some() {
            return;
        }
        it.wire = if c >> 16 & 3 == 0 { Wire::V1 } else { Wire::V2 };
        self.connections += 1;
        let (number, wire, window) = (self.connections, it.wire, self.shared.plan.window);
        let key = self.shards[shard].net.open(number, wire, 0, window);
        let decoder = Decoder::new();
        it.connection = Some(Connection { slot: 0, start: 0, shard, key, number, decoder });
        self.shared.note(|| format!("client {client} connects to shard {shard}, {wire:?}"));
        self.step(0, shard, |core, net| {
            core.opened(net, key, SocketState::default());
        });
    }

    fn join(&mut self, client: usize, topic: usize, c: u32) {
        let it = &mut self.clients[client];
        if it.connection.is_none() {
            return;
        }
        let join = it.join(&self.shared.plan, &mut self.shared.ledger(), topic, c);
        if let Some((join_ref, payload)) = join {
            self.send(client, [join_ref; 2], &plan::topic(topic), "phx_join", &payload);
        }
    }

    fn push(&mut self, client: usize, topic: usize, word: u32) {
        let it = &mut self.clients[client];
        it.refs += 1;
        if let Some(current) = it.views[topic].current {
            self.send_word(client, topic, "x", current.join_ref, word);
        }
    }

    fn leave(&mut self, client: usize, topic: usize, word: u32) {
        let it = &mut self.clients[client];
        it.refs += 1;
        if let Some(join_ref) = it.leave(&self.shared.plan, topic) {
            self.send_word(client, topic, "phx_leave", join_ref, word);
        }
    }

    fn send_word(&mut self, client: usize, topic: usize, event: &str, join_ref: u32, word: u32) {
        let refs = [join_ref, self.clients[client].refs];
        let payload = format!(r#"{{"i":0,"s":{word}}}"#);
        self.send(client, refs, &plan::topic(topic), event, &payload);
    }

    pub(super) fn vanish(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let Some(line) = it.connection.take() else { return };
        crate::kit::client::Client::disconnected(it);
        self.gone.push((line.shard, line.key));
        self.shared.note(|| format!("client {client} is gone"));
    }

    pub(super) fn notice_gone(&mut self) -> bool {
        let Some((shard, key)) = self.gone.pop() else { return false };
        self.shards[shard].net.removals.push(key);
        self.remove_connections(0, shard);
        true
    }

    fn publish(&mut self, topic: usize, c: u32) {
        let (event, plan) = (c as usize % EVENTS.len(), &self.shared.plan);
        let is_binary = plan.has_binary && c >> 8 & 7 == 0;
        let made =
            BroadcastInfo { event: event as u8, is_binary, ..BroadcastInfo::new(topic as u8) };
        let id = self.shared.ledger().new_broadcast(made);
        let pad = if c >> 12 & 15 == 0 { plan.pad } else { 0 };
        let payload = payload::make(id, 0, pad, is_binary);
        let broadcast = Broadcast::new(plan::topic(topic), EVENTS[event], payload);
        let done = self.node.broadcast(broadcast);
        self.shared.ledger().broadcasts[id as usize].is_optional = done.is_err();
        self.shared.note(|| format!("#{id} is published: {done:?}"));
    }

    fn broadcast_by_handle(&mut self, c: u32) {
        let mut ledger = self.shared.ledger();
        let Some(at) = (c as usize).checked_rem(ledger.handles.len()) else { return };
        let (chan, handle) = ledger.handles[at].clone();
        let request = ledger.joins[chan as usize];
        let is_from = c >> 20 & 1 == 0;
        let made =
            BroadcastInfo { event: 1, is_optional: true, ..BroadcastInfo::new(request.topic) };
        let id = ledger.new_broadcast(match is_from {
            true => BroadcastInfo { except: chan, sender: request.id, ..made },
            false => made,
        });
        drop(ledger);
        handle(is_from, id);
        self.shared.note(|| format!("a handle of channel {chan} broadcasts #{id}"));
    }

    fn purge(&mut self, topic: usize) {
        self.shared.ledger().topics[topic].is_purged = true;
        let name = plan::topic(topic);
        self.node.request_history(HistoryRequest::Forget(name.into(), Box::new(|_| {})));
    }
}
