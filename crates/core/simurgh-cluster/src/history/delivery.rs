//! What comes of a topic: judged by what was before, and told in order.

use bytes::Bytes;
use simurgh_history::{Arrival, Sequencer};

use super::events::{HistoryEvent, HistoryItem, HistoryPosition, HistorySink};
use super::own_envelopes::OwnEnvelopes;
use super::topic::{Stage, Topic, Waiting, stream_of};
use super::topics::{Context, Topics};
use crate::adapter::Number;
use crate::envelope::{Envelope, Kind};
use crate::node_id::NodeId;
use crate::time::{SECOND, Time};

/// An engine may forget so much before its time, or after.
const MARGIN_S: i64 = 5;

/// What a message is, to a topic that is live.
pub(super) enum Judged {
    Known,
    /// The next; if that is said, something before it may be missing that is not there any more.
    Next {
        has_gap: bool,
    },
    Hole,
}

impl Topics {
    /// A message of a topic that is followed.
    pub(super) fn arrive<T: HistorySink>(
        &mut self,
        at: u32,
        envelope: &Envelope<'_>,
        (bytes, number, at_ms): (&Bytes, Number, u64),
        context: &mut Context<'_, T>,
    ) {
        self.renew(at);
        self.note(at, number.seq);
        let Some(follow) = self.table.get(at) else { return };
        let judged = match follow.stage {
            // What waits goes before.
            Stage::Live if !follow.has_waiting(number.seq) => {
                self.judge(follow, number, context.time)
            }
            _ => Judged::Hole,
        };
        match judged {
            Judged::Known => {}
            Judged::Next { has_gap } => {
                if has_gap {
                    self.gap(at, number.seq.saturating_sub(1), context);
                }
                self.deliver(at, envelope, (number.seq, at_ms), context);
                // What a job has waiting may follow; it ends with its answer.
                self.drain(at, u64::MAX, context);
            }
            Judged::Hole => {
                let is_live = follow.stage == Stage::Live;
                if is_live && self.is_synced(follow) {
                    self.has_lost_unnoticed(context.time.ns);
                }
                let most = (self.config.queue_count, self.config.queue_bytes);
                let at_ms = if at_ms == 0 { context.time.unix_ms } else { at_ms };
                let waiting = Waiting { number, at_ms, envelope: bytes.clone() };
                self.job(at, |job| {
                    job.is_hole |= is_live;
                    job.wait(waiting, most);
                });
                if is_live {
                    self.ask(at);
                }
            }
        }
    }

    /// A number of a topic's stream is known.
    pub(super) fn note(&mut self, at: u32, seq: u64) {
        let Some(follow) = self.table.get(at) else { return };
        if let Some(highest) = self.highest.get_mut(stream_of(&follow.name)) {
            *highest = seq.max(*highest);
        }
    }

    pub(super) fn judge(&self, follow: &Topic, number: Number, time: Time) -> Judged {
        let is_synced = self.is_synced(follow);
        let previous = Some(number.prev).filter(|it| *it > 0);
        let arrival = Sequencer::new(Some(follow.last)).arrive(number.seq, previous, is_synced);
        match arrival {
            Arrival::Known => Judged::Known,
            Arrival::Hole { .. } if number.prev > follow.last => Judged::Hole,
            // When it was stored there was nothing any more behind the last that is known, or not
            // even that: what there may have been meanwhile cannot be fetched.
            _ if !is_synced && (number.prev == 0 || number.prev < follow.last) => {
                Judged::Next { has_gap: self.may_have_missed(follow, 0, true, time.ns) }
            }
            _ => Judged::Next { has_gap: false },
        }
    }

    /// Whether it is certain that nothing is missing up to now.
    pub(super) fn is_synced(&self, follow: &Topic) -> bool {
        follow.round == self.round && !follow.is_suspect
    }

    /// Whether something may have been stored and removed behind the last number that is known,
    /// where the last message that is known is not there any more either, and so many follow it
    /// there, which may be all.
    ///
    /// An engine forgets of a topic the oldest first. So while the last that is known is there,
    /// nothing behind it was removed. If it is not, it was too old or there were too many: too old
    /// is nothing yet of what may have been missed, if it is not so long ago that something was
    /// lost; and if there were too many, then so many are still there. Both hold for an engine that
    /// keeps what all patterns want; if it keeps less, its size being bounded, what it removed
    /// before its time is seen by the last that is known not being there.
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

    /// Tells a message that waited, or was fetched, whatever it is: its number is known then.
    pub(super) fn deliver_bytes<T: HistorySink>(
        &mut self,
        at: u32,
        bytes: &Bytes,
        (seq, at_ms): (u64, u64),
        context: &mut Context<'_, T>,
    ) {
        let Some(follow) = self.table.get(at) else { return };
        match Envelope::decode(bytes) {
            Ok(envelope) if is_kept(&envelope, &follow.name) => {
                self.deliver(at, &envelope, (seq, at_ms), context);
            }
            // A stranger's, a newer version's, or of another topic whose name has the same hash.
            _ => {
                context.counts.broken += 1;
                self.advance(at, (seq, at_ms), context.time);
            }
        }
    }

    /// Tells a message that is the next.
    pub(super) fn deliver<T: HistorySink>(
        &mut self,
        at: u32,
        envelope: &Envelope<'_>,
        (seq, at_ms): (u64, u64),
        context: &mut Context<'_, T>,
    ) {
        self.advance(at, (seq, at_ms), context.time);
        let Some(follow) = self.table.get(at) else { return };
        if envelope.header.kind == Kind::Forget {
            context
                .told
                .history(&follow.name, HistoryEvent::Purged(HistoryPosition { seq, index: 0 }));
        }
        for item in items(envelope, (seq, at_ms), (context.me, &*context.sent, context.time)) {
            context.told.history(&follow.name, HistoryEvent::Next(item));
        }
        heard(envelope, context);
    }

    fn advance(&mut self, at: u32, (seq, at_ms): (u64, u64), time: Time) {
        let Some(follow) = self.table.get_mut(at) else { return };
        follow.last = follow.last.max(seq);
        follow.reach = follow.reach.max(seq);
        (follow.is_message, follow.is_suspect) = (true, false);
        follow.stored_s = stored_s(at_ms, time);
    }

    /// Tells that something is missing up to a number, unless that was told; whether it was not.
    pub(super) fn gap<T: HistorySink>(
        &mut self,
        at: u32,
        through: u64,
        context: &mut Context<'_, T>,
    ) -> bool {
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
        context.told.history(&follow.name, HistoryEvent::Gap { through });
        true
    }

    /// Tells what waited and follows now, up to a number; whether something is still missing before
    /// the rest.
    pub(super) fn drain<T: HistorySink>(
        &mut self,
        at: u32,
        through: u64,
        context: &mut Context<'_, T>,
    ) -> bool {
        loop {
            let Some(follow) = self.table.get(at) else { return false };
            let Some(job) = &follow.job else { return false };
            let Some(number) = job.queue.front().map(|it| it.number) else { break };
            if number.seq > through {
                return false;
            }
            let judged = self.judge(follow, number, context.time);
            if matches!(judged, Judged::Hole) {
                return true;
            }
            let job = self.table.get_mut(at).and_then(|it| it.job.as_mut());
            let Some(waiting) = job.and_then(|it| it.pop()) else { break };
            if let Judged::Next { has_gap } = judged {
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
            // What found no room in the queue.
            Some(job) if job.dropped > last => {
                job.needed = job.needed.max(job.dropped);
                job.dropped = 0;
                true
            }
            _ => false,
        }
    }
}

/// What is told of an envelope, in order.
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

/// Whether an envelope is what is kept of a topic.
pub(super) fn is_kept(envelope: &Envelope<'_>, topic: &str) -> bool {
    matches!(envelope.header.kind, Kind::Broadcast | Kind::Forget) && envelope.topic == topic
}

/// It was told, and will not be again.
pub(super) fn heard<T>(envelope: &Envelope<'_>, context: &mut Context<'_, T>) {
    if envelope.header.origin == context.me {
        context.sent.heard(envelope.header.n);
    }
}

/// Seconds of this node's clock.
pub(super) fn seconds(ns: u64) -> i32 {
    i32::try_from(ns / SECOND).unwrap_or(i32::MAX)
}

/// When something was stored, in seconds of this node's clock.
pub(super) fn stored_s(at_ms: u64, time: Time) -> i32 {
    let ago_ms = if at_ms == 0 { 0 } else { time.unix_ms.saturating_sub(at_ms) };
    seconds(time.ns).saturating_sub(i32::try_from(ago_ms / 1_000).unwrap_or(i32::MAX))
}
