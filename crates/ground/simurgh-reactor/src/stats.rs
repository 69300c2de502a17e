//! A shard's counters. The loop counts in plain integers and publishes them once a turn into
//! relaxed atomics that only it writes, so that other threads read them without a lock and a
//! send costs no atomic operation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds, in nanoseconds, of [`Counts::turns_by_duration`]; the last bucket has none.
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

/// Buckets, including the one without a bound.
const TURN_BUCKETS: usize = TURN_BUCKETS_NS.len() + 1;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters of a shard as plain numbers: [`ReactorStats::read`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
            /// Turns by their duration, without waiting: see [`TURN_BUCKETS_NS`].
            pub turns_by_duration: [u64; TURN_BUCKETS],
        }

        /// The published counters of one shard: only its thread writes them, any thread reads them.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ReactorStats {
            $($name: AtomicU64,)*
            turns_by_duration: [AtomicU64; TURN_BUCKETS],
        }

        impl ReactorStats {
            /// The counters at the end of the shard's last turn.
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
    /// Outgoing connections that were established.
    connected,
    /// Outgoing connections that were refused or timed out, but not those that the handler closed.
    connect_failed,
    /// Connections given away by hand-off.
    taken,
    /// Connections that ended here, for any reason.
    closed,
    /// Connections with a descriptor open now.
    open,
    /// Local connections open now.
    local,
    /// Bytes read from peers.
    bytes_in,
    /// Bytes that the kernel accepted for peers.
    bytes_out,
    /// Reads that returned bytes.
    reads,
    /// Write calls.
    writes,
    /// Write calls that the kernel accepted only in part or not at all: the peer reads too slowly.
    writes_blocked,
    /// Connections cut because of their queue, for any reason.
    slow_cut,
    /// Connections cut because their queue did not move.
    stalled_cut,
    /// Connections cut as the worst ones, because too much waited on the shard.
    outbound_shed,
    /// Bytes that peers have not taken; shared frames count once.
    waiting_bytes,
    /// Milliseconds in which it could not serve: a stopped process, or a turn above a second.
    lost_ms,
    /// Bytes waiting in outbound queues now.
    queued_bytes,
    /// Connections accepted from the reserve, over the shard's capacity.
    over_capacity,
    /// Times accepting paused: no descriptor left (until one closes) or no memory (100 ms).
    accept_pauses,
    /// Hand-offs refused because the other side's queue was full.
    hand_off_refused,
    /// TLS handshakes under way now, without those that wait to begin.
    tls_under_way,
    /// TLS handshakes that were done.
    tls_handshakes,
    /// Of them with TLS 1.2.
    tls_12,
    /// Of them resumed by a ticket.
    tls_resumed,
    /// TLS handshakes that failed.
    tls_failed,
    /// Connections closed because too many others had a handshake under way, or waited for one.
    tls_refused,
    /// Messages taken from the mailbox.
    mails,
    /// Turns of the loop.
    turns,
    /// Duration of all turns by the clock, nanoseconds, without waiting.
    turn_ns,
    /// Duration of the longest turn by the clock, nanoseconds, without waiting.
    turn_max_ns,
    /// The longest turn by the thread's CPU time, nanoseconds: without time that other threads ran.
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
    fn turn_durations_are_counted_in_buckets_and_published() {
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
