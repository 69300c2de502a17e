//! A timing wheel over users: when each is due next, in ticks (`time.rs`).
//!
//! Four wheels of 256 slots: a slot of the first is a tick, a slot of each other is a turn of the
//! one before, so 2^32 ticks fit. Slots are lists through the users' own records ([`Link`]), so a
//! timer costs 12 bytes there, a few instructions to set or unset, and no memory here.

const SLOTS: usize = 256;
const LEVELS: usize = 4;
/// End of a list; as a due time: not in the wheel.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    next: u32,
    prev: u32,
    /// When; [`NONE`] if no timer is set.
    due_tick: u32,
}

impl Link {
    pub(crate) const UNSET: Self = Self { next: NONE, prev: NONE, due_tick: NONE };

    #[cfg(test)]
    pub(crate) fn due(due_tick: Option<u32>) -> Self {
        Self { due_tick: due_tick.unwrap_or(NONE), ..Self::UNSET }
    }

    pub(crate) fn due_tick(self) -> Option<u32> {
        (self.due_tick != NONE).then_some(self.due_tick)
    }
}

pub(crate) trait Links {
    fn link(&mut self, user: u32) -> &mut Link;
}

pub(crate) struct Wheel {
    /// First users of the slots, level by level.
    heads: Box<[u32; SLOTS * LEVELS]>,
    used: [[u64; SLOTS / 64]; LEVELS],
    /// All users due before this have been taken.
    now_tick: u32,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            heads: Box::new([NONE; SLOTS * LEVELS]),
            used: [[0; SLOTS / 64]; LEVELS],
            now_tick: 0,
        }
    }

    /// Sets the user's timer, in place of a previous one. A time in the past is due at once.
    pub(crate) fn set(&mut self, links: &mut impl Links, user: u32, due_tick: u32) {
        self.unset(links, user);
        let due_tick = due_tick.clamp(self.now_tick, NONE - 1);
        self.place(links, user, due_tick);
    }

    pub(crate) fn unset(&mut self, links: &mut impl Links, user: u32) {
        let Link { next, prev, due_tick } = *links.link(user);
        if due_tick == NONE {
            return;
        }
        *links.link(user) = Link::UNSET;
        if next != NONE {
            links.link(next).prev = prev;
        }
        if prev != NONE {
            links.link(prev).next = next;
            return;
        }
        // It was the first of its slot, whose level depends on when it was placed.
        for level in 0..LEVELS {
            let slot = slot(level, due_tick);
            if self.head(level, slot) == user {
                self.set_head(level, slot, next);
                return;
            }
        }
    }

    /// The next user that is due at `now_tick`, if any; its timer is unset.
    pub(crate) fn pop(&mut self, links: &mut impl Links, now_tick: u32) -> Option<u32> {
        loop {
            let slot = slot(0, self.now_tick);
            let user = self.head(0, slot);
            if user != NONE {
                let next = links.link(user).next;
                *links.link(user) = Link::UNSET;
                if next != NONE {
                    links.link(next).prev = NONE;
                }
                self.set_head(0, slot, next);
                return Some(user);
            }
            if self.now_tick >= now_tick {
                return None;
            }
            self.step(links, now_tick);
        }
    }

    /// The latest time at which to ask the wheel again: the next due time, or a time before it.
    /// `None` if no timer is set.
    pub(crate) fn next_tick(&self) -> Option<u32> {
        let mut unit = 1_u64;
        for level in 0..LEVELS {
            let at = slot(level, self.now_tick);
            // On the levels above the first, the current slot has been emptied already.
            if let Some(ahead) = self.first_used(level, at, if level == 0 { 0 } else { 1 }) {
                let start = u64::from(self.now_tick) / unit * unit;
                let due = (start + ahead as u64 * unit).max(u64::from(self.now_tick));
                return Some(u32::try_from(due).unwrap_or(NONE - 1));
            }
            unit *= SLOTS as u64;
        }
        None
    }

    /// Advances to the next time at which a user may be due, at most to `until_tick`.
    fn step(&mut self, links: &mut impl Links, until_tick: u32) {
        let next = self.next_tick().unwrap_or(until_tick).max(self.now_tick + 1).min(until_tick);
        // Never past the end of a turn of the first wheel, where users move down from the others.
        let turn_end = (self.now_tick | (SLOTS as u32 - 1)).saturating_add(1);
        self.now_tick = next.min(turn_end);
        if slot(0, self.now_tick) == 0 {
            self.come_down(links, 1);
        }
    }

    /// Moves the users of a slot of `level` to lower levels.
    fn come_down(&mut self, links: &mut impl Links, level: usize) {
        if level >= LEVELS {
            return;
        }
        let slot = slot(level, self.now_tick);
        if slot == 0 {
            self.come_down(links, level + 1);
        }
        let mut user = self.head(level, slot);
        self.set_head(level, slot, NONE);
        while user != NONE {
            let Link { next, due_tick, .. } = *links.link(user);
            self.place(links, user, due_tick);
            user = next;
        }
    }

    fn place(&mut self, links: &mut impl Links, user: u32, due_tick: u32) {
        // The highest digit in which the due time differs from now determines the level.
        let level = match due_tick ^ self.now_tick {
            0..=0xff => 0,
            0x100..=0xffff => 1,
            0x1_0000..=0xff_ffff => 2,
            _ => 3,
        };
        let slot = slot(level, due_tick);
        let next = self.head(level, slot);
        *links.link(user) = Link { next, prev: NONE, due_tick };
        if next != NONE {
            links.link(next).prev = user;
        }
        self.set_head(level, slot, user);
    }

    fn head(&self, level: usize, slot: usize) -> u32 {
        self.heads.get(level * SLOTS + slot).copied().unwrap_or(NONE)
    }

    fn set_head(&mut self, level: usize, slot: usize, user: u32) {
        if let Some(head) = self.heads.get_mut(level * SLOTS + slot) {
            *head = user;
        }
        if let Some(word) = self.used.get_mut(level).and_then(|words| words.get_mut(slot / 64)) {
            let bit = 1 << (slot % 64);
            *word = if user == NONE { *word & !bit } else { *word | bit };
        }
    }

    /// Distance to the first used slot from `at + skip` on, within this turn of the wheel.
    fn first_used(&self, level: usize, at: usize, skip: usize) -> Option<usize> {
        let words = self.used.get(level)?;
        let mut from = at + skip;
        while from < SLOTS {
            let word = words.get(from / 64).copied().unwrap_or(0) >> (from % 64);
            if word != 0 {
                return Some(from + word.trailing_zeros() as usize - at);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }
}

fn slot(level: usize, tick: u32) -> usize {
    (tick >> (8 * level)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table(Vec<Link>);

    impl Links for Table {
        fn link(&mut self, user: u32) -> &mut Link {
            &mut self.0[user as usize]
        }
    }

    #[test]
    fn timers_fire_exactly_at_their_tick_for_any_step_of_the_clock() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut wheel = Wheel::new();
            let mut table = Table(vec![Link::UNSET; 500]);
            let mut due: Vec<Option<u32>> = vec![None; 500];
            let mut now = 0_u32;
            for _ in 0..3_000 {
                let user = rng.u32(0..500);
                match rng.u8(0..8) {
                    0 => {
                        wheel.unset(&mut table, user);
                        due[user as usize] = None;
                    }
                    1..6 => {
                        let far = 1_u32 << rng.u32(0..26);
                        let at = now + rng.u32(0..far);
                        wheel.set(&mut table, user, at);
                        due[user as usize] = Some(at);
                    }
                    _ => {
                        let first = due.iter().flatten().min().copied();
                        let said = wheel.next_tick();
                        assert_eq!(first.is_some(), said.is_some());
                        assert!(said <= first, "asked again at {said:?}, due {first:?}");
                        let far = 1_u32 << rng.u32(0..20);
                        now += rng.u32(0..far);
                        while let Some(user) = wheel.pop(&mut table, now) {
                            let at = due[user as usize].take().expect("a timer that was set");
                            assert!(at <= now, "{at} ran at {now}");
                        }
                        assert!(due.iter().flatten().all(|at| *at > now), "one was left behind");
                    }
                }
                assert!((0..500).all(|u| table.0[u].due_tick() == due[u]));
            }
        }
    }

    #[test]
    fn idle_timer_wheel_returns_the_next_tick_to_check() {
        let (mut wheel, mut table) = (Wheel::new(), Table(vec![Link::UNSET; 2]));
        assert_eq!(wheel.next_tick(), None);
        wheel.set(&mut table, 0, 30_000);
        let (mut looks, mut now) = (0, 0);
        while wheel.pop(&mut table, now).is_none() {
            now = wheel.next_tick().expect("one is set");
            looks += 1;
        }
        assert_eq!(now, 30_000);
        assert!(looks <= 3, "{looks} looks for one timer");
    }
}
