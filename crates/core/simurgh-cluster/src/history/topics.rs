//! The topics that are followed: what comes is judged, and told in order.

use std::collections::{BTreeSet, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::HistoryConfig;
use super::counts::HistoryCounts;
use super::events::{HistoryEvent, HistorySink, Retention};
use super::own_envelopes::OwnEnvelopes;
use super::request::Request;
use super::topic::{Job, Last, Phase, STREAMS, Stage, Topic, TopicId};
use super::watermarks::Watermarks;
use crate::adapter::Ticket;
use crate::node_id::NodeId;
use crate::subject::Prefix;
use crate::table::Table;
use crate::time::{SECOND, Time};

/// Requests for the last numbers of topics that may be under way.
pub(super) const CHECKS_MAX: usize = 4;
/// A link may be dead for so long before anybody notices, and what came by it waits as long at
/// most before it is looked at.
const UNNOTICED_NS: u64 = 10 * SECOND;
/// Who looks at the clock at least so often is there.
const SLEPT_NS_MIN: u64 = 3 * SECOND;
/// Topics that are told of a lost link in one turn.
const HUSHED_MAX: u32 = 2_048;
/// When a number that the engine has said is missed, if it does not come.
pub(super) const LATE_NS: u64 = SECOND;
/// Numbers that may be late; of more, a check finds out.
const LATE_MAX: usize = 65_536;

/// What a call is about beside the topics.
pub(super) struct Context<'a, T> {
    pub(super) me: NodeId,
    pub(super) time: Time,
    pub(super) sent: &'a mut OwnEnvelopes,
    pub(super) counts: &'a mut HistoryCounts,
    pub(super) told: &'a mut T,
}

pub(super) struct Topics {
    pub(super) table: Table<Topic>,
    /// Different wants, of which there are as many as patterns.
    rules: Vec<Retention>,
    pub(super) prefix: Prefix,
    pub(super) config: HistoryConfig,
    serial: u32,
    /// What the engine keeps, while there is a link to it.
    pub(super) epoch: Option<u64>,
    /// The same, of the last link.
    pub(super) known_epoch: u64,
    /// Counts epochs.
    pub(super) era: u32,
    /// Counts what may have lost something of all topics.
    pub(super) round: u32,
    /// Since when something may have been lost, of what was not looked for yet.
    pub(super) lost_ns: Option<u64>,
    /// The highest number of each stream that is known.
    pub(super) highest: [u64; STREAMS],
    /// Topics with a job.
    pub(super) jobs: usize,
    /// Which are to be fetched.
    pub(super) asks: VecDeque<TopicId>,
    pub(super) pauses: BTreeSet<(u64, TopicId)>,
    pub(super) tickets: HashMap<Ticket, Request, FixedState>,
    pub(super) fetches: usize,
    pub(super) checks: usize,
    /// Which are to be checked, before others and not before a time.
    pub(super) urgent: VecDeque<TopicId>,
    pub(super) urgent_ns: u64,
    /// How far all were looked at for what is to be checked after a link was made.
    pub(super) sweep: Option<u32>,
    /// The same of the slow round, and how many are to be looked at now.
    pub(super) slow_at: u32,
    pub(super) slow_left: u32,
    pub(super) slow_ns: u64,
    /// How long the slow round takes.
    pub(super) round_ns: u64,
    /// Numbers that the engine has, and when they are missed.
    pub(super) late: VecDeque<(u64, TopicId, u64)>,
    /// Behind which numbers nothing is too old to be there.
    pub(super) watermarks: Watermarks,
    /// When it was last known what time it is.
    here_ns: u64,
    /// How far all were told that there is no link.
    hush: Option<u32>,
    /// Which began without one.
    untold: VecDeque<TopicId>,
}

impl Topics {
    pub(super) fn new(prefix: Prefix, config: HistoryConfig, seed: u64) -> Self {
        Self {
            table: Table::new(seed),
            rules: Vec::new(),
            prefix,
            serial: 0,
            epoch: None,
            known_epoch: 0,
            era: 0,
            round: 0,
            lost_ns: None,
            highest: [0; STREAMS],
            jobs: 0,
            asks: VecDeque::new(),
            pauses: BTreeSet::new(),
            tickets: HashMap::with_hasher(FixedState::with_seed(seed)),
            fetches: 0,
            checks: 0,
            urgent: VecDeque::new(),
            urgent_ns: 0,
            sweep: None,
            slow_at: 0,
            slow_left: 0,
            slow_ns: 0,
            round_ns: config.round_ns,
            late: VecDeque::new(),
            watermarks: Watermarks::default(),
            here_ns: 0,
            hush: None,
            untold: VecDeque::new(),
            config,
        }
    }

    // Topics come and go.

    /// A topic is followed from now on; what it is known by until the engine sends it, if it was
    /// not followed before.
    pub(super) fn begin(&mut self, topic: &str, wants: Retention) -> Option<TopicId> {
        let wants = self.rule(wants);
        if let Some(follow) = self.table.find(topic).and_then(|at| self.table.get_mut(at)) {
            follow.wants = wants;
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let at = self.table.insert(Topic {
            name: topic.into(),
            last: 0,
            reach: 0,
            job: None,
            serial,
            era: self.era,
            round: self.round.wrapping_sub(1),
            stored_s: 0,
            wants,
            lost: 0,
            stage: Stage::Waiting,
            told: Last::Nothing,
            is_message: false,
            is_suspect: false,
        });
        let id = TopicId { at, serial };
        if self.epoch.is_none() {
            self.untold.push_back(id);
        }
        Some(id)
    }

    fn rule(&mut self, wants: Retention) -> u16 {
        let known = self.rules.iter().position(|it| *it == wants);
        let at = known.unwrap_or_else(|| {
            if self.rules.len() <= usize::from(u16::MAX) {
                self.rules.push(wants);
                self.round_ns = self.round_ns.min(round_ns_of(wants));
            }
            self.rules.len() - 1
        });
        at as u16
    }

    pub(super) fn wants(&self, follow: &Topic) -> Retention {
        let none = Retention { count: 1, bytes: 0, age_ms: 0 };
        self.rules.get(usize::from(follow.wants)).copied().unwrap_or(none)
    }

    /// It is followed no longer.
    pub(super) fn end(&mut self, topic: &str, told: &mut impl HistorySink) {
        let Some(follow) = self.table.find(topic).and_then(|at| self.table.remove(at)) else {
            return;
        };
        self.jobs -= usize::from(follow.job.is_some());
        told.history(topic, HistoryEvent::Ended);
    }

    /// The engine sends it from now on.
    pub(super) fn in_force(&mut self, id: TopicId) {
        let Some(at) = self.current(id) else { return };
        let Some(follow) = self.table.get_mut(at) else { return };
        if follow.stage == Stage::Waiting {
            follow.stage = Stage::Filling;
            // Without a link, the next one has all asked for.
            if self.epoch.is_some() {
                self.ask(at);
            }
        }
    }

    /// The number of a topic that is still followed, and of the engine's epoch from now on.
    pub(super) fn current(&mut self, id: TopicId) -> Option<u32> {
        self.table.get(id.at).filter(|it| it.serial == id.serial)?;
        self.renew(id.at);
        Some(id.at)
    }

    pub(super) fn id(&self, at: u32) -> Option<TopicId> {
        self.table.get(at).map(|it| TopicId { at, serial: it.serial })
    }

    /// What is of another epoch of the engine's is of no use.
    pub(super) fn renew(&mut self, at: u32) {
        let era = self.era;
        let Some(follow) = self.table.get_mut(at).filter(|it| it.era != era) else { return };
        (follow.era, follow.last, follow.reach) = (era, 0, 0);
        (follow.is_message, follow.is_suspect) = (false, false);
        if follow.stage == Stage::Live {
            follow.stage = Stage::Filling;
        }
        self.jobs -= usize::from(follow.job.take().is_some());
    }

    // The link.

    /// There is a link to an engine that keeps this.
    pub(super) fn up(&mut self, epoch: u64, now_ns: u64) {
        self.is_here(now_ns);
        if self.era == 0 || self.known_epoch != epoch {
            self.era = self.era.wrapping_add(1).max(1);
            self.highest = [0; STREAMS];
            self.late.clear();
            self.watermarks.forget();
        }
        (self.epoch, self.known_epoch) = (Some(epoch), epoch);
        self.hush = None;
        self.untold.clear();
        self.look_at_all();
    }

    /// There is no link, or to an engine that keeps nothing.
    pub(super) fn down(&mut self, now_ns: u64) {
        self.is_here(now_ns);
        self.epoch = None;
        self.hush = Some(0);
        self.sweep = None;
        self.has_lost(now_ns);
    }

    /// Of all that is followed something may be missing.
    pub(super) fn look_at_all(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.sweep = Some(0);
        self.urgent.clear();
        self.urgent_ns = 0;
    }

    /// It is this time. If nobody was here for as long as all are looked at in, what was lost
    /// meanwhile was not missed, and what was lost before that is older now.
    pub(super) fn is_here(&mut self, now_ns: u64) {
        let before_ns = std::mem::replace(&mut self.here_ns, now_ns);
        let slept_ns = self.round_ns.max(SLEPT_NS_MIN);
        if before_ns > 0 && now_ns.saturating_sub(before_ns) >= slept_ns {
            self.has_lost_unnoticed(before_ns);
            if self.epoch.is_some() {
                self.look_at_all();
            }
        }
    }

    /// Something may be missing since then.
    pub(super) fn has_lost(&mut self, since_ns: u64) {
        let since_ns = since_ns.saturating_sub(UNNOTICED_NS);
        self.lost_ns = Some(self.lost_ns.map_or(since_ns, |it| it.min(since_ns)));
    }

    /// Something was lost, and nobody has said so: since all were looked at last.
    pub(super) fn has_lost_unnoticed(&mut self, now_ns: u64) {
        self.has_lost(now_ns.saturating_sub(2 * self.round_ns));
    }

    /// Of one topic something may be missing.
    pub(super) fn lose(&mut self, topic: &str) {
        let Some(at) = self.table.find(topic) else { return };
        self.renew(at);
        self.unsure(at);
        let Some(follow) = self.table.get_mut(at) else { return };
        follow.lost = follow.lost.wrapping_add(1);
        // A job that is at it asks again when it is done.
        if follow.job.is_none()
            && let Some(id) = self.id(at)
        {
            self.urgent.push_back(id);
        }
    }

    pub(super) fn unsure(&mut self, at: u32) {
        let round = self.round.wrapping_sub(1);
        if let Some(follow) = self.table.get_mut(at) {
            follow.round = round;
        }
    }

    /// Tells some of those that have to know that there is no link; whether there are more.
    pub(super) fn hush(&mut self, told: &mut impl HistorySink) {
        for _ in 0..HUSHED_MAX {
            let Some(id) = self.untold.pop_front() else { break };
            if let Some(at) = self.current(id) {
                self.unknown(at, told);
            }
        }
        let Some(from) = self.hush else { return };
        let end = self.table.end();
        let to = end.min(from.saturating_add(HUSHED_MAX));
        (from..to).for_each(|at| self.unknown(at, told));
        self.hush = (to < end).then_some(to);
    }

    /// When there is something to do; it may be past.
    pub(super) fn next_ns(&self, may_ask: bool) -> Option<u64> {
        let has_link = self.epoch.is_some();
        let has_to_hush = self.hush.is_some() || !self.untold.is_empty();
        let can_check = has_link && may_ask && self.checks < CHECKS_MAX;
        let urgent_ns = (can_check && !self.urgent.is_empty()).then_some(self.urgent_ns);
        let slow_ns = (has_link && self.table.len() > 0).then_some(self.slow_ns);
        let due_ns = [
            (has_to_hush || (can_check && self.sweep.is_some())).then_some(0),
            urgent_ns,
            slow_ns,
            self.pauses.first().map(|it| it.0),
            self.late.front().map(|it| it.0),
            self.watermarks.next_ns(),
        ];
        due_ns.into_iter().flatten().min()
    }

    pub(super) fn unknown(&mut self, at: u32, told: &mut impl HistorySink) {
        if let Some(follow) = self.table.get_mut(at)
            && follow.told != Last::Unknown
        {
            follow.told = Last::Unknown;
            told.history(&follow.name, HistoryEvent::Unknown);
        }
    }

    // Jobs.

    /// Does something to a topic's job, which it has from now on: until that is done nothing is
    /// certain.
    pub(super) fn job(&mut self, at: u32, act: impl FnOnce(&mut Job)) {
        let Some(follow) = self.table.get_mut(at) else { return };
        let jobs = &mut self.jobs;
        act(follow.job.get_or_insert_with(|| {
            *jobs += 1;
            Box::default()
        }));
        self.unsure(at);
    }

    /// A topic is to be fetched, unless that is under way.
    pub(super) fn ask(&mut self, at: u32) {
        let Some(id) = self.id(at) else { return };
        let Some(follow) = self.table.get_mut(at) else { return };
        let job = follow.job.get_or_insert_with(|| {
            self.jobs += 1;
            Box::default()
        });
        if job.phase == Phase::Idle {
            job.phase = Phase::Listed;
            self.asks.push_back(id);
        }
    }

    /// The engine says that a topic has this number.
    pub(super) fn expect(&mut self, topic: &str, seq: u64, now_ns: u64) {
        let Some(at) = self.table.find(topic) else { return };
        self.renew(at);
        self.note(at, seq);
        let Some(follow) = self.table.get(at) else { return };
        if seq > follow.last
            && self.late.len() < LATE_MAX
            && let Some(id) = self.id(at)
        {
            self.late.push_back((now_ns.saturating_add(LATE_NS), id, seq));
        }
    }
}

/// How often a topic is to be looked at: what a copy had not yet when it was asked is to be found
/// before it is too old.
fn round_ns_of(wants: Retention) -> u64 {
    match wants.age_ms {
        0 => u64::MAX,
        age_ms => (age_ms.saturating_mul(1_000_000) / 3).max(SECOND),
    }
}
