//! Checks whether the last number of each topic is the broker's: a lost last message has no
//! successor that shows it.
//!
//! All topics are checked over each new link, those that may have lost something at once, and all
//! of them slowly all the time.

use super::request::FetchLast;
use super::topic::{Phase, Stage, TopicId};
use super::topics::{LATE_NS, ShardContext, Topics};
use crate::adapter::{Fetched, Received};
use crate::envelope::Envelope;
use crate::time::SECOND;
use simurgh_data::prelude::*;

/// The most topics that are looked at for one request.
const CHECKED_MAX: u32 = 4_096;
const AGAIN_NS: u64 = SECOND;
const SLOW_NS: u64 = SECOND;

impl Topics {
    /// The topics to check now, at most so many; each with how often it has lost something.
    pub(super) fn next_checks(&mut self, most: usize, now_ns: u64) -> Vec<(TopicId, u8)> {
        let mut topics = Vec::new();
        while self.urgent_ns <= now_ns && topics.len() < most {
            let Some(id) = self.urgent.pop_front() else { break };
            if let Some(at) = self.current(id) {
                self.collect_unsure(at, &mut topics);
            }
        }
        let mut looked = 0;
        while topics.len() < most && looked < CHECKED_MAX {
            let Some(at) = self.sweep else { break };
            self.sweep = (at < self.table.end()).then_some(at + 1);
            self.renew(at);
            self.collect_unsure(at, &mut topics);
            looked += 1;
        }
        while topics.len() < most && self.slow_left > 0 {
            self.slow_left -= 1;
            let at = self.slow_at;
            self.slow_at = if at + 1 < self.table.end() { at + 1 } else { 0 };
            self.renew(at);
            if let Some(follow) = self.table.get(at)
                && follow.stage == Stage::Live
                && follow.job.is_none()
            {
                topics.push((TopicId { at, serial: follow.serial }, follow.lost));
            }
        }
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// Adds a topic if messages of it may be missing and no job is fetching them.
    fn collect_unsure(&mut self, at: u32, topics: &mut Vec<(TopicId, u8)>) {
        let Some(follow) = self.table.get(at) else { return };
        let one = (TopicId { at, serial: follow.serial }, follow.lost);
        match (follow.stage, &follow.job) {
            (Stage::Waiting, _) => {}
            (Stage::Filling, Some(job)) => {
                if job.phase == Phase::Idle {
                    self.fetch(at);
                }
            }
            (Stage::Live, Some(_)) => {}
            (Stage::Live, None) if follow.round == self.round => {}
            _ => topics.push(one),
        }
    }

    pub(super) fn advance_round(&mut self, now_ns: u64) {
        if self.epoch.is_none() || self.table.len() == 0 || self.slow_ns > now_ns {
            return;
        }
        let (end, rate) = (u64::from(self.table.end()), u64::from(self.config.round_rate));
        let (round_ns, rate) = (self.round_ns.max(1), rate.max(1));
        // One topic in each turn, or all of a second together.
        let each_ns = (round_ns / end.max(1)).max(SECOND / rate);
        let pause_ns = each_ns.max(SLOW_NS);
        self.slow_left = u32::try_from((pause_ns / each_ns.max(1)).max(1)).unwrap_or(u32::MAX);
        self.slow_ns = now_ns.saturating_add(pause_ns);
    }

    pub(super) fn checked(
        &mut self,
        checked: FetchLast,
        fetched: Option<Fetched>,
        context: &mut ShardContext<'_>,
    ) {
        // Topics of another epoch are checked again, with all others.
        if checked.era != self.era {
            return;
        }
        let Some(fetched) = fetched else { return self.not_checked(checked, context) };
        context.counts.checked += checked.topics.len() as u64;
        let (found, is_clear) = self.found(&checked, &fetched.messages);
        for ((id, lost), last) in checked.topics.iter().zip(found) {
            let Some(at) = self.current(*id) else { continue };
            let asked = (checked.round, *lost);
            self.note(at, last.unwrap_or(0).max(fetched.head));
            match self.table.get(at).map(|it| (it.stage, it.job.is_some())) {
                Some((Stage::Filling, has_job)) => {
                    // Messages that arrive meanwhile are in the queue.
                    let awaits_watermark = self.want_watermark(at, context.time.ns).is_some();
                    let is_empty = last.is_none() && is_clear && fetched.head > 0;
                    if !has_job && is_empty && !awaits_watermark {
                        self.begin_empty(at, fetched.head, asked, context);
                    } else {
                        self.fetch(at);
                    }
                }
                Some((Stage::Live, false)) => self.compare(at, asked, (last, is_clear), context),
                // A job is fetching it.
                _ => {}
            }
        }
    }

    fn not_checked(&mut self, checked: FetchLast, context: &mut ShardContext<'_>) {
        for (id, _) in checked.topics {
            let Some(at) = self.current(id) else { continue };
            self.report_unknown(at, context.sink);
            self.mark_unsure(at);
            self.urgent.push_back(id);
        }
        self.note_unnoticed_loss(context.time.ns);
        self.urgent_ns = context.time.ns.saturating_add(AGAIN_NS);
    }

    /// The last number of each topic in the request, if any; and whether every message of the
    /// answer is of one of those.
    fn found(&self, checked: &FetchLast, messages: &[Received]) -> (Vec<Option<u64>>, bool) {
        let mut found = vec![None; checked.topics.len()];
        let mut is_clear = true;
        for message in messages {
            let topic = Envelope::topic_of(&message.envelope).ok();
            let at = topic.and_then(|topic| self.table.find(topic));
            let place =
                at.and_then(|at| checked.topics.binary_search_by_key(&at, |(id, _)| id.at).ok());
            match (place.and_then(|it| found.get_mut(it)), message.stored) {
                (Some(found), Some(number)) => *found = Some(number.seq),
                _ => is_clear = false,
            }
        }
        (found, is_clear)
    }

    fn compare(
        &mut self,
        at: u32,
        (round, lost): (u32, u8),
        (last, is_clear): (Option<u64>, bool),
        context: &mut ShardContext<'_>,
    ) {
        let Some(follow) = self.table.get(at) else { return };
        let is_synced = self.is_synced(follow);
        match last {
            Some(seq) if seq > follow.last => {
                context.counts.behind += 1;
                if !is_synced {
                    return self.fetch_up_to(at, seq, context.time.ns);
                }
                // It should still arrive by itself.
                if let Some(id) = self.id(at) {
                    let due_ns = context.time.ns.saturating_add(LATE_NS);
                    self.late.push_back((due_ns, id, seq));
                }
            }
            Some(seq) if seq == follow.last => self.settle(at, round, lost, context.sink),
            None if !is_clear => self.confirm(at),
            _ if is_synced => {}
            // The copy lags behind, or the message was removed before its time.
            _ if self.may_have_missed(follow, 0, true, context.time.ns) => self.confirm(at),
            _ => self.settle(at, round, lost, context.sink),
        }
    }

    pub(crate) fn check_at_leader(&mut self, topic: &str) {
        let Some(at) = self.table.find(topic) else { return };
        self.renew(at);
        if self.table.get(at).is_some_and(|it| it.stage != Stage::Waiting) {
            self.change_job(at, |job| (job.is_confirm, job.from_leader) = (true, true));
            self.fetch(at);
        }
    }

    fn confirm(&mut self, at: u32) {
        self.change_job(at, |job| job.is_confirm = true);
        self.fetch(at);
    }
}
