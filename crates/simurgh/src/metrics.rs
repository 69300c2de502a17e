//! Counters of a shard: written by its thread alone, read by any, with plain relaxed loads and stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writer: no locked instruction, only a load and a store.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning shard may call this.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets a gauge; only the owning shard may call this.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The value now.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($(#[$outer:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])* $field:ident: $kind:ident,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[doc = $doc])* pub $field: Counter,)* }

        impl $name {
            /// Name, Prometheus type, help text and reader of every counter, in the order of the fields.
            #[allow(clippy::type_complexity, reason = "a table of names and readers")]
            pub const ALL: &'static [(&'static str, &'static str, &'static str, fn(&Self) -> u64)] = &[
                $((stringify!($field), stringify!($kind), concat!($($doc),*), |all| all.$field.value()),)*
            ];
        }
    };
}

counters! {
    /// What one shard's sockets and channels did.
    pub struct ShardMetrics {
        /// Sockets open now, upgraded.
        sockets: gauge,
        /// Channels joined now.
        channels: gauge,
        /// Topics with members now.
        topics: gauge,
        /// Upgrades accepted.
        upgrades: counter,
        /// Upgrades refused with an HTTP error.
        upgrades_refused: counter,
        /// Connections refused with 503 because the shard was full.
        refused_full: counter,
        /// Joins that were ok.
        joins: counter,
        /// Joins refused by the application or a limit.
        joins_refused: counter,
        /// Messages received from clients, heartbeats included.
        messages_in: counter,
        /// Heartbeats answered.
        heartbeats: counter,
        /// Replies and pushes sent to single clients.
        messages_out: counter,
        /// Broadcasts taken by this shard.
        broadcasts: counter,
        /// Broadcasts delivered, one for each member.
        deliveries: counter,
        /// Bytes of broadcasts under way.
        fanout_bytes: gauge,
        /// Times a publisher was held back.
        publishers_held: counter,
        /// Bytes of half-received messages and heads.
        inbound_bytes: gauge,
        /// Peers cut because they read too slowly (1013).
        slow_peer_disconnects: counter,
        /// Connections closed for saying nothing (1002).
        idle_timeouts: counter,
        /// Connections closed because their upgrade request took too long.
        handshake_timeouts: counter,
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
        /// Messages for topics that are not joined or have no channel.
        errors_unmatched_topic: counter,
        /// Callbacks that panicked.
        errors_callback_panic: counter,
        /// Channels that stopped abnormally.
        errors_abnormal_stop: counter,
        /// Broadcasts that a member's serializer cannot carry.
        errors_encode: counter,
        /// Callbacks that held the shard longer than `callback_warning`.
        slow_callbacks: counter,
    }
}
