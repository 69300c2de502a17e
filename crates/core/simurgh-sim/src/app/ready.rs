//! What is prepared from long messages, which are read away from their shard.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use simurgh_core::{PrepareFn, Prepared, ShardContext};
use simurgh_proto::message::{Message, Payload, events};

use super::give_up;
use super::shared::Shared;
use crate::model::PayloadInfo;

/// The value prepared from a message: the payload of an event as it came, and an answer, to be sent
/// in the very bytes that were made.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: u32,
    pub(crate) word: u32,
    pub(crate) payload: Option<Payload<'static>>,
    pub(crate) answer: Option<(u32, Payload<'static>)>,
    shared: Arc<Shared>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.shared.ready.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn prepare(shared: &Arc<Shared>) -> PrepareFn {
    let shared = Arc::downgrade(shared);
    Arc::new(move |message| match Weak::upgrade(&shared) {
        Some(shared) => Box::new(ready(&shared, message)) as Prepared,
        None => Box::new(()),
    })
}

fn ready(shared: &Arc<Shared>, message: &mut Message<'static>) -> Ready {
    let mut model = shared.model();
    let (id, word) = model.given(&message.payload);
    // The application prepares, and may panic.
    let panics = word % 64 == 1 && shared.profile.panics > 0;
    let topic = model.topics.number(&message.topic).unwrap_or_default();
    let pad = message.payload.len() / 2;
    let answer = model.payload(PayloadInfo::plain(topic, 0), word, pad);
    drop(model);
    if panics {
        give_up();
    }
    // The replacement must not be longer.
    let is_taken = message.event != events::JOIN && message.payload.len() >= Payload::NULL.len();
    let payload = is_taken.then(|| std::mem::replace(&mut message.payload, Payload::NULL));
    shared.ready.fetch_add(1, Ordering::Relaxed);
    Ready { id, word, payload, answer: Some(answer), shared: Arc::clone(shared) }
}

/// The value prepared from the current message, if any; `payload` is what the core passes.
pub(crate) fn taken(
    shared: &Shared,
    ctx: &mut ShardContext<'_>,
    payload: Option<&Payload<'_>>,
) -> Option<Ready> {
    let ready: Option<Ready> = ctx.take_prepared();
    let mut model = shared.model();
    // Callbacks other than that of the message have no prepared value.
    let due = if payload.is_some() { model.prepared.take() } else { None };
    let found = ready.as_ref().map(|it| it.id);
    model.counts.count("of them handled as prepared", u64::from(found.is_some()));
    // The payload of an event was taken where it was read.
    let is_empty = payload.is_some_and(|it| it.json() == Some("null"));
    let is_whole = ready.as_ref().is_none_or(|it| it.payload.is_some() == is_empty);
    if due != found || !is_whole {
        model.fail("prepared", format!("{found:?} is in hand, not {due:?} ({payload:?})"));
    }
    ready
}
