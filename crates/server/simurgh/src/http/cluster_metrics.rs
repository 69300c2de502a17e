//! `/metrics` of a cluster, in Prometheus' text format.

use std::fmt::Write;

use simurgh_cluster::{Durations, Kind, LinkState};
use simurgh_shard::cluster_inbox::{KeptView, View};

use crate::metrics::HISTOGRAM_BOUNDS_NS;

/// All families of a cluster.
pub(crate) fn render(out: &mut String, view: &View) {
    of_nodes(out, view);
    of_envelopes(out, view);
    of_kept(out, view);
    let help = "Bytes that wait to be sent to the broker.";
    single(out, "cluster_outbox_bytes", help, view.outbox_bytes as u64);
    let help = "Envelopes that the broker has not acknowledged.";
    single(out, "cluster_under_way", help, view.under_way as u64);
    let help = "Reconnects to the broker.";
    single(out, "cluster_reconnects_total", help, view.counts.links.saturating_sub(1));
    let help = "Times that broadcasts of other nodes may have been lost.";
    single(out, "cluster_lost_total", help, view.counts.lost);
    let help = "Topics whose presences were requested again.";
    single(out, "cluster_resyncs_total", help, view.counts.resyncs);
    let help = "Round trips to the broker.";
    durations(out, "simurgh_cluster_rtt_seconds", help, &view.measures.round_trips);
    let help = "Estimated delay of other nodes' heartbeats.";
    durations(out, "simurgh_cluster_delay_seconds", help, &view.delays);
    let help = "Time from sending a message to the broker to its confirmation.";
    let kept = view.kept.as_ref().map(|it| it.counts.store_time).unwrap_or_default();
    durations(out, "simurgh_cluster_store_seconds", help, &kept);
}

fn durations(out: &mut String, name: &str, help: &str, durations: &Durations) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
    let counts = (&HISTOGRAM_BOUNDS_NS[..], &durations.buckets[..]);
    histogram(out, name, None, counts, durations.sum_ns);
}

/// The series of a histogram of one shard or of the server: buckets and the sum.
pub(super) fn histogram(
    out: &mut String,
    name: &str,
    shard: Option<usize>,
    (bounds_ns, buckets): (&[u64], &[u64]),
    sum_ns: u64,
) {
    let label = shard.map(|shard| format!("shard=\"{shard}\"")).unwrap_or_default();
    let comma = if label.is_empty() { "" } else { "," };
    let labels = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
    let mut total = 0;
    let bounds = bounds_ns.iter().map(|ns| (*ns as f64 / 1e9).to_string());
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(buckets) {
        total += count;
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {total}");
    }
    let sum = sum_ns as f64 / 1e9;
    let _ = writeln!(out, "{name}_sum{labels} {sum}\n{name}_count{labels} {total}");
}

fn about(out: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(out, "# HELP simurgh_{name} {help}\n# TYPE simurgh_{name} {kind}");
}

fn single(out: &mut String, name: &str, help: &str, value: u64) {
    about(out, name, help);
    let _ = writeln!(out, "simurgh_{name} {value}");
}

fn labelled<'a>(
    out: &mut String,
    name: &str,
    help: &str,
    label: &str,
    series: impl IntoIterator<Item = (&'a str, u64)>,
) {
    about(out, name, help);
    for (of, value) in series {
        let _ = writeln!(out, "simurgh_{name}{{{label}=\"{of}\"}} {value}");
    }
}

fn of_nodes(out: &mut String, view: &View) {
    let states = [LinkState::Away, LinkState::CatchingUp, LinkState::Up];
    let states = states.map(|it| (it.name(), u64::from(it == view.state)));
    let help = "1 for the present state of the link to the broker.";
    labelled(out, "cluster_state", help, "state", states);
    let nodes = ["alive", "draining", "silent", "incompatible"];
    let count = |state: &str| view.nodes.iter().filter(|it| it.state == state).count() as u64;
    let nodes = nodes.map(|state| (state, count(state)));
    labelled(out, "cluster_nodes", "Other nodes that this node knows.", "state", nodes);
    let help = "Nodes that share their name with another.";
    single(out, "cluster_name_conflicts", help, view.name_conflicts as u64);
    let interests =
        [("exact", view.interests.exact as u64), ("whole", view.interests.whole as u64)];
    let help = "Subscriptions to topics, and to whole buckets of topics.";
    labelled(out, "cluster_interests", help, "kind", interests);
}

fn of_envelopes(out: &mut String, view: &View) {
    let counts = &view.counts;
    let kinds = || Kind::ALL.iter().map(|kind| kind.name());
    let help = "Envelopes sent to the broker.";
    labelled(out, "cluster_published_total", help, "kind", kinds().zip(counts.published));
    let help = "Envelopes received from other nodes.";
    labelled(out, "cluster_received_total", help, "kind", kinds().zip(counts.received));
    let help = "Broadcasts of other nodes on topics without members here.";
    single(out, "cluster_received_unwanted_total", help, counts.unwanted);
    let help = "Broadcasts received twice and delivered once.";
    single(out, "cluster_received_again_total", help, counts.again);
    let refused =
        [("broken", counts.broken), ("version", counts.other_versions), ("own", counts.own)];
    let help = "Received envelopes that this node cannot read.";
    labelled(out, "cluster_received_refused_total", help, "reason", refused);
    let help = "Messages not sent to other nodes, or not passed to an overloaded shard.";
    labelled(out, "cluster_dropped_total", help, "reason", view.dropped());
}

/// Stored histories; all zero if no channel has a history.
fn of_kept(out: &mut String, view: &View) {
    let KeptView { counts, followed, store_bytes } = view.kept.clone().unwrap_or_default();
    let help = "Topics with a history that this node follows.";
    single(out, "cluster_kept_topics", help, followed as u64);
    let help = "Bytes of messages that wait to be stored.";
    single(out, "cluster_store_bytes", help, store_bytes as u64);
    let help = "Messages that the broker stored.";
    single(out, "cluster_stored_total", help, counts.stored);
    let help = "Envelopes sent again because the broker did not answer.";
    single(out, "cluster_store_repeated_total", help, view.measures.repeated);
    let help = "Messages stored before under the same id.";
    single(out, "cluster_store_duplicate_total", help, counts.duplicates);
    let failed = [
        ("unconfirmed", counts.unconfirmed),
        ("refused", counts.refused),
        ("full", counts.full),
        ("purge", counts.purges_failed),
    ];
    let help = "Messages not confirmed as stored.";
    labelled(out, "cluster_store_failed_total", help, "reason", failed);
    let help = "Messages of topics with a history that reached only this node's members.";
    single(out, "cluster_local_only_total", help, view.local_only);
    let help = "Histories fetched from the broker.";
    single(out, "cluster_fills_total", help, counts.fills);
    let holes = [("filled", counts.holes_filled), ("gap", counts.gaps)];
    let help = "Gaps in the messages received from other nodes.";
    labelled(out, "cluster_holes_total", help, "result", holes);
    let in_step = counts.checked.saturating_sub(counts.behind);
    let checked = [("in_step", in_step), ("behind", counts.behind)];
    let help = "Topics whose last position was requested from the broker.";
    labelled(out, "cluster_checked_total", help, "result", checked);
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn each_family_has_one_help_and_one_type() {
        let mut out = String::new();
        let mut view = View::default();
        view.counts.published[0] = 7;
        view.state = LinkState::Up;
        render(&mut out, &view);
        let helps: Vec<&str> = out.lines().filter(|it| it.starts_with("# HELP")).collect();
        let types = out.lines().filter(|it| it.starts_with("# TYPE")).count();
        let mut names = helps.clone();
        names.dedup();
        assert_eq!((helps.len(), types), (names.len(), names.len()));
        assert!(out.contains("simurgh_cluster_published_total{kind=\"broadcast\"} 7\n"), "{out}");
        assert!(out.contains("simurgh_cluster_state{state=\"up\"} 1\n"), "{out}");
        assert!(out.contains("simurgh_cluster_state{state=\"away\"} 0\n"), "{out}");
    }
}
