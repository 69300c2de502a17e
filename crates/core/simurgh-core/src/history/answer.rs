//! Answers of a topic's home to clients that missed messages, shared by all that missed the same.

use simurgh_channel::{
    HistoryConfig, HistoryPage, Kept, KeptMessage, Missed, MissedRequest, Range, Requester,
};
use simurgh_history::{Entry, GapReason, Place, Position, ReplayLimits, Ring, Since};

use simurgh_data::prelude::*;

/// Answers that are remembered: clients that missed the same request one part after another.
pub(super) const ANSWERS_MAX: usize = 4;

/// A request, and the topic's state then: while both are the same, so is the answer.
#[derive(PartialEq, Eq)]
pub(super) struct Request {
    topic: Rc<str>,
    since: Since,
    partial: bool,
    torn: bool,
    is_away: bool,
    has_begun: bool,
    head: Place,
    floor: Place,
}

impl Request {
    pub(super) fn of(ask: &MissedRequest, name: &Rc<str>, ring: &Ring<Kept>) -> Self {
        Self {
            topic: Rc::clone(name),
            since: ask.since,
            partial: ask.partial,
            torn: ask.torn,
            is_away: ask.is_away,
            has_begun: matches!(ask.requester, Requester::Member(_)),
            head: ring.head(),
            floor: ring.floor(),
        }
    }
}

/// The answer to a request: as much of what follows its position as is sent at once.
pub(super) fn missed(ring: &Ring<Kept>, ask: &MissedRequest, config: &HistoryConfig) -> Missed {
    let limits = match ask.requester {
        Requester::Join(..) => {
            ReplayLimits { count: config.replay_count, bytes: config.replay_bytes as u64 }
        }
        // It was within these limits when the replay began.
        Requester::Member(_) => ReplayLimits { count: usize::MAX, bytes: u64::MAX },
    };
    let replay = ring.since(ask.since, &limits);
    let away = ask.is_away.then_some(GapReason::Unavailable);
    let is_given = replay.gap.or(away).is_none() || ask.partial;
    let (after, entries) = match is_given {
        true => (replay.after, replay.entries),
        false => (ring.head(), ring.len()..ring.len()),
    };
    let count = entries.len();
    let portion = ring.portion(after, &config.portion);
    let (entries, through, more) = match portion {
        Ok(it) if count > 0 => (it.entries, it.through, it.more),
        _ => (entries, ring.head(), false),
    };
    let through = if more { through } else { ring.head() };
    let of = |it: Entry<'_, Kept>| (ring.position_of(it.place), it.value.clone());
    Missed {
        gap: replay.gap.or(ask.torn.then_some(GapReason::Lost)).or(away),
        after: ring.position_of(after),
        through: ring.position_of(through),
        more,
        count,
        messages: ring.entries(entries).map(of).collect(),
    }
}

/// Bytes of one page of a topic's history, if it has more than one message.
const PAGE_BYTES: u64 = 4 << 20;

/// Part of a ring, from the requested position or what is left behind it, in the requested order.
pub(super) fn page(ring: &Ring<Kept>, range: &Range) -> HistoryPage {
    // A position of another epoch counts as none.
    let is_known = |it: &Position| it.epoch == ring.epoch() && it.place <= ring.head();
    let since = range.since.filter(is_known).map(|it| it.place);
    let gap = match since {
        Some(place) => ring.has_all_after(place).err(),
        None => range.since.map(|_| GapReason::Epoch),
    };
    let entries = match (since, range.is_reverse) {
        (None, _) => 0..ring.len(),
        (Some(place), false) => ring.index_after(place)..ring.len(),
        (Some(place), true) => 0..ring.index_at(place),
    };
    let mut bytes = 0;
    let mut fits = |entry: &Entry<'_, Kept>| {
        let is_first = bytes == 0;
        bytes += entry.bytes;
        is_first || bytes <= PAGE_BYTES
    };
    let message = |entry: Entry<'_, Kept>| KeptMessage {
        position: ring.position_of(entry.place),
        at_ms: entry.at_ms,
        content: entry.value.content.clone(),
    };
    let entries = ring.entries(entries);
    let messages = match range.is_reverse {
        true => entries.rev().take(range.limit).take_while(&mut fits).map(message).collect(),
        false => entries.take(range.limit).take_while(&mut fits).map(message).collect(),
    };
    let first = ring.first().map(|it| ring.position_of(it.place));
    HistoryPage { gap, first, position: ring.position(), messages }
}
