//! Flows of topics without members here, and broadcasts whose bytes stay counted for a while.

use crate::seeded_state::{HashMap, SeededState};
use alloc::sync::Weak;
use core::hash::BuildHasher as _;
use core::time::Duration;
use simurgh_data::prelude::*;

use simurgh_channel::{Charge, Flow, Posted};

/// Flows of topics without members here that are remembered before ended ones are removed.
const REMEMBERED_MIN: usize = 64;
const BILLION: u64 = 1_000_000_000;

pub(crate) struct MemberlessFlows {
    /// By the hash of the topic, so that a long name is not kept for a flow that has ended. Two
    /// topics with one hash share their flow.
    by_topic: HashMap<u64, Weak<Flow>, SeededState>,
    sweep_at: usize,
}

impl MemberlessFlows {
    pub(crate) fn new(seed: u64) -> Self {
        Self { by_topic: HashMap::with_hasher(SeededState::new(seed)), sweep_at: 0 }
    }

    pub(crate) fn of(&mut self, topic: &str) -> Arc<Flow> {
        if let Some(flow) = self.kept(topic) {
            return flow;
        }
        let flow = Arc::default();
        self.keep(topic, &flow);
        flow
    }

    /// The flow of a topic without members here, if something of it is in flight.
    pub(crate) fn kept(&self, topic: &str) -> Option<Arc<Flow>> {
        self.by_topic.get(&self.by_topic.hasher().hash_one(topic)).and_then(Weak::upgrade)
    }

    /// Remembers a flow while something of it is in flight.
    pub(crate) fn keep(&mut self, topic: &str, flow: &Arc<Flow>) {
        if self.by_topic.len() >= self.sweep_at.max(REMEMBERED_MIN) {
            self.by_topic.retain(|_, flow| flow.strong_count() > 0);
            self.by_topic.shrink_to(2 * self.by_topic.len());
            self.sweep_at = 2 * self.by_topic.len();
        }
        let hash = self.by_topic.hasher().hash_one(topic);
        self.by_topic.insert(hash, Arc::downgrade(flow));
    }
}

/// Broadcasts that every member was sent, but most have not taken, or one has far too much before
/// them: their bytes stay counted. They are released when that is over, or at a *pace*, so that
/// readers that do not read slow a topic down to that pace and no further.
#[derive(Default)]
pub(crate) struct Withheld {
    items: VecDeque<(usize, Option<Arc<Charge>>)>,
    /// When the pace was last applied, and what it allowed that was not used, in billionths of a
    /// byte, so that short times are not rounded away.
    since_ns: u64,
    allowed: u128,
}

impl Withheld {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { since_ns: now_ns, ..Self::default() }
    }

    pub(crate) fn push(&mut self, posted: Posted) {
        let weight = posted.broadcast().weight();
        self.items.push_back((weight, posted.into_charge()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn give_all(&mut self) -> usize {
        self.items.drain(..).map(|(weight, _)| weight).sum()
    }

    /// Releases what `bytes_per_s` allows by now. Returns how much.
    pub(crate) fn give(&mut self, now_ns: u64, bytes_per_s: u64) -> usize {
        let passed = now_ns.saturating_sub(self.since_ns).min(BILLION);
        self.since_ns = now_ns;
        self.allowed += u128::from(bytes_per_s) * u128::from(passed);
        let mut given = 0;
        while let Some((weight, _)) = self.items.front()
            && let price = *weight as u128 * u128::from(BILLION)
            && price <= self.allowed
        {
            self.allowed -= price;
            given += *weight;
            self.items.pop_front();
        }
        given
    }
}

/// Bytes a second at which withheld broadcasts are released: so slowly that a reader that lags
/// (with a quarter of the limit waiting) and gets a last large message (half of the limit) does not
/// reach the limit before its time is over, if it reads at all.
pub(crate) fn pace(outbound_bytes_max: usize, slow_after: Duration) -> u64 {
    let seconds = slow_after.as_secs_f64().max(0.001);
    ((outbound_bytes_max as f64 / 2.0 / seconds) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use simurgh_channel::Broadcast;
    use simurgh_proto::message::Payload;

    use super::*;

    fn posted(flow: &Arc<Flow>) -> Posted {
        let broadcast = Arc::new(Broadcast::new("t", "e", Payload::EMPTY_OBJECT));
        let weight = broadcast.weight();
        Posted::new(broadcast, Some(flow.charge(weight)))
    }

    #[test]
    fn withheld_bytes_return_gradually_or_at_once() {
        let flow = Arc::<Flow>::default();
        let mut withheld = Withheld::new(0);
        for _ in 0..10 {
            withheld.push(posted(&flow));
        }
        let each = flow.bytes() / 10;
        let pace = 2 * each as u64;
        assert_eq!(withheld.give(499_000_000, pace), 0);
        assert_eq!(withheld.give(501_000_000, pace), each);
        assert_eq!(withheld.give(9_000_000_000, pace), 2 * each, "a pause is no credit");
        assert_eq!((withheld.give_all(), flow.bytes(), withheld.is_empty()), (7 * each, 0, true));
    }

    #[test]
    fn ended_flows_are_removed() {
        let mut flows = MemberlessFlows::new(7);
        let kept = flows.of("kept");
        for n in 0..10_000 {
            flows.of(&format!("t{n}"));
        }
        assert!(Arc::ptr_eq(&kept, &flows.of("kept")));
        assert!(flows.by_topic.len() <= REMEMBERED_MIN + 1, "{}", flows.by_topic.len());
    }

    /// The more flows have not ended, the rarer the search for ended ones.
    #[test]
    fn flows_are_swept_sometimes() {
        let mut flows = MemberlessFlows::new(7);
        let kept: Vec<_> = (0..100).map(|n| flows.of(&format!("kept {n}"))).collect();
        let mut lens = (0..).map(|n| {
            flows.of(&format!("t{n}"));
            flows.by_topic.len()
        });
        assert!(lens.by_ref().take(28).eq(101..=128));
        assert!(lens.by_ref().take(100).eq(101..=200));
        assert_eq!(lens.next(), Some(101));
        drop(kept);
        flows.by_topic.reserve(1000);
        let kept: Vec<_> = (0..10).map(|n| flows.of(&format!("few {n}"))).collect();
        let mut lens = (0..).map(|n| {
            flows.of(&format!("u{n}"));
            flows.by_topic.len()
        });
        assert_eq!(lens.find(|len| *len == kept.len() + 1), Some(11));
        assert!((2 * kept.len()..100).contains(&flows.by_topic.capacity()), "room for as many");
    }

    #[test]
    fn half_of_the_limit_takes_the_full_time() {
        assert_eq!(pace(16 << 20, Duration::from_secs(8)), 1 << 20);
        assert!(pace(1, Duration::ZERO) >= 1);
    }
}
