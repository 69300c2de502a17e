//! Fetching messages that are missing before a received one, or that the broker has reported.

use super::delivery::Judgement;
use super::request::FetchAfter;
use super::topic::{Job, Stage, Waiting, is_forget};
use super::topics::{ShardContext, Topics};
use crate::adapter::{Fetched, Number, Received};

pub(super) fn seq_of(received: &Received) -> u64 {
    received.stored.map_or(0, |it| it.seq)
}

impl Topics {
    /// Handles a page of the messages behind the last known number.
    pub(super) fn end_catch_up(
        &mut self,
        at: u32,
        after: &FetchAfter,
        fetched: Fetched,
        context: &mut ShardContext<'_>,
    ) {
        let Fetched { messages, head, is_all } = fetched;
        let Some(follow) = self.table.get(at) else { return };
        let last = follow.last;
        let answered = messages.last().map_or(0, seq_of);
        let reach = if is_all { head.max(answered) } else { answered };
        // If the last known message is there, nothing behind it was removed. If it was received
        // since the request, the answer may be older, and what was before it was judged then.
        let is_there = follow.is_message && messages.iter().any(|it| seq_of(it) == last);
        let is_older = last > after.last && reach < last;
        let new = messages.iter().filter(|it| seq_of(it) > last);
        let count = new.clone().count();
        // Messages that a purge has removed were neither too old nor too many. The purge may be
        // stored between two pages.
        let first = new.clone().next();
        let is_purged = first.is_some_and(|it| is_forget(&follow.name, &it.envelope));
        let is_sure = is_there || is_older || (after.skips_last && !is_purged);
        let may_miss =
            !is_sure && (is_purged || self.may_have_missed(follow, count, is_all, context.time.ns));
        self.note(at, answered.max(head));
        for (place, message) in new.enumerate() {
            self.deliver_fetched(at, message, may_miss && place == 0, context);
        }
        if !is_all && (count > 0 || is_there) {
            return self.fetch_further(at, count > 0);
        }
        let needed = self.needed(at);
        let is_confirmed = self.is_confirmed(at, after, is_there || reach >= last);
        let is_reached = self.last(at) >= needed || reach >= needed;
        let is_enough = after.from_leader || (is_reached && is_confirmed);
        if !is_enough {
            return self.retry(at, context.time.ns);
        }
        // The answer is complete up to there: what it does not have is lost.
        let is_lost = count == 0 && may_miss;
        let through = if is_lost { needed.max(reach) } else { needed };
        if is_lost {
            // Also behind the waiting messages.
            self.change_job(at, |job| job.needed = job.needed.max(through));
        }
        let is_reported = self.gap_before_queue(at, through, context);
        // The end of the gap is unknown: the next message shows it.
        if is_lost
            && (!is_reported || reach == 0)
            && let Some(follow) = self.table.get_mut(at)
        {
            follow.is_suspect = true;
        }
        self.continue_job(at, after, context);
    }

    /// Delivers a fetched message, and before it the older ones that wait: the broker may not have
    /// those any more.
    fn deliver_fetched(
        &mut self,
        at: u32,
        message: &Received,
        may_miss: bool,
        context: &mut ShardContext<'_>,
    ) {
        let seq = seq_of(message);
        while let Some(waiting) = self.pop_up_to(at, seq) {
            let Some(follow) = self.table.get(at) else { return };
            let Number { seq: number, prev } = waiting.number;
            match self.judge(follow, waiting.number, context.time) {
                Judgement::Known => continue,
                Judgement::Next { has_gap: false } => {}
                Judgement::Next { has_gap: true } => {
                    self.gap(at, number.saturating_sub(1), context);
                }
                // A message between them would have been fetched.
                Judgement::Hole => {
                    self.gap(at, prev, context);
                }
            }
            self.deliver_bytes(at, &waiting.envelope, (number, waiting.at_ms), context);
            if number == seq {
                return;
            }
        }
        if may_miss {
            self.gap(at, seq.saturating_sub(1), context);
        }
        self.deliver_bytes(at, &message.envelope, (seq, message.at_ms), context);
    }

    fn pop_up_to(&mut self, at: u32, seq: u64) -> Option<Waiting> {
        let job = self.job_mut(at)?;
        let first = job.queue.front()?;
        if first.number.seq <= seq { job.pop() } else { None }
    }

    /// Reports a gap up to a number, but not beyond the queue. Returns whether it is new.
    pub(super) fn gap_before_queue(
        &mut self,
        at: u32,
        through: u64,
        context: &mut ShardContext<'_>,
    ) -> bool {
        let first =
            self.job(at).and_then(|it| it.queue.front()).map_or(u64::MAX, |it| it.number.seq);
        self.gap(at, through.min(first.saturating_sub(1)), context)
    }

    /// The highest number that the broker has had and that is missing; 0, if none is known.
    pub(super) fn needed(&self, at: u32) -> u64 {
        let Some(job) = self.job(at) else { return 0 };
        let first = job.queue.front().map_or(0, |it| it.number.prev);
        job.needed.max(first)
    }

    pub(super) fn last(&self, at: u32) -> u64 {
        self.table.get(at).map_or(0, |it| it.last)
    }

    fn is_confirmed(&self, at: u32, after: &FetchAfter, has_reached: bool) -> bool {
        after.is_further || has_reached || self.job(at).is_none_or(|it| !it.is_confirm)
    }

    /// Delivers the waiting messages when everything before them was received or is lost.
    pub(super) fn continue_job(
        &mut self,
        at: u32,
        after: &FetchAfter,
        context: &mut ShardContext<'_>,
    ) {
        let round = self.round;
        if let Some(follow) = self.table.get_mut(at)
            && (after.round, after.lost) == (round, follow.lost)
        {
            // Messages stored since the request arrive by themselves, or wait.
            follow.round = round;
        }
        let Some(job) = self.job(at) else { return };
        let needed = job.needed;
        let mut is_incomplete = self.drain(at, needed, context);
        if !is_incomplete {
            // Missing messages up to there are lost.
            self.gap(at, needed, context);
            is_incomplete = self.drain(at, u64::MAX, context);
        }
        if is_incomplete {
            self.mark_unsure(at);
            return self.fetch_with(at, |job| {
                (job.attempts, job.from_leader) = (0, false);
                (job.is_further, job.skips_last) = (false, false);
            });
        }
        let Some(job) = self.job(at) else { return };
        let is_filled = job.is_hole && !job.has_gap;
        context.counts.holes_filled += u64::from(is_filled && self.last(at) >= needed);
        self.finish(at, after, context);
    }

    /// Fetches what is missing up to a message of the broker that this node does not have.
    pub(super) fn fetch_up_to(&mut self, at: u32, seq: u64, now_ns: u64) {
        let Some(follow) = self.table.get(at) else { return };
        let is_live = follow.stage == Stage::Live;
        if is_live && self.is_synced(follow) {
            self.note_unnoticed_loss(now_ns);
        }
        self.change_job(at, |job: &mut Job| {
            job.needed = job.needed.max(seq);
            job.is_hole |= is_live;
        });
        self.fetch(at);
    }

    /// Fetches messages that the broker has reported and that did not arrive.
    pub(super) fn fetch_late(&mut self, now_ns: u64) {
        while let Some((_, id, seq)) = self.late.pop_front_if(|it| it.0 <= now_ns) {
            let Some(at) = self.current(id) else { continue };
            let Some(follow) = self.table.get(at) else { continue };
            match follow.stage {
                Stage::Live if seq > follow.last => self.fetch_up_to(at, seq, now_ns),
                // A fill without an epoch is requested again.
                Stage::Filling if self.epoch.is_some() => self.fetch_up_to(at, seq, now_ns),
                _ => {}
            }
        }
    }
}
