//! Fetches of messages from a stream: their requests and answers.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use simurgh_cluster::adapter::{Fetched, LAST_OF_MAX, Number};
use simurgh_cluster::{Event, Received, Space, Subject, Ticket};

use super::api::{self, Got, Request, StreamInfo};
use super::publish::Progress;
use crate::timestamp;
use crate::wire::Message;

/// The most bytes of last messages in one page.
const LAST_OF_PAGE_BYTES: usize = 2 << 20;
/// The most bytes of last messages in one answer, which is cut short beyond that.
const LAST_OF_BYTES_MAX: usize = 16 << 20;

/// The messages of an answer.
#[derive(Debug, Default)]
struct Gathered {
    messages: Vec<Received>,
    bytes: usize,
    /// The number of the last message, accepted or not.
    last: u64,
    /// A message was left out.
    is_cut: bool,
}

impl Gathered {
    /// Adds a message within these limits of messages and bytes; the first one always.
    fn take(&mut self, envelope: Bytes, number: Number, at_ms: u64, most: (usize, usize)) {
        self.last = number.seq;
        let bytes = self.bytes + envelope.len();
        let is_first = self.messages.is_empty();
        let is_within = self.messages.len() < most.0 && (is_first || bytes <= most.1);
        if self.is_cut || !is_within {
            self.is_cut = true;
            return;
        }
        self.bytes = bytes;
        let (space, stored) = (Some(Space::Store), Some(number));
        self.messages.push(Received { space, envelope, stored, at_ms });
    }

    /// Adds the next message of an answer. Each has the number of the one before it, so a missing
    /// one is detected, and the answer is discarded.
    fn take_next(&mut self, message: Message, after: u64, has_prev: bool, most: (usize, usize)) {
        match message.stored_at() {
            Some((number, at_ms))
                if number.prev == self.last && number.seq > number.prev.max(after) =>
            {
                let number = Number { prev: if has_prev { number.prev } else { 0 }, ..number };
                self.take(message.into_payload(), number, at_ms, most);
            }
            _ => self.last = u64::MAX,
        }
    }

    fn taken(&self) -> u64 {
        self.messages.last().and_then(|it| it.stored).map_or(0, |it| it.seq)
    }

    fn fetched(&mut self, head: u64, is_all: bool) -> Fetched {
        let head = head.max(self.taken());
        let is_all = is_all && !self.is_cut;
        Fetched { messages: std::mem::take(&mut self.messages), head, is_all }
    }
}

fn done(ticket: Ticket, kept: Option<Fetched>) -> Progress {
    Progress::Done(Event::Fetched { ticket, kept }, 0)
}

/// A fetch of the messages after a number on a subject.
#[derive(Debug)]
pub(super) struct After {
    pub(super) stream: usize,
    subject: Subject,
    seq: u64,
    most: (usize, usize),
    gathered: Gathered,
    /// The number up to which the answer is certainly complete.
    certain: u64,
    way: Way,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Any server that has the stream, for all messages at once.
    Direct,
    /// The leader, for the end of its stream.
    Head,
    /// The leader, for the next message; its stream ends at this number.
    Next(u64),
}

impl After {
    pub(super) fn new(
        stream: usize,
        subject: Subject,
        seq: u64,
        most: (u32, usize),
        from_leader: bool,
    ) -> Self {
        let way = if from_leader { Way::Head } else { Way::Direct };
        let most = (most.0 as usize, most.1);
        let gathered = Gathered::default();
        Self { stream, subject, seq, most, gathered, certain: 0, way }
    }

    /// The next request. `certain`: the number up to which the answer is certainly complete.
    pub(super) fn request(&mut self, stream: &str, certain: u64) -> Request {
        let subject = self.subject.as_str();
        match self.way {
            Way::Direct => {
                self.gathered = Gathered::default();
                self.certain = certain;
                let (count, bytes) = self.most;
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                api::next(stream, subject, self.seq.saturating_add(1), count, bytes)
            }
            Way::Head => api::info(stream),
            Way::Next(_) => {
                let last = self.gathered.last.max(self.seq);
                api::next_of_leader(stream, subject, last.saturating_add(1))
            }
        }
    }

    pub(super) fn on_answer(&mut self, ticket: Ticket, message: Message) -> Progress {
        match self.way {
            Way::Direct => self.on_direct(ticket, message),
            Way::Head => match api::read::<StreamInfo>(&message) {
                Ok(info) if info.is_of_leader() => {
                    self.way = Way::Next(info.state.last_seq);
                    Progress::Next
                }
                _ => Progress::Nothing,
            },
            Way::Next(head) => self.on_leader(ticket, head, &message),
        }
    }

    fn on_direct(&mut self, ticket: Ticket, message: Message) -> Progress {
        match message.status() {
            None => {
                self.gathered.take_next(message, self.seq, true, self.most);
                Progress::Nothing
            }
            Some(api::STATUS_END) => {
                if message.numbered("Nats-Last-Sequence") != Some(self.gathered.last) {
                    // The request is repeated in time.
                    return Progress::Nothing;
                }
                let is_all = message.numbered("Nats-Num-Pending") == Some(0);
                done(ticket, Some(self.gathered.fetched(self.certain, is_all)))
            }
            Some(api::STATUS_NONE) if self.gathered.last == 0 => {
                done(ticket, Some(self.gathered.fetched(self.certain, true)))
            }
            Some(api::STATUS_NOBODY | api::STATUS_NONE) => Progress::Nothing,
            Some(_) => done(ticket, None),
        }
    }

    fn on_leader(&mut self, ticket: Ticket, head: u64, message: &Message) -> Progress {
        let got = match api::read::<Got>(message) {
            Ok(got) => got.message,
            Err(failure) if failure.is_no_message() => {
                return done(ticket, Some(self.gathered.fetched(head, true)));
            }
            Err(_) => return Progress::Nothing,
        };
        let Ok(envelope) = STANDARD.decode(&got.data) else { return Progress::Nothing };
        let prev = self.gathered.taken();
        if got.seq <= prev.max(self.seq) {
            return Progress::Nothing;
        }
        let number = Number { seq: got.seq, prev };
        let at_ms = timestamp::unix_ms(got.time.as_bytes()).unwrap_or(0);
        self.gathered.take(envelope.into(), number, at_ms, self.most);
        let is_all = self.gathered.taken() >= head;
        let is_full = self.gathered.messages.len() >= self.most.0
            || self.gathered.bytes >= self.most.1
            || self.gathered.is_cut;
        if is_all || is_full {
            return done(ticket, Some(self.gathered.fetched(head, is_all)));
        }
        Progress::Next
    }

    /// The event without a further answer: the messages from the leader are valid, too.
    pub(super) fn unanswered(mut self, ticket: Ticket) -> Event {
        let has_some = self.way != Way::Direct && !self.gathered.messages.is_empty();
        let kept = has_some.then(|| self.gathered.fetched(0, false));
        Event::Fetched { ticket, kept }
    }
}

/// A fetch of the last message on each of many subjects.
#[derive(Debug, Default)]
pub(super) struct LastOf {
    /// The subjects by stream; the first stream is requested next.
    left: VecDeque<(usize, Vec<Subject>)>,
    is_of_one: bool,
    gathered: Gathered,
    /// The messages of the current page.
    page: Gathered,
    /// The first number of the page, and the end of the stream at the first request.
    from: u64,
    up_to: u64,
    /// The number up to which the answer is certainly complete.
    certain: u64,
}

impl LastOf {
    /// `stream_of` maps a subject to its stream.
    pub(super) fn new(
        subjects: Vec<Subject>,
        stream_of: impl Fn(&Subject) -> Option<usize>,
    ) -> Self {
        let mut left: VecDeque<(usize, Vec<Subject>)> = VecDeque::new();
        for subject in subjects.into_iter().take(LAST_OF_MAX) {
            let Some(stream) = stream_of(&subject) else { continue };
            match left.iter_mut().find(|it| it.0 == stream) {
                Some((_, subjects)) => subjects.push(subject),
                None => left.push_back((stream, vec![subject])),
            }
        }
        Self { is_of_one: left.len() == 1, left, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn stream(&self) -> usize {
        self.left.front().map_or(0, |it| it.0)
    }

    /// The next request. `certain`: the number up to which the answer is certainly complete.
    pub(super) fn request(&mut self, stream: &str, certain: u64) -> Request {
        self.page = Gathered::default();
        self.certain = certain;
        let subjects = self.left.front().map(|it| &it.1[..]).unwrap_or_default();
        let names: Vec<&str> = subjects.iter().map(Subject::as_str).collect();
        api::last_of(stream, &names, self.from, self.up_to, LAST_OF_PAGE_BYTES)
    }

    pub(super) fn on_answer(&mut self, ticket: Ticket, message: Message) -> Progress {
        match message.status() {
            None => {
                self.page.take_next(message, 0, false, (LAST_OF_MAX, usize::MAX));
                Progress::Nothing
            }
            Some(api::STATUS_END) => {
                if message.numbered("Nats-Last-Sequence") != Some(self.page.last) {
                    return Progress::Nothing;
                }
                let up_to = message.numbered("Nats-UpTo-Sequence").unwrap_or(0);
                let pending = message.numbered("Nats-Num-Pending").unwrap_or(0);
                self.page_ends(ticket, pending, up_to)
            }
            // This answer does not have the end of the stream; an earlier page may have had it.
            Some(api::STATUS_NONE) if self.up_to == 0 => self.page_ends(ticket, 0, self.certain),
            Some(api::STATUS_NONE) => self.page_ends(ticket, 0, 0),
            Some(api::STATUS_NOBODY) => Progress::Nothing,
            Some(_) => done(ticket, None),
        }
    }

    fn page_ends(&mut self, ticket: Ticket, pending: u64, up_to: u64) -> Progress {
        let page = std::mem::take(&mut self.page);
        let is_more = pending > 0 && page.last >= self.from && !page.messages.is_empty();
        self.from = page.last.saturating_add(1);
        for it in page.messages {
            let number = it.stored.unwrap_or(Number { seq: 0, prev: 0 });
            let most = (LAST_OF_MAX, LAST_OF_BYTES_MAX);
            self.gathered.take(it.envelope, number, it.at_ms, most);
        }
        self.up_to = self.up_to.max(up_to);
        if is_more && !self.gathered.is_cut {
            return Progress::Next;
        }
        let end = self.up_to;
        self.left.pop_front();
        (self.from, self.up_to) = (0, 0);
        if !self.left.is_empty() && !self.gathered.is_cut {
            return Progress::Next;
        }
        // Numbers of several streams are not ordered by age, and none applies to all streams.
        let head = if self.is_of_one && !self.gathered.is_cut { end } else { 0 };
        self.gathered.messages.sort_by_key(|it| it.stored.map(|it| it.seq));
        let mut fetched = self.gathered.fetched(head, true);
        if !self.is_of_one {
            fetched.head = 0;
        }
        done(ticket, Some(fetched))
    }
}
