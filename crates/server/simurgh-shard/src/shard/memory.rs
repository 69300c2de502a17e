//! Returns the memory of many closed connections to the system some time after.

use std::time::Duration;

use simurgh_core::{nanoseconds, until};
use simurgh_reactor::{Next, Now};

use super::Shard;

/// After this many ended connections or memberships memory is returned.
const CROWD: u64 = 256;
/// Bytes of free pages that are kept for new connections.
const FREE_KEPT: usize = 256 << 10;
/// When fewer have ended, memory is returned this long after the last.
const FEW_AFTER: Duration = Duration::from_secs(30);
/// Delay of returning memory: others may still be leaving.
const TIDY_AFTER: Duration = Duration::from_secs(4);
/// Delay between one shard and the next: while one shard has the allocator return memory, a request
/// of another does nothing.
const TIDY_APART: Duration = Duration::from_millis(5);

/// The allocator keeps empty pages for some rounds. To force it would return everything to the
/// system in one long turn; another thread does that.
const ROUNDS: u8 = 20;
const ROUND_AFTER: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Tidying {
    connections: u64,
    /// Connections and memberships that had ended when memory was last returned.
    before: u64,
    /// The number of ended ones at the last check while few, and the time until which that number
    /// must not grow for memory to be returned.
    few: (u64, Option<u64>),
    /// When memory is returned next, ns.
    at_ns: Option<u64>,
    /// The number of calls of the allocator.
    rounds: u8,
}

impl Tidying {
    pub(super) fn one_left(&mut self) {
        self.connections += 1;
    }

    /// Schedules the return for this time, or a little later.
    fn soon(&mut self, at_ns: u64, shard: u16) {
        let apart = TIDY_APART * u32::from(shard);
        self.few = (0, None);
        self.at_ns = Some(at_ns + nanoseconds(apart));
    }

    /// When memory is returned after a few have left, if none leaves before.
    fn few_left(&mut self, left: u64, now_ns: u64) -> Option<u64> {
        if left == 0 || self.at_ns.is_some() {
            return None;
        }
        if self.few.0 != left || self.few.1.is_none() {
            self.few = (left, Some(now_ns + nanoseconds(FEW_AFTER)));
        }
        self.few.1
    }
}

impl Shard {
    /// When many connections have left, has the allocator return what it keeps for new ones.
    pub(super) fn tidy(&mut self, now: Now) -> Next {
        let has_released = self.core.take_released();
        let ended = self.core.ended() + self.tidying.connections;
        let tidying = &mut self.tidying;
        let left = ended - tidying.before;
        // The last few empty the pages that were left almost empty.
        let more = tidying.at_ns.is_none() && simurgh_reactor::free_memory() >= FREE_KEPT;
        if left >= CROWD || more {
            tidying.before = ended;
            tidying.soon(now.ns + nanoseconds(TIDY_AFTER), self.index);
        } else if has_released || tidying.few_left(left, now.ns).is_some_and(|at| at <= now.ns) {
            tidying.before = ended;
            tidying.soon(now.ns, self.index);
        }
        let after = |at_ns: u64| Next::After(until(at_ns, now.ns));
        match tidying.at_ns {
            None => tidying.few_left(ended - tidying.before, now.ns).map_or(Next::Idle, after),
            Some(at_ns) if at_ns > now.ns => after(at_ns),
            Some(_) => {
                let is_given_up = simurgh_reactor::give_back_memory();
                tidying.rounds += u8::from(is_given_up);
                if tidying.rounds == ROUNDS {
                    (tidying.at_ns, tidying.rounds) = (None, 0);
                    return Next::Idle;
                }
                let delay = if is_given_up { ROUND_AFTER } else { Duration::ZERO };
                let at_ns = now.ns + nanoseconds(delay);
                tidying.at_ns = Some(at_ns);
                after(at_ns)
            }
        }
    }
}
