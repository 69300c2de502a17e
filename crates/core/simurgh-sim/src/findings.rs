//! Findings of a run: the first failure, and counts of what happened; and the faults that tests
//! plant, to see that a simulation finds them.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rule: &'static str,
    pub(crate) text: String,
    /// The number of steps before it.
    pub(crate) step: u32,
}

/// Counts of events, to see that they occur.
pub(crate) type Counts = BTreeMap<Cow<'static, str>, u64>;

/// The findings of a run so far. Checks add to them while they look at what they judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) failure: OnceCell<Failure>,
    pub(crate) step: u32,
    pub(crate) counts: RefCell<Counts>,
    /// A hash of everything that was sent.
    pub(crate) hash: u64,
    /// The log, if there is one.
    pub(crate) log: Option<RefCell<Vec<String>>>,
}

impl Findings {
    /// Notes a failure; only the first counts.
    #[cold]
    pub(crate) fn fail(&self, rule: &'static str, text: impl Into<String>) {
        self.failure.get_or_init(|| Failure { rule, text: text.into(), step: self.step });
    }

    pub(crate) fn count(&self, what: impl Into<Cow<'static, str>>, more: u64) {
        *self.counts.borrow_mut().entry(what.into()).or_default() += more;
    }

    /// Adds a line to the log, if there is one.
    #[inline]
    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            log.borrow_mut().push(text());
        }
    }
}

/// Runs a function whose panics, other than an application's, are failures (the error).
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let text = text.unwrap_or_else(|| "of another kind".to_owned());
        Failure { rule: "panic", text, step: 0 }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The transport loses what is sent.
    Lose,
    /// The transport sends it twice.
    Double,
    /// The transport sends it after what follows.
    Swap,
    LoseMail,
    DoubleMail,
    /// A permit is lost in transit.
    LosePermit,
    /// Bytes that were counted are not given back.
    Forget,
    /// A mail is not charged to its shard.
    Free,
    /// A call of presence is not charged to its topic.
    Uncharged,
    /// The clock stands still for a slice of the fan-out.
    Freeze,
    /// A member is not counted.
    Miscount,
    /// A begin or end of a membership is not reported.
    Overlook,
    /// A closed socket still counts towards the limit of connections.
    Seat,
    /// The application does more than it records.
    Lie,
    /// A reply has another ref.
    Misref,
    /// A socket is closed with another code.
    Recode,
    /// A payload becomes another.
    Garble,
    /// A message is handed in twice.
    Repeat,
    /// A listener misses a broadcast.
    Deafen,
    /// The transport hands in a message of a socket that waits.
    Hasten,
    /// An envelope of another node is lost without a notice.
    LoseEnvelope,
    /// An envelope of another node arrives after the next.
    SwapEnvelopes,
    /// A message that an engine has kept does not reach its home shard.
    LoseKept,
    /// A home shard is not notified of a gap.
    HideGap,
    /// A broadcast that an engine has not stored is reported as stored.
    Promise,
    /// Linked work is not notified that its channel has ended.
    Unlink,
    /// A server that starts again has lost its histories.
    Amnesia,
    /// A server accepts any proof of a join.
    Believe,
    /// An event of presence does not reach a shard.
    Absent,
    /// A topic's home does not get a call of presence.
    Untold,
    /// Buckets of the core hold one token more.
    Overfill,
    /// A limit drops messages without an answer.
    Silence,
    /// The core has no limits.
    Unlimit,
    /// The core does not get the lifetime of a socket.
    Outstay,
}

/// The planted fault of a run, if any, and at how many opportunities from now it happens.
#[derive(Debug, Default)]
pub(crate) struct Faults(Option<(Fault, AtomicU32)>);

impl Faults {
    /// Plants a fault, which happens once, after this many opportunities.
    pub(crate) fn new(planted: Option<(Fault, u32)>) -> Self {
        Self(planted.map(|(what, times)| (what, AtomicU32::new(times + 1))))
    }

    #[inline]
    pub(crate) fn happens(&self, what: Fault) -> bool {
        let Some((_, left)) = self.0.as_ref().filter(|it| it.0 == what) else { return false };
        left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)
    }
}
