//! One node's part in notices: its memberships, the partitions that it coordinates, and the hooks.
//!
//! ```text
//!   begin, end ─► Reporter ── Output::Report ──────────────► the coordinators' nodes
//!                     │ of this node                              │ report
//!                     ▼                                           ▼
//!   set_peers ─► Election ─► Coordinator of each partition ◄──────┘
//!                              │ Output::Append      ▲ begun, read
//!                              ▼                     │
//!                             log: broker, file, memory
//!                              │ read back
//!                              ▼
//!                            Output::Deliver ─► hook ─► finished
//! ```
//! Call [`poll`](Notices::poll) after each input, and at [`next_ns`](Notices::next_ns), until
//! it has no output.

use alloc::collections::BTreeMap;

use simurgh_data::prelude::*;
use simurgh_presence::{Owner, PhxRefs};

use crate::backoff::Backoff;
use crate::batch::{Batch, Outcome};
use crate::coordinator::{Coordinator, Orphans};
use crate::election::Election;
use crate::key::{Key, PARTITIONS, Reason, Time};
use crate::record::Entry;
use crate::report::{Report, Verdict};
use crate::reporter::Reporter;
use crate::settings::Settings;

/// Another node that is not gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: Arc<str>,
    /// When it was last heard, in nanoseconds.
    pub heard_ns: u64,
    /// Whether it may coordinate: it is neither silent nor draining.
    pub is_candidate: bool,
}

/// What a node has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a report to a node. [`Notices::answered`] takes its number and its verdict.
    Report(u64, u64, Report),
    /// Read the log of a partition, and follow it: [`Coordinator::begun`], [`Coordinator::read`].
    Follow(u8),
    /// Follow it no more.
    Leave(u8),
    /// Append records in this order, and all or none of them if that is possible. If one is not
    /// appended, or that is unknown: [`Coordinator::append_failed`].
    Append(u8, Vec<Entry>),
    /// Remove the records before a place. It may fail.
    Purge(u8, u64),
    /// Read the log again behind a place: [`Coordinator::read_again`].
    ReadAgain(u8, u64),
    /// Send a batch to a hook, by its index: [`Notices::finished`].
    Deliver(u8, usize, Arc<Batch>),
}

/// A node.
#[derive(Debug)]
pub struct Notices {
    me: (u64, Arc<str>),
    settings: Arc<Settings>,
    seed: u64,
    election: Election,
    leaders: [Option<u64>; PARTITIONS as usize],
    reporter: Reporter,
    coordinators: [Option<Box<Coordinator>>; PARTITIONS as usize],
    /// One for all partitions, so that ids of stays never repeat.
    refs: PhxRefs,
    backoffs: Vec<Backoff>,
    peers: BTreeMap<u64, Peer>,
    outputs: VecDeque<Output>,
}

impl Notices {
    /// A node that was just started. `seed` must not be guessable.
    pub fn new((id, name): (u64, &str), settings: Settings, is_alone: bool, seed: u64) -> Self {
        let mut election = if is_alone { Election::alone(id) } else { Election::new() };
        election.set_candidates(&[id]);
        Self {
            me: (id, name.into()),
            refs: PhxRefs::new(Owner(id)),
            backoffs: vec![Backoff::default(); settings.hooks.len()],
            settings: Arc::new(settings),
            seed,
            election,
            leaders: [None; PARTITIONS as usize],
            reporter: Reporter::new(seed),
            coordinators: [const { None }; PARTITIONS as usize],
            peers: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// A membership begins on this node.
    pub fn begin(&mut self, key: Key, time: Time) {
        self.reporter.begin(key, time);
    }

    /// A membership ends on this node.
    pub fn end(&mut self, key: &Key, reason: Reason, time: Time) {
        self.reporter.end(key, reason, time);
    }

    /// The other nodes that are not gone, and whether this one may coordinate: it is not draining.
    pub fn set_peers(&mut self, peers: Vec<Peer>, is_candidate: bool, time: Time) {
        let peers: BTreeMap<u64, Peer> = peers.into_iter().map(|peer| (peer.id, peer)).collect();
        let before = core::mem::replace(&mut self.peers, peers);
        for (id, gone) in before.iter().filter(|(id, _)| !self.peers.contains_key(id)) {
            for coordinator in self.coordinators.iter_mut().flatten() {
                coordinator.gone((*id, &gone.name), gone.heard_ns, time);
            }
        }
        let candidates = self.peers.values().filter(|peer| peer.is_candidate).map(|peer| peer.id);
        let me = is_candidate.then_some(self.me.0);
        let candidates: Vec<u64> = candidates.chain(me).collect();
        self.election.set_candidates(&candidates);
        self.elect(&before, time);
    }

    fn elect(&mut self, before: &BTreeMap<u64, Peer>, time: Time) {
        self.election.tick(time.ns);
        for partition in 0..PARTITIONS {
            let leader = self.election.leader(partition);
            let Some(led) = self.leaders.get_mut(usize::from(partition)) else { continue };
            let previous = core::mem::replace(led, leader);
            if previous == leader {
                continue;
            }
            self.reporter.set_leader(partition, leader);
            let at = usize::from(partition);
            if let Some(place) = self.coordinators.get_mut(at)
                && place.take().is_some()
            {
                self.outputs.push_back(Output::Leave(partition));
            }
            if leader != Some(self.me.0) {
                continue;
            }
            let previous = previous.and_then(|id| before.get(&id).or_else(|| self.peers.get(&id)));
            let heard_ns = previous.map(|peer| peer.heard_ns);
            let orphans = self.orphans(heard_ns, time);
            let nodes = self.peers.keys().copied().chain([self.me.0]);
            let seed = self.seed ^ u64::from(partition);
            let (me, settings) = ((self.me.0, partition), &self.settings);
            let coordinator = Coordinator::new(me, settings, nodes, orphans, seed);
            if let Some(place) = self.coordinators.get_mut(at) {
                *place = Some(Box::new(coordinator));
            }
            self.outputs.push_back(Output::Follow(partition));
        }
    }

    fn orphans(&self, heard_ns: Option<u64>, time: Time) -> Orphans {
        match heard_ns {
            Some(known_ns) => Orphans { known_ns, reason: Reason::Node },
            None => {
                let Settings { grace_ns, restart_grace_ns, .. } = *self.settings;
                let known_ns = time.ns.saturating_add(restart_grace_ns.saturating_sub(grace_ns));
                Orphans { known_ns, reason: Reason::Restart }
            }
        }
    }

    /// Another node reports memberships.
    pub fn report(&mut self, from: u64, report: &Report, time: Time) -> Verdict {
        let Some(peer) = self.peers.get(&from) else { return Verdict::NotCoordinator };
        match self.coordinators.get_mut(usize::from(report.partition)) {
            Some(Some(coordinator)) => coordinator.report((from, &peer.name), report, time),
            _ => Verdict::NotCoordinator,
        }
    }

    /// The answer to this node's report; `None`: there is none.
    pub fn answered(&mut self, partition: u8, call: u64, verdict: Option<Verdict>, time: Time) {
        self.reporter.answered(partition, call, verdict, time);
    }

    /// The outcome of a batch. A failed hook may have asked for a pause; 410 stops it. `random` is
    /// any number.
    pub fn finished(
        &mut self,
        (partition, hook, batch): (u8, usize, &Arc<Batch>),
        outcome: &Outcome,
        asked_ns: Option<u64>,
        random: u64,
        time: Time,
    ) {
        if let Some(backoff) = self.backoffs.get_mut(hook) {
            match outcome {
                Outcome::Failed(410, _) => backoff.stop(),
                Outcome::Failed(..) => backoff.failed(asked_ns, random, time.ns),
                Outcome::Accepted | Outcome::Refused(..) => backoff.accepted(),
            }
        }
        if let Some(coordinator) = self.coordinator_mut(partition) {
            coordinator.finished(hook, batch, outcome, time);
        }
    }

    /// Sends notices again to a hook that was stopped or backs off.
    pub fn resume(&mut self, hook: usize) {
        if let Some(backoff) = self.backoffs.get_mut(hook) {
            *backoff = Backoff::default();
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self, time: Time) -> Option<Output> {
        self.elect(&BTreeMap::new(), time);
        self.reporter.tick(time);
        while self.outputs.is_empty()
            && let Some((to, call, report)) = self.reporter.next_report(time)
        {
            if to != self.me.0 {
                return Some(Output::Report(to, call, report));
            }
            let (me, partition) = (self.me.clone(), report.partition);
            let coordinator = self.coordinator_mut(partition);
            let verdict = coordinator.map(|it| it.report((me.0, &me.1), &report, time));
            self.reporter.answered(partition, call, verdict, time);
        }
        self.outputs.pop_front().or_else(|| (0..PARTITIONS).find_map(|it| self.poll_of(it, time)))
    }

    fn poll_of(&mut self, partition: u8, time: Time) -> Option<Output> {
        let at = usize::from(partition);
        let coordinator = self.coordinators.get_mut(at)?.as_deref_mut()?;
        let records = coordinator.next_append(&mut self.refs, time);
        if !records.is_empty() {
            return Some(Output::Append(partition, records));
        }
        if let Some(before) = coordinator.next_purge() {
            return Some(Output::Purge(partition, before));
        }
        let hooks = self.backoffs.iter().enumerate();
        let batch = hooks.filter(|(_, backoff)| backoff.may_send(time.ns)).find_map(|(hook, _)| {
            let batch = coordinator.next_batch(hook, time)?;
            Some(Output::Deliver(partition, hook, batch))
        });
        batch.or_else(|| Some(Output::ReadAgain(partition, coordinator.next_read_again()?)))
    }

    /// When [`poll`](Self::poll) has something to do by itself.
    pub fn next_ns(&self) -> Option<u64> {
        let of_hook = |coordinator: &Coordinator, hook: usize, backoff: &Backoff| {
            Some(coordinator.next_batch_ns(hook)?.max(backoff.next_ns()?))
        };
        let own = self.coordinators.iter().flatten().flat_map(|coordinator| {
            let hooks = self.backoffs.iter().enumerate();
            let batches = hooks.filter_map(|(hook, it)| of_hook(coordinator, hook, it));
            batches.chain(coordinator.next_ns())
        });
        own.chain(self.reporter.next_ns()).chain(self.election.next_ns()).min()
    }

    /// The coordinator of a partition, if it is on this node.
    pub fn coordinator(&self, partition: u8) -> Option<&Coordinator> {
        self.coordinators.get(usize::from(partition))?.as_deref()
    }

    /// The same, for what its log says, and for dead letters.
    pub fn coordinator_mut(&mut self, partition: u8) -> Option<&mut Coordinator> {
        self.coordinators.get_mut(usize::from(partition))?.as_deref_mut()
    }

    /// The node that coordinates a partition, as far as this one knows.
    pub fn leader(&self, partition: u8) -> Option<u64> {
        self.election.leader(partition)
    }
}
