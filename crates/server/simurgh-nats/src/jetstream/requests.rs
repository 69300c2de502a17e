//! The tickets of a node: their requests and answers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use simurgh_cluster::adapter::{Fetch, Fetched, ID_BYTES_MAX, NotStored};
use simurgh_cluster::{Event, QueueFull, Subject, Ticket};

use super::check::Check;
use super::fetch::{After, LastOf};
use super::publish::{self, Progress, Purge, Store};
use super::since::Since;
use super::tickets::{self, RequestNumber, What};
use super::{Action, JetStream, State, api};
use crate::connect::ENVELOPE_BYTES_MAX;
use crate::wire::{self, Message};

/// The most bytes of a stored envelope's headers.
const HEADERS_BYTES_MAX: usize = 512;
/// Delay before a stream without a responder is checked.
const RECHECK_AFTER_MS: u64 = 500;

impl JetStream {
    pub(crate) fn store(
        &mut self,
        (to, id, age): (&Subject, &str, Option<Duration>),
        envelope: Bytes,
        ticket: Ticket,
        link: Option<&mut BytesMut>,
        now_ms: u64,
        events: &mut VecDeque<Event>,
    ) -> Result<(), QueueFull> {
        let is_proper = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(['\r', '\n']);
        let is_large = envelope.len() > ENVELOPE_BYTES_MAX - HEADERS_BYTES_MAX;
        let stream = match self.stream_of(to) {
            Ok(_) if !is_proper => Err("an id is 1 to 256 bytes, without line breaks".into()),
            Ok(_) if is_large => Err("it is larger than the engine takes".into()),
            stream => stream,
        };
        match stream {
            Ok(stream) => {
                let what = What::Store(Store::new(stream, to, id, age, envelope));
                self.take(what, ticket, link, now_ms)
            }
            Err(why) => {
                let why = NotStored::Refused(why);
                self.refuse(Event::NotStored { ticket, why }, events)
            }
        }
    }

    pub(crate) fn purge(
        &mut self,
        of: &Subject,
        before: u64,
        ticket: Ticket,
        link: Option<&mut BytesMut>,
        now_ms: u64,
        events: &mut VecDeque<Event>,
    ) -> Result<(), QueueFull> {
        match self.stream_of(of) {
            Err(why) => {
                let why = Some(NotStored::Refused(why));
                self.refuse(Event::Purged { ticket, why }, events)
            }
            // A purge before 0 would remove everything.
            Ok(_) if before <= 1 => self.refuse(Event::Purged { ticket, why: None }, events),
            Ok(stream) => {
                let what = What::Purge(Purge { stream, subject: of.clone(), before });
                self.take(what, ticket, link, now_ms)
            }
        }
    }

    pub(crate) fn fetch(
        &mut self,
        what: Fetch,
        ticket: Ticket,
        link: Option<&mut BytesMut>,
        now_ms: u64,
        events: &mut VecDeque<Event>,
    ) -> Result<(), QueueFull> {
        let nothing = Event::Fetched { ticket, kept: None };
        match what {
            Fetch::After { subject, seq, count, bytes, from_leader } => {
                let Ok(stream) = self.stream_of(&subject) else {
                    return self.refuse(nothing, events);
                };
                if count == 0 {
                    let kept = Some(Fetched::default());
                    return self.refuse(Event::Fetched { ticket, kept }, events);
                }
                let after = After::new(stream, subject, seq, (count, bytes), from_leader);
                self.take(What::After(after), ticket, link, now_ms)
            }
            Fetch::LastOf { subjects } => {
                if self.config.is_none() || matches!(self.state, State::Off { .. }) {
                    return self.refuse(nothing, events);
                }
                let last_of = LastOf::new(subjects, |it| self.stream_of(it).ok());
                if last_of.is_empty() {
                    let kept = Some(Fetched { is_all: true, ..Fetched::default() });
                    return self.refuse(Event::Fetched { ticket, kept }, events);
                }
                self.take(What::LastOf(last_of), ticket, link, now_ms)
            }
            Fetch::Since { subject, age } => {
                let Ok(stream) = self.stream_of(&subject) else {
                    return self.refuse(Event::Since { ticket, behind: None }, events);
                };
                let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                self.take(What::Since(Since::new(stream, age_ms)), ticket, link, now_ms)
            }
        }
    }

    /// The stream of a subject, or why it has none.
    fn stream_of(&self, subject: &Subject) -> Result<usize, Box<str>> {
        let Some(config) = &self.config else {
            return Err("nothing is kept here: the settings say so".into());
        };
        if let State::Off { why, .. } = &self.state {
            return Err(why.clone());
        }
        let stream = config.stream_of(&self.prefix, b".h.", subject.as_str().as_bytes());
        stream.ok_or_else(|| "its subject is not one to store to".into())
    }

    fn refuse(&mut self, event: Event, events: &mut VecDeque<Event>) -> Result<(), QueueFull> {
        if self.tickets.is_full() {
            return Err(QueueFull);
        }
        self.tickets.answer(events, event);
        Ok(())
    }

    fn take(
        &mut self,
        what: What,
        ticket: Ticket,
        link: Option<&mut BytesMut>,
        now_ms: u64,
    ) -> Result<(), QueueFull> {
        let key = self.next_key();
        self.tickets.take(key, ticket, what, now_ms)?;
        if let Some(out) = link
            && self.is_asking()
        {
            self.ask(key, now_ms, out);
        }
        Ok(())
    }

    pub(super) const fn next_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    // Requests.

    pub(super) fn ask_all(&mut self, now_ms: u64, out: &mut BytesMut) {
        for key in self.tickets.keys(|_| true) {
            self.ask(key, now_ms, out);
        }
    }

    pub(super) fn ask(&mut self, key: u64, now_ms: u64, out: &mut BytesMut) {
        let Some(pending) = self.tickets.get_mut(key) else { return };
        let attempt = pending.ask(now_ms);
        let reply = format!("{}{}", self.inbox, RequestNumber { key, attempt }.text());
        let name = |at: usize| self.checks.get(at).map_or("", |it| &*it.name);
        let certain = |at: usize| self.checks.get(at).map_or(0, Check::certain);
        let (subject, words) = match &mut pending.what {
            What::Store(store) => {
                let age = self.checks.get(store.stream).and_then(Check::age);
                store.put(out, &reply, age);
                self.tickets.due(now_ms + tickets::AGAIN_FIRST_MS);
                return;
            }
            What::Purge(it) => api::purge(name(it.stream), it.subject.as_str(), it.before),
            What::After(it) => it.request(name(it.stream), certain(it.stream)),
            What::LastOf(it) => it.request(name(it.stream()), certain(it.stream())),
            What::Since(it) => it.request(name(it.stream)),
        };
        wire::put_request(out, &subject, &reply, &words);
        self.tickets.due(now_ms + tickets::AGAIN_FIRST_MS);
    }

    // Answers.

    pub(super) fn on_ticket(
        &mut self,
        RequestNumber { key, attempt }: RequestNumber,
        message: Message,
        now_ms: u64,
        out: &mut BytesMut,
        events: &mut VecDeque<Event>,
    ) {
        let Some(pending) = self.tickets.get_mut(key) else { return };
        let ticket = pending.ticket;
        let is_last = pending.is_last(attempt);
        let is_nobody = message.status() == Some(api::STATUS_NOBODY);
        let (stream, progress) = match &mut pending.what {
            What::Store(store) => {
                let stream = store.stream;
                let replicas = self.checks.get(stream).map_or(1, Check::replicas);
                (stream, publish::stored(pending, attempt, replicas, &message))
            }
            What::Purge(purge) => (purge.stream, publish::purged(pending, attempt, &message)),
            // Answers of several attempts would get mixed up.
            What::After(after) if is_last => (after.stream, after.on_answer(ticket, message)),
            What::LastOf(last_of) if is_last => {
                (last_of.stream(), last_of.on_answer(ticket, message))
            }
            What::Since(since) if is_last => (since.stream, since.on_answer(ticket, &message)),
            What::After(_) | What::LastOf(_) | What::Since(_) => return,
        };
        if is_nobody {
            let pending = self.tickets.get_mut(key);
            if let Some(at_ms) = pending.and_then(|it| it.ask_soon(attempt, now_ms)) {
                self.tickets.due(at_ms);
            }
            // The stream may have been deleted.
            self.next_recheck_ms = self.next_recheck_ms.map(|it| it.min(now_ms + RECHECK_AFTER_MS));
        }
        match progress {
            Progress::Nothing => {}
            Progress::Next => self.ask(key, now_ms, out),
            Progress::Done(event, seen) => {
                self.saw(stream, seen);
                self.tickets.done(key, events, event);
            }
        }
    }

    /// Handles an error about permissions; `None` if it is not about streams.
    pub(crate) fn refused(
        &mut self,
        text: &str,
        now_ms: u64,
        events: &mut VecDeque<Event>,
    ) -> Option<Action> {
        self.config.as_ref()?;
        let subject = text.split('"').nth(1).filter(|_| text.contains("ermissions"))?;
        if subject.starts_with("$JS.API.STREAM.PURGE.") {
            self.refuse_those(text, events, |it| matches!(it, What::Purge(_)));
            return Some(Action::Continue);
        }
        let stored = subject.strip_prefix(self.prefix.as_str());
        let is_stored = stored.is_some_and(|it| it.starts_with(".h."));
        if is_stored && matches!(self.state, State::On) {
            self.refuse_those(
                text,
                events,
                |it| matches!(it, What::Store(store) if store.subject.as_str() == subject),
            );
            return Some(Action::Continue);
        }
        let is_ours = is_stored || subject.starts_with("$JS.API.") || self.is_inbox(subject);
        is_ours.then(|| self.is_off(text.into(), now_ms))
    }

    fn is_inbox(&self, subject: &str) -> bool {
        subject.strip_suffix('*') == Some(&self.inbox)
    }

    fn refuse_those(
        &mut self,
        why: &str,
        events: &mut VecDeque<Event>,
        is_meant: impl Fn(&What) -> bool,
    ) {
        for key in self.tickets.keys(|it| is_meant(&it.what)) {
            if let Some(pending) = self.tickets.get_mut(key) {
                pending.last_attempt_failed(why);
            }
            self.tickets.give_up(key, events);
        }
    }
}
