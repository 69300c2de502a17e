//! What a seed decides, and the operations that it makes.

use crate::kit::fault::Fault;
use fastrand::Rng;

use crate::features::Features;
use crate::op::{Kind, Op};
use crate::profile::Profile;

/// What shrinking tries to make simpler.
const CHANGES: [fn(&mut Profile); 21] = [
    |it| it.shards = 1,
    |it| it.shards = it.shards.min(2),
    |it| it.clients = it.clients.div_ceil(2),
    |it| it.topics = 1,
    |it| it.panics = 0,
    |it| it.stops = 0,
    |it| it.intercepts = 0,
    |it| it.later = 0,
    |it| (it.binary, it.long) = (0, 0),
    |it| it.effects_max = it.effects_max.saturating_sub(1),
    |it| it.features = Features { permits: it.features.permits, ..Features::default() },
    |it| it.features.permits = None,
    |it| it.features.prepare_above = 0,
    |it| it.features.long_names = 0,
    |it| it.features.has_odd_refs = false,
    |it| it.features.restarts = false,
    |it| it.features.waits = 0,
    |it| it.features.reaches = false,
    |it| it.features.is_present = false,
    |it| it.features.is_limited = false,
    |it| it.features.expires = false,
];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    /// How often cores get an input, at most.
    pub(crate) steps: usize,
    pub(crate) fault: Option<(Fault, u32)>,
}

impl Plan {
    pub(crate) fn of(seed: u64, steps: usize) -> Self {
        Self { profile: Profile::of(seed), steps, fault: None }
    }

    /// Plans that each differ by one of the [`CHANGES`].
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let text = format!("{self:?}");
        let changed = CHANGES.iter().map(|change| {
            let mut plan = self.clone();
            change(&mut plan.profile);
            plan
        });
        changed.filter(|it| format!("{it:?}") != text).collect()
    }

    /// Draws more operations than take this many steps.
    pub(crate) fn operations(&self, steps: usize) -> Vec<Op> {
        let Profile { seed, weights, features, .. } = &self.profile;
        let mut sum = 0;
        let weigh = |((kind, weight), factor): (&(Kind, u32), &u16)| {
            // Without these operations nothing happens at all.
            let factor = match kind {
                Kind::Connect | Kind::Join | Kind::Read | Kind::Turn | Kind::Mail => {
                    (*factor).max(4)
                }
                _ => *factor,
            };
            sum += weight * u32::from(factor);
            sum
        };
        let sums: Vec<u32> = Kind::ALL.iter().zip(weights).map(weigh).collect();
        // Drains in 40,000 operations.
        let drains = if features.restarts { 80 } else { 8 };
        let mut rng = Rng::with_seed(*seed);
        let mut draw = || {
            // Rare operations, independent of the weights.
            let kind = match rng.u32(..40_000) {
                it if it < drains => Kind::Drain,
                it if it < drains + 52 => Kind::Rest,
                _ => {
                    let at = rng.u32(..sums.last().copied().unwrap_or(1));
                    let place = sums.partition_point(|sum| *sum <= at);
                    Kind::ALL.get(place).map_or(Kind::Turn, |(kind, _)| *kind)
                }
            };
            Op::draw(kind, &mut rng)
        };
        (0..=steps * 3).map(|_| draw()).collect()
    }
}
