//! Facts about a cluster, for the screen and for `--once`. All texts come from other machines, so
//! control characters are shown escaped.

use simurgh::observe::view::{ClusterOverview, HistoriesRow, NamedCount, NodeFigures, NodeRow};
use simurgh_text::format::{bytes, grouped, number, time};
use simurgh_text::visible;

/// Names and values, without the nodes.
pub(super) fn facts(cluster: &ClusterOverview) -> Vec<(&'static str, String)> {
    let ClusterOverview { link, interests, outbox, .. } = cluster;
    let why = link.why.as_deref().map(|why| format!(": {}", visible(why))).unwrap_or_default();
    let rtt = link.rtt_ms.map(|it| format!(", answers in {}", milliseconds(it)));
    let engine = link.engine.as_deref().map_or_else(|| "-".to_owned(), visible);
    let mut facts = vec![
        ("link", format!("{} for {}{why}", visible(&link.state), time(link.for_s))),
        ("engine", engine + &rtt.unwrap_or_default()),
        (
            "links",
            format!(
                "{} after the first, {} times something may be lost",
                grouped(link.reconnects),
                grouped(link.lost)
            ),
        ),
        ("all nodes", sums(cluster)),
        (
            "interests",
            format!(
                "{} topics: {} of {} exact, {} whole",
                grouped(interests.topics),
                grouped(interests.exact),
                grouped(interests.exact_max),
                grouped(interests.whole)
            ),
        ),
        (
            "outbox",
            format!(
                "{} of {} wait, {} envelopes under way",
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
            "{} topics followed, {} stored, {} not known to be, {} wait; {} holes filled, {} lost",
            grouped(*topics),
            grouped(*stored),
            grouped(*not_stored),
            bytes(*waiting_bytes as f64),
            grouped(*holes_filled),
            grouped(*gaps)
        );
        facts.push(("kept", text));
    }
    facts.extend(warnings(cluster).into_iter().map(|text| ("look at", text)));
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
