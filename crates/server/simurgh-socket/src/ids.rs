//! Random ids that cannot be guessed.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Ids {
    random: RandomState,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", self.number())
    }

    /// A UUID of version 4 (RFC 9562).
    pub(crate) fn uuid(&self) -> String {
        let it = self.number() & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let [a, b, c, d] = [it >> 96, it >> 80, it >> 64, it >> 48];
        let (b, c, d, e) = (b & 0xffff, c & 0xffff, d & 0xffff, it & 0xffff_ffff_ffff);
        format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }

    fn number(&self) -> u128 {
        let id = self.next.fetch_add(1, Relaxed);
        let half = |which: u8| u128::from(self.random.hash_one((id, which)));
        half(0) << 64 | half(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn generated_ids_differ() {
        let (one, other) = (Ids::default(), Ids::default());
        let ids: HashSet<_> = (0..1_000).flat_map(|_| [one.hex(), other.hex()]).collect();
        assert_eq!(ids.len(), 2_000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    #[test]
    fn uuids_are_of_version_4() {
        let ids = Ids::default();
        let uuids: HashSet<_> = (0..1_000).map(|_| ids.uuid()).collect();
        assert_eq!(uuids.len(), 1_000);
        for uuid in uuids {
            let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
            assert!(uuid[14..].starts_with('4'), "{uuid}");
            assert!(uuid[19..].starts_with(['8', '9', 'a', 'b']), "{uuid}");
        }
    }
}
