//! The table of a worker's users.

use super::User;
use crate::wheel::{Link, Links};

/// Users by index, in pages that never move; a freed place is reused next.
pub(crate) struct Users {
    pages: Vec<Box<[Place]>>,
    /// The first of the free places, which are a list.
    free: u32,
    len: usize,
}

enum Place {
    Used(User),
    Free { next: u32 },
}

// Free places cost no memory: the tag uses unused values of `UserState`.
const _: () = assert!(size_of::<Place>() == size_of::<User>());

/// Users in a page: as many as fit in 64 KiB, which allocators give without waste.
const PAGE: usize = (64 << 10) / size_of::<Place>();
const NO_PLACE: u32 = u32::MAX;

impl Users {
    pub(crate) const fn new() -> Self {
        Self { pages: Vec::new(), free: NO_PLACE, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn places(&self) -> u32 {
        u32::try_from(self.pages.len() * PAGE).unwrap_or(u32::MAX)
    }

    pub(crate) fn add(&mut self, user: User) -> u32 {
        if self.free == NO_PLACE {
            let (first, end) = (self.places(), self.places() + PAGE as u32);
            let next = |place| if place + 1 == end { NO_PLACE } else { place + 1 };
            self.pages.push((first..end).map(|place| Place::Free { next: next(place) }).collect());
            self.free = first;
        }
        let index = self.free;
        if let Some(place) = self.place(index)
            && let Place::Free { next } = *place
        {
            *place = Place::Used(user);
            self.free = next;
            self.len += 1;
        }
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<User> {
        self.get(index)?;
        let free = Place::Free { next: self.free };
        let used = std::mem::replace(self.place(index)?, free);
        self.free = index;
        self.len -= 1;
        match used {
            Place::Used(user) => Some(user),
            Place::Free { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<&mut User> {
        match self.place(index)? {
            Place::Used(user) => Some(user),
            Place::Free { .. } => None,
        }
    }

    #[inline]
    fn place(&mut self, index: u32) -> Option<&mut Place> {
        let index = index as usize;
        self.pages.get_mut(index / PAGE)?.get_mut(index % PAGE)
    }
}

impl Links for Users {
    fn link(&mut self, user: u32) -> &mut Link {
        // The wheel only has users that exist: timers are unset before a user is removed.
        match self.get(user) {
            Some(user) => &mut user.timer,
            None => unreachable!("a timer of a user that is gone"),
        }
    }
}
