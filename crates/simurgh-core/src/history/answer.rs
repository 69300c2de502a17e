//! What somebody has missed, by what is kept at the home of the topic; one answer for all who ask
//! the same.

use std::rc::Rc;
use std::sync::Arc;

use simurgh_history::{Entry, Place, Position, Reason, ReplayLimits, Ring, Since};

use super::call::{Ask, AskedBy, Kept, Missed};
use super::home::KeptTopics;
use super::rule::HistoryConfig;

/// Answers that are remembered for those who ask the same: those who missed the same much ask for
/// one part after another.
pub(super) const ANSWERS_MAX: usize = 4;

/// What was asked, and what was there: while both are the same, so is the answer.
#[derive(PartialEq, Eq)]
pub(super) struct Asked {
    topic: Rc<str>,
    since: Since,
    partial: bool,
    torn: bool,
    /// It was told a part already.
    has_begun: bool,
    head: Place,
    floor: Place,
}

impl Asked {
    fn of(ask: &Ask, name: &Rc<str>, ring: &Ring<Kept>) -> Self {
        Self {
            topic: Rc::clone(name),
            since: ask.since,
            partial: ask.partial,
            torn: ask.torn,
            has_begun: matches!(ask.by, AskedBy::Member(_)),
            head: ring.head(),
            floor: ring.floor(),
        }
    }
}

/// What is told to somebody of what is kept: of what follows the position where it stands, as much
/// as is told at once.
fn missed(ring: &Ring<Kept>, ask: &Ask, config: &HistoryConfig) -> Missed {
    let limits = match ask.by {
        AskedBy::Join(..) => {
            ReplayLimits { count: config.replay_count, bytes: config.replay_bytes as u64 }
        }
        // It was within these limits when it began.
        AskedBy::Member(_) => ReplayLimits { count: usize::MAX, bytes: u64::MAX },
    };
    let replay = ring.since(ask.since, &limits);
    let is_given = replay.gap.is_none() || ask.partial;
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
        gap: replay.gap.or(ask.torn.then_some(Reason::Lost)),
        after: ring.position_of(after),
        through: ring.position_of(through),
        more,
        count,
        messages: ring.entries(entries).map(of).collect(),
    }
}

impl KeptTopics {
    /// What somebody has missed, as far as it is told at once; and how many of all these messages
    /// it has sent itself.
    pub(super) fn missed(
        &mut self,
        ask: &Ask,
        config: &HistoryConfig,
        now_ms: u64,
    ) -> (Arc<Missed>, usize) {
        let limits = self.limits(&ask.topic);
        let at = self.by_name.get(&*ask.topic);
        let slot = at.and_then(|at| self.slots.get_mut(*at as usize)?.as_deref_mut());
        let Some(slot) = slot else {
            return (Arc::new(self.nothing(ask.since)), 0);
        };
        slot.used_ms = now_ms;
        let dropped = slot.topic.enforce(&limits, now_ms);
        let ring = slot.topic.ring();
        let asked = Asked::of(ask, &slot.name, ring);
        let found = self.last.iter().find(|(last, _)| *last == asked);
        let missed = match found {
            Some((_, missed)) => Arc::clone(missed),
            None => {
                let missed = Arc::new(missed(ring, ask, config));
                self.last.truncate(ANSWERS_MAX - 1);
                self.last.insert(0, (asked, Arc::clone(&missed)));
                missed
            }
        };
        let own = match ask.client {
            0 => 0,
            client => {
                let end = ring.len();
                let all = ring.entries(end.saturating_sub(missed.count)..end);
                all.filter(|it| it.value.sender == client).count()
            }
        };
        self.count(dropped);
        (missed, own)
    }

    /// What somebody has missed of a topic of which nothing is known.
    pub(super) fn nothing(&self, since: Since) -> Missed {
        let head = Position { epoch: self.epoch, place: self.base };
        let gap = match since {
            Since::Now => None,
            Since::After(position) if position == head => None,
            // There may have been others behind it, which are as old.
            Since::After(it) if it.epoch == head.epoch && it.place < head.place => {
                Some(Reason::Expired)
            }
            Since::After(_) | Since::Unknown => Some(Reason::Epoch),
        };
        let messages = Vec::new();
        Missed { gap, after: head, through: head, more: false, count: 0, messages }
    }
}
