//! What is prepared from long messages, which are read away from their shard.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_core::{PrepareFn, Prepared, ShardContext};
use simurgh_proto::message::{Message, Payload, events};

use super::actor::give_up;
use crate::world::Shared;
use crate::world::ledger::BroadcastInfo;

/// The value prepared from a message: the payload of an event as it came, and an answer, to be sent
/// in the very bytes that were made.
pub(crate) struct Ready {
    pub(crate) id: u32,
    pub(crate) word: u32,
    pub(crate) payload: Option<Payload<'static>>,
    pub(crate) answer: Option<(u32, Payload<'static>)>,
    shared: Arc<Shared>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.shared.ready.fetch_sub(1, Relaxed);
    }
}

pub(crate) fn prepare(shared: &Arc<Shared>) -> PrepareFn {
    let shared = Arc::downgrade(shared);
    Arc::new(move |message| match shared.upgrade() {
        Some(shared) => Box::new(ready(&shared, message)) as Prepared,
        None => Box::new(()),
    })
}

fn ready(shared: &Arc<Shared>, message: &mut Message<'static>) -> Ready {
    let mut ledger = shared.ledger();
    let (id, word) = ledger.given(&message.payload);
    // The application prepares, and may panic.
    let panics = shared.plan.app.panics > 0;
    let topic = shared.plan.topics.number(&message.topic).unwrap_or_default();
    let made = BroadcastInfo::new(usize::from(topic), 0);
    let answer = ledger.payload(made, word, message.payload.len() / 2);
    drop(ledger);
    if panics && word % 64 == 1 {
        give_up();
    }
    // The replacement must not be longer.
    let is_taken = message.event != events::JOIN && message.payload.len() >= Payload::NULL.len();
    let payload = is_taken.then(|| std::mem::replace(&mut message.payload, Payload::NULL));
    shared.ready.fetch_add(1, Relaxed);
    Ready { id, word, payload, answer: Some(answer), shared: Arc::clone(shared) }
}

/// The value prepared from the current message, if any; `payload` is what the core passes.
pub(super) fn taken(
    shared: &Shared,
    ctx: &mut ShardContext<'_>,
    payload: Option<&Payload<'_>>,
) -> Option<Ready> {
    let ready: Option<Ready> = ctx.take_prepared();
    let mut ledger = shared.ledger();
    // Callbacks other than that of the message have no prepared value.
    let due = payload.and_then(|_| ledger.sessions.prepared.take());
    let found = ready.as_ref().map(|ready| ready.id);
    ledger.counts.count("of them handled as prepared", u64::from(found.is_some()));
    // The payload of an event was taken where it was read.
    let is_empty = payload.is_some_and(|payload| payload.json() == Some("null"));
    let is_whole = ready.as_ref().is_none_or(|ready| ready.payload.is_some() == is_empty);
    if due != found || !is_whole {
        ledger.fail("prepared", format!("{found:?} is in hand, not {due:?} ({payload:?})"));
    }
    drop(ledger);
    ready
}
