//! The other nodes, and the leases that their heartbeats renew.
//!
//! A node is *alive* while its beats are received, *silent* after [`PeersConfig::silent_ns`]
//! without one, and *gone* after [`PeersConfig::gone_ns`], or earlier if it sent a bye or was
//! started again under its name. Each node uses its own monotonic clock: the times in beats are
//! shown, never compared.
//!
//! # Aging
//!
//! Without a link this node receives no beats, and over a new link others need time. So nodes age
//! by a clock that stops while there is no link, in the first [`PeersConfig::link_settles_ns`] of
//! each link, and while this process did not run: a gap of more than 2.5 beats between calls counts
//! as a new link.
//!
//! # Late envelopes, and nodes that return
//!
//! Envelopes of one publisher arrive in order, and one may arrive twice after a reconnect. So an
//! envelope of a node that is gone is either late or a sign that it lives. It depends on why it is
//! gone:
//!
//! - It *sent a bye*: that is the last message of a started node, and its id is never used again.
//!   Its envelopes are late: it stays gone. It is remembered for ten minutes, up to 1,024 nodes,
//!   which is longer than anything is in flight.
//! - It was *silent*: it is a peer again at once, as one that has joined; its presences must be
//!   requested again. If the beat was late after all, a node that does not answer is shown for half
//!   a minute, and nothing else is wrong.
//! - It was *replaced*: since its successor has its name, and a late beat would look like two
//!   living nodes with one name, two beats of it must be received, at least half a beat apart. Late
//!   beats arrive in one burst.
//!
//! # Names
//!
//! A new id under the name of a peer means that the peer was started again, or that two nodes have
//! one name. It was started again if no beat of it is received for [`PeersConfig::replaced_ns`]
//! from then on. If a beat is received after half of that, and more than one of its successor, then
//! both live: [`PeerEvent::NameConflict`] is reported, and neither of the two replaces the other
//! any more. A late beat of a start that has ended is a single beat, so it makes no conflict. Nor
//! does a draining node, which is about to end.

mod aging_clock;
mod departed;
mod names;
mod peer;
/// The name among settings that says that a node has notices, and which.
pub const NOTICES: &str = "[[hook]] notices";

fn sorted(mut settings: Vec<(Box<str>, u64)>) -> Vec<(Box<str>, u64)> {
    settings.sort_unstable();
    settings.dedup_by(|a, b| a.0 == b.0);
    settings
}

#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;

pub use self::peer::Peer;

use self::aging_clock::AgingClock;
use self::departed::Departures;
use self::peer::Age;
use crate::beat::{Beat, Hello};
use crate::durations::Durations;
use crate::node_id::NodeId;
use crate::split_mix::SplitMix64;
use crate::time::{MILLISECOND, SECOND};
use simurgh_data::prelude::*;

/// The longest name and version of a node, in bytes; a beat with a longer one is invalid.
const NAME_BYTES_MAX: usize = 255;
/// A hello is answered by a beat within this time: 200 ms, less the time of transmission.
const ANSWER_NS: u64 = 180 * MILLISECOND;
/// The least time between own beats, however many hellos are received.
const APART_NS: u64 = 100 * MILLISECOND;
/// How far own beats are spread, in percent each way.
const JITTER: u64 = 20;

/// Times in nanoseconds, and what this node reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersConfig {
    /// The time between own beats, ± 20 %.
    pub beat_ns: u64,
    /// A node without a beat for so long is silent,
    pub silent_ns: u64,
    /// and gone after this (`presence.down`).
    pub gone_ns: u64,
    /// A node without a beat for so long is gone if another node has its name.
    pub replaced_ns: u64,
    /// How long no node ages over a new link.
    pub link_settles_ns: u64,
    /// The most nodes; beats of others are counted and dropped.
    pub peers_max: usize,
    /// The oldest and the newest version of envelopes that this node understands.
    pub envelopes: (u8, u8),
    /// Each pattern of topics of this node, with a hash of those of its settings that must be the
    /// same on all nodes.
    pub settings: Vec<(Box<str>, u64)>,
}

impl PeersConfig {
    /// Whether at least one beat is missing after so long without one.
    fn is_missing(&self, span_ns: u64) -> bool {
        span_ns > self.beat_ns.saturating_mul(5) / 2
    }
}

impl Default for PeersConfig {
    /// 2 s; 10 s; 30 s; 5 s; 10 s; 4,096 nodes; envelopes of version 1; no settings.
    fn default() -> Self {
        Self {
            beat_ns: 2 * SECOND,
            silent_ns: 10 * SECOND,
            gone_ns: 30 * SECOND,
            replaced_ns: 5 * SECOND,
            link_settles_ns: 10 * SECOND,
            peers_max: 4096,
            envelopes: (1, 1),
            settings: Vec::new(),
        }
    }
}

/// Why a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// No beat was received: it has ended, or cannot be reached and still serves its clients.
    Silent,
    /// It sent a bye.
    Bye,
    /// No beat was received, and another node was started under its name: it has ended.
    Replaced,
}

/// An event of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A node is there: its presences must be requested, even if it was there before.
    Joined(NodeId),
    /// No beat was received for a while.
    Silent(NodeId),
    /// A beat of a silent node was received.
    Back(NodeId),
    /// A beat was received, and at least one before it was not: other messages may be lost, too.
    Missed(NodeId),
    /// It is not a peer any more.
    Gone(NodeId, GoneReason),
    /// Two living nodes have one name; reported once while both are there.
    NameConflict {
        /// The name.
        name: Box<str>,
        /// The nodes; one of them may be this node.
        nodes: [NodeId; 2],
    },
    /// A node has other settings for a pattern than this one; reported once until they are the
    /// same.
    SettingsDiffer {
        /// The node.
        node: NodeId,
        /// The pattern of this node.
        pattern: Box<str>,
    },
    /// This node and that one have no version of envelopes in common.
    Incompatible(NodeId),
    /// The version of envelopes from now on: the newest that all compatible nodes understand.
    /// `None` if two of them have none in common.
    EnvelopeVersion(Option<u8>),
}

/// Numbers of nodes, without this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Nodes that are alive.
    pub alive: usize,
    /// Nodes that are silent.
    pub silent: usize,
    /// Of both, those that are about to end.
    pub draining: usize,
    /// Of both, those that have no version of envelopes in common with this node.
    pub incompatible: usize,
    /// Of both, those that share their name with another living node.
    pub name_conflicts: usize,
    /// Beats of nodes for which there was no room.
    pub refused: u64,
    /// Beats that cannot be right: the oldest version is above the newest, or a name or version has
    /// over 255 bytes.
    pub invalid: u64,
    /// Beats of nodes that are gone, which were taken for late ones.
    pub late: u64,
}

/// The other nodes of a cluster, as one of them sees them.
#[derive(Debug)]
pub struct Peers {
    me: NodeId,
    name: Box<str>,
    config: PeersConfig,
    chance: SplitMix64,
    peers: BTreeMap<NodeId, Peer>,
    departed: Departures,
    events: VecDeque<PeerEvent>,
    clock: AgingClock,
    ran_ns: Option<u64>,
    /// When a node may become silent or gone at the earliest.
    check_ns: Option<u64>,
    beat_ns: u64,
    beaten_ns: Option<u64>,
    version: Option<u8>,
    delays: Durations,
    refused: u64,
    invalid: u64,
    late: u64,
}

impl Peers {
    /// For a node that knows no other and has no link.
    pub fn new(me: NodeId, name: &str, mut config: PeersConfig, seed: u64) -> Self {
        config.settings = sorted(config.settings);
        let (oldest, newest) = config.envelopes;
        Self {
            me,
            name: name.into(),
            clock: AgingClock::new(config.link_settles_ns),
            config,
            chance: SplitMix64::new(seed),
            peers: BTreeMap::new(),
            departed: Departures::default(),
            events: VecDeque::new(),
            ran_ns: None,
            check_ns: None,
            beat_ns: 0,
            beaten_ns: None,
            version: (oldest <= newest).then_some(newest),
            delays: Durations::default(),
            refused: 0,
            invalid: 0,
            late: 0,
        }
    }

    /// This node has other settings. Those of others are compared at their next hello.
    pub fn set_settings(&mut self, settings: Vec<(Box<str>, u64)>) {
        self.config.settings = sorted(settings);
        self.peers.values_mut().for_each(|peer| peer.differing.clear());
    }

    /// A beat of a node was received. `unix_ms` is this node's own clock, to estimate theirs.
    pub fn heard(&mut self, beat: &Beat, now_ns: u64, unix_ms: u64) {
        self.run(now_ns);
        self.receive(beat, false, now_ns, unix_ms);
    }

    /// A hello of a node was received: it has a new link. An own beat is due within 200 ms.
    ///
    /// Returns whether its settings differ in a way that was not reported before, or whether it has
    /// notices, as this node has, and had none before. An own hello is due then: only a hello
    /// carries settings, and the other node may not have received one.
    pub fn hello(&mut self, hello: &Hello, now_ns: u64, unix_ms: u64) -> bool {
        self.run(now_ns);
        if hello.beat.id == self.me {
            return false;
        }
        let is_peer = self.receive(&hello.beat, true, now_ns, unix_ms);
        let differs = is_peer && self.compare(hello);
        let earliest_ns = self.beaten_ns.map_or(0, |it| it.saturating_add(APART_NS));
        let answer_ns = now_ns.saturating_add(self.chance.within(&(0..=ANSWER_NS - 1)));
        self.beat_ns = self.beat_ns.min(answer_ns.max(earliest_ns));
        differs
    }

    /// A node sent a bye: its sockets are closed, and it sends no more beats.
    pub fn bye(&mut self, id: NodeId, now_ns: u64) {
        self.run(now_ns);
        if id == self.me {
            return;
        }
        if self.peers.contains_key(&id) {
            self.remove(id, GoneReason::Bye, now_ns);
            self.choose_version();
        } else {
            self.departed.push(id, "".into(), GoneReason::Bye, now_ns);
        }
    }

    /// There is a new link to the broker. Over each link a hello is the first message, and counts
    /// as a beat.
    pub fn link_up(&mut self, now_ns: u64) {
        self.run(now_ns);
        self.clock.up(now_ns);
        self.beat(now_ns);
        self.schedule();
    }

    /// There is no link any more: no beat is due, and nodes do not age.
    pub fn link_down(&mut self, now_ns: u64) {
        self.run(now_ns);
        self.clock.down(now_ns);
        self.schedule();
    }

    /// Whether an own beat is due; the next one is scheduled then.
    pub fn beat_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.clock.is_up() && self.beat_ns <= now_ns;
        if is_due {
            self.beat(now_ns);
        }
        is_due
    }

    /// Whether [`tick`](Self::tick) may find a node silent or gone now.
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        self.run(now_ns);
        self.check_ns.is_some_and(|it| it <= now_ns) && self.clock.is_running(now_ns)
    }

    /// The link delivered nothing from then until now, so no beat is missing.
    pub fn note_link_pause(&mut self, since_ns: u64, now_ns: u64) {
        self.run(now_ns);
        self.clock.skip(since_ns, now_ns);
        self.schedule();
    }

    /// Makes nodes silent or gone. Call it at least once in each beat.
    pub fn tick(&mut self, now_ns: u64) {
        self.run(now_ns);
        self.departed.forget(now_ns);
        if !self.is_due(now_ns) {
            return;
        }
        let aged_ns = self.clock.shows_ns(now_ns);
        let mut gone = Vec::new();
        for peer in self.peers.values_mut() {
            match peer.age(&self.config, aged_ns) {
                Age::Alive => {}
                Age::Silent if peer.is_silent => {}
                Age::Silent => {
                    peer.is_silent = true;
                    self.events.push_back(PeerEvent::Silent(peer.id()));
                }
                Age::Gone => gone.push((peer.id(), GoneReason::Silent)),
                Age::Replaced => gone.push((peer.id(), GoneReason::Replaced)),
            }
        }
        let is_any_gone = !gone.is_empty();
        gone.into_iter().for_each(|(id, why)| self.remove(id, why, now_ns));
        if is_any_gone {
            self.choose_version();
        }
        self.schedule();
    }

    /// When [`tick`](Self::tick) or [`beat_due`](Self::beat_due) has something to do next; never
    /// without a link.
    pub fn next_ns(&self) -> Option<u64> {
        self.clock.is_up().then(|| self.check_ns.map_or(self.beat_ns, |it| it.min(self.beat_ns)))
    }

    /// When [`beat_due`](Self::beat_due) has something to do next; never without a link.
    pub fn next_beat_ns(&self) -> Option<u64> {
        self.clock.is_up().then_some(self.beat_ns)
    }

    /// The next event. Poll after each call until there is none: one call makes at most a few for
    /// each peer.
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// The nodes to request states from: neither silent nor incompatible.
    pub fn live(&self) -> impl Iterator<Item = NodeId> {
        self.iter().filter(|it| !it.is_silent && !it.is_incompatible).map(Peer::id)
    }

    /// All nodes that are not gone, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// A node that is not gone.
    pub fn get(&self, id: NodeId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    /// Nodes that became gone by silence in the last ten minutes and were not started again under
    /// their names. Each has ended, or is cut off and still serves its clients.
    pub fn unaccounted(&self) -> impl Iterator<Item = NodeId> {
        self.departed.unaccounted()
    }

    /// The name of a node, known for some minutes after it was gone.
    pub fn name(&self, id: NodeId) -> Option<&str> {
        let there = self.peers.get(&id).map(|it| &*it.beat.name);
        there.or_else(|| self.departed.name(id))
    }

    /// This node's patterns of topics for which another has other settings.
    pub fn differing(&self, id: NodeId) -> impl Iterator<Item = &str> {
        let places = self.peers.get(&id).map_or(&[][..], |it| &it.differing);
        places.iter().filter_map(|at| Some(&*self.config.settings.get(*at as usize)?.0))
    }

    /// The delays of all nodes' beats, as [`Peer::delay`] estimates them.
    pub const fn delays(&self) -> &Durations {
        &self.delays
    }

    /// The numbers of nodes.
    pub fn counts(&self) -> PeerCounts {
        let count = |is: fn(&&Peer) -> bool| self.peers.values().filter(is).count();
        let silent = count(|it| it.is_silent);
        PeerCounts {
            alive: self.peers.len() - silent,
            silent,
            draining: count(|it| it.beat.is_draining),
            incompatible: count(|it| it.is_incompatible),
            name_conflicts: count(|it| it.has_namesake),
            refused: self.refused,
            invalid: self.invalid,
            late: self.late,
        }
    }

    /// Keeps nodes from aging while this process did not run.
    fn run(&mut self, now_ns: u64) {
        let ran_ns = self.ran_ns.replace(now_ns).unwrap_or(now_ns);
        if self.config.is_missing(now_ns.saturating_sub(ran_ns)) {
            self.clock.skip(ran_ns, now_ns);
            self.schedule();
        }
    }

    fn beat(&mut self, now_ns: u64) {
        self.beaten_ns = Some(now_ns);
        let beat_ns = self.chance.around(self.config.beat_ns, JITTER);
        self.beat_ns = now_ns.saturating_add(beat_ns);
    }

    /// Handles a beat. Returns whether its node is a peer.
    fn receive(&mut self, beat: &Beat, is_hello: bool, now_ns: u64, unix_ms: u64) -> bool {
        if beat.id == self.me {
            return false;
        }
        let (oldest, newest) = beat.envelopes;
        if oldest > newest || beat.name.len().max(beat.version.len()) > NAME_BYTES_MAX {
            self.invalid += 1;
            return false;
        }
        let aged_ns = self.clock.shows_ns(now_ns);
        let is_new = !self.peers.contains_key(&beat.id);
        if is_new && !self.may_join(beat.id, now_ns) {
            return false;
        }
        let new = || Peer::new(beat, now_ns, aged_ns);
        let peer = self.peers.entry(beat.id).or_insert_with(new);
        let is_back = peer.is_silent;
        if is_back {
            self.events.push_back(PeerEvent::Back(beat.id));
        } else if self.config.is_missing(aged_ns.saturating_sub(peer.heard_aged_ns)) {
            self.events.push_back(PeerEvent::Missed(beat.id));
        }
        let is_another_range = is_new || peer.beat.envelopes != beat.envelopes;
        peer.note_beat(beat, now_ns, aged_ns, unix_ms);
        if let Some(delay) = peer.delay {
            self.delays.add(delay);
        }
        if is_new {
            self.events.push_back(PeerEvent::Joined(beat.id));
            self.succeed(beat.id, is_hello, now_ns);
        } else {
            self.find_conflict(beat.id, now_ns);
        }
        if is_new || is_back {
            // Other beats make the next check later, not earlier.
            self.schedule();
        }
        if is_another_range {
            self.fit(beat.id);
        }
        true
    }

    fn may_join(&mut self, id: NodeId, now_ns: u64) -> bool {
        if self.peers.len() >= self.config.peers_max {
            self.refused += 1;
            return false;
        }
        let may = self.departed.may_return(id, self.config.beat_ns / 2, now_ns);
        self.late += u64::from(!may);
        may
    }

    fn remove(&mut self, id: NodeId, why: GoneReason, now_ns: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.events.push_back(PeerEvent::Gone(id, why));
        self.free_name(&peer.beat.name);
        self.departed.push(id, peer.beat.name, why, now_ns);
    }

    /// A peer's range of versions is new or has changed.
    fn fit(&mut self, id: NodeId) {
        let (my_oldest, my_newest) = self.config.envelopes;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (oldest, newest) = peer.beat.envelopes;
        peer.is_incompatible = oldest > my_newest || newest < my_oldest;
        if peer.is_incompatible {
            self.events.push_back(PeerEvent::Incompatible(id));
        }
        self.choose_version();
    }

    fn choose_version(&mut self) {
        let compatible = self.peers.values().filter(|it| !it.is_incompatible);
        let (oldest, newest) = compatible.fold(self.config.envelopes, |(oldest, newest), it| {
            (oldest.max(it.beat.envelopes.0), newest.min(it.beat.envelopes.1))
        });
        let version = (oldest <= newest).then_some(newest);
        if version != self.version {
            self.version = version;
            self.events.push_back(PeerEvent::EnvelopeVersion(version));
        }
    }

    /// Reports settings that differ. Returns whether the other node has to know this one's.
    fn compare(&mut self, hello: &Hello) -> bool {
        let own = &self.config.settings;
        let differs = |(pattern, hash): &(Box<str>, u64)| {
            let at = own.binary_search_by(|it| it.0.cmp(pattern)).ok()?;
            own.get(at).is_some_and(|it| it.1 != *hash).then_some(at as u32)
        };
        let mut differing: Vec<u32> = hello.settings.iter().filter_map(differs).collect();
        differing.sort_unstable();
        differing.dedup();
        let node = hello.beat.id;
        let Some(peer) = self.peers.get_mut(&node) else { return false };
        let is_new = |at: &&u32| peer.differing.binary_search(at).is_err();
        let has_notices =
            |settings: &[(Box<str>, u64)]| settings.iter().any(|(name, _)| **name == *NOTICES);
        let had_notices = core::mem::replace(&mut peer.has_notices, has_notices(&hello.settings));
        let mut has_new = peer.has_notices && !had_notices && has_notices(own);
        for at in differing.iter().filter(is_new) {
            has_new = true;
            if let Some((pattern, _)) = own.get(*at as usize) {
                let pattern = pattern.clone();
                self.events.push_back(PeerEvent::SettingsDiffer { node, pattern });
            }
        }
        peer.differing = differing;
        has_new
    }

    fn schedule(&mut self) {
        let next = |it: &Peer| self.clock.when_ns(it.next_aged_ns(&self.config));
        self.check_ns = self.peers.values().filter_map(next).min();
    }
}
