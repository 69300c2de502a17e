//! Who is there: the plain HTTP connections of one listener, and how many there may be.
//!
//! A connection that waits for its next request is worth less than one that has a request, whoever
//! holds it: when places grow scarce the longest idle are asked to leave, and the others may be
//! idle for a shorter time. Some places are kept for the server's own paths, by which it is watched
//! and told what to publish, so that a crowd of clients never looks like a server that is dead.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::watch::Watch;

/// Of the places this part is kept free by asking idle connections to leave: one of so many.
const HEADROOM: usize = 16;
/// Looking through all connections is not worth its time again so soon after it was in vain.
const REST: Duration = Duration::from_millis(10);
/// How often it is tried anew to find a place, so far apart.
const TRIES: usize = 100;
const APART: Duration = Duration::from_millis(1);
/// However full it is, so long a connection may wait for its next request.
const IDLE_LEAST: Duration = Duration::from_secs(1);

/// Whether a path is one of the server's own, for which places are kept.
pub(crate) fn is_reserved(path: &str) -> bool {
    let own = ["/healthz", "/metrics", "/api/broadcast", "/api/presence", "/observer"];
    own.contains(&path)
        || path.starts_with("/observer/")
        || path == "/realtime/v1/api/broadcast"
        || ["/api/disconnect", "/api/history", "/api/history/topics"].contains(&path)
}

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct Guests {
    /// Places for everybody, and those beyond them for the server's own paths.
    most: usize,
    reserve: usize,
    taken: AtomicUsize,
    present: Mutex<Present>,
    /// Somebody met a full house.
    crowded: Notify,
    /// A connection has ended while the server ends.
    left: Condvar,
    is_draining: AtomicBool,
    is_closing: AtomicBool,
    is_over: AtomicBool,
    pub(crate) evicted: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Connections that the system had no descriptor for.
    pub(crate) lost: AtomicU64,
}

#[derive(Debug)]
struct Present {
    next: u64,
    all: HashMap<u64, Arc<Watch>>,
    /// Those of them that were asked to leave.
    leaving: usize,
    rest_until: Instant,
}

/// A place that is taken; free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    guests: Arc<Guests>,
    number: Option<u64>,
}

impl Guests {
    pub(crate) fn new(most: usize, reserve: usize) -> Self {
        let present =
            Present { next: 0, all: HashMap::new(), leaving: 0, rest_until: Instant::now() };
        Self {
            most,
            reserve,
            taken: AtomicUsize::new(0),
            present: Mutex::new(present),
            crowded: Notify::new(),
            left: Condvar::new(),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Takes a place, if one is left for such a path. From any thread; never waits.
    pub(crate) fn take(&self, is_reserved: bool) -> bool {
        let is_taken = self.try_take(is_reserved);
        if !is_taken {
            self.refused.fetch_add(1, Relaxed);
            self.crowded.notify_one();
        }
        is_taken
    }

    /// As [`take`](Self::take) for everybody, but waits a moment for those who are asked to leave.
    pub(super) async fn take_soon(&self) -> bool {
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

    /// Gives a place back that was taken.
    pub(crate) fn give_back(&self) {
        // In one order with the beginning of `see_out`: one of the two sees the other.
        self.taken.fetch_sub(1, SeqCst);
        if self.is_closing.load(SeqCst) {
            // Under the lock, or whoever is about to wait would miss it.
            let _present = self.present();
            self.left.notify_all();
        }
    }

    /// Connections that are there.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// The place that was taken for a connection which has come.
    pub(super) fn seat(self: &Arc<Self>) -> Seat {
        Seat { guests: Arc::clone(self), number: None }
    }

    /// How long a connection may wait for its next request: as long as it is set while half of the
    /// places are free, and less and less from there on.
    pub(super) fn idle_limit(&self, whole: Duration) -> Duration {
        let free = self.most.saturating_sub(self.taken());
        let half = (self.most / 2).max(1);
        if free >= half {
            return whole;
        }
        whole.mul_f64(free as f64 / half as f64).max(IDLE_LEAST.min(whole))
    }

    /// Asks the longest idle to leave where it has grown too full, some more than that each time,
    /// so that who comes next finds a place without looking.
    pub(super) fn make_room(&self) {
        let headroom = (self.most / HEADROOM).max(1);
        let excess = |leaving| (self.taken() + headroom).saturating_sub(self.most + leaving);
        if excess(0) == 0 {
            return;
        }
        let mut present = self.present();
        let excess = excess(present.leaving);
        let now = Instant::now();
        if excess == 0 || now < present.rest_until {
            return;
        }
        let mut idle: Vec<(Instant, &Arc<Watch>)> = present
            .all
            .values()
            .filter_map(|watch| watch.idle_since().map(|since| (since, watch)))
            .collect();
        let asked = (excess + headroom / 4).min(idle.len());
        if asked == 0 {
            present.rest_until = now + REST;
            return;
        }
        idle.select_nth_unstable_by_key(asked - 1, |(since, _)| *since);
        for (_, watch) in idle.iter().take(asked) {
            watch.ask_to_leave();
        }
        drop(idle);
        present.leaving += asked;
        self.evicted.fetch_add(asked as u64, Relaxed);
    }

    /// Makes room whenever somebody was refused a place.
    pub(super) async fn keep_room(self: Arc<Self>) {
        loop {
            self.crowded.notified().await;
            self.make_room();
        }
    }

    /// From now on each answer is the last of its connection.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Whether nobody stays who has no request under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }

    /// Sends away who is idle, and waits until all others have their answers or the time is up.
    pub(super) fn see_out(&self, until: Instant) {
        self.drain();
        self.is_closing.store(true, SeqCst);
        let mut present = self.present();
        for watch in present.all.values() {
            watch.ask_to_leave();
        }
        while self.taken.load(SeqCst) > 0 && !self.is_over.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(requests = self.taken(), "ends before their answers");
                return;
            }
            let waited = self.left.wait_timeout(present, left);
            present = waited.map_or_else(|error| error.into_inner().0, |(present, _)| present);
        }
    }

    /// Nobody is waited for any more.
    pub(crate) fn end(&self) {
        let _present = self.present();
        self.is_over.store(true, Relaxed);
        self.left.notify_all();
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// A connection is served from here on.
    pub(super) fn sit(&mut self, watch: &Arc<Watch>) {
        let guests = &self.guests;
        let mut present = guests.present();
        // Whoever got a place out of the reserve has it for one request.
        if guests.is_closing() || guests.taken() > guests.most {
            watch.ask_to_leave();
            present.leaving += 1;
        }
        let number = present.next;
        present.next += 1;
        present.all.insert(number, Arc::clone(watch));
        self.number = Some(number);
    }

    pub(super) fn guests(&self) -> &Arc<Guests> {
        &self.guests
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let number = self.number.take();
        if let Some(number) = number {
            let mut present = self.guests.present();
            let watch = present.all.remove(&number);
            if watch.is_some_and(|watch| watch.has_to_leave()) {
                present.leaving = present.leaving.saturating_sub(1);
            }
        }
        self.guests.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(most: usize, reserve: usize, idle: usize) -> (Arc<Guests>, Vec<(Seat, Arc<Watch>)>) {
        let guests = Arc::new(Guests::new(most, reserve));
        let began = Instant::now();
        let seats = (0..idle).map(|n| {
            assert!(guests.take(false));
            // The later ones were there before the others.
            let began = began.checked_sub(Duration::from_secs(n as u64)).unwrap_or(began);
            let watch = Arc::new(Watch::new(began));
            watch.idle_from_the_beginning();
            let mut seat = guests.seat();
            seat.sit(&watch);
            (seat, watch)
        });
        let seats = seats.collect();
        (guests, seats)
    }

    #[test]
    fn the_last_places_are_for_the_servers_own_paths() {
        let (guests, mut seats) = house(4, 2, 4);
        assert!(!guests.take(is_reserved("/")) && !guests.take(is_reserved("/api/other")));
        assert!(guests.take(is_reserved("/healthz")) && guests.take(is_reserved("/metrics")));
        assert!(!guests.take(is_reserved("/api/broadcast")));
        assert!(is_reserved("/api/presence") && !is_reserved("/api/presences"));
        assert!(is_reserved("/api/history") && is_reserved("/api/history/topics"));
        assert!(!is_reserved("/api/history/"));
        assert_eq!(guests.refused.load(Relaxed), 3);
        guests.give_back();
        assert!(guests.take(is_reserved("/observer/api/overview")));
        seats.clear();
        assert_eq!(guests.taken(), 2);
        assert!(guests.take(false));
    }

    #[test]
    fn the_longest_idle_are_asked_first_and_no_more_than_it_takes() {
        let (guests, mut seats) = house(64, 2, 60);
        guests.make_room();
        assert!(seats.iter().all(|(_, watch)| !watch.has_to_leave()), "four are free");
        assert!(guests.take(false) && guests.take(false));
        guests.make_room();
        let asked = |seats: &[(Seat, Arc<Watch>)]| {
            seats.iter().filter(|(_, watch)| watch.has_to_leave()).count()
        };
        assert_eq!(asked(&seats), 3, "two too many, and a quarter of the headroom");
        assert!(seats.iter().rev().take(3).all(|(_, watch)| watch.has_to_leave()));
        guests.make_room();
        assert_eq!(asked(&seats), 3, "they are on their way");
        seats.truncate(57);
        guests.make_room();
        assert_eq!((asked(&seats), guests.taken()), (0, 59));
    }

    #[test]
    fn idle_time_shrinks_as_places_fill() {
        let whole = Duration::from_secs(100);
        let kept = |idle| {
            let (guests, _seats) = house(100, 0, idle);
            guests.idle_limit(whole).as_secs()
        };
        assert_eq!((kept(0), kept(50), kept(75), kept(100)), (100, 100, 50, 1));
    }
}
