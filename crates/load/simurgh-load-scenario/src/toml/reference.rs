//! The reference of the language, docs/SCENARIOS.md, made from one table. Tests compare the table
//! with the parser and the page with the table.

use crate::figures::{self, ErrorKind, Metric};

/// Markdown in which a key is a line `key | takes | default | meaning | example`.
pub(super) const TABLE: &str = include_str!("reference.txt");

/// The reference of the scenario language, in Markdown.
pub fn reference() -> String {
    let mut out = String::new();
    let mut is_row = false;
    for line in TABLE.lines() {
        let was_row = std::mem::replace(&mut is_row, true);
        if let Some([key, takes, default, meaning, example]) = row(line) {
            if !was_row {
                out.push_str("\n| key | takes | default | meaning | example |\n");
                out.push_str("|---|---|---|---|---|\n");
            }
            out.push_str(&format!("| `{key}` | {takes} | {default} | {meaning} | `{example}` |\n"));
        } else {
            is_row = false;
            out.push_str(line);
            out.push('\n');
        }
    }
    let names = figures::names();
    let counts = names.iter().filter_map(|name| name.strip_suffix("_per_second"));
    out.replace("{metrics}", &listed(Metric::ALL.iter().map(|metric| metric.name())))
        .replace("{errors}", &listed(ErrorKind::PLAIN.iter().map(|kind| kind.name())))
        .replace("{counts}", &listed(counts))
}

/// The five fields of a key; `None` for any other line.
pub(super) fn row(line: &str) -> Option<[&str; 5]> {
    line.split(" | ").collect::<Vec<_>>().try_into().ok()
}

fn listed(names: impl Iterator<Item = impl AsRef<str>>) -> String {
    names.map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}
