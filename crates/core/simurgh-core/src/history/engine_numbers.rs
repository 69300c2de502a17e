//! Topics that a broker numbers: what it has reported of them, in rings with its numbers.

use simurgh_channel::{Broadcast, Kept, KeptItem, KeptMark};
use simurgh_history::{Epoch, GapReason, Ids, KeptTopic, Marks, Place, Position, Ring};

use super::content::value;
use super::kept_topics::{KeptTopics, Slot};
use simurgh_data::prelude::*;

impl KeptTopics {
    fn slot(&self, topic: &str) -> Option<&Slot> {
        self.slots.get(self.place(topic)? as usize)?.as_deref()
    }

    pub(super) fn head(&self, topic: &str) -> Option<Position> {
        self.slot(topic).map(|slot| slot.topic.ring().position())
    }

    /// Begins a topic without messages, and without its previous state. Messages may be missing up
    /// to the first place, and were purged up to the second.
    pub(super) fn begin(
        &mut self,
        topic: &str,
        (epoch, floor, purged): (Epoch, Place, Place),
        count: usize,
        now_ms: u64,
    ) {
        self.end(topic);
        // With as many messages as are kept, all older ones were dropped.
        let is_full = count >= self.limits(topic).count;
        let reason = if is_full { GapReason::Overwritten } else { GapReason::Expired };
        let marks = Marks { head: floor, floor, reason, purged };
        let ring = Ring::restored(epoch, &marks);
        self.insert(topic, KeptTopic::of(ring, Ids::new(self.seed)), now_ms);
    }

    /// No other message will arrive up to this place.
    pub(super) fn reaches(&mut self, topic: &str, head: Place) {
        if let Some(slot) = self.slot_mut(topic) {
            slot.topic.ring_mut().advance(head);
        }
    }

    /// Keeps what the broker has kept. Returns it, unless it was here before.
    pub(super) fn append(&mut self, item: KeptItem, now_ms: u64) -> Option<Arc<Broadcast>> {
        let place = item.place();
        let KeptItem { at_ms, mine, sender, mut broadcast, .. } = item;
        let limits = self.limits(&broadcast.topic);
        let at = self.place(&broadcast.topic)?;
        let slot = self.slots.get_mut(at as usize)?.as_deref_mut()?;
        let ring = slot.topic.ring_mut();
        if place <= ring.head() {
            return None;
        }
        // Other nodes use the same ids of channels.
        broadcast.except = broadcast.except.filter(|_| mine.is_some());
        let position = ring.position_of(place);
        broadcast.kept = Some(Box::new(KeptMark { position, sender, is_notice: false }));
        let broadcast = Arc::new(broadcast);
        let (content, bytes) = value(&mut self.events, &broadcast);
        let at_ms = if at_ms == 0 { now_ms } else { at_ms };
        let is_kept = ring.push(place, at_ms, bytes, Kept { sender, content });
        let dropped = slot.topic.enforce(&limits, now_ms);
        slot.used_ms = now_ms;
        self.messages += usize::from(is_kept);
        self.bytes += bytes as u64;
        self.too_large += u64::from(bytes as u64 > limits.bytes);
        self.count(dropped);
        Some(broadcast)
    }

    /// Messages up to a place are lost. Returns the topic's position then.
    pub(super) fn lose(&mut self, topic: &str, through: Place) -> Option<Position> {
        let slot = self.slot_mut(topic)?;
        let dropped = slot.topic.ring_mut().lose(through);
        let position = slot.topic.ring().position();
        self.last.clear();
        self.count(dropped);
        Some(position)
    }

    /// Purges everything by a request with this place. A client that has everything before has
    /// missed nothing, though it does not have the request.
    pub(super) fn purge_at(&mut self, topic: &str, place: Place) {
        let Some(slot) = self.slot_mut(topic) else { return };
        let dropped = slot.topic.purge();
        slot.topic.ring_mut().advance(place);
        self.last.clear();
        self.count(dropped);
    }

    pub(super) fn end(&mut self, topic: &str) {
        let Some(at) = self.place(topic) else { return };
        if let Some(slot) = self.slot(topic) {
            let ring = slot.topic.ring();
            let (messages, bytes) = (ring.len(), ring.bytes());
            self.messages = self.messages.saturating_sub(messages);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        self.last.clear();
        self.forget(at as usize);
    }
}
