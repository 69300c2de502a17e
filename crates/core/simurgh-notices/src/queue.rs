//! The notices of a partition that one hook has not accepted, and how far it has got.
//!
//! Hooks do not wait for each other: each has a queue, and an equal share of the memory. If a queue
//! is full, a durable log has the newest notices, which are read again later. Without such a log
//! the oldest are dropped, and the hook gets a reset.

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::batch::{Batch, Reset};
use crate::key::Time;
use crate::record::{DeadLetter, Notice, Record};
use crate::settings::{HookRule, Settings};

/// A notice that the hook has not accepted.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) notice: Arc<Notice>,
    /// Its place in the log.
    pub(crate) at: u64,
    read_ns: u64,
}

/// Notices that only the log has: all that follow those in memory.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// They are behind this place.
    behind: u64,
    /// The place of the last one.
    to: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) rule: HookRule,
    bytes_max: usize,
    is_durable: bool,
    dead_max: usize,
    /// In the order of their numbers.
    pub(crate) waiting: VecDeque<Waiting>,
    bytes: usize,
    left: Option<Left>,
    /// All up to this number are accepted, dead, or not wanted.
    pub(crate) delivered: u64,
    /// The same number in the log; `None`: the log has none, so the hook has to read all stays.
    pub(crate) logged: Option<u64>,
    pub(crate) reset: Option<Reset>,
    pub(crate) batch: Option<Arc<Batch>>,
    /// The batch whose outcome is awaited. It may be outdated.
    pub(crate) in_flight: Option<Arc<Batch>>,
    /// Up to this number notices are sent one by one.
    pub(crate) single_to: u64,
    pub(crate) refusals: u32,
    pub(crate) pause_ns: u64,
    pub(crate) dead: VecDeque<(u64, DeadLetter)>,
    pub(crate) replays: VecDeque<Arc<Notice>>,
}

impl Queue {
    pub(crate) fn new(rule: &HookRule, settings: &Settings) -> Self {
        Self {
            rule: rule.clone(),
            bytes_max: settings.window_bytes / settings.hooks.len().max(1),
            is_durable: settings.is_durable,
            dead_max: settings.dead_max,
            waiting: VecDeque::new(),
            bytes: 0,
            left: None,
            delivered: 0,
            logged: None,
            reset: None,
            batch: None,
            in_flight: None,
            single_to: 0,
            refusals: 0,
            pause_ns: 0,
            dead: VecDeque::new(),
            replays: VecDeque::new(),
        }
    }

    /// The log has a notice.
    pub(crate) fn read(&mut self, notice: &Arc<Notice>, at: u64, read_ns: u64) {
        if notice.n <= self.delivered || !self.rule.wants(notice) {
            return;
        }
        let place = self.waiting.partition_point(|waiting| waiting.notice.n < notice.n);
        if self.waiting.get(place).is_some_and(|known| known.notice.n == notice.n) {
            return;
        }
        if self.left.is_some() {
            return self.leave(at);
        }
        self.bytes += notice.bytes();
        self.waiting.insert(place, Waiting { notice: Arc::clone(notice), at, read_ns });
    }

    /// Only the log has the notice of this place, and those after it.
    fn leave(&mut self, at: u64) {
        let behind = at.saturating_sub(1);
        let left = self.left.get_or_insert(Left { behind, to: at });
        (left.behind, left.to) = (left.behind.min(behind), left.to.max(at));
    }

    /// The log says something about the hook.
    pub(crate) fn read_record(&mut self, record: Record, at: u64) {
        match record {
            Record::Delivered { n, .. } => {
                self.delivered = self.delivered.max(n);
                self.logged = self.logged.max(Some(n));
            }
            Record::Dead { letter, .. } => {
                self.dead.retain(|(_, known)| known.notice.n != letter.notice.n);
                self.dead.push_back((at, letter));
                if self.dead.len() > self.dead_max {
                    self.dead.pop_front();
                }
            }
            Record::Cleared { n, .. } => self.dead.retain(|(_, known)| known.notice.n != n),
            _ => {}
        }
    }

    /// Whether the log does not have what was accepted.
    pub(crate) fn is_unmarked(&self) -> bool {
        self.logged.is_some_and(|logged| logged < self.delivered)
    }

    /// Forgets what is accepted, and what does not fit.
    pub(crate) fn trim(&mut self) {
        while self.waiting.front().is_some_and(|first| first.notice.n <= self.delivered) {
            self.pop(true);
        }
        while self.bytes > self.bytes_max && self.waiting.len() > 1 {
            let Some(dropped) = self.pop(!self.is_durable) else { break };
            if self.is_durable {
                self.leave(dropped.at);
            } else {
                (self.delivered, self.reset) = (dropped.notice.n, Some(Reset::Overflow));
                (self.batch, self.single_to) = (None, 0);
            }
        }
    }

    fn pop(&mut self, is_oldest: bool) -> Option<Waiting> {
        let waiting = if is_oldest { self.waiting.pop_front() } else { self.waiting.pop_back() }?;
        self.bytes = self.bytes.saturating_sub(waiting.notice.bytes());
        Some(waiting)
    }

    /// The log was read again, up to a place: these notices count. `is_all`: it had no more.
    pub(crate) fn read_again(&mut self, notices: &[(u64, Arc<Notice>)], to: u64, is_all: bool) {
        let Some(before) = self.left.take() else { return };
        for (at, notice) in notices {
            self.read(notice, *at, 0);
        }
        if !is_all || to < before.to {
            self.left = Some(Left { behind: to.max(before.behind), to: before.to });
        }
        self.trim();
    }

    /// Where the log has the first notice that is not accepted.
    pub(crate) fn first_at(&self) -> Option<u64> {
        let first = self.waiting.front().map(|first| first.at);
        first.or_else(|| self.left.map(|left| left.behind + 1))
    }

    /// The place behind which the log has further notices, if there is room for them.
    pub(crate) fn next_read_again(&self) -> Option<u64> {
        self.left.filter(|_| self.bytes <= self.bytes_max / 2).map(|left| left.behind)
    }

    /// The next batch, if something may be sent. Its outcome is to be reported.
    pub(crate) fn next_batch(&mut self, of: (Epoch, u8), time: Time) -> Option<Arc<Batch>> {
        if self.in_flight.is_some() || self.pause_ns > time.ns {
            return None;
        }
        if self.batch.is_none() {
            self.batch = Some(self.form(of, time)?.into());
        }
        self.in_flight = self.batch.clone();
        self.batch.clone()
    }

    fn form(&mut self, (epoch, partition): (Epoch, u8), time: Time) -> Option<Batch> {
        let replay = if self.reset.is_none() { self.replays.pop_front() } else { None };
        let is_replay = replay.is_some();
        let notices = match (self.reset, replay) {
            (Some(_), _) => Vec::new(),
            (None, Some(notice)) => vec![notice],
            (None, None) => self.gather(time)?,
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

    /// The notices of the next batch, if they are enough or have waited.
    fn gather(&self, time: Time) -> Option<Vec<Arc<Notice>>> {
        let first = self.waiting.front()?;
        let is_single = first.notice.n <= self.single_to;
        let most = if is_single { 1 } else { self.rule.batch };
        let notices: Vec<_> =
            self.waiting.iter().take(most).map(|waiting| Arc::clone(&waiting.notice)).collect();
        let is_due = first.read_ns.saturating_add(self.rule.batch_ns) <= time.ns;
        (notices.len() == most || is_due).then_some(notices)
    }

    /// When there may be something to send, if something may be sent.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        if self.in_flight.is_some() {
            return None;
        }
        let is_at_once = self.batch.is_some()
            || self.reset.is_some()
            || !self.replays.is_empty()
            || self.delivered < self.single_to;
        if is_at_once {
            return Some(self.pause_ns);
        }
        let first = self.waiting.front()?;
        let is_full = self.waiting.len() >= self.rule.batch;
        let wait_ns = if is_full { 0 } else { self.rule.batch_ns };
        Some(first.read_ns.saturating_add(wait_ns).max(self.pause_ns))
    }
}
