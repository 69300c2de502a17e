//! Counters of a shard: written by its thread alone, read by any, with plain relaxed loads and
//! stores.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use simurgh_history::GapReason as Gap;

use crate::outcome::{Reason, Stop};

/// A counter with one writer: no locked instruction, only a load and a store.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning shard may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets a gauge; only the owning shard may call this.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds, in nanoseconds, of the buckets of [`Histogram`]; the last bucket has none.
pub const HISTOGRAM_BOUNDS_NS: [u64; 12] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    25_000_000,
    100_000_000,
    500_000_000,
    2_500_000_000,
    10_000_000_000,
];

/// Durations in buckets; with one writer, as [`Counter`].
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; HISTOGRAM_BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

impl Histogram {
    /// Adds one duration; only the owning shard may call this.
    pub fn add(&self, ns: u64) {
        let bucket = HISTOGRAM_BOUNDS_NS.iter().take_while(|bound| ns > **bound).count();
        if let Some(count) = self.buckets.get(bucket) {
            count.add(1);
        }
        self.sum_ns.add(ns);
    }

    /// The count of durations up to each bound and above the previous one, the last without bound;
    /// and the sum of all, in nanoseconds.
    pub fn value(&self) -> ([u64; HISTOGRAM_BOUNDS_NS.len() + 1], u64) {
        (self.buckets.each_ref().map(Counter::value), self.sum_ns.value())
    }
}

/// Name, Prometheus type, help text and reader of a counter.
pub type Described = (&'static str, &'static str, &'static str, fn(&ShardMetrics) -> u64);

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $field:ident: $kind:ident,)*) => {
        /// What one shard's sockets and channels did.
        #[derive(Debug, Default)]
        pub struct ShardMetrics {
            $($(#[doc = $doc])* pub $field: Counter,)*
            /// Time from a resuming join to its reply.
            pub resume_times: Histogram,
        }

        impl ShardMetrics {
            /// All counters, in the order of the fields.
            pub const ALL: &'static [Described] = &[$((
                stringify!($field),
                stringify!($kind),
                concat!($($doc),*),
                |all| all.$field.value(),
            ),)*];
        }
    };
}

counters! {
    /// Open sockets.
    sockets: gauge,
    /// Joined channels.
    channels: gauge,
    /// Channels that hibernate because they were idle.
    channels_hibernating: gauge,
    /// Topics with members.
    topics: gauge,
    /// Entries of the subscriber tables: channels, ids of sockets, further topics of channels.
    subscriptions: gauge,
    /// Accepted upgrades.
    upgrades: counter,
    /// Upgrades refused with an HTTP error.
    upgrades_refused: counter,
    /// Connections refused with 503 because the shard or the server was full.
    refused_full: counter,
    /// Accepted joins.
    joins: counter,
    /// Joins refused by the application or a limit.
    joins_refused: counter,
    /// Messages received from clients, heartbeats included.
    messages_in: counter,
    /// Heartbeats that the server replied to.
    heartbeats: counter,
    /// Messages sent to clients: replies, pushes, and broadcasts once for each member.
    messages_out: counter,
    /// Compressed messages received.
    inflated_messages: counter,
    /// Bytes of these as received.
    inflated_in_bytes: counter,
    /// Bytes of these inflated.
    inflated_out_bytes: counter,
    /// Messages compressed, broadcasts once for all members with the same serializer.
    deflated_messages: counter,
    /// Bytes of these before.
    deflated_in_bytes: counter,
    /// Bytes of these compressed.
    deflated_out_bytes: counter,
    /// Broadcasts published on this shard.
    broadcasts: counter,
    /// Delivered broadcasts, one per member.
    deliveries: counter,
    /// Presences of the topics whose home is this shard.
    presences: gauge,
    /// Of these, presences of other nodes' members.
    presences_remote: gauge,
    /// Diffs, lists and summaries of presences, each counted once for all its receivers.
    presence_events: counter,
    /// Topics with retained messages on this shard.
    history_topics: gauge,
    /// Retained messages.
    history_messages: gauge,
    /// Bytes of retained messages with their overhead.
    history_bytes: gauge,
    /// Bytes of topics with a history besides their messages.
    history_topic_bytes: gauge,
    /// Messages stored in histories.
    history_kept: counter,
    /// Messages neither stored nor delivered because their id was stored before.
    history_duplicates: counter,
    /// Messages delivered but not stored because they exceed their topic's limit.
    history_too_large: counter,
    /// Messages removed because their topic had more than its `count`.
    history_evicted_count: counter,
    /// Messages removed because their topic had more than its `bytes`.
    history_evicted_bytes: counter,
    /// Messages removed because they were older than their topic's `age`.
    history_evicted_age: counter,
    /// Messages removed because all histories exceeded `history_bytes_max`.
    history_evicted_evicted: counter,
    /// Messages removed because their history was deleted.
    history_evicted_purged: counter,
    /// Gaps reported to the members of a topic.
    history_gaps: counter,
    /// Joins that received all missed messages.
    resume_recovered: counter,
    /// Joins with a gap: the missed messages are too old.
    resume_gap_expired: counter,
    /// Joins with a gap: newer messages exceeded the topic's limits.
    resume_gap_overwritten: counter,
    /// Joins with a gap: all histories exceeded their limit.
    resume_gap_evicted: counter,
    /// Joins with a gap: the history was deleted.
    resume_gap_purged: counter,
    /// Joins with a gap: the position is of another epoch, or invalid.
    resume_gap_epoch: counter,
    /// Joins with a gap: more messages than `history_replay_count`.
    resume_gap_too_many: counter,
    /// Joins with a gap: more bytes than `history_replay_bytes`.
    resume_gap_too_large: counter,
    /// Joins with a gap: the missed messages are unknown.
    resume_gap_unavailable: counter,
    /// Joins with a gap: messages in transit were lost when the client left.
    resume_gap_lost: counter,
    /// Missed messages delivered to resuming clients.
    resume_messages: counter,
    /// Bytes of broadcasts in transit.
    fanout_bytes: gauge,
    /// Topics with broadcasts in transit.
    fanout_topics: gauge,
    /// Times the server paused a publisher.
    publishers_held: counter,
    /// Bytes of incomplete messages and heads.
    inbound_bytes: gauge,
    /// Open long-poll sessions; they count as sockets, too.
    longpoll_sessions: gauge,
    /// Long-poll sessions ended because their client stopped polling.
    longpoll_expired: counter,
    /// Long-poll sessions ended because a response with positions was lost.
    longpoll_lost: counter,
    /// Binary messages dropped because long polling cannot carry them.
    longpoll_binary_dropped: counter,
    /// Clients closed because they read too slowly (1013).
    slow_peer_disconnects: counter,
    /// Connections closed because they sent nothing (1002).
    idle_timeouts: counter,
    /// Sockets (3000) and channels ended because their time was over, or kicked so as to rejoin.
    expirations: counter,
    /// Connections closed because their upgrade request took too long.
    handshake_timeouts: counter,
    /// Sockets closed from the observer (1001).
    observer_disconnects: counter,
    /// Frames that violate RFC 6455 (1002).
    errors_protocol: counter,
    /// Text that is not UTF-8 (1007).
    errors_utf8: counter,
    /// Frames or messages over the limit (1009).
    errors_too_big: counter,
    /// Messages that are not Channels messages (1011).
    errors_bad_message: counter,
    /// Clients closed because incomplete messages exceeded the shard's budget (1013).
    errors_inbound_budget: counter,
    /// Messages and heads that took too long to arrive (1013).
    errors_message_timeout: counter,
    /// Broadcasts of channels that were not sent: too large, or with a reserved event.
    errors_broadcast_too_big: counter,
    /// Connects, joins and messages that the application did not handle in time.
    errors_decision_timeout: counter,
    /// Broadcasts of channels that were not confirmed as stored in time.
    errors_unconfirmed: counter,
    /// Broadcasts of channels that the broker refused to store.
    errors_not_stored: counter,
    /// Pushes, subscriptions and work of join functions, dropped because the join was not decided.
    errors_before_join: counter,
    /// Presence calls refused: already tracked, not tracked, or too many.
    errors_presence_refused: counter,
    /// Messages for topics that are not joined or have no channel.
    errors_unmatched_topic: counter,
    /// Payloads whose shape a declared or Supabase channel does not accept.
    errors_wrong_payload: counter,
    /// Joins, events and renewals that tokens do not allow.
    errors_unauthorized: counter,
    /// Joins over a limit.
    limited_joins: counter,
    /// Messages over a limit of messages.
    limited_messages: counter,
    /// Messages over a limit of bytes.
    limited_bytes: counter,
    /// Changes of presences over a limit.
    limited_presence_calls: counter,
    /// Messages and joins with a payload over their channel's limit.
    limited_payload_bytes: counter,
    /// Connections refused because their address has too many (429).
    limited_address_connections: counter,
    /// Connections refused because their user has too many (429).
    limited_user_connections: counter,
    /// Callbacks that panicked.
    errors_callback_panic: counter,
    /// Channels that stopped abnormally.
    errors_abnormal_stop: counter,
    /// Broadcasts that a member's serializer cannot carry.
    errors_encode: counter,
    /// Callbacks that blocked the shard longer than `callback_warning`.
    slow_callbacks: counter,
}

impl ShardMetrics {
    /// Counts a client that resumed; `None`: it received all missed messages.
    pub fn count_resume(&self, gap: Option<Gap>) {
        let counter = match gap {
            None => &self.resume_recovered,
            Some(Gap::Expired) => &self.resume_gap_expired,
            Some(Gap::Overwritten) => &self.resume_gap_overwritten,
            Some(Gap::Evicted) => &self.resume_gap_evicted,
            Some(Gap::Purged) => &self.resume_gap_purged,
            Some(Gap::Epoch) => &self.resume_gap_epoch,
            Some(Gap::TooMany) => &self.resume_gap_too_many,
            Some(Gap::TooLarge) => &self.resume_gap_too_large,
            Some(Gap::Unavailable) => &self.resume_gap_unavailable,
            Some(_) => &self.resume_gap_lost,
        };
        counter.add(1);
    }

    /// Counts the end of a channel if its reason has a counter.
    pub fn count_end(&self, reason: Reason) {
        match reason {
            Reason::Stopped(Stop::Abnormal) => self.errors_abnormal_stop.add(1),
            Reason::Stopped(Stop::Expired) => self.expirations.add(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_in_first_bucket_whose_bound_it_does_not_exceed() {
        let times = Histogram::default();
        for ns in [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001] {
            times.add(ns);
        }
        let (buckets, sum_ns) = times.value();
        assert_eq!(buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(sum_ns, 20_000_100_002);
        assert!(HISTOGRAM_BOUNDS_NS.is_sorted());
    }

    #[test]
    fn each_gap_reason_has_its_own_counter() {
        let metrics = ShardMetrics::default();
        let counted = |name: &str| {
            let found = ShardMetrics::ALL.iter().find(|(it, ..)| *it == name);
            found.map(|(.., read)| read(&metrics))
        };
        for &gap in Gap::ALL {
            let name = format!("resume_gap_{gap}");
            assert_eq!(counted(&name), Some(0), "{name}");
            metrics.count_resume(Some(gap));
            assert_eq!(counted(&name), Some(1), "{name}");
        }
        metrics.count_resume(None);
        assert_eq!(counted("resume_recovered"), Some(1));
    }
}
