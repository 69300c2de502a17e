//! Outcomes that shards report, when the waiter is woken, and what is counted.

use std::sync::atomic::AtomicUsize;
use std::task::{Wake, Waker};

use simurgh_core::Position;

use super::*;

const LONG: Duration = Duration::from_secs(3_600);

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A waiter for sent broadcasts, and the shards' side of it.
struct Waits {
    pending: Arc<Pending>,
    entries: Vec<Option<Entry>>,
    woken: Arc<Woken>,
    unconfirmed: Arc<AtomicU64>,
}

impl Waits {
    fn new(count: usize, longest: Duration) -> Self {
        let unconfirmed = Arc::default();
        let pending = Arc::new(Pending::new(count, longest, &unconfirmed));
        let entries = (0..count).map(|at| Some(Entry::new(&pending, at))).collect();
        let it = Self { pending, entries, woken: Arc::default(), unconfirmed };
        assert_eq!(it.polls(), count == 0);
        it
    }

    fn polls(&self) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.pending.poll_settled(&Context::from_waker(&waker)).is_ready()
    }

    fn resolve(&mut self, at: usize, kept: Result<KeptAt, simurgh_core::NotKept>) {
        self.entries[at].take().unwrap().resolve(kept);
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Relaxed)
    }

    fn unconfirmed(&self) -> u64 {
        self.unconfirmed.load(Relaxed)
    }
}

fn kept(number: u64) -> KeptAt {
    let position = Position::parse(&format!("k7ku80.{number}")).unwrap();
    KeptAt { position, is_duplicate: false }
}

#[test]
fn waiter_for_many_is_woken_once_with_results_in_order() {
    let mut it = Waits::new(3, LONG);
    it.resolve(1, Ok(kept(1)));
    it.resolve(0, Err(simurgh_core::NotKept::LocalOnly));
    assert_eq!((it.woken(), it.polls()), (0, false));
    it.resolve(2, Ok(kept(2)));
    assert_eq!((it.woken(), it.polls()), (1, true));
    let outcomes = it.pending.close(false);
    assert_eq!(outcomes, [Err(NotKept::LocalOnly), Ok(kept(1)), Ok(kept(2))]);
    assert_eq!(it.unconfirmed(), 0);
}

#[test]
fn first_failure_is_returned_when_all_before_it_are_known() {
    let mut it = Waits::new(4, LONG);
    it.resolve(1, Err(simurgh_core::NotKept::Full));
    it.resolve(2, Err(simurgh_core::NotKept::Unconfirmed));
    assert_eq!((it.woken(), it.polls()), (0, false));
    it.resolve(0, Ok(kept(1)));
    assert_eq!((it.woken(), it.polls()), (1, true));
    assert_eq!(it.pending.close(false), [Ok(kept(1)), Err(NotKept::NotStored)]);
    it.resolve(3, Ok(kept(2)));
    assert_eq!((it.woken(), it.unconfirmed()), (1, 1));
}

#[test]
fn ended_shard_confirms_nothing() {
    let mut it = Waits::new(2, LONG);
    it.resolve(1, Ok(kept(1)));
    it.entries.clear();
    assert_eq!((it.woken(), it.polls()), (1, true));
    assert_eq!(it.pending.close(false), [Err(NotKept::Ended)]);
}

#[test]
fn unconfirmed_messages_are_counted_once_without_a_waiter() {
    let mut it = Waits::new(4, Duration::ZERO);
    it.resolve(0, Ok(kept(1)));
    it.resolve(1, Err(simurgh_core::NotKept::Unconfirmed));
    assert_eq!(it.unconfirmed(), 1);
    let outcomes = it.pending.close(true);
    assert_eq!(outcomes, [Ok(kept(1)), Err(NotKept::Unconfirmed(Duration::ZERO))]);
    assert_eq!(it.unconfirmed(), 3);
    it.resolve(2, Ok(kept(2)));
    it.resolve(3, Err(simurgh_core::NotKept::Unconfirmed));
    it.pending.abandon();
    assert_eq!(it.unconfirmed(), 3, "once each");

    let mut it = Waits::new(2, Duration::ZERO);
    it.pending.abandon();
    it.resolve(0, Ok(kept(1)));
    it.entries.clear();
    assert_eq!((it.woken(), it.unconfirmed()), (0, 2), "late");

    let mut it = Waits::new(2, LONG);
    it.pending.abandon();
    it.resolve(0, Ok(kept(1)));
    assert_eq!(it.unconfirmed(), 0, "in time");
    it.resolve(1, Err(simurgh_core::NotKept::Unconfirmed));
    assert_eq!(it.unconfirmed(), 1);
}

#[test]
fn unlimited_wait_is_possible() {
    let mut it = Waits::new(1, Duration::MAX);
    it.resolve(0, Ok(kept(1)));
    assert!(it.polls());
}
