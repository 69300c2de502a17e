//! Faults of links, the engine and nodes, and how nodes may react.

use super::*;
use crate::world::Op;
use crate::world::plan::Kind;

/// The longest span between two beats, and some more.
const BEAT_NS: u64 = 2_500 * 1_000_000;
/// Within this time after a link is new, no node times out.
pub(super) const SETTLES_NS: u64 = 10 * SECOND;
/// How much longer than `presence_down` a node that is gone may be shown.
const LEAVES_NS: u64 = 3 * SECOND;

/// A node has ended: another must have noticed by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at_ns: u64,
    ended_ns: u64,
    by: usize,
    gone: usize,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reach {
    since_ns: Option<u64>,
    certain_ns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(super) is_engine_frozen: bool,
    pub(super) is_engine_dead: bool,
    /// Which part of the engine each slot is linked to.
    pub(crate) groups: Vec<usize>,
    /// Since when one start can receive from another, and when it last could for a beat's span.
    pub(super) local: BTreeMap<(usize, usize), Reach>,
    pub(super) deadlines: Vec<Deadline>,
    /// A fault occurred since all were repaired.
    pub(crate) is_any: bool,
}

impl Simulation {
    pub(crate) fn break_something(&mut self, op: Op, slot: usize) {
        self.faults.is_any = true;
        let link = self.running(slot).map(|it| it.link);
        match (op.kind, link) {
            (Kind::Start, None) => self.start(slot),
            (Kind::Partition | Kind::Heal, _) => self.partition(op),
            (Kind::FreezeEngine, _) => {
                self.network.freeze();
                self.faults.is_engine_frozen = !self.faults.is_engine_dead;
            }
            (Kind::ThawEngine, _) => self.thaw_engine(),
            (Kind::KillEngine, _) => {
                self.network.kill();
                (self.faults.is_engine_dead, self.faults.is_engine_frozen) = (true, false);
            }
            (Kind::RestartEngine, _) => {
                match self.shared.plan.history {
                    Some(_) => self.restart_engine(op.c),
                    None if op.c & 1 == 0 => self.network.restart(RestartData::Stays),
                    None => self.network.restart(RestartData::Lost),
                }
                (self.faults.is_engine_dead, self.faults.is_engine_frozen) = (false, false);
            }
            (Kind::LoseLeader, _) => self.network.set_leader(false),
            (Kind::ElectLeader, _) => self.network.set_leader(true),
            (_, Some(link)) => self.break_node(op, slot, link),
            _ => {}
        }
    }

    fn break_node(&mut self, op: Op, slot: usize, link: usize) {
        match op.kind {
            Kind::Reset => self.network.reset(link),
            Kind::Kill => return self.kill(slot),
            Kind::Drain => return self.drain(slot),
            _ => {}
        }
        let network = self.network.clone();
        let loss = self.shared.plan.network.loss_per_million;
        let Some(running) = self.running(slot) else { return };
        match op.kind {
            Kind::Cut => {
                let direction = match op.c % 3 {
                    0 => Direction::Sending,
                    1 => Direction::Hearing,
                    _ => Direction::Both,
                };
                running.faults.cannot_send |= direction != Direction::Hearing;
                running.faults.cannot_hear |= direction != Direction::Sending;
                network.cut(link, direction);
            }
            Kind::Mend => {
                (running.faults.cannot_send, running.faults.cannot_hear) = (false, false);
                network.mend(link);
            }
            Kind::Lossy => {
                running.faults.is_lossy = !running.faults.is_lossy;
                network.lossy(link, if running.faults.is_lossy { 300_000 } else { loss });
            }
            Kind::FreezeNode => running.faults.is_frozen = true,
            Kind::ThawNode => running.faults.is_frozen = false,
            Kind::ClockStep => {
                let skew_ms = running.node.shared.plan.skew_ms(u64::from(op.c));
                running.node.skew_ms.store(skew_ms, Relaxed);
            }
            _ => {}
        }
    }

    fn thaw_engine(&mut self) {
        if self.faults.is_engine_frozen {
            self.network.thaw();
            self.faults.is_engine_frozen = false;
        }
    }

    fn partition(&mut self, op: Op) {
        let is_parted = op.kind == Kind::Partition;
        for (slot, group) in self.faults.groups.iter_mut().enumerate() {
            *group = usize::from(is_parted && op.c >> slot & 1 == 1);
        }
        let of = |wanted: usize| -> Vec<usize> {
            let groups = &self.faults.groups;
            let all = self.running_nodes().filter(|it| groups.get(it.slot) == Some(&wanted));
            all.map(|it| it.link).collect()
        };
        let (first, second) = (of(0), of(1));
        self.network.partition(&[&first, &second]);
        let mut ledger = self.shared.ledger();
        ledger.partitions += 1;
        ledger.is_parted = is_parted;
    }

    pub(super) fn start(&mut self, slot: usize) {
        let running = RunningNode::start(&self.shared, &self.network, slot, self.clock_ns);
        self.nodes[slot] = running;
        let is_parted = self.shared.ledger().is_parted;
        if is_parted {
            // It is linked to the first part, like all slots without a part.
            self.faults.groups[slot] = 0;
        }
    }

    fn kill(&mut self, slot: usize) {
        self.shared.ledger().counts.count("killed", 1);
        let within_ns = self.shared.plan.down_ns + LEAVES_NS;
        self.expect_gone(slot, within_ns);
        self.remove(slot);
    }

    pub(crate) fn end_node(&mut self, slot: usize) {
        self.shared.ledger().counts.count("drained", 1);
        let within_ns = LEAVES_NS;
        let is_flushed = self.running(slot).is_some_and(|it| it.thread.node.cluster.is_flushed());
        // Its bye reaches the nodes that are linked.
        if is_flushed && self.running(slot).is_some_and(|it| it.is_linked()) {
            self.expect_gone(slot, within_ns);
        }
        self.remove(slot);
    }

    /// All linked nodes must know after a while that this node is gone.
    fn expect_gone(&mut self, slot: usize, within_ns: u64) {
        let Some(gone) = self.running(slot).map(|it| it.start) else { return };
        let at_ns = self.clock_ns + within_ns + self.shared.plan.slack_ns();
        let others: Vec<usize> =
            self.running_nodes().filter(|it| it.slot != slot).map(|it| it.start).collect();
        let ended_ns = self.clock_ns;
        let all = others.into_iter().map(|by| Deadline { at_ns, ended_ns, by, gone });
        self.faults.deadlines.extend(all);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let Some(running) = self.nodes.get_mut(slot).and_then(Option::take) else { return };
        self.shared.note(|| format!("start {} of node {slot} has ended", running.start));
        let mut ledger = self.shared.ledger();
        ledger.hash ^= running.hash();
        for (client, it) in (0..).zip(&mut self.clients) {
            if it.take_if(|it| it.start == running.start).is_some() {
                ledger.disconnected(client);
            }
        }
        drop(ledger);
        self.faults.local.retain(|at, _| at.0 != running.start && at.1 != running.start);
        self.shared.ledger().node_ended(running.start);
        drop(running);
    }

    fn drain(&mut self, slot: usize) {
        let Some(running) = self.running(slot) else { return };
        if running.is_draining {
            return;
        }
        running.is_draining = true;
        running.mailbox.post(Command::Drain);
        for shard in 0..running.node.shards() {
            running.node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
    }

    /// Whether a start of a node receives everything that it should.
    fn is_whole(&self, running: &RunningNode) -> bool {
        let plan = &self.shared.plan;
        let is_engine_there = !self.faults.is_engine_dead && !self.faults.is_engine_frozen;
        is_engine_there && plan.network.loss_per_million == 0 && running.is_linked()
    }

    /// Updates which start receives from which, and checks what had to be noticed by now.
    pub(crate) fn check_links(&mut self) {
        let clock_ns = self.clock_ns;
        let is_parted = self.shared.ledger().is_parted;
        let whole: Vec<(usize, usize, bool)> =
            self.running_nodes().map(|it| (it.slot, it.start, self.is_whole(it))).collect();
        for &(slot, start, is_whole) in &whole {
            if (!is_whole || is_parted)
                && let Some(running) = self.running(slot)
            {
                running.unlinked_ns = clock_ns;
            }
            let group = self.faults.groups.get(slot).copied();
            let beat_ns = BEAT_NS + self.shared.plan.slack_ns();
            for other in whole.iter().filter(|it| it.1 != start) {
                let is_near = self.faults.groups.get(other.0).copied() == group;
                let reach = self.faults.local.entry((start, other.1)).or_default();
                if !(is_near && is_whole && other.2) {
                    reach.since_ns = None;
                } else if clock_ns - *reach.since_ns.get_or_insert(clock_ns) >= beat_ns {
                    reach.certain_ns = clock_ns;
                }
            }
        }
        if self.faults.deadlines.iter().any(|it| it.at_ns <= clock_ns) {
            self.check_deadlines();
        }
    }

    fn check_deadlines(&mut self) {
        let now_ns = self.clock_ns;
        let (due, rest) = std::mem::take(&mut self.faults.deadlines)
            .into_iter()
            .partition(|it| it.at_ns <= now_ns);
        self.faults.deadlines = rest;
        let due: Vec<Deadline> = due;
        for Deadline { ended_ns, by, gone, .. } in due {
            let Some(running) = self.running_nodes().find(|it| it.start == by) else { continue };
            if running.unlinked_ns + SETTLES_NS + self.shared.plan.slack_ns() > ended_ns {
                continue;
            }
            let mut ledger = self.shared.ledger();
            let Some(id) = ledger.starts.get(gone).map(|it| it.id) else { continue };
            let is_peer = running.thread.node.cluster.peers().get(id).is_some();
            let sessions = &ledger.sessions;
            let is_shown = sessions.views().any(|(_, chan)| {
                let is_here = sessions.start_of(sessions.shard_of(chan.conn)) == by;
                let mut numbers = chan.view.numbers.iter();
                let shows = numbers.any(|it| ledger.presences.is_of(*it, gone));
                is_here && chan.view.has_state && shows
            });
            ledger.counts.count("noticed in time", 1);
            if is_peer || is_shown {
                let text = format!(
                    "start {gone} ended at {} ms; at {} ms it is a peer of start {by}: {is_peer}, \
                     and shown there: {is_shown}",
                    ended_ns / 1_000_000,
                    now_ns / 1_000_000
                );
                ledger.fail("gone", text);
            }
        }
    }

    pub(crate) fn check_gone(&mut self, slot: usize, id: NodeId, why: GoneReason) {
        let Some(running) = self.running(slot) else { return };
        let (of, state) = (running.start, running.thread.node.cluster.state().0);
        let plan = &self.shared.plan;
        let mut ledger = self.shared.ledger();
        let Some(gone) = ledger.start_of(id) else { return };
        ledger.gone.insert((of, gone));
        ledger.counts.count("gone", 1);
        let is_alive = ledger.is_alive(gone);
        let says_bye = ledger.starts.get(gone).is_some_and(|it| it.says_bye);
        let reach = self.faults.local.get(&(of, gone)).copied().unwrap_or_default();
        let unheard_ns = self.clock_ns - reach.certain_ns;
        let is_right = match why {
            GoneReason::Bye => says_bye,
            GoneReason::Replaced => !is_alive,
            // No node is gone for one whose own link is down.
            GoneReason::Silent if state == LinkState::Away => false,
            // A node sends nothing after its bye, which may be lost.
            GoneReason::Silent if !is_alive || says_bye => true,
            GoneReason::Silent => unheard_ns + BEAT_NS + plan.slack_ns() >= plan.down_ns,
        };
        if !is_right {
            let unheard_ms = unheard_ns / 1_000_000;
            let text = format!("start {gone} is gone for {of}: {why:?}, after {unheard_ms} ms");
            ledger.fail("gone", text);
        }
    }

    pub(crate) fn restore_loss(&mut self) {
        let loss = self.shared.plan.network.loss_per_million;
        self.running_nodes().for_each(|it| self.network.lossy(it.link, loss));
    }

    /// Repairs everything; nothing is lost from now on.
    pub(crate) fn mend(&mut self) {
        self.thaw_engine();
        self.network.set_leader(true);
        if self.faults.is_engine_dead {
            self.network.restart(RestartData::Stays);
            self.faults.is_engine_dead = false;
        }
        if self.shared.ledger().is_parted {
            self.partition(Op { kind: Kind::Heal, a: 0, b: 0, c: 0 });
        }
        let network = self.network.clone();
        for running in self.nodes.iter_mut().flatten() {
            running.faults = NodeFaults::default();
            network.mend(running.link);
            network.lossy(running.link, 0);
        }
    }
}
