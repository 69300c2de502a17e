//! Records with stable numbers, in pages: growing copies at most one page.
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

/// In place of a number: no record.
pub const NIL: u32 = u32::MAX;

/// Records of a page; all but the last page are full.
const PAGE: usize = 32;
/// How many are added to a page of more than four.
const STEP: usize = 8;

#[derive(Debug)]
enum Slot<T> {
    Free(u32),
    Taken(T),
}

/// Records that are found by numbers, which do not change. A removed record's number is reused.
#[derive(Debug)]
pub struct Slab<T> {
    pages: Vec<Box<[Slot<T>]>>,
    free: u32,
    live: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// Bytes that a record takes.
    pub const SLOT_BYTES: usize = size_of::<Slot<T>>();

    /// Without records, and without memory.
    pub const fn new() -> Self {
        Slab { pages: Vec::new(), free: NIL, live: 0 }
    }

    /// Adds a record. Returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        let at = self.free;
        if let Some(slot) = self.slot_mut(at)
            && let Slot::Free(next) = mem::replace(slot, Slot::Taken(value))
        {
            self.free = next;
            self.live += 1;
        }
        at
    }

    /// Removes a record. The memory stays.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let free = self.free;
        let slot = self.slot_mut(at)?;
        match mem::replace(slot, Slot::Free(free)) {
            Slot::Taken(value) => {
                self.free = at;
                self.live -= 1;
                Some(value)
            }
            was @ Slot::Free(_) => {
                *slot = was;
                None
            }
        }
    }

    /// The record with a number, to be changed.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.slot_mut(at)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// The record with a number.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        let at = at as usize;
        match self.pages.get(at / PAGE)?.get(at % PAGE)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// All records with their numbers, in the order of these.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().flatten().zip(0..).filter_map(|(slot, at)| match slot {
            Slot::Taken(value) => Some((at, value)),
            Slot::Free(_) => None,
        })
    }

    /// The same, taken out.
    pub fn into_records(self) -> impl Iterator<Item = (u32, T)> {
        self.pages.into_iter().flatten().zip(0..).filter_map(|(slot, at)| match slot {
            Slot::Taken(value) => Some((at, value)),
            Slot::Free(_) => None,
        })
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// All numbers are below this.
    pub fn slots(&self) -> usize {
        match self.pages.split_last() {
            Some((last, full)) => full.len() * PAGE + last.len(),
            None => 0,
        }
    }

    fn slot_mut(&mut self, at: u32) -> Option<&mut Slot<T>> {
        let at = at as usize;
        self.pages.get_mut(at / PAGE)?.get_mut(at % PAGE)
    }

    fn grow(&mut self) {
        let part = self.pages.pop_if(|page| page.len() < PAGE);
        let base = self.pages.len() * PAGE;
        let mut page = part.map_or_else(Vec::new, <[_]>::into_vec);
        let old = page.len();
        let new = match old {
            0 if base == 0 => 1,
            1 | 2 | 4 => old * 2,
            _ => old + STEP,
        };
        page.reserve_exact(new - old);
        for at in old + 1..new {
            page.push(Slot::Free((base + at) as u32));
        }
        page.push(Slot::Free(NIL));
        self.free = (base + old) as u32;
        if base == 0 {
            self.pages.reserve_exact(1);
        }
        self.pages.push(page.into_boxed_slice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_numbers_are_stable_and_reused() {
        let mut slab = Slab::new();
        let at: Vec<u32> = (0..100).map(|n| slab.insert(n)).collect();
        assert_eq!(at, (0..100).collect::<Vec<u32>>());
        assert!(slab.slots() < 100 + STEP, "{}", slab.slots());
        assert_eq!((slab.remove(40), slab.remove(40)), (Some(40), None));
        assert_eq!(slab.remove(7), Some(7));
        assert_eq!((slab.get(7), slab.len()), (None, 98));
        assert_eq!((slab.insert(1000), slab.insert(1001)), (7, 40));
        assert_eq!((slab.get(7), slab.get(40)), (Some(&1000), Some(&1001)));
        assert_eq!(slab.get(NIL), None);
        assert_eq!(slab.iter().map(|(_, it)| it).sum::<u32>(), 4950 - 47 + 2001);
    }
}
