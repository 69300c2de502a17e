//! How many connections each address has, and each user, on all shards, where that is limited.
//!
//! Counted are numbers made of addresses and users with a key of this start, so that an entry is
//! small, and nobody can choose a name that another is taken for. A connection is counted once as
//! it comes and once as it goes, under a lock that few others want at that moment; a count of 0
//! has no entry. The shard of a connection keeps what it is counted as, sixteen bytes.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, RandomState};
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};

use crate::config::Config;

/// Locks, so that shards seldom wait for each other.
const STRIPES: usize = 64;

/// Which limit a connection has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    OfAddress,
    OfUser,
}

impl TooMany {
    /// The body of the refusal.
    pub fn text(self) -> &'static str {
        match self {
            Self::OfAddress => "too many connections from this address\n",
            Self::OfUser => "too many connections of this user\n",
        }
    }
}

/// The counts of all shards.
pub struct PeerLimits {
    pub addresses: Option<PeerLimit>,
    pub users: Option<PeerLimit>,
}

impl PeerLimits {
    pub fn new(config: &Config) -> Self {
        Self {
            addresses: config.max_connections_per_address.map(PeerLimit::new),
            users: config.max_connections_per_user.map(PeerLimit::new),
        }
    }
}

pub struct PeerLimit {
    most: u32,
    hasher: RandomState,
    stripes: Box<[Mutex<Counts>]>,
}

/// The numbers are hashes already, and nobody's to choose.
type Counts = HashMap<NonZeroU64, u32, BuildHasherDefault<DefaultHasher>>;

impl PeerLimit {
    fn new(most: u32) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        Self { most, hasher: RandomState::new(), stripes }
    }

    /// Counts one more, and returns its key; `None` if the limit is reached.
    pub fn count(&self, who: impl Hash) -> Option<NonZeroU64> {
        let who = NonZeroU64::new(self.hasher.hash_one(who)).unwrap_or(NonZeroU64::MIN);
        self.with(who, |counts| {
            let count = counts.entry(who).or_default();
            let is_within = *count < self.most;
            *count += u32::from(is_within);
            is_within.then_some(who)
        })
    }

    pub fn uncount(&self, who: NonZeroU64) {
        self.with(who, |counts| {
            let Some(count) = counts.get_mut(&who) else { return };
            *count = count.saturating_sub(1);
            if *count > 0 {
                return;
            }
            counts.remove(&who);
            if counts.is_empty() {
                // Its memory is given back.
                *counts = Counts::default();
            }
        });
    }

    fn with<R>(&self, who: NonZeroU64, f: impl FnOnce(&mut Counts) -> R) -> R {
        let stripe = self.stripes.get(who.get() as usize % STRIPES);
        let mut counts = stripe.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
        match &mut counts {
            Some(counts) => f(counts),
            // There is one for each remainder.
            None => f(&mut Counts::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(peer_limits: &PeerLimit) -> usize {
        peer_limits.stripes.iter().map(|it| it.lock().unwrap().len()).sum()
    }

    #[test]
    fn each_has_so_many_and_none_is_no_entry() {
        let peer_limits = PeerLimit::new(2);
        let [one, two] = ["ann", "ann"].map(|who| peer_limits.count(who).expect("two"));
        assert_eq!((one, peer_limits.count("ann"), entries(&peer_limits)), (two, None, 1));
        let other = peer_limits.count("bob").expect("another");
        peer_limits.uncount(one);
        assert_eq!((peer_limits.count("ann"), peer_limits.count("ann")), (Some(one), None));
        [one, one, other].into_iter().for_each(|who| peer_limits.uncount(who));
        assert_eq!(entries(&peer_limits), 0);
        peer_limits.uncount(one);
        assert_eq!(entries(&peer_limits), 0);
    }

    #[test]
    fn shards_that_count_at_once_never_count_too_many() {
        let peer_limits = PeerLimit::new(50);
        let entered: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1_000)
                            .filter(|_| {
                                let who = peer_limits.count("ann");
                                // Most go again.
                                who.is_some_and(|who| {
                                    peer_limits.uncount(who);
                                    peer_limits.count("ann").is_some()
                                })
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(entered, 50);
        assert_eq!(peer_limits.count("ann"), None);
    }
}
