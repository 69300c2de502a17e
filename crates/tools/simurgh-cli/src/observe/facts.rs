//! Facts about a server and a cluster, for the screen and for `--once`: names and values. All texts
//! come from other machines, so control characters are shown escaped.

use simurgh::observe::view::{
    ClusterOverview, HistoriesRow, Memory, NamedCount, NodeFigures, NodeRow, Overview, TlsFigures,
};
use simurgh_text::format::{bytes, grouped, micros, number, time};
use simurgh_text::visible;

/// Of a server, without the parts of its memory.
pub(super) fn server(overview: &Overview) -> Vec<(&'static str, String)> {
    let now = &overview.now;
    let limit = overview.max_connections.map(|most| format!(" of {}", grouped(most)));
    let each = match now.connections {
        0 => String::new(),
        n => format!(", {} per connection", bytes(now.resident_bytes as f64 / n as f64)),
    };
    let errors: u64 = overview.errors.iter().map(|row| row.last_minute).sum();
    let of_limits = overview.errors.iter().filter(|row| row.kind.starts_with("limited_"));
    let limited: u64 = of_limits.map(|row| row.last_minute).sum();
    // A topic with members on several shards counts on each.
    let channels = match overview.shards.len() {
        0 | 1 => format!("{} in {} topics", grouped(now.channels), grouped(now.topics)),
        _ => grouped(now.channels),
    };
    let traffic = |messages, amount| format!("{}/s ({}/s)", number(messages), bytes(amount));
    let mut facts = vec![
        ("connections", format!("{}{}", grouped(now.connections), limit.unwrap_or_default())),
        ("channels", channels),
        ("messages in", traffic(now.messages_in_per_s, now.bytes_in_per_s)),
        ("messages out", traffic(now.messages_out_per_s, now.bytes_out_per_s)),
        ("accepted", format!("{}/s", number(now.accepted_per_s))),
        ("CPU", format!("{:.1} % of a core", now.cpu_cores * 100.0)),
        ("turns", format!("p50 {}  p99 {}", micros(now.turn_p50_us), micros(now.turn_p99_us))),
        (
            "waiting",
            format!(
                "{} between shards, {} for slow clients",
                bytes(now.mailbox_bytes as f64),
                bytes(now.queued_bytes as f64)
            ),
        ),
        (
            "errors",
            format!("{} in the last minute, {} over a limit", grouped(errors), grouped(limited)),
        ),
        ("memory", format!("{} resident{each}", bytes(now.resident_bytes as f64))),
    ];
    facts.extend(overview.tls.as_ref().map(|figures| ("TLS", tls(figures))));
    facts
}

fn tls(figures: &TlsFigures) -> String {
    let TlsFigures { under_way, handshakes, handshakes_1_2, resumed, failed, refused, .. } =
        figures;
    let handshakes_1_3 = handshakes.saturating_sub(*handshakes_1_2);
    let [under_way, old, new, resumed, failed, refused] =
        [*under_way, *handshakes_1_2, handshakes_1_3, *resumed, *failed, *refused].map(grouped);
    let name = visible(&figures.certificate);
    let expires = match figures.expires_in_s {
        left if left < 0.0 => format!("expired {} ago", time(-left)),
        left => format!("expires in {}", time(left)),
    };
    format!(
        "{under_way} handshakes under way, {new} done (TLS 1.3), {old} (1.2), {resumed} resumed, \
         {failed} failed, {refused} refused; {name} {expires}"
    )
}

/// The parts of a server's memory in bytes, with a note.
pub(super) fn memory(memory: &Memory) -> [(&'static str, u64, &'static str); 6] {
    [
        ("  records", memory.connection_records, ""),
        ("  tables", memory.tables, ""),
        ("  queues", memory.outbound_queues + memory.half_received, ""),
        ("  history", memory.kept, ""),
        ("  rest", memory.rest, ""),
        ("kernel", memory.kernel_sockets, "  estimated, for the sockets"),
    ]
}

/// Of a cluster, without the nodes.
pub(super) fn cluster(cluster: &ClusterOverview) -> Vec<(&'static str, String)> {
    let ClusterOverview { link, interests, outbox, .. } = cluster;
    let why = link.why.as_deref().map(|why| format!(": {}", visible(why))).unwrap_or_default();
    let rtt = link.rtt_ms.map(|it| format!(", answers in {}", milliseconds(it)));
    let engine = link.engine.as_deref().map_or_else(|| "-".to_owned(), visible);
    let mut facts = vec![
        ("link", format!("{} for {}{why}", visible(&link.state), time(link.for_s))),
        ("broker", engine + &rtt.unwrap_or_default()),
        (
            "links",
            format!(
                "{} reconnects, {} possible losses",
                grouped(link.reconnects),
                grouped(link.lost)
            ),
        ),
        ("all nodes", sums(cluster)),
        (
            "subscribed",
            format!(
                "{} topics: {} of {} one by one, {} by bucket",
                grouped(interests.topics),
                grouped(interests.exact),
                grouped(interests.exact_max),
                grouped(interests.whole)
            ),
        ),
        (
            "outbox",
            format!(
                "{} of {} waiting, {} envelopes not confirmed",
                bytes(outbox.bytes as f64),
                bytes(outbox.bytes_max as f64),
                grouped(outbox.under_way)
            ),
        ),
        ("dropped", counted(&cluster.dropped)),
        ("unwanted", unwanted(cluster)),
    ];
    if let Some(it) = &cluster.histories {
        facts.push(("histories", it.kept.as_deref().map_or_else(|| "-".to_owned(), visible)));
        let HistoriesRow { topics, waiting_bytes, stored, not_stored, holes_filled, gaps, .. } = it;
        let text = format!(
            "{} topics followed, {} stored, {} unconfirmed, {} waiting; {} gaps filled, {} lost",
            grouped(*topics),
            grouped(*stored),
            grouped(*not_stored),
            bytes(*waiting_bytes as f64),
            grouped(*holes_filled),
            grouped(*gaps)
        );
        facts.push(("stored", text));
    }
    facts.extend(warnings(cluster).into_iter().map(|text| ("problem", text)));
    facts
}

fn sums(cluster: &ClusterOverview) -> String {
    let figures = || cluster.nodes.iter().filter_map(|it| it.figures.as_ref());
    let sum = |read: fn(&NodeFigures) -> u64| figures().map(read).fold(0, u64::saturating_add);
    let rate = |read: fn(&NodeFigures) -> f64| figures().map(read).sum::<f64>();
    let nodes = cluster.nodes.len() as u64 + cluster.more_nodes;
    let answered = figures().count() as u64;
    let silent = match nodes.saturating_sub(answered) {
        0 => String::new(),
        silent => format!(" ({} did not answer)", grouped(silent)),
    };
    format!(
        "{}{silent}, {} sockets, {} channels, {}/s in, {}/s out, {:.1} % of a core, {}",
        grouped(nodes),
        grouped(cluster.nodes.iter().map(sockets).fold(0, u64::saturating_add)),
        grouped(sum(|it| it.channels)),
        number(rate(|it| it.messages_in_per_s)),
        number(rate(|it| it.messages_out_per_s)),
        rate(|it| it.cpu_cores) * 100.0,
        bytes(sum(|it| it.resident_bytes) as f64),
    )
}

/// Settings that the operator has to correct.
fn warnings(cluster: &ClusterOverview) -> Vec<String> {
    let named = |row: &NodeRow| format!("{} ({})", visible(&row.name), visible(&row.id));
    let namesakes = cluster.nodes.iter().filter(|row| row.has_namesake);
    let namesakes = namesakes.map(|row| format!("{} shares its name with another", named(row)));
    let differing = cluster.nodes.iter().filter(|row| !row.differing.is_empty()).map(|row| {
        let patterns: Vec<String> = row.differing.iter().map(|it| visible(it)).collect();
        format!("{} has other settings for {}", named(row), patterns.join(", "))
    });
    namesakes.chain(differing).collect()
}

fn counted(counts: &[NamedCount]) -> String {
    let some = counts.iter().filter(|it| it.total > 0);
    let texts: Vec<String> =
        some.map(|it| format!("{} {}", visible(&it.name), grouped(it.total))).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

fn unwanted(cluster: &ClusterOverview) -> String {
    match cluster.worst_buckets.is_empty() {
        true => grouped(cluster.unwanted),
        false => {
            let worst = counted(&cluster.worst_buckets);
            format!("{}; by bucket {worst}", grouped(cluster.unwanted))
        }
    }
}

/// Open sockets, now or at the last beat.
pub(super) fn sockets(row: &NodeRow) -> u64 {
    row.figures.as_ref().map_or(row.sockets, |it| it.sockets)
}

pub(super) fn milliseconds(it: f64) -> String {
    simurgh_text::format::micros(it * 1000.0)
}
