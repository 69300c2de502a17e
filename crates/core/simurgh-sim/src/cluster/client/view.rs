//! What the handlers of a client have received of a kept topic, over all its connections.

use simurgh_core::GapReason;
use simurgh_history::{Epoch, Place, Position};
use simurgh_proto::message::Payload;

use crate::kit::payload::{field, parse};

use crate::cluster::ledger::{Entry, Ledger};

#[derive(Debug)]
pub(crate) struct TopicView {
    client: u32,
    has_id: bool,
    topic: usize,
    pub(crate) at: Option<Position>,
    /// It has received the answer to its resume, since it joined last.
    pub(crate) is_resumed: bool,
    /// The position of a binary frame that is to follow.
    next: Option<Position>,
    /// What has arrived on this connection after it had left.
    dropped: Vec<Place>,
    dropped_gap: Option<Position>,
}

impl TopicView {
    pub(crate) fn new(client: u32, has_id: bool, topic: usize) -> Self {
        let (dropped, dropped_gap) = (Vec::new(), None);
        Self {
            client,
            has_id,
            topic,
            at: None,
            is_resumed: false,
            next: None,
            dropped,
            dropped_gap,
        }
    }

    fn must_receive(&self, ledger: &Ledger, entry: &Entry) -> bool {
        !self.is_left_out(ledger, entry.id) && ledger.broadcasts.get(entry.id as usize).is_some()
    }

    fn is_left_out(&self, ledger: &Ledger, id: u32) -> bool {
        let except = ledger.broadcasts.get(id as usize).map(|it| it.except);
        let by = except.and_then(|it| ledger.joins.get(it as usize));
        by.is_some_and(|it| it.client == self.client)
    }

    pub(crate) fn disconnected(&mut self) {
        (self.next, self.is_resumed) = (None, false);
        self.forget_dropped();
    }

    /// An event that is not about presences; `is_dropped`: its channel has ended or was replaced.
    pub(crate) fn receive(
        &mut self,
        ledger: &mut Ledger,
        (event, payload, at): (&str, &Payload<'_>, Option<Position>),
        is_dropped: bool,
    ) {
        let who = self.client;
        if event == "simurgh:next" {
            self.next = at;
            return;
        }
        let next = self.next.take();
        let Some(at) = at.or(next.filter(|_| payload.binary().is_some())) else {
            return ledger.fail("place", format!("client {who} hears {event} without a place"));
        };
        if is_dropped {
            if event == "simurgh:gap" {
                self.dropped_gap = Some(at);
            }
            return self.dropped.push(at.place);
        }
        match event {
            "simurgh:resumed" => self.check_resumed(ledger, at, payload),
            "simurgh:gap" => {
                let text = String::from_utf8_lossy(payload.data());
                self.check_gap(ledger, at, field(&text, "\"reason\":"));
            }
            "simurgh:at" => self.advance(ledger, at, None),
            _ => self.advance(ledger, at, Some(parse(payload).0)),
        }
    }

    /// The first entry that it must have received between its own place and another, exclusive.
    fn missed(&self, ledger: &Ledger, to: Position) -> Option<Entry> {
        let at = self.at?;
        let entries = ledger.log.of(to.epoch, self.topic)?;
        let is_between = |it: &&Entry| it.place > at.place && it.place < to.place;
        let is_missed = |it: &&Entry| {
            let is_dropped = self.dropped.contains(&it.place)
                || self.has_dropped_gap(to.epoch).is_some_and(|gap| it.place <= gap);
            is_between(it) && self.must_receive(ledger, it) && !is_dropped
        };
        entries.iter().find(is_missed).copied()
    }

    /// Handles a position: of a broadcast, or of one that is not for this client.
    fn advance(&mut self, ledger: &mut Ledger, at: Position, id: Option<u32>) {
        let who = self.client;
        let entry = ledger.log.at(at, self.topic);
        if let Some(id) = id {
            ledger.counts.count("heard", 1);
            if entry.is_none_or(|it| it.id != id) {
                let text = format!("client {who} hears #{id} at {at}, where {entry:?} is stored");
                return ledger.fail("stored", text);
            }
            if self.is_left_out(ledger, id) && self.has_id {
                return ledger.fail("own", format!("client {who} hears its own #{id} at {at}"));
            }
        }
        let Some(before) = self.at.replace(at) else { return };
        let is_known = ledger.log.of(before.epoch, self.topic).is_some();
        if before.epoch != at.epoch {
            if is_known && self.has_dropped_gap(at.epoch).is_none() {
                ledger.fail("epoch", format!("client {who} hears {id:?} at {at} behind {before}"));
            }
            return;
        }
        // It may receive its own position, even twice.
        if before.place > at.place || (before.place == at.place && id.is_some()) {
            let text = format!("client {who} hears {id:?} at {at} behind {before}");
            return ledger.fail("twice", text);
        }
        self.at = Some(before);
        let missed = self.missed(ledger, at);
        let passed = entry.filter(|it| id.is_none() && self.must_receive(ledger, it));
        self.at = Some(at);
        if let Some(missed) = missed.or(passed) {
            let text = format!("client {who} hears {id:?} at {at} behind {before}: {missed:?}");
            ledger.fail("lost", text);
        }
    }

    fn check_gap(&mut self, ledger: &mut Ledger, at: Position, reason: Option<&str>) {
        let who = self.client;
        let parsed = reason.and_then(GapReason::parse);
        ledger.counts.count(
            match parsed {
                Some(GapReason::Epoch) => "gaps of epochs",
                Some(GapReason::Lost) => "gaps of what is lost",
                Some(GapReason::Unavailable) => "gaps without an engine",
                Some(GapReason::Purged) => "gaps of purges",
                _ => "gaps of limits",
            },
            1,
        );
        let before = self.at;
        let same = before.filter(|it| it.epoch == at.epoch);
        let wrong = match parsed {
            None => Some("no reason"),
            _ if ledger.is_whole => Some("nothing is missing"),
            // It has joined on a node that lags behind without a notice, in a parted engine.
            Some(GapReason::Epoch | GapReason::Unavailable)
                if same.is_some_and(|it| it.place > at.place) =>
            {
                None
            }
            Some(GapReason::Epoch) if same.is_some() => Some("it is of this epoch"),
            _ if same.is_some_and(|it| it.place > at.place) => Some("it is told to go back"),
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            let text =
                format!("client {who} is told {reason:?} at {at} behind {before:?}: {wrong}");
            ledger.fail("gap", text);
        }
        self.at = Some(at);
    }

    fn check_resumed(&mut self, ledger: &mut Ledger, at: Position, payload: &Payload<'_>) {
        let who = self.client;
        let text = String::from_utf8_lossy(payload.data()).into_owned();
        if self.is_resumed {
            ledger.fail("resumed", format!("client {who} is told {text} once more"));
        }
        if text.contains("\"recovered\":true") {
            ledger.counts.count("recovered", u64::from(self.at.is_some()));
            // Including this position; others with its number may follow.
            let item = at.place.item.saturating_add(1);
            let behind = Position { place: Place { item, ..at.place }, ..at };
            let wrong = match self.at {
                None => None,
                Some(before) if before.epoch != at.epoch => Some("another epoch".to_owned()),
                // Its former node had nothing up to there, so it has received less.
                Some(before) if before.place.item == Place::ITEM_MAX && before.place > at.place => {
                    None
                }
                Some(before) if before.place > at.place => Some("back".to_owned()),
                // It has received or dropped what is there.
                Some(before) if before.place == at.place => None,
                Some(before) if self.has_dropped_gap(at.epoch) > Some(before.place) => {
                    Some("it has dropped a gap".to_owned())
                }
                Some(_) => self.missed(ledger, behind).map(|it| format!("{it:?}")),
            };
            if let Some(wrong) = wrong {
                let text = format!("client {who} is told {text} at {at} by {:?}: {wrong}", self.at);
                ledger.fail("resumed", text);
            }
        } else {
            self.check_gap(ledger, at, field(&text, "\"reason\":"));
        }
        (self.at, self.is_resumed) = (Some(at), true);
        self.forget_dropped();
    }

    /// The end of a gap of an epoch that it has dropped.
    fn has_dropped_gap(&self, epoch: Epoch) -> Option<Place> {
        self.dropped_gap.filter(|it| it.epoch == epoch).map(|it| it.place)
    }

    fn forget_dropped(&mut self) {
        self.dropped.clear();
        self.dropped_gap = None;
    }

    pub(crate) fn check_rest(&self, ledger: &mut Ledger) {
        let who = self.client;
        let (Some(at), Some(epoch)) = (self.at, ledger.log.epoch()) else {
            return ledger.fail("rest", format!("client {who} is told no place: {self:?}"));
        };
        if !self.is_resumed {
            return ledger.fail("rest", format!("client {who} is not told what it has missed"));
        }
        let from = if at.epoch == epoch { at.place } else { Place::ZERO };
        let is_behind = |it: &&Entry| it.place > from && self.must_receive(ledger, it);
        let entries = ledger.log.of(epoch, self.topic).unwrap_or_default();
        if let Some(it) = entries.iter().find(is_behind).copied() {
            let text = format!("client {who} at {at} of {} has not heard {it:?}", self.topic);
            ledger.fail("rest", text);
        }
        ledger.counts.count("complete", 1);
    }
}
