//! What the handlers of a client have received of a kept topic, over all its connections; the
//! resumes that it sends, and the answers. Those of a node without an engine are exact, because
//! nothing is lost.

use super::*;

#[derive(Debug, Default)]
pub(crate) struct TopicView {
    pub(crate) client: u32,
    pub(crate) habits: Habits,
    pub(crate) topic: usize,
    pub(crate) at: Option<Position>,
    /// It has received the answer to its resume, since it joined last.
    pub(crate) is_resumed: bool,
    /// The position of a binary frame that is to follow.
    pub(super) next: Option<Position>,
    /// What has arrived on this connection after it had left.
    pub(crate) dropped: Vec<Place>,
    pub(crate) dropped_gap: Option<Position>,
    /// The last position that has arrived on this connection.
    pub(super) arrived: Option<Position>,
    /// It has joined on this connection, which has the wire V1.
    pub(crate) has_joined: bool,
    pub(super) is_joined: bool,
    pub(super) is_v1: bool,
    pub(crate) is_alone: bool,
    /// How it has resumed, whether it named what had arrived, and its proof.
    pub(crate) resume: Resume,
    pub(crate) says_seen: bool,
    pub(crate) proof: Proof,
    /// The proof of its first join, and the position of that.
    pub(crate) key: Option<(String, Position)>,
    /// The place of the last that was stored when it joined.
    pub(crate) head: Place,
}

/// An event of a topic with a history, its payload and its position.
type KeptEvent<'a> = (&'a str, &'a Payload<'a>, Option<Position>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Must,
    May,
    Never,
}

impl TopicView {
    /// Whether it may join now. A client of a node without an engine also joins again. With V1,
    /// whose messages do not name their join, it joins once on a connection.
    pub(crate) fn may_join(&self, wire: Wire, has_channel: bool) -> bool {
        match has_channel {
            true => self.is_alone && wire == Wire::V2 && self.is_joined && self.may_leave(),
            false => wire == Wire::V2 || !self.has_joined,
        }
    }

    /// Whether it has the answer to its resume, if it sent one.
    pub(crate) fn may_leave(&self) -> bool {
        self.is_resumed || !self.habits.opts_in
    }

    /// It has joined: without a position it receives what is broadcast from now on.
    pub(crate) fn joined(&mut self) {
        self.is_joined = true;
        self.at = self.at.filter(|_| self.habits.opts_in || !self.is_alone);
    }

    /// It joins. Returns the member of its join's payload with which it resumes.
    pub(crate) fn resume_member(&mut self, ledger: &Ledger, is_v1: bool, c: u32) -> String {
        (self.is_resumed, self.has_joined, self.is_v1) = (false, true, is_v1);
        (self.is_alone, self.is_joined) = (ledger.plan.is_alone(), false);
        self.head = ledger.head(self.topic);
        if !self.habits.opts_in {
            return String::new();
        }
        let id = format!(r#""id":"client-{:04}","#, self.client);
        let id = if self.habits.has_id { &*id } else { "" };
        let Some(plan) = ledger.plan.history.as_ref().filter(|_| self.is_alone) else {
            self.resume = self.at.map_or(Resume::Null, Resume::Honest);
            return self.resume.member(id, "", c);
        };
        self.resume = Resume::draw(plan, self.at, c);
        let is_honest = matches!(self.resume, Resume::Honest(_));
        let seen = self.arrived.filter(|_| plan.says_seen && is_honest);
        self.says_seen = seen.is_some();
        let word = if plan.forges { c >> 16 & 15 } else { 15 };
        let (proof, key) = Proof::draw(self.key.as_ref(), word);
        self.proof = proof;
        let seen = seen.map_or(String::new(), |it| format!(r#","seen":"{it}""#));
        let partial = if c >> 13 & 7 == 0 { r#","partial":false"# } else { "" };
        self.resume.member(id, &format!("{seen}{partial}{key}"), c)
    }

    fn fail(&self, ledger: &Ledger, rule: &'static str, text: String) {
        ledger.fail(rule, format!("client {} {text}", self.client));
    }

    fn due(&self, ledger: &Ledger, id: u32) -> Due {
        let Some(made) = ledger.broadcasts.get(id as usize) else { return Due::May };
        let is_own = ledger.sessions.client_of(made.except) == Some(self.client);
        let is_swallowed =
            self.habits.intercepts && made.event == "a" && id.is_multiple_of(SWALLOWED);
        match () {
            () if is_swallowed || (self.is_v1 && made.is_binary) => Due::Never,
            () if is_own && self.habits.has_id => Due::Never,
            // A client without an id receives its own broadcasts after it reconnects.
            () if is_own => Due::May,
            () => Due::Must,
        }
    }

    fn must_receive(&self, ledger: &Ledger, entry: &Entry) -> bool {
        self.due(ledger, entry.id) == Due::Must
    }

    pub(crate) fn disconnected(&mut self) {
        (self.next, self.arrived) = (None, None);
        (self.is_resumed, self.has_joined) = (false, false);
        (self.dropped, self.dropped_gap) = (Vec::new(), None);
        // Without a position it may receive again what another node receives late.
        self.at = self.at.filter(|_| self.habits.opts_in);
    }

    /// An event that is not about presences; `is_dropped`: its channel has ended or was replaced.
    pub(crate) fn receive(&mut self, ledger: &Ledger, event: KeptEvent<'_>, is_dropped: bool) {
        if !self.habits.opts_in {
            return self.receive_live(ledger, event, is_dropped);
        }
        let (event, payload, at) = event;
        if event == "simurgh:next" {
            self.next = at;
            return;
        }
        let next = self.next.take();
        let Some(at) = at.or(next.filter(|_| payload.binary().is_some())) else {
            return self.fail(ledger, "place", format!("hears {event} without a place"));
        };
        self.arrived = Some(at);
        if is_dropped {
            if event == "simurgh:gap" {
                self.dropped_gap = Some(at);
            }
            let is_message = !event.starts_with("simurgh:") || !self.is_alone;
            return self.dropped.extend(is_message.then_some(at.place));
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

    /// The first entry that it must have received between two positions, exclusive.
    fn missed(&self, ledger: &Ledger, from: Position, to: Position) -> Option<Entry> {
        let entries = ledger.log.of(to.epoch, self.topic)?;
        let gap = self.has_dropped_gap(to.epoch);
        let is_missed = |it: &&Entry| {
            let is_dropped = self.dropped.contains(&it.place) || gap >= Some(it.place);
            let is_between = it.place > from.place && it.place < to.place;
            is_between && self.must_receive(ledger, it) && !is_dropped
        };
        entries.iter().find(is_missed).copied()
    }

    /// Handles a position: of a broadcast, or of one that is not for this client.
    fn advance(&mut self, ledger: &Ledger, at: Position, id: Option<u32>) {
        let entry = ledger.log.at(at, self.topic);
        if entry.is_none() && self.is_alone {
            return self.fail(ledger, "stored", format!("got {at}, where nothing is stored"));
        }
        ledger.count("passed over", u64::from(id.is_none()));
        if let Some(id) = id {
            ledger.count("heard", 1);
            if entry.is_none_or(|it| it.id != id) {
                return self.fail(ledger, "stored", format!("hears #{id} at {at}, not {entry:?}"));
            }
            if self.due(ledger, id) == Due::Never {
                return self.fail(ledger, "own", format!("hears its own #{id} at {at}"));
            }
        }
        let Some(before) = self.at.replace(at) else { return };
        let is_known = ledger.log.of(before.epoch, self.topic).is_some();
        if before.epoch != at.epoch {
            if is_known && self.has_dropped_gap(at.epoch).is_none() {
                self.fail(ledger, "epoch", format!("hears {id:?} at {at} behind {before}"));
            }
            return;
        }
        // It may receive its own position, even twice.
        if before.place > at.place || (before.place == at.place && id.is_some()) {
            return self.fail(ledger, "twice", format!("hears {id:?} at {at} behind {before}"));
        }
        let missed = self.missed(ledger, before, at);
        let passed = entry.filter(|it| id.is_none() && self.must_receive(ledger, it));
        if let Some(lost) = missed.or(passed) {
            self.fail(ledger, "lost", format!("hears {id:?} at {at} behind {before}: {lost:?}"));
        }
    }

    fn check_gap(&mut self, ledger: &Ledger, at: Position, reason: Option<&str>) {
        let parsed = reason.and_then(GapReason::parse);
        ledger.count(format!("gaps: {}", reason.unwrap_or_default()), 1);
        let before = self.at;
        let same = before.filter(|it| it.epoch == at.epoch);
        let wrong = match parsed {
            None => Some("no reason"),
            _ if ledger.plan.history.as_ref().is_some_and(|it| it.is_whole) => {
                Some("nothing is missing")
            }
            Some(reason) if self.is_alone => {
                let is_right = self.is_resumed && same.is_none_or(|it| it.place <= at.place);
                let since = before.map_or(0, |it| it.place.seq);
                let is_right = is_right && self.is_justified(ledger, at, since, reason);
                (!is_right).then_some("it has no such reason")
            }
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
            let text = format!("got {reason:?} at {at} after {before:?}: {wrong}");
            self.fail(ledger, "gap", text);
        }
        self.at = Some(at);
    }

    /// The answer to its resume: all that it has missed follows, or there is a gap.
    fn check_resumed(&mut self, ledger: &Ledger, at: Position, payload: &Payload<'_>) {
        let text = String::from_utf8_lossy(payload.data()).into_owned();
        let recovered = text.contains("\"recovered\":true");
        let reason = field(&text, "\"reason\":");
        if self.is_resumed || reason.is_some() == recovered {
            return self.fail(ledger, "resumed", format!("receives {text} for {self:?}"));
        }
        ledger.count("recovered", u64::from(recovered && self.at.is_some()));
        let wrong = match (self.is_alone, recovered) {
            (true, _) => self.wrong_alone(ledger, at, &text),
            (false, true) => self.wrong_recovered(ledger, at),
            (false, false) => {
                self.check_gap(ledger, at, reason);
                None
            }
        };
        if let Some(wrong) = wrong {
            self.fail(ledger, "resumed", format!("receives {text} at {at}: {wrong}; {self:?}"));
        }
        (self.at, self.is_resumed) = (Some(at), true);
        (self.dropped, self.dropped_gap) = (Vec::new(), None);
    }

    /// What is wrong if a node of several reports no gap up to a position.
    fn wrong_recovered(&self, ledger: &Ledger, at: Position) -> Option<String> {
        // Including this position; others with its number may follow.
        let item = at.place.item.saturating_add(1);
        let behind = Position { place: Place { item, ..at.place }, ..at };
        let before = self.at?;
        match () {
            () if before.epoch != at.epoch => Some("another epoch".to_owned()),
            // Its former node had nothing up to there, so it has received less.
            () if before.place.item == Place::ITEM_MAX && before.place > at.place => None,
            () if before.place > at.place => Some("back".to_owned()),
            // It has received or dropped what is there.
            () if before.place == at.place => None,
            () if self.has_dropped_gap(at.epoch) > Some(before.place) => {
                Some("it has dropped a gap".to_owned())
            }
            () => self.missed(ledger, before, behind).map(|it| format!("{it:?}")),
        }
    }

    /// The end of a gap of an epoch that it has dropped.
    fn has_dropped_gap(&self, epoch: Epoch) -> Option<Place> {
        self.dropped_gap.filter(|it| it.epoch == epoch).map(|it| it.place)
    }

    /// A client that has not opted in receives what is stored, from some position on.
    fn receive_live(&mut self, ledger: &Ledger, event: KeptEvent<'_>, is_dropped: bool) {
        let (event, payload, at) = event;
        let id = parse(payload).0;
        let stored = ledger.log.find(id, self.topic);
        if at.is_some() || event.starts_with("simurgh:") || stored.is_none() {
            return self.fail(
                ledger,
                "opted",
                format!("hears {event} #{id} at {at:?}: {stored:?}"),
            );
        }
        ledger.count("heard without a place", 1);
        if is_dropped && self.is_alone {
            return;
        }
        let span = mem::replace(&mut self.at, stored).zip(stored);
        let lost = span.and_then(|(before, at)| self.missed(ledger, before, at));
        let lost = lost.filter(|_| self.is_alone && self.is_joined);
        let is_again =
            span.is_some_and(|(before, at)| before.epoch == at.epoch && before.place >= at.place);
        if is_again && !is_dropped {
            self.fail(ledger, "twice", format!("hears #{id} again: {span:?}"));
        }
        if lost.is_some() || (self.is_alone && self.due(ledger, id) == Due::Never) {
            self.fail(ledger, "live", format!("hears #{id}, {span:?}: {lost:?}"));
        }
    }

    pub(crate) fn check_rest(&self, ledger: &Ledger) {
        if !self.habits.opts_in && (!self.is_alone || self.at.is_none()) {
            return;
        }
        let epoch = if self.is_alone { self.at.map(|it| it.epoch) } else { ledger.log.epoch() };
        let (Some(at), Some(epoch)) = (self.at, epoch) else {
            return self.fail(ledger, "rest", format!("got no position: {self:?}"));
        };
        if self.habits.opts_in && !self.is_resumed {
            return self.fail(ledger, "rest", "is not told what it has missed".to_owned());
        }
        let from = if at.epoch == epoch { at.place } else { Place::ZERO };
        // A node without a broker sends each position to a client that opts in.
        let is_told = self.is_alone && self.habits.opts_in;
        let is_behind = |it: &&Entry| it.place > from && (is_told || self.must_receive(ledger, it));
        let entries = ledger.log.of(epoch, self.topic).unwrap_or_default();
        if let Some(it) = entries.iter().find(is_behind).copied() {
            self.fail(ledger, "rest", format!("at {at} has not heard {it:?}"));
        }
        ledger.count("complete", 1);
    }
}

/// Whether clients receive only messages from after their first join.
fn is_only_own(ledger: &Ledger) -> bool {
    ledger.plan.history.as_ref().is_some_and(|it| it.rule.only_own)
}

impl TopicView {
    /// What is wrong with the answer to its resume.
    fn wrong_alone(&mut self, ledger: &Ledger, at: Position, text: &str) -> Option<String> {
        let count = field(text, "\"count\":").and_then(|it| it.parse().ok()).unwrap_or(0);
        ledger.count("replayed", count as u64);
        let reason = field(text, "\"reason\":");
        reason.iter().for_each(|it| ledger.count(format!("gaps: {it}"), 1));
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
    fn is_justified(&self, ledger: &Ledger, at: Position, since: u64, reason: GapReason) -> bool {
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
        let is_purged = ledger.orders[self.topic].is_purged;
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

const BAD: [&str; 8] = [
    "7",
    "[]",
    "\"a00000.1\"",
    r#"{"since":7}"#,
    r#"{"since":[]}"#,
    r#"{"id":"short","since":null}"#,
    r#"{"since":null,"partial":1}"#,
    r#"{"since":null,"seen":7}"#,
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Resume {
    /// No resume: it does not opt in.
    #[default]
    Nothing,
    /// Only messages from now on.
    Null,
    Honest(Position),
    Older(Position),
    /// A position that was never given.
    Odd,
    Bad,
}

/// How a client proves its first join; without proof it is sent only later messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Proof {
    #[default]
    None,
    Key,
    Forged,
}

impl Resume {
    /// Draws the resume of a client that has received messages up to this position.
    fn draw(plan: &HistoryPlan, heard: Option<Position>, c: u32) -> Self {
        match (heard, c >> 8 & 31) {
            (_, 0) => Self::Null,
            (_, 1) => Self::Odd,
            (_, 3 | 4) if plan.says_bad => Self::Bad,
            (None, _) => Self::Null,
            (Some(mut at), 2) => {
                at.place.seq = at.place.seq.saturating_sub(u64::from(c >> 20 & 7) + 1);
                Self::Older(at)
            }
            (Some(at), _) => Self::Honest(at),
        }
    }

    /// As a further member of its join's payload, with `more` behind the position.
    fn member(self, id: &str, more: &str, c: u32) -> String {
        let since = match self {
            Self::Nothing => return String::new(),
            Self::Bad => return format!(r#","simurgh":{}"#, BAD[c as usize & 7]),
            Self::Null => "null".to_owned(),
            Self::Honest(at) | Self::Older(at) => format!("\"{at}\""),
            Self::Odd => if c & 1 == 0 { "\"what\"" } else { "\"zzzzzz.9\"" }.to_owned(),
        };
        format!(r#","simurgh":{{{id}"since":{since}{more}}}"#)
    }
}

impl Proof {
    /// Draws the proof of a client that received this key with its first join, and its JSON member.
    fn draw(key: Option<&(String, Position)>, word: u32) -> (Self, String) {
        let Some((key, first)) = key else { return (Self::None, String::new()) };
        let (proof, key) = match word {
            0 => return (Self::None, String::new()),
            1 if first.place.seq > 0 => {
                let mut older = *first;
                older.place.seq -= 1;
                (Self::Forged, key.replacen(&first.to_string(), &older.to_string(), 1))
            }
            _ => (Self::Key, key.clone()),
        };
        (proof, format!(r#","key":"{key}""#))
    }
}
