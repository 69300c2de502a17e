//! The followed topics, and the state that they share.

use alloc::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_history::Retention;

use super::HistoryConfig;
use super::counts::HistoryCounts;
use super::events::{HistoryEvent, HistorySink};
use super::own_envelopes::OwnEnvelopes;
use super::request::Request;
use super::topic::{Job, Phase, Reported, STREAMS, Stage, Topic, TopicId};
use super::watermarks::Watermarks;
use crate::adapter::Ticket;
use crate::node_id::NodeId;
use crate::subject::Prefix;
use crate::table::Table;
use crate::time::{SECOND, Time};
use simurgh_data::prelude::*;

pub(super) const CHECKS_MAX: usize = 4;
/// How long a link may be dead before that is noticed, and how long received messages wait at most
/// before they are processed.
const UNNOTICED_NS: u64 = 10 * SECOND;
/// A longer pause between two calls means that the process slept.
const SLEPT_NS_MIN: u64 = 3 * SECOND;
/// The most topics that are reported as unknown in one turn.
const UNREPORTED_MAX: u32 = 2_048;
/// The time after which a message is fetched that the broker has reported and that has not arrived.
pub(super) const LATE_NS: u64 = SECOND;
/// The most numbers that are waited for; checks find the others.
const LATE_MAX: usize = 65_536;

/// State that a call needs in addition to the topics.
pub(super) struct ShardContext<'a> {
    pub(super) me: NodeId,
    pub(super) time: Time,
    pub(super) sent: &'a mut OwnEnvelopes,
    pub(super) counts: &'a mut HistoryCounts,
    pub(super) sink: &'a mut dyn HistorySink,
}

pub(crate) struct Topics {
    pub(crate) table: Table<Topic>,
    /// The different retentions, at most one for each pattern.
    rules: Vec<Retention>,
    pub(super) prefix: Prefix,
    pub(super) config: HistoryConfig,
    serial: u32,
    /// The epoch of the broker's streams, while there is a link.
    pub(super) epoch: Option<u64>,
    /// Whether there is a link, to a broker that stores nothing.
    stores_nothing: bool,
    pub(super) known_epoch: u64,
    pub(super) era: u32,
    /// The number of events that may have lost messages of all topics.
    pub(super) round: u32,
    /// Since when messages may have been lost of topics that were not checked since.
    pub(super) lost_ns: Option<u64>,
    pub(super) highest: [u64; STREAMS],
    pub(super) jobs: usize,
    pub(super) fetch_queue: VecDeque<TopicId>,
    pub(super) pauses: BTreeSet<(u64, TopicId)>,
    pub(super) tickets: HashMap<Ticket, Request, FixedState>,
    pub(super) fetches: usize,
    pub(super) checks: usize,
    /// Topics to check before others, but not before `urgent_ns`.
    pub(super) urgent: VecDeque<TopicId>,
    pub(super) urgent_ns: u64,
    /// How far all topics were looked at over this link.
    pub(super) sweep: Option<u32>,
    /// The same for the slow round, and how many topics are to be checked now.
    pub(super) slow_at: u32,
    pub(super) slow_left: u32,
    pub(super) slow_ns: u64,
    pub(super) round_ns: u64,
    /// Numbers that the broker has reported, and when they are fetched.
    pub(super) late: VecDeque<(u64, TopicId, u64)>,
    pub(super) watermarks: Watermarks,
    last_call_ns: u64,
    /// How far topics were reported as unknown since the link was lost.
    unreported_from: Option<u32>,
    /// Topics that began without a link and are to be reported as unknown.
    unreported: VecDeque<TopicId>,
}

impl Topics {
    pub(super) fn new(prefix: Prefix, config: HistoryConfig, seed: u64) -> Self {
        Self {
            table: Table::new(seed),
            rules: Vec::new(),
            prefix,
            serial: 0,
            epoch: None,
            stores_nothing: false,
            known_epoch: 0,
            era: 0,
            round: 0,
            lost_ns: None,
            highest: [0; STREAMS],
            jobs: 0,
            fetch_queue: VecDeque::new(),
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
            last_call_ns: 0,
            unreported_from: None,
            unreported: VecDeque::new(),
            config,
        }
    }

    /// Follows a topic. Returns its id until its interest is in force, unless it was followed
    /// before.
    pub(crate) fn begin(&mut self, topic: &str, wants: Retention) -> Option<TopicId> {
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
            reported: Reported::Nothing,
            is_message: false,
            is_suspect: false,
        });
        let id = TopicId { at, serial };
        if self.epoch.is_none() {
            self.unreported.push_back(id);
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

    pub(crate) fn end(&mut self, topic: &str, sink: &mut dyn HistorySink) {
        let Some(follow) = self.table.find(topic).and_then(|at| self.table.remove(at)) else {
            return;
        };
        self.jobs -= usize::from(follow.job.is_some());
        sink.history(topic, HistoryEvent::Ended);
    }

    pub(crate) fn in_force(&mut self, id: TopicId) {
        let Some(at) = self.current(id) else { return };
        let Some(follow) = self.table.get_mut(at) else { return };
        if follow.stage == Stage::Waiting {
            follow.stage = Stage::Filling;
            // Without a link all topics are checked over the next one.
            if self.epoch.is_some() {
                self.fetch(at);
            }
        }
    }

    /// The place of a topic that is still followed; its numbers are then of the current epoch.
    pub(super) fn current(&mut self, id: TopicId) -> Option<u32> {
        self.table.get(id.at).filter(|it| it.serial == id.serial)?;
        self.renew(id.at);
        Some(id.at)
    }

    pub(super) fn id(&self, at: u32) -> Option<TopicId> {
        self.table.get(at).map(|it| TopicId { at, serial: it.serial })
    }

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

    pub(super) fn up(&mut self, epoch: u64, now_ns: u64) {
        self.note_time(now_ns);
        if self.era == 0 || self.known_epoch != epoch {
            self.era = self.era.wrapping_add(1).max(1);
            self.highest = [0; STREAMS];
            self.late.clear();
            self.watermarks.forget();
        }
        (self.epoch, self.known_epoch) = (Some(epoch), epoch);
        self.stores_nothing = false;
        self.unreported_from = None;
        self.unreported.clear();
        self.check_all();
    }

    /// There is no link, or the broker stores nothing.
    pub(crate) fn down(&mut self, stores_nothing: bool, now_ns: u64) {
        self.note_time(now_ns);
        self.epoch = None;
        self.stores_nothing = stores_nothing;
        self.unreported_from = Some(0);
        self.sweep = None;
        self.note_loss(now_ns);
    }

    pub(super) fn check_all(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.sweep = Some(0);
        self.urgent.clear();
        self.urgent_ns = 0;
    }

    /// Notes the time. If the process slept for as long as a round takes, messages lost meanwhile
    /// were not noticed, and those lost before are older now.
    pub(super) fn note_time(&mut self, now_ns: u64) {
        let before_ns = core::mem::replace(&mut self.last_call_ns, now_ns);
        let slept_ns = self.round_ns.max(SLEPT_NS_MIN);
        if before_ns > 0 && now_ns.saturating_sub(before_ns) >= slept_ns {
            self.note_unnoticed_loss(before_ns);
            if self.epoch.is_some() {
                self.check_all();
            }
        }
    }

    pub(super) fn note_loss(&mut self, since_ns: u64) {
        let since_ns = since_ns.saturating_sub(UNNOTICED_NS);
        self.lost_ns = Some(self.lost_ns.map_or(since_ns, |it| it.min(since_ns)));
    }

    /// Messages were lost without notice: at any time since all topics were checked last.
    pub(super) fn note_unnoticed_loss(&mut self, now_ns: u64) {
        self.note_loss(now_ns.saturating_sub(2 * self.round_ns));
    }

    pub(super) fn mark_lost(&mut self, topic: &str) {
        let Some(at) = self.table.find(topic) else { return };
        self.renew(at);
        self.mark_unsure(at);
        let Some(follow) = self.table.get_mut(at) else { return };
        follow.lost = follow.lost.wrapping_add(1);
        // A job checks again when it is done.
        if follow.job.is_none()
            && let Some(id) = self.id(at)
        {
            self.urgent.push_back(id);
        }
    }

    pub(super) fn mark_unsure(&mut self, at: u32) {
        let round = self.round.wrapping_sub(1);
        if let Some(follow) = self.table.get_mut(at) {
            follow.round = round;
        }
    }

    pub(super) fn report_link_loss(&mut self, sink: &mut dyn HistorySink) {
        for _ in 0..UNREPORTED_MAX {
            let Some(id) = self.unreported.pop_front() else { break };
            if let Some(at) = self.current(id) {
                self.report_unknown(at, sink);
            }
        }
        let Some(from) = self.unreported_from else { return };
        let end = self.table.end();
        let to = end.min(from.saturating_add(UNREPORTED_MAX));
        (from..to).for_each(|at| self.report_unknown(at, sink));
        self.unreported_from = (to < end).then_some(to);
    }

    /// When it is due next; may be in the past.
    pub(super) fn next_ns(&self, may_ask: bool) -> Option<u64> {
        let has_link = self.epoch.is_some();
        let has_to_hush = self.unreported_from.is_some() || !self.unreported.is_empty();
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

    pub(super) fn report_unknown(&mut self, at: u32, sink: &mut dyn HistorySink) {
        let (reported, event) = if self.stores_nothing {
            (Reported::Unavailable, HistoryEvent::Unavailable)
        } else {
            (Reported::Unknown, HistoryEvent::Unknown)
        };
        if let Some(follow) = self.table.get_mut(at)
            && follow.reported != reported
        {
            follow.reported = reported;
            sink.history(&follow.name, event);
        }
    }

    pub(super) fn job(&self, at: u32) -> Option<&Job> {
        self.table.get(at)?.job.as_deref()
    }

    pub(super) fn job_mut(&mut self, at: u32) -> Option<&mut Job> {
        self.table.get_mut(at)?.job.as_deref_mut()
    }

    fn job_or_new(&mut self, at: u32) -> Option<&mut Job> {
        let job = &mut self.table.get_mut(at)?.job;
        self.jobs += usize::from(job.is_none());
        Some(job.get_or_insert_default())
    }

    /// Changes a topic's job, or makes one: until it is done nothing is certain.
    pub(super) fn change_job(&mut self, at: u32, change: impl FnOnce(&mut Job)) {
        self.job_or_new(at).map(change);
        self.mark_unsure(at);
    }

    /// Has a topic fetched, unless it is being fetched.
    pub(super) fn fetch(&mut self, at: u32) {
        let Some(id) = self.id(at) else { return };
        if let Some(job) = self.job_or_new(at)
            && job.phase == Phase::Idle
        {
            job.phase = Phase::Listed;
            self.fetch_queue.push_back(id);
        }
    }

    /// The broker has reported this number of a topic.
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

/// How often a topic is to be checked: messages that a copy did not have yet must be found before
/// they are too old.
fn round_ns_of(wants: Retention) -> u64 {
    match wants.age_ms {
        0 => u64::MAX,
        age_ms => (age_ms.saturating_mul(1_000_000) / 3).max(SECOND),
    }
}
