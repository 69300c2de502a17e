//! A [`Report`] for people, and for programs.

use std::fmt::Write;

use serde_json::{Value, json};
use simurgh_text::wrapped;

use super::needs::{Holds, Report, Row, State, about, grouped};

/// Columns of the explanations; the table itself is as wide as its commands.
const WIDTH: usize = 100;

/// The table, why each small limit matters, and how many connections there can be.
pub(crate) fn text(report: &Report) -> String {
    let clients = match report.wanted.local_clients {
        true => "clients on this machine too",
        false => "clients on other machines",
    };
    let connections = grouped(report.wanted.connections);
    let cores = match report.cores {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    };
    let mut out = format!("{connections} connections, {clients}, {cores}\n\n");
    out += &rows(&report.rows);
    let (changeable, others): (Vec<&Row>, Vec<&Row>) = report
        .rows
        .iter()
        .filter(|row| row.state == State::TooSmall)
        .partition(|row| row.is_changeable());
    reasons(
        &mut out,
        "too low; --apply raises it until the next boot, --print sysctl makes it permanent",
        &changeable,
    );
    reasons(&mut out, "too low; tune cannot change it", &others);
    out.push('\n');
    if report.would_hold != report.holds {
        let sentence = holds("with --apply, this machine can hold", &report.would_hold);
        let _ = writeln!(out, "{sentence}");
    }
    let _ = writeln!(out, "{}", holds("this machine can hold", &report.holds));
    out
}

fn holds(start: &str, holds: &Holds) -> String {
    let shards = match holds.shards {
        1 => "1 shard".to_owned(),
        shards => format!("{} shards", grouped(shards)),
    };
    format!(
        "{start} about {} connections with {shards}; the first limit is {}",
        grouped(about(holds.connections)),
        holds.first_limit
    )
}

fn rows(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let mark = format!("{:<3}", mark(row.state));
        vec![mark, row.name.clone(), row.have.clone(), row.need.clone(), row.how.clone()]
    };
    let mut lines = vec![["", "limit", "have", "need", "how"].map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(line));
    simurgh_text::format::aligned(&lines, |column| !matches!(column, 2 | 3))
}

fn mark(state: State) -> &'static str {
    match state {
        State::Enough => "ok",
        State::TooSmall => "LOW",
        State::CannotTell => "?",
    }
}

fn reasons(out: &mut String, title: &str, rows: &[&Row]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:");
    for row in rows {
        let caps = match row.caps {
            Some(caps) => format!(" It limits the server to {} connections.", grouped(about(caps))),
            None => String::new(),
        };
        let text = format!("{}: {}.{caps}", row.name, row.why);
        out.push_str(&wrapped(&text, "  ", "    ", WIDTH));
    }
}

/// The same as JSON; numbers are exact, texts are those of the table.
pub(crate) fn json(report: &Report) -> String {
    let row = |row: &Row| {
        json!({
            "limit": row.name,
            "have": row.have,
            "need": row.need,
            "state": row.state,
            "how": row.how,
            "why": row.why,
            "holds_to_connections": row.caps,
            "can_apply": row.is_changeable(),
            "setting": row.setting,
        })
    };
    let value: Value = json!({
        "connections": report.wanted.connections,
        "local_clients": report.wanted.local_clients,
        "cores": report.cores,
        "shards": report.shards,
        "is_enough": report.is_enough(),
        "limits": report.rows.iter().map(row).collect::<Vec<_>>(),
        "holds": report.holds,
        "would_hold": report.would_hold,
    });
    format!("{value:#}\n")
}
