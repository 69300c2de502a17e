//! One node without an engine, whose shards store the histories themselves: its plan, what it does
//! otherwise than a node of a cluster, and its restarts.
//!
//! Listeners on every shard tell the order in which a topic's home stores its broadcasts.

mod order;
mod restart;
mod resume;

use std::time::Duration;

use fastrand::Rng;
use simurgh_core::{Config, HistoryConfig, HistoryRule, ReplayLimits};

pub(crate) use self::order::Order;
pub(crate) use self::resume::{Proof, Resume};
use super::app::AppPlan;
use super::plan::{HistoryPlan, Kind, Plan};
use crate::limits::{self, Limits, Quota};

/// Of this many intercepted broadcasts one is swallowed.
pub(crate) const SWALLOWED: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) struct AlonePlan {
    /// How many of 256 clients have channels that intercept.
    pub(crate) intercepts: u8,
    /// Some waits are longer than a channel waits until its broadcasts are stored.
    pub(crate) waits_long: bool,
    /// Clients name messages that arrived after they had left.
    pub(crate) says_seen: bool,
    /// Clients send resumes that cannot be read.
    pub(crate) says_bad: bool,
    /// Clients send a wrong key, or none.
    pub(crate) forges: bool,
}

const WEIGHTS: [(Kind, u32); 16] = [
    (Kind::Connect, 40),
    (Kind::Join, 70),
    (Kind::Push, 120),
    (Kind::Leave, 20),
    (Kind::Read, 200),
    (Kind::Take, 120),
    (Kind::Mail, 200),
    (Kind::Turn, 120),
    (Kind::Decide, 40),
    (Kind::Vanish, 12),
    (Kind::Publish, 30),
    (Kind::Speak, 15),
    (Kind::Purge, 4),
    (Kind::Wait, 20),
    (Kind::Rest, 3),
    (Kind::Restart, 4),
];

impl Plan {
    /// The plan of one node without an engine.
    pub(super) fn alone(seed: u64) -> Self {
        let mut plan = Self::of_several(seed);
        let mut rng = Rng::with_seed(seed ^ 0x4b_45_50_54);
        plan.nodes = vec![rng.usize(1..=4)];
        plan.clients = rng.usize(1..=6);
        plan.app = AppPlan::plain(&mut rng, true, 3_000);
        plan.app.is_present = false;
        (plan.network, plan.has_broker) = (Default::default(), false);
        let rule = HistoryRule {
            count: [2, 5, 30, 1000][rng.usize(..4)],
            bytes: [1_000, 5_000, 1 << 20][rng.usize(..3)],
            age: [Duration::from_secs(2), Duration::from_secs(300)][rng.usize(..2)],
            only_own: rng.u8(..) < 60,
            ..HistoryRule::default()
        };
        plan.history = Some(HistoryPlan {
            rule,
            opts_in: 200,
            has_id: [0, 128, 255][rng.usize(..3)],
            is_local_when_away: false,
            is_whole: false,
            has_leaders: false,
            purges: rng.u8(..) < 40,
        });
        let alone = AlonePlan::of(&mut plan, &mut rng);
        plan.alone = Some(alone);
        plan
    }
}

impl AlonePlan {
    fn of(plan: &mut Plan, rng: &mut Rng) -> Self {
        // Broadcasts that wait for longer than these are unconfirmed.
        let Config { handshake_timeout, close_timeout, .. } = Config::default();
        plan.config = Config { handshake_timeout, close_timeout, ..plan.config.clone() };
        let limits = &mut plan.config.history;
        *limits = HistoryConfig {
            bytes_max: if rng.u8(..) < 60 { 3_000 } else { 256 << 20 },
            replay_count: if rng.u8(..) < 60 { 4 } else { 1000 },
            replay_bytes: if rng.u8(..) < 60 { 900 } else { 1 << 20 },
            ..HistoryConfig::default()
        };
        if rng.u8(..) < 100 {
            let bytes = if rng.bool() { 300 } else { 64 << 10 };
            limits.portion = ReplayLimits { count: rng.usize(1..=4), bytes };
        }
        let quota = Quota {
            count: rng.u64(1..=9),
            period_ms: [70, 1_000, 11_000][rng.usize(..3)],
            burst: rng.u64(1..=9),
            policy: limits::policy(rng),
        };
        plan.config.mailbox_bytes_max = if rng.u8(..) < 40 { 8_000 } else { 16 << 20 };
        plan.window = [1 << 20, 4_000, 300][rng.usize(..3)];
        plan.jump_ns = [50, 5_000, 300_000][rng.usize(..3)];
        let (leaves, restarts) = (rng.bool(), rng.u8(..) < 64);
        let purges = plan.history.as_ref().is_some_and(|it| it.purges);
        let is_on = |(kind, _): &(Kind, u32)| match kind {
            Kind::Leave => leaves,
            Kind::Purge => purges,
            Kind::Restart => restarts,
            _ => true,
        };
        plan.weights = WEIGHTS.into_iter().filter(is_on).collect();
        let limits = Limits { channel: [None, Some(quota), None, None], ..Limits::default() };
        plan.app.limits = Some(limits).filter(|_| rng.u8(..) < 80);
        Self {
            intercepts: [0, 0, 90][rng.usize(..3)],
            waits_long: rng.u8(..) < 60,
            says_seen: rng.bool(),
            says_bad: rng.u8(..) < 64,
            forges: rng.bool(),
        }
    }
}
