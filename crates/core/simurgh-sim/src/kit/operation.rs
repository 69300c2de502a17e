//! Operations: all that a run does, drawn from its seed.

use fastrand::Rng;

/// One operation. The meaning of its numbers depends on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<K> {
    pub(crate) kind: K,
    /// Mostly the client, or the shard.
    pub(crate) a: u16,
    /// Mostly the topic.
    pub(crate) b: u16,
    /// Everything else.
    pub(crate) c: u32,
}

impl<K> Op<K> {
    pub(crate) fn draw(kind: K, rng: &mut Rng) -> Self {
        Self { kind, a: rng.u16(..), b: rng.u16(..), c: rng.u32(..) }
    }
}

/// Draws one of several in proportion to their weights; `None` if the sum of the weights is 0.
pub(crate) fn pick<K>(rng: &mut Rng, weights: impl Iterator<Item = (K, u32)> + Clone) -> Option<K> {
    let all: u32 = weights.clone().map(|(_, weight)| weight).sum();
    let mut at = rng.u32(..all.max(1));
    weights.into_iter().find_map(|(kind, weight)| {
        let is_it = at < weight;
        at = at.saturating_sub(weight);
        is_it.then_some(kind)
    })
}

/// Draws this many operations, each kind in proportion to its weight.
pub(crate) fn operations<K: Copy>(seed: u64, weights: &[(K, u32)], count: usize) -> Vec<Op<K>> {
    let mut rng = Rng::with_seed(seed);
    let mut draw = || pick(&mut rng, weights.iter().copied()).map(|it| Op::draw(it, &mut rng));
    (0..count).map_while(|_| draw()).collect()
}
