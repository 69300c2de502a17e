//! Each bound at its value, one below and one above.
use alloc::vec::Vec;

use super::*;

const EPOCH: Epoch = Epoch::from_seed(7);
const ALL: ReplayLimits = ReplayLimits { count: usize::MAX, bytes: u64::MAX };
const NEVER: Limits = Limits { count: usize::MAX, bytes: u64::MAX, age_ms: u64::MAX };

/// Places 10, 20, … of 10 bytes each, stored at 1000, 2000, ….
fn ring(count: u64) -> Ring<u64> {
    let mut ring = Ring::new(EPOCH, Place::ZERO);
    for n in 1..=count {
        assert!(ring.push(Place::new(10 * n), 1_000 * n, 10, n));
    }
    ring
}

fn values(ring: &Ring<u64>) -> Vec<u64> {
    ring.entries(0..ring.len()).map(|entry| *entry.value).collect()
}

fn after(seq: u64) -> Since {
    Since::After(Position { epoch: EPOCH, place: Place::new(seq) })
}

fn gap(reason: GapReason, after: u64, entries: Range<usize>) -> Replay {
    Replay { gap: Some(reason), after: Place::new(after), entries }
}

fn recovered(after: u64, entries: Range<usize>) -> Replay {
    Replay { gap: None, after: Place::new(after), entries }
}

#[test]
fn values_are_stored_at_increasing_places() {
    let mut ring = Ring::new(EPOCH, Place::new(5));
    assert!(!ring.push(Place::new(5), 0, 0, 'a'), "the head itself");
    assert!(!ring.push(Place::new(4), 0, 0, 'a'));
    assert_eq!((ring.len(), ring.bytes(), ring.head()), (0, 0, Place::new(5)));
    assert!(ring.push(Place { seq: 5, item: 1 }, u64::MAX, 3, 'b'));
    assert!(ring.push(Place { seq: 5, item: u16::MAX }, 9, 0, 'c'));
    assert!(ring.push(Place::new(u64::MAX), 10, usize::MAX, 'd'));
    assert!(!ring.push(Place::new(u64::MAX), 10, 1, 'e'));
    assert_eq!(ring.head(), Place::new(u64::MAX));
    assert_eq!(ring.position(), Position { epoch: EPOCH, place: Place::new(u64::MAX) });
    assert_eq!((ring.floor(), ring.epoch()), (Place::new(5), EPOCH));
    let entry = |seq, item, at_ms, bytes, value| {
        Some(Entry { place: Place { seq, item }, at_ms, bytes, value })
    };
    assert_eq!(ring.first(), entry(5, 1, (1 << 48) - 1, 3, &'b'));
    assert_eq!(ring.get(1), entry(5, u16::MAX, 9, 0, &'c'));
    assert_eq!(ring.get(2), entry(u64::MAX, 0, 10, u64::from(u32::MAX), &'d'));
    assert_eq!(ring.get(3), None);
    assert_eq!(ring.bytes(), 3 + u64::from(u32::MAX));
}

#[test]
fn entries_expire_exactly_at_their_maximum_age() {
    let mut ring = ring(3);
    let limits = Limits { age_ms: 500, ..NEVER };
    assert_eq!(ring.enforce(&limits, 0), Dropped::default(), "a clock that goes back");
    assert_eq!(ring.enforce(&limits, 1_499), Dropped::default());
    assert_eq!(ring.has_all_after(Place::ZERO), Ok(()));
    let one = Dropped { expired: 1, bytes: 10, ..Dropped::default() };
    assert_eq!(ring.enforce(&limits, 1_500), one);
    assert_eq!((values(&ring), ring.floor()), ([2, 3].to_vec(), Place::new(10)));
    assert_eq!(ring.has_all_after(Place::new(9)), Err(GapReason::Expired));
    assert_eq!(ring.has_all_after(Place::new(10)), Ok(()));
    assert_eq!(ring.enforce(&limits, u64::MAX).expired, 2);
    assert_eq!((ring.len(), ring.bytes(), ring.entries.capacity()), (0, 0, 0));
    assert_eq!((ring.head(), ring.floor()), (Place::new(30), Place::new(30)));
}

#[test]
fn entries_beyond_the_count_or_byte_limit_are_overwritten() {
    let mut by_count = ring(3);
    assert_eq!(by_count.enforce(&Limits { count: 3, ..NEVER }, 0), Dropped::default());
    let one = Dropped { by_count: 1, bytes: 10, ..Dropped::default() };
    assert_eq!(by_count.enforce(&Limits { count: 2, ..NEVER }, 0), one);
    assert_eq!(by_count.has_all_after(Place::ZERO), Err(GapReason::Overwritten));
    assert_eq!(by_count.enforce(&Limits { count: 0, ..NEVER }, 0).by_count, 2);
    let mut by_bytes = ring(3);
    assert_eq!(by_bytes.enforce(&Limits { bytes: 30, ..NEVER }, 0), Dropped::default());
    let one = Dropped { by_bytes: 1, bytes: 10, ..Dropped::default() };
    assert_eq!(by_bytes.enforce(&Limits { bytes: 29, ..NEVER }, 0), one);
    assert_eq!((values(&by_bytes), by_bytes.bytes()), ([2, 3].to_vec(), 20));
    // Too large for the ring: all are dropped, and numbers continue.
    assert!(by_bytes.push(Place::new(40), 0, 31, 4));
    let all = Dropped { by_bytes: 3, bytes: 51, ..Dropped::default() };
    assert_eq!(by_bytes.enforce(&Limits { bytes: 30, ..NEVER }, 0), all);
    assert_eq!((by_bytes.floor(), by_bytes.head()), (Place::new(40), Place::new(40)));
    assert_eq!(by_bytes.since(after(40), &ALL), recovered(40, 0..0));
    assert_eq!(by_bytes.since(after(39), &ALL), gap(GapReason::Overwritten, 40, 0..0));
    // If both apply, age is reported.
    let mut both = ring(3);
    let dropped = both.enforce(&Limits { count: 1, bytes: 20, age_ms: 2_000 }, 3_000);
    assert_eq!((dropped.expired, dropped.by_count), (1, 1));
    assert_eq!(both.has_all_after(Place::ZERO), Err(GapReason::Overwritten), "the last of them");
}

#[test]
fn position_before_a_purge_always_gets_a_purged_gap() {
    let mut ring = ring(3);
    assert_eq!(ring.purge(), Dropped { purged: 3, bytes: 30, ..Dropped::default() });
    assert_eq!((ring.len(), ring.bytes(), ring.entries.capacity()), (0, 0, 0));
    assert_eq!((ring.head(), ring.floor()), (Place::new(30), Place::new(30)));
    assert_eq!(ring.since(after(29), &ALL), gap(GapReason::Purged, 30, 0..0));
    assert_eq!(ring.since(after(30), &ALL), recovered(30, 0..0));
    for n in 4..=6 {
        assert!(ring.push(Place::new(10 * n), 0, 10, n));
    }
    assert_eq!(ring.enforce(&Limits { count: 2, ..NEVER }, 0).by_count, 1);
    assert_eq!(ring.since(after(29), &ALL), gap(GapReason::Purged, 40, 0..2));
    assert_eq!(ring.since(after(30), &ALL), gap(GapReason::Overwritten, 40, 0..2));
    assert_eq!(ring.since(after(39), &ALL), gap(GapReason::Overwritten, 40, 0..2));
    assert_eq!(ring.since(after(40), &ALL), recovered(40, 0..2));
}

#[test]
fn head_only_moves_forward() {
    let mut ring = ring(1);
    ring.advance(Place::new(9));
    assert_eq!(ring.head(), Place::new(10));
    ring.advance(Place { seq: 10, item: 2 });
    assert_eq!((ring.head(), ring.len()), (Place { seq: 10, item: 2 }, 1));
    assert_eq!(ring.since(after(10), &ALL), recovered(10, 1..1));
    assert!(!ring.push(Place { seq: 10, item: 2 }, 0, 0, 2));
}

#[test]
fn portion_is_within_limits_but_has_at_least_one_entry() {
    let mut ring = ring(4);
    let next = |ring: &Ring<u64>, seq, count, bytes| {
        let portion = ring.portion(Place::new(seq), &ReplayLimits { count, bytes })?;
        Ok((portion.entries, portion.through.seq, portion.more))
    };
    assert_eq!(next(&ring, 0, 3, 100), Ok((0..3, 30, true)));
    assert_eq!(next(&ring, 30, 3, 100), Ok((3..4, 40, false)));
    assert_eq!(next(&ring, 10, 3, 100), Ok((1..4, 40, false)), "exactly as many");
    assert_eq!(next(&ring, 10, 9, 20), Ok((1..3, 30, true)));
    assert_eq!(next(&ring, 10, 9, 19), Ok((1..2, 20, true)));
    assert_eq!(next(&ring, 10, 9, 0), Ok((1..2, 20, true)), "one is always given");
    assert_eq!(next(&ring, 10, 0, 100), Ok((1..2, 20, true)));
    assert_eq!(next(&ring, 10, usize::MAX, u64::MAX), Ok((1..4, 40, false)));
    assert_eq!(next(&ring, 40, 0, 0), Ok((4..4, 40, false)));
    let usual = ReplayLimits { count: 256, bytes: 65_536 };
    assert_eq!(ReplayLimits::PORTION, usual);
    assert_eq!(next(&ring, 77, 9, 9), Ok((4..4, 77, false)), "nothing follows what is to come");
    ring.enforce(&Limits { count: 2, ..NEVER }, 0);
    assert_eq!(next(&ring, 19, 9, 100), Err(GapReason::Overwritten));
    assert_eq!(next(&ring, 20, 9, 19), Ok((0..1, 30, true)), "bytes that are gone do not count");
}

#[test]
fn entries_are_read_from_either_end() {
    let ring = ring(4);
    let seqs = |range| ring.entries(range).map(|entry| entry.place.seq).collect::<Vec<_>>();
    assert_eq!(seqs(1..3), [20, 30]);
    assert_eq!(seqs(3..99), [40]);
    assert_eq!(seqs(9..99), [0; 0]);
    let newest: Vec<_> = ring.entries(0..4).rev().map(|entry| *entry.value).take(2).collect();
    assert_eq!(newest, [4, 3]);
    for (seq, after, at) in [(0, 0, 0), (10, 1, 0), (11, 1, 1), (40, 4, 3), (41, 4, 4)] {
        let place = Place::new(seq);
        assert_eq!((ring.index_after(place), ring.index_at(place)), (after, at), "{seq}");
    }
    assert_eq!(ring.bytes_of(1..3), 20);
    assert_eq!((ring.bytes_of(3..99), ring.bytes_of(9..99)), (10, 0));
}

#[test]
fn ring_memory_follows_the_number_of_entries() {
    let mut ring = Ring::new(EPOCH, Place::ZERO);
    assert_eq!(ring.entries.capacity(), 0);
    for n in 1..=1_000u64 {
        assert!(ring.push(Place::new(n), n, 1, n));
        let (len, room) = (n as usize, ring.entries.capacity());
        assert!(len <= room && room <= (len + len / 4).max(len + 1), "{room} for {len}");
    }
    for left in (0..1_000usize).rev() {
        ring.enforce(&Limits { count: left, ..NEVER }, 0);
        let room = ring.entries.capacity();
        assert!(room >= left && room <= (2 * left + 1).min(1_000 * left), "{room}");
        assert_eq!(values(&ring).first().copied(), (left > 0).then_some(1_001 - left as u64));
    }
    assert_eq!(ring.entries.capacity(), 0);
}
