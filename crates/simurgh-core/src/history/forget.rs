//! What is let go: what is too old as a hand comes round, topics of which nothing is left, and what
//! is too much.

use std::rc::Rc;

use super::home::KeptTopics;

/// Topics among which the one is looked for that was used least lately.
const SAMPLE: usize = 32;

impl KeptTopics {
    /// Looks at some of the topics, for what is too old; whether that was the last of a round.
    pub(crate) fn sweep(&mut self, count: usize, now_ms: u64) -> bool {
        for _ in 0..count {
            if self.hand >= self.slots.len() {
                self.hand = 0;
                return true;
            }
            self.look(self.hand, now_ms);
            self.hand += 1;
        }
        false
    }

    fn look(&mut self, at: usize, now_ms: u64) {
        let Some(name) = self.slots.get(at).and_then(|it| Some(Rc::clone(&it.as_ref()?.name)))
        else {
            return;
        };
        let limits = self.limits(&name);
        let Some(Some(slot)) = self.slots.get_mut(at) else { return };
        let dropped = slot.topic.enforce(&limits, now_ms);
        // What there was is remembered for as long again: until then it is known who has missed
        // nothing.
        let is_over = slot.topic.is_empty()
            && now_ms.saturating_sub(slot.used_ms) > limits.age_ms.saturating_mul(2);
        self.count(dropped);
        if is_over {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::take) else { return };
        self.forgotten.note(&slot.name, slot.topic.ring().position());
        self.by_name.remove(&slot.name);
        self.free.push(at as u32);
        if self.by_name.is_empty() {
            (self.by_name, self.slots, self.free) = Default::default();
            (self.hand, self.last) = (0, None);
        }
    }

    /// Has one topic forget the older half of what it keeps: of some, the one that nobody has used
    /// for longest.
    pub(crate) fn evict(&mut self) {
        let places = self.slots.len();
        let mut oldest: Option<(u64, usize)> = None;
        let mut seen = 0;
        for _ in 0..places {
            self.hand = if self.hand + 1 >= places { 0 } else { self.hand + 1 };
            let Some(Some(slot)) = self.slots.get(self.hand) else { continue };
            if slot.topic.ring().is_empty() {
                continue;
            }
            if oldest.is_none_or(|(used_ms, _)| slot.used_ms < used_ms) {
                oldest = Some((slot.used_ms, self.hand));
            }
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        let Some((_, at)) = oldest else { return };
        let Some(Some(slot)) = self.slots.get_mut(at) else { return };
        let dropped = slot.topic.evict_half();
        self.count(dropped);
    }
}
