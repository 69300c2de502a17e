//! The messages of a topic that a follower received, compared with those stored.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use simurgh_history::Place;

use crate::{HistoryEvent, HistoryItem, ItemPayload};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) at: Place,
    pub(crate) text: String,
    pub(crate) mine: Option<u64>,
    pub(crate) at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SeenEvent {
    Begun { epoch: u64, floor: u64, purged: u64, head: u64, messages: Vec<Message> },
    Next(Message),
    Gap(u64),
    Purged(Place),
    Unknown,
    Unavailable,
    Known,
    Ended,
}

impl SeenEvent {
    pub(crate) fn of(what: &HistoryEvent<'_>) -> Self {
        match what {
            HistoryEvent::Begun { epoch, floor, purged, head, messages } => {
                let messages = messages.iter().map(message).collect();
                let (epoch, floor, purged, head) = (*epoch, *floor, *purged, *head);
                Self::Begun { epoch, floor, purged, head, messages }
            }
            HistoryEvent::Next(item) => Self::Next(message(item)),
            HistoryEvent::Gap { through } => Self::Gap(*through),
            HistoryEvent::Purged { seq, index } => Self::Purged(Place { seq: *seq, item: *index }),
            HistoryEvent::Unknown => Self::Unknown,
            HistoryEvent::Unavailable => Self::Unavailable,
            HistoryEvent::Known => Self::Known,
            HistoryEvent::Ended => Self::Ended,
        }
    }
}

fn message(item: &HistoryItem<'_>) -> Message {
    let ItemPayload::Json(text) = item.item.payload else { panic!("{item:?}") };
    let at = Place { seq: item.seq, item: item.index };
    Message { at, text: text.into(), mine: item.mine, at_ms: item.at_ms }
}

/// Everything ever stored on one topic in one epoch; `None` is a purge.
pub(crate) type Stored = BTreeMap<Place, Option<String>>;

#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) told: usize,
    pub(crate) gaps: usize,
    pub(crate) fills: usize,
}

const END: u16 = u16::MAX;

const fn through(seq: u64) -> Place {
    Place { seq, item: END }
}

/// Checks all that one follower received of one topic, where `stored` has what was stored in each
/// epoch. Once it is `settled`, in this epoch, nothing is missing at the end.
pub(crate) fn check(
    said: &[SeenEvent],
    stored: &BTreeMap<u64, Stored>,
    settled: Option<u64>,
) -> Checked {
    let none = Stored::new();
    let mut checked = Checked::default();
    // The epoch, and the last received position.
    let mut cursor: Option<(u64, Place)> = None;
    let mut is_unknown = None;
    for (place, what) in said.iter().enumerate() {
        let of = |epoch: u64| stored.get(&epoch).unwrap_or(&none);
        match what {
            SeenEvent::Begun { epoch, floor, head, messages, .. } => {
                assert!(floor <= head, "{place}: {what:?}");
                let (from, to) = (Excluded(through(*floor)), Included(through(*head)));
                let expected: Vec<_> =
                    of(*epoch).range((from, to)).map(|(at, text)| (*at, text.clone())).collect();
                let got: Vec<_> =
                    messages.iter().map(|it| (it.at, Some(it.text.clone()))).collect();
                assert_eq!(got, expected, "{place}: above {floor} up to {head}");
                cursor = Some((*epoch, through(*head)));
                is_unknown = Some(false);
                checked.fills += 1;
                checked.told += messages.len();
            }
            SeenEvent::Next(Message { at, .. }) | SeenEvent::Purged(at) => {
                let (epoch, last) = cursor.expect("it begins first");
                let text = match what {
                    SeenEvent::Next(message) => Some(message.text.clone()),
                    _ => None,
                };
                let mut rest = of(epoch).range((Excluded(last), Included(through(u64::MAX))));
                assert_eq!(rest.next(), Some((at, &text)), "{place}: after {last:?}: {said:#?}");
                cursor = Some((epoch, *at));
                checked.told += 1;
            }
            SeenEvent::Gap(to) => {
                let (epoch, last) = cursor.expect("it begins first");
                assert!(*to > last.seq, "{place}: a gap up to {to} after {last:?}");
                cursor = Some((epoch, through(*to)));
                checked.gaps += 1;
            }
            SeenEvent::Unavailable => is_unknown = Some(true),
            SeenEvent::Unknown => {
                assert_ne!(is_unknown, Some(true), "{place}: told twice");
                is_unknown = Some(true);
            }
            SeenEvent::Known => {
                assert_eq!(is_unknown, Some(true), "{place}: it was known");
                assert!(cursor.is_some(), "{place}: nothing is known before it begins");
                is_unknown = Some(false);
            }
            SeenEvent::Ended => (cursor, is_unknown) = (None, None),
        }
    }
    if let Some(settled) = settled
        && said.last().is_some_and(|it| *it != SeenEvent::Ended)
    {
        let (epoch, last) = cursor.unwrap_or_else(|| panic!("it never began: {said:?}"));
        assert_eq!((epoch, is_unknown), (settled, Some(false)), "at the end: {said:#?}");
        let left: Vec<_> = stored
            .get(&epoch)
            .unwrap_or(&none)
            .range((Excluded(last), Included(through(u64::MAX))))
            .collect();
        assert!(left.is_empty(), "{left:?} was not told: {said:#?}");
    }
    checked
}
