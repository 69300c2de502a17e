//! `--once`: prints the figures as text, or as JSON for scripts.

use std::fmt::Write as _;

use serde_json::json;
use simurgh::observe::view::{ClusterOverview, ConnectionRow, List, Overview, TopicRow};
use simurgh_text::format::{aligned, bytes, time};

use super::client::{Client, Problem};
use super::columns::{self, Column, cells};
use super::facts;

pub(super) fn server(client: &Client, is_json: bool, most: u16) -> Result<String, Problem> {
    let overview = client.overview(false)?;
    let topics: List<TopicRow> = client.get(&format!("topics?by=members&most={most}"))?;
    // Older servers do not have this order.
    let kept: List<TopicRow> = match overview.memory.kept {
        0 => List::default(),
        _ => client.get(&format!("topics?by=kept&most={most}"))?,
    };
    let connections: List<ConnectionRow> =
        client.get(&format!("connections?by=queue&most={most}"))?;
    if is_json {
        let all = json!({
            "overview": overview,
            "topics": topics,
            "kept": kept,
            "connections": connections,
        });
        return Ok(format!("{all:#}\n"));
    }
    let mut text = facts(client.base(), &overview);
    let _ = writeln!(text, "\nShards");
    table(&mut text, columns::SHARDS, &overview.shards);
    let _ = writeln!(text, "\nTopics by members, {} of {}", topics.rows.len(), topics.total);
    table(&mut text, columns::TOPICS, &topics.rows);
    if !kept.rows.is_empty() {
        let _ = writeln!(text, "\nTopics by history bytes, {} of {}", kept.rows.len(), kept.total);
        table(&mut text, columns::TOPICS, &kept.rows);
    }
    if !connections.rows.is_empty() {
        let _ = writeln!(text, "\nConnections with a queue (slow clients)");
        table(&mut text, columns::CONNECTIONS, &connections.rows);
    }
    let wrong: Vec<_> = overview.errors.into_iter().filter(|row| row.total > 0).collect();
    if !wrong.is_empty() {
        let _ = writeln!(text, "\nErrors");
        table(&mut text, columns::ERRORS, &wrong);
    }
    Ok(text)
}

pub(super) fn cluster(client: &Client, is_json: bool) -> Result<String, Problem> {
    // Fails unless it is Simurgh.
    client.overview(false)?;
    let cluster: ClusterOverview = client.get("cluster")?;
    if is_json {
        return Ok(format!("{:#}\n", json!({ "cluster": cluster })));
    }
    let mut text = lines(facts::cluster(&cluster));
    let _ = writeln!(text, "\nNodes (* is the node that answers)");
    table(&mut text, columns::NODES, &cluster.nodes);
    let _ = writeln!(text, "\nHeartbeats that it receives");
    table(&mut text, columns::BEATS, &cluster.nodes);
    Ok(text)
}

fn facts(base: &str, overview: &Overview) -> String {
    let version = match overview.commit.as_str() {
        "" => overview.version.clone(),
        commit => format!("{} ({commit})", overview.version),
    };
    let mut all = vec![
        ("server", format!("{base}, version {}", simurgh_text::visible(&version))),
        ("up for", time(overview.uptime_s)),
    ];
    all.extend(facts::server(overview));
    let parts = facts::memory(&overview.memory);
    all.extend(parts.map(|(name, amount, note)| (name, bytes(amount as f64) + note)));
    lines(all)
}

fn lines(facts: Vec<(&'static str, String)>) -> String {
    facts.into_iter().map(|(name, value)| format!("{name:<14}{value}\n")).collect()
}

fn table<T>(text: &mut String, columns: &[Column<T>], rows: &[T]) {
    let mut lines = vec![columns.iter().map(|column| column.label.to_owned()).collect()];
    lines.extend(rows.iter().map(|row| cells(columns, row)));
    let is_left = |at: usize| columns.get(at).is_some_and(|column| !column.is_number);
    text.push_str(&aligned(&lines, is_left));
}
