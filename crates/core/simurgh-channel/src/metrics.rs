//! Counters of a shard: written by its thread alone, read by any, with plain relaxed loads and
//! stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// How long something took, each time; with one writer, as [`Counter`].
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
            /// From joins that resumed to their answers.
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
    /// Sockets open now, upgraded.
    sockets: gauge,
    /// Channels joined now.
    channels: gauge,
    /// Channels that hibernate: nothing has happened on them for a while.
    channels_hibernating: gauge,
    /// Topics with members now.
    topics: gauge,
    /// Entries of the subscriber tables now: channels, ids of sockets, channels' further topics.
    subscriptions: gauge,
    /// Upgrades accepted.
    upgrades: counter,
    /// Upgrades refused with an HTTP error.
    upgrades_refused: counter,
    /// Connections refused with 503 because the shard or the server was full.
    refused_full: counter,
    /// Joins that were ok.
    joins: counter,
    /// Joins refused by the application or a limit.
    joins_refused: counter,
    /// Messages received from clients, heartbeats included.
    messages_in: counter,
    /// Heartbeats answered.
    heartbeats: counter,
    /// Messages sent to clients: replies, pushes, and broadcasts once for each member.
    messages_out: counter,
    /// Broadcasts taken by this shard.
    broadcasts: counter,
    /// Broadcasts delivered, one for each member.
    deliveries: counter,
    /// Presences of the topics that this shard keeps, now.
    presences: gauge,
    /// Of these, presences of other nodes' members.
    presences_remote: gauge,
    /// Diffs, lists and summaries of presences told, once for all who get the same.
    presence_events: counter,
    /// Topics whose broadcasts are kept here, now.
    history_topics: gauge,
    /// Broadcasts that are kept here, now.
    history_messages: gauge,
    /// Bytes of broadcasts that are kept here, with what keeping them takes, now.
    history_bytes: gauge,
    /// Bytes that topics with a history take here beside their broadcasts, now.
    history_topic_bytes: gauge,
    /// Broadcasts that were kept here.
    history_kept: counter,
    /// Broadcasts not kept, nor sent, because one with the same id had been.
    history_duplicates: counter,
    /// Broadcasts larger than their topic may keep: delivered, and not kept.
    history_too_large: counter,
    /// Broadcasts no longer kept because their topic had more than its `count`.
    history_evicted_count: counter,
    /// Broadcasts no longer kept because their topic had more than its `bytes`.
    history_evicted_bytes: counter,
    /// Broadcasts no longer kept because they were older than their topic's `age`.
    history_evicted_age: counter,
    /// Broadcasts no longer kept because all together were more than `history_bytes_max`.
    history_evicted_evicted: counter,
    /// Broadcasts no longer kept because somebody had them forgotten.
    history_evicted_purged: counter,
    /// Times that members of a topic were told that something is missing, or may be.
    history_gaps: counter,
    /// Joins that were told all that their clients had missed.
    resume_recovered: counter,
    /// Joins told of a gap: what was missed is too old.
    resume_gap_expired: counter,
    /// Joins told of a gap: newer broadcasts have taken the place.
    resume_gap_overwritten: counter,
    /// Joins told of a gap: the histories of all topics were too much.
    resume_gap_evicted: counter,
    /// Joins told of a gap: somebody had it forgotten.
    resume_gap_purged: counter,
    /// Joins told of a gap: the position is of another epoch, or none.
    resume_gap_epoch: counter,
    /// Joins told of a gap: more broadcasts than one client is given.
    resume_gap_too_many: counter,
    /// Joins told of a gap: more bytes than one client is given.
    resume_gap_too_large: counter,
    /// Joins told of a gap: it is not known what was missed.
    resume_gap_unavailable: counter,
    /// Joins told of a gap: what was on its way when the client left is lost to it.
    resume_gap_lost: counter,
    /// Broadcasts that clients got which had missed them.
    resume_messages: counter,
    /// Bytes of broadcasts under way.
    fanout_bytes: gauge,
    /// Topics with broadcasts under way.
    fanout_topics: gauge,
    /// Times a publisher was held back.
    publishers_held: counter,
    /// Bytes of half-received messages and heads.
    inbound_bytes: gauge,
    /// Long-poll sessions open now; they count as sockets, too.
    longpoll_sessions: gauge,
    /// Long-poll sessions ended because nobody polled them any more.
    longpoll_expired: counter,
    /// Long-poll sessions ended because an answer was lost whose messages have positions.
    longpoll_lost: counter,
    /// Binary messages that have no form for a long-poll session.
    longpoll_binary_dropped: counter,
    /// Peers cut because they read too slowly (1013).
    slow_peer_disconnects: counter,
    /// Connections closed for saying nothing (1002).
    idle_timeouts: counter,
    /// Sockets closed (3000) and channels ended because their time was over, as that of a token.
    expirations: counter,
    /// Connections closed because their upgrade request took too long.
    handshake_timeouts: counter,
    /// Sockets that somebody disconnected by way of the observer (1001).
    observer_disconnects: counter,
    /// Frames against RFC 6455 (1002).
    errors_protocol: counter,
    /// Text that is not UTF-8 (1007).
    errors_utf8: counter,
    /// Frames or messages over the limit (1009).
    errors_too_big: counter,
    /// Messages that are no Channels message (1011).
    errors_bad_message: counter,
    /// Messages cut because the shard's budget for half-received ones was used up (1013).
    errors_inbound_budget: counter,
    /// Messages and heads that took too long to become whole (1013).
    errors_message_timeout: counter,
    /// Broadcasts of channels that were not sent: too large, or with a reserved event.
    errors_broadcast_too_big: counter,
    /// Connects, joins and messages with too much behind them that the application took too long
    /// for.
    errors_decision_timeout: counter,
    /// Broadcasts of which it was not heard in time that they are kept.
    errors_unconfirmed: counter,
    /// Broadcasts that were to be kept, and that the engine refused.
    errors_not_stored: counter,
    /// What a join function did for a channel before its join was decided, dropped.
    errors_before_join: counter,
    /// Presences that a channel already has, has not, or has too many of.
    errors_presence_refused: counter,
    /// Messages for topics that are not joined or have no channel.
    errors_unmatched_topic: counter,
    /// Payloads that a declared or a Supabase channel does not take, by their shape.
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
    /// Callbacks that held the shard longer than `callback_warning`.
    slow_callbacks: counter,
}

impl ShardMetrics {
    /// Counts a client that has resumed; `None`: it got everything that it had missed.
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
    fn times_fall_into_the_bucket_of_the_first_bound_that_they_do_not_exceed() {
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
    fn each_gap_has_a_counter_with_its_word() {
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
