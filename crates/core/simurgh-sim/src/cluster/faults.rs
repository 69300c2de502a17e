//! What goes wrong: links, the engine, nodes; and what nodes may make of it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use simurgh_cluster::{GoneReason, LinkState, NodeId};
use simurgh_core::{Mail, Node};
use simurgh_loopback::{Direction, RestartData};

use super::live::Live;
use super::machine::Ask;
use super::plan::{Op, SECOND, What};
use super::world::World;

/// The longest span between two beats, and some more.
const BEAT_NS: u64 = 2_500 * 1_000_000;
/// Over a new link nobody ages for so long.
const SETTLES_NS: u64 = 10 * SECOND;
/// How much longer than `presence_down` a node that is gone may be shown.
const LEAVES_NS: u64 = 3 * SECOND;

/// A node has ended: another must have noticed by then.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at_ns: u64,
    ended_ns: u64,
    by: usize,
    gone: usize,
}

/// How one start of a node can hear another.
#[derive(Debug, Default, Clone, Copy)]
struct Reach {
    since_ns: Option<u64>,
    certain_ns: u64,
}

/// What goes wrong at the moment.
#[derive(Debug)]
pub(crate) struct Faults {
    is_engine_frozen: bool,
    is_engine_dead: bool,
    /// Which part of the engine each slot is linked to.
    groups: Vec<usize>,
    /// Since when one start can hear another, and when it was last so for the span of a beat.
    reached: BTreeMap<(usize, usize), Reach>,
    deadlines: Vec<Deadline>,
    /// Something went wrong since all was mended.
    pub(crate) is_any: bool,
}

impl Faults {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            is_engine_frozen: false,
            is_engine_dead: false,
            groups: vec![0; slots],
            reached: BTreeMap::new(),
            deadlines: Vec::new(),
            is_any: true,
        }
    }
}

impl World {
    /// Something goes wrong, or is mended.
    pub(super) fn breaks(&mut self, op: Op, slot: usize) {
        self.faults.is_any = true;
        let link = self.live(slot).map(|it| it.link);
        match (op.what, link) {
            (What::Start, None) => self.starts(slot),
            (What::Partition | What::Heal, _) => self.parts(op),
            (What::FreezeEngine, _) => {
                self.network.freeze();
                self.faults.is_engine_frozen = !self.faults.is_engine_dead;
            }
            (What::ThawEngine, _) => self.thaws_engine(),
            (What::KillEngine, _) => {
                self.network.kill();
                (self.faults.is_engine_dead, self.faults.is_engine_frozen) = (true, false);
            }
            (What::RestartEngine, _) => {
                match self.shared.plan.kept {
                    Some(_) => self.remakes(op.c),
                    None if op.c & 1 == 0 => self.network.restart(RestartData::Stays),
                    None => self.network.restart(RestartData::Lost),
                }
                (self.faults.is_engine_dead, self.faults.is_engine_frozen) = (false, false);
            }
            (What::LoseLeader, _) => self.network.lose_leader(),
            (What::ElectLeader, _) => self.network.elect_leader(),
            (_, Some(link)) => self.breaks_node(op, slot, link),
            _ => {}
        }
    }

    fn breaks_node(&mut self, op: Op, slot: usize, link: usize) {
        match op.what {
            What::Reset => self.network.reset(link),
            What::Kill => return self.kills(slot),
            What::Drain => return self.drains(slot),
            _ => {}
        }
        let network = self.network.clone();
        let loss = self.shared.plan.network.loss_per_million;
        let Some(live) = self.live(slot) else { return };
        match op.what {
            What::Cut => {
                let direction = match op.c % 3 {
                    0 => Direction::Sending,
                    1 => Direction::Hearing,
                    _ => Direction::Both,
                };
                live.cannot_send |= direction != Direction::Hearing;
                live.cannot_hear |= direction != Direction::Sending;
                network.cut(link, direction);
            }
            What::Mend => {
                (live.cannot_send, live.cannot_hear) = (false, false);
                network.mend(link);
            }
            What::Lossy => {
                live.is_lossy = !live.is_lossy;
                network.lossy(link, if live.is_lossy { 300_000 } else { loss });
            }
            What::FreezeNode => live.is_frozen = true,
            What::ThawNode => live.is_frozen = false,
            What::ClockStep => {
                let skew_ms = live.node.shared.plan.skew_ms(u64::from(op.c));
                live.node.skew_ms.store(skew_ms, Relaxed);
            }
            _ => {}
        }
    }

    fn thaws_engine(&mut self) {
        if self.faults.is_engine_frozen {
            self.network.thaw();
            self.faults.is_engine_frozen = false;
        }
    }

    /// Parts the engine by slots, or makes it one.
    fn parts(&mut self, op: Op) {
        let is_parted = op.what == What::Partition;
        for (slot, group) in self.faults.groups.iter_mut().enumerate() {
            *group = usize::from(is_parted && op.c >> slot & 1 == 1);
        }
        let of = |wanted: usize| -> Vec<usize> {
            let groups = &self.faults.groups;
            let all = self.lives().filter(|it| groups.get(it.slot) == Some(&wanted));
            all.map(|it| it.link).collect()
        };
        let (first, second) = (of(0), of(1));
        self.network.partition(&[&first, &second]);
        let mut account = self.shared.account();
        account.partitions += 1;
        account.is_parted = is_parted;
    }

    fn starts(&mut self, slot: usize) {
        let live = Live::start(&self.shared, &self.network, slot, self.clock_ns);
        if let Some(place) = self.nodes.get_mut(slot) {
            *place = live;
        }
        let is_parted = self.shared.account().is_parted;
        if is_parted {
            // It is linked to the first part, like all that are of none.
            if let Some(group) = self.faults.groups.get_mut(slot) {
                *group = 0;
            }
        }
    }

    /// A node ends without a word.
    fn kills(&mut self, slot: usize) {
        self.shared.account().tally.count("killed", 1);
        let within_ns = self.shared.plan.down_ns + LEAVES_NS;
        self.expects(slot, within_ns);
        self.removes(slot);
    }

    /// A node has said its last.
    pub(super) fn ends_node(&mut self, slot: usize) {
        self.shared.account().tally.count("drained", 1);
        let within_ns = LEAVES_NS;
        let is_flushed = self.live(slot).is_some_and(|it| it.machine.node.is_flushed());
        // Of the others those are told that its last words reach.
        if is_flushed && self.live(slot).is_some_and(|it| it.is_linked()) {
            self.expects(slot, within_ns);
        }
        self.removes(slot);
    }

    /// All who are linked are to know that this node is gone after a while.
    fn expects(&mut self, slot: usize, within_ns: u64) {
        let Some(gone) = self.live(slot).map(|it| it.start) else { return };
        let at_ns = self.clock_ns + within_ns + self.shared.plan.slack_ns();
        let others: Vec<usize> =
            self.lives().filter(|it| it.slot != slot).map(|it| it.start).collect();
        let ended_ns = self.clock_ns;
        let all = others.into_iter().map(|by| Deadline { at_ns, ended_ns, by, gone });
        self.faults.deadlines.extend(all);
    }

    fn removes(&mut self, slot: usize) {
        let Some(live) = self.nodes.get_mut(slot).and_then(Option::take) else { return };
        self.note(|| format!("start {} of node {slot} has ended", live.start));
        for it in &mut self.clients {
            if it.line.as_ref().is_some_and(|it| it.start == live.start) {
                it.disconnected();
            }
        }
        self.listening.retain(|it| it.start != live.start);
        self.faults.reached.retain(|at, _| at.0 != live.start && at.1 != live.start);
        self.shared.account().ends(live.start);
        drop(live);
    }

    fn drains(&mut self, slot: usize) {
        let Some(live) = self.live(slot) else { return };
        if live.is_draining {
            return;
        }
        live.is_draining = true;
        live.node.door.post(Ask::Drain);
        for shard in 0..live.node.shards() {
            live.node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
    }

    /// Whether a start of a node hears everything that it should.
    fn is_whole(&self, live: &Live) -> bool {
        let plan = &self.shared.plan;
        let is_engine_there = !self.faults.is_engine_dead && !self.faults.is_engine_frozen;
        is_engine_there && plan.network.loss_per_million == 0 && live.is_linked()
    }

    /// Who can hear whom; and whether what was to be noticed by now is.
    pub(super) fn looks_at_links(&mut self) {
        let clock_ns = self.clock_ns;
        let is_parted = self.shared.account().is_parted;
        let whole: Vec<(usize, usize, bool)> =
            self.lives().map(|it| (it.slot, it.start, self.is_whole(it))).collect();
        for &(slot, start, is_whole) in &whole {
            if (!is_whole || is_parted)
                && let Some(live) = self.live(slot)
            {
                live.shaken_ns = clock_ns;
            }
            let group = self.faults.groups.get(slot).copied();
            let beat_ns = BEAT_NS + self.shared.plan.slack_ns();
            for other in whole.iter().filter(|it| it.1 != start) {
                let is_near = self.faults.groups.get(other.0).copied() == group;
                let reach = self.faults.reached.entry((start, other.1)).or_default();
                if !(is_near && is_whole && other.2) {
                    reach.since_ns = None;
                } else if clock_ns - *reach.since_ns.get_or_insert(clock_ns) >= beat_ns {
                    reach.certain_ns = clock_ns;
                }
            }
        }
        if self.faults.deadlines.iter().any(|it| it.at_ns <= clock_ns) {
            self.looks_at_deadlines();
        }
    }

    fn looks_at_deadlines(&mut self) {
        let now_ns = self.clock_ns;
        let (due, rest) = std::mem::take(&mut self.faults.deadlines)
            .into_iter()
            .partition(|it| it.at_ns <= now_ns);
        self.faults.deadlines = rest;
        let due: Vec<Deadline> = due;
        for Deadline { ended_ns, by, gone, .. } in due {
            let Some(live) = self.lives().find(|it| it.start == by) else { continue };
            if live.shaken_ns + SETTLES_NS + self.shared.plan.slack_ns() > ended_ns {
                continue;
            }
            let mut account = self.shared.account();
            let Some(id) = account.starts.get(gone).map(|it| it.id) else { continue };
            let is_peer = live.machine.node.peers().get(id).is_some();
            let shows = |it: &&super::client::Client| {
                let here = it.line.as_ref().is_some_and(|it| it.start == by);
                let views = it.channels.iter().flatten().map(|it| &it.view);
                here && views.clone().any(|view| {
                    view.has_state
                        && view.numbers.iter().any(|it| account.presences.is_of(*it, gone))
                })
            };
            let is_shown = self.clients.iter().find(shows).is_some();
            account.tally.count("noticed in time", 1);
            if is_peer || is_shown {
                let text = format!(
                    "start {gone} ended at {} ms; at {} ms it is a peer of start {by}: {is_peer}, \
                     and shown there: {is_shown}",
                    ended_ns / 1_000_000,
                    now_ns / 1_000_000
                );
                account.fail("gone", text);
            }
        }
    }

    /// For one node another is gone.
    pub(super) fn is_gone(&mut self, slot: usize, id: NodeId, why: GoneReason) {
        let Some(live) = self.live(slot) else { return };
        let (of, state) = (live.start, live.machine.node.state().0);
        let plan = &self.shared.plan;
        let mut account = self.shared.account();
        let Some(gone) = account.start_of(id) else { return };
        account.presences.goes(of, gone);
        account.tally.count("gone", 1);
        let is_alive = account.is_alive(gone);
        let says_bye = account.starts.get(gone).is_some_and(|it| it.says_bye);
        let reach = self.faults.reached.get(&(of, gone)).copied().unwrap_or_default();
        let unheard_ns = self.clock_ns - reach.certain_ns;
        let is_right = match why {
            GoneReason::Bye => says_bye,
            GoneReason::Replaced => !is_alive,
            // Nobody is gone while the own link is away.
            GoneReason::Silent if state == LinkState::Away => false,
            // It says nothing behind its good-bye, which may be lost.
            GoneReason::Silent if !is_alive || says_bye => true,
            GoneReason::Silent => unheard_ns + BEAT_NS + plan.slack_ns() >= plan.down_ns,
        };
        if !is_right {
            let unheard_ms = unheard_ns / 1_000_000;
            let text = format!("start {gone} is gone for {of}: {why:?}, after {unheard_ms} ms");
            account.fail("gone", text);
        }
    }

    /// Links are again as they usually are, which may be lossy.
    pub(super) fn loses_again(&mut self) {
        let loss = self.shared.plan.network.loss_per_million;
        self.lives().for_each(|it| self.network.lossy(it.link, loss));
    }

    /// Mends everything, and nothing is lost.
    pub(super) fn mends(&mut self) {
        self.thaws_engine();
        self.network.elect_leader();
        if self.faults.is_engine_dead {
            self.network.restart(RestartData::Stays);
            self.faults.is_engine_dead = false;
        }
        if self.shared.account().is_parted {
            self.parts(Op { what: What::Heal, a: 0, b: 0, c: 0 });
        }
        let network = self.network.clone();
        for live in self.nodes.iter_mut().flatten() {
            (live.cannot_send, live.cannot_hear) = (false, false);
            (live.is_lossy, live.is_frozen) = (false, false);
            network.mend(live.link);
            network.lossy(live.link, 0);
        }
    }
}
