//! Which notices a hook gets, and how.

use std::time::Duration;

use simurgh_notices::{HookRule, Settings};
use simurgh_proto::topic::Pattern;

/// The types of notices.
pub const NOTICE_TYPES: [&str; 7] = [
    "member.joined",
    "member.left",
    "topic.occupied",
    "topic.vacated",
    "user.connected",
    "user.disconnected",
    "log.reset",
];

/// The notices that a hook wants.
#[derive(Clone, Debug, PartialEq)]
pub struct NoticeConfig {
    /// Their types, as a sum of [`HookRule::bit`]s.
    pub types: u8,
    /// The topics of notices about members and topics; empty: all.
    pub topics: Vec<Pattern>,
    /// The most notices of a request. Default: 100.
    pub batch: usize,
    /// How long the first notice of a request waits for others. Default: 200 ms.
    pub batch_time: Duration,
    /// A notice that is not accepted within this time is a dead letter. Default: 24 h.
    pub retry_for: Duration,
    /// Time from the last membership to the end of a stay. The longest of all hooks counts.
    /// Default: 5 s.
    pub leave_grace: Duration,
}

impl NoticeConfig {
    /// With the defaults.
    pub fn new(types: u8) -> Self {
        Self {
            types,
            topics: Vec::new(),
            batch: 100,
            batch_time: Duration::from_millis(200),
            retry_for: Duration::from_secs(24 * 3600),
            leave_grace: Duration::from_secs(5),
        }
    }

    /// The names of all types.
    pub fn types() -> [&'static str; 6] {
        let [types @ .., _] = NOTICE_TYPES;
        types
    }

    /// The bit of a type.
    pub fn type_of(name: &str) -> Option<u8> {
        Self::types().iter().position(|known| *known == name).map(|at| 1 << at)
    }

    /// The settings of all hooks that want notices, with their names; `None`: no hook.
    pub fn settings<'a>(
        all: impl IntoIterator<Item = (&'a str, &'a Self), IntoIter: Clone>,
    ) -> Option<Settings> {
        let all = all.into_iter();
        let grace = all.clone().map(|(_, config)| config.leave_grace).max()?;
        let hooks = all.map(|(name, config)| config.rule(name)).collect();
        Some(Settings { hooks, grace_ns: ns(grace), ..Settings::default() })
    }

    fn rule(&self, name: &str) -> HookRule {
        HookRule {
            topics: self.topics.clone(),
            batch: self.batch,
            batch_ns: ns(self.batch_time),
            retry_for_ms: ns(self.retry_for) / 1_000_000,
            ..HookRule::new(name, self.types)
        }
    }
}

pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
