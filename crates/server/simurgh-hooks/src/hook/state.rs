//! Waiting questions of a hook, and those in flight with an equal one waiting.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::SystemTime;

use tokio::sync::oneshot;

use crate::breaker::Breaker;
use crate::cache::Key;
use crate::config::HookConfig;
use crate::limiter::Limiter;
use crate::question::Question;
use crate::queue::{Queue, Ticket};
use crate::verdict::{FailureKind, Verdict};

/// So many questions fail at once while shards may wait for the lock.
const LOST_MAX: usize = 256;
/// Most memory of waiting questions.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// A question on its way.
pub(super) struct Pending {
    pub(super) question: Question,
    pub(super) asked: SystemTime,
    /// It leaves the queue until then, sent or not.
    pub(super) sent_by_ms: u64,
    /// It has its answer until then.
    pub(super) deadline_ms: u64,
    pub(super) equal: Option<Equal>,
    pub(super) reply: oneshot::Sender<Verdict>,
}

/// Identifies equal questions.
pub(super) struct Equal {
    pub(super) key: Key,
    pub(super) user: Option<Box<str>>,
    pub(super) client: IpAddr,
    /// It is the first of its kind: later ones wait for its answer.
    pub(super) leads: bool,
}

/// A question that failed, and why.
pub(super) type Lost = (Pending, FailureKind);

/// A question to be sent now.
pub(super) struct Launch {
    pub(super) pending: Pending,
    pub(super) number: u64,
    pub(super) probe: bool,
}

pub(super) struct State {
    pub(super) queue: Queue<Pending>,
    pub(super) limiter: Limiter,
    pub(super) breaker: Breaker,
    /// Questions that wait for the answer of an equal one.
    followers: HashMap<Key, VecDeque<Ticket>>,
    /// The application asked for a pause until then.
    pub(super) paused_until_ms: u64,
    /// No question is accepted any more.
    pub(super) closed: bool,
}

impl State {
    pub(super) fn new(config: &HookConfig) -> Self {
        Self {
            queue: Queue::new(config.queue, BYTES_MAX),
            limiter: Limiter::new(config.concurrency),
            breaker: Breaker::new(),
            followers: HashMap::new(),
            paused_until_ms: 0,
            closed: false,
        }
    }

    /// Lets a question wait, or returns it with the reason why it cannot.
    pub(super) fn admit(&mut self, mut pending: Pending, now_ms: u64) -> Result<Ticket, Box<Lost>> {
        if self.closed {
            return Err(Box::new((pending, FailureKind::Failed)));
        }
        if !self.breaker.admits(now_ms) {
            return Err(Box::new((pending, FailureKind::Open)));
        }
        let equal = pending.equal.as_mut().map(|equal| {
            equal.leads = !self.followers.contains_key(&equal.key);
            (equal.key, equal.leads)
        });
        let (bytes, sent_by_ms) = (pending.bytes(), pending.sent_by_ms);
        let ticket = self
            .queue
            .push(pending, bytes, sent_by_ms)
            .map_err(|pending| Box::new((pending, FailureKind::Overloaded)))?;
        match equal {
            Some((key, false)) => self.followers.entry(key).or_default().push_back(ticket),
            Some((key, true)) => {
                self.followers.insert(key, VecDeque::new());
                self.queue.make_ready(ticket);
            }
            None => self.queue.make_ready(ticket),
        }
        Ok(ticket)
    }

    /// Questions that leave now: those to send, and some of those that fail.
    pub(super) fn leaving(&mut self, now_ms: u64) -> (Vec<Launch>, Vec<Lost>) {
        let (mut launches, mut lost) = (Vec::new(), Vec::new());
        while lost.len() < LOST_MAX
            && let Some(late) = self.queue.pop_late(now_ms)
        {
            self.leave(&late);
            lost.push((late, FailureKind::Timeout));
        }
        while self.paused_until_ms <= now_ms
            && self.breaker.admits(now_ms)
            && self.limiter.has_room()
            && let Some(pending) = self.queue.pop()
        {
            let (number, probe) = (self.limiter.send(), self.breaker.send());
            launches.push(Launch { pending, number, probe });
        }
        while lost.len() < LOST_MAX
            && !self.breaker.admits(now_ms)
            && let Some(pending) = self.queue.pop_any()
        {
            self.leave(&pending);
            lost.push((pending, FailureKind::Open));
        }
        (launches, lost)
    }

    /// Removes a waiting question whose client is gone. Returns whether it waited.
    pub(super) fn forget(&mut self, ticket: Ticket) -> bool {
        let removed = self.queue.remove(ticket);
        if let Some(pending) = &removed {
            self.leave(pending);
        }
        removed.is_some()
    }

    /// Ends the wait for a question that led, answered or not.
    pub(super) fn end_lead(&mut self, pending: &Pending) -> VecDeque<Ticket> {
        let leading = pending.equal.as_ref().filter(|equal| equal.leads);
        leading.and_then(|equal| self.followers.remove(&equal.key)).unwrap_or_default()
    }

    /// When the next question may leave, if nothing else happens.
    pub(super) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let deadline_ms = self.queue.first_deadline_ms()?;
        if !self.breaker.admits(now_ms) {
            return Some(now_ms);
        }
        let resumes = self.queue.has_ready() && self.limiter.has_room();
        Some(if resumes { self.paused_until_ms.min(deadline_ms) } else { deadline_ms })
    }

    /// A question left the queue unsent: the first that followed it takes its place.
    fn leave(&mut self, pending: &Pending) {
        let Some(equal) = pending.equal.as_ref().filter(|equal| equal.leads) else { return };
        while let Some(ticket) = self.followers.get_mut(&equal.key).and_then(VecDeque::pop_front) {
            let next = self.queue.get_mut(ticket).and_then(|next| next.equal.as_mut());
            if let Some(next) = next {
                next.leads = true;
                self.queue.make_ready(ticket);
                return;
            }
        }
        self.followers.remove(&equal.key);
    }
}

impl Pending {
    /// An estimate of its memory.
    fn bytes(&self) -> usize {
        let headers = self.question.forwarded.iter();
        let forwarded: usize = headers.map(|(name, value)| name.as_str().len() + value.len()).sum();
        512 + self.question.data.len() + forwarded
    }
}
