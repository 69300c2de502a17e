//! Faults of links, the engine and nodes, and how nodes may react.

use super::*;

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

impl Simulation {
    pub(crate) fn break_something(&mut self, op: Op, slot: usize) {
        self.is_broken = true;
        let network = self.network.clone();
        match op.kind {
            Kind::Partition => self.partition(Some(op.c)),
            Kind::Heal => self.partition(None),
            Kind::FreezeEngine => network.set_frozen(true),
            Kind::ThawEngine if network.is_alive() => network.set_frozen(false),
            Kind::KillEngine => network.kill(),
            Kind::RestartEngine => {
                let data = match (self.shared.plan.history.is_some(), op.c & 3) {
                    (true, 3) => RestartData::Older(u64::from(op.c >> 8) % 10_000 * MILLISECOND),
                    (true, 2) | (false, 1 | 3) => RestartData::Lost,
                    _ => RestartData::Stays,
                };
                self.shared.note(|| format!("the engine starts again: {data:?}"));
                network.restart(data);
                self.read_log();
            }
            Kind::LoseLeader => network.set_leader(false),
            Kind::ElectLeader => network.set_leader(true),
            Kind::Start if self.nodes[slot].is_none() => self.start(slot),
            Kind::Kill if self.nodes[slot].is_some() => self.kill(slot),
            Kind::Drain => self.drain(slot),
            _ => self.break_link(op, slot),
        }
    }

    fn break_link(&mut self, op: Op, slot: usize) {
        let (network, plan) = (self.network.clone(), Arc::clone(&self.shared.plan));
        let Some(running) = self.running(slot) else { return };
        let link = running.start;
        match op.kind {
            Kind::Reset => network.reset(link),
            Kind::Cut => {
                let direction =
                    [Direction::Sending, Direction::Hearing, Direction::Both][op.c as usize % 3];
                network.cut(link, direction);
            }
            Kind::Mend => network.mend(link),
            Kind::Lossy => {
                let (_, is_lossy) = network.link_faults(link);
                let loss = plan.network.loss_per_million;
                network.lossy(link, if is_lossy { loss } else { 300_000 });
            }
            Kind::FreezeNode => running.is_frozen = true,
            Kind::ThawNode => running.is_frozen = false,
            Kind::ClockStep => {
                running.node.skew_ms.store(plan.skew_ms(u64::from(op.c)), Relaxed);
            }
            _ => {}
        }
    }

    /// Parts the engine: the bits are those of the slots in its second part. Without, it is whole.
    fn partition(&mut self, bits: Option<u32>) {
        let is_second = |slot: usize| bits.is_some_and(|bits| bits >> slot & 1 == 1);
        let second = self.running_nodes().filter(|running| is_second(running.slot));
        let second: Vec<usize> = second.map(|running| running.start).collect();
        // Nodes that start later are linked to the first part.
        self.network.partition(&[&[], &second]);
        let mut ledger = self.shared.ledger();
        ledger.partitions += 1;
        ledger.is_parted = bits.is_some();
    }

    pub(super) fn start(&mut self, slot: usize) {
        self.nodes[slot] = RunningNode::start(&self.shared, &self.network, slot, self.clock_ns);
    }

    fn kill(&mut self, slot: usize) {
        self.shared.ledger().count("killed", 1);
        self.expect_gone(slot, self.shared.plan.down_ns + LEAVES_NS);
        self.remove(slot);
    }

    pub(crate) fn end_node(&mut self, slot: usize) {
        self.shared.ledger().count("drained", 1);
        let says_bye =
            |it: &RunningNode| it.thread.node.cluster.is_flushed() && it.is_linked(&self.network);
        // Its bye reaches the nodes that are linked.
        if self.nodes[slot].as_ref().is_some_and(says_bye) {
            self.expect_gone(slot, LEAVES_NS);
        }
        self.remove(slot);
    }

    /// All linked nodes must know after a while that this node is gone.
    fn expect_gone(&mut self, slot: usize, within_ns: u64) {
        let Some(gone) = self.running(slot).map(|it| it.start) else { return };
        let ended_ns = self.clock_ns;
        let at_ns = ended_ns + within_ns + self.shared.plan.slack_ns();
        let others = self.nodes.iter().flatten().filter(|it| it.start != gone);
        let all = others.map(|it| Deadline { at_ns, ended_ns, by: it.start, gone });
        self.deadlines.extend(all);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let Some(running) = self.nodes.get_mut(slot).and_then(Option::take) else { return };
        self.shared.note(|| format!("start {} of node {slot} has ended", running.start));
        let mut ledger = self.shared.ledger();
        ledger.findings.hash ^= running.hash();
        for (client, it) in (0..).zip(&mut self.clients) {
            if it.take_if(|it| it.slot == slot).is_some() {
                ledger.disconnected(client);
            }
        }
        ledger.node_ended(running.start);
        drop(ledger);
        self.reaches.retain(|at, _| at.0 != running.start && at.1 != running.start);
    }

    fn drain(&mut self, slot: usize) {
        let Some(running) = self.running(slot) else { return };
        if running.is_draining {
            return;
        }
        running.is_draining = true;
        running.node.mailbox.post(Command::Drain);
        for shard in 0..running.node.shards() {
            running.node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
    }

    /// Updates which start receives from which, and checks what had to be noticed by now.
    pub(crate) fn check_links(&mut self) {
        let clock_ns = self.clock_ns;
        let is_parted = self.shared.ledger().is_parted;
        let is_engine_there = self.network.is_alive() && !self.network.is_frozen();
        let loses_none = self.shared.plan.network.loss_per_million == 0;
        // Which starts receive everything that they should.
        let is_whole =
            |it: &RunningNode| is_engine_there && loses_none && it.is_linked(&self.network);
        let group = |it: &RunningNode| self.network.group(it.start);
        let all = self.running_nodes().map(|it| (it.slot, it.start, group(it), is_whole(it)));
        let whole: Vec<(usize, usize, usize, bool)> = all.collect();
        for &(slot, start, group, is_whole) in &whole {
            if (!is_whole || is_parted)
                && let Some(running) = self.running(slot)
            {
                running.unlinked_ns = clock_ns;
            }
            let beat_ns = BEAT_NS + self.shared.plan.slack_ns();
            for other in whole.iter().filter(|it| it.1 != start) {
                let is_near = other.2 == group;
                let reach = self.reaches.entry((start, other.1)).or_default();
                if !(is_near && is_whole && other.3) {
                    reach.since_ns = None;
                } else if clock_ns - *reach.since_ns.get_or_insert(clock_ns) >= beat_ns {
                    reach.certain_ns = clock_ns;
                }
            }
        }
        self.check_deadlines();
    }

    fn check_deadlines(&mut self) {
        let now_ns = self.clock_ns;
        let deadlines = &mut self.deadlines;
        let due: Vec<Deadline> = deadlines.extract_if(.., |it| it.at_ns <= now_ns).collect();
        for Deadline { ended_ns, by, gone, .. } in due {
            let Some(running) = self.running_nodes().find(|it| it.start == by) else { continue };
            if running.unlinked_ns + SETTLES_NS + self.shared.plan.slack_ns() > ended_ns {
                continue;
            }
            let ledger = self.shared.ledger();
            let Some(id) = ledger.starts.get(gone).map(|it| it.id) else { continue };
            let is_peer = running.thread.node.cluster.peers().get(id).is_some();
            let sessions = &ledger.sessions;
            let is_shown = sessions.views().any(|(_, chan)| {
                let is_here = sessions.start_of(sessions.shard_of(chan.conn)) == by;
                let mut numbers = chan.view.numbers.iter();
                let shows = numbers.any(|it| ledger.presences.entries[*it as usize].node == gone);
                is_here && chan.view.has_state && shows
            });
            ledger.count("noticed in time", 1);
            if is_peer || is_shown {
                let ms = (now_ns - ended_ns) / 1_000_000;
                let text =
                    format!("start {gone} is a peer of {by} {ms} ms after its end: {is_peer}");
                ledger.fail("gone", format!("{text}; shown there: {is_shown}"));
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
        ledger.count("gone", 1);
        let is_alive = ledger.is_alive(gone);
        let says_bye = ledger.starts.get(gone).is_some_and(|it| it.says_bye);
        let reach = self.reaches.get(&(of, gone)).copied().unwrap_or_default();
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

    /// Repairs everything; nothing is lost from now on.
    pub(crate) fn mend(&mut self) {
        self.network.set_leader(true);
        self.network.set_frozen(false);
        if !self.network.is_alive() {
            self.network.restart(RestartData::Stays);
        }
        if self.shared.ledger().is_parted {
            self.partition(None);
        }
        let network = self.network.clone();
        for running in self.nodes.iter_mut().flatten() {
            running.is_frozen = false;
            network.mend(running.start);
            network.lossy(running.start, 0);
        }
    }
}
