//! Notices of a partition on their way to the hooks: in order, one batch for each hook in flight.
//!
//! The window has the notices that some hook has not accepted. If it is full, a durable log has the
//! newest, which are read again later. Without such a log the oldest are dropped, and hooks that
//! have not accepted them get a reset.

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::batch::{Batch, Outcome, Progress, Reset, Waiting};
use crate::key::{SECOND, Time};
use crate::record::{DeadLetter, Notice, Record};
use crate::settings::Settings;

/// A notice that is refused so often by itself is a dead letter.
const REFUSALS_MAX: u32 = 10;
/// The time between two attempts of a notice that is refused.
const REFUSED_NS: u64 = SECOND;

/// The window, and the progress of each hook in the order of the settings.
#[derive(Debug)]
pub(crate) struct Delivery {
    settings: Arc<Settings>,
    window: VecDeque<Waiting>,
    bytes: usize,
    pub(crate) hooks: Vec<Progress>,
    /// Records to be appended.
    pub(crate) records: VecDeque<Record>,
    marked_ns: u64,
    /// The log has more notices, behind this number and place.
    left_in_log: Option<(u64, u64)>,
    /// The place of the last one that was left there.
    left_to: u64,
    is_reading: bool,
}

impl Delivery {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        let hooks = settings.hooks.iter().map(|_| Progress::default()).collect();
        Self {
            settings,
            window: VecDeque::new(),
            bytes: 0,
            hooks,
            records: VecDeque::new(),
            marked_ns: 0,
            left_in_log: None,
            left_to: 0,
            is_reading: false,
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.window.len()
    }

    pub(crate) fn waiting_of(&self, hook: usize) -> (usize, Option<u64>) {
        let rules = self.settings.hooks.get(hook).zip(self.hooks.get(hook));
        let Some((rule, progress)) = rules else { return (0, None) };
        let mut wanted = progress.wanted(rule, &self.window);
        let first_ms = wanted.next().map(|waiting| waiting.notice.at_ms());
        (usize::from(first_ms.is_some()) + wanted.count(), first_ms)
    }

    /// The notices that are not accepted, with their places in the log.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Notice>)> {
        self.window.iter().map(|waiting| (waiting.at, &waiting.notice))
    }

    /// The log has a notice.
    pub(crate) fn read(&mut self, notice: &Arc<Notice>, at: u64, now_ns: u64) {
        let place = self.window.partition_point(|waiting| waiting.notice.n < notice.n);
        if let Some(known) = self.window.get_mut(place).filter(|it| it.notice.n == notice.n) {
            // The log was compacted.
            known.at = at;
            return;
        }
        let is_accepted = self.hooks.iter().all(|hook| hook.delivered >= notice.n);
        if is_accepted {
            return;
        }
        if self.left_in_log.is_some_and(|(n, _)| notice.n > n) {
            self.left_to = self.left_to.max(at);
            return;
        }
        self.bytes += notice.bytes();
        self.window.insert(place, Waiting { notice: Arc::clone(notice), at, read_ns: now_ns });
    }

    /// The log has what a hook has accepted.
    pub(crate) fn read_record(&mut self, record: Record, at: u64) {
        let (Record::Delivered { hook, .. }
        | Record::Dead { hook, .. }
        | Record::Cleared { hook, .. }) = &record
        else {
            return;
        };
        let Some(place) = self.settings.hooks.iter().position(|it| it.name == *hook) else {
            return;
        };
        let dead_max = self.settings.dead_max;
        let Some(hook) = self.hooks.get_mut(place) else { return };
        match record {
            Record::Delivered { n, .. } => {
                hook.delivered = hook.delivered.max(n);
                hook.logged = hook.logged.max(Some(n));
            }
            Record::Dead { letter, .. } => {
                hook.dead.retain(|(_, known)| known.notice.n != letter.notice.n);
                hook.dead.push_back((at, letter));
                if hook.dead.len() > dead_max {
                    hook.dead.pop_front();
                }
            }
            Record::Cleared { n, .. } => hook.dead.retain(|(_, known)| known.notice.n != n),
            _ => {}
        }
    }

    /// This node delivers from now on. `n` is the highest number.
    pub(crate) fn activate(&mut self, n: u64) {
        for hook in &mut self.hooks {
            if hook.logged.is_none() {
                (hook.reset, hook.delivered) = (Some(Reset::New), n);
            }
            // The last mark may not be in the log.
            hook.logged = hook.logged.map(|_| 0);
        }
        self.trim(n);
    }

    /// The log was lost.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(Arc::clone(&self.settings));
    }

    /// Forgets what all hooks have accepted, and what does not fit.
    pub(crate) fn trim(&mut self, n: u64) {
        let accepted = self.hooks.iter().map(|hook| hook.delivered).min().unwrap_or(n);
        while self.window.front().is_some_and(|waiting| waiting.notice.n <= accepted) {
            self.pop(true);
        }
        while self.bytes > self.settings.window_bytes {
            let is_durable = self.settings.is_durable;
            let Some(dropped) = self.pop(!is_durable) else { break };
            if is_durable {
                self.left_to = self.left_to.max(dropped.1);
                let last = self.window.back();
                self.left_in_log = last.map(|last| (last.notice.n, last.at)).or(Some((0, 0)));
                continue;
            }
            for hook in &mut self.hooks {
                if hook.delivered < dropped.0 {
                    (hook.delivered, hook.reset) = (dropped.0, Some(Reset::Overflow));
                    (hook.batch, hook.single_to) = (None, 0);
                }
            }
        }
    }

    /// Returns the number and the place of the notice.
    fn pop(&mut self, is_oldest: bool) -> Option<(u64, u64)> {
        let waiting = if is_oldest { self.window.pop_front() } else { self.window.pop_back() }?;
        self.bytes = self.bytes.saturating_sub(waiting.notice.bytes());
        Some((waiting.notice.n, waiting.at))
    }

    /// The log was read again, up to a place: these notices count. `is_all`: it had no more.
    pub(crate) fn read_again(&mut self, notices: &[(u64, Arc<Notice>)], to: u64, is_all: bool) {
        let last = notices.last().map(|(at, notice)| (notice.n, *at));
        let before = self.left_in_log.take();
        self.is_reading = false;
        for (at, notice) in notices {
            self.read(notice, *at, 0);
        }
        if !is_all || to < self.left_to {
            self.left_in_log = last.map(|(n, _)| (n, to)).or(before.map(|(n, _)| (n, to)));
        }
    }

    pub(crate) fn is_all_in_memory(&self) -> bool {
        self.left_in_log.is_none()
    }

    pub(crate) fn next_read_again(&mut self) -> Option<u64> {
        let (_, at) = self.left_in_log?;
        let is_due = !self.is_reading && self.bytes <= self.settings.window_bytes / 2;
        self.is_reading |= is_due;
        is_due.then_some(at)
    }

    /// The next batch of a hook that may be sent something. Its outcome is to be reported.
    pub(crate) fn next_batch(
        &mut self,
        hook: usize,
        of: (Epoch, u8),
        time: Time,
    ) -> Option<Arc<Batch>> {
        let Self { settings, window, hooks, .. } = self;
        let (rule, progress) = (settings.hooks.get(hook)?, hooks.get_mut(hook)?);
        if progress.is_in_flight || progress.pause_ns > time.ns {
            return None;
        }
        if progress.batch.is_none() {
            progress.batch = Some(progress.form(rule, window, of, time)?.into());
        }
        progress.is_in_flight = true;
        progress.batch.clone()
    }

    /// When a hook may have something to send, if it may be sent something.
    pub(crate) fn next_ns(&self, hook: usize) -> Option<u64> {
        let progress = self.hooks.get(hook).filter(|progress| !progress.is_in_flight)?;
        let is_at_once = progress.batch.is_some()
            || progress.reset.is_some()
            || !progress.replays.is_empty()
            || progress.delivered < progress.single_to;
        if is_at_once {
            return Some(progress.pause_ns);
        }
        let rule = self.settings.hooks.get(hook)?;
        let mut wanted = progress.wanted(rule, &self.window);
        let first = wanted.next()?;
        let is_full = wanted.nth(rule.batch.saturating_sub(2)).is_some();
        let wait_ns = if is_full { 0 } else { rule.batch_ns };
        Some(first.read_ns.saturating_add(wait_ns).max(progress.pause_ns))
    }

    /// The outcome of a hook's batch.
    pub(crate) fn finished(
        &mut self,
        hook: usize,
        batch: &Arc<Batch>,
        outcome: &Outcome,
        time: Time,
    ) {
        let settings = Arc::clone(&self.settings);
        let (Some(rule), Some(progress)) = (settings.hooks.get(hook), self.hooks.get_mut(hook))
        else {
            return;
        };
        if !progress.batch.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, batch)) {
            return;
        }
        progress.is_in_flight = false;
        let (status, body) = match outcome {
            Outcome::Accepted => return self.accepted(hook, &rule.name, batch),
            Outcome::Failed(status, body) => (*status, body),
            Outcome::Refused(status, body) => {
                progress.pause_ns = time.ns.saturating_add(REFUSED_NS);
                if batch.notices.len() > 1 {
                    (progress.batch, progress.single_to) = (None, batch.n);
                    progress.pause_ns = 0;
                    return;
                }
                progress.refusals += 1;
                (*status, body)
            }
        };
        let is_hopeless = progress.refusals >= REFUSALS_MAX;
        let is_old = |notice: &&Arc<Notice>| {
            is_hopeless || time.unix_ms.saturating_sub(notice.at_ms()) >= rule.retry_for_ms
        };
        for notice in batch.notices.iter().take_while(is_old) {
            let (notice, hook) = (Arc::clone(notice), Arc::clone(&rule.name));
            (progress.batch, progress.refusals, progress.pause_ns) = (None, 0, 0);
            if !batch.is_replay {
                progress.delivered = notice.n;
                let letter = DeadLetter { notice, status, body: body.clone() };
                self.records.push_back(Record::Dead { hook, letter });
            }
        }
    }

    fn accepted(&mut self, hook: usize, name: &Arc<str>, batch: &Batch) {
        let Some(progress) = self.hooks.get_mut(hook) else { return };
        (progress.batch, progress.refusals, progress.pause_ns) = (None, 0, 0);
        if batch.is_replay {
            self.records.push_back(Record::Cleared { hook: Arc::clone(name), n: batch.n });
            return;
        }
        progress.delivered = progress.delivered.max(batch.n);
        if progress.reset == batch.reset && batch.reset.is_some() {
            progress.reset = None;
            // Else the next coordinator would reset it again.
            let (hook, n) = (Arc::clone(name), progress.delivered);
            progress.logged = Some(n);
            self.records.push_back(Record::Delivered { hook, n });
        }
    }

    /// Has dead letters delivered again, or deleted. Returns how many of these ids there are.
    pub(crate) fn take_dead(&mut self, hook: usize, ids: &[&str], replay: bool) -> usize {
        let Some(rule) = self.settings.hooks.get(hook) else { return 0 };
        let Some(progress) = self.hooks.get_mut(hook) else { return 0 };
        let is_meant = |it: &&(u64, DeadLetter)| ids.contains(&&*it.1.notice.to_string());
        let mut count = 0;
        for (_, letter) in progress.dead.iter().filter(is_meant) {
            count += 1;
            if replay {
                progress.replays.push_back(Arc::clone(&letter.notice));
            } else {
                let (hook, n) = (Arc::clone(&rule.name), letter.notice.n);
                self.records.push_back(Record::Cleared { hook, n });
            }
        }
        count
    }

    /// Notes what has been accepted, once a second.
    pub(crate) fn mark(&mut self, now_ns: u64) {
        if now_ns < self.marked_ns {
            return;
        }
        for (rule, hook) in self.settings.hooks.iter().zip(&mut self.hooks) {
            if hook.logged.is_some_and(|logged| logged < hook.delivered) {
                hook.logged = Some(hook.delivered);
                let (hook, n) = (Arc::clone(&rule.name), hook.delivered);
                self.records.push_back(Record::Delivered { hook, n });
                self.marked_ns = now_ns.saturating_add(SECOND);
            }
        }
    }

    /// When [`mark`](Self::mark) has something to do.
    pub(crate) fn mark_ns(&self) -> Option<u64> {
        let is_unmarked = |hook: &Progress| hook.logged.is_some_and(|it| it < hook.delivered);
        self.hooks.iter().any(is_unmarked).then_some(self.marked_ns)
    }

    /// What the log must have of each hook, beside notices, if records before a place are removed.
    pub(crate) fn live_records(&self, before: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for (rule, progress) in self.settings.hooks.iter().zip(&self.hooks) {
            let hook = || Arc::clone(&rule.name);
            if progress.logged.is_some() {
                records.push(Record::Delivered { hook: hook(), n: progress.delivered });
            }
            let dead = progress.dead.iter().filter(|(at, _)| *at < before);
            records.extend(dead.map(|it| Record::Dead { hook: hook(), letter: it.1.clone() }));
        }
        records
    }
}
