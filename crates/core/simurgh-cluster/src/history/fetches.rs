//! Requests to the broker about topics: which are made, and what follows from their answers.

use super::events::{HistoryEvent, HistorySink};
use super::request::{FetchAfter, FetchLast, Request};
use super::topic::{Job, Phase, Reported, Stage, Topic, TopicId, stream_of};
use super::topics::{CHECKS_MAX, ShardContext, Topics};
use crate::adapter::{Fetch, Fetched, LAST_OF_MAX, Ticket};
use crate::subject::{Space, Subject};
use crate::time::{MILLISECOND, SECOND, Time};

/// Pauses before asking again if an answer does not reach what is needed; the last time the leader
/// is asked.
const AGAIN_NS: [u64; 3] = [50 * MILLISECOND, 200 * MILLISECOND, 1_000 * MILLISECOND];
/// Pauses after requests without an answer: 1 s, doubled at most so many times.
const FAILURES_MAX: u8 = 3;
/// The most messages of one answer, and their bytes.
const PAGE_COUNT: u32 = 256;
const PAGE_BYTES: usize = 1 << 20;
/// The most messages of one answer while a topic is filled.
const FILL_COUNT: u32 = 1_000;
impl Topics {
    pub(super) fn next_fetch(&mut self, ticket: Ticket, now_ns: u64) -> Option<Fetch> {
        self.epoch?;
        while self.fetches < self.config.fetches_max {
            if let Some(fetch) = self.next_watermark(ticket, now_ns) {
                return Some(fetch);
            }
            let Some(id) = self.fetch_queue.pop_front() else { break };
            if self.awaits_watermark(id, now_ns) {
                continue;
            }
            if let Some(fetch) = self.fetch_after(id, ticket) {
                return Some(fetch);
            }
        }
        if self.checks >= CHECKS_MAX {
            return None;
        }
        let topics = self.next_checks(LAST_OF_MAX, now_ns);
        if topics.is_empty() {
            return None;
        }
        for (id, _) in &topics {
            self.want_watermark(id.at, now_ns);
        }
        let subjects = topics.iter().filter_map(|(id, _)| self.subject(id.at)).collect();
        let checked = FetchLast { topics, era: self.era, round: self.round };
        self.tickets.insert(ticket, Request::Last(checked));
        self.checks += 1;
        Some(Fetch::LastOf { subjects })
    }

    fn subject(&self, at: u32) -> Option<Subject> {
        self.table.get(at).map(|it| self.prefix.topic(Space::Store, &it.name))
    }

    fn fetch_after(&mut self, id: TopicId, ticket: Ticket) -> Option<Fetch> {
        let at = self.current(id)?;
        let subject = self.subject(at)?;
        let round = self.round;
        let follow = self.table.get(at)?;
        let known = self.highest.get(stream_of(&follow.name)).copied().unwrap_or_default();
        let wants = self.wants(follow);
        let follow = self.table.get_mut(at)?;
        let job = follow.job.as_deref_mut().filter(|it| it.phase == Phase::Listed)?;
        job.phase = Phase::Request(ticket);
        let (seq, count, bytes) = match follow.stage {
            Stage::Live => (follow.last, PAGE_COUNT, PAGE_BYTES),
            _ => {
                let count = wants.count.clamp(1, FILL_COUNT).saturating_add(1);
                (job.fill.through, count, wants.bytes.clamp(PAGE_BYTES / 16, PAGE_BYTES))
            }
        };
        // From the last known message on: while that is there, nothing behind it was removed.
        let has_last = follow.stage != Stage::Live || follow.is_message;
        let seq = seq.saturating_sub(u64::from(has_last && !job.skips_last));
        let from_leader = job.from_leader;
        let after = FetchAfter {
            id,
            round,
            lost: follow.lost,
            last: follow.last,
            is_further: job.is_further,
            skips_last: job.skips_last,
            from_leader,
            known,
        };
        self.tickets.insert(ticket, Request::After(after));
        self.fetches += 1;
        Some(Fetch::After { subject, seq, count, bytes, from_leader })
    }

    pub(super) fn not_taken(&mut self, ticket: Ticket) {
        match self.tickets.remove(&ticket) {
            Some(Request::After(FetchAfter { id, .. })) => {
                self.fetches -= 1;
                if let Some(job) = self.job_of(id) {
                    job.phase = Phase::Listed;
                    self.fetch_queue.push_front(id);
                }
            }
            Some(Request::Last(FetchLast { topics, .. })) => {
                self.checks -= 1;
                for (id, _) in topics.into_iter().rev() {
                    self.urgent.push_front(id);
                }
            }
            Some(Request::Watermark(place, subject, _)) => self.watermarks.put_back(place, subject),
            None => {}
        }
    }

    fn job_of(&mut self, id: TopicId) -> Option<&mut Job> {
        let at = self.current(id)?;
        self.job_mut(at)
    }

    /// Handles an answer; `None`, if it was not in time.
    pub(super) fn fetched(
        &mut self,
        ticket: Ticket,
        fetched: Option<Fetched>,
        context: &mut ShardContext<'_>,
    ) {
        match self.tickets.remove(&ticket) {
            Some(Request::After(after)) => {
                self.fetches -= 1;
                let Some(at) = self.current(after.id) else { return };
                let Some(job) = self.job_of(after.id) else { return };
                if job.phase != Phase::Request(ticket) {
                    return;
                }
                job.phase = Phase::Idle;
                match fetched {
                    None => self.not_answered(at, context),
                    Some(fetched) => {
                        job.failures = 0;
                        match self.table.get(at).map(|it| it.stage) {
                            Some(Stage::Live) => self.end_catch_up(at, &after, fetched, context),
                            _ => self.filled(at, &after, fetched, context),
                        }
                    }
                }
            }
            Some(Request::Last(checked)) => {
                self.checks -= 1;
                self.checked(checked, fetched, context);
            }
            Some(Request::Watermark(..)) | None => {}
        }
        self.forget_loss();
    }

    /// Resets the time of possible loss, if all topics were checked.
    pub(super) fn forget_loss(&mut self) {
        let is_done = self.epoch.is_some()
            && self.sweep.is_none()
            && self.urgent.is_empty()
            && self.checks == 0
            && self.jobs == 0;
        if is_done {
            self.lost_ns = None;
        }
    }

    fn not_answered(&mut self, at: u32, context: &mut ShardContext<'_>) {
        self.report_unknown(at, context.sink);
        // A broker that is parted may be losing messages meanwhile. The slow checks leave out a
        // topic with a job, so nothing else shows since when.
        self.note_unnoticed_loss(context.time.ns);
        let Some(job) = self.job_mut(at) else { return };
        let pause_ns = SECOND << job.failures;
        job.failures = (job.failures + 1).min(FAILURES_MAX);
        self.pause(at, pause_ns, context.time.ns);
    }

    pub(super) fn retry(&mut self, at: u32, now_ns: u64) {
        let Some(job) = self.job_mut(at) else { return };
        let pause_ns = AGAIN_NS.get(usize::from(job.attempts)).copied();
        job.attempts = job.attempts.saturating_add(1);
        job.from_leader = usize::from(job.attempts) >= AGAIN_NS.len();
        (job.is_further, job.skips_last) = (false, false);
        self.pause(at, pause_ns.unwrap_or(SECOND), now_ns);
    }

    fn pause(&mut self, at: u32, pause_ns: u64, now_ns: u64) {
        let Some(id) = self.id(at) else { return };
        if let Some(job) = self.job_mut(at) {
            job.phase = Phase::Pausing;
            self.pauses.insert((now_ns.saturating_add(pause_ns), id));
        }
    }

    /// Has a topic fetched at once, with a changed job.
    pub(super) fn fetch_with(&mut self, at: u32, change: impl FnOnce(&mut Job)) {
        self.job_mut(at).map(change);
        self.fetch(at);
    }

    /// Requests the next page; `has_news`: whether the last page had a new message.
    pub(super) fn fetch_further(&mut self, at: u32, has_news: bool) {
        self.fetch_with(at, |job| (job.is_further, job.skips_last) = (true, !has_news));
    }

    pub(super) fn end_pauses(&mut self, now_ns: u64) {
        while self.pauses.first().is_some_and(|it| it.0 <= now_ns) {
            let Some((_, id)) = self.pauses.pop_first() else { break };
            if let Some(job) = self.job_of(id)
                && job.phase == Phase::Pausing
            {
                job.phase = Phase::Listed;
                self.fetch_queue.push_back(id);
            }
        }
    }

    /// Ends a topic's job. Nothing is missing for certain, if nothing was lost since the request.
    pub(super) fn finish(&mut self, at: u32, after: &FetchAfter, context: &mut ShardContext<'_>) {
        let Some(follow) = self.table.get_mut(at) else { return };
        let job = follow.job.take();
        self.jobs -= usize::from(job.is_some());
        self.settle(at, after.round, after.lost, context.sink);
    }

    /// Nothing was missing when the request was made; if something may be lost since then, the
    /// topic is checked again.
    pub(super) fn settle(&mut self, at: u32, round: u32, lost: u8, sink: &mut dyn HistorySink) {
        let current = self.round;
        let Some(id) = self.id(at) else { return };
        let Some(follow) = self.table.get_mut(at) else { return };
        if self.epoch.is_none() {
            // Over the next link all topics are checked.
            return;
        }
        if round != current || lost != follow.lost {
            return self.urgent.push_back(id);
        }
        follow.round = round;
        if follow.reported != Reported::Known {
            follow.reported = Reported::Known;
            sink.history(&follow.name, HistoryEvent::Known);
        }
    }

    /// A topic's stream, and the age of its messages in the broker, in whole seconds.
    fn stream_and_age(&self, topic: &Topic) -> (usize, u64) {
        (stream_of(&topic.name), self.wants(topic).age_ms / 1_000 * 1_000)
    }

    /// Requests the watermark of a topic that is about to begin, unless it is known. Returns until
    /// when to wait for it.
    pub(super) fn want_watermark(&mut self, at: u32, now_ns: u64) -> Option<u64> {
        let topic = self.table.get(at).filter(|it| it.stage == Stage::Filling)?;
        let subject = || self.prefix.topic(Space::Store, &topic.name);
        let of = self.stream_and_age(topic);
        self.watermarks.request(of, subject, now_ns)
    }

    fn awaits_watermark(&mut self, id: TopicId, now_ns: u64) -> bool {
        let Some(at) = self.current(id) else { return false };
        let Some(until_ns) = self.want_watermark(at, now_ns) else { return false };
        self.watermarks.wait(until_ns, id);
        true
    }

    fn next_watermark(&mut self, ticket: Ticket, now_ns: u64) -> Option<Fetch> {
        let (place, subject, age) = self.watermarks.next(now_ns)?;
        self.tickets.insert(ticket, Request::Watermark(place, subject.clone(), self.era));
        Some(Fetch::Since { subject, age })
    }

    pub(crate) fn watermark_answered(&mut self, ticket: Ticket, behind: Option<u64>, time: Time) {
        let Some(Request::Watermark(place, _, era)) = self.tickets.remove(&ticket) else { return };
        // The number is of another epoch.
        self.watermarks.answered(place, behind.filter(|_| era == self.era), time);
        self.end_watermark_waits(u64::MAX);
    }

    pub(super) fn end_watermark_waits(&mut self, now_ns: u64) {
        while let Some(id) = self.watermarks.pop_waiting(now_ns) {
            self.fetch_queue.push_back(id);
        }
    }

    /// The number behind which nothing of a topic is too old to be there, if it is known now.
    pub(super) fn watermark_of(&self, at: u32, time: Time) -> Option<u64> {
        let topic = self.table.get(at)?;
        self.watermarks.get(self.stream_and_age(topic), time)
    }
}
