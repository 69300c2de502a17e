//! The plain HTTP connections of one listener, and how many there may be.
//!
//! An idle connection is worth less than one with a request: when few places are left the server
//! closes the longest idle ones, and shortens the idle timeout of the others. Some places are
//! reserved for the server's own paths (monitoring and publishing), so that a full server does not
//! look like a dead one.

mod held;
mod watch;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simurgh_socket::address_key;
use tokio::sync::Notify;

use held::Budget;
pub use held::{HeldBytes, Side};
pub use watch::{Overdue, Wait, Watch};

/// One of this many places is kept free by asking idle connections to close.
const HEADROOM: usize = 16;
/// Connections that one address may have however few places there are.
const SHARE_LEAST: usize = 8;
/// Least time between two searches through all connections that found none idle.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a search for a place is repeated, and the time between two tries.
const TRIES: usize = 100;
const APART: Duration = Duration::from_millis(1);
/// The minimum idle timeout, even if all places are taken.
const IDLE_LEAST: Duration = Duration::from_secs(1);

/// Whether a path is one of the server's own, for which places are reserved.
pub fn is_reserved(path: &str) -> bool {
    let own = ["/healthz", "/metrics", "/observer", "/realtime/v1/api/broadcast"];
    let api = path.strip_prefix("/api/");
    own.contains(&path)
        || path.starts_with("/observer/")
        || api.is_some_and(|verb| API_VERBS.contains(&verb))
}

/// Paths below `/api/`.
pub const API_VERBS: [&str; 21] = [
    "block",
    "broadcast",
    "connections",
    "counts",
    "disconnect",
    "history",
    "history/topics",
    "kick",
    "notices",
    "notices/dead",
    "notices/delete",
    "notices/replay",
    "notices/resume",
    "presence",
    "push",
    "reload",
    "revoke",
    "stays",
    "topics",
    "unblock",
    "users/online",
];

#[derive(Debug, Default)]
pub struct HttpConnections {
    /// Places for all, and further ones for the server's own paths.
    most: usize,
    reserve: usize,
    taken: AtomicUsize,
    present: Mutex<Present>,
    /// Notified when a connection found no place.
    crowded: Notify,
    /// Notified when a connection has ended while the server ends.
    left: Condvar,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    is_over: AtomicBool,
    budgets: [Budget; 2],
    /// Bytes that were held and were released, since the start.
    released: AtomicUsize,
    /// Some were closed for what they held.
    has_shed: Notify,
    pub evicted: AtomicU64,
    pub refused: AtomicU64,
    /// Connections closed because all together held too much memory.
    pub shed: AtomicU64,
    /// Connections that the system had no descriptor for.
    pub lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Present {
    next: u64,
    all: HashMap<u64, Seat>,
    /// Connections of each client address.
    addresses: HashMap<IpAddr, usize>,
    /// Connections of all addresses.
    counted: usize,
    /// Those of each client address that are in reserved places.
    reserved: HashMap<IpAddr, usize>,
    leaving: usize,
    paused_until: Option<Instant>,
}

#[derive(Debug)]
struct Seat {
    watch: Arc<Watch>,
    /// Its client's; `None` for connections that are not counted by address.
    address: Option<IpAddr>,
}

/// A place of a connection; freed when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    http_connections: Arc<HttpConnections>,
    number: Option<u64>,
    /// The address that it is counted for, and whether in a reserved place.
    address: Option<IpAddr>,
    is_reserved: bool,
}

impl HttpConnections {
    /// With limits for the bytes of bodies that are not answered, and of answers that are not
    /// written.
    pub fn new(most: usize, reserve: usize, bytes_max: [usize; 2]) -> Self {
        Self { most, reserve, budgets: bytes_max.map(Budget::new), ..Self::default() }
    }

    fn budget(&self, side: Side) -> &Budget {
        let [inbound, outbound] = &self.budgets;
        match side {
            Side::Inbound => inbound,
            Side::Outbound => outbound,
        }
    }

    /// Takes a place, if one is left for such a path; else one is made if possible. From any
    /// thread; never waits.
    pub fn take(&self, is_reserved: bool) -> bool {
        let is_taken = self.try_take(is_reserved);
        if !is_taken {
            self.crowded.notify_one();
        }
        is_taken
    }

    /// As [`take`](Self::take) without the reserve, but waits a moment for idle ones to close.
    pub async fn take_soon(&self) -> bool {
        for _ in 0..TRIES {
            let is_taken = self.try_take(false);
            self.make_room();
            if is_taken {
                return true;
            }
            tokio::time::sleep(APART).await;
        }
        self.refused.fetch_add(1, Relaxed);
        false
    }

    fn try_take(&self, is_reserved: bool) -> bool {
        let most = if is_reserved { self.most + self.reserve } else { self.most };
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    pub fn give_back(&self) {
        // SeqCst with the start of `finish`: one of the two sees the other.
        self.taken.fetch_sub(1, SeqCst);
        if self.is_closing.load(SeqCst) {
            // Under the lock, or a thread that is about to wait would miss it.
            let _present = self.present();
            self.left.notify_all();
        }
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// The place that was taken before the connection was accepted.
    pub fn slot(self: &Arc<Self>) -> ConnectionSlot {
        let http_connections = Arc::clone(self);
        ConnectionSlot { http_connections, number: None, address: None, is_reserved: false }
    }

    /// How long a connection may be idle: as configured while half of the places are free, and less
    /// and less from there on.
    pub fn idle_limit(&self, whole: Duration) -> Duration {
        let free = self.most.saturating_sub(self.taken());
        let half = (self.most / 2).max(1);
        if free >= half {
            return whole;
        }
        whole.mul_f64(free as f64 / half as f64).max(IDLE_LEAST.min(whole))
    }

    /// Asks the longest idle to close when too few places are free, some more than needed, so that
    /// the next connections find a place without a search.
    pub fn make_room(&self) {
        let headroom = (self.most / HEADROOM).max(1);
        let excess = |leaving| (self.taken() + headroom).saturating_sub(self.most + leaving);
        if excess(0) == 0 {
            return;
        }
        let mut present = self.present();
        let excess = excess(present.leaving);
        if excess > 0 {
            let asked = present.ask_idle(excess + headroom / 4, |_| true);
            self.evicted.fetch_add(asked as u64, Relaxed);
        }
    }

    /// Counts a connection of an address. Once half of all places are taken, an address with a
    /// quarter of them has to close idle connections for it, and is refused if it has none.
    fn count_address(&self, address: IpAddr) -> bool {
        let mut present = self.present();
        let count = present.addresses.get(&address).copied().unwrap_or_default();
        // Places that are taken by connections on their way do not count yet.
        let there = present.counted.max(present.all.len());
        if there >= self.most / 2 && count >= (self.most / 4).max(SHARE_LEAST) {
            let asked_max = (self.most / HEADROOM / 4).max(1);
            let asked = present.ask_idle(asked_max, |seat| seat.address == Some(address));
            self.evicted.fetch_add(asked as u64, Relaxed);
            if asked == 0 {
                self.refused.fetch_add(1, Relaxed);
                return false;
            }
        }
        present.addresses.insert(address, count + 1);
        present.counted += 1;
        true
    }

    /// Makes room whenever a connection was refused a place.
    pub async fn keep_room(self: Arc<Self>) {
        loop {
            self.crowded.notified().await;
            self.make_room();
        }
    }

    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Whether connections without a request have to close.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }

    /// Closes idle connections, and waits until all others have their answers or the time is up.
    pub fn finish(&self, until: Instant) {
        self.drain();
        self.is_closing.store(true, SeqCst);
        let mut present = self.present();
        for seat in present.all.values() {
            seat.watch.ask_to_leave();
        }
        while self.taken.load(SeqCst) > 0 && !self.is_over.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(
                    requests = self.taken(),
                    "stopped before all HTTP requests were answered"
                );
                return;
            }
            let waited = self.left.wait_timeout(present, left);
            present = waited.map_or_else(|error| error.into_inner().0, |(present, _)| present);
        }
    }

    /// From now on connections are not waited for.
    pub fn end(&self) {
        let _present = self.present();
        self.is_over.store(true, Relaxed);
        self.left.notify_all();
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Asks at most `most` of the longest idle connections to close, and returns their number.
    /// After a search that finds none there is a pause.
    fn ask_idle(&mut self, most: usize, is_meant: impl Fn(&Seat) -> bool) -> usize {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| now < until) {
            return 0;
        }
        let meant = self.all.values().filter(|seat| is_meant(seat));
        let mut idle: Vec<(u64, &Arc<Watch>)> =
            meant.filter_map(|seat| Some((seat.watch.idle_since_ms()?, &seat.watch))).collect();
        let asked = most.min(idle.len());
        if asked == 0 {
            self.paused_until = Some(now + PAUSE);
            return 0;
        }
        idle.select_nth_unstable_by_key(asked - 1, |(since, _)| *since);
        for (_, watch) in idle.iter().take(asked) {
            watch.ask_to_leave();
        }
        self.leaving += asked;
        asked
    }

    fn uncount(&mut self, address: IpAddr) {
        self.counted = self.counted.saturating_sub(1);
        one_less(&mut self.addresses, address);
    }
}

fn one_less(counts: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
    if counts.is_empty() {
        *counts = HashMap::new();
    }
}

impl ConnectionSlot {
    /// Counts the connection by its client's address; `false` if it has reached its share.
    pub fn count_address(&mut self, address: IpAddr) -> bool {
        let address = address_key(address);
        let is_counted = self.http_connections.count_address(address);
        self.address = is_counted.then_some(address);
        is_counted
    }

    /// Counts a connection for one of the server's own paths, if it needs a reserved place; `false`
    /// if its client's address has a quarter of those already.
    pub fn count_reserved(&mut self, address: IpAddr) -> bool {
        let http_connections = &self.http_connections;
        if http_connections.taken() <= http_connections.most {
            return true;
        }
        let address = address_key(address);
        let mut present = http_connections.present();
        let count = present.reserved.entry(address).or_default();
        let has_share = *count < (http_connections.reserve / 4).max(1);
        if has_share {
            *count += 1;
            (self.address, self.is_reserved) = (Some(address), true);
        } else {
            http_connections.refused.fetch_add(1, Relaxed);
        }
        has_share
    }

    pub fn enter(&mut self, watch: &Arc<Watch>) {
        let http_connections = &self.http_connections;
        let mut present = http_connections.present();
        // A connection in a reserved place has it for one request.
        if http_connections.is_closing() || http_connections.taken() > http_connections.most {
            watch.ask_to_leave();
            present.leaving += 1;
        }
        let number = present.next;
        present.next += 1;
        let seat = Seat { watch: Arc::clone(watch), address: self.address };
        present.all.insert(number, seat);
        self.number = Some(number);
    }

    pub fn http_connections(&self) -> &Arc<HttpConnections> {
        &self.http_connections
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if self.number.is_some() || self.address.is_some() {
            let mut present = self.http_connections.present();
            let seat = self.number.take().and_then(|number| present.all.remove(&number));
            if seat.is_some_and(|seat| seat.watch.has_to_leave()) {
                present.leaving = present.leaving.saturating_sub(1);
            }
            match self.address {
                Some(address) if self.is_reserved => one_less(&mut present.reserved, address),
                Some(address) => present.uncount(address),
                None => {}
            }
        }
        self.http_connections.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(
        most: usize,
        reserve: usize,
        idle: usize,
    ) -> (Arc<HttpConnections>, Vec<(ConnectionSlot, Arc<Watch>)>) {
        let http_connections = Arc::new(HttpConnections::new(most, reserve, [0; 2]));
        let idle = (0..idle).map(|n| {
            assert!(http_connections.take(false));
            // The later ones are older.
            let watch = Arc::new(Watch::default());
            watch.be_idle_since(1_000 - n as u64);
            let mut slot = http_connections.slot();
            slot.enter(&watch);
            (slot, watch)
        });
        let idle = idle.collect();
        (http_connections, idle)
    }

    #[test]
    fn last_connections_are_reserved_for_the_servers_own_paths() {
        let (http_connections, mut idle) = connections(4, 2, 4);
        assert!(
            !http_connections.take(is_reserved("/"))
                && !http_connections.take(is_reserved("/api/other"))
        );
        assert!(
            http_connections.take(is_reserved("/healthz"))
                && http_connections.take(is_reserved("/metrics"))
        );
        assert!(!http_connections.take(is_reserved("/api/broadcast")));
        assert!(is_reserved("/api/presence") && !is_reserved("/api/presences"));
        assert!(is_reserved("/api/history") && is_reserved("/api/history/topics"));
        assert!(!is_reserved("/api/history/"));
        http_connections.give_back();
        assert!(http_connections.take(is_reserved("/observer/api/overview")));
        idle.clear();
        assert_eq!(http_connections.taken(), 2);
        assert!(http_connections.take(false));
    }

    #[test]
    fn one_address_gets_a_quarter_of_the_reserved_connections() {
        let (http_connections, _idle) = connections(4, 8, 4);
        let mut taken = |last: u8| {
            assert!(http_connections.take(true));
            let mut slot = http_connections.slot();
            slot.count_reserved(IpAddr::from([127, 0, 0, last])).then_some(slot)
        };
        let slots = [2, 2, 2, 3].map(&mut taken);
        assert_eq!(slots.each_ref().map(Option::is_some), [true, true, false, true]);
        drop(slots);
        assert_eq!(http_connections.taken(), 4);
        assert!(http_connections.present().reserved.is_empty());
    }

    #[test]
    fn longest_idle_connections_close_first_and_no_more_than_needed() {
        let (http_connections, mut idle) = connections(64, 2, 60);
        http_connections.make_room();
        assert!(idle.iter().all(|(_, watch)| !watch.has_to_leave()), "four are free");
        assert!(http_connections.take(false) && http_connections.take(false));
        http_connections.make_room();
        let asked = |idle: &[(ConnectionSlot, Arc<Watch>)]| {
            idle.iter().filter(|(_, watch)| watch.has_to_leave()).count()
        };
        assert_eq!(asked(&idle), 3, "two too many, and a quarter of the headroom");
        assert!(idle.iter().rev().take(3).all(|(_, watch)| watch.has_to_leave()));
        http_connections.make_room();
        assert_eq!(asked(&idle), 3, "they are on their way");
        idle.truncate(57);
        http_connections.make_room();
        assert_eq!((asked(&idle), http_connections.taken()), (0, 59));
    }

    #[test]
    fn idle_time_shrinks_as_places_fill() {
        let whole = Duration::from_secs(100);
        let kept = |idle| {
            let (http_connections, _seats) = connections(100, 0, idle);
            http_connections.idle_limit(whole).as_secs()
        };
        assert_eq!((kept(0), kept(50), kept(75), kept(100)), (100, 100, 50, 1));
    }
}
