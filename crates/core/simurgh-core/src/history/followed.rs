//! The topics of a shard that a broker numbers: the state of each, and requests that wait for it.
//!
//! Their messages are in [`KeptTopics`](super::kept_topics::KeptTopics), as those of all others.

use core::time::Duration;

use simurgh_channel::engine::is_of_nothing;
use simurgh_channel::{KeptAt, MissedRequest, PageCallback, Range};
use simurgh_history::{Epoch, GapReason, Place, Position, Since};

use super::stores::Stores;
use crate::name_table::NameMap;
use simurgh_data::prelude::*;

/// How long requests wait for a topic to be known, or to reach a client's position from elsewhere;
/// and kept broadcasts for their delivery.
const WAIT: Duration = Duration::from_secs(2);
/// Requests that wait on one shard, and those of one topic whose clients are ahead of it: more are
/// answered at once.
const WAITING_MAX: usize = 1 << 16;
const AHEAD_MAX: usize = 1 << 10;
/// How long after a topic was followed it is followed again.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);
/// How long after the cluster was asked to check a topic it is asked again.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct FollowedTopics {
    /// The broker is the process that takes over from this one: every topic is known here.
    pub(super) is_successor: bool,
    pub(super) stores: Stores,
    pub(super) topics: NameMap<Followed>,
    pub(super) unknown_position: Position,
    due: VecDeque<(u64, Deadline)>,
    /// Topics for which more can be answered than fits into one turn.
    pub(super) ready: VecDeque<Rc<str>>,
    waiting: usize,
}

pub(super) enum Deadline {
    Topic(Rc<str>),
    /// A broadcast that the broker has kept and not delivered yet.
    Store(u64, KeptAt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopicState {
    /// No answer has arrived.
    Requested,
    /// Everything has arrived, or is on its way.
    Live,
    /// It has begun, but what was stored since is unknown.
    Unknown,
    /// The broker stores nothing.
    Unavailable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StrayPositions {
    None,
    Unknown,
    /// The last of positions of one epoch, from another node; others have the unknown position.
    Of(Position),
    OfSeveral,
}

impl StrayPositions {
    pub(super) fn with(self, position: Option<Position>) -> Self {
        match (self, position) {
            (Self::None, None) => Self::Unknown,
            (Self::None | Self::Unknown, Some(position)) => Self::Of(position),
            (Self::Of(one), Some(other)) if one.epoch != other.epoch => Self::OfSeveral,
            (Self::Of(one), Some(other)) if one.place < other.place => Self::Of(other),
            (it, _) => it,
        }
    }

    /// The gap that members are sent when a topic begins in this epoch; `is_quiet`: it never had a
    /// message, or the answer is of a copy that has none yet.
    pub(super) fn gap(self, epoch: Epoch, is_quiet: bool) -> Option<GapReason> {
        match self {
            Self::Of(it) if it.epoch != epoch => Some(GapReason::Epoch),
            Self::Of(it) if is_quiet && (it.place == Place::ZERO || is_of_nothing(it.place)) => {
                None
            }
            Self::None | Self::Unknown if is_quiet => None,
            _ => Some(GapReason::Unavailable),
        }
    }
}

pub(super) struct Followed {
    pub(super) state: TopicState,
    waiting: VecDeque<Waiting>,
    followed_ns: Option<u64>,
    checked_ns: Option<u64>,
    pub(super) answered_ns: Option<u64>,
    pub(super) stray: StrayPositions,
    /// Its position when it ended, if members may have it.
    pub(super) was_at: Option<Position>,
}

struct Waiting {
    until_ns: u64,
    what: PendingRequest,
}

pub(super) enum PendingRequest {
    Missed(Box<MissedRequest>),
    Page(Range, PageCallback),
}

impl PendingRequest {
    pub(super) fn starts_behind(&self) -> Since {
        match self {
            Self::Missed(ask) => ask.since,
            // A page needs no later messages.
            Self::Page(range, _) => range.since.map_or(Since::Unknown, Since::After),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Known,
    /// It can be answered when the topic has reached its position.
    Ahead,
    /// It can be answered when the topic is known.
    Unknown,
    /// It is answered with what is here: nothing else will be known.
    Unavailable,
}

impl FollowedTopics {
    pub(crate) fn new(shard: u16, node: u64, seed: u64) -> Self {
        Self {
            is_successor: false,
            stores: Stores::new(shard),
            topics: NameMap::new(seed),
            unknown_position: Position { epoch: Epoch::from_seed(node), place: Place::ZERO },
            due: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting + self.stores.len()
    }

    /// Adds a topic, which is followed from now on.
    pub(super) fn open(&mut self, topic: &str) -> &mut Followed {
        self.topics.get_or_insert_with(topic, || Followed {
            state: TopicState::Requested,
            waiting: VecDeque::new(),
            followed_ns: None,
            checked_ns: None,
            answered_ns: None,
            stray: StrayPositions::None,
            was_at: None,
        })
    }

    pub(super) fn is_to_follow(&mut self, topic: &str, now_ns: u64) -> bool {
        is_due(&mut self.open(topic).followed_ns, FOLLOW_AGAIN, now_ns)
    }

    pub(super) fn is_to_check(&mut self, topic: &str, now_ns: u64) -> bool {
        is_due(&mut self.open(topic).checked_ns, CHECK_AGAIN, now_ns)
    }

    /// Whether a request for a topic can be answered; the topic is here up to its head if it has
    /// begun.
    pub(super) fn readiness(&self, topic: &str, since: Since, head: Option<Position>) -> Readiness {
        let state = self.topics.get(topic).map(|it| it.state);
        match (state, head, since) {
            // Unknown messages are behind the head, and arrive in order.
            (
                Some(TopicState::Live | TopicState::Unknown | TopicState::Unavailable),
                Some(_),
                Since::Now,
            ) => Readiness::Known,
            // A first join is no reason for a gap.
            (Some(TopicState::Unavailable), Some(_), Since::Newest(_)) => Readiness::Known,
            (Some(TopicState::Unavailable), ..) => Readiness::Unavailable,
            (Some(TopicState::Live), Some(head), _) if is_ahead(since, head) => Readiness::Ahead,
            (Some(TopicState::Live), Some(_), _) => Readiness::Known,
            _ => Readiness::Unknown,
        }
    }

    pub(super) fn wait(
        &mut self,
        topic: &str,
        is_ahead: bool,
        what: PendingRequest,
        now_ns: u64,
    ) -> Result<(), PendingRequest> {
        let until_ns = now_ns.saturating_add(WAIT.as_nanos() as u64);
        let is_full = self.waiting >= WAITING_MAX;
        let followed = self.open(topic);
        if is_full || (is_ahead && followed.waiting.len() >= AHEAD_MAX) {
            return Err(what);
        }
        followed.waiting.push_back(Waiting { until_ns, what });
        self.waiting += 1;
        if let Some((name, _)) = self.topics.entry(topic) {
            self.due.push_back((until_ns, Deadline::Topic(Rc::clone(name))));
        }
        Ok(())
    }

    pub(super) fn await_delivery(&mut self, number: u64, at: KeptAt, now_ns: u64) {
        let until_ns = now_ns.saturating_add(WAIT.as_nanos() as u64);
        self.due.push_back((until_ns, Deadline::Store(number, at)));
    }

    pub(super) fn is_unavailable(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|followed| followed.state == TopicState::Unavailable)
    }

    /// Takes out up to a number of requests for a topic that can be answered: all, if it is
    /// unavailable. Returns also whether there are more, and whether some clients are ahead of the
    /// topic.
    pub(super) fn take_ready(
        &mut self,
        topic: &str,
        head: Option<Position>,
        count: usize,
    ) -> (Vec<PendingRequest>, bool, bool) {
        let Some(followed) = self.topics.get_mut(topic) else { return Default::default() };
        let head = match (head, followed.state) {
            (_, TopicState::Unavailable) => None,
            (Some(head), TopicState::Live) => Some(head),
            _ => return Default::default(),
        };
        let is_ready =
            |it: &Waiting| head.is_none_or(|head| !is_ahead(it.what.starts_behind(), head));
        let has_ahead = !followed.waiting.iter().all(is_ready);
        if !followed.waiting.iter().any(is_ready) {
            return (Vec::new(), false, has_ahead);
        }
        let (mut ready, mut rest, mut has_more) = (Vec::new(), VecDeque::new(), false);
        for it in core::mem::take(&mut followed.waiting) {
            match is_ready(&it) {
                true if ready.len() < count => ready.push(it.what),
                is_ready => {
                    has_more |= is_ready;
                    rest.push_back(it);
                }
            }
        }
        followed.waiting = rest;
        self.waiting = self.waiting.saturating_sub(ready.len());
        (ready, has_more, has_ahead)
    }

    /// Takes out up to `count` requests for a topic whose time is over.
    pub(super) fn take_overdue(
        &mut self,
        topic: &str,
        count: usize,
        now_ns: u64,
    ) -> Vec<PendingRequest> {
        let Some(followed) = self.topics.get_mut(topic) else { return Vec::new() };
        let waiting = &mut followed.waiting;
        let overdue = waiting.iter().take_while(|it| it.until_ns <= now_ns).take(count).count();
        let taken: Vec<_> = waiting.drain(..overdue).map(|it| it.what).collect();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        self.waiting = self.waiting.saturating_sub(taken.len());
        taken
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Deadline> {
        let (until_ns, _) = self.due.front()?;
        if *until_ns > now_ns {
            return None;
        }
        self.due.pop_front().map(|(_, due)| due)
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.front().map(|(until_ns, _)| *until_ns)
    }

    /// A topic is no longer followed, with this head. Returns whether it must be followed again,
    /// because requests wait, or members may have joined a moment ago.
    pub(super) fn ends(&mut self, topic: &str, head: Option<Position>, now_ns: u64) -> bool {
        let Some(followed) = self.topics.get_mut(topic) else { return false };
        let lately_ns = FOLLOW_AGAIN.as_nanos() as u64;
        let is_recent = |it: u64| now_ns.saturating_sub(it) < lately_ns;
        let may_have_members = followed.answered_ns.is_some_and(is_recent);
        if followed.waiting.is_empty() && !may_have_members {
            self.topics.remove(topic);
            return false;
        }
        (followed.state, followed.followed_ns) = (TopicState::Requested, None);
        followed.was_at = head.or(followed.was_at).filter(|_| may_have_members);
        true
    }
}

fn is_ahead(since: Since, head: Position) -> bool {
    let Since::After(it) = since else { return false };
    it.epoch == head.epoch && it.place > head.place && !is_of_nothing(it.place)
}

/// Whether it was not done for so long, and is due now.
fn is_due(done_ns: &mut Option<u64>, again: Duration, now_ns: u64) -> bool {
    let again_ns = again.as_nanos() as u64;
    let is_due = done_ns.is_none_or(|it| now_ns.saturating_sub(it) >= again_ns);
    if is_due {
        *done_ns = Some(now_ns);
    }
    is_due
}

#[cfg(test)]
mod tests;
