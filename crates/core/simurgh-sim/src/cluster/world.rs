//! Nodes, clients and the network between them; what operations do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use simurgh_core::{Broadcast, Listener, Mail, Node, SocketState, Wire};
use simurgh_loopback::Network;
use simurgh_proto::message::{Payload, events};
use simurgh_proto::serializer::Kind as FrameKind;
use simurgh_proto::ws::Decoder;

use super::account::{Account, Asked};
use super::client::{Client, Current, Line};
use super::disconnects::Disconnect;
use super::faults::Faults;
use super::live::Live;
use super::machine::Ask;
use super::plan::{MILLISECOND, Op, Plan, What};
use crate::model::NONE;
use crate::payload;
use crate::peer::{Sent, What as Sends};
use crate::stage::{Stage, locked};

/// What all parts of such a world share.
#[derive(Debug)]
pub(crate) struct Shared {
    account: Mutex<Account>,
    pub(crate) plan: Plan,
    pub(crate) stage: Arc<Stage>,
}

impl Shared {
    fn new(plan: &Plan) -> Self {
        let mut account = Account::new(plan.topics.len());
        account.is_kept = plan.kept.is_some();
        account.is_whole = plan.kept.as_ref().is_some_and(|it| it.is_whole);
        let account = Mutex::new(account);
        let stage = Arc::new(Stage::new(plan.profile(), plan.fault));
        Self { account, plan: plan.clone(), stage }
    }

    /// The account of everything. Nobody panics while it is held.
    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        locked(&self.account)
    }
}

/// Somebody outside of channels who listens.
pub(crate) struct Listening {
    pub(crate) start: usize,
    pub(crate) shard: usize,
    pub(crate) topic: usize,
    name: simurgh_core::ChannelId,
}

/// See the module.
pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Network,
    /// By slot.
    pub(crate) nodes: Vec<Option<Live>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) listening: Vec<Listening>,
    pub(crate) clock_ns: u64,
    pub(crate) quantum_ns: u64,
    pub(crate) faults: Faults,
    pub(super) rng: Rng,
    conns: u32,
    listeners: u32,
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(plan));
        let network = Network::new(plan.seed, plan.network.clone());
        let count = plan.nodes.len();
        let nodes = (0..count).map(|slot| Live::start(&shared, &network, slot, 0)).collect();
        let clients = (0..plan.clients).map(|it| Client::new(plan, it as u32)).collect();
        let (clock_ns, quantum_ns) = (0, plan.quantum_ns);
        let (faults, rng) = (Faults::new(count), Rng::with_seed(plan.seed ^ 0x52_55_4e));
        let (listening, conns, listeners) = (Vec::new(), 0, 0);
        let world = Self {
            shared,
            network,
            nodes,
            clients,
            listening,
            clock_ns,
            quantum_ns,
            faults,
            rng,
            conns,
            listeners,
        };
        world.reads_log();
        world
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.shared.account().failure.is_some()
    }

    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        self.shared.account().note(text);
    }

    /// The node of a slot, if it runs.
    pub(crate) fn live(&mut self, slot: usize) -> Option<&mut Live> {
        self.nodes.get_mut(slot)?.as_mut()
    }

    pub(crate) fn lives(&self) -> impl Iterator<Item = &Live> {
        self.nodes.iter().flatten()
    }

    fn connects(&mut self, client: usize, slot: usize, c: u32) {
        let Some(it) = self.clients.get_mut(client).filter(|it| it.line.is_none()) else { return };
        let Some(live) = self.nodes.get_mut(slot).and_then(Option::as_mut) else { return };
        let shard = c as usize % live.servers.len().max(1);
        let now_ns = live.local_ns(self.clock_ns);
        let is_open = live.is_open();
        let Some(server) = live.servers.get_mut(shard).filter(|_| is_open) else { return };
        self.conns += 1;
        server.net.at(now_ns, u64::from(self.conns));
        let key = server.net.open(self.conns, Wire::V2, 0, 1 << 20);
        let (start, conn) = (live.start, self.conns);
        it.line = Some(Line { slot, start, shard, key, conn, decoder: Decoder::new() });
        let id = it.id.map(|it| format!("user:{it}").into());
        self.note(|| format!("client {client} connects to shard {shard} of start {start}: {id:?}"));
        let state = SocketState { id, ..SocketState::default() };
        self.step(slot, shard, |core, net| core.opened(net, key, state));
    }

    fn joins(&mut self, client: usize, topic: usize, c: u32) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(line) = &it.line else { return };
        let Some(channel) = it.channels.get_mut(topic).filter(|it| it.is_none()) else { return };
        let asked =
            Asked { topic, node: line.start, shard: line.shard, client: client as u32, from: None };
        let mut account = self.shared.account();
        account.joins.push(asked);
        let chan = account.joins.len() as u32 - 1;
        drop(account);
        it.refs += 1;
        let join_ref = it.refs;
        *channel = Some(Current::new(join_ref, chan));
        let words = it.resumes(topic);
        let payload = format!(r#"{{"i":{chan},"s":{c}{words}}}"#);
        self.says(client, topic, "phx_join", &payload, join_ref);
    }

    fn pushes(&mut self, client: usize, topic: usize, event: &str, word: u32) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(channel) = it.channels.get_mut(topic) else { return };
        let Some(join_ref) = channel.as_ref().map(|it| it.join_ref) else { return };
        // Who has not been told what it has missed waits for that.
        let is_told = it.ears.get(topic).is_none_or(|ear| ear.is_resumed || !it.opts_in);
        if event == "phx_leave" && !is_told {
            return;
        }
        it.refs += 1;
        if event == "phx_leave" {
            *channel = None;
        }
        self.says(client, topic, event, &format!(r#"{{"i":0,"s":{word}}}"#), join_ref);
    }

    fn says(&mut self, client: usize, topic: usize, event: &str, payload: &str, join_ref: u32) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(line) = &it.line else { return };
        let name = self.shared.plan.topics.get(topic).map_or("", String::as_str);
        let msg_ref = it.refs;
        let text = format!(r#"["{join_ref}","{msg_ref}","{name}","{event}",{payload}]"#);
        let live = self.nodes.get_mut(line.slot).and_then(Option::as_mut);
        let server = live.and_then(|it| it.servers.get_mut(line.shard));
        if let Some(peer) = server.and_then(|it| it.net.peer_mut(line.key)) {
            let (kind, what) = (FrameKind::Text, Sends::Plain(0));
            peer.inbound.push_back(Sent { kind, bytes: text.into_bytes(), what });
        }
    }

    /// A client is gone; its shard hears of that at once.
    pub(crate) fn vanishes(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(line) = it.line.take() else { return };
        it.disconnected();
        self.note(|| format!("client {client} is gone"));
        if let Some(live) = self.live(line.slot)
            && let Some(server) = live.servers.get_mut(line.shard)
        {
            server.net.doom(line.key);
            server.next_ns = 0;
        }
    }

    fn publishes(&mut self, slot: usize, topic: usize, c: u32) {
        let Some(live) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let (node, start) = (Arc::clone(&live.node), live.start);
        let id = self.shared.account().make(topic, start, NONE);
        let pad = if c & 7 == 0 { self.shared.plan.pad } else { 0 };
        let payload = payload::make(id, 0, pad, c >> 8 & 7 == 0);
        let name = self.shared.plan.topics.get(topic).cloned().unwrap_or_default();
        let done = node.broadcast(Broadcast::new(name, "c", payload));
        self.optional(id, done.is_err());
        self.note(|| format!("#{id} is published on start {start}: {done:?}"));
    }

    fn optional(&self, id: u32, is_optional: bool) {
        if let Some(made) = self.shared.account().made.get_mut(id as usize) {
            made.is_optional = is_optional;
        }
    }

    /// A handle of a channel broadcasts.
    fn speaks(&mut self, c: u32) {
        let mut account = self.shared.account();
        let Some(at) = (c as usize).checked_rem(account.handles.len()) else { return };
        let Some((chan, handle)) = account.handles.get(at).cloned() else { return };
        let Some(asked) = account.joins.get(chan as usize).copied() else { return };
        let is_from = c >> 20 & 1 == 0;
        let id = account.make(asked.topic, asked.node, if is_from { chan } else { NONE });
        drop(account);
        // Its channel may have ended when that comes to it.
        self.optional(id, true);
        let payload = payload::make(id, 0, 0, false);
        let _ = match is_from {
            true => handle.broadcast_from("b", payload),
            false => handle.broadcast("b", payload),
        };
        self.note(|| format!("a handle of channel {chan} broadcasts #{id}"));
    }

    /// Somebody outside begins to listen, or ends.
    fn listens(&mut self, slot: usize, topic: usize, c: u32) {
        if c & 1 == 0 && !self.listening.is_empty() {
            let it = self.listening.swap_remove((c as usize >> 1) & (3 % self.listening.len()));
            return self.unlistens(&it);
        }
        let Some(live) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let (start, shard) = (live.start, c as usize >> 4 & 3);
        if shard >= live.servers.len() || live.is_draining {
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
            let mut account = shared.account();
            if let Some(at) = it.position() {
                let entry = account.kept.at(at, topic);
                if entry.is_none_or(|entry| entry.id != id) {
                    let text = format!("a listener hears #{id} at {at}, where {entry:?} is");
                    account.fail("listener", text);
                }
                return;
            }
            let len = account.line_len(start, shard, topic);
            let mut heard = locked(&heard);
            let at = heard.unwrap_or(len.saturating_sub(1));
            *heard = Some(at + 1);
            if account.at(start, shard, topic, at) != Some(id) {
                let text = format!("a listener on shard {shard} of start {start} hears #{id}");
                account.fail("listener", text);
            }
        });
        let topic_name = self.shared.plan.topics.get(topic).cloned().unwrap_or_default();
        live.node
            .post(shard, Mail::Listen(topic_name.into(), Listener { name, on_broadcast: hear }));
        self.listening.push(Listening { start, shard, topic, name });
        self.note(|| format!("somebody listens to {topic} on shard {shard} of start {start}"));
    }

    /// Somebody outside ends to listen.
    pub(crate) fn unlistens(&mut self, it: &Listening) {
        let name = self.shared.plan.topics.get(it.topic).cloned().unwrap_or_default();
        if let Some(live) = self.lives().find(|live| live.start == it.start) {
            live.node.post(it.shard, Mail::Unlisten(name.into(), it.name));
        }
    }

    /// All sockets with an id are to be closed.
    fn disconnects(&mut self, slot: usize, id: usize, c: u32) {
        let Some(live) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let (node, by) = (Arc::clone(&live.node), live.start);
        if live.is_draining {
            return;
        }
        let is_told = c & 1 == 0;
        let name = format!("user:{id}");
        let mut account = self.shared.account();
        let mut alive = account.alive();
        alive.remove(&by);
        let peers = live.machine.node.peers();
        let known = peers.iter().filter_map(|it| account.start_of(it.id())).collect();
        let of_id = self.clients.iter().filter(|it| it.id == Some(id));
        let sockets = of_id.filter_map(|it| it.line.as_ref()).map(|it| (it.start, it.conn));
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
        account.disconnects.push(disconnect);
        let number = account.disconnects.len() - 1;
        account.note(|| format!("start {by} is asked for disconnect {number}, of {name}"));
        drop(account);
        let disconnect = || Broadcast::new(&*name, events::DISCONNECT, Payload::EMPTY_OBJECT);
        let done = match is_told {
            true => node.broadcast_local(disconnect()),
            false => node.broadcast(disconnect()),
        };
        if let Err(error) = done {
            return self.shared.account().fail("disconnect", error.to_string());
        }
        if is_told {
            node.door.post(Ask::Disconnect(name.into(), number));
        }
    }

    pub(crate) fn run(&mut self, op: Op) {
        let Op { what, a, b, c } = op;
        let plan = &self.shared.plan;
        let client = usize::from(a) % plan.clients.max(1);
        let slot = usize::from(b) % plan.nodes.len();
        let topic = usize::from(b) % plan.topics.len();
        let shards = plan.nodes.get(slot).copied().unwrap_or(1);
        let (shard, id) = (c as usize % shards, usize::from(a) % plan.ids);
        self.shared.account().step += 1;
        match what {
            What::Connect => self.connects(client, slot, c),
            What::Join => self.joins(client, topic, c),
            What::Push => self.pushes(client, topic, "x", c),
            What::Leave => self.pushes(client, topic, "phx_leave", c),
            What::Vanish => self.vanishes(client),
            What::Read => drop(self.reads(client, 1 + usize::from(b % 4))),
            What::Mail => {
                for _ in 0..=c >> 8 & 3 {
                    self.takes_mail(slot, shard);
                }
            }
            What::Turn => self.ends_turn(slot, shard),
            What::Machine => self.runs_machine(slot),
            What::Publish => {
                self.publishes(slot, usize::from(a) % self.shared.plan.topics.len(), c)
            }
            What::Speak => self.speaks(c),
            What::Listen => self.listens(slot, usize::from(a) % self.shared.plan.topics.len(), c),
            What::Disconnect => self.disconnects(slot, id, c),
            What::Wait => self.passes(u64::from(c % 300) * MILLISECOND),
            What::Long => self.passes(u64::from(c % 12_000) * MILLISECOND),
            What::Rest => self.rests(),
            What::Keep => self.keeps(slot, usize::from(a) % self.shared.plan.topics.len(), c),
            What::Purge => self.purges(slot, topic),
            What::LookUp => self.looks_up(slot, usize::from(a) % self.shared.plan.topics.len(), c),
            _ => self.breaks(op, slot),
        }
    }

    /// Where broadcasts of a channel are said by hand, messages wait in this order.
    pub(super) fn inbound(&mut self, client: usize) -> Option<&mut VecDeque<Sent>> {
        let line = self.clients.get(client)?.line.as_ref()?;
        let live = self.nodes.get_mut(line.slot)?.as_mut()?;
        let peer = live.servers.get_mut(line.shard)?.net.peer_mut(line.key)?;
        (!peer.is_held).then_some(&mut peer.inbound)
    }
}
