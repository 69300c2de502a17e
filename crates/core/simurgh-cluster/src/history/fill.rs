//! Filling a topic with what the broker has.

use super::catch_up::seq_of;
use super::delivery::{delivered, is_kept, items, stored_s};
use super::events::{HistoryEvent, HistoryItem};
use super::request::FetchAfter;
use super::topic::{Reported, Stage};
use super::topics::{ShardContext, Topics};
use crate::adapter::{Fetched, Received};
use crate::envelope::Envelope;
use simurgh_data::prelude::*;

impl Topics {
    pub(super) fn filled(
        &mut self,
        at: u32,
        after: &FetchAfter,
        fetched: Fetched,
        context: &mut ShardContext<'_>,
    ) {
        let Fetched { messages, head, is_all } = fetched;
        self.note(at, messages.last().map_or(0, seq_of).max(head));
        if messages.is_empty() && head == 0 && !after.from_leader {
            // It has nothing, and does not report up to which number: only the leader can know.
            return self.fetch_with(at, |job| (job.from_leader, job.skips_last) = (true, false));
        }
        let Some(follow) = self.table.get(at) else { return };
        let wants = self.wants(follow);
        let Some(follow) = self.table.get_mut(at) else { return };
        let Some(job) = follow.job.as_deref_mut() else { return };
        let before = job.fill.through;
        let is_there = messages.first().is_some_and(|it| seq_of(it) == before);
        let follows = after.skips_last || job.fill.precedes(&messages, head);
        job.fill.add(&follow.name, (messages, follows), (wants.count as usize, wants.bytes));
        let through = job.fill.through;
        // The queue begins there or before, so it has the rest.
        let has_met = job.queue.front().is_some_and(|it| it.number.seq <= through);
        if !is_all && !has_met && (through > before || (is_there && !after.skips_last)) {
            return self.fetch_further(at, through > before);
        }
        let mut reach = if is_all { head.max(through) } else { through };
        if after.from_leader && is_all {
            reach = reach.max(after.known);
        }
        if self.needed(at) > reach && !has_met && !after.from_leader {
            return self.retry(at, context.time.ns);
        }
        let needed = if has_met { 0 } else { self.needed(at) };
        self.report_begun(at, (reach, is_all), context);
        self.gap_before_queue(at, needed, context);
        self.continue_job(at, after, context);
    }

    /// Begins a topic of which the broker has nothing up to this number.
    pub(super) fn begin_empty(
        &mut self,
        at: u32,
        head: u64,
        (round, lost): (u32, u8),
        context: &mut ShardContext<'_>,
    ) {
        self.report_begun(at, (head, true), context);
        self.settle(at, round, lost, context.sink);
    }

    /// Reports the messages of a topic, all up to `head`; `is_all`: the broker has no more. What
    /// arrived by itself since the topic is followed is reported as the next messages, even if it
    /// was fetched as well: members who were here before receive it.
    fn report_begun(
        &mut self,
        at: u32,
        (head, is_all): (u64, bool),
        context: &mut ShardContext<'_>,
    ) {
        let epoch = self.known_epoch;
        let Some(follow) = self.table.get(at) else { return };
        let count = self.wants(follow).count as usize;
        let young = self.watermark_of(at, context.time).filter(|_| is_all);
        // The broker has nothing, and reports no number; it answered after the watermark was known.
        let head = if head > 0 { head } else { young.unwrap_or_default() };
        let Some(follow) = self.table.get_mut(at) else { return };
        let came = follow.job.as_ref().and_then(|it| it.queue.front()).map(|it| it.number.seq);
        let came = came.unwrap_or(u64::MAX).max(1);
        let fill = follow.job.as_mut().map(|it| core::mem::take(&mut it.fill));
        let fill = fill.unwrap_or_default();
        (follow.stage, follow.reported) = (Stage::Live, Reported::Known);
        // Only with the number of the message: the next one names that as its predecessor.
        follow.is_message = fill.through > 0;
        follow.last = if follow.is_message { fill.through } else { head };
        follow.reach = head.max(fill.through);
        let last_ms = fill.messages.back().map_or(0, |it| it.at_ms);
        follow.stored_s = stored_s(last_ms, context.time);
        let (floor, purged) = (fill.floor(head, young, count), fill.purged);
        let decoded = fill.messages.iter().filter_map(|it| {
            let envelope = Envelope::decode(&it.envelope).ok();
            let envelope = envelope.filter(|it| is_kept(it, &follow.name));
            context.counts.broken += u64::from(envelope.is_none());
            Some((it, envelope?))
        });
        let decoded: Vec<(&Received, Envelope<'_>)> = decoded.collect();
        let new = decoded.partition_point(|(received, _)| seq_of(received) < came);
        let (old, new) = decoded.split_at(new);
        let head = head.min(came - 1).max(floor);
        let whose = (context.me, &*context.sent, context.time);
        let messages = old.iter().flat_map(|(received, envelope)| {
            items(envelope, (seq_of(received), received.at_ms), whose)
        });
        let messages: Vec<HistoryItem<'_>> = messages.collect();
        context.counts.fills += 1;
        context
            .sink
            .history(&follow.name, HistoryEvent::Begun { epoch, floor, purged, head, messages });
        for (_, envelope) in old {
            delivered(envelope, context);
        }
        for (received, envelope) in new {
            self.deliver(at, envelope, (seq_of(received), received.at_ms), context);
        }
        if self.epoch.is_none() {
            self.report_unknown(at, context.sink);
        }
    }
}
