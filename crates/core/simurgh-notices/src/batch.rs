//! Batches of notices, and how far a hook has got in a partition.

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::key::Time;
use crate::record::{DeadLetter, Notice};
use crate::settings::HookRule;

/// Why a hook has to read all stays again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reset {
    /// The hook is new, or the log.
    New,
    /// Too many notices have waited for it in memory.
    Overflow,
}

/// Notices of one request. It is repeated unchanged until its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its `webhook-id`.
    pub id: Box<str>,
    /// The log.
    pub epoch: Epoch,
    /// The notices, in order. None: it is a `log.reset`.
    pub notices: Vec<Arc<Notice>>,
    /// Why it is a `log.reset`.
    pub reset: Option<Reset>,
    /// The number of the last notice.
    pub n: u64,
    /// When it was formed, in milliseconds since 1970.
    pub at_ms: u64,
    /// It repeats dead letters.
    pub(crate) is_replay: bool,
}

/// The outcome of a request with notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A status 2xx.
    Accepted,
    /// 410, or 429, 5xx, a timeout, no connection: it is repeated when the hook may be sent
    /// something. With the status, 0 without one, and the beginning of the answer.
    Failed(u16, Box<str>),
    /// Another status.
    Refused(u16, Box<str>),
}

/// A notice that some hook has not accepted.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) notice: Arc<Notice>,
    /// Its place in the log.
    pub(crate) at: u64,
    pub(crate) read_ns: u64,
}

/// A hook's progress in the partition.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// All up to this number are accepted, dead, or not wanted.
    pub(crate) delivered: u64,
    /// What the log says about that; `None`: nothing, so the hook has to read all stays.
    pub(crate) logged: Option<u64>,
    pub(crate) reset: Option<Reset>,
    pub(crate) batch: Option<Arc<Batch>>,
    pub(crate) is_in_flight: bool,
    /// Up to this number notices are sent one by one.
    pub(crate) single_to: u64,
    pub(crate) refusals: u32,
    pub(crate) pause_ns: u64,
    pub(crate) dead: VecDeque<(u64, DeadLetter)>,
    pub(crate) replays: VecDeque<Arc<Notice>>,
}

impl Progress {
    /// Forms the next batch, if there is something to send.
    pub(crate) fn form(
        &mut self,
        rule: &HookRule,
        window: &VecDeque<Waiting>,
        (epoch, partition): (Epoch, u8),
        time: Time,
    ) -> Option<Batch> {
        let replay = if self.reset.is_none() { self.replays.pop_front() } else { None };
        let is_replay = replay.is_some();
        let notices = match (self.reset, replay) {
            (Some(_), _) => Vec::new(),
            (None, Some(notice)) => vec![notice],
            (None, None) => self.gather(rule, window, time)?,
        };
        let n = notices.last().map_or(self.delivered, |last| last.n);
        let id = match &notices[..] {
            [] => format!("r-{epoch}-{partition}-{n}"),
            [one] => format!("{one}"),
            [first, ..] => format!("b-{epoch}-{partition}-{}-{}", first.n, notices.len()),
        };
        let (id, at_ms, reset) = (id.into(), time.unix_ms, self.reset);
        Some(Batch { id, epoch, notices, reset, n, at_ms, is_replay })
    }

    pub(crate) fn wanted<'a>(
        &self,
        rule: &'a HookRule,
        window: &'a VecDeque<Waiting>,
    ) -> impl Iterator<Item = &'a Waiting> + use<'a> {
        let first = window.partition_point(|waiting| waiting.notice.n <= self.delivered);
        window.range(first..).filter(|waiting| rule.wants(&waiting.notice))
    }

    /// The notices of the next batch, if they are enough or have waited.
    fn gather(
        &mut self,
        rule: &HookRule,
        window: &VecDeque<Waiting>,
        time: Time,
    ) -> Option<Vec<Arc<Notice>>> {
        let Some(first) = self.wanted(rule, window).next() else {
            let last = window.back().map_or(0, |last| last.notice.n);
            self.delivered = self.delivered.max(last);
            return None;
        };
        let is_single = first.notice.n <= self.single_to;
        let most = if is_single { 1 } else { rule.batch };
        let wanted = self.wanted(rule, window).take(most);
        let notices: Vec<_> = wanted.map(|waiting| Arc::clone(&waiting.notice)).collect();
        let is_due = first.read_ns.saturating_add(rule.batch_ns) <= time.ns;
        (notices.len() == most || is_due).then_some(notices)
    }
}
