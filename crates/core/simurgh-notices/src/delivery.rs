//! Notices of a partition on their way to the hooks: in order, one batch for each hook in flight.

use simurgh_data::prelude::*;
use simurgh_history::Epoch;

use crate::batch::{Batch, Outcome, Reset};
use crate::key::{SECOND, Time};
use crate::queue::Queue;
use crate::record::{DeadLetter, Notice, Record};
use crate::settings::Settings;

/// A notice that is refused so often by itself is a dead letter.
const REFUSALS_MAX: u32 = 10;
/// The time between two attempts of a notice that is refused.
const REFUSED_NS: u64 = SECOND;

#[derive(Debug)]
pub(crate) struct Delivery {
    settings: Arc<Settings>,
    /// One for each hook, in the order of the settings.
    pub(crate) queues: Vec<Queue>,
    /// Records to be appended.
    pub(crate) records: VecDeque<Record>,
    marked_ns: u64,
    /// The hook for which the log was last read again, and whether it still is.
    reader: (usize, bool),
}

impl Delivery {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        let queues = settings.hooks.iter().map(|rule| Queue::new(rule, &settings)).collect();
        Self { settings, queues, records: VecDeque::new(), marked_ns: 0, reader: (0, false) }
    }

    /// Notices in memory, counted for each hook.
    pub(crate) fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    pub(crate) fn waiting_of(&self, hook: usize) -> (usize, Option<u64>) {
        let waiting = self.queues.get(hook).map(|queue| &queue.waiting);
        let first = waiting.and_then(|waiting| waiting.front());
        (waiting.map_or(0, VecDeque::len), first.map(|first| first.notice.at_ms()))
    }

    /// The log has a notice.
    pub(crate) fn read(&mut self, notice: &Arc<Notice>, at: u64, now_ns: u64) {
        for queue in &mut self.queues {
            queue.read(notice, at, now_ns);
        }
    }

    /// The log has what a hook has accepted.
    pub(crate) fn read_record(&mut self, record: Record, at: u64) {
        let (Record::Delivered { hook, .. }
        | Record::Dead { hook, .. }
        | Record::Cleared { hook, .. }) = &record
        else {
            return;
        };
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.rule.name == *hook) {
            queue.read_record(record, at);
        }
    }

    /// This node delivers from now on. `n` is the highest number.
    pub(crate) fn activate(&mut self, n: u64) {
        for queue in &mut self.queues {
            if queue.logged.is_none() {
                (queue.reset, queue.delivered) = (Some(Reset::New), n);
            }
            // The last mark may not be in the log.
            queue.logged = queue.logged.map(|_| 0);
        }
        self.trim();
    }

    /// The log was lost.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(Arc::clone(&self.settings));
    }

    /// Forgets what hooks have accepted, and what does not fit.
    pub(crate) fn trim(&mut self) {
        self.queues.iter_mut().for_each(Queue::trim);
    }

    /// The log was read again, up to a place: these notices count. `is_all`: it had no more.
    pub(crate) fn read_again(&mut self, notices: &[(u64, Arc<Notice>)], to: u64, is_all: bool) {
        let (hook, is_reading) = &mut self.reader;
        // Else the log was lost meanwhile.
        if core::mem::take(is_reading)
            && let Some(queue) = self.queues.get_mut(*hook)
        {
            queue.read_again(notices, to, is_all);
        }
    }

    /// Where the log has the first notice that some hook has not accepted.
    pub(crate) fn first_at(&self) -> Option<u64> {
        self.queues.iter().filter_map(Queue::first_at).min()
    }

    /// The hooks take turns.
    pub(crate) fn next_read_again(&mut self) -> Option<u64> {
        let ((last, false), count) = (self.reader, self.queues.len()) else { return None };
        let mut hooks = (1..=count).map(|further| (last + further) % count);
        let due = |hook: usize| Some((hook, self.queues.get(hook)?.next_read_again()?));
        let (hook, behind) = hooks.find_map(due)?;
        self.reader = (hook, true);
        Some(behind)
    }

    /// The next batch of a hook that may be sent something. Its outcome is to be reported.
    pub(crate) fn next_batch(
        &mut self,
        hook: usize,
        of: (Epoch, u8),
        time: Time,
    ) -> Option<Arc<Batch>> {
        self.queues.get_mut(hook)?.next_batch(of, time)
    }

    /// When a hook may have something to send, if it may be sent something.
    pub(crate) fn next_ns(&self, hook: usize) -> Option<u64> {
        self.queues.get(hook)?.next_ns()
    }

    /// The outcome of a hook's batch.
    pub(crate) fn finished(
        &mut self,
        hook: usize,
        batch: &Arc<Batch>,
        outcome: &Outcome,
        time: Time,
    ) {
        let Some(queue) = self.queues.get_mut(hook) else { return };
        let is_it = |known: &mut Arc<Batch>| Arc::ptr_eq(known, batch);
        let was_sent = queue.in_flight.take_if(is_it).is_some();
        if !was_sent || !queue.batch.as_mut().is_some_and(is_it) {
            return;
        }
        let (status, body) = match outcome {
            Outcome::Accepted => return self.accepted(hook, batch),
            Outcome::Failed(status, body) => (*status, body),
            // It is a dead letter still.
            Outcome::Refused(..) if batch.is_replay => return queue.batch = None,
            Outcome::Refused(status, body) => {
                queue.pause_ns = time.ns.saturating_add(REFUSED_NS);
                if batch.notices.len() > 1 {
                    (queue.batch, queue.single_to) = (None, batch.n);
                    queue.pause_ns = 0;
                    return;
                }
                queue.refusals += 1;
                (*status, body)
            }
        };
        let is_hopeless = queue.refusals >= REFUSALS_MAX;
        let retry_for_ms = queue.rule.retry_for_ms;
        let is_old = |notice: &&Arc<Notice>| {
            is_hopeless || time.unix_ms.saturating_sub(notice.at_ms()) >= retry_for_ms
        };
        for notice in batch.notices.iter().take_while(is_old) {
            let (notice, hook) = (Arc::clone(notice), Arc::clone(&queue.rule.name));
            (queue.batch, queue.refusals, queue.pause_ns) = (None, 0, 0);
            if !batch.is_replay {
                queue.delivered = notice.n;
                let letter = DeadLetter { notice, status, body: body.clone() };
                self.records.push_back(Record::Dead { hook, letter });
            }
        }
    }

    fn accepted(&mut self, hook: usize, batch: &Batch) {
        let Some(queue) = self.queues.get_mut(hook) else { return };
        let hook = Arc::clone(&queue.rule.name);
        (queue.batch, queue.refusals, queue.pause_ns) = (None, 0, 0);
        if batch.is_replay {
            self.records.push_back(Record::Cleared { hook, n: batch.n });
            return;
        }
        queue.delivered = queue.delivered.max(batch.n);
        if queue.reset == batch.reset && batch.reset.is_some() {
            queue.reset = None;
            // Else the next coordinator would reset it again.
            queue.logged = Some(queue.delivered);
            self.records.push_back(Record::Delivered { hook, n: queue.delivered });
        }
    }

    /// Has dead letters delivered again, or deleted. Returns how many of these ids there are.
    pub(crate) fn take_dead(&mut self, hook: usize, ids: &[&str], replay: bool) -> usize {
        let Some(queue) = self.queues.get_mut(hook) else { return 0 };
        let is_meant = |dead: &&(u64, DeadLetter)| ids.contains(&&*dead.1.notice.to_string());
        let mut count = 0;
        for (_, letter) in queue.dead.iter().filter(is_meant) {
            count += 1;
            if replay {
                queue.replays.push_back(Arc::clone(&letter.notice));
            } else {
                let (hook, n) = (Arc::clone(&queue.rule.name), letter.notice.n);
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
        for queue in self.queues.iter_mut().filter(|queue| queue.is_unmarked()) {
            queue.logged = Some(queue.delivered);
            let (hook, n) = (Arc::clone(&queue.rule.name), queue.delivered);
            self.records.push_back(Record::Delivered { hook, n });
            self.marked_ns = now_ns.saturating_add(SECOND);
        }
    }

    /// When [`mark`](Self::mark) has something to do.
    pub(crate) fn mark_ns(&self) -> Option<u64> {
        self.queues.iter().any(Queue::is_unmarked).then_some(self.marked_ns)
    }

    /// What the log must have of each hook, beside notices, if records before a place are removed.
    pub(crate) fn live_records(&self, before: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for queue in &self.queues {
            let hook = || Arc::clone(&queue.rule.name);
            if queue.logged.is_some() {
                records.push(Record::Delivered { hook: hook(), n: queue.delivered });
            }
            let dead = queue.dead.iter().filter(|(at, _)| *at < before);
            let letter = |(_, letter): &(u64, DeadLetter)| letter.clone();
            records.extend(dead.map(letter).map(|letter| Record::Dead { hook: hook(), letter }));
        }
        records
    }
}
