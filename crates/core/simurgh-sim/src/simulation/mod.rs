//! A run: servers, clients and the network between them, driven by operations.

mod bounds;
mod checks;
mod client;
mod listeners;
mod operations;
mod outside;
mod polls;
mod readings;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::kit::findings::Findings;
use crate::kit::peer::Peer;
use crate::kit::run::Simulation;
use crate::kit::transport::Transport;
use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{Core, Mail, Phase, Publisher};
use simurgh_data::{Key, Next};

use self::client::Link;
use self::readings::Reading;
use crate::app::shared::{Shared, ticks};
use crate::model::{Input, Model};
use crate::node::{MailTag, SimNode, TaggedMail};
use crate::op::{Kind, Op};
use crate::run::Plan;

pub(crate) struct Server {
    pub(crate) core: Core<SimNode>,
    pub(crate) net: Transport,
    pub(crate) metrics: Arc<ShardMetrics>,
    is_in_turn: bool,
    pub(crate) has_ended: bool,
}

impl Server {
    fn new(node: &Arc<SimNode>, shard: usize, net: Transport) -> Self {
        let metrics = Arc::new(ShardMetrics::default());
        let seed = node.shared.profile.seed;
        Self {
            core: Core::new(Arc::clone(node), shard as u16, Arc::clone(&metrics), seed),
            net,
            metrics,
            is_in_turn: false,
            has_ended: false,
        }
    }

    /// Replaces a shard that has ended, and checks that nothing of it is left.
    pub(crate) fn again(self, node: &Arc<SimNode>) -> Self {
        self.count_events(&mut node.shared.model());
        let Self { core, net, metrics, .. } = self;
        let shard = usize::from(core.shard());
        drop(core);
        let it = &metrics;
        let gauges = [&it.sockets, &it.channels, &it.subscriptions, &it.channels_hibernating];
        let (gauges, frames) = (gauges.map(|it| it.value()), net.frames.get());
        let mut model = node.shared.model();
        if gauges != [0; 4] || frames != 0 || net.peers().next().is_some() {
            model.fail("left", format!("shard {shard}: gauges {gauges:?}, {frames} frames"));
        }
        drop(model);
        Self::new(node, shard, net.again())
    }

    fn count_events(&self, model: &mut Model) {
        model.counts.count("publishers held", self.metrics.publishers_held.value());
        model.counts.count("idle timeouts", self.metrics.idle_timeouts.value());
    }
}

pub(crate) struct NodeSimulation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<SimNode>,
    pub(crate) servers: Vec<Server>,
    /// By the number of the connection.
    pub(crate) links: Vec<Link>,
    pub(crate) current: Vec<Option<u32>>,
    pub(crate) clock_ns: u64,
    pub(crate) readings: VecDeque<Reading>,
    pub(crate) tickets: u32,
    released: Vec<Key>,
}

impl Server {
    pub(crate) fn turn_ns(&self, clock_ns: u64) -> u64 {
        if self.is_in_turn { self.net.now.ns } else { clock_ns }
    }
}

impl Simulation for NodeSimulation {
    type Plan = Plan;
    type Kind = Kind;

    fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(plan.profile.clone(), plan.fault));
        let node = Arc::new(SimNode::new(Arc::clone(&shared)));
        let server =
            |shard: usize| Server::new(&node, shard, Transport::new(Arc::clone(&shared.setup)));
        let servers = (0..plan.profile.shards).map(server).collect();
        Self {
            servers,
            node,
            links: Vec::new(),
            current: vec![None; plan.profile.clients],
            clock_ns: 1_000_000_000,
            readings: VecDeque::new(),
            tickets: 0,
            released: Vec::new(),
            shared,
        }
    }

    fn operations(plan: &Plan, count: usize) -> Vec<Op> {
        plan.operations(count)
    }

    fn simpler(plan: &Plan) -> Vec<Plan> {
        plan.simpler()
    }

    fn steps_max(plan: &Plan) -> usize {
        plan.steps
    }

    fn run(&mut self, op: Op) {
        self.carry_out(op);
    }

    fn end(&mut self) {
        self.end_all();
        let mut model = self.shared.model();
        let steps = u64::from(model.step);
        model.counts.count("steps", steps);
        for server in &self.servers {
            server.count_events(&mut model);
            model.hash ^= server.net.hash.rotate_left(7);
        }
    }

    fn findings<T>(&self, with: impl FnOnce(&mut Findings) -> T) -> T {
        with(&mut self.shared.model())
    }

    fn clock_ns(&self) -> u64 {
        self.clock_ns
    }
}

impl NodeSimulation {
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        self.shared.model().note(text);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.shared.model().failure.is_some()
    }

    /// The shard that a number means, unless it has ended.
    pub(crate) fn shard(&self, number: u16) -> Option<usize> {
        let shard = usize::from(number) % self.servers.len().max(1);
        self.servers.get(shard).filter(|it| !it.has_ended).map(|_| shard)
    }

    pub(crate) fn peer(&self, conn: u32) -> Option<&Peer> {
        let link = self.links.get(conn as usize)?;
        self.servers.get(link.shard)?.net.peer(link.key)
    }

    pub(crate) fn peer_mut(&mut self, conn: u32) -> Option<&mut Peer> {
        let link = self.links.get(conn as usize)?;
        self.servers.get_mut(link.shard)?.net.peer_mut(link.key)
    }

    pub(crate) fn step(
        &mut self,
        shard: usize,
        input: Input,
        jumps: u64,
        act: impl FnOnce(&mut Core<SimNode>, &mut Transport, &Shared),
    ) {
        let Some(server) = self.servers.get_mut(shard).filter(|it| !it.has_ended) else { return };
        let now_ns = if server.is_in_turn { server.net.now.ns } else { self.clock_ns };
        server.is_in_turn = true;
        server.net.at(now_ns, jumps);
        server.net.holds.clear();
        let tick = server.net.now.tick;
        let mut state = self.node.state();
        state.has_spoken = false;
        drop(state);
        let mut model = self.shared.model();
        model.begin_step(shard, input, tick);
        model.now.ns = now_ns;
        drop(model);
        act(&mut server.core, &mut server.net, &self.shared);
        self.after(shard, input);
        self.feed_released(shard);
    }

    fn after(&mut self, shard: usize, input: Input) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let mut model = self.shared.model();
        let config = &self.shared.profile.config;
        let tick = server.net.now.tick;
        if input == Input::Tick && !model.waiting.is_empty() {
            for conn in model.waiting.clone() {
                let link = self.links.get(conn as usize).filter(|it| it.shard == shard);
                let Some(peer) = link.and_then(|it| server.net.peer(it.key)) else { continue };
                let since = model.conn(conn).and_then(|it| it.awaiting.as_ref());
                let waited = tick.wrapping_sub(since.map_or(tick, |it| it.since_tick));
                let longest = match peer.has_shut {
                    true => config.close_timeout,
                    false => config.decision_timeout,
                };
                // A channel that a drain closes in the same step may have been notified before.
                let is_closed = matches!(peer.socket.phase(), Phase::Closing | Phase::Ending);
                match peer.socket.phase() {
                    Phase::Waiting => {}
                    _ if is_closed && waited <= ticks(longest) => {}
                    _ => {
                        if let Some(it) = model.shards.get_mut(shard).filter(|_| is_closed) {
                            it.refused_perhaps += 1;
                        }
                        model.timed_out(conn, waited, ticks(longest));
                    }
                }
            }
        }
        let idle = config.idle_timeout.map(ticks);
        while let Some(key) = server.net.touched.pop() {
            let Some(peer) = server.net.peer(key) else { continue };
            if matches!(peer.socket.phase(), Phase::Closing | Phase::Ending) {
                let silent = tick.wrapping_sub(peer.heard_tick);
                let is_silent = idle.is_some_and(|idle| silent > idle);
                model.over(peer.conn, is_silent);
            }
        }
        if let Input::Ended(conn) = input {
            model.over(conn, false);
        }
        model.end_step();
        // Less may have been in transit when those before it published.
        let published = model.now.publishers.last().copied();
        server.check_counters(&mut model);
        if input == Input::Settle {
            server.check_settled(&self.node, &mut model);
            self.check_charges(&mut model);
        }
        self.check_waits(shard, &mut model);
        self.check_slice(shard, input, &mut model);
        self.check_permits(&mut model);
        self.check_closing(shard, &mut model);
        drop(model);
        // A socket that publishes while far too much is in transit is not read. The broadcast of a
        // handle may have added to it since.
        let is_jammed = || self.node.is_jammed() && !self.node.state().has_spoken;
        if let Some(conn) = published.filter(|_| is_jammed())
            && self.open_peer(shard, conn).is_some_and(|it| !it.is_held)
        {
            self.shared.model().fail("held", format!("socket {conn} publishes and is read"));
        }
    }

    /// Continues with the input of sockets that are read again.
    fn feed_released(&mut self, shard: usize) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        if server.net.released.is_empty() {
            return;
        }
        self.released.append(&mut server.net.released);
        while let Some(key) = self.released.pop() {
            let Some(server) = self.servers.get(shard) else { return };
            if server.net.peer(key).is_some_and(|it| !it.stash.is_empty() && !it.is_held) {
                self.feed(shard, key);
            }
        }
    }

    pub(crate) fn take_mail(&mut self, shard: usize) -> bool {
        let Some(TaggedMail { mail, tag, .. }) = self.node.take(shard) else { return false };
        self.tell(|| format!("core {shard} takes {mail:.100?}, {tag:?}"));
        let is_drain = matches!(mail, Mail::Drain(_));
        self.step(shard, Input::Mail(None), 1, |core, net, shared| {
            let mut model = shared.model();
            match tag {
                MailTag::Nothing => {}
                MailTag::Broadcast(id) => model.accept(shard, id),
                MailTag::ToChannel(chan, intent) => model.told(chan, intent),
                MailTag::Joined(conn, ticket, answer) => model.decided(conn, ticket, answer),
                MailTag::Listen(number) => model.listens(number),
                MailTag::Unlisten(number) => model.unlistens(number),
                MailTag::Pushes(number) => model.pushes_to_some(number),
                MailTag::Answers(number) => model.keeps_answers(shard, number),
            }
            if is_drain && let Some(it) = model.shards.get_mut(shard) {
                it.drains = true;
                model.counts.count("drains", 1);
            }
            drop(model);
            core.mail(net, mail);
        });
        true
    }

    pub(crate) fn end_turn(&mut self, shard: usize, jumps: u64) -> Next {
        let Some(server) = self.servers.get_mut(shard).filter(|it| !it.has_ended) else {
            return Next::Idle;
        };
        if !server.is_in_turn {
            server.is_in_turn = true;
            server.net.at(self.clock_ns, jumps);
        }
        server.net.judge();
        server.net.flush();
        self.end_unpolled(shard);
        self.remove_connections(shard);
        let mut next = Next::Idle;
        self.step(shard, Input::Tick, jumps, |core, net, shared| {
            let has_more = core.tick(net) == Next::Now;
            shared.model().clock.has_more = has_more;
        });
        self.step(shard, Input::FanOut, jumps.rotate_left(9), |core, net, _| {
            next = core.fan_out(net);
        });
        self.step(shard, Input::Settle, jumps, |core, net, _| {
            core.settle(net);
        });
        let Some(server) = self.servers.get_mut(shard) else { return next };
        server.net.flush();
        server.is_in_turn = false;
        let (clock_ns, stops) = (server.net.clock.get(), server.net.stops);
        self.clock_ns = self.clock_ns.max(clock_ns);
        self.remove_connections(shard);
        if stops {
            self.end_shard(shard);
        }
        if next == Next::Now {
            self.shared.model().counts.count("slices cut", 1);
        }
        next
    }

    pub(crate) fn remove_connections(&mut self, shard: usize) {
        loop {
            let Some(server) = self.servers.get_mut(shard) else { return };
            for conn in server.net.cut.drain(..) {
                self.links[conn as usize].is_lost = true;
                let mut model = self.shared.model();
                model.counts.count("slow cuts", 1);
                model.conns[conn as usize].is_lost = true;
            }
            let Some(key) = server.net.removals.pop() else { return };
            self.end_connection(shard, key);
        }
    }

    fn end_connection(&mut self, shard: usize, key: Key) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let Some(peer) = server.net.remove(key) else { return };
        let Peer { conn, socket, pipe, heard, .. } = *peer;
        if let Some(link) = self.links.get_mut(conn as usize) {
            (link.pipe, link.heard, link.is_over) = (pipe, heard, true);
        }
        self.step(shard, Input::Ended(conn), 1, |core, net, _| core.closed(net, key, socket));
        // Its turn may be over already: what this produced is still to be sent.
        self.servers[shard].net.flush();
    }

    fn end_shard(&mut self, shard: usize) {
        self.tell(|| format!("shard {shard} ends"));
        let Some(server) = self.servers.get_mut(shard) else { return };
        let keys: Vec<Key> = server.net.peers().map(|it| it.key).collect();
        for key in keys {
            self.end_connection(shard, key);
        }
        let Some(server) = self.servers.get_mut(shard) else { return };
        server.core.retire();
        server.has_ended = true;
        // What it had in transit is lost with it.
        let (seed, metrics) = (self.shared.profile.seed, Arc::clone(&server.metrics));
        server.core = Core::new(Arc::clone(&self.node), shard as u16, metrics, seed);
        self.shared.model().presence.is_partial = true;
        drop(self.node.end(shard));
    }
}
