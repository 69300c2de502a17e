//! The subscriber tables: the members of each topic on this shard.
//!
//! The fan-out passes over each table: members before `next` have been served in this pass, the
//! others have not, and that stays so when members leave. Only the fan-out gives the cursors of
//! members their meaning.

use core::hash::BuildHasher;

use simurgh_data::{Key, Pages};

use crate::name_table::NameTable;
use crate::seeded_state::SeededState;
use simurgh_data::prelude::*;

/// Index of a topic in its shard's table.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(u32);

/// One entry of a topic's subscriber table: 16 bytes a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) conn: Key,
    pub(crate) cursor: u32,
    /// Membership index, and in the lowest bits [`APART`] and [`PLACED`].
    tag: u32,
}

const _: () = assert!(size_of::<Member>() == 16, "a subscriber entry is budgeted at 16 bytes");

/// It does not get what most members get: its broadcasts go to its channel (which intercepts, or
/// subscribed to a further topic), or wait until it has all it has missed.
pub(crate) const APART: u32 = 1;
/// It receives the positions of kept broadcasts.
pub(crate) const PLACED: u32 = 2;
const TAG_BITS: u32 = 2;

impl Member {
    pub(super) fn new(conn: Key, membership: u32, kind: u32, cursor: u32) -> Self {
        Self { conn, cursor, tag: membership << TAG_BITS | kind }
    }

    #[inline]
    pub(crate) fn membership(self) -> u32 {
        self.tag >> TAG_BITS
    }

    /// Whether it gets frames that most members share.
    #[inline]
    pub(crate) fn is_plain(self, has_positions: bool) -> bool {
        self.tag & (APART | PLACED) == if has_positions { PLACED } else { 0 }
    }

    #[inline]
    pub(crate) fn is_apart(self) -> bool {
        self.tag & APART != 0
    }

    #[inline]
    pub(crate) fn has_positions(self) -> bool {
        self.tag & PLACED != 0
    }
}

pub(crate) trait Deliveries: Default {
    fn head(&self) -> u32;

    fn is_idle(&self) -> bool;

    fn shrink(&mut self) -> bool;
}

pub(crate) struct Topic<D> {
    pub(crate) name: Rc<str>,
    members: Pages<Member>,
    next: usize,
    pub(crate) deliveries: D,
}

impl<D> Topic<D> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    #[inline]
    pub(crate) fn member_at(&self, at: usize) -> Option<&Member> {
        self.members.get(at)
    }

    #[inline]
    pub(crate) fn cursor_at(&mut self, at: usize) -> Option<&mut u32> {
        self.members.get_mut(at).map(|member| &mut member.cursor)
    }

    pub(super) fn set_apart(&mut self, at: usize, is_apart: bool) {
        if let Some(member) = self.members.get_mut(at) {
            member.tag = member.tag & !APART | u32::from(is_apart);
        }
    }

    /// Advances to the next member and sets its cursor to `head`. Returns it as it was; `None` at
    /// the end of the pass.
    #[inline]
    pub(crate) fn visit(&mut self, head: u32) -> Option<Member> {
        let member = self.members.get_mut(self.next)?;
        self.next += 1;
        let before = *member;
        member.cursor = head;
        Some(before)
    }

    pub(crate) fn begin_pass_at_first(&mut self) {
        self.next = 0;
    }

    /// Adds a member, or returns it if no memory is left.
    pub(super) fn push(&mut self, member: Member) -> Result<(), Member> {
        self.members.push(member)
    }

    pub(super) fn remove(&mut self, at: usize, mut moved: impl FnMut(Member, u32)) {
        let last = self.members.len().saturating_sub(1);
        let mut hole = at;
        if at < self.next && self.next <= last {
            self.next -= 1;
            if let Some(&visited) = self.members.get(self.next)
                && let Some(place) = self.members.get_mut(at)
            {
                *place = visited;
                moved(visited, at as u32);
            }
            hole = self.next;
        }
        self.members.swap_remove(hole);
        if hole < last
            && let Some(&member) = self.members.get(hole)
        {
            moved(member, hole as u32);
        }
        self.next = self.next.min(self.members.len());
    }
}

pub(crate) struct Topics<D> {
    by_name: NameTable<u32>,
    topics: Vec<Option<Box<Topic<D>>>>,
    free: Vec<u32>,
}

impl<D: Deliveries> Topics<D> {
    pub(super) fn new(seed: u64) -> Self {
        Self { by_name: NameTable::new(seed), topics: Vec::new(), free: Vec::new() }
    }

    pub(super) fn find(&self, name: &str) -> Option<TopicId> {
        self.by_name.find(name, |at| name_at(&self.topics, *at) == Some(name)).copied().map(TopicId)
    }

    #[inline]
    pub(super) fn get(&self, id: TopicId) -> Option<&Topic<D>> {
        self.topics.get(id.0 as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: TopicId) -> Option<&mut Topic<D>> {
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
        mut visit: impl FnMut(TopicId, &mut Topic<D>),
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

    #[inline]
    pub(super) fn open(&mut self, name: &str) -> TopicId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let (members, deliveries) = (Pages::default(), D::default());
        let topic = Box::new(Topic { name: name.into(), members, next: 0, deliveries });
        let at = self.free.pop().unwrap_or(self.topics.len() as u32);
        match self.topics.get_mut(at as usize) {
            Some(place) => *place = Some(topic),
            None => self.topics.push(Some(topic)),
        }
        let Self { by_name, topics, .. } = self;
        let hash =
            |by: &SeededState, at: &u32| by.hash_one(name_at(topics, *at).unwrap_or_default());
        by_name.find_or_insert_with(name, |_| false, hash, || at);
        TopicId(at)
    }

    pub(crate) fn slots(&self) -> usize {
        self.topics.len()
    }

    /// Frees unused memory of a topic without broadcasts in flight. Returns whether it did.
    pub(crate) fn shrink(&mut self, slot: usize) -> bool {
        let Some(topic) = self.topics.get_mut(slot).and_then(Option::as_deref_mut) else {
            return false;
        };
        if !topic.deliveries.is_idle() {
            return false;
        }
        let has_room = topic.deliveries.shrink();
        topic.members.shrink() || has_room
    }

    /// Closes a topic without members and without broadcasts in flight. Returns whether it did.
    pub(super) fn close_if_empty(&mut self, id: TopicId) -> bool {
        let Some(place) = self.topics.get_mut(id.0 as usize) else { return false };
        let is_over =
            |topic: &mut Box<Topic<D>>| topic.members.is_empty() && topic.deliveries.is_idle();
        let Some(topic) = place.take_if(is_over) else { return false };
        self.by_name.take(&topic.name, |at| *at == id.0);
        self.free.push(id.0);
        true
    }
}

fn name_at<D>(topics: &[Option<Box<Topic<D>>>], at: u32) -> Option<&str> {
    topics.get(at as usize)?.as_deref().map(|topic| &*topic.name)
}

#[cfg(test)]
mod tests {
    use super::super::model::Nothing;
    use super::*;

    #[test]
    fn topics_are_found_reused_and_removed() {
        let mut topics = Topics::<Nothing>::new(0);
        let first = topics.open("a");
        assert_eq!(topics.open("a"), first);
        assert!(topics.close_if_empty(first) && !topics.close_if_empty(first));
        assert_eq!(topics.find("a"), None);
        assert_eq!(topics.open("b"), first);
        assert_eq!((topics.len(), topics.slots()), (1, 1));
    }

    /// Otherwise names could be chosen that all collide.
    #[test]
    fn order_of_names_depends_on_the_seed() {
        let hash = |seed| Topics::<Nothing>::new(seed).by_name.hash("a");
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}
