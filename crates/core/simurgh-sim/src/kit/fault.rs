//! Faults that tests plant, to see that a simulation finds them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
