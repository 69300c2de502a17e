//! The subscriber tables: which members a topic has on this shard, and what they are still to be
//! sent.
//!
//! A topic numbers its broadcasts; each member keeps a cursor, the number of the next one it is to
//! get. A member who joined at number s therefore gets exactly the broadcasts from s on, in order,
//! however the fan-out is cut into slices.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use simurgh_reactor::Key;

use super::pages::Pages;
use crate::channel::Broadcast;

/// Index of a topic in its shard's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopicId(u32);

/// One entry of a topic's subscriber table: 16 bytes a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) conn: Key,
    /// Number of the next broadcast this member gets.
    pub(crate) cursor: u32,
    /// Membership index, and in the lowest bit whether deliveries pass the channel (an
    /// intercepting channel, or a subscription to a further topic).
    tag: u32,
}

const _: () = assert!(size_of::<Member>() == 16, "a subscriber entry is budgeted at 16 bytes");

impl Member {
    pub(crate) fn new(conn: Key, membership: u32, through_channel: bool, cursor: u32) -> Self {
        Self { conn, cursor, tag: membership << 1 | u32::from(through_channel) }
    }

    pub(crate) fn membership(self) -> u32 {
        self.tag >> 1
    }

    pub(crate) fn through_channel(self) -> bool {
        self.tag & 1 == 1
    }
}

pub(crate) struct Topic {
    pub(crate) name: Rc<str>,
    pub(crate) members: Pages<Member>,
    /// Number the next broadcast will bear; numbers wrap.
    pub(crate) head: u32,
    /// Broadcasts not yet sent to everybody, the newest last: numbers `head - log.len() .. head`.
    pub(crate) log: VecDeque<Arc<Broadcast>>,
    /// Next member the fan-out visits.
    pub(crate) hand: usize,
    /// `head` when the hand last stood at the first member: all before it is sent once the hand is
    /// round.
    pub(crate) lap_head: u32,
    pub(crate) in_fanout: bool,
    /// What its broadcasts come to in deliveries, one for each member there was: since the observer
    /// last looked, and between its last two looks.
    pub(crate) deliveries: u32,
    pub(crate) deliveries_before: u32,
}

impl Topic {
    /// The broadcasts from `cursor` on.
    pub(crate) fn pending(&self, cursor: u32) -> impl Iterator<Item = &Arc<Broadcast>> {
        let count = self.head.wrapping_sub(cursor) as usize;
        self.log.range(self.log.len().saturating_sub(count)..)
    }

    /// Takes a member out; `moved` is told of each member that changed its place. Members before
    /// the hand have been visited in this lap and those from it on have not, and that stays so.
    pub(crate) fn remove(&mut self, at: usize, mut moved: impl FnMut(Member, u32)) {
        let last = self.members.len().saturating_sub(1);
        let mut hole = at;
        if at < self.hand && self.hand <= last {
            self.hand -= 1;
            if let Some(&visited) = self.members.get(self.hand)
                && let Some(place) = self.members.get_mut(at)
            {
                *place = visited;
                moved(visited, at as u32);
            }
            hole = self.hand;
        }
        self.members.swap_remove(hole);
        if hole < last
            && let Some(&member) = self.members.get(hole)
        {
            moved(member, hole as u32);
        }
        self.hand = self.hand.min(self.members.len());
    }

    /// Forgets what everybody got, now that the hand has been round; returns the bytes set free.
    pub(crate) fn finish_lap(&mut self) -> usize {
        let keep = self.head.wrapping_sub(self.lap_head) as usize;
        let mut freed = 0;
        while self.log.len() > keep {
            freed += self.log.pop_front().map_or(0, |broadcast| broadcast.weight());
        }
        self.hand = 0;
        self.lap_head = self.head;
        freed
    }
}

#[derive(Default)]
pub(crate) struct Topics {
    by_name: HashMap<Rc<str>, TopicId>,
    topics: Vec<Option<Box<Topic>>>,
    free: Vec<u32>,
}

impl Topics {
    pub(crate) fn find(&self, name: &str) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn get(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(id.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: TopicId) -> Option<&mut Topic> {
        self.topics.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Shows `visit` the topics of the next `places` places from `cursor` on, which is 0 again
    /// after the last.
    pub(crate) fn visit(
        &mut self,
        cursor: &mut u32,
        places: usize,
        mut visit: impl FnMut(TopicId, &mut Topic),
    ) {
        let first = *cursor as usize;
        let end = first.saturating_add(places).min(self.topics.len());
        let found = self.topics.get_mut(first..end).unwrap_or_default();
        for (ahead, topic) in found.iter_mut().enumerate() {
            if let Some(topic) = topic {
                visit(TopicId((first + ahead) as u32), topic);
            }
        }
        *cursor = if end >= self.topics.len() { 0 } else { end as u32 };
    }

    /// The topic of this name, made if there is none.
    pub(crate) fn open(&mut self, name: &str) -> TopicId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let name: Rc<str> = name.into();
        let topic = Box::new(Topic {
            name: Rc::clone(&name),
            members: Pages::default(),
            head: 0,
            log: VecDeque::new(),
            hand: 0,
            lap_head: 0,
            in_fanout: false,
            deliveries: 0,
            deliveries_before: 0,
        });
        let id = match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.topics.get_mut(slot as usize) {
                    *place = Some(topic);
                }
                TopicId(slot)
            }
            None => {
                self.topics.push(Some(topic));
                TopicId(self.topics.len() as u32 - 1)
            }
        };
        self.by_name.insert(name, id);
        id
    }

    /// Places that topics may have.
    pub(crate) fn slots(&self) -> usize {
        self.topics.len()
    }

    /// Has a topic on which nothing is under way keep no more memory than it uses; whether it did.
    pub(crate) fn shrink(&mut self, slot: usize) -> bool {
        let Some(topic) = self.topics.get_mut(slot).and_then(Option::as_deref_mut) else {
            return false;
        };
        if topic.in_fanout || !topic.log.is_empty() {
            return false;
        }
        let has_log = topic.log.capacity() > 0;
        topic.log = VecDeque::new();
        topic.members.shrink() || has_log
    }

    /// Lets an empty topic go. One that is still in the fan-out's list stays until it has left
    /// that.
    pub(crate) fn close_if_empty(&mut self, id: TopicId) {
        let Some(place) = self.topics.get_mut(id.0 as usize) else { return };
        if place.as_ref().is_some_and(|topic| topic.members.len() == 0 && !topic.in_fanout)
            && let Some(topic) = place.take()
        {
            self.by_name.remove(&topic.name);
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(members: u32) -> (Topics, TopicId) {
        let mut topics = Topics::default();
        let id = topics.open("rooms:lobby");
        let topic = topics.get_mut(id).unwrap();
        for n in 0..members {
            let member = Member::new(Key { slot: n, generation: 0 }, n, false, 0);
            assert!(topic.members.push(member).is_ok());
        }
        (topics, id)
    }

    #[test]
    fn removing_keeps_visited_before_the_hand_and_the_rest_behind() {
        for hand in 0..=6 {
            for at in 0..6 {
                let (mut topics, id) = topic(6);
                let topic = topics.get_mut(id).unwrap();
                topic.hand = hand;
                let mut places: Vec<u32> = (0..6).collect();
                topic.remove(at, |member, to| places[member.membership() as usize] = to);
                assert_eq!(topic.members.len(), 5);
                for n in (0..6).filter(|&n| n != at) {
                    let place = places[n] as usize;
                    assert_eq!(topic.members.get(place).unwrap().membership() as usize, n);
                    assert_eq!(place < topic.hand, n < hand, "hand {hand}, at {at}, member {n}");
                }
            }
        }
    }

    #[test]
    fn a_lap_forgets_only_what_was_published_before_it_began() {
        let (mut topics, id) = topic(2);
        let topic = topics.get_mut(id).unwrap();
        let broadcast = || {
            Arc::new(Broadcast {
                topic: "t".into(),
                event: "e".into(),
                payload: simurgh_proto::message::Payload::EMPTY_OBJECT,
                except: None,
            })
        };
        for _ in 0..2 {
            topic.log.push_back(broadcast());
            topic.head = topic.head.wrapping_add(1);
        }
        topic.lap_head = 1;
        assert!(topic.finish_lap() > 0);
        assert_eq!((topic.log.len(), topic.lap_head), (1, 2));
        assert_eq!(topic.pending(1).count(), 1);
        assert_eq!(topic.pending(2).count(), 0);
        topic.finish_lap();
        assert!(topic.log.is_empty());
    }

    #[test]
    fn topics_are_found_reused_and_let_go() {
        let mut topics = Topics::default();
        let first = topics.open("a");
        assert_eq!(topics.open("a"), first);
        topics.close_if_empty(first);
        assert_eq!(topics.find("a"), None);
        assert_eq!(topics.open("b"), first);
        assert_eq!(topics.len(), 1);
    }
}
