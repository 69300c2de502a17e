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

/// A ticket's request, or its answer if it needs no request.
pub(crate) struct Asked {
    ticket: Ticket,
    what: Result<What, Event>,
}

impl JetStream {
    pub(crate) fn store(
        &self,
        (to, id, age): (&Subject, &str, Option<Duration>),
        envelope: Bytes,
        ticket: Ticket,
    ) -> Asked {
        let is_proper = !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(['\r', '\n']);
        let is_large = envelope.len() > ENVELOPE_BYTES_MAX - HEADERS_BYTES_MAX;
        let stream = match self.stream_of(to) {
            Ok(_) if !is_proper => Err("an id must have 1 to 256 bytes and no line breaks".into()),
            Ok(_) if is_large => Err("it is larger than the broker's limit".into()),
            stream => stream,
        };
        let (subject, id) = (to.clone(), id.into());
        let what = match stream {
            Ok(stream) => Ok(What::Store(Store { stream, subject, id, age, envelope })),
            Err(why) => Err(Event::NotStored { ticket, why: NotStored::Refused(why) }),
        };
        Asked { ticket, what }
    }

    pub(crate) fn purge(&self, of: &Subject, before: u64, ticket: Ticket) -> Asked {
        let what = match self.stream_of(of) {
            Err(why) => Err(Some(NotStored::Refused(why))),
            // A purge before 0 would remove everything.
            Ok(_) if before <= 1 => Err(None),
            Ok(stream) => Ok(What::Purge(Purge { stream, subject: of.clone(), before })),
        };
        Asked { ticket, what: what.map_err(|why| Event::Purged { ticket, why }) }
    }

    pub(crate) fn fetch(&self, what: Fetch, ticket: Ticket) -> Asked {
        let fetched = |kept| Event::Fetched { ticket, kept };
        let what = match what {
            Fetch::After { subject, seq, count, bytes, from_leader } => {
                match self.stream_of(&subject) {
                    Err(_) => Err(fetched(None)),
                    Ok(_) if count == 0 => Err(fetched(Some(Fetched::default()))),
                    Ok(stream) => {
                        let most = (count, bytes);
                        Ok(What::After(After::new(stream, subject, seq, most, from_leader)))
                    }
                }
            }
            Fetch::LastOf { subjects } => {
                let last_of = LastOf::new(subjects, |it| self.stream_of(it).ok());
                if self.config.is_none() || matches!(self.state, State::Off { .. }) {
                    Err(fetched(None))
                } else if last_of.is_empty() {
                    Err(fetched(Some(Fetched { is_all: true, ..Fetched::default() })))
                } else {
                    Ok(What::LastOf(last_of))
                }
            }
            Fetch::Since { subject, age } => {
                let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                let stream = self.stream_of(&subject);
                let since = stream.map(|stream| What::Since(Since::new(stream, age_ms)));
                since.map_err(|_| Event::Since { ticket, behind: None })
            }
        };
        Asked { ticket, what }
    }

    /// The stream of a subject, or why it has none.
    fn stream_of(&self, subject: &Subject) -> Result<usize, Box<str>> {
        let Some(config) = &self.config else {
            return Err("this node's settings disable histories".into());
        };
        if let State::Off { why, .. } = &self.state {
            return Err(why.clone());
        }
        let stream = config.stored_in(&self.prefix, subject.as_str().as_bytes());
        stream.ok_or_else(|| "its subject does not belong to a stream".into())
    }

    /// # Errors
    /// There are too many tickets.
    pub(crate) fn take(
        &mut self,
        Asked { ticket, what }: Asked,
        link: Option<&mut BytesMut>,
        now_ms: u64,
        events: &mut VecDeque<Event>,
    ) -> Result<(), QueueFull> {
        let what = match what {
            Ok(what) => what,
            Err(_) if self.tickets.is_full() => return Err(QueueFull),
            Err(event) => {
                self.tickets.answer(events, event);
                return Ok(());
            }
        };
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
        let is_stored = stored.is_some_and(|it| it.starts_with(".h.") || it.starts_with(".l."));
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
