//! How many connections each address has, and each user, on all shards, where that is limited.
//!
//! Counted are numbers made of addresses and users with a key of this start, so that an entry is
//! small, and nobody can choose a name that another is taken for. A connection is counted once as
//! it comes and once as it goes, under a lock that few others want at that moment; a count of none
//! is no entry. What a connection is counted as is known to its shard, sixteen bytes each.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};

use simurgh_reactor::Key;

use crate::config::Config;
use crate::shard::Shard;

/// Locks, so that shards seldom wait for each other.
const STRIPES: usize = 64;
/// Connections in a page of what they are counted as.
const PAGE: usize = 1024;

/// Which of a connection's counts is at its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooMany {
    OfAddress,
    OfUser,
}

impl TooMany {
    /// What a client is told.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::OfAddress => "too many connections from this address\n",
            Self::OfUser => "too many connections of this user\n",
        }
    }
}

/// The counts of all shards.
pub(crate) struct Crowds {
    addresses: Option<Crowd>,
    users: Option<Crowd>,
}

impl Crowds {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            addresses: config.max_connections_per_address.map(Crowd::new),
            users: config.max_connections_per_user.map(Crowd::new),
        }
    }
}

struct Crowd {
    most: u32,
    hasher: RandomState,
    stripes: Box<[Mutex<Counts>]>,
}

/// The numbers are hashes already, and nobody's to choose.
type Counts = HashMap<NonZeroU64, u32, BuildHasherDefault<DefaultHasher>>;

impl Crowd {
    fn new(most: u32) -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        Self { most, hasher: RandomState::new(), stripes }
    }

    /// Counts one more; who it is counted as, if that is not too many.
    fn enter(&self, who: impl Hash) -> Option<NonZeroU64> {
        let who = NonZeroU64::new(self.hasher.hash_one(who)).unwrap_or(NonZeroU64::MIN);
        self.with(who, |counts| {
            let count = counts.entry(who).or_default();
            let is_within = *count < self.most;
            *count += u32::from(is_within);
            is_within.then_some(who)
        })
    }

    fn leave(&self, who: NonZeroU64) {
        self.with(who, |counts| {
            let Some(count) = counts.get_mut(&who) else { return };
            *count = count.saturating_sub(1);
            if *count > 0 {
                return;
            }
            counts.remove(&who);
            if counts.is_empty() {
                // A crowd's table is not kept.
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

/// As whom a connection is counted.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    address: Option<NonZeroU64>,
    user: Option<NonZeroU64>,
}

/// As whom the connections of a shard are counted; a page is made when one of it is.
#[derive(Default)]
pub(crate) struct Places {
    pages: Vec<Option<Box<[Place]>>>,
    taken: usize,
}

impl Places {
    /// Changes what a connection is counted as.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Place)) {
        let (page, at) = (key.slot as usize / PAGE, key.slot as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages.get_mut(page).map(|page| {
            page.get_or_insert_with(|| vec![Place::default(); PAGE].into_boxed_slice())
        });
        let Some(place) = page.and_then(|page| page.get_mut(at)) else { return };
        let was_empty = place.is_empty();
        change(place);
        self.taken += usize::from(was_empty && !place.is_empty());
    }

    /// What a connection was counted as, which has gone.
    fn take(&mut self, key: Key) -> Place {
        let (page, at) = (key.slot as usize / PAGE, key.slot as usize % PAGE);
        let page = self.pages.get_mut(page).and_then(Option::as_deref_mut);
        let place = page.and_then(|page| page.get_mut(at)).map(std::mem::take);
        let place = place.unwrap_or_default();
        self.taken = self.taken.saturating_sub(usize::from(!place.is_empty()));
        if self.taken == 0 {
            self.pages = Vec::new();
        }
        place
    }
}

impl Place {
    fn is_empty(&self) -> bool {
        self.address.is_none() && self.user.is_none()
    }
}

impl Shard {
    /// Counts a connection that wants a socket as one of its address; whether there may be one
    /// more. What was counted goes with the connection, whatever becomes of it.
    pub(crate) fn enter_address(
        &mut self,
        key: Key,
        address: impl FnOnce() -> IpAddr,
    ) -> Result<(), TooMany> {
        let Some(crowd) = &self.hub.crowds.addresses else { return Ok(()) };
        let Some(who) = crowd.enter(household(address())) else {
            self.metrics.limited_address_connections.add(1);
            return Err(TooMany::OfAddress);
        };
        self.place(key, |place| place.address = Some(who));
        Ok(())
    }

    /// The same as one of the user whose id the application's connect gave it.
    pub(crate) fn enter_user(&mut self, key: Key, id: Option<&str>) -> Result<(), TooMany> {
        let Some((crowd, id)) = self.hub.crowds.users.as_ref().zip(id) else { return Ok(()) };
        let Some(who) = crowd.enter(id) else {
            self.metrics.limited_user_connections.add(1);
            return Err(TooMany::OfUser);
        };
        self.place(key, |place| place.user = Some(who));
        Ok(())
    }

    fn place(&mut self, key: Key, change: impl FnOnce(&mut Place)) {
        self.places.get_or_insert_default().change(key, change);
    }

    /// A connection has gone.
    pub(crate) fn leave_crowds(&mut self, key: Key) {
        let Some(places) = &mut self.places else { return };
        let Place { address, user } = places.take(key);
        let crowds = &self.hub.crowds;
        for (crowd, who) in [(&crowds.addresses, address), (&crowds.users, user)] {
            if let Some((crowd, who)) = crowd.as_ref().zip(who) {
                crowd.leave(who);
            }
        }
    }
}

/// What counts as one address: of IPv6 the first 64 bits, all of which one household has.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(crowd: &Crowd) -> usize {
        crowd.stripes.iter().map(|it| it.lock().unwrap().len()).sum()
    }

    #[test]
    fn each_has_so_many_and_none_is_no_entry() {
        let crowd = Crowd::new(2);
        let [one, two] = ["ann", "ann"].map(|who| crowd.enter(who).expect("two"));
        assert_eq!((one, crowd.enter("ann"), entries(&crowd)), (two, None, 1));
        let other = crowd.enter("bob").expect("another");
        crowd.leave(one);
        assert_eq!((crowd.enter("ann"), crowd.enter("ann")), (Some(one), None));
        [one, one, other].into_iter().for_each(|who| crowd.leave(who));
        assert_eq!(entries(&crowd), 0);
        crowd.leave(one);
        assert_eq!(entries(&crowd), 0);
    }

    #[test]
    fn shards_that_count_at_once_never_count_too_many() {
        let crowd = Crowd::new(50);
        let entered: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1_000)
                            .filter(|_| {
                                let who = crowd.enter("ann");
                                // Most go again.
                                who.is_some_and(|who| {
                                    crowd.leave(who);
                                    crowd.enter("ann").is_some()
                                })
                            })
                            .count()
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(entered, 50);
        assert_eq!(crowd.enter("ann"), None);
    }

    #[test]
    fn one_household_has_one_address() {
        let of = |text: &str| household(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::"), of("2001:db8:1:3::"));
    }

    #[test]
    fn places_go_with_their_connections() {
        let mut places = Places::default();
        let key = |slot| Key { slot, generation: 7 };
        let who = NonZeroU64::new(5);
        for slot in [0, 1, 5_000] {
            places.change(key(slot), |place| place.address = who);
            places.change(key(slot), |place| place.user = who);
        }
        assert_eq!((places.pages.len(), places.taken), (5, 3));
        let taken = [1, 1, 2, 5_000, 90_000].map(|slot| !places.take(key(slot)).is_empty());
        assert_eq!(taken, [true, false, false, true, false]);
        assert!(!places.take(key(0)).is_empty());
        assert_eq!((places.pages.len(), places.taken), (0, 0));
    }
}
