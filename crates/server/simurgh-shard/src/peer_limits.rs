//! Counts connections per address and per user over all shards, where those are limited.
//!
//! The counts are keyed by hashes of addresses and users with a key of this start: an entry is
//! small and a client cannot choose a name that collides with another. Connections are counted when
//! they open and when they close, under a striped lock; a count of 0 has no entry. The shard of a
//! connection keeps its keys, 24 bytes.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, RandomState};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::config::Config;

/// Many locks, so that shards seldom wait for each other.
const STRIPES: usize = 64;

/// Bodies of refusals.
pub const TOO_MANY_OF_ADDRESS: &str = "this address has too many connections\n";
pub(crate) const TOO_MANY_OF_USER: &str = "this user has too many connections\n";

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

    /// Changes the limits that are on; sockets beyond a lower one stay open.
    pub fn reload(&self, config: &Config) {
        let limits = [config.max_connections_per_address, config.max_connections_per_user];
        for (own, most) in [&self.addresses, &self.users].into_iter().zip(limits) {
            if let Some(own) = own {
                own.most.store(most.unwrap_or(u32::MAX), Relaxed);
            }
        }
    }
}

pub struct PeerLimit {
    most: AtomicU32,
    hasher: RandomState,
    stripes: Box<[Mutex<Counts>]>,
}

/// The keys are hashes already, which a client cannot choose.
type Counts = HashMap<NonZeroU64, u32, BuildHasherDefault<DefaultHasher>>;

impl PeerLimit {
    fn new(most: u32) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        let most = AtomicU32::new(most);
        Self { most, hasher: RandomState::new(), stripes }
    }

    /// Adds one and returns its key; `None` if the limit is reached.
    pub fn count(&self, who: impl Hash) -> Option<NonZeroU64> {
        let who = NonZeroU64::new(self.hasher.hash_one(who)).unwrap_or(NonZeroU64::MIN);
        self.with(who, |counts| {
            let count = counts.entry(who).or_default();
            let is_within = *count < self.most.load(Relaxed);
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
                // Frees the table's memory.
                *counts = Counts::default();
            }
        });
    }

    fn with<R>(&self, who: NonZeroU64, f: impl FnOnce(&mut Counts) -> R) -> R {
        let stripe = self.stripes.get(who.get() as usize % STRIPES);
        let mut counts = stripe.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
        match &mut counts {
            Some(counts) => f(counts),
            // Unreachable: there is a stripe for each remainder.
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
    fn connections_per_client_are_counted_and_zero_has_no_entry() {
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
    fn concurrent_shards_never_exceed_the_limit() {
        let peer_limits = PeerLimit::new(50);
        let entered: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1_000)
                            .filter(|_| {
                                let who = peer_limits.count("ann");
                                // Most of the connections are closed again.
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
