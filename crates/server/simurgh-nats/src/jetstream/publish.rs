//! What changes a stream: storing, and forgetting.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use simurgh_cluster::Subject;
use simurgh_cluster::adapter::{Event, NotStored};

use super::api::{self, Failure, PubAck, Purged};
use super::tickets::Pending;
use crate::wire::{self, Message};

/// An envelope to be stored.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) stream: usize,
    pub(super) subject: Subject,
    pub(super) id: Box<str>,
    /// After which it may be forgotten.
    pub(super) age: Option<Duration>,
    pub(super) envelope: Bytes,
}

impl Store {
    pub(super) fn new(
        stream: usize,
        subject: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
    ) -> Self {
        Self { stream, subject: subject.clone(), id: id.into(), age, envelope }
    }

    /// `stream_age`: after which the stream forgets everything, if it does. What may be forgotten
    /// then or later needs no time of its own, which costs the engine memory and CPU.
    pub(super) fn put(&self, out: &mut BytesMut, reply: &str, stream_age: Option<Duration>) {
        let id = ("Nats-Msg-Id", &*self.id);
        let subject = self.subject.as_str();
        let age = self.age.filter(|age| stream_age.is_none_or(|of_stream| *age < of_stream));
        match age {
            Some(age) => {
                let age = age.as_secs().max(1).to_string();
                let headers = [id, ("Nats-TTL", &*age)];
                wire::put_with_headers(out, subject, reply, &headers, &self.envelope);
            }
            None => wire::put_with_headers(out, subject, reply, &[id], &self.envelope),
        }
    }
}

/// Everything on a subject before a number is to be forgotten.
#[derive(Debug)]
pub(super) struct Purge {
    pub(super) stream: usize,
    pub(super) subject: Subject,
    pub(super) before: u64,
}

/// What an answer is to a ticket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing yet.
    Nothing,
    /// The next question is to be asked.
    Next,
    /// The answer, of which the number was seen in the stream.
    Done(Event, u64),
}

/// The answer to what was stored.
pub(super) fn stored(
    pending: &mut Pending,
    attempt: u16,
    replicas: u64,
    message: &Message,
) -> Progress {
    let ticket = pending.ticket;
    match api::read::<PubAck>(message) {
        Ok(PubAck { seq, duplicate: is_duplicate, .. }) if seq > 0 => {
            Progress::Done(Event::Stored { ticket, seq, is_duplicate }, seq)
        }
        // No answer of JetStream's: it says nothing.
        Ok(_) => Progress::Nothing,
        Err(failure) => match failed(pending, attempt, replicas, &failure) {
            Some(why) => Progress::Done(Event::NotStored { ticket, why }, 0),
            None => Progress::Nothing,
        },
    }
}

/// The answer to what was to be forgotten.
pub(super) fn purged(pending: &mut Pending, attempt: u16, message: &Message) -> Progress {
    let ticket = pending.ticket;
    match api::read::<Purged>(message) {
        Ok(Purged { success: true, .. }) => Progress::Done(Event::Purged { ticket, why: None }, 0),
        Ok(_) => Progress::Nothing,
        Err(failure) => match failed(pending, attempt, 1, &failure) {
            Some(why) => Progress::Done(Event::Purged { ticket, why: Some(why) }, 0),
            None => Progress::Nothing,
        },
    }
}

/// An attempt has failed: the answer, if there is nothing more to be waited for.
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
    pending.was_in_vain(attempt, &why);
    // An attempt before may have been stored, and its answer is still to come.
    let is_over = !failure.is_passing() && !pending.may_be_done();
    is_over.then(|| NotStored::Refused(why.into()))
}
