//! The keys that each connection is counted by, where connections are limited by address or user;
//! and the addresses of clients behind proxies and of long-poll sessions.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64};

use simurgh_reactor::Key;
use simurgh_socket::address_key;

use super::Shard;
use crate::peer_limits::{TOO_MANY_OF_ADDRESS, TOO_MANY_OF_USER};

/// Connections in a page of keys.
const PAGE: usize = 1024;

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    address: Option<NonZeroU64>,
    user: Option<NonZeroU64>,
    source: Option<NonZeroU32>,
}

/// Half of a client's number, which is not 0: of its user or its address.
pub(crate) fn half(hasher: &RandomState, of: impl Hash) -> u32 {
    hasher.hash_one(of) as u32 | 1
}

/// The page of a connection, and its place there.
fn place(key: Key) -> (usize, usize) {
    (key.slot as usize / PAGE, key.slot as usize % PAGE)
}

/// The keys of a shard's connections, in pages that are made on first use.
#[derive(Default)]
pub(crate) struct CountedPeers {
    pages: Vec<Option<Box<[Counted]>>>,
    taken: usize,
}

impl CountedPeers {
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Counted)) {
        let (page, at) = place(key);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages.get_mut(page).map(|page| {
            page.get_or_insert_with(|| vec![Counted::default(); PAGE].into_boxed_slice())
        });
        let Some(counted) = page.and_then(|page| page.get_mut(at)) else { return };
        let was_empty = counted.is_empty();
        change(counted);
        self.taken += usize::from(was_empty && !counted.is_empty());
    }

    /// The hash of the client's address, if that is not the address of its connection.
    pub(crate) fn source(&self, key: Key) -> Option<u32> {
        let (page, at) = place(key);
        let counted = self.pages.get(page)?.as_deref()?.get(at)?;
        counted.source.map(NonZeroU32::get)
    }

    fn take(&mut self, key: Key) -> Counted {
        let (page, at) = place(key);
        let page = self.pages.get_mut(page).and_then(Option::as_deref_mut);
        let counted = page.and_then(|page| page.get_mut(at)).map(std::mem::take);
        let counted = counted.unwrap_or_default();
        self.taken = self.taken.saturating_sub(usize::from(!counted.is_empty()));
        if self.taken == 0 {
            self.pages = Vec::new();
        }
        counted
    }
}

impl Counted {
    fn is_empty(&self) -> bool {
        self.address.is_none() && self.user.is_none() && self.source.is_none()
    }
}

impl Shard {
    /// Counts a connection that wants a socket by its address, unless the limit is reached: then
    /// the error is for its client. It is uncounted when the connection closes, whatever happens
    /// to the request.
    pub(crate) fn count_address(
        &mut self,
        key: Key,
        address: impl FnOnce() -> IpAddr,
    ) -> Result<(), &'static str> {
        let Some(peer_limits) = &self.server.peer_limits.addresses else { return Ok(()) };
        let Some(who) = peer_limits.count(address_key(address())) else {
            self.metrics.limited_address_connections.add(1);
            return Err(TOO_MANY_OF_ADDRESS);
        };
        self.set_counted(key, |counted| counted.address = Some(who));
        Ok(())
    }

    /// The same for the user whose id the application's connect gave it.
    pub(crate) fn count_user(&mut self, key: Key, id: Option<&str>) -> Result<(), &'static str> {
        let Some((peer_limits, id)) = self.server.peer_limits.users.as_ref().zip(id) else {
            return Ok(());
        };
        let Some(who) = peer_limits.count(id) else {
            self.metrics.limited_user_connections.add(1);
            return Err(TOO_MANY_OF_USER);
        };
        self.set_counted(key, |counted| counted.user = Some(who));
        Ok(())
    }

    /// Notes a client's address where that is not the address of its connection: histories have a
    /// share for each.
    pub(crate) fn note_source(&mut self, key: Key, address: impl FnOnce() -> Option<IpAddr>) {
        if self.server.has_history
            && let Some(address) = address()
        {
            let source = half(&self.server.client_hasher, address_key(address));
            self.set_counted(key, |counted| counted.source = NonZeroU32::new(source));
        }
    }

    fn set_counted(&mut self, key: Key, change: impl FnOnce(&mut Counted)) {
        self.counted_peers.get_or_insert_default().change(key, change);
    }

    pub(crate) fn uncount_peer(&mut self, key: Key) {
        let Some(counted_peers) = &mut self.counted_peers else { return };
        let Counted { address, user, .. } = counted_peers.take(key);
        let peer_limits = &self.server.peer_limits;
        for (peer_limits, who) in [(&peer_limits.addresses, address), (&peer_limits.users, user)] {
            if let Some((peer_limits, who)) = peer_limits.as_ref().zip(who) {
                peer_limits.uncount(who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_counts_per_64_network() {
        let of = |text: &str| address_key(text.parse().unwrap());
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::"), of("2001:db8:1:3::"));
    }

    #[test]
    fn counts_end_with_their_connections() {
        let mut counted_peers = CountedPeers::default();
        let key = |slot| Key { slot, generation: 7 };
        let who = NonZeroU64::new(5);
        for slot in [0, 1, 5_000] {
            counted_peers.change(key(slot), |counted| counted.address = who);
            counted_peers.change(key(slot), |counted| counted.user = who);
        }
        assert_eq!((counted_peers.pages.len(), counted_peers.taken), (5, 3));
        let taken = [1, 1, 2, 5_000, 90_000].map(|slot| !counted_peers.take(key(slot)).is_empty());
        assert_eq!(taken, [true, false, false, true, false]);
        assert!(!counted_peers.take(key(0)).is_empty());
        assert_eq!((counted_peers.pages.len(), counted_peers.taken), (0, 0));
    }
}
