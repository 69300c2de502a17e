//! The simulation: nodes, clients and the network between them, and the operations.

mod checks;
mod clients;
mod faults;
mod histories;
mod operations;
mod quiet;
mod readings;
mod rest;
mod steps;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::kit::client::Connection;
use crate::kit::delivery::RequestKind;
use crate::kit::findings::Findings;
use crate::world::Op;
use fastrand::Rng;
use simurgh_loopback::Network;

use self::faults::Faults;
use self::readings::Reading;
pub(crate) use self::steps::Shard;
use crate::world::Shared;
use crate::world::plan::{Kind, MILLISECOND, Plan, SECOND};
use crate::world::running::RunningNode;

pub(crate) struct Simulation {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Option<RunningNode>>,
    pub(crate) clients: Vec<Option<Connection>>,
    pub(crate) clock_ns: u64,
    pub(crate) quantum_ns: u64,
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
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
            clients: (0..plan.clients).map(|_| None).collect(),
            shared,
            network,
            clock_ns: 0,
            quantum_ns: plan.quantum_ns,
            faults: Faults { groups: vec![0; count], is_any: true, ..Faults::default() },
            rng: Rng::with_seed(plan.seed ^ 0x52_55_4e),
            readings: VecDeque::new(),
            tickets: 0,
        };
        if plan.is_one_node() {
            simulation.clock_ns = SECOND;
        }
        match plan.alone {
            Some(_) => simulation.listen_everywhere(),
            None => simulation.read_log(),
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
            Kind::Close => self.send_close(client, c.is_multiple_of(2).then_some(1000)),
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
            Kind::Restart => self.restart(c),
            Kind::Reading => _ = self.was_read(usize::from(a)),
            Kind::Listen if b % 7 < 4 => self.begin_listening(slot, topic, c),
            Kind::Listen => self.unlisten_some(c),
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
        let ns = match &plan.alone {
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

    pub(crate) fn findings<T>(&self, with: impl FnOnce(&mut Findings) -> T) -> T {
        with(&mut self.shared.ledger())
    }

    pub(crate) fn running(&mut self, slot: usize) -> Option<&mut RunningNode> {
        self.nodes.get_mut(slot)?.as_mut()
    }

    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = &RunningNode> {
        self.nodes.iter().flatten()
    }
}
