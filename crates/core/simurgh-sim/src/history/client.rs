//! Clients that do as `phoenix.js` does with `simurgh-resume.js`: they remember the position of the
//! last message that their handlers received, send it when they join again, and must receive
//! everything once, in the order in which it was stored.

use crate::kit::client::{self, Connection, number_of};
use crate::kit::{EVENTS, NONE, payload};
use simurgh_core::{GapReason, Position, Wire};
use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::serializer::ServerMessage;

use super::app::PUSH;
use super::ledger::{JoinRequest, Ledger, SWALLOWED, Stored};
use super::plan::Plan;
use super::resume::{Proof, Resume};

const UNMATCHED: &str = r#"{"reason":"unmatched topic"}"#;
const UNCONFIRMED: &str = r#"{"reason":"unconfirmed"}"#;
const BAD_RESUME: &str = r#"{"reason":"bad resume"}"#;
const TIMED_OUT: &str = r#"{"reason":"join timed out"}"#;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Joined {
    pub(crate) join_ref: u32,
    pub(crate) is_joined: bool,
    pub(crate) resume: Resume,
    pub(crate) says_seen: bool,
    pub(crate) proof: Proof,
    /// How many messages were stored when it joined.
    pub(crate) stored: usize,
    pub(crate) is_resumed: bool,
    /// It received a message after it had dropped an earlier one.
    is_torn: bool,
    /// And did not drop all of those itself, and was sent no gap.
    is_owed: bool,
    /// Without positions: the place in the order that is next.
    next: Option<usize>,
}

impl Joined {
    /// Whether a client joins again, or leaves, only after the answer to its resume: a calm one;
    /// one with V1, whose answers do not name their join; and one that resumes from nothing.
    pub(crate) fn must_wait(&self, is_calm: bool, wire: Wire) -> bool {
        let is_first = self.resume == Resume::Null;
        let is_told = matches!(self.resume, Resume::Nothing | Resume::Bad) || self.is_resumed;
        (is_calm || is_first || wire == Wire::V1) && !is_told
    }
}

#[derive(Debug, Default)]
pub(crate) struct TopicView {
    pub(crate) current: Option<Joined>,
    /// The last position that its handlers received.
    pub(crate) position: Option<Position>,
    /// The last that has arrived on this connection.
    pub(crate) arrived: Option<Position>,
    /// The position of a binary frame that is to follow.
    next: Option<Position>,
    /// Messages that arrived on this connection after it had left.
    pub(crate) dropped: Vec<u64>,
    /// It has joined or left before the answer to its resume.
    pub(crate) is_untold: bool,
    /// The proof of its first join, and the position of that.
    pub(crate) key: Option<(String, Position)>,
}

pub(crate) struct Client {
    pub(crate) number: u32,
    pub(crate) id: u32,
    pub(crate) opts_in: bool,
    pub(crate) intercepts: bool,
    pub(crate) wire: Wire,
    pub(crate) connection: Option<Connection>,
    pub(crate) refs: u32,
    pub(crate) views: Vec<TopicView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Must,
    May,
    Never,
}

impl client::Client for Client {
    fn connection(&mut self) -> &mut Option<Connection> {
        &mut self.connection
    }

    fn wire(&self) -> Wire {
        self.wire
    }

    fn disconnected(&mut self) {
        self.connection = None;
        for view in &mut self.views {
            (view.current, view.next, view.is_untold) = (None, None, false);
            view.arrived = None;
            view.dropped.clear();
        }
    }
}

impl Client {
    pub(crate) fn new(plan: &Plan, number: u32) -> Self {
        let (id, opts_in, intercepts) = plan.client(number);
        let views = (0..plan.topics).map(|_| TopicView::default()).collect();
        Self { number, id, opts_in, intercepts, wire: Wire::V2, connection: None, refs: 0, views }
    }

    /// Joins a topic, unless it waits for something; returns the ref and the payload of its join.
    pub(crate) fn join(
        &mut self,
        plan: &Plan,
        ledger: &mut Ledger,
        topic: usize,
        c: u32,
    ) -> Option<(u32, String)> {
        let view = &mut self.views[topic];
        // As phoenix.js: a client that waits for a reply does not ask again before that is overdue.
        let must_wait = |it: Joined| !it.is_joined || it.must_wait(plan.is_calm, self.wire);
        if view.current.is_some_and(must_wait) {
            return None;
        }
        let resume = Resume::draw(plan, self.opts_in, view.position, c);
        let is_seen = plan.says_seen && matches!(resume, Resume::Honest(_));
        let seen = view.arrived.filter(|_| is_seen);
        self.refs += 1;
        let (id, client, intercepts) = (self.id, self.number, self.intercepts);
        ledger.joins.push(JoinRequest { topic: topic as u8, id, client, intercepts });
        let (proof, key) =
            Proof::draw(view.key.as_ref(), if plan.forges { c >> 16 & 15 } else { 15 });
        let is_partial = c >> 13 & 7 != 0;
        view.is_untold |= view.current.is_some_and(|it| !it.is_resumed);
        view.current = Some(Joined {
            join_ref: self.refs,
            is_joined: false,
            resume,
            says_seen: seen.is_some(),
            proof,
            stored: ledger.topics[topic].stored.len(),
            is_resumed: false,
            is_torn: false,
            is_owed: false,
            next: None,
        });
        let (number, member) =
            (ledger.joins.len() - 1, resume.member(id, seen, is_partial, &key, c));
        Some((self.refs, format!(r#"{{"i":{number},"s":{}{member}}}"#, c >> 4)))
    }

    /// Leaves a topic, unless it waits for something; returns the ref of its join.
    pub(crate) fn leave(&mut self, plan: &Plan, topic: usize) -> Option<u32> {
        let view = &mut self.views[topic];
        let current = view.current.filter(|it| !it.must_wait(plan.is_calm, self.wire))?;
        (view.current, view.is_untold) = (None, view.is_untold || !current.is_resumed);
        Some(current.join_ref)
    }

    fn due(&self, ledger: &Ledger, id: u32) -> Due {
        let Some(broadcast) = ledger.broadcasts.get(id as usize) else { return Due::May };
        let is_own = ledger.joins.get(broadcast.except as usize).map(|it| it.client);
        match () {
            () if self.wire == Wire::V1 && broadcast.is_binary => Due::Never,
            () if self.intercepts && broadcast.event == 0 && id.is_multiple_of(SWALLOWED) => {
                Due::Never
            }
            () if broadcast.sender != NONE && broadcast.sender == self.id && self.opts_in => {
                Due::Never
            }
            // A client without an id receives its own broadcasts after it reconnects.
            () if is_own == Some(self.number) => Due::May,
            () => Due::Must,
        }
    }

    pub(crate) fn receive(&mut self, plan: &Plan, ledger: &mut Ledger, it: &ServerMessage<'_>) {
        match it {
            ServerMessage::Reply { msg_ref, topic, status, response, .. } => {
                let Some(topic) = plan.topic_of(topic) else { return };
                let number = number_of(msg_ref);
                let Some(view) = self.views.get_mut(topic) else { return };
                let text = String::from_utf8_lossy(response.data());
                match view.current.as_mut().filter(|it| it.join_ref == number) {
                    Some(it) if (it.resume == Resume::Bad) != (*text == *BAD_RESUME) => {
                        ledger.fail("bad", format!("{}: {status}, {text}, {it:?}", self.number));
                    }
                    Some(current) if &**status == "ok" => {
                        (current.is_joined, current.next) = (true, None);
                    }
                    Some(it) => {
                        ledger.counts.count("refused", u64::from(it.resume == Resume::Bad));
                        view.current = None;
                    }
                    None if &**status == "ok" => ledger.check_reply(payload::parse(response).0),
                    None if text.contains("\"rate_limited\"") && plan.quota.is_some() => {
                        ledger.counts.count("over a limit", 1);
                    }
                    None => {
                        let words = ["{}", UNMATCHED, UNCONFIRMED, TIMED_OUT, BAD_RESUME];
                        if !words.contains(&&*text) {
                            ledger.fail("reply", format!("{}: {text}", self.number));
                        }
                    }
                }
            }
            ServerMessage::Event(it) => {
                let Some(topic) = plan.topic_of(&it.topic) else { return };
                let refs = (&it.join_ref, &it.msg_ref);
                self.receive_event(ledger, topic, refs, &it.event, &it.payload);
            }
        }
    }

    fn receive_event(
        &mut self,
        ledger: &mut Ledger,
        topic: usize,
        (join_ref, msg_ref): (&Ref<'_>, &Ref<'_>),
        event: &str,
        payload: &Payload<'_>,
    ) {
        let who = self.number;
        let Some(view) = self.views.get_mut(topic) else { return };
        let current = view.current.map(|it| it.join_ref);
        let is_stale = !join_ref.is_null() && current != Some(number_of(join_ref));
        if matches!(event, events::CLOSE | events::ERROR) {
            let of = if join_ref.is_null() { msg_ref } else { join_ref };
            if current == Some(number_of(of)) {
                view.current = None;
            }
            return;
        }
        if event == PUSH {
            return ledger.check_reply(payload::parse(payload).0);
        }
        let at = Position::parse(msg_ref.raw().trim_matches('"'));
        ledger.note(|| {
            let text = String::from_utf8_lossy(payload.data());
            let heard = if is_stale || current.is_none() { "drops" } else { "hears" };
            format!("client {who} {heard} {event} {} on {topic}: {text:.80}", msg_ref.raw())
        });
        if !self.opts_in {
            if at.is_some() || event.starts_with("simurgh:") {
                ledger.fail("opted", format!("client {who} is told {event} at {at:?}"));
            }
            if !is_stale && current.is_some() {
                self.receive_live(ledger, topic, payload::parse(payload).0);
            }
            return;
        }
        if event == "simurgh:next" {
            // Its frame may still be in transit.
            view.next = at;
            return;
        }
        let next = view.next.take();
        let Some(at) = at.or(next.filter(|_| payload.binary().is_some())) else {
            return ledger.fail("place", format!("client {who} hears {event} without a place"));
        };
        view.arrived = Some(at);
        let id = EVENTS.contains(&event).then(|| payload::parse(payload).0);
        if is_stale || view.current.is_none() {
            if id.is_some() {
                view.dropped.push(at.place.seq);
            }
            view.is_untold |= event == "simurgh:gap";
            return;
        }
        match event {
            "simurgh:resumed" => self.check_resumed(ledger, topic, at, payload),
            "simurgh:gap" => self.check_gap(ledger, topic, at, payload),
            "simurgh:at" => self.advance(ledger, topic, at, None),
            _ if id.is_some() => self.advance(ledger, topic, at, id),
            _ => ledger.fail("event", format!("client {who} hears {event}")),
        }
    }

    /// A client that has not opted in receives what is stored, from some position on.
    fn receive_live(&mut self, ledger: &mut Ledger, topic: usize, id: u32) {
        ledger.counts.count("heard", 1);
        let stored = ledger.topics.get(topic).map_or(&[][..], |it| it.stored.as_slice());
        let place = stored.iter().rposition(|it| it.id == id);
        let current = self.views.get(topic).and_then(|it| it.current);
        let (Some(place), Some(current)) = (place, current) else {
            let text = format!("client {} hears #{id}, which is not stored", self.number);
            return ledger.fail("stored", text);
        };
        let from = current.next.filter(|_| current.is_joined).unwrap_or(place);
        let skipped = stored.get(from..place);
        let lost = skipped.map(|it| it.iter().find(|it| self.due(ledger, it.id) == Due::Must));
        if self.due(ledger, id) == Due::Never || lost != Some(None) {
            let text = format!("client {} hears #{id} at {place}: {lost:?}, {from}", self.number);
            ledger.fail("live", text);
        }
        if let Some(current) = self.views.get_mut(topic).and_then(|it| it.current.as_mut()) {
            current.next = Some(place + 1);
        }
    }

    /// Handles a position: of the broadcast with that id, or of one that is not for this client.
    fn advance(&mut self, ledger: &mut Ledger, topic: usize, at: Position, id: Option<u32>) {
        let who = self.number;
        let seq = at.place.seq;
        ledger.counts.count("heard", u64::from(id.is_some()));
        ledger.counts.count("passed over", u64::from(id.is_none()));
        let Some(it) = ledger.topics.get(topic) else { return };
        let here = it.stored.partition_point(|it| it.seq < seq);
        let Some(stored) = it.stored.get(here).filter(|it| it.seq == seq) else {
            return ledger.fail("stored", format!("client {who}: nothing is stored at {seq}"));
        };
        let due = self.due(ledger, stored.id);
        let is_right = match id {
            Some(id) => id == stored.id && due != Due::Never,
            None => due != Due::Must,
        };
        if !is_right {
            let text = format!("client {who} hears {id:?} at {seq}, of {stored:?} ({due:?})");
            return ledger.fail("own", text);
        }
        let Some(view) = self.views.get(topic) else { return };
        let before = view.position.filter(|it| it.epoch == at.epoch);
        if view.position.is_some() && before.is_none() && !self.is_owed(topic) {
            let text = format!("client {who} hears {id:?} at {at} behind {:?}", view.position);
            ledger.fail("epoch", text);
        } else if let Some(before) = before.map(|it| it.place.seq) {
            let range = it.stored.get(it.after(before)..here);
            let must = |id: u32| self.due(ledger, id) == Due::Must;
            let lost = range.and_then(|it| {
                it.iter().find(|it| must(it.id) && !view.dropped.contains(&it.seq)).copied()
            });
            let skips = range.is_some_and(|it| it.iter().any(|it| must(it.id)));
            if seq <= before {
                ledger.fail("twice", format!("client {who} hears {id:?} at {seq} behind {before}"));
            } else if let Some(lost) = lost.filter(|_| !self.is_owed(topic)) {
                let text = format!("client {who} hears {id:?} at {seq} behind {before}: {lost:?}");
                ledger.fail("lost", text);
            }
            if let Some(current) = self.views.get_mut(topic).and_then(|it| it.current.as_mut()) {
                current.is_torn |= skips;
                current.is_owed |= lost.is_some();
                if current.is_resumed && skips {
                    let text = format!("client {who} hears {id:?} at {seq} behind {before}");
                    ledger.fail("lost", text);
                }
            }
        }
        self.views[topic].position = Some(at);
    }

    /// Whether it is still due a gap for earlier messages that it dropped.
    fn is_owed(&self, topic: usize) -> bool {
        let view = self.views.get(topic);
        view.is_some_and(|it| it.is_untold && it.current.is_some_and(|it| !it.is_resumed))
    }

    fn check_resumed(
        &mut self,
        ledger: &mut Ledger,
        topic: usize,
        at: Position,
        payload: &Payload<'_>,
    ) {
        let who = self.number;
        let text = String::from_utf8_lossy(payload.data()).into_owned();
        let recovered = text.contains("\"recovered\":true");
        let count = payload::field(&text, "\"count\":")
            .and_then(|it| it.parse::<usize>().ok())
            .unwrap_or(0);
        let reason = payload::field(&text, "\"reason\":");
        let Some(current) = self.views.get(topic).and_then(|it| it.current) else { return };
        if !current.is_joined || current.is_resumed || (reason.is_some() == recovered) {
            return ledger.fail("resumed", format!("client {who}: {text} for {current:?}"));
        }
        ledger.counts.count("recovered", u64::from(recovered));
        ledger.counts.count("replayed", count as u64);
        if let Some(reason) = reason {
            ledger.counts.count(&format!("gaps: {reason}"), 1);
        }
        let reason = reason.and_then(GapReason::parse);
        let is_own = ledger.plan.rule.only_own;
        let wrong = match (current.resume, reason) {
            (Resume::Nothing, _) => Some("it has not opted in".to_owned()),
            (Resume::Bad, _) => Some("it has said nothing that can be read".to_owned()),
            (Resume::Honest(_) | Resume::Older(_), reason)
                if is_own && current.proof != Proof::Key =>
            {
                let is_right = reason == Some(GapReason::Epoch) && count == 0;
                (!is_right).then(|| "it has not proved its first join".to_owned())
            }
            (Resume::Null, None) | (Resume::Older(_), _) => None,
            (Resume::Odd, Some(_)) => None,
            (Resume::Null | Resume::Odd, _) => Some("there is nothing to recover".to_owned()),
            (Resume::Honest(_), None) => self.check_recovered(ledger, topic, at, &current),
            (Resume::Honest(since), Some(reason)) => {
                self.check_unrecovered(ledger, topic, (since, at), reason, &current)
            }
        };
        let wrong = wrong.or_else(|| self.check_count(ledger, topic, at, count, &current));
        let key = payload::field(&text, "\"key\":").map(str::to_owned);
        let wrong = wrong.or_else(|| self.check_key(topic, at, key, (&current, is_own)));
        if let Some(wrong) = wrong {
            let text = format!("client {who} is told {text} at {at}: {wrong}; {current:?}");
            ledger.fail("resumed", text);
        }
        if let Some(view) = self.views.get_mut(topic) {
            view.position = Some(at);
            (view.dropped, view.is_untold) = (Vec::new(), false);
            if let Some(current) = &mut view.current {
                current.is_resumed = true;
            }
        }
    }

    /// Why a gap of that reason, in the range, is a false answer to an honest resume.
    fn check_unrecovered(
        &self,
        ledger: &Ledger,
        topic: usize,
        (since, at): (Position, Position),
        reason: GapReason,
        current: &Joined,
    ) -> Option<String> {
        let is_untold = self.views.get(topic).is_some_and(|it| it.is_untold);
        let is_other = since.epoch != at.epoch;
        let range = (since.place.seq, at.place.seq);
        let has_reason = match reason {
            GapReason::Epoch => is_other,
            // For messages sent on this connection, which it may have dropped.
            _ if is_other => is_untold,
            _ => is_justified(ledger, topic, range, reason, (current, is_untold)),
        };
        let before = self.views.get(topic).and_then(|it| it.position);
        // In V1 the answer to another join may have advanced its position.
        let is_earlier = before.is_some_and(|it| it.place > at.place);
        let is_wrong = is_earlier && !is_untold && !is_other;
        (!has_reason || is_wrong).then(|| format!("{reason:?}, behind {before:?}"))
    }

    /// A gap instead of messages: they were forgotten before they were sent.
    fn check_gap(
        &mut self,
        ledger: &mut Ledger,
        topic: usize,
        at: Position,
        payload: &Payload<'_>,
    ) {
        let text = String::from_utf8_lossy(payload.data()).into_owned();
        let reason = payload::field(&text, "\"reason\":").and_then(GapReason::parse);
        let Some(view) = self.views.get_mut(topic) else { return };
        let (Some(current), Some(before)) = (view.current, view.position) else { return };
        view.position = Some(at);
        let of = (&current, false);
        let range = (before.place.seq, at.place.seq);
        // V1 does not name the join; the gap may come again after the next join.
        let is_of_another = self.wire == Wire::V1 && !current.is_joined;
        view.is_untold |= is_of_another;
        let has_reason = reason.is_some_and(|it| is_justified(ledger, topic, range, it, of));
        if !has_reason || !(current.is_resumed || is_of_another) || before.place > at.place {
            let text = format!("client {} is told {text} at {at}: {current:?}", self.number);
            ledger.fail("gap", text);
        }
        ledger.counts.count("gaps: told late", 1);
    }

    /// A client that has not proved a first join gets a key; one that has gets no earlier messages.
    fn check_key(
        &mut self,
        topic: usize,
        at: Position,
        key: Option<String>,
        (current, is_own): (&Joined, bool),
    ) -> Option<String> {
        let view = self.views.get_mut(topic)?;
        let is_first = is_own && current.proof != Proof::Key;
        if is_first != key.is_some() {
            return Some(format!("{key:?} for {:?}", current.proof));
        }
        if let Some(key) = key {
            view.key = Some((key, at));
        }
        let first = view
            .key
            .as_ref()
            .filter(|(_, first)| is_own && at.epoch == first.epoch && at.place < first.place);
        first.map(|(_, first)| format!("that is from before {first}"))
    }

    /// If no gap is reported, everything before was handled, or dropped by the client.
    fn check_recovered(
        &self,
        ledger: &Ledger,
        topic: usize,
        at: Position,
        current: &Joined,
    ) -> Option<String> {
        let view = self.views.get(topic)?;
        let position = view.position?;
        if position.epoch != at.epoch {
            return Some(format!("it stands at {position}"));
        }
        let before = position.place.seq;
        let it = ledger.topics.get(topic)?;
        let is_lost = |it: &&Stored| {
            let is_dropped = view.dropped.contains(&it.seq) && !current.says_seen;
            self.due(ledger, it.id) == Due::Must && !is_dropped
        };
        let passed = it.stored.get(it.after(before)..it.after(at.place.seq).max(it.after(before)));
        match passed.and_then(|it| it.iter().find(is_lost)) {
            _ if at.place.seq < before => Some(format!("it has heard up to {before}")),
            Some(lost) => Some(format!("it has not heard {lost:?}, behind {before}")),
            None if current.is_owed => Some("it was not told of a gap".to_owned()),
            None if current.is_torn && current.says_seen => Some("it has dropped some".to_owned()),
            None => None,
        }
    }

    /// Checks the count of messages that follow: at least those stored when it asked.
    fn check_count(
        &self,
        ledger: &Ledger,
        topic: usize,
        at: Position,
        count: usize,
        current: &Joined,
    ) -> Option<String> {
        let it = ledger.topics.get(topic)?;
        let is_others = |id: u32| {
            let broadcast = ledger.broadcasts.get(id as usize);
            broadcast.is_none_or(|it| it.sender == NONE || it.sender != self.id)
        };
        let behind = it.after(at.place.seq);
        let of = |end: usize| {
            let range = it.stored.get(behind..end.max(behind)).unwrap_or_default();
            range.iter().filter(|it| is_others(it.id)).count()
        };
        let (least, most) = (of(current.stored), of(it.stored.len()));
        (count < least || count > most).then(|| format!("not {count}: {least} to {most}"))
    }

    pub(crate) fn check_rest(&self, ledger: &mut Ledger) {
        for (topic, view) in self.views.iter().enumerate() {
            let (Some(current), Some(it)) = (view.current, ledger.topics.get(topic)) else {
                continue;
            };
            let last = it.last();
            let is_due = |id: u32| self.due(ledger, id) == Due::Must;
            let rest = it.stored.get(current.next.unwrap_or(it.stored.len())..);
            let lost = rest.and_then(|it| it.iter().find(|it| is_due(it.id))).copied();
            let position = view.position.map_or(0, |it| it.place.seq);
            let is_behind = self.opts_in && (position < last || !current.is_resumed);
            if !current.is_joined || is_behind || lost.is_some() {
                let text = format!(
                    "client {} heard topic {topic} up to {position} of {last}: {lost:?}, {view:?}",
                    self.number
                );
                ledger.fail("rest", text);
            }
        }
    }
}

fn is_justified(
    ledger: &Ledger,
    topic: usize,
    (since, at): (u64, u64),
    reason: GapReason,
    (current, is_untold): (&Joined, bool),
) -> bool {
    let Some(it) = ledger.topics.get(topic) else { return false };
    let missed = it.stored.get(it.after(since)..).unwrap_or_default();
    let bytes: u64 = missed.iter().map(|it| it.bytes).sum();
    let (rule, limits) = (&ledger.plan.rule, &ledger.plan.limits);
    let age_ms = rule.age.as_millis() as u64;
    let is_old = |at_ms: u64| ledger.latest_ms.saturating_sub(at_ms) >= age_ms;
    let is_expired = missed.first().is_some_and(|it| it.seq <= at && is_old(it.at_ms));
    let is_overwritten = missed.len() > rule.count || bytes > rule.bytes as u64;
    let may_be_evicted = limits.bytes_max < 1 << 20 && !missed.is_empty();
    match reason {
        // The reason is that of the message that was forgotten last.
        GapReason::Expired | GapReason::Overwritten | GapReason::Evicted => {
            is_expired || is_overwritten || may_be_evicted || it.is_purged
        }
        GapReason::Purged => it.is_purged,
        GapReason::TooMany => missed.len() > limits.replay_count,
        GapReason::TooLarge => bytes > limits.replay_bytes as u64,
        GapReason::Lost => current.says_seen || is_untold,
        _ => false,
    }
}
