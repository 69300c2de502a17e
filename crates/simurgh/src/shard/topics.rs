//! The subscriber tables: which members a topic has on this shard, and what they are still to be
//! sent.
//!
//! A topic numbers its broadcasts; each member keeps a cursor, the number of the next one it is to
//! get. A member who joined at number s therefore gets exactly the broadcasts from s on, in order,
//! however the fan-out is cut into slices.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use simurgh_reactor::Key;

use super::flow::{Flow, Withheld};
use super::log::Log;
use super::pages::Pages;

/// Index of a topic in its shard's table.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    #[inline]
    pub(crate) fn membership(self) -> u32 {
        self.tag >> 1
    }

    #[inline]
    pub(crate) fn through_channel(self) -> bool {
        self.tag & 1 == 1
    }
}

pub(crate) struct Topic {
    pub(crate) name: Rc<str>,
    pub(crate) members: Pages<Member>,
    /// Broadcasts not yet sent to everybody.
    pub(crate) log: Log,
    /// Next member the fan-out visits.
    pub(crate) hand: usize,
    /// The log's head when the hand last stood at the first member: all before it is sent once the
    /// hand is round.
    pub(crate) lap_head: u32,
    pub(crate) in_fanout: bool,
    /// In this lap a member had more before it than a quarter of what may wait for one.
    pub(crate) lagging: bool,
    /// Members whose socket has not taken all they were sent.
    pub(crate) behind: u32,
    /// What its broadcasts come to in deliveries, one for each member there was: since the observer
    /// last looked, and between its last two looks.
    pub(crate) deliveries: u32,
    pub(crate) deliveries_before: u32,
    /// What members of this shard publish on it; none until they do.
    pub(crate) flow: Option<Arc<Flow>>,
    /// Broadcasts whose bytes still count although everybody was sent them.
    pub(crate) withheld: Option<Box<Withheld>>,
}

impl Topic {
    /// Whether what everybody was sent still counts as under way: most have not taken it, or one
    /// is so far behind that it has to be given time.
    pub(crate) fn is_awaited(&self) -> bool {
        self.lagging || self.behind as usize * 2 > self.members.len()
    }

    /// A member whose socket had not taken all has, or is gone.
    pub(crate) fn one_less_behind(&mut self) {
        self.behind = self.behind.saturating_sub(1);
        if self.behind == 0 {
            self.lagging = false;
            self.log.nobody_waits();
        }
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

    /// Forgets what everybody was sent, now that the hand has been round; returns the bytes set
    /// free. What is awaited is withheld.
    pub(crate) fn finish_lap(&mut self, now_ns: u64) -> usize {
        let keep = self.log.head().wrapping_sub(self.lap_head) as usize;
        let is_awaited = self.is_awaited();
        let mut freed = 0;
        while self.log.len() > keep {
            let Some(posted) = self.log.pop(self.behind > 0) else { break };
            if is_awaited {
                let withheld = || Box::new(Withheld::new(now_ns));
                self.withheld.get_or_insert_with(withheld).push(posted);
            } else {
                freed += posted.broadcast().weight();
            }
        }
        self.hand = 0;
        self.lap_head = self.log.head();
        self.lagging &= self.log.is_empty();
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

    #[inline]
    pub(crate) fn get(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(id.0 as usize)?.as_deref()
    }

    #[inline]
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
            log: Log::default(),
            hand: 0,
            lap_head: 0,
            in_fanout: false,
            lagging: false,
            behind: 0,
            deliveries: 0,
            deliveries_before: 0,
            flow: None,
            withheld: None,
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
        let has_log = topic.log.shrink();
        // Nobody else has it: nothing is under way in it.
        topic.flow.take_if(|flow| Arc::strong_count(flow) == 1);
        topic.members.shrink() || has_log
    }

    /// Lets an empty topic go. One that is still in one of the fan-out's lists stays until it has
    /// left that.
    pub(crate) fn close_if_empty(&mut self, id: TopicId) {
        let Some(place) = self.topics.get_mut(id.0 as usize) else { return };
        let is_idle = |topic: &Topic| {
            topic.members.len() == 0 && !topic.in_fanout && topic.withheld.is_none()
        };
        if place.as_deref().is_some_and(is_idle)
            && let Some(topic) = place.take()
        {
            self.by_name.remove(&topic.name);
            self.free.push(id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::Posted;
    use super::*;
    use crate::channel::Broadcast;

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

    fn publish(topic: &mut Topic) {
        let broadcast = Broadcast {
            topic: "t".into(),
            event: "e".into(),
            payload: simurgh_proto::message::Payload::EMPTY_OBJECT,
            except: None,
        };
        topic.log.push(Posted::new(Arc::new(broadcast), None));
    }

    #[test]
    fn a_lap_forgets_only_what_was_published_before_it_began() {
        let (mut topics, id) = topic(2);
        let topic = topics.get_mut(id).unwrap();
        publish(topic);
        publish(topic);
        topic.lap_head = 1;
        assert!(topic.finish_lap(0) > 0);
        assert_eq!((topic.log.len(), topic.lap_head), (1, 2));
        assert_eq!(topic.log.pending(1).count(), 1);
        assert_eq!(topic.log.pending(2).count(), 0);
        topic.finish_lap(0);
        assert!(topic.log.is_empty());
    }

    #[test]
    fn bytes_are_withheld_while_most_are_behind_or_one_lags() {
        let (mut topics, id) = topic(4);
        let topic = topics.get_mut(id).unwrap();
        for (behind, lagging, is_withheld) in
            [(0, false, false), (2, false, false), (3, false, true), (1, true, true)]
        {
            (topic.behind, topic.lagging) = (behind, lagging);
            publish(topic);
            topic.lap_head = topic.log.head();
            assert_eq!(topic.finish_lap(0) == 0, is_withheld, "{behind} of 4, lagging: {lagging}");
            assert_eq!(topic.withheld.take().is_some(), is_withheld);
        }
        topic.one_less_behind();
        assert!(!topic.is_awaited());
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
