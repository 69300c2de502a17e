//! What a seed decides before the first operation, and which operations it makes.

use std::time::Duration;

use crate::kit::NONE;
use crate::kit::fault::{Fault, Faults};
use crate::kit::setup::{Setup, patient_config};
use crate::kit::topics::Topics;
use fastrand::Rng;
use simurgh_core::{Config, HistoryConfig, HistoryRule, ReplayLimits};

use crate::limits::{self, Limits, Quota};

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shards: usize,
    pub(crate) clients: usize,
    pub(crate) topics: usize,
    pub(crate) rule: HistoryRule,
    pub(crate) limits: HistoryConfig,
    mailbox_bytes_max: usize,
    pub(crate) window: usize,
    jump_ns: u32,
    pub(crate) pad: usize,
    pub(crate) has_binary: bool,
    /// Some waits are longer than a channel waits until its broadcasts are kept.
    pub(crate) waits_long: bool,
    /// Clients name messages that arrived after they had left.
    pub(crate) says_seen: bool,
    /// Clients do not join again before the answer to their resume.
    pub(crate) is_calm: bool,
    /// How many of 256 clients have an id, opt in, or intercept.
    habits: [u8; 3],
    pub(crate) fault: Option<(Fault, u32)>,
    pub(crate) leaves: bool,
    pub(crate) purges: bool,
    /// Clients send resumes that cannot be read.
    pub(crate) says_bad: bool,
    /// Clients send a wrong key, or none.
    pub(crate) forges: bool,
    pub(crate) restarts: bool,
    /// How many messages each channel takes.
    pub(crate) quota: Option<Quota>,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut plan = Self::sizes(seed);
        let mut rng = Rng::with_seed(seed ^ 0x4d_4f_52_45);
        if rng.bool() {
            plan.rule.only_own = rng.u8(..) < 90;
            (plan.says_bad, plan.forges) = (rng.bool(), rng.bool());
            plan.restarts = rng.bool();
        }
        if rng.u8(..) < 100 {
            plan.limits.portion = ReplayLimits {
                count: rng.usize(1..=4),
                bytes: if rng.bool() { 300 } else { 64 << 10 },
            };
        }
        if rng.u8(..) < 80 {
            let (period_ms, count) = ([70, 1_000, 11_000][rng.usize(..3)], rng.u64(1..=9));
            let (burst, policy) = (rng.u64(1..=9), limits::policy(&mut rng));
            plan.quota = Some(Quota { count, period_ms, burst, policy });
        }
        plan
    }

    pub(crate) fn channel_limits(&self) -> Limits {
        Limits { channel: [None, self.quota, None, None], ..Limits::default() }
    }

    fn sizes(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x4b_45_50_54);
        let rule = HistoryRule {
            count: [2, 5, 30, 1000][rng.usize(..4)],
            bytes: [1_000, 5_000, 1 << 20][rng.usize(..3)],
            age: [Duration::from_secs(2), Duration::from_secs(300)][rng.usize(..2)],
            only_own: false,
        };
        let limits = HistoryConfig {
            bytes_max: if rng.u8(..) < 60 { 3_000 } else { 256 << 20 },
            replay_count: if rng.u8(..) < 60 { 4 } else { 1000 },
            replay_bytes: if rng.u8(..) < 60 { 900 } else { 1 << 20 },
            ..HistoryConfig::default()
        };
        Self {
            seed,
            shards: rng.usize(1..=4),
            clients: rng.usize(1..=6),
            topics: rng.usize(1..=4),
            rule,
            limits,
            mailbox_bytes_max: if rng.u8(..) < 40 { 8_000 } else { 16 << 20 },
            window: [1 << 20, 4_000, 300][rng.usize(..3)],
            jump_ns: [50, 5_000, 300_000][rng.usize(..3)],
            pad: [0, 200, 3_000][rng.usize(..3)],
            has_binary: rng.bool(),
            waits_long: rng.u8(..) < 60,
            says_seen: rng.bool(),
            is_calm: rng.bool(),
            habits: [[0, 128, 255][rng.usize(..3)], 200, [0, 0, 90][rng.usize(..3)]],
            fault: None,
            leaves: rng.bool(),
            purges: rng.u8(..) < 40,
            says_bad: false,
            forges: false,
            restarts: false,
            quota: None,
        }
    }

    pub(crate) fn setup(&self) -> Setup {
        let (mailbox_bytes_max, history) = (self.mailbox_bytes_max, self.limits.clone());
        let config = Config { mailbox_bytes_max, history, ..patient_config() };
        let (topics, faults) = (Topics::new(1, 0), Faults::new(self.fault));
        Setup { config, jump_ns: self.jump_ns, topics, faults }
    }

    pub(crate) fn topic_of(&self, name: &str) -> Option<usize> {
        name.strip_prefix("rooms:")?.parse().ok()
    }

    /// A client's id, whether it opts in, and whether its channels intercept.
    pub(crate) fn client(&self, number: u32) -> (u32, bool, bool) {
        let mut rng = Rng::with_seed(self.seed.rotate_left(17) ^ u64::from(number));
        let [has_id, opts_in, intercepts] = self.habits.map(|it| rng.u8(..) < it);
        let id = if has_id && opts_in { number } else { NONE };
        (id, opts_in, intercepts)
    }
}

pub(crate) fn topic(number: usize) -> String {
    format!("rooms:{number}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Connect,
    Join,
    Push,
    Leave,
    Read,
    Take,
    Mail,
    Turn,
    Decide,
    Vanish,
    Notice,
    Publish,
    Speak,
    Purge,
    Wait,
    /// Everything is delivered, and the state is checked.
    Rest,
    /// The server drains, ends and starts again; mostly with what it has saved.
    Restart,
}

pub(crate) const WEIGHTS: [(Kind, u32); 17] = [
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
    (Kind::Notice, 10),
    (Kind::Publish, 30),
    (Kind::Speak, 15),
    (Kind::Purge, 4),
    (Kind::Wait, 20),
    (Kind::Rest, 3),
    (Kind::Restart, 4),
];
