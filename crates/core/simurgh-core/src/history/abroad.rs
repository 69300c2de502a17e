//! The topics of a shard that an engine numbers: how each stands, and who waits for it to be known.
//!
//! What is kept of them stands in [`KeptTopics`](super::home::KeptTopics), as of all others.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use simurgh_history::{Epoch, GapReason, Place, Position, Since};

use super::call::{Ask, KeptAt, PageCallback, Range};
use super::engine::is_of_nothing;
use super::stores::Stores;

/// How long it is waited for a topic to be known, or to come as far as a client has come elsewhere;
/// and for a broadcast that is kept to be heard.
const WAIT: Duration = Duration::from_secs(2);
/// Those who wait so on one shard, and those of one topic who have come further than it has here:
/// more are answered at once.
const WAITING_MAX: usize = 1 << 16;
const AHEAD_MAX: usize = 1 << 10;
/// A topic that is asked about is said to be wanted again after so long.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);
/// Where somebody has come further the cluster is told so again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// All of them.
pub(crate) struct Abroad {
    pub(super) stores: Stores,
    pub(super) topics: HashMap<Rc<str>, Followed>,
    /// What is told as the position of a topic of which nothing is known.
    pub(super) nowhere: Position,
    /// What is looked at when its time has come, the oldest first.
    due: VecDeque<(u64, Due)>,
    /// Topics of which more can be answered than in one turn.
    pub(super) ready: VecDeque<Rc<str>>,
    waiting: usize,
}

/// What has its time.
pub(super) enum Due {
    /// Somebody who waits for a topic.
    Topic(Rc<str>),
    /// A broadcast that is kept there, and is still to be heard.
    Store(u64, KeptAt),
}

/// How a topic stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stand {
    /// It has not begun.
    Asked,
    /// All that there is is here, or on its way.
    Live,
    /// It has begun, and what has come since is not known.
    Unknown,
}

/// Where members stand that were not told where their topic does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Astray {
    Nobody,
    /// At a position of nowhere.
    Nowhere,
    /// Where they have come to elsewhere, of this epoch; others nowhere.
    Of(Epoch),
    /// The same, of several.
    OfSeveral,
}

impl Astray {
    /// One more, who has come to this position.
    pub(super) fn with(self, said: Option<Position>) -> Self {
        match (self, said.map(|it| it.epoch)) {
            (Self::Nobody, None) => Self::Nowhere,
            (Self::Nobody | Self::Nowhere, Some(epoch)) => Self::Of(epoch),
            (Self::Of(one), Some(other)) if one != other => Self::OfSeveral,
            (it, _) => it,
        }
    }

    /// What they have to be told of a topic that begins in this epoch; `is_quiet`: nothing was ever
    /// said in it.
    pub(super) fn gap(self, epoch: Epoch, is_quiet: bool) -> Option<GapReason> {
        match self {
            Self::Of(it) if it != epoch => Some(GapReason::Epoch),
            Self::OfSeveral => Some(GapReason::Unavailable),
            Self::Nobody | Self::Nowhere | Self::Of(_) if is_quiet => None,
            Self::Nobody | Self::Nowhere | Self::Of(_) => Some(GapReason::Unavailable),
        }
    }
}

/// A topic.
pub(super) struct Followed {
    pub(super) stand: Stand,
    waiting: VecDeque<Waiting>,
    /// When the cluster was last told that it is wanted.
    followed_ns: Option<u64>,
    /// When it was last told that somebody has come further.
    looked_ns: Option<u64>,
    /// When a client that joins was last told where it stands.
    pub(super) answered_ns: Option<u64>,
    /// Where members may stand who were let in before it was known where it stands.
    pub(super) astray: Astray,
    /// Where it stood when it ended, if there may be members who stand there.
    pub(super) was_at: Option<Position>,
}

/// Somebody who waits for a topic.
struct Waiting {
    until_ns: u64,
    what: Wanted,
}

/// What is to be answered.
pub(super) enum Wanted {
    Missed(Box<Ask>),
    Page(Range, PageCallback),
}

impl Wanted {
    /// Behind which position it starts.
    pub(super) fn starts_behind(&self) -> Since {
        match self {
            Self::Missed(ask) => ask.since,
            // A page has a beginning, whatever is to come.
            Self::Page(range, _) => range.since.map_or(Since::Unknown, Since::After),
        }
    }
}

/// Whether it can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Known,
    /// When the topic is here up to there.
    Ahead,
    /// When it is known.
    Unknown,
}

impl Abroad {
    pub(crate) fn new(shard: u16, node: u64) -> Self {
        Self {
            stores: Stores::new(shard),
            topics: HashMap::new(),
            nowhere: Position { epoch: Epoch::from_seed(node), place: Place::ZERO },
            due: VecDeque::new(),
            ready: VecDeque::new(),
            waiting: 0,
        }
    }

    /// Those who wait, and stores that are not answered.
    pub(crate) fn len(&self) -> usize {
        self.waiting + self.stores.len()
    }

    /// A topic, which is followed from now on if it was not.
    pub(super) fn open(&mut self, topic: &str) -> &mut Followed {
        self.topics.entry(topic.into()).or_insert_with(|| Followed {
            stand: Stand::Asked,
            waiting: VecDeque::new(),
            followed_ns: None,
            looked_ns: None,
            answered_ns: None,
            astray: Astray::Nobody,
            was_at: None,
        })
    }

    /// Whether it is time to say that a topic is wanted.
    pub(super) fn is_to_follow(&mut self, topic: &str, now_ns: u64) -> bool {
        is_due(&mut self.open(topic).followed_ns, FOLLOW_AGAIN, now_ns)
    }

    /// Whether it is time to say that somebody has come further than a topic has here.
    pub(super) fn is_to_look_at(&mut self, topic: &str, now_ns: u64) -> bool {
        is_due(&mut self.open(topic).looked_ns, LOOK_AGAIN, now_ns)
    }

    /// Whether what is asked of a topic can be answered, which is here up to its head if it has
    /// begun.
    pub(super) fn standing(&self, topic: &str, since: Since, head: Option<Position>) -> Standing {
        let stand = self.topics.get(topic).map(|it| it.stand);
        let (Some(stand), Some(head)) = (stand, head) else { return Standing::Unknown };
        match (stand, since) {
            // What is not known is behind the head, and comes in order.
            (Stand::Live | Stand::Unknown, Since::Now) => Standing::Known,
            (Stand::Live, _) if is_ahead(since, head) => Standing::Ahead,
            (Stand::Live, _) => Standing::Known,
            _ => Standing::Unknown,
        }
    }

    /// Has somebody wait.
    ///
    /// # Errors
    /// Too many do.
    pub(super) fn wait(
        &mut self,
        topic: &str,
        is_ahead: bool,
        what: Wanted,
        now_ns: u64,
    ) -> Result<(), Wanted> {
        let until_ns = now_ns.saturating_add(WAIT.as_nanos() as u64);
        let is_full = self.waiting >= WAITING_MAX;
        let followed = self.open(topic);
        if is_full || (is_ahead && followed.waiting.len() >= AHEAD_MAX) {
            return Err(what);
        }
        followed.waiting.push_back(Waiting { until_ns, what });
        self.waiting += 1;
        if let Some((name, _)) = self.topics.get_key_value(topic) {
            self.due.push_back((until_ns, Due::Topic(Rc::clone(name))));
        }
        Ok(())
    }

    /// A broadcast is kept, and may be heard for a while.
    pub(super) fn await_heard(&mut self, number: u64, at: KeptAt, now_ns: u64) {
        let until_ns = now_ns.saturating_add(WAIT.as_nanos() as u64);
        self.due.push_back((until_ns, Due::Store(number, at)));
    }

    /// Takes out those of a topic that can be answered, up to a number; and whether there are more,
    /// and whether some have come further than it has here.
    pub(super) fn take_ready(
        &mut self,
        topic: &str,
        head: Option<Position>,
        count: usize,
    ) -> (Vec<Wanted>, bool, bool) {
        let Some(followed) = self.topics.get_mut(topic) else { return Default::default() };
        let (Some(head), Stand::Live) = (head, followed.stand) else { return Default::default() };
        let is_ready = |it: &Waiting| !is_ahead(it.what.starts_behind(), head);
        let has_ahead = !followed.waiting.iter().all(is_ready);
        if !followed.waiting.iter().any(is_ready) {
            return (Vec::new(), false, has_ahead);
        }
        let (mut ready, mut rest, mut has_more) = (Vec::new(), VecDeque::new(), false);
        for it in std::mem::take(&mut followed.waiting) {
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

    /// Takes out those of a topic whose time is over, up to a number.
    pub(super) fn take_overdue(&mut self, topic: &str, count: usize, now_ns: u64) -> Vec<Wanted> {
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

    /// The next of which the time has come.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        let (until_ns, _) = self.due.front()?;
        if *until_ns > now_ns {
            return None;
        }
        self.due.pop_front().map(|(_, due)| due)
    }

    /// When that is.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.front().map(|(until_ns, _)| *until_ns)
    }

    /// A topic is followed no longer, unless somebody still waits for it, or may stand in it since
    /// a moment ago: whether it is to be followed anew. It was here up to its head.
    pub(super) fn ends(&mut self, topic: &str, head: Option<Position>, now_ns: u64) -> bool {
        let Some(followed) = self.topics.get_mut(topic) else { return false };
        let lately_ns = FOLLOW_AGAIN.as_nanos() as u64;
        let is_recent = |it: u64| now_ns.saturating_sub(it) < lately_ns;
        let may_have_members = followed.answered_ns.is_some_and(is_recent);
        if followed.waiting.is_empty() && !may_have_members {
            self.topics.remove(topic);
            if self.topics.is_empty() {
                // What a crowd needed is given back.
                self.topics = HashMap::new();
            }
            return false;
        }
        (followed.stand, followed.followed_ns) = (Stand::Asked, None);
        followed.was_at = head.or(followed.was_at).filter(|_| may_have_members);
        true
    }
}

/// Whether a client has come further than a topic has here, which is known up to its head.
fn is_ahead(since: Since, head: Position) -> bool {
    let Since::After(it) = since else { return false };
    it.epoch == head.epoch && it.place > head.place && !is_of_nothing(it.place)
}

/// Whether something was not done for so long, which is done now.
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
