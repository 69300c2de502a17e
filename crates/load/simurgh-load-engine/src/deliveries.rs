//! Which stamped messages users get of those that they should get, exactly.
//!
//! A user is to get what others push to a topic from its first join there, which is when the reply
//! comes, until it leaves or ends; that its connection is lost and comes back meanwhile changes
//! nothing. Of what is said just before it leaves only what comes is expected. What a server has
//! not confirmed it may have lost, or refused: nobody has to get it, but if one does all have to.
//!
//! Of users of other hosts nobody here knows when they said what: they are followed from the first
//! of their messages that comes to the last one.

use std::collections::HashMap;
use std::sync::Arc;

use simurgh_load_record::Count;

use super::sent::{SentMessages, StreamId};
use super::tracker::{Came, Range, StreamTracker};
use super::worker::Worker;
use crate::stamp::Stamp;

/// What was said so shortly before a user left may still be on its way.
const ON_THE_WAY_NS: u64 = 2_000_000_000;

/// What the users of a worker have heard.
pub(crate) struct Followed {
    is_on: bool,
    /// By user.
    users: Vec<Option<Box<Follower>>>,
    /// Streams by topic and sender, as far as they are known here.
    streams: HashMap<(u64, u32), StreamId>,
}

/// What one user has heard.
#[derive(Default)]
struct Follower {
    /// Topics, and when it joined them first.
    topics: Vec<(u64, u64)>,
    /// By stream, in order.
    heard: Vec<(StreamId, StreamTracker)>,
    /// What it has said whose reply has not come.
    said: Option<(StreamId, u32)>,
}

impl Followed {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, users: Vec::new(), streams: HashMap::new() }
    }

    fn get(&mut self, u: u32) -> Option<&mut Follower> {
        self.users.get_mut(u as usize)?.as_deref_mut()
    }

    fn make(&mut self, u: u32) -> Option<&mut Follower> {
        let places = self.users.len().max(u as usize + 1);
        self.users.resize_with(places, || None);
        self.users.get_mut(u as usize).map(|place| &mut **place.get_or_insert_default())
    }

    fn stream(&mut self, ledger: &SentMessages, topic: u64, sender: u32) -> StreamId {
        *self.streams.entry((topic, sender)).or_insert_with(|| ledger.stream(topic, sender))
    }
}

impl Follower {
    /// What it has heard of a stream of a topic that it joined at a time; made if this is the
    /// first, of the number `n`, that comes.
    fn heard(
        &mut self,
        ledger: &SentMessages,
        id: StreamId,
        since_ns: u64,
        n: u32,
    ) -> Option<&mut StreamTracker> {
        let place = self.heard.binary_search_by_key(&id, |(id, _)| *id);
        if let Err(at) = place {
            let book = ledger.read();
            let known = book.get(id).filter(|stream| stream.is_known());
            // What was said before the reply to the join may come all the same.
            let start = known.map_or(n, |stream| stream.first_from(since_ns).min(n));
            self.heard.insert(at, (id, StreamTracker::from(start)));
        }
        let at = place.unwrap_or_else(|at| at);
        self.heard.get_mut(at).map(|(_, heard)| heard)
    }
}

impl Worker {
    /// Whether what comes is followed exactly.
    pub(super) fn follows(&self) -> bool {
        self.followed.is_on
    }

    /// A user's join was answered.
    pub(super) fn follow_join(&mut self, u: u32, topic: &str, now_ns: u64) {
        if !self.followed.is_on {
            return;
        }
        let topic = self.maker.shared.ledger.topic(topic);
        let Some(follower) = self.followed.make(u) else { return };
        if !follower.topics.iter().any(|(known, _)| *known == topic) {
            follower.topics.push((topic, now_ns));
        }
    }

    /// A user leaves a topic, by its own will.
    pub(super) fn follow_leave(&mut self, u: u32, topic: &str, now_ns: u64) {
        if !self.followed.is_on {
            return;
        }
        let topic = self.maker.shared.ledger.topic(topic);
        self.settle(u, Some(topic), now_ns);
    }

    /// A user leaves all topics.
    pub(super) fn follow_end(&mut self, u: u32, now_ns: u64) {
        if self.followed.is_on {
            self.settle(u, None, now_ns);
        }
    }

    /// A user has ended, and its place is another one's next.
    pub(super) fn follow_no_more(&mut self, u: u32, now_ns: u64) {
        self.follow_end(u, now_ns);
        if let Some(place) = self.followed.users.get_mut(u as usize) {
            *place = None;
        }
    }

    /// A user pushes what was numbered last, if anything was; the reply is to tell how it went.
    pub(super) fn follow_push(&mut self, u: u32) {
        let said = self.maker.said.take();
        let Some((id, n)) = said else { return };
        if let Some(follower) = self.followed.make(u) {
            follower.said = said;
            self.maker.shared.ledger.doubt(id, n);
        }
    }

    /// The reply to a push has come, or will not come.
    pub(super) fn follow_reply(&mut self, u: u32, is_ok: bool) {
        if !self.followed.is_on {
            return;
        }
        let said = self.followed.get(u).and_then(|follower| follower.said.take());
        let Some((id, n)) = said else { return };
        let ledger = &self.maker.shared.ledger;
        if is_ok {
            return ledger.confirmed(id, n);
        }
        let is_heard = ledger.unconfirmed(id, n);
        self.recorder.count(Count::BroadcastsUnconfirmed, 1);
        if is_heard {
            self.recorder.count(Count::BroadcastsUnconfirmedHeard, 1);
        }
    }

    /// A stamped message has come; `false` if it had come before.
    pub(super) fn follow_in(&mut self, u: u32, topic: Option<&str>, stamp: &Stamp) -> bool {
        let shared = Arc::clone(&self.maker.shared);
        let own = self.users.get(u).map(|user| user.id);
        let (Some(topic), true) = (topic, stamp.index != 0) else { return true };
        if own == Some(stamp.sender) {
            return true;
        }
        let topic = shared.ledger.topic(topic);
        let id = self.followed.stream(&shared.ledger, topic, stamp.sender);
        let follower = self.followed.get(u);
        let joined = follower.and_then(|follower| {
            let since_ns = follower.topics.iter().find(|(known, _)| *known == topic)?.1;
            Some((follower, since_ns))
        });
        let Some((follower, since_ns)) = joined else {
            self.recorder.count(Count::DeliveriesUnexpected, 1);
            return true;
        };
        let heard = follower.heard(&shared.ledger, id, since_ns, stamp.index);
        let Some(heard) = heard else { return true };
        let came = heard.hear(stamp.index);
        let given_up = heard.give_up();
        if shared.ledger.heard(id, stamp.index) {
            self.recorder.count(Count::BroadcastsUnconfirmedHeard, 1);
        }
        match came {
            Came::InOrder => self.recorder.count(Count::DeliveriesOnce, 1),
            Came::Late => {
                self.recorder.count(Count::DeliveriesOnce, 1);
                self.recorder.count(Count::DeliveriesOutOfOrder, 1);
            }
            Came::Twice => self.recorder.count(Count::DeliveriesDuplicate, 1),
            Came::Unexpected => self.recorder.count(Count::DeliveriesUnexpected, 1),
        }
        if let Some((expected, hole)) = given_up {
            let book = shared.ledger.read();
            let excused = book.get(id).map_or(0, |stream| stream.excused_in(hole));
            self.count_missing(expected, hole.len(), excused);
        }
        came != Came::Twice
    }

    /// A user's time at a topic, or at all of them, is over: what has not come does not come.
    fn settle(&mut self, u: u32, only: Option<u64>, end_ns: u64) {
        let shared = Arc::clone(&self.maker.shared);
        let own = self.users.get(u).map_or(0, |user| user.id);
        let Some(follower) = self.followed.get(u) else { return };
        let is_over = |topic: u64| only.is_none_or(|only| only == topic);
        let over: Vec<_> = follower.topics.extract_if(.., |(topic, _)| is_over(*topic)).collect();
        let book = shared.ledger.read();
        let (mut expected, mut missing, mut excused) = (0, 0, 0);
        for (id, stream, since_ns) in over.iter().flat_map(|(topic, since_ns)| {
            book.at(*topic).map(|(id, stream)| (id, stream, *since_ns))
        }) {
            let at = follower.heard.binary_search_by_key(&id, |(id, _)| *id);
            let heard = at.ok().map(|at| follower.heard.remove(at).1);
            if stream.sender == own {
                continue;
            }
            let heard = match (heard, stream.is_known()) {
                (Some(heard), _) => heard,
                (None, true) => StreamTracker::from(stream.first_from(since_ns)),
                (None, false) => continue,
            };
            let due = match stream.is_known() {
                true => stream.first_from(end_ns.saturating_sub(ON_THE_WAY_NS)),
                false => heard.next(),
            };
            let (all, holes) = heard.settle(due);
            expected += all;
            for hole in holes {
                missing += Range::len(hole);
                excused += stream.excused_in(hole);
            }
        }
        drop(book);
        self.count_missing(expected, missing, excused);
    }

    /// Some did not come; of those `excused` nobody had to.
    fn count_missing(&mut self, expected: u64, missing: u64, excused: u64) {
        for (count, n) in [
            (Count::DeliveriesExpected, expected.saturating_sub(excused)),
            (Count::DeliveriesMissing, missing.saturating_sub(excused)),
        ] {
            if n > 0 {
                self.recorder.count(count, n);
            }
        }
    }
}
