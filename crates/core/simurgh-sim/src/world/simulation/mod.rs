//! The simulation: nodes, clients and the network between them, the operations, and how time
//! advances: which shards and threads run, what is read and received, and in which order.

mod checks;
mod clients;
mod faults;
mod histories;
mod operations;
mod rest;
pub(crate) mod sightings;
mod steps;

use super::*;
use crate::world::simulation::clients::{join_ref, size};
use crate::world::simulation::faults::{Deadline, Reach, SETTLES_NS};
use crate::world::simulation::operations::Reading;
use crate::world::simulation::sightings::Seen;
pub(crate) use crate::world::simulation::steps::Shard;

pub(crate) struct Simulation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Option<RunningNode>>,
    pub(crate) clients: Vec<Option<Connection>>,
    pub(crate) clock_ns: u64,
    pub(crate) quantum_ns: u64,
    /// Since when one start can receive from another, and when it last could for a beat's span.
    reaches: BTreeMap<(usize, usize), Reach>,
    deadlines: Vec<Deadline>,
    /// A fault occurred since all were repaired.
    is_broken: bool,
    pub(crate) rng: Rng,
    /// Long messages that are read away from their shards.
    readings: VecDeque<Reading>,
}

impl Simulation {
    pub(crate) fn new(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::new(plan));
        let network = Network::new(plan.seed, plan.network.clone());
        let count = plan.nodes.len();
        let mut simulation = Self {
            nodes: (0..count).map(|slot| RunningNode::start(&shared, &network, slot, 0)).collect(),
            clients: (0..plan.clients).map(|_| None).collect(),
            shared,
            network,
            clock_ns: if plan.is_one_node() { SECOND } else { 0 },
            quantum_ns: plan.quantum_ns,
            reaches: BTreeMap::new(),
            deadlines: Vec::new(),
            is_broken: true,
            rng: Rng::with_seed(plan.seed ^ 0x52_55_4e),
            readings: VecDeque::new(),
        };
        match plan.is_alone() {
            true => simulation.listen_everywhere(),
            false => simulation.read_log(),
        }
        simulation
    }

    /// Carries out an operation, if that is possible now.
    pub(crate) fn run(&mut self, op: Op) {
        let Op { kind, a, b, c } = op;
        let client = usize::from(a) % self.clients.len();
        let slot = usize::from(a >> 5 ^ b >> 7) % self.nodes.len();
        let (topic, shard) = (self.some_topic(b), usize::from(a) % self.shared.plan.nodes[slot]);
        let is_binary = self.shared.plan.app.binary > 0 && c % 8 == 3;
        match kind {
            Kind::Connect => self.connect(client, slot, c),
            Kind::Join => self.send_asked(client, RequestKind::Join, topic, c, is_binary),
            Kind::Push => self.send_asked(client, RequestKind::Event, topic, c, is_binary),
            Kind::Leave => self.send_asked(client, RequestKind::Leave, topic, c, false),
            Kind::Heartbeat => self.heartbeat(client),
            Kind::Odd => self.send_oddly(client, topic, c),
            Kind::Read => _ = self.read(client, usize::from(b % 4) + 1),
            Kind::Take => self.take_some(client, c),
            Kind::Vanish => self.vanish(client),
            Kind::Close => {
                let code = c.is_multiple_of(2).then_some(1000);
                self.send_message(client, ClientMessage::Close(code));
            }
            Kind::HalfClose => self.half_close(client),
            Kind::Fail => self.fail_bytes(client, c),
            Kind::Kick => self.kick(client),
            Kind::Mail => (0..=b % 4).for_each(|_| _ = self.take_mail(slot, shard)),
            Kind::Turn => _ = self.turn(slot, shard),
            Kind::Thread => self.run_thread(slot),
            Kind::Decide => _ = self.node(slot).map(|node| node.decide_next(usize::from(a))),
            Kind::Publish => self.publish(slot, topic, c),
            Kind::Handle => self.use_handle(c),
            Kind::Speak => self.speak(c),
            Kind::Proceed => self.proceed(c),
            Kind::Finish => self.shared.ledger().finish_task(usize::from(a)),
            Kind::Disconnect => self.disconnect(slot, usize::from(b), c),
            Kind::Wait => self.wait(c),
            Kind::Long => self.pass(u64::from(c % 12_000) * MILLISECOND),
            Kind::Drain if self.shared.plan.is_one_node() => self.drain_shards(a, c),
            Kind::Restart if self.shared.plan.is_alone() => {
                self.restart_with_histories(c & 7 == 0);
            }
            Kind::Restart => self.restart_ended(c),
            Kind::Reading => _ = self.was_read(usize::from(a)),
            Kind::Listen if b % 7 < 4 => self.begin_listening(slot, topic, c),
            Kind::Listen => {
                let count = self.shared.ledger().sessions.listeners.len();
                let number = count.checked_sub(1 + c as usize % count.clamp(1, 8));
                number.into_iter().for_each(|number| self.end_listening(number));
            }
            Kind::Who => self.ask_who(slot, topic),
            Kind::Burst => self.burst(client, topic, c),
            Kind::Rest => self.rest(),
            Kind::Keep => self.keep(slot, topic, c),
            Kind::Purge => self.purge(slot, topic),
            Kind::LookUp => self.look_up(slot, topic, c),
            _ => self.break_something(op, slot),
        }
    }

    fn wait(&mut self, c: u32) {
        let plan = &self.shared.plan;
        let size = u64::from(c >> 8);
        let ns = match &plan.history {
            _ if plan.has_broker => return self.pass(u64::from(c % 300) * MILLISECOND),
            Some(alone) => {
                let is_long = alone.waits_long && c >> 24 & 3 == 0;
                u64::from(c % if is_long { 12_000 } else { 400 }) * MILLISECOND
            }
            None => match c % 64 {
                0..32 => size % 1_000_000,
                32..52 => size % 20_000_000,
                52..62 => size * 60,
                _ => size * 5_000,
            },
        };
        self.shared.note(|| format!("{:?} pass", Duration::from_nanos(ns)));
        self.clock_ns += ns;
    }

    pub(crate) fn running(&mut self, slot: usize) -> Option<&mut RunningNode> {
        self.nodes.get_mut(slot)?.as_mut()
    }

    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = &RunningNode> {
        self.nodes.iter().flatten()
    }
}

impl Simulation {
    /// Ends a turn of a shard, and the shard if it has drained; returns whether it has more to do.
    pub(crate) fn turn(&mut self, slot: usize, shard: usize) -> bool {
        self.end_unpolled(shard);
        let is_frozen = self.is_frozen(slot);
        let it = self.shard(slot, shard).filter(|it| !it.has_ended && !is_frozen);
        let Some(it) = it else { return false };
        it.net.judge();
        it.net.flush();
        self.remove_connections(slot, shard);
        let mut nexts = [Next::Idle; 3];
        let shared = Arc::clone(&self.shared);
        self.step(slot, shard, Input::Tick, |core, net| {
            nexts[0] = core.tick(net);
            shared.ledger().sessions.has_more = nexts[0] == Next::Now;
        });
        self.step(slot, shard, Input::FanOut, |core, net| nexts[1] = core.fan_out(net));
        self.step(slot, shard, Input::Settle, |core, net| nexts[2] = core.settle(net));
        let now_ns = self.local_ns(slot);
        let Some(it) = self.shard(slot, shard) else { return false };
        it.net.flush();
        it.is_in_turn = false;
        let at_ns = |next| match next {
            Next::Now => now_ns,
            Next::After(span) => now_ns.saturating_add(span.as_nanos() as u64),
            Next::At(at_ns) => at_ns,
            Next::Idle => u64::MAX,
        };
        it.next_ns = nexts.map(at_ns).into_iter().min().unwrap_or(u64::MAX);
        let local_ns = it.net.clock.get();
        if let Some(running) = self.nodes[slot].as_ref().filter(|_| self.shared.plan.is_one_node())
        {
            self.clock_ns = self.clock_ns.max(running.clock_ns(local_ns));
        }
        self.remove_connections(slot, shard);
        let stops = self.shard(slot, shard).is_some_and(|it| it.net.stops && !it.has_ended);
        let ends = stops && !self.shared.plan.is_alone();
        if ends {
            self.end_shard(slot, shard);
        }
        nexts[1] == Next::Now && !ends
    }

    /// Ends a shard that has drained; with its last shard a node of several says bye.
    fn end_shard(&mut self, slot: usize, shard: usize) {
        self.shared.note(|| format!("shard {shard} of node {slot} ends"));
        let Some(it) = self.shard(slot, shard) else { return };
        let keys: Vec<Key> = it.net.peers().map(|peer| peer.key).collect();
        keys.into_iter().for_each(|key| self.end_connection(slot, shard, key));
        let seed = self.shared.plan.seed;
        let Some(running) = self.running(slot) else { return };
        let it = &mut running.shards[shard];
        it.core.retire();
        it.check_sightings(&running.node);
        it.has_ended = true;
        // What it had in transit is lost with it.
        let next = Shard::new(&running.node, shard, Arc::clone(&it.metrics), seed);
        (it.core, it.seen) = (next.core, next.seen);
        running.node.end(shard);
        let (start, has_ended) = (running.start, running.shards.iter().all(|it| it.has_ended));
        if self.shared.plan.is_one_node() {
            self.shared.ledger().sessions.is_partial = true;
        } else if has_ended && let Some(running) = self.running(slot) {
            running.node.mailbox.post(Command::Bye);
            self.shared.ledger().starts[start].says_bye = true;
        }
    }

    pub(crate) fn run_thread(&mut self, slot: usize) {
        let clock_ns = self.clock_ns;
        let Some(running) = self.running(slot).filter(|it| !it.is_frozen) else { return };
        let sockets = running.shards.iter().map(|it| it.metrics.sockets.value()).sum();
        let time = running.time(clock_ns);
        let has_ended = running.thread.turn(time, sockets);
        let published = mem::take(&mut running.thread.node.local.published);
        let gone = std::mem::take(&mut running.thread.gone);
        for (id, dropped) in published {
            let topic = self.shared.ledger().broadcasts[id as usize].topic as u8;
            let name = self.shared.plan.topics.name(topic);
            let hears =
                |start| self.network.is_settled(start) && self.network.is_heard(start, name);
            let others = self.running_nodes().filter(|it| it.slot != slot);
            for running in others.filter(|it| hears(it.start)) {
                let (start, first) = (running.start, running.node.first);
                let mut ledger = self.shared.ledger();
                // A channel that is a member before another node publishes gets it, too.
                let mut shards = ledger.members(start, topic);
                shards.extend(running.thread.shards(name).into_iter().map(|shard| first + shard));
                shards.iter().for_each(|it| ledger.expect_delivery(id, dropped, start, *it));
            }
        }
        gone.into_iter().for_each(|(node, why)| self.check_gone(slot, node, why));
        self.check_bounds(slot);
        if has_ended {
            self.end_node(slot);
        }
    }

    /// Runs everything that is due once, in an order of the seed.
    fn run_all(&mut self) {
        let count = self.nodes.len();
        let first = self.rng.usize(..count);
        for slot in (0..count).map(|it| (first + it) % count) {
            let clock_ns = self.clock_ns;
            let Some(running) = self.running(slot).filter(|it| !it.is_frozen) else {
                continue;
            };
            let (local_ns, shards) = (running.local_ns(clock_ns), running.shards.len());
            let is_machine_first = clock_ns.is_multiple_of(2);
            if is_machine_first && running.thread.is_due(local_ns) {
                self.run_thread(slot);
            }
            if let Some(running) = self.running(slot) {
                let waiting = running.node.state().deciding.len();
                (0..waiting).for_each(|_| _ = running.node.decide_next(0));
            }
            for shard in 0..shards {
                let mut has_run = false;
                while self.take_mail(slot, shard) {
                    has_run = true;
                }
                let is_due = |it: &Shard| it.next_ns <= local_ns;
                let server = self.running(slot).and_then(|it| it.shards.get(shard));
                if has_run || server.is_some_and(is_due) {
                    self.turn(slot, shard);
                }
            }
            if self.running(slot).is_some_and(|it| it.thread.is_due(local_ns)) {
                self.run_thread(slot);
            }
        }
        for client in 0..self.clients.len() {
            self.read(client, usize::MAX);
            while self.receive(client, usize::MAX) {}
        }
    }

    pub(crate) fn pass(&mut self, span_ns: u64) {
        let end_ns = self.clock_ns + span_ns;
        loop {
            self.run_all();
            self.check_links();
            if self.clock_ns >= end_ns || self.shared.has_failed() {
                return;
            }
            let next_ns = self.running_nodes().filter_map(RunningNode::next_ns).min();
            let next_ns = next_ns.into_iter().chain(self.network.next_at_ns()).min();
            let soon_ns = self.clock_ns + self.quantum_ns;
            self.clock_ns = next_ns.unwrap_or(end_ns).max(soon_ns).min(end_ns);
            self.shared.ledger().clock_ns = self.clock_ns;
            self.network.advance(self.clock_ns);
            self.read_log();
        }
    }
}
