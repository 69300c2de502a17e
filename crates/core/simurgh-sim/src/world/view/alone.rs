//! The answers of a node without an engine to clients that resume: exact, since nothing is lost.

use simurgh_core::GapReason;
use simurgh_history::{Place, Position};

use super::TopicView;
use crate::kit::payload::field;
use crate::world::alone::{Proof, Resume};
use crate::world::ledger::{Entry, Ledger};
use crate::world::plan::HistoryPlan;

/// Whether clients receive only messages from after their first join.
fn is_only_own(ledger: &Ledger) -> bool {
    ledger.plan.history.as_ref().is_some_and(|it| it.rule.only_own)
}

impl TopicView {
    /// What is wrong with the answer to its resume.
    pub(super) fn wrong_alone(
        &mut self,
        ledger: &mut Ledger,
        at: Position,
        text: &str,
    ) -> Option<String> {
        let count = field(text, "\"count\":").and_then(|it| it.parse::<usize>().ok());
        let count = count.unwrap_or_default();
        ledger.counts.count("replayed", count as u64);
        let reason = field(text, "\"reason\":");
        if let Some(reason) = reason {
            ledger.counts.count(&format!("gaps: {reason}"), 1);
        }
        let reason = reason.and_then(GapReason::parse);
        let key = field(text, "\"key\":").map(str::to_owned);
        let wrong = self.wrong_answer(ledger, at, count, reason);
        let wrong = wrong.or_else(|| self.wrong_count(ledger, at, count));
        wrong.or_else(|| self.wrong_key(ledger, at, key))
    }

    fn wrong_answer(
        &self,
        ledger: &Ledger,
        at: Position,
        count: usize,
        reason: Option<GapReason>,
    ) -> Option<String> {
        let is_own = is_only_own(ledger) && self.proof != Proof::Key;
        match (self.resume, reason) {
            (Resume::Nothing, _) => Some("it has not opted in".to_owned()),
            (Resume::Bad, _) => Some("it has said nothing that can be read".to_owned()),
            (Resume::Honest(_) | Resume::Older(_), reason) if is_own => {
                let is_right = reason == Some(GapReason::Epoch) && count == 0;
                (!is_right).then(|| "it has not proved its first join".to_owned())
            }
            (Resume::Null, None) | (Resume::Older(_), _) => None,
            (Resume::Odd, Some(_)) => None,
            (Resume::Null | Resume::Odd, _) => Some("there is nothing to recover".to_owned()),
            (Resume::Honest(_), None) => self.wrong_recovery(ledger, at),
            (Resume::Honest(since), Some(reason)) => {
                let is_other = since.epoch != at.epoch;
                let has_reason = match reason {
                    GapReason::Epoch => is_other,
                    _ => !is_other && self.is_justified(ledger, at, since.place.seq, reason),
                };
                let is_back = !is_other && since.place > at.place;
                (!has_reason || is_back).then(|| format!("{reason:?} behind {since}"))
            }
        }
    }

    /// If no gap is reported, everything before was handled, or dropped by the client.
    fn wrong_recovery(&self, ledger: &Ledger, at: Position) -> Option<String> {
        let position = self.at?;
        if position.epoch != at.epoch || position.place > at.place {
            return Some(format!("it stands at {position}"));
        }
        let is_lost = |it: &&Entry| {
            let is_dropped = self.dropped.contains(&it.place) && !self.says_seen;
            it.place <= at.place && self.must_receive(ledger, it) && !is_dropped
        };
        let lost = ledger.log.behind(position, self.topic).iter().find(is_lost);
        lost.map(|lost| format!("it has not received {lost:?}, behind {position}"))
    }

    /// The count is that of messages that follow: at least those stored when it asked.
    fn wrong_count(&self, ledger: &Ledger, at: Position, count: usize) -> Option<String> {
        let is_others = |it: &&Entry| {
            let made = ledger.broadcasts.get(it.id as usize);
            let by = made.and_then(|it| ledger.sessions.client_of(it.except));
            !self.habits.has_id || by != Some(self.client)
        };
        let behind = ledger.log.behind(at, self.topic);
        let most = behind.iter().filter(is_others).count();
        let early = |it: &&Entry| it.place <= self.head && is_others(it);
        let least = behind.iter().filter(early).count();
        (count < least || count > most).then(|| format!("not {count}: {least} to {most}"))
    }

    /// A client that has not proved a first join gets a key; one that has gets no earlier messages.
    fn wrong_key(&mut self, ledger: &Ledger, at: Position, key: Option<String>) -> Option<String> {
        let is_own = is_only_own(ledger);
        let is_first = is_own && self.proof != Proof::Key;
        if is_first != key.is_some() {
            return Some(format!("{key:?} for {:?}", self.proof));
        }
        if let Some(key) = key {
            self.key = Some((key, at));
        }
        let is_before = |first: &Position| at.epoch == first.epoch && at.place < first.place;
        let first = self.key.as_ref().filter(|(_, first)| is_own && is_before(first));
        first.map(|(_, first)| format!("that is from before {first}"))
    }

    /// Whether a gap of that reason is true, for a client that resumes.
    pub(super) fn is_justified(
        &self,
        ledger: &Ledger,
        at: Position,
        since: u64,
        reason: GapReason,
    ) -> bool {
        let Some(HistoryPlan { rule, .. }) = &ledger.plan.history else { return true };
        let limits = &ledger.plan.config.history;
        let since = Position { place: Place::new(since), ..at };
        let missed = ledger.log.behind(since, self.topic);
        let bytes: u64 = missed.iter().map(|it| it.bytes).sum();
        let ms = |ns: u64| ns / 1_000_000;
        let age_ms = rule.age.as_millis() as u64;
        let is_old = |at_ns: u64| ms(ledger.clock_ns).saturating_sub(ms(at_ns)) >= age_ms;
        let first = missed.first();
        let is_expired = first.is_some_and(|it| it.place.seq <= at.place.seq && is_old(it.at_ns));
        let is_overwritten = missed.len() > rule.count || bytes > rule.bytes as u64;
        let may_be_evicted = limits.bytes_max < 1 << 20 && !missed.is_empty();
        let is_purged = ledger.order.is_purged(self.topic);
        match reason {
            // The reason is that of the message that was forgotten last.
            GapReason::Expired | GapReason::Overwritten | GapReason::Evicted => {
                is_expired || is_overwritten || may_be_evicted || is_purged
            }
            GapReason::Purged => is_purged,
            GapReason::TooMany => missed.len() > limits.replay_count,
            GapReason::TooLarge => bytes > limits.replay_bytes as u64,
            GapReason::Lost => self.says_seen || self.dropped_gap.is_some(),
            _ => false,
        }
    }
}
