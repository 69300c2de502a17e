//! `/metrics`, in Prometheus' text format: every counter of every shard, read without stopping any.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::header;
use axum::routing::get;
use simurgh_reactor::{Counts, TURN_BUCKETS_NS};
use simurgh_shard::connections::{HttpConnections, Side};
use simurgh_shard::server::Server;
use simurgh_socket::UserSocket;

use super::cluster_metrics::{self, histogram};
use crate::longpoll::LongPolls;
use crate::metrics::{
    HISTOGRAM_BOUNDS_NS, REACTOR_METRICS, ShardMetrics, TLS_METRICS, family, process,
};

pub(super) fn router(polls: &Arc<LongPolls>) -> Router {
    let polls = Arc::downgrade(polls);
    Router::new().route(
        "/metrics",
        get(move || {
            let text = polls.upgrade().map(|polls| render(&polls)).unwrap_or_default();
            async { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
        }),
    )
}

fn render(polls: &LongPolls) -> String {
    let server = &*polls.server.now();
    let mut out = String::with_capacity(16 << 10);
    for (name, kind, help, read) in ShardMetrics::ALL {
        if *name == PRESENCES_REMOTE || LABELLED.iter().any(|it| it.part_of(name).is_some()) {
            continue;
        }
        let values = server.metrics.iter().map(|metrics| read(metrics));
        by_shard(&mut out, (&full_name(name, kind), kind, help), values);
    }
    LABELLED.iter().for_each(|it| labelled(&mut out, server, it));
    resume_times(&mut out, server);
    reactor(&mut out, server);
    mailboxes(&mut out, server);
    http_connections(&mut out, server);
    elsewhere(&mut out, polls);
    api_requests(&mut out, server);
    blocked(&mut out, server);
    let counts = [&server.reloads.succeeded, &server.reloads.failed];
    let help = "Requests to reload the settings, by SIGHUP or the API.";
    by_result(&mut out, "simurgh_reloads_total", help, counts);
    schemas(&mut out, server);
    tls(&mut out, server);
    if let Some(inbox) = &server.cluster {
        cluster_metrics::render(&mut out, &inbox.view());
        presence_entries(&mut out, server);
    }
    #[cfg(feature = "hooks")]
    {
        crate::hooked::render(&mut out, server);
        crate::notices::render(&mut out, server);
    }
    whole(&mut out, server);
    out
}

/// Only servers with schemas have this one.
fn schemas(out: &mut String, server: &Server) {
    // User sockets may share their channels.
    let refused = server.user_sockets.iter().flat_map(UserSocket::refused_by_schema);
    let refused: BTreeMap<_, _> = refused
        .map(|(channel, event, count)| ((channel.to_string(), event.to_owned()), count))
        .collect();
    if refused.is_empty() {
        return;
    }
    let name = "simurgh_schema_refused_total";
    family(out, name, "counter", "Payloads that the schema of their event does not accept.");
    for ((channel, event), count) in refused {
        let [channel, event] = [channel, event].map(|label| escaped(&label));
        let _ = writeln!(out, "{name}{{channel=\"{channel}\",event=\"{event}\"}} {count}");
    }
}

/// Only servers with TLS have these.
fn tls(out: &mut String, server: &Server) {
    let Some(certificates) = &server.certificates else { return };
    let counts = counts(server);
    for (name, help, read) in TLS_METRICS {
        let name = format!("simurgh_tls_{name}_total");
        by_shard(out, (&name, "counter", help), counts.iter().map(read));
    }
    let under_way = counts.iter().map(|counts| counts.tls_under_way);
    let help = "TLS handshakes under way.";
    by_shard(out, ("simurgh_tls_handshakes_under_way", "gauge", help), under_way);
    let counts = [&certificates.reloads, &certificates.failed_reloads];
    by_result(out, "simurgh_tls_reloads_total", "Reloads of the certificates.", counts);
    let name = "simurgh_tls_certificate_expires_seconds";
    family(out, name, "gauge", "Seconds until a certificate expires; negative afterwards.");
    for certificate in certificates.current().all() {
        let file = escaped(&certificate.files.chain.to_string_lossy());
        let of = escaped(certificate.names.first().map_or("", String::as_str));
        let left = certificate.expires_in_s().round();
        let _ = writeln!(out, "{name}{{name=\"{of}\",file=\"{file}\"}} {left}");
    }
}

/// A counter of what has succeeded, and of what has failed.
fn by_result(out: &mut String, name: &str, help: &str, counts: [&AtomicU64; 2]) {
    family(out, name, "counter", help);
    for (result, count) in ["ok", "failed"].into_iter().zip(counts) {
        let _ = writeln!(out, "{name}{{result=\"{result}\"}} {}", count.load(Relaxed));
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn api_requests(out: &mut String, server: &Server) {
    let name = "simurgh_api_requests_total";
    family(out, name, "counter", "Requests to the server API, by the name of their token.");
    for ((verb, token, status), count) in server.api_requests.counts() {
        let _ = writeln!(
            out,
            "{name}{{verb=\"{verb}\",token=\"{token}\",status=\"{status}\"}} {count}"
        );
    }
}

fn blocked(out: &mut String, server: &Server) {
    let name = "simurgh_blocked_total";
    family(out, name, "counter", "Connects and joins refused by the list of back ends.");
    for (why, count) in server.access_list.counts() {
        let _ = writeln!(out, "{name}{{why=\"{why}\"}} {count}");
    }
}

/// Exported on the nodes of a cluster only.
const PRESENCES_REMOTE: &str = "presences_remote";

fn presence_entries(out: &mut String, server: &Server) {
    let name = "simurgh_presence_entries";
    let help = "Presences of the topics whose home is this shard, by the node of their members.";
    family(out, name, "gauge", help);
    for (shard, metrics) in server.metrics.iter().enumerate() {
        let remote = metrics.presences_remote.value();
        let local = metrics.presences.value().saturating_sub(remote);
        for (place, value) in [("local", local), ("remote", remote)] {
            let _ = writeln!(out, "{name}{{shard=\"{shard}\",where=\"{place}\"}} {value}");
        }
    }
}

/// Counters of shards that form one family with labels.
struct Labelled {
    prefix: &'static str,
    name: &'static str,
    help: &'static str,
    /// The labels besides the shard, from the rest of a counter's name.
    labels: fn(&str) -> String,
}

const LABELLED: &[Labelled] = &[
    Labelled {
        prefix: "limited_",
        name: "simurgh_limited_total",
        help: "Messages, joins, presence calls and connections over a limit.",
        labels: |limit| format!("limit=\"{limit}\""),
    },
    Labelled {
        prefix: "history_evicted_",
        name: "simurgh_history_evicted_total",
        help: "Messages removed from histories.",
        labels: |reason| format!("reason=\"{reason}\""),
    },
    Labelled {
        prefix: "resume_recovered",
        name: "simurgh_resume_total",
        help: "Joins of clients that resume.",
        labels: |_| "result=\"recovered\",reason=\"\"".to_owned(),
    },
    Labelled {
        prefix: "resume_gap_",
        name: "simurgh_resume_total",
        help: "",
        labels: |reason| format!("result=\"gap\",reason=\"{reason}\""),
    },
];

impl Labelled {
    fn part_of<'a>(&self, counter: &'a str) -> Option<&'a str> {
        counter.strip_prefix(self.prefix)
    }
}

fn labelled(out: &mut String, server: &Server, it: &Labelled) {
    let Labelled { name, help, labels, .. } = it;
    // A counter without help belongs to the family before.
    if !help.is_empty() {
        family(out, name, "counter", help);
    }
    for (counter, _, _, read) in ShardMetrics::ALL {
        let Some(labels) = it.part_of(counter).map(labels) else { continue };
        for (shard, metrics) in server.metrics.iter().enumerate() {
            let value = read(metrics);
            let _ = writeln!(out, "{name}{{shard=\"{shard}\",{labels}}} {value}");
        }
    }
}

/// Histogram of how long resuming clients waited.
fn resume_times(out: &mut String, server: &Server) {
    let name = "simurgh_resume_seconds";
    let help = "Time from a resuming join to its reply.";
    family(out, name, "histogram", help);
    for (shard, metrics) in server.metrics.iter().enumerate() {
        let (buckets, sum_ns) = metrics.resume_times.value();
        histogram(out, name, Some(shard), (&HISTOGRAM_BOUNDS_NS, &buckets), sum_ns);
    }
}

fn full_name(name: &str, kind: &str) -> String {
    let suffix = if kind == "counter" { "_total" } else { "" };
    format!("simurgh_{name}{suffix}")
}

fn by_shard<T: Display>(
    out: &mut String,
    (name, kind, help): (&str, &str, &str),
    values: impl Iterator<Item = T>,
) {
    family(out, name, kind, help);
    for (shard, value) in values.enumerate() {
        let _ = writeln!(out, "{name}{{shard=\"{shard}\"}} {value}");
    }
}

fn reactor(out: &mut String, server: &Server) {
    let counts = counts(server);
    for (name, kind, help, read) in REACTOR_METRICS {
        by_shard(out, (&full_name(name, kind), kind, help), counts.iter().map(read));
    }
    let name = "simurgh_shard_turn_seconds";
    family(out, name, "histogram", "Duration of turns, waiting excluded.");
    for (shard, counts) in counts.iter().enumerate() {
        let buckets = &counts.turns_by_duration;
        histogram(out, name, Some(shard), (&TURN_BUCKETS_NS, buckets), counts.turn_ns);
    }
}

fn counts(server: &Server) -> Vec<Counts> {
    let stats = server.stats.get().map(Vec::as_slice).unwrap_or_default();
    stats.iter().map(|stats| stats.read()).collect()
}

fn mailboxes(out: &mut String, server: &Server) {
    let help = "Bytes of broadcasts in transit in the shard, its mailbox included.";
    let bytes = server.mailboxes.iter().map(|mailbox| mailbox.bytes());
    by_shard(out, ("simurgh_mailbox_bytes", "gauge", help), bytes);
    let both = server.mailboxes.iter().zip(counts(server));
    let waiting = both.map(|(mailbox, counts)| mailbox.posted().saturating_sub(counts.mails));
    let help = "Messages that wait in the shard's mailbox.";
    by_shard(out, ("simurgh_mailbox_mails", "gauge", help), waiting);
}

#[allow(clippy::type_complexity, reason = "a table of names and readers")]
const HTTP_METRICS: &[(&str, &str, &str, fn(&HttpConnections) -> u64)] = &[
    ("http_connections", "gauge", "Open plain HTTP connections.", |it| it.taken() as u64),
    ("http_evicted", "counter", "Idle HTTP connections closed in favour of others.", |it| {
        it.evicted.load(Relaxed)
    }),
    (
        "http_held_bytes",
        "gauge",
        "Bytes of requests without a response and of unwritten responses.",
        |it| (it.held_bytes(Side::Inbound) + it.held_bytes(Side::Outbound)) as u64,
    ),
    (
        "http_shed",
        "counter",
        "HTTP connections closed because all together used too much memory.",
        |it| it.shed.load(Relaxed),
    ),
    (
        "http_refused",
        "counter",
        "HTTP connections refused: 503, all places taken; 429, too many from one address.",
        |it| it.refused.load(Relaxed),
    ),
    ("http_lost", "counter", "HTTP connections lost because no descriptor was free.", |it| {
        it.lost.load(Relaxed)
    }),
];

fn http_connections(out: &mut String, server: &Server) {
    for (name, kind, help, read) in HTTP_METRICS {
        let name = full_name(name, kind);
        family(out, &name, kind, help);
        for (listener, http_connections) in
            [("main", &server.http_connections), ("admin", &server.admin_connections)]
        {
            let _ = writeln!(out, "{name}{{listener=\"{listener}\"}} {}", read(http_connections));
        }
    }
}

/// Counters of publishing and long polling outside of the shards.
fn elsewhere(out: &mut String, polls: &LongPolls) {
    let unconfirmed =
        "Broadcasts from outside of channels that were not confirmed as stored in time.";
    let elsewhere = "Long-poll requests forwarded to the node that has their session.";
    let refused = "Long-poll requests refused before they reached a shard.";
    let waiting = "Long polls that wait for a message.";
    for (name, kind, help, value) in [
        ("publish_unconfirmed", "counter", unconfirmed, polls.server.unconfirmed.load(Relaxed)),
        ("longpoll_polls_waiting", "gauge", waiting, polls.waiting.load(Relaxed) as u64),
        ("longpoll_refused", "counter", refused, polls.refused.load(Relaxed)),
        ("longpoll_elsewhere", "counter", elsewhere, polls.elsewhere.load(Relaxed)),
    ] {
        let name = full_name(name, kind);
        family(out, &name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    }
}

fn whole(out: &mut String, server: &Server) {
    let version = env!("CARGO_PKG_VERSION");
    let name = "simurgh_build_info";
    family(out, name, "gauge", "Always 1; its labels are version and commit.");
    let commit = &server.config.commit;
    // Characters that a label would have to escape do not occur in a commit.
    let commit: String = commit.chars().filter(|c| !matches!(c, '\\' | '"' | '\n')).collect();
    let _ = writeln!(out, "{name}{{version=\"{version}\",commit=\"{commit}\"}} 1");
    let process = process::read();
    let figures = [
        ("process_cpu_seconds_total", "counter", "CPU time used.", process.cpu_s),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            process.resident_bytes as f64,
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "When the server started, in seconds since 1970.",
            unix_s(server.started.1),
        ),
    ];
    for (name, kind, help, value) in figures {
        family(out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    }
}

/// Seconds since 1970.
fn unix_s(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
