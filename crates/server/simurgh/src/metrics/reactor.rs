//! The figures of the event loops.

use simurgh_reactor::Counts;

/// Name, type, help and reader of the event loops' own counters.
#[allow(clippy::type_complexity, reason = "a table of names and readers")]
pub(crate) const REACTOR_METRICS: &[(&str, &str, &str, fn(&Counts) -> f64)] = &[
    ("connections", "gauge", "Open TCP connections.", |it| it.open as f64),
    ("local_connections", "gauge", "Connections of driven sockets, without a descriptor.", |it| {
        it.local as f64
    }),
    ("accepted", "counter", "Connections accepted.", |it| it.accepted as f64),
    ("closed", "counter", "Connections ended.", |it| it.closed as f64),
    ("handed_off", "counter", "Connections passed to the HTTP side.", |it| it.taken as f64),
    ("handed_back", "counter", "Connections passed back for an upgrade.", |it| it.adopted as f64),
    (
        "hand_off_refused",
        "counter",
        "Hand-offs that failed: the connection waits, or gets 503.",
        |it| it.hand_off_refused as f64,
    ),
    ("received_bytes", "counter", "Bytes read.", |it| it.bytes_in as f64),
    ("sent_bytes", "counter", "Bytes written.", |it| it.bytes_out as f64),
    ("reads", "counter", "Reads that returned bytes.", |it| it.reads as f64),
    ("writes", "counter", "Write calls.", |it| it.writes as f64),
    ("writes_blocked", "counter", "Writes that a client took only in part.", |it| {
        it.writes_blocked as f64
    }),
    ("queued_bytes", "gauge", "Bytes queued for slow clients.", |it| it.queued_bytes as f64),
    (
        "waiting_bytes",
        "gauge",
        "Bytes that clients have not taken, shared ones counted once.",
        |it| it.waiting_bytes as f64,
    ),
    ("slow_stalled", "counter", "Clients closed because their queue did not move.", |it| {
        it.stalled_cut as f64
    }),
    ("slow_shed", "counter", "Clients closed because all queues exceeded the budget.", |it| {
        it.outbound_shed as f64
    }),
    ("lost_seconds", "counter", "Time in which the shard served nobody.", |it| {
        it.lost_ms as f64 / 1e3
    }),
    (
        "accept_pauses",
        "counter",
        "Times the shard stopped accepting because descriptors or memory ran out.",
        |it| it.accept_pauses as f64,
    ),
    ("mails", "counter", "Messages taken from the mailbox.", |it| it.mails as f64),
    ("shard_turns", "counter", "Turns of the event loop.", |it| it.turns as f64),
    ("shard_turn_max_seconds", "gauge", "Longest turn so far, waiting excluded.", |it| {
        it.turn_max_ns as f64 / 1e9
    }),
    (
        "shard_turn_cpu_max_seconds",
        "gauge",
        "Longest turn so far by the thread's CPU time.",
        |it| it.turn_cpu_max_ns as f64 / 1e9,
    ),
    ("shard_cpu_seconds", "counter", "CPU time of the shard's thread.", |it| {
        it.cpu_ns as f64 / 1e9
    }),
];

/// The same for TLS: names and help of counters.
#[allow(clippy::type_complexity, reason = "a table of names and readers")]
pub(crate) const TLS_METRICS: &[(&str, &str, fn(&Counts) -> u64)] = &[
    ("handshakes", "TLS handshakes that were completed.", |it| it.tls_handshakes),
    ("handshakes_1_2", "Of them those with TLS 1.2.", |it| it.tls_12),
    ("resumed", "Of them those resumed by a ticket.", |it| it.tls_resumed),
    ("failed", "TLS handshakes that failed.", |it| it.tls_failed),
    ("refused", "Connections closed because too many others waited for a handshake.", |it| {
        it.tls_refused
    }),
];
