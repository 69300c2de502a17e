//! What the engine is asked of topics, how much of it at once, and what follows from the answers.

use super::follow::{Id, Job, Last, Phase, Stage};
use super::follows::{Ears, Follows, SECOND, stream_of};
use super::said::{HistoryEvent, HistorySink};
use crate::adapter::{Fetch, Fetched, LAST_OF_MAX, Ticket};
use crate::subject::{Space, Subject};

const MILLISECOND: u64 = 1_000_000;
/// An answer that does not reach what is needed is asked for again after these; what holds the
/// copies together has the last word.
const AGAIN_NS: [u64; 3] = [50 * MILLISECOND, 200 * MILLISECOND, 1_000 * MILLISECOND];
/// Pauses after questions that were not answered at all: 1 s, doubled up to this often.
const FAILURES_MAX: u8 = 3;
/// Messages of one answer, and their bytes.
const PAGE_COUNT: u32 = 256;
const PAGE_BYTES: usize = 1 << 20;
/// Of a topic that is filled, so many at once.
const FILL_COUNT: u32 = 1_000;
/// Questions for the last numbers of topics that may be under way.
pub(super) const CHECKS_MAX: usize = 4;

/// What was asked.
#[derive(Debug)]
pub(super) enum Asked {
    After(After),
    Last(Checked),
    /// Which of the floors, by which subject, and in which of the engine's epochs.
    Floor(usize, Subject, u32),
}

/// A topic's messages behind a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct After {
    pub(super) id: Id,
    /// When: nothing that was lost before matters after its answer.
    pub(super) round: u32,
    pub(super) lost: u8,
    /// The last number that was known.
    pub(super) last: u64,
    /// It is not the first of a row of pages.
    pub(super) is_further: bool,
    pub(super) skips_last: bool,
    pub(super) from_leader: bool,
    /// The highest number of the topic's stream that was known.
    pub(super) known: u64,
}

/// The last numbers of topics, by where those stand; and how often something of each was lost.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) topics: Vec<(Id, u8)>,
    pub(super) era: u32,
    pub(super) round: u32,
}

impl Follows {
    /// The next question, if one may be under way.
    pub(super) fn next_fetch(&mut self, ticket: Ticket, now_ns: u64) -> Option<Fetch> {
        self.epoch?;
        while self.fetches < self.config.fetches_max {
            if let Some(fetch) = self.next_floor(ticket, now_ns) {
                return Some(fetch);
            }
            let Some(id) = self.asks.pop_front() else { break };
            if self.awaits_floor(id, now_ns) {
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
            self.want_floor(id.at, now_ns);
        }
        let subjects = topics.iter().filter_map(|(id, _)| self.subject(id.at)).collect();
        let checked = Checked { topics, era: self.era, round: self.round };
        self.tickets.insert(ticket, Asked::Last(checked));
        self.checks += 1;
        Some(Fetch::LastOf { subjects })
    }

    fn subject(&self, at: u32) -> Option<Subject> {
        self.table.get(at).map(|it| self.prefix.topic(Space::Store, &it.name))
    }

    fn fetch_after(&mut self, id: Id, ticket: Ticket) -> Option<Fetch> {
        let at = self.current(id)?;
        let subject = self.subject(at)?;
        let round = self.round;
        let follow = self.table.get(at)?;
        let known = self.highest.get(stream_of(&follow.name)).copied().unwrap_or_default();
        let wants = self.wants(follow);
        let follow = self.table.get_mut(at)?;
        let job = follow.job.as_deref_mut().filter(|it| it.phase == Phase::Listed)?;
        job.phase = Phase::Asked(ticket);
        let (seq, count, bytes) = match follow.stage {
            Stage::Live => (follow.last, PAGE_COUNT, PAGE_BYTES),
            _ => {
                let count = wants.count.clamp(1, FILL_COUNT).saturating_add(1);
                (job.fill.through, count, wants.bytes.clamp(PAGE_BYTES / 16, PAGE_BYTES))
            }
        };
        // With the last that is known: while that is there, nothing behind it was removed.
        let has_last = follow.stage != Stage::Live || follow.is_message;
        let seq = seq.saturating_sub(u64::from(has_last && !job.skips_last));
        let from_leader = job.from_leader;
        let after = After {
            id,
            round,
            lost: follow.lost,
            last: follow.last,
            is_further: job.is_further,
            skips_last: job.skips_last,
            from_leader,
            known,
        };
        self.tickets.insert(ticket, Asked::After(after));
        self.fetches += 1;
        Some(Fetch::After { subject, seq, count, bytes, from_leader })
    }

    /// The adapter has not taken a question now.
    pub(super) fn not_asked(&mut self, ticket: Ticket) {
        match self.tickets.remove(&ticket) {
            Some(Asked::After(After { id, .. })) => {
                self.fetches -= 1;
                if let Some(job) = self.job_of(id) {
                    job.phase = Phase::Listed;
                    self.asks.push_front(id);
                }
            }
            Some(Asked::Last(Checked { topics, .. })) => {
                self.checks -= 1;
                for (id, _) in topics.into_iter().rev() {
                    self.urgent.push_front(id);
                }
            }
            Some(Asked::Floor(place, subject, _)) => self.floor_not_asked(place, subject),
            None => {}
        }
    }

    fn job_of(&mut self, id: Id) -> Option<&mut Job> {
        let at = self.current(id)?;
        self.table.get_mut(at)?.job.as_deref_mut()
    }

    /// A question was answered, or was not in time.
    pub(super) fn fetched<T: HistorySink>(
        &mut self,
        ticket: Ticket,
        fetched: Option<Fetched>,
        ears: &mut Ears<'_, T>,
    ) {
        match self.tickets.remove(&ticket) {
            Some(Asked::After(after)) => {
                self.fetches -= 1;
                let Some(at) = self.current(after.id) else { return };
                let Some(job) = self.job_of(after.id) else { return };
                if job.phase != Phase::Asked(ticket) {
                    return;
                }
                job.phase = Phase::Idle;
                match fetched {
                    None => self.not_answered(at, ears),
                    Some(fetched) => {
                        job.failures = 0;
                        match self.table.get(at).map(|it| it.stage) {
                            Some(Stage::Live) => self.caught_up(at, &after, fetched, ears),
                            _ => self.filled(at, &after, fetched, ears),
                        }
                    }
                }
            }
            Some(Asked::Last(checked)) => {
                self.checks -= 1;
                self.checked(checked, fetched, ears);
            }
            Some(Asked::Floor(..)) | None => {}
        }
        self.forget_loss();
    }

    /// Nothing was lost that nobody has looked for.
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

    fn not_answered<T: HistorySink>(&mut self, at: u32, ears: &mut Ears<'_, T>) {
        self.unknown(at, ears.told);
        let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) else { return };
        let pause_ns = SECOND << job.failures;
        job.failures = (job.failures + 1).min(FAILURES_MAX);
        self.pause(at, pause_ns, ears.time.ns);
    }

    /// The answer did not reach what is needed: asks again later.
    pub(super) fn again(&mut self, at: u32, now_ns: u64) {
        let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) else { return };
        let pause_ns = AGAIN_NS.get(usize::from(job.attempts)).copied();
        job.attempts = job.attempts.saturating_add(1);
        job.from_leader = usize::from(job.attempts) >= AGAIN_NS.len();
        (job.is_further, job.skips_last) = (false, false);
        self.pause(at, pause_ns.unwrap_or(SECOND), now_ns);
    }

    fn pause(&mut self, at: u32, pause_ns: u64, now_ns: u64) {
        let Some(id) = self.id(at) else { return };
        if let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) {
            job.phase = Phase::Pausing;
            self.pauses.insert((now_ns.saturating_add(pause_ns), id));
        }
    }

    /// The next page, at once; the last brought something, or only what was known.
    pub(super) fn ask_further(&mut self, at: u32, has_news: bool) {
        if let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) {
            (job.is_further, job.skips_last) = (true, !has_news);
        }
        self.ask(at);
    }

    /// Asks of the leader at once: only who has all can say that there is nothing.
    pub(super) fn ask_leader(&mut self, at: u32) {
        if let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) {
            (job.from_leader, job.skips_last) = (true, false);
        }
        self.ask(at);
    }

    /// What is needed was reached; something else is missing now.
    pub(super) fn ask_anew(&mut self, at: u32) {
        if let Some(job) = self.table.get_mut(at).and_then(|it| it.job.as_mut()) {
            (job.attempts, job.from_leader) = (0, false);
            (job.is_further, job.skips_last) = (false, false);
        }
        self.ask(at);
    }

    /// Lists what has paused.
    pub(super) fn end_pauses(&mut self, now_ns: u64) {
        while self.pauses.first().is_some_and(|it| it.0 <= now_ns) {
            let Some((_, id)) = self.pauses.pop_first() else { break };
            if let Some(job) = self.job_of(id)
                && job.phase == Phase::Pausing
            {
                job.phase = Phase::Listed;
                self.asks.push_back(id);
            }
        }
    }

    /// A topic's job is done; it is certain that nothing is missing, if nothing was lost since the
    /// question.
    pub(super) fn finish<T: HistorySink>(
        &mut self,
        at: u32,
        after: &After,
        ears: &mut Ears<'_, T>,
    ) {
        let Some(follow) = self.table.get_mut(at) else { return };
        let job = follow.job.take();
        self.jobs -= usize::from(job.is_some());
        self.sure(at, after.round, after.lost, ears.told);
    }

    /// It is certain that nothing was missing when something was asked; if something may be since
    /// then, it is asked again.
    pub(super) fn sure(&mut self, at: u32, round: u32, lost: u8, told: &mut impl HistorySink) {
        let current = self.round;
        let Some(id) = self.id(at) else { return };
        let Some(follow) = self.table.get_mut(at) else { return };
        if self.epoch.is_none() {
            // The next link has all asked again.
            return;
        }
        if round != current || lost != follow.lost {
            return self.urgent.push_back(id);
        }
        follow.round = round;
        if follow.told != Last::Known {
            follow.told = Last::Known;
            told.history(&follow.name, HistoryEvent::Known);
        }
    }
}
