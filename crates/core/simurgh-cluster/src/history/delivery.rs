//! Messages of a topic: judged by those before them, and delivered in order.

use bytes::Bytes;

use super::events::{HistoryEvent, HistoryItem};
use super::own_envelopes::OwnEnvelopes;
use super::topic::{Stage, Topic, Waiting, stream_of};
use super::topics::{ShardContext, Topics};
use crate::adapter::Number;
use crate::envelope::{Envelope, Kind};
use crate::node_id::NodeId;
use crate::time::{SECOND, Time};

/// By how many seconds a broker may remove messages too early or too late.
const MARGIN_S: i64 = 5;

/// The place of a message in a live topic.
pub(super) enum Judgement {
    Known,
    /// The next message; with a gap, messages before it may be lost.
    Next {
        has_gap: bool,
    },
    Hole,
}

impl Topics {
    pub(super) fn arrive(
        &mut self,
        at: u32,
        envelope: &Envelope<'_>,
        (bytes, number, at_ms): (&Bytes, Number, u64),
        context: &mut ShardContext<'_>,
    ) {
        self.renew(at);
        self.note(at, number.seq);
        let Some(follow) = self.table.get(at) else { return };
        let judged = match follow.stage {
            // Waiting messages are delivered first.
            Stage::Live if !follow.has_waiting(number.seq) => {
                self.judge(follow, number, context.time)
            }
            _ => Judgement::Hole,
        };
        match judged {
            Judgement::Known => {}
            Judgement::Next { has_gap } => {
                if has_gap {
                    self.gap(at, number.seq.saturating_sub(1), context);
                }
                self.deliver(at, envelope, (number.seq, at_ms), context);
                // Waiting messages may follow; the job ends with its answer.
                self.drain(at, u64::MAX, context);
            }
            Judgement::Hole => {
                let is_live = follow.stage == Stage::Live;
                if is_live && self.is_synced(follow) {
                    self.note_unnoticed_loss(context.time.ns);
                }
                let most = (self.config.queue_count, self.config.queue_bytes);
                let at_ms = if at_ms == 0 { context.time.unix_ms } else { at_ms };
                let waiting = Waiting { number, at_ms, envelope: bytes.clone() };
                self.change_job(at, |job| {
                    job.is_hole |= is_live;
                    job.wait(waiting, most);
                });
                if is_live {
                    self.fetch(at);
                }
            }
        }
    }

    pub(super) fn note(&mut self, at: u32, seq: u64) {
        let Some(follow) = self.table.get(at) else { return };
        if let Some(highest) = self.highest.get_mut(stream_of(&follow.name)) {
            *highest = seq.max(*highest);
        }
    }

    pub(super) fn judge(&self, follow: &Topic, number: Number, time: Time) -> Judgement {
        if number.seq <= follow.last {
            return Judgement::Known;
        }
        if number.prev > follow.last {
            return Judgement::Hole;
        }
        // When it was stored, the broker had nothing behind the last known message, or not even
        // that: messages between cannot be fetched any more.
        let is_unsure = (number.prev == 0 || number.prev < follow.last) && !self.is_synced(follow);
        Judgement::Next { has_gap: is_unsure && self.may_have_missed(follow, 0, true, time.ns) }
    }

    /// Whether certainly nothing is missing.
    pub(super) fn is_synced(&self, follow: &Topic) -> bool {
        follow.round == self.round && !follow.is_suspect
    }

    /// Whether messages may have been stored and removed behind the last known one, if that is not
    /// there any more and `count` messages follow it there; `is_all`: there are no more.
    ///
    /// A broker removes the oldest of a topic first. So while the last known message is there,
    /// nothing behind it was removed. If it is not, it was too old or there were too many. What may
    /// have been missed is not too old, if messages were lost recently enough; and if there were
    /// too many, as many are still there. Both hold for a broker that stores as much as all
    /// patterns want; if it stores less, because its size is bounded, removed messages show by the
    /// last known one being removed before its time.
    pub(super) fn may_have_missed(
        &self,
        follow: &Topic,
        count: usize,
        is_all: bool,
        now_ns: u64,
    ) -> bool {
        let wants = self.wants(follow);
        let age_s = match wants.age_ms {
            0 => i64::MAX,
            age_ms => i64::try_from(age_ms / 1_000).unwrap_or(i64::MAX),
        };
        let lost_ns = self.lost_ns.map_or(0, |it| now_ns.saturating_sub(it));
        let lost_s = (lost_ns / SECOND) as i64;
        let stored_s = i64::from(seconds(now_ns)) - i64::from(follow.stored_s);
        follow.is_suspect
            || lost_s + MARGIN_S >= age_s
            || !is_all
            || count >= wants.count as usize
            || (follow.is_message && stored_s.saturating_add(MARGIN_S) < age_s)
    }

    /// Delivers a message that waited or was fetched. Its number counts even if it is malformed.
    pub(super) fn deliver_bytes(
        &mut self,
        at: u32,
        bytes: &Bytes,
        (seq, at_ms): (u64, u64),
        context: &mut ShardContext<'_>,
    ) {
        let Some(follow) = self.table.get(at) else { return };
        match Envelope::decode(bytes) {
            Ok(envelope) if is_kept(&envelope, &follow.name) => {
                self.deliver(at, &envelope, (seq, at_ms), context);
            }
            // Malformed, of a newer version, or of another topic whose name has the same hash.
            _ => {
                context.counts.broken += 1;
                self.advance(at, (seq, at_ms), context.time);
            }
        }
    }

    pub(super) fn deliver(
        &mut self,
        at: u32,
        envelope: &Envelope<'_>,
        (seq, at_ms): (u64, u64),
        context: &mut ShardContext<'_>,
    ) {
        self.advance(at, (seq, at_ms), context.time);
        let Some(follow) = self.table.get(at) else { return };
        if envelope.header.kind == Kind::Forget {
            context.sink.history(&follow.name, HistoryEvent::Purged { seq, index: 0 });
        }
        for item in items(envelope, (seq, at_ms), (context.me, &*context.sent, context.time)) {
            context.sink.history(&follow.name, HistoryEvent::Next(item));
        }
        delivered(envelope, context);
    }

    fn advance(&mut self, at: u32, (seq, at_ms): (u64, u64), time: Time) {
        let Some(follow) = self.table.get_mut(at) else { return };
        follow.last = follow.last.max(seq);
        follow.reach = follow.reach.max(seq);
        (follow.is_message, follow.is_suspect) = (true, false);
        follow.stored_s = stored_s(at_ms, time);
    }

    /// Reports a gap up to a number, unless it was reported before. Returns whether it was not.
    pub(super) fn gap(&mut self, at: u32, through: u64, context: &mut ShardContext<'_>) -> bool {
        let Some(follow) = self.table.get_mut(at) else { return false };
        if through <= follow.last {
            return false;
        }
        (follow.last, follow.is_message, follow.is_suspect) = (through, false, false);
        follow.stored_s = seconds(context.time.ns);
        if through <= follow.reach {
            return false;
        }
        follow.reach = through;
        if let Some(job) = &mut follow.job {
            job.has_gap = true;
        }
        context.counts.gaps += 1;
        context.sink.history(&follow.name, HistoryEvent::Gap { through });
        true
    }

    /// Delivers the waiting messages that are next, up to a number. Returns whether something is
    /// still missing before the rest.
    pub(super) fn drain(&mut self, at: u32, through: u64, context: &mut ShardContext<'_>) -> bool {
        loop {
            let Some(follow) = self.table.get(at) else { return false };
            let Some(job) = &follow.job else { return false };
            let Some(number) = job.queue.front().map(|it| it.number) else { break };
            if number.seq > through {
                return false;
            }
            let judged = self.judge(follow, number, context.time);
            if matches!(judged, Judgement::Hole) {
                return true;
            }
            let job = self.job_mut(at);
            let Some(waiting) = job.and_then(|it| it.pop()) else { break };
            if let Judgement::Next { has_gap } = judged {
                if has_gap {
                    self.gap(at, number.seq.saturating_sub(1), context);
                }
                let Waiting { envelope, at_ms, .. } = waiting;
                self.deliver_bytes(at, &envelope, (number.seq, at_ms), context);
            }
        }
        let Some(follow) = self.table.get_mut(at) else { return false };
        let last = follow.last;
        match &mut follow.job {
            // Messages for which the queue had no room.
            Some(job) if job.dropped > last => {
                job.needed = job.needed.max(job.dropped);
                job.dropped = 0;
                true
            }
            _ => false,
        }
    }
}

pub(super) fn items<'a: 's, 's>(
    envelope: &Envelope<'a>,
    (seq, at_ms): (u64, u64),
    (me, sent, time): (NodeId, &'s OwnEnvelopes, Time),
) -> impl Iterator<Item = HistoryItem<'a>> + use<'a, 's> {
    let is_own = envelope.header.origin == me;
    let at_ms = if at_ms == 0 { time.unix_ms } else { at_ms };
    let numbers = if is_own { sent.numbers(envelope.header.n) } else { &[] };
    let items = (0..=u16::MAX).zip(envelope.items());
    items.map(move |(index, mut item)| {
        if !is_own {
            item.except = None;
        }
        let mine = numbers.get(usize::from(index)).copied();
        HistoryItem { seq, index, at_ms, mine, item }
    })
}

/// Whether an envelope is a stored message of this topic.
pub(super) fn is_kept(envelope: &Envelope<'_>, topic: &str) -> bool {
    matches!(envelope.header.kind, Kind::Broadcast | Kind::Forget) && envelope.topic == topic
}

/// Records the only delivery of an envelope.
pub(super) fn delivered(envelope: &Envelope<'_>, context: &mut ShardContext<'_>) {
    if envelope.header.origin == context.me {
        context.sent.receive(envelope.header.n);
    }
}

/// Seconds of this node's clock.
pub(super) fn seconds(ns: u64) -> i32 {
    i32::try_from(ns / SECOND).unwrap_or(i32::MAX)
}

/// When a message was stored, in seconds of this node's clock.
pub(super) fn stored_s(at_ms: u64, time: Time) -> i32 {
    let ago_ms = if at_ms == 0 { 0 } else { time.unix_ms.saturating_sub(at_ms) };
    seconds(time.ns).saturating_sub(i32::try_from(ago_ms / 1_000).unwrap_or(i32::MAX))
}
