//! Counts which of their expected stamped messages users receive.
//!
//! A user should get what others push to a topic from its first join (the reply's arrival) until
//! it leaves or ends, also while its connection is lost. Messages sent just before it leaves, and
//! those that come until the server has answered, count only if they come. A message that the
//! server has not confirmed may be lost or refused: no user has to get it, but if one does all have
//! to.
//!
//! The send times of users of other hosts are not known here: their streams are followed from the
//! first message that arrives to the last one.

use std::collections::HashMap;
use std::sync::Arc;

use simurgh_load_record::Count;

use super::{Machine, Outputs};
use crate::shared::{SentMessages, StreamId};
use crate::stamp::Stamp;
use crate::tracker::{Came, Range, StreamTracker};

/// Messages sent this shortly before a user left may still be in transit.
const ON_THE_WAY_NS: u64 = 2_000_000_000;

pub(crate) struct Followed {
    pub(super) is_on: bool,
    users: Vec<Option<Box<Follower>>>,
    /// Streams by topic and sender, as far as they are known here.
    streams: HashMap<(u64, u32), StreamId>,
}

#[derive(Default)]
struct Follower {
    stays: Vec<Stay>,
    trackers: Vec<(StreamId, StreamTracker)>,
    /// Its last push, while the reply has not come.
    pushed: Option<(StreamId, u32)>,
}

/// A user's time at a topic.
struct Stay {
    topic: u64,
    /// When the first join was answered.
    since_ns: u64,
    /// When it sent its leave, which is not answered yet.
    left_ns: Option<u64>,
}

impl Followed {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, users: Vec::new(), streams: HashMap::new() }
    }

    /// A user has ended; its place will be reused.
    pub(super) fn forget(&mut self, place: u32) {
        if let Some(follower) = self.users.get_mut(place as usize) {
            *follower = None;
        }
    }

    fn get(&mut self, place: u32) -> Option<&mut Follower> {
        self.users.get_mut(place as usize)?.as_deref_mut()
    }

    fn make(&mut self, place: u32) -> Option<&mut Follower> {
        let places = self.users.len().max(place as usize + 1);
        self.users.resize_with(places, || None);
        self.users.get_mut(place as usize).map(|it| &mut **it.get_or_insert_default())
    }

    fn stream(&mut self, sent: &SentMessages, topic: u64, sender: u32) -> StreamId {
        *self.streams.entry((topic, sender)).or_insert_with(|| sent.stream(topic, sender))
    }
}

impl Follower {
    /// The tracker of a stream, created at its first message, number `n`.
    fn tracker(
        &mut self,
        sent: &SentMessages,
        id: StreamId,
        since_ns: u64,
        n: u32,
    ) -> Option<&mut StreamTracker> {
        let place = self.trackers.binary_search_by_key(&id, |(id, _)| *id);
        if let Err(at) = place {
            let streams = sent.read();
            let known = streams.get(id).filter(|stream| stream.is_known());
            // Messages sent before the reply to the join may still come.
            let start = known.map_or(n, |stream| stream.first_from(since_ns).min(n));
            self.trackers.insert(at, (id, StreamTracker::from(start)));
        }
        let at = place.unwrap_or_else(|at| at);
        self.trackers.get_mut(at).map(|(_, tracker)| tracker)
    }
}

impl<O: Outputs> Machine<'_, O> {
    pub(super) fn follow_join(&mut self, topic: &str) {
        let followed = &mut self.context.followed;
        if !followed.is_on {
            return;
        }
        let topic = self.context.values.shared.sent.topic(topic);
        let Some(follower) = followed.make(self.place) else { return };
        match follower.stays.iter().find(|it| it.topic == topic) {
            Some(Stay { left_ns: None, .. }) => return,
            // The answer to its leave did not come.
            Some(_) => self.settle(Some(topic)),
            None => {}
        }
        let Some(follower) = self.context.followed.make(self.place) else { return };
        follower.stays.push(Stay { topic, since_ns: self.now_ns, left_ns: None });
    }

    /// The user sends its leave.
    pub(super) fn follow_leave(&mut self, topic: &str) {
        let topic = self.context.values.shared.sent.topic(topic);
        let follower = self.context.followed.get(self.place);
        let stays = follower.map(|it| &mut it.stays);
        if let Some(stay) = stays.and_then(|all| all.iter_mut().find(|it| it.topic == topic)) {
            stay.left_ns = Some(self.now_ns);
        }
    }

    /// The server has answered the leave: nothing more comes.
    pub(super) fn follow_left(&mut self, topic: &str) {
        if self.context.followed.is_on {
            let topic = self.context.values.shared.sent.topic(topic);
            self.settle(Some(topic));
        }
    }

    pub(super) fn follow_end(&mut self) {
        if self.context.followed.is_on {
            self.settle(None);
        }
    }

    /// A user pushes the last numbered message, if any; the reply decides whether it counts.
    pub(super) fn follow_push(&mut self) {
        let pushed = self.context.values.numbered.take();
        let Some((id, n)) = pushed else { return };
        if let Some(follower) = self.context.followed.make(self.place) {
            follower.pushed = pushed;
            self.context.values.shared.sent.doubt(id, n);
        }
    }

    pub(super) fn follow_reply(&mut self, is_ok: bool) {
        if !self.context.followed.is_on {
            return;
        }
        let follower = self.context.followed.get(self.place);
        let Some((id, n)) = follower.and_then(|follower| follower.pushed.take()) else { return };
        let sent = &self.context.values.shared.sent;
        if is_ok {
            return sent.confirmed(id, n);
        }
        let has_arrived = sent.unconfirmed(id, n);
        self.out.count(Count::BroadcastsUnconfirmed, 1);
        if has_arrived {
            self.out.count(Count::BroadcastsUnconfirmedHeard, 1);
        }
    }

    /// A stamped message has come. Returns whether for the first time, if that is followed.
    pub(super) fn follow_in(&mut self, topic: Option<&str>, stamp: &Stamp) -> Option<bool> {
        let followed = &mut self.context.followed;
        if !followed.is_on {
            return None;
        }
        let sent = &self.context.values.shared.sent;
        let topic = topic.filter(|_| stamp.index != 0 && stamp.sender != self.user.id);
        let Some(topic) = topic else { return Some(true) };
        let topic = sent.topic(topic);
        let id = followed.stream(sent, topic, stamp.sender);
        let joined = followed.get(self.place).and_then(|follower| {
            let since_ns = follower.stays.iter().find(|it| it.topic == topic)?.since_ns;
            follower.tracker(sent, id, since_ns, stamp.index)
        });
        let Some(tracker) = joined else {
            self.out.count(Count::DeliveriesUnexpected, 1);
            return Some(true);
        };
        let came = tracker.came(stamp.index);
        let given_up = tracker.give_up();
        if sent.arrived(id, stamp.index) {
            self.out.count(Count::BroadcastsUnconfirmedHeard, 1);
        }
        self.out.count(
            match came {
                Came::InOrder | Came::Late => Count::DeliveriesOnce,
                Came::Twice => Count::DeliveriesDuplicate,
                Came::Unexpected => Count::DeliveriesUnexpected,
            },
            1,
        );
        if came == Came::Late {
            self.out.count(Count::DeliveriesOutOfOrder, 1);
        }
        if let Some((expected, hole)) = given_up {
            let excused = sent.read().get(id).map_or(0, |stream| stream.excused_in(hole));
            self.count_missing(expected, hole.len(), excused);
        }
        Some(came != Came::Twice)
    }

    /// Ends a user's time at a topic, or at all: missing messages are now lost.
    fn settle(&mut self, only: Option<u64>) {
        let shared = Arc::clone(&self.context.values.shared);
        let Some(follower) = self.context.followed.get(self.place) else { return };
        let is_over = |stay: &mut Stay| only.is_none_or(|only| only == stay.topic);
        let over: Vec<_> = follower.stays.extract_if(.., is_over).collect();
        let sent = shared.sent.read();
        let (mut expected, mut missing, mut excused) = (0, 0, 0);
        for (id, stream, stay) in over
            .iter()
            .flat_map(|stay| sent.at(stay.topic).map(move |(id, stream)| (id, stream, stay)))
        {
            let at = follower.trackers.binary_search_by_key(&id, |(id, _)| *id);
            let tracker = at.ok().map(|at| follower.trackers.remove(at).1);
            if stream.sender == self.user.id {
                continue;
            }
            let tracker = match (tracker, stream.is_known()) {
                (Some(tracker), _) => tracker,
                (None, true) => StreamTracker::from(stream.first_from(stay.since_ns)),
                (None, false) => continue,
            };
            let due = match stream.is_known() {
                true => {
                    let left_ns = stay.left_ns.unwrap_or(self.now_ns);
                    stream.first_from(left_ns.saturating_sub(ON_THE_WAY_NS))
                }
                false => tracker.next(),
            };
            let (all, holes) = tracker.settle(due);
            expected += all;
            for hole in holes {
                missing += Range::len(hole);
                excused += stream.excused_in(hole);
            }
        }
        drop(sent);
        self.count_missing(expected, missing, excused);
    }

    /// Counts missing messages; `excused` of them were not expected.
    fn count_missing(&mut self, expected: u64, missing: u64, excused: u64) {
        for (count, n) in [
            (Count::DeliveriesExpected, expected.saturating_sub(excused)),
            (Count::DeliveriesMissing, missing.saturating_sub(excused)),
        ] {
            if n > 0 {
                self.out.count(count, n);
            }
        }
    }
}
