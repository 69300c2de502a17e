//! The fan-out's state of a topic: its log, the progress of the pass, and withheld bytes.

use simurgh_channel::Flow;
use simurgh_history::Position;

use super::log::Log;
use crate::flow::Withheld;
use crate::registry::{self, Deliveries};
use simurgh_data::prelude::*;

pub(crate) type Registry = registry::Registry<Delivery>;

#[derive(Default)]
pub(crate) struct Delivery {
    pub(super) log: Log,
    /// The log's head when the pass began: everything before it is sent when the pass ends.
    pass_head: u32,
    pub(super) told: Option<Box<ToldPositions>>,
    pub(super) in_fanout: bool,
    /// In this pass a member had more output waiting than a quarter of the limit.
    pub(super) lagging: bool,
    /// The other nodes of the cluster know that there are members here.
    pub(super) is_wanted: bool,
    pub(super) behind: u32,
    /// Deliveries of its broadcasts, one for each member: since the observer's last visit, and
    /// between its last two visits.
    pub(super) deliveries: u32,
    deliveries_before: u32,
    /// Set when members of this shard publish on it.
    pub(super) flow: Option<Arc<Flow>>,
    pub(super) withheld: Option<Box<Withheld>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ToldPositions {
    /// The position of the last kept broadcast that was added here.
    pub(crate) last: Position,
    /// The last position at which all of them were sent a gap.
    pub(crate) gap: Option<Position>,
}

impl Deliveries for Delivery {
    fn head(&self) -> u32 {
        self.log.head()
    }

    fn is_idle(&self) -> bool {
        !self.in_fanout && self.withheld.is_none()
    }

    fn shrink(&mut self) -> bool {
        // The only reference: nothing of the flow is in flight.
        self.flow.take_if(|flow| Arc::strong_count(flow) == 1);
        self.log.shrink()
    }
}

impl Delivery {
    /// Positions that members were sent, on a topic with history.
    pub(crate) fn told(&self) -> Option<&ToldPositions> {
        self.told.as_deref()
    }

    /// Deliveries of its broadcasts between the observer's last two visits.
    pub(crate) fn deliveries_before(&self) -> u32 {
        self.deliveries_before
    }

    /// The observer visits it again.
    pub(crate) fn roll(&mut self) {
        self.deliveries_before = core::mem::take(&mut self.deliveries);
    }

    /// Members are sent a position, or a gap before it.
    pub(super) fn note_position(&mut self, position: Position, is_gap: bool) {
        let told =
            self.told.get_or_insert_with(|| Box::new(ToldPositions { last: position, gap: None }));
        told.last = position;
        if is_gap {
            told.gap = Some(position);
        }
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass_head = self.log.head();
        self.lagging = false;
    }

    /// Whether what `members` were sent still counts as in flight: most have not taken it, or one
    /// is so far behind that it needs time.
    pub(super) fn is_awaited(&self, members: usize) -> bool {
        self.lagging || self.behind as usize * 2 > members
    }

    pub(super) fn one_less_behind(&mut self) {
        self.behind = self.behind.saturating_sub(1);
        if self.behind == 0 {
            self.lagging = false;
            self.log.nobody_waits();
        }
    }

    /// Drops broadcasts that everybody was sent, now that the pass is over. Returns the released
    /// bytes. Those that readers still have to take are withheld.
    pub(super) fn finish_pass(&mut self, members: usize, now_ns: u64) -> usize {
        let keep = self.log.head().wrapping_sub(self.pass_head) as usize;
        let is_awaited = self.is_awaited(members);
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
        self.pass_head = self.log.head();
        self.lagging &= self.log.is_empty();
        freed
    }
}

#[cfg(test)]
mod tests {
    use simurgh_proto::message::Payload;

    use super::*;
    use simurgh_channel::Broadcast;
    use simurgh_channel::Posted;

    fn publish(delivery: &mut Delivery) {
        let broadcast = Broadcast::new("t", "e", Payload::EMPTY_OBJECT);
        delivery.log.push(Posted::new(Arc::new(broadcast), None));
    }

    #[test]
    fn lap_drops_only_broadcasts_published_before_it_began() {
        let mut delivery = Delivery::default();
        publish(&mut delivery);
        delivery.begin_pass();
        publish(&mut delivery);
        assert!(delivery.finish_pass(2, 0) > 0);
        assert_eq!((delivery.log.len(), delivery.pass_head), (1, 2));
        assert_eq!(delivery.log.pending(1).count(), 1);
        assert_eq!(delivery.log.pending(2).count(), 0);
        delivery.finish_pass(2, 0);
        assert!(delivery.log.is_empty());
    }
}
