//! Changes of a stream: stores and purges.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use simurgh_cluster::Subject;
use simurgh_cluster::adapter::{Event, NotStored};

use super::api::{self, Failure, PubAck, Purged};
use super::tickets::Pending;
use crate::wire::{self, Message};

#[derive(Debug)]
pub(super) struct Store {
    pub(super) stream: usize,
    pub(super) subject: Subject,
    pub(super) id: Box<str>,
    /// Time after which it may be removed.
    pub(super) age: Option<Duration>,
    pub(super) envelope: Bytes,
}

impl Store {
    /// Appends the message. `stream_age`: the age of the stream, if it has one. A message that may
    /// be removed then or later does not need its own age, which would cost the broker memory and
    /// CPU.
    pub(super) fn put(&self, out: &mut BytesMut, reply: &str, stream_age: Option<Duration>) {
        let id = ("Nats-Msg-Id", &*self.id);
        let subject = self.subject.as_str();
        let age = self.age.filter(|age| stream_age.is_none_or(|of_stream| *age < of_stream));
        let age = age.map(|it| it.as_secs().max(1).to_string());
        let headers = [id, ("Nats-TTL", age.as_deref().unwrap_or_default())];
        let headers = if age.is_some() { &headers[..] } else { &headers[..1] };
        wire::put_with_headers(out, subject, reply, headers, &self.envelope);
    }
}

/// A purge of everything on a subject before a number.
#[derive(Debug)]
pub(super) struct Purge {
    pub(super) stream: usize,
    pub(super) subject: Subject,
    pub(super) before: u64,
}

/// The consequence of an answer for a ticket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Nothing,
    Next,
    /// The ticket's answer, and the number of the stream in it.
    Done(Event, u64),
}

pub(super) fn stored(
    pending: &mut Pending,
    attempt: u16,
    replicas: u64,
    message: &Message,
) -> Progress {
    let ticket = pending.ticket;
    match api::read::<PubAck>(message) {
        Ok(PubAck { seq, duplicate: is_duplicate }) if seq > 0 => {
            Progress::Done(Event::Stored { ticket, seq, is_duplicate }, seq)
        }
        // It is not an answer of JetStream.
        Ok(_) => Progress::Nothing,
        Err(failure) => match failed(pending, attempt, replicas, &failure) {
            Some(why) => Progress::Done(Event::NotStored { ticket, why }, 0),
            None => Progress::Nothing,
        },
    }
}

pub(super) fn purged(pending: &mut Pending, attempt: u16, message: &Message) -> Progress {
    let ticket = pending.ticket;
    match api::read::<Purged>(message) {
        Ok(Purged { success: true }) => Progress::Done(Event::Purged { ticket, why: None }, 0),
        Ok(_) => Progress::Nothing,
        Err(failure) => match failed(pending, attempt, 1, &failure) {
            Some(why) => Progress::Done(Event::Purged { ticket, why: Some(why) }, 0),
            None => Progress::Nothing,
        },
    }
}

/// Records a failed attempt. Returns the reason if no other attempt is open.
fn failed(
    pending: &mut Pending,
    attempt: u16,
    replicas: u64,
    failure: &Failure,
) -> Option<NotStored> {
    if failure.may_be_stored(replicas) {
        return None;
    }
    let why = failure.to_string();
    pending.attempt_failed(attempt, &why);
    // An earlier attempt may have been stored, and its answer may still come.
    let is_over = !failure.is_passing() && !pending.may_be_done();
    is_over.then(|| NotStored::Refused(why.into()))
}
