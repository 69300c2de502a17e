//! A socket's part of the registry: the first of its memberships, and how many of them are
//! channels. The socket's record holds it, and only the registry changes it.

use simurgh_channel::NO_MEMBERSHIP;

/// Two halves of a number, so that it has an alignment of 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct List {
    first: [u16; 2],
    channels: u16,
}

const _: () = assert!(size_of::<List>() == 6, "a socket's list is budgeted at 6 bytes");

impl Default for List {
    fn default() -> Self {
        let mut list = Self { first: [0; 2], channels: 0 };
        list.begin_with(NO_MEMBERSHIP);
        list
    }
}

impl List {
    /// The newest membership, or [`NO_MEMBERSHIP`].
    #[inline]
    pub(crate) fn first(self) -> u32 {
        let [low, high] = self.first;
        u32::from(low) | u32::from(high) << 16
    }

    #[inline]
    pub(crate) fn channels(self) -> u16 {
        self.channels
    }

    pub(super) fn begin_with(&mut self, membership: u32) {
        self.first = [membership as u16, (membership >> 16) as u16];
    }

    pub(super) fn one_more(&mut self) {
        self.channels += 1;
    }

    pub(super) fn one_less(&mut self) {
        self.channels = self.channels.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_begins_with_any_membership() {
        assert_eq!((List::default().first(), List::default().channels()), (NO_MEMBERSHIP, 0));
        for membership in [0, 1, 0xffff, 0x1_0000, 0x1234_5678, NO_MEMBERSHIP] {
            let mut list = List::default();
            list.begin_with(membership);
            assert_eq!(list.first(), membership);
        }
    }
}
