//! A broadcast as it is kept.

use crate::seeded_state::{HashSet, SeededState};
use simurgh_data::prelude::*;

use simurgh_channel::{Broadcast, KeptContent};
use simurgh_proto::message::Payload;

/// Longer payloads are shared with the broadcasts that members get; a copy of a shorter one takes
/// less memory than the broadcast around it.
const SHARED_BYTES: usize = 1 << 10;
/// Bytes that a kept broadcast counts in addition to its payload: its record, and its share of the
/// allocator's overhead.
const KEPT_BYTES: usize = 96;
/// Names of events that are shared, and their longest size: longer ones are counted with their
/// broadcasts.
const EVENTS_MAX: usize = 256;
const EVENT_BYTES_MAX: usize = 64;

/// A broadcast as it is kept, and the bytes that count for it.
pub(super) fn value(
    events: &mut HashSet<Arc<str>, SeededState>,
    broadcast: &Arc<Broadcast>,
) -> (KeptContent, usize) {
    let event = broadcast.event.len();
    let event = if event > EVENT_BYTES_MAX { event } else { 0 };
    let bytes = broadcast.payload.len() + event + KEPT_BYTES;
    let what = match &broadcast.payload {
        Payload::Json(text) if text.len() <= SHARED_BYTES => {
            KeptContent::Json(shared(events, &broadcast.event), (**text).into())
        }
        Payload::Binary(data) if data.len() <= SHARED_BYTES => {
            KeptContent::Binary(shared(events, &broadcast.event), (**data).into())
        }
        _ => KeptContent::Shared(Arc::clone(broadcast)),
    };
    (what, bytes)
}

fn shared(events: &mut HashSet<Arc<str>, SeededState>, event: &str) -> Arc<str> {
    if let Some(known) = events.get(event) {
        return Arc::clone(known);
    }
    // Clients may have chosen them.
    if event.len() > EVENT_BYTES_MAX {
        return event.into();
    }
    if events.len() >= EVENTS_MAX {
        events.clear();
    }
    let event = Arc::<str>::from(event);
    events.insert(Arc::clone(&event));
    event
}
