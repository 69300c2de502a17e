//! `/metrics` of a cluster, in Prometheus' text format.

use std::fmt::Write;

use simurgh_cluster::{DURATION_BOUNDS_NS, Durations, Kind, LinkState};
use simurgh_shard::cluster_inbox::{KeptView, View};

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Labels and values.
    series: Vec<(String, f64)>,
}

/// All families of a cluster.
pub(crate) fn render(out: &mut String, view: &View) {
    for Family { name, kind, help, series } in families(view) {
        let _ = writeln!(out, "# HELP simurgh_{name} {help}\n# TYPE simurgh_{name} {kind}");
        for (labels, value) in series {
            let _ = writeln!(out, "simurgh_{name}{labels} {value}");
        }
    }
    let help = "From questions to the engine to its answers.";
    durations(out, "simurgh_cluster_rtt_seconds", help, &view.measures.round_trips);
    let help = "By how much beats of other nodes came later than their fastest, estimated.";
    durations(out, "simurgh_cluster_delay_seconds", help, &view.delays);
    let help = "From handing a kept broadcast over to the engine to its answer.";
    let kept = view.kept.as_ref().map(|it| it.counts.store_time).unwrap_or_default();
    durations(out, "simurgh_cluster_store_seconds", help, &kept);
}

fn durations(out: &mut String, name: &str, help: &str, durations: &Durations) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
    let counts = (&DURATION_BOUNDS_NS[..], &durations.buckets[..]);
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

fn families(view: &View) -> Vec<Family> {
    let counts = &view.counts;
    let mut all = of_nodes(view);
    all.extend(of_envelopes(view));
    all.extend(of_kept(view));
    all.extend([
        single("cluster_outbox_bytes", "gauge", "Bytes that wait to be handed over.", {
            view.outbox_bytes as u64
        }),
        single("cluster_under_way", "gauge", "Envelopes that the engine may not have yet.", {
            view.under_way as u64
        }),
        single(
            "cluster_reconnects_total",
            "counter",
            "Links to the engine that were made after the first.",
            counts.links.saturating_sub(1),
        ),
        single(
            "cluster_lost_total",
            "counter",
            "Times that broadcasts of other nodes may have been lost.",
            counts.lost,
        ),
        single(
            "cluster_resyncs_total",
            "counter",
            "Topics whose presences were asked for again.",
            counts.resyncs,
        ),
    ]);
    all
}

fn single(name: &'static str, kind: &'static str, help: &'static str, value: u64) -> Family {
    Family { name, kind, help, series: vec![(String::new(), value as f64)] }
}

fn labelled<'a>(
    (name, kind, help): (&'static str, &'static str, &'static str),
    label: &str,
    series: impl IntoIterator<Item = (&'a str, u64)>,
) -> Family {
    let series = series.into_iter();
    let series = series.map(|(of, value)| (format!("{{{label}=\"{of}\"}}"), value as f64));
    Family { name, kind, help, series: series.collect() }
}

fn of_nodes(view: &View) -> Vec<Family> {
    let states = [LinkState::Away, LinkState::CatchingUp, LinkState::Up];
    let states = states.map(|it| (it.name(), u64::from(it == view.state)));
    let nodes = ["alive", "draining", "silent", "incompatible"];
    let count = |state: &str| view.nodes.iter().filter(|it| it.state == state).count() as u64;
    let nodes = nodes.map(|state| (state, count(state)));
    let interests =
        [("exact", view.interests.exact as u64), ("whole", view.interests.whole as u64)];
    let about_state = "1 for how it stands with the link to the engine.";
    let about_interests = "Subscriptions to topics, and to whole buckets of topics.";
    vec![
        labelled(("cluster_state", "gauge", about_state), "state", states),
        labelled(("cluster_nodes", "gauge", "Other nodes that are not gone."), "state", nodes),
        single(
            "cluster_name_conflicts",
            "gauge",
            "Nodes that share their name with another.",
            view.name_conflicts as u64,
        ),
        labelled(("cluster_interests", "gauge", about_interests), "kind", interests),
    ]
}

fn of_envelopes(view: &View) -> Vec<Family> {
    let counts = &view.counts;
    let kinds = || Kind::ALL.iter().map(|kind| kind.name());
    let refused =
        [("broken", counts.broken), ("version", counts.other_versions), ("own", counts.own)];
    let about_dropped = "What was not sent to other nodes, or not given to a shard that had too \
        much under way.";
    let about_refused = "What came and is no envelope that is understood here.";
    vec![
        labelled(
            ("cluster_published_total", "counter", "Envelopes handed over to the engine."),
            "kind",
            kinds().zip(counts.published),
        ),
        labelled(
            ("cluster_received_total", "counter", "Envelopes of other nodes."),
            "kind",
            kinds().zip(counts.received),
        ),
        single(
            "cluster_received_unwanted_total",
            "counter",
            "Broadcasts of other nodes on topics without members here.",
            counts.unwanted,
        ),
        single(
            "cluster_received_again_total",
            "counter",
            "Broadcasts that came a second time, and were not passed on.",
            counts.again,
        ),
        labelled(("cluster_received_refused_total", "counter", about_refused), "reason", refused),
        labelled(("cluster_dropped_total", "counter", about_dropped), "reason", view.dropped()),
    ]
}

/// Stored histories; all zero if no channel has a history.
fn of_kept(view: &View) -> Vec<Family> {
    let KeptView { counts, followed, store_bytes } = view.kept.clone().unwrap_or_default();
    let about_failed = "Kept broadcasts that are not known to be stored.";
    let failed = [
        ("unconfirmed", counts.unconfirmed),
        ("refused", counts.refused),
        ("full", counts.full),
        ("purge", counts.purges_failed),
    ];
    let about_holes = "Holes among what other nodes stored.";
    let holes = [("filled", counts.holes_filled), ("gap", counts.gaps)];
    let about_checked = "Topics whose last number the engine was asked for.";
    let in_step = counts.checked.saturating_sub(counts.behind);
    let checked = [("in_step", in_step), ("behind", counts.behind)];
    vec![
        single("cluster_kept_topics", "gauge", "Topics with a history that are followed here.", {
            followed as u64
        }),
        single("cluster_store_bytes", "gauge", "Bytes that wait until they are stored.", {
            store_bytes as u64
        }),
        single("cluster_stored_total", "counter", "Kept broadcasts that the engine has stored.", {
            counts.stored
        }),
        single(
            "cluster_store_repeated_total",
            "counter",
            "Envelopes with kept broadcasts that were sent again because no answer came.",
            view.measures.repeated,
        ),
        single(
            "cluster_store_duplicate_total",
            "counter",
            "Kept broadcasts that were stored before under their publisher's id.",
            counts.duplicates,
        ),
        labelled(("cluster_store_failed_total", "counter", about_failed), "reason", failed),
        single(
            "cluster_local_only_total",
            "counter",
            "Broadcasts that were to be kept and that members here alone have heard.",
            view.local_only,
        ),
        single(
            "cluster_fills_total",
            "counter",
            "Topics of which was fetched what the engine has.",
            counts.fills,
        ),
        labelled(("cluster_holes_total", "counter", about_holes), "result", holes),
        labelled(("cluster_checked_total", "counter", about_checked), "result", checked),
    ]
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_family_has_its_help_and_its_type_once() {
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
