//! A shard's counters. The loop counts in plain integers and publishes them once a turn into
//! relaxed atomics that only it writes, so that other threads read them without a lock and a
//! send costs no atomic operation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds, in nanoseconds, of the buckets of [`Counts::turns_by_duration`]; the last
/// bucket has none.
pub const TURN_BUCKETS_NS: [u64; 12] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    25_000_000,
    100_000_000,
];

/// Buckets, the one without a bound included.
const TURN_BUCKETS: usize = TURN_BUCKETS_NS.len() + 1;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a shard counted, as plain numbers: [`ReactorStats::read`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
            /// Turns by how long they took, waiting excluded: see [`TURN_BUCKETS_NS`].
            pub turns_by_duration: [u64; TURN_BUCKETS],
        }

        /// The published counters of one shard: written by its thread only, read by any.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ReactorStats {
            $($name: AtomicU64,)*
            turns_by_duration: [AtomicU64; TURN_BUCKETS],
        }

        impl ReactorStats {
            /// The counters as of the end of the shard's last turn.
            pub fn read(&self) -> Counts {
                Counts {
                    $($name: self.$name.load(Relaxed),)*
                    turns_by_duration: std::array::from_fn(|bucket| {
                        self.turns_by_duration[bucket].load(Relaxed)
                    }),
                }
            }

            pub(crate) fn publish(&self, counts: &Counts) {
                $(self.$name.store(counts.$name, Relaxed);)*
                for (cell, count) in self.turns_by_duration.iter().zip(counts.turns_by_duration) {
                    cell.store(count, Relaxed);
                }
            }
        }
    };
}

counters! {
    /// Connections accepted from a listener.
    accepted,
    /// Connections that came by hand-off.
    adopted,
    /// Connections begun by [`crate::Io::connect`].
    connects,
    /// Of those, the ones that came up.
    connected,
    /// Of those, the ones that were refused, timed out and the like; not those closed from here.
    connect_failed,
    /// Connections given away by hand-off or [`crate::Io::take`].
    taken,
    /// Connections that ended here, for whatever reason.
    closed,
    /// Connections with a descriptor open now.
    open,
    /// Local connections open now.
    local,
    /// Bytes read from peers.
    bytes_in,
    /// Bytes the kernel took for peers.
    bytes_out,
    /// Reads that brought bytes.
    reads,
    /// Write calls.
    writes,
    /// Write calls that the kernel took only in part or not at all: the peer reads too slowly.
    writes_blocked,
    /// Connections cut because of their queue, whatever was wrong with it.
    slow_cut,
    /// Of those, the ones whose queue stood still.
    stalled_cut,
    /// Of those, the ones that were the worst when too much waited on the shard.
    outbound_shed,
    /// Bytes there for peers who have not taken them: shared frames once.
    waiting_bytes,
    /// Milliseconds in which the shard could not serve: the process stopped, or a turn of more than
    /// a second.
    lost_ms,
    /// Bytes waiting in outbound queues now.
    queued_bytes,
    /// Connections accepted from the reserve, over the shard's capacity.
    over_capacity,
    /// Times accepting paused: no descriptor left (until one closes) or no memory (100 ms).
    accept_pauses,
    /// Hand-offs refused by the other side's full queue.
    hand_off_refused,
    /// Mails taken from the mailbox.
    mails,
    /// Turns of the loop.
    turns,
    /// What all turns took by the clock, nanoseconds, waiting excluded.
    turn_ns,
    /// The longest turn by the clock, nanoseconds, waiting excluded.
    turn_max_ns,
    /// The longest turn by the thread's CPU time, nanoseconds: without what others had of it.
    turn_cpu_max_ns,
    /// CPU time of the shard's thread, nanoseconds.
    cpu_ns,
}

impl Counts {
    pub(crate) fn count_turn(&mut self, duration_ns: u64, cpu_ns: u64) {
        self.turns += 1;
        self.turn_ns += duration_ns;
        self.turn_max_ns = self.turn_max_ns.max(duration_ns);
        self.turn_cpu_max_ns = self.turn_cpu_max_ns.max(cpu_ns);
        let bucket = TURN_BUCKETS_NS.iter().take_while(|bound| duration_ns >= **bound).count();
        if let Some(count) = self.turns_by_duration.get_mut(bucket) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_fall_into_their_buckets_and_are_published() {
        let mut counts = Counts::default();
        for ns in [0, 249_999, 250_000, 999_999, 1_999_999, 3_000_000, 9_999_999, 10_000_000] {
            counts.count_turn(ns, ns / 2);
        }
        assert_eq!(counts.turns_by_duration, [1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!((counts.turns, counts.turn_max_ns), (8, 10_000_000));
        assert_eq!(counts.turn_ns, 26_499_996);
        assert_eq!(counts.turn_cpu_max_ns, 5_000_000);
        let stats = ReactorStats::default();
        stats.publish(&counts);
        assert_eq!(stats.read(), counts);
    }
}
