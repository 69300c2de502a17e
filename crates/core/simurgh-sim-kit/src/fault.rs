//! Faults that tests plant, to see that a simulation notices them.

use std::sync::Mutex;

use crate::setup::locked;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The transport loses what is said.
    Lose,
    /// The transport says it twice.
    Double,
    /// The transport holds it back behind what comes next.
    Swap,
    /// A mailbox loses a mail.
    LoseMail,
    /// A mailbox has a mail twice.
    DoubleMail,
    /// A permit is lost on its way.
    LosePermit,
    /// Bytes that were counted are not given back.
    Forget,
    /// A member is not counted.
    Miscount,
    /// A closed socket goes on counting towards the limit of connections.
    Seat,
    /// The application does more than it says.
    Lie,
    /// A payload becomes another.
    Garble,
    /// A message is handed in twice.
    Repeat,
    /// A listener misses a broadcast.
    Deafen,
    /// The transport hands in a message of a socket that waits.
    Hasten,
    /// An envelope of another node is lost, and nobody is told.
    LoseEnvelope,
    /// An envelope of another node comes behind the next.
    SwapEnvelopes,
    /// A message that an engine has kept does not come to its home shard.
    LoseKept,
    /// A home shard is not told that something is missing.
    HideGap,
    /// A broadcast that an engine has not kept is said to be kept.
    Promise,
    /// Linked work is not told that its channel has ended.
    Unlink,
    /// A server that starts again has forgotten its histories.
    Amnesia,
    /// A server takes any proof for a key.
    Believe,
    /// An event of presence does not come to a shard.
    Absent,
    /// A topic's home does not hear of a call of presence.
    Untold,
    /// Buckets of the core hold one token more.
    Overfill,
    /// A limit drops what it has to answer.
    Silence,
    /// The core has no limits.
    Unlimit,
    /// The core does not hear how long a socket may stay.
    Outstay,
}

/// The planted fault of a run, if any.
#[derive(Debug, Default)]
pub struct Faults(Option<Mutex<Option<(Fault, u32)>>>);

impl Faults {
    /// Plants a fault, which happens once, after it could have happened so many times.
    pub fn new(planted: Option<(Fault, u32)>) -> Self {
        Self(planted.map(|it| Mutex::new(Some(it))))
    }

    /// Whether this fault happens now.
    #[inline]
    pub fn happens(&self, what: Fault) -> bool {
        let Some(planted) = &self.0 else { return false };
        let mut planted = locked(planted);
        let Some((_, left)) = planted.as_mut().filter(|it| it.0 == what) else { return false };
        match left.checked_sub(1) {
            Some(less) => *left = less,
            None => *planted = None,
        }
        planted.is_none()
    }
}
