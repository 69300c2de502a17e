//! Members that have not taken everything they were sent, and the bytes that count for publishers
//! because of them.

use core::time::Duration;

use simurgh_channel::Node;
use simurgh_data::Next;

use super::delivery::Registry;
use super::state::Fanout;
use crate::flow::pace;
use crate::registry::{BEHIND, Left, List, Member, TopicId};
use crate::sockets::Sockets;

/// How often withheld bytes are checked.
const WITHHELD_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl<N: Node> Fanout<N> {
    /// The cursor has passed all members. Returns whether nothing is left to send.
    pub(super) fn finish_pass_of(
        &mut self,
        registry: &mut Registry,
        out: &impl Sockets,
        id: TopicId,
    ) -> bool {
        let Some(topic) = registry.topic_mut(id) else { return true };
        topic.begin_pass_at_first();
        let members = topic.len();
        let delivery = &mut topic.deliveries;
        let has_withheld = delivery.withheld.is_some();
        let freed = delivery.finish_pass(members, out.now().ns);
        if delivery.withheld.is_some() && !has_withheld {
            self.withheld.push(id);
        }
        let is_done = delivery.log.is_empty();
        delivery.in_fanout = !is_done;
        self.delivered(freed);
        self.relieve(registry, id);
        if is_done {
            registry.close_if_empty(id);
        }
        is_done
    }

    #[cold]
    pub(super) fn mark_behind(
        &mut self,
        registry: &mut Registry,
        out: &impl Sockets,
        id: TopicId,
        member: Member,
    ) {
        // It may have ended by what it was sent.
        if registry.member(member.membership()).is_none_or(|it| it.topic != id) {
            return;
        }
        let is_news = registry.mark(member.membership(), BEHIND, true);
        let Some(topic) = registry.topic_mut(id) else { return };
        topic.deliveries.behind += u32::from(is_news);
        let lags = out.queued(member.conn) > self.node.config().outbound_bytes_max / 4;
        topic.deliveries.lagging |= lags;
    }

    pub(crate) fn mark_caught_up(&mut self, registry: &mut Registry, list: List) {
        let mut next = list.first();
        while let Some((topic, after)) = registry.step(next) {
            if registry.mark(next, BEHIND, false) {
                self.one_less_behind(registry, topic);
            }
            next = after;
        }
    }

    pub(crate) fn left(&mut self, registry: &mut Registry, left: &Left) {
        self.member_removed(registry, left.topic);
        match left.was_behind {
            true => self.one_less_behind(registry, left.topic),
            false => self.relieve(registry, left.topic),
        }
        // Its flow may still be in flight on other shards, and members that left may broadcast in
        // `terminate`.
        if let Some(topic) = registry.topic_mut(left.topic).filter(|it| it.len() == 0)
            && let Some(flow) = &topic.deliveries.flow
        {
            self.memberless.keep(&topic.name, flow);
        }
        registry.close_if_empty(left.topic);
    }

    fn one_less_behind(&mut self, registry: &mut Registry, id: TopicId) {
        if let Some(topic) = registry.topic_mut(id) {
            topic.deliveries.one_less_behind();
        }
        self.relieve(registry, id);
    }

    /// Releases what is withheld of a topic, if its readers have caught up. The caller closes it if
    /// it has no members.
    fn relieve(&mut self, registry: &mut Registry, id: TopicId) {
        let Some(topic) = registry.topic_mut(id) else { return };
        let members = topic.len();
        if topic.deliveries.withheld.is_none() || topic.deliveries.is_awaited(members) {
            return;
        }
        let Some(mut withheld) = topic.deliveries.withheld.take() else { return };
        self.withheld.retain(|it| *it != id);
        self.delivered(withheld.give_all());
    }

    /// Releases what the pace allows of bytes that readers still hold back.
    pub(crate) fn give_back_withheld(
        &mut self,
        registry: &mut Registry,
        out: &impl Sockets,
    ) -> Next {
        if self.withheld.is_empty() {
            return Next::Idle;
        }
        let config = self.node.config();
        let pace = pace(config.outbound_bytes_max, config.slow_after);
        let mut left = core::mem::take(&mut self.withheld);
        left.retain(|&id| {
            let Some(topic) = registry.topic_mut(id) else { return false };
            let Some(withheld) = &mut topic.deliveries.withheld else { return false };
            let given = withheld.give(out.now().ns, pace);
            let is_left = !withheld.is_empty();
            if !is_left {
                topic.deliveries.withheld = None;
                registry.close_if_empty(id);
            }
            self.delivered(given);
            is_left
        });
        self.withheld = left;
        if self.withheld.is_empty() { Next::Idle } else { Next::After(WITHHELD_POLL_INTERVAL) }
    }
}
