//! Confirmations that broadcasts are kept. Broadcasts that are sent together share one deadline,
//! and their waiter is woken once.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use simurgh_core::{Broadcast, Ids, KeptAt, Publisher};
use simurgh_shard::server::Server;
use tokio::time::{Instant, timeout_at};

use super::NotKept;
use crate::remote_waker::RemoteWaker;

/// Longer times are cut to this, so that adding one to an instant cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

pub(crate) type Outcome = Result<KeptAt, NotKept>;

/// Broadcasts that were sent to be kept. Dropping this does not stop them.
pub(crate) struct Confirmations {
    pending: Arc<Pending>,
    sent: usize,
}

impl Confirmations {
    /// For up to `count` broadcasts; their common time starts now.
    pub(crate) fn new(server: &Server, count: usize) -> Self {
        let longest = server.limits.history.confirm_timeout;
        Self { pending: Arc::new(Pending::new(count, longest, &server.unconfirmed)), sent: 0 }
    }

    /// Sends a broadcast to the shard of its topic, which must have a history, ahead of all that is
    /// sent later. After an error (invalid id, or refused) nothing more may be sent.
    pub(crate) fn keep(
        &mut self,
        server: &Server,
        broadcast: Broadcast,
        id: Option<Box<str>>,
    ) -> Result<(), NotKept> {
        if id.as_ref().is_some_and(|id| !Ids::is_id(id)) {
            return Err(NotKept::BadId);
        }
        let entry = Entry::new(&self.pending, self.sent);
        let answer = Box::new(move |kept| entry.resolve(kept));
        server.keep(broadcast, id, Some(answer)).map_err(NotKept::Refused)?;
        self.sent += 1;
        Ok(())
    }

    /// Waits until all broadcasts are confirmed, one has failed, or the deadline is over. Returns
    /// the outcomes in order, up to the first error other than [`NotKept::LocalOnly`].
    ///
    /// Only on event loops that were created before the shards: shards must not wake others.
    pub(crate) async fn outcomes(self) -> Vec<Outcome> {
        self.pending.entries().outcomes.truncate(self.sent);
        let settled = poll_fn(|context| self.pending.poll_settled(context));
        let is_late = timeout_at(self.pending.deadline, settled).await.is_err();
        self.pending.close(is_late)
    }
}

impl Drop for Confirmations {
    fn drop(&mut self) {
        self.pending.abandon();
    }
}

struct Pending {
    entries: Mutex<Entries>,
    longest: Duration,
    deadline: Instant,
    /// Counts the broadcasts that were not confirmed in time.
    unconfirmed: Arc<AtomicU64>,
}

struct Entries {
    /// In the order of the broadcasts; `None` for a pending one. Empty when the waiter has gone.
    outcomes: Vec<Option<Outcome>>,
    /// All before this index are confirmed, or received on this node alone.
    settled: usize,
    waker: Option<RemoteWaker>,
    /// The missing ones were counted at the deadline.
    is_counted: bool,
}

impl Entries {
    fn is_settled(&mut self) -> bool {
        while let Some(Some(Ok(_) | Err(NotKept::LocalOnly))) = self.outcomes.get(self.settled) {
            self.settled += 1;
        }
        self.outcomes.get(self.settled).is_none_or(Option::is_some)
    }
}

impl Pending {
    fn new(count: usize, longest: Duration, unconfirmed: &Arc<AtomicU64>) -> Self {
        let outcomes = (0..count).map(|_| None).collect();
        let entries = Entries { outcomes, settled: 0, waker: None, is_counted: false };
        Self {
            entries: Mutex::new(entries),
            longest,
            deadline: Instant::now() + longest.min(LONGEST),
            unconfirmed: Arc::clone(unconfirmed),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_settled(&self, context: &Context<'_>) -> Poll<()> {
        let mut entries = self.entries();
        if entries.is_settled() {
            return Poll::Ready(());
        }
        if !entries.waker.as_ref().is_some_and(|it| it.is_for(context)) {
            entries.waker = Some(RemoteWaker::new(context));
        }
        Poll::Pending
    }
}

impl Pending {
    fn resolve(&self, at: usize, outcome: Outcome) {
        let mut entries = self.entries();
        let is_counted = entries.is_counted;
        let is_unconfirmed = match entries.outcomes.get_mut(at) {
            Some(entry) => matches!(entry.insert(outcome), Err(NotKept::Unconfirmed(_))),
            None if is_counted => false,
            None => {
                matches!(outcome, Err(NotKept::Unconfirmed(_))) || Instant::now() >= self.deadline
            }
        };
        let waker = if entries.is_settled() { entries.waker.take() } else { None };
        drop(entries);
        if is_unconfirmed {
            self.unconfirmed.fetch_add(1, Relaxed);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the outcomes in order, up to the first error; `is_late` means the deadline is over.
    fn close(&self, is_late: bool) -> Vec<Outcome> {
        let mut entries = self.entries();
        let outcomes = std::mem::take(&mut entries.outcomes);
        entries.is_counted = is_late;
        drop(entries);
        if is_late {
            let missing = outcomes.iter().filter(|it| it.is_none()).count();
            self.unconfirmed.fetch_add(missing as u64, Relaxed);
        }
        let unconfirmed = Err(NotKept::Unconfirmed(self.longest));
        let mut is_over = false;
        let is_wanted = |outcome: &Outcome| {
            let was_over = is_over;
            is_over |= !matches!(outcome, Ok(_) | Err(NotKept::LocalOnly));
            !was_over
        };
        outcomes.into_iter().map(|it| it.unwrap_or(unconfirmed)).take_while(is_wanted).collect()
    }

    fn abandon(&self) {
        let mut entries = self.entries();
        let left = (std::mem::take(&mut entries.outcomes), entries.waker.take());
        drop(entries);
        drop(left);
    }
}

/// The slot of a broadcast's outcome; if it is dropped without one, the shard has ended.
struct Entry {
    pending: Arc<Pending>,
    at: usize,
    is_resolved: bool,
}

impl Entry {
    fn new(pending: &Arc<Pending>, at: usize) -> Self {
        Self { pending: Arc::clone(pending), at, is_resolved: false }
    }

    fn resolve(mut self, kept: Result<KeptAt, simurgh_core::NotKept>) {
        use simurgh_core::NotKept::{Full, LocalOnly, Refused, Unconfirmed};
        self.is_resolved = true;
        let outcome = kept.map_err(|why| match why {
            Refused(_) | Full => NotKept::NotStored,
            LocalOnly => NotKept::LocalOnly,
            Unconfirmed => NotKept::Unconfirmed(self.pending.longest),
        });
        self.pending.resolve(self.at, outcome);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_resolved {
            self.pending.resolve(self.at, Err(NotKept::Ended));
        }
    }
}

#[cfg(test)]
mod tests;
